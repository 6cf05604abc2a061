//! Switchovers with faults: an abort by Sentinel, the end of the proxy, a second proxy, TILT.

mod coordinated;
mod rounds;

use std::net::{Shutdown, SocketAddr};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use harness::{Absences, Client, Cluster, Events, Load, Node, Pointsman, wait_until};

use crate::faults_process::{SHUTDOWN, run};
use crate::restart::wait_for_place;
use crate::switchover::{TOKEN, controlled, controlled_by, generation, order, stderr, stdout};
use crate::{PROGRAM, builder, metric};
use rounds::Round;

const PATIENCE: Duration = Duration::from_secs(60);
/// From the abort event to the first write that passes. Otherwise the hold would end seconds later.
const AFTER_THE_ABORT: Duration = Duration::from_secs(1);
/// After the end of the proxy nothing is paused for longer: one short pause, and time for a busy
/// machine.
const AFTER_THE_PROXY: Duration = Duration::from_millis(2500);

/// Writers and writes per second of one load.
const WRITERS: usize = 18;
const RATE: u32 = 1000;
/// Whether these servers have coordinated failovers: since Valkey 9. No Redis has this number.
fn coordinates() -> bool {
    harness::server_version() >= (9, 0)
}

/// Sets whether replicas may be promoted. Sentinel notices a refusal only by its timeout. Which
/// command it sends depends on its version, and on the kind of the failover.
pub(crate) fn allow_promotion(cluster: &Cluster, allowed: bool) {
    let rules = ["slaveof", "replicaof", "failover"];
    let rules = rules.map(|it| if allowed { format!("+{it}") } else { format!("-{it}") });
    let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
    for node in cluster.nodes() {
        node.ask(&[&["ACL", "SETUSER", "default"][..], &rules].concat()).expect("a rule");
    }
}

/// The error of a switchover that fails since promotions are forbidden. A master that carries out
/// no failover is noticed before the sentinel aborts.
pub(crate) fn reason_when_forbidden() -> &'static str {
    if coordinates() { "does not carry out the FAILOVER" } else { "aborted the failover" }
}

/// Runs a command in the background.
fn ordered(pointsman: &Pointsman, words: &[&str]) -> std::process::Child {
    let admin = pointsman.admin().to_string();
    let mut command = Command::new(PROGRAM);
    command.args(words).args(["--admin", &admin]).env_clear().env("POINTSMAN_CONTROL_TOKEN", TOKEN);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the order runs")
}

/// Waits for a time in which something must not happen.
fn for_a_while(time: Duration) {
    let since = Instant::now();
    wait_until("time to pass", PATIENCE, || since.elapsed() > time);
}

/// Waits until every node follows one master and every sentinel knows it, so that the next
/// switchover is possible.
pub(crate) fn wait_settled(cluster: &Cluster) {
    let replicas = cluster.nodes().len() - 1;
    wait_until("all replicas of the master", PATIENCE, || {
        let master = cluster.master();
        let online = |index| master.info("replication", &format!("slave{index}"));
        (0..replicas).all(|index| online(index).is_ok_and(|text| text.contains("state=online")))
    });
    let knows = |sentinel: &Node| {
        let list = sentinel.ask(&["SENTINEL", "REPLICAS", cluster.name()]).ok();
        list.is_some_and(|list| {
            list.items().len() == replicas
                && list.items().iter().all(|it| {
                    it.field("master-link-status").and_then(harness::Value::text) == Some("ok")
                        && it.field("flags").and_then(harness::Value::text) == Some("slave")
                })
        })
    };
    wait_until("the sentinels to know them", PATIENCE, || cluster.sentinels().iter().all(knows));
}

fn loads(pointsmen: &[&Pointsman], writers: usize) -> Vec<Load> {
    let start = |(index, it): (usize, &&Pointsman)| {
        Load::to(it.addr()).writers(writers).rate(RATE).prefix(&format!("load{index}")).start()
    };
    let loads: Vec<Load> = pointsmen.iter().enumerate().map(start).collect();
    wait_until("some writes", PATIENCE, || {
        loads.iter().all(|load| load.counts().acknowledged > 200)
    });
    loads
}

/// Stops the writers and checks that nothing is lost on the current master.
fn nothing_is_lost(loads: &mut [Load], master: SocketAddr) {
    for load in loads {
        load.stop();
        let verdict = load.verify(master).expect("a look at the master");
        assert_eq!(verdict.missing, 0, "{verdict:?}; {:?}", load.counts());
    }
}

