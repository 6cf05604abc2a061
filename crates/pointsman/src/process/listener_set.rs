//! Derives from the configuration the listeners of the data plane and the target that each follows.
//!
//! A service has one listener set for writers, and another one for readers if `replica_listen` or
//! `replica_tls_listen` is configured, and a third one for clients of the sentinels. The addresses
//! for TLS are a part of their own of a set, with the same sessions otherwise. All follow the same
//! discovery: the first through the target, the others through pools. Sessions report what
//! they notice to that discovery, but a hint from a reader concerns its replica and never the
//! master.

use std::sync::Arc;

use proxy::{ListenAddr, Options, ServerCommands};
use sentinel::{DiscoveryHandle, ReplicaRules, Replicas};
use target::{EmptyPool, PoolWriter, TargetReader, TargetSource};

use crate::config::{Config, LogConfig, ServiceConfig};
use crate::process::session_options::options_to;
use crate::process::tls_servers::TlsServers;

/// Suffix of the name of a listener set for readers. A master's name contains no slash.
pub(crate) const READERS: &str = "/replicas";
/// Suffix of the name of a listener set that leads to the sentinels.
pub(crate) const SENTINELS: &str = "/sentinels";
/// Suffix of the name of the addresses for TLS.
pub(crate) const TLS: &str = "/tls";

/// The nodes that a listener leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Destinations {
    /// The master.
    Master,
    /// The replicas that serve reads.
    Replicas,
    /// The sentinels.
    Sentinels,
}

impl Destinations {
    /// All of them, in the order of the data plane.
    const ALL: [Self; 3] = [Self::Master, Self::Replicas, Self::Sentinels];

    /// The suffix of the names of their sets.
    fn suffix(self) -> &'static str {
        match self {
            Self::Master => "",
            Self::Replicas => READERS,
            Self::Sentinels => SENTINELS,
        }
    }

    /// The addresses that lead to them, and those for TLS.
    fn addresses(self, service: &ServiceConfig) -> [&Vec<ListenAddr>; 2] {
        let [master, replicas, sentinels] = service.addresses();
        match self {
            Self::Master => master,
            Self::Replicas => replicas,
            Self::Sentinels => sentinels,
        }
    }

    fn is_used(self, service: &ServiceConfig) -> bool {
        self == Self::Master || self.addresses(service).iter().any(|listen| !listen.is_empty())
    }
}

/// The addresses with sessions of one kind, or those of them for TLS.
#[derive(Debug, Clone)]
pub(crate) struct ListenerSet {
    /// Its name, also for a process that its sockets are handed to.
    pub name: String,
    /// The name of its set in the data plane, which addresses for TLS share with the others.
    pub set: String,
    /// Whether its clients speak TLS.
    pub tls: bool,
    /// The index of its service in the configuration.
    pub service: usize,
    /// Its addresses.
    pub listen: Vec<ListenAddr>,
    /// The mode of its Unix socket files.
    pub mode: u32,
    /// The nodes that it leads to.
    pub to: Destinations,
}

/// Returns the listener sets of a configuration: those of writers for each service in order, then
/// those of readers, then those of clients of the sentinels. Each is followed by its addresses for
/// TLS, if there are any.
pub(crate) fn all(config: &Config) -> Vec<ListenerSet> {
    let mut sets = Vec::new();
    for to in Destinations::ALL {
        for (number, service) in config.services.iter().enumerate() {
            if !to.is_used(service) {
                continue;
            }
            let [plain, tls] = to.addresses(service);
            let set = format!("{}{}", service.name, to.suffix());
            let plain = ListenerSet {
                name: set.clone(),
                set: set.clone(),
                tls: false,
                service: number,
                listen: plain.clone(),
                mode: mode(service),
                to,
            };
            let name = format!("{set}{TLS}");
            let with_tls = ListenerSet { name, tls: true, listen: tls.clone(), ..plain.clone() };
            sets.push(plain);
            sets.extend(Some(with_tls).filter(|it| !it.listen.is_empty()));
        }
    }
    sets
}

