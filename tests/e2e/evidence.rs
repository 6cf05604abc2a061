//! Two masters at once, decided by evidence: the rules E1 to E3 of `docs/failover.md` with real
//! servers. Rows of `docs/guarantees.md`.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use harness::{Cluster, Cut, Events, Load, Node, Pointsman, Value, alone, wait_until};

use crate::builder;
use crate::credentials::status;
use crate::faults_process::run;
use crate::restart::wait_for_place;

const PATIENCE: Duration = Duration::from_secs(40);
const WRITERS: usize = 8;
/// Writes per second.
const RATE: u32 = 400;

fn pointsman(cluster: &Cluster) -> Pointsman {
    builder(cluster).service_line("hold_timeout = \"60s\"").start()
}

#[track_caller]
fn writing(pointsman: &Pointsman) -> Load {
    let load = Load::to(pointsman.addr()).writers(WRITERS).rate(RATE).timeout(PATIENCE).start();
    more_writes(&load, 200);
    load
}

#[track_caller]
fn more_writes(load: &Load, count: u64) {
    let seen = load.counts().acknowledged;
    wait_until(&format!("{count} more writes"), PATIENCE, || {
        let now = load.counts().acknowledged - seen;
        if now > count { Ok(()) } else { Err(format!("{now} more; {:?}", load.errors())) }
    });
}

/// How many acknowledged writes the final master does not have.
#[track_caller]
fn lost(mut load: Load, master: SocketAddr) -> u64 {
    load.stop();
    load.verify(master).expect("a look at the master").missing
}

/// A replica that reports `role:master`, other than `old`.
#[track_caller]
fn promoted(cluster: &Cluster, old: SocketAddr) -> &Node {
    wait_until("a promotion", PATIENCE, || {
        let mut nodes = cluster.nodes().iter().filter(|node| node.addr() != old);
        nodes
            .find(|node| node.role().is_ok_and(|role| role == "master"))
            .ok_or_else(|| "none yet".to_owned())
    })
}

/// All sentinels restart, with files in which each line is what `line` makes of it.
fn restart_with(cluster: &Cluster, line: impl Fn(&str) -> Option<String>) {
    for sentinel in cluster.sentinels() {
        sentinel.kill();
        let path = sentinel.conf_path();
        let text = std::fs::read_to_string(&path).expect("its file");
        let lines = text.lines().filter_map(&line).map(|line| line + "\n");
        std::fs::write(&path, lines.collect::<String>()).expect("its file");
        sentinel.restart();
    }
}

/// A line with epoch 0 in place of any other: as in a file from a backup.
fn aged(line: &str) -> String {
    let mut words: Vec<&str> = line.split(' ').collect();
    if line.starts_with("sentinel ") && words.get(1).is_some_and(|it| it.ends_with("-epoch")) {
        *words.last_mut().expect("words") = "0";
    }
    words.join(" ")
}

#[test]
fn loses_nothing_after_sentinels_with_old_files() {
    let cluster = Cluster::builder().start();
    for _ in 0..2 {
        cluster.failover();
        cluster.wait_whole();
    }
    let pointsman = pointsman(&cluster);
    let load = writing(&pointsman);
    restart_with(&cluster, |line| Some(aged(line)));
    let failover = cluster.failover();
    more_writes(&load, 500);
    assert_eq!(lost(load, failover.to), 0);
}

/// All sentinels are replaced at their addresses by ones with other identities.
#[test]
fn loses_nothing_after_sentinels_without_files() {
    let cluster = Cluster::builder().discover().start();
    cluster.failover();
    cluster.wait_whole();
    let pointsman = pointsman(&cluster);
    let load = writing(&pointsman);
    let forgotten = ["sentinel myid", "sentinel known-", "sentinel current-epoch"];
    restart_with(&cluster, |line| {
        (!forgotten.iter().any(|it| line.starts_with(it))).then(|| aged(line))
    });
    let failover = cluster.failover();
    more_writes(&load, 500);
    assert_eq!(lost(load, failover.to), 0);
}

