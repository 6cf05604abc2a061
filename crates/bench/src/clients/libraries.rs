//! The client libraries and the programs that use them.
//!
//! Each program takes the same arguments (host, port, clients, seconds) and prints one line of JSON
//! with its results. Libraries are fetched or built below cargo's target folder and kept there.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use super::secured::Secured;
use super::{LIFE, SETTLE};
use crate::peers::{self, Source};
use crate::raw::benches;

/// A program that uses a client library.
#[derive(Debug, Clone, Copy)]
pub(super) struct Library {
    /// The library; `None` for hiredis, which comes with the servers.
    source: Option<Source>,
    /// The program in benches/clients, unless one is built.
    script: Option<&'static str>,
}

const fn library(source: Source, script: Option<&'static str>) -> Library {
    Library { source: Some(source), script }
}

pub(super) const REDIS_PY: Library = library(peers::REDIS_PY, Some("redis_py.py"));
pub(super) const REDIS_PY_MAINTENANCE: Library =
    library(peers::REDIS_PY, Some("redis_py_maintenance.py"));
pub(super) const IOREDIS: Library = library(peers::IOREDIS, Some("ioredis.mjs"));
pub(super) const NODE_REDIS_MAINTENANCE: Library =
    library(peers::NODE_REDIS, Some("node_redis_maintenance.mjs"));
pub(super) const REDIS_RS: Library = library(peers::REDIS_RS, None);
pub(super) const GO_REDIS: Library = library(peers::GO_REDIS, None);
/// redis-cli, which uses hiredis.
pub(super) const REDIS_CLI: Library = Library { source: None, script: Some("redis_cli.py") };
/// redis-benchmark, which uses hiredis too and is never idle.
pub(super) const REDIS_BENCHMARK: Library =
    Library { source: None, script: Some("redis_benchmark.py") };

/// Fetches what is missing of these libraries. Only go-redis may stay missing, because it needs
/// Debian's mirror; the others are returned with the reason.
///
/// # Errors
/// Why another one is missing.
pub(super) fn fetch(mut all: Vec<Library>) -> Result<(Vec<Library>, Option<String>), String> {
    peers::fetch(all.iter().filter_map(|it| it.source));
    let without_go = peers::find(peers::GO_REDIS).err();
    if let Some(why) = &without_go {
        println!("go-redis is left out. {why}");
        all.retain(|it| it.source != Some(peers::GO_REDIS));
    }
    all.iter().try_for_each(|it| it.command().map(drop))?;
    Ok((all, without_go))
}

impl Library {
    pub(super) fn start(
        &self,
        addr: SocketAddr,
        tls: Option<&Secured>,
        clients: u32,
    ) -> Result<Child, String> {
        let mut command = self.command_to(addr)?;
        command.args([clients.to_string(), LIFE.as_secs().to_string()]);
        if let Some(tls) = tls {
            tls.set(&mut command);
        }
        spawn(&mut command)
    }

    /// Starts a program that may ask for maintenance notifications. That of go-redis has another
    /// purpose without further arguments.
    pub(super) fn start_maintained(&self, addr: SocketAddr, on: bool) -> Result<Child, String> {
        let (mut command, life) = (self.command_to(addr)?, LIFE.as_secs().to_string());
        match self.script {
            Some(_) => command.arg(life),
            None => command.args(["4", &life, "maintenance"]),
        };
        command.args((!on).then_some("off")).env("CLIENTS_TIMEOUT", "1");
        spawn(&mut command)
    }

    fn command(&self) -> Result<Command, String> {
        let script = self.script.unwrap_or_default();
        if let Some(source) = self.source {
            return peers::clients(source, script);
        }
        let mut command = Command::new("python3");
        command.arg(benches().join("clients").join(script));
        Ok(command)
    }

    fn command_to(&self, addr: SocketAddr) -> Result<Command, String> {
        let mut command = self.command()?;
        command.args([addr.ip().to_string(), addr.port().to_string()]);
        command.env("CLIENTS_SETTLE", SETTLE.as_secs().to_string());
        if self.source == Some(peers::REDIS_RS) {
            // It does not know its own.
            command.env(
                "CLIENTS_VERSION",
                peers::library_version(peers::REDIS_RS).unwrap_or_default(),
            );
        }
        command.stdout(Stdio::piped());
        Ok(command)
    }
}

fn spawn(command: &mut Command) -> Result<Child, String> {
    command.spawn().map_err(|error| format!("{command:?}: {error}"))
}