impl ListenerSet {
    /// The key of its addresses in the configuration.
    pub(crate) fn key(&self) -> &'static str {
        key(self.to, self.tls)
    }
}

/// The key of the addresses that a name with a suffix stands for.
pub(crate) fn key_of(name: &str) -> &'static str {
    let (set, tls) = name.strip_suffix(TLS).map_or((name, false), |set| (set, true));
    let mut with_suffix = [Destinations::Replicas, Destinations::Sentinels].into_iter();
    let to = with_suffix.find(|to| set.ends_with(to.suffix())).unwrap_or(Destinations::Master);
    key(to, tls)
}

/// The key of the addresses that lead to these nodes.
fn key(to: Destinations, tls: bool) -> &'static str {
    match (to, tls) {
        (Destinations::Master, false) => "service.listen",
        (Destinations::Master, true) => "service.tls_listen",
        (Destinations::Replicas, false) => "service.replica_listen",
        (Destinations::Replicas, true) => "service.replica_tls_listen",
        (Destinations::Sentinels, false) => "service.sentinel_listen",
        (Destinations::Sentinels, true) => "service.sentinel_tls_listen",
    }
}

/// The value was checked when it was read; the fallback grants access to the owner only.
fn mode(service: &ServiceConfig) -> u32 {
    u32::from_str_radix(&service.unix_socket_mode, 8).unwrap_or(0o600)
}

/// Returns the session options of every listener set, with its name. `limits` are the maximum
/// numbers of connections of each service.
pub(crate) fn options_of(
    config: &Config,
    limits: &[usize],
    tls: &TlsServers,
) -> Vec<(String, Options)> {
    let all = all(config).into_iter().filter_map(|set| {
        let (service, limit) = (config.services.get(set.service)?, limits.get(set.service)?);
        let listening = tls.listening(service);
        Some((set.name, options_to(set.to, service, *limit, &config.log, listening)))
    });
    all.collect()
}

/// The target of a service, and the discovery that its sessions send hints to.
#[derive(Clone)]
pub(crate) struct ServiceRoute {
    pub(crate) target: Arc<TargetReader>,
    pub(crate) discovery: DiscoveryHandle,
    /// What the master says of its commands.
    pub(crate) commands: ServerCommands,
}

/// What publishes the nodes that a set leads to, if it is not the target itself.
pub(crate) enum SetPublisher {
    Target,
    Replicas(Replicas),
    Sentinels(PoolWriter),
}

impl ServiceRoute {
    /// Prepares a listener set with at most `limit` connections.
    pub(crate) fn set(
        &self,
        to: Destinations,
        service: &ServiceConfig,
        limit: usize,
        log: &LogConfig,
        tls: &TlsServers,
    ) -> (proxy::Service, SetPublisher) {
        let (route, hints, publisher): (TargetSource, Arc<dyn proxy::Hints>, _) = match to {
            Destinations::Master => (
                Arc::clone(&self.target).into(),
                Arc::new(WriterHints(self.discovery.clone())),
                SetPublisher::Target,
            ),
            Destinations::Replicas => {
                let (writer, pool) = PoolWriter::new(&self.target, service.replicas.empty);
                let replicas = Replicas { rules: rules(service), writer };
                let hints = Arc::new(ReaderHints(self.discovery.clone()));
                (pool.into(), hints, SetPublisher::Replicas(replicas))
            }
            Destinations::Sentinels => {
                let (writer, pool) = PoolWriter::new(&self.target, EmptyPool::Reject);
                let hints = Arc::new(proxy::NoHints);
                (pool.into(), hints, SetPublisher::Sentinels(writer))
            }
        };
        let name = format!("{}{}", service.name, to.suffix()).into();
        let mut options = options_to(to, service, limit, log, tls.listening(service));
        options.stateless_commands = options.stateless_commands.with_server(&self.commands);
        (proxy::Service { name, route, options: options.into(), hints }, publisher)
    }
}

