//! Waiting at the gate while there is no target.
//!
//! A held client costs a place in a bounded number, a timer, and at most a few kilobytes of what it has already sent: reading
//! a little is the only way to notice that it went away. Its bytes go to the next target as the first ones, or nowhere. A client
//! that ends its direction while it is held has given up as far as anybody can tell, and its request must not be executed
//! after it stopped waiting for it; so it is forgotten.
//!
//! Deliberately absent: an answer at the end of a hold.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Instant;

use drain::Ticket;
use route::{Ride, Way};

use crate::close::Reason;
use crate::end::End;
use crate::line::Line;
use crate::scratch;

/// Most bytes that are read from a client while it is held: room for a handshake and some requests.
const EARLY: usize = 4096;

/// Waits until a target may be used. What the client sends meanwhile is added to `early`.
///
/// # Errors
///
/// Why it was not worth waiting any longer.
pub(crate) async fn wait(
    client: &mut Line,
    early: &mut Vec<u8>,
    route: &Way,
    ticket: &Ticket,
    deadline: Instant,
) -> Result<Ride, Reason> {
    tokio::select! {
        biased;
        () = ticket.cut() => Err(Reason::Cut),
        () = gone(client, early) => Err(Reason::HoldAbandoned),
        target = route.wait_open() => target.ok_or(Reason::NoReplica),
        () = tokio::time::sleep_until(deadline.into()) => Err(Reason::HoldTimeout),
    }
}

/// Returns when the client has gone. Reads as much as there is room for on the way.
async fn gone(client: &mut Line, early: &mut Vec<u8>) {
    while early.len() < EARLY {
        let read = poll_fn(|cx| {
            scratch::with(|scratch| {
                let room = scratch.get_mut(..EARLY - early.len()).unwrap_or_default();
                let read = std::task::ready!(client.poll_read(cx, room)).unwrap_or(0);
                early.extend_from_slice(room.get(..read).unwrap_or_default());
                Poll::Ready(read)
            })
        });
        if read.await == 0 {
            return;
        }
    }
    // No room to read more, so its end can no longer be seen behind its bytes; that it broke off can.
    poll_fn(|cx| client.poll_broken(cx)).await;
}
