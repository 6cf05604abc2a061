//! Sorts the sections of a haproxy.cfg: Redis listeners, Sentinel frontends, admin pages, others.

use std::collections::BTreeSet;

use crate::config_file::{ConfigFile, ServerId};
use crate::health_check::{CheckLogin, Role, SentinelQuery};
use crate::sections::{Directive, SectionKind};
use crate::values::{self, BindAddress};
use crate::{Position, SENTINEL_PORT};

/// A listener whose TCP traffic ends at Redis.
pub(super) struct RedisListener {
    /// Its section.
    pub(super) section: usize,
    /// The head of the section.
    pub(super) position: Position,
    pub(super) name: String,
    /// Sections with the servers that clients reach; a `listen` is its own.
    pub(super) backends: Vec<usize>,
    /// Backends that only query the sentinels, for the conditions of the others.
    pub(super) voters: Vec<usize>,
    pub(super) role: Option<Role>,
    /// How its checks authenticate at Redis.
    pub(super) login: Option<CheckLogin>,
    /// What its checks ask the sentinels.
    pub(super) queries: Vec<SentinelQuery>,
    /// All servers that clients can reach.
    pub(super) servers: BTreeSet<ServerId>,
    /// Whether its backends have different servers.
    pub(super) differs: bool,
    /// Whether a backend has servers of its own, and no sentinel's answer selects it: they may be
    /// another dataset.
    pub(super) has_strangers: bool,
    /// The first `use_backend` that depends on the client or its traffic.
    pub(super) routed_by: Option<Directive>,
    /// The first `use_backend` whose backend is computed or missing.
    pub(super) unknown_rule: Option<Directive>,
}

impl AsRef<Position> for RedisListener {
    fn as_ref(&self) -> &Position {
        &self.position
    }
}

/// The sections by purpose, each as an index into the list of all sections.
#[derive(Default)]
pub(super) struct Proxies {
    pub(super) listeners: Vec<RedisListener>,
    /// Listeners whose servers are sentinels, with their backends.
    pub(super) sentinel_frontends: Vec<(usize, Vec<usize>)>,
    /// Listeners whose servers are nodes of Redis Cluster or KeyDB, with their backends.
    pub(super) clusters: Vec<(usize, Vec<usize>)>,
    /// Sections of probes, statistics and metrics, with the backends that they use.
    pub(super) admin: Vec<(usize, Vec<usize>)>,
    /// `listen` without an address and without servers.
    pub(super) empty: Vec<usize>,
    /// Sections that are disabled.
    pub(super) disabled: Vec<usize>,
    /// Every other section with traffic.
    pub(super) foreign: Vec<usize>,
}

/// Whether the section has an address to listen on.
fn listens(config: &ConfigFile, section: usize) -> bool {
    config.lines(section, "bind").next().is_some()
}

/// Sorts the sections.
pub(super) fn sort(config: &ConfigFile) -> Proxies {
    let mut proxies = Proxies::default();
    for (at, section) in config.sections.iter().enumerate() {
        if !matches!(section.kind, SectionKind::Listen | SectionKind::Frontend) {
            continue;
        }
        let backends = backends(config, at);
        let mode = effective_mode(config, at, &backends);
        let is_served = backends.iter().any(|at| config.servers(*at).next().is_some());
        if config.setting(at, "disabled").is_some() {
            proxies.disabled.push(at);
        } else if !listens(config, at) && section.kind == SectionKind::Listen {
            // haproxy reads it as a backend.
            if !is_served {
                proxies.empty.push(at);
            }
        } else if mode == "health"
            || (mode == "http" && !is_served && is_admin(config, at, &backends))
        {
            proxies.admin.push((at, backends));
        } else if mode == "http" {
            proxies.foreign.push(at);
        } else if leads_to_sentinels(config, at, &backends) {
            proxies.sentinel_frontends.push((at, backends));
        } else if leads_to_cluster(config, &backends) {
            proxies.clusters.push((at, backends));
        } else if let Some(listener) = listener(config, at, backends) {
            proxies.listeners.push(listener);
        } else {
            proxies.foreign.push(at);
        }
    }
    proxies.add_unused_backends(config);
    proxies
}