#[test]
fn resumes_writes_when_sentinel_aborts() {
    let cluster = Cluster::builder().failover_timeout(Duration::from_secs(3)).start();
    let pointsman = controlled(&cluster);
    let old = cluster.master().addr();
    let events = Events::of_all(cluster.sentinels());
    let mut loads = loads(&[&pointsman], 8);
    allow_promotion(&cluster, false);
    let order = ordered(&pointsman, &["switchover"]);
    let abort = events.wait_for("-failover-abort-slave-timeout", PATIENCE);
    // A second failover would succeed from here on, and must not be taken for the first.
    allow_promotion(&cluster, true);
    let acknowledged = loads[0].counts().acknowledged;
    wait_until("writes to resume", PATIENCE, || {
        loads[0].counts().acknowledged > acknowledged + 100
    });
    let resumed =
        loads[0].gaps().into_iter().filter(|gap| gap.to > abort.at).map(|gap| gap.to).next();
    let late = resumed.unwrap_or(abort.at).saturating_duration_since(abort.at);
    let done = order.wait_with_output().expect("the order ends");
    eprintln!("writes resumed {late:?} after the abort; {}{}", stdout(&done), stderr(&done));
    for_a_while(Duration::from_secs(4));
    let said = events.all();
    let of = |channel: &str| said.iter().filter(|event| event.channel == channel).count();
    assert!(!done.status.success(), "{}", stdout(&done));
    assert!(stderr(&done).contains(reason_when_forbidden()), "{}", stderr(&done));
    assert!(late < AFTER_THE_ABORT, "{late:?}");
    assert_eq!((of("+odown"), of("+sdown"), of("+try-failover")), (0, 0, 1), "{said:?}");
    assert_eq!(cluster.master().addr(), old);
    assert_eq!(loads[0].counts().errors, 0, "{:?}", loads[0].errors());
    nothing_is_lost(&mut loads, old);
}

#[test]
fn ends_pause_soon_after_the_proxy_is_killed() {
    let cluster = Cluster::builder().down_after(Duration::from_secs(10)).start();
    let pointsman = controlled(&cluster);
    let events = Events::of_all(cluster.sentinels());
    let master = cluster.master();
    allow_promotion(&cluster, false);
    let mut order = ordered(&pointsman, &["switchover", "--pause-clients"]);
    events.wait_for("+failover-state-wait-promotion", PATIENCE);
    let mut writer = master.client();
    writer.set_timeout(PATIENCE).expect("a patient writer");
    pointsman.process().kill();
    let killed = Instant::now();
    assert!(writer.cmd(&["SET", "aside", "1"]).expect("a reply").is_ok());
    let took = killed.elapsed();
    eprintln!("the master took a write {took:?} after the end of the proxy");
    assert!(took < AFTER_THE_PROXY, "{took:?}");
    order.wait().expect("the order ends");
}

#[test]
fn reports_its_result_through_a_takeover() {
    let cluster = Cluster::builder().start();
    let lines = format!("{SHUTDOWN}[process]\nstate_dir = {:?}\nworkers = 2", cluster.folder());
    let pointsman = controlled_by(&cluster, builder(&cluster).lines(&lines));
    let file = pointsman.process().log_path().with_file_name("pointsman.toml");
    wait_for_place(&cluster.folder().join("takeover.sock"));
    let events = Events::of_all(cluster.sentinels());
    let before = cluster.master().addr();
    let order = ordered(&pointsman, &["switchover"]);
    events.wait_for("+try-failover", PATIENCE);
    let successor = run("successor", cluster.folder(), &file, &["--takeover"]);
    let done = order.wait_with_output().expect("the order ends");
    let told = stdout(&done) + &stderr(&done);
    assert!(done.status.success(), "{told}\n{}", successor.tail());
    assert_ne!(cluster.master().addr(), before, "{told}");
    assert_eq!(pointsman.process().wait_exit(PATIENCE).code(), Some(0));
}

#[test]
fn loses_no_request_through_two_proxies() {
    let cluster = Cluster::builder().start();
    cluster.look_often();
    let (one, other) = (controlled(&cluster), controlled(&cluster));
    let absences = Absences::watch();
    let mut loads = loads(&[&one, &other], WRITERS);
    for number in 1..=10 {
        wait_settled(&cluster);
        let round = Round::of(&cluster, &one, &loads, &absences);
        eprintln!("{number}: {round:?}; {:?}", loads.iter().map(Load::errors).collect::<Vec<_>>());
        round.check();
    }
    wait_settled(&cluster);
    nothing_is_lost(&mut loads, cluster.master().addr());
}

/// The sentinels that get orders first: by address, and by identity.
fn first_sentinels(cluster: &Cluster) -> Vec<&Node> {
    let id = |node: &&Node| node.ask(&["SENTINEL", "MYID"]).expect("an identity").to_string();
    let by_id = cluster.sentinels().iter().min_by_key(id);
    let by_addr = cluster.sentinels().iter().min_by_key(|node| node.addr());
    let mut first: Vec<&Node> = by_id.into_iter().chain(by_addr).collect();
    first.dedup_by_key(|node| node.addr());
    first
}

