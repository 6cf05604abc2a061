//! The state machine of one switchover: events and the time go in, actions and the result come out.
//!
//! ```text
//! ClosingGate -> Settling -> Pausing -> CatchUp -> StartingFailover -> Following
//!                '--- only with --pause-clients ---'
//!
//! Following -> Lingering -> Ending
//!          '-> LeaderLost
//! ```
//!
//! Until the failover command everything can be revoked, and is, at the first irregularity. After
//! it only Sentinel decides, and the hold ends with the first of: the commit, the leader's abort,
//! the loss of the leader, the time limit. It may end before the promotion is decided, because it
//! is not what keeps writes safe from then on: once a replica is selected, the discovery machine
//! holds by itself.
//!
//! A commit is a success only if it belongs to the requested failover: of the replica that the
//! leader selected, at the epoch at which the failover began. Every exit opens the gate and, if the
//! master's other clients were paused, unpauses them.

use std::time::{Duration, Instant};

use super::catch_up::{CatchUp, CatchUpStatus, ReplicationOffsets};
use super::error::SwitchoverError;
use super::failover::{Failover, FailoverUpdate};
use super::handover::{Handover, HandoverState};
use super::leader::{LeaderEvent, LeaderView};
use super::participants::Participants;
use super::pausing::{self, PauseSchedule};
use super::phase::SwitchoverPhase;
use super::steps::{Action, DiscoveryState, FailoverKind, FailoverReply, Input};
use super::{SwitchoverLimits, SwitchoverOutcome};
use crate::NodeAddr;

/// Interval of reading the offsets.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Interval of polling the leader.
const LEADER_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Requests that were sent to the master before the gate closed have been executed after this time.
const SETTLE_TIME: Duration = Duration::from_millis(30);
/// The master's other clients stay paused this long after the commit, so that those that listen to
/// Sentinel disconnect before the old master executes what they have sent.
const LINGER: Duration = Duration::from_secs(1);
/// The leader's events are read on a separate connection, and may be read this much later than
/// discovery commits.
const EVENT_DELAY: Duration = Duration::from_millis(500);
/// How long to wait for a commit after the leader was lost; traffic is not held meanwhile.
const COMMIT_WITHOUT_LEADER: Duration = Duration::from_secs(5);

/// The state machine. See the module's header.
#[derive(Debug)]
pub(super) struct SwitchoverMachine {
    participants: Participants,
    leader: NodeAddr,
    limits: SwitchoverLimits,
    start: Instant,
    phase: SwitchoverPhase,
    pausing: Option<PauseSchedule>,
    failover: Failover,
    /// Of a coordinated failover, from its command on.
    handover: Option<Handover>,
    /// There is a new master, and the leader's event of its selection has not been read yet.
    unattributed_since: Option<Instant>,
    actions: Vec<Action>,
}

impl SwitchoverMachine {
    /// Starts by closing the gate. `down_after` is given if the master's other clients are to be
    /// paused.
    pub(super) fn begin(
        now: Instant,
        participants: Participants,
        leader: NodeAddr,
        limits: SwitchoverLimits,
        down_after: Option<Duration>,
    ) -> Result<(Self, Vec<Action>), SwitchoverError> {
        let pausing = down_after.map(PauseSchedule::within).transpose()?;
        let failover = Failover::of(participants.master.clone(), participants.epoch);
        let machine = Self {
            participants,
            leader,
            limits,
            start: now,
            phase: SwitchoverPhase::ClosingGate,
            pausing,
            failover,
            handover: None,
            unattributed_since: None,
            actions: Vec::new(),
        };
        let hold = machine.hold();
        Ok((machine, vec![hold]))
    }

    /// Neither a selection nor a new master has been observed.
    fn has_not_begun(&self) -> bool {
        !self.failover.is_selected() && self.unattributed_since.is_none()
    }

    fn hold(&self) -> Action {
        Action::Hold {
            since: self.start,
            until: self.start + self.limits.catch_up + self.limits.follow,
        }
    }

