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
use std::time::Instant;

use drain::{AcceptPermit, Phase};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};

use crate::address::Peer;
use crate::context::WorkerContext;
use crate::io::stream::SocketStream;
use crate::limits::Admission;
use crate::listener::accept_errors::{AcceptBackoff, AcceptErrorKind, classify};
use crate::listener::inbox::{Client, HandedOver, Inboxes};
use crate::listener::listen_socket::AcceptSource;
use crate::options::Splice;
use crate::runtime::tasks;

/// What Redis says to a client beyond its own `maxclients` (`redis:src/networking.c`,
/// `acceptCommonHandler`). Clients know it.
const REFUSAL_REPLY: &[u8] = b"-ERR max number of clients reached\r\n";

/// Most clients taken from the queue after the drain has closed this door. The queue cannot be
/// longer, so this only ends a flood that arrives faster than it is accepted.
const MAX_DRAINED: usize = 8192;

/// Clients taken in a row before those that are here get their turn.
const ACCEPTS_PER_TURN: usize = 32;

/// Starts the session of an accepted client on this worker.
pub(crate) type StartSession = fn(SocketStream, Peer, Arc<WorkerContext>, Admission);

/// Accepts until the drain closes the listeners and the queue is empty. `service` is the number of
/// the seat's service, `inboxes` are the workers that a client may be passed on to.
pub(crate) async fn serve(
    mut listen_socket: impl AcceptSource,
    context: Arc<WorkerContext>,
    (service, inboxes): (usize, Inboxes),
    start: StartSession,
    permit: AcceptPermit,
) {
    let (mut backoff, mut accepted_count) = (AcceptBackoff::default(), 0_usize);
    let closing = context.drain.reached(Phase::Draining);
    tokio::pin!(closing);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut closing => break,
            accepted = next(&mut listen_socket, backoff.is_out_of_resources()) => accepted,
        };
        let failure = match accepted {
            Ok((socket, peer)) => match admit(socket, peer, &context) {
                None => Ok(()),
                Some(client) => {
                    match inboxes.hand_over(service, client, || context.drain.accept_permit()) {
                        Ok(()) => {
                            context.counters.handed_over.increment();
                            Ok(())
                        }
                        Err(client) => start_session(client, &context, start),
                    }
                }
            },
            Err(errno) => Err(errno),
        };
        let Err(errno) = failure else {
            backoff.succeeded();
            accepted_count += 1;
            if accepted_count % ACCEPTS_PER_TURN == 0 {
                tasks::yield_now().await;
            }
            continue;
        };
        let advice = backoff.failed(Instant::now(), errno);
        context.counters.accept_errors.increment();
        if let Some(errors) = advice.log_errors {
            let service = &*context.shared.service.name;
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
    drain_queue(&listen_socket, &context, start).await;
    drop(listen_socket);
    drop(permit);
}

/// The next client. In want of descriptors one is not taken for as long as that alone is possible:
/// it could not be served without a second one, and meanwhile would keep from probes and discovery
/// what has just become free.
async fn next(
    listen_socket: &mut impl AcceptSource,
    out_of_resources: bool,
) -> Result<(OwnedFd, Peer), Errno> {
    if out_of_resources {
        listen_socket.has_free_descriptors()?;
    }
    poll_fn(|cx| listen_socket.poll_accept(cx)).await
}

/// Lets in whom another worker has passed on.
pub(crate) fn start_handed_over(
    HandedOver { socket, peer, admission, permit, .. }: HandedOver,
    context: &Arc<WorkerContext>,
    start: StartSession,
) {
    if start_session((socket, peer, admission), context, start).is_err() {
        context.counters.accept_errors.increment();
    }
    drop(permit);
}

/// Lets in who came before the door was closed. The door stays open meanwhile, so that the drain
/// counts all of them.
pub(crate) async fn drain_queue(
    listen_socket: &impl AcceptSource,
    context: &Arc<WorkerContext>,
    start: StartSession,
) {
    for accepted_count in 1..=MAX_DRAINED {
        if accepted_count % ACCEPTS_PER_TURN == 0 {
            tasks::yield_now().await;
        }
        let started = |(socket, peer)| {
            admit(socket, peer, context)
                .map_or(Ok(()), |client| start_session(client, context, start))
        };
        let admitted = listen_socket.accept().and_then(started);
        if admitted.is_err_and(|errno| classify(errno) != AcceptErrorKind::Connection) {
            return;
        }
    }
}

/// Lets a client in, or refuses it.
fn admit(socket: OwnedFd, peer: Peer, context: &WorkerContext) -> Option<Client> {
    match context.shared.limits.admit(peer.ip()) {
        Ok(admission) => Some((socket, peer, admission)),
        Err(limit) => {
            context.counters.refuse(limit);
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
fn start_session(
    (socket, peer, admission): Client,
    context: &Arc<WorkerContext>,
    start: StartSession,
) -> Result<(), Errno> {
    let splices = context.shared.service.options.now().splice == Splice::On;
    let stream = SocketStream::accepted(socket, splices)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    start(stream, peer, Arc::clone(context), admission);
    Ok(())
}

/// Nothing here waits: in a flood each refused client costs a few system calls and no memory.
fn refuse(socket: &OwnedFd) {
    // All of these may fail, and the client is refused all the same. What it has already sent is
    // read, because closing a socket with unread bytes resets it and may take the answer along.
    let _sent = rustix::net::send(socket, REFUSAL_REPLY, SendFlags::NOSIGNAL);
    let _read = rustix::net::recv(socket, &mut [0; 4096], RecvFlags::empty());
    let _ended = rustix::net::shutdown(socket, Shutdown::Write);
}
