//! A switchover to a named replica: by `replica-priority`, which is restored whatever happens.

use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use harness::{Client, Cluster, Load, Node, Pointsman, Value, wait_until};
use rustix::process::{Pid, Signal, kill_process};

use crate::switchover::{TOKEN, controlled, order, stderr, stdout};
use crate::switchover_faults::{allow_promotion, reason_when_forbidden, wait_settled};
use crate::{PROGRAM, metric};

const PATIENCE: Duration = Duration::from_secs(60);
/// What an order makes of 100.
const RAISED: u64 = 1_000_000_100;

fn priority(node: &Node) -> Option<u64> {
    let reply = node.ask(&["CONFIG", "GET", "replica-priority"]).ok()?;
    reply.field("replica-priority").and_then(Value::text)?.parse().ok()
}

fn priorities(cluster: &Cluster) -> Vec<Option<u64>> {
    cluster.nodes().iter().map(priority).collect()
}

fn set_priority(node: &Node, value: u64) {
    let command = ["CONFIG", "SET", "replica-priority", &value.to_string()];
    assert!(node.ask(&command).expect("a reply").is_ok());
}

fn switch_to(pointsman: &Pointsman, node: SocketAddr) -> Output {
    order(pointsman, &["switchover", "--to", &node.to_string()], TOKEN)
}

fn begin_switch_to(pointsman: &Pointsman, node: SocketAddr) -> Child {
    let admin = pointsman.admin().to_string();
    let mut command = Command::new(PROGRAM);
    command
        .args(["switchover", "--to", &node.to_string(), "--admin", &admin])
        .env_clear()
        .env("POINTSMAN_CONTROL_TOKEN", TOKEN)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().expect("the order runs")
}

fn changed(pointsman: &Pointsman) -> Option<f64> {
    metric(pointsman, "pointsman_switchover_changed_priorities{service=\"mymaster\"}")
}

fn doctor(cluster: &Cluster) -> String {
    let config = cluster.folder().join("doctor.toml");
    let sentinels: Vec<String> = cluster.sentinel_addrs().iter().map(ToString::to_string).collect();
    let text = format!("[[service]]\nname = \"mymaster\"\nsentinels = {sentinels:?}\n");
    std::fs::write(&config, text).expect("a file");
    let mut command = Command::new(PROGRAM);
    command.args(["sentinels", "--json", "--config"]).arg(&config).env_clear();
    stdout(&command.stdin(Stdio::null()).output().expect("the program"))
}

fn wait_changed(node: &Node) {
    wait_until("the priority to change", PATIENCE, || priority(node) != Some(100));
}

fn wait_restored(cluster: &Cluster) {
    wait_until("the priorities to be restored", PATIENCE, || {
        let now = priorities(cluster);
        if now.iter().all(|it| *it == Some(100)) { Ok(()) } else { Err(format!("{now:?}")) }
    });
}

#[test]
fn promotes_each_named_replica_without_loss() {
    let cluster = Cluster::builder().replicas(3).start();
    let pointsman = controlled(&cluster);
    let mut load = Load::to(pointsman.addr()).writers(8).rate(1000).timeout(PATIENCE).start();
    wait_until("some writes", PATIENCE, || load.counts().acknowledged > 200);
    let replicas: Vec<SocketAddr> = cluster.replicas().iter().map(|node| node.addr()).collect();
    // All equal; the named one is the lowest already; all others have 1.
    for (number, to) in replicas.into_iter().enumerate() {
        let others = [100, 100, 1][number];
        for node in cluster.nodes() {
            set_priority(node, if node.addr() == to { [100, 7, 100][number] } else { others });
        }
        let before = priorities(&cluster);
        wait_settled(&cluster);
        let since = Instant::now();
        let done = switch_to(&pointsman, to);
        let took = since.elapsed();
        assert!(done.status.success(), "{}{}", stdout(&done), stderr(&done));
        eprintln!("switched to {to} in {took:?}:\n{}", stdout(&done));
        assert_eq!(cluster.master().addr(), to, "{}", stdout(&done));
        assert_eq!(priorities(&cluster), before, "{}", stdout(&done));
        let restored = stdout(&done).matches("s  restore ").count();
        assert_eq!(restored, [2, 0, 2][number], "{}", stdout(&done));
        assert_eq!(changed(&pointsman), Some(0.0));
    }
    load.stop();
    let verdict = load.verify(cluster.master().addr()).expect("a look at the master");
    assert_eq!(verdict.missing, 0, "{verdict:?}; {:?}", load.counts());
    assert_eq!(load.counts().errors, 0, "{:?}", load.errors());
}

