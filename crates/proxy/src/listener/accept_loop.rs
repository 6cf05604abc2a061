//! The accept loop of one listening socket on one worker.
//!
//! It takes clients in as long as there are places, refuses the others in Redis's own words, and
//! closes its socket when the drain says so: not before its queue is empty, because the kernel
//! resets what is still in it.
//!
//! Deliberately absent: what to do about errors, which [`accept`](crate::listener::accept_errors) decides.

use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use drain::{AcceptPermit, Phase};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};

use crate::io::connection::Line;
use crate::listener::accept_errors::{Fault, Pace, sort};
use crate::listener::address::Peer;
use crate::listener::inbox::{Client, HandedOff, Inboxes};
use crate::options::Splice;
use crate::runtime::tasks;
use crate::runtime::worker::WorkerContext;
use crate::session;

/// What Redis says to a client beyond its own `maxclients` (`redis:src/networking.c`,
/// `acceptCommonHandler`). Clients know it.
const REFUSAL: &[u8] = b"-ERR max number of clients reached\r\n";

/// Most clients taken from the queue after the drain has closed this door. The queue cannot be
/// longer, so this only ends a flood that arrives faster than it is accepted.
const LAST_GUESTS: usize = 8192;

/// Where clients come from: a listening socket, or in tests one that fails as the system rarely
/// does.
pub(crate) trait Accept {
    /// The next client's socket, which does not block, and its address.
    fn poll_accept(&mut self, cx: &Context<'_>) -> Poll<Result<(OwnedFd, Peer), Errno>>;

    /// The same without waiting. Asks the socket itself and not the event loop, which may not have
    /// heard yet of whoever came last.
    fn accept(&self) -> Result<(OwnedFd, Peer), Errno>;

    /// Whether one more session could be served and a few descriptors were left; asked while there
    /// is a lack of them.
    fn has_room(&self) -> Result<(), Errno>;
}

/// Clients taken in a row before those that are here get their turn.
const IN_A_ROW: usize = 32;

/// Accepts until the drain closes the listeners and the queue is empty. `service` is the number of
/// the seat's service, `rooms` are the workers that a client may be passed on to.
pub(crate) async fn serve(
    mut queue: impl Accept,
    seat: Arc<WorkerContext>,
    (service, rooms): (usize, Inboxes),
    door: AcceptPermit,
) {
    let (mut pace, mut taken) = (Pace::default(), 0_usize);
    let closing = seat.drain.reached(Phase::Draining);
    tokio::pin!(closing);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut closing => break,
            accepted = next(&mut queue, pace.is_in_want()) => accepted,
        };
        let failure = match accepted {
            Ok((socket, peer)) => match admit(socket, peer, &seat) {
                None => Ok(()),
                Some(client) => match rooms.pass(service, client, || seat.drain.accept_permit()) {
                    Ok(()) => {
                        seat.block.passed_on.one();
                        Ok(())
                    }
                    Err(client) => begin(client, &seat),
                },
            },
            Err(errno) => Err(errno),
        };
        let Err(errno) = failure else {
            pace.succeeded();
            taken += 1;
            if taken % IN_A_ROW == 0 {
                tasks::yield_now().await;
            }
            continue;
        };
        let advice = pace.failed(Instant::now(), errno);
        seat.block.accept_errors.one();
        if let Some(errors) = advice.tell {
            let service = &*seat.shared.service.name;
            tracing::warn!(service, errors, error = %std::io::Error::from(errno), "cannot accept connections");
        }
        if advice.pause.is_zero() {
            continue;
        }
        tokio::select! {
            () = &mut closing => break,
            () = tokio::time::sleep(advice.pause) => {}
        }
    }
    empty_the_queue(&queue, &seat).await;
    drop(queue);
    drop(door);
}

/// The next client. In want of descriptors one is not taken for as long as that alone is possible:
/// it could not be served without a second one, and meanwhile would keep from probes and discovery
/// what has just become free.
async fn next(queue: &mut impl Accept, in_want: bool) -> Result<(OwnedFd, Peer), Errno> {
    if in_want {
        queue.has_room()?;
    }
    poll_fn(|cx| queue.poll_accept(cx)).await
}

/// Lets in whom another worker has passed on.
pub(crate) fn welcome(
    HandedOff { socket, peer, admission, door, .. }: HandedOff,
    seat: &Arc<WorkerContext>,
) {
    if begin((socket, peer, admission), seat).is_err() {
        seat.block.accept_errors.one();
    }
    drop(door);
}

/// Lets in who came before the door was closed. The door stays open meanwhile, so that the drain
/// counts all of them.
pub(crate) async fn empty_the_queue(queue: &impl Accept, seat: &Arc<WorkerContext>) {
    for taken in 1..=LAST_GUESTS {
        if taken % IN_A_ROW == 0 {
            tasks::yield_now().await;
        }
        let begun =
            |(socket, peer)| admit(socket, peer, seat).map_or(Ok(()), |client| begin(client, seat));
        let admitted = queue.accept().and_then(begun);
        if admitted.is_err_and(|errno| sort(errno) != Fault::Connection) {
            return;
        }
    }
}

/// Lets a client in, or refuses it.
fn admit(socket: OwnedFd, peer: Peer, seat: &WorkerContext) -> Option<Client> {
    match seat.shared.limits.admit(peer.ip()) {
        Ok(admission) => Some((socket, peer, admission)),
        Err(limit) => {
            seat.block.refuse(limit);
            refuse(&socket);
            None
        }
    }
}

/// Starts a session.
///
/// # Errors
///
/// The event loop could not take one socket more.
fn begin((socket, peer, admission): Client, seat: &Arc<WorkerContext>) -> Result<(), Errno> {
    let splices = seat.shared.service.options.now().splice == Splice::On;
    let line = Line::accepted(socket, splices)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let session = session::Session::new(peer, Arc::clone(seat), admission);
    tasks::spawn(session.run(line));
    Ok(())
}

/// Nothing here waits: in a flood each refused client costs a few system calls and no memory.
fn refuse(socket: &OwnedFd) {
    // All of these may fail, and the client is refused all the same. What it has already sent is
    // read, because closing a socket with unread bytes resets it and may take the answer along.
    let _sent = rustix::net::send(socket, REFUSAL, SendFlags::NOSIGNAL);
    let _read = rustix::net::recv(socket, &mut [0; 4096], RecvFlags::empty());
    let _ended = rustix::net::shutdown(socket, Shutdown::Write);
}
