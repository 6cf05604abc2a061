//! Connecting a session to a target: a new session, or one whose pump has stopped.
//!
//! One loop serves both. It takes the current target, or waits at the gate until
//! there is one; gets a [dial permit](crate::dial_permits) if it needs one; opens the connection;
//! and then checks fence and gate again, because both may have changed meanwhile. It gives up after
//! `hold_timeout`, a new session not before one `connect_timeout`.
//!
//! - **New** ([`Connecting::dial`]): the first attempt needs no permit, so an accepted connection
//!   costs one dial and nothing else, and it begins before this loop. A session that waited at the
//!   gate needs one, also after each failure, and every session after a failed TLS handshake. A
//!   failed attempt is repeated after a pause that doubles. Over TLS, and on a target that is
//!   [unproved](Target::is_unproved), the connection counts only when the target has answered.
//! - **Resume** ([`Migration`]): always with a permit, because all sessions of a service arrive at
//!   once. The connection counts only when the target has answered the
//!   [replay](crate::session::carry::replay) of the session's state.

use std::future::poll_fn;
use std::num::NonZeroU64;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Context;
use std::time::{Duration, Instant};

use target::{Generation, Target, TargetRef};

use crate::context::WorkerContext;
use crate::dial_permits::DialPermit;
use crate::end_reason::EndReason;
use crate::invariant;
use crate::io::buffer::KeptBytes;
use crate::io::stream::{self, ClientStream};
use crate::maintenance::pending;
use crate::not_carried::{NotCarried, Uncarried};
use crate::runtime::tasks;
use crate::service::{DialFailure, Hint, Service};
use crate::session::carry::replay::{Failed, Server};
use crate::session::carry::{CarryState, Migration, Opened, examine_close, interrupt_end_reason};
use crate::session::dial::{Dial, may_be_used, superseded};
use crate::session::pump::Start;
use crate::session::refusals::Refused;
use crate::session::report::{SessionBase, Stage};
use crate::session::upstream::Upstream;
use crate::session::{Ready, Session, SessionEnd, first_bytes};
use crate::shared::Promotion;
use crate::stats::WorkerCounters;

/// Maximum time for which a session that is moved to another replica is not served.
const REBALANCE_TIMEOUT: Duration = Duration::from_millis(if cfg!(test) { 30_000 } else { 250 });

/// A session on its way to a target.
pub(crate) struct Connecting<'a, C> {
    held: HeldClient<'a, C>,
    context: &'a WorkerContext,
    /// The state to replay, of a session whose connection is gone. In a box: the future of a new
    /// session has no memory for it.
    migration: Option<Box<Migration<'a>>>,
    permit: Option<DialPermit<'a>>,
    attempts: Option<Attempts>,
    /// The first dial of a new session, if it has begun already.
    begun: Option<FirstDial>,
}

impl<'a, C: ClientStream> Connecting<'a, C> {
    pub(crate) fn new(
        base: &'a SessionBase,
        client: &'a mut C,
        unsent: &'a mut Vec<u8>,
        migration: Option<Box<Migration<'a>>>,
    ) -> Self {
        let context = &*base.context;
        let until = hold_until(context, Duration::ZERO);
        let held = HeldClient { base, client, unsent, until };
        Self { held, context, migration, permit: None, attempts: None, begun: None }
    }

    /// Connects the session to a target that may be used at the moment this returns. After an error
    /// the permit is returned when `self` is dropped: before the client is sent anything.
    ///
    /// # Errors
    ///
    /// Why the session has to end.
    pub(crate) async fn connect(&mut self) -> Result<Ready, EndReason> {
        let context = self.context;
        let mut _held = None;
        if self.migration.is_some() {
            self.yield_to_requests().await;
            _held = Some(Held::new(context));
            // In a box, as everything that only a resumed session needs: the future of a new
            // session that dials has no memory for it.
            Box::pin(self.examine_loss()).await?;
        }
        loop {
            let Some(target) = self.usable_target().await? else { continue };
            match self.attempt(&target).await? {
                Ok((upstream, start)) => {
                    if let Some(permit) = self.permit.take()
                        && self.migration.is_some()
                    {
                        permit.succeeded();
                    }
                    return Ok((target, upstream, start));
                }
                // That says nothing about the next one.
                Err(Failed::Superseded) => self.attempts = None,
                Err(failed) if self.migration.is_none() => {
                    self.after_failed_dial(&target, failed).await?;
                }
                Err(failed) => Box::pin(self.after_failed_resume(&target, failed)).await?,
            }
        }
    }

