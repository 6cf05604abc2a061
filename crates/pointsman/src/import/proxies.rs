//! What a proxy of haproxy is in terms of Redis: which listeners there are, where each leads, and what is behind it.

use std::collections::BTreeSet;

use super::Place;
use super::checks::{self, AsksSentinel, Check, Login, Role};
use super::sections::{Book, Directive, Kind};
use super::units;

/// A listener with TCP traffic that ends at Redis.
#[derive(Debug)]
pub(super) struct Listener {
    /// Its section.
    pub(super) section: usize,
    pub(super) name: String,
    /// Its backends; a `listen` is its own.
    pub(super) backends: Vec<usize>,
    /// Backends that ask the sentinels on its behalf.
    pub(super) voters: Vec<usize>,
    pub(super) role: Option<Role>,
    /// How its checks authenticate at Redis.
    pub(super) login: Option<Login>,
    /// What its checks ask the sentinels.
    pub(super) asks: Vec<AsksSentinel>,
    /// Hosts of the servers behind it, as written.
    pub(super) servers: BTreeSet<String>,
}

/// What the sections are.
#[derive(Debug, Default)]
pub(super) struct Proxies {
    pub(super) listeners: Vec<Listener>,
    /// Sections of probes, statistics and metrics.
    pub(super) admin: Vec<usize>,
    /// Sections of other traffic.
    pub(super) foreign: Vec<usize>,
    /// What each section's checks say, by the section's number.
    pub(super) checks: Vec<Check>,
}

/// One server of a backend.
#[derive(Debug)]
pub(super) struct Server<'a> {
    pub(super) directive: &'a Directive,
    pub(super) address: String,
}

/// The servers of a section; a template counts once.
pub(super) fn servers(book: &Book, section: usize) -> impl Iterator<Item = Server<'_>> {
    let own = book.sections.get(section).map(|section| section.directives.as_slice()).unwrap_or_default();
    own.iter().filter_map(|directive| {
        let at = if directive.begins(&["server"]) {
            2
        } else if directive.begins(&["server-template"]) {
            3
        } else {
            return None;
        };
        Some(Server { directive, address: directive.word(at) })
    })
}

/// Sorts the sections.
pub(super) fn sort(book: &Book) -> Proxies {
    let checks: Vec<Check> = (0..book.sections.len()).map(|at| checks::read(book.effective(at))).collect();
    let mut proxies = Proxies { checks, ..Proxies::default() };
    for (at, section) in book.sections.iter().enumerate() {
        if !matches!(section.kind, Kind::Listen | Kind::Frontend) || book.setting(at, &["disabled"]).is_some() {
            continue;
        }
        let mode = book.setting(at, &["mode"]).map(|mode| mode.word(1));
        if matches!(mode.as_deref(), Some("http" | "health")) {
            if is_admin(book, at) || mode.as_deref() == Some("health") {
                proxies.admin.push(at);
            } else {
                proxies.foreign.push(at);
            }
            continue;
        }
        match listener(book, &proxies.checks, at) {
            Some(listener) => proxies.listeners.push(listener),
            None => proxies.foreign.push(at),
        }
    }
    proxies
}

fn is_admin(book: &Book, section: usize) -> bool {
    let own = book.sections.get(section).map(|section| section.directives.as_slice()).unwrap_or_default();
    own.iter().any(|it| {
        it.begins(&["monitor-uri"])
            || it.begins(&["stats"])
            || (it.begins(&["http-request"])
                && it.words.iter().any(|word| word.is("prometheus-exporter") || word.is("return")))
    })
}

