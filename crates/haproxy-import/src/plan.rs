//! The new configuration as data, and the planner that makes it: it calls the parts in order and
//! checks what concerns all of them.

use std::collections::BTreeSet;

use crate::config_file::ConfigFile;
use crate::health_check::{CheckLogin, HealthCheck, Password};
use crate::proxies::{self, Proxies, RedisListener};
use crate::report::Notes;
use crate::sentinel_group::SentinelGroup;
use crate::tokenizer::safe_word;
use crate::values::{self, BindAddress};
use crate::{Environment, ImportOptions, Position, Refusal};

/// A key with its value in TOML.
#[derive(Debug, Clone)]
pub(super) struct PlannedKey {
    pub(super) key: &'static str,
    pub(super) value: String,
    pub(super) position: Position,
}

/// An address to listen on, and the line that it comes from.
pub(super) struct PlannedListen {
    pub(super) addr: BindAddress,
    pub(super) position: Position,
    pub(super) has_tls: bool,
}

/// A listener for a master, with the master's name.
pub(super) struct NamedListener<'a> {
    pub(super) listener: &'a RedisListener,
    /// What Sentinel calls the master.
    pub(super) master: String,
    /// The query of its own checks that has the name.
    pub(super) named_at: Option<Position>,
    /// What is assumed about the name.
    pub(super) assumption: Option<&'static str>,
    /// Whether `--name LISTENER=NAME` gives it.
    pub(super) is_given: bool,
}

/// One `[[service]]`.
pub(super) struct PlannedService<'a> {
    /// Its own name, which no other service has.
    pub(super) name: String,
    /// The listener that it was made of, with Sentinel's name of the master.
    pub(super) first: NamedListener<'a>,
    /// All listeners of its addresses for the master.
    pub(super) masters: Vec<&'a RedisListener>,
    /// All listeners of its addresses for readers.
    pub(super) readers: Vec<&'a RedisListener>,
    pub(super) listen: Vec<PlannedListen>,
    pub(super) replica_listen: Vec<PlannedListen>,
    pub(super) sentinels: Vec<String>,
    /// Where the first sentinel was found; none if they are assumed or given as an option.
    pub(super) sentinels_at: Option<Position>,
    pub(super) keys: Vec<PlannedKey>,
    /// Tables for TLS, by name: of clients, of Redis and of the sentinels.
    pub(super) tables: Vec<(&'static str, Vec<PlannedKey>)>,
    /// Comments above the service.
    pub(super) comments: Vec<String>,
    pub(super) login: Option<CheckLogin>,
    pub(super) sentinel_login: Option<CheckLogin>,
}

/// The whole configuration.
#[derive(Default)]
pub(super) struct Plan<'a> {
    pub(super) services: Vec<PlannedService<'a>>,
    pub(super) admin: Vec<PlannedListen>,
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
    pub(super) notes: Notes,
    pub(super) refusals: Vec<Refusal>,
    /// The sentinels of the whole file, once they are needed.
    pub(super) sentinel_groups: Option<Vec<SentinelGroup<'a>>>,
}

