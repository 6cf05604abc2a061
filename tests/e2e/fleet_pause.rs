//! A pause of the fleet: writes through every proxy and without one are held at the master.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use harness::{Client, Cluster, Events, Pointsman, wait_until};

use crate::switchover::{TOKEN, controlled, controlled_by, order, stderr, stdout};
use crate::{builder, metric};

const PATIENCE: Duration = Duration::from_secs(60);
/// After the end of the proxy: one slice, and time for a busy machine.
const AFTER_THE_PROXY: Duration = Duration::from_secs(5);

fn cluster(down_after: u64) -> Cluster {
    Cluster::builder().down_after(Duration::from_secs(down_after)).start()
}

fn patient(client: Client) -> Client {
    client.set_timeout(PATIENCE).expect("a patient client");
    client
}

/// Writes once, and returns when the reply arrived.
fn write(client: Client, key: &'static str) -> JoinHandle<(Instant, bool)> {
    let mut client = patient(client);
    std::thread::spawn(move || {
        let done = client.cmd(&["SET", key, "1"]).is_ok_and(|it| it.is_ok());
        (Instant::now(), done)
    })
}

fn for_a_while(time: Duration) {
    let since = Instant::now();
    wait_until("time to pass", PATIENCE, || since.elapsed() > time);
}

fn is_paused(pointsman: &Pointsman) -> bool {
    metric(pointsman, "pointsman_fleet_pause{service=\"mymaster\"}") == Some(1.0)
}

/// Events of a failover, or of one that might begin.
fn failovers(events: &Events) -> Vec<String> {
    let is_bad = |channel: &str| ["+sdown", "+odown", "+try-failover"].contains(&channel);
    events.all().into_iter().map(|it| it.channel).filter(|it| is_bad(it)).collect()
}

#[test]
fn holds_writes_of_all_proxies_and_direct_clients() {
    let cluster = cluster(20);
    // Its clients wait for as long as the pause lasts.
    let one = controlled_by(&cluster, builder(&cluster).arg("--set=service.hold_timeout=60s"));
    let other = controlled(&cluster);
    let events = Events::of_all(cluster.sentinels());
    let direct = cluster.master().client();
    let done = order(&one, &["pause", "--fleet", "--for", "14s"], TOKEN);
    assert!(done.status.success(), "{}{}", stdout(&done), stderr(&done));
    let began = Instant::now();
    let writers =
        [write(one.client(), "one"), write(other.client(), "other"), write(direct, "direct")];
    // Longer than several slices, and than the sentinels' period of PING and hello.
    for_a_while(Duration::from_secs(8));
    assert!(writers.iter().all(|it| !it.is_finished()), "a write passed the pause");
    let (_, status) = one.get("/status").expect("status");
    assert!(is_paused(&one) && status.contains("\"fleet_pause\""), "{status}");
    // Reads through another proxy continue, and neither proxy suspects the master.
    assert!(!patient(other.client()).cmd(&["GET", "one"]).expect("a read").is_error());
    let state = |it: &Pointsman| {
        metric(it, "pointsman_target_current_outage_seconds{service=\"mymaster\"}")
    };
    assert_eq!(state(&other), Some(0.0));
    // A switchover would be held up by the pause.
    let refused = order(&one, &["switchover"], TOKEN);
    assert!(stderr(&refused).contains("resume first"), "{}", stderr(&refused));
    let again = order(&one, &["pause", "--fleet"], TOKEN);
    assert!(stderr(&again).contains("paused already"), "{}", stderr(&again));
    let resumed = Instant::now();
    assert!(order(&one, &["resume"], TOKEN).status.success());
    assert!(resumed - began < Duration::from_secs(14), "the pause would have ended by itself");
    for writer in writers {
        let (at, done) = writer.join().expect("a writer");
        assert!(done && at >= resumed);
        eprintln!("written {:?} after the order to resume", at - resumed);
    }
    assert!(!is_paused(&one));
    assert_eq!(failovers(&events), Vec::<String>::new());
}

