//! The state machine of temporary priorities: sets them, waits until the leader reports them, and
//! restores every one of them, whatever happens.
//!
//! ```text
//! Setting -> Waiting -> Established -> Restoring -> Over
//!    '----------'-----------------------^
//! ```
//!
//! A change whose command was not answered counts as made, because a server that hangs executes it
//! later. A value is restored only if it is the one that was set here: one that somebody else has
//! set since is left alone and reported. A node that does not answer is tried again, for longer
//! than the switchover is reported as running.

use std::time::{Duration, Instant};

use super::choice::first_choice;
use super::plan::{PriorityChange, former_priority};
use crate::NodeAddr;
use crate::switchover::error::SwitchoverError;
use crate::switchover::leader::LeaderView;

/// Interval of polling the leader.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Interval of reporting that the leader does not report the priorities yet.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// A sentinel sends INFO every ten seconds, at its next tick, and may have missed one reply.
const REPORT_PATIENCE: Duration = Duration::from_secs(25);
/// First and longest interval between attempts to restore a value.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
/// The result of the switchover is reported by then, restored or not.
const RESTORE_PATIENCE: Duration = Duration::from_secs(10);
/// A command that was sent without an answer reaches the server within this time, or never: the
/// kernel gives up after `USER_TIMEOUT`.
const IN_FLIGHT: Duration = Duration::from_secs(4);
/// A node that is away for longer than this has been replaced or restarted.
const GIVE_UP: Duration = Duration::from_secs(3600);

/// The result of setting a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SetReply {
    Done,
    /// The server refused it: nothing was changed.
    Refused(SwitchoverError),
    /// No reply: it may take effect.
    Unknown(SwitchoverError),
}

/// The result of an attempt to restore a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RestoreReply {
    /// The node reports the value from before.
    Restored {
        /// It has changed its role or master since, which includes a CONFIG REWRITE.
        is_rewritten: bool,
    },
    /// Neither that value nor the one that was set here.
    Other(u64),
    Failed(String),
}

/// An input of the state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Input {
    Tick,
    Set(SetReply),
    View(Result<LeaderView, String>),
    Restored(usize, RestoreReply),
    /// A replica was selected, or the switchover has ended.
    Restore,
}

