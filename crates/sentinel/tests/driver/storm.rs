//! Ten failovers a second: row 18. The latest wins, and nothing is left over, neither a task nor a
//! descriptor.

use std::time::Instant;

use crate::fake::{Fake, Manner};
use crate::refusals::Log;
use crate::stage::{Driver, Move, NAME, NEVER, PATIENCE, Stage, ms, stays, until, watch};

/// Waits until so many connections to this stage are open.
async fn settles(stage: &Stage, wanted: usize) {
    let open = || -> (Vec<usize>, Vec<usize>) {
        (
            stage.sentinels.iter().map(Fake::open).collect(),
            stage.nodes.iter().map(Fake::open).collect(),
        )
    };
    let started = Instant::now();
    loop {
        let (sentinels, nodes) = open();
        if sentinels.iter().chain(&nodes).sum::<usize>() == wanted {
            return;
        }
        assert!(
            started.elapsed() < PATIENCE,
            "of sentinels {sentinels:?}, of nodes {nodes:?}, not {wanted}"
        );
        tokio::time::sleep(ms(2)).await;
    }
}

/// Master and replicas as they are after a failover.
fn fail_over(stage: &Stage, from: usize, to: usize) {
    stage.promote(to);
    for other in (0..stage.nodes.len()).filter(|it| *it != to) {
        stage.follow(other, to);
    }
    let _ = from;
}

#[tokio::test]
async fn ten_failovers_a_second_end_at_the_latest_and_leave_nothing_behind() {
    let log = Log::default();
    let _guard = log.listen();
    let stage = Stage::new(3, 3).await;
    let driver = stage.drive();
    driver.leads_to(stage.addr(0)).await;
    let mut master = 0;
    driver
        .sees("all known", |seen| {
            seen.nodes.len() == 3
                && seen.nodes.iter().all(|it| it.probe.is_some())
                && seen.sentinels.iter().filter(|it| it.up && it.events).count() == 3
        })
        .await;
    settles(&stage, 6).await;
    // Not before everybody is there: who came later would be counted as left behind.
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let (began, mut ticks) = (Instant::now(), tokio::time::interval(ms(100)));
    // Never more than ten a second, whatever was missed.
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for epoch in 2..=41 {
        ticks.tick().await;
        let next = (master + 1) % 3;
        stage.announce(0, "+selected-slave", next, master);
        fail_over(&stage, master, next);
        stage.announce(0, "+promoted-slave", next, master);
        (0..3).for_each(|it| stage.switch(it, master, next, epoch));
        master = next;
        // How many can be followed depends on the machine. In the middle of it every eighth has to
        // be, however long that takes.
        if epoch % 8 == 0 {
            driver.leads_to(stage.addr(master)).await;
        }
    }
    driver.leads_to(stage.addr(master)).await;
    driver
        .sees("the last epoch", |seen| seen.master.as_ref().is_some_and(|it| it.epoch == 41))
        .await;
    assert!(driver.seen().failovers.len() <= 16, "what is remembered is bounded");
    // The log is bounded too, and tells the end of it all the same.
    let moves =
        |log: &Log| log.text().lines().filter(|line| line.contains("the points lead to")).count();
    until("the last word", || {
        let last = format!("generation={} ", driver.generation());
        log.text().lines().any(|line| line.contains("the points lead to") && line.contains(&last))
    })
    .await;
    let (told, seconds) = (moves(&log), usize::try_from(began.elapsed().as_secs()).expect("small"));
    assert!(told <= 20 + seconds + 1, "{told} lines in {seconds} s");
    driver.sees("calm", |seen| seen.state == "stable").await;
    settles(&stage, 6).await;
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    until(&format!("{tasks} tasks again, not {}", alive()), || alive() <= tasks).await;
    stays(ms(300), "no after-shock", || driver.target() == Some(stage.addr(master))).await;
    drop(driver);
    settles(&stage, 0).await;
}

#[tokio::test]
async fn dropping_the_driver_ends_everything_it_started() {
    let stage = Stage::new(3, 3).await;
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    for _ in 0..5 {
        let driver = Driver::one(watch(NAME, vec![stage.sentinels[0].addr.into()]));
        driver.leads_to(stage.addr(0)).await;
        driver
            .sees("all", |seen| {
                seen.sentinels.iter().filter(|it| it.up).count() == 3 && seen.nodes.len() == 3
            })
            .await;
    }
    settles(&stage, 0).await;
    until("no task", || tokio::runtime::Handle::current().metrics().num_alive_tasks() <= tasks)
        .await;
}

