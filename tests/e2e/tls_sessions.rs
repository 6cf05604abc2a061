//! TLS sessions through failovers, takeovers and hostile clients: the promises are those of plain
//! sessions.

use std::ffi::OsString;
use std::io::Write as _;
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use harness::{Client, Cluster, Ending, Launch, Process, Signal, http_get, wait_until};

use crate::carry;
use crate::crowd::Crowd;
use crate::failover;
use crate::restart::wait_for_place;
use crate::tls_clients::{PATIENCE, Secured, assert_served, ping, small};

const CLIENTS: usize = 200;

#[test]
fn hides_planned_failover_from_200_tls_clients() {
    let cluster = Cluster::builder().user(carry::USER).start();
    let secured = Secured::start(&cluster, "", "");
    let crowd = Crowd::gather_by(|| secured.client(), CLIENTS);
    println!("TLS: {}", carry::hides_planned_failover(&cluster, &secured.pointsman, crowd));
}

#[test]
fn loses_nothing_in_a_planned_failover_with_tls() {
    let cluster = Cluster::builder().start();
    let secured = Secured::start(&cluster, "", "");
    let load = harness::Load::to(secured.addr).tls(&secured.tls());
    failover::loses_nothing(&cluster, &secured.pointsman, load);
}

#[test]
fn takes_over_with_200_tls_clients_without_error() {
    let cluster = small();
    let place = cluster.folder().to_owned();
    let lines = format!(
        "[shutdown]\naccept_min = \"0s\"\naccept_quiet = \"0s\"\naccept_max = \"0s\"\n\
         drain_spread = \"1s\"\ndrain_timeout = \"10s\"\n\
         [process]\nstate_dir = {place:?}\nworkers = 2"
    );
    let secured = Secured::start(&cluster, "", &lines);
    let mut idle: Vec<Client> = (0..CLIENTS).map(|_| secured.client()).collect();
    for client in &mut idle {
        assert_eq!(client.cmd(&["PING"]).expect("PING").text(), Some("PONG"));
    }
    let stop = Arc::<AtomicBool>::default();
    let (addr, tls, over) = (secured.addr, secured.tls(), Arc::clone(&stop));
    let caller = std::thread::spawn(move || {
        let (mut served, mut failures) = (0, Vec::new());
        while !over.load(Ordering::Relaxed) {
            match ping(addr, &tls) {
                Ok(reply) if reply.text() == Some("PONG") => served += 1,
                other => failures.push(format!("{other:?}")),
            }
            harness::pause(Duration::from_millis(5));
        }
        (served, failures)
    });
    wait_for_place(&place.join("takeover.sock"));
    let config = secured.pointsman.process().log_path().with_file_name("pointsman.toml");
    let args = ["run".into(), "--takeover".into(), "--config".into(), config.into_os_string()];
    let next = Process::start(&Launch {
        name: "takeover-1".to_owned(),
        program: PathBuf::from(crate::PROGRAM),
        args: Vec::<OsString>::from(args),
        env: Vec::new(),
        folder: place,
    });
    // Every session ends in order: after its last reply, and with `close_notify`.
    for client in &mut idle {
        client.set_timeout(PATIENCE).expect("a timeout");
        let (rest, ending) = client.read_to_end().expect("an orderly end");
        assert_eq!((rest.len(), ending), (0, Ending::Fin));
    }
    assert_eq!(secured.pointsman.wait_exit(PATIENCE).code(), Some(0), "{}", next.tail());
    let admin = secured.pointsman.admin();
    wait_until("the new one to answer probes", PATIENCE, || {
        assert!(next.is_running(), "{}", next.tail());
        http_get(admin, "/ready").is_ok_and(|(status, _)| status == 200)
    });
    for client in &mut idle {
        *client = secured.client();
        assert_eq!(client.cmd(&["PING"]).expect("PING").text(), Some("PONG"));
    }
    stop.store(true, Ordering::Relaxed);
    let (served, failures) = caller.join().expect("a caller");
    assert!(served > 0 && failures.is_empty(), "of {served}: {failures:?}");
    assert!(next.log().contains("takeover complete"), "{}", next.log());
    next.signal(Signal::TERM);
    assert_eq!(next.wait_exit(PATIENCE).code(), Some(0));
}

/// The first bytes of a ClientHello that announces 512 bytes.
const HALF_HELLO: &[u8] = &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];

#[test]
fn serves_established_sessions_beside_bad_handshakes() {
    let cluster = small();
    let secured = Secured::start(&cluster, "handshake_timeout = \"2s\"", "");
    let mut established = secured.client();
    let mut ask = || {
        let since = Instant::now();
        assert_eq!(established.cmd(&["PING"]).expect("PING").text(), Some("PONG"));
        since.elapsed()
    };
    let connect = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(secured.addr).expect("a connection");
        stream.write_all(bytes).expect("sent");
        stream
    };
    // More than may be computed at once: silent ones, and those that stop in the middle.
    let mut stalled: Vec<TcpStream> = (0..300).map(|_| connect(HALF_HELLO)).collect();
    stalled.extend((0..50).map(|_| connect(b"")));
    let junk: Vec<TcpStream> =
        (0..50).map(|it| connect(&[0x16, 3, 1, 0, 5, it, 0xff, 0xff, 0xff, 0xff])).collect();
    let plain: Vec<TcpStream> = (0..50).map(|_| connect(b"PING\r\n")).collect();
    // Far less than the patience of the stalled ones, and enough for a busy machine.
    let mut longest = Duration::ZERO;
    for _ in 0..200 {
        longest = longest.max(ask());
    }
    println!("longest answer beside 450 bad handshakes: {longest:?}");
    // All are closed after their time, and new clients are served.
    for stream in stalled.into_iter().chain(junk).chain(plain) {
        let mut client = ClosedByServer(stream);
        client.wait();
        let _ = ask();
    }
    assert_served(secured.addr, &secured.tls());
    // Those that wait for their turn beside the stalled ones end by the same deadline.
    let failures = || {
        let (_, text) = secured.pointsman.get("/metrics").expect("metrics");
        let failures = text.lines().filter_map(|line| {
            line.strip_prefix("pointsman_tls_handshake_failures_total{service=\"mymaster\",")?
                .rsplit_once(' ')?
                .1
                .parse::<u64>()
                .ok()
        });
        failures.sum::<u64>()
    };
    wait_until("the failures to be counted", PATIENCE, || {
        if failures() >= 400 { Ok(()) } else { Err(failures().to_string()) }
    });
}

struct ClosedByServer(TcpStream);

impl ClosedByServer {
    /// Waits until the server closes, whether with FIN or RST.
    #[track_caller]
    fn wait(&mut self) {
        self.0.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        match std::io::copy(&mut self.0, &mut std::io::sink()) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
    }
}