/// An action to execute. Each request is answered by one input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    Set(usize),
    PollLeader,
    Restore(usize),
    Report(&'static str, String),
    /// The leader reports the requested replica as its first choice.
    Established,
    /// It will not; the values are being restored.
    Failed(SwitchoverError),
    /// Every value is restored, or this long has been tried: these nodes are left.
    Settled(Vec<(PriorityChange, String)>),
    Over,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum NodeState {
    Original,
    Setting,
    Changed,
    /// `retry_at` is `None` while an attempt is pending.
    Restoring {
        retry_at: Option<Instant>,
        attempts: u32,
        problem: String,
    },
    Restored,
}

#[derive(Debug)]
struct Node {
    change: PriorityChange,
    state: NodeState,
    /// A command without an answer may still change the value until then.
    unsure_until: Option<Instant>,
}

#[derive(Debug)]
enum Phase {
    Setting(usize),
    /// `ask_at` is `None` while a poll is pending.
    Waiting {
        since: Instant,
        ask_at: Option<Instant>,
        report_at: Instant,
        problem: String,
    },
    Established,
    Restoring {
        since: Instant,
        settled: bool,
    },
    Over,
}

/// The state machine. See the module's header.
#[derive(Debug)]
pub(super) struct PriorityChanges {
    sentinel: NodeAddr,
    master: NodeAddr,
    requested: NodeAddr,
    /// The priority of the requested replica after the changes.
    wanted: u64,
    nodes: Vec<Node>,
    phase: Phase,
    actions: Vec<Action>,
}

impl PriorityChanges {
    pub(super) fn begin(
        now: Instant,
        sentinel: NodeAddr,
        master: NodeAddr,
        requested: NodeAddr,
        wanted: u64,
        changes: Vec<PriorityChange>,
    ) -> (Self, Vec<Action>) {
        let node = |change| Node { change, state: NodeState::Original, unsure_until: None };
        let nodes = changes.into_iter().map(node).collect();
        let (phase, actions) = (Phase::Setting(0), Vec::new());
        let mut machine = Self { sentinel, master, requested, wanted, nodes, phase, actions };
        machine.set_next(now, 0);
        let actions = std::mem::take(&mut machine.actions);
        (machine, actions)
    }

    /// Processes one input and returns the actions, in order.
    pub(super) fn step(&mut self, now: Instant, input: Input) -> Vec<Action> {
        match input {
            Input::Tick => {}
            Input::Set(reply) => self.on_set(now, reply),
            Input::View(view) => self.on_view(now, view),
            Input::Restored(index, reply) => self.on_restored(now, index, reply),
            Input::Restore => self.restore(now),
        }
        self.check_deadlines(now);
        std::mem::take(&mut self.actions)
    }

    /// When an [`Input::Tick`] is due.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Waiting { since, ask_at, report_at, .. } => {
                let at = (*since + REPORT_PATIENCE).min(*report_at);
                Some(ask_at.map_or(at, |ask_at| ask_at.min(at)))
            }
            Phase::Restoring { since, settled } => {
                let settle = (!settled).then(|| *since + RESTORE_PATIENCE);
                let retries = self.nodes.iter().filter_map(|node| match &node.state {
                    NodeState::Restoring { retry_at, .. } => *retry_at,
                    _ => None,
                });
                retries.chain(settle).chain([*since + GIVE_UP]).min()
            }
            Phase::Setting(_) | Phase::Established | Phase::Over => None,
        }
    }

    /// The nodes whose value may differ from the one before.
    pub(super) fn changed(&self) -> Vec<PriorityChange> {
        let open = |it: &&Node| !matches!(it.state, NodeState::Original | NodeState::Restored);
        self.nodes.iter().filter(open).map(|it| it.change.clone()).collect()
    }

    fn set_next(&mut self, now: Instant, index: usize) {
        if let Some(node) = self.nodes.get_mut(index) {
            node.state = NodeState::Setting;
            self.phase = Phase::Setting(index);
            self.actions.push(Action::Set(index));
        } else {
            let (report_at, problem) = (now + PROGRESS_INTERVAL, String::new());
            self.phase = Phase::Waiting { since: now, ask_at: None, report_at, problem };
            self.actions.push(Action::PollLeader);
        }
    }

    fn on_set(&mut self, now: Instant, reply: SetReply) {
        let setting = |node: &&mut Node| node.state == NodeState::Setting;
        let Some(node) = self.nodes.iter_mut().find(setting) else { return };
        let failure = match reply {
            SetReply::Done => {
                node.state = NodeState::Changed;
                None
            }
            SetReply::Refused(reason) => {
                node.state = NodeState::Original;
                Some(reason)
            }
            SetReply::Unknown(reason) => {
                node.state = NodeState::Changed;
                node.unsure_until = Some(now + IN_FLIGHT);
                Some(reason)
            }
        };
        match (&self.phase, failure) {
            (Phase::Setting(index), None) => self.set_next(now, index + 1),
            (Phase::Setting(_), Some(reason)) => self.fail(now, reason),
            // Its reply was waited for.
            _ => self.begin_restoring(now),
        }
    }

    fn on_view(&mut self, now: Instant, view: Result<LeaderView, String>) {
        let Phase::Waiting { ask_at, problem, .. } = &mut self.phase else { return };
        *ask_at = Some(now + POLL_INTERVAL);
        let view = match view {
            Ok(view) => view,
            Err(problem) => {
                let problem = format!("{}: {problem}", self.sentinel);
                return self.fail(now, SwitchoverError::Refused(problem));
            }
        };
        if view.failing_over {
            return self.fail(now, SwitchoverError::FailingOver(self.sentinel.clone()));
        }
        if view.master != self.master || view.down {
            return self.fail(now, SwitchoverError::Unsettled);
        }
        // Raised by another process since this one has read it.
        let own = view.replicas.iter().find(|it| it.addr == self.requested);
        if let Some((value, former)) =
            own.and_then(|it| Some((it.priority, former_priority(it.priority)?)))
        {
            let node = self.requested.clone();
            return self.fail(now, SwitchoverError::PrioritiesInUse { node, value, former });
        }
        match first_choice(&view, &self.requested, self.wanted) {
            Ok(()) => {
                let text = format!(
                    "sentinel {} reports {} as its first choice, with priority {}",
                    self.sentinel, self.requested, self.wanted
                );
                self.actions.push(Action::Report("prefer", text));
                self.actions.push(Action::Established);
                self.phase = Phase::Established;
            }
            Err(found) => *problem = found,
        }
    }

    /// Restores everything, from whatever phase.
    fn restore(&mut self, now: Instant) {
        if !matches!(self.phase, Phase::Restoring { .. } | Phase::Over) {
            self.phase = Phase::Restoring { since: now, settled: false };
            self.begin_restoring(now);
        }
    }

    fn fail(&mut self, now: Instant, reason: SwitchoverError) {
        self.actions.push(Action::Failed(reason));
        self.restore(now);
    }

    fn begin_restoring(&mut self, now: Instant) {
        for (index, node) in self.nodes.iter_mut().enumerate() {
            if node.state == NodeState::Changed {
                let (retry_at, problem) = (None, "no attempt has ended yet".to_owned());
                node.state = NodeState::Restoring { retry_at, attempts: 0, problem };
                self.actions.push(Action::Restore(index));
            }
        }
        self.check_deadlines(now);
    }

    fn on_restored(&mut self, now: Instant, index: usize, reply: RestoreReply) {
        let Some(node) = self.nodes.get_mut(index) else { return };
        let NodeState::Restoring { retry_at, attempts, problem } = &mut node.state else { return };
        let change = &node.change;
        let text = match reply {
            RestoreReply::Restored { is_rewritten } => {
                if let Some(until) = node.unsure_until.filter(|until| now < *until) {
                    *retry_at = Some(until);
                    "a command without an answer may still arrive".clone_into(problem);
                    return;
                }
                let advice = if is_rewritten { rewrite_advice(change) } else { String::new() };
                format!("replica-priority of {} is {} again{advice}", change.node, change.from)
            }
            RestoreReply::Other(value) => format!(
                "replica-priority of {} was {}, was set to {}, and is {value}: somebody else \
                 changed it, so that it stays",
                change.node, change.from, change.to
            ),
            RestoreReply::Failed(why) => {
                let pause = RETRY.0.saturating_mul(1 << (*attempts).min(8)).min(RETRY.1);
                (*retry_at, *attempts, *problem) = (Some(now + pause), *attempts + 1, why);
                return;
            }
        };
        node.state = NodeState::Restored;
        self.actions.push(Action::Report("restore", text));
    }

    fn check_deadlines(&mut self, now: Instant) {
        match &mut self.phase {
            Phase::Waiting { since, ask_at, report_at, problem } => {
                if now >= *since + REPORT_PATIENCE {
                    let reason = SwitchoverError::NotReported {
                        sentinel: self.sentinel.clone(),
                        node: self.requested.clone(),
                        problem: std::mem::take(problem),
                        wait: REPORT_PATIENCE,
                    };
                    return self.fail(now, reason);
                }
                if ask_at.is_some_and(|at| now >= at) {
                    *ask_at = None;
                    self.actions.push(Action::PollLeader);
                }
                if now >= *report_at {
                    *report_at = now + PROGRESS_INTERVAL;
                    let text = format!("waiting for sentinel {}: {problem}", self.sentinel);
                    self.actions.push(Action::Report("prefer", text));
                }
            }
            Phase::Restoring { .. } => self.retry(now),
            Phase::Setting(_) | Phase::Established | Phase::Over => {}
        }
    }

    fn retry(&mut self, now: Instant) {
        let Phase::Restoring { since, settled } = &mut self.phase else { return };
        for (index, node) in self.nodes.iter_mut().enumerate() {
            if let NodeState::Restoring { retry_at, .. } = &mut node.state
                && retry_at.is_some_and(|at| now >= at)
            {
                *retry_at = None;
                self.actions.push(Action::Restore(index));
            }
        }
        let open = |it: &&Node| !matches!(it.state, NodeState::Original | NodeState::Restored);
        let left: Vec<(PriorityChange, String)> = self
            .nodes
            .iter()
            .filter(open)
            .map(|it| match &it.state {
                NodeState::Restoring { problem, .. } => (it.change.clone(), problem.clone()),
                _ => (it.change.clone(), "the command has no answer yet".to_owned()),
            })
            .collect();
        let (done, since) = (left.is_empty(), *since);
        if !*settled && (done || now >= since + RESTORE_PATIENCE) {
            *settled = true;
            self.actions.push(Action::Settled(left));
        }
        if done || now >= since + GIVE_UP {
            self.phase = Phase::Over;
            self.actions.push(Action::Over);
        }
    }
}

/// Sentinel rewrote the node's configuration file before the value was restored.
fn rewrite_advice(change: &PriorityChange) -> String {
    let (host, port) = (change.dialled.ip(), change.dialled.port());
    format!(
        "; its configuration file may contain {}: run redis-cli -h {host} -p {port} CONFIG REWRITE",
        change.to
    )
}

#[cfg(test)]
mod tests;
