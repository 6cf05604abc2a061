//! The contenders: what stands between the clients and the master, and how it is started.
//!
//! All of them serve the same failover, each with clients of its own.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::ValueEnum;
use harness::{
    Cluster, Haproxy, Launch, Load, LoadBuilder, Pointsman, Process, Service, Shape, find_in_path,
};
use setup::files;

use crate::{machine, name_of, peers};

/// Writers of each contender, each with one connection. There is one reader besides.
pub(super) const CLIENTS: usize = 4;
/// Writes per second of a contender's writers together.
pub(super) const RATE: u32 = 200;
/// How long a client waits for a reply before it reconnects.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client waits after an error.
const BACK_OFF: Duration = Duration::from_millis(20);

/// What stands between clients and the master, in the order of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Contender {
    /// Pointsman, with a connection to the master for each client.
    Pointsman,
    /// Pointsman, on shared connections.
    PointsmanShared,
    /// Pointsman, whose writes one replica has to confirm.
    PointsmanDurable,
    /// Durable Pointsman on shared connections; only with `--durability`.
    PointsmanSharedDurable,
    /// haproxy 3 as the redis-ha chart configures it: checks that count the sentinels' votes.
    HaproxyVotes,
    /// haproxy 3 that closes the connections of a server that is marked down.
    HaproxySessions,
    /// haproxy 3 with agents beside the servers and `init-state` as well.
    HaproxyAgents,
    /// haproxy of Debian 12, as the redis-ha chart configures it.
    #[value(name = "haproxy-2")]
    Haproxy2,
    /// A Service whose endpoint an operator moves a second after the failover.
    #[value(name = "service-1s")]
    Service1,
    /// A Service that is moved five seconds after it.
    #[value(name = "service-5s")]
    Service5,
    /// A Service that is moved thirty seconds after it.
    #[value(name = "service-30s")]
    Service30,
    /// Clients that ask a sentinel before each connection.
    Asking,
    /// redis-py with Sentinel.
    RedisPy,
    /// ioredis with Sentinel.
    Ioredis,
    /// go-redis with Sentinel.
    GoRedis,
    /// redis-rs with Sentinel.
    RedisRs,
}

use Contender::{
    Asking, GoRedis, Haproxy2, HaproxyAgents, HaproxySessions, HaproxyVotes, Ioredis,
    PointsmanDurable, PointsmanShared, PointsmanSharedDurable, RedisPy, RedisRs, Service1,
    Service5, Service30,
};

