//! The last words to a client whose requests were never forwarded.
//!
//! What waited in vain is answered by errors, one a request ([`Refusals`]); what is still in the socket counts too, since the
//! client expects as many replies as it has sent requests. Who has sent nothing is told nothing: a line that nobody asked for
//! would be taken for the reply to the next request.
//!
//! Deliberately absent: writing them, which is part of the goodbye ([`finish`](crate::finish)).

use std::future::poll_fn;
use std::task::Poll;

use resp::Refusals;

use crate::close::Reason;
use crate::end::End;
use crate::scratch;

/// Why nothing was forwarded: no master. `LOADING` is what a server says that will soon be able to answer; redis-py and
/// go-redis try again after it by themselves.
const NO_MASTER: &str = "LOADING No master is known at present. This request was not forwarded and can be tried again.";

/// Why nothing was forwarded: the fault is on this host, and the target is known.
const EXHAUSTED: &str = "LOADING The proxy has no file descriptors or local ports left at present. This request was not \
                         forwarded and can be tried again.";

/// Why nothing was forwarded: no replica. The prefix is Redis's for a replica that may not answer (`redis:src/server.c`,
/// `shared.masterdownerr`).
const NO_REPLICA: &str = "MASTERDOWN No replica is in sync and able to serve reads.";

/// What is said to a client whose session ends for `reason` before any of `unsent` was forwarded, which begins between two
/// requests. Often nothing.
pub(crate) async fn last_words(client: &mut impl End, unsent: Vec<u8>, reason: Reason, transaction: bool) -> Vec<u8> {
    let why = match reason {
        Reason::HoldTimeout | Reason::HoldFull | Reason::DialFailed => NO_MASTER,
        Reason::Exhausted => EXHAUSTED,
        Reason::NoReplica => NO_REPLICA,
        _ => return Vec::new(),
    };
    let mut refusals = Refusals::new(why, transaction);
    refusals.request(&unsent);
    poll_fn(|cx| {
        scratch::with(|scratch| {
            while refusals.wants_more() {
                // At an end or an error nothing more comes; whether the client is still there shows when it is written to.
                let Poll::Ready(Ok(read @ 1..)) = client.poll_read(cx, scratch) else { break };
                refusals.request(scratch.get(..read).unwrap_or_default());
            }
        });
        Poll::Ready(())
    })
    .await;
    refusals.lines().to_vec()
}

/// What is said to a newcomer that cannot be served and has asked for nothing yet: as Redis does beyond its `maxclients`.
pub(crate) fn greeting(reason: Reason) -> Vec<u8> {
    if reason == Reason::NoReplica { format!("-{NO_REPLICA}\r\n").into_bytes() } else { Vec::new() }
}
