//! The course of one switchover as a state machine: what happens and the time go in, commands and
//! the result come out.
//!
//! ```text
//! Shutting -> Settling -> Pausing -> CatchUp -> Ordering -> Following -> Lingering -> Ending
//!             '--- only with --pause-clients ---'            '-> Leaderless
//! ```
//!
//! Until the order everything can be taken back, and is, at the first thing that is not as it
//! should be. After it only Sentinel decides, and the hold ends with the first of: the commit, the
//! leader's abort, the loss of the leader, the time allowed. It may end before the promotion is
//! decided, because it is not what keeps writes safe from then on: from the selection of a replica
//! on the discovery machine holds by itself.
//!
//! A commit is a success only if it is the failover that was ordered: of the replica that the
//! leader selected, at the epoch at which it began. Every way out opens the gate and, if the
//! master's other clients were paused, lets them go.

use std::time::{Duration, Instant};

use super::failover::{Failover, News};
use super::leader::{LeaderEvent, LeaderView};
use super::pausing::{self, Pausing};
use super::phase::Phase;
use super::reason::Reason;
use super::steps::{Action, Answer, Input, Sight};
use super::weigh::{Cast, CatchUp, ReplicationOffsets, Verdict};
use super::{Limits, Outcome};
use crate::NodeAddr;

/// Between two looks at the offsets.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Between two questions to the leader.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// What was sent to the master before the gate shut has been executed this long after.
const STILL: Duration = Duration::from_millis(30);
/// The master's other clients stay paused this long after the commit, so that those that listen to
/// Sentinel leave before what they have sent is executed by the old master.
const LINGER: Duration = Duration::from_secs(1);
/// The leader's events are read on a connection of their own, and may be read this much later than
/// discovery commits.
const UNEXPLAINED: Duration = Duration::from_millis(500);
/// How long a commit is waited for after the leader was lost; traffic is not held for it.
const LEADERLESS: Duration = Duration::from_secs(5);

/// See the module's header.
#[derive(Debug)]
pub(super) struct Course {
    cast: Cast,
    leader: NodeAddr,
    limits: Limits,
    start: Instant,
    phase: Phase,
    pausing: Option<Pausing>,
    failover: Failover,
    /// There is a new master, and what the leader said of its selection has not been read yet.
    unexplained_since: Option<Instant>,
    actions: Vec<Action>,
}

impl Course {
    /// Begins by shutting the gate. `down_after` is given if the master's other clients are to be
    /// paused.
    pub(super) fn begin(
        now: Instant,
        (cast, leader): (Cast, NodeAddr),
        limits: Limits,
        down_after: Option<Duration>,
    ) -> Result<(Self, Vec<Action>), Reason> {
        let pausing = down_after.map(Pausing::within).transpose()?;
        let (phase, failover) = (Phase::Shutting, Failover::of(cast.master.clone(), cast.epoch));
        let (unexplained_since, actions) = (None, Vec::new());
        let course = Self {
            cast,
            leader,
            limits,
            start: now,
            phase,
            pausing,
            failover,
            unexplained_since,
            actions,
        };
        let hold = course.hold();
        Ok((course, vec![hold]))
    }

    /// Nothing came of the order yet, not even a master.
    fn has_not_begun(&self) -> bool {
        !self.failover.is_selected() && self.unexplained_since.is_none()
    }

    fn hold(&self) -> Action {
        Action::Hold {
            since: self.start,
            until: self.start + self.limits.catch_up + self.limits.follow,
        }
    }

