//! Socket activation with TLS: real descriptors, passed as systemd does it.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use harness::{Authority, Client, Cluster, Process, Signal, Tls, http_get, wait_until};

use crate::restart::activated_as;
use crate::tls_clients::{NAME, folder, ping, section, small};

const PATIENCE: Duration = Duration::from_secs(60);

/// What each start of a test has in common.
struct Unit<'a> {
    cluster: &'a Cluster,
    socket: TcpListener,
    addr: SocketAddr,
    admin: SocketAddr,
    authority: Authority,
    config: PathBuf,
    starts: AtomicUsize,
}

impl<'a> Unit<'a> {
    fn new(cluster: &'a Cluster) -> Self {
        let socket = TcpListener::bind((cluster.address().ip(), 0)).expect("a socket");
        let addr = socket.local_addr().expect("its address");
        let config = cluster.folder().join("activated.toml");
        let (admin, authority) = (cluster.address().port(), Authority::new("Test CA"));
        let starts = AtomicUsize::new(0);
        Self { cluster, socket, addr, admin, authority, config, starts }
    }

    /// Writes a configuration with these lines of the service, and starts with the socket.
    fn start(&self, name: &str, lines: &str) -> Process {
        let files = self.authority.issue(&[NAME]).write(&folder(self.cluster));
        let text = format!(
            "[[service]]\nname = \"mymaster\"\nsentinels = [\"{}\"]\n{lines}\n{}\n[admin]\n\
             listen = [\"{}\"]\n[shutdown]\naccept_min = \"0s\"\naccept_quiet = \"0s\"\n\
             accept_max = \"0s\"\n",
            self.cluster.sentinel_addrs()[0],
            section(&[(&files.chain, &files.key)], ""),
            self.admin
        );
        std::fs::write(&self.config, text).expect("a file");
        self.start_again(name)
    }

    /// Starts with the same configuration.
    fn start_again(&self, name: &str) -> Process {
        let number = self.starts.fetch_add(1, Ordering::Relaxed);
        activated_as(name, number, self.cluster.folder(), &self.config, &self.socket)
    }

    fn wait_ready(&self, process: &Process) {
        wait_until("it to be ready", PATIENCE, || {
            assert!(process.is_running(), "{}", process.tail());
            http_get(self.admin, "/ready").is_ok_and(|(status, _)| status == 200)
        });
    }

    fn tls(&self) -> Tls {
        Tls::new(&self.authority, NAME)
    }
}

#[test]
fn serves_tls_on_activated_sockets_of_each_kind() {
    let cluster = Cluster::builder().replicas(1).start();
    let unit = Unit::new(&cluster);
    let plain = cluster.address().port();
    let lines = format!("listen = [\"{plain}\"]\n");
    // The addresses in the file are not used: the socket takes precedence.
    for (name, key, command, expected) in [
        ("mymaster/tls", "tls_listen", ["ROLE"], "master"),
        ("mymaster/replicas/tls", "replica_tls_listen", ["ROLE"], "slave"),
        ("mymaster/sentinels/tls", "sentinel_tls_listen", ["ROLE"], "sentinel"),
    ] {
        let process = unit.start(name, &format!("{lines}{key} = [\"127.0.0.1:1\"]"));
        unit.wait_ready(&process);
        wait_until(expected, PATIENCE, || {
            let client = Client::connect_tls(unit.addr, &unit.tls(), PATIENCE);
            let reply = client.and_then(|mut it| it.cmd(&command));
            let reply = reply.map_err(|error| error.to_string())?;
            let role = reply.items().first().and_then(|it| it.text());
            if role == Some(expected) { Ok(()) } else { Err(format!("{name}: {reply:?}")) }
        });
        // Never plain, and the plain address of the configuration is bound beside it.
        let mut stranger = Client::connect(unit.addr).expect("a connection");
        let refused = stranger.cmd(&["PING"]).expect("a reply");
        assert!(refused.error().is_some_and(|it| it.contains("TLS")), "{refused:?}");
        let reply = Client::connect(plain).and_then(|mut it| it.cmd(&["PING"])).expect("a reply");
        assert_eq!(reply.text(), Some("PONG"));
        process.signal(Signal::TERM);
        assert_eq!(process.wait_exit(PATIENCE).code(), Some(0));
    }
}

