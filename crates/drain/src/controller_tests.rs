//! The controller against a stopped clock: that it does what the plan says, when it says it.

use std::time::Duration;

use crate::plan::{CUT_GRACE, Phase, Settings, StopRequest};
use crate::ticket::Exit;
use crate::{Tally, new};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn phases_are_published_in_order_and_the_summary_has_their_durations() {
    let (drain, controller) = new(Settings::default());
    let running = tokio::spawn(controller.run());
    let before = drain.ticket();
    before.close(Exit::Left);
    let stubborn = drain.ticket();
    let begin = tokio::time::Instant::now();
    assert_eq!(drain.phase(), Phase::Serving);
    drain.order(StopRequest::Drain);
    let mut at = Vec::new();
    for phase in [Phase::Leaving, Phase::Draining, Phase::Cutting] {
        drain.reached(phase).await;
        assert_eq!(drain.phase(), phase);
        at.push(begin.elapsed().as_secs());
    }
    assert_eq!(at, [0, 5, 25]);
    assert!(stubborn.is_cut());
    tokio::time::sleep(Duration::from_millis(200)).await;
    stubborn.close(Exit::Cut);
    let summary = running.await.unwrap();
    assert_eq!(drain.phase(), Phase::Stopped);
    drain.reached(Phase::Serving).await;
    drain.reached(Phase::Stopped).await;
    assert_eq!((summary.leaving, summary.draining), (5 * SECOND, 20 * SECOND));
    // The timer's resolution is a millisecond.
    assert!((199..=202).contains(&summary.cutting.as_millis()), "{:?}", summary.cutting);
    assert_eq!(summary.total, summary.leaving + summary.draining + summary.cutting);
    assert_eq!(summary.tally, Tally { open: 0, left: 1, asked: 0, cut: 1 });
    assert_eq!(summary.since_order, Tally { open: 0, left: 0, asked: 0, cut: 1 });
    assert!(!summary.is_clean());
}

#[tokio::test(start_paused = true)]
async fn without_sessions_it_is_over_after_the_accepting_phase() {
    let (drain, controller) = new(Settings::default());
    drain.order(StopRequest::Drain);
    let summary = controller.run().await;
    assert_eq!(
        (summary.total, summary.leaving, summary.draining),
        (5 * SECOND, 5 * SECOND, Duration::ZERO)
    );
    assert!(summary.is_clean());
}

