//! The measured timelines of a planned failover and of a killed master, replayed with their true
//! distances up to the first switch. Polls and probes are slow here: what happens, happens because
//! of the events.

use std::time::Instant;

use crate::stage::{Driver, Move, NAME, NEVER, Stage, ms, patient_rules, stays};

async fn ready() -> (Stage, Driver) {
    let stage = Stage::new(3, 3).await;
    let (mut watch, route) = stage.watch();
    // Not even while something is suspected, and no hold ends by itself: whatever waited for the
    // clock would never be seen.
    watch.rules = sentinel::Rules {
        poll_suspect: NEVER,
        probe_suspect: NEVER,
        hold_max: NEVER,
        ..patient_rules()
    };
    let driver = Driver::one((watch, route));
    driver.leads_to(stage.addr(0)).await;
    driver
        .sees("three members", |seen| {
            seen.quorum == (3, 2) && seen.sentinels.iter().all(|it| it.member)
        })
        .await;
    driver.sees("calm", |seen| seen.state == "stable").await;
    stage.quiet().await;
    (stage, driver)
}

/// The observer follows the leader's hello: `+config-update-from` and its own switch.
fn observer_switches(stage: &Stage, observer: usize, leader: usize, epoch: u64) {
    let (id, at) = (crate::players::my_id(leader + 1), stage.sentinels[leader].addr);
    let old = stage.addr(0);
    let payload =
        format!("sentinel {id} {} {} @ {NAME} {} {}", at.ip(), at.port(), old.ip(), old.port());
    stage.sentinels[observer].publish("+config-update-from", &payload);
    stage.switch(observer, 0, 1, epoch);
}

#[tokio::test]
async fn a_planned_failover_holds_at_the_selection_and_commits_at_the_first_switch() {
    let (stage, driver) = ready().await;
    let fence = driver.route.current().expect("a target");
    let began = Instant::now();
    let at = |ms_: u64| tokio::time::sleep_until((began + ms(ms_)).into());
    at(8).await;
    stage.about_master(0, "+elected-leader", 0);
    at(84).await;
    let selected = Instant::now();
    stage.announce(0, "+selected-slave", 1, 0);
    stage.announce(0, "+failover-state-send-slaveof-noone", 1, 0);
    let shut = driver.moved(Move::Shut, began).await;
    // That it shuts at all shows that it waits for nothing; and so it is with the commit.
    assert!(shut >= selected, "nothing is held before the selection");
    at(175).await;
    stage.promote(1);
    stage.announce(0, "+failover-state-wait-promotion", 1, 0);
    at(1061).await;
    assert!(
        driver.route.is_closed() && driver.target() == Some(stage.addr(0)),
        "promoted is not committed"
    );
    assert!(!fence.fence().is_raised());
    // The leader names the new master from here on, but its MASTER still shows the old address:
    // get-master-addr is right.
    stage.say(0, 1, 2);
    stage.announce(0, "+promoted-slave", 1, 0);
    at(1146).await;
    let switched = Instant::now();
    observer_switches(&stage, 1, 0, 2);
    let committed = driver.moved(Move::To(stage.addr(1)), began).await;
    let lead = driver.seen().failovers.last().cloned().expect("a failover");
    eprintln!(
        "planned: held after {:?}, committed {:?} after the first switch",
        shut - selected,
        committed.saturating_duration_since(switched)
    );
    assert!(fence.fence().is_raised());
    assert_eq!(
        (&lead.to, lead.epoch, lead.basis),
        (&stage.addr(1).into(), 2, sentinel::Basis::Majority)
    );
    // Measured from that very notice: not from the leader's word 85 ms before, and not from the
    // answers to the round after it.
    let decided = lead.decided_at.expect("a majority decided");
    assert!(decided >= switched && lead.evidence_read_at.is_some_and(|read| read >= decided));
    assert!(
        lead.swap().expect("a move") >= lead.verification().expect("evidence")
            && lead.swapped_at >= decided
    );
    assert_eq!(lead.first_session(), None);
    driver.route.usable_target().expect("open").record_use();
    driver
        .sees("the first session", |seen| {
            seen.failovers.last().is_some_and(|it| it.first_session().is_some())
        })
        .await;
    observer_switches(&stage, 2, 0, 2);
    at(2164).await;
    stage.switch(0, 0, 1, 2);
    stays(ms(200), "one commit", || driver.generation() == 2 && !driver.route.is_closed()).await;
    let moves: Vec<Move> =
        driver.moves().into_iter().filter(|(when, _)| *when >= began).map(|(_, it)| it).collect();
    assert_eq!(moves, [Move::Shut, Move::To(stage.addr(1)), Move::Open]);
}

#[tokio::test]
async fn a_killed_master_is_followed_at_the_first_switch_that_makes_a_majority() {
    let (stage, driver) = ready().await;
    let began = Instant::now();
    let at = |ms_: u64| tokio::time::sleep_until((began + ms(ms_)).into());
    stage.nodes[0].behave(crate::fake::Manner::Hangup);
    stage.nodes[0].cut();
    // The distances after the detection, which is Sentinel's own: 2051 ms become 200.
    at(200).await;
    (0..3).for_each(|it| stage.about_master(it, "+sdown", 0));
    at(261).await;
    stage.about_master(0, "+odown", 0);
    at(352).await;
    stage.about_master(0, "+elected-leader", 0);
    at(428).await;
    stage.announce(0, "+selected-slave", 1, 0);
    at(500).await;
    stage.promote(1);
    stage.announce(0, "+failover-state-wait-promotion", 1, 0);
    at(1273).await;
    assert_eq!(
        driver.moves().iter().filter(|(_, it)| matches!(it, Move::To(_))).count(),
        1,
        "only the first commit"
    );
    stage.say(0, 1, 2);
    stage.announce(0, "+promoted-slave", 1, 0);
    at(1340).await;
    let switched = Instant::now();
    observer_switches(&stage, 1, 0, 2);
    let committed = driver.moved(Move::To(stage.addr(1)), began).await;
    eprintln!(
        "killed: committed {:?} after the first switch",
        committed.saturating_duration_since(switched)
    );
    observer_switches(&stage, 2, 0, 2);
    stage.switch(0, 0, 1, 2);
    stays(ms(200), "one commit", || driver.generation() == 2 && !driver.route.is_closed()).await;
}
