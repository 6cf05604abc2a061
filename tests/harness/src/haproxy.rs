//! Starts haproxy in front of a cluster, in configurations that people use today: the peer of
//! comparisons.
//!
//! How that of the redis-ha chart works ([`Shape::Votes`]): for each server there is a backend
//! without traffic that only runs checks. It asks every sentinel for the master; a sentinel counts
//! as up if it names this server. The backend with the traffic checks every server for
//! `role:master`, and uses a server only while at least two sentinels name it. Established
//! connections stay where they are regardless of checks. The timeouts are those of the chart.
//!
//! Differences from the chart: servers are told apart by port instead of address, because they
//! share an address here; a sentinel need not confirm QUIT, which Sentinel 7.0 does not support
//! (every vote would fail); and a statistics page shows when the checks have settled. Deliberately
//! absent: passwords.
//!
//! The other shapes have one backend that checks every server for `role:master`. A reply without
//! these words is conclusive there, as in CloudPirates' charts; in the redis-ha chart the check
//! waits for more until its timeout.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::agent::Agent;
use crate::cluster::Cluster;
use crate::http::http_get;
use crate::process::{Launch, Process};
use crate::wait::wait_until;

/// How long the checks may take to settle. A server that sentinels do not name is down after three
/// checks, three seconds apart.
const READY: Duration = Duration::from_secs(40);
/// Number of sentinels that have to name a server.
const AGREEMENT: usize = 2;

/// How haproxy finds the master, and what it does with connections to a former one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// The redis-ha chart's: checks count the votes of the sentinels.
    Votes,
    /// `role:master` alone, and connections to a server that is marked down are closed.
    Sessions,
    /// Like `Sessions`, and beside each server an agent says which one its sentinel names; a server
    /// is down until a check says otherwise.
    Agents,
}

/// A running haproxy. Dropping it kills it.
#[derive(Debug)]
pub struct Haproxy {
    process: Process,
    launch: Launch,
    /// Those before a restart, which serve the connections that they have.
    earlier: Vec<Process>,
    listen: SocketAddr,
    _agents: Vec<Agent>,
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
        Self::start_as(&[program.into().into_os_string()], cluster, Shape::Votes)
    }

    /// Like [`start`](Self::start), with a program that may need a loader, in a given shape.
    ///
    /// # Panics
    /// Like [`start`](Self::start), and with agents if the servers share an address.
    #[must_use]
    #[track_caller]
    pub fn start_as(words: &[OsString], cluster: &Cluster, shape: Shape) -> Self {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let name = format!("haproxy-{}", COUNTER.fetch_add(1, Ordering::Relaxed));
        let folder = cluster.folder().join(&name);
        std::fs::create_dir(&folder)
            .unwrap_or_else(|error| panic!("cannot make {}: {error}", folder.display()));
        let (listen, page) = (cluster.address().port(), cluster.address().port());
        let servers: Vec<_> = cluster.nodes().iter().map(crate::Node::addr).collect();
        let agents: Vec<Agent> = match shape {
            Shape::Agents => Agent::beside_each(cluster),
            Shape::Votes | Shape::Sessions => Vec::new(),
        };
        let (sentinels, socket) = (cluster.sentinel_addrs(), folder.join(SOCKET));
        let places = Places { servers: &servers, sentinels: &sentinels, listen, page };
        let conf = global(&socket)
            + &match shape {
                Shape::Votes => conf(cluster.name(), &places),
                Shape::Sessions | Shape::Agents => simple_conf(&places, &agents),
            };
        let file = write(&folder, &conf);
        let (program, rest) = words.split_first().expect("a program");
        let options = ["-db".into(), "-f".into(), file.into_os_string()];
        let args = rest.iter().cloned().chain(options).collect();
        let launch = Launch { name, program: program.into(), args, env: Vec::new(), folder };
        let process = Process::start(&launch);
        let haproxy = Self { process, launch, earlier: Vec::new(), listen, _agents: agents };
        let votes = if shape == Shape::Votes { sentinels.len() } else { 0 };
        let master = cluster.master().addr();
        wait_until("haproxy's checks to settle", READY, || {
            assert!(haproxy.process.is_running(), "haproxy ended: {}", haproxy.process.tail());
            let (_, csv) = http_get(page, "/;csv").map_err(|error| error.to_string())?;
            if settled(&csv, &servers, votes, master) { Ok(()) } else { Err(summary(&csv)) }
        });
        haproxy
    }

    /// Restarts it the way its documentation gives: a new process takes the listening sockets, and
    /// the old one serves the connections it has until they end.
    pub fn restart(&mut self) {
        let (socket, pid) = (self.launch.folder.join(SOCKET), self.process.pid().to_string());
        let mut launch = self.launch.clone();
        launch.args.extend(["-x".into(), socket.into(), "-sf".into(), pid.into()]);
        let new = Process::start(&launch);
        self.earlier.push(std::mem::replace(&mut self.process, new));
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

/// The file of its runtime interface, in its folder.
const SOCKET: &str = "haproxy.sock";

fn global(socket: &Path) -> String {
    let socket = socket.display();
    format!(
        "global\n  nbthread 1\n  maxconn 4000\n  stats socket {socket} level admin expose-fd listeners\n"
    )
}

/// The addresses in a configuration.
struct Places<'a> {
    servers: &'a [SocketAddr],
    sentinels: &'a [SocketAddr],
    listen: SocketAddr,
    page: SocketAddr,
}

