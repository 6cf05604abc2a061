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

use drain::Ticket;
use resp::{Ledger, Limits, Replay};
use target::{CloseCause, Target, TargetRef};

use crate::context::WorkerContext;
use crate::end_reason::EndReason;
use crate::io::buffer::KeptBytes;
use crate::io::stream::ClientStream;
use crate::session::carry::replay::{Failed, Server};
use crate::session::connect::HeldClient;
use crate::session::dial::{is_superseded, may_be_used};
use crate::session::pump::Start;
use crate::session::upstream::Upstream;
use crate::session::{Ready, Session};
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

impl CarryState {
    /// The start of a session that shares connections from now on.
    pub(crate) fn share(self) -> Start {
        let Self { mut ledger, unsent, .. } = self;
        ledger.leave_connection();
        Start::resumed(unsent, ledger)
    }
}

/// A session between two targets.
pub(crate) struct Migration<'a> {
    pub(crate) ledger: Box<Ledger>,
    /// The former target.
    pub(crate) from: Option<&'a TargetRef>,
    /// How the former target ended the connection, until it is known that this session was not
    /// meant.
    pub(crate) lost: Option<EndReason>,
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
    /// A request was [sent](Self::interrupt) ahead of the state of the session.
    pub(crate) is_interrupt: bool,
}

/// A connection on which a session can continue, or why there is none. If the start has no ledger,
/// the session keeps its own.
pub(crate) type Opened = Result<(Upstream, Start), Failed>;

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
            return Ok(Ok((Upstream::sharing(), Start::default())));
        }
        if self.is_promotion_to(target) {
            return Ok(self.promote(server, unsent).await);
        }
        let Some(reason) = self.lost.filter(|_| self.is_from(target)) else {
            return Ok(server.replay(&self.ledger).await);
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
                return Ok((upstream, Start::default()));
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
            true => Ok((upstream, Start::default())),
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
        self.promotion.is_some() && self.is_from(target)
    }

    fn is_from(&self, target: &Target) -> bool {
        self.from.is_some_and(|from| from.generation() == target.generation())
    }

    /// The ledger that continues the session on a connection that was opened without one: a shared
    /// connection, or one to the same target.
    pub(crate) fn take_ledger(&mut self, target: &Target) -> Box<Ledger> {
        let none = Box::new(Ledger::new(&Limits::default()));
        let mut ledger = std::mem::replace(&mut self.ledger, none);
        if !self.is_from(target) {
            ledger.changed_server();
        }
        ledger
    }
}

// Sends one request of a session whose state the server refuses, ahead of that state.
//
// A session that shares connections needs one of its own for `SCRIPT KILL`. In a database other
// than 0 it would not get one: the server refuses `SELECT` until the script ends. What ends a
// script needs no database, only the user. So it is sent on the connection that could be opened.
// Nothing else ever is: the connection is closed after the reply, or without it. The client gets
// the reply, and its session shares connections as before. What the client has sent after that
// request is executed in its own database, or waits.
//
// After the secret of a user was changed, the server refuses the one that such a session has, and
// its client may authenticate with the next one, as it may on a connection of its own. That
// request needs no state either. If the server accepts it, the session shares connections with
// the clients that have the same secret from then on; if not, with those as before.
//
// The request is sent once. Without a reply its outcome is unknown, and the session ends, as one
// with a request in flight does.

/// Maximum length of the reply: one line, or the modules that `HELLO` lists.
const MAX_REPLY: usize = 64 * 1024;

impl Migration<'_> {
    /// Sends the first of the `unsent` requests on `upstream`, which has the user of the session
    /// and not all of its state, and takes the reply. Only if that request ends a script, since the
    /// server runs one.
    pub(super) async fn interrupt(
        &mut self,
        upstream: Upstream,
        server: Server<'_>,
        unsent: &mut Vec<u8>,
    ) -> Opened {
        let Some((request, rest)) = resp::split_interrupt(unsent) else {
            return Err(Failed::Unavailable);
        };
        let (request, rest) = (request.to_vec(), rest.to_vec());
        *unsent = rest;
        self.send_ahead(upstream, server, request).await
    }

    /// Sends the first of the `unsent` requests on a new connection, and takes the reply, if it
    /// authenticates: the server refuses the state of the session.
    pub(super) async fn authenticate(
        &mut self,
        server: Server<'_>,
        unsent: &mut Vec<u8>,
    ) -> Opened {
        let Some((request, rest)) = resp::split_authentication(unsent) else {
            return Err(Failed::Refused);
        };
        let (request, rest) = (request.to_vec(), rest.to_vec());
        let upstream = server.connect().await?;
        *unsent = rest;
        self.send_ahead(upstream, server, request).await
    }

    /// Sends a request that was taken from those unsent, and takes the reply.
    async fn send_ahead(
        &mut self,
        mut upstream: Upstream,
        server: Server<'_>,
        request: Vec<u8>,
    ) -> Opened {
        // First of all: whatever happens from here on, it is not sent a second time.
        self.is_interrupt = true;
        // The kernel would send it again to a partitioned server that comes back.
        upstream.reset_on_close();
        let reply = server.ask(&mut upstream, &request, MAX_REPLY).await?;
        let counters = &server.context.counters;
        counters.dials.increment();
        counters.bytes_in.add(request.len() as u64);
        let mut ledger = self.take_ledger(server.target);
        ledger.request(&request);
        ledger.reply(&reply);
        // Anything but one reply would be taken for the reply to another request.
        if ledger.shared_state().is_none() {
            return Err(Failed::Broken);
        }
        Ok((Upstream::sharing(), Start { messages: reply, ..Start::resumed(Vec::new(), ledger) }))
    }
}

