//! Faulty networks and very many connections: rows 21, 23, 27, 33 and 34 of the table in `main.rs`.
//! Each of these tests runs in its own process and network namespace.

use std::time::{Duration, Instant};

use harness::{Client, Cluster, Filter, alone, encode, overtaken, reorder, shape, wait_until};

use crate::{DEDICATED, builder, metric, pointsman, resources};

const PATIENCE: Duration = Duration::from_secs(60);

fn small() -> Cluster {
    Cluster::builder().replicas(0).sentinels(1).start()
}

fn closed(pointsman: &harness::Pointsman, reason: &str) -> f64 {
    let series =
        format!("pointsman_sessions_closed_total{{service=\"mymaster\",reason=\"{reason}\"}}");
    metric(pointsman, &series).unwrap_or(0.0)
}

fn dial_errors(pointsman: &harness::Pointsman, reason: &str) -> f64 {
    let series = format!("pointsman_dial_errors_total{{service=\"mymaster\",reason=\"{reason}\"}}");
    metric(pointsman, &series).unwrap_or(0.0)
}

fn open(pointsman: &harness::Pointsman) -> f64 {
    metric(pointsman, "pointsman_sessions_open{service=\"mymaster\"}").unwrap_or(-1.0)
}

#[test]
fn closes_thousands_of_sessions_without_stall() {
    if !alone("faults_net::closes_thousands_of_sessions_without_stall") {
        return;
    }
    // Two descriptors per connection in the proxy, one here and one in Redis; each process has a
    // reserve.
    let allowed = std::process::Command::new("sh")
        .args(["-c", "ulimit -Hn"])
        .output()
        .expect("the limit")
        .stdout;
    let allowed: usize = String::from_utf8_lossy(&allowed).trim().parse().unwrap_or(1_000_000);
    let many = ((allowed.saturating_sub(1200)) / 2).min(10_000);
    let cluster = Cluster::builder().redis_line("maxclients 12000").start();
    let process = format!("[process]\nmax_connections = {many}");
    let pointsman = builder(&cluster).service_line("sessions = \"close\"").lines(&process).start();
    let own = harness::raise_files();
    assert!(own > many + 500, "this process may open {own} files");
    let mut clients: Vec<Client> = (0..many).map(|_| pointsman.client()).collect();
    for client in clients.iter_mut().step_by(50) {
        assert_eq!(client.cmd(&["PING"]).expect("PING").text(), Some("PONG"));
    }
    wait_until("all sessions to be open", PATIENCE, || open(&pointsman) == many as f64);
    // Redis accepts some of them only at the kernel's second or third attempt. A session that
    // connects after the failover goes to the new master and stays.
    wait_until("all to have got to the master", PATIENCE, || {
        metric(&pointsman, "pointsman_dials_total{service=\"mymaster\"}") >= Some(many as f64)
    });
    let ((), worst) = resources::probed(&pointsman, || {
        cluster.failover();
        wait_until("the switch", PATIENCE, || {
            metric(&pointsman, "pointsman_target_generation{service=\"mymaster\"}") >= Some(2.0)
        });
        for client in &mut clients {
            let (bytes, _) = client.read_to_end().expect("the end of an old connection");
            assert!(bytes.is_empty());
        }
        let mut next = pointsman.client();
        assert!(next.cmd(&["SET", "after", "1"]).expect("SET").is_ok());
    });
    worst.check("a failover that cuts thousands");
    // Clients see the end before it is counted.
    wait_until("all to be counted", PATIENCE, || closed(&pointsman, "fenced") >= many as f64);
    drop(clients);
    wait_until("the last session to be gone", PATIENCE, || open(&pointsman) == 0.0);
}

#[test]
fn gives_up_master_that_drops_syns() {
    if !alone("faults_net::gives_up_master_that_drops_syns") {
        return;
    }
    let cluster = small();
    let lines = "connect_timeout = \"400ms\"\nhold_timeout = \"2s\"";
    // A client that shares has no connection before its first request.
    let pointsman = builder(&cluster).service_line(lines).service_line(DEDICATED).start();
    let filter = Filter::drop_all(cluster.nodes()[0].addr().port()).expect("a filter");
    let begin = Instant::now();
    let (bytes, _) =
        pointsman.client().read_to_end().expect("an end, within the client's patience");
    let took = begin.elapsed();
    assert!(bytes.is_empty() && took >= Duration::from_millis(1900), "{took:?}");
    assert!(
        dial_errors(&pointsman, "timed_out") >= 1.0,
        "{}",
        dial_errors(&pointsman, "timed_out")
    );
    drop(filter);
    wait_until("clients to be served again", PATIENCE, || {
        pointsman.client().cmd(&["PING"]).is_ok_and(|answer| answer.text() == Some("PONG"))
    });
}

