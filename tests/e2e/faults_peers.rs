//! Faulty clients and servers: rows 22, 26, 28 and 29 of the table in `main.rs`.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use harness::{Client, Cluster, Ending, encode, wait_until};

use crate::{DEDICATED, builder, metric, pointsman, resources};

const PATIENCE: Duration = Duration::from_secs(30);

fn small() -> Cluster {
    Cluster::builder().replicas(0).sentinels(1).start()
}

fn closed(pointsman: &harness::Pointsman, reason: &str) -> f64 {
    let series =
        format!("pointsman_sessions_closed_total{{service=\"mymaster\",reason=\"{reason}\"}}");
    metric(pointsman, &series).unwrap_or(0.0)
}

#[test]
fn waits_for_refusing_master_then_gives_up() {
    let cluster = small();
    let builder = builder(&cluster).service_line("hold_timeout = \"1500ms\"");
    // A client that shares has no connection before its first request.
    let pointsman = builder.service_line(DEDICATED).start();
    cluster.nodes()[0].kill();
    let begin = Instant::now();
    let (bytes, _) =
        pointsman.client().read_to_end().expect("an end, within the client's patience");
    assert!(
        bytes.is_empty() && begin.elapsed() >= Duration::from_millis(1400),
        "{:?}",
        begin.elapsed()
    );
    wait_until("the end to be counted", PATIENCE, || {
        closed(&pointsman, "hold_timeout") + closed(&pointsman, "dial_failed") == 1.0
    });
    // The gate closes when the process of the master has ended.
    let held = metric(&pointsman, "pointsman_holds_total{service=\"mymaster\"}");
    assert_eq!(held, Some(1.0));
    // If the master is back within the hold, the waiting client is served.
    let mut waiting = pointsman.client();
    cluster.nodes()[0].restart();
    waiting.set_timeout(PATIENCE).expect("a patient client");
    if !waiting.cmd(&["PING"]).is_ok_and(|answer| answer.text() == Some("PONG")) {
        wait_until("a client to be served again", PATIENCE, || {
            pointsman.client().cmd(&["PING"]).is_ok_and(|answer| answer.text() == Some("PONG"))
        });
    }
}

#[test]
fn closes_client_after_server_closed() {
    let cluster = small();
    // A session that could be carried is closed at once when its server closes it; one that could
    // not is half-closed.
    for (sessions, reason, least) in
        [("carry", "upstream_closed", 0), ("close", "half_close_timeout", 1000)]
    {
        let lines = format!("half_close_timeout = \"1s\"\nsessions = \"{sessions}\"");
        let pointsman = builder(&cluster).service_line(&lines).start();
        let mut client = pointsman.client();
        // Not by CLIENT ID: a session that knows its id is not carried.
        let info = client
            .cmd(&["CLIENT", "INFO"])
            .expect("CLIENT INFO")
            .text()
            .expect("a line")
            .to_owned();
        let id = info
            .split(' ')
            .find_map(|field| field.strip_prefix("id="))
            .expect("its number")
            .to_owned();
        let begin = Instant::now();
        cluster.nodes()[0].ask(&["CLIENT", "KILL", "ID", &id]).expect("CLIENT KILL");
        let (bytes, ending) = client.read_to_end().expect("its end");
        assert_eq!((bytes.as_slice(), ending), (&b""[..], Ending::Fin));
        wait_until("the session to be given up", PATIENCE, || closed(&pointsman, reason) == 1.0);
        let took = begin.elapsed();
        assert!(
            took >= Duration::from_millis(least) && took < Duration::from_secs(10),
            "{sessions}: {took:?}"
        );
        assert_eq!(metric(&pointsman, "pointsman_sessions_open{service=\"mymaster\"}"), Some(0.0));
        drop(client);
    }
}

