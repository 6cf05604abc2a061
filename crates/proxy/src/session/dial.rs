//! Dialling a target: one attempt to open a connection, and the checks whether the target may be
//! used.

mod tls_session;

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use target::Target;

use crate::context::WorkerContext;
use crate::io::stream;
use crate::io::stream::SocketStream;
use crate::io::upstream::Upstream;
use crate::options::{Options, Splice};
use crate::service::DialFailure;

pub(crate) use tls_session::note_error;

/// Connects to `target`, within `connect_timeout` and until `deadline`. The handshake is part of
/// that, if sessions with targets use TLS.
///
/// # Errors
///
/// The kind of failure.
pub(crate) async fn connect(
    target: &Target,
    context: &WorkerContext,
    deadline: Instant,
) -> Result<Upstream, DialFailure> {
    let options = context.shared.service.options.now();
    let mut line = start(target.addr(), &options).map_err(|error| classify(&error))?;
    let tls = options.target_tls.clone();
    if line.is_connected() && tls.is_none() {
        return Ok(Upstream::Plain(line));
    }
    let deadline = deadline.min(Instant::now() + options.connect_timeout);
    // Not kept while it waits: it would be part of every session's future.
    drop(options);
    let connecting = poll_fn(|cx| line.poll_connected(cx));
    match tokio::time::timeout_at(deadline.into(), connecting).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(classify(&error)),
        Err(_elapsed) => return Err(DialFailure::TimedOut),
    }
    match tls {
        None => Ok(Upstream::Plain(line)),
        // In a box: a session without TLS has no memory for this.
        Some(tls) => Box::pin(tls_session::open(line, &tls, target, context, deadline)).await,
    }
}

fn start(addr: SocketAddr, options: &Options) -> io::Result<SocketStream> {
    let socket =
        Socket::new(Domain::for_address(addr), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    stream::set_socket_options(&socket, options)?;
    SocketStream::connect(socket, addr, options.splice == Splice::On)
}

/// Classifies an error of `socket(2)` or `connect(2)`.
fn classify(error: &io::Error) -> DialFailure {
    match Errno::from_io_error(error) {
        Some(Errno::CONNREFUSED | Errno::CONNRESET) => DialFailure::Refused,
        Some(Errno::TIMEDOUT) => DialFailure::TimedOut,
        Some(Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::NETDOWN | Errno::HOSTDOWN) => {
            DialFailure::Unreachable
        }
        Some(Errno::MFILE | Errno::NFILE) => DialFailure::OutOfFiles,
        // `connect(2)` returns ADDRNOTAVAIL when no local port is left.
        Some(Errno::NOBUFS | Errno::NOMEM | Errno::ADDRNOTAVAIL | Errno::AGAIN) => {
            DialFailure::Exhausted
        }
        _ => DialFailure::Other,
    }
}

/// Whether there is no point in connecting to this target: it is fenced, or its sessions have to
/// leave it.
pub(crate) fn is_superseded(target: &Target) -> bool {
    target.fence().is_raised() || target.is_draining()
}

/// Whether requests may be sent to this target now.
pub(crate) fn may_be_used(target: &Target) -> bool {
    !is_superseded(target) && !target.is_closed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classifies_errors_of_a_dial() {
        let of = |errno: Errno| classify(&io::Error::from(errno));
        assert_eq!(of(Errno::CONNREFUSED), DialFailure::Refused);
        assert_eq!(of(Errno::HOSTUNREACH), DialFailure::Unreachable);
        assert_eq!(of(Errno::ADDRNOTAVAIL), DialFailure::Exhausted);
        assert_eq!(of(Errno::MFILE), DialFailure::OutOfFiles);
        assert_eq!(of(Errno::TIMEDOUT), DialFailure::TimedOut);
        assert_eq!(of(Errno::ACCESS), DialFailure::Other);
    }
}
