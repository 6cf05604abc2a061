//! The override: an operator's order to follow a master while the sentinels are lost.

use std::net::SocketAddr;
use std::process::Output;
use std::time::{Duration, Instant};

use harness::{Client, Cluster, Launch, Node, Pointsman, Process, Signal, Value, wait_until};
use serde_json::Value as Json;

use crate::switchover::{TOKEN, controlled, generation, order, stderr, stdout};
use crate::{PROGRAM, builder, metric};

const PATIENCE: Duration = Duration::from_secs(60);
/// An epoch that no failover of these tests reaches.
const HIGHER: u32 = 7;
/// Sentinels that restart must not begin a failover of their own before they learn of the master.
const SLOW: Duration = Duration::from_secs(30);

fn service(pointsman: &Pointsman) -> Json {
    let (_, text) = pointsman.get("/status").expect("status");
    let status: Json = serde_json::from_str(&text).expect("JSON");
    status["services"][0].clone()
}

fn active(pointsman: &Pointsman) -> bool {
    metric(pointsman, "pointsman_override_active{service=\"mymaster\"}") == Some(1.0)
}

/// Kills all sentinels, and waits until none of their views counts any more.
fn lose_sentinels(cluster: &Cluster, pointsman: &Pointsman) {
    cluster.sentinels().iter().for_each(Node::kill);
    // Until then, an order is refused because a majority answered a moment ago. This one is refused
    // in any case.
    let nobody = cluster.address().port();
    wait_until("every view to expire", PATIENCE, || {
        let reason = stderr(&follow(pointsman, nobody, &[]));
        if reason.contains("cannot be reached") { Ok(()) } else { Err(reason) }
    });
}

/// Makes a Redis node a master, by hand.
fn promote(node: &Node) {
    assert!(node.ask(&["REPLICAOF", "NO", "ONE"]).expect("an answer").is_ok());
}

fn follow(pointsman: &Pointsman, to: SocketAddr, more: &[&str]) -> Output {
    let to = to.to_string();
    order(pointsman, &[&["follow", "mymaster", &to], more].concat(), TOKEN)
}

#[track_caller]
fn followed(done: &Output) -> String {
    let shown = stdout(done);
    assert!(done.status.success(), "{shown}{}", stderr(done));
    assert!(shown.contains("follow: done"), "{shown}");
    shown
}

#[track_caller]
fn refused(done: &Output, reason: &str) {
    assert!(!done.status.success(), "{}", stdout(done));
    assert!(stderr(done).contains(reason), "{reason:?} is not in {}", stderr(done));
}

/// The sentinels restart from their files, and each hears a peer that names `master` at a higher
/// epoch, as after a failover or a new `SENTINEL MONITOR`.
fn bring_back(cluster: &Cluster, master: SocketAddr) {
    let sentinels = cluster.sentinels();
    sentinels.iter().for_each(Node::restart);
    let id = |sentinel: &Node| sentinel.ask(&["SENTINEL", "MYID"]).expect("MYID").to_string();
    for (index, sentinel) in sentinels.iter().enumerate() {
        let peer = &sentinels[(index + 1) % sentinels.len()];
        let from = format!("{},{},{}", peer.addr().ip(), peer.addr().port(), id(peer));
        let named = format!("mymaster,{},{}", master.ip(), master.port());
        let hello = format!("{from},{HIGHER},{named},{HIGHER}");
        sentinel.ask(&["PUBLISH", "__sentinel__:hello", &hello]).expect("a hello");
        assert_eq!(cluster.master_addr_of(sentinel, "mymaster"), Ok(master));
    }
}

fn wait_over(pointsman: &Pointsman, reason: &str) {
    wait_until("the override to end", PATIENCE, || {
        let seen = service(pointsman);
        let ended = seen["override"].is_null() && seen["last_override_end"] == reason;
        if ended && !active(pointsman) { Ok(()) } else { Err(seen.to_string()) }
    });
}

fn set(client: &mut Client, key: &str) -> bool {
    client.cmd(&["SET", key, "1"]).is_ok_and(|reply| reply.is_ok())
}

