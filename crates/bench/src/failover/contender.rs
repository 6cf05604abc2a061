//! The contenders: what stands between the clients and the master, and how it is started.
//!
//! All of them serve the same failover, each with clients of its own.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::ValueEnum;
use harness::{
    Authority, Cluster, Haproxy, Load, LoadBuilder, Pointsman, Process, Service, Shape, Tls,
    find_in_path,
};
use setup::files;

use crate::{machine, name_of, peers};

/// Writers of each contender, each with one connection. There is one reader besides.
pub(super) const CLIENTS: usize = 4;
/// Writes per second of a contender's writers together.
pub(super) const RATE: u32 = 200;
/// How long a client waits for a reply before it reconnects.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);
/// The name in the certificate of a Pointsman whose clients use TLS.
const NAME: &str = "redis.bench";
/// How long a client waits after an error.
const BACK_OFF: Duration = Duration::from_millis(20);

/// What stands between clients and the master, in the order of the tables, with its name there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Contender {
    /// Pointsman
    Pointsman,
    /// Pointsman, shared
    PointsmanShared,
    /// Pointsman, durable
    PointsmanDurable,
    /// Pointsman, shared, durable
    PointsmanSharedDurable,
    /// haproxy 3.2, redis-ha chart
    HaproxyVotes,
    /// haproxy 3.2, shutdown-sessions
    HaproxySessions,
    /// haproxy 3.2, agents
    HaproxyAgents,
    /// haproxy 2.6, redis-ha chart
    #[value(name = "haproxy-2")]
    Haproxy2,
    /// Service, moved after 1 s
    #[value(name = "service-1s")]
    Service1,
    /// Service, moved after 5 s
    #[value(name = "service-5s")]
    Service5,
    /// Service, moved after 30 s
    #[value(name = "service-30s")]
    Service30,
    /// clients that ask a sentinel
    Asking,
    /// redis-py, Sentinel
    RedisPy,
    /// ioredis, Sentinel
    Ioredis,
    /// go-redis, Sentinel
    GoRedis,
    /// redis-rs, Sentinel
    RedisRs,
}

use Contender::{
    Asking, GoRedis, Haproxy2, HaproxyAgents, HaproxySessions, HaproxyVotes, Ioredis,
    PointsmanDurable, PointsmanShared, PointsmanSharedDurable, RedisPy, RedisRs, Service1,
    Service5, Service30,
};

impl Contender {
    /// Whether its writes have to be confirmed.
    pub(super) fn is_durable(self) -> bool {
        matches!(self, PointsmanDurable | PointsmanSharedDurable)
    }

    pub(super) fn is_pointsman(self) -> bool {
        self.is_durable() || matches!(self, Self::Pointsman | PointsmanShared)
    }

    /// The command of its clients, without arguments, if it has clients of its own.
    fn clients(self) -> Option<Result<Command, String>> {
        match self {
            RedisPy => Some(peers::clients(peers::REDIS_PY, "sentinel_redis_py.py")),
            Ioredis => Some(peers::clients(peers::IOREDIS, "sentinel_ioredis.mjs")),
            GoRedis => Some(peers::clients(peers::GO_REDIS, "").map(|mut command| {
                command.arg("sentinel");
                command
            })),
            RedisRs => Some(peers::clients(peers::REDIS_RS_SENTINEL, "")),
            _ => None,
        }
    }

    /// Why it has to be left out, if it has to.
    pub(super) fn missing(self) -> Option<String> {
        match self {
            HaproxyVotes | HaproxySessions | HaproxyAgents => {
                peers::find(peers::HAPROXY_NEWEST).err()
            }
            _ => self.clients()?.err(),
        }
    }

    /// Whether there is a process to restart.
    pub(super) fn is_proxy(self) -> bool {
        self.is_pointsman()
            || matches!(self, HaproxyVotes | HaproxySessions | HaproxyAgents | Haproxy2)
    }
}

/// Everything that is not built here.
pub(super) const SOURCES: [peers::Source; 5] =
    [peers::HAPROXY_NEWEST, peers::REDIS_PY, peers::IOREDIS, peers::GO_REDIS, peers::REDIS_RS];

/// The programs of the contenders that need not be fetched.
#[derive(Debug)]
pub(super) struct Programs {
    pub(super) pointsman: PathBuf,
    haproxy2: PathBuf,
    /// How many replicas have to confirm a write.
    replicas: u8,
}

impl Programs {
    pub(super) fn find(pointsman: &Path, replicas: u8) -> Self {
        let haproxy2 = find_in_path("haproxy").unwrap_or_else(|| "/usr/sbin/haproxy".into());
        Self { pointsman: pointsman.to_owned(), haproxy2, replicas }
    }

    /// The versions of the others, by name.
    pub(super) fn versions(&self) -> Vec<(String, Option<String>)> {
        let haproxy = |words: &[OsString]| {
            let (first, rest) = words.split_first()?;
            machine::said(Command::new(first).args(rest).arg("-v"))
        };
        let newest = peers::find(peers::HAPROXY_NEWEST).ok();
        let mut versions = vec![
            ("haproxy 2".to_owned(), haproxy(&[self.haproxy2.clone().into()])),
            ("haproxy 3".to_owned(), newest.and_then(|it| haproxy(&it.words))),
        ];
        for (name, source) in [
            ("redis-py", peers::REDIS_PY),
            ("ioredis", peers::IOREDIS),
            ("go-redis", peers::GO_REDIS),
            ("redis-rs", peers::REDIS_RS),
        ] {
            let version = peers::library_version(source).map(|it| format!("{name} {it}"));
            versions.push((name.to_owned(), version));
        }
        versions.retain(|(_, version)| version.is_some());
        versions
    }
}

