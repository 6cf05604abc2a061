//! Drains at inconvenient times: with many sessions, during a failover, during a hold, and under
//! health checks.

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use harness::{Absences, Client, Cluster, Ending, Pointsman, Value, encode, pause, wait_until};

use crate::switchover::{TOKEN, controlled_by, order};
use crate::{builder, metric};

const PATIENCE: Duration = Duration::from_secs(40);
/// No accepting phase.
const AT_ONCE: &str = "accept_min = \"0s\"\naccept_quiet = \"0s\"\naccept_max = \"0s\"\n";

fn small() -> Cluster {
    Cluster::builder().replicas(0).sentinels(1).start()
}

fn started(cluster: &Cluster, shutdown: &str) -> Pointsman {
    builder(cluster)
        .service_line("hold_timeout = \"30s\"")
        .lines(&format!("[shutdown]\n{shutdown}"))
        .start()
}

/// The time of each session's end, in order.
fn ends(mut sessions: Vec<TcpStream>, begin: Instant) -> Vec<Duration> {
    let mut ends = Vec::with_capacity(sessions.len());
    sessions.iter().for_each(|it| it.set_nonblocking(true).expect("a mode"));
    while !sessions.is_empty() {
        assert!(begin.elapsed() < PATIENCE, "{} are still there", sessions.len());
        sessions.retain_mut(|session| match session.read(&mut [0]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => true,
            Ok(0) => {
                ends.push(begin.elapsed());
                false
            }
            other => panic!("it ended with {other:?}"),
        });
        pause(Duration::from_millis(5));
    }
    ends
}

fn idle_sessions_leave_evenly(count: usize, spread: Duration, slack: Duration) {
    let cluster = small();
    let settings =
        format!("{AT_ONCE}drain_spread = \"{}s\"\ndrain_timeout = \"30s\"", spread.as_secs());
    let pointsman = started(&cluster, &settings);
    let session = |_| {
        let mut client = pointsman.client();
        client.set_timeout(PATIENCE).expect("a timeout");
        assert_eq!(client.cmd(&["PING"]).expect("PING").text(), Some("PONG"));
        client.stream().try_clone().expect("a handle")
    };
    let sessions: Vec<TcpStream> = (0..count).map(session).collect();
    let absences = Absences::watch();
    let begin = Instant::now();
    pointsman.sigterm();
    let ends = ends(sessions, begin);
    let last = ends.last().copied().unwrap_or_default();
    let away = absences.between(begin, begin + last);
    assert!(last <= spread + slack, "the last of {count} left after {last:?}");
    // Clients must not reconnect all at once: no half second has more than twice its share plus
    // some for chance. Sessions due while the machine was suspended leave when it is back.
    let half = Duration::from_millis(500);
    let share =
        count / usize::try_from(spread.as_millis() / half.as_millis()).expect("a small number");
    let held_up = usize::try_from(share as u128 * away.as_millis() / half.as_millis())
        .expect("a small number");
    let mut most = 0;
    for window in 0..=u32::try_from(last.as_millis() / half.as_millis()).expect("a small number") {
        most = most.max(
            ends.iter().filter(|at| **at >= half * window && **at < half * (window + 1)).count(),
        );
    }
    assert!(
        most <= 2 * share + count / 50 + held_up,
        "{most} of {count} left in one half second, where {share} is even and {held_up} were held up"
    );
    assert_eq!(pointsman.wait_exit(PATIENCE).code(), Some(0));
    assert!(
        pointsman.process().log().contains(&format!("\"drained\":{count},\"cut\":0")),
        "{}",
        pointsman.process().tail()
    );
}

#[test]
fn drains_idle_sessions_evenly() {
    idle_sessions_leave_evenly(1000, Duration::from_secs(4), Duration::from_secs(3));
}

#[test]
#[ignore = "opens nearly as many files as a hard limit of 20000 allows: cargo test --test e2e -- --ignored thousands_of_idle"]
fn drains_thousands_of_sessions_in_time() {
    idle_sessions_leave_evenly(9500, Duration::from_secs(5), Duration::from_secs(1));
}

#[test]
fn stops_despite_health_checks() {
    let cluster = small();
    let pointsman =
        started(&cluster, "accept_min = \"1s\"\naccept_quiet = \"1s\"\naccept_max = \"30s\"");
    let begin = Instant::now();
    pointsman.sigterm();
    while pointsman.process().is_running() {
        assert!(begin.elapsed() < Duration::from_secs(15), "connecting and closing keeps it open");
        drop(TcpStream::connect(pointsman.addr()));
        pause(Duration::from_millis(20));
    }
    assert_eq!(pointsman.wait_exit(PATIENCE).code(), Some(0));
}