    /// The target to connect to, with a permit to dial it if one is needed. `None` if the target
    /// was lost while the session waited for its permit.
    async fn usable_target(&mut self) -> Result<Option<TargetRef>, EndReason> {
        if let Some(target) = self.begun.as_mut().and_then(|begun| begun.target.take()) {
            return Ok(Some(target));
        }
        let route = &self.context.shared.service.route;
        let target = route.usable_target();
        if self.migration.is_none() && target.is_some() {
            return Ok(target);
        }
        self.permit = None;
        // In a box: a session that dials has no memory for this.
        Box::pin(self.wait_for_permit(target.is_none())).await?;
        Ok(route.usable_target())
    }

    /// One attempt. Ends early if the target is superseded meanwhile: a dead master does not answer
    /// a dial, and there is no point in waiting for its timeout.
    async fn attempt(&mut self, target: &TargetRef) -> Result<Opened, EndReason> {
        if let Some(migration) = &self.migration
            && migration.from.is_some_and(|from| !from.has_data_of(target))
        {
            // The state of a session means nothing in another database, and its password is not
            // for it.
            return Err(EndReason::HistoryBroken);
        }
        let (context, ticket) = (self.context, &self.held.base.ticket);
        let begin = Instant::now();
        let opened = match &mut self.migration {
            None => {
                self.held.base.stage.set(Stage::Connecting);
                self.dial(target, begin).await.map(|upstream| (upstream, Start::default()))
            }
            Some(migration) => {
                self.held.base.stage.set(Stage::Moving);
                let server = Server { target, context, deadline: self.held.until };
                let opening = migration.open(server, self.held.unsent);
                tokio::select! {
                    biased;
                    resumed = Box::pin(opening) => resumed?,
                    () = superseded(context, target, ticket) => Err(Failed::Superseded),
                }
            }
        };
        if self.migration.as_ref().is_some_and(|it| it.is_interrupt) {
            return opened.map(Ok).map_err(|failed| {
                report_failure(context, target, failed);
                interrupt_end_reason(failed, ticket)
            });
        }
        match opened {
            Ok((upstream, start)) => self.opened(target, upstream, start, begin),
            Err(Failed::Superseded) if ticket.is_cut() => Err(EndReason::Cut),
            Err(failed) => Ok(Err(failed)),
        }
    }

    /// A connection was opened: it is used if the target still may be.
    fn opened(
        &mut self,
        target: &TargetRef,
        upstream: Upstream,
        mut start: Start,
        begin: Instant,
    ) -> Result<Opened, EndReason> {
        let context = self.context;
        let reused = self.migration.as_ref().is_some_and(|it| it.reused);
        if !reused && !matches!(upstream, Upstream::Shared(_)) {
            context.counters.dials.increment();
            if self.migration.is_none() {
                context.counters.dial_time.record(begin.elapsed());
            }
        }
        // The target may have been superseded meanwhile: then nothing may be sent to it.
        if !may_be_used(target) {
            return Ok(Err(Failed::Superseded));
        }
        if let Some(migration) = &self.migration
            && migration.promotion.is_none()
            && self.held.client.peer_closed_now()
        {
            return Err(EndReason::HoldAbandoned);
        }
        target.record_use();
        if let Some(migration) = &mut self.migration {
            if !migration.is_promotion_to(target) {
                context.counters.carried.increment();
            }
            start.ledger.get_or_insert_with(|| migration.take_ledger(target));
        }
        Ok(Ok((upstream, start)))
    }
}

/// Moves a session to a replica with fewer sessions, or leaves it where it is: its connection is
/// kept until the new one works, and there is one attempt.
async fn rebalance(
    context: &WorkerContext,
    here: TargetRef,
    upstream: Upstream,
    mut state: CarryState,
) -> Ready {
    let WorkerContext { shared, counters, .. } = context;
    let Service { route, .. } = &*shared.service;
    if let Some(there) = route
        .usable_target()
        .filter(|there| here.has_more_sessions_than(there) && here.has_data_of(there))
    {
        if matches!(upstream, Upstream::Shared(_)) {
            counters.rebalanced.increment();
            there.record_use();
            state.ledger.changed_server();
            return (there, Upstream::sharing(), state.share());
        }
        let deadline = Instant::now() + REBALANCE_TIMEOUT;
        let resumed = Server { target: &there, context, deadline }.replay(&state.ledger).await;
        if let Some((upstream, start)) = resumed.ok().filter(|_| may_be_used(&there)) {
            counters.dials.increment();
            counters.rebalanced.increment();
            there.record_use();
            return (there, upstream, Start { early: state.unsent, ..start });
        }
    }
    (here, upstream, Start::resumed(state.unsent, state.ledger))
}