/// A router forgets an idle connection to the master, and resets it: nothing is owed, so the client
/// notices nothing. What the server itself closes is closed.
#[test]
fn hides_connections_that_a_router_forgot() {
    if !alone("faults_net::hides_connections_that_a_router_forgot") {
        return;
    }
    let cluster = small();
    let pointsman = builder(&cluster).service_line("tcp_keepalive = \"1s\"").start();
    let mut client = pointsman.client();
    assert!(client.cmd(&["SELECT", "2"]).expect("SELECT").is_ok());
    assert!(client.cmd(&["SET", "k", "v"]).expect("SET").is_ok());
    let list = cluster.nodes()[0].ask(&["CLIENT", "LIST"]).expect("CLIENT LIST");
    let line = list.text().and_then(|it| it.lines().find(|it| it.contains("cmd=set"))).expect("it");
    let field = |name: &str| line.split(' ').find_map(|it| it.strip_prefix(name)).expect("it");
    let port = field("addr=").rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    let _filter = Filter::reset_all(port.expect("a port")).expect("a filter");
    wait_until("the session to be carried", PATIENCE, || {
        metric(&pointsman, "pointsman_sessions_carried_total{service=\"mymaster\"}") == Some(1.0)
    });
    assert_eq!(client.cmd(&["GET", "k"]).expect("GET").text(), Some("v"));
    let killed =
        cluster.nodes()[0].ask(&["CLIENT", "KILL", "TYPE", "normal"]).expect("CLIENT KILL");
    assert!(killed.int() >= Some(1));
    assert!(client.read_to_end().expect("the end").0.is_empty());
}

#[test]
fn detects_vanished_client() {
    if !alone("faults_net::detects_vanished_client") {
        return;
    }
    let cluster = small();
    let pointsman =
        builder(&cluster).service_line("tcp_keepalive = \"1s\"\ntcp_user_timeout = \"2s\"").start();
    let (mut idle, mut owed) = (pointsman.client(), pointsman.client());
    for client in [&mut idle, &mut owed] {
        assert_eq!(client.cmd(&["PING"]).expect("PING").text(), Some("PONG"));
    }
    owed.send(&encode(&["BLPOP", "queue", "0"])).expect("BLPOP");
    wait_until("the pop to block", PATIENCE, || {
        cluster.nodes()[0].info("clients", "blocked_clients").is_ok_and(|it| it == "1")
    });
    let begin = Instant::now();
    let _filter = Filter::drop_all(pointsman.addr().port()).expect("a filter");
    // One is detected by keepalive, the other by a reply that is never acknowledged.
    cluster.nodes()[0].ask(&["LPUSH", "queue", "x"]).expect("LPUSH");
    wait_until("both to be given up", PATIENCE, || closed(&pointsman, "client_lost") == 2.0);
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    let connected =
        || cluster.nodes()[0].info("clients", "blocked_clients").is_ok_and(|it| it == "0");
    wait_until("the server's connections to be gone too", PATIENCE, connected);
}