fn listener(book: &Book, checks: &[Check], section: usize) -> Option<Listener> {
    let head = book.sections.get(section)?;
    let mut backends: Vec<usize> = Vec::new();
    let mut voters: Vec<usize> = Vec::new();
    if head.kind == Kind::Listen {
        backends.push(section);
    }
    for directive in &head.directives {
        if directive.begins(&["default_backend"]) || directive.begins(&["use_backend"]) {
            backends.extend(book.backend(&directive.word(1)));
        }
    }
    dedup(&mut backends);
    for at in std::iter::once(section).chain(backends.iter().copied()) {
        let own = book.sections.get(at).map(|section| section.directives.as_slice()).unwrap_or_default();
        for directive in own.iter().filter(|it| is_condition(it)) {
            let named = directive.words.iter().flat_map(|word| named_in(&word.to_string()));
            voters.extend(named.filter_map(|name| book.backend(&name)));
        }
    }
    dedup(&mut voters);
    let check = |at: &usize| checks.get(*at);
    let asks: Vec<AsksSentinel> =
        voters.iter().chain(&backends).filter_map(check).filter_map(|check| check.sentinel.clone()).collect();
    let role = backends.iter().filter_map(check).find_map(|check| check.role);
    let voted = voters.iter().filter_map(check).any(|check| check.sentinel.is_some());
    let is_redis = backends.iter().chain(&voters).filter_map(check).any(|check| check.is_redis)
        || backends.iter().any(|at| servers(book, *at).any(|server| server.address.ends_with(":6379")));
    is_redis.then(|| Listener {
        section,
        name: head.name.clone(),
        role: role.or(voted.then_some(Role::Master)),
        login: backends.iter().filter_map(check).find_map(|check| check.login.clone()),
        asks,
        servers: backends
            .iter()
            .flat_map(|at| servers(book, *at))
            .map(|server| units::server(&server.address).map_or(server.address, |(host, _)| host))
            .collect(),
        backends,
        voters,
    })
}

fn is_condition(directive: &Directive) -> bool {
    ["acl", "use_backend", "use-server", "tcp-request"].iter().any(|keyword| directive.begins(&[keyword]))
}

/// Whether a condition is about the state of backends.
pub(super) fn names_backends(directive: &Directive) -> bool {
    directive.words.iter().any(|word| !named_in(&word.to_string()).is_empty())
}

/// The backends that a condition names: `nbsrv(name)`, `srv_is_up(name/server)`.
fn named_in(word: &str) -> Vec<String> {
    let pieces = word.split(['(', ')']).collect::<Vec<_>>();
    let name = |pair: &[&str]| match pair {
        [function, name] if function.ends_with("nbsrv") || function.ends_with("srv_is_up") => {
            Some(name.split('/').next().unwrap_or_default().to_owned())
        }
        _ => None,
    };
    pieces.windows(2).filter_map(name).collect()
}

fn dedup(list: &mut Vec<usize>) {
    let mut seen = BTreeSet::new();
    list.retain(|at| seen.insert(*at));
}

/// A sentinel as a backend's server names it.
#[derive(Debug)]
pub(super) struct NamedSentinel {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) place: Place,
}

impl Proxies {
    /// The sentinels that a backend asks; the addresses that cannot be read come second.
    pub(super) fn sentinels<'a>(&self, book: &'a Book, backend: usize) -> (Vec<NamedSentinel>, Vec<&'a Directive>) {
        let Some(asks) = self.checks.get(backend).and_then(|check| check.sentinel.as_ref()) else {
            return (Vec::new(), Vec::new());
        };
        let (mut found, mut unread) = (Vec::new(), Vec::new());
        let general = book.effective(backend).find(|it| it.begins(&["default-server"]));
        let general = general.and_then(|it| checks::value_of(&it.words, "port")).and_then(|port| port.parse().ok());
        for server in servers(book, backend) {
            let Some((host, own)) = units::server(&server.address) else {
                unread.push(server.directive);
                continue;
            };
            let checked = checks::value_of(&server.directive.words, "port").and_then(|port| port.parse().ok());
            let port = asks.port.or(checked).or(general).or(own).unwrap_or(crate::config::SENTINEL_PORT);
            found.push(NamedSentinel { host, port, place: server.directive.place.clone() });
        }
        (found, unread)
    }
}
