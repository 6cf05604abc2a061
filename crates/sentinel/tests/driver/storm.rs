//! Ten failovers per second: row 18. The latest one wins, and no task and no descriptor is leaked.

use std::time::Instant;

use crate::cluster::{
    DEADLINE, Driver, FakeCluster, NAME, NEVER, TargetChange, ms, stays, until, watch,
};
use crate::fake::{Behavior, FakeServer};
use crate::refusals::Log;

/// Waits until this number of connections to the cluster is open.
async fn settles(cluster: &FakeCluster, wanted: usize) {
    let open = || -> (Vec<usize>, Vec<usize>) {
        (
            cluster.sentinels.iter().map(FakeServer::open).collect(),
            cluster.nodes.iter().map(FakeServer::open).collect(),
        )
    };
    let started = Instant::now();
    loop {
        let (sentinels, nodes) = open();
        if sentinels.iter().chain(&nodes).sum::<usize>() == wanted {
            return;
        }
        assert!(
            started.elapsed() < DEADLINE,
            "of sentinels {sentinels:?}, of nodes {nodes:?}, not {wanted}"
        );
        tokio::time::sleep(ms(2)).await;
    }
}

/// The roles of master and replicas after a failover.
fn fail_over(cluster: &FakeCluster, from: usize, to: usize) {
    cluster.promote(to);
    for other in (0..cluster.nodes.len()).filter(|it| *it != to) {
        cluster.follow(other, to);
    }
    let _ = from;
}

#[tokio::test]
async fn ten_failovers_per_second_end_at_latest_without_leaks() {
    let log = Log::default();
    let _guard = log.listen();
    let cluster = FakeCluster::new(3, 3).await;
    let driver = cluster.drive();
    driver.wait_for_target(cluster.addr(0)).await;
    let mut master = 0;
    driver
        .wait_for("all known", |seen| {
            seen.nodes.len() == 3
                && seen.nodes.iter().all(|it| it.probe.is_some())
                && seen.sentinels.iter().filter(|it| it.up && it.events).count() == 3
        })
        .await;
    settles(&cluster, 6).await;
    // Only once every connection is open: a later one would count as leaked.
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let (began, mut ticks) = (Instant::now(), tokio::time::interval(ms(100)));
    // Never more than ten per second, whatever was missed.
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for epoch in 2..=41 {
        ticks.tick().await;
        let next = (master + 1) % 3;
        cluster.announce(0, "+selected-slave", next, master);
        fail_over(&cluster, master, next);
        cluster.announce(0, "+promoted-slave", next, master);
        (0..3).for_each(|it| cluster.switch(it, master, next, epoch));
        master = next;
        // The number of failovers that can be followed depends on the machine. In between, every
        // eighth must be followed, however long that takes.
        if epoch % 8 == 0 {
            driver.wait_for_target(cluster.addr(master)).await;
        }
    }
    driver.wait_for_target(cluster.addr(master)).await;
    driver
        .wait_for("the last epoch", |seen| seen.master.as_ref().is_some_and(|it| it.epoch == 41))
        .await;
    assert!(driver.seen().failovers.len() <= 16, "what is remembered is bounded");
    // The log is bounded, too, and contains the end nevertheless.
    let changes = |log: &Log| {
        log.text().lines().filter(|line| line.contains("switched to new master")).count()
    };
    until("the last log line", || {
        let last = format!("generation={} ", driver.generation());
        log.text()
            .lines()
            .any(|line| line.contains("switched to new master") && line.contains(&last))
    })
    .await;
    let (told, seconds) =
        (changes(&log), usize::try_from(began.elapsed().as_secs()).expect("small"));
    assert!(told <= 20 + seconds + 1, "{told} lines in {seconds} s");
    driver.wait_for("calm", |seen| seen.state == "stable").await;
    settles(&cluster, 6).await;
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    until(&format!("{tasks} tasks again, not {}", alive()), || alive() <= tasks).await;
    stays(ms(300), "no after-shock", || driver.target() == Some(cluster.addr(master))).await;
    drop(driver);
    settles(&cluster, 0).await;
}

#[tokio::test]
async fn ends_all_tasks_when_driver_is_dropped() {
    let cluster = FakeCluster::new(3, 3).await;
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    for _ in 0..5 {
        let driver = Driver::one(watch(NAME, vec![cluster.sentinels[0].addr.into()]));
        driver.wait_for_target(cluster.addr(0)).await;
        driver
            .wait_for("all", |seen| {
                seen.sentinels.iter().filter(|it| it.up).count() == 3 && seen.nodes.len() == 3
            })
            .await;
    }
    settles(&cluster, 0).await;
    until("no task", || tokio::runtime::Handle::current().metrics().num_alive_tasks() <= tasks)
        .await;
}

