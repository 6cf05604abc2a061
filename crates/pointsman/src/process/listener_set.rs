//! From the configuration to the listeners of the data plane and to what discovery moves for them.
//!
//! A service has one plane for those who write, and one more for readers where replicas are asked
//! for. Both follow what the same discovery decides: the one by the points, the other by the pool
//! beside them. What a session notices goes back to that discovery, but a reader's word is about
//! its replica and never about the master.

use std::sync::{Arc, OnceLock};

use proxy::{ListenAddr, Options, StatelessCommands};
use sentinel::{Handle, ReplicaRules, Replicas, Watch};
use target::{Empty, PoolWriter, TargetWriter};

use crate::config::{
    Config, LogConfig, NoReplica, ServiceConfig, SessionLines, Sessions, Splice, Subscriptions,
};
use crate::process::watch;

/// What a data plane's service for readers is called: no master's name has a slash in it.
pub const READERS: &str = "/replicas";

/// One listener of the data plane: a set of addresses with sessions of one kind.
#[derive(Debug, Clone)]
pub struct Plane {
    /// What it is called, in the data plane and to whoever is handed its sockets.
    pub name: String,
    /// The number of its service in the configuration.
    pub service: usize,
    /// Its addresses.
    pub listen: Vec<ListenAddr>,
    /// The mode of its Unix sockets' files.
    pub mode: u32,
    /// Its sessions go to replicas.
    pub reads: bool,
}

/// The planes of a configuration: one for each service in its order, then those for readers. Their
/// numbers are those of the data plane's services.
#[must_use]
pub fn of(config: &Config) -> Vec<Plane> {
    let services = || config.services.iter().enumerate();
    let writers = services().map(|(service, it)| Plane {
        name: it.name.clone(),
        service,
        listen: it.listen.clone(),
        mode: mode(it),
        reads: false,
    });
    let readers =
        services().filter(|(_, it)| !it.replica_listen.is_empty()).map(|(service, it)| Plane {
            name: format!("{}{READERS}", it.name),
            service,
            listen: it.replica_listen.clone(),
            mode: mode(it),
            reads: true,
        });
    writers.chain(readers).collect()
}

/// Checked when it was read; what cannot be read is nobody's.
fn mode(service: &ServiceConfig) -> u32 {
    u32::from_str_radix(&service.unix_socket_mode, 8).unwrap_or(0o600)
}

/// The settings of every plane's sessions, with its number and name. `limits` are the most
/// connections of each service.
pub(crate) fn options_of(config: &Config, limits: &[usize]) -> Vec<(usize, String, Options)> {
    let planes = of(config).into_iter().enumerate();
    let settled = planes.filter_map(|(number, plane)| {
        let (service, limit) = (config.services.get(plane.service)?, limits.get(plane.service)?);
        let settle = if plane.reads { options_of_readers } else { options };
        Some((number, plane.name, settle(service, *limit, &config.log)))
    });
    settled.collect()
}

/// Everything that is laid out before anything is bound.
pub struct Layout {
    /// The services of the data plane, one a plane.
    pub services: Vec<proxy::Service>,
    /// What discovery is to watch, in the order of the configuration.
    pub watches: Vec<Watch>,
    /// Who hears what sessions notice.
    pub ears: Ears,
}

impl Layout {
    /// Lays it out. `limits` are the most connections of each service.
    #[must_use]
    pub fn new(config: &Config, limits: &[usize]) -> Self {
        let mut layout = Self { services: Vec::new(), watches: Vec::new(), ears: Ears::default() };
        let mut for_readers = Vec::new();
        for (service, limit) in config.services.iter().zip(limits) {
            let (points, route) = TargetWriter::new();
            let ear = Arc::<OnceLock<Handle>>::default();
            layout.services.push(proxy::Service {
                name: Arc::from(service.name.as_str()),
                route: Arc::clone(&route).into(),
                options: options(service, *limit, &config.log).into(),
                hints: Arc::new(Ear(Arc::clone(&ear))),
            });
            let replicas = (!service.replica_listen.is_empty()).then(|| {
                let (writer, pool) = PoolWriter::new(&route, empty(service));
                for_readers.push(proxy::Service {
                    name: format!("{}{READERS}", service.name).into(),
                    route: pool.into(),
                    options: options_of_readers(service, *limit, &config.log).into(),
                    hints: Arc::new(ReadersEar(Arc::clone(&ear))),
                });
                Replicas { rules: rules(service), writer }
            });
            layout.watches.push(watch::watch(service, points, replicas));
            layout.ears.0.push(ear);
        }
        // As in `of`.
        layout.services.extend(for_readers);
        layout
    }
}

