//! `pointsman sentinels` names the cause before its consequences: faults made with real servers,
//! several on one cluster, one after the other.

use std::time::Duration;

use harness::{Cluster, Node, wait_until};
use serde_json::Value as Json;

use crate::builder;
use crate::doctor_cures::{Doctor, PASSWORDS, restart_with};

const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until the findings that are no notes satisfy a condition.
#[track_caller]
fn wait_for(doctor: &Doctor<'_>, what: &str, is_met: impl Fn(&[Json]) -> bool) -> Vec<Json> {
    wait_until(what, PATIENCE, || {
        let findings = doctor.findings();
        if is_met(&findings) { Ok(findings) } else { Err(format!("{findings:#?}")) }
    })
}

/// The codes of the findings, in order.
fn codes(findings: &[Json]) -> Vec<&str> {
    findings.iter().filter_map(|it| it["code"].as_str()).collect()
}

/// Restarts a sentinel without what it has learned, with these lines instead of those that contain
/// a word.
fn rewrite(cluster: &Cluster, sentinel: &Node, without: &str, lines: &str) {
    restart_with(cluster, sentinel, |text| {
        let kept = |line: &&str| !line.starts_with("sentinel known-") && !line.contains(without);
        let kept: String = text.lines().filter(kept).map(|line| format!("{line}\n")).collect();
        kept + lines
    });
}

#[test]
fn names_second_name_odd_password_and_shared_address() {
    let cluster = Cluster::builder().start();
    let doctor = Doctor { cluster: &cluster, sentinels: 3, lines: "" };
    let master = cluster.master().addr();
    let one = &cluster.sentinels()[0];
    let (ip, port) = (master.ip().to_string(), master.port().to_string());
    one.ask(&["SENTINEL", "MONITOR", "again", &ip, &port, "2"]).expect("MONITOR");
    let found = wait_for(&doctor, "the second name", |it| codes(it) == ["second-name"]);
    assert!(found[0]["message"].as_str().is_some_and(|it| it.contains("as again, too")));
    one.ask(&["SENTINEL", "REMOVE", "again"]).expect("REMOVE");

    // The sentinels go on, since their connections have logged in already.
    let odd = cluster.replicas()[1];
    odd.ask(&["CONFIG", "SET", "requirepass", "odd-pw"]).expect("CONFIG SET");
    let found = doctor.findings();
    assert_eq!(codes(&found), ["password"], "{found:#?}");
    assert_eq!(found[0]["about"], odd.addr().to_string());
    assert!(found[0]["message"].as_str().is_some_and(|it| it.contains("does not")), "{found:#?}");
    let mut client = odd.client();
    client.cmd(&["AUTH", "odd-pw"]).expect("AUTH");
    client.cmd(&["CONFIG", "SET", "requirepass", ""]).expect("CONFIG SET");

    // Two announce the address of the first one.
    let announced = one.addr();
    for sentinel in &cluster.sentinels()[1..] {
        let line = format!("sentinel announce-port {}\n", announced.port());
        rewrite(&cluster, sentinel, "sentinel announce-port", &line);
    }
    let found = wait_for(&doctor, "the shared address", |it| codes(it).contains(&"announced"));
    let shared = found.iter().find(|it| it["code"] == "announced").expect("a finding");
    assert_eq!(shared["about"], announced.to_string(), "{found:#?}");
    assert!(shared["remedy"].as_str().is_some_and(|it| it.contains("announce-ip")));
}

/// All sentinels run with a copy of one file: none hears another one, and the doctor must not fit
/// the quorum to that.
#[test]
fn names_a_copied_identity_and_dead_replicas() {
    let cluster = Cluster::builder().start();
    let doctor = Doctor { cluster: &cluster, sentinels: 3, lines: "" };
    let id = "c".repeat(40);
    let own: Vec<String> = cluster
        .sentinels()
        .iter()
        .map(|it| it.ask(&["SENTINEL", "MYID"]).expect("an ID").to_string())
        .collect();
    for sentinel in cluster.sentinels() {
        rewrite(&cluster, sentinel, "sentinel myid", &format!("sentinel myid {id}\n"));
    }
    let alone = |it: &Node| {
        let all = it.ask(&["SENTINEL", "SENTINELS", "mymaster"]).expect("its list");
        all.items().is_empty()
    };
    wait_until("sentinels that know nobody", PATIENCE, || {
        if cluster.sentinels().iter().all(alone) { Ok(()) } else { Err("they do".to_owned()) }
    });
    let found = wait_for(&doctor, "the copies alone", |it| codes(it) == ["same-id"]);
    assert_eq!(found[0]["severity"], "fault");
    for (sentinel, id) in cluster.sentinels().iter().zip(&own) {
        rewrite(&cluster, sentinel, "sentinel myid", &format!("sentinel myid {id}\n"));
    }
    cluster.wait_whole();
    wait_for(&doctor, "sound sentinels", <[Json]>::is_empty);

    // Nothing could be promoted any more, and the cure forgets both.
    let replicas: Vec<&Node> = cluster.replicas();
    replicas.iter().for_each(|it| it.kill());
    let found = wait_for(&doctor, "dead replicas", |it| codes(it) == ["no-candidate", "ghost"]);
    assert_eq!(found[0]["severity"], "fault");
    doctor.follow("ghost");
    // After that, no sentinel learns the replicas of the master that dies.
    cluster.master().kill();
    let lost = |it: &[Json]| codes(it).contains(&"no-replicas") && it[0]["severity"] == "fault";
    wait_for(&doctor, "the loss of all nodes", |it| {
        lost(it) && it.iter().any(|it| it["commands"].as_array().is_some_and(|it| it.len() > 9))
    });
    let new = replicas[0];
    new.restart();
    let env =
        [("NEW_HOST", new.addr().ip().to_string()), ("NEW_PORT", new.addr().port().to_string())];
    doctor.follow_with("no-replicas", &env);
    assert_eq!(cluster.master().addr(), new.addr());
    for sentinel in cluster.sentinels() {
        let named = cluster.master_addr_of(sentinel, "mymaster");
        assert_eq!(named.ok(), Some(new.addr()));
    }
}

