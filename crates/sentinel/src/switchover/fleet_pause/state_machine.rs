//! The state machine of a pause of the fleet: short pauses of the master that are renewed, moved
//! when the master changes, and revoked wherever they were set.
//!
//! However this process ends, the pause that it leaves ends by itself within [`SLICE`].

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::NodeAddr;

/// Duration of one `CLIENT PAUSE`: how long one is left if this process is killed, and how long
/// this process may be without a processor before writes pass.
pub(super) const SLICE: Duration = Duration::from_secs(2);
/// Interval of renewal.
const RENEW_EVERY: Duration = Duration::from_millis(250);

/// A node by its announced and its dialled address.
pub(super) type Dialled = (NodeAddr, SocketAddr);

/// An input of the state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Input {
    Tick,
    /// The master in force, if there is one.
    Master(Option<Dialled>),
    /// The answer to a `CLIENT PAUSE`.
    Paused(SocketAddr, Result<(), String>),
    /// The answer to a `CLIENT UNPAUSE`.
    Unpaused(SocketAddr, Result<(), String>),
    /// Resume now.
    End,
}

/// An action to execute. Each request is answered by one input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    Pause(SocketAddr, Duration),
    Unpause(SocketAddr),
    /// The master changed from the first node to the second one.
    Moved(NodeAddr, NodeAddr),
    /// The first answer.
    Begun(Result<(), String>),
    Over,
}

/// The node that is paused at present.
#[derive(Debug)]
struct PausedMaster {
    node: Dialled,
    /// When an unanswered pause was sent, and its duration.
    asked: Option<(Instant, Duration)>,
    due: Instant,
    /// Writes are paused until then at least.
    held_until: Option<Instant>,
    problem: Option<String>,
}

/// The state machine. See the module's header.
#[derive(Debug)]
pub(super) struct FleetPauseMachine {
    until: Instant,
    master: PausedMaster,
    is_begun: bool,
    /// Where a pause may be left, and until when.
    left: Vec<(SocketAddr, Instant)>,
    is_ending: bool,
    is_over: bool,
}

impl FleetPauseMachine {
    pub(super) fn begin(now: Instant, until: Instant, node: Dialled) -> (Self, Vec<Action>) {
        let master = PausedMaster::new(now, node);
        let (left, is_begun) = (Vec::new(), false);
        let mut machine = Self { until, master, is_begun, left, is_ending: false, is_over: false };
        let actions = machine.step(now, Input::Tick);
        (machine, actions)
    }