/// When to give up if the requests of the session have `waited` already.
fn hold_until(context: &WorkerContext, waited: Duration) -> Instant {
    Instant::now() + context.shared.service.options.peek().hold_timeout.saturating_sub(waited)
}

/// Counts a failed attempt, and reports to discovery what it says about the target.
fn report_failure(context: &WorkerContext, target: &Target, failed: Failed) {
    let hint = match failed {
        Failed::Dial(failure) => {
            context.counters.dial_failures.increment(failure as usize);
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
        target.defer();
        context.hint(target, hint);
    }
}

// Connecting a session whose pump has stopped: with its state, to another target or to the one
// that it had.

/// A connection that is reset within this time after the last one ends its session.
const RESETS_APART: Duration = Duration::from_secs(60);

/// Why a session connects.
pub(in crate::session) enum Why {
    /// It is new. Its dial has begun already, or has not.
    First(Option<FirstDial>),
    /// It is carried, promoted or verified.
    Again(Again),
    /// It moves to another replica, and keeps its connection until the new one works.
    Rebalance(TargetRef, Upstream, CarryState),
}

/// A session that continues over another connection.
pub(in crate::session) struct Again {
    pub(in crate::session) state: CarryState,
    /// The connection that it had.
    pub(in crate::session) old: Upstream,
    /// Why it gets one of its own, if it has shared connections and leaves them.
    pub(in crate::session) promotion: Option<Promotion>,
    /// If it gets a connection of its own although its service shares connections: the time after
    /// which it returns.
    pub(in crate::session) returns_after: Option<Duration>,
}

impl Session {
    /// Connects, or has what its client is sent before it ends.
    pub(in crate::session) fn connect<'a>(
        &'a self,
        why: Why,
        client: &'a mut impl ClientStream,
    ) -> Pin<Box<dyn Future<Output = Result<Ready, SessionEnd>> + 'a>> {
        match why {
            Why::First(begun) => Box::pin(self.connect_first(client, begun)),
            Why::Again(again) => Box::pin(self.connect_again(client, again)),
            Why::Rebalance(here, upstream, state) => {
                let context = &self.base.context;
                Box::pin(async move { Ok(rebalance(context, here, upstream, state).await) })
            }
        }
    }

    /// Connects to another target in the state that the session was in, or has refusals for its
    /// client. Closes the connection that it had.
    async fn connect_again(
        &self,
        client: &mut impl ClientStream,
        mut again: Again,
    ) -> Result<Ready, SessionEnd> {
        let returns_after = again.returns_after;
        let (mut unsent, undelivered) = (Vec::new(), again.state.undelivered.take());
        match self.carry(client, again, &mut unsent, undelivered.is_some()).await {
            Ok((target, upstream, mut start)) => {
                if let Some(first) = undelivered {
                    start.messages.splice(..0, first.into_rest());
                }
                Ok((target, upstream, Start { early: unsent, returns_after, ..start }))
            }
            Err((reason, push, is_interrupt)) => {
                let undelivered = undelivered.map_or_else(Vec::new, KeptBytes::into_rest);
                // The first error would be taken for the reply to the request that was sent.
                let refused = (!is_interrupt).then_some(Refused { unsent, transaction: false });
                Err(SessionEnd { reason, undelivered, refused, push })
            }
        }
    }

    /// Carries the session to another target. On failure returns why it ends, our last push, and
    /// whether a request was sent ahead of its state.
    async fn carry(
        &self,
        client: &mut impl ClientStream,
        again: Again,
        unsent: &mut Vec<u8>,
        is_behind: bool,
    ) -> Result<Ready, (EndReason, Vec<u8>, bool)> {
        let Again { state, old, promotion, .. } = again;
        let CarryState { ledger, unsent: requests, lost, waited, .. } = state;
        *unsent = requests;
        let from = self.target.as_ref();
        let shares = promotion.is_none() && old.is_shared();
        let old = Some(old).filter(|_| lost.is_none());
        let lost = lost.filter(|reason| !self.was_forgotten(*reason));
        let (failed, reused, is_interrupt) = (None, false, false);
        let migration = Box::new(Migration {
            ledger,
            from,
            lost,
            old,
            failed,
            shares,
            promotion,
            is_behind,
            reused,
            is_interrupt,
        });
        let mut connecting = Connecting::new(&self.base, client, unsent, Some(migration));
        connecting.held.until = hold_until(&self.base.context, waited);
        let reason = match connecting.connect().await {
            Ok(connected) => return Ok(connected),
            Err(reason) => reason,
        };
        let context = &self.base.context;
        let Some(migration) = &connecting.migration else { return Err((reason, vec![], false)) };
        if promotion.is_none() || reason != EndReason::HoldAbandoned {
            let push = pending::last_push(&migration.ledger, context, reason);
            return Err((reason, push, migration.is_interrupt));
        }
        // The client has ended its direction, and may wait for the replies even so. A connection of
        // its own would have taken its requests already: one attempt to open it. In a box: a
        // session that waits for a target has no memory for this.
        let Service { route, options, .. } = &*context.shared.service;
        let here = route.usable_target().filter(|it| migration.is_promotion_to(it));
        let target = here.ok_or((reason, vec![], false))?;
        connecting.held.until = Instant::now() + options.now().connect_timeout;
        match Box::pin(connecting.attempt(&target)).await {
            Ok(Ok((upstream, start))) => Ok((target, upstream, start)),
            _ => Err((reason, vec![], false)),
        }
    }

    /// Whether the target did not end the idle connection, and another one is worth an attempt. A
    /// server ends one on which it has answered everything in order. Routers forget idle
    /// connections, and reset them or answer no more.
    fn was_forgotten(&self, reason: EndReason) -> bool {
        if !matches!(reason, EndReason::UpstreamReset | EndReason::UpstreamLost) {
            return false;
        }
        let now = self.base.context.counters.elapsed();
        let before = self.reset_at.replace(NonZeroU64::new(now));
        let since = |before: NonZeroU64| Duration::from_micros(now.saturating_sub(before.get()));
        before.is_none_or(|before| since(before) >= RESETS_APART)
    }

    /// Notes why the session could not continue.
    pub(in crate::session) fn not_continued(&mut self, ending: SessionEnd) -> SessionEnd {
        let failed = NotCarried::after_an_attempt(ending.reason).map(Uncarried::new);
        self.uncarried = self.uncarried.take().or(failed);
        ending
    }
}