/// The sections whose servers clients of this one can reach, itself included if it is a `listen`.
fn backends(config: &ConfigFile, section: usize) -> Vec<usize> {
    let is_listen = config.sections.get(section).is_some_and(|it| it.kind == SectionKind::Listen);
    // A section's own `default_backend` replaces that of its defaults.
    let default = config.setting(section, "default_backend");
    let rules = config.lines(section, "use_backend").chain(default);
    let named = rules.filter_map(|it| config.backend(&it.word(1)));
    distinct(is_listen.then_some(section).into_iter().chain(named))
}

/// The mode of a section, as far as its clients notice: haproxy speaks HTTP to the clients of a
/// frontend in mode tcp if its backend is in mode http.
fn effective_mode(config: &ConfigFile, section: usize, backends: &[usize]) -> String {
    let mode = |at: usize| config.setting(at, "mode").map(|mode| mode.word(1)).unwrap_or_default();
    let own = mode(section);
    let is_upgraded = !backends.is_empty() && backends.iter().all(|at| mode(*at) == "http");
    if is_upgraded && own != "health" { "http".to_owned() } else { own }
}

/// Whether a check asks for the state of nodes without a master and none asks a sentinel.
fn leads_to_cluster(config: &ConfigFile, backends: &[usize]) -> bool {
    let mut all = backends.iter().filter_map(|at| config.check(*at));
    all.clone().any(|it| it.has_no_master) && all.all(|it| it.sentinel.is_none())
}

fn is_admin(config: &ConfigFile, section: usize, backends: &[usize]) -> bool {
    let dynamic = config.lines(section, "use_backend").any(|it| is_dynamic(config, it));
    let all = std::iter::once(section).chain(backends.iter().copied());
    !dynamic
        && all.flat_map(|at| config.directives(at)).any(|it| {
            it.begins("monitor-uri")
                || it.begins("stats")
                || (it.has_at(0, "http-request")
                    && (it.has("prometheus-exporter") || it.has("return")))
        })
}

/// The ports that clients of a section connect to.
pub(super) fn listen_ports(config: &ConfigFile, section: usize) -> BTreeSet<u16> {
    let lists = config.lines(section, "bind").map(|it| it.word(1));
    let addrs = lists.filter_map(|it| values::bind_addresses(&it, false).ok()).flatten();
    let port = |addr: BindAddress| match addr {
        BindAddress::Tcp(addr) => Some(addr.port()),
        BindAddress::Unix(_) => None,
    };
    addrs.filter_map(port).collect()
}

/// The only port of a section, which is that of servers without one.
fn listen_port(config: &ConfigFile, section: usize) -> Option<u16> {
    let ports = listen_ports(config, section);
    ports.first().copied().filter(|_| ports.len() == 1)
}

/// Whether clients of this section reach sentinels: all servers are at Sentinel's port, or their
/// checks send `SENTINEL` to the very port that clients reach. A check for a
/// role shows that it is Redis.
fn leads_to_sentinels(config: &ConfigFile, section: usize, backends: &[usize]) -> bool {
    let port = listen_port(config, section);
    let has_port = |it: &Directive| it.value("port").is_some();
    let mut any = false;
    for at in backends {
        let Some(check) = config.check(*at) else { continue };
        let default = config.default_servers(*at).any(has_port);
        for server in config.servers(*at) {
            any = true;
            let own = server.id(port).1;
            let elsewhere = default || has_port(server.directive);
            let by_port = own == Some(SENTINEL_PORT) && check.role.is_none();
            let by_check = check.is_sentinel && !elsewhere && own != Some(6379);
            if !by_port && !by_check {
                return false;
            }
        }
    }
    any
}