#[test]
fn skips_sentinels_in_tilt() {
    let cluster = Cluster::builder().start();
    let pointsman = controlled(&cluster);
    let events = Events::of_all(cluster.sentinels());
    let tilted = first_sentinels(&cluster);
    for sentinel in &tilted {
        // A sentinel whose timer did not run for two seconds does nothing for half a minute.
        sentinel.stop();
        for_a_while(Duration::from_millis(2600));
        sentinel.cont();
        let addr = sentinel.addr();
        wait_until("TILT", PATIENCE, || {
            events.all().iter().any(|event| event.from == addr && event.channel == "+tilt")
        });
    }
    wait_until("all sentinels to agree", PATIENCE, || {
        let (_, status) = pointsman.get("/status").expect("status");
        let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
        let sentinels = status["services"][0]["sentinels"].as_array().expect("sentinels").clone();
        sentinels
            .iter()
            .all(|it| it["up"] == true && it["votes"] == true && it["master"].is_string())
    });
    let done = order(&pointsman, &["switchover"], TOKEN);
    assert!(done.status.success(), "{}{}", stdout(&done), stderr(&done));
    for sentinel in &tilted {
        assert!(!stdout(&done).contains(&sentinel.addr().to_string()), "{}", stdout(&done));
    }
    assert!((generation(&pointsman) - 2.0).abs() < 0.1);
    assert_eq!(metric(&pointsman, "pointsman_gate_closed{service=\"mymaster\"}"), Some(0.0));
}

#[test]
fn protects_direct_writers_by_pausing_clients() {
    let cluster = Cluster::builder().down_after(Duration::from_secs(10)).start();
    let pointsman = controlled(&cluster);
    let events = Events::of_all(cluster.sentinels());
    // It disconnects at `+switch-master`, like a client library that follows Sentinel.
    let mut client = cluster.master().client();
    let socket = client.stream().try_clone().expect("a second handle");
    let writer = std::thread::spawn(move || {
        let written = |client: &mut Client| {
            client.cmd(&["RPUSH", "aside", "1"]).is_ok_and(|it| !it.is_error())
        };
        (0_i64..).take_while(|_| written(&mut client)).count()
    });
    let order = ordered(&pointsman, &["switchover", "--pause-clients"]);
    events.wait_for("+switch-master", PATIENCE);
    socket.shutdown(Shutdown::Both).expect("it leaves");
    let acknowledged = i64::try_from(writer.join().expect("the writer")).expect("not that many");
    let done = order.wait_with_output().expect("the order ends");
    assert!(done.status.success(), "{}{}", stdout(&done), stderr(&done));
    assert!(stdout(&done).lines().any(|line| line.contains("s  pause ")), "{}", stdout(&done));
    let has =
        cluster.master().client().cmd(&["LLEN", "aside"]).expect("a look at the new master").int();
    eprintln!("{acknowledged} acknowledged aside, {has:?} of them there");
    assert!(
        acknowledged > 0 && has >= Some(acknowledged),
        "{acknowledged} acknowledged, {has:?} there"
    );
    let down = |event: &harness::Event| event.channel == "+sdown" || event.channel == "+odown";
    assert!(!events.all().iter().any(down), "{:?}", events.all());
}

#[test]
fn orders_nothing_when_clients_cannot_be_paused() {
    let cluster = Cluster::builder().start();
    let pointsman = controlled(&cluster);
    // Redis 6 takes away whole commands only.
    let rule = if harness::server_version() >= (7, 0) { "-client|pause" } else { "-client" };
    cluster.master().ask(&["ACL", "SETUSER", "default", rule]).expect("a rule");
    let done = order(&pointsman, &["switchover", "--pause-clients"], TOKEN);
    assert!(!done.status.success(), "{}", stdout(&done));
    assert!(stderr(&done).contains("+client|pause"), "{}", stderr(&done));
    let mut client = pointsman.client();
    assert!(client.cmd(&["SET", "after", "1"]).expect("traffic flows").is_ok());
    // It is not needed otherwise. The sentinels use the same user, and need it if they coordinate.
    if coordinates() {
        let rule = rule.replace('-', "+");
        cluster.master().ask(&["ACL", "SETUSER", "default", &rule]).expect("a rule");
    }
    let done = order(&pointsman, &["switchover"], TOKEN);
    assert!(done.status.success(), "{}{}", stdout(&done), stderr(&done));
}