fn front(Places { listen, page, .. }: &Places<'_>) -> String {
    format!(
        "defaults\n  mode tcp\n  timeout connect 4s\n  timeout server 330s\n  timeout client 330s\n  timeout check 2s\n\
         \x20 timeout tunnel 1h\n\
         frontend page\n  bind {page}\n  mode http\n  stats enable\n  stats uri /\n\
         frontend clients\n  bind {listen}\n  default_backend masters\n"
    )
}

/// One backend that checks every server for `role:master`, and asks its agent if there is one.
fn simple_conf(places: &Places<'_>, agents: &[Agent]) -> String {
    let mut conf = front(places);
    conf.push_str("backend masters\n  option tcp-check\n  tcp-check connect\n");
    exchange(&mut conf, "PING", "+PONG");
    exchange(&mut conf, "info\\ replication", "role:master min-recv 100");
    for (index, server) in places.servers.iter().enumerate() {
        let agent = agents.get(index).map(|agent| {
            let port = agent.port();
            format!(" agent-check agent-port {port} agent-inter 1s init-state down")
        });
        let _ = writeln!(
            conf,
            "  server R{index} {server} check inter 1s fall 1 rise 1 on-marked-down shutdown-sessions{}",
            agent.unwrap_or_default()
        );
    }
    conf
}

fn conf(name: &str, places: &Places<'_>) -> String {
    let mut conf = front(places);
    let Places { servers, sentinels, .. } = places;
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
        // An agent adds a word to the state.
        let own = state(csv, "masters", &format!("R{index}"));
        votes && own.strip_suffix(" (agent)").unwrap_or(own) == wanted
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
        let places =
            Places { servers: &servers, sentinels: &sentinels, listen: addr(1), page: addr(2) };
        let conf = conf("mymaster", &places);
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
    fn closes_connections_of_servers_marked_down() {
        let servers = [addr(40001), addr(40002)];
        let places = Places { servers: &servers, sentinels: &[], listen: addr(1), page: addr(2) };
        let conf = simple_conf(&places, &[]);
        for line in [
            "  server R1 127.1.2.3:40002 check inter 1s fall 1 rise 1 on-marked-down shutdown-sessions",
            "  tcp-check expect string role:master min-recv 100",
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
        assert!(settled("DOWN") && settled("DOWN (agent)"));
        assert!(!settled("UP") && !settled("UP 1/2") && !settled("no check"));
    }
}