fn listener(config: &ConfigFile, section: usize, backends: Vec<usize>) -> Option<RedisListener> {
    let head = config.sections.get(section)?;
    let sections = std::iter::once(section).chain(backends.iter().copied());
    let conditions = sections.flat_map(|at| config.directives(at)).filter(|it| is_condition(it));
    let named = conditions.flat_map(named_backends);
    let voters = distinct(named.filter_map(|name| config.backend(&name)));
    let check = |at: &usize| config.check(*at);
    let own = config.directives(section);
    let rule = |is_it: &dyn Fn(&[Directive], &Directive) -> bool| {
        own.iter().find(|it| it.begins("use_backend") && is_it(own, it)).cloned()
    };
    let query = |at: &usize| config.query(*at).cloned();
    let queries: Vec<SentinelQuery> = voters.iter().chain(&backends).filter_map(query).collect();
    let role = role_of(config, section, &backends);
    let port = listen_port(config, section);
    let servers_of = |at: &usize| -> BTreeSet<ServerId> {
        config.servers(*at).map(|server| server.id(port)).collect()
    };
    let mut sets: Vec<BTreeSet<ServerId>> = backends.iter().map(servers_of).collect();
    sets.retain(|set| !set.is_empty());
    let (selected, others): (Vec<usize>, Vec<usize>) =
        backends.iter().partition(|at| is_selected(config, section, **at));
    let known: BTreeSet<ServerId> = selected.iter().flat_map(servers_of).collect();
    let differs = sets.iter().any(|set| sets.first() != Some(set));
    let is_strange = |set: BTreeSet<ServerId>| !set.is_empty() && set.is_disjoint(&known);
    let has_strangers = differs && others.iter().map(servers_of).any(is_strange);
    let servers: BTreeSet<ServerId> = sets.into_iter().flatten().collect();
    let is_redis = backends.iter().chain(&voters).filter_map(check).any(|check| check.is_redis)
        || servers.iter().any(|(_, port)| *port == Some(6379));
    (is_redis && !servers.is_empty()).then(|| RedisListener {
        section,
        position: head.head.position.clone(),
        name: head.name.clone(),
        role: role.or(queries.iter().any(|it| it.finds_master).then_some(Role::Master)),
        login: backends.iter().filter_map(check).find_map(|check| check.login.clone()),
        queries,
        servers,
        differs,
        has_strangers,
        routed_by: rule(&|own, it| !is_about_health(own, it)),
        unknown_rule: rule(&|_, it| is_dynamic(config, it)),
        backends,
        voters,
    })
}

/// The role of a section's default, which `use_backend` without a condition is as well; else of
/// its first backend with a role.
fn role_of(config: &ConfigFile, section: usize, backends: &[usize]) -> Option<Role> {
    let rule = config.lines(section, "use_backend").find(|it| it.words.len() == 2);
    let rule = rule.or_else(|| config.setting(section, "default_backend"));
    let default = rule.and_then(|it| config.backend(&it.word(1)));
    let role = |at: usize| config.check(at)?.role;
    let mut roles = backends.iter().filter_map(|at| role(*at));
    match default {
        Some(at) => role(at).or_else(|| roles.find(|it| *it == Role::Master)),
        None => roles.next(),
    }
}