// The steps of a new session: the first dial, and the pause that follows a failed one.

/// The first pause after a failed dial; each pause is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_millis(250);

/// The state of the attempts of a new session to reach one target.
pub(super) struct Attempts {
    generation: Generation,
    /// When to give up on it. One attempt never takes longer than `connect_timeout`.
    until: Instant,
    pause: Duration,
}

/// The first dial of a session, begun before there is a future that waits for it. Within one host
/// the connection is established when the call returns, and no such future is needed.
#[derive(Debug)]
pub(in crate::session) struct FirstDial {
    /// Until it is taken.
    pub(super) target: Option<TargetRef>,
    dial: Result<Dial, DialFailure>,
}

impl Session {
    /// Connects to the first target, if nothing has to be waited for.
    ///
    /// # Errors
    ///
    /// The connection is not established yet, or may not be used; `None` if no dial was begun.
    pub(in crate::session) fn connect_at_once(&self) -> Result<Ready, Option<FirstDial>> {
        let context = &self.base.context;
        let Service { route, options, .. } = &*context.shared.service;
        if context.silent_clients.are_frequent() {
            return Err(None);
        }
        let target = route.usable_target().ok_or(None)?;
        let upstream = if options.peek().shares() {
            // The first request opens a connection, or joins one.
            if !may_be_used(&target) {
                return Err(None);
            }
            Upstream::sharing()
        } else {
            let begin = Instant::now();
            match Dial::begin(&target, &options.peek()) {
                Ok(dial) if dial.is_done() && !target.is_unproved() && may_be_used(&target) => {
                    context.counters.dials.increment();
                    context.counters.dial_time.record(begin.elapsed());
                    dial.into_upstream()
                }
                dial => return Err(Some(FirstDial { target: Some(target), dial })),
            }
        };
        target.record_use();
        Ok((target, upstream, Start::default()))
    }

