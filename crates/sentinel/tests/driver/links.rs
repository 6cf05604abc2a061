//! The connections to sentinels: RESP2, sharing, learning, identities, restarts.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use sentinel::{Credentials, NodeAddr};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use crate::players::my_id;
use crate::stage::{
    Driver, Move, NAME, Stage, ms, patient_rules, quick, stays, timeouts, until, watch,
};

#[tokio::test]
async fn resp2_takes_two_connections_and_pushes_events_all_the_same() {
    let stage = Stage::new(3, 2).await;
    stage.sentinels.iter().for_each(|it| it.mind().gate.resp2_only = true);
    let (mut watched, route) = stage.watch();
    watched.rules = patient_rules();
    let driver = Driver::one((watched, route));
    driver.leads_to(stage.addr(0)).await;
    driver
        .sees("events", |seen| {
            seen.sentinels.iter().filter(|it| it.events && it.member).count() == 3
        })
        .await;
    assert!(stage.sentinels.iter().all(|it| it.open() == 2));
    let began = Instant::now();
    stage.announce(0, "+selected-slave", 1, 0);
    driver.moved(Move::Shut, began).await;
    stage.promote(1);
    stage.switch(0, 0, 1, 2);
    stage.switch(1, 0, 1, 2);
    driver.leads_to(stage.addr(1)).await;
}

#[tokio::test]
async fn resp2s_second_connection_is_part_of_the_heartbeat() {
    let stage = Stage::new(1, 1).await;
    stage.sentinels[0].mind().gate.resp2_only = true;
    let driver = Driver::timed(stage.watch(), quick());
    driver.leads_to(stage.addr(0)).await;
    // The subscribed connection stops answering, the other one goes on: only that one asks for
    // PING.
    let accepted = stage.sentinels[0].accepted();
    stage.sentinels[0].mind().deaf = true;
    until("it is dialled again", || stage.sentinels[0].accepted() >= accepted + 2).await;
    stage.sentinels[0].mind().deaf = false;
    driver.sees("up again", |seen| seen.sentinels.iter().any(|it| it.up && it.events)).await;
}

