//! The controller with a paused clock: it does what the plan decides, when it decides it.

use std::time::Duration;

use crate::plan::{CUT_GRACE, Phase, ShutdownSettings, StopRequest};
use crate::shared::Exit;
use crate::{SessionCounts, new};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn publishes_phases_in_order_and_reports_durations() {
    let (drain, controller) = new(ShutdownSettings::default());
    let running = tokio::spawn(controller.run());
    let before = drain.ticket();
    before.close(Exit::Left);
    let remaining = drain.ticket();
    let begin = tokio::time::Instant::now();
    assert_eq!(drain.phase(), Phase::Serving);
    drain.request_stop(StopRequest::Drain);
    let mut at = Vec::new();
    for phase in [Phase::Leaving, Phase::Draining, Phase::Cutting] {
        drain.reached(phase).await;
        assert_eq!(drain.phase(), phase);
        at.push(begin.elapsed().as_secs());
    }
    assert_eq!(at, [0, 5, 25]);
    assert!(remaining.is_cut());
    tokio::time::sleep(Duration::from_millis(200)).await;
    remaining.close(Exit::Cut);
    let summary = running.await.unwrap();
    assert_eq!(drain.phase(), Phase::Stopped);
    drain.reached(Phase::Serving).await;
    drain.reached(Phase::Stopped).await;
    assert_eq!((summary.leaving, summary.draining), (5 * SECOND, 20 * SECOND));
    // The timer's resolution is a millisecond.
    assert!((199..=202).contains(&summary.cutting.as_millis()), "{:?}", summary.cutting);
    assert_eq!(summary.total, summary.leaving + summary.draining + summary.cutting);
    assert_eq!(summary.session_counts, SessionCounts { open: 0, left: 1, asked: 0, cut: 1 });
    assert_eq!(summary.since_stop_request, SessionCounts { open: 0, left: 0, asked: 0, cut: 1 });
    assert!(!summary.is_clean());
}

#[tokio::test(start_paused = true)]
async fn stops_after_leaving_without_sessions() {
    let (drain, controller) = new(ShutdownSettings::default());
    drain.request_stop(StopRequest::Drain);
    let summary = controller.run().await;
    assert_eq!(
        (summary.total, summary.leaving, summary.draining),
        (5 * SECOND, 5 * SECOND, Duration::ZERO)
    );
    assert!(summary.is_clean());
}

