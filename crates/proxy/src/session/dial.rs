//! Dialling a target: one attempt to open a connection, and the checks whether the target may be
//! used.

mod tls_session;

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use drain::Ticket;
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use target::Target;
use tls::ClientTls;

use crate::context::WorkerContext;
use crate::io::socket_options;
use crate::io::stream::SocketStream;
use crate::options::{Options, Splice};
use crate::service::DialFailure;
use crate::session::upstream::Upstream;

pub(crate) use tls_session::note_error;

/// An attempt to connect that has begun. The handshake is part of it, if sessions with targets use
/// TLS.
#[derive(Debug)]
pub(crate) struct Dial {
    stream: SocketStream,
    tls: Option<ClientTls>,
    /// From its beginning.
    timeout: Duration,
}

impl Dial {
    /// Begins to connect to `target`.
    ///
    /// # Errors
    ///
    /// The kind of failure.
    pub(crate) fn begin(target: &Target, options: &Options) -> Result<Self, DialFailure> {
        let tls = options.target_tls.clone();
        let stream = start(target.addr(), options).map_err(|error| classify(&error))?;
        Ok(Self { stream, tls, timeout: options.connect_timeout })
    }

    /// Whether there is nothing to wait for.
    pub(crate) fn is_done(&self) -> bool {
        self.tls.is_none() && self.stream.is_connected()
    }

    /// The connection, if the attempt [is done](Self::is_done).
    pub(crate) fn into_upstream(self) -> Upstream {
        Upstream::Plain(self.stream)
    }

    /// Waits until it is connected, within `connect_timeout` and until `deadline`.
    ///
    /// # Errors
    ///
    /// The kind of failure.
    pub(crate) async fn finish(
        mut self,
        target: &Target,
        context: &WorkerContext,
        deadline: Instant,
    ) -> Result<Upstream, DialFailure> {
        if self.is_done() {
            return Ok(self.into_upstream());
        }
        let deadline = deadline.min(Instant::now() + self.timeout);
        let connecting = poll_fn(|cx| self.stream.poll_connected(cx));
        match tokio::time::timeout_at(deadline.into(), connecting).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(classify(&error)),
            Err(_elapsed) => return Err(DialFailure::TimedOut),
        }
        match self.tls {
            None => Ok(Upstream::Plain(self.stream)),
            // In a box: a session without TLS has no memory for this.
            Some(tls) => {
                Box::pin(tls_session::open(self.stream, &tls, target, context, deadline)).await
            }
        }
    }
}

fn start(addr: SocketAddr, options: &Options) -> io::Result<SocketStream> {
    let socket =
        Socket::new(Domain::for_address(addr), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket_options::set(&socket, options)?;
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

/// Returns when there is no point in connecting to `target` any more, or the session is cut.
pub(crate) async fn superseded(context: &WorkerContext, target: &Target, ticket: &Ticket) {
    loop {
        let news = context.session_notify.notified();
        if ticket.is_cut() || is_superseded(target) {
            return;
        }
        news.await;
    }
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