/// The ears of all services, which hear nothing before they are connected. Discovery has to know
/// our own addresses before it starts, and the services have to know discovery before they are
/// bound; so this comes in between.
#[derive(Default)]
pub struct Ears(Vec<Arc<OnceLock<Handle>>>);

impl Ears {
    /// Connects the sessions' hints with the discovery of their service, in the order of the
    /// configuration.
    pub fn connect(&self, handles: &[Handle]) {
        for (ear, handle) in self.0.iter().zip(handles) {
            let _first = ear.set(handle.clone());
        }
    }
}

/// Discovery's ear for those who write; filled in before any session exists.
struct Ear(Arc<OnceLock<Handle>>);

impl proxy::Hints for Ear {
    fn hint(&self, _target: &target::Target, _hint: proxy::Hint) {
        // Whatever it was, and whichever target it was about: the machine looks for itself, and
        // backs off.
        if let Some(handle) = self.0.get() {
            handle.hint();
        }
    }
}

/// The same for readers.
struct ReadersEar(Arc<OnceLock<Handle>>);

impl proxy::Hints for ReadersEar {
    fn hint(&self, _target: &target::Target, hint: proxy::Hint) {
        // What a replica replies is no news: it refuses writes as long as it lives.
        let news = matches!(hint, proxy::Hint::DialFailed(_) | proxy::Hint::UpstreamEnded);
        if let (true, Some(handle)) = (news, self.0.get()) {
            handle.hint_by_a_reader();
        }
    }
}

/// The settings of a service's sessions, readers or not.
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
        lines: lines(log),
    }
}

/// The rule for the lines at sessions' ends.
fn lines(log: &LogConfig) -> proxy::AccessLog {
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

/// The address that writers are told to move to is not the readers'.
fn options_of_readers(service: &ServiceConfig, max_connections: usize, log: &LogConfig) -> Options {
    Options { moving_to: None, ..options(service, max_connections, log) }
}

fn empty(service: &ServiceConfig) -> Empty {
    match service.replicas.empty {
        NoReplica::Reject => Empty::Reject,
        NoReplica::Master => Empty::Master,
    }
}

fn rules(service: &ServiceConfig) -> ReplicaRules {
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

    /// Two services, the second one with readers and `more` in its table.
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
    fn the_planes_and_what_is_laid_out_have_one_numbering() {
        let config = config("replicas.empty = \"master\"").unwrap();
        let limits = config.connections(usize::MAX);
        let (planes, layout) = (of(&config), Layout::new(&config, &limits.services));
        let names: Vec<&str> = planes.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "b/replicas"]);
        assert_eq!(layout.services.iter().map(|it| &*it.name).collect::<Vec<_>>(), names);
        assert_eq!(
            planes[2].listen,
            ["127.0.0.1:3".parse::<std::net::SocketAddr>().unwrap().into()]
        );
        assert!(layout.watches[0].replicas.is_none());
        let replicas = layout.watches[1].replicas.as_ref().expect("readers");
        assert_eq!(
            (replicas.writer.pool().empty(), replicas.rules.clone()),
            (Empty::Master, ReplicaRules::default())
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
    fn readers_count_by_themselves() {
        let carried = config("").unwrap().connections(300);
        assert_eq!((carried.services, carried.total), (vec![100, 100], 300));
        let own = config("max_connections = 50").unwrap().connections(usize::MAX);
        assert_eq!((own.services[1], own.total), (50, 10_100));
    }

    #[test]
    fn what_cannot_be_told_from_a_master_and_what_is_taken_already_are_faults() {
        let fault = config("verify = \"ping\"").unwrap_err();
        assert!(
            fault.contains("service.replica_listen") && fault.contains("verify = \"role\""),
            "{fault}"
        );
        let fault = config("[admin]\nlisten=[\"127.0.0.1:3\"]").unwrap_err();
        assert!(fault.contains("127.0.0.1:3 is already used by service.replica_listen"), "{fault}");
    }
}
