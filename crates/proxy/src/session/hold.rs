//! Holding a client: waiting at the gate while there is no target, and in line for a dial permit.
//!
//! A held client costs a timer, and at most a few kilobytes of what it has already sent: to read a
//! little is the only way to notice that it disconnected. Its bytes go first to the next target, or
//! nowhere. A client that closes its direction while it is held has given up as far as can be
//! known, and its request must not be executed after it stopped waiting for it; so the session
//! ends. An end that follows more bytes than the kernel buffers here has not arrived, and is
//! noticed no sooner than at `hold_timeout`.

use std::future::poll_fn;
use std::task::Context;
use std::time::{Duration, Instant};

use target::TargetRef;

use crate::dial_permits::{DialPermit, DialPermits};
use crate::end_reason::EndReason;
use crate::invariant;
use crate::io::stream::{self, ClientStream};
use crate::runtime::tasks;
use crate::session::report::SessionBase;
use crate::stats::WorkerCounters;

/// Maximum bytes read from a client while it is held: enough for a handshake and some requests.
const MAX_EARLY: usize = 4096;

/// The interval at which it is checked whether a client that is not read is still connected.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Counts a held session for as long as it is held.
pub(crate) struct Held<'a>(&'a WorkerCounters);

impl<'a> Held<'a> {
    pub(crate) fn new(counters: &'a WorkerCounters) -> Self {
        counters.waits.increment();
        counters.held.increment();
        Self(counters)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.held.decrement();
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
            tokio::select! {
                biased;
                () = base.ticket.cut() => return Err(EndReason::Cut),
                received = self.receive(urgent) => received?,
                permit = take(&base.context.dial_permits, urgent) => return Ok(permit),
                () = tokio::time::sleep_until(until.into()) => return Err(EndReason::HoldTimeout),
            }
        }
    }

    /// Returns when the client has disconnected, with the end reason, or when it has sent
    /// something, unless it had `already`.
    async fn receive(&mut self, already: bool) -> Result<(), EndReason> {
        if already { Err(self.gone().await) } else { self.read().await }
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

/// Takes a permit. All sessions learn of a new target in one round of the event loop, in no order:
/// an idle one gets in line one round later, so that every session with a request is in line before
/// it.
async fn take(permits: &DialPermits, urgent: bool) -> DialPermit<'_> {
    if !urgent {
        tasks::yield_now().await;
    }
    permits.take(urgent).await
}
