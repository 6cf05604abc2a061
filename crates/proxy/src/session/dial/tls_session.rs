//! Opening a TLS session over a connection to a target.
//!
//! The computation is done in turns of its own, as that of a client's handshake
//! ([`handshake`](crate::session::handshake)): after all sessions that have something to do. Its
//! time counts as part of the dial. How many run at once is not limited here: a handshake belongs
//! to a session that was admitted, and sessions that dial together need permits.
//!
//! A certificate is verified for the host with which the target was announced, which is an address
//! unless Sentinel resolves host names; for the host to which an address map leads; or for the
//! configured name.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use target::Target;
use tls::{ClientTls, TlsConnection};

use crate::context::WorkerContext;
use crate::io::stream::SocketStream;
use crate::io::tls_stream::{HandshakeError, HandshakeStep, TlsStream};
use crate::runtime::run_queue;
use crate::runtime::tasks;
use crate::service::DialFailure;
use crate::session::handshake;
use crate::session::upstream::Upstream;
use crate::target_tls::{FailedTls, TargetTlsFailure};

/// The first byte of the records with which a server begins: a handshake or an alert (RFC 8446,
/// section 5.1).
const FIRST_BYTES: [u8; 2] = [0x16, 0x15];

/// Why a session could not be opened, and in words.
type Failed = (TargetTlsFailure, String);

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
    let opened =
        match tokio::time::timeout_at(deadline.into(), shake(socket, tls, target, context)).await {
            Ok(opened) => opened,
            Err(_elapsed) => {
                Err((TargetTlsFailure::TimedOut, "it was not complete in time".to_owned()))
            }
        };
    match opened {
        Ok(stream) => {
            let counters = &context.counters.target_tls;
            let counter = match stream.connection().is_resumed() {
                Some(true) => &counters.resumed,
                _ => &counters.full,
            };
            counter.increment();
            Ok(Upstream::Tls(stream))
        }
        Err((failure, error)) => {
            note(context, target, failure, &error);
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
) -> Result<TlsStream<tls::ClientSide>, Failed> {
    let (config, name) = server_of(tls, target, context)?;
    let connection = TlsConnection::connect(config, name)
        .map_err(|error| (TargetTlsFailure::Internal, error.to_string()))?;
    let mut stream = TlsStream::new(socket, connection);
    let (mut received, mut is_first) = (Vec::new(), true);
    loop {
        tasks::record_bytes(run_queue::HEAVY);
        tasks::yield_now().await;
        match poll_fn(|cx| handshake::poll_step(cx, &mut stream, &mut received)).await {
            Ok(HandshakeStep::Complete) => return Ok(stream),
            Ok(HandshakeStep::Receive) => {}
            Err(HandshakeError::Protocol(error)) => {
                return Err((TargetTlsFailure::of(&error), error.to_string()));
            }
            Err(HandshakeError::Socket(error)) => return Err(closed(&error)),
        }
        match poll_fn(|cx| stream.poll_receive(cx, &mut received)).await {
            Ok(1..) => {}
            Ok(0) => return Err((TargetTlsFailure::Closed, "the target closed it".to_owned())),
            Err(error) => return Err(closed(&error)),
        }
        let begins = received.first().is_some_and(|first| FIRST_BYTES.contains(first));
        if std::mem::take(&mut is_first) && !begins {
            return Err((TargetTlsFailure::NotTls, "the target does not speak TLS".to_owned()));
        }
    }
}

fn closed(error: &io::Error) -> Failed {
    (TargetTlsFailure::Closed, error.to_string())
}

type Server = (Arc<tls::rustls::ClientConfig>, tls::rustls::pki_types::ServerName<'static>);

/// The settings for a session with `target`, and the name that is asked for and verified there.
fn server_of(tls: &ClientTls, target: &Target, context: &WorkerContext) -> Result<Server, Failed> {
    let announced = &*target.destination().name;
    let names = Arc::clone(&context.shared.service.options.now().target_names);
    let announced = names.get(announced).map_or(host(announced), AsRef::as_ref);
    tls.connect(announced)
        .or_else(|_| tls.connect(&target.addr().ip().to_string()))
        .map_err(|problem| (TargetTlsFailure::Internal, problem.to_string()))
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
    let failure = TargetTlsFailure::of_connection(error);
    if let Some(failure) = failure {
        note(context, target, failure, &error.to_string());
    }
    failure.is_some()
}

#[cold]
fn note(context: &WorkerContext, target: &Target, failure: TargetTlsFailure, error: &str) {
    context.counters.target_tls.failures.increment(failure as usize);
    let shared = &context.shared;
    let tls = shared.service.options.now().target_tls.clone();
    let name = tls.and_then(|tls| server_of(&tls, target, context).ok()).map(|(_, name)| name);
    let expected = name.as_ref().map_or_else(Default::default, |name| name.to_str());
    let (announced, target) = (&*target.destination().name, target.addr());
    let failed = FailedTls { target, announced, expected: &expected, failure };
    shared.target_tls_log.record(&shared.service.name, &failed, error);
}

#[cfg(test)]
mod tests {
    use super::host;

    #[test]
    fn takes_the_host_of_an_announced_name() {
        assert_eq!(host("redis-0.redis:6379"), "redis-0.redis");
        assert_eq!(host("10.0.0.1:6379"), "10.0.0.1");
        assert_eq!(host("[fd00::1]:6379"), "fd00::1");
        assert_eq!(host("alone"), "alone");
    }
}