    /// Takes one input and gives what is to be done, in order.
    pub(super) fn step(&mut self, now: Instant, input: Input) -> Vec<Action> {
        match input {
            Input::Tick => self.run_out(now),
            Input::DiscoverySnapshot(sight) => self.seen(now, &sight),
            Input::Looked(looked) => self.looked(now, looked),
            Input::Paused(answer) => self.paused(now, answer),
            Input::Unpaused => self.unpaused(),
            Input::Ordered(answer) => self.ordered(now, answer),
            Input::Event(event) => self.event(event),
            Input::View(view) => self.view(now, view),
            Input::LeaderLost(problem) => self.leader_lost(now, problem),
            Input::Abandoned if self.phase.may_be_taken_back() => self.end(Err(Reason::Abandoned)),
            Input::Abandoned => {}
        }
        self.ask(now);
        std::mem::take(&mut self.actions)
    }

    /// When a [`Input::Tick`] is due.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let phase = match &self.phase {
            Phase::Shutting => Some(self.start + self.limits.patience),
            Phase::Settling { until }
            | Phase::Lingering { until, .. }
            | Phase::Leaderless { until, .. } => Some(*until),
            Phase::CatchUp { look_at, .. } => *look_at,
            Phase::Following { since, ask_at } => {
                let begin = self.has_not_begun().then(|| *since + self.limits.begin);
                [begin, *ask_at, Some(*since + self.limits.follow)].into_iter().flatten().min()
            }
            Phase::Pausing | Phase::Ordering { .. } | Phase::Ending(_) => {
                Some(self.last_deadline())
            }
            Phase::Over => None,
        };
        let renewal = self
            .pausing
            .as_ref()
            .filter(|_| self.phase.keeps_clients_paused())
            .and_then(Pausing::next_due);
        phase.into_iter().chain(renewal).min()
    }

    /// By then it is over even if a task does not answer: the gate opens by itself earlier, and the
    /// pause ends by itself.
    fn last_deadline(&self) -> Instant {
        self.start
            + self.limits.catch_up
            + self.limits.follow
            + LEADERLESS
            + LINGER
            + self.limits.patience * 8
    }

    fn tell(&mut self, step: &'static str, text: String) {
        self.actions.push(Action::Tell(step, text));
    }

    /// Opens the gate, lets the paused clients go, and is done when that is.
    fn end(&mut self, result: Result<Outcome, Reason>) {
        if matches!(self.phase, Phase::Ending(_) | Phase::Over) {
            return;
        }
        self.actions.push(Action::Release);
        if let Err(reason) = &result {
            self.tell("abort", reason.to_string());
        }
        if self.pausing.as_ref().is_some_and(Pausing::was_tried) {
            self.actions.push(Action::Unpause);
            self.phase = Phase::Ending(result);
        } else {
            self.phase = Phase::Over;
            self.actions.push(Action::Done(result));
        }
    }

    fn unpaused(&mut self) {
        if let Phase::Ending(result) = &self.phase {
            self.actions.push(Action::Done(result.clone()));
            self.phase = Phase::Over;
        }
    }

    fn seen(&mut self, now: Instant, sight: &Sight) {
        let newer =
            sight.master.as_ref().filter(|(_, generation, _)| *generation > self.cast.generation);
        match &self.phase {
            _ if self.phase.may_be_taken_back() && (newer.is_some() || sight.master.is_none()) => {
                self.end(Err(Reason::Unsettled));
            }
            Phase::Shutting if sight.holding => {
                self.tell("hold", "traffic is held; requests under way are answered".to_owned());
                if self.pausing.is_some() {
                    // A request of ours that is still on its way would be paused, too, and have no
                    // reply.
                    self.phase = Phase::Settling { until: now + STILL };
                } else {
                    self.catch_up(now, now + self.limits.catch_up);
                }
            }
            Phase::Ordering { since }
            | Phase::Following { since, .. }
            | Phase::Leaderless { since, .. } => {
                if let Some((to, generation, epoch)) = newer {
                    let (since, to) = (*since, to.clone());
                    self.committed(now, since, (to, *generation, *epoch));
                } else if matches!(self.phase, Phase::Leaderless { .. }) && !sight.holding {
                    // Traffic flows to the old master again, and must not wait there.
                    let stopped = self.pausing.as_mut().is_some_and(Pausing::stop);
                    self.actions.extend(stopped.then_some(Action::Unpause));
                }
            }
            _ => {}
        }
    }

    fn catch_up(&mut self, now: Instant, until: Instant) {
        let waiting = CatchUp::new(until, STILL, self.pausing.is_some());
        self.phase = Phase::CatchUp { waiting, look_at: Some(now) };
    }

    fn paused(&mut self, now: Instant, answer: Result<(), String>) {
        let Some(pausing) = &mut self.pausing else { return };
        let first = matches!(self.phase, Phase::Pausing);
        match (pausing.answered(now, answer), first) {
            (Ok(()), true) => {
                let until = pausing.order_by(now + self.limits.catch_up);
                self.tell("pause", "clients that do not pass here wait at the master".to_owned());
                self.catch_up(now, until);
            }
            (Ok(()), false) => {}
            (Err(problem), _) if self.phase.may_be_taken_back() => {
                self.end(Err(Reason::NotPaused(problem)))
            }
            (Err(problem), _) if self.phase.keeps_clients_paused() => {
                self.tell(
                    "pause",
                    format!("clients that do not pass here are not paused any more: {problem}"),
                );
            }
            (Err(_), _) => {}
        }
    }

    fn looked(
        &mut self,
        now: Instant,
        looked: Result<(ReplicationOffsets, Vec<(NodeAddr, ReplicationOffsets)>), Reason>,
    ) {
        let Phase::CatchUp { waiting, look_at } = &mut self.phase else { return };
        let verdict = match looked {
            Ok((master, replicas)) => waiting.weigh(now, master, &replicas),
            Err(reason) => Verdict::Abort(reason),
        };
        match verdict {
            Verdict::Wait => *look_at = Some(now + LOOK_EVERY),
            Verdict::Abort(reason) => self.end(Err(reason)),
            Verdict::Ready { .. } if self.pausing.as_ref().is_some_and(|it| !it.holds_at(now)) => {
                self.end(Err(Reason::NotPaused(
                    "the pause ended before it was renewed".to_owned(),
                )));
            }
            Verdict::Ready { offset } => {
                self.tell(
                    "catch-up",
                    format!("every replica has the master's first {offset} bytes"),
                );
                self.phase = Phase::Ordering { since: now };
                self.actions.push(Action::Order);
            }
        }
    }

    fn ordered(&mut self, now: Instant, answer: Answer) {
        let Phase::Ordering { since } = self.phase else { return };
        match answer {
            Answer::Taken => {
                self.tell("order", format!("sentinel {} starts the failover", self.leader));
                self.phase = Phase::Following { since, ask_at: Some(now) };
            }
            Answer::Refused(reason) => self.end(Err(reason)),
            Answer::Unknown(problem) => {
                self.phase = Phase::Following { since, ask_at: None };
                self.leader_lost(now, problem);
            }
        }
    }

    fn event(&mut self, event: LeaderEvent) {
        // An event from before the order is of another failover.
        if self.phase.is_after_the_order() {
            let news = self.failover.event(event);
            self.news(news);
        }
    }

    /// What the events tell as well, if none is lost.
    fn view(&mut self, now: Instant, view: LeaderView) {
        if let Phase::Following { ask_at, .. } = &mut self.phase {
            *ask_at = Some(now + ASK_EVERY);
            let news = self.failover.view(view);
            self.news(news);
        }
    }

    fn news(&mut self, news: News) {
        match news {
            News::Nothing => {}
            News::Selected(node) => self.tell("select", format!("{node} is to be promoted")),
            News::Promoted(node) => self.tell("promote", format!("{node} was promoted")),
            News::Aborted(event) => {
                let sentinel = self.leader.clone();
                self.end(Err(Reason::Aborted { sentinel, event }));
            }
        }
    }

    fn leader_lost(&mut self, now: Instant, problem: String) {
        let Phase::Following { since, .. } = self.phase else { return };
        if self.failover.is_selected() {
            // The discovery machine holds as long as it thinks that the promotion may come.
            self.actions.push(Action::Release);
            self.phase = Phase::Leaderless { since, until: now + LEADERLESS, problem };
        } else {
            let sentinel = self.leader.clone();
            self.end(Err(Reason::LeaderLost { sentinel, problem }));
        }
    }

    fn committed(
        &mut self,
        now: Instant,
        ordered_at: Instant,
        (to, generation, epoch): (NodeAddr, u64, u64),
    ) {
        if to == self.cast.master {
            // The old master was verified anew, which opened the gate.
            self.cast.generation = generation;
            if !matches!(self.phase, Phase::Leaderless { .. }) {
                self.actions.push(self.hold());
            }
            return;
        }
        if !self.failover.led_to(&to, epoch) {
            let since = *self.unexplained_since.get_or_insert(now);
            if self.failover.is_selected() || now >= since + UNEXPLAINED {
                self.end(Err(Reason::OtherFailover { to }));
            }
            return;
        }
        let held = now.saturating_duration_since(self.start);
        let sentinel = now.saturating_duration_since(ordered_at);
        self.tell(
            "commit",
            format!(
                "{to} is the master; traffic was held for {} ms, {} ms of them by Sentinel's own promotion",
                held.as_millis(),
                sentinel.as_millis()
            ),
        );
        let outcome = Outcome { from: self.cast.master.clone(), to, generation, held, sentinel };
        if self.pausing.as_ref().is_some_and(Pausing::was_tried) {
            self.actions.push(Action::Release);
            self.phase = Phase::Lingering { until: now + LINGER, outcome };
        } else {
            self.end(Ok(outcome));
        }
    }

    /// Ends what has had its time.
    fn run_out(&mut self, now: Instant) {
        let limits = self.limits;
        if now >= self.last_deadline() {
            self.end(Err(Reason::NoCommit));
            self.unpaused();
            return;
        }
        match &self.phase {
            Phase::Shutting if now >= self.start + limits.patience => {
                self.end(Err(Reason::Unsettled))
            }
            Phase::Settling { until } if now >= *until => self.phase = Phase::Pausing,
            Phase::Following { since, .. } if now >= *since + limits.follow => {
                self.end(Err(Reason::NoCommit))
            }
            Phase::Following { since, .. }
                if self.has_not_begun() && now >= *since + limits.begin =>
            {
                let reason = Reason::NotBegun(self.leader.clone(), limits.begin);
                self.end(Err(reason));
            }
            Phase::Leaderless { until, problem, .. } if now >= *until => {
                let (sentinel, problem) = (self.leader.clone(), problem.clone());
                self.end(Err(Reason::LeaderLost { sentinel, problem }));
            }
            Phase::Lingering { until, outcome } if now >= *until => {
                let outcome = outcome.clone();
                self.end(Ok(outcome));
            }
            _ => {}
        }
    }

    /// Asks what is due.
    fn ask(&mut self, now: Instant) {
        match &mut self.phase {
            Phase::CatchUp { look_at, .. } if look_at.is_some_and(|at| now >= at) => {
                *look_at = None;
                self.actions.push(Action::Look);
            }
            Phase::Following { ask_at, .. } if ask_at.is_some_and(|at| now >= at) => {
                *ask_at = None;
                self.actions.push(Action::Ask);
            }
            _ => {}
        }
        let wanted = self.phase.keeps_clients_paused() || matches!(self.phase, Phase::Pausing);
        let Some(pausing) = self.pausing.as_mut().filter(|_| wanted) else { return };
        match pausing.due(now) {
            pausing::Due::Nothing => {}
            pausing::Due::Pause(span) => self.actions.push(Action::Pause(span)),
            pausing::Due::Over => {
                let why = "the sentinels would hold the master to be down otherwise";
                self.tell(
                    "pause",
                    format!("clients that do not pass here are paused no longer: {why}"),
                );
            }
        }
    }
}

#[cfg(test)]
mod tests;