#[test]
fn refuses_activated_sockets_of_the_other_protocol() {
    let cluster = small();
    let unit = Unit::new(&cluster);
    let (addr, other) = (unit.addr, cluster.address().port());
    let tls = format!("listen = [\"{other}\"]\ntls_listen = [\"{addr}\"]");
    let plain = format!("listen = [\"{addr}\"]\ntls_listen = [\"{other}\"]");
    let only = format!("listen = []\ntls_listen = [\"{other}\"]");
    for (name, lines, cure) in [
        ("mymaster", &tls, "FileDescriptorName=mymaster/tls and Service=pointsman.service"),
        ("mymaster/tls", &plain, "FileDescriptorName=mymaster and Service=pointsman.service"),
        ("mymaster", &only, "set FileDescriptorName=mymaster/tls in its socket unit"),
        ("mymaster/replicas/tls", &tls, "add service.replica_tls_listen to the service"),
    ] {
        let process = unit.start(name, lines);
        assert_eq!(process.wait_exit(PATIENCE).code(), Some(78), "{}", process.tail());
        let said = process.tail();
        let socket = format!("socket {addr} of the service manager is named {name},");
        assert!(said.contains(&socket) && said.contains(cure), "{said}");
    }
}

#[test]
fn restarts_with_activated_tls_socket_refuse_no_client() {
    let cluster = small();
    let unit = Unit::new(&cluster);
    let lines = "listen = []\ntls_listen = [\"127.0.0.1:1\"]";
    let mut process = unit.start("mymaster/tls", lines);
    let (stop, served) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
    let caller = {
        let (addr, tls, stop, served) =
            (unit.addr, unit.tls(), Arc::clone(&stop), Arc::clone(&served));
        std::thread::spawn(move || {
            let mut failures = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                match ping(addr, &tls) {
                    Ok(reply) if reply.text() == Some("PONG") => {
                        served.fetch_add(1, Ordering::Relaxed);
                    }
                    other => failures.push(format!("{other:?}")),
                }
            }
            failures
        })
    };
    let wait_for = |more: usize| {
        let before = served.load(Ordering::Relaxed);
        wait_until("clients to be served", PATIENCE, || {
            served.load(Ordering::Relaxed) >= before + more
        });
    };
    for _ in 0..5 {
        wait_for(20);
        process.signal(Signal::TERM);
        assert_eq!(process.wait_exit(PATIENCE).code(), Some(0));
        process = unit.start_again("mymaster/tls");
    }
    wait_for(20);
    stop.store(true, Ordering::Relaxed);
    let failures = caller.join().expect("a caller");
    assert!(failures.is_empty(), "of {served:?}: {failures:?}");
}

#[test]
fn refuses_reload_that_wants_tls_at_a_plain_socket() {
    let cluster = small();
    let unit = Unit::new(&cluster);
    let other = cluster.address().port();
    let lines = |tls| format!("listen = [\"{other}\"]\ntls_listen = [\"{tls}\"]");
    let process = unit.start("mymaster", &lines(cluster.address().port()));
    unit.wait_ready(&process);
    let text = std::fs::read_to_string(&unit.config).expect("the file");
    let line = text.lines().find(|it| it.starts_with("tls_listen")).expect("a line");
    let wanted = format!("tls_listen = [\"{}\"]", unit.addr);
    std::fs::write(&unit.config, text.replace(line, &wanted)).expect("a file");
    process.signal(Signal::HUP);
    wait_until("the refusal", PATIENCE, || {
        let log = process.log();
        if log.contains("is without TLS; move it into a socket unit") { Ok(()) } else { Err(log) }
    });
    // It is as plain as before.
    let reply = Client::connect(unit.addr).and_then(|mut it| it.cmd(&["PING"])).expect("a reply");
    assert_eq!(reply.text(), Some("PONG"));
}
