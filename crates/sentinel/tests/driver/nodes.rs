//! The redis nodes: loading, stale, hung, demoted, restarted; canaries; hints. Rows 2, 5, 19 and
//! what belongs to them.

use std::time::{Duration, Instant};

use sentinel::{ProbeFailure, Verify};

use crate::fake::Manner;
use crate::stage::{Driver, Move, Stage, ms, patient_rules, stays, until};

#[tokio::test]
async fn a_new_master_that_is_loading_is_waited_for_with_the_gate_shut() {
    for error in [
        "-LOADING Redis is loading the dataset in memory\r\n",
        "-MASTERDOWN Link with MASTER is down\r\n",
    ] {
        let stage = Stage::new(3, 3).await;
        let driver = stage.drive();
        driver.leads_to(stage.addr(0)).await;
        let began = Instant::now();
        stage.promote(1);
        stage.nodes[1].mind().pong = error.as_bytes().to_vec();
        (0..3).for_each(|it| stage.switch(it, 0, 1, 2));
        driver.moved(Move::Shut, began).await;
        stays(ms(300), "held", || {
            driver.route.is_closed() && driver.target() == Some(stage.addr(0))
        })
        .await;
        stage.nodes[1].mind().pong = b"+PONG\r\n".to_vec();
        driver.leads_to(stage.addr(1)).await;
        assert_eq!(driver.generation(), 2);
    }
}

#[tokio::test]
async fn a_target_that_is_loading_is_looked_at_harder_and_stays() {
    let stage = Stage::new(3, 2).await;
    let driver = stage.drive();
    driver.leads_to(stage.addr(0)).await;
    stage.nodes[0].mind().pong = b"-LOADING Redis is loading the dataset in memory\r\n".to_vec();
    driver.sees("suspicion", |seen| seen.state == "suspect").await;
    stage.nodes[0].mind().pong = b"+PONG\r\n".to_vec();
    driver.sees("calm", |seen| seen.state == "stable").await;
    assert_eq!(driver.generation(), 1);
}

#[tokio::test]
async fn a_replica_that_is_named_as_master_is_not_committed_before_it_is_one() {
    let stage = Stage::new(3, 3).await;
    let driver = stage.drive();
    driver.leads_to(stage.addr(0)).await;
    let began = Instant::now();
    (0..3).for_each(|it| stage.switch(it, 0, 1, 2));
    driver.moved(Move::Shut, began).await;
    stays(ms(200), "not yet", || driver.target() == Some(stage.addr(0))).await;
    stage.promote(1);
    driver.leads_to(stage.addr(1)).await;
}

#[tokio::test]
async fn the_old_master_is_never_gone_back_to_while_it_says_that_it_is_one() {
    let stage = Stage::new(3, 3).await;
    let driver = stage.drive();
    driver.leads_to(stage.addr(0)).await;
    stage.promote(1);
    (0..3).for_each(|it| stage.switch(it, 0, 1, 2));
    driver.leads_to(stage.addr(1)).await;
    // It is alive, a master by its own word, and one sentinel still names it at the old epoch.
    stage.say(2, 0, 1);
    stage.nodes[0].cut();
    stays(ms(700), "the new one", || driver.target() == Some(stage.addr(1))).await;
}

/// After so long the driver asks a question again beside, on another connection.
const GIVE_UP: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_stopped_node_costs_one_connection_and_its_late_answer_counts() {
    let stage = Stage::new(3, 2).await;
    let (mut watched, route) = stage.watch();
    watched.probe_timeout = ms(250);
    let driver = Driver::one((watched, route));
    driver.leads_to(stage.addr(0)).await;
    let (accepted, asked) = (stage.nodes[0].accepted(), stage.nodes[0].commands());
    // Accepts, reads, and answers after far longer than a probe waits: every single command.
    stage.nodes[0].behave(Manner::Late(ms(900)));
    // When it was asked what it does not answer.
    let silent = |seen: &sentinel::DiscoverySnapshot| {
        let master = seen.nodes.iter().find(|it| it.addr == stage.addr(0).into());
        let probe = master.and_then(|it| it.probe.as_ref());
        probe.filter(|it| it.outcome == Err(ProbeFailure::Silent)).map(|it| it.asked_at)
    };
    driver.sees("silence", |seen| silent(seen).is_some()).await;
    let question = silent(&driver.seen()).expect("just seen");
    stays(ms(400), "one question, one connection", || {
        stage.nodes[0].accepted() == accepted && stage.nodes[0].commands() - asked <= 8
    })
    .await;
    assert!(driver.route.usable_target().is_some(), "busy is not gone");
    stage.nodes[0].behave(Manner::Proper);
    // The answer that is slept over comes, and the others of its question right behind it.
    let before = stage.nodes[0].commands();
    until("the rest was answered", || stage.nodes[0].commands() > before).await;
    driver.sees("its answer", |seen| silent(seen).is_none()).await;
    assert!(
        question.elapsed() < GIVE_UP,
        "an answer counts although it is late: {:?}",
        question.elapsed()
    );
    driver.sees("calm", |seen| seen.state == "stable").await;
    assert_eq!((driver.generation(), stage.nodes[0].accepted()), (1, accepted));
}

