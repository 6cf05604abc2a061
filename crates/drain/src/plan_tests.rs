//! The plan's transitions, one by one.

use std::time::{Duration, Instant};

use crate::plan::{
    CUT_GRACE, Phase, Plan, REPEAT_WINDOW, ShutdownAction, ShutdownEvent, ShutdownSettings,
    StopRequest,
};

const SECOND: Duration = Duration::from_secs(1);

/// A plan with the default settings (5 s, 3 s, 15 s, 5 s, 20 s) and `open` sessions, and its start
/// time.
fn plan(open: u64) -> (Plan, Instant) {
    let start = Instant::now();
    let mut plan = Plan::new(ShutdownSettings::default(), start);
    assert!(plan.step(start, ShutdownEvent::Open(open)).is_empty());
    (plan, start)
}

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

#[test]
fn allows_exactly_the_legal_transitions() {
    use Phase::{Cutting, Draining, Leaving, Serving, Stopped};
    let legal = [
        (Serving, Leaving),
        (Serving, Draining),
        (Serving, Cutting),
        (Leaving, Draining),
        (Leaving, Cutting),
        (Draining, Cutting),
        (Draining, Stopped),
        (Cutting, Stopped),
    ];
    for from in Phase::ALL {
        for to in Phase::ALL {
            assert_eq!(from.may_become(to), legal.contains(&(from, to)), "{from:?} to {to:?}");
            assert!(!from.may_become(to) || from < to, "{from:?} to {to:?} is backwards");
        }
    }
}

#[test]
fn passes_all_phases_in_order() {
    let (mut plan, start) = plan(2);
    assert_eq!(plan.deadline(), None);
    assert_eq!(
        plan.step(start, ShutdownEvent::StopRequested(StopRequest::Drain)),
        [ShutdownAction::BecomeUnready]
    );
    assert_eq!(plan.phase(), Phase::Leaving);
    assert_eq!(plan.deadline(), Some(start + 5 * SECOND));
    assert!(plan.step(start + ms(4999), ShutdownEvent::Tick).is_empty());
    assert_eq!(
        plan.step(start + 5 * SECOND, ShutdownEvent::Tick),
        [ShutdownAction::CloseListeners, ShutdownAction::AskSessions]
    );
    assert_eq!(plan.phase(), Phase::Draining);
    assert_eq!(plan.deadline(), Some(start + 25 * SECOND));
    assert!(plan.step(start + 6 * SECOND, ShutdownEvent::Open(1)).is_empty());
    assert_eq!(plan.step(start + 25 * SECOND, ShutdownEvent::Tick), [ShutdownAction::CutSessions]);
    assert_eq!(plan.phase(), Phase::Cutting);
    assert_eq!(plan.deadline(), Some(start + 25 * SECOND + CUT_GRACE));
    assert_eq!(
        plan.step(start + 25 * SECOND + CUT_GRACE, ShutdownEvent::Tick),
        [ShutdownAction::Finish]
    );
    assert_eq!((plan.phase(), plan.deadline()), (Phase::Stopped, None));
    assert_eq!(ShutdownSettings::default().max_total(), Duration::from_secs(36));
}

#[test]
fn waits_for_quiet_up_to_accept_max() {
    let (mut plan, start) = plan(1);
    plan.step(start, ShutdownEvent::StopRequested(StopRequest::Drain));
    // With a client every two seconds, three seconds of quiet never occur.
    for second in (2..=14).step_by(2) {
        let at = start + second * SECOND;
        assert!(plan.step(at, ShutdownEvent::ClientArrived(at)).is_empty());
        assert_eq!(
            plan.deadline(),
            Some((at + 3 * SECOND).max(start + 5 * SECOND).min(start + 15 * SECOND))
        );
    }
    assert!(plan.step(start + ms(14_999), ShutdownEvent::Tick).is_empty());
    assert_eq!(
        plan.step(start + ms(15_000), ShutdownEvent::Tick),
        [ShutdownAction::CloseListeners, ShutdownAction::AskSessions]
    );
}

