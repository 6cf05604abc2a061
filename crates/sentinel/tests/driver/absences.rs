//! Short absences of this process. Discovery, the scripted servers and the test share one thread,
//! so a test that sleeps without awaiting delays all of them, as a stop or a lack of CPU time does.

use std::time::{Duration, Instant};

use sentinel::MachineRules;

use crate::cluster::{Driver, FakeCluster, TargetChange, event_only_rules, ms, rules};
use crate::fake::Behavior;

/// Beyond the limit, and shorter than a failover or the former lease of three seconds.
const SHORT: Duration = Duration::from_millis(700);

/// The fault: nothing on this thread runs for a short time.
#[expect(clippy::disallowed_methods, reason = "the absence itself, not a wait for something")]
fn delay_everything() {
    std::thread::sleep(SHORT);
}

fn absence() -> Duration {
    MachineRules::default().absence
}

/// A driver whose master is known and not suspected, with the usual absence limit.
async fn calm_driver(cluster: &FakeCluster, rules: MachineRules) -> Driver {
    let (mut watch, route) = cluster.watch();
    watch.settings.rules = MachineRules { absence: absence(), ..rules };
    let driver = Driver::one((watch, route));
    driver.wait_for_target(cluster.addr(0)).await;
    driver
        .wait_for("three members", |seen| {
            seen.quorum == (3, 2) && seen.sentinels.iter().all(|it| it.member)
        })
        .await;
    driver.wait_for("calm", |seen| seen.state == "stable").await;
    driver
}

fn changes_since(driver: &Driver, since: Instant) -> Vec<TargetChange> {
    driver.changes().into_iter().filter(|(at, _)| *at >= since).map(|(_, it)| it).collect()
}

#[tokio::test]
async fn renews_lease_independently_of_poll_interval() {
    let cluster = FakeCluster::new(3, 2).await;
    // Nothing wakes discovery for a minute.
    let driver = calm_driver(&cluster, event_only_rules()).await;
    cluster.quiet().await;
    let (started, stalls) = (Instant::now(), driver.seen().counts.stalls);
    let (mut last, mut worst) = (started, Duration::ZERO);
    while started.elapsed() < absence() * 4 {
        tokio::time::sleep(ms(5)).await;
        worst = worst.max(last.elapsed());
        last = Instant::now();
        // A busy machine may delay this thread, and discovery with it.
        let delayed = worst + ms(150) > absence();
        assert!(delayed || !driver.route.is_closed(), "the lease expired, delays: {worst:?}");
        assert!(delayed || driver.seen().counts.stalls == stalls, "a stall, delays: {worst:?}");
    }
}

#[tokio::test]
async fn holds_briefly_after_discovery_was_delayed() {
    let cluster = FakeCluster::new(3, 2).await;
    let driver = calm_driver(&cluster, rules()).await;
    let (since, stalls) = (Instant::now(), driver.seen().counts.stalls);
    delay_everything();
    // A worker that runs before discovery does.
    assert!(driver.route.is_closed(), "the lease is longer than the absence");
    assert!(driver.target().is_some());
    let back = Instant::now();
    let opened = driver.wait_for_change(TargetChange::GateOpened, since).await;
    driver.wait_for("the stall", |seen| seen.counts.stalls > stalls).await;
    // Only a majority opens it within this time: the grace of fewer sentinels is far longer.
    assert!(opened - back < rules().bootstrap_grace, "held for {:?}", opened - back);
    println!("held for {:?} after the absence", opened - back);
    assert_eq!(
        changes_since(&driver, since),
        [TargetChange::GateClosed, TargetChange::GateOpened],
        "no session is fenced or left without a target"
    );
    assert_eq!(driver.generation(), 1);
}

#[tokio::test]
async fn finds_failover_after_a_short_absence() {
    let cluster = FakeCluster::new(3, 2).await;
    let driver = calm_driver(&cluster, event_only_rules()).await;
    cluster.quiet().await;
    // All of it happens while the process is stopped, and no event arrives. The old master still
    // reports `role:master`.
    cluster.sentinels.iter().for_each(|it| it.behave(Behavior::NoEvents));
    cluster.nodes[1].script().promote();
    cluster.all_set_master(1, 2);
    let since = Instant::now();
    delay_everything();
    assert!(driver.route.is_closed(), "the lease is longer than the absence");
    driver.wait_for_target(cluster.addr(1)).await;
    assert_eq!(
        changes_since(&driver, since),
        [TargetChange::GateClosed, TargetChange::To(cluster.addr(1)), TargetChange::GateOpened],
        "the superseded master was used again"
    );
}

#[tokio::test]
async fn keeps_gate_open_without_sentinels_to_ask() {
    let cluster = FakeCluster::new(3, 2).await;
    let driver = calm_driver(&cluster, MachineRules { view_expiry: ms(300), ..rules() }).await;
    for sentinel in &cluster.sentinels {
        sentinel.behave(Behavior::CloseAtOnce);
        sentinel.cut();
    }
    // The last views expire.
    tokio::time::sleep(ms(1000)).await;
    driver.wait_for("calm", |seen| seen.state == "stable").await;
    let (since, stalls) = (Instant::now(), driver.seen().counts.stalls);
    delay_everything();
    // The lease has expired, and the first iteration of discovery renews it.
    driver.wait_for("an iteration", |_| !driver.route.is_closed()).await;
    assert_eq!(driver.seen().counts.stalls, stalls, "asked, although nobody answers");
    assert!(!changes_since(&driver, since).contains(&TargetChange::Cleared));
    assert_eq!(driver.generation(), 1);
}
