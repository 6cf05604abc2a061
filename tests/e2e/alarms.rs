//! Conditions among the sentinels that last and that an operator has to end: each is in the
//! metrics, the status and the log when it begins and when it ends, and costs no client anything.

use std::time::Duration;

use harness::{Cluster, Node, Pointsman, wait_until};
use serde_json::Value as Json;

use crate::{builder, metric};

const PATIENCE: Duration = Duration::from_secs(90);

/// The number of sentinels that an alarm is about.
fn alarm(pointsman: &Pointsman, name: &str) -> Option<f64> {
    metric(pointsman, &format!("pointsman_alarm{{service=\"mymaster\",alarm=\"{name}\"}}"))
}

#[track_caller]
fn wait_alarm(pointsman: &Pointsman, name: &str, count: f64) {
    wait_until(&format!("{count} sentinels in the alarm {name}"), PATIENCE, || {
        let found = alarm(pointsman, name);
        if found == Some(count) { Ok(()) } else { Err(format!("{found:?}")) }
    });
}

/// The alarms in the status.
fn alarms(pointsman: &Pointsman) -> Vec<Json> {
    let (code, text) = pointsman.get("/status").expect("a status");
    assert_eq!(code, 200);
    let status: Json = serde_json::from_str(&text).expect("JSON");
    status["services"][0]["alarms"].as_array().expect("alarms").clone()
}

/// The alarm is on in the status, and once in the log.
#[track_caller]
fn assert_begun(pointsman: &Pointsman, name: &str, sentinels: &[String]) {
    let all = alarms(pointsman);
    let on: Vec<&Json> = all.iter().filter(|it| it["on"] == true).collect();
    assert_eq!(on.len(), 1, "{all:#?}");
    assert_eq!(on[0]["alarm"], name);
    let mut named: Vec<String> =
        serde_json::from_value(on[0]["sentinels"].clone()).expect("addresses");
    let mut expected = sentinels.to_vec();
    named.sort();
    expected.sort();
    assert_eq!(named, expected);
    let message = on[0]["message"].as_str().expect("a message");
    // The log is written by a thread of its own.
    wait_until("the beginning in the log", PATIENCE, || {
        let log = pointsman.process().log();
        if log.matches(message).count() == 1 { Ok(()) } else { Err(log) }
    });
}

/// The alarm ended, and is remembered.
#[track_caller]
fn assert_ended(pointsman: &Pointsman, name: &str) {
    wait_alarm(pointsman, name, 0.0);
    let all = alarms(pointsman);
    assert!(all.iter().all(|it| it["on"] == false), "{all:#?}");
    assert!(all.iter().any(|it| it["alarm"] == name && it["ended_s"].is_number()), "{all:#?}");
    wait_until("the end in the log", PATIENCE, || {
        let log = pointsman.process().log();
        if log.matches("alarm ended").count() == 1 { Ok(()) } else { Err(log) }
    });
}

fn monitor(cluster: &Cluster, sentinel: &Node) {
    let master = cluster.nodes()[0].addr();
    let (ip, port) = (master.ip().to_string(), master.port().to_string());
    sentinel.ask(&["SENTINEL", "MONITOR", "mymaster", &ip, &port, "2"]).expect("MONITOR");
}

/// `SENTINEL REMOVE` on two of three. No failover is possible, and traffic continues or is held, as
/// configured for a minority.
#[test]
fn reports_name_that_most_sentinels_forgot() {
    let cluster = Cluster::builder().start();
    let pointsman = builder(&cluster).start();
    let strict = builder(&cluster).service_line("minority = \"hold\"").start();
    let held = |expected: f64| {
        wait_until("the gate of minority = hold", PATIENCE, || {
            let gate = metric(&strict, "pointsman_gate_closed{service=\"mymaster\"}");
            if gate == Some(expected) { Ok(()) } else { Err(format!("{gate:?}")) }
        });
    };
    let mut client = pointsman.client();
    let [one, two, _] = cluster.sentinels() else { panic!("three sentinels") };
    one.ask(&["SENTINEL", "REMOVE", "mymaster"]).expect("REMOVE");
    wait_until("an answer without the name", PATIENCE, || {
        let unknown = "pointsman_sentinel_unknown_name_total{service=\"mymaster\"}";
        if metric(&pointsman, unknown) >= Some(10.0) { Ok(()) } else { Err("none".to_owned()) }
    });
    assert_eq!(alarm(&pointsman, "name_unknown"), Some(0.0), "two of three know it");
    two.ask(&["SENTINEL", "REMOVE", "mymaster"]).expect("REMOVE");
    wait_alarm(&pointsman, "name_unknown", 2.0);
    let addrs = [one.addr().to_string(), two.addr().to_string()];
    assert_begun(&pointsman, "name_unknown", &addrs);
    assert!(client.cmd(&["SET", "a", "1"]).expect("SET").is_ok());
    held(1.0);
    monitor(&cluster, one);
    monitor(&cluster, two);
    assert_ended(&pointsman, "name_unknown");
    held(0.0);
    assert!(client.cmd(&["SET", "a", "2"]).expect("SET").is_ok());
}

