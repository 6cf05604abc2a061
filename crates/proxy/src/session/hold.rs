//! Waiting at the gate while there is no target.
//!
//! A held client costs a place in a bounded number, a timer, and at most a few kilobytes of what it
//! has already sent: reading a little is the only way to notice that it went away. Its bytes go to
//! the next target as the first ones, or nowhere. A client that ends its direction while it is held
//! has given up as far as anybody can tell, and its request must not be executed after it stopped
//! waiting for it; so it is forgotten. An end that stands behind more bytes than the kernel keeps
//! for us has not arrived, and is noticed no sooner than at `hold_timeout`.
//!
//! Deliberately absent: the answer at the end of a hold ([`answers`](crate::session::answers)).

use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

use drain::Ticket;
use target::{TargetRef, TargetSource};

use crate::io::buffer;
use crate::io::stream::ByteStream;
use crate::io::stream::SocketStream;
use crate::runtime::tasks;
use crate::session::broken;
use crate::session::dial_permits::{DialPermits, Turn};
use crate::session::end_reason::EndReason;
use crate::stats::WorkerCounters;

/// Most bytes that are read from a client while it is held: room for a handshake and some requests.
const EARLY: usize = 4096;

/// How often it is looked whether a client is still there that is not read.
pub(crate) const PATROL: Duration = Duration::from_millis(250);

/// Counts a held session for as long as it is held.
pub(crate) struct Held<'a>(&'a WorkerCounters);

impl<'a> Held<'a> {
    pub(crate) fn new(counters: &'a WorkerCounters) -> Self {
        counters.held.increment();
        Self(counters)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.released.increment();
    }
}

/// Waits until a target may be used. What the client sends meanwhile is added to `early`.
///
/// # Errors
///
/// Why it was not worth waiting any longer.
pub(crate) async fn wait(
    client: &mut SocketStream,
    early: &mut Vec<u8>,
    route: &TargetSource,
    ticket: &Ticket,
    deadline: Instant,
) -> Result<TargetRef, EndReason> {
    tokio::select! {
        biased;
        () = ticket.cut() => Err(EndReason::Cut),
        reason = gone(client, early) => Err(reason),
        target = route.wait_usable() => match target {
            // Its end may stand behind bytes for which there was no room.
            Some(_) if client.peer_closed_now() => Err(EndReason::HoldAbandoned),
            target => target.ok_or(EndReason::NoReplica),
        },
        () = tokio::time::sleep_until(deadline.into()) => Err(EndReason::HoldTimeout),
    }
}

/// Waits for a turn, and lets those go first that have a request waiting. What the client sends
/// meanwhile is added to `early`, and the session moves up.
///
/// # Errors
///
/// Why it was not worth waiting any longer.
pub(crate) async fn turn<'a>(
    client: &mut SocketStream,
    early: &mut Vec<u8>,
    turns: &'a DialPermits,
    ticket: &Ticket,
    deadline: Instant,
) -> Result<Turn<'a>, EndReason> {
    loop {
        let urgent = !early.is_empty();
        tokio::select! {
            biased;
            () = ticket.cut() => return Err(EndReason::Cut),
            heard = listen(client, early, urgent) => heard?,
            turn = take(turns, urgent) => return Ok(turn),
            () = tokio::time::sleep_until(deadline.into()) => return Err(EndReason::HoldTimeout),
        }
    }
}

/// Takes a turn. All sessions hear of a new target in one round of the event loop, in no order: an
/// idle one enters the line a round later, so that every session with a request is in it.
async fn take(turns: &DialPermits, urgent: bool) -> Turn<'_> {
    if !urgent {
        tasks::yield_now().await;
    }
    turns.take(urgent).await
}

/// Returns when the client has gone, with the reason for its end, or when it has sent something,
/// unless it had `already`.
async fn listen(
    client: &mut SocketStream,
    early: &mut Vec<u8>,
    already: bool,
) -> Result<(), EndReason> {
    if already { Err(gone(client, early).await) } else { read(client, early).await }
}

/// Returns when the client has gone, with the reason for its end. Reads as much as there is room
/// for on the way.
pub(crate) async fn gone(client: &mut SocketStream, early: &mut Vec<u8>) -> EndReason {
    while early.len() < EARLY {
        if let Err(reason) = read(client, early).await {
            return reason;
        }
    }
    // No room to read more, so its end stands behind its bytes, and is only known from what the
    // event loop has noted.
    while !client.peer_closed_now() {
        let broken = poll_fn(|cx| client.poll_broken(cx));
        // Either way it is looked again.
        drop(tokio::time::timeout(PATROL, broken).await);
    }
    EndReason::HoldAbandoned
}

/// Reads once, as much as there is room for.
///
/// # Errors
///
/// The client has gone.
async fn read(client: &mut SocketStream, early: &mut Vec<u8>) -> Result<(), EndReason> {
    poll_fn(|cx| {
        buffer::with_scratch(|scratch| {
            let Some(room) =
                EARLY.checked_sub(early.len()).and_then(|most| scratch.get_mut(..most))
            else {
                return Poll::Ready(Err(broken::found(
                    "a held client was to be read beyond its room",
                )));
            };
            let read = std::task::ready!(client.poll_read(cx, room))
                .and_then(|read| broken::first(room, read));
            Poll::Ready(match read {
                Ok(bytes @ [_, ..]) => {
                    early.extend_from_slice(bytes);
                    Ok(())
                }
                Err(error) if broken::is_broken(&error) => Err(EndReason::InternalError),
                Ok([]) | Err(_) => Err(EndReason::HoldAbandoned),
            })
        })
    })
    .await
}
