//! Temporary priorities input by input, and with a fault at every step.

use std::net::SocketAddr;

use proptest::prelude::*;

use super::*;
use crate::switchover::leader::ListedReplica;

const MS: fn(u64) -> Duration = Duration::from_millis;

fn node(port: u16) -> NodeAddr {
    SocketAddr::from(([10, 0, 0, 1], port)).into()
}

fn change(port: u16, from: u64, to: u64) -> PriorityChange {
    PriorityChange { node: node(port), dialled: SocketAddr::from(([10, 0, 0, 1], port)), from, to }
}

fn view(priorities: &[(u16, u64)]) -> LeaderView {
    let listed = |&(port, priority): &(u16, u64)| ListedReplica {
        addr: node(port),
        priority,
        info_age: Some(MS(4000)),
        unfit: None,
    };
    LeaderView {
        master: node(1),
        epoch: 6,
        failing_over: false,
        down: false,
        selected: None,
        down_after: None,
        replicas: priorities.iter().map(listed).collect(),
    }
}

/// The state machine with servers that execute what it requests, and may lose an answer.
struct Scenario {
    machine: PriorityChanges,
    start: Instant,
    at: u64,
    /// The values of nodes 2 and 3.
    values: [u64; 2],
    seen: Vec<Action>,
    pending: Vec<Action>,
}

impl Scenario {
    /// Node 2 is requested: 3 is raised from 1 to 2, and 2 lowered from 100 to 1.
    fn begin() -> Self {
        let start = Instant::now();
        let changes = vec![change(3, 1, 2), change(2, 100, 1)];
        let (machine, actions) =
            PriorityChanges::begin(start, node(9), node(1), node(2), 1, changes);
        Self { machine, start, at: 0, values: [100, 1], seen: actions.clone(), pending: actions }
    }

    fn step(&mut self, input: Input) -> &mut Self {
        let actions = self.machine.step(self.start + MS(self.at), input);
        self.seen.extend(actions.iter().cloned());
        self.pending.extend(actions);
        self
    }

    fn value(&mut self, index: usize) -> &mut u64 {
        &mut self.values[usize::from(index == 0)]
    }

    fn values_of(index: usize) -> (u64, u64) {
        if index == 0 { (1, 2) } else { (100, 1) }
    }

    /// Executes the oldest request; `answered` is whether its answer arrives.
    fn answer(&mut self, answered: bool) -> bool {
        let lost = || SwitchoverError::Node { node: node(2), problem: "lost".to_owned() };
        while !self.pending.is_empty() {
            let input = match self.pending.remove(0) {
                Action::Set(index) => {
                    *self.value(index) = Self::values_of(index).1;
                    Input::Set(if answered { SetReply::Done } else { SetReply::Unknown(lost()) })
                }
                Action::PollLeader if answered => {
                    Input::View(Ok(view(&[(2, self.values[0]), (3, self.values[1])])))
                }
                Action::PollLeader => Input::View(Err("lost".to_owned())),
                Action::Restore(index) => {
                    *self.value(index) = Self::values_of(index).0;
                    let reply = if answered {
                        RestoreReply::Restored { is_rewritten: false }
                    } else {
                        RestoreReply::Failed("lost".to_owned())
                    };
                    Input::Restored(index, reply)
                }
                _ => continue,
            };
            self.step(input);
            return true;
        }
        false
    }

    fn pass(&mut self, millis: u64) -> &mut Self {
        self.at += millis;
        self.step(Input::Tick)
    }

    /// Answers everything until it is over.
    fn finish(&mut self) {
        for _ in 0..1000 {
            if self.seen.contains(&Action::Over) {
                return;
            }
            if !self.answer(true) {
                let due = self.machine.next_deadline().expect("a deadline");
                let to = due.saturating_duration_since(self.start).as_millis() as u64;
                let by = to.saturating_sub(self.at).max(1);
                self.pass(by);
            }
        }
        panic!("it does not end: {:?}", self.seen);
    }

