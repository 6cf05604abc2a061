//! Connecting a session to a target: of a new session, and of one whose connection is gone.
//!
//! One loop serves both [modes](Mode). It takes the current target, or waits at the gate until there
//! is one; gets a [dial permit](crate::dial_permits) where the mode or an earlier failure asks for
//! it; opens the connection; and then checks fence and gate again, because both may have changed
//! meanwhile. It gives up when the mode's time is over.
//!
//! - **Fresh**: the first attempt needs no permit, so that an accepted connection costs one dial and
//!   nothing else. A session that waited at the gate, or failed, gets in line. A failed attempt is
//!   repeated after a pause that doubles.
//! - **Resume**: always with a permit, because all sessions of a service arrive at once. The
//!   connection counts only when the target has answered the [replay](crate::session::carry::replay)
//!   of the session's state.
//!
//! All of it is bounded by `hold_timeout`, and the number of sessions that wait by `max_held`.
//!
//! Deliberately absent: what a failure means for a session in mode resume, and what its client is
//! sent meanwhile; that is [`carry`](crate::session::carry)'s.

use std::pin::pin;
use std::time::{Duration, Instant};

use drain::Ticket;
use target::{Generation, Target, TargetRef};

use crate::dial_permits::DialPermit;
use crate::end_reason::EndReason;
use crate::io::connection::Line;
use crate::io::end::End;
use crate::maintenance::pending;
use crate::runtime::worker::WorkerContext;
use crate::service::{Hint, Service};
use crate::session::carry::kick::Kicked;
use crate::session::carry::replay::{self, Failed, Replayed};
use crate::session::carry::{CarryState, Migration};
use crate::session::dial::{self, is_superseded, may_be_used};
use crate::session::hold::{self, CHECK_INTERVAL, Held};
use crate::session::pump::Start;

/// The first pause after a failed dial; each pause is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_millis(250);

/// Maximum time for which a session that is moved to another replica is not served.
const REBALANCE_TIMEOUT: Duration = Duration::from_millis(if cfg!(test) { 30_000 } else { 250 });

/// A target, and a session's connection to it.
#[derive(Debug)]
pub(crate) struct Connected {
    pub(crate) target: TargetRef,
    pub(crate) upstream: Line,
    /// What the pump starts with on it, except for what the client has sent.
    pub(crate) replayed: Option<Box<Replayed>>,
}

/// What a session is connected for.
pub(crate) enum Mode<'a> {
    /// It is new.
    Fresh,
    /// Its connection is gone, and its state has to be replayed.
    Resume(Migration<'a>),
}

/// A session on its way to a target.
pub(crate) struct Connecting<'a> {
    pub(crate) seat: &'a WorkerContext,
    pub(crate) ticket: &'a Ticket,
    pub(crate) client: &'a mut Line,
    /// What the client has sent and was not forwarded, also after a failure.
    pub(crate) unsent: &'a mut Vec<u8>,
    pub(crate) mode: Mode<'a>,
    /// When to give up.
    until: Instant,
    permit: Option<DialPermit<'a>>,
    attempts: Option<Attempts>,
}

/// The state of the attempts of a new session to reach one target.
struct Attempts {
    generation: Generation,
    /// When to give up on it. One attempt never takes longer than `connect_timeout`.
    until: Instant,
    pause: Duration,
}

/// The outcome of one attempt.
enum Attempt {
    Connected(Line, Option<Box<Replayed>>),
    /// The target is fenced or draining, or must not be used at present. That says nothing about
    /// the next one.
    Superseded,
    /// Another attempt may succeed.
    Failed(Failed),
}

impl<'a> Connecting<'a> {
    pub(crate) fn new(
        (seat, ticket): (&'a WorkerContext, &'a Ticket),
        client: &'a mut Line,
        unsent: &'a mut Vec<u8>,
        mode: Mode<'a>,
    ) -> Self {
        let until = hold_until(seat);
        Self { seat, ticket, client, unsent, mode, until, permit: None, attempts: None }
    }

    /// Connects the session to a target that may be used at the moment this returns.
    ///
    /// # Errors
    ///
    /// Why the session has to end.
    pub(crate) async fn connect(&mut self) -> Result<Connected, EndReason> {
        let connected = self.run().await;
        // A session that ends may still have much to tell its client: it must not keep the permit
        // for so long.
        self.permit = None;
        connected
    }