#[test]
fn ends_fleet_pause_when_the_proxy_is_killed() {
    let cluster = cluster(20);
    let pointsman = controlled(&cluster);
    let writer = cluster.master().client();
    assert!(order(&pointsman, &["pause", "--fleet", "--for", "14s"], TOKEN).status.success());
    let writer = write(writer, "direct");
    for_a_while(Duration::from_secs(2));
    assert!(!writer.is_finished());
    pointsman.process().kill();
    let killed = Instant::now();
    let (at, done) = writer.join().expect("the writer");
    eprintln!("written {:?} after the end of the proxy", at.saturating_duration_since(killed));
    assert!(done && at - killed < AFTER_THE_PROXY, "{:?}", at - killed);
}

#[test]
fn ends_fleet_pause_at_its_deadline_and_at_sigterm() {
    let cluster = cluster(10);
    let pointsman = controlled(&cluster);
    let events = Events::of_all(cluster.sentinels());
    let asked = Instant::now();
    // As long as the sentinels allow: three quarters of the time after which one finds it down.
    assert!(order(&pointsman, &["pause", "--fleet"], TOKEN).status.success());
    let (at, done) = write(cluster.master().client(), "direct").join().expect("the writer");
    assert!(done && at - asked >= Duration::from_millis(7400), "{:?}", at - asked);
    let is_held = || metric(&pointsman, "pointsman_gate_closed{service=\"mymaster\"}") != Some(0.0);
    wait_until("the pause to end", PATIENCE, || !is_paused(&pointsman) && !is_held());
    assert_eq!(failovers(&events), Vec::<String>::new());
    assert!(order(&pointsman, &["pause", "--fleet", "--for", "7s"], TOKEN).status.success());
    let writer = write(cluster.master().client(), "later");
    pointsman.sigterm();
    pointsman.wait_exit(PATIENCE);
    let exited = Instant::now();
    let (at, done) = writer.join().expect("the writer");
    assert!(done && at.saturating_duration_since(exited) < Duration::from_secs(1), "{at:?}");
}

#[test]
fn moves_fleet_pause_to_the_new_master() {
    let cluster = cluster(20);
    let (one, other) = (controlled(&cluster), controlled(&cluster));
    let old = cluster.master();
    assert!(order(&one, &["pause", "--fleet", "--for", "15s"], TOKEN).status.success());
    // Ordered by somebody else: it is not prevented.
    cluster.sentinels()[0].ask(&["SENTINEL", "FAILOVER", cluster.name()]).expect("a reply");
    wait_until("the new master to be paused", PATIENCE, || {
        let (_, status) = one.get("/status").expect("status");
        let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
        let node = status["services"][0]["fleet_pause"]["node"].clone();
        let is_moved = node.as_str().is_some_and(|node| node != old.addr().to_string());
        if is_moved { Ok(()) } else { Err(status.to_string()) }
    });
    let new = cluster.master();
    assert_ne!(new.addr(), old.addr());
    let writers =
        [write(one.client(), "one"), write(other.client(), "other"), write(new.client(), "direct")];
    for_a_while(Duration::from_secs(2));
    let finished: Vec<bool> = writers.iter().map(JoinHandle::is_finished).collect();
    assert_eq!(finished, [false; 3], "a write passed the pause");
    let resumed = Instant::now();
    assert!(order(&one, &["resume"], TOKEN).status.success());
    for writer in writers {
        let (at, done) = writer.join().expect("a writer");
        assert!(done && at >= resumed);
    }
    assert!(one.process().log().contains("master changed while the fleet is paused"));
}

#[test]
fn refuses_fleet_pause_that_sentinels_would_notice() {
    let cluster = Cluster::builder().start();
    let pointsman = controlled(&cluster);
    let long = order(&pointsman, &["pause", "--fleet", "--for", "1m"], TOKEN);
    assert!(stderr(&long).contains("down-after-milliseconds is"), "{}", stderr(&long));
    cluster.master().ask(&["ACL", "SETUSER", "default", "-client|pause"]).expect("a rule");
    let denied = order(&pointsman, &["pause", "--fleet"], TOKEN);
    assert!(stderr(&denied).contains("+client|pause"), "{}", stderr(&denied));
    assert_eq!(metric(&pointsman, "pointsman_fleet_pause{service=\"mymaster\"}"), Some(0.0));
    let mut client = patient(pointsman.client());
    assert!(client.cmd(&["SET", "after", "1"]).expect("traffic flows").is_ok());
}
