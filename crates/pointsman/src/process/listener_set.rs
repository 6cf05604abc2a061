//! Derives from the configuration the listeners of the data plane and the target that each follows.
//!
//! A service has one listener set for writers, and another one for readers if `replica_listen` is
//! configured, and a third one for clients of the sentinels if `sentinel_listen` is. All follow the
//! same discovery: the first through the target, the others through pools. Sessions report what
//! they notice to that discovery, but a hint from a reader concerns its replica and never the
//! master.

use std::sync::{Arc, OnceLock};

use proxy::{ListenAddr, Options, StatelessCommands};
use sentinel::{DiscoveryConfig, DiscoveryHandle, ReplicaRules, Replicas};
use target::{EmptyPool, PoolWriter, TargetWriter};

use crate::config::{
    Config, LogConfig, NoReplica, ServiceConfig, SessionLines, Sessions, Splice, Subscriptions,
};
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
/// readers, then those for clients of the sentinels. Their indices are those of the data plane's
/// services.
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

/// Returns the session options of every listener set, with its index and name. `limits` are the
/// maximum numbers of connections of each service.
pub(crate) fn options_of(config: &Config, limits: &[usize]) -> Vec<(usize, String, Options)> {
    let sets = all(config).into_iter().enumerate();
    let all = sets.filter_map(|(number, set)| {
        let (service, limit) = (config.services.get(set.service)?, limits.get(set.service)?);
        let make = match set.to {
            Destinations::Master => options,
            Destinations::Replicas => options_of_readers,
            Destinations::Sentinels => options_of_sentinels,
        };
        Some((number, set.name, make(service, *limit, &config.log)))
    });
    all.collect()
}

/// The services and discovery settings, prepared before anything is bound.
pub struct ServiceWiring {
    /// The services of the data plane, one per listener set.
    pub services: Vec<proxy::Service>,
    /// The discovery settings, in the order of the configuration.
    pub watches: Vec<DiscoveryConfig>,
    /// The channels by which sessions send hints to discovery.
    pub hints: HintChannels,
}

impl ServiceWiring {
    /// Prepares them. `limits` are the maximum numbers of connections of each service.
    #[must_use]
    pub fn new(config: &Config, limits: &[usize]) -> Self {
        let mut wiring =
            Self { services: Vec::new(), watches: Vec::new(), hints: HintChannels::default() };
        let (mut for_readers, mut for_sentinels) = (Vec::new(), Vec::new());
        for (service, limit) in config.services.iter().zip(limits) {
            let (points, route) = TargetWriter::new();
            let channel = Arc::<OnceLock<DiscoveryHandle>>::default();
            wiring.services.push(proxy::Service {
                name: Arc::from(service.name.as_str()),
                route: Arc::clone(&route).into(),
                options: options(service, *limit, &config.log).into(),
                hints: Arc::new(WriterHints(Arc::clone(&channel))),
            });
            let replicas = (!service.replica_listen.is_empty()).then(|| {
                let (writer, pool) = PoolWriter::new(&route, empty(service));
                for_readers.push(proxy::Service {
                    name: format!("{}{READERS}", service.name).into(),
                    route: pool.into(),
                    options: options_of_readers(service, *limit, &config.log).into(),
                    hints: Arc::new(ReaderHints(Arc::clone(&channel))),
                });
                Replicas { rules: rules(service), writer }
            });
            let sentinels = (!service.sentinel_listen.is_empty()).then(|| {
                let (writer, pool) = PoolWriter::new(&route, EmptyPool::Reject);
                for_sentinels.push(proxy::Service {
                    name: format!("{}{SENTINELS}", service.name).into(),
                    route: pool.into(),
                    options: options_of_sentinels(service, *limit, &config.log).into(),
                    hints: Arc::new(proxy::NoHints),
                });
                writer
            });
            wiring.watches.push(settings::discovery(service, points, (replicas, sentinels)));
            wiring.hints.0.push(channel);
        }
        // In the same order as `all` returns them.
        wiring.services.extend(for_readers);
        wiring.services.extend(for_sentinels);
        wiring
    }
}