    /// Processes one input and returns the actions, in order.
    pub(super) fn step(&mut self, now: Instant, input: Input) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.is_over {
            return actions;
        }
        match input {
            Input::Tick => {}
            Input::Master(Some(node)) if node != self.master.node && !self.is_ending => {
                self.move_to(now, node, &mut actions);
            }
            Input::Master(_) => {}
            Input::Paused(addr, answer) => self.on_paused(now, addr, answer, &mut actions),
            // If it failed, the pause ends by itself.
            Input::Unpaused(addr, _) => self.left.retain(|(left, _)| *left != addr),
            Input::End => self.end(&mut actions),
        }
        if now >= self.until {
            self.end(&mut actions);
        }
        if !self.is_ending && self.master.asked.is_none() && now >= self.master.due {
            let span = SLICE.min(self.until.saturating_duration_since(now));
            self.master.asked = Some((now, span));
            let addr = self.master.node.1;
            self.left.retain(|(left, _)| *left != addr);
            // A command whose answer is lost may be executed later than it was sent.
            self.left.push((addr, now + span * 2));
            actions.push(Action::Pause(addr, span));
        }
        if self.is_ending && self.left.iter().all(|(_, until)| now >= *until) {
            self.is_over = true;
            actions.push(Action::Over);
        }
        actions
    }

    /// When an [`Input::Tick`] is due.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        if self.is_over {
            return None;
        }
        if self.is_ending {
            return self.left.iter().map(|(_, until)| *until).max();
        }
        let due = self.master.asked.is_none().then_some(self.master.due);
        due.into_iter().chain([self.until]).min()
    }

    /// The paused node, or the problem.
    pub(super) fn status(&self, now: Instant) -> (Option<NodeAddr>, Option<String>) {
        let is_held = self.master.held_until.is_some_and(|until| now < until);
        (is_held.then(|| self.master.node.0.clone()), self.master.problem.clone())
    }

    /// The old master is unpaused at once: its clients have to leave it.
    fn move_to(&mut self, now: Instant, node: Dialled, actions: &mut Vec<Action>) {
        let old = std::mem::replace(&mut self.master, PausedMaster::new(now, node));
        actions.push(Action::Moved(old.node.0, self.master.node.0.clone()));
        actions.push(Action::Unpause(old.node.1));
    }

    fn on_paused(
        &mut self,
        now: Instant,
        addr: SocketAddr,
        answer: Result<(), String>,
        actions: &mut Vec<Action>,
    ) {
        if addr != self.master.node.1 || self.is_ending {
            // It was executed after the node was unpaused, or may have been.
            if answer.is_ok() {
                actions.push(Action::Unpause(addr));
            }
            return;
        }
        let Some((sent, span)) = self.master.asked.take() else { return };
        self.master.due = (sent + RENEW_EVERY).max(now);
        match &answer {
            Ok(()) => {
                // The duration runs from the execution, which was not before the sending.
                (self.master.held_until, self.master.problem) = (Some(sent + span), None);
            }
            Err(problem) => {
                self.master.problem = Some(problem.clone());
                self.master.due = now + RENEW_EVERY;
            }
        }
        if !std::mem::replace(&mut self.is_begun, true) {
            let has_failed = answer.is_err();
            actions.push(Action::Begun(answer));
            if has_failed {
                self.end(actions);
            }
        }
    }

    fn end(&mut self, actions: &mut Vec<Action>) {
        if !std::mem::replace(&mut self.is_ending, true) {
            actions.extend(self.left.iter().map(|(addr, _)| Action::Unpause(*addr)));
        }
    }
}

