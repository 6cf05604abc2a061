//! The proxies and libraries that pointsman is measured beside: their source, configuration and
//! start.
//!
//! None of them is installed on the system. Debian packages are unpacked with all dependencies into
//! a folder below cargo's target folder and started through that folder's dynamic loader, so that
//! libraries of a newer suite never mix with the system's. A peer that cannot be fetched is left
//! out, and reported with the commands that would fetch it.

mod config;
mod fetch;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;
use harness::find_in_path;

pub(super) use config::{Around, Route, configuration};

use super::machine;
use super::raw::benches;

/// The proxy between the load and its backend, in the order of the tables, with its name there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Peer {
    /// no proxy
    Direct,
    /// pointsman
    Pointsman,
    /// haproxy 3
    #[value(name = "haproxy-3")]
    Haproxy3,
    /// haproxy 3, 64 KiB buffers
    #[value(name = "haproxy-3-64k")]
    Haproxy3Buffers,
    /// haproxy 3, splice-auto
    #[value(name = "haproxy-3-splice")]
    Haproxy3Splice,
    /// nginx stream
    Nginx,
    /// twemproxy
    Twemproxy,
    /// the baseline
    Baseline,
    /// pointsman, shared
    PointsmanShared,
    /// pointsman, confirmed
    PointsmanDurable,
    /// pointsman, shared, confirmed
    PointsmanSharedDurable,
}

/// The source of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// Packages of a Debian suite, and the program among their files.
    Debian { suite: &'static str, packages: &'static [&'static str], program: &'static str },
    /// A wheel, and the program among its files.
    Wheel { package: &'static str, program: &'static str },
    /// A package of npm with its dependencies, and a file of it.
    Npm { package: &'static str, program: &'static str },
    /// A folder of benches/clients in Go: the package of Debian with the library that it uses, the
    /// path that programs import, and the packages that the library needs.
    Go {
        folder: &'static str,
        package: &'static str,
        import: &'static str,
        needs: &'static [&'static str],
    },
    /// A package in a folder of benches/clients that cargo builds, and one of its programs.
    Cargo { folder: &'static str, program: &'static str },
}

/// haproxy of Debian 14, the newest that packages give.
pub(super) const HAPROXY_NEWEST: Source =
    Source::Debian { suite: "forky", packages: &["haproxy"], program: "usr/sbin/haproxy" };
/// Client libraries that support Sentinel.
pub(super) const REDIS_PY: Source =
    Source::Wheel { package: "redis", program: "redis/__init__.py" };
pub(super) const IOREDIS: Source =
    Source::Npm { package: "ioredis", program: "node_modules/ioredis/package.json" };
pub(super) const GO_REDIS: Source = Source::Go {
    folder: "go_redis",
    package: "golang-github-redis-go-redis-dev",
    import: "github.com/redis/go-redis/v9",
    needs: &["golang-github-cespare-xxhash-dev", "golang-github-dgryski-go-rendezvous-dev"],
};
pub(super) const NODE_REDIS: Source =
    Source::Npm { package: "redis", program: "node_modules/redis/package.json" };
pub(super) const REDIS_RS: Source =
    Source::Cargo { folder: "redis_rs", program: "clients-redis-rs" };
/// Its clients that use Sentinel.
pub(super) const REDIS_RS_SENTINEL: Source =
    Source::Cargo { folder: "redis_rs", program: "sentinel-redis-rs" };

impl Peer {
    /// The source of the program, if it has to be fetched.
    pub(super) fn source(self) -> Option<Source> {
        let debian = |suite, packages, program| Some(Source::Debian { suite, packages, program });
        match self {
            Self::Direct | Self::Baseline => None,
            Self::Pointsman | Self::PointsmanShared => None,
            Self::PointsmanDurable | Self::PointsmanSharedDurable => None,
            Self::Haproxy3 | Self::Haproxy3Buffers | Self::Haproxy3Splice => {
                debian("trixie", &["haproxy"], "usr/sbin/haproxy")
            }
            Self::Nginx => {
                debian("bookworm", &["nginx-core", "libnginx-mod-stream"], "usr/sbin/nginx")
            }
            Self::Twemproxy => debian("bookworm", &["nutcracker"], "usr/sbin/nutcracker"),
        }
    }
}

/// A program that was fetched.
#[derive(Debug, Clone)]
pub(super) struct Program {
    /// The command: the program, or its loader with arguments.
    pub(super) words: Vec<OsString>,
    /// The folder that it was unpacked into.
    pub(super) root: PathBuf,
}

/// Fetches what is missing of these and prints each step.
pub(super) fn fetch(sources: impl IntoIterator<Item = Source>) {
    sources.into_iter().for_each(|source| fetch::get(&cache(), source));
}

/// A program that was fetched.
///
/// # Errors
/// Why it is missing.
pub(super) fn find(source: Source) -> Result<Program, String> {
    fetch::find(&cache(), source)
}

/// The version that a program prints.
pub(super) fn version(peer: Peer, program: &Program) -> Option<String> {
    let (first, rest) = program.words.split_first()?;
    let flag = if peer == Peer::Twemproxy { "-V" } else { "-v" };
    let output = Command::new(first).args(rest).arg(flag).output().ok()?;
    // Programs use different output streams.
    let said = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&said).lines().next().map(machine::tidy)
}

/// The command of clients of a library that was fetched: a script of benches/clients, or what was
/// built there.
///
/// # Errors
/// Why it is missing.
pub(super) fn clients(source: Source, script: &str) -> Result<Command, String> {
    let interpreter = match source {
        Source::Wheel { .. } => Some("python3"),
        Source::Npm { .. } => Some("node"),
        _ => None,
    };
    let Program { words, root } = find(source)?;
    let mut command = match interpreter {
        Some(program) => {
            find_in_path(program).ok_or_else(|| format!("{program} is missing"))?;
            let mut command = Command::new(program);
            command.arg(benches().join("clients").join(script));
            command
        }
        None => Command::new(words.first().ok_or("no program")?),
    };
    command.env("PYTHONPATH", &root).env("CLIENTS_HOME", root);
    Ok(command)
}

/// The version of a client library that was fetched.
pub(super) fn library_version(source: Source) -> Option<String> {
    let Program { words, root } = find(source).ok()?;
    let ask = |program: &str, option: &str, script: &str| {
        let mut command = Command::new(program);
        machine::said(command.env("PYTHONPATH", &root).args([option, script]).arg(words.first()?))
    };
    match source {
        Source::Wheel { .. } => ask("python3", "-c", "import redis; print(redis.__version__)"),
        Source::Npm { .. } => ask("node", "-e", "console.log(require(process.argv[1]).version)"),
        Source::Cargo { .. } => {
            machine::said(setup::cargo().current_dir(&root).args(["pkgid", "redis"]))
        }
        _ => machine::said(Command::new(words.first()?).arg("version")),
    }
    .and_then(|said| said.rsplit(['@', ' ']).next().map(str::to_owned))
}

/// A folder below cargo's target folder, which also contains this program.
fn cache() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    own.ancestors().nth(2).unwrap_or(Path::new("target")).join("bench-peers")
}