impl Contender {
    /// The name in the tables.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Pointsman => "**Pointsman**",
            PointsmanShared => "**Pointsman**, shared",
            PointsmanDurable => "**Pointsman**, durable",
            PointsmanSharedDurable => "**Pointsman**, shared, durable",
            HaproxyVotes => "haproxy 3.2, redis-ha chart",
            HaproxySessions => "haproxy 3.2, shutdown-sessions",
            HaproxyAgents => "haproxy 3.2, agents",
            Haproxy2 => "haproxy 2.6, redis-ha chart",
            Service1 => "Service, moved after 1 s",
            Service5 => "Service, moved after 5 s",
            Service30 => "Service, moved after 30 s",
            Asking => "clients that ask a sentinel",
            RedisPy => "redis-py, Sentinel",
            Ioredis => "ioredis, Sentinel",
            GoRedis => "go-redis, Sentinel",
            RedisRs => "redis-rs, Sentinel",
        }
    }

    /// Whether its writes have to be confirmed.
    pub(super) fn is_durable(self) -> bool {
        matches!(self, PointsmanDurable | PointsmanSharedDurable)
    }

    pub(super) fn is_pointsman(self) -> bool {
        self.is_durable() || matches!(self, Self::Pointsman | PointsmanShared)
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

/// The programs of all contenders; those that were fetched may be missing.
#[derive(Debug)]
pub(super) struct Programs {
    pub(super) pointsman: PathBuf,
    pub(super) haproxy2: PathBuf,
    /// How many replicas have to confirm a write.
    pub(super) replicas: u8,
    haproxy3: Result<Vec<OsString>, String>,
    python: Result<PathBuf, String>,
    node: Result<PathBuf, String>,
    go: Result<PathBuf, String>,
    rust: Result<PathBuf, String>,
}

impl Programs {
    pub(super) fn find(pointsman: &Path, replicas: u8) -> Self {
        let installed = find_in_path("haproxy");
        let root = |source, program: &str| {
            find_in_path(program).ok_or_else(|| format!("{program} is missing"))?;
            peers::find_source(source).map(|it| it.root)
        };
        let program = |source| {
            let words = peers::find_source(source)?.words;
            words.into_iter().next().map(PathBuf::from).ok_or_else(|| "no program".to_owned())
        };
        Self {
            pointsman: pointsman.to_owned(),
            replicas,
            haproxy2: installed.unwrap_or_else(|| PathBuf::from("/usr/sbin/haproxy")),
            haproxy3: peers::find_source(peers::HAPROXY_NEWEST).map(|it| it.words),
            python: root(peers::REDIS_PY, "python3"),
            node: root(peers::IOREDIS, "node"),
            go: program(peers::GO_REDIS),
            rust: program(peers::REDIS_RS),
        }
    }

    /// Why a contender has to be left out, if it has to.
    pub(super) fn missing(&self, contender: Contender) -> Option<&String> {
        match contender {
            HaproxyVotes | HaproxySessions | HaproxyAgents => self.haproxy3.as_ref().err(),
            RedisPy => self.python.as_ref().err(),
            Ioredis => self.node.as_ref().err(),
            GoRedis => self.go.as_ref().err(),
            RedisRs => self.rust.as_ref().err(),
            _ => None,
        }
    }

    /// The program of a contender's clients, without arguments, if it has clients of its own.
    fn library(&self, contender: Contender) -> Result<Option<Command>, String> {
        let script = |program: &str, name: &str, root: &Result<PathBuf, String>| {
            let root = root.as_ref().map_err(Clone::clone)?;
            let mut command = Command::new(program);
            command.arg(crate::raw::benches().join("clients").join(name));
            command.env("PYTHONPATH", root).env("CLIENTS_HOME", root);
            Ok(Some(command))
        };
        match contender {
            RedisPy => script("python3", "sentinel_redis_py.py", &self.python),
            Ioredis => script("node", "sentinel_ioredis.mjs", &self.node),
            GoRedis => {
                let mut command = Command::new(self.go.as_ref().map_err(Clone::clone)?);
                command.arg("sentinel");
                Ok(Some(command))
            }
            RedisRs => {
                let program = self.rust.as_ref().map_err(Clone::clone)?;
                Ok(Some(Command::new(program.with_file_name("sentinel-redis-rs"))))
            }
            _ => Ok(None),
        }
    }

    /// The versions of the others, by name.
    pub(super) fn versions(&self) -> Vec<(String, Option<String>)> {
        let mut versions = vec![("haproxy 2".to_owned(), Command::new(&self.haproxy2))];
        if let Some((first, rest)) = self.haproxy3.as_ref().ok().and_then(|it| it.split_first()) {
            let mut command = Command::new(first);
            command.args(rest);
            versions.push(("haproxy 3".to_owned(), command));
        }
        for (_, command) in &mut versions {
            command.arg("-v");
        }
        if let Ok(root) = &self.python {
            let mut command = Command::new("python3");
            command.env("PYTHONPATH", root);
            command.args(["-c", "import redis; print('redis-py', redis.__version__)"]);
            versions.push(("redis-py".to_owned(), command));
        }
        if let Ok(root) = &self.node {
            let package = root.join("node_modules/ioredis/package.json");
            let script = "console.log('ioredis', require(process.argv[1]).version)";
            let mut command = Command::new("node");
            command.args(["-e", script]).arg(package);
            versions.push(("ioredis".to_owned(), command));
        }
        if let Ok(program) = &self.go {
            let mut command = Command::new(program);
            command.arg("version");
            versions.push(("go-redis".to_owned(), command));
        }
        let said = |(name, mut it)| (name, machine::said(&mut it));
        let mut versions: Vec<_> = versions.into_iter().map(said).collect();
        if let Some(folder) = self.rust.as_ref().ok().and_then(|it| it.ancestors().nth(3)) {
            let version = format!("redis-rs {}", peers::redis_rs_version(folder));
            versions.push(("redis-rs".to_owned(), Some(version)));
        }
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
        pointsman: Pointsman,
        program: PathBuf,
        /// Those that took over.
        successors: Vec<Process>,
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
        let three = |shape| {
            programs.haproxy3.as_ref().map(|words| haproxy(words, shape)).map_err(Clone::clone)
        };
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
            Stands::Pointsman { pointsman, .. } => Load::to(pointsman.addr()),
            Stands::Haproxy(haproxy) => Load::to(haproxy.addr()),
            Stands::Service(service) => Load::to(service.addr()),
            Stands::Nothing => Load::to_named_by(cluster.sentinel_addrs(), cluster.name()),
        }
        .timeout(TIMEOUT)
    }

    /// Starts its clients.
    pub(super) fn load(&self, programs: &Programs, cluster: &Cluster) -> Result<Load, String> {
        let prefix = name_of(&self.contender);
        let load = self.clients(cluster).prefix(&prefix).writers(CLIENTS).rate(RATE);
        let load = load.back_off(BACK_OFF).journal(1);
        let Some(mut command) = programs.library(self.contender)? else { return Ok(load.start()) };
        let addrs: Vec<String> = cluster.sentinel_addrs().iter().map(ToString::to_string).collect();
        command.args([cluster.name(), &addrs.join(","), &prefix]);
        command.args([CLIENTS.to_string(), RATE.to_string(), TIMEOUT.as_secs().to_string()]);
        load.start_program(command)
    }

    /// Replaces its process the way its documentation gives.
    pub(super) fn restart(&mut self) {
        match &mut self.stands {
            Stands::Pointsman { pointsman, program, successors } => {
                let file = pointsman.process().log_path().with_file_name("pointsman.toml");
                let args = ["run".into(), "--takeover".into(), "--config".into(), file.into()];
                let folder = pointsman.process().log_path().with_file_name("");
                successors.push(Process::start(&Launch {
                    name: "successor".to_owned(),
                    program: program.clone(),
                    args: args.into(),
                    env: Vec::new(),
                    folder,
                }));
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
    let (program, replicas) = (programs.pointsman.clone(), programs.replicas);
    let state = cluster.folder().join(format!("state-{}", name_of(&contender)));
    files::make(&state)?;
    let builder = Pointsman::builder(&program, cluster);
    let mut builder = builder.lines(&format!("[process]\nstate_dir = {state:?}"));
    if matches!(contender, PointsmanShared | PointsmanSharedDurable) {
        builder = builder.service_line("upstream = \"shared\"");
    }
    if contender.is_durable() {
        builder = builder.service_line(&format!("durability.replicas = {replicas}"));
    }
    let pointsman = builder.start();
    Ok(Stands::Pointsman { pointsman, program, successors: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_out_what_was_not_fetched() {
        let programs = Programs {
            pointsman: PathBuf::new(),
            replicas: 1,
            haproxy2: PathBuf::new(),
            haproxy3: Err("no network".to_owned()),
            python: Ok(PathBuf::new()),
            node: Err("no network".to_owned()),
            go: Err("no mirror".to_owned()),
            rust: Ok(PathBuf::new()),
        };
        let left_out =
            Contender::value_variants().iter().filter(|it| programs.missing(**it).is_some());
        let left_out: Vec<_> = left_out.copied().collect();
        assert_eq!(left_out, [HaproxyVotes, HaproxySessions, HaproxyAgents, Ioredis, GoRedis]);
        assert_eq!(programs.missing(Ioredis).map(String::as_str), Some("no network"));
    }
}