impl PausedMaster {
    fn new(now: Instant, node: Dialled) -> Self {
        Self { node, asked: None, due: now, held_until: None, problem: None }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn node(port: u16) -> Dialled {
        let addr = SocketAddr::from(([10, 0, 0, 1], port));
        (addr.into(), addr)
    }

    /// A pause with the nodes that execute its commands.
    struct Scenario {
        machine: FleetPauseMachine,
        start: Instant,
        at: u64,
        /// Until when nodes 1 and 2 are paused.
        paused: [u64; 2],
        answers: bool,
        seen: Vec<(u64, Action)>,
    }

    impl Scenario {
        fn begin(millis: u64) -> Self {
            let start = Instant::now();
            let (machine, actions) = FleetPauseMachine::begin(start, start + MS(millis), node(1));
            let (paused, seen) = ([0, 0], Vec::new());
            let mut scenario = Self { machine, start, at: 0, paused, answers: true, seen };
            scenario.perform(actions);
            scenario
        }

        fn step(&mut self, input: Input) {
            let actions = self.machine.step(self.start + MS(self.at), input);
            self.perform(actions);
        }

        fn perform(&mut self, actions: Vec<Action>) {
            for action in actions {
                self.seen.push((self.at, action.clone()));
                let index = |addr: SocketAddr| usize::from(addr.port() - 1);
                match action {
                    Action::Pause(addr, span) => {
                        let until = self.at + u64::try_from(span.as_millis()).unwrap();
                        let paused = &mut self.paused[index(addr)];
                        *paused = until.max(*paused);
                        let lost = || Err("no answer".to_owned());
                        let answer = if self.answers { Ok(()) } else { lost() };
                        self.step(Input::Paused(addr, answer));
                    }
                    Action::Unpause(addr) => {
                        self.paused[index(addr)] = 0;
                        self.step(Input::Unpaused(addr, Ok(())));
                    }
                    _ => {}
                }
            }
        }

        fn pass(&mut self, millis: u64) {
            for _ in 0..millis {
                self.at += 1;
                self.step(Input::Tick);
            }
        }

        fn is_over(&self) -> bool {
            self.seen.iter().any(|(_, it)| *it == Action::Over)
        }
    }

    #[test]
    fn renews_short_pauses_until_the_end() {
        let mut scenario = Scenario::begin(5000);
        assert!(scenario.seen.contains(&(0, Action::Begun(Ok(())))));
        for _ in 0..4999 {
            scenario.pass(1);
            assert!(scenario.paused[0] > scenario.at, "a gap at {}", scenario.at);
            assert!(scenario.paused[0] <= scenario.at + 2000, "it would be left for too long");
            assert!(scenario.paused[0] <= 5000);
        }
        scenario.pass(1);
        assert!(scenario.is_over(), "{:?}", scenario.seen);
        assert_eq!(scenario.paused, [0, 0]);
    }

    #[test]
    fn moves_with_the_master_and_unpauses_the_old_one() {
        let mut scenario = Scenario::begin(5000);
        scenario.pass(1000);
        scenario.step(Input::Master(None));
        assert!(scenario.paused[0] > scenario.at, "no master is no reason to move");
        scenario.step(Input::Master(Some(node(2))));
        assert_eq!(scenario.paused[0], 0);
        assert!(scenario.paused[1] > scenario.at);
        assert_eq!(scenario.machine.status(scenario.start + MS(1000)).0, Some(node(2).0));
        scenario.step(Input::End);
        assert!(scenario.is_over());
        assert_eq!(scenario.paused, [0, 0]);
    }

    #[test]
    fn ends_when_the_first_pause_is_refused() {
        let start = Instant::now();
        let (mut machine, _) = FleetPauseMachine::begin(start, start + MS(5000), node(1));
        let refused = || Err("NOPERM".to_owned());
        let actions = machine.step(start, Input::Paused(node(1).1, refused()));
        let unpause = Action::Unpause(node(1).1);
        assert_eq!(actions, [Action::Begun(refused()), unpause]);
        assert_eq!(machine.step(start, Input::Unpaused(node(1).1, Ok(()))), [Action::Over]);
    }

    #[test]
    fn unpauses_again_when_a_pause_was_under_way() {
        let start = Instant::now();
        let (mut machine, _) = FleetPauseMachine::begin(start, start + MS(5000), node(1));
        assert_eq!(machine.step(start, Input::End), [Action::Unpause(node(1).1)]);
        let late = machine.step(start, Input::Paused(node(1).1, Ok(())));
        assert_eq!(late, [Action::Unpause(node(1).1)]);
    }

    #[test]
    fn reports_a_pause_that_lapsed() {
        let mut scenario = Scenario::begin(5000);
        scenario.answers = false;
        scenario.pass(2100);
        let (paused, problem) = scenario.machine.status(scenario.start + MS(2100));
        assert_eq!((paused, problem.as_deref()), (None, Some("no answer")));
        scenario.answers = true;
        scenario.pass(300);
        assert_eq!(scenario.machine.status(scenario.start + MS(2400)).1, None);
    }

    proptest! {
        /// Answers get lost, masters change, the end comes at any time: nothing stays paused.
        #[test]
        fn leaves_no_node_paused_for_longer_than_a_slice(
            steps in proptest::collection::vec((0_u8..6, 1_u64..400), 0..30),
        ) {
            let mut scenario = Scenario::begin(3000);
            for (what, millis) in steps {
                match what {
                    0 => scenario.answers = !scenario.answers,
                    1 | 2 => scenario.step(Input::Master(Some(node(u16::from(what))))),
                    3 => scenario.step(Input::End),
                    _ => scenario.pass(millis),
                }
                for until in scenario.paused {
                    prop_assert!(until <= scenario.at + 2000 && until <= 3000);
                }
            }
            scenario.step(Input::End);
            let at = scenario.at;
            scenario.pass(4500);
            prop_assert!(scenario.is_over(), "{:?}", scenario.seen);
            prop_assert!(scenario.paused.iter().all(|until| *until <= at), "{:?}", scenario.paused);
        }
    }
}
