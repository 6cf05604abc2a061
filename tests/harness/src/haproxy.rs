//! Starts haproxy in front of a cluster, configured like the redis-ha chart: the peer of
//! comparisons.
//!
//! How that configuration works: for each server there is a backend without traffic that only runs
//! checks. It asks every sentinel for the master; a sentinel counts as up if it names this server.
//! The backend with the traffic checks every server for `role:master`, and uses a server only while
//! at least two sentinels name it. Established connections stay where they are regardless of
//! checks. The timeouts are those of the chart.
//!
//! Differences from the chart: servers are told apart by port instead of address, because they
//! share an address here; a sentinel need not confirm QUIT, which Sentinel 7.0 does not support
//! (every vote would fail); and a statistics page shows when the checks have settled. Deliberately
//! absent: passwords.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cluster::Cluster;
use crate::http::http_get;
use crate::process::{Launch, Process};
use crate::wait::wait_until;

/// How long the checks may take to settle. A server that sentinels do not name is down after three
/// checks, three seconds apart.
const READY: Duration = Duration::from_secs(40);
/// Number of sentinels that have to name a server.
const AGREEMENT: usize = 2;

/// A running haproxy. Dropping it kills it.
#[derive(Debug)]
pub struct Haproxy {
    process: Process,
    listen: SocketAddr,
}

impl Haproxy {
    /// Starts haproxy in front of the first group of a cluster and waits until its checks have
    /// found the master.
    ///
    /// # Panics
    /// If it ends, or the checks do not settle in time.
    #[must_use]
    #[track_caller]
    pub fn start(program: impl Into<PathBuf>, cluster: &Cluster) -> Self {
        let name = "haproxy".to_owned();
        let folder = cluster.folder().join(&name);
        std::fs::create_dir(&folder)
            .unwrap_or_else(|error| panic!("cannot make {}: {error}", folder.display()));
        let (listen, page) = (cluster.address().port(), cluster.address().port());
        let servers: Vec<_> = cluster.nodes().iter().map(crate::Node::addr).collect();
        let conf = conf(cluster.name(), &servers, &cluster.sentinel_addrs(), listen, page);
        let file = write(&folder, &conf);
        let args = vec!["-db".into(), "-f".into(), file.into_os_string()];
        let process = Process::start(&Launch {
            name,
            program: program.into(),
            args,
            env: Vec::new(),
            folder,
        });
        let haproxy = Self { process, listen };
        let master = cluster.master().addr();
        wait_until("haproxy's checks to settle", READY, || {
            assert!(haproxy.process.is_running(), "haproxy ended: {}", haproxy.process.tail());
            let (_, csv) = http_get(page, "/;csv").map_err(|error| error.to_string())?;
            if settled(&csv, &servers, cluster.sentinels().len(), master) {
                Ok(())
            } else {
                Err(summary(&csv))
            }
        });
        haproxy
    }

    /// The listen address for clients.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.listen
    }

    /// Its process, for signals and the log.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }
}

fn write(folder: &Path, conf: &str) -> PathBuf {
    let file = folder.join("haproxy.cfg");
    std::fs::write(&file, conf)
        .unwrap_or_else(|error| panic!("cannot write {}: {error}", file.display()));
    file
}

