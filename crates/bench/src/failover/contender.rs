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

use crate::peers::{self, Peer};
use crate::{machine, name_of};

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

    /// Where a library comes from, and the script of its clients unless they are built.
    pub(super) fn library(self) -> Option<(peers::Source, &'static str)> {
        match self {
            RedisPy => Some((peers::REDIS_PY, "sentinel_redis_py.py")),
            Ioredis => Some((peers::IOREDIS, "sentinel_ioredis.mjs")),
            GoRedis => Some((peers::GO_REDIS, "")),
            RedisRs => Some((peers::REDIS_RS_SENTINEL, "")),
            _ => None,
        }
    }

    /// What it is fetched from, unless it is built here or installed.
    pub(super) fn source(self) -> Option<peers::Source> {
        match self {
            HaproxyVotes | HaproxySessions | HaproxyAgents => Some(peers::HAPROXY_NEWEST),
            _ => self.library().map(|(source, _)| source),
        }
    }

    /// Why it has to be left out, if it has to.
    pub(super) fn missing(self) -> Option<String> {
        peers::find(self.source()?).err()
    }

    /// Whether there is a process to restart.
    pub(super) fn is_proxy(self) -> bool {
        let is_haproxy = self == Haproxy2 || self.source() == Some(peers::HAPROXY_NEWEST);
        is_haproxy || self.is_pointsman()
    }
}

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
        let newest = peers::find(peers::HAPROXY_NEWEST).ok();
        let mut versions = vec![
            ("haproxy 2".to_owned(), machine::said(Command::new(&self.haproxy2).arg("-v"))),
            ("haproxy 3".to_owned(), newest.and_then(|it| peers::version(Peer::Haproxy3, &it))),
        ];
        for contender in Contender::value_variants() {
            let Some((source, _)) = contender.library() else { continue };
            let name = name_of(contender);
            let version = peers::library_version(source).map(|it| format!("{name} {it}"));
            versions.push((name, version));
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
        let Some((source, script)) = self.contender.library() else { return Ok(load.start()) };
        let mut command = peers::clients(source, script)?;
        command.args((self.contender == GoRedis).then_some("sentinel"));
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