    async fn run(&mut self) -> Result<Connected, EndReason> {
        let seat = self.seat;
        let _held = match &self.mode {
            Mode::Fresh => None,
            Mode::Resume(_) => {
                self.yield_to_requests().await;
                let place = seat.shared.held.take().ok_or(EndReason::HoldFull)?;
                let held = (place, Held::new(&seat.block));
                self.until = hold_until(seat);
                // In a box, as everything that only a resumed session needs: the future of a new
                // session that dials has no memory for it.
                Box::pin(self.examine_loss()).await?;
                Some(held)
            }
        };
        loop {
            let Some(target) = self.usable_target().await? else { continue };
            match self.attempt(&target).await? {
                Attempt::Connected(upstream, replayed) => {
                    if let (Some(permit), Mode::Resume(_)) = (self.permit.take(), &self.mode) {
                        permit.succeeded();
                    }
                    return Ok(Connected { target, upstream, replayed });
                }
                Attempt::Superseded => self.attempts = None,
                Attempt::Failed(failed) => match &self.mode {
                    Mode::Fresh => self.after_failed_dial(&target, failed).await?,
                    Mode::Resume(_) => Box::pin(self.after_failed_resume(&target, failed)).await?,
                },
            }
        }
    }

    /// The target to connect to, with a permit to dial it if one is needed. `None` if the target
    /// was lost while the session waited for its permit.
    async fn usable_target(&mut self) -> Result<Option<TargetRef>, EndReason> {
        let route = &self.seat.shared.service.route;
        let target = route.open_target();
        match &self.mode {
            Mode::Fresh => {
                if target.is_none() {
                    // A session that had to wait was not the only one: they get in line.
                    self.permit = None;
                    self.permit = Some(self.wait_at_gate().await?);
                }
                Ok(target)
            }
            Mode::Resume(_) => {
                self.permit = None;
                Box::pin(self.permit_to_resume(target.is_none())).await?;
                Ok(route.open_target())
            }
        }
    }

