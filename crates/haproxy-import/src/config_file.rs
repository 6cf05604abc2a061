//! A haproxy.cfg as a whole: lookups of sections, their lines, and the defaults that apply.

use std::collections::BTreeMap;

use crate::health_check::{self, HealthCheck, SentinelQuery};
use crate::sections::{Directive, Section, SectionKind};
use crate::values;
use crate::variables::Variables;

/// A Redis process as a server line names it: host in lower case, and port. Two listeners with one
/// server in common lead to the same dataset.
pub(super) type ServerId = (String, Option<u16>);

/// A server of a backend.
pub(super) struct ServerLine<'a> {
    pub(super) directive: &'a Directive,
    pub(super) address: String,
}

impl ServerLine<'_> {
    /// Its identity, where clients connect to `listen_port`.
    pub(super) fn id(&self, listen_port: Option<u16>) -> ServerId {
        match values::server(&self.address) {
            Some((host, port)) => (host.to_ascii_lowercase(), port.or(listen_port)),
            None => (self.address.to_ascii_lowercase(), None),
        }
    }

    /// Its host, if it is reached over TCP.
    pub(super) fn host(&self) -> Option<String> {
        values::server(&self.address).map(|(host, _)| host)
    }
}

/// All sections, with lookups by name, by position and of inherited settings.
pub(super) struct ConfigFile {
    pub(super) sections: Vec<Section>,
    /// The backends and listens.
    by_name: BTreeMap<String, usize>,
    /// The checks of each section.
    pub(super) checks: Vec<HealthCheck>,
}

/// The longest chain of defaults that is followed: a bound on the work.
const MAX_DEFAULTS: usize = 64;

impl ConfigFile {
    pub(super) fn new(sections: Vec<Section>, variables: &Variables<'_>) -> Self {
        let mut by_name = BTreeMap::new();
        for (index, section) in sections.iter().enumerate() {
            if matches!(section.kind, SectionKind::Listen | SectionKind::Backend) {
                by_name.entry(section.name.clone()).or_insert(index);
            }
        }
        let mut config = Self { sections, by_name, checks: Vec::new() };
        let check = |at| {
            let option = config.setting(at, "option redis-check");
            health_check::read(config.tcp_checks(at).chain(option), variables)
        };
        config.checks = (0..config.sections.len()).map(check).collect();
        config
    }

    /// The first line of a section.
    pub(super) fn head(&self, section: usize) -> Option<&Directive> {
        self.sections.get(section).map(|section| &section.head)
    }

    /// The lines of a section below its head.
    pub(super) fn directives(&self, section: usize) -> &[Directive] {
        self.sections.get(section).map_or(&[], |section| &section.directives)
    }

    /// The lines of a section that begin with a keyword.
    pub(super) fn lines(
        &self,
        section: usize,
        keyword: &'static str,
    ) -> impl Iterator<Item = &Directive> {
        self.directives(section).iter().filter(move |it| it.has_at(0, keyword))
    }

    /// The servers of a section; a template counts once.
    pub(super) fn servers(&self, section: usize) -> impl Iterator<Item = ServerLine<'_>> {
        self.directives(section).iter().filter_map(|directive| {
            let at = ["server", "server-template"].iter().position(|it| directive.has_at(0, it))?;
            Some(ServerLine { directive, address: directive.word(at + 2) })
        })
    }

    /// The checks of a section.
    pub(super) fn check(&self, section: usize) -> Option<&HealthCheck> {
        self.checks.get(section)
    }

    /// What the checks of a section ask the sentinels.
    pub(super) fn query(&self, section: usize) -> Option<&SentinelQuery> {
        self.check(section)?.sentinel.as_ref()
    }

    /// The backend or listen of this name.
    pub(super) fn backend(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// A section and its defaults.
    pub(super) fn chain(&self, section: usize) -> impl Iterator<Item = &Section> {
        let section = self.sections.get(section);
        let defaults = |it: &&Section| it.defaults.and_then(|at| self.sections.get(at));
        std::iter::successors(section, defaults).take(MAX_DEFAULTS)
    }

    /// The lines of a section after those of its defaults, which haproxy evaluates first.
    pub(super) fn defaults_first(&self, section: usize) -> impl Iterator<Item = &Directive> {
        let chain: Vec<&Section> = self.chain(section).collect();
        chain.into_iter().rev().flat_map(|it| &it.directives)
    }

    /// The `tcp-check` rules of a section. Its own replace all those of its defaults.
    pub(super) fn tcp_checks(&self, section: usize) -> impl Iterator<Item = &Directive> {
        let all = self.chain(section).map(|it| &it.directives);
        let mut rules = all.map(|it| it.iter().filter(|it| it.has_at(0, "tcp-check")).peekable());
        rules.find_map(|mut it| it.peek().is_some().then_some(it)).into_iter().flatten()
    }

    /// The `default-server` lines that apply to a section: its own, then those of its defaults.
    pub(super) fn default_servers(&self, section: usize) -> impl Iterator<Item = &Directive> {
        let all = self.chain(section).flat_map(|section| &section.directives);
        all.filter(|it| it.has_at(0, "default-server"))
    }

    /// The directive with these first words that applies to a section: the last of its own, else of
    /// its defaults.
    pub(super) fn setting(&self, section: usize, words: &str) -> Option<&Directive> {
        self.chain(section).find_map(|section| {
            section.directives.iter().rev().find(|directive| directive.begins(words))
        })
    }
}