#[test]
fn counts_quiet_from_last_client_after_request() {
    let (mut plan, start) = plan(1);
    // Ignored: it arrived before the request.
    plan.step(start, ShutdownEvent::ClientArrived(start));
    plan.step(start + SECOND, ShutdownEvent::StopRequested(StopRequest::Drain));
    plan.step(start + 5 * SECOND, ShutdownEvent::ClientArrived(start + 4 * SECOND));
    assert_eq!(plan.deadline(), Some(start + 7 * SECOND));
    // An older arrival reported late and an arrival in the future do no harm.
    plan.step(start + 5 * SECOND, ShutdownEvent::ClientArrived(start + 2 * SECOND));
    assert_eq!(plan.deadline(), Some(start + 7 * SECOND));
    plan.step(start + 5 * SECOND, ShutdownEvent::ClientArrived(start + 500 * SECOND));
    assert_eq!(plan.deadline(), Some(start + 8 * SECOND));
}

#[test]
fn ends_draining_with_last_session() {
    let (mut plan, start) = plan(2);
    assert_eq!(
        plan.step(start, ShutdownEvent::StopRequested(StopRequest::DrainAtOnce)),
        [
            ShutdownAction::BecomeUnready,
            ShutdownAction::CloseListeners,
            ShutdownAction::AskSessions
        ]
    );
    assert!(plan.step(start + ms(10), ShutdownEvent::Open(1)).is_empty());
    assert_eq!(plan.step(start + ms(20), ShutdownEvent::Open(0)), [ShutdownAction::Finish]);
    assert_eq!(plan.phase(), Phase::Stopped);
}

#[test]
fn passes_leaving_without_sessions() {
    let (mut plan, start) = plan(0);
    assert_eq!(
        plan.step(start, ShutdownEvent::StopRequested(StopRequest::Drain)),
        [ShutdownAction::BecomeUnready]
    );
    assert_eq!(
        plan.step(start + 5 * SECOND, ShutdownEvent::Tick),
        [ShutdownAction::CloseListeners, ShutdownAction::AskSessions, ShutdownAction::Finish]
    );
}

#[test]
fn passes_all_phases_at_once_with_zero_settings() {
    let zero = ShutdownSettings {
        accept_min: Duration::ZERO,
        accept_quiet: Duration::ZERO,
        accept_max: Duration::ZERO,
        drain_spread: Duration::ZERO,
        drain_timeout: Duration::ZERO,
    };
    let start = Instant::now();
    let mut plan = Plan::new(zero, start);
    plan.step(start, ShutdownEvent::Open(7));
    assert_eq!(
        plan.step(start, ShutdownEvent::StopRequested(StopRequest::Drain)),
        [
            ShutdownAction::BecomeUnready,
            ShutdownAction::CloseListeners,
            ShutdownAction::AskSessions,
            ShutdownAction::CutSessions
        ]
    );
    assert_eq!(plan.step(start, ShutdownEvent::Open(0)), [ShutdownAction::Finish]);
}

#[test]
fn cuts_on_second_drain_request_after_window() {
    let (mut plan, start) = plan(1);
    plan.step(start, ShutdownEvent::StopRequested(StopRequest::Drain));
    assert!(plan.step(start + ms(1), ShutdownEvent::StopRequested(StopRequest::Drain)).is_empty());
    assert!(
        plan.step(start + REPEAT_WINDOW - ms(1), ShutdownEvent::StopRequested(StopRequest::Drain))
            .is_empty()
    );
    assert_eq!(plan.phase(), Phase::Leaving);
    // Counted from the first request: a repetition does not prolong the window.
    let second = plan.step(start + REPEAT_WINDOW, ShutdownEvent::StopRequested(StopRequest::Drain));
    assert_eq!(second, [ShutdownAction::CloseListeners, ShutdownAction::CutSessions]);
    assert_eq!(plan.phase(), Phase::Cutting);
    assert!(
        plan.step(start + 2 * REPEAT_WINDOW, ShutdownEvent::StopRequested(StopRequest::Drain))
            .len()
            <= 1
    );
    assert_eq!(plan.phase(), Phase::Stopped);
}

