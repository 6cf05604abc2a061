//! The state machine of one switchover: events and the time go in, actions and the result come out.
//!
//! ```text
//! ClosingGate -> Pausing -> CatchUp -> StartingFailover -> Following -> Released -> Ending
//!                '- only with --pause-clients
//! ```
//!
//! Until the failover command everything can be revoked, and is, at the first irregularity. After
//! it only Sentinel decides, and the hold ends with the first of: the commit, the leader's abort,
//! the loss of the leader, three seconds. It may end before the promotion is decided, because it
//! is not what keeps writes safe from then on: once a replica is selected, the discovery machine
//! holds by itself.
//!
//! A commit is a success only if it belongs to the requested failover: of the replica that the
//! leader selected, at the epoch at which the failover began. Every exit opens the gate and, if the
//! master's other clients were paused, unpauses them.

use std::time::{Duration, Instant};

use super::SwitchoverOutcome;
use super::catch_up::{CatchUp, ReplicationReading, ReplicationState};
use super::error::SwitchoverError;
use super::handover::Handover;
use super::leader::{Failover, LeaderEvent, LeaderView};
use super::participants::Participants;
use super::pausing::{self, PauseSchedule};
use crate::{MasterSnapshot, NodeAddr, Pause};

/// For the replicas to catch up while the gate is closed.
const CATCH_UP: Duration = Duration::from_secs(2);
/// From the failover command to the selection of a replica.
pub(super) const BEGIN: Duration = Duration::from_secs(2);
/// From the failover command to the end of this hold. Discovery holds for the selected replica by
/// itself, and decides alone from then on.
const HOLD: Duration = Duration::from_secs(3);
/// From the failover command to the verified new master.
const FOLLOW: Duration = Duration::from_secs(10);
/// For discovery to close the gate.
const CLOSE: Duration = Duration::from_millis(500);
/// For commands that are not answered.
const UNANSWERED: Duration = Duration::from_secs(4);

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

/// How a failover is ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailoverKind {
    /// The replica is promoted while the master accepts writes.
    Plain,
    /// The master stops accepting writes and hands over, where sentinel and master support that.
    Coordinated,
}

/// An input of the state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Input {
    Tick,
    /// What discovery shows: whether the gate is closed, and the published master.
    Discovery {
        holding: bool,
        master: Option<MasterSnapshot>,
    },
    OffsetsRead(Result<ReplicationReading, SwitchoverError>),
    /// The answer to a `CLIENT PAUSE`.
    Paused(Result<(), String>),
    /// What may have paused the master's clients is revoked, or ends by itself; otherwise with a
    /// text for operators.
    Unpaused(Result<(), String>),
    /// What the master reports about the handover; `None` without an answer.
    HandoverRead(Option<ReplicationState>),
    /// The failover command was accepted, perhaps as another kind than the requested one.
    FailoverReply(Result<FailoverKind, SwitchoverError>),
    Event(LeaderEvent),
    View(LeaderView),
    /// Without a reply to the failover command, it may have been accepted.
    LeaderLost(String),
    /// The requester disconnected.
    Abandoned,
}

/// A command for the master: about its other clients, or about a handover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MasterCommand {
    /// Pause its clients for this long.
    Pause(Duration),
    Unpause,
    /// Read whether it carries out the handover.
    ReadHandover,
    /// Let it accept writes again after a handover that failed.
    EndHandover,
}

/// A command for the leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeaderCommand {
    /// `SENTINEL FAILOVER`.
    StartFailover(FailoverKind),
    /// Poll it about the failover after this time.
    View(Duration),
}

/// An action to execute. Each request is answered by one input, and repeated only after that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// Keep the gate closed.
    Hold(Pause),
    /// Open the gate, as far as this switchover closed it.
    Release,
    /// Read the offsets of all nodes after this time.
    ReadOffsets(Duration),
    Master(MasterCommand),
    Leader(LeaderCommand),
    ReportStep(&'static str, String),
    /// The leader has selected a replica: priorities have no effect on the failover any more.
    Selected,
    /// It is over, with this result.
    Done(Result<SwitchoverOutcome, SwitchoverError>),
}

/// The phases in their order.
#[derive(Debug)]
enum Phase {
    /// The gate is being closed.
    ClosingGate,
    /// The first `CLIENT PAUSE` is due soon, or pending.
    Pausing,
    CatchUp(CatchUp),
    StartingFailover,
    Following,
    /// Traffic is not held any more, and this is the result unless something comes before. With an
    /// error, the leader was lost after it had selected a replica, or the promotion takes long: a
    /// commit may still come. With an outcome, other clients stay paused for a while.
    Released {
        until: Instant,
        result: Result<SwitchoverOutcome, SwitchoverError>,
    },
    /// Only the pause has to be revoked; then the result is reported.
    Ending(Option<Result<SwitchoverOutcome, SwitchoverError>>),
}

