//! The new configuration as data: services, the admin server, and settings of the process.

use std::collections::BTreeSet;

use super::config_file::{ConfigFile, Directive};
use super::health_check::{CheckLogin, Password};
use super::proxies::{self, Proxies, ServerId};
use super::report::{LineOutcome, Notes};
use super::sentinels::SentinelGroup;
use super::values::BindAddress;
use super::variables::Variables;
use super::{Environment, ImportOptions, Position, Refusal, settings};

/// A key with its value in TOML.
#[derive(Debug, Clone)]
pub(super) struct PlannedKey {
    pub(super) key: &'static str,
    pub(super) value: String,
    pub(super) position: Position,
}

/// An address to listen on, and the line that it comes from.
pub(super) type PlannedListen = (BindAddress, Position);

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

/// One `[[service]]`.
#[derive(Debug)]
pub(super) struct PlannedService {
    pub(super) name: String,
    pub(super) name_source: NameSource,
    /// The listener that it was made of, for messages.
    pub(super) listener: String,
    pub(super) listen: Vec<PlannedListen>,
    pub(super) replica_listen: Vec<PlannedListen>,
    pub(super) sentinels: Vec<String>,
    /// Where the first sentinel was found; none if they are assumed or given as an option.
    pub(super) sentinels_at: Option<Position>,
    pub(super) keys: Vec<PlannedKey>,
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
    pub(super) shutdown: Vec<PlannedKey>,
    pub(super) process: Vec<PlannedKey>,
    /// What loses its TLS, with the line.
    pub(super) plaintext: Vec<(Position, &'static str)>,
    /// Every password that the files contain; the report must contain none.
    pub(super) secrets: Vec<String>,
}

/// The input of planning.
pub(super) struct Context<'a> {
    pub(super) config: &'a ConfigFile,
    pub(super) options: &'a ImportOptions,
    pub(super) env: &'a Environment<'a>,
    pub(super) variables: &'a Variables<'a>,
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

/// Makes the plan.
pub(super) fn plan(context: &Context<'_>, notes: &mut Notes, refusals: &mut Vec<Refusal>) -> Plan {
    let Context { config, options, env, variables } = *context;
    let proxies = proxies::sort(config, variables);
    let mut planner =
        Planner { config, options, env, proxies: &proxies, notes, refusals, sentinel_groups: None };
    let mut plan = Plan { secrets: secrets(&proxies), ..Plan::default() };
    planner.add_services(&mut plan);
    planner.add_admin(&mut plan);
    planner.note_other_sections();
    planner.check_names();
    planner.check_tls(&mut plan);
    planner.check_addresses(&plan);
    if plan.services.is_empty() && planner.refusals.is_empty() {
        planner.refuse_without_services();
    }
    settings::apply(config, &proxies.listeners, &mut plan, planner.notes);
    plan
}

/// Passwords of all checks, used or not.
fn secrets(proxies: &Proxies) -> Vec<String> {
    let queries = proxies.checks.iter().filter_map(|check| check.sentinel.as_ref()?.login.as_ref());
    let logins = proxies.checks.iter().filter_map(|check| check.login.as_ref()).chain(queries);
    let literal = |login: &CheckLogin| match &login.password {
        Password::Literal(text) => Some(text.clone()),
        _ => None,
    };
    logins.filter_map(literal).collect()
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

    /// Refuses two listeners on one address: haproxy would spread clients over both.
    fn check_addresses(&mut self, plan: &Plan) {
        let services =
            plan.services.iter().flat_map(|it| it.listen.iter().chain(&it.replica_listen));
        let mut taken: Vec<&PlannedListen> = Vec::new();
        for listen in services.chain(&plan.admin) {
            match taken.iter().find(|(addr, _)| overlap(addr, &listen.0)) {
                Some((other, at)) => {
                    let message = format!("{} is already taken by {other} ({at})", listen.0);
                    let remedy = "give each its own address or port".to_owned();
                    self.refusals.push(Refusal::new(listen.1.clone(), message, remedy));
                }
                None => taken.push(listen),
            }
        }
    }

    fn refuse_without_services(&mut self) {
        let position = self.config.sections.first().map(|section| section.head.position.clone());
        let is_redis = |at: usize| self.proxies.checks.get(at).is_some_and(|check| check.is_redis);
        let message = if !self.proxies.listeners.is_empty() {
            "no listener leads to the master"
        } else if !self.proxies.sentinel_frontends.is_empty() {
            "no listener leads to Redis, only to sentinels"
        } else if self.proxies.foreign.iter().any(|at| is_redis(*at)) {
            "no frontend leads to the Redis servers of this file"
        } else {
            "no listener leads to Redis: no check sends its commands, and no server has port 6379"
        };
        self.refusals.push(Refusal {
            position,
            message: message.to_owned(),
            remedy: "pass the haproxy.cfg that Redis clients connect through".to_owned(),
        });
    }
}

fn overlap(one: &BindAddress, other: &BindAddress) -> bool {
    let (BindAddress::Tcp(one), BindAddress::Tcp(other)) = (one, other) else {
        return one == other;
    };
    let meets = one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port() && one.is_ipv4() == other.is_ipv4() && meets
}
