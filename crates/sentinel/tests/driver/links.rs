//! The connections to sentinels: RESP2, sharing, learning, identities, restarts.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use sentinel::{Credentials, NodeAddr};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use crate::cluster::{
    Driver, FakeCluster, NAME, TargetChange, event_only_rules, ms, quick, stays, timeouts, until,
    watch,
};
use crate::scripts::my_id;

#[tokio::test]
async fn resp2_uses_two_connections_and_receives_events() {
    let cluster = FakeCluster::new(3, 2).await;
    cluster.sentinels.iter().for_each(|it| it.script().access.resp2_only = true);
    let (mut watched, route) = cluster.watch();
    watched.settings.rules = event_only_rules();
    let driver = Driver::one((watched, route));
    driver.wait_for_target(cluster.addr(0)).await;
    driver
        .wait_for("events", |seen| {
            seen.sentinels.iter().filter(|it| it.events && it.member).count() == 3
        })
        .await;
    assert!(cluster.sentinels.iter().all(|it| it.open() == 2));
    let began = Instant::now();
    cluster.announce(0, "+selected-slave", 1, 0);
    driver.wait_for_change(TargetChange::GateClosed, began).await;
    cluster.promote(1);
    cluster.switch(0, 0, 1, 2);
    cluster.switch(1, 0, 1, 2);
    driver.wait_for_target(cluster.addr(1)).await;
}

#[tokio::test]
async fn second_resp2_connection_is_part_of_heartbeat() {
    let cluster = FakeCluster::new(1, 1).await;
    cluster.sentinels[0].script().access.resp2_only = true;
    let driver = Driver::timed(cluster.watch(), quick());
    driver.wait_for_target(cluster.addr(0)).await;
    // The subscribed connection stops answering, and the other one works: only on the former is
    // PING sent.
    let accepted = cluster.sentinels[0].accepted();
    cluster.sentinels[0].script().ignores_subscribers = true;
    until("it is dialled again", || cluster.sentinels[0].accepted() >= accepted + 2).await;
    cluster.sentinels[0].script().ignores_subscribers = false;
    driver.wait_for("up again", |seen| seen.sentinels.iter().any(|it| it.up && it.events)).await;
}

#[tokio::test]
async fn polls_without_subscribe_and_reports_it() {
    let cluster = FakeCluster::new(3, 2).await;
    cluster.sentinels.iter().for_each(|it| {
        it.script().access.refused = vec!["SUBSCRIBE".to_owned(), "PING".to_owned()];
    });
    let driver = cluster.drive();
    driver.wait_for_target(cluster.addr(0)).await;
    driver
        .wait_for("the problem, round after round", |seen| {
            let told = |it: &sentinel::SentinelSnapshot| {
                it.problem.as_ref().is_some_and(|why| why.contains("SUBSCRIBE"))
            };
            seen.sentinels.len() == 3
                && seen
                    .sentinels
                    .iter()
                    .all(|it| it.up && !it.events && told(it) && it.view.is_some())
        })
        .await;
    cluster.promote(1);
    cluster.all_set_master(1, 2);
    driver.wait_for_target(cluster.addr(1)).await;
}

#[tokio::test]
async fn shares_sentinel_link_between_services_and_credentials() {
    let cluster = FakeCluster::new(1, 2).await;
    let record = cluster.record(0, 1, 4);
    cluster.sentinels[0].script().masters.insert("other".to_owned(), record);
    cluster.nodes[1].script().promote();
    let seeds = || vec![NodeAddr::from(cluster.sentinels[0].addr)];
    let drivers =
        Driver::all(vec![watch(NAME, seeds()), watch("other", seeds())], &[], None, timeouts());
    drivers[0].wait_for_target(cluster.addr(0)).await;
    drivers[1].wait_for_target(cluster.addr(1)).await;
    assert_eq!(cluster.sentinels[0].accepted(), 1);
    // An event about one service has no effect on the other.
    let began = Instant::now();
    let gone = "master mymaster 127.0.0.1 1";
    cluster.sentinels[0].publish("+sdown", gone);
    drivers[0].wait_for("suspicion", |seen| seen.state == "suspect").await;
    assert_eq!(drivers[1].seen().state, "stable");
    assert!(drivers[1].changes().iter().all(|(at, _)| *at < began));
    drop(drivers);
    let mut one = watch(NAME, seeds());
    one.0.settings.sentinel_auth = Some(Credentials::new(None, "anything"));
    let before = cluster.sentinels[0].accepted();
    let drivers = Driver::all(vec![one, watch("other", seeds())], &[], None, timeouts());
    drivers[0].wait_for_target(cluster.addr(0)).await;
    drivers[1].wait_for_target(cluster.addr(1)).await;
    assert_eq!(cluster.sentinels[0].accepted() - before, 2);
}

#[tokio::test]
async fn learns_sentinels_and_ignores_unannounced_identity() {
    let cluster = FakeCluster::new(3, 2).await;
    // Another sentinel answers at the third one's address.
    cluster.sentinels[2].script().id = "e".repeat(40);
    let driver = Driver::one(watch(NAME, vec![cluster.sentinels[0].addr.into()]));
    driver.wait_for_target(cluster.addr(0)).await;
    driver
        .wait_for("the second, and the stranger refused", |seen| {
            let fenced = |it: &sentinel::SentinelSnapshot| {
                it.problem.as_ref().is_some_and(|why| why.contains("another sentinel"))
            };
            seen.quorum.0 == 3
                && seen.sentinels.iter().filter(|it| it.up && it.member).count() == 2
                && seen.sentinels.iter().any(|it| !it.up && !it.member && fenced(it))
        })
        .await;
    // Its restart with the right identity is accepted.
    cluster.sentinels[2].script().id = my_id(3);
    driver
        .wait_for("all three", |seen| {
            seen.sentinels.iter().filter(|it| it.up && it.member).count() == 3
        })
        .await;
}