impl Phase {
    /// Nothing has been changed yet.
    fn is_revocable(&self) -> bool {
        matches!(self, Self::ClosingGate | Self::Pausing | Self::CatchUp(_))
    }

    /// The failover command was sent, and its result is unknown.
    fn is_after_failover_command(&self) -> bool {
        matches!(
            self,
            Self::StartingFailover | Self::Following | Self::Released { result: Err(_), .. }
        )
    }

    /// The master's other clients are kept paused, if they are paused at all.
    fn keeps_clients_paused(&self) -> bool {
        matches!(self, Self::CatchUp(_) | Self::Released { .. }) || self.is_after_failover_command()
    }
}

/// The state machine. See the module's header.
#[derive(Debug)]
pub(super) struct SwitchoverMachine {
    participants: Participants,
    leader: NodeAddr,
    start: Instant,
    phase: Phase,
    /// When the failover command was sent, from then on.
    ordered_at: Instant,
    pausing: Option<PauseSchedule>,
    failover: Failover,
    /// Of a coordinated failover, from its command on.
    handover: Option<Handover>,
    /// There is a new master, and the leader's event of its selection has not been read yet.
    unattributed_since: Option<Instant>,
    actions: Vec<Action>,
}

impl SwitchoverMachine {
    /// The first step closes the gate. `down_after` is given if the master's other clients are to
    /// be paused.
    pub(super) fn begin(
        now: Instant,
        participants: Participants,
        leader: NodeAddr,
        down_after: Option<Duration>,
    ) -> Result<Self, SwitchoverError> {
        let pausing = down_after.map(PauseSchedule::within).transpose()?;
        let mut machine = Self {
            participants,
            leader,
            start: now,
            phase: Phase::ClosingGate,
            ordered_at: now,
            pausing,
            failover: Failover::default(),
            handover: None,
            unattributed_since: None,
            actions: Vec::new(),
        };
        machine.hold();
        Ok(machine)
    }

    fn hold(&mut self) {
        let until = self.start + CATCH_UP + FOLLOW;
        self.actions.push(Action::Hold(Pause { since: self.start, until, ends_with_commit: true }));
    }

    /// The discovery machine holds as long as the promotion may still come.
    fn release(&mut self, until: Instant, result: Result<SwitchoverOutcome, SwitchoverError>) {
        self.actions.push(Action::Release);
        self.phase = Phase::Released { until, result };
    }