/// All sentinels are told to watch the master anew: they keep their identities, and begin at epoch
/// 0.
#[test]
fn loses_nothing_after_sentinels_that_monitor_anew() {
    let cluster = Cluster::builder().discover().start();
    for _ in 0..2 {
        cluster.failover();
        cluster.wait_whole();
    }
    let pointsman = pointsman(&cluster);
    let load = writing(&pointsman);
    let (name, master) = (cluster.name(), cluster.master().addr());
    let (ip, port) = (master.ip().to_string(), master.port().to_string());
    for sentinel in cluster.sentinels() {
        for order in [
            vec!["SENTINEL", "REMOVE", name],
            vec!["SENTINEL", "MONITOR", name, &ip, &port, "2"],
            vec!["SENTINEL", "SET", name, "failover-timeout", "10000"],
        ] {
            assert!(sentinel.ask(&order).expect("a reply").is_ok(), "{order:?}");
        }
    }
    let failover = cluster.failover();
    more_writes(&load, 500);
    assert_eq!(lost(load, failover.to), 0);
}

#[test]
fn loses_nothing_if_started_after_the_promotion() {
    let cluster = Cluster::builder().start();
    let old = cluster.master().addr();
    let program = builder(&cluster).service_line("hold_timeout = \"60s\"").without_waiting();
    cluster.begin_failover_of(cluster.name());
    promoted(&cluster, old);
    let pointsman = program.start();
    let load = Load::to(pointsman.addr()).writers(WRITERS).rate(RATE).timeout(PATIENCE).start();
    more_writes(&load, 500);
    let to = promoted(&cluster, old).addr();
    assert_eq!(lost(load, to), 0);
}

#[test]
fn loses_nothing_if_taken_over_after_the_promotion() {
    let cluster = Cluster::builder().start();
    let old = cluster.master().addr();
    let folder = cluster.folder();
    let first = builder(&cluster)
        .service_line("hold_timeout = \"60s\"")
        .lines(&format!("[process]\nstate_dir = {folder:?}"))
        .start();
    let file = first.process().log_path().with_file_name("pointsman.toml");
    wait_for_place(&folder.join("takeover.sock"));
    let load = writing(&first);
    cluster.begin_failover_of(cluster.name());
    let to = promoted(&cluster, old).addr();
    let _second = run("successor", folder, &file, &["--takeover"]);
    more_writes(&load, 500);
    assert_eq!(lost(load, to), 0);
}

