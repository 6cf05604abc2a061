//! The new configuration as data: services, the admin server, and settings of the process.

use std::collections::BTreeSet;

use crate::config_file::{ConfigFile, Directive};
use crate::health_check::CheckLogin;
use crate::proxies::{self, Proxies, ServerId};
use crate::report::{LineOutcome, Notes};
use crate::sentinel_group::SentinelGroup;
use crate::values::BindAddress;
use crate::{Environment, ImportOptions, Position, Refusal};

/// A key with its value in TOML.
#[derive(Debug, Clone)]
pub(super) struct PlannedKey {
    pub(super) key: &'static str,
    pub(super) value: String,
    pub(super) position: Position,
}

/// An address to listen on, and the line that it comes from.
pub(super) type PlannedListen = (BindAddress, Position);

/// Whether one of these addresses is that of a section.
pub(super) fn is_of(config: &ConfigFile, section: usize, listen: &[PlannedListen]) -> bool {
    let head = config.sections.get(section).map(|it| &it.head);
    let mut lines = proxies::directives(config, section).iter().chain(head);
    // Numbers first: file names are equal, and long to compare.
    let is_at = |at: &Position, it: &Position| at.line == it.line && at == it;
    lines.any(|line| listen.iter().any(|(_, position)| is_at(position, &line.position)))
}

/// Where the name of a service comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NameSource {
    /// `--name LISTENER=NAME`.
    Option,
    /// `--name NAME`.
    General,
    /// The only name that the rest of the file queries.
    Elsewhere,
    /// A query of its own checks.
    Query(Position),
    /// Sentinel's usual name.
    Assumed,
}

impl NameSource {
    pub(super) fn position(&self) -> Option<&Position> {
        if let Self::Query(at) = self { Some(at) } else { None }
    }

    /// What is assumed about the name.
    pub(super) fn assumption(&self) -> Option<&'static str> {
        match self {
            Self::Assumed => Some("is assumed: compare it with `sentinel monitor`"),
            Self::Elsewhere => Some("is taken from the rest of the file"),
            Self::Option | Self::General | Self::Query(_) => None,
        }
    }
}

/// One `[[service]]`.
#[derive(Debug)]
pub(super) struct PlannedService {
    /// Its own name, which no other service has.
    pub(super) name: String,
    /// Sentinel's name of the master.
    pub(super) master: String,
    /// Where the name of the master comes from.
    pub(super) name_source: NameSource,
    /// The listener that it was made of, for messages.
    pub(super) listener: String,
    pub(super) listen: Vec<PlannedListen>,
    pub(super) replica_listen: Vec<PlannedListen>,
    pub(super) sentinels: Vec<String>,
    /// Where the first sentinel was found; none if they are assumed or given as an option.
    pub(super) sentinels_at: Option<Position>,
    pub(super) keys: Vec<PlannedKey>,
    /// The `bind` lines with TLS, among those of `listen` and `replica_listen`.
    pub(super) tls_lines: BTreeSet<Position>,
    /// Tables for TLS, by name: of clients, of Redis and of the sentinels.
    pub(super) tables: Vec<(&'static str, Vec<PlannedKey>)>,
    /// Comments above the service.
    pub(super) comments: Vec<String>,
    pub(super) login: Option<CheckLogin>,
    pub(super) sentinel_login: Option<CheckLogin>,
    pub(super) servers: BTreeSet<ServerId>,
}

/// The whole configuration.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) services: Vec<PlannedService>,
    pub(super) admin: Vec<PlannedListen>,
    /// The table `[admin.tls]`.
    pub(super) admin_tls: Vec<PlannedKey>,
    pub(super) shutdown: Vec<PlannedKey>,
    pub(super) process: Vec<PlannedKey>,
    /// What loses its TLS, with the line.
    pub(super) plaintext: Vec<(Position, &'static str)>,
    /// Every password that the files contain; the report must contain none.
    pub(super) secrets: Vec<String>,
}

/// The state of planning: what it reads, and where it writes notes and refusals.
pub(super) struct Planner<'a> {
    pub(super) config: &'a ConfigFile,
    pub(super) options: &'a ImportOptions,
    pub(super) env: &'a Environment<'a>,
    pub(super) proxies: &'a Proxies,
    pub(super) notes: &'a mut Notes,
    pub(super) refusals: &'a mut Vec<Refusal>,
    /// The sentinels of the whole file, once they are needed.
    pub(super) sentinel_groups: Option<Vec<SentinelGroup<'a>>>,
}

impl<'a> Planner<'a> {
    pub(super) fn head(&self, section: usize) -> Option<&'a Directive> {
        let config: &'a ConfigFile = self.config;
        config.sections.get(section).map(|section| &section.head)
    }

    pub(super) fn note_head(&mut self, section: usize, outcome: LineOutcome, note: &str) {
        if let Some(head) = self.head(section) {
            self.notes.add(head, outcome, note);
        }
    }

    /// Refuses with the position of a section's head.
    pub(super) fn refuse(&mut self, section: usize, message: String, remedy: String) {
        if let Some(head) = self.head(section) {
            self.refusals.push(Refusal::new(head.position.clone(), message, remedy));
        }
    }
}
