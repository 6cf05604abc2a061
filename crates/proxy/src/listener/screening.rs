//! Checks where a client comes from, for services that restrict it or that are behind load
//! balancers with the PROXY protocol.
//!
//! A connection from a network of load balancers must begin with a header, and the address in the
//! header counts from then on: for the allowed networks, the limit per source, and everything that
//! is logged and listed. The header is awaited in a task of its own, so that one silent connection
//! delays no other. Until it has arrived the connection takes a place of the service and the
//! process, as a session does, and one of a small number of places for such connections. So silent
//! connections can neither exhaust memory nor take all places of the service.
//!
//! A load balancer that closes its connection before the first byte has checked whether the port is
//! open: that is neither counted nor logged.
//!
//! The header is read from the socket before anything else, and nothing beyond it is read: a TLS
//! handshake or the first request follows. Clients of Unix sockets have no address; the mode of the
//! file says who they may be.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use drain::Phase;
use rustix::io::Errno;

use crate::address::Peer;
use crate::context::WorkerContext;
use crate::limits::Admission;
use crate::listener::accept_loop::{admit, deliver, refuse};
use crate::listener::inbox::Inboxes;
use crate::options::Options;
use crate::proxy_protocol::receive::receive;
use crate::rejection::Rejection;

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
    crate::runtime::tasks::spawn(async move {
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
        refuse(&socket, limit, context);
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
    super::accept_loop::dismiss(socket, why.reply(), context.listener.tls);
}
