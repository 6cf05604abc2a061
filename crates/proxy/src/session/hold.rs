//! Holding a client: waiting at the gate while there is no target, and in line for a dial permit.
//!
//! A held client costs a timer, and at most a few kilobytes of what it has already sent: to read a
//! little is the only way to notice that it disconnected. Its bytes go first to the next target, or
//! nowhere. A client that closes its direction while it is held has given up as far as can be
//! known, and its request must not be executed after it stopped waiting for it; so the session
//! ends. An end that follows more bytes than the kernel buffers here has not arrived, and is
//! noticed no sooner than at `hold_timeout`.

use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

use drain::Ticket;
use target::{TargetRef, TargetSource};

use crate::dial_permits::{DialPermit, DialPermits};
use crate::end_reason::EndReason;
use crate::invariant;
use crate::io::buffer;
use crate::io::stream::ClientStream;
use crate::runtime::tasks;
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

/// Waits until a target may be used. Bytes that the client sends meanwhile are added to `early`.
///
/// # Errors
///
/// Why the session ends instead.
pub(crate) async fn wait(
    client: &mut impl ClientStream,
    early: &mut Vec<u8>,
    route: &TargetSource,
    ticket: &Ticket,
    deadline: Instant,
) -> Result<TargetRef, EndReason> {
    tokio::select! {
        biased;
        () = ticket.cut() => Err(EndReason::Cut),
        reason = client_gone(client, early) => Err(reason),
        target = route.wait_usable() => match target {
            // Its end may follow bytes for which `early` had no capacity.
            Some(_) if client.peer_closed_now() => Err(EndReason::HoldAbandoned),
            target => target.ok_or(EndReason::NoReplica),
        },
        () = tokio::time::sleep_until(deadline.into()) => Err(EndReason::HoldTimeout),
    }
}

/// Waits for a dial permit. Sessions with a request go first: bytes that the client sends meanwhile
/// are added to `early`, and the session moves up.
///
/// # Errors
///
/// Why the session ends instead.
pub(crate) async fn permit<'a>(
    client: &mut impl ClientStream,
    early: &mut Vec<u8>,
    permits: &'a DialPermits,
    ticket: &Ticket,
    deadline: Instant,
) -> Result<DialPermit<'a>, EndReason> {
    loop {
        let urgent = !early.is_empty();
        tokio::select! {
            biased;
            () = ticket.cut() => return Err(EndReason::Cut),
            received = receive(client, early, urgent) => received?,
            permit = take(permits, urgent) => return Ok(permit),
            () = tokio::time::sleep_until(deadline.into()) => return Err(EndReason::HoldTimeout),
        }
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

/// Returns when the client has disconnected, with the end reason, or when it has sent something,
/// unless it had `already`.
async fn receive(
    client: &mut impl ClientStream,
    early: &mut Vec<u8>,
    already: bool,
) -> Result<(), EndReason> {
    if already { Err(client_gone(client, early).await) } else { read(client, early).await }
}

/// Returns when the client has disconnected, with the end reason. Reads meanwhile, as much as
/// `early` has capacity for.
pub(crate) async fn client_gone(client: &mut impl ClientStream, early: &mut Vec<u8>) -> EndReason {
    while early.len() < MAX_EARLY {
        if let Err(reason) = read(client, early).await {
            return reason;
        }
    }
    // No more can be read, so the end follows unread bytes, and is only known from the events of
    // the socket.
    while !client.peer_closed_now() {
        let closed = poll_fn(|cx| client.poll_broken(cx));
        // Checked again in either case.
        drop(tokio::time::timeout(CHECK_INTERVAL, closed).await);
    }
    EndReason::HoldAbandoned
}

/// Reads once, as much as `early` has capacity for.
///
/// # Errors
///
/// The client has disconnected.
async fn read(client: &mut impl ClientStream, early: &mut Vec<u8>) -> Result<(), EndReason> {
    poll_fn(|cx| {
        buffer::with_scratch(|scratch| {
            let Some(buffer) =
                MAX_EARLY.checked_sub(early.len()).and_then(|most| scratch.get_mut(..most))
            else {
                return Poll::Ready(Err(invariant::report(
                    "a held client was read beyond its buffer",
                )));
            };
            let read = std::task::ready!(client.poll_read(cx, buffer))
                .and_then(|read| invariant::first_bytes(buffer, read));
            Poll::Ready(match read {
                Ok(bytes @ [_, ..]) => {
                    early.extend_from_slice(bytes);
                    Ok(())
                }
                Err(error) if invariant::is_violation(&error) => Err(EndReason::InternalError),
                Ok([]) | Err(_) => Err(EndReason::HoldAbandoned),
            })
        })
    })
    .await
}