/// The promotion ends with CONFIG REWRITE: the values are restored before that.
#[test]
fn writes_no_changed_priority_to_configuration_files() {
    let cluster = Cluster::builder().start();
    let pointsman = controlled(&cluster);
    let to = cluster.replicas()[0].addr();
    let done = switch_to(&pointsman, to);
    assert!(done.status.success(), "{}{}", stdout(&done), stderr(&done));
    assert_eq!(cluster.master().addr(), to);
    wait_settled(&cluster);
    let master = cluster.master();
    // What a restart would read; or the operator was advised, on a machine that is that slow.
    master.restart();
    let is_advised = stdout(&done).contains("CONFIG REWRITE");
    assert!(priority(master) == Some(100) || is_advised, "{}", stdout(&done));
    eprintln!("{:?}, advised: {is_advised}", priority(master));
}

/// Whatever clients subscribe to, at every server and through the proxy, no order waits for them.
#[test]
fn promotes_named_replica_despite_subscribers() {
    let cluster = Cluster::builder().start();
    let pointsman = controlled(&cluster);
    let subscribe = |addr: SocketAddr| {
        let mut client = Client::connect(addr).expect("a connection");
        let reply = client.cmd(&["SUBSCRIBE", "__pointsman__:priority"]).expect("a reply");
        assert_eq!(reply.items().len(), 3, "{reply}");
        client
    };
    let addrs = cluster.nodes().iter().map(Node::addr).chain([pointsman.addr()]);
    let subscribers: Vec<Client> = addrs.map(subscribe).collect();
    let to = cluster.replicas()[0].addr();
    let done = switch_to(&pointsman, to);
    assert!(done.status.success(), "{}{}", stdout(&done), stderr(&done));
    assert_eq!(cluster.master().addr(), to);
    assert_eq!(priorities(&cluster), vec![Some(100); 3]);
    drop(subscribers);
}

#[test]
fn refuses_named_nodes_that_cannot_be_promoted() {
    let cluster = Cluster::builder().start();
    let pointsman = controlled(&cluster);
    let (master, replica) = (cluster.master(), cluster.replicas()[0]);
    let refused = |to: SocketAddr, why: &str| {
        let done = switch_to(&pointsman, to);
        assert!(!done.status.success(), "{}", stdout(&done));
        assert!(stderr(&done).contains(why), "{}{}", stdout(&done), stderr(&done));
    };
    refused(master.addr(), "is the master already");
    refused("127.0.0.1:1".parse().expect("an address"), "listed as a healthy replica by 0 of 3");
    set_priority(replica, 0);
    refused(replica.addr(), "replica-priority is 0");
    set_priority(replica, 100);
    let rival = cluster.replicas()[1];
    for (node, rule) in [(replica, "-config|get"), (rival, "-config|get"), (rival, "-config|set")] {
        node.ask(&["ACL", "SETUSER", "default", rule]).expect("a rule");
        refused(replica.addr(), "+config|get +config|set");
        let back = rule.replacen('-', "+", 1);
        node.ask(&["ACL", "SETUSER", "default", &back]).expect("a rule");
    }
    let wrong = order(&pointsman, &["switchover", "--to", "nowhere"], TOKEN);
    assert!(stderr(&wrong).contains("host:port"), "{}", stderr(&wrong));
    assert_eq!(cluster.master().addr(), master.addr());
    assert_eq!(priorities(&cluster), vec![Some(100); 3]);
}

/// Nobody restores then, and nothing is unknown: the command has printed how, a raised value shows
/// the one before, no order begins, and the doctor names the replica.
#[test]
fn prints_how_to_restore_when_the_proxy_is_killed() {
    let cluster = Cluster::builder().start();
    let pointsman = controlled(&cluster);
    let (replica, rival) = (cluster.replicas()[0], cluster.replicas()[1]);
    let order = begin_switch_to(&pointsman, replica.addr());
    wait_changed(rival);
    pointsman.process().kill();
    let done = order.wait_with_output().expect("the order ends");
    assert!(!done.status.success(), "{}", stdout(&done));
    assert!(stderr(&done).contains("without a result"), "{}", stderr(&done));
    assert_eq!(priority(rival), Some(RAISED), "{}{}", stdout(&done), stderr(&done));
    let remedy = format!("-p {} CONFIG SET replica-priority 100", rival.addr().port());
    assert!(stdout(&done).contains(&remedy), "{}", stdout(&done));

    let next = controlled(&cluster);
    let refused = switch_to(&next, replica.addr());
    assert!(!refused.status.success(), "{}", stdout(&refused));
    assert!(stderr(&refused).contains(&remedy), "{}", stderr(&refused));
    wait_until("the doctor to name it", PATIENCE, || {
        let seen = doctor(&cluster);
        if seen.contains("priority-raised") && seen.contains(&remedy) { Ok(()) } else { Err(seen) }
    });
    set_priority(rival, 100);
    let done = switch_to(&next, replica.addr());
    assert!(done.status.success(), "{}{}", stdout(&done), stderr(&done));
    assert_eq!(priorities(&cluster), vec![Some(100); 3]);
}