fn conf(
    name: &str,
    servers: &[SocketAddr],
    sentinels: &[SocketAddr],
    listen: SocketAddr,
    page: SocketAddr,
) -> String {
    let mut conf = format!(
        "defaults\n  mode tcp\n  timeout connect 4s\n  timeout server 330s\n  timeout client 330s\n  timeout check 2s\n\
         \x20 timeout tunnel 1h\n\
         frontend page\n  bind {page}\n  mode http\n  stats enable\n  stats uri /\n\
         frontend clients\n  bind {listen}\n  default_backend masters\n"
    );
    for (index, server) in servers.iter().enumerate() {
        let port = server.port().to_string();
        let _ = write!(conf, "backend named_{index}\n  option tcp-check\n  tcp-check connect\n");
        exchange(&mut conf, "PING", "+PONG");
        exchange(
            &mut conf,
            &format!("SENTINEL\\ get-master-addr-by-name\\ {name}"),
            &format!("{}\\r\\n${}\\r\\n{port}", server.ip(), port.len()),
        );
        conf.push_str("  tcp-check send QUIT\\r\\n\n");
        for (number, sentinel) in sentinels.iter().enumerate() {
            let _ = writeln!(conf, "  server S{number} {sentinel} check inter 1s");
        }
    }
    conf.push_str("backend masters\n  option tcp-check\n  tcp-check connect\n");
    exchange(&mut conf, "PING", "+PONG");
    exchange(&mut conf, "info\\ replication", "role:master");
    exchange(&mut conf, "QUIT", "+OK");
    for (index, server) in servers.iter().enumerate() {
        let _ = writeln!(
            conf,
            "  use-server R{index} if {{ srv_is_up(R{index}) }} {{ nbsrv(named_{index}) ge {AGREEMENT} }}\n\
             \x20 server R{index} {server} check inter 1s fall 1 rise 1"
        );
    }
    conf
}

fn exchange(conf: &mut String, send: &str, expect: &str) {
    let _ = write!(conf, "  tcp-check send {send}\\r\\n\n  tcp-check expect string {expect}\n");
}

/// Whether every check has reached its final result. Each line of `csv` holds proxy, server and
/// state; a state such as `UP 1/3` is still changing.
fn settled(csv: &str, servers: &[SocketAddr], sentinels: usize, master: SocketAddr) -> bool {
    servers.iter().enumerate().all(|(index, server)| {
        let wanted = if *server == master { "UP" } else { "DOWN" };
        let votes = (0..sentinels)
            .all(|number| state(csv, &format!("named_{index}"), &format!("S{number}")) == wanted);
        votes && state(csv, "masters", &format!("R{index}")) == wanted
    })
}

/// The CSV column of a server's state.
const STATUS: usize = 17;

fn state<'a>(csv: &'a str, proxy: &str, server: &str) -> &'a str {
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let line =
        lines.find(|fields| fields.first() == Some(&proxy) && fields.get(1) == Some(&server));
    line.and_then(|fields| fields.get(STATUS).copied()).unwrap_or_default()
}

fn summary(csv: &str) -> String {
    let fields = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let states =
        fields.filter(|fields| fields.get(1).is_some_and(|server| server.starts_with(['R', 'S'])));
    states.map(|f| format!("{}/{} {}; ", f[0], f[1], f.get(STATUS).unwrap_or(&"?"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 1, 2, 3], port))
    }

    #[test]
    fn requires_two_votes_per_server() {
        let servers = [addr(40001), addr(40002)];
        let sentinels = [addr(50001), addr(50002), addr(50003)];
        let conf = conf("mymaster", &servers, &sentinels, addr(1), addr(2));
        assert_eq!(
            conf.matches("tcp-check send SENTINEL\\ get-master-addr-by-name\\ mymaster\\r\\n")
                .count(),
            2
        );
        assert_eq!(conf.matches("server S1 127.1.2.3:50002 check inter 1s\n").count(), 2);
        for line in [
            "  use-server R1 if { srv_is_up(R1) } { nbsrv(named_1) ge 2 }",
            "  server R1 127.1.2.3:40002 check inter 1s fall 1 rise 1",
            "  tcp-check expect string role:master",
            "  tcp-check expect string 127.1.2.3\\r\\n$5\\r\\n40002",
        ] {
            assert!(conf.lines().any(|found| found == line), "{line} in\n{conf}");
        }
    }

    #[test]
    fn settles_when_every_check_is_right() {
        let row = |proxy: &str, server: &str, state: &str| {
            format!("{proxy},{server}{}{state},\n", ",".repeat(16))
        };
        let csv =
            [row("named_0", "S0", "UP"), row("named_1", "S0", "DOWN"), row("masters", "R0", "UP")]
                .concat();
        let settled = |last: &str| {
            settled(&(csv.clone() + &row("masters", "R1", last)), &[addr(1), addr(2)], 1, addr(1))
        };
        assert!(settled("DOWN"));
        assert!(!settled("UP") && !settled("UP 1/2") && !settled("no check"));
    }
}
