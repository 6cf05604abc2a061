//! Carrying a session to another target: its connection is gone, and its client need not notice.
//!
//! A session can be carried when no reply is owed in either direction and everything that the
//! server kept for it can be replayed elsewhere ([`resp::Replay`]), subscriptions included if the
//! operator wants that. It [connects](crate::session::connect) with it: waits for a target
//! and for a permit, dials, [replays](replay) its state, checks the answers, and continues;
//! requests that were read and never forwarded go first.
//!
//! After a master change that is all. A target that is full, busy or unresponsive is tried again
//! until `hold_timeout`. If the target ended the connection while it was still the target, it is
//! asked first whether it is alive: one that answers has ended this session on purpose (`CLIENT
//! KILL`, its idle timeout, a full output buffer), so the client's connection ends too. One that
//! does not answer is about to be replaced. For a replica an answer proves less: see [`kick`].
//!
//! Sessions with a request in flight are not carried. Its outcome is unknown, and only their
//! clients can decide.

pub(crate) mod interrupt;
pub(crate) mod kick;
pub(crate) mod replay;

#[cfg(test)]
mod carry_tests;
#[cfg(test)]
pub(crate) mod proof_tests;
#[cfg(test)]
mod property_tests;
#[cfg(test)]
pub(crate) mod testing;

use std::time::{Duration, Instant};

use resp::{Ledger, Limits, Replay};
use target::{Generation, Target, TargetRef};

use crate::context::WorkerContext;
use crate::end_reason::EndReason;
use crate::io::buffer::KeptBytes;
use crate::service::Service;
use crate::session::Ready;
use crate::session::carry::replay::{Failed, Replayed, Server};
use crate::session::dial::may_be_used;
use crate::session::pump::Start;
use crate::session::upstream::Upstream;
use crate::shared::{Promotion, verifiers};

/// The state that a session takes to another target.
#[derive(Debug)]
pub(crate) struct CarryState {
    /// Its replayable state and its position in the protocol.
    pub(crate) ledger: Box<Ledger>,
    /// Bytes read from the client and not forwarded; they begin at a frame boundary.
    pub(crate) unsent: Vec<u8>,
    /// Replies that the client has not taken yet, if it is promoted before it reads.
    pub(crate) undelivered: Option<KeptBytes>,
    /// How the target ended the connection, if it did.
    pub(crate) lost: Option<EndReason>,
    /// How long its requests have waited at the gate already.
    pub(crate) waited: Duration,
}

/// A session between two targets.
pub(crate) struct Migration<'a> {
    pub(crate) ledger: Box<Ledger>,
    /// The former target.
    pub(crate) from: Option<&'a TargetRef>,
    /// The generation of the target that ended the connection, and how; until it is known that this
    /// session was not meant.
    pub(crate) lost: Option<(Generation, EndReason)>,
    /// The former connection, if it still stands. To close thousands of them takes as long as to
    /// open them: each is closed when its session gets a permit, and not before sessions that have
    /// a request waiting.
    pub(crate) old: Option<Upstream>,
    /// Why the last attempt failed.
    pub(crate) failed: Option<EndReason>,
    /// It continues on another shared connection, which is not opened yet.
    pub(crate) shares: bool,
    /// Why it gets a connection of its own, instead of a shared one to the same target.
    pub(crate) promotion: Option<Promotion>,
    /// The connection that was opened last was not a new one.
    pub(crate) reused: bool,
    /// Replies to the client are undelivered, so it cannot be sent anything else yet.
    pub(crate) is_behind: bool,
    /// A request was [sent](interrupt) ahead of the state of the session.
    pub(crate) is_interrupt: bool,
}

/// A connection on which a session can continue, or why there is none.
pub(crate) type Opened = Result<(Upstream, Option<Box<Replayed>>), Failed>;

