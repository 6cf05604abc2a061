//! The servers of one run: Redis, and for the ways through Pointsman a sentinel and Pointsman.
//!
//! Some tests connect to port 6379 whatever their options say. So the server that they reach has
//! that port, in a network namespace of this run; what is behind Pointsman has other ports.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use bench::metrics;
use harness::{Client, Launch, Process, wait_until};
use setup::files;
use tempfile::TempDir;

use super::outcomes::Way;
use crate::servers::Programs;

/// Where the tests connect to.
pub(super) const PORT: u16 = 6379;
const REDIS: u16 = 7000;
const SENTINEL: u16 = 7001;
const ADMIN: u16 = 7002;
const PATIENCE: Duration = Duration::from_secs(30);

/// What Pointsman counts of shared connections: requests on them, sessions that got one of their
/// own, and connections that were closed because of a reply that did not match.
pub(super) const COUNTED: [&str; 3] = ["requests", "promotions", "desyncs"];

/// Running servers. Dropping it ends them and removes their files.
#[derive(Debug)]
pub(super) struct Stage {
    // The processes are dropped before the folder, because they write to it until they end.
    processes: Vec<Process>,
    way: Way,
    folder: TempDir,
}

impl Stage {
    /// Starts them and waits until a client is served.
    ///
    /// # Errors
    /// A message for people: no folder or file can be written.
    pub(super) fn start(way: Way, redis: &Programs, pointsman: &Path) -> Result<Self, String> {
        let folder = files::temporary()?;
        let mut stage = Self { processes: Vec::new(), way, folder };
        let port = if way == Way::Direct { PORT } else { REDIS };
        stage.launch("redis", &redis.server, &redis_conf(port), &[])?;
        stage.await_ping(port);
        if way != Way::Direct {
            stage.launch("sentinel", &redis.sentinel, &sentinel_conf(), &[])?;
            stage.await_ping(SENTINEL);
            stage.launch_pointsman(pointsman, &[SENTINEL], "/ready")?;
            stage.await_ping(PORT);
        }
        Ok(stage)
    }

    /// Starts only Pointsman, for tests that start their own servers and sentinels later.
    ///
    /// # Errors
    /// A message for people: no folder or file can be written.
    pub(super) fn ahead(way: Way, pointsman: &Path, sentinels: &[u16]) -> Result<Self, String> {
        let folder = files::temporary()?;
        let mut stage = Self { processes: Vec::new(), way, folder };
        if way != Way::Direct {
            stage.launch_pointsman(pointsman, sentinels, "/healthz")?;
        }
        Ok(stage)
    }

    /// Starts Pointsman and waits until a probe succeeds.
    fn launch_pointsman(
        &mut self,
        program: &Path,
        sentinels: &[u16],
        probe: &str,
    ) -> Result<(), String> {
        let conf = pointsman_toml(self.way, sentinels);
        self.launch("pointsman", program, &conf, &["run", "--config"])?;
        wait_until("pointsman to be ready", PATIENCE, || metrics::get(at(ADMIN), probe));
        Ok(())
    }

    /// What Pointsman counted so far, if it shares connections.
    ///
    /// # Errors
    /// A message for people: a server ended, or Pointsman does not answer.
    pub(super) fn sharing(&self) -> Result<Option<[u64; 3]>, String> {
        if let Some(ended) = self.processes.iter().find(|it| !it.is_running()) {
            return Err(format!("{} ended during the tests:\n{}", ended.name(), ended.tail()));
        }
        if self.way != Way::Shared {
            return Ok(None);
        }
        let text = metrics::get(at(ADMIN), "/metrics")?;
        let sum = |what| metrics::sum(&text, &format!("pointsman_shared_{what}_total"));
        Ok(Some(COUNTED.map(sum)))
    }

    fn launch(
        &mut self,
        name: &str,
        program: &Path,
        conf: &str,
        args: &[&str],
    ) -> Result<(), String> {
        let folder = self.folder.path().join(name);
        let file = folder.join("conf");
        files::make(&folder)?;
        files::write(&file, conf)?;
        self.processes.push(Process::start(&Launch {
            name: name.to_owned(),
            program: program.to_owned(),
            args: args.iter().map(OsString::from).chain([file.into()]).collect(),
            env: Vec::new(),
            folder,
        }));
        Ok(())
    }

    fn await_ping(&self, port: u16) {
        wait_until(&format!("a server on port {port}"), PATIENCE, || {
            if let Some(ended) = self.processes.iter().find(|it| !it.is_running()) {
                return Err(format!("{} ended: {}", ended.name(), ended.tail()));
            }
            let mut client = Client::connect(at(port)).map_err(|error| error.to_string())?;
            client.cmd(&["PING"]).map(drop).map_err(|error| error.to_string())
        });
    }
}

fn at(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

fn redis_conf(port: u16) -> String {
    format!(
        "bind 127.0.0.1\nport {port}\nsave \"\"\nenable-protected-configs yes\n\
         enable-debug-command yes\nenable-module-command yes\n"
    )
}

/// Nothing fails over: no test ends the server, and some of them make it busy for a while.
fn sentinel_conf() -> String {
    format!(
        "bind 127.0.0.1\nport {SENTINEL}\nsentinel monitor mymaster 127.0.0.1 {REDIS} 1\n\
         sentinel down-after-milliseconds mymaster 600000\n"
    )
}

fn pointsman_toml(way: Way, sentinels: &[u16]) -> String {
    let sentinels: Vec<String> = sentinels.iter().map(|port| at(*port).to_string()).collect();
    format!(
        "[[service]]\nname = \"mymaster\"\nlisten = [\"127.0.0.1:{PORT}\"]\n\
         sentinels = {sentinels:?}\nupstream = {:?}\n\
         [admin]\nlisten = [\"127.0.0.1:{ADMIN}\"]\n",
        way.name()
    )
}
