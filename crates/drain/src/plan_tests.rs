//! The plan's transitions one by one, and its promises for arbitrary sequences of events.

use std::time::{Duration, Instant};

use proptest::prelude::*;

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

fn settings() -> impl Strategy<Value = ShutdownSettings> {
    let span = || (0_u64..3000).prop_map(ms);
    (span(), span(), span(), span(), span()).prop_map(
        |(accept_min, accept_quiet, accept_max, drain_spread, drain_timeout)| ShutdownSettings {
            accept_min,
            accept_quiet,
            accept_max,
            drain_spread,
            drain_timeout,
        },
    )
}

#[derive(Debug, Clone, Copy)]
enum PlanInput {
    StopRequested(StopRequest),
    ArrivedBefore(Duration),
    Open(u64),
    Tick,
}

fn stream() -> impl Strategy<Value = Vec<(Duration, PlanInput)>> {
    let input = prop_oneof![
        4 => Just(PlanInput::StopRequested(StopRequest::Drain)),
        1 => Just(PlanInput::StopRequested(StopRequest::DrainAtOnce)),
        1 => Just(PlanInput::StopRequested(StopRequest::Cut)),
        6 => (0_u64..500).prop_map(|before| PlanInput::ArrivedBefore(ms(before))),
        6 => (0_u64..4).prop_map(PlanInput::Open),
        2 => Just(PlanInput::Tick),
    ];
    prop::collection::vec(((0_u64..1500).prop_map(ms), input), 0..24)
}

/// Checks the plan's promises from outside.
struct PlanOracle {
    plan: Plan,
    actions: Vec<ShutdownAction>,
    first_request: Option<Instant>,
    first_drain: Option<Instant>,
    hurried: bool,
    open: u64,
    ended: Option<Instant>,
}

impl PlanOracle {
    fn step(&mut self, now: Instant, event: ShutdownEvent) -> Result<(), TestCaseError> {
        let before = self.plan.phase();
        let settings = self.plan.settings();
        let draining_since = self.plan.phase_entered_at();
        if before != Phase::Stopped {
            self.note(now, event);
        }
        let actions = self.plan.step(now, event);
        let after = self.plan.phase();
        prop_assert!(after >= before, "{before:?} to {after:?}");
        prop_assert_eq!(before == after, actions.is_empty());
        if actions.contains(&ShutdownAction::CloseListeners) && !self.hurried {
            let order = self.first_request.expect("closed without a request");
            prop_assert!(now >= order + settings.accept_min, "closed before accept_min");
        }
        if before == Phase::Draining && after > before && self.open > 0 && !self.hurried {
            prop_assert!(
                now >= draining_since + settings.drain_timeout,
                "cut before drain_timeout"
            );
        }
        if after == Phase::Stopped && self.ended.is_none() {
            self.ended = Some(now);
        }
        prop_assert!(after == Phase::Serving || self.first_request.is_some());
        prop_assert!(
            self.plan.deadline().is_none_or(|deadline| deadline > now),
            "a deadline in the past would spin"
        );
        self.actions.extend(actions);
        Ok(())
    }

    fn note(&mut self, now: Instant, event: ShutdownEvent) {
        match event {
            ShutdownEvent::Open(open) => self.open = open,
            ShutdownEvent::StopRequested(order) => {
                self.first_request.get_or_insert(now);
                self.hurried |= order != StopRequest::Drain
                    || self.first_drain.is_some_and(|at| now >= at + REPEAT_WINDOW);
                if order == StopRequest::Drain {
                    self.first_drain.get_or_insert(now);
                }
            }
            ShutdownEvent::ClientArrived(_) | ShutdownEvent::Tick => {}
        }
    }

    /// Advances the time to `until`, with a tick at every deadline, as the controller does.
    fn pass(&mut self, until: Instant) -> Result<(), TestCaseError> {
        while let Some(deadline) = self.plan.deadline().filter(|deadline| *deadline <= until) {
            self.step(deadline, ShutdownEvent::Tick)?;
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        fork: false,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn keeps_promises_for_any_input(settings in settings(), stream in stream()) {
        let start = Instant::now();
        let mut now = start;
        let mut oracle = PlanOracle {
            plan: Plan::new(settings, start),
            actions: Vec::new(),
            first_request: None,
            first_drain: None,
            hurried: false,
            open: 0,
            ended: None,
        };
        for (pause, input) in stream {
            now += pause;
            oracle.pass(now)?;
            let event = match input {
                PlanInput::StopRequested(order) => ShutdownEvent::StopRequested(order),
                PlanInput::ArrivedBefore(before) => {
                    ShutdownEvent::ClientArrived(now.checked_sub(before).unwrap_or(now))
                }
                PlanInput::Open(open) => ShutdownEvent::Open(open),
                PlanInput::Tick => ShutdownEvent::Tick,
            };
            oracle.step(now, event)?;
        }
        oracle.pass(now + settings.max_total())?;

        if let Some(order) = oracle.first_request {
            let ended = oracle.ended.expect("a requested shutdown ends");
            prop_assert!(ended <= order + settings.max_total());
        }
        // Each action at most once, in the order of the phases.
        let order = [
            ShutdownAction::BecomeUnready,
            ShutdownAction::CloseListeners,
            ShutdownAction::AskSessions,
            ShutdownAction::CutSessions,
            ShutdownAction::Finish,
        ];
        let position = |action| order.iter().position(|a| a == action);
        let positions: Vec<_> = oracle.actions.iter().map(position).collect();
        prop_assert!(positions.is_sorted_by(|a, b| a < b), "{:?}", oracle.actions);
        for always in [
            ShutdownAction::BecomeUnready,
            ShutdownAction::CloseListeners,
            ShutdownAction::Finish,
        ] {
            prop_assert_eq!(oracle.actions.contains(&always), oracle.ended.is_some());
        }
    }
}
