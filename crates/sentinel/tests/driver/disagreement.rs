//! Sentinels that disagree, are stale, answer nothing, or cannot be reached: rows 4 to 10, 12, 16
//! and 17.

use std::collections::BTreeMap;

use crate::cluster::{Driver, FakeCluster, NAME, ms, quick, rules, stays, timeouts, until, watch};
use crate::fake::{Behavior, FakeServer};
use crate::scripts::SentinelScript;

#[tokio::test]
async fn majority_decides_at_equal_epoch_without_flapping() {
    let cluster = FakeCluster::new(3, 3).await;
    cluster.nodes[1].script().promote();
    cluster.set_master(2, 1, 1);
    let driver = cluster.drive();
    driver.wait_for_target(cluster.addr(0)).await;
    driver
        .wait_for("who disagrees", |seen| {
            let dissent: Vec<_> =
                seen.sentinels.iter().filter(|it| it.disagrees).map(|it| it.addr.clone()).collect();
            seen.disagreement && dissent == [cluster.sentinels[2].addr.into()]
        })
        .await;
    stays(ms(800), "one commit", || {
        driver.generation() == 1 && driver.target() == Some(cluster.addr(0))
    })
    .await;
    cluster.set_master(2, 0, 1);
    driver
        .wait_for("agreement", |seen| {
            !seen.disagreement && seen.sentinels.iter().all(|it| !it.disagrees)
        })
        .await;
}

#[tokio::test]
async fn ignores_and_counts_stale_sentinel_with_old_master() {
    let cluster = FakeCluster::new(3, 3).await;
    cluster.all_set_master(1, 7);
    cluster.nodes[1].script().promote();
    cluster.set_master(0, 0, 3);
    let driver = cluster.drive();
    driver.wait_for_target(cluster.addr(1)).await;
    driver.wait_for("stale views", |seen| seen.counts.stale_views > 2).await;
    assert_eq!(driver.generation(), 1);
    assert_eq!(driver.seen().master.as_ref().map(|it| it.epoch), Some(7));
}

#[tokio::test]
async fn finds_missed_switch_by_polling() {
    let cluster = FakeCluster::new(3, 3).await;
    let driver = cluster.drive();
    driver.wait_for_target(cluster.addr(0)).await;
    cluster.sentinels.iter().for_each(|it| it.behave(Behavior::NoEvents));
    cluster.promote(1);
    cluster.all_set_master(1, 2);
    driver.wait_for_target(cluster.addr(1)).await;
}

#[tokio::test]
async fn detects_dead_subscription_and_reconnects() {
    let cluster = FakeCluster::new(3, 3).await;
    let driver = Driver::timed(cluster.watch(), quick());
    driver.wait_for_target(cluster.addr(0)).await;
    driver.wait_for("all up", |seen| seen.sentinels.iter().filter(|it| it.up).count() == 3).await;
    let before = cluster.sentinels[1].accepted();
    cluster.sentinels[1].behave(Behavior::Mute);
    driver
        .wait_for("silence", |seen| {
            seen.sentinels
                .iter()
                .any(|it| it.problem.as_ref().is_some_and(|why| why.contains("does not answer")))
        })
        .await;
    until("it is dialled again", || cluster.sentinels[1].accepted() > before).await;
    assert_eq!(driver.target(), Some(cluster.addr(0)));
    cluster.sentinels[1].behave(Behavior::Normal);
    driver
        .wait_for("all up again", |seen| {
            seen.sentinels.iter().filter(|it| it.up && it.events).count() == 3
        })
        .await;
}

#[tokio::test]
async fn keeps_master_with_one_or_all_sentinels_down() {
    let cluster = FakeCluster::new(3, 2).await;
    let driver = cluster.drive();
    driver.wait_for_target(cluster.addr(0)).await;
    let down = |it: &crate::cluster::Sentinel| {
        it.behave(Behavior::CloseAtOnce);
        it.cut();
    };
    down(&cluster.sentinels[0]);
    driver
        .wait_for("one down", |seen| seen.sentinels.iter().filter(|it| !it.up).count() == 1)
        .await;
    cluster.sentinels.iter().for_each(down);
    driver
        .wait_for("all down", |seen| seen.sentinels.iter().all(|it| !it.up && it.problem.is_some()))
        .await;
    stays(ms(500), "traffic flows", || {
        driver.route.usable_target().is_some() && driver.generation() == 1
    })
    .await;
    assert!(driver.seen().stopped_since.is_none());
    // They return, and are followed again.
    cluster.sentinels.iter().for_each(|it| it.behave(Behavior::Normal));
    cluster.promote(1);
    cluster.all_set_master(1, 2);
    driver.wait_for_target(cluster.addr(1)).await;
}

#[tokio::test]
async fn waits_for_sentinels_that_are_down_at_start() {
    let cluster = FakeCluster::new(3, 2).await;
    cluster.sentinels.iter().for_each(|it| it.behave(Behavior::CloseAtOnce));
    let driver = cluster.drive();
    driver
        .wait_for("all down", |seen| {
            seen.sentinels.len() == 3 && seen.sentinels.iter().all(|it| it.problem.is_some())
        })
        .await;
    assert!(driver.target().is_none() && driver.seen().stopped_since.is_some());
    assert!(cluster.sentinels[0].accepted() < 100, "with back-off");
    cluster.sentinels.iter().for_each(|it| it.behave(Behavior::Normal));
    driver.wait_for_target(cluster.addr(0)).await;
}

