//! The accept loop of one listening socket on one worker.
//!
//! It admits clients up to the limits, rejects further ones with the reply that Redis uses, and
//! closes its socket when the drain begins, but not before its queue is empty, because the kernel
//! resets the connections that are left in it.

use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use drain::{AcceptPermit, Phase};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};

use crate::address::Peer;
use crate::context::WorkerContext;
use crate::io::stream::SocketStream;
use crate::limits::{Admission, Limit};
use crate::listener::accept_errors::{AcceptBackoff, is_lasting};
use crate::listener::inbox::{Client, Inboxes};
use crate::listener::listen_socket::AcceptSource;
use crate::log_rate::LogRate;
use crate::options::{Options, Splice};
use crate::proxy_protocol::receive::receive;
use crate::rejection::Rejection;
use crate::runtime::tasks;
use crate::session::Session;

/// The reply of Redis to a client beyond its own `maxclients` (`redis:src/networking.c`,
/// `acceptCommonHandler`). Clients recognize it.
const REFUSAL_REPLY: &[u8] = b"-ERR max number of clients reached\r\n";

/// The maximum number of clients accepted after the drain has begun. The queue cannot be longer, so
/// this only ends a flood that arrives faster than it is accepted.
const MAX_DRAINED: usize = 8192;

/// Clients accepted in a row before existing sessions run.
const ACCEPTS_PER_TURN: usize = 32;

/// The pause of a listener that has accepted enough, while clients without a request are frequent.
const FLOOD_PAUSE: Duration = Duration::from_millis(1);

/// Accepts until the drain closes the listener and the queue is empty. `inboxes` are the workers to
/// which a client may be handed over.
pub(crate) async fn serve(
    mut listen_socket: impl AcceptSource,
    context: Arc<WorkerContext>,
    inboxes: Inboxes,
    permit: AcceptPermit,
) {
    let (mut backoff, mut accepted_count) = (AcceptBackoff::default(), 0_usize);
    let log = LogRate::<1>::default();
    let mut closing = pin!(context.listener.drain.reached(Phase::Draining));
    loop {
        let accepted = async {
            // While the process is out of descriptors, a client is accepted only if it can also be
            // served: it needs a second descriptor, and would otherwise take from probes and
            // discovery the one that has just become free.
            if backoff.is_out_of_resources() {
                listen_socket.has_free_descriptors()?;
            }
            poll_fn(|cx| listen_socket.poll_accept(cx)).await
        };
        let accepted = tokio::select! {
            biased;
            () = &mut closing => break,
            accepted = accepted => accepted,
        };
        let failure = match accepted {
            Ok((socket, peer)) => begin(socket, peer, &context, Some(&inboxes)),
            Err(errno) => Err(errno),
        };
        let Err(errno) = failure else {
            backoff.succeeded();
            accepted_count += 1;
            if !context.silent_clients.admits_accept(|| context.counters.elapsed()) {
                tokio::select! {
                    () = &mut closing => break,
                    () = tokio::time::sleep(FLOOD_PAUSE) => {}
                }
            } else if accepted_count % ACCEPTS_PER_TURN == 0 {
                tasks::yield_now().await;
            }
            continue;
        };
        let pause = backoff.failed(errno);
        context.counters.accept_errors.increment();
        if let Some(unlogged) = log.due(0, Instant::now()) {
            let service = &*context.shared.service.name;
            let error = std::io::Error::from(errno);
            tracing::warn!(service, %error, unlogged, "cannot accept connections");
        }
        if pause.is_zero() {
            continue;
        }
        tokio::select! {
            () = &mut closing => break,
            () = tokio::time::sleep(pause) => {}
        }
    }
    if !context.listener.moved.load(Ordering::Acquire) {
        drain_queue(&listen_socket, &context).await;
    }
    drop(listen_socket);
    drop(permit);
}

/// Admits the clients that connected before the listener was closed. The permit is held meanwhile,
/// so that the drain counts all of them.
pub(crate) async fn drain_queue(listen_socket: &impl AcceptSource, context: &Arc<WorkerContext>) {
    for accepted_count in 1..=MAX_DRAINED {
        if accepted_count % ACCEPTS_PER_TURN == 0 {
            tasks::yield_now().await;
        }
        let admitted =
            listen_socket.accept().and_then(|(socket, peer)| begin(socket, peer, context, None));
        if admitted.is_err_and(is_lasting) {
            return;
        }
    }
}

