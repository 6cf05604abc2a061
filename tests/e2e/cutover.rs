//! deploy/systemd/cutover.md, played: haproxy leaves a port that Pointsman already serves, and
//! comes back to it, under clients that connect all the time.
//!
//! The test takes systemd's part: it holds the listening socket of `pointsman.socket` with
//! `ReusePort=yes`, and passes it to the service. haproxy is the real one. Whether connections in a
//! closed socket's queue survive is a setting of the network namespace, so each test has one of its
//! own.

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use harness::{
    Client, Cluster, Launch, Process, Signal, alone, find_in_path, http_get, wait_until,
};
use socket2::{Domain, Socket, Type};

use crate::restart::{Callers, activated};

const PATIENCE: Duration = Duration::from_secs(30);
/// Clients that wait at the stop, half of them in haproxy's queue: more than it accepts in one go.
const CLIENTS: usize = 400;
/// What the page recommends in the `[shutdown]` section beside a socket unit.
const SHUTDOWN: &str = "[shutdown]\naccept_min = \"0s\"\naccept_quiet = \"0s\"\n\
                        drain_spread = \"0s\"\ndrain_timeout = \"5s\"\n";

/// How haproxy runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// As Debian's unit starts it; a signal to the master reaches the worker.
    MasterWorker,
    /// One process with one thread.
    Single,
    /// One process that shares no port.
    Alone,
}

/// One machine: a cluster, the port that clients know, and both proxies' files.
struct Machine {
    cluster: Cluster,
    addr: SocketAddr,
    admin: SocketAddr,
    config: PathBuf,
}

impl Machine {
    fn new(migrate: bool) -> Self {
        let value = if migrate { "1" } else { "0" };
        std::fs::write("/proc/sys/net/ipv4/tcp_migrate_req", value).expect("Linux 5.14 or later");
        let cluster = Cluster::builder().replicas(0).sentinels(1).start();
        let (addr, admin) = (cluster.address().port(), cluster.address().port());
        let config = cluster.folder().join("cutover.toml");
        let text = format!(
            "[[service]]\nname = \"mymaster\"\nsentinels = [\"{}\"]\nlisten = [\"{addr}\"]\n\
             [admin]\nlisten = [\"{admin}\"]\n{SHUTDOWN}",
            cluster.sentinel_addrs()[0]
        );
        std::fs::write(&config, text).expect("a file");
        Self { cluster, addr, admin, config }
    }

    /// haproxy at the port, serving.
    fn haproxy(&self, number: usize, mode: Mode, program: &Path) -> Process {
        let folder = self.cluster.folder().join(format!("haproxy-{number}"));
        std::fs::create_dir(&folder).expect("a folder");
        let master = self.cluster.master().addr();
        let global = match mode {
            Mode::MasterWorker => "maxconn 4000",
            // A second thread could empty the queue before the first has read the signal.
            Mode::Single => "maxconn 4000\n  nbthread 1\n  tune.maxaccept 50",
            Mode::Alone => "noreuseport",
        };
        let text = format!(
            "global\n  {global}\ndefaults\n  mode tcp\n  timeout connect 4s\n\
             \x20 timeout client 330s\n\
             \x20 timeout server 330s\nlisten redis\n  bind {}\n  option tcp-check\n\
             \x20 tcp-check send info\\ replication\\r\\n\n  tcp-check expect string role:master\n\
             \x20 server first {master} check inter 200ms\n",
            self.addr
        );
        let file = folder.join("haproxy.cfg");
        std::fs::write(&file, text).expect("a file");
        let before = self.listeners();
        let mut args: Vec<OsString> = vec!["-db".into(), "-f".into(), file.into()];
        args.extend((mode == Mode::MasterWorker).then(|| "-W".into()));
        let name = format!("haproxy-{number}");
        let launch = Launch { name, program: program.into(), args, env: Vec::new(), folder };
        let process = Process::start(&launch);
        wait_until("haproxy to listen", PATIENCE, || {
            assert!(process.is_running(), "it ended: {}", process.tail());
            self.listeners() > before
        });
        process
    }

    /// What `pointsman.socket` with `ReusePort=yes` is.
    fn shared_socket(&self) -> std::io::Result<TcpListener> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(true)?;
        socket.bind(&self.addr.into())?;
        socket.listen(4096)?;
        Ok(socket.into())
    }

    /// Pointsman with that socket, ready.
    fn pointsman(&self, socket: &TcpListener) -> Process {
        let process = activated(0, self.cluster.folder(), &self.config, socket);
        wait_until("pointsman to be ready", PATIENCE, || {
            assert!(process.is_running(), "it ended: {}", process.tail());
            http_get(self.admin, "/ready").is_ok_and(|(status, _)| status == 200)
        });
        process
    }

    /// Sockets that listen at the port, of either proxy.
    fn listeners(&self) -> usize {
        let table = std::fs::read_to_string("/proc/net/tcp").expect("the sockets");
        let port = format!(":{:04X}", self.addr.port());
        let listening = |line: &&str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            fields.get(1).is_some_and(|at| at.ends_with(&port)) && fields.get(3) == Some(&"0A")
        };
        table.lines().filter(listening).count()
    }

    fn sessions(&self) -> f64 {
        let (_, text) = http_get(self.admin, "/metrics").expect("metrics");
        let series = "pointsman_sessions_total{service=\"mymaster\"} ";
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.parse().ok());
        value.unwrap_or_else(|| panic!("no {series}in\n{text}"))
    }
}