/// Two sentinels carry out a failover each. The user of the first may not promote, so its failover
/// is aborted, while the second has promoted the other replica and has not noticed yet.
#[test]
fn stays_closed_if_a_sentinel_aborts_after_a_promotion() {
    let timeout = Duration::from_secs(3);
    let cluster = Cluster::builder().failover_timeout(timeout).start();
    let [aborting, leader, _] = cluster.sentinels() else { panic!("three sentinels") };
    let old = cluster.master().addr();
    let set_user = |user: &str, rules: &[&str]| {
        for node in cluster.nodes() {
            let command = [&["ACL", "SETUSER", user][..], rules].concat();
            assert!(node.ask(&command).expect("a reply").is_ok());
        }
    };
    let all = ["on", ">secret", "~*", "&*", "+@all"];
    set_user("leading", &all);
    set_user("aborting", &[&all[..], &["-slaveof", "-replicaof", "-failover"]].concat());
    for (sentinel, user) in [(leader, "leading"), (aborting, "aborting")] {
        for (key, value) in [("auth-user", user), ("auth-pass", "secret")] {
            let set = sentinel.ask(&["SENTINEL", "SET", cluster.name(), key, value]);
            assert!(set.expect("SENTINEL SET").is_ok());
        }
    }
    // Their connections of before have the rights of before.
    [leader, aborting].into_iter().for_each(Node::restart);
    cluster.wait_whole();
    cluster.look_often();
    let (aborts, leads) = (Events::of(aborting), Events::of(leader));
    // The proxy learns of the promotion from its own probe only.
    let mute = leader.ask(&["ACL", "SETUSER", "default", "-subscribe", "-psubscribe"]);
    assert!(mute.expect("a reply").is_ok());
    let pointsman = pointsman(&cluster);
    let load = writing(&pointsman);
    let order = |sentinel: &Node| {
        let failover = ["SENTINEL", "FAILOVER", cluster.name()];
        wait_until("the failover to begin", PATIENCE, || sentinel.ask(&failover).map(drop));
    };
    order(aborting);
    let waits = aborts.wait_for("+failover-state-wait-promotion", PATIENCE);
    let is_other = |node: &&Node| {
        node.addr() != old && !waits.payload.contains(&format!(" {} @", node.addr().port()))
    };
    let other = cluster.nodes().iter().find(is_other).expect("the other replica");
    let preferred = other.ask(&["CONFIG", "SET", "replica-priority", "1"]);
    assert!(preferred.expect("a reply").is_ok());
    wait_until("the leader to know its priority", PATIENCE, || {
        let list = leader.ask(&["SENTINEL", "REPLICAS", cluster.name()]).expect("a reply");
        let priority = |it: &Value| it.field("slave-priority").and_then(Value::text) == Some("1");
        list.items().iter().any(priority)
    });
    wait_until("the abort to come near", PATIENCE, || {
        waits.at.elapsed() > timeout - Duration::from_secs(1)
    });
    // It selects by what it knows, and cannot see that its order was carried out.
    set_user("leading", &["-info"]);
    order(leader);
    let to = promoted(&cluster, old).addr();
    let aborted = "-failover-abort-slave-timeout";
    assert!(aborts.first(aborted).is_none(), "too early: {:?}", aborts.all());
    let before = load.counts().acknowledged;
    aborts.wait_for(aborted, PATIENCE);
    let since = Instant::now();
    wait_until("time for writes", PATIENCE, || since.elapsed() > Duration::from_millis(300));
    let after = load.counts().acknowledged;
    assert!(leads.first("+promoted-slave").is_none(), "{:?}", leads.all());
    set_user("leading", &["+info"]);
    assert_eq!(after, before, "acknowledged by the old master after the promotion");
    more_writes(&load, 500);
    assert_eq!(cluster.master().addr(), to);
    assert_eq!(lost(load, to), 0);
}

#[test]
fn follows_leader_of_a_failover_it_half_sees() {
    if !alone("evidence::follows_leader_of_a_failover_it_half_sees") {
        return;
    }
    let cluster = Cluster::builder().start_apart();
    let pointsman = pointsman(&cluster);
    let load = writing(&pointsman);
    let old = cluster.master();
    let ip = |node: &Node| node.addr().ip();
    let [near, leader, hidden] = cluster.sentinels() else { panic!("three sentinels") };
    // Only one of them starts the failover; the hidden one votes for it.
    for (sentinel, key, value) in
        [(leader, "quorum", "1"), (hidden, "down-after-milliseconds", "60000")]
    {
        let set = sentinel.ask(&["SENTINEL", "SET", cluster.name(), key, value]);
        assert!(set.expect("SENTINEL SET").is_ok());
    }
    let replicas: Vec<_> =
        cluster.nodes().iter().filter(|node| node.addr() != old.addr()).map(ip).collect();
    let far: Vec<_> = replicas.into_iter().chain([ip(leader), ip(hidden)]).collect();
    let _hidden = Cut::between(&[harness::PROXY], &[ip(hidden)]);
    let cut_at = Instant::now();
    let _split = Cut::between(&[ip(near), ip(old)], &far);
    let to = wait_until("the failover", PATIENCE, || {
        let to = cluster.master_addr_of(leader, cluster.name())?;
        if to == old.addr() { Err("none yet".to_owned()) } else { Ok(to) }
    });
    let named_after = cut_at.elapsed();
    wait_until("the new master to be followed", Duration::from_secs(1), || {
        let target = status(&pointsman)["services"][0]["target"].clone();
        if target["addr"] == to.to_string() { Ok(()) } else { Err(target.to_string()) }
    });
    more_writes(&load, 500);
    // What the old master acknowledged after the cut reached no replica; no client can know that.
    let since_promotion = lost(load, to);
    let before = u64::from(RATE) * (named_after.as_secs() + 1);
    assert!(since_promotion <= before, "{since_promotion} of at most {before}");
}