/// The hint channels of all services; hints are dropped before they are connected. Discovery must
/// know our own addresses before it starts, and the services must have their hint channels before
/// they are bound, so the channels are connected in between.
#[derive(Default)]
pub struct HintChannels(Vec<Arc<OnceLock<DiscoveryHandle>>>);

impl HintChannels {
    /// Connects the hints of sessions with the discovery of their service, in the order of the
    /// configuration.
    pub fn connect(&self, handles: &[DiscoveryHandle]) {
        for (channel, handle) in self.0.iter().zip(handles) {
            let _first = channel.set(handle.clone());
        }
    }
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

/// Returns the options of a service's sessions.
pub(crate) fn options(service: &ServiceConfig, max_connections: usize, log: &LogConfig) -> Options {
    Options {
        connect_timeout: service.connect_timeout,
        hold_timeout: service.hold_timeout,
        client_idle_timeout: service.client_idle_timeout,
        first_byte_timeout: service.first_byte_timeout,
        half_close_timeout: service.half_close_timeout,
        silent_timeout: service.silent_timeout,
        sessions: match service.sessions {
            Sessions::Carry => proxy::Sessions::Carry,
            Sessions::Close => proxy::Sessions::Close,
        },
        subscriptions: match service.subscriptions {
            Subscriptions::Close => proxy::Subscriptions::Close,
            Subscriptions::Replay => proxy::Subscriptions::Replay,
        },
        // Every name was checked when the configuration was read.
        stateless_commands: StatelessCommands::new(
            service.stateless_commands.iter().map(String::as_str),
        )
        .unwrap_or_default(),
        maintenance_push: service.maintenance_push,
        moving_to: service.moving_to.as_deref().map(Arc::from),
        keepalive: service.tcp_keepalive,
        user_timeout: service.tcp_user_timeout,
        splice: match service.splice {
            Splice::On => proxy::Splice::On,
            Splice::Off => proxy::Splice::Off,
        },
        max_held: max_connections,
        max_connections,
        max_connections_per_source: service.max_connections_per_source,
        lines: access_log(log),
    }
}

/// Returns which session ends are logged.
fn access_log(log: &LogConfig) -> proxy::AccessLog {
    proxy::AccessLog {
        which: match log.sessions {
            SessionLines::Off => proxy::LoggedSessions::Off,
            SessionLines::Failed => proxy::LoggedSessions::Failed,
            SessionLines::All => proxy::LoggedSessions::All,
        },
        level: log.sessions_level.into(),
        one_in: u32::try_from(log.sessions_one_in).unwrap_or(u32::MAX),
    }
}

/// `moving_to` is an address for writers and does not apply to readers.
fn options_of_readers(service: &ServiceConfig, max_connections: usize, log: &LogConfig) -> Options {
    Options { moving_to: None, ..options(service, max_connections, log) }
}

/// Returns the options of sessions with a sentinel. None is carried to another sentinel: its
/// subscriptions refer to events that each sentinel publishes by itself.
fn options_of_sentinels(
    service: &ServiceConfig,
    max_connections: usize,
    log: &LogConfig,
) -> Options {
    Options {
        sessions: proxy::Sessions::Close,
        subscriptions: proxy::Subscriptions::Close,
        maintenance_push: false,
        moving_to: None,
        splice: proxy::Splice::Off,
        ..options(service, max_connections, log)
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
    fn numbers_sets_and_services_alike() {
        let config = config("replicas.empty = \"master\"").unwrap();
        let limits = config.connections(usize::MAX);
        let (sets, wiring) = (all(&config), ServiceWiring::new(&config, &limits.services));
        let names: Vec<&str> = sets.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "b/replicas"]);
        assert_eq!(wiring.services.iter().map(|it| &*it.name).collect::<Vec<_>>(), names);
        assert_eq!(sets[2].listen, ["127.0.0.1:3".parse::<std::net::SocketAddr>().unwrap().into()]);
        assert!(wiring.watches[0].replicas.is_none());
        let replicas = wiring.watches[1].replicas.as_ref().expect("readers");
        assert_eq!(
            (replicas.writer.pool().when_empty(), replicas.rules.clone()),
            (EmptyPool::Master, ReplicaRules::default())
        );
        assert_eq!(
            options_of(&config, &limits.services)
                .iter()
                .map(|it| it.1.as_str())
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
