//! Sentinels that disagree, are stale, say nothing at all, or cannot be reached: rows 4 to 10, 12,
//! 16 and 17.

use std::collections::BTreeMap;

use crate::fake::{Fake, Manner};
use crate::players::SentinelMind;
use crate::stage::{Driver, NAME, Stage, ms, quick, rules, stays, timeouts, until, watch};

#[tokio::test]
async fn at_one_epoch_the_majority_decides_and_the_points_do_not_flap() {
    let stage = Stage::new(3, 3).await;
    stage.nodes[1].mind().promote();
    stage.say(2, 1, 1);
    let driver = stage.drive();
    driver.leads_to(stage.addr(0)).await;
    driver
        .sees("who disagrees", |seen| {
            let dissent: Vec<_> =
                seen.sentinels.iter().filter(|it| it.disagrees).map(|it| it.addr.clone()).collect();
            seen.disagreement && dissent == [stage.sentinels[2].addr.into()]
        })
        .await;
    stays(ms(800), "one commit", || {
        driver.generation() == 1 && driver.target() == Some(stage.addr(0))
    })
    .await;
    stage.say(2, 0, 1);
    driver
        .sees("agreement", |seen| {
            !seen.disagreement && seen.sentinels.iter().all(|it| !it.disagrees)
        })
        .await;
}

#[tokio::test]
async fn a_stale_sentinel_with_a_living_old_master_is_ignored_and_counted() {
    let stage = Stage::new(3, 3).await;
    stage.all_say(1, 7);
    stage.nodes[1].mind().promote();
    stage.say(0, 0, 3);
    let driver = stage.drive();
    driver.leads_to(stage.addr(1)).await;
    driver.sees("stale views", |seen| seen.counts.stale_views > 2).await;
    assert_eq!(driver.generation(), 1);
    assert_eq!(driver.seen().master.as_ref().map(|it| it.epoch), Some(7));
}

#[tokio::test]
async fn a_missed_switch_is_found_by_polling() {
    let stage = Stage::new(3, 3).await;
    let driver = stage.drive();
    driver.leads_to(stage.addr(0)).await;
    stage.sentinels.iter().for_each(|it| it.behave(Manner::NoEvents));
    stage.promote(1);
    stage.all_say(1, 2);
    driver.leads_to(stage.addr(1)).await;
}

#[tokio::test]
async fn a_silent_subscription_is_found_out_and_dialled_again() {
    let stage = Stage::new(3, 3).await;
    let driver = Driver::timed(stage.watch(), quick());
    driver.leads_to(stage.addr(0)).await;
    driver.sees("all up", |seen| seen.sentinels.iter().filter(|it| it.up).count() == 3).await;
    let before = stage.sentinels[1].accepted();
    stage.sentinels[1].behave(Manner::Mute);
    driver
        .sees("silence", |seen| {
            seen.sentinels
                .iter()
                .any(|it| it.problem.as_ref().is_some_and(|why| why.contains("does not answer")))
        })
        .await;
    until("it is dialled again", || stage.sentinels[1].accepted() > before).await;
    assert_eq!(driver.target(), Some(stage.addr(0)));
    stage.sentinels[1].behave(Manner::Proper);
    driver
        .sees("all up again", |seen| {
            seen.sentinels.iter().filter(|it| it.up && it.events).count() == 3
        })
        .await;
}

#[tokio::test]
async fn with_one_sentinel_or_all_of_them_down_the_master_stays() {
    let stage = Stage::new(3, 2).await;
    let driver = stage.drive();
    driver.leads_to(stage.addr(0)).await;
    let down = |it: &crate::stage::Sentinel| {
        it.behave(Manner::Hangup);
        it.cut();
    };
    down(&stage.sentinels[0]);
    driver.sees("one down", |seen| seen.sentinels.iter().filter(|it| !it.up).count() == 1).await;
    stage.sentinels.iter().for_each(down);
    driver
        .sees("all down", |seen| seen.sentinels.iter().all(|it| !it.up && it.problem.is_some()))
        .await;
    stays(ms(500), "traffic flows", || {
        driver.route.usable_target().is_some() && driver.generation() == 1
    })
    .await;
    assert!(driver.seen().stopped_since.is_none());
    // And back: they are followed again.
    stage.sentinels.iter().for_each(|it| it.behave(Manner::Proper));
    stage.promote(1);
    stage.all_say(1, 2);
    driver.leads_to(stage.addr(1)).await;
}

#[tokio::test]
async fn with_all_sentinels_down_at_the_start_it_waits_for_them() {
    let stage = Stage::new(3, 2).await;
    stage.sentinels.iter().for_each(|it| it.behave(Manner::Hangup));
    let driver = stage.drive();
    driver
        .sees("all down", |seen| {
            seen.sentinels.len() == 3 && seen.sentinels.iter().all(|it| it.problem.is_some())
        })
        .await;
    assert!(driver.target().is_none() && driver.seen().stopped_since.is_some());
    assert!(stage.sentinels[0].accepted() < 100, "with back-off");
    stage.sentinels.iter().for_each(|it| it.behave(Manner::Proper));
    driver.leads_to(stage.addr(0)).await;
}