    /// Waits until a target may be used, if there is a free place to wait, and then for a permit.
    async fn wait_at_gate(&mut self) -> Result<DialPermit<'a>, EndReason> {
        let seat = self.seat;
        let _place = seat.shared.held.take().ok_or(EndReason::HoldFull)?;
        let _held = Held::new(&seat.block);
        let Self { ticket, client, unsent, until, .. } = self;
        let waiting = async move {
            hold::wait(client, unsent, &seat.shared.service.route, ticket, *until).await?;
            hold::permit(client, unsent, &seat.turns, ticket, *until).await
        };
        // In a box: a session that dials has no memory for this.
        Box::pin(waiting).await
    }

    /// One attempt. Ends early if the target is superseded meanwhile: a dead master does not answer
    /// a dial, and there is no point in waiting for its timeout.
    async fn attempt(&mut self, target: &TargetRef) -> Result<Attempt, EndReason> {
        let (seat, ticket) = (self.seat, self.ticket);
        let options = &seat.shared.service.options;
        let begin = Instant::now();
        let opened = match &self.mode {
            Mode::Fresh => {
                // A pool may return to an earlier target; a writer never does.
                let kept = self.attempts.take().filter(|it| it.generation >= target.generation());
                let attempts = self.attempts.insert(kept.unwrap_or_else(|| Attempts {
                    generation: target.generation(),
                    until: self.until.max(begin + options.now().connect_timeout),
                    pause: FIRST_PAUSE,
                }));
                let until = attempts.until;
                tokio::select! {
                    biased;
                    dialled = dial::connect(target.addr(), options, until) =>
                        dialled.map(|upstream| (upstream, None)).map_err(Failed::Dial),
                    () = superseded(seat, target, ticket) => Err(Failed::Superseded),
                }
            }
            Mode::Resume(migration) => {
                tokio::select! {
                    biased;
                    resumed = Box::pin(migration.open(target, options, self.until)) => resumed?,
                    () = superseded(seat, target, ticket) => Err(Failed::Superseded),
                }
            }
        };
        match opened {
            Ok((upstream, replayed)) => {
                seat.block.dials.one();
                if matches!(self.mode, Mode::Fresh) {
                    seat.block.dialled_in.record(begin.elapsed());
                }
                // The target may have been superseded meanwhile: then nothing may be sent to it.
                if !may_be_used(target) {
                    return Ok(Attempt::Superseded);
                }
                if matches!(self.mode, Mode::Resume(_)) {
                    if self.client.is_gone() {
                        return Err(EndReason::HoldAbandoned);
                    }
                    seat.block.carried.one();
                }
                target.note_use();
                Ok(Attempt::Connected(upstream, replayed))
            }
            Err(Failed::Superseded) if ticket.is_cut() => Err(EndReason::Cut),
            // Its answer, if it gave one, says nothing about the time when it was the target.
            Err(Failed::Superseded) => Ok(Attempt::Superseded),
            Err(failed) => Ok(Attempt::Failed(failed)),
        }
    }

    /// Pauses before the next attempt of a new session, or gives up. A master that does not accept
    /// connections is about to be replaced or to come back, so the client waits for as long as any
    /// client may be held; `connect_timeout` is for one attempt.
    async fn after_failed_dial(
        &mut self,
        target: &TargetRef,
        failed: Failed,
    ) -> Result<(), EndReason> {
        report_failure(self.seat, target, failed);
        // Given back before the pause, in which it would keep other sessions from their attempts.
        let in_line = self.permit.take().map(DialPermit::failed).is_some();
        if failed.is_local() {
            return Err(EndReason::ResourcesExhausted);
        }
        let route = &self.seat.shared.service.route;
        // In a box: a session that dials has no memory for this.
        let changed = Box::pin(route.moved());
        // If the target is about to change, or there is another replica, this failure says nothing
        // about the next attempt.
        if let Some(attempts) = &mut self.attempts
            && !route.leads_elsewhere(target)
        {
            if Instant::now() + attempts.pause >= attempts.until {
                return Err(EndReason::DialFailed);
            }
            tokio::select! {
                () = self.ticket.cut() => return Err(EndReason::Cut),
                () = changed => {}
                () = tokio::time::sleep(attempts.pause) => {}
            }
            attempts.pause = (attempts.pause * 2).min(MAX_PAUSE);
        }
        if in_line {
            let (permits, until) = (&self.seat.turns, self.until);
            let permit = hold::permit(self.client, self.unsent, permits, self.ticket, until);
            self.permit = Some(Box::pin(permit).await?);
        }
        Ok(())
    }

    /// Lets sessions with a request go first, unless this is one.
    async fn yield_to_requests(&self) {
        if self.unsent.is_empty() && !self.client.is_readable() {
            self.seat.turns.yield_to_requests().await;
        }
    }

    /// If a replica ended the connection: returns when it is known that it did not mean this
    /// session.
    async fn examine_loss(&mut self) -> Result<(), EndReason> {
        let Self { seat, ticket, client, unsent, mode, until, .. } = self;
        let Mode::Resume(migration) = mode else { return Ok(()) };
        let replica = migration.from.filter(|from| from.look().is_some());
        if let (Some(from), Some((_, reason))) = (replica, migration.lost) {
            migration.lost = None;
            Kicked { seat, ticket, client, unsent, from }.judge(reason, *until).await?;
        }
        Ok(())
    }

    /// Waits for a permit to resume, and before that at the gate if there is no target.
    async fn permit_to_resume(&mut self, at_gate: bool) -> Result<(), EndReason> {
        let Self { seat, ticket, client, unsent, mode, until, .. } = self;
        let Mode::Resume(migration) = mode else { return Ok(()) };
        let (seat, route, until) = (*seat, &seat.shared.service.route, *until);
        if at_gate {
            // A failover is under way: whatever ended the connection is part of it.
            (migration.lost, migration.old, migration.failed) = (None, None, None);
            pending::announce_failover(*client, &mut migration.ledger, seat, until).await?;
            hold::wait(client, unsent, route, ticket, until).await?;
            self.yield_to_requests().await;
        }
        let Self { ticket, client, unsent, mode, .. } = self;
        let Mode::Resume(migration) = mode else { return Ok(()) };
        let permit = {
            let mut permit = pin!(hold::permit(client, unsent, &seat.turns, ticket, until));
            // The old connection is closed when it is this session's turn, or when that takes long.
            let old = migration.old.take();
            let first = match old.is_some() {
                true => tokio::time::timeout(CHECK_INTERVAL, permit.as_mut()).await.ok(),
                false => None,
            };
            match first {
                Some(permit) => permit,
                None => {
                    drop(old);
                    permit.await
                }
            }
        };
        self.permit = Some(match permit {
            Err(EndReason::HoldTimeout) => {
                return Err(migration.failed.unwrap_or(EndReason::HoldTimeout));
            }
            permit => permit?,
        });
        Ok(())
    }

    /// Decides how a session resumes after a failed attempt, or that it does not.
    async fn after_failed_resume(
        &mut self,
        target: &TargetRef,
        failed: Failed,
    ) -> Result<(), EndReason> {
        let Mode::Resume(migration) = &mut self.mode else { return Ok(()) };
        if failed == Failed::Refused {
            return Err(EndReason::CarryRefused);
        }
        // The target does not answer, so it did not end this session on purpose.
        migration.lost = None;
        report_failure(self.seat, target, failed);
        let reason = match failed.is_local() {
            true => EndReason::ResourcesExhausted,
            false => EndReason::DialFailed,
        };
        // A failure of one replica says nothing about another one.
        let permit = self.permit.take();
        if self.seat.shared.service.route.leads_elsewhere(target) {
            drop(permit);
        } else {
            migration.failed = Some(reason);
            permit.map(DialPermit::failed);
        }
        let ledger = &mut migration.ledger;
        pending::announce_failover(self.client, ledger, self.seat, self.until).await?;
        if Instant::now() >= self.until { Err(reason) } else { Ok(()) }
    }
}

