//! A master that hangs, that is cut off, or that is hidden only from the sentinels: rows 2, 3 and 4
//! of the fault table. The partitions are made in a network namespace, for which each of these
//! tests starts itself again.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use harness::{
    Client, Cluster, Counter, Load, Node, Partition, Pointsman, Value, alone, own_source,
    wait_until,
};

use crate::{DEDICATED, builder, metric, pointsman};

const PATIENCE: Duration = Duration::from_secs(30);

/// The start of a client's SET. No other traffic to a master begins like this: neither that of
/// discovery, nor of Sentinel, nor of a replica.
const SET: &[u8] = b"*3\r\n$3\r\nSET\r\n";

fn generation(pointsman: &Pointsman) -> f64 {
    metric(pointsman, "pointsman_target_generation{service=\"mymaster\"}").unwrap_or(0.0)
}

fn exists(node: &Node, key: &str) -> Result<bool, String> {
    let answer = node.ask(&["EXISTS", key]).map_err(|error| error.to_string())?;
    Ok(answer.int() == Some(1))
}

/// How often clients sent SET to a server, whether it executed it or not.
#[track_caller]
pub(crate) fn sets(node: &Node) -> u64 {
    let stats = match node.info("commandstats", "cmdstat_set") {
        // There was no such command so far.
        Err(error) if error.kind() == ErrorKind::NotFound => return 0,
        stats => stats.expect("its statistics"),
    };
    let number = |key: &str| {
        stats.split(',').find_map(|it| it.strip_prefix(key)?.parse::<u64>().ok()).unwrap_or(0)
    };
    number("calls=") + number("rejected_calls=")
}

#[test]
fn sends_nothing_to_hung_master_after_commit() {
    let cluster = Cluster::builder().start();
    let pointsman = pointsman(&cluster);
    let old = cluster.master();
    let mut monitor = Client::connect(old.addr()).expect("the master");
    assert!(monitor.cmd(&["MONITOR"]).expect("MONITOR").is_ok());
    let mut sticky: Vec<Client> = (0..8).map(|_| pointsman.client()).collect();
    for client in &mut sticky {
        assert!(client.cmd(&["SET", "before", "1"]).expect("SET").is_ok());
    }
    old.stop();
    wait_until("the switch", PATIENCE, || generation(&pointsman) >= 2.0);
    // Connected clients retry on their old connection, and new clients arrive. The server executes
    // all that reached its sockets when it resumes, and MONITOR shows that.
    for (number, client) in sticky.iter_mut().enumerate() {
        // The session has ended or is about to; what matters is where the bytes go.
        let _ = client.send(&harness::encode(&["SET", &format!("after-{number}"), "1"]));
    }
    for number in 0..8 {
        assert!(
            pointsman.client().cmd(&["SET", &format!("new-{number}"), "1"]).expect("SET").is_ok()
        );
    }
    old.cont();
    wait_until("it to go on", PATIENCE, || old.ask(&["ECHO", "the end of the tale"]).map(|_| ()));
    monitor.set_timeout(PATIENCE).expect("a timeout");
    let mut heard = Vec::new();
    while !heard.last().is_some_and(|line: &String| line.contains("the end of the tale")) {
        heard.push(monitor.read_value().as_ref().map(Value::to_string).expect("a line of MONITOR"));
    }
    assert!(
        heard.iter().any(|line| line.contains("before")),
        "MONITOR tells of writes: {heard:#?}"
    );
    let late: Vec<&String> =
        heard.iter().filter(|line| line.contains("after-") || line.contains("new-")).collect();
    assert!(late.is_empty(), "written to the superseded master: {late:#?}");
    let to = cluster.master();
    assert_ne!(to.addr(), old.addr());
    assert_eq!(exists(to, "new-7"), Ok(true));
}

#[test]
fn sends_no_packet_after_the_gate_closed() {
    if !alone("isolation::sends_no_packet_after_the_gate_closed") {
        return;
    }
    let cluster = Cluster::builder().start();
    let pointsman = builder(&cluster).service_line("hold_timeout = \"25s\"").start();
    let old = cluster.master();
    let counter = Counter::of(old.addr().port(), SET).expect("a counter");
    let mut sticky: Vec<Client> = (0..9).map(|_| pointsman.client()).collect();
    for client in &mut sticky {
        assert!(client.cmd(&["SET", "before", "1"]).expect("SET").is_ok());
        client.set_timeout(PATIENCE).expect("a timeout");
    }
    old.stop();
    // A request that is sent before any suspicion, and stays in the socket of the stopped server.
    let mut busy = sticky.pop().expect("nine");
    busy.send(&harness::encode(&["SET", "late", "1"])).expect("send");
    wait_until("the gate to shut", PATIENCE, || {
        metric(&pointsman, "pointsman_gate_closed{service=\"mymaster\"}") == Some(1.0)
            || generation(&pointsman) >= 2.0
    });
    let shut = counter.packets().expect("a count");
    // Nine from before, and the one in flight if it arrived in time, each possibly retransmitted;
    // on two connections if the clients share.
    let ages = counter.ages().expect("the connections").len();
    let expected = if std::env::var_os("HARNESS_UPSTREAM").is_none() { 9 } else { 2 };
    assert!(shut >= 9 && ages == expected, "{shut} packets of {ages} connections");
    // Some send requests while they are held, some after the switch, and new clients arrive.
    let (held, later) = sticky.split_at_mut(4);
    for client in held.iter_mut() {
        client.send(&harness::encode(&["SET", "held", "1"])).expect("send");
    }
    wait_until("the switch", PATIENCE, || generation(&pointsman) >= 2.0);
    for client in later.iter_mut() {
        assert!(client.cmd(&["SET", "later", "1"]).expect("an answer of the new master").is_ok());
    }
    for client in held {
        assert!(client.read_value().expect("an answer of the new master").is_ok());
    }
    assert!(pointsman.client().cmd(&["SET", "new", "1"]).expect("SET").is_ok());
    old.cont();
    wait_until("it to go on", PATIENCE, || old.ask(&["PING"]).map(|_| ()));
    assert_eq!(
        counter.packets(),
        Ok(shut),
        "a packet of a client was sent to the superseded master"
    );
    assert_ne!(cluster.master().addr(), old.addr());
}