#[test]
fn serves_held_client_during_drain() {
    let cluster = Cluster::builder().start();
    let pointsman = started(&cluster, &format!("{AT_ONCE}drain_timeout = \"35s\""));
    cluster.master().kill();
    // Arrives while there is no master, and sends a request.
    let mut held = pointsman.client();
    held.set_timeout(PATIENCE).expect("a timeout");
    held.send(&encode(&["SET", "k", "v"])).expect("send");
    wait_until("the client to be held", PATIENCE, || {
        metric(&pointsman, "pointsman_sessions_waiting{service=\"mymaster\"}") == Some(1.0)
    });
    pointsman.sigterm();
    assert!(held.read_value().expect("an answer").is_ok());
    assert_eq!(held.read_to_end().expect("its end"), (Vec::new(), Ending::Fin));
    assert_eq!(pointsman.wait_exit(PATIENCE).code(), Some(0));
    assert!(pointsman.process().log().contains("\"cut\":0"), "{}", pointsman.process().tail());
}

/// A session whose request waits at the gate stays for its answer, longer than a session that is
/// asked to leave waits for a quiet moment. At the cut it is told that nothing was forwarded.
#[test]
fn answers_held_requests_of_sessions_that_leave() {
    let cluster = small();
    for (mode, timeout, expected) in [
        ("dedicated", "30s", "+OK\r\n"),
        ("shared", "30s", "+OK\r\n"),
        ("dedicated", "2s", "-LOADING "),
        ("shared", "2s", "-LOADING "),
    ] {
        let lines = format!("{AT_ONCE}drain_spread = \"0s\"\ndrain_timeout = \"{timeout}\"");
        let with_options = builder(&cluster)
            .service_line(&format!("upstream = \"{mode}\""))
            .lines(&format!("[shutdown]\n{lines}"));
        let pointsman = controlled_by(&cluster, with_options);
        let mut clients = [(); 2].map(|()| pointsman.client());
        for client in &mut clients {
            client.set_timeout(PATIENCE).expect("a timeout");
            assert!(client.cmd(&["SET", "k", "v"]).expect("a reply").is_ok());
        }
        let [mut held, mut idle] = clients;
        assert!(order(&pointsman, &["pause", "--for", "3s"], TOKEN).status.success());
        held.send(&encode(&["SET", "k", "v"])).expect("sent");
        let begin = Instant::now();
        pointsman.sigterm();
        assert_eq!(idle.read_to_end().expect("its end"), (Vec::new(), Ending::Fin), "{mode}");
        assert!(
            begin.elapsed() < Duration::from_millis(1900),
            "{mode}: it had nothing to wait for"
        );
        let (reply, ending) = held.read_to_end().expect("its end");
        let reply = String::from_utf8_lossy(&reply).into_owned();
        assert!(reply.starts_with(expected) && ending == Ending::Fin, "{mode}: {reply} {ending:?}");
        assert_eq!(pointsman.wait_exit(PATIENCE).code(), Some(0));
    }
}

#[test]
fn ends_sessions_at_failover_during_drain() {
    let cluster = Cluster::builder().start();
    let pointsman = started(&cluster, &format!("{AT_ONCE}drain_timeout = \"60s\""));
    let old = cluster.master().addr();
    let mut blocked = pointsman.client();
    blocked.set_timeout(PATIENCE).expect("a timeout");
    assert!(blocked.cmd(&["PING"]).is_ok());
    blocked.send(&encode(&["BLPOP", "never", "0"])).expect("send");
    wait_until("the pop to block", PATIENCE, || {
        cluster.master().info("clients", "blocked_clients").is_ok_and(|count| count == "1")
    });
    let begin = Instant::now();
    pointsman.sigterm();
    wait_until("the drain", PATIENCE, || pointsman.process().log().contains("received SIG"));
    cluster.failover();
    // Redis ends a blocked client of a demoted master with -UNBLOCKED; either event ends the
    // session.
    let (_, _ending) = blocked.read_to_end().expect("its end");
    assert_eq!(pointsman.wait_exit(PATIENCE).code(), Some(0));
    assert!(begin.elapsed() < Duration::from_secs(55), "it waited for its deadline");
    assert_ne!(cluster.master().addr(), old);
}

