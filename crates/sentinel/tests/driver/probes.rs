//! The probe connection: a question that stays open, a server that turns connections away, and one
//! that only a new connection reaches. Row 56 and what belongs to it.

use std::time::{Duration, Instant};

use sentinel::{DiscoverySnapshot, Probe, ProbeFailure};

use crate::fake::Manner;
use crate::stage::{Driver, Move, Stage, ms, stays, until};

/// What redis says to a connection beyond its limit before it closes it.
const FULL: &[u8] = b"-ERR max number of clients reached\r\n";

/// For longer than a question was ever waited for.
const LONG: Duration = Duration::from_secs(6);

async fn drive(stage: &Stage) -> Driver {
    let (mut watched, route) = stage.watch();
    watched.probe_timeout = ms(250);
    let driver = Driver::one((watched, route));
    driver.leads_to(stage.addr(0)).await;
    driver.sees("calm", |seen| seen.state == "stable").await;
    driver
}

/// The last probe of node 0.
fn last(stage: &Stage, seen: &DiscoverySnapshot) -> Option<Probe> {
    seen.nodes.iter().find(|it| it.addr == stage.addr(0).into())?.probe.clone()
}

fn fails(stage: &Stage, seen: &DiscoverySnapshot, failure: ProbeFailure) -> bool {
    last(stage, seen).is_some_and(|probe| probe.outcome == Err(failure))
}

fn never_shut(driver: &Driver) {
    let moves = driver.moves();
    assert!(!moves.iter().any(|(_, it)| matches!(it, Move::Shut | Move::Nowhere)), "{moves:?}");
    assert_eq!(driver.generation(), 1);
}

#[tokio::test]
async fn keeps_probe_connection_of_a_busy_full_master() {
    let stage = Stage::new(3, 1).await;
    let driver = drive(&stage).await;
    // Whoever has no connection when the server wakes up gets none.
    stage.nodes[0].refuse(Some(FULL));
    stage.nodes[0].behave(Manner::Busy);
    driver.sees("silence", |seen| fails(&stage, seen, ProbeFailure::Silent)).await;
    let question = last(&stage, &driver.seen()).expect("a probe").asked_at;
    stays(LONG, "busy is not gone", || !driver.route.is_closed()).await;
    let woke = Instant::now();
    stage.nodes[0].behave(Manner::Proper);
    driver
        .sees("an answer", |seen| last(&stage, seen).is_some_and(|probe| probe.outcome.is_ok()))
        .await;
    driver.sees("calm", |seen| seen.state == "stable").await;
    // The next question was asked after the open one was answered: an answer never counts for a
    // younger question.
    driver
        .sees("a younger question", |seen| {
            last(&stage, seen).is_some_and(|probe| probe.asked_at > woke)
        })
        .await;
    assert!(question < woke);
    never_shut(&driver);
}

#[tokio::test]
async fn takes_a_node_that_turns_away_for_present() {
    for refusal in [FULL, b"-ERR something else\r\n"] {
        let stage = Stage::new(3, 1).await;
        let driver = drive(&stage).await;
        stage.nodes[0].refuse(Some(refusal));
        stage.nodes[0].cut();
        driver.sees("turned away", |seen| fails(&stage, seen, ProbeFailure::TurnedAway)).await;
        driver.sees("why", |seen| seen.nodes.iter().all(|it| it.problem.is_some())).await;
        let (before, began) = (stage.nodes[0].accepted(), Instant::now());
        stays(ms(2500), "the gate stays open", || !driver.route.is_closed()).await;
        let dials = stage.nodes[0].accepted() - before;
        assert!(dials > 5 && (dials as u128) < began.elapsed().as_millis() / 10, "{dials} dials");
        stage.nodes[0].refuse(None);
        driver
            .sees("calm", |seen| {
                seen.state == "stable" && seen.nodes.iter().all(|it| it.problem.is_none())
            })
            .await;
        never_shut(&driver);
    }
}

#[tokio::test]
async fn tells_protected_mode_as_what_it_is() {
    let stage = Stage::new(1, 1).await;
    stage.nodes[0].refuse(Some(b"-DENIED Redis is running in protected mode because ...\r\n"));
    let driver = stage.drive();
    let told = |seen: &DiscoverySnapshot| {
        seen.nodes.iter().any(|it| it.problem.as_ref().is_some_and(|it| it.contains("protected")))
    };
    driver.sees("protected mode", told).await;
    stage.nodes[0].refuse(None);
    driver.leads_to(stage.addr(0)).await;
}

