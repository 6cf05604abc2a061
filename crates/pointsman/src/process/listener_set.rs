//! Derives from the configuration the listeners of the data plane and the target that each follows.
//!
//! A service has one listener set for writers, and another one for readers if `replica_listen` is
//! configured, and a third one for clients of the sentinels if `sentinel_listen` is. All follow the
//! same discovery: the first through the target, the others through pools. Sessions report what
//! they notice to that discovery, but a hint from a reader concerns its replica and never the
//! master.

use std::sync::{Arc, OnceLock};

use proxy::{ListenAddr, Options};
use sentinel::{DiscoveryConfig, DiscoveryHandle, ReplicaRules, Replicas};
use target::{EmptyPool, PoolWriter, TargetReader, TargetSource, TargetWriter};

use crate::config::{Config, LogConfig, NoReplica, ServiceConfig};
use crate::process::session_options::options_to;
use crate::process::settings;

/// Suffix of the name of a listener set for readers. A master's name contains no slash.
pub const READERS: &str = "/replicas";
/// Suffix of the name of a listener set that leads to the sentinels.
pub const SENTINELS: &str = "/sentinels";

/// The nodes that a listener leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destinations {
    /// The master.
    Master,
    /// The replicas that serve reads.
    Replicas,
    /// The sentinels.
    Sentinels,
}

impl Destinations {
    /// The key of its addresses in the configuration.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Master => "service.listen",
            Self::Replicas => "service.replica_listen",
            Self::Sentinels => "service.sentinel_listen",
        }
    }
}

/// One listener of the data plane: a set of addresses with sessions of one kind.
#[derive(Debug, Clone)]
pub struct ListenerSet {
    /// Its name, in the data plane and for a process that its sockets are handed to.
    pub name: String,
    /// The index of its service in the configuration.
    pub service: usize,
    /// Its addresses.
    pub listen: Vec<ListenAddr>,
    /// The mode of its Unix socket files.
    pub mode: u32,
    /// The nodes that it leads to.
    pub to: Destinations,
}

/// Returns the listener sets of a configuration: one for each service in order, then those for
/// readers, then those for clients of the sentinels.
#[must_use]
pub fn all(config: &Config) -> Vec<ListenerSet> {
    let services = || config.services.iter().enumerate();
    let writers = services().map(|(service, it)| ListenerSet {
        name: it.name.clone(),
        service,
        listen: it.listen.clone(),
        mode: mode(it),
        to: Destinations::Master,
    });
    let readers =
        services().filter(|(_, it)| !it.replica_listen.is_empty()).map(|(service, it)| {
            ListenerSet {
                name: format!("{}{READERS}", it.name),
                service,
                listen: it.replica_listen.clone(),
                mode: mode(it),
                to: Destinations::Replicas,
            }
        });
    let sentinels =
        services().filter(|(_, it)| !it.sentinel_listen.is_empty()).map(|(service, it)| {
            ListenerSet {
                name: format!("{}{SENTINELS}", it.name),
                service,
                listen: it.sentinel_listen.clone(),
                mode: mode(it),
                to: Destinations::Sentinels,
            }
        });
    writers.chain(readers).chain(sentinels).collect()
}

/// The value was checked when it was read; the fallback grants access to the owner only.
fn mode(service: &ServiceConfig) -> u32 {
    u32::from_str_radix(&service.unix_socket_mode, 8).unwrap_or(0o600)
}

/// Returns the session options of every listener set, with its name. `limits` are the maximum
/// numbers of connections of each service.
pub(crate) fn options_of(config: &Config, limits: &[usize]) -> Vec<(String, Options)> {
    let all = all(config).into_iter().filter_map(|set| {
        let (service, limit) = (config.services.get(set.service)?, limits.get(set.service)?);
        Some((set.name, options_to(set.to, service, *limit, &config.log)))
    });
    all.collect()
}

/// The target of a service, and the channel by which its sessions send hints to discovery; they are
/// dropped before it is connected. Discovery must know our own addresses before it starts, and the
/// services must have their channels before they are bound, so it is connected in between.
#[derive(Clone)]
pub(crate) struct ServiceRoute {
    target: Arc<TargetReader>,
    discovery: Arc<OnceLock<DiscoveryHandle>>,
}

/// What publishes the nodes that a set leads to, if it is not the target itself.
pub(crate) enum SetPublisher {
    Target,
    Replicas(Replicas),
    Sentinels(PoolWriter),
}

impl ServiceRoute {
    fn new() -> (TargetWriter, Self) {
        let (writer, target) = TargetWriter::new();
        (writer, Self { target, discovery: Arc::default() })
    }

    /// Connects the hints of sessions with the discovery of their service.
    pub(crate) fn connect(&self, handle: &DiscoveryHandle) {
        let _first = self.discovery.set(handle.clone());
    }