/// Moves a session to a replica with fewer sessions, or leaves it where it is: its connection is
/// kept until the new one works, and there is one attempt.
pub(crate) async fn rebalance(
    seat: &WorkerContext,
    (here, upstream): (TargetRef, Line),
    state: CarryState,
) -> (TargetRef, Line, Start) {
    let CarryState { ledger, unsent: early, .. } = state;
    let WorkerContext { shared, block, .. } = seat;
    let Service { route, options, .. } = &*shared.service;
    if let Some(there) = route.open_target().filter(|there| here.is_fuller_than(there)) {
        let until = Instant::now() + REBALANCE_TIMEOUT;
        let resumed = replay::replay(&there, options, &ledger, until).await;
        if let Some((upstream, replayed)) = resumed.ok().filter(|_| may_be_used(&there)) {
            block.dials.one();
            block.rebalanced.one();
            there.note_use();
            return (there, upstream, Start { early, replayed: Some(replayed) });
        }
    }
    let replayed = Replayed { ledger: *ledger, messages: Vec::new() };
    (here, upstream, Start { early, replayed: Some(Box::new(replayed)) })
}

fn hold_until(seat: &WorkerContext) -> Instant {
    Instant::now() + seat.shared.service.options.now().hold_timeout
}

/// Counts a failed attempt, and reports to discovery what it says about the target.
fn report_failure(seat: &WorkerContext, target: &Target, failed: Failed) {
    let WorkerContext { shared, block, .. } = seat;
    let hint = match failed {
        Failed::Dial(failure) => {
            block.dial_failed(failure);
            // Missing descriptors or ports on this host say nothing about the target.
            (!failed.is_local()).then_some(Hint::DialFailed(failure))
        }
        // A server with too many clients has ended a connection that its client had not ended. A
        // server that runs a script is examined, too.
        Failed::Broken | Failed::Unavailable => Some(Hint::UpstreamEnded),
        Failed::NotReady(hint) => Some(Hint::Replied(hint)),
        Failed::Refused | Failed::Superseded => None,
    };
    if let Some(hint) = hint {
        target.shun();
        block.hints.one();
        shared.service.hints.hint(target, hint);
    }
}

/// Returns when there is no point in connecting to `target` any more, or the session is cut.
async fn superseded(seat: &WorkerContext, target: &Target, ticket: &Ticket) {
    loop {
        let news = seat.news.notified();
        if ticket.is_cut() || is_superseded(target) {
            return;
        }
        news.await;
    }
}
