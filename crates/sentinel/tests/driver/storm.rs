//! Ten failovers a second: row 18. The latest wins, and nothing is left over, neither a task nor a descriptor.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::stage::{Driver, Move, NAME, Stage, ms, stays, until, watch};

/// Sockets of this process to or from one of these ports, as the kernel lists them. Other tests run at the same time: only what
/// belongs to this stage is counted.
fn sockets(ports: &BTreeSet<u16>) -> usize {
    let table = std::fs::read_to_string("/proc/self/net/tcp").expect("procfs");
    let port = |field: &str| field.rsplit(':').next().and_then(|it| u16::from_str_radix(it, 16).ok());
    let open = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // 01: established. The side that dialled is ours.
        fields.get(3) == Some(&"01") && fields.get(2).and_then(|it| port(it)).is_some_and(|it| ports.contains(&it))
    };
    table.lines().skip(1).filter(open).count()
}

fn ports(stage: &Stage) -> BTreeSet<u16> {
    stage.nodes.iter().map(|it| it.addr.port()).chain(stage.sentinels.iter().map(|it| it.addr.port())).collect()
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
    let stage = Stage::new(3, 3).await;
    let driver = stage.drive();
    driver.leads_to(stage.addr(0)).await;
    driver.sees("all known", |seen| seen.nodes.len() == 3 && seen.nodes.iter().all(|it| it.probe.is_some())).await;
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let (ports, mut master) = (ports(&stage), 0);
    until("six idle connections", || sockets(&ports) == 6).await;
    let mut ticks = tokio::time::interval(ms(100));
    for epoch in 2..=41 {
        ticks.tick().await;
        let next = (master + 1) % 3;
        stage.announce(0, "+selected-slave", next, master);
        fail_over(&stage, master, next);
        stage.announce(0, "+promoted-slave", next, master);
        (0..3).for_each(|it| stage.switch(it, master, next, epoch));
        master = next;
    }
    driver.leads_to(stage.addr(master)).await;
    driver.sees("the last epoch", |seen| seen.master.as_ref().is_some_and(|it| it.epoch == 41)).await;
    let fences: Vec<Move> =
        driver.moves().into_iter().map(|(_, it)| it).filter(|it| matches!(it, Move::To(_))).collect();
    assert!(fences.len() > 5, "most of them were followed: {}", fences.len());
    assert!(driver.seen().failovers.len() <= 16, "what is remembered is bounded");
    driver.sees("calm", |seen| seen.state == "stable").await;
    until("six connections again", || sockets(&ports) == 6).await;
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    until(&format!("{tasks} tasks again, not {}", alive()), || alive() <= tasks).await;
    stays(ms(300), "no after-shock", || driver.target() == Some(stage.addr(master))).await;
    drop(driver);
    until("no connection", || sockets(&ports) == 0).await;
}

#[tokio::test]
async fn dropping_the_driver_ends_everything_it_started() {
    let stage = Stage::new(3, 3).await;
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    for _ in 0..5 {
        let driver = Driver::one(watch(NAME, vec![stage.sentinels[0].addr.into()]));
        driver.leads_to(stage.addr(0)).await;
        driver.sees("all", |seen| seen.sentinels.iter().filter(|it| it.up).count() == 3 && seen.nodes.len() == 3).await;
    }
    let ports = ports(&stage);
    until("no connection", || sockets(&ports) == 0).await;
    until("no task", || tokio::runtime::Handle::current().metrics().num_alive_tasks() <= tasks).await;
}

#[tokio::test]
async fn a_failed_failover_opens_the_gate_to_the_same_master() {
    let stage = Stage::new(3, 3).await;
    let driver = stage.drive();
    driver.leads_to(stage.addr(0)).await;
    driver.sees("all known", |seen| seen.nodes.len() == 3 && seen.quorum.0 == 3).await;
    let began = Instant::now();
    stage.announce(0, "+selected-slave", 1, 0);
    driver.moved(Move::Shut, began).await;
    stage.about_master(0, "-failover-abort-slave-timeout", 0);
    let open = driver.moved(Move::Open, began).await;
    assert!(open - began < ms(1500), "well before the hold would have expired: {:?}", open - began);
    assert_eq!(driver.generation(), 1);
    // An event about another master of these sentinels is none of ours.
    let moves = driver.moves().len();
    let node = stage.addr(1);
    stage.sentinels[0]
        .publish("+selected-slave", &format!("slave x {} {} @ another 10.0.0.1 1", node.ip(), node.port()));
    stage.sentinels[0].publish("+switch-master", &format!("another 10.0.0.1 1 {} {}", node.ip(), node.port()));
    stays(ms(200), "nothing moves", || driver.moves().len() == moves).await;
}