#[tokio::test]
async fn a_failed_failover_opens_the_gate_to_the_same_master() {
    let stage = Stage::new(3, 3).await;
    let (mut watched, route) = stage.watch();
    // The hold itself ends after everybody's patience has: only the abort can open the gate.
    watched.rules.hold_max = NEVER;
    let driver = Driver::one((watched, route));
    driver.leads_to(stage.addr(0)).await;
    driver.sees("all known", |seen| seen.nodes.len() == 3 && seen.quorum.0 == 3).await;
    let began = Instant::now();
    stage.announce(0, "+selected-slave", 1, 0);
    driver.moved(Move::Shut, began).await;
    stage.about_master(0, "-failover-abort-slave-timeout", 0);
    driver.moved(Move::Open, began).await;
    assert_eq!(driver.generation(), 1);
    // An event about another master of these sentinels is none of ours.
    let moves = driver.moves().len();
    let node = stage.addr(1);
    stage.sentinels[0].publish(
        "+selected-slave",
        &format!("slave x {} {} @ another 10.0.0.1 1", node.ip(), node.port()),
    );
    stage.sentinels[0]
        .publish("+switch-master", &format!("another 10.0.0.1 1 {} {}", node.ip(), node.port()));
    stays(ms(200), "nothing moves", || driver.moves().len() == moves).await;
}

/// Addresses that nobody gave us leave to dial: each leads to this one listener, which counts and
/// never says a word.
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
async fn a_member_that_lists_other_replicas_each_time_makes_few_dials_and_stops_nothing() {
    let stage = Stage::new(3, 3).await;
    let driver = stage.drive();
    driver.leads_to(stage.addr(0)).await;
    driver
        .sees("all known", |seen| {
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
        stage.sentinels[2].mind().word().replicas = (1..=64).map(fresh).collect();
        // Any notice has everybody asked again at once.
        stage.announce(2, "+slave", 1, 0);
        tokio::time::sleep(ms(10)).await;
    }
    let (dials, took) = (dials.load(std::sync::atomic::Ordering::SeqCst), began.elapsed());
    assert!(dials > 0, "the lie was not heard");
    // Sixteen at once, then eight a second; without a bound it was thousands.
    let most = 16 + 8 * took.as_millis() / 1000 + 10;
    assert!(dials as u128 <= most, "{dials} dials to wherever it liked in {took:?}, {lie} lists");
    assert!(driver.route.usable_target().is_some() && driver.generation() == 1);
    // It goes on lying, and the others fail over.
    stage.promote(1);
    [0, 1].into_iter().for_each(|it| stage.switch(it, 0, 1, 2));
    driver.leads_to(stage.addr(1)).await;
}

#[tokio::test]
async fn a_replica_that_cannot_be_reached_is_dialled_ever_more_seldom_and_the_master_is_not() {
    let stage = Stage::new(3, 3).await;
    let driver = stage.drive();
    driver.leads_to(stage.addr(0)).await;
    driver
        .sees("all known", |seen| {
            seen.nodes.len() == 3 && seen.nodes.iter().all(|it| it.probe.is_some())
        })
        .await;
    for node in [0, 2] {
        stage.nodes[node].behave(Manner::Hangup);
        stage.nodes[node].cut();
    }
    driver.sees("no master", |seen| seen.state == "no_master").await;
    let before = [0, 2].map(|node| stage.nodes[node].accepted());
    let dials = || {
        [(0, before[0]), (2, before[1])].map(|(node, before)| stage.nodes[node].accepted() - before)
    };
    // How fast depends on the machine, by how much faster than the replica does not.
    until("the master's return would be seen soon", || dials()[0] > 100).await;
    let [master, replica] = dials();
    assert!(
        replica * 2 < master,
        "a replica was dialled {replica} times, the master {master} times"
    );
    stage.nodes[0].behave(Manner::Proper);
    driver.leads_to(stage.addr(0)).await;
    stage.nodes[2].behave(Manner::Proper);
    driver
        .sees("its return", |seen| {
            seen.nodes.iter().all(|it| it.probe.as_ref().is_some_and(|it| it.outcome.is_ok()))
        })
        .await;
}