/// A client whose request was never forwarded is told so, a new one and an established one: without
/// that, it would not know whether to send it again.
#[test]
fn cuts_endless_hold_at_the_deadline() {
    let cluster = small();
    let pointsman =
        started(&cluster, &format!("{AT_ONCE}drain_spread = \"0s\"\ndrain_timeout = \"2s\""));
    let mut established = pointsman.client();
    assert!(established.cmd(&["PING"]).is_ok());
    cluster.sentinels()[0].kill();
    cluster.nodes()[0].kill();
    let new = Client::connect_within(pointsman.addr(), PATIENCE).expect("a connection");
    let mut held = [established, new];
    held.iter_mut().for_each(|client| client.send(&encode(&["SET", "k", "v"])).expect("send"));
    wait_until("the clients to be held", PATIENCE, || {
        metric(&pointsman, "pointsman_sessions_waiting{service=\"mymaster\"}") == Some(2.0)
    });
    let begin = Instant::now();
    pointsman.sigterm();
    for client in &mut held {
        client.set_timeout(PATIENCE).expect("a timeout");
        let (reply, ending) = client.read_to_end().expect("its end");
        let reply = String::from_utf8_lossy(&reply).into_owned();
        assert!(reply.starts_with("-LOADING") && ending == Ending::Fin, "{reply:?} {ending:?}");
    }
    assert_eq!(pointsman.wait_exit(PATIENCE).code(), Some(0));
    let took = begin.elapsed();
    assert!(
        took >= Duration::from_millis(1900) && took < Duration::from_secs(10),
        "it took {took:?}"
    );
    assert!(pointsman.process().log().contains("\"cut\":2"), "{}", pointsman.process().tail());
}

/// One error for each request that expects a reply, at the end of a hold and at the cut.
#[test]
fn refuses_requests_of_subscribers_and_no_silenced_ones() {
    let cluster = small();
    for (mode, hold) in
        [("dedicated", "2s"), ("shared", "2s"), ("dedicated", "30s"), ("shared", "30s")]
    {
        let with_options = builder(&cluster)
            .service_line(&format!("upstream = \"{mode}\"\nhold_timeout = \"{hold}\""))
            .lines(&format!("[shutdown]\n{AT_ONCE}drain_spread = \"0s\"\ndrain_timeout = \"2s\""));
        let pointsman = controlled_by(&cluster, with_options);
        let mut clients = [(); 4].map(|()| pointsman.client());
        clients.iter_mut().for_each(|it| it.set_timeout(PATIENCE).expect("a timeout"));
        let [resp3, resp2, off, skip] = &mut clients;
        assert!(!resp3.cmd(&["HELLO", "3"]).expect("a reply").is_error());
        for client in [resp3, resp2] {
            assert!(!client.cmd(&["SUBSCRIBE", "c"]).expect("a reply").is_error());
        }
        for (client, mode) in [(off, "OFF"), (skip, "SKIP")] {
            client.send(&encode(&["CLIENT", "REPLY", mode])).expect("sent");
        }
        let silenced = "pointsman_sessions_by_state{service=\"mymaster\",state=\"reply_off\"}";
        wait_until("two silenced sessions", PATIENCE, || metric(&pointsman, silenced) == Some(2.0));
        assert!(order(&pointsman, &["pause", "--for", "20s"], TOKEN).status.success());
        let requests = [&["INCR", "held"][..], &["PING"], &["INCR", "held"], &["INCR", "held"]];
        for (client, request) in clients.iter_mut().zip(requests) {
            client.send(&encode(request)).expect("sent");
        }
        if hold == "30s" {
            pointsman.sigterm();
        }
        let refused = clients.map(|mut client| {
            let (replies, _) = client.read_to_end().expect("its end");
            String::from_utf8_lossy(&replies).matches("-LOADING ").count()
        });
        assert_eq!(refused, [1, 1, 0, 0], "{mode} {hold}");
        assert_eq!(cluster.nodes()[0].ask(&["EXISTS", "held"]).expect("a reply").int(), Some(0));
    }
}

/// A client in the middle of a request gets its reply, also if its service shares connections.
#[test]
fn completes_requests_that_have_begun() {
    let cluster = small();
    for mode in ["dedicated", "shared"] {
        let pointsman = builder(&cluster)
            .service_line(&format!("upstream = \"{mode}\""))
            .lines(&format!("[shutdown]\n{AT_ONCE}drain_spread = \"1s\"\ndrain_timeout = \"20s\""))
            .start();
        let [small, large] = [100, 100_000].map(|len| encode(&["SET", "k", &"v".repeat(len)]));
        let begun = [(&small, 10), (&small, 60), (&small, small.len() - 1), (&large, 10)];
        let mut clients: Vec<_> = begun
            .into_iter()
            .map(|(request, begun)| {
                let mut client = pointsman.client();
                assert_eq!(client.cmd(&["PING"]).expect("PING").text(), Some("PONG"));
                client.send(&request[..begun]).expect("sent");
                (client, request, begun)
            })
            .collect();
        pause(Duration::from_millis(100));
        pointsman.sigterm();
        pause(Duration::from_secs(3));
        for (client, request, begun) in &mut clients {
            client.send(&request[*begun..]).expect("sent");
            let reply = client.read_value();
            assert!(
                reply.as_ref().is_ok_and(Value::is_ok),
                "{mode} after {begun} bytes: {reply:?}"
            );
            let end = client.read_to_end().expect("its end");
            assert_eq!(
                end,
                (Vec::new(), Ending::Fin),
                "{mode} after {begun} bytes: it leaves then"
            );
        }
    }
}