/// A cluster whose sentinels and master are dead; the first replica was promoted by hand, the
/// second one follows it.
fn lose_all(cluster: &Cluster, pointsman: &Pointsman) -> (SocketAddr, SocketAddr) {
    let (master, replicas) = (cluster.master(), cluster.replicas());
    let (new, other) = (replicas[0], replicas[1]);
    lose_sentinels(cluster, pointsman);
    master.kill();
    promote(new);
    let (host, port) = (new.addr().ip().to_string(), new.addr().port().to_string());
    assert!(other.ask(&["REPLICAOF", &host, &port]).expect("an answer").is_ok());
    (new.addr(), other.addr())
}

#[test]
fn follows_promoted_replica_while_all_sentinels_are_lost() {
    let cluster = Cluster::builder().down_after(SLOW).start();
    let pointsman = controlled(&cluster);
    let mut waiting = pointsman.client();
    waiting.set_timeout(PATIENCE).expect("a patient client");
    assert!(set(&mut waiting, "before"));
    let (new, _) = lose_all(&cluster, &pointsman);
    wait_until("the gate to close", PATIENCE, || service(&pointsman)["gate"] == "closed");
    let writer = std::thread::spawn(move || (set(&mut waiting, "during"), waiting));

    let since = Instant::now();
    let done = follow(&pointsman, new, &["--for", "30m"]);
    let mut client = pointsman.client();
    let served = set(&mut client, "after");
    let took = since.elapsed();
    let shown = followed(&done);
    assert!(served);
    println!("from the order to the first write: {took:?}\n{shown}");
    assert!(took < Duration::from_secs(1), "{took:?}");
    let (written, mut waiting) = writer.join().expect("the writer");
    assert!(written, "the client that waited is served");
    let at_new = cluster.node_at(new).expect("the node");
    assert_eq!(at_new.ask(&["EXISTS", "before", "during", "after"]).unwrap().int(), Some(3));

    // Loud everywhere.
    let seen = service(&pointsman);
    assert_eq!(seen["override"]["master"], new.to_string(), "{seen}");
    assert_eq!(seen["failovers"].as_array().unwrap().last().unwrap()["decided_by"], "operator");
    assert!(active(&pointsman));
    assert!((generation(&pointsman) - 2.0).abs() < 0.1);
    let status = order_status(&pointsman);
    assert!(status.contains("OVERRIDE"), "{status}");
    wait_until("the log to report it", PATIENCE, || {
        pointsman.process().log().contains("override in force")
    });

    // A pinned session would not survive a switch.
    assert!(client.cmd(&["MULTI"]).unwrap().is_ok());
    // One of three decides nothing.
    cluster.sentinels()[0].restart();
    wait_until("its view", PATIENCE, || {
        let named = &service(&pointsman)["override"]["contradicted_by"];
        if named.as_array().is_some_and(|it| it.len() == 1) { Ok(()) } else { Err(named.clone()) }
    });
    bring_back(&cluster, new);
    wait_over(&pointsman, "confirmed");
    assert!((generation(&pointsman) - 2.0).abs() < 0.1, "nothing was switched");
    assert!(client.cmd(&["SET", "pinned", "1"]).is_ok());
    assert_eq!(client.cmd(&["EXEC"]).expect("the session survives").items().len(), 1);
    assert!(set(&mut waiting, "last"));
}

fn order_status(pointsman: &Pointsman) -> String {
    let mut command = std::process::Command::new(PROGRAM);
    let admin = pointsman.admin().to_string();
    stdout(&command.args(["status", "--admin", &admin]).env_clear().output().expect("status"))
}

#[test]
fn switches_to_master_that_returning_sentinels_name() {
    let cluster = Cluster::builder().down_after(SLOW).start();
    let pointsman = controlled(&cluster);
    let (new, other) = lose_all(&cluster, &pointsman);
    followed(&follow(&pointsman, new, &[]));
    let mut client = pointsman.client();
    assert!(set(&mut client, "at-first"));
    let at_other = cluster.node_at(other).expect("the node");
    wait_until("the write on the replica", PATIENCE, || {
        at_other.ask(&["EXISTS", "at-first"]).is_ok_and(|it| it.int() == Some(1))
    });
    promote(at_other);
    bring_back(&cluster, other);
    wait_over(&pointsman, "switched");
    assert!((generation(&pointsman) - 3.0).abs() < 0.1);
    assert!(set(&mut client, "at-last"), "an idle session is carried");
    assert_eq!(at_other.ask(&["EXISTS", "at-first", "at-last"]).unwrap().int(), Some(2));
    let at_new = cluster.node_at(new).expect("the node");
    assert_eq!(at_new.ask(&["EXISTS", "at-last"]).unwrap().int(), Some(0), "it is fenced");
}

