//! The probe connection: a pending probe, a server that rejects connections, and one that can be
//! reached on a new connection only. Row 56.

use std::time::{Duration, Instant};

use sentinel::{DiscoverySnapshot, Probe, ProbeFailure};

use crate::cluster::{Driver, FakeCluster, TargetChange, ms, stays, until};
use crate::fake::Behavior;

/// The error that Redis sends to a connection beyond its limit before it closes it.
const FULL: &[u8] = b"-ERR max number of clients reached\r\n";

/// Longer than any probe timeout.
const LONG: Duration = Duration::from_secs(6);

async fn drive(cluster: &FakeCluster) -> Driver {
    let (mut watched, route) = cluster.watch();
    watched.settings.probe_timeout = ms(250);
    let driver = Driver::one((watched, route));
    driver.wait_for_target(cluster.addr(0)).await;
    driver.wait_for("calm", |seen| seen.state == "stable").await;
    driver
}

/// The last probe of node 0.
fn last(cluster: &FakeCluster, seen: &DiscoverySnapshot) -> Option<Probe> {
    seen.nodes.iter().find(|it| it.addr == cluster.addr(0).into())?.probe.clone()
}

fn fails(cluster: &FakeCluster, seen: &DiscoverySnapshot, failure: ProbeFailure) -> bool {
    last(cluster, seen).is_some_and(|probe| probe.outcome == Err(failure))
}

fn never_shut(driver: &Driver) {
    let changes = driver.changes();
    assert!(
        !changes
            .iter()
            .any(|(_, it)| matches!(it, TargetChange::GateClosed | TargetChange::Cleared)),
        "{changes:?}"
    );
    assert_eq!(driver.generation(), 1);
}

#[tokio::test]
async fn keeps_probe_connection_of_busy_full_master() {
    let cluster = FakeCluster::new(3, 1).await;
    let driver = drive(&cluster).await;
    // No further connection is accepted when the server becomes responsive.
    cluster.nodes[0].refuse(Some(FULL));
    cluster.nodes[0].behave(Behavior::Busy);
    driver.wait_for("silence", |seen| fails(&cluster, seen, ProbeFailure::Unresponsive)).await;
    let question = last(&cluster, &driver.seen()).expect("a probe").asked_at;
    stays(LONG, "a busy node is not down", || !driver.route.is_closed()).await;
    let woke = Instant::now();
    cluster.nodes[0].behave(Behavior::Normal);
    driver
        .wait_for("an answer", |seen| {
            last(&cluster, seen).is_some_and(|probe| probe.outcome.is_ok())
        })
        .await;
    driver.wait_for("calm", |seen| seen.state == "stable").await;
    // The next probe was sent after the pending one was answered: an answer never counts for a
    // later probe.
    driver
        .wait_for("a younger question", |seen| {
            last(&cluster, seen).is_some_and(|probe| probe.asked_at > woke)
        })
        .await;
    assert!(question < woke);
    never_shut(&driver);
}

#[tokio::test]
async fn node_that_rejects_connections_stays_present() {
    for refusal in [FULL, b"-ERR something else\r\n"] {
        let cluster = FakeCluster::new(3, 1).await;
        let driver = drive(&cluster).await;
        cluster.nodes[0].refuse(Some(refusal));
        cluster.nodes[0].cut();
        driver
            .wait_for("turned away", |seen| fails(&cluster, seen, ProbeFailure::ConnectionRejected))
            .await;
        driver.wait_for("why", |seen| seen.nodes.iter().all(|it| it.problem.is_some())).await;
        let (before, began) = (cluster.nodes[0].accepted(), Instant::now());
        stays(ms(2500), "the gate stays open", || !driver.route.is_closed()).await;
        let dials = cluster.nodes[0].accepted() - before;
        assert!(dials > 5 && (dials as u128) < began.elapsed().as_millis() / 10, "{dials} dials");
        cluster.nodes[0].refuse(None);
        driver
            .wait_for("calm", |seen| {
                seen.state == "stable" && seen.nodes.iter().all(|it| it.problem.is_none())
            })
            .await;
        never_shut(&driver);
    }
}

#[tokio::test]
async fn reports_protected_mode() {
    let cluster = FakeCluster::new(1, 1).await;
    cluster.nodes[0].refuse(Some(b"-DENIED Redis is running in protected mode because ...\r\n"));
    let driver = cluster.drive();
    let told = |seen: &DiscoverySnapshot| {
        seen.nodes.iter().any(|it| it.problem.as_ref().is_some_and(|it| it.contains("protected")))
    };
    driver.wait_for("protected mode", told).await;
    cluster.nodes[0].refuse(None);
    driver.wait_for_target(cluster.addr(0)).await;
}

