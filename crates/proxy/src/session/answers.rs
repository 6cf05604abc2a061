//! The last words to a client whose requests were never forwarded.
//!
//! What waited in vain is answered by errors, one a request ([`ErrorReplies`]); what is still in the
//! socket counts too, since the client expects as many replies as it has sent requests. Who has
//! sent nothing is told nothing: a line that nobody asked for would be taken for the reply to the
//! next request.
//!
//! How much is read for that is bounded, and so is how much of it at a time.
//!
//! Deliberately absent: writing them, which is part of the goodbye ([`finish`](crate::session::finish)).

use std::future::poll_fn;
use std::task::Poll;

use resp::ErrorReplies;

use crate::io::buffer;
use crate::io::stream::ByteStream;
use crate::session::broken;
use crate::session::end_reason::EndReason;

/// Why nothing was forwarded: no master. `LOADING` is what a server says that will soon be able to
/// answer; redis-py and go-redis try again after it by themselves.
const NO_MASTER: &str =
    "LOADING No master is known at present. This request was not forwarded and can be tried again.";

/// Why nothing was forwarded: the fault is on this host, and the target is known.
const EXHAUSTED: &str = "LOADING The proxy has no file descriptors or local ports left at present. This request was not \
                         forwarded and can be tried again.";

/// Why nothing was forwarded: no replica. The prefix is Redis's for a replica that may not answer
/// (`redis:src/server.c`, `shared.masterdownerr`).
const NO_REPLICA: &str = "MASTERDOWN No replica is in sync and able to serve reads.";

/// Most bytes that are read at a time before other sessions get their turn.
const AT_A_TIME: usize = 64 * 1024;

/// Most bytes that are read of a client: more than its requests have in the kernel's queue for it.
/// One that sends on and on is not answered to the end.
const MOST_READ: usize = 16 * 1024 * 1024;

/// What is said to a client whose session ends for `reason` before any of `unsent` was forwarded,
/// which begins between two requests. Often nothing.
pub(crate) async fn last_words(
    client: &mut impl ByteStream,
    unsent: Vec<u8>,
    reason: EndReason,
    transaction: bool,
) -> Vec<u8> {
    let why = match reason {
        EndReason::HoldTimeout | EndReason::HoldFull | EndReason::DialFailed => NO_MASTER,
        EndReason::Exhausted => EXHAUSTED,
        EndReason::NoReplica => NO_REPLICA,
        _ => return Vec::new(),
    };
    let mut refusals = ErrorReplies::new(why, transaction);
    refusals.request(&unsent);
    let mut left = MOST_READ;
    poll_fn(|cx| {
        let Poll::Ready(Ok(read)) = buffer::with_scratch(|scratch| {
            let Some(room) = scratch.get_mut(..left.min(AT_A_TIME)) else { return Poll::Pending };
            if room.is_empty() || !refusals.wants_more() {
                return Poll::Ready(Ok(0));
            }
            let read = client.poll_read(cx, room);
            let Poll::Ready(Ok(read)) = read else { return read };
            refusals.request(broken::first(room, read)?);
            Poll::Ready(Ok(read))
        }) else {
            // Nothing more for now, or an error: whether the client is still there shows when it is
            // written to.
            return Poll::Ready(());
        };
        left = left.saturating_sub(read);
        if read == 0 {
            return Poll::Ready(());
        }
        // It may send as fast as it is read, and others want their turn.
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
    refusals.lines().to_vec()
}

/// What is said to a newcomer that cannot be served and has asked for nothing yet: as Redis does
/// beyond its `maxclients`.
pub(crate) fn greeting(reason: EndReason) -> Vec<u8> {
    if reason == EndReason::NoReplica {
        format!("-{NO_REPLICA}\r\n").into_bytes()
    } else {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::{AT_A_TIME, MOST_READ, last_words};
    use crate::EndReason;
    use crate::testing::Puppet;

    /// What a client that sends these pieces is told, and the turns that this took.
    fn told(client: &mut Puppet) -> (String, usize) {
        let mut words =
            pin!(last_words(client, b"GET k\r\n".to_vec(), EndReason::HoldTimeout, false));
        let mut turns = 1;
        loop {
            match words.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(words) => return (String::from_utf8(words).unwrap(), turns),
                Poll::Pending => turns += 1,
            }
        }
    }

    #[test]
    fn answers_what_is_in_the_socket_too() {
        let (words, turns) = told(&mut Puppet::saying(&[b"GET a\r\nGE", b"T b\r\n", b""]));
        assert_eq!((words.matches("-LOADING ").count(), turns), (3, 3));
        assert_eq!(told(&mut Puppet::saying(&[])).1, 1);
    }

    #[test]
    fn reads_a_flood_in_turns_and_not_to_its_end() {
        // Of empty lines, which are not answered, there is no end.
        let flood = vec![b'\n'; AT_A_TIME];
        let mut client = Puppet::saying(&vec![flood.as_slice(); MOST_READ / AT_A_TIME + 7]);
        let (words, turns) = told(&mut client);
        assert_eq!(words.matches("-LOADING ").count(), 1);
        assert_eq!((turns, client.says.len()), (MOST_READ / AT_A_TIME + 1, 7));
    }
}