#[test]
fn ignores_drain_request_after_drain_at_once() {
    let (mut plan, start) = plan(1);
    plan.step(start, ShutdownEvent::StopRequested(StopRequest::DrainAtOnce));
    assert!(
        plan.step(start + 3 * SECOND, ShutdownEvent::StopRequested(StopRequest::DrainAtOnce))
            .is_empty()
    );
    assert!(
        plan.step(start + 4 * SECOND, ShutdownEvent::StopRequested(StopRequest::Drain)).is_empty()
    );
    assert_eq!(plan.phase(), Phase::Draining);
    assert_eq!(
        plan.step(start + 6 * SECOND, ShutdownEvent::StopRequested(StopRequest::Drain)),
        [ShutdownAction::CutSessions]
    );
}

#[test]
fn skips_rest_of_leaving_on_drain_at_once() {
    let (mut plan, start) = plan(1);
    plan.step(start, ShutdownEvent::StopRequested(StopRequest::Drain));
    let actions = plan.step(start + ms(1), ShutdownEvent::StopRequested(StopRequest::DrainAtOnce));
    assert_eq!(actions, [ShutdownAction::CloseListeners, ShutdownAction::AskSessions]);
}

#[test]
fn skips_all_phases_on_cut() {
    let (mut busy, start) = plan(3);
    let actions = busy.step(start, ShutdownEvent::StopRequested(StopRequest::Cut));
    assert_eq!(
        actions,
        [
            ShutdownAction::BecomeUnready,
            ShutdownAction::CloseListeners,
            ShutdownAction::CutSessions
        ]
    );
    assert_eq!(busy.phase(), Phase::Cutting);
    let (mut idle, start) = plan(0);
    let actions = idle.step(start, ShutdownEvent::StopRequested(StopRequest::Cut));
    assert_eq!(
        actions,
        [
            ShutdownAction::BecomeUnready,
            ShutdownAction::CloseListeners,
            ShutdownAction::CutSessions,
            ShutdownAction::Finish
        ]
    );
}

#[test]
fn returns_no_action_after_stop() {
    let (mut plan, start) = plan(0);
    plan.step(start, ShutdownEvent::StopRequested(StopRequest::Cut));
    for event in [
        ShutdownEvent::StopRequested(StopRequest::Drain),
        ShutdownEvent::StopRequested(StopRequest::Cut),
        ShutdownEvent::Open(3),
        ShutdownEvent::Tick,
    ] {
        assert!(plan.step(start + 100 * SECOND, event).is_empty());
        assert_eq!((plan.phase(), plan.deadline()), (Phase::Stopped, None));
    }
}

#[test]
fn normalizes_contradictory_settings() {
    let contradictory = ShutdownSettings {
        accept_min: 9 * SECOND,
        accept_quiet: Duration::MAX,
        accept_max: 2 * SECOND,
        drain_spread: 9 * SECOND,
        drain_timeout: 4 * SECOND,
    };
    let normalized = contradictory.normalized();
    assert_eq!((normalized.accept_max, normalized.drain_spread), (9 * SECOND, 4 * SECOND));
    assert_eq!(normalized, normalized.normalized());
    let unbounded = ShutdownSettings {
        accept_min: Duration::MAX,
        accept_quiet: Duration::MAX,
        accept_max: Duration::MAX,
        drain_spread: Duration::MAX,
        drain_timeout: Duration::MAX,
    };
    let start = Instant::now();
    let mut plan = Plan::new(unbounded, start);
    plan.step(start, ShutdownEvent::StopRequested(StopRequest::Drain));
    assert!(plan.deadline().is_some_and(|deadline| deadline > start + 24 * 3600 * SECOND));
}