#[tokio::test]
async fn finds_node_on_new_connection_if_old_is_dead() {
    let cluster = FakeCluster::new(3, 1).await;
    let driver = drive(&cluster).await;
    // A proxy in between holds the old connection open, and it is dead.
    cluster.nodes[0].strand();
    driver.wait_for("silence", |seen| fails(&cluster, seen, ProbeFailure::Unresponsive)).await;
    driver.wait_for("calm", |seen| seen.state == "stable").await;
    // The old connection is dropped as soon as the new one answers.
    until("one connection", || cluster.nodes[0].open() == 1).await;
    never_shut(&driver);
}

#[tokio::test]
async fn backs_off_from_busy_node() {
    let cluster = FakeCluster::new(3, 1).await;
    let driver = drive(&cluster).await;
    cluster.asked_commands(0).await;
    let before = cluster.nodes[0].accepted();
    cluster.nodes[0].behave(Behavior::Busy);
    stays(Duration::from_secs(12), "a busy node is not down", || !driver.route.is_closed()).await;
    let dials = cluster.nodes[0].accepted() - before;
    assert!((1..=3).contains(&dials), "{dials} dials in twelve seconds");
    cluster.nodes[0].behave(Behavior::Normal);
    driver.wait_for("calm", |seen| seen.state == "stable").await;
    until("one connection", || cluster.nodes[0].open() == 1).await;
    never_shut(&driver);
}

#[tokio::test]
async fn busy_node_stays_present_after_redial() {
    for said in [
        &b"-BUSY Redis is busy running a script.\r\n"[..],
        b"-LOADING Redis is loading the dataset in memory\r\n",
    ] {
        let cluster = FakeCluster::new(3, 1).await;
        let driver = drive(&cluster).await;
        cluster.nodes[0].behave(Behavior::Raw(said.to_vec()));
        cluster.nodes[0].cut();
        driver.wait_for("suspicion", |seen| seen.state == "suspect").await;
        stays(ms(2500), "the gate stays open", || !driver.route.is_closed()).await;
        cluster.nodes[0].behave(Behavior::Normal);
        driver.wait_for("calm", |seen| seen.state == "stable").await;
        never_shut(&driver);
    }
}

#[tokio::test]
async fn reports_sentinel_at_client_limit() {
    let cluster = FakeCluster::new(1, 1).await;
    cluster.sentinels[0].refuse(Some(FULL));
    let driver = cluster.drive();
    let told = |seen: &DiscoverySnapshot| {
        seen.sentinels
            .iter()
            .any(|it| it.problem.as_ref().is_some_and(|it| it.contains("maxclients")))
    };
    driver.wait_for("the limit", told).await;
    cluster.sentinels[0].refuse(None);
    driver.wait_for_target(cluster.addr(0)).await;
}

#[tokio::test]
async fn node_that_dies_after_refused_name_is_unreachable() {
    let cluster = FakeCluster::new(3, 1).await;
    let driver = drive(&cluster).await;
    // The ACL refuses the handshake's name, which is no reason to close: the process ended.
    cluster.nodes[0].refuse(Some(
        b"-NOPERM this user has no permissions to run the 'client|setname' command\r\n",
    ));
    cluster.nodes[0].cut();
    driver
        .wait_for("an unreachable node", |seen| fails(&cluster, seen, ProbeFailure::Unreachable))
        .await;
    let accepted = cluster.nodes[0].accepted();
    until("it is dialled again", || cluster.nodes[0].accepted() > accepted + 3).await;
    cluster.nodes[0].refuse(None);
    driver.wait_for_target(cluster.addr(0)).await;
    driver.wait_for("calm", |seen| seen.state == "stable").await;
}

#[tokio::test]
async fn mute_node_that_accepts_no_connection_is_unreachable() {
    let cluster = FakeCluster::new(3, 1).await;
    let driver = drive(&cluster).await;
    // A proxy in between keeps the old connection open, and closes new ones since it reaches no
    // server.
    cluster.nodes[0].strand();
    cluster.nodes[0].refuse(Some(b""));
    driver
        .wait_for("an unreachable node", |seen| fails(&cluster, seen, ProbeFailure::Unreachable))
        .await;
    driver.wait_for("a closed gate", |seen| seen.state == "no_master").await;
    until("the old connection alone is open", || cluster.nodes[0].open() == 1).await;
    cluster.nodes[0].refuse(None);
    driver.wait_for_target(cluster.addr(0)).await;
    driver.wait_for("calm", |seen| seen.state == "stable").await;
    assert_eq!(driver.generation(), 1);
}
