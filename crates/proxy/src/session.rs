//! One session from its ticket to its close.
//!
//! A straight line: get to a target (waiting at the gate where there is none), pump, say goodbye. Whatever happens on it, the
//! end is the `Drop` of the session: there and nowhere else it is counted, logged, and given out of the drain. So a panic is
//! counted, too.
//!
//! Deliberately absent: a second place that knows the connection to the target. It is opened, checked and owned in
//! [`reach`](Session::reach)'s caller, where sharing or replacing it would begin.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use drain::Ticket;
use route::{Generation, Ride, Target};

use crate::close::Reason;
use crate::limits::Admission;
use crate::line::Line;
use crate::pump::Pump;
use crate::service::{DialFailure, Hint};
use crate::worker::Seat;
use crate::{dial, finish, hold};

/// The first pause after a failed dial; each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// What a reader is told where there is no replica for it. The prefix is Redis's for a replica that may not answer
/// (`redis:src/server.c`, `shared.masterdownerr`); clients know it and try again.
const NO_REPLICA: &[u8] = b"-MASTERDOWN No replica is in sync and able to serve reads.\r\n";

/// A client that was let in.
#[derive(Debug)]
pub(crate) struct Session {
    peer: SocketAddr,
    seat: Arc<Seat>,
    /// Gone when the session is.
    ticket: Option<Ticket>,
    _admission: Admission,
    reason: Reason,
    target: Option<Ride>,
    bytes: (u64, u64),
}

/// How far the attempts to reach one target have come.
struct Attempts {
    generation: Generation,
    /// When to give up. One attempt never takes longer than `connect_timeout`.
    until: Instant,
    pause: Duration,
}

impl Session {
    /// Counts the client in.
    pub(crate) fn new(peer: SocketAddr, seat: Arc<Seat>, admission: Admission) -> Self {
        seat.block.accepted.one();
        let ticket = Some(seat.drain.ticket());
        Self { peer, seat, ticket, _admission: admission, reason: Reason::Aborted, target: None, bytes: (0, 0) }
    }

    /// Serves the client to its end.
    // Not an async function, because the future of one holds what it is given twice.
    #[allow(clippy::manual_async_fn)]
    pub(crate) fn run(mut self, mut client: Line) -> impl Future<Output = ()> {
        async move {
            let Some(ticket) = self.ticket.take() else { return };
            // First what the client said too early, in the end what it has not taken yet.
            let mut waiting = Vec::new();
            self.reason = match self.reach(&mut client, &mut waiting, &ticket).await {
                Err(reason) => {
                    // What was read from the client is nothing to send to it.
                    waiting = last_word(reason).to_vec();
                    reason
                }
                Ok((target, mut upstream)) => {
                    let target = &*self.target.insert(target);
                    let early = std::mem::take(&mut waiting);
                    let stopped = Pump::new((&mut client, &mut upstream), &self.seat, target, early).run(&ticket).await;
                    waiting = stopped.undelivered;
                    self.bytes = (stopped.bytes_in, stopped.bytes_out);
                    if stopped.reason == Reason::Fenced {
                        // What a cut-off master has not acknowledged would be sent again when it comes back.
                        upstream.forget_unsent();
                    }
                    stopped.reason
                    // The connection to the target ends here, before the goodbye to the client.
                }
            };
            self.ticket = Some(ticket);
            finish::finish(&mut client, &waiting, self.reason).await;
        }
    }

    /// Gets to a target that may be used at the moment this returns.
    async fn reach(&self, client: &mut Line, early: &mut Vec<u8>, ticket: &Ticket) -> Result<(Ride, Line), Reason> {
        let Seat { shared, block, .. } = &*self.seat;
        let service = &shared.service;
        let options = &service.options;
        let hold_until = Instant::now() + options.now().hold_timeout;
        let mut attempts: Option<Attempts> = None;
        loop {
            let target = match service.route.open_target() {
                Some(target) => target,
                None => self.wait_at_the_gate(client, early, ticket, hold_until).await?,
            };
            // A pool may lead to an earlier target again; the points never do.
            let attempt = attempts.take().filter(|it| it.generation >= target.generation());
            let attempt = attempt.unwrap_or_else(|| Attempts {
                generation: target.generation(),
                until: hold_until.max(Instant::now() + options.now().connect_timeout),
                pause: FIRST_PAUSE,
            });
            let begin = Instant::now();
            let dialled = tokio::select! {
                biased;
                dialled = dial::connect(target.addr(), options, attempt.until) => dialled,
                () = self.overtaken(&target, ticket) => {
                    // A dead master swallows the dial, and the points have moved on: no use in waiting for its timeout.
                    if ticket.is_cut() {
                        return Err(Reason::Cut);
                    }
                    continue;
                }
            };
            match dialled {
                Ok(upstream) => {
                    block.dials.one();
                    block.dialled_in.record(begin.elapsed());
                    // The points may have moved while we were dialling: then this connection leads nowhere.
                    if !is_overtaken(&target) && !target.is_shut() {
                        target.note_use();
                        return Ok((target, upstream));
                    }
                }
                Err(failure) => {
                    self.note_failure(&target, failure);
                    attempts = Some(self.after_failure(attempt, &target, failure, ticket).await?);
                }
            }
        }
    }