    /// Connects to the first target, or has refusals for the client.
    pub(super) async fn connect_first(
        &self,
        client: &mut impl ClientStream,
        begun: Option<FirstDial>,
    ) -> Result<Ready, SessionEnd> {
        if begun.is_none() {
            first_bytes::await_if_rare(&self.base, client).await?;
        }
        let mut early = Vec::new();
        let connected = {
            let mut connecting = Connecting::new(&self.base, client, &mut early, None);
            connecting.begun = begun;
            connecting.connect().await
        };
        match connected {
            Ok((target, upstream, _)) => {
                // Established sessions go first, which send requests.
                if self.base.context.silent_clients.are_frequent() {
                    tasks::yield_now().await;
                }
                Ok((target, upstream, Start::from(early)))
            }
            Err(reason) => {
                let refused = Some(Refused { unsent: early, transaction: false });
                Err(SessionEnd { refused, ..reason.into() })
            }
        }
    }
}

impl<C: ClientStream> Connecting<'_, C> {
    /// The first connection of a new session.
    pub(super) async fn dial(
        &mut self,
        target: &TargetRef,
        begin: Instant,
    ) -> Result<Upstream, Failed> {
        let (context, ticket) = (self.context, &self.held.base.ticket);
        let options = &context.shared.service.options;
        if options.peek().shares() {
            // The first request opens a connection, or joins one.
            return Ok(Upstream::sharing());
        }
        let begun = match self.begun.take() {
            Some(first) => first.dial,
            None => Dial::begin(target, &options.peek()),
        };
        let dial = match begun {
            Ok(dial) if dial.is_done() && !target.is_unproved() => return Ok(dial.into_upstream()),
            begun => begun,
        };
        // A pool may return to an earlier target; a writer never does.
        let kept = self.attempts.take().filter(|it| it.generation >= target.generation());
        let attempts = self.attempts.insert(kept.unwrap_or_else(|| Attempts {
            generation: target.generation(),
            until: self.held.until.max(begin + options.peek().connect_timeout),
            pause: FIRST_PAUSE,
        }));
        let dial = dial.map_err(Failed::Dial)?;
        // With TLS 1.3 a server refuses the certificate of its client after the handshake, in place
        // of its first answer.
        let is_to_answer = target.is_unproved() || options.peek().target_tls.is_some();
        let deadline = attempts.until.min(begin + options.peek().connect_timeout);
        let dialled = async {
            let dialled = dial.finish(target, context, deadline).await;
            let mut upstream = dialled.map_err(Failed::Dial)?;
            if is_to_answer {
                Server { target, context, deadline }.answers_on(&mut upstream).await?;
            }
            Ok(upstream)
        };
        let dialled = tokio::select! {
            biased;
            // In a box: a session whose dial is done has no memory for this.
            dialled = Box::pin(dialled) => dialled?,
            () = superseded(context, target, ticket) => return Err(Failed::Superseded),
        };
        if is_to_answer {
            target.record_proof();
            if let Some(permit) = self.permit.take() {
                permit.succeeded();
            }
        }
        Ok(dialled)
    }

    /// Pauses before the next attempt of a new session, or gives up. A master that does not accept
    /// connections is about to be replaced or to come back, so the client waits for as long as any
    /// client may be held; `connect_timeout` is for one attempt.
    pub(super) async fn after_failed_dial(
        &mut self,
        target: &TargetRef,
        failed: Failed,
    ) -> Result<(), EndReason> {
        report_failure(self.context, target, failed);
        // Given back before the pause, in which it would keep other sessions from their attempts.
        let had_permit = self.permit.take().map(DialPermit::failed).is_some();
        // A handshake costs as much as a hundred requests, and a server that says that it cannot
        // serve is not to be asked by all sessions at once.
        let is_cheap = matches!(failed, Failed::Dial(failure) if failure != DialFailure::Tls);
        let in_line = had_permit || !is_cheap;
        if failed.is_local() {
            return Err(failed.end_reason());
        }
        let route = &self.context.shared.service.route;
        // In a box: a session that dials has no memory for this.
        let changed = Box::pin(route.changed());
        // If the target is about to change, or there is another replica, this failure says nothing
        // about the next attempt.
        if let Some(attempts) = &mut self.attempts
            && !route.has_alternative_to(target)
        {
            if Instant::now() + attempts.pause >= attempts.until {
                return Err(failed.end_reason());
            }
            tokio::select! {
                () = self.held.base.ticket.cut() => return Err(EndReason::Cut),
                () = changed => {}
                () = tokio::time::sleep(attempts.pause) => {}
            }
            attempts.pause = (attempts.pause * 2).min(MAX_PAUSE);
        }
        if in_line {
            self.held.base.stage.set(Stage::InLine);
            self.permit = Some(match Box::pin(self.held.permit()).await {
                Err(EndReason::HoldTimeout) if !had_permit => return Err(failed.end_reason()),
                permit => permit?,
            });
        }
        Ok(())
    }

    // The steps of a session that resumes: why the connection was lost, the permit for the next
    // one, and what follows a failed attempt.

    /// Lets sessions with a request go first, unless this is one.
    pub(super) async fn yield_to_requests(&self) {
        if self.held.unsent.is_empty() && !self.held.client.is_readable() {
            self.context.dial_permits.yield_to_requests().await;
        }
    }

    /// If a replica ended the connection: returns when it is known that it did not mean this
    /// session.
    pub(super) async fn examine_loss(&mut self) -> Result<(), EndReason> {
        let Some(migration) = &mut self.migration else { return Ok(()) };
        let replica = migration.from.filter(|from| from.replica_status().is_some());
        if let (Some(from), Some(reason)) = (replica, migration.lost) {
            migration.lost = None;
            examine_close(&mut self.held, from, reason).await?;
        }
        Ok(())
    }

    /// Waits for a permit, and before that at the gate if there is no target: a new session that
    /// had to wait there was not the only one.
    async fn wait_for_permit(&mut self, at_gate: bool) -> Result<(), EndReason> {
        // One that resumes is held already.
        let _held = self.migration.is_none().then(|| Held::new(self.context));
        let stage = &self.held.base.stage;
        if at_gate {
            if let Some(migration) = &mut self.migration {
                // A failover is under way: whatever ended the connection is part of it.
                (migration.lost, migration.old, migration.failed) = (None, None, None);
            }
            stage.set(Stage::AtGate);
            // In a box: a session that waits for its permit has no memory for this.
            Box::pin(self.announce_failover()).await?;
            Box::pin(self.held.wait()).await?;
            if self.migration.is_some() {
                self.yield_to_requests().await;
            }
        }
        stage.set(Stage::InLine);
        // The old connection is closed when it is this session's turn, or when that takes long.
        let old = self.migration.as_mut().and_then(|migration| migration.old.take());
        let permit = {
            let mut permit = pin!(self.held.permit());
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
        let failed = self.migration.as_ref().and_then(|migration| migration.failed);
        self.permit = Some(match permit {
            Err(EndReason::HoldTimeout) => return Err(failed.unwrap_or(EndReason::HoldTimeout)),
            permit => permit?,
        });
        Ok(())
    }

    /// Decides how a session resumes after a failed attempt, or that it does not.
    pub(super) async fn after_failed_resume(
        &mut self,
        target: &TargetRef,
        failed: Failed,
    ) -> Result<(), EndReason> {
        let Some(migration) = &mut self.migration else { return Ok(()) };
        if failed == Failed::Refused {
            return Err(EndReason::CarryRefused);
        }
        // The target does not answer, so it did not end this session on purpose.
        migration.lost = None;
        report_failure(self.context, target, failed);
        let reason = failed.end_reason();
        // A failure of one replica says nothing about another one.
        let permit = self.permit.take();
        if self.context.shared.service.route.has_alternative_to(target) {
            drop(permit);
        } else {
            migration.failed = Some(reason);
            if let Some(permit) = permit {
                permit.failed();
            }
        }
        self.announce_failover().await?;
        if Instant::now() >= self.held.until { Err(reason) } else { Ok(()) }
    }

    /// Tells the client, unless it is behind with its replies.
    async fn announce_failover(&mut self) -> Result<(), EndReason> {
        let HeldClient { client, until, .. } = &mut self.held;
        match &mut self.migration {
            Some(migration) if !migration.is_behind => {
                let ledger = &mut migration.ledger;
                pending::announce_failover(*client, ledger, self.context, *until).await
            }
            _ => Ok(()),
        }
    }
}