impl<'a> Planner<'a> {
    /// Makes the plan.
    pub(super) fn plan(&mut self) -> Plan<'a> {
        let mut plan = Plan { secrets: secrets(&self.config.checks), ..Plan::default() };
        self.refuse_ports();
        self.add_services(&mut plan);
        self.add_admin(&mut plan);
        self.note_other_sections();
        self.add_client_rules(&mut plan);
        self.check_names();
        self.add_tls(&mut plan);
        self.check_addresses(&plan);
        self.note_options();
        if plan.services.is_empty() && self.refusals.is_empty() {
            self.refuse_without_services();
        }
        self.add_settings(&mut plan);
        plan
    }

    /// Refuses because of a line.
    pub(super) fn refuse(
        &mut self,
        line: &impl AsRef<Position>,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.refusals.push(Refusal::new(line, message, remedy));
    }

    /// Refuses two listeners on one address: haproxy would spread clients over both.
    fn check_addresses(&mut self, plan: &Plan<'_>) {
        let services =
            plan.services.iter().flat_map(|it| it.listen.iter().chain(&it.replica_listen));
        let mut taken: Vec<&PlannedListen> = Vec::new();
        for listen in services.chain(&plan.admin) {
            match taken.iter().find(|other| overlap(&other.addr, &listen.addr)) {
                Some(PlannedListen { addr, position, .. }) => {
                    let message =
                        format!("{} is already taken by {addr} ({position})", listen.addr);
                    self.refuse(&listen.position, message, "give each its own address or port");
                }
                None => taken.push(listen),
            }
        }
    }

    /// Refuses servers at port 0, or at a port that depends on that of their client: nothing says
    /// where Redis listens. Charts write port 0 where Redis accepts TLS only.
    fn refuse_ports(&mut self) {
        let sections: BTreeSet<usize> = self.proxies.serving().collect();
        for section in sections {
            let listeners =
                self.proxies.listeners.iter().filter(|it| it.backends.contains(&section));
            let ports: BTreeSet<u16> =
                listeners.flat_map(|it| proxies::listen_ports(self.config, it.section)).collect();
            for server in self.config.servers(section) {
                let port = server.address.rsplit_once(':').map_or("", |(_, port)| port);
                let is_absent = matches!(values::server(&server.address), Some((_, None)));
                let shown = safe_word(&server.address);
                let message = if is_absent && ports.len() > 1 {
                    let ports: Vec<String> = ports.iter().map(ToString::to_string).collect();
                    let ports = ports.join(", ");
                    format!("{shown} has no port, and its clients use several: {ports}")
                } else if port.starts_with(['+', '-']) {
                    format!("{shown} has a port relative to that of its client")
                } else if port.parse::<u16>() == Ok(0) {
                    format!("{shown} has port 0, at which nothing can be reached")
                } else {
                    continue;
                };
                let remedy = "write the port of Redis; if Redis accepts TLS only, the port of TLS \
                              and `ssl verify required ca-file FILE`";
                self.refuse(server.directive, message, remedy);
            }
        }
    }

    fn refuse_without_services(&mut self) {
        let position = self.config.sections.first().map(|section| section.head.position.clone());
        let is_redis = |at: usize| self.config.check(at).is_some_and(|check| check.is_redis);
        let message = if !self.proxies.listeners.is_empty() {
            "no listener leads to the master"
        } else if !self.proxies.sentinel_frontends.is_empty() {
            "no listener leads to Redis, only to sentinels"
        } else if !self.proxies.clusters.is_empty() {
            "no listener leads to a master of Sentinel, only to Redis Cluster or KeyDB"
        } else if self.proxies.foreign.iter().any(|at| is_redis(*at)) {
            "no frontend leads to the Redis servers of this file"
        } else {
            "no listener leads to Redis: no check sends its commands, and no server has port 6379"
        };
        let remedy = "pass the haproxy.cfg that Redis clients connect through";
        self.refusals.push(Refusal { position, ..Refusal::general(message, remedy) });
    }
}

/// Passwords of all checks, used or not.
fn secrets(checks: &[HealthCheck]) -> Vec<String> {
    let queries = checks.iter().filter_map(|check| check.sentinel.as_ref()?.login.as_ref());
    let logins = checks.iter().filter_map(|check| check.login.as_ref()).chain(queries);
    let literal = |login: &CheckLogin| match &login.password {
        Password::Literal(text) => Some(text.clone()),
        _ => None,
    };
    logins.filter_map(literal).collect()
}

fn overlap(one: &BindAddress, other: &BindAddress) -> bool {
    let (BindAddress::Tcp(one), BindAddress::Tcp(other)) = (one, other) else {
        return one == other;
    };
    let meets = one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port() && one.is_ipv4() == other.is_ipv4() && meets
}