/// Sentinels without the password of Redis, and with a user that may not use their channel.
#[test]
fn names_sentinels_that_redis_locks_out() {
    let cluster = Cluster::builder()
        .password("redis-pw")
        .sentinel_password("sentinel-pw")
        .user("watch on >watch-pw ~* resetchannels +@all")
        .start();
    let doctor = Doctor { cluster: &cluster, sentinels: 3, lines: PASSWORDS };
    for sentinel in cluster.sentinels() {
        rewrite(&cluster, sentinel, "sentinel auth-pass", "");
    }
    let found = wait_for(&doctor, "the password", |it| codes(it) == ["sentinel-auth"]);
    assert!(found[0]["message"].as_str().is_some_and(|it| it.contains("wants a password")));
    doctor.follow("sentinel-auth");
    doctor.wait_satisfied();
    cluster.wait_whole();

    let user = "sentinel auth-user mymaster watch\nsentinel auth-pass mymaster watch-pw\n";
    for sentinel in cluster.sentinels() {
        rewrite(&cluster, sentinel, "sentinel auth-", user);
    }
    let found = wait_for(&doctor, "the channel", |it| codes(it).contains(&"unlisted"));
    let alone = found.iter().find(|it| it["code"] == "unlisted").expect("a finding");
    assert!(alone["remedy"].as_str().is_some_and(|it| it.contains("&__sentinel__:hello")));
}

/// `ROLE` is disabled on every node: the doctor, the log and the status say so.
#[test]
fn names_disabled_role_everywhere() {
    let (down_after, minute) = (Duration::from_secs(30), Duration::from_secs(60));
    let cluster = Cluster::builder().down_after(down_after).failover_timeout(minute).start();
    for node in cluster.nodes() {
        restart_with(&cluster, node, |text| text + "rename-command ROLE \"\"\n");
    }
    let doctor = Doctor { cluster: &cluster, sentinels: 3, lines: "hold_timeout = \"60s\"" };
    let found = wait_for(&doctor, "the role", |it| codes(it) == ["no-role"]);
    let about = found[0]["about"].as_str().expect("addresses");
    assert_eq!(about.split(", ").count(), 3, "one finding about all: {found:#?}");
    assert!(found[0]["message"].as_str().is_some_and(|it| it.contains("unknown command")));
    assert!(found[0]["remedy"].as_str().is_some_and(|it| it.contains("verify = \"ping\"")));

    let pointsman = builder(&cluster).without_waiting().start();
    let log = wait_until("the explanation in the log", PATIENCE, || {
        let log = pointsman.process().log();
        if log.contains("no verified master found yet") { Ok(log) } else { Err(log) }
    });
    let lines = log.lines().filter(|it| it.contains("no verified master found yet"));
    let lines: Vec<&str> = lines.collect();
    assert!(lines.len() == 1 && lines[0].contains("WARN"), "{lines:#?}");
    let master = cluster.nodes()[0].addr();
    for part in [format!("names {master} at epoch"), "it does not tell its role".to_owned()] {
        assert!(lines[0].contains(&part), "{part}: {lines:#?}");
    }
    let (_, status) = pointsman.get("/status").expect("a status");
    let status: Json = serde_json::from_str(&status).expect("JSON");
    let because = status["services"][0]["no_master_because"].as_array().expect("reasons");
    assert_eq!(because.len(), 6, "three sentinels and three nodes: {because:#?}");
    let verdict = status["verdict"]["text"].as_str().expect("a verdict");
    assert!(verdict.contains(&format!("{master}: it does not tell its role")), "{verdict}");
}