#[test]
fn restores_when_the_command_is_interrupted() {
    let cluster = Cluster::builder().start();
    let pointsman = controlled(&cluster);
    let (replica, rival) = (cluster.replicas()[0], cluster.replicas()[1]);
    let order = begin_switch_to(&pointsman, replica.addr());
    wait_changed(rival);
    assert_eq!(changed(&pointsman), Some(1.0));
    kill_process(Pid::from_child(&order), Signal::INT).expect("Ctrl-C");
    let ended = order.wait_with_output().expect("it is gone");
    assert!(!ended.status.success());
    assert!(stderr(&ended).contains("interrupted: "), "{}", stderr(&ended));
    wait_restored(&cluster);
    wait_until("the metric to show it", PATIENCE, || changed(&pointsman) == Some(0.0));
    assert_ne!(cluster.master().addr(), replica.addr());
}

/// `/history` shows what was ordered, how it ended and how long it took, without refused requests.
#[test]
fn shows_orders_in_the_history() {
    let cluster = Cluster::builder().start();
    let pointsman = controlled(&cluster);
    let orders = || {
        let (_, text) = pointsman.get("/history").expect("history");
        let history: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        history["services"][0]["orders"].clone()
    };
    assert_eq!(orders(), serde_json::json!([]));
    let paused = order(&pointsman, &["pause", "--for", "1s"], TOKEN);
    assert!(paused.status.success(), "{}", stderr(&paused));
    assert!(order(&pointsman, &["resume"], TOKEN).status.success());
    assert!(!order(&pointsman, &["resume"], "another token").status.success());
    let to = cluster.replicas()[0].addr();
    let done = switch_to(&pointsman, to);
    assert!(done.status.success(), "{}", stderr(&done));
    let again = switch_to(&pointsman, to);
    assert!(!again.status.success(), "it is the master now");

    let orders = orders();
    let column = |key: &str| -> Vec<serde_json::Value> {
        orders.as_array().expect("orders").iter().map(|it| it[key].clone()).collect()
    };
    assert_eq!(column("command"), ["pause", "resume", "switchover", "switchover"], "{orders}");
    assert_eq!(orders[0]["parameters"], serde_json::json!({ "seconds": 1.0 }));
    assert_eq!(orders[2]["parameters"]["to"], to.to_string());
    assert_eq!(orders[2]["result"]["to"], to.to_string());
    let ok: Vec<_> = column("result").iter().map(|it| it["ok"].clone()).collect();
    assert_eq!(ok, [true, true, true, false], "{orders}");
    assert!(orders[3]["result"]["error"].is_string(), "{orders}");
    let times = [column("took_s"), column("age_s")].concat();
    assert!(times.iter().all(serde_json::Value::is_f64), "{orders}");
    assert!(!orders.to_string().contains(TOKEN));
}

#[test]
fn restores_when_the_proxy_is_terminated() {
    let cluster = Cluster::builder().start();
    let pointsman = controlled(&cluster);
    let (replica, rival) = (cluster.replicas()[0], cluster.replicas()[1]);
    let order = begin_switch_to(&pointsman, replica.addr());
    wait_changed(rival);
    pointsman.sigterm();
    pointsman.wait_exit(PATIENCE);
    assert_eq!(priorities(&cluster), vec![Some(100); 3]);
    let done = order.wait_with_output().expect("the order ends");
    assert!(stderr(&done).contains("the process is stopping"), "{}", stderr(&done));
}