/// It came back with an old file: it monitors an address that is gone, where it meets no other
/// sentinel. One that lost its file and monitors the right master is listed within seconds.
#[test]
fn reports_configured_sentinel_that_no_other_lists() {
    let cluster = Cluster::builder().start();
    let pointsman = builder(&cluster).start();
    let [one, two, three] = cluster.sentinels() else { panic!("three sentinels") };
    let rewrite = |sentinel: &Node, port: u16| {
        sentinel.kill();
        let name = sentinel.name();
        let path = cluster.folder().join(name).join(format!("{name}.conf"));
        let text = std::fs::read_to_string(&path).expect("its file");
        let kept = |line: &&str| !line.starts_with("sentinel ") || line.contains("announce");
        let ip = sentinel.addr().ip();
        let monitor = format!("sentinel monitor mymaster {ip} {port} 2");
        let lines = text.lines().filter(kept).chain([monitor.as_str()]);
        std::fs::write(&path, lines.map(|line| format!("{line}\n")).collect::<String>())
            .expect("its file");
        sentinel.restart();
    };
    let id = |sentinel: &Node| sentinel.ask(&["SENTINEL", "MYID"]).expect("MYID").to_string();
    rewrite(three, cluster.nodes()[0].addr().port());
    let new = id(three);
    wait_until("its peers to list it", PATIENCE, || {
        let lists = |it: &Node| {
            let peers = it.ask(&["SENTINEL", "SENTINELS", "mymaster"]).expect("peers");
            peers.items().iter().any(|it| it.field("runid").and_then(|it| it.text()) == Some(&*new))
        };
        if lists(one) && lists(two) { Ok(()) } else { Err("not yet".to_owned()) }
    });
    assert_eq!(alarms(&pointsman), [] as [Json; 0], "a sentinel that has just started");

    three.kill();
    for sentinel in [one, two] {
        sentinel.ask(&["SENTINEL", "RESET", "mymaster"]).expect("RESET");
    }
    rewrite(three, cluster.address().port().port());
    wait_alarm(&pointsman, "unlisted", 1.0);
    assert_begun(&pointsman, "unlisted", &[three.addr().to_string()]);
    three.ask(&["SENTINEL", "REMOVE", "mymaster"]).expect("REMOVE");
    monitor(&cluster, three);
    assert_ended(&pointsman, "unlisted");
}

/// A sentinel that is not configured and gone for good is still listed by all.
#[test]
fn reports_ghosts_in_the_electorate() {
    let cluster = Cluster::builder().sentinels(4).with_quorum(2).start();
    let addrs: Vec<String> =
        cluster.sentinel_addrs().iter().take(3).map(ToString::to_string).collect();
    let pointsman = builder(&cluster).sentinels(&addrs).start();
    let ghost = &cluster.sentinels()[3];
    ghost.kill();
    wait_alarm(&pointsman, "ghosts", 1.0);
    assert_begun(&pointsman, "ghosts", &[ghost.addr().to_string()]);
    for sentinel in &cluster.sentinels()[..3] {
        sentinel.ask(&["SENTINEL", "RESET", "mymaster"]).expect("RESET");
        wait_until("a sentinel that knows its peers again", PATIENCE, || {
            sentinel.ask(&["SENTINEL", "CKQUORUM", "mymaster"]).map(|_| ())
        });
    }
    assert_ended(&pointsman, "ghosts");
}

/// A replica follows the proxy and announces its address, as one at the same port of another host
/// does. About ten seconds later the sentinels would demote the master through the proxy.
#[test]
fn reports_a_replica_that_follows_the_proxy() {
    let cluster = Cluster::builder().failover_timeout(Duration::from_secs(60)).start();
    let pointsman = builder(&cluster).start();
    let listener = pointsman.addr();
    let (ip, port) = (listener.ip().to_string(), listener.port().to_string());
    let replica = cluster.replicas()[1];
    replica.ask(&["CONFIG", "SET", "replica-announce-ip", &ip]).expect("CONFIG SET");
    replica.ask(&["CONFIG", "SET", "replica-announce-port", &port]).expect("CONFIG SET");
    replica.ask(&["REPLICAOF", &ip, &port]).expect("REPLICAOF");
    wait_alarm(&pointsman, "followed_by_replica", 1.0);
    assert_eq!(cluster.master().role().expect("a role"), "master", "it is early enough");
    assert_begun(&pointsman, "followed_by_replica", &[listener.to_string()]);
}