// Holding a client: waiting at the gate while there is no target, and in line for a dial permit.
//
// A held client costs a timer, and at most a few kilobytes of what it has already sent: to read a
// little is the only way to notice that it disconnected. Its bytes go first to the next target, or
// nowhere. A client that closes its direction while it is held has given up as far as can be
// known, and its request must not be executed after it stopped waiting for it; so the session
// ends. An end that follows more bytes than the kernel buffers here has not arrived, and is
// noticed no sooner than at `hold_timeout`.

/// Maximum bytes read from a client while it is held: enough for a handshake and some requests.
const MAX_EARLY: usize = 4096;

/// The interval at which it is checked whether a client that is not read is still connected.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Counts a held session for as long as it is held.
pub(crate) struct Held(Arc<WorkerCounters>);

impl Held {
    pub(crate) fn new(context: &WorkerContext) -> Self {
        context.counters.count_held(true);
        Self(Arc::clone(&context.counters))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.count_held(false);
    }
}

/// A session whose client is held, or may be.
pub(crate) struct HeldClient<'a, C> {
    pub(crate) base: &'a SessionBase,
    pub(crate) client: &'a mut C,
    /// Bytes that the client has sent and that were not forwarded, also after a failure.
    pub(crate) unsent: &'a mut Vec<u8>,
    /// When to give up.
    pub(crate) until: Instant,
}