    /// Processes one input and returns the actions, in order.
    pub(super) fn step(&mut self, now: Instant, input: Input) -> Vec<Action> {
        match input {
            Input::Tick => self.check_deadlines(now),
            Input::Discovery(discovery) => self.on_discovery(now, &discovery),
            Input::OffsetsRead(on_offsets) => self.on_offsets(now, on_offsets),
            Input::Paused(answer) => self.on_paused(now, answer),
            Input::Unpaused => self.on_unpaused(),
            Input::FailoverReply(answer) => self.on_failover_reply(now, answer),
            Input::HandoverRead(state) => self.on_handover(now, state),
            Input::HandoverEnded(result) => self.on_handover_ended(result),
            Input::Event(event) => self.event(now, event),
            Input::View(view) => self.view(now, view),
            Input::LeaderLost(problem) => self.leader_lost(now, problem),
            Input::Abandoned if self.phase.is_revocable() => {
                self.end(Err(SwitchoverError::Abandoned));
            }
            Input::Abandoned => {}
        }
        self.ask(now);
        std::mem::take(&mut self.actions)
    }

    /// When an [`Input::Tick`] is due.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let phase = match &self.phase {
            SwitchoverPhase::ClosingGate => Some(self.start + self.limits.timeout),
            SwitchoverPhase::Settling { until }
            | SwitchoverPhase::Lingering { until, .. }
            | SwitchoverPhase::LeaderLost { until, .. } => Some(*until),
            SwitchoverPhase::CatchUp { look_at, .. } => *look_at,
            SwitchoverPhase::Following { since, ask_at } => {
                let begin = self.has_not_begun().then(|| *since + self.limits.begin);
                let handover = self.handover.as_ref().and_then(Handover::next_due);
                let follow = Some(*since + self.limits.follow);
                [begin, *ask_at, handover, follow].into_iter().flatten().min()
            }
            SwitchoverPhase::Pausing
            | SwitchoverPhase::StartingFailover { .. }
            | SwitchoverPhase::Ending(_) => Some(self.last_deadline()),
            SwitchoverPhase::Over => None,
        };
        let renewal = self
            .pausing
            .as_ref()
            .filter(|_| self.phase.keeps_clients_paused())
            .and_then(PauseSchedule::next_due);
        phase.into_iter().chain(renewal).min()
    }

    /// The switchover ends by then even if a task does not answer: the gate opens by itself
    /// earlier, and the pause ends by itself.
    fn last_deadline(&self) -> Instant {
        self.start
            + self.limits.catch_up
            + self.limits.follow
            + COMMIT_WITHOUT_LEADER
            + LINGER
            + self.limits.timeout * 8
    }

    fn report(&mut self, step: &'static str, text: String) {
        self.actions.push(Action::ReportStep(step, text));
    }

    /// Opens the gate, unpauses the clients, and completes once that is done.
    fn end(&mut self, result: Result<SwitchoverOutcome, SwitchoverError>) {
        if matches!(self.phase, SwitchoverPhase::Ending(_) | SwitchoverPhase::Over) {
            return;
        }
        self.actions.push(Action::Release);
        if let Err(reason) = &result {
            self.report("abort", reason.to_string());
        }
        // After another failover the old master is superseded: nobody is to write to it any more.
        let stays =
            matches!(&result, Err(it) if !matches!(it, SwitchoverError::OtherFailover { .. }));
        if self.pausing.as_ref().is_some_and(PauseSchedule::was_tried) {
            self.actions.push(Action::Unpause);
            self.phase = SwitchoverPhase::Ending(result);
        } else if stays && self.handover.as_ref().is_some_and(Handover::was_selected) {
            self.actions.push(Action::EndHandover);
            self.phase = SwitchoverPhase::Ending(result);
        } else {
            self.phase = SwitchoverPhase::Over;
            self.actions.push(Action::Done(result));
        }
    }

    fn on_unpaused(&mut self) {
        if let SwitchoverPhase::Ending(result) = &self.phase {
            self.actions.push(Action::Done(result.clone()));
            self.phase = SwitchoverPhase::Over;
        }
    }

    fn on_handover(&mut self, now: Instant, state: Option<HandoverState>) {
        let SwitchoverPhase::Following { .. } = self.phase else { return };
        if self.handover.as_mut().is_some_and(|it| it.read(now, state)) {
            let (master, sentinel) = (self.participants.master.clone(), self.leader.clone());
            self.end(Err(SwitchoverError::NotCarriedOut { master, sentinel }));
        }
    }

    fn on_handover_ended(&mut self, result: Result<(), String>) {
        if let Err(problem) = result {
            self.report("pause", problem);
        }
        self.on_unpaused();
    }

    fn on_discovery(&mut self, now: Instant, discovery: &DiscoveryState) {
        let newer = discovery
            .master
            .as_ref()
            .filter(|(_, generation, _)| *generation > self.participants.generation);
        match &self.phase {
            _ if self.phase.is_revocable() && (newer.is_some() || discovery.master.is_none()) => {
                self.end(Err(SwitchoverError::Unsettled));
            }
            SwitchoverPhase::ClosingGate if discovery.holding => {
                self.report("hold", "traffic is held; requests in flight are answered".to_owned());
                if self.pausing.is_some() {
                    // A request of ours that is still in flight would be paused, too, and get no
                    // reply.
                    self.phase = SwitchoverPhase::Settling { until: now + SETTLE_TIME };
                } else {
                    self.catch_up(now, now + self.limits.catch_up);
                }
            }
            SwitchoverPhase::StartingFailover { since }
            | SwitchoverPhase::Following { since, .. }
            | SwitchoverPhase::LeaderLost { since, .. } => {
                if let Some((to, generation, epoch)) = newer {
                    let (since, to) = (*since, to.clone());
                    self.committed(now, since, to, *generation, *epoch);
                } else if matches!(self.phase, SwitchoverPhase::LeaderLost { .. })
                    && !discovery.holding
                {
                    // Traffic flows to the old master again, and must not be paused there.
                    let stopped = self.pausing.as_mut().is_some_and(PauseSchedule::stop);
                    self.actions.extend(stopped.then_some(Action::Unpause));
                }
            }
            _ => {}
        }
    }

    fn catch_up(&mut self, now: Instant, until: Instant) {
        let catch_up = CatchUp::new(until, SETTLE_TIME, self.pausing.is_some());
        self.phase = SwitchoverPhase::CatchUp { catch_up, look_at: Some(now) };
    }

    fn on_paused(&mut self, now: Instant, answer: Result<(), String>) {
        let Some(pausing) = &mut self.pausing else { return };
        let first = matches!(self.phase, SwitchoverPhase::Pausing);
        match (pausing.answered(now, answer), first) {
            (Ok(()), true) => {
                let until = pausing.order_by(now + self.limits.catch_up);
                self.report("pause", "clients that bypass this proxy are paused".to_owned());
                self.catch_up(now, until);
            }
            (Ok(()), false) => {}
            (Err(problem), _) if self.phase.is_revocable() => {
                self.end(Err(SwitchoverError::NotPaused(problem)));
            }
            (Err(problem), _) if self.phase.keeps_clients_paused() => {
                self.report(
                    "pause",
                    format!("clients that bypass this proxy are no longer paused: {problem}"),
                );
            }
            (Err(_), _) => {}
        }
    }

    fn on_offsets(
        &mut self,
        now: Instant,
        on_offsets: Result<
            (ReplicationOffsets, Vec<(NodeAddr, ReplicationOffsets)>),
            SwitchoverError,
        >,
    ) {
        let SwitchoverPhase::CatchUp { catch_up, look_at } = &mut self.phase else { return };
        let status = match on_offsets {
            Ok((master, replicas)) => catch_up.evaluate(now, master, &replicas),
            Err(reason) => CatchUpStatus::Abort(reason),
        };
        match status {
            CatchUpStatus::Wait => *look_at = Some(now + POLL_INTERVAL),
            CatchUpStatus::Abort(reason) => self.end(Err(reason)),
            CatchUpStatus::Ready { .. }
                if self.pausing.as_ref().is_some_and(|it| !it.holds_at(now)) =>
            {
                self.end(Err(SwitchoverError::NotPaused(
                    "the pause ended before it was renewed".to_owned(),
                )));
            }
            CatchUpStatus::Ready { offset } => {
                self.report(
                    "catch-up",
                    format!("every replica has the master's first {offset} bytes"),
                );
                self.phase = SwitchoverPhase::StartingFailover { since: now };
                let kind = self.kind();
                self.handover = (kind == FailoverKind::Coordinated).then_some(Handover::default());
                self.actions.push(Action::StartFailover(kind));
            }
        }
    }

    /// With paused clients the failover is a plain one: nothing is written that a handover would
    /// have to wait for, and a `PUBLISH` of the sentinel that waits at the paused master would keep
    /// its `FAILOVER` waiting, too.
    fn kind(&self) -> FailoverKind {
        if self.pausing.is_some() { FailoverKind::Plain } else { FailoverKind::Coordinated }
    }

    fn on_failover_reply(&mut self, now: Instant, answer: FailoverReply) {
        let SwitchoverPhase::StartingFailover { since } = self.phase else { return };
        match answer {
            FailoverReply::Accepted(kind) => {
                let how = match kind {
                    FailoverKind::Plain => "the failover",
                    FailoverKind::Coordinated => "a failover that the master carries out",
                };
                self.report("order", format!("sentinel {} starts {how}", self.leader));
                if kind == FailoverKind::Plain {
                    self.handover = None;
                }
                self.phase = SwitchoverPhase::Following { since, ask_at: Some(now) };
            }
            FailoverReply::Refused(reason) => self.end(Err(reason)),
            FailoverReply::Unknown(problem) => {
                self.phase = SwitchoverPhase::Following { since, ask_at: None };
                self.leader_lost(now, problem);
            }
        }
    }

    fn event(&mut self, now: Instant, event: LeaderEvent) {
        // An event from before the command belongs to another failover.
        if self.phase.is_after_failover_command() {
            let update = self.failover.event(event);
            self.update(now, update);
        }
    }

    /// The same information as the events, in case one is lost.
    fn view(&mut self, now: Instant, view: LeaderView) {
        if let SwitchoverPhase::Following { ask_at, .. } = &mut self.phase {
            *ask_at = Some(now + LEADER_POLL_INTERVAL);
            let update = self.failover.view(view);
            self.update(now, update);
        }
    }

    fn update(&mut self, now: Instant, update: FailoverUpdate) {
        match update {
            FailoverUpdate::Nothing => {}
            FailoverUpdate::Selected(node) => {
                self.report("select", format!("{node} is to be promoted"));
                self.actions.push(Action::Selected(node));
                if let Some(handover) = &mut self.handover {
                    handover.select(now);
                }
            }
            FailoverUpdate::Promoted(node) => {
                self.report("promote", format!("{node} was promoted"));
                if let Some(handover) = &mut self.handover {
                    handover.promote();
                }
            }
            FailoverUpdate::Aborted(event) => {
                let sentinel = self.leader.clone();
                self.end(Err(SwitchoverError::Aborted { sentinel, event }));
            }
        }
    }

    fn leader_lost(&mut self, now: Instant, problem: String) {
        let SwitchoverPhase::Following { since, .. } = self.phase else { return };
        if self.failover.is_selected() {
            // The discovery machine holds as long as the promotion may still come.
            self.actions.push(Action::Release);
            self.phase =
                SwitchoverPhase::LeaderLost { since, until: now + COMMIT_WITHOUT_LEADER, problem };
        } else {
            let sentinel = self.leader.clone();
            self.end(Err(SwitchoverError::LeaderLost { sentinel, problem }));
        }
    }

    fn committed(
        &mut self,
        now: Instant,
        ordered_at: Instant,
        to: NodeAddr,
        generation: u64,
        epoch: u64,
    ) {
        if to == self.participants.master {
            // The old master was verified anew, which opened the gate.
            self.participants.generation = generation;
            if !matches!(self.phase, SwitchoverPhase::LeaderLost { .. }) {
                self.actions.push(self.hold());
            }
            return;
        }
        if !self.failover.led_to(&to, epoch) {
            let since = *self.unattributed_since.get_or_insert(now);
            if self.failover.is_selected() || now >= since + EVENT_DELAY {
                self.end(Err(SwitchoverError::OtherFailover { to }));
            }
            return;
        }
        let held = now.saturating_duration_since(self.start);
        let sentinel = now.saturating_duration_since(ordered_at);
        self.report(
            "commit",
            format!(
                "{to} is the master; traffic was held for {} ms, of which Sentinel's promotion \
                 took {} ms",
                held.as_millis(),
                sentinel.as_millis()
            ),
        );
        let outcome = SwitchoverOutcome {
            from: self.participants.master.clone(),
            to,
            generation,
            held,
            sentinel,
        };
        if self.pausing.as_ref().is_some_and(PauseSchedule::was_tried) {
            self.actions.push(Action::Release);
            self.phase = SwitchoverPhase::Lingering { until: now + LINGER, outcome };
        } else {
            self.end(Ok(outcome));
        }
    }

    /// Ends phases whose time limit has passed.
    fn check_deadlines(&mut self, now: Instant) {
        let limits = self.limits;
        if now >= self.last_deadline() {
            self.end(Err(SwitchoverError::NoCommit));
            self.on_unpaused();
            return;
        }
        match &self.phase {
            SwitchoverPhase::ClosingGate if now >= self.start + limits.timeout => {
                self.end(Err(SwitchoverError::Unsettled));
            }
            SwitchoverPhase::Settling { until } if now >= *until => {
                self.phase = SwitchoverPhase::Pausing;
            }
            SwitchoverPhase::Following { since, .. } if now >= *since + limits.follow => {
                self.end(Err(SwitchoverError::NoCommit));
            }
            SwitchoverPhase::Following { since, .. }
                if self.has_not_begun() && now >= *since + limits.begin =>
            {
                let reason = SwitchoverError::NotBegun(self.leader.clone(), limits.begin);
                self.end(Err(reason));
            }
            SwitchoverPhase::LeaderLost { until, problem, .. } if now >= *until => {
                let (sentinel, problem) = (self.leader.clone(), problem.clone());
                self.end(Err(SwitchoverError::LeaderLost { sentinel, problem }));
            }
            SwitchoverPhase::Lingering { until, outcome } if now >= *until => {
                let outcome = outcome.clone();
                self.end(Ok(outcome));
            }
            _ => {}
        }
    }

    /// Sends the requests that are due.
    fn ask(&mut self, now: Instant) {
        match &mut self.phase {
            SwitchoverPhase::CatchUp { look_at, .. } if look_at.is_some_and(|at| now >= at) => {
                *look_at = None;
                self.actions.push(Action::ReadOffsets);
            }
            SwitchoverPhase::Following { ask_at, .. } if ask_at.is_some_and(|at| now >= at) => {
                *ask_at = None;
                self.actions.push(Action::PollLeader);
            }
            _ => {}
        }
        if matches!(self.phase, SwitchoverPhase::Following { .. })
            && self.handover.as_mut().is_some_and(|it| it.is_due(now))
        {
            self.actions.push(Action::ReadHandover);
        }
        let wanted =
            self.phase.keeps_clients_paused() || matches!(self.phase, SwitchoverPhase::Pausing);
        let Some(pausing) = self.pausing.as_mut().filter(|_| wanted) else { return };
        match pausing.due(now) {
            pausing::Due::Nothing => {}
            pausing::Due::Pause(span) => self.actions.push(Action::Pause(span)),
            pausing::Due::Over => {
                let why = "otherwise the sentinels would consider the master down";
                self.report(
                    "pause",
                    format!("clients that bypass this proxy are no longer paused: {why}"),
                );
            }
        }
    }
}

#[cfg(test)]
mod tests;