#[test]
fn closes_clients_fast_without_free_ports() {
    if !alone("faults_net::closes_clients_fast_without_free_ports") {
        return;
    }
    let cluster = small();
    let pointsman = builder(&cluster).service_line(DEDICATED).start();
    let ports = "/proc/sys/net/ipv4/ip_local_port_range";
    let usual = std::fs::read_to_string(ports).expect("the range of ports");
    // All connections to Redis have one source address, those of the clients have many.
    std::fs::write(ports, "61000 61099").expect("a range of a hundred ports");
    let from = |number: u16| {
        Client::connect_from([127, 255, 9, 1 + (number / 40) as u8].into(), pointsman.addr())
    };
    let mut clients: Vec<Client> =
        (0..200).map(|number| from(number).expect("a connection")).collect();
    wait_until("the ports to be used up", PATIENCE, || {
        dial_errors(&pointsman, "exhausted") >= 50.0
    });
    let begin = Instant::now();
    let served = |client: &mut Client| {
        client.cmd(&["PING"]).is_ok_and(|answer| answer.text() == Some("PONG"))
    };
    let count = clients.iter_mut().map(served).filter(|served| *served).count();
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?} for 200 answers", begin.elapsed());
    assert!((50..=100).contains(&count), "{count} were served");
    wait_until("the others to be counted", PATIENCE, || {
        closed(&pointsman, "resources_exhausted") == (200 - count) as f64
    });
    let (used, begin) = (resources::cpu(&pointsman), Instant::now());
    wait_until("two seconds", PATIENCE, || begin.elapsed() > Duration::from_secs(2));
    let spent = resources::cpu(&pointsman).saturating_sub(used);
    assert!(spent < Duration::from_secs(1), "{spent:?} of CPU while nothing happens");
    std::fs::write(ports, usual).expect("the usual range of ports");
    drop(clients);
    wait_until("clients to be served again", PATIENCE, || {
        pointsman.client().cmd(&["PING"]).is_ok()
    });
}

/// Writes a value and reads it back, twice; returns the memory it took.
fn there_and_back(pointsman: &harness::Pointsman, size: u32) -> u64 {
    let before = resources::memory(pointsman);
    let value: Vec<u8> = (0..size).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    // Each lost attempt to connect takes twice as long as the one before.
    let mut client = Client::connect_within(pointsman.addr(), PATIENCE).expect("a patient client");
    for _ in 0..2 {
        client.send(&encode(&[b"SET".as_slice(), b"large", &value])).expect("send");
        client.send(&encode(&["GET", "large"])).expect("send");
        assert!(client.read_value().expect("an answer").is_ok());
        let head = format!("${size}\r\n");
        assert_eq!(client.read_exact(head.len()).expect("a header"), head.as_bytes());
        assert!(
            client.read_exact(value.len() + 2).expect("the value")[..value.len()] == value,
            "it came back changed"
        );
    }
    resources::memory(pointsman).saturating_sub(before)
}

#[test]
fn delivers_every_byte_despite_loss() {
    if !alone("faults_net::delivers_every_byte_despite_loss") {
        return;
    }
    let cluster = small();
    let pointsman = pointsman(&cluster);
    let _filter = Filter::drop_some(pointsman.addr().port(), 3).expect("a filter");
    let grown = there_and_back(&pointsman, 3_000_000);
    assert!(grown < 8 * 1024 * 1024, "{grown} bytes");
    let digest = cluster.nodes()[0].ask(&["STRLEN", "large"]).expect("STRLEN").int();
    assert_eq!(digest, Some(3_000_000));
}

#[test]
fn delivers_every_byte_despite_reordering() {
    if !alone("faults_net::delivers_every_byte_despite_reordering") {
        return;
    }
    let cluster = small();
    let pointsman = pointsman(&cluster);
    reorder(pointsman.addr().port(), "100mbit").expect("a queue that some packets take");
    let before = overtaken();
    let grown = there_and_back(&pointsman, 3_000_000);
    assert!(grown < 8 * 1024 * 1024, "{grown} bytes");
    let count = overtaken() - before;
    assert!(count > 20, "only {count} segments were overtaken");
}

#[test]
fn delivers_every_byte_over_a_slow_line() {
    if !alone("faults_net::delivers_every_byte_over_a_slow_line") {
        return;
    }
    let cluster = small();
    let pointsman = pointsman(&cluster);
    shape(pointsman.addr().port(), "1mbit").expect("a slow line");
    let begin = Instant::now();
    let grown = there_and_back(&pointsman, 200_000);
    // 800 kB at one megabit per second: proves that the line was slow.
    assert!(begin.elapsed() > Duration::from_secs(4), "{:?}", begin.elapsed());
    assert!(grown < 8 * 1024 * 1024, "{grown} bytes");
    let mut second = pointsman.client();
    assert_eq!(second.cmd(&["PING"]).expect("PING").text(), Some("PONG"));
}