#[tokio::test(start_paused = true)]
async fn prolongs_leaving_for_clients_but_not_for_checks() {
    let (drain, controller) = new(ShutdownSettings::default());
    let running = tokio::spawn(controller.run());
    let begin = tokio::time::Instant::now();
    // Before the request, arrivals do not matter.
    drain.record_arrival();
    drain.request_stop(StopRequest::Drain);
    drain.reached(Phase::Leaving).await;
    tokio::time::sleep(4 * SECOND).await;
    drain.record_arrival();
    // A connection that is opened and closed takes a ticket, but is no arrival.
    tokio::time::sleep(SECOND * 2).await;
    drop(drain.ticket());
    drain.reached(Phase::Draining).await;
    assert_eq!(begin.elapsed().as_secs(), 7);
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn ends_leaving_at_accept_max_despite_arrivals() {
    let (drain, controller) = new(ShutdownSettings::default());
    let running = tokio::spawn(controller.run());
    let begin = tokio::time::Instant::now();
    drain.request_stop(StopRequest::Drain);
    let clients = async {
        loop {
            drain.record_arrival();
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
async fn waits_for_open_listener_up_to_drain_timeout() {
    let (drain, controller) = new(ShutdownSettings::default());
    let (kept, closed) = (drain.accept_permit(), drain.accept_permit());
    let begin = tokio::time::Instant::now();
    drain.request_stop(StopRequest::DrainAtOnce);
    let running = tokio::spawn(controller.run());
    drain.reached(Phase::Draining).await;
    // The last client in the queue gets a ticket before the listener closes, so there is no moment
    // without either.
    tokio::time::sleep(SECOND).await;
    let last = drain.ticket();
    drop(closed);
    last.asked().await;
    last.close(Exit::Asked);
    assert_eq!(drain.session_counts().open, 0);
    assert_eq!(drain.phase(), Phase::Draining);
    let summary = running.await.unwrap();
    assert_eq!(begin.elapsed().as_secs(), 21);
    assert_eq!(summary.cutting, CUT_GRACE);
    drop(kept);
}

#[tokio::test(start_paused = true)]
async fn asks_sessions_after_listeners_close_or_time_out() {
    for (closes_after, asked_after) in [(0, 0), (100, 100), (1000, 250)] {
        let settings =
            ShutdownSettings { drain_spread: Duration::ZERO, ..ShutdownSettings::default() };
        let (drain, controller) = new(settings);
        let ticket = drain.ticket();
        let (one, other) = (drain.accept_permit(), drain.accept_permit());
        let begin = tokio::time::Instant::now();
        drain.request_stop(StopRequest::DrainAtOnce);
        let running = tokio::spawn(controller.run());
        drain.reached(Phase::Draining).await;
        drop(one);
        let closing = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(closes_after)).await;
            drop(other);
        });
        ticket.asked().await;
        let waited = begin.elapsed();
        // A tokio timer is late by at most a millisecond.
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
async fn ends_drain_when_last_listener_closes() {
    let (drain, controller) = new(ShutdownSettings::default());
    let permit = drain.accept_permit();
    drain.request_stop(StopRequest::DrainAtOnce);
    let running = tokio::spawn(controller.run());
    drain.reached(Phase::Draining).await;
    drop(permit);
    assert_eq!(running.await.unwrap().total, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn ignores_repeated_signal_and_cuts_on_second_request() {
    let (drain, controller) = new(ShutdownSettings::default());
    let ticket = drain.ticket();
    let begin = tokio::time::Instant::now();
    drain.request_stop(StopRequest::Drain);
    drain.request_stop(StopRequest::Drain);
    let running = tokio::spawn(controller.run());
    drain.reached(Phase::Leaving).await;
    tokio::time::sleep(Duration::from_millis(900)).await;
    drain.request_stop(StopRequest::Drain);
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert_eq!(drain.phase(), Phase::Leaving);
    drain.request_stop(StopRequest::Drain);
    ticket.cut().await;
    assert!((1500..=1505).contains(&begin.elapsed().as_millis()));
    ticket.close(Exit::Cut);
    let summary = running.await.unwrap();
    assert_eq!(summary.draining, Duration::ZERO);
    assert!(summary.total < 2 * SECOND, "{:?}", summary.total);
}

#[tokio::test(start_paused = true)]
async fn bounds_pending_requests_without_losing_a_cut() {
    let (drain, controller) = new(ShutdownSettings::default());
    let _ticket = drain.ticket();
    for _ in 0..1000 {
        drain.request_stop(StopRequest::Drain);
    }
    drain.request_stop(StopRequest::Cut);
    let summary = controller.run().await;
    assert_eq!(summary.total, CUT_GRACE);
    assert_eq!(summary.session_counts.open, 1);
}

#[tokio::test(start_paused = true)]
async fn counts_from_time_of_request_not_of_observation() {
    let (drain, controller) = new(ShutdownSettings::default());
    let ticket = drain.ticket();
    drain.request_stop(StopRequest::Drain);
    tokio::time::sleep(3 * SECOND).await;
    let running = tokio::spawn(controller.run());
    drain.reached(Phase::Draining).await;
    drop(ticket);
    let summary = running.await.unwrap();
    assert_eq!((summary.leaving, summary.total), (5 * SECOND, 5 * SECOND));
}

#[tokio::test(start_paused = true)]
async fn applies_settings_at_once_but_keeps_leave_times() {
    let (drain, controller) = new(ShutdownSettings::default());
    let running = tokio::spawn(controller.run());
    // The first session has to leave immediately.
    drop(drain.ticket());
    let remaining = drain.ticket();
    let begin = tokio::time::Instant::now();
    drain.request_stop(StopRequest::Drain);
    drain.reached(Phase::Leaving).await;
    drain.configure(ShutdownSettings {
        accept_min: SECOND,
        accept_quiet: SECOND,
        ..ShutdownSettings::default()
    });
    drain.reached(Phase::Draining).await;
    assert_eq!(begin.elapsed().as_secs(), 1);
    let mut leave_time = Box::pin(remaining.asked());
    assert!(tokio::time::timeout(Duration::from_millis(1), &mut leave_time).await.is_err());
    drain.configure(ShutdownSettings {
        drain_spread: 15 * SECOND,
        drain_timeout: 30 * SECOND,
        ..ShutdownSettings::default()
    });
    leave_time.as_mut().await;
    drop(leave_time);
    assert!(begin.elapsed() <= 6 * SECOND, "the leave time was moved to {:?}", begin.elapsed());
    drain.reached(Phase::Cutting).await;
    assert_eq!(begin.elapsed().as_secs(), 31);
    drop(remaining);
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn reports_time_left_until_cut() {
    let (drain, controller) = new(ShutdownSettings::default());
    let running = tokio::spawn(controller.run());
    let remaining = drain.ticket();
    drain.request_stop(StopRequest::Drain);
    drain.reached(Phase::Leaving).await;
    assert_eq!(drain.time_left(), None);
    // Sessions are not asked before it is known.
    remaining.asked().await;
    let left = drain.time_left().unwrap();
    assert!(left > 14 * SECOND && left <= 20 * SECOND, "{left:?}");
    // New settings apply to the remaining sessions.
    drain.configure(ShutdownSettings { drain_timeout: 60 * SECOND, ..ShutdownSettings::default() });
    tokio::time::sleep(SECOND).await;
    let longer = drain.time_left().unwrap();
    assert!(longer > 53 * SECOND && longer < 60 * SECOND, "{longer:?}");
    drain.reached(Phase::Cutting).await;
    assert_eq!(drain.time_left(), Some(Duration::ZERO));
    remaining.close(Exit::Cut);
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn closes_one_group_and_leaves_the_others() {
    let (drain, _controller) = new(ShutdownSettings::default());
    let (closing, staying) = (drain.group(), drain.group());
    let (permit, asked, kept) = (closing.accept_permit(), closing.ticket(), staying.ticket());
    let stuck = closing.ticket();
    let closed = tokio::spawn(closing.close_group(ShutdownSettings::default()).run());
    closing.reached(Phase::Draining).await;
    assert_eq!((drain.phase(), staying.phase()), (Phase::Serving, Phase::Serving));
    drop(permit);
    asked.asked().await;
    assert!(!kept.is_asked() && staying.time_left().is_none());
    asked.close(Exit::Asked);
    stuck.cut().await;
    assert!(!kept.is_cut());
    stuck.close(Exit::Cut);
    let summary = closed.await.unwrap();
    assert_eq!((summary.leaving, summary.draining), (Duration::ZERO, 20 * SECOND));
    assert_eq!(closing.phase(), Phase::Stopped);
    // The process counts the sessions of all groups.
    assert_eq!(drain.session_counts(), SessionCounts { open: 1, left: 0, asked: 1, cut: 1 });
}

#[tokio::test(start_paused = true)]
async fn stops_groups_with_the_process() {
    let settings = ShutdownSettings::default();
    let (drain, controller) = new(settings);
    let (closing, staying) = (drain.group(), drain.group());
    let long = ShutdownSettings { drain_timeout: 3600 * SECOND, ..settings };
    let (early, late) = (closing.ticket(), staying.ticket());
    let closed = tokio::spawn(closing.close_group(long).run());
    early.asked().await;
    let running = tokio::spawn(controller.run());
    drain.request_stop(StopRequest::DrainAtOnce);
    late.asked().await;
    assert!(early.is_asked(), "it keeps the earlier time");
    // The earlier of the two deadlines applies.
    assert!(closing.time_left().is_some_and(|left| left <= settings.drain_timeout));
    // A group that begins now is in the same phase.
    let newest = drain.group().ticket();
    newest.asked().await;
    newest.close(Exit::Asked);
    early.cut().await;
    early.close(Exit::Cut);
    late.close(Exit::Cut);
    let summary = running.await.unwrap();
    assert_eq!(summary.since_stop_request, SessionCounts { open: 0, left: 0, asked: 1, cut: 2 });
    assert_eq!((closing.phase(), staying.phase()), (Phase::Stopped, Phase::Stopped));
    closed.await.unwrap();
}