#[tokio::test]
async fn reports_and_counts_unknown_name_as_abstention() {
    let cluster = FakeCluster::new(3, 2).await;
    cluster.sentinels.iter().for_each(|it| it.script().masters.clear());
    let driver = cluster.drive();
    driver
        .wait_for("unknown", |seen| {
            let told = |it: &sentinel::SentinelSnapshot| {
                it.problem.as_ref().is_some_and(|why| why.contains("no master named"))
            };
            seen.counts.unknown_names > 0
                && seen.sentinels.len() == 3
                && seen.sentinels.iter().all(told)
        })
        .await;
    assert!(driver.target().is_none());
    cluster.all_set_master(0, 1);
    driver.wait_for_target(cluster.addr(0)).await;
    // Once it is unknown to all of them, that still is no reason to leave the master.
    cluster.sentinels.iter().for_each(|it| it.script().masters.clear());
    stays(ms(600), "the master stays", || driver.route.usable_target().is_some()).await;
    // Names are case-sensitive, as in Sentinel.
    let addrs = cluster.sentinels.iter().map(|it| it.addr.into()).collect();
    cluster.all_set_master(0, 1);
    let other = Driver::one(watch("MyMaster", addrs));
    other.wait_for("unknown", |seen| seen.counts.unknown_names > 0).await;
    assert!(other.target().is_none());
}

#[tokio::test]
async fn rejects_port_zero_and_own_address() {
    let cluster = FakeCluster::new(3, 2).await;
    cluster.sentinels.iter().for_each(|it| it.script().record().port = 0);
    let own = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let ours = own.local_addr().expect("an address");
    let driver = Driver::all(vec![cluster.watch()], &[ours], None, timeouts()).remove(0);
    driver.wait_for("bad rounds", |seen| seen.counts.bad_rounds > 2).await;
    assert!(driver.target().is_none());
    for it in &cluster.sentinels {
        it.script().record().port = ours.port();
        // The same for a sentinel: a peer that is listed at our own address.
        let ours = ("f".repeat(40), ours.ip().to_string(), ours.port());
        it.script().record().peers.push(ours);
    }
    driver
        .wait_for("rejected", |seen| {
            seen.nodes.iter().any(|it| {
                it.probe
                    .as_ref()
                    .is_some_and(|it| it.outcome == Err(sentinel::ProbeFailure::UnusableAddress))
            })
        })
        .await;
    driver
        .wait_for("the peer too", |seen| {
            seen.sentinels
                .iter()
                .any(|it| it.problem.as_ref().is_some_and(|why| why.contains("our own listeners")))
        })
        .await;
    assert!(driver.target().is_none());
    tokio::select! {
        biased;
        _ = own.accept() => panic!("dialled itself"),
        () = tokio::time::sleep(ms(300)) => {}
    }
    cluster.all_set_master(0, 1);
    driver.wait_for_target(cluster.addr(0)).await;
}

#[tokio::test]
async fn two_sentinels_with_one_identity_have_one_vote() {
    let cluster = FakeCluster::new(3, 3).await;
    // The third is a copy of the second, with a view of its own. Nobody has met a third identity.
    cluster.sentinels[2].script().id = crate::scripts::my_id(2);
    for it in &cluster.sentinels {
        it.script().record().peers.retain(|(id, ..)| *id != crate::scripts::my_id(3));
    }
    cluster.nodes[1].script().promote();
    cluster.set_master(2, 1, 1);
    let driver = cluster.drive();
    driver
        .wait_for("a twin", |seen| {
            seen.sentinels
                .iter()
                .filter(|it| {
                    it.problem.as_ref().is_some_and(|why| why.contains("not counted twice"))
                })
                .count()
                == 1
        })
        .await;
    // Whichever of the two counts, their disagreeing views make no majority of three.
    cluster.set_master(1, 0, 1);
    cluster.set_master(2, 0, 1);
    driver.wait_for_target(cluster.addr(0)).await;
    stays(ms(500), "no flapping", || driver.generation() == 1).await;
}

#[tokio::test]
async fn ignores_down_flag_of_sentinel_in_tilt() {
    let cluster = FakeCluster::new(3, 2).await;
    for it in &cluster.sentinels {
        let mut script = it.script();
        script.tilt = true;
        script.record().flags = "master,s_down,o_down".to_owned();
    }
    let driver = cluster.drive();
    driver.wait_for_target(cluster.addr(0)).await;
    driver.wait_for("stable", |seen| seen.state == "stable").await;
    stays(ms(400), "no suspicion", || driver.seen().state == "stable").await;
}

#[tokio::test]
async fn backs_off_from_sentinel_with_torn_polls() {
    let cluster = FakeCluster::new(3, 2).await;
    let odd = cluster.addr(1).port();
    cluster.sentinels[2].script().record().torn = Some(odd);
    let driver = cluster.drive();
    driver.wait_for_target(cluster.addr(0)).await;
    driver.wait_for("torn rounds", |seen| seen.counts.bad_rounds > 5).await;
    let before: Vec<usize> =
        cluster.sentinels.iter().map(FakeServer::<SentinelScript>::commands).collect();
    tokio::time::sleep(ms(1000)).await;
    let after: Vec<usize> =
        cluster.sentinels.iter().map(FakeServer::<SentinelScript>::commands).collect();
    for (number, (before, after)) in before.iter().zip(&after).enumerate() {
        // A poll has six commands, and five polls per second are due; a loop without pause would
        // send thousands.
        assert!(
            after - before < 40 * 6,
            "sentinel {number} was asked {} times in a second",
            (after - before) / 6
        );
    }
    let masters: BTreeMap<_, _> = cluster.sentinels[2].script().masters.clone();
    assert!(masters.contains_key(NAME) && rules().poll == ms(200));
}
