//! The plan's moves one by one, and its promises over arbitrary streams of events.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::plan::{Action, CUT_GRACE, Event, Phase, Plan, REPEAT_WINDOW, Settings, StopRequest};

const SECOND: Duration = Duration::from_secs(1);

/// A plan with the default settings (5 s, 3 s, 15 s, 5 s, 20 s) and `open` sessions, and the time
/// it starts at.
fn plan(open: u64) -> (Plan, Instant) {
    let start = Instant::now();
    let mut plan = Plan::new(Settings::default(), start);
    assert!(plan.step(start, Event::Open(open)).is_empty());
    (plan, start)
}

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

#[test]
fn only_the_legal_moves_are_legal() {
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
            assert!(!from.may_become(to) || from < to, "{from:?} to {to:?} goes back");
        }
    }
}

#[test]
fn an_ordinary_drain_goes_through_its_phases_in_order() {
    let (mut plan, start) = plan(2);
    assert_eq!(plan.deadline(), None);
    assert_eq!(plan.step(start, Event::Ordered(StopRequest::Drain)), [Action::BecomeUnready]);
    assert_eq!(plan.phase(), Phase::Leaving);
    assert_eq!(plan.deadline(), Some(start + 5 * SECOND));
    assert!(plan.step(start + ms(4999), Event::Tick).is_empty());
    assert_eq!(
        plan.step(start + 5 * SECOND, Event::Tick),
        [Action::CloseListeners, Action::AskSessions]
    );
    assert_eq!(plan.phase(), Phase::Draining);
    assert_eq!(plan.deadline(), Some(start + 25 * SECOND));
    assert!(plan.step(start + 6 * SECOND, Event::Open(1)).is_empty());
    assert_eq!(plan.step(start + 25 * SECOND, Event::Tick), [Action::CutSessions]);
    assert_eq!(plan.phase(), Phase::Cutting);
    assert_eq!(plan.deadline(), Some(start + 25 * SECOND + CUT_GRACE));
    assert_eq!(plan.step(start + 25 * SECOND + CUT_GRACE, Event::Tick), [Action::Finish]);
    assert_eq!((plan.phase(), plan.deadline()), (Phase::Stopped, None));
    assert_eq!(Settings::default().longest(), Duration::from_secs(36));
}

#[test]
fn leaving_waits_for_quiet_but_not_for_ever() {
    let (mut plan, start) = plan(1);
    plan.step(start, Event::Ordered(StopRequest::Drain));
    // A client every two seconds: quiet of three seconds never comes.
    for second in (2..=14).step_by(2) {
        let at = start + second * SECOND;
        assert!(plan.step(at, Event::Arrived(at)).is_empty());
        assert_eq!(
            plan.deadline(),
            Some((at + 3 * SECOND).max(start + 5 * SECOND).min(start + 15 * SECOND))
        );
    }
    assert!(plan.step(start + ms(14_999), Event::Tick).is_empty());
    assert_eq!(
        plan.step(start + ms(15_000), Event::Tick),
        [Action::CloseListeners, Action::AskSessions]
    );
}

#[test]
fn quiet_is_counted_from_the_last_client_and_not_before_the_order() {
    let (mut plan, start) = plan(1);
    // Of no consequence: it came before the order.
    plan.step(start, Event::Arrived(start));
    plan.step(start + SECOND, Event::Ordered(StopRequest::Drain));
    plan.step(start + 5 * SECOND, Event::Arrived(start + 4 * SECOND));
    assert_eq!(plan.deadline(), Some(start + 7 * SECOND));
    // An older arrival told late, and one from the future, do no harm.
    plan.step(start + 5 * SECOND, Event::Arrived(start + 2 * SECOND));
    assert_eq!(plan.deadline(), Some(start + 7 * SECOND));
    plan.step(start + 5 * SECOND, Event::Arrived(start + 500 * SECOND));
    assert_eq!(plan.deadline(), Some(start + 8 * SECOND));
}

#[test]
fn draining_ends_with_the_last_session() {
    let (mut plan, start) = plan(2);
    assert_eq!(
        plan.step(start, Event::Ordered(StopRequest::DrainAtOnce)),
        [Action::BecomeUnready, Action::CloseListeners, Action::AskSessions]
    );
    assert!(plan.step(start + ms(10), Event::Open(1)).is_empty());
    assert_eq!(plan.step(start + ms(20), Event::Open(0)), [Action::Finish]);
    assert_eq!(plan.phase(), Phase::Stopped);
}

#[test]
fn an_empty_house_leaves_first_and_stops_then() {
    let (mut plan, start) = plan(0);
    assert_eq!(plan.step(start, Event::Ordered(StopRequest::Drain)), [Action::BecomeUnready]);
    assert_eq!(
        plan.step(start + 5 * SECOND, Event::Tick),
        [Action::CloseListeners, Action::AskSessions, Action::Finish]
    );
}