    /// Processes one input and returns the actions, in order.
    pub(super) fn step(&mut self, now: Instant, input: Input) -> Vec<Action> {
        match input {
            Input::Tick => self.check_deadlines(now),
            Input::Discovery { holding, master } => self.on_discovery(now, holding, master),
            Input::OffsetsRead(read) => self.on_offsets(now, read),
            Input::Paused(answer) => self.on_paused(now, answer),
            Input::Unpaused(result) => self.on_unpaused(result),
            Input::FailoverReply(answer) => self.on_failover_reply(answer),
            Input::HandoverRead(state) => self.on_handover(now, state),
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

    fn report(&mut self, step: &'static str, text: impl Into<String>) {
        self.actions.push(Action::ReportStep(step, text.into()));
    }

    fn report_no_longer_paused(&mut self, why: &str) {
        let text = format!("clients that bypass this proxy are no longer paused: {why}");
        self.report("pause", text);
    }

    fn command_master(&mut self, command: MasterCommand) {
        self.actions.push(Action::Master(command));
    }

    /// Opens the gate, unpauses the clients, and completes once that is done.
    fn end(&mut self, result: Result<SwitchoverOutcome, SwitchoverError>) {
        if matches!(self.phase, Phase::Ending(_)) {
            return;
        }
        self.actions.push(Action::Release);
        // After another failover the old master is superseded: nobody is to write to it any more.
        let stays = matches!(&result, Err(it) if !matches!(it, SwitchoverError::OtherFailover(_)));
        self.phase = Phase::Ending(Some(result));
        if self.pausing.as_ref().is_some_and(PauseSchedule::was_tried) {
            self.command_master(MasterCommand::Unpause);
        } else if stays && self.handover.is_some() && self.failover.is_selected() {
            self.command_master(MasterCommand::EndHandover);
        } else {
            self.on_unpaused(Ok(()));
        }
    }

    fn on_unpaused(&mut self, unpaused: Result<(), String>) {
        if let Err(problem) = unpaused {
            self.report("pause", problem);
        }
        if let Phase::Ending(result) = &mut self.phase {
            self.actions.extend(result.take().map(Action::Done));
        }
    }

    fn on_handover(&mut self, now: Instant, state: Option<ReplicationState>) {
        if self.phase.is_after_failover_command()
            && self.handover.as_mut().is_some_and(|it| it.read(now, state))
        {
            let (master, sentinel) = (self.participants.master.addr.clone(), self.leader.clone());
            self.end(Err(SwitchoverError::NotCarriedOut(master, sentinel)));
        }
    }

    fn on_discovery(&mut self, now: Instant, holding: bool, master: Option<MasterSnapshot>) {
        let is_gone = master.is_none();
        let newer = master.filter(|it| it.generation > self.participants.master.generation);
        match (&self.phase, newer) {
            (phase, newer) if phase.is_revocable() && (newer.is_some() || is_gone) => {
                self.end(Err(SwitchoverError::Unsettled));
            }
            (Phase::ClosingGate, _) if holding => {
                self.report("hold", "traffic is held; requests in flight are answered");
                if let Some(pausing) = &mut self.pausing {
                    // A request of ours that is still in flight would be paused, too, and get no
                    // reply.
                    pausing.begin(now + SETTLE_TIME);
                    self.phase = Phase::Pausing;
                } else {
                    self.catch_up(now + CATCH_UP);
                }
            }
            (phase, Some(master)) if phase.is_after_failover_command() => {
                self.committed(now, master);
            }
            (Phase::Released { result: Err(_), .. }, None)
                if !holding && self.pausing.as_mut().is_some_and(PauseSchedule::stop) =>
            {
                // Traffic flows to the old master again, and must not be paused there.
                self.command_master(MasterCommand::Unpause);
            }
            _ => {}
        }
    }

    fn catch_up(&mut self, until: Instant) {
        let catch_up = CatchUp::new(until, SETTLE_TIME, self.pausing.is_some());
        self.phase = Phase::CatchUp(catch_up);
        self.actions.push(Action::ReadOffsets(Duration::ZERO));
    }

    fn on_paused(&mut self, now: Instant, answer: Result<(), String>) {
        let Some(pausing) = &mut self.pausing else { return };
        pausing.answered(now, answer.is_ok());
        match answer {
            Ok(()) if matches!(self.phase, Phase::Pausing) => {
                let until = pausing.order_by(now + CATCH_UP);
                self.report("pause", "clients that bypass this proxy are paused");
                self.catch_up(until);
            }
            Err(problem) if self.phase.is_revocable() => {
                self.end(Err(SwitchoverError::NotPaused(problem)));
            }
            Err(problem) if self.phase.keeps_clients_paused() => {
                self.report_no_longer_paused(&problem);
            }
            _ => {}
        }
    }

    fn on_offsets(&mut self, now: Instant, read: Result<ReplicationReading, SwitchoverError>) {
        let Phase::CatchUp(catch_up) = &mut self.phase else { return };
        match read.and_then(|it| catch_up.evaluate(now, it.master, &it.replicas)) {
            Err(reason) => self.end(Err(reason)),
            Ok(None) => self.actions.push(Action::ReadOffsets(POLL_INTERVAL)),
            Ok(Some(_)) if self.pausing.as_ref().is_some_and(|it| !it.holds_at(now)) => {
                self.end(Err(SwitchoverError::NotPaused(
                    "the pause ended before it was renewed".to_owned(),
                )));
            }
            Ok(Some(offset)) => {
                self.report(
                    "catch-up",
                    format!("every replica has the master's first {offset} bytes"),
                );
                (self.phase, self.ordered_at) = (Phase::StartingFailover, now);
                // With paused clients the failover is a plain one: nothing is written that a
                // handover would have to wait for, and a `PUBLISH` of the sentinel that waits at
                // the paused master would keep its `FAILOVER` waiting, too.
                let is_plain = self.pausing.is_some();
                let kind = if is_plain { FailoverKind::Plain } else { FailoverKind::Coordinated };
                self.handover = (!is_plain).then(Handover::default);
                self.actions.push(Action::Leader(LeaderCommand::StartFailover(kind)));
            }
        }
    }

    fn on_failover_reply(&mut self, answer: Result<FailoverKind, SwitchoverError>) {
        let Phase::StartingFailover = self.phase else { return };
        match answer {
            Ok(kind) => {
                let how = match kind {
                    FailoverKind::Plain => "the failover",
                    FailoverKind::Coordinated => "a failover that the master carries out",
                };
                self.report("order", format!("sentinel {} starts {how}", self.leader));
                if kind == FailoverKind::Plain {
                    self.handover = None;
                }
                self.phase = Phase::Following;
                self.actions.push(Action::Leader(LeaderCommand::View(Duration::ZERO)));
            }
            Err(reason) => self.end(Err(reason)),
        }
    }

    fn event(&mut self, now: Instant, event: LeaderEvent) {
        // An event from before the command belongs to another failover.
        if self.phase.is_after_failover_command() {
            let news = self.failover.event(event);
            self.on_progress(now, news);
        }
    }

    /// The same information as the events, in case one is lost.
    fn view(&mut self, now: Instant, view: LeaderView) {
        if let Phase::Following = self.phase {
            self.actions.push(Action::Leader(LeaderCommand::View(LEADER_POLL_INTERVAL)));
            let news = self.failover.view(view, &self.participants);
            self.on_progress(now, news);
        }
    }

    fn on_progress(&mut self, now: Instant, news: Option<LeaderEvent>) {
        match news {
            Some(LeaderEvent::Selected(node)) => {
                self.report("select", format!("{node} is to be promoted"));
                self.actions.push(Action::Selected);
                if let Some(handover) = &mut self.handover {
                    handover.select(now);
                }
            }
            Some(LeaderEvent::Promoted(node)) => {
                self.report("promote", format!("{node} was promoted"));
                if let Some(handover) = &mut self.handover {
                    handover.promote();
                }
            }
            Some(LeaderEvent::Aborted(event)) => {
                let sentinel = self.leader.clone();
                self.end(Err(SwitchoverError::Aborted(sentinel, event)));
            }
            _ => {}
        }
    }

    fn leader_lost(&mut self, now: Instant, problem: String) {
        if !matches!(self.phase, Phase::StartingFailover | Phase::Following) {
            return;
        }
        let lost = Err(SwitchoverError::LeaderLost(self.leader.clone(), problem));
        if self.failover.is_selected() {
            self.release(now + COMMIT_WITHOUT_LEADER, lost);
        } else {
            self.end(lost);
        }
    }

    fn committed(&mut self, now: Instant, master: MasterSnapshot) {
        let MasterSnapshot { addr: to, generation, epoch, .. } = master;
        if to == self.participants.master.addr {
            // The old master was verified anew, which opened the gate.
            self.participants.master.generation = generation;
            if !matches!(self.phase, Phase::Released { .. }) {
                self.hold();
            }
            return;
        }
        if !self.failover.led_to(&to, epoch) {
            let since = *self.unattributed_since.get_or_insert(now);
            if self.failover.is_selected() || now >= since + EVENT_DELAY {
                self.end(Err(SwitchoverError::OtherFailover(to)));
            }
            return;
        }
        let held = now.saturating_duration_since(self.start);
        let sentinel = now.saturating_duration_since(self.ordered_at);
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
            from: self.participants.master.addr.clone(),
            to,
            generation,
            held,
            sentinel,
        };
        if self.pausing.as_ref().is_some_and(PauseSchedule::was_tried) {
            self.release(now + LINGER, Ok(outcome));
        } else {
            self.end(Ok(outcome));
        }
    }

    /// Ends phases whose time limit has passed.
    fn check_deadlines(&mut self, now: Instant) {
        // The switchover ends by then even if a task does not answer: the gate opens by itself
        // earlier, and the pause ends by itself.
        if now >= self.start + CATCH_UP + FOLLOW + COMMIT_WITHOUT_LEADER + LINGER + UNANSWERED {
            self.end(Err(SwitchoverError::NoCommit));
            self.on_unpaused(Ok(()));
            return;
        }
        let has_begun = self.failover.is_selected() || self.unattributed_since.is_some();
        match &self.phase {
            Phase::ClosingGate if now >= self.start + CLOSE => {
                self.end(Err(SwitchoverError::Unsettled));
            }
            Phase::Following if has_begun && now >= self.ordered_at + HOLD => {
                self.report("hold", "the promotion takes long: traffic is held no longer for it");
                self.release(self.ordered_at + FOLLOW, Err(SwitchoverError::NoCommit));
            }
            Phase::Following if !has_begun && now >= self.ordered_at + BEGIN => {
                self.end(Err(SwitchoverError::NotBegun(self.leader.clone(), BEGIN)));
            }
            Phase::Released { until, result } if now >= *until => {
                let result = result.clone();
                self.end(result);
            }
            _ => {}
        }
    }

    /// Sends the requests that are due.
    fn ask(&mut self, now: Instant) {
        if self.phase.is_after_failover_command()
            && self.handover.as_mut().is_some_and(|it| it.is_due(now))
        {
            self.command_master(MasterCommand::ReadHandover);
        }
        let wanted = self.phase.keeps_clients_paused() || matches!(self.phase, Phase::Pausing);
        let Some(pausing) = self.pausing.as_mut().filter(|_| wanted) else { return };
        match pausing.due(now) {
            pausing::Due::Nothing => {}
            pausing::Due::Pause(span) => self.command_master(MasterCommand::Pause(span)),
            pausing::Due::Over => self
                .report_no_longer_paused("otherwise the sentinels would consider the master down"),
        }
    }
}

#[cfg(test)]
mod tests;