#[test]
fn bounds_cost_of_clients_that_do_not_read() {
    let cluster = small();
    // Those that share may have 64 MiB of replies per worker.
    let pointsman = builder(&cluster).service_line(DEDICATED).start();
    let value: Vec<u8> =
        (0..1_000_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut quick = pointsman.client();
    assert!(quick.cmd(&[b"SET".as_slice(), b"large", &value]).expect("SET").is_ok());
    let before = resources::memory(&pointsman);
    const SLOW: usize = 20;
    const EACH: usize = 20;
    let mut slow: Vec<Client> = (0..SLOW).map(|_| pointsman.client()).collect();
    for client in &mut slow {
        client.send(&encode(&["GET", "large"]).repeat(EACH)).expect("requests");
    }
    // When the counters stop moving, the kernel has accepted all that it can.
    let out = || {
        metric(&pointsman, "pointsman_client_bytes_total{service=\"mymaster\",direction=\"out\"}")
    };
    let mut last = None;
    wait_until("the readers to be stuck", PATIENCE, || {
        harness::pause(Duration::from_millis(200));
        let now = out();
        std::mem::replace(&mut last, now) == now
    });
    assert!(last < Some((SLOW * EACH * value.len()) as f64), "they were not slow: {last:?}");
    let grown = resources::memory(&pointsman).saturating_sub(before);
    assert!(grown < SLOW as u64 * 640 * 1024, "{grown} bytes for {SLOW} slow readers");
    let begin = Instant::now();
    assert_eq!(quick.cmd(&["PING"]).expect("PING").text(), Some("PONG"));
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
    // Nothing is lost: the first client reads all that it requested.
    let head = format!("${}\r\n", value.len());
    for _ in 0..EACH {
        assert_eq!(slow[0].read_exact(head.len()).expect("a header"), head.as_bytes());
        assert!(
            slow[0].read_exact(value.len() + 2).expect("a value")[..value.len()] == value,
            "a value came changed"
        );
    }
}

#[test]
fn closes_silent_clients_if_configured() {
    let cluster = small();
    let pointsman = builder(&cluster).service_line("first_byte_timeout = \"2s\"").start();
    let mut speaking = pointsman.client();
    assert_eq!(speaking.cmd(&["PING"]).expect("PING").text(), Some("PONG"));
    let before = resources::memory(&pointsman);
    let silent: Vec<Client> = (0..1000).map(|_| pointsman.client()).collect();
    let grown = resources::memory(&pointsman).saturating_sub(before);
    assert!(grown < silent.len() as u64 * 16 * 1024, "{grown} bytes for {} sessions", silent.len());
    wait_until("all of them to be closed", PATIENCE, || {
        closed(&pointsman, "first_byte_timeout") == 1000.0
    });
    assert_eq!(speaking.cmd(&["PING"]).expect("PING").text(), Some("PONG"));
    for client in silent {
        let mut stream = client.stream();
        assert_eq!(stream.read(&mut [0; 1]).expect("an end"), 0);
        drop(stream.flush());
    }
}

#[test]
fn closes_only_idle_clients_if_configured() {
    let cluster = small();
    let pointsman = builder(&cluster).service_line("client_idle_timeout = \"1s\"").start();
    let (mut idle, mut blocked, mut subscribed) =
        (pointsman.client(), pointsman.client(), pointsman.client());
    let begin = Instant::now();
    assert_eq!(idle.cmd(&["PING"]).expect("PING").text(), Some("PONG"));
    assert_eq!(subscribed.cmd(&["SUBSCRIBE", "news"]).expect("SUBSCRIBE").items().len(), 3);
    blocked.send(&encode(&["BLPOP", "queue", "0"])).expect("BLPOP");
    let silent = Instant::now();
    let (_, ending) = idle.read_to_end().expect("the idle one's end");
    assert!(
        ending == Ending::Fin && begin.elapsed() >= Duration::from_secs(1),
        "{:?}",
        begin.elapsed()
    );
    wait_until("three times as long", PATIENCE, || silent.elapsed() > Duration::from_secs(3));
    let node = &cluster.nodes()[0];
    assert_eq!(node.ask(&["PUBLISH", "news", "x"]).expect("PUBLISH").int(), Some(1));
    assert_eq!(subscribed.read_value().expect("a message").items()[2].text(), Some("x"));
    node.ask(&["LPUSH", "queue", "y"]).expect("LPUSH");
    assert_eq!(blocked.read_value().expect("an item").items()[1].text(), Some("y"));
    assert_eq!(closed(&pointsman, "idle_timeout"), 1.0);
}

#[test]
fn measures_commands_and_dials() {
    let cluster = small();
    let pointsman = pointsman(&cluster);
    let mut client = pointsman.client();
    for _ in 0..640 {
        assert_eq!(client.cmd(&["PING"]).expect("PING").text(), Some("PONG"));
    }
    // Slow enough to stand out: one of 32 requests in a row is measured.
    let slow = "local e = redis.call('TIME'); local t = e[1] * 1000000 + e[2]; repeat e = redis.call('TIME') until \
                e[1] * 1000000 + e[2] > t + 100000; return 1";
    for _ in 0..32 {
        assert_eq!(client.cmd(&["EVAL", slow, "0"]).expect("EVAL").int(), Some(1));
    }
    let of = |name: &str| {
        metric(&pointsman, &format!("pointsman_{name}")).unwrap_or_else(|| panic!("no {name}"))
    };
    let count = of("command_duration_seconds_count{service=\"mymaster\"}");
    assert!((20.0..=22.0).contains(&count), "{count}");
    let below = of("command_duration_seconds_bucket{service=\"mymaster\",le=\"0.065536\"}");
    assert!(count - below >= 1.0 && below >= 1.0, "{below} of {count}");
    // Less than the 100 ms that it took, in case the proxy got no CPU between its write and its
    // clock read.
    assert!(of("command_duration_seconds_sum{service=\"mymaster\"}") > 0.07);
    assert_eq!(of("dial_duration_seconds_count{service=\"mymaster\"}"), 1.0);
    let (_, status) = pointsman.get("/status").expect("status");
    assert!(status.contains("command_p99_us") && status.contains("dial_p50_us"), "{status}");
}

/// Connections of this host to `addr` that are closed and keep their local port.
fn time_wait(addr: SocketAddr) -> usize {
    let IpAddr::V4(ip) = addr.ip() else { panic!("an IPv4 address") };
    let remote = format!("{:08X}:{:04X}", u32::from_le_bytes(ip.octets()), addr.port());
    let table = std::fs::read_to_string("/proc/net/tcp").expect("the sockets");
    let ended = |line: &&str| {
        let mut fields = line.split_whitespace().skip(2);
        fields.next() == Some(&*remote) && fields.next() == Some("06")
    };
    table.lines().filter(ended).count()
}

/// Clients that connect, ask and leave, in order or by a reset, as PHP does, keep no local port of
/// the proxy busy when nothing is owed.
#[test]
fn keeps_no_port_after_clients_have_left() {
    const CLIENTS: usize = 40;
    for upstream in ["dedicated", "shared"] {
        let cluster = Cluster::builder().replicas(0).sentinels(1).start();
        let line = format!("upstream = \"{upstream}\"");
        let pointsman = builder(&cluster).service_line(&line).start();
        let closed = || {
            let series = |reason| {
                let name = "pointsman_sessions_closed_total";
                format!("{name}{{service=\"mymaster\",reason=\"{reason}\"}}")
            };
            ["client_closed", "client_reset"]
                .map(|it| metric(&pointsman, &series(it)).unwrap_or(0.0))
        };
        // Everything that the test itself asked.
        let before = time_wait(cluster.master().addr());
        for n in 0..CLIENTS {
            let mut client = pointsman.client();
            assert!(client.cmd(&["SELECT", "1"]).unwrap().is_ok());
            assert!(client.cmd(&["SET", "k", "v"]).unwrap().is_ok());
            assert!(client.cmd(&["CLIENT", "LIST"]).is_ok());
            if n % 2 == 0 {
                client.reset().unwrap();
            }
        }
        wait_until("their ends", PATIENCE, || closed().iter().sum::<f64>() >= CLIENTS as f64);
        let after = time_wait(cluster.master().addr());
        assert!(after <= before + 2, "{upstream}: {after} after {before}, {:?}", closed());
    }
}