/// Begins with a client that was accepted: rejects it, admits it, or awaits its header first.
/// `inboxes` are the workers to which it may be handed over.
///
/// # Errors
///
/// Its session could not be started.
fn begin(
    socket: OwnedFd,
    peer: Peer,
    context: &Arc<WorkerContext>,
    inboxes: Option<&Inboxes>,
) -> Result<(), Errno> {
    let options = context.shared.service.options.peek();
    if peer.ip().is_some_and(|ip| options.proxy_protocol_from.contain(ip)) {
        await_header(socket, peer, context, inboxes);
    } else if !is_allowed(peer, &options) {
        reject(&socket, peer, Rejection::NotAllowed, context);
    } else if let Some(client) = admit(socket, peer, context) {
        return deliver(client, context, inboxes);
    }
    Ok(())
}

/// Hands an admitted client over to a worker with fewer sessions, or starts its session here.
///
/// # Errors
///
/// Its session could not be started.
pub(super) fn deliver(
    client: Client,
    context: &Arc<WorkerContext>,
    inboxes: Option<&Inboxes>,
) -> Result<(), Errno> {
    let client = match inboxes {
        Some(inboxes) => match inboxes.hand_over(&context.listener, client) {
            Ok(()) => {
                context.counters.handed_over.increment();
                return Ok(());
            }
            Err(client) => client,
        },
        None => client,
    };
    start_session(client, context)
}

/// Admits or rejects a client.
pub(super) fn admit(socket: OwnedFd, peer: Peer, context: &WorkerContext) -> Option<Client> {
    match context.shared.limits.admit(peer.ip()) {
        Ok(admission) => Some((socket, peer, admission)),
        Err(limit) => {
            refuse(&socket, peer, limit, context);
            None
        }
    }
}

/// Starts a session.
///
/// # Errors
///
/// The event loop could not register the socket.
pub(crate) fn start_session(client: Client, context: &Arc<WorkerContext>) -> Result<(), Errno> {
    let (socket, peer, admission) = client;
    let splices = context.shared.service.options.peek().splice == Splice::On;
    let stream = SocketStream::accepted(socket, splices)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let session = Session::new(peer, Arc::clone(context), admission);
    match context.listener.tls {
        false => tasks::spawn(async move { session.begin(stream) }),
        true => tasks::spawn(session.run_tls(stream)),
    }
    Ok(())
}

/// Rejects a client beyond a limit.
fn refuse(socket: &OwnedFd, client: Peer, limit: Limit, context: &WorkerContext) {
    context.counters.refused.increment(limit as usize);
    let (service, logs) = (&*context.shared.service.name, &context.shared.logs);
    if let Some(unlogged) = logs.limits.due(limit as usize, Instant::now()) {
        let reason = limit.label();
        tracing::warn!(service, %client, reason, unlogged, "client refused by a limit");
    }
    dismiss(socket, REFUSAL_REPLY, context.listener.tls);
}

/// Sends a last reply to a client that is not served. Does not wait: in a flood, each such client
/// costs a few system calls and no memory.
pub(super) fn dismiss(socket: &OwnedFd, reply: &[u8], tls: bool) {
    // A client that speaks TLS is not answered, as by Redis: before a handshake it could not read
    // it, and a flood must not cost handshakes
    // (`docs/decisions/tls.md#end-sessions-as-without-tls`).
    if tls {
        return;
    }
    // Each of these may fail, and the client is rejected nevertheless. What it has already sent is
    // read, because closing a socket with unread bytes resets it and may discard the reply.
    let _sent = rustix::net::send(socket, reply, SendFlags::NOSIGNAL);
    let _read = rustix::net::recv(socket, &mut [0; 4096], RecvFlags::empty());
    let _ended = rustix::net::shutdown(socket, Shutdown::Write);
}