impl<'a, C: ClientStream> HeldClient<'a, C> {
    /// Waits until a target may be used. Bytes that the client sends meanwhile are added to
    /// `unsent`.
    ///
    /// # Errors
    ///
    /// Why the session ends instead.
    pub(crate) async fn wait(&mut self) -> Result<TargetRef, EndReason> {
        let (base, until) = (self.base, self.until);
        tokio::select! {
            biased;
            () = base.ticket.cut() => Err(EndReason::Cut),
            reason = self.gone() => Err(reason),
            target = base.context.shared.service.route.wait_usable() => match target {
                // Its end may follow bytes for which `unsent` had no capacity.
                Some(_) if self.client.peer_closed_now() => Err(EndReason::HoldAbandoned),
                target => target.ok_or(EndReason::NoReplica),
            },
            () = tokio::time::sleep_until(until.into()) => Err(EndReason::HoldTimeout),
        }
    }

    /// Waits for a dial permit. Sessions with a request go first: bytes that the client sends
    /// meanwhile are added to `unsent`, and the session moves up.
    ///
    /// # Errors
    ///
    /// Why the session ends instead.
    pub(crate) async fn permit(&mut self) -> Result<DialPermit<'a>, EndReason> {
        let (base, until) = (self.base, self.until);
        loop {
            let urgent = !self.unsent.is_empty();
            let received =
                async { if urgent { Err(self.gone().await) } else { self.read().await } };
            // All sessions learn of a new target in one round of the event loop, in no order: an
            // idle one gets in line one round later, so that every session with a request is in
            // line before it.
            let permit = async {
                if !urgent {
                    tasks::yield_now().await;
                }
                base.context.dial_permits.take(urgent).await
            };
            tokio::select! {
                biased;
                () = base.ticket.cut() => return Err(EndReason::Cut),
                received = received => received?,
                permit = permit => return Ok(permit),
                () = tokio::time::sleep_until(until.into()) => return Err(EndReason::HoldTimeout),
            }
        }
    }

    /// Returns when the client has disconnected, with the end reason. Reads meanwhile, as much as
    /// `unsent` has capacity for.
    pub(crate) async fn gone(&mut self) -> EndReason {
        while self.unsent.len() < MAX_EARLY {
            if let Err(reason) = self.read().await {
                return reason;
            }
        }
        // No more can be read, so the end follows unread bytes, and is only known from the events
        // of the socket.
        while !self.client.peer_closed_now() {
            let closed = poll_fn(|cx| self.client.poll_broken(cx));
            // Checked again in either case.
            drop(tokio::time::timeout(CHECK_INTERVAL, closed).await);
        }
        EndReason::HoldAbandoned
    }

    /// Reads once, as much as `unsent` has capacity for.
    ///
    /// # Errors
    ///
    /// The client has disconnected.
    async fn read(&mut self) -> Result<(), EndReason> {
        let most = MAX_EARLY.saturating_sub(self.unsent.len());
        let read = |cx: &mut Context<'_>| {
            stream::poll_parse(self.client, cx, most, |read| match read {
                Ok(bytes @ [_, ..]) => {
                    self.unsent.extend_from_slice(bytes);
                    Ok(())
                }
                Err(error) if invariant::is_violation(&error) => Err(EndReason::InternalError),
                Ok([]) | Err(_) => Err(EndReason::HoldAbandoned),
            })
        };
        poll_fn(read).await
    }
}