impl Migration<'_> {
    /// One attempt to open a connection to `server` in the state of the session. If the server
    /// ended the last one, only asks whether it is alive. The first of the `unsent` requests may be
    /// taken and answered, if it ends a script.
    ///
    /// # Errors
    ///
    /// The end reason of the session, if the server is alive and so ended it on purpose.
    pub(crate) async fn open(
        &mut self,
        server: Server<'_>,
        unsent: &mut Vec<u8>,
    ) -> Result<Opened, EndReason> {
        let Server { target, .. } = server;
        if self.shares {
            return Ok(Ok((Upstream::sharing(), None)));
        }
        if self.is_promotion_to(target) {
            return Ok(self.promote(server, unsent).await);
        }
        let lost = self.lost.filter(|(generation, _)| *generation == target.generation());
        let Some((_, reason)) = lost else {
            let replayed = server.replay(&self.ledger).await;
            return Ok(replayed.map(|(upstream, replayed)| (upstream, Some(replayed))));
        };
        match server.answers().await {
            Ok(()) if may_be_used(target) => Err(reason),
            // The answer of a server that is no longer the target, or must not be used now, says
            // nothing about the time when it was.
            Ok(()) => Ok(Err(Failed::Superseded)),
            Err(failed) => Ok(Err(failed)),
        }
    }

    /// Opens a connection to the same target, with the state of the session.
    async fn promote(&mut self, server: Server<'_>, unsent: &mut Vec<u8>) -> Opened {
        // A server that runs a script answers what ends the script, and refuses the rest itself.
        let replay = || {
            let replay = Replay::of_shared(&self.ledger, true).ok_or(Failed::Refused)?;
            Ok(replay.on_same_server())
        };
        self.reused = false;
        if self.promotion == Some(Promotion::Verification)
            && let Some(mut upstream) = verifiers::take(server.target, server.context)
        {
            let mut replay = replay()?.on_used_connection();
            let replayed = server.exchange_on(&mut upstream, &mut replay).await;
            // Whatever is wrong with it is not wrong with a new one.
            if replayed.is_ok() && replay.has_shared_state_of(&self.ledger) {
                self.reused = true;
                return Ok((upstream, None));
            }
        }
        let mut replay = replay()?;
        let mut upstream = match server.exchange(&mut replay).await {
            Err(Failed::Refused) => {
                let opened = Box::pin(self.authenticate(server, unsent)).await;
                if matches!(opened, Err(Failed::Refused)) {
                    server.log_refusal(replay.refusal());
                }
                return opened;
            }
            upstream => upstream?,
        };
        if let Some(other_order) = replay.before_authentication(&self.ledger) {
            replay = other_order;
            upstream = server.exchange(&mut replay).await?;
        }
        match replay.has_shared_state_of(&self.ledger) {
            true => Ok((upstream, None)),
            false if !replay.met_script() => {
                server.log_refusal(replay.refusal());
                Err(Failed::Refused)
            }
            // Another user might be allowed what this one is not.
            false if !replay.has_user_of(&self.ledger) => Err(Failed::Unavailable),
            false => self.interrupt(upstream, server, unsent).await,
        }
    }

    /// Whether the session only leaves a shared connection to this very target.
    pub(crate) fn is_promotion_to(&self, target: &Target) -> bool {
        let same = self.from.is_some_and(|from| from.generation() == target.generation());
        self.promotion.is_some() && same
    }

    /// One attempt to open a connection to the same target.
    pub(crate) async fn promote_once(
        &mut self,
        context: &WorkerContext,
        unsent: &mut Vec<u8>,
    ) -> Option<Ready> {
        let Service { route, options, .. } = &*context.shared.service;
        let from = self.from?;
        let target = route.usable_target().filter(|it| it.generation() == from.generation())?;
        let deadline = Instant::now() + options.now().connect_timeout;
        let server = Server { target: &target, context, deadline };
        let (upstream, replayed) = self.promote(server, unsent).await.ok()?;
        if self.is_interrupt {
            return Some((target, upstream, Start { replayed, ..Start::default() }));
        }
        if !self.reused {
            context.counters.dials.increment();
        }
        let start = Start::resumed(Vec::new(), self.take_ledger(&target));
        may_be_used(&target).then_some((target, upstream, start))
    }

    /// The ledger that continues the session on a connection that was opened without one: a shared
    /// connection, or one to the same target.
    pub(crate) fn take_ledger(&mut self, target: &Target) -> Box<Replayed> {
        let same = self.from.is_some_and(|from| from.generation() == target.generation());
        let mut ledger = std::mem::replace(&mut *self.ledger, Ledger::new(&Limits::default()));
        if !same {
            ledger.changed_server();
        }
        Box::new(ledger.into())
    }
}