    /// Prepares a listener set.
    pub(crate) fn set(
        &self,
        to: Destinations,
        service: &ServiceConfig,
        limit: usize,
        log: &LogConfig,
    ) -> (proxy::Service, SetPublisher) {
        let (suffix, route, hints, publisher): (_, TargetSource, Arc<dyn proxy::Hints>, _) =
            match to {
                Destinations::Master => (
                    "",
                    Arc::clone(&self.target).into(),
                    Arc::new(WriterHints(Arc::clone(&self.discovery))),
                    SetPublisher::Target,
                ),
                Destinations::Replicas => {
                    let (writer, pool) = PoolWriter::new(&self.target, empty(service));
                    let replicas = Replicas { rules: rules(service), writer };
                    let hints = Arc::new(ReaderHints(Arc::clone(&self.discovery)));
                    (READERS, pool.into(), hints, SetPublisher::Replicas(replicas))
                }
                Destinations::Sentinels => {
                    let (writer, pool) = PoolWriter::new(&self.target, EmptyPool::Reject);
                    let hints = Arc::new(proxy::NoHints);
                    (SENTINELS, pool.into(), hints, SetPublisher::Sentinels(writer))
                }
            };
        let name = format!("{}{suffix}", service.name).into();
        let options = options_to(to, service, limit, log).into();
        (proxy::Service { name, route, options, hints }, publisher)
    }
}

/// One service, prepared before anything of it runs.
pub(crate) struct WiredService {
    /// The services of the data plane, one per listener set.
    pub(crate) sets: Vec<(Destinations, proxy::Service)>,
    /// The discovery settings.
    pub(crate) watch: DiscoveryConfig,
    /// Its target.
    pub(crate) route: ServiceRoute,
}

impl WiredService {
    /// Prepares a service with at most `limit` connections per listener set.
    pub(crate) fn new(service: &ServiceConfig, limit: usize, log: &LogConfig) -> Self {
        let (target_writer, route) = ServiceRoute::new();
        let (mut sets, mut replicas, mut sentinels) = (Vec::new(), None, None);
        for to in destinations(service) {
            let (set, publisher) = route.set(to, service, limit, log);
            match publisher {
                SetPublisher::Target => {}
                SetPublisher::Replicas(it) => replicas = Some(it),
                SetPublisher::Sentinels(it) => sentinels = Some(it),
            }
            sets.push((to, set));
        }
        let watch = settings::discovery(service, target_writer, (replicas, sentinels));
        Self { sets, watch, route }
    }
}

/// Returns where the listeners of a service lead to.
pub(crate) fn destinations(service: &ServiceConfig) -> Vec<Destinations> {
    let optional = [
        (Destinations::Replicas, &service.replica_listen),
        (Destinations::Sentinels, &service.sentinel_listen),
    ];
    let used = optional.into_iter().filter(|(_, listen)| !listen.is_empty()).map(|(to, _)| to);
    std::iter::once(Destinations::Master).chain(used).collect()
}

/// Hints from sessions of writers. Connected before any session exists.
struct WriterHints(Arc<OnceLock<DiscoveryHandle>>);

impl proxy::Hints for WriterHints {
    fn hint(&self, _target: &target::Target, _hint: proxy::Hint) {
        // The machine checks by itself, whatever the hint was and whichever target it concerned,
        // and it limits how often.
        if let Some(handle) = self.0.get() {
            handle.hint();
        }
    }
}

/// Hints from sessions of readers.
struct ReaderHints(Arc<OnceLock<DiscoveryHandle>>);

impl proxy::Hints for ReaderHints {
    fn hint(&self, _target: &target::Target, hint: proxy::Hint) {
        // Replies of a replica are not evidence: it refuses writes as long as it exists.
        let news = matches!(hint, proxy::Hint::DialFailed(_) | proxy::Hint::UpstreamEnded);
        if let (true, Some(handle)) = (news, self.0.get()) {
            handle.hint_from_reader();
        }
    }
}

/// Returns what readers get while no replica is eligible.
pub(crate) fn empty(service: &ServiceConfig) -> EmptyPool {
    match service.replicas.empty {
        NoReplica::Reject => EmptyPool::Reject,
        NoReplica::Master => EmptyPool::Master,
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
        let sets = all(&config);
        let names: Vec<&str> = sets.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "b/replicas"]);
        assert_eq!(sets[2].listen, ["127.0.0.1:3".parse::<std::net::SocketAddr>().unwrap().into()]);
        let wire = |number: usize| {
            WiredService::new(&config.services[number], limits.services[number], &config.log)
        };
        let (first, second) = (wire(0), wire(1));
        let wired: Vec<&str> =
            first.sets.iter().chain(&second.sets).map(|(_, it)| &*it.name).collect();
        assert_eq!(wired, names);
        assert!(first.watch.replicas.is_none());
        let replicas = second.watch.replicas.as_ref().expect("readers");
        assert_eq!(
            (replicas.writer.pool().when_empty(), replicas.rules.clone()),
            (EmptyPool::Master, ReplicaRules::default())
        );
        assert_eq!(
            options_of(&config, &limits.services)
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