impl Session {
    /// The session continues. If a request of it was answered ahead of its state, its promotion has
    /// ended, and it shares as before.
    pub(in crate::session) fn continued(&mut self, mut ready: Ready) -> Ready {
        let (_, upstream, start) = &mut ready;
        if !upstream.is_shared() || self.base.promotion.take().is_none() {
            return ready;
        }
        start.returns_after = None;
        if let Some(ledger) = &mut start.ledger {
            let (counts, counters) = (ledger.take_counts(), &self.base.context.counters);
            counters.commands.add(counts.requests.into());
            counters.replies.add(counts.replies.into());
            self.base.add(0, 0, counts.requests);
        }
        self.base.context.counters.shared.returned.increment();
        self.linger.get_or_insert_default().returned = Some(Instant::now());
        ready
    }
}

/// Why the session ends if its interrupt was sent and not answered.
pub(crate) fn interrupt_end_reason(failed: Failed, ticket: &Ticket) -> EndReason {
    match failed {
        _ if ticket.is_cut() => EndReason::Cut,
        Failed::Superseded => EndReason::Fenced,
        _ => EndReason::UpstreamClosed,
    }
}

// Decides whether a replica closed a session's connection on purpose.
//
// Sentinel closes all connections of a replica that it points to another master, and the replica
// keeps answering. So an answer proves nothing here, unlike a [master's](crate::session::carry):
// the session waits for discovery, which asks the replica which master it follows. Why that answer
// is certain: `docs/decisions/readers.md#a-replicas-kick-is-explained-by-whom-it-follows`.
//
// A replica that does not answer a new connection has not closed this session on purpose, and
// needs no further question. All of it is bounded. Without evidence of a failover the replica
// meant this session, and the client's connection ends, too.

/// How long to wait for discovery, which asks within one round trip.
const PATIENCE: Duration = Duration::from_secs(3);

/// Returns when a session whose connection the replica `from` has closed may continue over another
/// one. Bytes that the client sends meanwhile are kept.
///
/// # Errors
///
/// Why the session has to end: `reason` if the replica meant this session.
pub(crate) async fn examine_close(
    held: &mut HeldClient<'_, impl ClientStream>,
    from: &TargetRef,
    reason: EndReason,
) -> Result<(), EndReason> {
    let (base, deadline, ended) = (held.base, held.until, Instant::now());
    let context = &*base.context;
    let permit = held.permit().await?;
    let meant = async {
        if is_superseded(from) || cause(from, ended) == CloseCause::Failover {
            return false;
        }
        match (Server { target: from, context, deadline }).answers().await {
            // One answer is valid for all sessions, so none has to wait for another one here.
            Ok(()) => permit.succeeded(),
            // It must not be sent anything now: a failover is believed to be under way.
            Err(Failed::Superseded) => drop(permit),
            Err(failed) => {
                if !failed.is_local() {
                    // New sessions try other replicas first.
                    from.defer();
                }
                return false;
            }
        }
        learn_cause(context, from, ended).await != CloseCause::Failover
    };
    tokio::select! {
        biased;
        () = base.ticket.cut() => Err(EndReason::Cut),
        gone = held.gone() => Err(gone),
        meant = meant => if meant { Err(reason) } else { Ok(()) },
    }
}

fn cause(from: &TargetRef, ended: Instant) -> CloseCause {
    from.replica_status().map_or(CloseCause::Other, |look| look.cause(from.since(), ended))
}

/// Waits until the cause is known. A session that has to leave its replica, or must not be there
/// any more, was not meant either.
async fn learn_cause(context: &WorkerContext, from: &TargetRef, ended: Instant) -> CloseCause {
    let learned = async {
        loop {
            let (changed, examined) =
                (context.shared.service.route.changed(), from.replica_status_changed());
            match cause(from, ended) {
                _ if is_superseded(from) => return CloseCause::Failover,
                CloseCause::NotKnown => {}
                known => return known,
            }
            tokio::select! {
                () = changed => {}
                () = examined => {}
            }
        }
    };
    tokio::time::timeout(PATIENCE, learned).await.unwrap_or(CloseCause::NotKnown)
}
