//! Connecting a session to a target: a new session, or [one whose pump has stopped](again).
//!
//! One loop serves both. It takes the current target, or waits at the gate until
//! there is one; gets a [dial permit](crate::dial_permits) if it needs one; opens the connection;
//! and then checks fence and gate again, because both may have changed meanwhile. It gives up after
//! `hold_timeout`, a new session not before one `connect_timeout`.
//!
//! - **New** ([`fresh`]): the first attempt needs no permit, so an accepted connection costs one
//!   dial and nothing else, and it begins before this loop. A session that waited at the gate needs
//!   one, also after each failure, and every session after a failed TLS handshake. A failed attempt
//!   is repeated after a pause that doubles. Over TLS, and on a target that is
//!   [unproved](Target::is_unproved), the connection counts only when the target has answered.
//! - **Resume** ([`resume`]): always with a permit, because all sessions of a service arrive at
//!   once. The connection counts only when the target has answered the
//!   [replay](crate::session::carry::replay) of the session's state.

mod again;
mod fresh;
mod resume;

pub(in crate::session) use again::{Again, Why};
pub(in crate::session) use fresh::FirstDial;

use std::time::{Duration, Instant};

use target::{Target, TargetRef};

use crate::context::WorkerContext;
use crate::dial_permits::DialPermit;
use crate::end_reason::EndReason;
use crate::io::stream::ClientStream;
use crate::service::{Hint, Service};
use crate::session::Ready;
use crate::session::carry::replay::{Failed, Replayed, Server};
use crate::session::carry::{CarryState, Migration, Opened, interrupt};
use crate::session::connect::fresh::Attempts;
use crate::session::dial::{may_be_used, superseded};
use crate::session::hold::{Held, HeldClient};
use crate::session::pump::Start;
use crate::session::report::{SessionBase, Stage};
use crate::session::sharing;
use crate::session::upstream::Upstream;

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
            _held = Some(Held::new(&context.counters));
            // In a box, as everything that only a resumed session needs: the future of a new
            // session that dials has no memory for it.
            Box::pin(self.examine_loss()).await?;
        }
        loop {
            let Some(target) = self.usable_target().await? else { continue };
            match self.attempt(&target).await? {
                Ok((upstream, replayed)) => {
                    if let Some(permit) = self.permit.take()
                        && self.migration.is_some()
                    {
                        permit.succeeded();
                    }
                    return Ok((target, upstream, Start { replayed, ..Start::default() }));
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
        if let Some(target) = self.begun.as_mut().and_then(FirstDial::take_target) {
            return Ok(Some(target));
        }
        let route = &self.context.shared.service.route;
        let target = route.usable_target();
        if self.migration.is_some() {
            self.permit = None;
            Box::pin(self.permit_to_resume(target.is_none())).await?;
            return Ok(route.usable_target());
        }
        if target.is_none() {
            // A session that had to wait was not the only one: they get in line.
            self.permit = None;
            self.permit = Some(self.wait_at_gate().await?);
        }
        Ok(target)
    }

    /// Waits until a target may be used, and then for a permit.
    async fn wait_at_gate(&mut self) -> Result<DialPermit<'a>, EndReason> {
        let context = self.context;
        let _held = Held::new(&context.counters);
        let held = &mut self.held;
        held.base.stage.set(Stage::AtGate);
        let waiting = async move {
            held.wait().await?;
            held.base.stage.set(Stage::InLine);
            held.permit().await
        };
        // In a box: a session that dials has no memory for this.
        Box::pin(waiting).await
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
                self.dial(target, begin).await.map(|upstream| (upstream, None))
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
                interrupt::end_reason(failed, ticket)
            });
        }
        match opened {
            Ok((upstream, replayed)) => self.opened(target, upstream, replayed, begin),
            Err(Failed::Superseded) if ticket.is_cut() => Err(EndReason::Cut),
            Err(failed) => Ok(Err(failed)),
        }
    }

    /// A connection was opened: it is used if the target still may be.
    fn opened(
        &mut self,
        target: &TargetRef,
        upstream: Upstream,
        replayed: Option<Box<Replayed>>,
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
        let replayed = self.migration.as_mut().map(|migration| {
            if !migration.is_promotion_to(target) {
                context.counters.carried.increment();
            }
            replayed.unwrap_or_else(|| migration.take_ledger(target))
        });
        Ok(Ok((upstream, replayed)))
    }
}

/// Moves a session to a replica with fewer sessions, or leaves it where it is: its connection is
/// kept until the new one works, and there is one attempt.
async fn rebalance(
    context: &WorkerContext,
    here: TargetRef,
    upstream: Upstream,
    state: CarryState,
) -> (TargetRef, Upstream, Start) {
    let WorkerContext { shared, counters, .. } = context;
    let Service { route, .. } = &*shared.service;
    if let Some(there) = route
        .usable_target()
        .filter(|there| here.has_more_sessions_than(there) && here.has_data_of(there))
    {
        if matches!(upstream, Upstream::Shared(_)) {
            counters.rebalanced.increment();
            there.record_use();
            let (upstream, start) = sharing::start_elsewhere(state);
            return (there, upstream, start);
        }
        let deadline = Instant::now() + REBALANCE_TIMEOUT;
        let resumed = Server { target: &there, context, deadline }.replay(&state.ledger).await;
        if let Some((upstream, replayed)) = resumed.ok().filter(|_| may_be_used(&there)) {
            counters.dials.increment();
            counters.rebalanced.increment();
            there.record_use();
            return (there, upstream, Start::resumed(state.unsent, replayed));
        }
    }
    (here, upstream, Start::resumed(state.unsent, Box::new(Replayed::from(*state.ledger))))
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