    fn has(&self, wanted: impl Fn(&Action) -> bool) -> bool {
        self.seen.iter().any(wanted)
    }
}

#[test]
fn sets_waits_and_restores() {
    let mut scenario = Scenario::begin();
    assert!(scenario.answer(true) && scenario.answer(true));
    assert_eq!(scenario.values, [1, 2]);
    // The leader's INFO is older than the change.
    assert_eq!(scenario.pending, [Action::PollLeader]);
    scenario.pending.clear();
    scenario.step(Input::View(Ok(view(&[(2, 100), (3, 1)]))));
    assert!(!scenario.has(|it| *it == Action::Established));
    scenario.pass(2000);
    assert!(scenario.has(|it| matches!(it, Action::Report("prefer", text)
        if text.contains("reports priority 100") && text.contains("4.0 s ago"))));
    assert!(scenario.answer(true));
    assert!(scenario.has(|it| *it == Action::Established));
    assert_eq!(scenario.machine.changed().len(), 2);
    scenario.step(Input::Restore).finish();
    assert_eq!(scenario.values, [100, 1]);
    assert!(scenario.has(|it| *it == Action::Settled(Vec::new())));
    assert!(scenario.machine.changed().is_empty());
}

#[test]
fn restores_what_was_set_when_a_node_refuses() {
    let mut scenario = Scenario::begin();
    assert!(scenario.answer(true));
    scenario.pending.clear();
    let refused = SwitchoverError::Node { node: node(2), problem: "its ACL".to_owned() };
    scenario.step(Input::Set(SetReply::Refused(refused.clone())));
    assert!(scenario.has(|it| *it == Action::Failed(refused.clone())));
    assert_eq!(scenario.pending.iter().filter(|it| matches!(it, Action::Restore(_))).count(), 1);
    scenario.finish();
    assert_eq!(scenario.values, [100, 1]);
}

#[test]
fn checks_again_when_a_command_may_still_arrive() {
    let mut scenario = Scenario::begin();
    // The command is not answered, and executed only after the first check.
    scenario.pending.clear();
    let lost = SwitchoverError::Node { node: node(3), problem: "no answer".to_owned() };
    scenario.step(Input::Set(SetReply::Unknown(lost)));
    assert!(scenario.answer(true));
    assert!(!scenario.has(|it| *it == Action::Over));
    *scenario.value(0) = 2;
    scenario.finish();
    assert_eq!(scenario.values, [100, 1]);
    assert!(scenario.at >= 4000, "{}", scenario.at);
}

#[test]
fn reports_a_node_that_stays_away_and_keeps_trying() {
    let mut scenario = Scenario::begin();
    while scenario.answer(true) {}
    scenario.step(Input::Restore);
    let mut lost = 0;
    while scenario.at < 60_000 {
        scenario.pending.retain(|it| {
            lost += usize::from(matches!(it, Action::Restore(1)));
            !matches!(it, Action::Restore(1))
        });
        if lost > 0 {
            lost = 0;
            scenario.step(Input::Restored(1, RestoreReply::Failed("no route".to_owned())));
        }
        scenario.answer(true);
        scenario.pass(50);
    }
    let left = vec![(change(2, 100, 1), "no route".to_owned())];
    assert!(scenario.has(|it| *it == Action::Settled(left.clone())), "{:?}", scenario.seen);
    assert_eq!(scenario.machine.changed(), [change(2, 100, 1)]);
    assert!(!scenario.has(|it| *it == Action::Over));
    scenario.finish();
    assert_eq!(scenario.values, [100, 1]);
}

#[test]
fn advises_when_the_file_was_rewritten_before() {
    let mut scenario = Scenario::begin();
    while scenario.answer(true) {}
    scenario.step(Input::Restore);
    scenario.pending.retain(|it| *it != Action::Restore(1));
    let reply = RestoreReply::Restored { is_rewritten: true };
    scenario.step(Input::Restored(1, reply)).finish();
    let advised = |it: &Action| {
        matches!(it, Action::Report("restore", text)
        if text.contains("may contain 1") && text.contains("CONFIG REWRITE"))
    };
    assert_eq!(scenario.seen.iter().filter(|it| advised(it)).count(), 1);
}