/// Whether an answer of sentinels leads the clients of a section to a backend: its own check asks
/// them, or a condition demands enough votes. One that demands few, as for a standby site, leads
/// away from the master that they name.
fn is_selected(config: &ConfigFile, section: usize, at: usize) -> bool {
    let queries = |at: usize| config.query(at).is_some();
    let is_less = |directive: &Directive| {
        ["unless", "lt", "le", "eq"].iter().any(|it| directive.has(it))
            || directive.words.iter().any(|it| it.to_string().starts_with('!'))
    };
    let votes = |directive: &Directive| {
        let mut named = named_backends(directive).into_iter();
        !is_less(directive) && named.any(|name| config.backend(&name).is_some_and(queries))
    };
    let by_rule = |rule: &Directive| {
        let terms = rule.rest(2);
        let mut named = config.lines(section, "acl").filter(|acl| terms.contains(&acl.word(1)));
        !is_less(rule) && (votes(rule) || named.any(votes))
    };
    let is_rule = |it: &&Directive| config.backend(&it.word(1)) == Some(at);
    let mut rules = config.lines(section, "use_backend").filter(is_rule);
    let within = config.directives(at).iter().filter(|it| is_condition(it));
    queries(at) || within.into_iter().any(votes) || rules.any(by_rule)
}

/// Whether the backend is computed, or missing.
fn is_dynamic(config: &ConfigFile, rule: &Directive) -> bool {
    config.backend(&rule.word(1)).is_none()
}

/// Whether every term of a condition is about backends' health. `own` has the section's ACLs.
pub(super) fn is_about_health(own: &[Directive], directive: &Directive) -> bool {
    let is_health = |words: &[String]| words.iter().any(|word| !backends_in(word).is_empty());
    let words = directive.rest(2);
    let mut terms = words.iter();
    while let Some(term) = terms.next() {
        let healthy = match term.trim_start_matches('!') {
            "if" | "unless" | "or" | "||" | "" | "TRUE" | "FALSE" => true,
            "{" => {
                is_health(&terms.by_ref().take_while(|it| *it != "}").cloned().collect::<Vec<_>>())
            }
            name => own.iter().filter(|it| it.is_acl(name)).any(names_backends),
        };
        if !healthy {
            return false;
        }
    }
    true
}

fn is_condition(directive: &Directive) -> bool {
    ["acl", "use_backend", "use-server", "tcp-request"].iter().any(|it| directive.begins(it))
}

/// Whether a condition is about the health of backends.
pub(super) fn names_backends(directive: &Directive) -> bool {
    !named_backends(directive).is_empty()
}

fn named_backends(directive: &Directive) -> Vec<String> {
    directive.words.iter().flat_map(|word| backends_in(&word.to_string())).collect()
}

/// The backends that a condition names: `nbsrv(name)`, `srv_is_up(name/server)`.
fn backends_in(word: &str) -> Vec<String> {
    let pieces = word.split(['(', ')']).collect::<Vec<_>>();
    let name = |pair: &[&str]| match pair {
        [function, name] if function.ends_with("nbsrv") || function.ends_with("srv_is_up") => {
            Some(name.split('/').next().unwrap_or_default().to_owned())
        }
        _ => None,
    };
    pieces.windows(2).filter_map(name).collect()
}

fn distinct(sections: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut seen = BTreeSet::new();
    sections.filter(|at| seen.insert(*at)).collect()
}

impl Proxies {
    /// Sections that serve the Redis listeners.
    pub(super) fn serving(&self) -> impl Iterator<Item = usize> {
        self.listeners.iter().flat_map(|it| it.backends.iter().chain(&it.voters)).copied()
    }

    /// Adds to the foreign sections the backends that no Redis listener and no admin page uses. A
    /// backend that queries sentinels counts as used: it may be a voter in a way not understood.
    fn add_unused_backends(&mut self, config: &ConfigFile) {
        let with_backends = [&self.sentinel_frontends, &self.clusters, &self.admin];
        let others = with_backends.into_iter().flatten().flat_map(|(_, backends)| backends);
        let others = others.chain(&self.empty).chain(&self.disabled);
        let used: BTreeSet<usize> = self.serving().chain(others.copied()).collect();
        for (at, section) in config.sections.iter().enumerate() {
            let is_backend = match section.kind {
                SectionKind::Backend => true,
                SectionKind::Listen => !listens(config, at),
                _ => false,
            };
            if is_backend && !used.contains(&at) && config.query(at).is_none() {
                self.foreign.push(at);
            }
        }
    }
}
