//! How often sentinels are asked, by the number of clients that they report: without one, and with
//! a false one. The rules make the difference a matter of minutes, not of the speed of this
//! machine.

use std::time::{Duration, Instant};

use sentinel::MachineRules;

use crate::cluster::{
    Driver, FakeCluster, NEVER, TargetChange, event_only_rules, ms, stays, until,
};
use crate::wire;

const INFO: &str = "INFO";

/// Polls of normal operation are due after `poll`, those under suspicion after 20 ms.
fn suspect_quickly(poll: Duration) -> MachineRules {
    MachineRules { poll, poll_suspect: ms(20), hold_max: NEVER, ..event_only_rules() }
}

/// Every sentinel reports this number of clients.
fn report_clients(cluster: &FakeCluster, count: &str) {
    let info = wire::bulk(&format!("# Clients\r\nconnected_clients:{count}\r\n"));
    for sentinel in &cluster.sentinels {
        sentinel.script().overrides.insert(INFO.to_owned(), info.clone());
    }
}

fn refuse_info(cluster: &FakeCluster) {
    for sentinel in &cluster.sentinels {
        sentinel.script().overrides.clear();
        sentinel.script().access.refused = vec![INFO.to_owned()];
    }
}

/// A driver that suspects the master until a failover ends, since a replica was selected.
async fn suspecting(cluster: &FakeCluster, rules: MachineRules) -> Driver {
    let (mut watched, route) = cluster.watch();
    watched.settings.rules = rules;
    let driver = Driver::one((watched, route));
    driver.wait_for_target(cluster.addr(0)).await;
    driver.wait_for("all known", |seen| seen.nodes.len() == 2 && seen.quorum.0 == 3).await;
    cluster.quiet().await;
    let began = Instant::now();
    cluster.announce(0, "+selected-slave", 1, 0);
    driver.wait_for_change(TargetChange::GateClosed, began).await;
    driver
}

/// Commands of some hundred polls: minutes at the pace of normal operation, seconds under
/// suspicion.
async fn polls_often(cluster: &FakeCluster) {
    let before = cluster.sentinels[0].commands();
    until("a hundred polls", || cluster.sentinels[0].commands() - before > 700).await;
}

#[tokio::test]
async fn keeps_configured_pace_without_info() {
    let cluster = FakeCluster::new(3, 2).await;
    refuse_info(&cluster);
    let _driver = suspecting(&cluster, suspect_quickly(NEVER)).await;
    polls_often(&cluster).await;
}

#[tokio::test]
async fn returns_to_configured_pace_when_info_is_refused() {
    let cluster = FakeCluster::new(3, 2).await;
    report_clients(&cluster, "5000");
    let _driver = suspecting(&cluster, suspect_quickly(ms(2000))).await;
    refuse_info(&cluster);
    polls_often(&cluster).await;
}

/// The largest number that is read stretches the pace to that of normal operation, and a failover
/// is followed at its event all the same. A larger one is ignored.
#[tokio::test]
async fn switches_at_once_despite_absurd_client_count() {
    let cluster = FakeCluster::new(3, 2).await;
    report_clients(&cluster, "4294967295");
    let driver = suspecting(&cluster, suspect_quickly(NEVER)).await;
    let before = cluster.sentinels[0].commands();
    let few = || cluster.sentinels[0].commands() - before < 50;
    stays(ms(500), "at most the polls that events cause", few).await;
    cluster.promote(1);
    for sentinel in 0..3 {
        cluster.switch(sentinel, 0, 1, 2);
    }
    driver.wait_for_target(cluster.addr(1)).await;

    let cluster = FakeCluster::new(3, 2).await;
    report_clients(&cluster, "99999999999999999999");
    let _driver = suspecting(&cluster, suspect_quickly(NEVER)).await;
    polls_often(&cluster).await;
}
