//! Recorded timelines of a planned failover and of a killed master, replayed with their original
//! intervals up to the first switch. Polls and probes are slow here, so that events are the only
//! cause of what happens.

use std::time::Instant;

use crate::cluster::{Driver, FakeCluster, NAME, NEVER, TargetChange, event_only_rules, ms, stays};

async fn ready() -> (FakeCluster, Driver) {
    let cluster = FakeCluster::new(3, 3).await;
    let (mut watch, route) = cluster.watch();
    // Not even while the master is suspect, and no hold ends by itself: an action that waited for
    // a timer would never be observed.
    watch.settings.rules = sentinel::MachineRules {
        poll_suspect: NEVER,
        probe_suspect: NEVER,
        hold_max: NEVER,
        ..event_only_rules()
    };
    let driver = Driver::one((watch, route));
    driver.wait_for_target(cluster.addr(0)).await;
    driver
        .wait_for("three members", |seen| {
            seen.quorum == (3, 2) && seen.sentinels.iter().all(|it| it.member)
        })
        .await;
    driver.wait_for("calm", |seen| seen.state == "stable").await;
    cluster.quiet().await;
    (cluster, driver)
}

/// The observer follows the leader's hello: `+config-update-from` and its own switch.
fn observer_switches(cluster: &FakeCluster, observer: usize, leader: usize, epoch: u64) {
    let (id, at) = (crate::scripts::my_id(leader + 1), cluster.sentinels[leader].addr);
    let old = cluster.addr(0);
    let payload =
        format!("sentinel {id} {} {} @ {NAME} {} {}", at.ip(), at.port(), old.ip(), old.port());
    cluster.sentinels[observer].publish("+config-update-from", &payload);
    cluster.switch(observer, 0, 1, epoch);
}

#[tokio::test]
async fn planned_failover_holds_at_selection_commits_at_switch() {
    let (cluster, driver) = ready().await;
    let fence = driver.route.current().expect("a target");
    let began = Instant::now();
    let at = |ms_: u64| tokio::time::sleep_until((began + ms(ms_)).into());
    at(8).await;
    cluster.about_master(0, "+elected-leader", 0);
    at(84).await;
    let selected = Instant::now();
    cluster.announce(0, "+selected-slave", 1, 0);
    cluster.announce(0, "+failover-state-send-slaveof-noone", 1, 0);
    let shut = driver.wait_for_change(TargetChange::GateClosed, began).await;
    // The gate closes without a timer, since none is due; and so does the commit happen.
    assert!(shut >= selected, "nothing is held before the selection");
    at(175).await;
    cluster.promote(1);
    cluster.announce(0, "+failover-state-wait-promotion", 1, 0);
    at(1061).await;
    assert!(
        driver.route.is_closed() && driver.target() == Some(cluster.addr(0)),
        "promoted is not committed"
    );
    assert!(!fence.fence().is_raised());
    // The leader names the new master from here on, but its MASTER reply still shows the old
    // address: get-master-addr is right.
    cluster.set_master(0, 1, 2);
    cluster.announce(0, "+promoted-slave", 1, 0);
    at(1146).await;
    let switched = Instant::now();
    observer_switches(&cluster, 1, 0, 2);
    let committed = driver.wait_for_change(TargetChange::To(cluster.addr(1)), began).await;
    let lead = driver.seen().failovers.last().cloned().expect("a failover");
    eprintln!(
        "planned: held after {:?}, committed {:?} after the first switch",
        shut - selected,
        committed.saturating_duration_since(switched)
    );
    assert!(fence.fence().is_raised());
    assert_eq!(
        (&lead.to, lead.epoch, lead.basis),
        (&cluster.addr(1).into(), 2, sentinel::Basis::Majority)
    );
    // Measured from that notice: not from the leader's announcement 85 ms before, and not from the
    // replies to the poll after it.
    let decided = lead.decided_at.expect("a majority decided");
    assert!(decided >= switched && lead.evidence_read_at.is_some_and(|read| read >= decided));
    assert!(
        lead.switch_time().expect("a move") >= lead.verification().expect("evidence")
            && lead.published_at >= decided
    );
    assert_eq!(lead.first_session(), None);
    driver.route.usable_target().expect("open").record_use();
    driver
        .wait_for("the first session", |seen| {
            seen.failovers.last().is_some_and(|it| it.first_session().is_some())
        })
        .await;
    observer_switches(&cluster, 2, 0, 2);
    at(2164).await;
    cluster.switch(0, 0, 1, 2);
    stays(ms(200), "one commit", || driver.generation() == 2 && !driver.route.is_closed()).await;
    let changes: Vec<TargetChange> =
        driver.changes().into_iter().filter(|(when, _)| *when >= began).map(|(_, it)| it).collect();
    assert_eq!(
        changes,
        [TargetChange::GateClosed, TargetChange::To(cluster.addr(1)), TargetChange::GateOpened]
    );
}

#[tokio::test]
async fn commits_at_first_majority_switch_after_master_death() {
    let (cluster, driver) = ready().await;
    let began = Instant::now();
    let at = |ms_: u64| tokio::time::sleep_until((began + ms(ms_)).into());
    cluster.nodes[0].behave(crate::fake::Behavior::CloseAtOnce);
    cluster.nodes[0].cut();
    // The intervals after the detection, which takes Sentinel 2051 ms; here it takes 200.
    at(200).await;
    (0..3).for_each(|it| cluster.about_master(it, "+sdown", 0));
    at(261).await;
    cluster.about_master(0, "+odown", 0);
    at(352).await;
    cluster.about_master(0, "+elected-leader", 0);
    at(428).await;
    cluster.announce(0, "+selected-slave", 1, 0);
    at(500).await;
    cluster.promote(1);
    cluster.announce(0, "+failover-state-wait-promotion", 1, 0);
    at(1273).await;
    assert_eq!(
        driver.changes().iter().filter(|(_, it)| matches!(it, TargetChange::To(_))).count(),
        1,
        "only the first commit"
    );
    cluster.set_master(0, 1, 2);
    cluster.announce(0, "+promoted-slave", 1, 0);
    at(1340).await;
    let switched = Instant::now();
    observer_switches(&cluster, 1, 0, 2);
    let committed = driver.wait_for_change(TargetChange::To(cluster.addr(1)), began).await;
    eprintln!(
        "killed: committed {:?} after the first switch",
        committed.saturating_duration_since(switched)
    );
    observer_switches(&cluster, 2, 0, 2);
    cluster.switch(0, 0, 1, 2);
    stays(ms(200), "one commit", || driver.generation() == 2 && !driver.route.is_closed()).await;
}