#[test]
fn leaves_a_value_that_somebody_else_set() {
    let mut scenario = Scenario::begin();
    while scenario.answer(true) {}
    scenario.step(Input::Restore);
    scenario.pending.retain(|it| *it != Action::Restore(1));
    scenario.step(Input::Restored(1, RestoreReply::Other(42))).finish();
    assert!(scenario.has(|it| matches!(it, Action::Report("restore", text)
        if text.contains("is 42"))));
}

#[test]
fn fails_when_the_leader_does_not_report_the_priority() {
    let mut scenario = Scenario::begin();
    assert!(scenario.answer(true) && scenario.answer(true));
    while !scenario.has(|it| matches!(it, Action::Failed(_))) {
        scenario.pending.retain(|it| *it != Action::PollLeader);
        scenario.step(Input::View(Ok(view(&[(2, 1), (3, 1)])))).pass(100);
        assert!(scenario.at < 60_000);
    }
    let reason = scenario.seen.iter().find_map(|it| match it {
        Action::Failed(reason) => Some(reason.to_string()),
        _ => None,
    });
    let reason = reason.expect("a reason");
    assert!(reason.contains("priority 1 for 10.0.0.1:3, not above 1"), "{reason}");
    scenario.finish();
    assert_eq!(scenario.values, [100, 1]);
}

#[test]
fn fails_at_once_when_another_order_raised_the_replica() {
    let mut scenario = Scenario::begin();
    assert!(scenario.answer(true) && scenario.answer(true));
    scenario.pending.clear();
    scenario.step(Input::View(Ok(view(&[(2, 1_000_000_100), (3, 2)]))));
    assert!(scenario.has(|it| matches!(it, Action::Failed(SwitchoverError::PrioritiesInUse {
        node: found, former: 100, ..
    }) if *found == node(2))));
    scenario.finish();
    assert_eq!(scenario.values, [100, 1]);
}

#[test]
fn counts_only_replicas_that_could_be_promoted() {
    let mut seen = view(&[(2, 1), (3, 1)]);
    assert!(first_choice(&seen, &node(2), 1).is_err());
    seen.replicas[1].unfit = Some("it considers it down");
    assert_eq!(first_choice(&seen, &node(2), 1), Ok(()));
    seen.replicas[0].unfit = Some("it considers it down");
    assert!(first_choice(&seen, &node(2), 1).unwrap_err().contains("down"));
    assert!(first_choice(&view(&[(3, 1)]), &node(2), 1).unwrap_err().contains("not list"));
    assert_eq!(first_choice(&view(&[(2, 1), (3, 0)]), &node(2), 1), Ok(()));
}

proptest! {
    /// Answers get lost at any step, the switchover ends at any step: every value is restored.
    #[test]
    fn restores_every_value_whatever_happens(
        steps in proptest::collection::vec((0_u8..8, 1_u64..3000), 0..40),
    ) {
        let mut scenario = Scenario::begin();
        for (what, millis) in steps {
            match what {
                0..=3 => drop(scenario.answer(true)),
                4 | 5 => drop(scenario.answer(false)),
                6 => drop(scenario.pass(millis)),
                _ => drop(scenario.step(Input::Restore)),
            }
        }
        scenario.step(Input::Restore).finish();
        prop_assert_eq!(scenario.values, [100, 1]);
        prop_assert!(scenario.machine.changed().is_empty());
        let settled = scenario.seen.iter().filter(|it| matches!(it, Action::Settled(_))).count();
        prop_assert_eq!(settled, 1, "{:?}", scenario.seen);
        prop_assert!(scenario.seen.iter().filter(|it| matches!(it, Action::Failed(_))).count() < 2);
    }
}