#[tokio::test]
async fn accepts_replaced_sentinel_once_peers_list_it() {
    let cluster = FakeCluster::new(3, 2).await;
    let driver = Driver::one(watch(
        NAME,
        vec![cluster.sentinels[0].addr.into(), cluster.sentinels[1].addr.into()],
    ));
    driver
        .wait_for("all three", |seen| {
            seen.sentinels.iter().filter(|it| it.up && it.member).count() == 3
        })
        .await;
    // A new pod with an empty disk: another MYID at the same address.
    let fresh = "d".repeat(40);
    cluster.sentinels[2].script().id.clone_from(&fresh);
    cluster.sentinels[2].cut();
    for it in &cluster.sentinels[..2] {
        for (id, _, port) in &mut it.script().record().peers {
            if *port == cluster.sentinels[2].addr.port() {
                id.clone_from(&fresh);
            }
        }
    }
    driver
        .wait_for("the new one", |seen| {
            seen.sentinels
                .iter()
                .any(|it| it.up && it.id.as_ref().is_some_and(|id| id.as_str() == fresh))
        })
        .await;
}

#[tokio::test]
async fn reconnects_to_restarted_sentinel_and_polls_at_once() {
    let cluster = FakeCluster::new(3, 2).await;
    let driver = cluster.drive();
    driver.wait_for_target(cluster.addr(0)).await;
    for turn in 1..=3 {
        let accepted = cluster.sentinels[0].accepted();
        cluster.sentinels[0].cut();
        until("it is dialled again", || cluster.sentinels[0].accepted() > accepted).await;
        driver
            .wait_for(&format!("up after restart {turn}"), |seen| {
                seen.sentinels.iter().all(|it| it.up)
            })
            .await;
    }
    assert_eq!(driver.generation(), 1);
}

#[tokio::test]
async fn maps_learned_addresses() {
    let cluster = FakeCluster::new(2, 2).await;
    let (real, node) = (cluster.sentinels[1].addr, cluster.addr(0));
    let far = |host: &str, port: u16| NodeAddr { host: host.into(), port };
    {
        let mut script = cluster.sentinels[0].script();
        script.record().peers = vec![(my_id(2), "198.51.100.1".to_owned(), 26379)];
        script.record().ip = "198.51.100.2".to_owned();
        script.record().port = 6379;
    }
    cluster.sentinels[1].script().record().ip = "198.51.100.2".to_owned();
    cluster.sentinels[1].script().record().port = 6379;
    let (mut watched, route) = watch(NAME, vec![cluster.sentinels[0].addr.into()]);
    watched.settings.address_map = BTreeMap::from([
        (far("198.51.100.1", 26379), real.into()),
        (far("198.51.100.2", 6379), node.into()),
    ]);
    let driver = Driver::one((watched, route));
    driver.wait_for_target(node).await;
    driver
        .wait_for("both", |seen| seen.sentinels.iter().filter(|it| it.up && it.member).count() == 2)
        .await;
    assert_eq!(
        driver.seen().master.as_ref().map(|it| it.addr.clone()),
        Some(far("198.51.100.2", 6379))
    );
}

/// Reachable at every loopback address: the third byte of each dialled address; the connection is
/// closed at once.
async fn bystander() -> (u16, Arc<Mutex<BTreeSet<u8>>>, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("0.0.0.0:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let dialled = Arc::new(Mutex::new(BTreeSet::new()));
    let seen = Arc::clone(&dialled);
    let task = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if let Ok(SocketAddr::V4(addr)) = stream.local_addr() {
                seen.lock().expect("no poison").insert(addr.ip().octets()[2]);
            }
        }
    });
    (port, dialled, AbortOnDropHandle::new(task))
}

#[tokio::test]
async fn limits_dials_to_sentinels_listed_by_liars() {
    let cluster = FakeCluster::new(3, 2).await;
    let (port, dialled, _bystander) = bystander().await;
    let driver = cluster.drive();
    driver.wait_for_target(cluster.addr(0)).await;
    let lie = |turn: u8| -> Vec<(String, String, u16)> {
        let name = |it: usize| my_id(1000 + usize::from(turn) * 64 + it);
        (0..64).map(|it| (name(it), format!("127.1.{turn}.{}", it + 1), port)).collect()
    };
    let (started, mut turn) = (Instant::now(), 0);
    while started.elapsed() < ms(1500) && turn < u8::MAX {
        turn += 1;
        // A sentinel is dialled once most of the configured ones list it.
        for liar in &cluster.sentinels[..2] {
            liar.script().record().peers = lie(turn);
            liar.publish("+sentinel", "sentinel x 10.0.0.1 1 @ mymaster 10.0.0.1 1");
        }
        tokio::time::sleep(ms(5)).await;
    }
    until("the last of them at least is dialled", || {
        !dialled.lock().expect("no poison").is_empty()
    })
    .await;
    // One of them four times per second, however long this took, and not every one.
    let lies = dialled.lock().expect("no poison").len();
    let most = started.elapsed().as_millis() / 250 + 2;
    assert!(lies as u128 <= most, "{lies} of {turn} lies were dialled, where {most} may be");
    stays(ms(200), "the master stays", || driver.generation() == 1).await;
    driver
        .wait_for("still a majority of the known ones", |seen| {
            seen.sentinels.iter().filter(|it| it.member && it.up).count() >= 3
        })
        .await;
}
