//! The harness itself, on real servers.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use harness::{Builder, Client, Cluster, Events, Family, Load, wait_until};

/// A lost election is held again after twelve seconds.
const SOON: Duration = Duration::from_secs(40);

/// Whether a process of this id exists; a zombie still does.
fn exists(pid: u32) -> bool {
    PathBuf::from(format!("/proc/{pid}")).exists()
}

/// Whether a process of this id runs. An orphan that ended stays a zombie until the process that
/// adopted it looks.
fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
}

fn pids(cluster: &Cluster) -> Vec<u32> {
    cluster.nodes().iter().chain(cluster.sentinels()).filter_map(harness::Node::pid).collect()
}

#[test]
fn starts_fails_over_and_cleans_up() {
    let cluster = Cluster::builder().start();
    let (pids, folder) = (pids(&cluster), cluster.folder().to_owned());
    assert_eq!(pids.len(), 6);
    assert_eq!(cluster.master().addr(), cluster.nodes()[0].addr());
    assert_eq!(cluster.replicas().len(), 2);

    let events = Events::of_all(cluster.sentinels());
    let failover = cluster.failover();
    assert_eq!(failover.from, cluster.nodes()[0].addr());
    assert_ne!(failover.to, failover.from);
    assert_eq!(cluster.master().role().expect("an answer"), "master");
    let switch = events.wait_for("+switch-master", SOON);
    assert!(
        switch.payload.ends_with(&format!("{} {}", failover.to.ip(), failover.to.port())),
        "{switch:?}"
    );
    assert!(switch.at > failover.asked);

    drop(events);
    drop(cluster);
    assert!(pids.iter().all(|pid| !exists(*pid)), "processes left");
    assert!(!folder.exists(), "files left");
}

#[test]
fn replaces_and_restarts_killed_master() {
    let cluster = Cluster::builder().start();
    let events = Events::of(&cluster.sentinels()[0]);
    let old = &cluster.nodes()[0];
    let pid = old.pid().expect("it runs");
    old.kill();
    assert!(!exists(pid));
    events.wait_for("+switch-master", SOON);
    assert_ne!(cluster.master().addr(), old.addr());
    assert_eq!(cluster.replicas().len(), 1);
    old.restart();
    wait_until("the old master to become a replica", Duration::from_secs(30), || {
        old.role().is_ok_and(|role| role == "slave")
    });
}

#[test]
fn keeps_connections_of_stopped_server() {
    let cluster = Cluster::builder().replicas(0).sentinels(0).start();
    let mut client = cluster.master().client();
    cluster.master().stop();
    client.set_timeout(Duration::from_millis(50)).expect("a timeout");
    let error = client.cmd(&["PING"]).expect_err("a stopped server answers nothing");
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    cluster.master().cont();
    client.set_timeout(SOON).expect("a timeout");
    assert_eq!(client.read_value().expect("the late answer").text(), Some("PONG"));
}

/// Not a test: the runner that the next test kills. It tells what it started and then waits to be
/// killed.
#[test]
#[ignore = "started by ends_servers_when_runner_is_killed"]
fn runner_to_be_killed() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let pids: Vec<String> = pids(&cluster).iter().map(ToString::to_string).collect();
    println!("\nstarted {} in {}", pids.join(" "), cluster.folder().display());
    // Ends only if the other side closes without killing us.
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn ends_servers_when_runner_is_killed() {
    let mut runner = Command::new(std::env::current_exe().expect("this program"));
    runner.args(["--exact", "runner_to_be_killed", "--ignored", "--nocapture"]);
    let mut runner =
        runner.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a second runner");
    let said =
        BufReader::new(runner.stdout.take().expect("its output")).lines().map_while(Result::ok);
    let started = said
        .filter_map(|line| line.strip_prefix("started ").map(str::to_owned))
        .next()
        .expect("its servers");
    let (pids, folder) = started.split_once(" in ").expect("process ids and a folder");
    let pids: Vec<u32> = pids.split(' ').map(|pid| pid.parse().expect("a process id")).collect();
    assert!(pids.len() == 2 && pids.iter().all(|pid| runs(*pid)), "{started}");
    runner.kill().expect("a signal");
    runner.wait().expect("its end");
    wait_until("the end of its servers", SOON, || !pids.iter().any(|pid| runs(*pid)));
    // A killed owner cannot remove its files.
    std::fs::remove_dir_all(folder).expect("its folder");
}

#[test]
fn watches_several_masters() {
    let cluster = Cluster::builder().masters(&["one", "two"]).replicas(1).start();
    let one = cluster.master_addr("one").expect("a master");
    let failover = cluster.failover_of("two");
    assert_eq!(failover.to, cluster.groups()[1].nodes()[1].addr());
    assert_eq!(cluster.master_addr("one"), Ok(one));
}

