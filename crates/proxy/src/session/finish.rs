//! The last words to a client: what was still to be delivered, then an end it can read.
//!
//! A socket that is closed while unread bytes are in it sends a reset, and a reset can overtake the
//! last reply on its way to the client's program. So our direction is ended first, and what the
//! client still sends is read and thrown away for a moment; most clients close at once when they
//! see the end.

use std::future::poll_fn;
use std::io;
use std::task::{Poll, ready};
use std::time::Duration;

use crate::end_reason::EndReason;
use crate::invariant;
use crate::io::end::End;
use crate::io::scratch;

/// How long a client is waited for.
const MOMENT: Duration = Duration::from_millis(200);

/// How many bytes are thrown away at most: more is a client that does not mind the end.
const MOST: usize = 4 * 1024 * 1024;

/// Delivers `undelivered` and ends the client's connection, if there is a point in it after
/// `reason`; otherwise at once.
pub(crate) async fn finish(client: &mut impl End, undelivered: &[u8], reason: EndReason) {
    if reason.reaches_client() {
        // An error means that the client has gone, and running out of time that it does not mind
        // us: both are the end.
        drop(tokio::time::timeout(MOMENT, say_goodbye(client, undelivered)).await);
    }
}

async fn say_goodbye(client: &mut impl End, undelivered: &[u8]) -> io::Result<()> {
    let mut rest = undelivered;
    while !rest.is_empty() {
        let written = poll_fn(|cx| client.poll_write(cx, rest)).await?;
        rest = invariant::rest_after(rest, written)?;
    }
    poll_fn(|cx| client.poll_end(cx)).await?;
    let mut thrown = 0;
    while thrown < MOST {
        let read = poll_fn(|cx| {
            scratch::with(|scratch| Poll::Ready(ready!(client.poll_read(cx, scratch))))
        })
        .await?;
        if read == 0 {
            break;
        }
        thrown += read;
    }
    Ok(())
}
