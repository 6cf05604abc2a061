//! Error replies to requests that were never forwarded.
//!
//! A client whose requests waited in vain gets one error reply per request ([`ErrorReplies`]).
//! Requests that are still in the socket count too, because the client expects as many replies as
//! it has sent requests. A client that has sent nothing gets nothing: it would take an unrequested
//! line for the reply to its next request.
//!
//! The amount read for that is bounded, in all and per poll.

use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Duration;

use resp::ErrorReplies;

use crate::end_reason::EndReason;
use crate::io::stream::{self, ByteStream};
use crate::runtime::tasks;

/// No master is known, or it cannot be dialled, or runs a script. A server that will soon be able
/// to answer replies `LOADING`; redis-py and go-redis retry after it by themselves.
const NO_MASTER: &str = "LOADING No master can take requests at present. \
                         This request was not forwarded and can be tried again.";

/// The former target had state of the session that the next one does not have or accept.
const NOT_CARRIED: &str = "LOADING This connection cannot continue on another server. \
                           This request was not forwarded and can be tried again.";

/// The target is known, and the cause is on this host.
const EXHAUSTED: &str = "LOADING The proxy has no file descriptors or local ports left at present. \
                         This request was not forwarded and can be tried again.";

/// No replica or sentinel may be used. The prefix is that of a Redis replica that must not answer
/// (`redis:src/server.c`, `shared.masterdownerr`).
const NO_REPLICA: &str = "MASTERDOWN No node of this listener is in sync and able to answer.";

/// Maximum bytes read before other sessions are polled.
const READ_PER_POLL: usize = 64 * 1024;

/// Maximum bytes read of one client: more than the kernel queues of its requests. Beyond that, a
/// client that keeps sending gets no more replies.
const MAX_READ: usize = 16 * 1024 * 1024;

/// Requests that were read and never forwarded, and that are refused before their session ends.
#[derive(Debug)]
pub(crate) struct Refused {
    /// The part of them that was read; it begins at a frame boundary.
    pub(crate) unsent: Vec<u8>,
    /// A transaction is open.
    pub(crate) transaction: bool,
}

/// The error replies for a session that ends for `reason`. Often none, and for a new client that
/// has sent no request and finds no replica one, as Redis sends beyond its `maxclients`.
pub(crate) async fn refuse(
    client: &mut impl ByteStream,
    Refused { unsent, transaction }: Refused,
    reason: EndReason,
    is_new: bool,
) -> Vec<u8> {
    let why = match reason {
        EndReason::HoldTimeout
        | EndReason::DialFailed
        | EndReason::TargetTlsFailed
        | EndReason::Cut => NO_MASTER,
        EndReason::Fenced | EndReason::CarryRefused | EndReason::HistoryBroken => NOT_CARRIED,
        reason if reason.is_loss() => NOT_CARRIED,
        EndReason::ResourcesExhausted => EXHAUSTED,
        EndReason::NoReplica => NO_REPLICA,
        _ => return Vec::new(),
    };
    let mut replies = ErrorReplies::new(why, transaction);
    replies.request(&unsent);
    let mut left = MAX_READ;
    while replies.wants_more() && left > 0 {
        let most = left.min(READ_PER_POLL);
        let read = poll_fn(|cx| {
            Poll::Ready(stream::poll_parse(client, cx, most, |read| {
                read.inspect(|bytes| replies.request(bytes)).map(<[u8]>::len)
            }))
        });
        // Nothing more for now, or an error: a client that is gone is noticed when it is written
        // to.
        let Poll::Ready(Ok(read @ 1..)) = read.await else { break };
        left = left.saturating_sub(read);
        // The client may send as fast as it is read, and other sessions have to be polled.
        tasks::yield_now().await;
    }
    match replies.lines() {
        [] if is_new && why == NO_REPLICA => format!("-{NO_REPLICA}\r\n").into_bytes(),
        lines => lines.to_vec(),
    }
}

// The end of a client's connection: its last bytes, then an orderly close.
//
// A socket that is closed with unread bytes in it sends a reset, and a reset can overtake the last
// reply on its way to the client's program. So our direction is closed first, and what the client
// still sends is read and discarded for a moment. Most clients close at once when they see the
// end.

/// How long to wait for the client.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(200);

/// Maximum bytes discarded: a client that sends more ignores the end.
const MAX_DISCARDED: usize = 4 * 1024 * 1024;

/// Delivers `undelivered` and closes the connection of a client that can still be reached.
pub(crate) async fn finish(client: &mut impl ByteStream, undelivered: &[u8]) {
    let closed = async {
        stream::write_all(client, undelivered).await?;
        poll_fn(|cx| client.poll_shutdown(cx)).await?;
        let mut discarded = 0;
        while discarded < MAX_DISCARDED {
            let length = |read: io::Result<&[u8]>| read.map(<[u8]>::len);
            match poll_fn(|cx| stream::poll_parse(client, cx, usize::MAX, length)).await? {
                0 => break,
                read => discarded += read,
            }
        }
        io::Result::Ok(())
    };
    // After an error the client is gone, and after the timeout it ignores the end: both finish it.
    drop(tokio::time::timeout(CLOSE_TIMEOUT, closed).await);
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::{MAX_READ, READ_PER_POLL, Refused, refuse};
    use crate::EndReason;
    use crate::testing::FakeStream;

    /// The replies to a client that sends these pieces, and the number of polls.
    fn refusals(client: &mut FakeStream) -> (String, usize) {
        let refused = Refused { unsent: b"GET k\r\n".to_vec(), transaction: false };
        let mut replies = pin!(refuse(client, refused, EndReason::HoldTimeout, false));
        let mut polls = 1;
        loop {
            match replies.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(replies) => return (String::from_utf8(replies).unwrap(), polls),
                Poll::Pending => polls += 1,
            }
        }
    }

    #[test]
    fn refuses_requests_still_in_the_socket() {
        let (replies, polls) =
            refusals(&mut FakeStream::sending(&[b"GET a\r\nGE", b"T b\r\n", b""]));
        assert_eq!((replies.matches("-LOADING ").count(), polls), (3, 3));
        assert_eq!(refusals(&mut FakeStream::sending(&[])).1, 1);
    }

    #[test]
    fn reads_a_flood_in_bounded_pieces() {
        // Empty lines get no reply, so they never end it.
        let flood = vec![b'\n'; READ_PER_POLL];
        let mut client = FakeStream::sending(&vec![flood.as_slice(); MAX_READ / READ_PER_POLL + 7]);
        let (replies, polls) = refusals(&mut client);
        assert_eq!(replies.matches("-LOADING ").count(), 1);
        assert_eq!((polls, client.incoming.len()), (MAX_READ / READ_PER_POLL + 1, 7));
    }
}