#[tokio::test]
async fn without_subscribe_it_polls_and_says_so() {
    let stage = Stage::new(3, 2).await;
    stage
        .sentinels
        .iter()
        .for_each(|it| it.mind().gate.refused = vec!["SUBSCRIBE".to_owned(), "PING".to_owned()]);
    let driver = stage.drive();
    driver.leads_to(stage.addr(0)).await;
    driver
        .sees("the problem, round after round", |seen| {
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
    stage.promote(1);
    stage.all_say(1, 2);
    driver.leads_to(stage.addr(1)).await;
}

#[tokio::test]
async fn a_sentinel_of_two_services_is_connected_once_and_twice_with_other_credentials() {
    let stage = Stage::new(1, 2).await;
    let word = stage.word(0, 1, 4);
    stage.sentinels[0].mind().masters.insert("other".to_owned(), word);
    stage.nodes[1].mind().promote();
    let seeds = || vec![NodeAddr::from(stage.sentinels[0].addr)];
    let drivers =
        Driver::all(vec![watch(NAME, seeds()), watch("other", seeds())], &[], None, timeouts());
    drivers[0].leads_to(stage.addr(0)).await;
    drivers[1].leads_to(stage.addr(1)).await;
    assert_eq!(stage.sentinels[0].accepted(), 1);
    // An event about one of them is nothing to the other.
    let began = Instant::now();
    let gone = "master mymaster 127.0.0.1 1";
    stage.sentinels[0].publish("+sdown", gone);
    drivers[0].sees("suspicion", |seen| seen.state == "suspect").await;
    assert_eq!(drivers[1].seen().state, "stable");
    assert!(drivers[1].moves().iter().all(|(at, _)| *at < began));
    drop(drivers);
    let mut one = watch(NAME, seeds());
    one.0.sentinel_auth = Some(Credentials::new(None, "anything"));
    let before = stage.sentinels[0].accepted();
    let drivers = Driver::all(vec![one, watch("other", seeds())], &[], None, timeouts());
    drivers[0].leads_to(stage.addr(0)).await;
    drivers[1].leads_to(stage.addr(1)).await;
    assert_eq!(stage.sentinels[0].accepted() - before, 2);
}

#[tokio::test]
async fn further_sentinels_are_learnt_and_whoever_is_not_who_was_announced_has_no_vote() {
    let stage = Stage::new(3, 2).await;
    // What answers at the third's address is somebody else.
    stage.sentinels[2].mind().id = "e".repeat(40);
    let driver = Driver::one(watch(NAME, vec![stage.sentinels[0].addr.into()]));
    driver.leads_to(stage.addr(0)).await;
    driver
        .sees("the second, and the stranger refused", |seen| {
            let wrong = |it: &sentinel::SentinelSnapshot| {
                it.problem.as_ref().is_some_and(|why| why.contains("another sentinel"))
            };
            seen.quorum.0 == 3
                && seen.sentinels.iter().filter(|it| it.up && it.member).count() == 2
                && seen.sentinels.iter().any(|it| !it.up && !it.member && wrong(it))
        })
        .await;
    // Its restart with the right identity is taken.
    stage.sentinels[2].mind().id = my_id(3);
    driver
        .sees("all three", |seen| {
            seen.sentinels.iter().filter(|it| it.up && it.member).count() == 3
        })
        .await;
}

#[tokio::test]
async fn a_sentinel_replaced_at_its_address_is_taken_once_the_others_tell_of_it() {
    let stage = Stage::new(3, 2).await;
    let driver = Driver::one(watch(
        NAME,
        vec![stage.sentinels[0].addr.into(), stage.sentinels[1].addr.into()],
    ));
    driver
        .sees("all three", |seen| {
            seen.sentinels.iter().filter(|it| it.up && it.member).count() == 3
        })
        .await;
    // A new pod with an empty disk: another MYID at the same address.
    let fresh = "d".repeat(40);
    stage.sentinels[2].mind().id.clone_from(&fresh);
    stage.sentinels[2].cut();
    for it in &stage.sentinels[..2] {
        for (id, _, port) in &mut it.mind().word().peers {
            if *port == stage.sentinels[2].addr.port() {
                id.clone_from(&fresh);
            }
        }
    }
    driver
        .sees("the new one", |seen| {
            seen.sentinels
                .iter()
                .any(|it| it.up && it.id.as_ref().is_some_and(|id| id.as_str() == fresh))
        })
        .await;
}

#[tokio::test]
async fn a_sentinel_that_restarts_is_connected_again_and_asked_at_once() {
    let stage = Stage::new(3, 2).await;
    let driver = stage.drive();
    driver.leads_to(stage.addr(0)).await;
    for turn in 1..=3 {
        let accepted = stage.sentinels[0].accepted();
        stage.sentinels[0].cut();
        until("it is dialled again", || stage.sentinels[0].accepted() > accepted).await;
        driver
            .sees(&format!("up after restart {turn}"), |seen| seen.sentinels.iter().all(|it| it.up))
            .await;
    }
    assert_eq!(driver.generation(), 1);
}

#[tokio::test]
async fn learnt_addresses_go_through_the_map() {
    let stage = Stage::new(2, 2).await;
    let (real, node) = (stage.sentinels[1].addr, stage.addr(0));
    let far = |host: &str, port: u16| NodeAddr { host: host.into(), port };
    {
        let mut mind = stage.sentinels[0].mind();
        mind.word().peers = vec![(my_id(2), "198.51.100.1".to_owned(), 26379)];
        mind.word().ip = "198.51.100.2".to_owned();
        mind.word().port = 6379;
    }
    stage.sentinels[1].mind().word().ip = "198.51.100.2".to_owned();
    stage.sentinels[1].mind().word().port = 6379;
    let (mut watched, route) = watch(NAME, vec![stage.sentinels[0].addr.into()]);
    watched.address_map = BTreeMap::from([
        (far("198.51.100.1", 26379), real.into()),
        (far("198.51.100.2", 6379), node.into()),
    ]);
    let driver = Driver::one((watched, route));
    driver.leads_to(node).await;
    driver
        .sees("both", |seen| seen.sentinels.iter().filter(|it| it.up && it.member).count() == 2)
        .await;
    assert_eq!(
        driver.seen().master.as_ref().map(|it| it.addr.clone()),
        Some(far("198.51.100.2", 6379))
    );
}

/// Reached at every loopback address: the third byte of each that was dialled, and whoever dials is
/// left at once.
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
async fn a_liar_that_tells_of_others_without_end_makes_no_connections_without_end() {
    let stage = Stage::new(3, 2).await;
    let (port, dialled, _bystander) = bystander().await;
    let driver = stage.drive();
    driver.leads_to(stage.addr(0)).await;
    let lie = |turn: u8| -> Vec<(String, String, u16)> {
        let name = |it: usize| my_id(1000 + usize::from(turn) * 64 + it);
        (0..64).map(|it| (name(it), format!("127.1.{turn}.{}", it + 1), port)).collect()
    };
    let (started, mut turn) = (Instant::now(), 0);
    while started.elapsed() < ms(1500) && turn < u8::MAX {
        turn += 1;
        stage.sentinels[0].mind().word().peers = lie(turn);
        stage.sentinels[0].publish("+sentinel", "sentinel x 10.0.0.1 1 @ mymaster 10.0.0.1 1");
        tokio::time::sleep(ms(5)).await;
    }
    until("the last of them at least is dialled", || {
        !dialled.lock().expect("no poison").is_empty()
    })
    .await;
    // One of them four times a second, however long this took; not every one.
    let lies = dialled.lock().expect("no poison").len();
    let most = started.elapsed().as_millis() / 250 + 2;
    assert!(lies as u128 <= most, "{lies} of {turn} lies were dialled, where {most} may be");
    stays(ms(200), "the master stays", || driver.generation() == 1).await;
    driver
        .sees("still a majority of the known ones", |seen| {
            seen.sentinels.iter().filter(|it| it.member && it.up).count() >= 3
        })
        .await;
}