#[allow(clippy::print_stderr, reason = "a test that does not run says so")]
fn haproxy() -> Option<PathBuf> {
    let found = find_in_path("haproxy").or_else(|| Some(PathBuf::from("/usr/sbin/haproxy")));
    let found = found.filter(|path| path.is_file());
    if found.is_none() {
        eprintln!("haproxy is not installed, so deploy/systemd/cutover.md is NOT TESTED");
    }
    found
}

#[test]
fn replaces_haproxy_on_its_port_and_back() {
    let Some(program) = haproxy() else { return };
    if !alone("cutover::replaces_haproxy_on_its_port_and_back") {
        return;
    }
    let machine = Machine::new(true);
    let old = machine.haproxy(0, Mode::MasterWorker, &program);
    wait_until("haproxy to serve", PATIENCE, || {
        Client::connect(machine.addr)
            .and_then(|mut it| it.cmd(&["PING"]))
            .is_ok_and(|it| it.text() == Some("PONG"))
    });
    let mut kept = Client::connect(machine.addr).expect("a session through haproxy");
    assert_eq!(kept.cmd(&["PING"]).expect("PING").text(), Some("PONG"));
    let callers = Callers::start(machine.addr);
    callers.wait_for(50);

    // Beside it: both serve new connections.
    let socket = machine.shared_socket().expect("haproxy shares its port");
    let pointsman = machine.pointsman(&socket);
    wait_until("pointsman to have its share", PATIENCE, || machine.sessions() > 20.0);

    // haproxy leaves the port, and keeps the sessions that it has.
    old.signal(Signal::USR1);
    wait_until("haproxy to close its listener", PATIENCE, || machine.listeners() == 1);
    callers.wait_for(50);
    assert_eq!(kept.cmd(&["PING"]).expect("PING").text(), Some("PONG"));
    assert!(old.is_running(), "a session of haproxy's was cut");
    drop(kept);
    assert_eq!(old.wait_exit(PATIENCE).code(), Some(0));

    // The way back.
    let mut kept = Client::connect(machine.addr).expect("a session through pointsman");
    assert_eq!(kept.cmd(&["PING"]).expect("PING").text(), Some("PONG"));
    let new = machine.haproxy(1, Mode::MasterWorker, &program);
    drop(socket);
    pointsman.signal(Signal::TERM);
    assert_eq!(pointsman.wait_exit(PATIENCE).code(), Some(0));
    assert_eq!(machine.listeners(), 1);
    callers.wait_for(50);
    let (served, failures) = callers.stop();
    assert!(failures.is_empty(), "{} of {served}: {failures:?}", failures.len());
    // The master ends its worker; a killed one would leave it.
    assert!(new.is_running());
    new.signal(Signal::TERM);
    new.wait_exit(PATIENCE);
    println!("{served} new connections, none refused or reset");
}

/// Connections that wait in haproxy's queue at the soft stop: how many are answered, and how many
/// reset.
fn queued_at_the_stop(migrate: bool, program: &Path) -> (usize, usize) {
    let machine = Machine::new(migrate);
    let haproxy = machine.haproxy(0, Mode::Single, program);
    let socket = machine.shared_socket().expect("haproxy shares its port");
    let _pointsman = machine.pointsman(&socket);
    haproxy.signal(Signal::STOP);
    let clients: Vec<TcpStream> = (0..CLIENTS)
        .map(|_| {
            let mut client = TcpStream::connect(machine.addr).expect("a place in a queue");
            client.write_all(b"PING\r\n").expect("a request");
            client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            client
        })
        .collect();
    haproxy.signal(Signal::USR1);
    haproxy.signal(Signal::CONT);
    let mut outcome = (0, 0);
    for mut client in clients {
        let mut reply = [0; 7];
        match client.read_exact(&mut reply) {
            Ok(()) if &reply == b"+PONG\r\n" => outcome.0 += 1,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => outcome.1 += 1,
            other => panic!("{other:?}"),
        }
    }
    outcome
}

/// Why the page sets `net.ipv4.tcp_migrate_req`.
#[test]
fn queue_of_haproxy_survives_with_migration_only() {
    let Some(program) = haproxy() else { return };
    if !alone("cutover::queue_of_haproxy_survives_with_migration_only") {
        return;
    }
    let (answered, reset) = queued_at_the_stop(true, &program);
    assert_eq!((answered, reset), (CLIENTS, 0));
    let (answered, reset) = queued_at_the_stop(false, &program);
    assert!(reset > 0 && answered + reset == CLIENTS, "{answered} answered, {reset} reset");
    println!("without migration {reset} of {CLIENTS} were reset");
}

/// Without a shared socket one of the two has the port, and the other says so.
#[test]
fn refuses_port_of_haproxy_without_shared_socket() {
    let Some(program) = haproxy() else { return };
    if !alone("cutover::refuses_port_of_haproxy_without_shared_socket") {
        return;
    }
    let machine = Machine::new(true);
    let _haproxy = machine.haproxy(0, Mode::Alone, &program);
    let refused = machine.shared_socket().expect_err("haproxy with `noreuseport` shares nothing");
    assert_eq!(refused.kind(), std::io::ErrorKind::AddrInUse);
    let process = Process::start(&Launch {
        name: "pointsman-refused".to_owned(),
        program: crate::PROGRAM.into(),
        args: ["run".into(), "--config".into(), machine.config.clone().into()].to_vec(),
        env: Vec::new(),
        folder: machine.cluster.folder().to_owned(),
    });
    assert_eq!(process.wait_exit(PATIENCE).code(), Some(1));
    assert!(process.log().contains("is already in use by another process"), "{}", process.log());
}