#[test]
fn leaves_vanished_master_without_late_writes() {
    if !alone("isolation::leaves_vanished_master_without_late_writes") {
        return;
    }
    let cluster = Cluster::builder().start();
    let beside = &cluster.sentinels()[0];
    let source = own_source(&cluster, beside);
    let pointsman = builder(&cluster)
        .service_line("connect_timeout = \"300ms\"\nhold_timeout = \"60s\"")
        .service_line(DEDICATED)
        .start();
    let old = cluster.master();
    let counter = Counter::of(old.addr().port(), SET).expect("a counter");
    let (mut busy, mut idle) = (pointsman.client(), pointsman.client());
    for client in [&mut busy, &mut idle] {
        assert!(client.cmd(&["SET", "before", "1"]).expect("SET").is_ok());
        client.set_timeout(PATIENCE).expect("a timeout");
    }
    let partition = Partition::around(old, beside, source).expect("a partition");
    // In flight when the master vanishes: it stays in the kernel, which would deliver it after the
    // partition is healed.
    busy.send(&harness::encode(&["SET", "late", "1"])).expect("send");
    let asked = Instant::now();
    let mut newcomer = pointsman.client();
    newcomer.set_timeout(PATIENCE).expect("a timeout");
    newcomer.send(&harness::encode(&["SET", "held", "1"])).expect("send");
    wait_until("a dial to be given up", PATIENCE, || {
        metric(&pointsman, "pointsman_dial_errors_total{service=\"mymaster\",reason=\"timed_out\"}")
            >= Some(1.0)
    });
    assert!(
        asked.elapsed() < Duration::from_secs(5),
        "a dial of 300 ms took {:?}",
        asked.elapsed()
    );
    wait_until("the switch", PATIENCE, || generation(&pointsman) >= 2.0);
    let moved = Instant::now();
    // Two from before, and the request in flight with its retransmissions.
    let at_commit = counter.packets().expect("a count");
    assert!(at_commit > 3, "{at_commit}");
    assert!(newcomer.read_value().expect("the answer of the new master").is_ok());
    // The old connections are closed at the switch although the old master is silent. The outcome
    // of the request in flight is unknown, so that client's session ends too. An idle client is
    // carried to the new master.
    let (bytes, _) = busy.read_to_end().expect("the end of the connection");
    assert!(bytes.is_empty(), "{bytes:?}");
    assert!(idle.cmd(&["SET", "carried", "1"]).expect("an answer of the new master").is_ok());
    assert!(moved.elapsed() < Duration::from_secs(10), "{:?} after the switch", moved.elapsed());
    let to = cluster.node_at(cluster.master().addr()).expect("the new master");
    assert_eq!((exists(to, "held"), exists(to, "carried")), (Ok(true), Ok(true)));
    drop(partition);
    // From the healing until it follows the new master, which is longer than the kernel's
    // retransmission interval.
    wait_until("the old master to follow the new one", Duration::from_secs(60), || {
        assert_ne!(
            exists(old, "late"),
            Ok(true),
            "a request was executed late on the superseded master"
        );
        old.role()
            .map_err(|error| error.to_string())
            .and_then(|role| if role == "slave" { Ok(()) } else { Err(role) })
    });
    assert_eq!(exists(to, "late"), Ok(false));
    assert_eq!(
        counter.packets(),
        Ok(at_commit),
        "a packet of a client was sent to the superseded master"
    );
}

#[test]
fn leaves_master_that_sentinels_do_not_see() {
    if !alone("isolation::leaves_master_that_sentinels_do_not_see") {
        return;
    }
    let cluster = Cluster::builder().start();
    let sources: Vec<_> =
        cluster.sentinels().iter().map(|sentinel| own_source(&cluster, sentinel)).collect();
    assert!(
        sources.windows(2).all(|pair| pair[0] == pair[1]),
        "all sentinels dial from one address"
    );
    let pointsman = pointsman(&cluster);
    let old = cluster.master();
    let mut load = Load::to(pointsman.addr()).writers(8).rate(1000).start();
    wait_until("some writes", PATIENCE, || load.counts().acknowledged > 200);
    let partition = Partition::between(old, sources[0]).expect("a partition");
    wait_until("the switch", PATIENCE, || generation(&pointsman) >= 2.0);
    let at_commit = sets(old);
    let seen = load.counts().acknowledged;
    wait_until("writes to go on for three seconds", PATIENCE, || {
        load.counts().acknowledged > seen + 3000
    });
    // During all that time it was reachable, called itself master, and would have accepted every
    // write.
    assert_eq!(old.role().expect("ROLE"), "master");
    assert_eq!(sets(old), at_commit, "the superseded master was written to");
    assert_ne!(cluster.master().addr(), old.addr());
    load.stop();
    drop(partition);
}