#[test]
fn refuses_wrong_orders_and_expires() {
    let cluster = Cluster::builder().down_after(SLOW).start();
    let pointsman = controlled(&cluster);
    let (master, replica) = (cluster.master().addr(), cluster.replicas()[0].addr());
    refused(&follow(&pointsman, replica, &[]), "use `pointsman switchover mymaster`");
    refused(&follow(&pointsman, master, &["--for", "25h"]), "up to 24h");
    let unknown = order(&pointsman, &["follow", "nomaster", "127.0.0.1:1"], TOKEN);
    refused(&unknown, "no such service");
    lose_sentinels(&cluster, &pointsman);
    refused(&follow(&pointsman, replica, &[]), "REPLICAOF NO ONE");
    refused(&follow(&pointsman, pointsman.addr(), &[]), "leads back to this proxy");
    let nobody = cluster.address().port();
    refused(&follow(&pointsman, nobody, &[]), "cannot be reached");
    refused(&follow(&pointsman, pointsman.admin(), &[]), &pointsman.admin().to_string());
    assert!(service(&pointsman)["override"].is_null() && !active(&pointsman));
    assert!((generation(&pointsman) - 1.0).abs() < 0.1, "no order changed anything");

    // The present master is confirmed without a new generation, and only for the given time.
    let mut client = pointsman.client();
    assert!(set(&mut client, "before"));
    let since = Instant::now();
    assert!(followed(&follow(&pointsman, master, &["--for", "2s"])).contains("already"));
    wait_over(&pointsman, "expired");
    assert!(since.elapsed() >= Duration::from_secs(2));
    assert!(set(&mut client, "after"), "minority = keep");
    assert!((generation(&pointsman) - 1.0).abs() < 0.1);

    // Another data set needs force.
    let stranger = Cluster::builder().replicas(0).sentinels(0).start();
    let foreign = stranger.nodes()[0].addr();
    refused(&follow(&pointsman, foreign, &[]), "--force");
    followed(&follow(&pointsman, foreign, &["--force"]));
    assert!(set(&mut pointsman.client(), "there"));
    assert_eq!(stranger.nodes()[0].ask(&["EXISTS", "there"]).unwrap().int(), Some(1));
    let done = order(&pointsman, &["unfollow", "mymaster"], TOKEN);
    assert!(done.status.success() && stdout(&done).contains("minority = \"keep\""));
    wait_over(&pointsman, "unfollowed");
    let again = order(&pointsman, &["unfollow", "mymaster"], TOKEN);
    assert!(again.status.success() && stdout(&again).contains("no override"), "{again:?}");
}

#[test]
fn follows_without_any_sentinel_at_a_cold_start() {
    let cluster = Cluster::builder().down_after(SLOW).start();
    let master = cluster.master().addr();
    cluster.sentinels().iter().for_each(Node::kill);
    let pointsman = builder(&cluster)
        .service_line("minority = \"hold\"")
        .arg("--set=admin.control=true")
        .arg("--set=admin.control_token_env=E2E_TOKEN")
        .env("E2E_TOKEN", TOKEN)
        .without_waiting()
        .start();
    wait_until("the admin server", PATIENCE, || pointsman.get("/status").is_ok());
    assert_eq!(pointsman.get("/ready").expect("an answer").0, 503);
    let shown = followed(&follow(&pointsman, master, &[]));
    assert!(shown.contains("knew no master before") && shown.contains("minority = \"hold\""));
    pointsman.wait_ready(PATIENCE);
    let mut client = pointsman.client();
    assert!(set(&mut client, "cold"));
    // Without the order, a minority holds traffic.
    let done = order(&pointsman, &["unfollow", "mymaster"], TOKEN);
    assert!(done.status.success(), "{}", stderr(&done));
    wait_until("the gate to close", PATIENCE, || service(&pointsman)["gate"] == "closed");
    followed(&follow(&pointsman, master, &[]));
    assert!(set(&mut client, "again"));
    cluster.sentinels().iter().for_each(Node::restart);
    wait_over(&pointsman, "confirmed");
    assert!(set(&mut client, "confirmed"));
    assert_eq!(
        cluster.master().ask(&["EXISTS", "cold"]).map(|it: Value| it.int()).ok(),
        Some(Some(1))
    );
}