/// The order ends as a failure that names the command, whether the sentinels consider that replica
/// down in time to promote the other one or not. When it answers, the doctor names it.
#[test]
fn reports_how_to_restore_a_replica_that_hangs() {
    let cluster = Cluster::builder().start();
    let pointsman = controlled(&cluster);
    let (replica, rival) = (cluster.replicas()[0], cluster.replicas()[1]);
    let order = begin_switch_to(&pointsman, replica.addr());
    wait_changed(rival);
    rival.stop();
    let done = order.wait_with_output().expect("the order ends");
    let shown = stdout(&done) + &stderr(&done);
    assert!(!done.status.success(), "{shown}");
    let remedy = format!("-p {} CONFIG SET replica-priority 100", rival.addr().port());
    let step = shown.lines().find(|it| it.contains("s  restore ") && it.contains(&remedy));
    let step = step.unwrap_or_else(|| panic!("{shown}"));
    assert!(step.contains("is not restored") && step.contains("may still change it"), "{step}");
    if cluster.master().addr() == replica.addr() {
        assert!(stderr(&done).contains(&remedy), "{shown}");
    }
    assert_eq!(changed(&pointsman), Some(0.0), "nothing is tried any more");
    wait_until("the log to name it", PATIENCE, || {
        let log = pointsman.process().log();
        let is_named = log.contains("replica-priority is not restored") && log.contains(&remedy);
        if is_named { Ok(()) } else { Err(log) }
    });

    rival.cont();
    assert_eq!(priority(rival), Some(RAISED));
    wait_until("the doctor to name it", PATIENCE, || {
        let seen = doctor(&cluster);
        if seen.contains("priority-raised") && seen.contains(&remedy) { Ok(()) } else { Err(seen) }
    });
    wait_settled(&cluster);
    let replicas = cluster.replicas();
    let next = replicas.iter().find(|it| it.addr() != rival.addr()).expect("another replica");
    let refused = switch_to(&pointsman, next.addr());
    assert!(stderr(&refused).contains(&remedy), "{}{}", stdout(&refused), stderr(&refused));
    set_priority(rival, 100);
    let done = switch_to(&pointsman, next.addr());
    assert!(done.status.success(), "{}{}", stdout(&done), stderr(&done));
    assert_eq!(priorities(&cluster), vec![Some(100); 3]);
}

#[test]
fn restores_when_sentinel_aborts() {
    let cluster = Cluster::builder().failover_timeout(Duration::from_secs(3)).start();
    let pointsman = controlled(&cluster);
    let (master, replica) = (cluster.master().addr(), cluster.replicas()[0].addr());
    allow_promotion(&cluster, false);
    let done = switch_to(&pointsman, replica);
    assert!(!done.status.success(), "{}", stdout(&done));
    assert!(stderr(&done).contains(reason_when_forbidden()), "{}", stderr(&done));
    assert_eq!(priorities(&cluster), vec![Some(100); 3], "{}", stdout(&done));
    assert_eq!(cluster.master().addr(), master);
}

#[test]
fn restores_when_another_failover_happens() {
    let cluster = Cluster::builder().start();
    let pointsman = controlled(&cluster);
    let (replica, rival) = (cluster.replicas()[0], cluster.replicas()[1]);
    let order = begin_switch_to(&pointsman, replica.addr());
    wait_changed(rival);
    let busy = cluster.sentinels().last().expect("a sentinel");
    busy.ask(&["SENTINEL", "FAILOVER", cluster.name()]).expect("it begins");
    let done = order.wait_with_output().expect("the order ends");
    assert_eq!(priorities(&cluster), vec![Some(100); 3], "{}{}", stdout(&done), stderr(&done));
    assert!(!done.status.success(), "{}", stdout(&done));
    eprintln!("{}{}", stdout(&done), stderr(&done));
}

#[test]
fn restores_priorities_of_two_orders_at_once() {
    let cluster = Cluster::builder().start();
    let (one, other) = (controlled(&cluster), controlled(&cluster));
    for node in cluster.nodes() {
        set_priority(node, 1);
    }
    let to: Vec<SocketAddr> = cluster.replicas().iter().map(|node| node.addr()).collect();
    let orders = [begin_switch_to(&one, to[0]), begin_switch_to(&other, to[1])];
    let done = orders.map(|order| order.wait_with_output().expect("the order ends"));
    let told: Vec<String> = done.iter().map(|done| stdout(done) + &stderr(done)).collect();
    eprintln!("{}", told.join("\n"));
    let succeeded: Vec<bool> = done.iter().map(|done| done.status.success()).collect();
    assert!(succeeded.iter().filter(|it| **it).count() < 2, "{}", told.join("\n"));
    assert_eq!(priorities(&cluster), vec![Some(1); 3], "{}", told.join("\n"));
    for (to, _) in to.iter().zip(&succeeded).filter(|(_, succeeded)| **succeeded) {
        assert_eq!(cluster.master().addr(), *to);
    }
}