// Checks where a client comes from, for services that restrict it or that are behind load
// balancers with the PROXY protocol.
//
// A connection from a network of load balancers must begin with a header, and the address in the
// header counts from then on: for the allowed networks, the limit per source, and everything that
// is logged and listed. The header is awaited in a task of its own, so that one silent connection
// delays no other. Until it has arrived the connection takes a place of the service and the
// process, as a session does, and one of a small number of places for such connections. So silent
// connections can neither exhaust memory nor take all places of the service.
//
// A load balancer that closes its connection before the first byte has checked whether the port is
// open: that is neither counted nor logged.
//
// The header is read from the socket before anything else, and nothing beyond it is read: a TLS
// handshake or the first request follows. Clients of Unix sockets have no address; the mode of the
// file says who they may be.

/// Connections of one service that may wait for their header at a time. A load balancer sends it
/// with the first packet.
pub(crate) const MAX_AWAITING_HEADER: usize = if cfg!(test) { 8 } else { 1024 };

/// Whether a client with this address may connect.
pub(super) fn is_allowed(peer: Peer, options: &Options) -> bool {
    let allow = &options.allow;
    allow.is_empty() || peer.ip().is_none_or(|ip| allow.contain(ip))
}

/// Starts a task that awaits the header and then continues with the client.
pub(super) fn await_header(
    socket: OwnedFd,
    peer: Peer,
    context: &Arc<WorkerContext>,
    inboxes: Option<&Inboxes>,
) {
    let Some(place) = context.shared.awaiting_header.take() else {
        return reject(&socket, peer, Rejection::TooManyHeaders, context);
    };
    // As one without an address: the limit per source applies to the source in the header.
    let Some((socket, _, admission)) = admit(socket, Peer::UNIX, context) else { return };
    let (context, inboxes) = (Arc::clone(context), inboxes.cloned());
    // So that the drain waits for the client as if it were in the queue of the socket.
    let permit = context.listener.drain.accept_permit();
    tasks::spawn(async move {
        let header = read_header(&socket, &context).await;
        drop(place);
        if header.is_err() {
            context.silent_clients.record(true);
        }
        match header {
            Ok(client) => {
                let client = client.unwrap_or(peer);
                let started = continue_with(socket, client, admission, &context, inboxes.as_ref());
                if started.is_err() {
                    context.counters.accept_errors.increment();
                }
            }
            Err(Some(why)) => reject(&socket, peer, why, &context),
            Err(None) => {}
        }
        drop(permit);
    });
}

/// Reads the header within its deadline, and returns the client's address, if the header has one.
///
/// # Errors
///
/// Why the connection is closed; `None` if its peer closed it.
async fn read_header(
    socket: &OwnedFd,
    context: &WorkerContext,
) -> Result<Option<Peer>, Option<Rejection>> {
    let timeout = context.shared.service.options.now().proxy_protocol_timeout;
    let received = tokio::select! {
        received = receive(socket) => received,
        () = tokio::time::sleep(timeout) => return Err(Some(Rejection::HeaderTimeout)),
        () = context.listener.drain.reached(Phase::Cutting) => return Err(None),
    };
    received.map(|header| header.client.map(Peer::from))
}

/// Continues with a client whose address is now known.
fn continue_with(
    socket: OwnedFd,
    client: Peer,
    mut admission: Admission,
    context: &Arc<WorkerContext>,
    inboxes: Option<&Inboxes>,
) -> Result<(), Errno> {
    context.counters.proxy_headers.increment();
    if !is_allowed(client, &context.shared.service.options.now()) {
        reject(&socket, client, Rejection::NotAllowed, context);
        return Ok(());
    }
    if let Err(limit) = admission.count_source(client.ip()) {
        refuse(&socket, client, limit, context);
        return Ok(());
    }
    deliver((socket, client, admission), context, inboxes)
}

pub(super) fn reject(socket: &OwnedFd, client: Peer, why: Rejection, context: &WorkerContext) {
    context.counters.rejected.increment(why as usize);
    let (service, logs) = (&*context.shared.service.name, &context.shared.logs);
    if let Some(unlogged) = logs.rejections.due(why as usize, Instant::now()) {
        tracing::warn!(service, %client, reason = why.label(), unlogged, "client rejected");
    }
    dismiss(socket, why.reply(), context.listener.tls);
}