/// Returns where the listeners of a service lead to.
pub(crate) fn destinations(service: &ServiceConfig) -> Vec<Destinations> {
    Destinations::ALL.into_iter().filter(|to| to.is_used(service)).collect()
}

/// Hints from sessions of writers.
#[derive(Debug)]
struct WriterHints(DiscoveryHandle);

impl proxy::Hints for WriterHints {
    fn hint(&self, _target: &target::Target, _hint: proxy::Hint) {
        // The machine checks by itself, whatever the hint was and whichever target it concerned,
        // and it limits how often.
        self.0.hint();
    }
}

/// Hints from sessions of readers.
#[derive(Debug)]
struct ReaderHints(DiscoveryHandle);

impl proxy::Hints for ReaderHints {
    fn hint(&self, _target: &target::Target, hint: proxy::Hint) {
        // Replies of a replica are not evidence: it refuses writes as long as it exists.
        if matches!(hint, proxy::Hint::DialFailed(_) | proxy::Hint::UpstreamEnded) {
            self.0.hint_from_reader();
        }
    }
}

/// Returns the rules for eligible replicas.
pub(crate) fn rules(service: &ServiceConfig) -> ReplicaRules {
    let replicas = &service.replicas;
    ReplicaRules {
        max_lag_bytes: replicas.max_lag_bytes as u64,
        max_lag: replicas.max_lag,
        unanswered: replicas.unanswered,
        readmit: replicas.readmit_after,
        settle: replicas.settle,
        rebalance: replicas.rebalance_per_second,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Flags, load};

    /// Two services, the second one with readers and with `more` in its table.
    fn config(more: &str) -> Result<Config, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pointsman.toml");
        let service = |name: &str, port: u16| {
            format!(
                "[[service]]\nname=\"{name}\"\nsentinels=[\"s\"]\nlisten=[\"127.0.0.1:{port}\"]\n"
            )
        };
        let text = format!(
            "{}{}replica_listen=[\"127.0.0.1:3\"]\n{more}\n",
            service("a", 1),
            service("b", 2)
        );
        std::fs::write(&file, text).unwrap();
        let flags = Flags { config: Some(file), ..Flags::default() };
        load(&flags, []).config().map_err(|faults| format!("{faults}"))
    }

    #[test]
    fn names_sets_and_services_alike() {
        let config = config("replicas.empty = \"master\"").unwrap();
        let limits = config.connections(usize::MAX);
        let tls = TlsServers::new(&config).unwrap();
        let sets = all(&config);
        let names: Vec<&str> = sets.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "b/replicas"]);
        assert_eq!(sets[2].listen, ["127.0.0.1:3".parse::<std::net::SocketAddr>().unwrap().into()]);
        let readers = &config.services[1];
        assert_eq!(
            (readers.replicas.empty, rules(readers)),
            (EmptyPool::Master, ReplicaRules::default())
        );
        assert_eq!(
            options_of(&config, &limits.services, &tls)
                .iter()
                .map(|it| it.0.as_str())
                .collect::<Vec<_>>(),
            names
        );
    }

    #[test]
    fn limits_readers_separately() {
        let carried = config("").unwrap().connections(300);
        assert_eq!((carried.services, carried.total), (vec![100, 100], 300));
        let own = config("max_connections = 50").unwrap().connections(usize::MAX);
        assert_eq!((own.services[1], own.total), (50, 10_100));
    }

    #[test]
    fn rejects_ping_and_taken_addresses_for_readers() {
        let fault = config("verify = \"ping\"").unwrap_err();
        assert!(
            fault.contains("service.replica_listen") && fault.contains("verify = \"role\""),
            "{fault}"
        );
        let fault = config("[admin]\nlisten=[\"127.0.0.1:3\"]").unwrap_err();
        assert!(fault.contains("127.0.0.1:3 is already used by service.replica_listen"), "{fault}");
    }
}