#[tokio::test(start_paused = true)]
async fn arrivals_prolong_leaving_and_health_checks_do_not() {
    let (drain, controller) = new(Settings::default());
    let running = tokio::spawn(controller.run());
    let begin = tokio::time::Instant::now();
    // Before the order nobody cares.
    drain.arrival();
    drain.order(StopRequest::Drain);
    drain.reached(Phase::Leaving).await;
    tokio::time::sleep(4 * SECOND).await;
    drain.arrival();
    // What connects and closes takes a ticket and never arrives.
    tokio::time::sleep(SECOND * 2).await;
    drop(drain.ticket());
    drain.reached(Phase::Draining).await;
    assert_eq!(begin.elapsed().as_secs(), 7);
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_arrivals_is_cut_off_at_accept_max() {
    let (drain, controller) = new(Settings::default());
    let running = tokio::spawn(controller.run());
    let begin = tokio::time::Instant::now();
    drain.order(StopRequest::Drain);
    let clients = async {
        loop {
            drain.arrival();
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    tokio::select! {
        () = clients => {}
        () = drain.reached(Phase::Draining) => {}
    }
    assert_eq!(begin.elapsed().as_secs(), 15);
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_open_door_keeps_the_drain_from_ending_but_not_beyond_its_bound() {
    let (drain, controller) = new(Settings::default());
    let (kept, shut) = (drain.door(), drain.door());
    let begin = tokio::time::Instant::now();
    drain.order(StopRequest::DrainAtOnce);
    let running = tokio::spawn(controller.run());
    drain.reached(Phase::Draining).await;
    // The last client in the queue gets a ticket before the door closes, so there is no moment
    // without either.
    tokio::time::sleep(SECOND).await;
    let last = drain.ticket();
    drop(shut);
    last.asked().await;
    last.close(Exit::Asked);
    assert_eq!(drain.tally().open, 0);
    assert_eq!(drain.phase(), Phase::Draining);
    let summary = running.await.unwrap();
    assert_eq!(begin.elapsed().as_secs(), 21);
    assert_eq!(summary.cutting, CUT_GRACE);
    drop(kept);
}

#[tokio::test(start_paused = true)]
async fn nobody_is_asked_before_the_doors_are_closed_or_their_time_is_up() {
    for (closes_after, asked_after) in [(0, 0), (100, 100), (1000, 250)] {
        let settings = Settings { drain_spread: Duration::ZERO, ..Settings::default() };
        let (drain, controller) = new(settings);
        let ticket = drain.ticket();
        let (one, other) = (drain.door(), drain.door());
        let begin = tokio::time::Instant::now();
        drain.order(StopRequest::DrainAtOnce);
        let running = tokio::spawn(controller.run());
        drain.reached(Phase::Draining).await;
        drop(one);
        let closing = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(closes_after)).await;
            drop(other);
        });
        ticket.asked().await;
        let waited = begin.elapsed();
        // A timer of tokio's is late by a millisecond at most.
        let due = Duration::from_millis(asked_after);
        assert!(
            waited >= due && waited <= due + Duration::from_millis(1),
            "{closes_after}: {waited:?}"
        );
        ticket.close(Exit::Asked);
        closing.await.unwrap();
        running.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn closing_the_last_door_ends_the_drain() {
    let (drain, controller) = new(Settings::default());
    let door = drain.door();
    drain.order(StopRequest::DrainAtOnce);
    let running = tokio::spawn(controller.run());
    drain.reached(Phase::Draining).await;
    drop(door);
    assert_eq!(running.await.unwrap().total, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn an_echo_changes_nothing_and_a_second_order_cuts() {
    let (drain, controller) = new(Settings::default());
    let ticket = drain.ticket();
    let begin = tokio::time::Instant::now();
    drain.order(StopRequest::Drain);
    drain.order(StopRequest::Drain);
    let running = tokio::spawn(controller.run());
    drain.reached(Phase::Leaving).await;
    tokio::time::sleep(Duration::from_millis(900)).await;
    drain.order(StopRequest::Drain);
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert_eq!(drain.phase(), Phase::Leaving);
    drain.order(StopRequest::Drain);
    ticket.cut().await;
    assert!((1500..=1505).contains(&begin.elapsed().as_millis()));
    ticket.close(Exit::Cut);
    let summary = running.await.unwrap();
    assert_eq!(summary.draining, Duration::ZERO);
    assert!(summary.total < 2 * SECOND, "{:?}", summary.total);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_orders_stays_bounded_and_a_cut_in_it_is_not_lost() {
    let (drain, controller) = new(Settings::default());
    let _ticket = drain.ticket();
    for _ in 0..1000 {
        drain.order(StopRequest::Drain);
    }
    drain.order(StopRequest::Cut);
    let summary = controller.run().await;
    assert_eq!(summary.total, CUT_GRACE);
    assert_eq!(summary.tally.open, 1);
}

#[tokio::test(start_paused = true)]
async fn orders_given_while_nobody_looked_count_from_when_they_were_given() {
    let (drain, controller) = new(Settings::default());
    let ticket = drain.ticket();
    drain.order(StopRequest::Drain);
    tokio::time::sleep(3 * SECOND).await;
    let running = tokio::spawn(controller.run());
    drain.reached(Phase::Draining).await;
    drop(ticket);
    let summary = running.await.unwrap();
    assert_eq!((summary.leaving, summary.total), (5 * SECOND, 5 * SECOND));
}

#[tokio::test(start_paused = true)]
async fn new_settings_hold_at_once_but_nobody_is_given_another_turn() {
    let (drain, controller) = new(Settings::default());
    let running = tokio::spawn(controller.run());
    // The first one's turn is at once.
    drop(drain.ticket());
    let stubborn = drain.ticket();
    let begin = tokio::time::Instant::now();
    drain.order(StopRequest::Drain);
    drain.reached(Phase::Leaving).await;
    drain.configure(Settings { accept_min: SECOND, accept_quiet: SECOND, ..Settings::default() });
    drain.reached(Phase::Draining).await;
    assert_eq!(begin.elapsed().as_secs(), 1);
    let mut turn = Box::pin(stubborn.asked());
    assert!(tokio::time::timeout(Duration::from_millis(1), &mut turn).await.is_err());
    drain.configure(Settings {
        drain_spread: 15 * SECOND,
        drain_timeout: 30 * SECOND,
        ..Settings::default()
    });
    turn.as_mut().await;
    drop(turn);
    assert!(begin.elapsed() <= 6 * SECOND, "the turn was moved to {:?}", begin.elapsed());
    drain.reached(Phase::Cutting).await;
    assert_eq!(begin.elapsed().as_secs(), 31);
    drop(stubborn);
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_is_asked_knows_how_long_it_is_until_the_cut() {
    let (drain, controller) = new(Settings::default());
    let running = tokio::spawn(controller.run());
    let stubborn = drain.ticket();
    drain.order(StopRequest::Drain);
    drain.reached(Phase::Leaving).await;
    assert_eq!(drain.time_left(), None);
    // Nobody is asked before it is known.
    stubborn.asked().await;
    let left = drain.time_left().unwrap();
    assert!(left > 14 * SECOND && left <= 20 * SECOND, "{left:?}");
    // Another setting holds for those who are still there.
    drain.configure(Settings { drain_timeout: 60 * SECOND, ..Settings::default() });
    tokio::time::sleep(SECOND).await;
    let longer = drain.time_left().unwrap();
    assert!(longer > 53 * SECOND && longer < 60 * SECOND, "{longer:?}");
    drain.reached(Phase::Cutting).await;
    assert_eq!(drain.time_left(), Some(Duration::ZERO));
    stubborn.close(Exit::Cut);
    running.await.unwrap();
}