    /// Returns when it is of no use any more to dial `target`.
    async fn overtaken(&self, target: &Target, ticket: &Ticket) {
        loop {
            let news = self.seat.news.notified();
            if ticket.is_cut() || is_overtaken(target) {
                return;
            }
            news.await;
        }
    }

    /// Waits until a target may be used, if there is a place to wait.
    async fn wait_at_the_gate(
        &self,
        client: &mut Line,
        early: &mut Vec<u8>,
        ticket: &Ticket,
        until: Instant,
    ) -> Result<Ride, Reason> {
        let Seat { shared, block, .. } = &*self.seat;
        let _place = shared.held.take().ok_or(Reason::HoldFull)?;
        let _held = Held::new(block);
        // In a box: a session that flows does not carry the room for this.
        Box::pin(hold::wait(client, early, &shared.service.route, ticket, until)).await
    }

    fn note_failure(&self, target: &Target, failure: DialFailure) {
        self.seat.block.dial_failed(failure);
        // Out of descriptors or ports here says nothing about the target.
        if failure != DialFailure::Exhausted {
            target.shun();
            self.seat.block.hints.one();
            self.seat.shared.service.hints.hint(target, Hint::DialFailed(failure));
        }
    }

    /// Pauses before the next attempt, or gives up. A master that does not take connections is about to be replaced or to come
    /// back, so its client waits for as long as any other client may be held; `connect_timeout` is for one attempt.
    async fn after_failure(
        &self,
        mut attempt: Attempts,
        target: &Target,
        failure: DialFailure,
        ticket: &Ticket,
    ) -> Result<Attempts, Reason> {
        let route = &self.seat.shared.service.route;
        if failure == DialFailure::Exhausted {
            return Err(Reason::DialFailed);
        }
        // In a box: a session that flows does not carry the room for this.
        let moved = Box::pin(route.moved());
        if route.leads_elsewhere(target) {
            // The points have moved, or are about to, or there is another replica: what failed is not what counts.
            return Ok(attempt);
        }
        if Instant::now() + attempt.pause >= attempt.until {
            return Err(Reason::DialFailed);
        }
        tokio::select! {
            () = ticket.cut() => return Err(Reason::Cut),
            () = moved => {}
            () = tokio::time::sleep(attempt.pause) => {}
        }
        attempt.pause = (attempt.pause * 2).min(LONGEST_PAUSE);
        Ok(attempt)
    }
}

/// Whether it is of no use to begin with this target.
fn is_overtaken(target: &Target) -> bool {
    target.fence().has_fallen() || target.is_dismissed()
}

/// What a client is told that never got to a target. Nothing of its own was forwarded, so one error can only be the answer to its
/// first request.
fn last_word(reason: Reason) -> &'static [u8] {
    if reason == Reason::NoReplica { NO_REPLICA } else { &[] }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.seat.block.close(self.reason);
        let (bytes_in, bytes_out) = self.bytes;
        tracing::debug!(
            service = &*self.seat.shared.service.name,
            peer = %self.peer,
            target = self.target.as_ref().map(|target| tracing::field::display(target.addr())),
            reason = self.reason.label(),
            bytes_in,
            bytes_out,
            "session ended"
        );
        if let Some(ticket) = self.ticket.take() {
            ticket.close(self.reason.exit());
        }
    }
}

/// Counts a held session for as long as it is held.
struct Held<'a>(&'a crate::stats::Block);

impl<'a> Held<'a> {
    fn new(block: &'a crate::stats::Block) -> Self {
        block.held.one();
        Self(block)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.released.one();
    }
}