#[test]
fn requires_passwords_and_users() {
    let builder = Builder::default().replicas(1).password("secret").sentinel_password("other");
    let cluster = builder.user("app on >pw ~app:* +@all").start();
    let mut stranger = Client::connect(cluster.master().addr()).expect("a connection");
    assert!(
        stranger
            .cmd(&["GET", "a"])
            .expect("a reply")
            .error()
            .is_some_and(|text| text.starts_with("NOAUTH"))
    );
    assert!(stranger.cmd(&["AUTH", "app", "pw"]).expect("a reply").is_ok());
    assert!(
        stranger
            .cmd(&["GET", "a"])
            .expect("a reply")
            .error()
            .is_some_and(|text| text.starts_with("NOPERM"))
    );
    let mut stranger = Client::connect(cluster.sentinels()[0].addr()).expect("a connection");
    assert!(stranger.cmd(&["SENTINEL", "MASTERS"]).expect("a reply").is_error());
    assert_ne!(cluster.failover().to, cluster.nodes()[0].addr());
}

#[test]
fn supports_ipv6_names_and_slow_discovery() {
    let cluster = Cluster::builder().family(Family::Ipv6).replicas(1).start();
    assert!(cluster.master().addr().is_ipv6());
    let cluster = Cluster::builder().family(Family::Localhost).replicas(1).discover().start();
    let named = cluster.sentinels()[0]
        .ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"])
        .expect("an answer");
    assert_eq!(named.items()[0].text(), Some("localhost"));
}

#[test]
fn counts_and_verifies_writes() {
    let cluster = Cluster::builder().replicas(0).sentinels(0).start();
    let mut load = Load::to(cluster.master().addr()).writers(4).start();
    wait_until("some writes", SOON, || load.counts().acknowledged > 2000);
    load.stop();
    let written = load.counts().acknowledged;
    let verdict = load.verify(cluster.master().addr()).expect("a verdict");
    assert_eq!((verdict.acknowledged, verdict.missing), (written, 0));
    cluster.master().ask(&["DEL", "load:0:7"]).expect("an answer");
    let verdict = load.settle(cluster.master().addr()).expect("a verdict");
    assert_eq!((verdict.missing, verdict.examples), (1, vec!["load:0:7".to_owned()]));
    assert_eq!(cluster.master().ask(&["DBSIZE"]).expect("an answer").int(), Some(0));
}

#[test]
fn measures_outage_of_killed_master() {
    let cluster = std::sync::Arc::new(Cluster::builder().start());
    // Any of them may be the leader, which announces the switch a second after the others.
    let events = Events::of_all(cluster.sentinels());
    let asked = std::sync::Arc::clone(&cluster);
    let load =
        Load::to_resolved(move || asked.current_master_addr().ok()).writers(2).rate(400).start();
    wait_until("some writes", SOON, || load.counts().acknowledged > 100);
    let killed = std::time::Instant::now();
    cluster.nodes()[0].kill();
    let switch = events.wait_for("+switch-master", SOON);
    // Sentinel was told to wait two seconds before it calls a server down.
    let least = Duration::from_millis(1900);
    let outage = wait_until("the end of the outage", SOON, || {
        load.gaps().into_iter().find(|gap| gap.length() > least)
    });
    assert!(outage.to > killed && outage.from < switch.at, "{outage:?} {switch:?}");
    let counts = load.counts();
    assert!(counts.errors > 0 && counts.longest_gap >= outage.length(), "{counts:?}");
}

#[test]
fn reads_large_values_and_deep_pipelines() {
    let cluster = Cluster::builder().replicas(0).sentinels(0).start();
    let mut client = cluster.master().client();
    let big = vec![b'x'; 10 << 20];
    assert!(client.cmd(&[b"SET".as_slice(), b"big", &big]).expect("a reply").is_ok());
    assert_eq!(client.cmd(&["GET", "big"]).expect("a reply"), harness::Value::Bulk(big));
    let commands: Vec<Vec<String>> =
        (0..100_000).map(|number| vec!["ECHO".to_owned(), number.to_string()]).collect();
    let replies = client.pipeline(&commands).expect("replies");
    assert!(
        replies.iter().enumerate().all(|(number, reply)| reply.int() == i64::try_from(number).ok())
    );
    assert_eq!(
        client.cmd(&["HELLO", "3"]).expect("a reply").field("proto").and_then(harness::Value::int),
        Some(3)
    );
}

#[test]
fn starts_cluster_that_speaks_tls_only() {
    let cluster = Cluster::builder().tls().start();
    for node in cluster.nodes().iter().chain(cluster.sentinels()) {
        let mut plain = Client::connect_within(node.addr(), SOON).expect("a connection");
        plain.send(b"PING\r\n").expect("sent");
        let (answer, _) = plain.read_to_end().expect("closed");
        assert!(!answer.starts_with(b"+"), "{} speaks plain RESP", node.name());
        let stranger = Client::connect_within(node.addr(), SOON).expect("a connection");
        let answer = stranger
            .over_tls(&harness::tls_client(None), "localhost")
            .and_then(|mut stranger| stranger.cmd(&["PING"]));
        assert!(answer.is_err(), "{} serves clients without certificate", node.name());
        assert!(node.client().tls().is_some());
        let replies = node.client().pipeline(&vec![vec!["PING"]; 100]).expect("answers");
        assert!(replies.iter().all(|reply| reply.text() == Some("PONG")));
    }
    let failover = cluster.failover();
    assert_eq!(cluster.master().addr(), failover.to);
}