#[test]
fn with_all_settings_zero_everything_happens_at_once() {
    let zero = Settings {
        accept_min: Duration::ZERO,
        accept_quiet: Duration::ZERO,
        accept_max: Duration::ZERO,
        drain_spread: Duration::ZERO,
        drain_timeout: Duration::ZERO,
    };
    let start = Instant::now();
    let mut plan = Plan::new(zero, start);
    plan.step(start, Event::Open(7));
    assert_eq!(
        plan.step(start, Event::Ordered(StopRequest::Drain)),
        [Action::BecomeUnready, Action::CloseListeners, Action::AskSessions, Action::CutSessions]
    );
    assert_eq!(plan.step(start, Event::Open(0)), [Action::Finish]);
}

#[test]
fn a_second_drain_order_cuts_unless_it_is_an_echo() {
    let (mut plan, start) = plan(1);
    plan.step(start, Event::Ordered(StopRequest::Drain));
    assert!(plan.step(start + ms(1), Event::Ordered(StopRequest::Drain)).is_empty());
    assert!(
        plan.step(start + REPEAT_WINDOW - ms(1), Event::Ordered(StopRequest::Drain)).is_empty()
    );
    assert_eq!(plan.phase(), Phase::Leaving);
    // Counted from the first one: an echo does not prolong the window.
    let second = plan.step(start + REPEAT_WINDOW, Event::Ordered(StopRequest::Drain));
    assert_eq!(second, [Action::CloseListeners, Action::CutSessions]);
    assert_eq!(plan.phase(), Phase::Cutting);
    assert!(plan.step(start + 2 * REPEAT_WINDOW, Event::Ordered(StopRequest::Drain)).len() <= 1);
    assert_eq!(plan.phase(), Phase::Stopped);
}

#[test]
fn the_first_drain_order_after_a_drain_at_once_changes_nothing() {
    let (mut plan, start) = plan(1);
    plan.step(start, Event::Ordered(StopRequest::DrainAtOnce));
    assert!(plan.step(start + 3 * SECOND, Event::Ordered(StopRequest::DrainAtOnce)).is_empty());
    assert!(plan.step(start + 4 * SECOND, Event::Ordered(StopRequest::Drain)).is_empty());
    assert_eq!(plan.phase(), Phase::Draining);
    assert_eq!(
        plan.step(start + 6 * SECOND, Event::Ordered(StopRequest::Drain)),
        [Action::CutSessions]
    );
}

#[test]
fn draining_at_once_shortens_leaving() {
    let (mut plan, start) = plan(1);
    plan.step(start, Event::Ordered(StopRequest::Drain));
    let actions = plan.step(start + ms(1), Event::Ordered(StopRequest::DrainAtOnce));
    assert_eq!(actions, [Action::CloseListeners, Action::AskSessions]);
}

#[test]
fn a_cut_skips_everything() {
    let (mut busy, start) = plan(3);
    let actions = busy.step(start, Event::Ordered(StopRequest::Cut));
    assert_eq!(actions, [Action::BecomeUnready, Action::CloseListeners, Action::CutSessions]);
    assert_eq!(busy.phase(), Phase::Cutting);
    let (mut idle, start) = plan(0);
    let actions = idle.step(start, Event::Ordered(StopRequest::Cut));
    assert_eq!(
        actions,
        [Action::BecomeUnready, Action::CloseListeners, Action::CutSessions, Action::Finish]
    );
}

#[test]
fn after_the_end_nothing_is_demanded() {
    let (mut plan, start) = plan(0);
    plan.step(start, Event::Ordered(StopRequest::Cut));
    for event in [
        Event::Ordered(StopRequest::Drain),
        Event::Ordered(StopRequest::Cut),
        Event::Open(3),
        Event::Tick,
    ] {
        assert!(plan.step(start + 100 * SECOND, event).is_empty());
        assert_eq!((plan.phase(), plan.deadline()), (Phase::Stopped, None));
    }
}

#[test]
fn contradictory_settings_are_made_sound() {
    let odd = Settings {
        accept_min: 9 * SECOND,
        accept_quiet: Duration::MAX,
        accept_max: 2 * SECOND,
        drain_spread: 9 * SECOND,
        drain_timeout: 4 * SECOND,
    };
    let sound = odd.sound();
    assert_eq!((sound.accept_max, sound.drain_spread), (9 * SECOND, 4 * SECOND));
    assert_eq!(sound, sound.sound());
    let endless = Settings {
        accept_min: Duration::MAX,
        accept_quiet: Duration::MAX,
        accept_max: Duration::MAX,
        drain_spread: Duration::MAX,
        drain_timeout: Duration::MAX,
    };
    let start = Instant::now();
    let mut plan = Plan::new(endless, start);
    plan.step(start, Event::Ordered(StopRequest::Drain));
    assert!(plan.deadline().is_some_and(|deadline| deadline > start + 24 * 3600 * SECOND));
}