#[tokio::test]
async fn an_idle_connection_that_turns_out_to_be_dead_says_nothing_about_the_server() {
    let stage = Stage::new(3, 1).await;
    let driver = stage.drive();
    driver.leads_to(stage.addr(0)).await;
    driver.sees("calm", |seen| seen.state == "stable").await;
    let accepted = stage.nodes[0].accepted();
    stage.nodes[0].mind().once = true;
    let stable = || assert_eq!(driver.seen().state, "stable");
    until("it died three times", || {
        stable();
        stage.nodes[0].accepted() > accepted + 2
    })
    .await;
    stable();
}

#[tokio::test]
async fn the_end_of_a_canary_is_the_first_sign_of_a_promotion() {
    let stage = Stage::new(3, 3).await;
    let (mut watched, route) = stage.watch();
    watched.rules = patient_rules();
    let driver = Driver::one((watched, route));
    driver.leads_to(stage.addr(0)).await;
    driver
        .sees("canaries", |seen| {
            seen.nodes.len() == 3 && seen.nodes.iter().all(|it| it.probe.is_some())
        })
        .await;
    driver.sees("calm", |seen| seen.state == "stable" && seen.quorum.0 == 3).await;
    stage.quiet().await;
    let began = Instant::now();
    stage.promote(1);
    driver.moved(Move::Shut, began).await;
    driver
        .sees("since when", |seen| seen.held_since.is_some() && seen.stopped_since.is_some())
        .await;
    (0..3).for_each(|it| stage.switch(it, 0, 1, 2));
    driver.leads_to(stage.addr(1)).await;
    driver.sees("open", |seen| seen.held_since.is_none() && seen.stopped_since.is_none()).await;
}

#[tokio::test]
async fn a_node_that_ends_every_connection_at_once_is_not_asked_in_a_loop() {
    for verify in [Verify::Role, Verify::Tcp, Verify::Ping] {
        let stage = Stage::new(1, 2).await;
        let (mut watched, route) = stage.watch();
        watched.rules.verify = verify;
        let driver = Driver::one((watched, route));
        driver.leads_to(stage.addr(0)).await;
        stage.nodes[1].behave(Manner::Hangup);
        stage.nodes[1].cut();
        let before = stage.nodes[1].accepted();
        tokio::time::sleep(ms(1000)).await;
        let dials = stage.nodes[1].accepted() - before;
        // Two for each probe at the quickest pace, with the ends in between.
        assert!(dials < 150, "{dials} dials a second with {verify:?}");
        assert_eq!(driver.target(), Some(stage.addr(0)));
    }
}

#[tokio::test]
async fn degraded_verification_asks_no_more_than_it_may() {
    for (verify, forbidden) in
        [(Verify::Ping, &["ROLE", "INFO"][..]), (Verify::Tcp, &["PING", "ROLE", "INFO", "CLIENT"])]
    {
        let stage = Stage::new(3, 2).await;
        let (mut watched, route) = stage.watch();
        watched.rules.verify = verify;
        let driver = Driver::one((watched, route));
        driver.leads_to(stage.addr(0)).await;
        stage.nodes[0].behave(Manner::Hangup);
        stage.nodes[0].cut();
        stage.promote(1);
        (0..3).for_each(|it| stage.switch(it, 0, 1, 2));
        driver.leads_to(stage.addr(1)).await;
        for node in &stage.nodes {
            assert!(
                !node.heard().iter().any(|it| forbidden.iter().any(|word| it.starts_with(word))),
                "{verify:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_hint_makes_it_look_at_once_and_many_hints_do_not_make_it_look_without_end() {
    let stage = Stage::new(3, 2).await;
    let (mut watched, route) = stage.watch();
    watched.rules = patient_rules();
    let driver = Driver::one((watched, route));
    driver.leads_to(stage.addr(0)).await;
    driver.sees("calm", |seen| seen.state == "stable" && seen.quorum.0 == 3).await;
    stage.quiet().await;
    // Nothing is said and nothing polled: only the hint can bring it up.
    stage.sentinels.iter().for_each(|it| it.behave(Manner::NoEvents));
    stage.nodes[1].mind().promote();
    stage.all_say(1, 2);
    stays(ms(300), "nobody looks", || driver.target() == Some(stage.addr(0))).await;
    driver.handle.hint();
    driver.leads_to(stage.addr(1)).await;
    driver.sees("calm again", |seen| seen.state == "stable").await;
    stage.quiet().await;
    let rounds = |stage: &Stage| {
        stage.sentinels[0].heard().iter().filter(|it| it.starts_with("INFO")).count()
    };
    let (before, started) = (rounds(&stage), Instant::now());
    while started.elapsed() < ms(2000) {
        driver.handle.hint();
        tokio::time::sleep(ms(1)).await;
    }
    let asked = rounds(&stage) - before;
    assert!(
        (1..=45).contains(&asked),
        "{asked} rounds in two seconds of hints: the suspect pace and no more"
    );
}

#[tokio::test]
async fn a_restarted_master_is_verified_anew_and_its_sessions_are_cut() {
    let stage = Stage::new(3, 2).await;
    let driver = stage.drive();
    driver.leads_to(stage.addr(0)).await;
    driver.sees("quiet", |seen| seen.state == "stable").await;
    let before = driver.route.current().expect("a target");
    stage.nodes[0].mind().run_id = "9".repeat(40);
    stage.nodes[0].cut();
    until("a new generation", || driver.generation() == 2).await;
    assert!(before.fence().is_raised() && driver.target() == Some(stage.addr(0)));
}