#[tokio::test]
async fn finds_a_node_on_a_new_connection_if_the_old_is_dead() {
    let stage = Stage::new(3, 1).await;
    let driver = drive(&stage).await;
    // Something in between holds the old connection open, of which nothing will ever come.
    stage.nodes[0].strand();
    driver.sees("silence", |seen| fails(&stage, seen, ProbeFailure::Silent)).await;
    driver.sees("calm", |seen| seen.state == "stable").await;
    // The old one is let go as soon as the new one answers.
    until("one connection", || stage.nodes[0].open() == 1).await;
    never_shut(&driver);
}

#[tokio::test]
async fn dials_a_busy_node_seldom() {
    let stage = Stage::new(3, 1).await;
    let driver = drive(&stage).await;
    let before = stage.nodes[0].accepted();
    stage.nodes[0].behave(Manner::Busy);
    stays(Duration::from_secs(12), "busy is not gone", || !driver.route.is_closed()).await;
    let dials = stage.nodes[0].accepted() - before;
    assert!((1..=3).contains(&dials), "{dials} dials in twelve seconds");
    stage.nodes[0].behave(Manner::Proper);
    driver.sees("calm", |seen| seen.state == "stable").await;
    until("one connection", || stage.nodes[0].open() == 1).await;
    never_shut(&driver);
}

#[tokio::test]
async fn takes_a_busy_node_for_present_after_a_redial() {
    for said in [
        &b"-BUSY Redis is busy running a script.\r\n"[..],
        b"-LOADING Redis is loading the dataset in memory\r\n",
    ] {
        let stage = Stage::new(3, 1).await;
        let driver = drive(&stage).await;
        stage.nodes[0].behave(Manner::Raw(said.to_vec()));
        stage.nodes[0].cut();
        driver.sees("suspicion", |seen| seen.state == "suspect").await;
        stays(ms(2500), "the gate stays open", || !driver.route.is_closed()).await;
        stage.nodes[0].behave(Manner::Proper);
        driver.sees("calm", |seen| seen.state == "stable").await;
        never_shut(&driver);
    }
}

#[tokio::test]
async fn tells_a_sentinel_at_its_limit_of_clients() {
    let stage = Stage::new(1, 1).await;
    stage.sentinels[0].refuse(Some(FULL));
    let driver = stage.drive();
    let told = |seen: &DiscoverySnapshot| {
        seen.sentinels
            .iter()
            .any(|it| it.problem.as_ref().is_some_and(|it| it.contains("maxclients")))
    };
    driver.sees("the limit", told).await;
    stage.sentinels[0].refuse(None);
    driver.leads_to(stage.addr(0)).await;
}

#[tokio::test]
async fn takes_a_node_that_dies_after_a_refused_name_for_gone() {
    let stage = Stage::new(3, 1).await;
    let driver = drive(&stage).await;
    // The ACL is too narrow for the greeting, which is no reason to close: the process ended.
    stage.nodes[0].refuse(Some(
        b"-NOPERM this user has no permissions to run the 'client|setname' command\r\n",
    ));
    stage.nodes[0].cut();
    driver.sees("nobody there", |seen| fails(&stage, seen, ProbeFailure::Unreachable)).await;
    let accepted = stage.nodes[0].accepted();
    until("it is dialled again", || stage.nodes[0].accepted() > accepted + 3).await;
    stage.nodes[0].refuse(None);
    driver.leads_to(stage.addr(0)).await;
    driver.sees("calm", |seen| seen.state == "stable").await;
}

#[tokio::test]
async fn takes_a_silent_node_that_accepts_nobody_for_gone() {
    let stage = Stage::new(3, 1).await;
    let driver = drive(&stage).await;
    // A proxy in between keeps the old connection open, and closes new ones since it reaches
    // nobody.
    stage.nodes[0].strand();
    stage.nodes[0].refuse(Some(b""));
    driver.sees("nobody there", |seen| fails(&stage, seen, ProbeFailure::Unreachable)).await;
    driver.sees("the gate shut", |seen| seen.state == "no_master").await;
    until("the old connection alone is open", || stage.nodes[0].open() == 1).await;
    stage.nodes[0].refuse(None);
    driver.leads_to(stage.addr(0)).await;
    driver.sees("calm", |seen| seen.state == "stable").await;
    assert_eq!(driver.generation(), 1);
}