#[tokio::test]
async fn opens_gate_to_same_master_after_failover_abort() {
    let cluster = FakeCluster::new(3, 3).await;
    let (mut watched, route) = cluster.watch();
    // The hold lasts longer than any deadline: only the abort can open the gate.
    watched.settings.rules.hold_max = NEVER;
    let driver = Driver::one((watched, route));
    driver.wait_for_target(cluster.addr(0)).await;
    driver.wait_for("all known", |seen| seen.nodes.len() == 3 && seen.quorum.0 == 3).await;
    let began = Instant::now();
    cluster.announce(0, "+selected-slave", 1, 0);
    driver.wait_for_change(TargetChange::GateClosed, began).await;
    cluster.about_master(0, "-failover-abort-slave-timeout", 0);
    driver.wait_for_change(TargetChange::GateOpened, began).await;
    assert_eq!(driver.generation(), 1);
    // An event about another master of these sentinels has no effect.
    let changes = driver.changes().len();
    let node = cluster.addr(1);
    cluster.sentinels[0].publish(
        "+selected-slave",
        &format!("slave x {} {} @ another 10.0.0.1 1", node.ip(), node.port()),
    );
    cluster.sentinels[0]
        .publish("+switch-master", &format!("another 10.0.0.1 1 {} {}", node.ip(), node.port()));
    stays(ms(200), "nothing changes", || driver.changes().len() == changes).await;
}

/// Unexpected addresses: each leads to this one listener, which counts connections and never sends
/// a byte.
async fn decoys()
-> (u16, std::sync::Arc<std::sync::atomic::AtomicUsize>, tokio_util::task::AbortOnDropHandle<()>) {
    let listener = tokio::net::TcpListener::bind("0.0.0.0:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let dials = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = std::sync::Arc::clone(&dials);
    let task = tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            kept.push(stream);
        }
    });
    (port, dials, tokio_util::task::AbortOnDropHandle::new(task))
}

#[tokio::test]
async fn limits_dials_to_replicas_listed_by_liars() {
    let cluster = FakeCluster::new(3, 3).await;
    let driver = cluster.drive();
    driver.wait_for_target(cluster.addr(0)).await;
    driver
        .wait_for("all known", |seen| {
            seen.nodes.len() == 3 && seen.nodes.iter().all(|it| it.probe.is_some())
        })
        .await;
    let (port, dials, _decoys) = decoys().await;
    let began = Instant::now();
    let mut lie = 0_u32;
    while began.elapsed() < ms(3000) {
        lie += 1;
        let fresh =
            |number: u32| (format!("127.{}.{}.{number}", 1 + lie % 250, 1 + lie / 250), port);
        // A replica counts once most of the configured sentinels list it.
        for liar in &cluster.sentinels[1..] {
            liar.script().record().replicas = (1..=64).map(fresh).collect();
        }
        // Any notice causes a poll of all sentinels at once.
        cluster.announce(2, "+slave", 1, 0);
        tokio::time::sleep(ms(10)).await;
    }
    let (dials, took) = (dials.load(std::sync::atomic::Ordering::SeqCst), began.elapsed());
    assert!(dials > 0, "the faulty list was not read");
    // Sixteen at once, then eight per second; without a limit it was thousands.
    let most = 16 + 8 * took.as_millis() / 1000 + 10;
    assert!(dials as u128 <= most, "{dials} dials to wherever it liked in {took:?}, {lie} lists");
    assert!(driver.route.usable_target().is_some() && driver.generation() == 1);
    // One keeps lying, and the other sentinels fail over.
    let truth = cluster.sentinels[0].script().record().replicas.clone();
    cluster.sentinels[1].script().record().replicas = truth;
    cluster.promote(1);
    [0, 1].into_iter().for_each(|it| cluster.switch(it, 0, 1, 2));
    driver.wait_for_target(cluster.addr(1)).await;
}

#[tokio::test]
async fn backs_off_from_unreachable_replica_but_not_from_master() {
    let cluster = FakeCluster::new(3, 3).await;
    let driver = cluster.drive();
    driver.wait_for_target(cluster.addr(0)).await;
    driver
        .wait_for("all known", |seen| {
            seen.nodes.len() == 3 && seen.nodes.iter().all(|it| it.probe.is_some())
        })
        .await;
    for node in [0, 2] {
        cluster.nodes[node].behave(Behavior::CloseAtOnce);
        cluster.nodes[node].cut();
    }
    driver.wait_for("no master", |seen| seen.state == "no_master").await;
    let before = [0, 2].map(|node| cluster.nodes[node].accepted());
    let dials = || {
        [(0, before[0]), (2, before[1])]
            .map(|(node, before)| cluster.nodes[node].accepted() - before)
    };
    // The rate depends on the machine, the ratio to the replica's does not.
    until("the master's return would be seen soon", || dials()[0] > 100).await;
    let [master, replica] = dials();
    assert!(
        replica * 2 < master,
        "a replica was dialled {replica} times, the master {master} times"
    );
    cluster.nodes[0].behave(Behavior::Normal);
    driver.wait_for_target(cluster.addr(0)).await;
    cluster.nodes[2].behave(Behavior::Normal);
    driver
        .wait_for("its return", |seen| {
            seen.nodes.iter().all(|it| it.probe.as_ref().is_some_and(|it| it.outcome.is_ok()))
        })
        .await;
}