#[test]
fn refuses_to_follow_without_control() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let pointsman = crate::pointsman(&cluster);
    refused(&follow(&pointsman, cluster.master().addr(), &[]), "control = true");
}

/// A process that can be given orders and taken over.
fn replaceable(cluster: &Cluster) -> Pointsman {
    let state = cluster.folder().to_owned();
    builder(cluster)
        .lines(&format!(
            "control = true\ncontrol_token_env = \"E2E_TOKEN\"\n[process]\nstate_dir = {state:?}"
        ))
        .env("E2E_TOKEN", TOKEN)
        .start()
}

/// Starts a successor, and waits until the old process says this of it.
fn successor(cluster: &Cluster, old: &Pointsman, what: &str) -> Process {
    let config = old.process().log_path().with_file_name("pointsman.toml");
    let args = ["run".into(), "--takeover".into(), "--config".into(), config.into_os_string()];
    let env = vec![("E2E_TOKEN".into(), TOKEN.into())];
    let (name, folder) = ("takeover".to_owned(), cluster.folder().to_owned());
    let launch = Launch { name, program: PROGRAM.into(), args: Vec::from(args), env, folder };
    let new = Process::start(&launch);
    wait_until("the successor's request", PATIENCE, || {
        let log = old.process().log();
        if log.contains(what) { Ok(()) } else { Err(log) }
    });
    new
}

#[test]
fn refuses_takeover_while_override_is_in_force() {
    let cluster = Cluster::builder().down_after(SLOW).start();
    let old = replaceable(&cluster);
    let master = cluster.master().addr();
    lose_sentinels(&cluster, &old);
    followed(&follow(&old, master, &[]));
    // The successor would find one sentinel, and follow what that one names.
    cluster.sentinels()[0].restart();
    let new = successor(&cluster, &old, "an override is in force: end it");
    assert!(set(&mut old.client(), "served by the old process"));
    assert!(active(&old));
    // Without the override the same successor takes over.
    assert!(order(&old, &["unfollow"], TOKEN).status.success());
    assert_eq!(old.wait_exit(PATIENCE).code(), Some(0), "{}", new.tail());
}

/// The successor would send what waits.
#[test]
fn refuses_takeover_while_traffic_is_paused() {
    let cluster = Cluster::builder().down_after(SLOW).start();
    let old = replaceable(&cluster);
    let mut client = old.client();
    assert!(set(&mut client, "before"));
    assert!(order(&old, &["pause"], TOKEN).status.success());
    let new = successor(&cluster, &old, "traffic is paused: end that");
    client.send(&harness::encode(&["SET", "k", "waits"])).expect("sent");
    let value = cluster.master().client().cmd(&["GET", "k"]).expect("a reply");
    assert_ne!(value.text(), Some("waits"));
    assert!(order(&old, &["resume"], TOKEN).status.success());
    assert!(client.read_value().expect("a reply").is_ok());
    drop(client);
    assert_eq!(old.wait_exit(PATIENCE).code(), Some(0), "{}", new.tail());
}

/// The successor that was offered the sockets serves as soon as it has found a master.
#[test]
fn refuses_orders_that_a_successor_would_not_know() {
    let cluster = Cluster::builder().down_after(SLOW).start();
    let old = replaceable(&cluster);
    let master = cluster.master().addr();
    lose_sentinels(&cluster, &old);
    let new = successor(&cluster, &old, "another process requests our sockets");
    refused(&follow(&old, master, &[]), "another process is taking over");
    refused(&order(&old, &["pause"], TOKEN), "another process is taking over");
    new.signal(Signal::KILL);
    wait_until("the end of the attempt", PATIENCE, || {
        old.process().log().contains("takeover failed, continuing to serve")
    });
    followed(&follow(&old, master, &[]));
}