/// A contender that is ready for clients.
#[derive(Debug)]
pub(super) struct Front {
    contender: Contender,
    stands: Stands,
}

#[derive(Debug)]
enum Stands {
    Pointsman {
        pointsman: Box<Pointsman>,
        /// Where its clients use TLS, and how.
        secured: Option<(SocketAddr, Tls)>,
        /// Those whose sessions it took over.
        predecessors: Vec<Process>,
    },
    Haproxy(Box<Haproxy>),
    Service(Service),
    Nothing,
}

impl Front {
    /// Starts it and waits until it has found the master.
    ///
    /// # Errors
    /// A message for people, if a program or a folder is missing.
    ///
    /// # Panics
    /// If it does not start.
    pub(super) fn start(
        contender: Contender,
        programs: &Programs,
        cluster: &Cluster,
    ) -> Result<Self, String> {
        let haproxy = |words: &[OsString], shape| {
            Stands::Haproxy(Box::new(Haproxy::start_as(words, cluster, shape)))
        };
        let three = |shape| peers::find(peers::HAPROXY_NEWEST).map(|it| haproxy(&it.words, shape));
        let service = |delay| Stands::Service(Service::start(cluster, Duration::from_secs(delay)));
        let stands = match contender {
            HaproxyVotes => three(Shape::Votes)?,
            HaproxySessions => three(Shape::Sessions)?,
            HaproxyAgents => three(Shape::Agents)?,
            Haproxy2 => haproxy(&[programs.haproxy2.clone().into()], Shape::Votes),
            Service1 => service(1),
            Service5 => service(5),
            Service30 => service(30),
            Asking | RedisPy | Ioredis | GoRedis | RedisRs => Stands::Nothing,
            _ => pointsman(contender, programs, cluster)?,
        };
        Ok(Self { contender, stands })
    }

    /// Clients of it: those that ask sentinels, if it is nothing.
    pub(super) fn clients(&self, cluster: &Cluster) -> LoadBuilder {
        match &self.stands {
            Stands::Pointsman { secured: Some((addr, tls)), .. } => Load::to(*addr).tls(tls),
            Stands::Pointsman { pointsman, .. } => Load::to(pointsman.addr()),
            Stands::Haproxy(haproxy) => Load::to(haproxy.addr()),
            Stands::Service(service) => Load::to(service.addr()),
            Stands::Nothing => Load::to_named_by(cluster.sentinel_addrs(), cluster.name()),
        }
        .timeout(TIMEOUT)
    }

    /// Starts its clients.
    pub(super) fn load(&self, cluster: &Cluster) -> Result<Load, String> {
        let prefix = name_of(&self.contender);
        let load = self.clients(cluster).prefix(&prefix).writers(CLIENTS).rate(RATE);
        let load = load.back_off(BACK_OFF).journal(1);
        let Some(command) = self.contender.clients() else { return Ok(load.start()) };
        let mut command = command?;
        let addrs: Vec<String> = cluster.sentinel_addrs().iter().map(ToString::to_string).collect();
        command.args([cluster.name(), &addrs.join(","), &prefix]);
        command.args([CLIENTS.to_string(), RATE.to_string(), TIMEOUT.as_secs().to_string()]);
        load.start_program(command)
    }

    /// Replaces its process the way its documentation gives.
    pub(super) fn restart(&mut self) {
        match &mut self.stands {
            Stands::Pointsman { pointsman, predecessors, .. } => {
                predecessors.push(pointsman.start_again(&["--takeover"]));
            }
            Stands::Haproxy(haproxy) => haproxy.restart(),
            Stands::Service(_) | Stands::Nothing => {}
        }
    }
}

fn pointsman(
    contender: Contender,
    programs: &Programs,
    cluster: &Cluster,
) -> Result<Stands, String> {
    let replicas = programs.replicas;
    let state = cluster.folder().join(format!("state-{}", name_of(&contender)));
    files::make(&state)?;
    let mut builder = Pointsman::builder(&programs.pointsman, cluster)
        .lines(&format!("[process]\nstate_dir = {state:?}"));
    if matches!(contender, PointsmanShared | PointsmanSharedDurable) {
        builder = builder.service_line("upstream = \"shared\"");
    }
    if contender.is_durable() {
        builder = builder.service_line(&format!("durability.replicas = {replicas}"));
    }
    let mut secured = None;
    if cluster.is_tls() {
        let (authority, addr) = (Authority::new("bench"), cluster.address().port());
        let certificate = authority.issue(&[NAME]).write(&state);
        builder = builder.tls_listen(addr, &certificate).tls_to_servers();
        secured = Some((addr, Tls::new(&authority, NAME)));
    }
    let pointsman = Box::new(builder.start());
    Ok(Stands::Pointsman { pointsman, secured, predecessors: Vec::new() })
}