fn settings() -> impl Strategy<Value = Settings> {
    let span = || (0_u64..3000).prop_map(ms);
    (span(), span(), span(), span(), span()).prop_map(
        |(accept_min, accept_quiet, accept_max, drain_spread, drain_timeout)| Settings {
            accept_min,
            accept_quiet,
            accept_max,
            drain_spread,
            drain_timeout,
        },
    )
}

#[derive(Debug, Clone, Copy)]
enum Told {
    Ordered(StopRequest),
    ArrivedBefore(Duration),
    Open(u64),
    Tick,
}

fn stream() -> impl Strategy<Value = Vec<(Duration, Told)>> {
    let told = prop_oneof![
        4 => Just(Told::Ordered(StopRequest::Drain)),
        1 => Just(Told::Ordered(StopRequest::DrainAtOnce)),
        1 => Just(Told::Ordered(StopRequest::Cut)),
        6 => (0_u64..500).prop_map(|before| Told::ArrivedBefore(ms(before))),
        6 => (0_u64..4).prop_map(Told::Open),
        2 => Just(Told::Tick),
    ];
    prop::collection::vec(((0_u64..1500).prop_map(ms), told), 0..24)
}

/// Holds the plan's promises against what it does, from outside.
struct Witness {
    plan: Plan,
    actions: Vec<Action>,
    first_order: Option<Instant>,
    first_drain: Option<Instant>,
    hastened: bool,
    open: u64,
    ended: Option<Instant>,
}

impl Witness {
    fn step(&mut self, now: Instant, event: Event) -> Result<(), TestCaseError> {
        let before = self.plan.phase();
        let settings = self.plan.settings();
        let draining_since = self.plan.entered();
        if before != Phase::Stopped {
            self.note(now, event);
        }
        let actions = self.plan.step(now, event);
        let after = self.plan.phase();
        prop_assert!(after >= before, "{before:?} to {after:?}");
        prop_assert_eq!(before == after, actions.is_empty());
        if actions.contains(&Action::CloseListeners) && !self.hastened {
            let order = self.first_order.expect("closed without an order");
            prop_assert!(now >= order + settings.accept_min, "closed before accept_min");
        }
        if before == Phase::Draining && after > before && self.open > 0 && !self.hastened {
            prop_assert!(
                now >= draining_since + settings.drain_timeout,
                "gave up before drain_timeout"
            );
        }
        if after == Phase::Stopped && self.ended.is_none() {
            self.ended = Some(now);
        }
        prop_assert!(after == Phase::Serving || self.first_order.is_some());
        prop_assert!(
            self.plan.deadline().is_none_or(|deadline| deadline > now),
            "a deadline in the past would spin"
        );
        self.actions.extend(actions);
        Ok(())
    }

    fn note(&mut self, now: Instant, event: Event) {
        match event {
            Event::Open(open) => self.open = open,
            Event::Ordered(order) => {
                self.first_order.get_or_insert(now);
                self.hastened |= order != StopRequest::Drain
                    || self.first_drain.is_some_and(|at| now >= at + REPEAT_WINDOW);
                if order == StopRequest::Drain {
                    self.first_drain.get_or_insert(now);
                }
            }
            Event::Arrived(_) | Event::Tick => {}
        }
    }

    /// Lets the time pass to `until`, with a tick at every deadline, as a driver does it.
    fn pass(&mut self, until: Instant) -> Result<(), TestCaseError> {
        while let Some(deadline) = self.plan.deadline().filter(|deadline| *deadline <= until) {
            self.step(deadline, Event::Tick)?;
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, fork: false, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_plan_keeps_its_promises(settings in settings(), stream in stream()) {
        let start = Instant::now();
        let mut now = start;
        let mut witness = Witness {
            plan: Plan::new(settings, start),
            actions: Vec::new(),
            first_order: None,
            first_drain: None,
            hastened: false,
            open: 0,
            ended: None,
        };
        for (pause, told) in stream {
            now += pause;
            witness.pass(now)?;
            let event = match told {
                Told::Ordered(order) => Event::Ordered(order),
                Told::ArrivedBefore(before) => Event::Arrived(now.checked_sub(before).unwrap_or(now)),
                Told::Open(open) => Event::Open(open),
                Told::Tick => Event::Tick,
            };
            witness.step(now, event)?;
        }
        witness.pass(now + settings.longest())?;

        if let Some(order) = witness.first_order {
            let ended = witness.ended.expect("an ordered shutdown ends");
            prop_assert!(ended <= order + settings.longest());
        }
        // Each action at most once, in the order of the phases.
        let order = [
            Action::BecomeUnready,
            Action::CloseListeners,
            Action::AskSessions,
            Action::CutSessions,
            Action::Finish,
        ];
        let places: Vec<_> = witness.actions.iter().map(|action| order.iter().position(|a| a == action)).collect();
        prop_assert!(places.is_sorted_by(|a, b| a < b), "{:?}", witness.actions);
        for always in [Action::BecomeUnready, Action::CloseListeners, Action::Finish] {
            prop_assert_eq!(witness.actions.contains(&always), witness.ended.is_some());
        }
    }
}
