//! The plan's promises, for arbitrary sequences of events.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::plan::{
    Phase, Plan, REPEAT_WINDOW, ShutdownAction, ShutdownEvent, ShutdownSettings, StopRequest,
};

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
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