#[test]
fn resumes_writes_when_the_ordered_sentinel_dies() {
    let cluster = Cluster::builder().start();
    let pointsman = controlled(&cluster);
    let old = cluster.master().addr();
    let events = Events::of_all(cluster.sentinels());
    let mut loads = loads(&[&pointsman], 8);
    allow_promotion(&cluster, false);
    let order = ordered(&pointsman, &["switchover"]);
    let waits = events.wait_for("+failover-state-wait-promotion", PATIENCE);
    let leader =
        cluster.sentinels().iter().find(|node| node.addr() == waits.from).expect("the leader");
    leader.kill();
    let (killed, acknowledged) = (Instant::now(), loads[0].counts().acknowledged);
    wait_until("writes to resume", PATIENCE, || {
        loads[0].counts().acknowledged > acknowledged + 100
    });
    let took = killed.elapsed();
    let done = order.wait_with_output().expect("the order ends");
    eprintln!("writes resumed {took:?} after the leader's end; {}{}", stdout(&done), stderr(&done));
    assert!(
        !done.status.success() && stderr(&done).contains("was lost"),
        "{}{}",
        stdout(&done),
        stderr(&done)
    );
    // The discovery machine holds for three seconds after a selection.
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert_eq!(loads[0].counts().errors, 0, "{:?}", loads[0].errors());
    allow_promotion(&cluster, true);
    nothing_is_lost(&mut loads, old);
}

/// As if the selected replica were gone: Sentinel waits for it until its timeout.
#[test]
fn resumes_writes_when_the_promotion_takes_long() {
    let cluster = Cluster::builder().failover_timeout(PATIENCE).start();
    let pointsman = controlled(&cluster);
    let old = cluster.master().addr();
    let events = Events::of_all(cluster.sentinels());
    let mut loads = loads(&[&pointsman], 8);
    allow_promotion(&cluster, false);
    let order = ordered(&pointsman, &["switchover"]);
    let selected = events.wait_for("+selected-slave", PATIENCE).at;
    let done = order.wait_with_output().expect("the order ends");
    assert!(!done.status.success(), "{}", stdout(&done));
    let reason = if coordinates() { reason_when_forbidden() } else { "no new master was verified" };
    assert!(stderr(&done).contains(reason), "{}", stderr(&done));
    let gap = loads[0].gaps().into_iter().max_by_key(harness::Gap::length).expect("the hold");
    let took = gap.to.saturating_duration_since(selected);
    assert!(took < Duration::from_secs(5), "{took:?} from the selection: {}", stdout(&done));
    assert_eq!(loads[0].counts().errors, 0, "{:?}", loads[0].errors());
    nothing_is_lost(&mut loads, old);
}

#[test]
fn makes_one_failover_of_two_orders() {
    let cluster = Cluster::builder().start();
    let (one, other) = (controlled(&cluster), controlled(&cluster));
    let events = Events::of_all(cluster.sentinels());
    let mut loads = loads(&[&one, &other], 8);
    let orders = [ordered(&one, &["switchover"]), ordered(&other, &["switchover"])];
    let done = orders.map(|order| order.wait_with_output().expect("the order ends"));
    let succeeded = done.iter().filter(|done| done.status.success()).count();
    let told: Vec<String> = done.iter().map(|done| stdout(done) + &stderr(done)).collect();
    assert_eq!(succeeded, 1, "{}", told.join("\n"));
    wait_settled(&cluster);
    let begun = events.all().iter().filter(|event| event.channel == "+try-failover").count();
    assert_eq!(begun, 1, "{:?}", events.all());
    let master = cluster.master().addr();
    for load in &loads {
        assert_eq!(load.counts().errors, 0, "{:?}", load.errors());
    }
    nothing_is_lost(&mut loads, master);
}

#[test]
fn orders_nothing_during_another_failover() {
    let cluster = Cluster::builder().failover_timeout(Duration::from_secs(120)).start();
    let pointsman = controlled(&cluster);
    let events = Events::of_all(cluster.sentinels());
    let first: Vec<SocketAddr> = first_sentinels(&cluster).iter().map(|node| node.addr()).collect();
    let busy = cluster
        .sentinels()
        .iter()
        .find(|node| !first.contains(&node.addr()))
        .expect("another sentinel");
    allow_promotion(&cluster, false);
    busy.ask(&["SENTINEL", "FAILOVER", cluster.name()]).expect("it begins");
    events.wait_for("+failover-state-wait-promotion", PATIENCE);
    // The hold of the discovery machine ends, and the failover does not.
    let mut client = pointsman.client();
    client.set_timeout(PATIENCE).expect("a patient client");
    assert!(client.cmd(&["SET", "during", "1"]).expect("traffic flows").is_ok());
    let done = order(&pointsman, &["switchover"], TOKEN);
    assert!(!done.status.success(), "{}", stdout(&done));
    assert!(stderr(&done).contains(&busy.addr().to_string()), "{}{}", stdout(&done), stderr(&done));
    let begun = events.all().iter().filter(|event| event.channel == "+try-failover").count();
    assert_eq!(begun, 1, "{:?}", events.all());
    assert!(client.cmd(&["SET", "after", "1"]).expect("traffic flows").is_ok());
}