#[tokio::test]
async fn an_unknown_name_is_told_and_counted_and_abstains() {
    let stage = Stage::new(3, 2).await;
    stage.sentinels.iter().for_each(|it| it.mind().masters.clear());
    let driver = stage.drive();
    driver
        .sees("unknown", |seen| {
            let told = |it: &sentinel::SentinelSnapshot| {
                it.problem.as_ref().is_some_and(|why| why.contains("no master named"))
            };
            seen.counts.unknown_names > 0
                && seen.sentinels.len() == 3
                && seen.sentinels.iter().all(told)
        })
        .await;
    assert!(driver.target().is_none());
    stage.all_say(0, 1);
    driver.leads_to(stage.addr(0)).await;
    // Unknown to all of them later on, it still is no reason to leave the master.
    stage.sentinels.iter().for_each(|it| it.mind().masters.clear());
    stays(ms(600), "the master stays", || driver.route.usable_target().is_some()).await;
    // Names are told apart by case, as Sentinel does it.
    let addrs = stage.sentinels.iter().map(|it| it.addr.into()).collect();
    stage.all_say(0, 1);
    let other = Driver::one(watch("MyMaster", addrs));
    other.sees("unknown", |seen| seen.counts.unknown_names > 0).await;
    assert!(other.target().is_none());
}

#[tokio::test]
async fn port_zero_and_our_own_address_are_rejected() {
    let stage = Stage::new(3, 2).await;
    stage.sentinels.iter().for_each(|it| it.mind().word().port = 0);
    let own = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let ours = own.local_addr().expect("an address");
    let driver = Driver::all(vec![stage.watch()], &[ours], None, timeouts()).remove(0);
    driver.sees("bad rounds", |seen| seen.counts.bad_rounds > 2).await;
    assert!(driver.target().is_none());
    for it in &stage.sentinels {
        it.mind().word().port = ours.port();
        // And as a sentinel: a peer that is said to be at our own address.
        let ours = ("f".repeat(40), ours.ip().to_string(), ours.port());
        it.mind().word().peers.push(ours);
    }
    driver
        .sees("rejected", |seen| {
            seen.nodes.iter().any(|it| {
                it.probe
                    .as_ref()
                    .is_some_and(|it| it.outcome == Err(sentinel::ProbeFailure::Rejected))
            })
        })
        .await;
    driver
        .sees("the peer too", |seen| {
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
    stage.all_say(0, 1);
    driver.leads_to(stage.addr(0)).await;
}

#[tokio::test]
async fn two_sentinels_with_one_identity_have_one_voice() {
    let stage = Stage::new(3, 3).await;
    // The third is a copy of the second, with an opinion of its own.
    stage.sentinels[2].mind().id = crate::players::my_id(2);
    stage.nodes[1].mind().promote();
    stage.say(2, 1, 1);
    let driver = stage.drive();
    driver
        .sees("a twin", |seen| {
            seen.sentinels
                .iter()
                .filter(|it| {
                    it.problem.as_ref().is_some_and(|why| why.contains("not counted twice"))
                })
                .count()
                == 1
        })
        .await;
    // Whichever of the two is heard, no majority of three comes from two voices that disagree.
    stage.say(1, 0, 1);
    stage.say(2, 0, 1);
    driver.leads_to(stage.addr(0)).await;
    stays(ms(500), "no flapping", || driver.generation() == 1).await;
}

#[tokio::test]
async fn tilt_voids_the_opinion_on_who_is_down_and_nothing_else() {
    let stage = Stage::new(3, 2).await;
    for it in &stage.sentinels {
        let mut mind = it.mind();
        mind.tilt = true;
        mind.word().flags = "master,s_down,o_down".to_owned();
    }
    let driver = stage.drive();
    driver.leads_to(stage.addr(0)).await;
    driver.sees("stable", |seen| seen.state == "stable").await;
    stays(ms(400), "no suspicion", || driver.seen().state == "stable").await;
}

#[tokio::test]
async fn a_round_that_is_always_torn_is_asked_again_ever_more_seldom() {
    let stage = Stage::new(3, 2).await;
    let odd = stage.addr(1).port();
    stage.sentinels[2].mind().word().torn = Some(odd);
    let driver = stage.drive();
    driver.leads_to(stage.addr(0)).await;
    driver.sees("torn rounds", |seen| seen.counts.bad_rounds > 5).await;
    let before: Vec<usize> = stage.sentinels.iter().map(Fake::<SentinelMind>::commands).collect();
    tokio::time::sleep(ms(1000)).await;
    let after: Vec<usize> = stage.sentinels.iter().map(Fake::<SentinelMind>::commands).collect();
    for (number, (before, after)) in before.iter().zip(&after).enumerate() {
        // A round is six commands, five a second are due by the poll; a spin would make thousands.
        assert!(
            after - before < 40 * 6,
            "sentinel {number} was asked {} times in a second",
            (after - before) / 6
        );
    }
    let masters: BTreeMap<_, _> = stage.sentinels[2].mind().masters.clone();
    assert!(masters.contains_key(NAME) && rules().poll == ms(200));
}
