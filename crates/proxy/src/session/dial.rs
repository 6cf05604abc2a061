//! Dialling a target: one attempt to open a connection, and the checks whether the target may be
//! used.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use drain::Ticket;
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use target::Target;
use tls::rustls::Error;
use tls::{ClientTls, Fault, FaultKind, Problem, TlsConnection};

use crate::context::WorkerContext;
use crate::io::socket_options;
use crate::io::stream::SocketStream;
use crate::io::tls_stream::{HandshakeStep, TlsStream, cause_of};
use crate::options::{Options, Splice};
use crate::runtime::tasks::visits;
use crate::runtime::{run_queue, tasks};
use crate::service::DialFailure;
use crate::session::handshake;
use crate::session::upstream::Upstream;

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
            Some(tls) => Box::pin(open(self.stream, &tls, target, context, deadline)).await,
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
    visits::register(None, context.listener.id.group());
    poll_fn(|_| match ticket.is_cut() || is_superseded(target) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

// Opening a TLS session over a connection to a target.
//
// The computation is done in turns of its own, as that of a client's handshake
// ([`handshake`](crate::session::handshake)): after all sessions that have something to do. Its
// time counts as part of the dial. How many run at once is not limited here: a handshake belongs
// to a session that was admitted, and sessions that dial together need permits.
//
// A certificate is verified for the host with which the target was announced, which is an address
// unless Sentinel resolves host names; for the host to which an address map leads; or for the
// configured name.

/// The first byte of the records with which a server begins: a handshake or an alert (RFC 8446,
/// section 5.1).
const FIRST_BYTES: [u8; 2] = [0x16, 0x15];

/// Opens a TLS session over `socket`, until `deadline`.
///
/// # Errors
///
/// The kind of failure, which has been counted and logged.
pub(super) async fn open(
    socket: SocketStream,
    tls: &ClientTls,
    target: &Target,
    context: &WorkerContext,
    deadline: Instant,
) -> Result<Upstream, DialFailure> {
    let shaken = tokio::time::timeout_at(deadline.into(), shake(socket, tls, target, context));
    match shaken.await.unwrap_or_else(|_elapsed| Err(Fault::timed_out())) {
        Ok(stream) => {
            let counters = &context.counters.target_tls;
            let counter = match stream.connection().is_resumed() {
                Some(true) => &counters.resumed,
                _ => &counters.full,
            };
            counter.increment();
            Ok(Upstream::Tls(stream))
        }
        Err(fault) => {
            note(context, target, &fault);
            Err(DialFailure::Tls)
        }
    }
}

/// Completes the handshake.
async fn shake(
    socket: SocketStream,
    tls: &ClientTls,
    target: &Target,
    context: &WorkerContext,
) -> Result<TlsStream<tls::ClientSide>, Fault> {
    let internal = |what| Fault { kind: FaultKind::Internal, what, remedy: "report this error" };
    let closed = |error: io::Error| Fault { what: error.to_string(), ..Fault::closed() };
    let server = server_of(tls, target, context);
    let (config, name) = server.map_err(|problem| internal(problem.to_string()))?;
    let connection =
        TlsConnection::connect(config, name).map_err(|error| internal(error.to_string()))?;
    let mut stream = TlsStream::new(socket, connection);
    let (mut received, mut is_first) = (Vec::new(), true);
    loop {
        tasks::record_bytes(run_queue::HEAVY);
        tasks::yield_now().await;
        match poll_fn(|cx| handshake::poll_step(cx, &mut stream, &mut received)).await {
            Ok(HandshakeStep::Complete) => return Ok(stream),
            Ok(HandshakeStep::Receive) => {}
            Err(error) => return Err(fault_of(&error).unwrap_or_else(|| closed(error))),
        }
        match poll_fn(|cx| stream.poll_receive(cx, &mut received)).await {
            Ok(1..) => {}
            Ok(0) => return Err(Fault::closed()),
            Err(error) => return Err(closed(error)),
        }
        let begins = received.first().is_some_and(|first| FIRST_BYTES.contains(first));
        if std::mem::take(&mut is_first) && !begins {
            return Err(Fault::not_tls());
        }
    }
}

type Server = (Arc<tls::rustls::ClientConfig>, tls::rustls::pki_types::ServerName<'static>);

/// The settings for a session with `target`, and the name that is asked for and verified there.
fn server_of(tls: &ClientTls, target: &Target, context: &WorkerContext) -> Result<Server, Problem> {
    let announced = &*target.destination().name;
    let names = Arc::clone(&context.shared.service.options.now().target_names);
    let announced = names.get(announced).map_or(host(announced), AsRef::as_ref);
    tls.connect(announced).or_else(|_| tls.connect(&target.addr().ip().to_string()))
}

/// The host of `host:port`.
fn host(name: &str) -> &str {
    let host = name.rsplit_once(':').map_or(name, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Counts and logs an error of an established connection to a target, if it is one of TLS. Returns
/// whether it is.
#[cold]
pub(crate) fn note_error(context: &WorkerContext, target: &Target, error: &io::Error) -> bool {
    let fault = fault_of(error);
    fault.iter().for_each(|fault| note(context, target, fault));
    fault.is_some()
}

/// The fault of an established connection that ended with this error; `None` if TLS is not its
/// cause.
fn fault_of(error: &io::Error) -> Option<Fault> {
    // A stream that has failed once gives no cause.
    let unknown = || (error.kind() == io::ErrorKind::InvalidData).then_some(&Error::DecryptError);
    cause_of(error).or_else(unknown).map(Fault::of)
}

#[cold]
fn note(context: &WorkerContext, target: &Target, Fault { kind, what, remedy }: &Fault) {
    context.counters.target_tls.failures.increment(*kind as usize);
    let shared = &context.shared;
    let log = &shared.logs.target_tls;
    let Some(unlogged) = log.due(*kind as usize, Instant::now()) else { return };
    let tls = shared.service.options.now().target_tls.clone();
    let name = tls.and_then(|tls| server_of(&tls, target, context).ok()).map(|(_, name)| name);
    let expected = &*name.as_ref().map_or_else(Default::default, |name| name.to_str());
    let (service, announced) = (&*shared.service.name, &*target.destination().name);
    let (target, reason) = (target.addr(), kind.as_str());
    tracing::warn!(
        service, %target, announced, expected, reason, error = what, remedy, unlogged,
        "TLS session with the target failed"
    );
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

    #[test]
    fn takes_the_host_of_an_announced_name() {
        assert_eq!(host("redis-0.redis:6379"), "redis-0.redis");
        assert_eq!(host("10.0.0.1:6379"), "10.0.0.1");
        assert_eq!(host("[fd00::1]:6379"), "fd00::1");
        assert_eq!(host("alone"), "alone");
    }

    #[test]
    fn tells_tls_faults_from_those_of_sockets() {
        let of = |error: io::Error| fault_of(&error).map(|fault| fault.kind);
        let library = io::Error::new(io::ErrorKind::InvalidData, Error::DecryptError);
        assert_eq!(of(library), Some(FaultKind::Broken));
        assert_eq!(of(io::ErrorKind::InvalidData.into()), Some(FaultKind::Broken));
        assert_eq!(of(io::ErrorKind::ConnectionReset.into()), None);
    }
}
