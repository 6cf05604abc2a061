//! The TLS handshake of a client, before its session connects to a target.
//!
//! A signature takes longer than a hundred small requests. So a handshake computes only in turns of
//! its own: before each step it steps back once, as a task that has moved many bytes does
//! ([`run_queue`](crate::runtime::run_queue)), and then runs after all sessions that have something
//! to do. One that waits for its client keeps no other waiting. It can be
//! [evicted](crate::limits::handshakes) while it waits, and has a deadline that begins with the
//! connection.
//!
//! A client that sends nothing costs a socket and a small future: the state of the library is
//! created when its first bytes are here. If these are no TLS, the client is told so in its own
//! protocol, since its user would otherwise see a connection that ends without a word.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use std::time::Instant;

use tls::{ServerSide, TlsConnection, TlsSide};

use crate::end_reason::{EndReason, Side};
use crate::io::stream::SocketStream;
use crate::io::tls_stream::{self, HandshakeStep, TlsStream};
use crate::runtime::{run_queue, tasks};
use crate::session::refusals;
use crate::session::report::{SessionBase, Stage};
use crate::stats::WorkerCounters;
use crate::tls_listening::{TlsFailure, TlsListening};

/// The first byte of a record of a handshake (RFC 8446, section 5.1).
const HANDSHAKE_RECORD: u8 = 0x16;

/// The reply to a client that sends commands where TLS is spoken.
const NOT_TLS: &[u8] = b"-ERR this port accepts TLS connections only\r\n";

/// How much a worker copies in a nanosecond: a step of a handshake counts as a value that takes as
/// long.
const BYTES_PER_NANOSECOND: u64 = 6;

/// Counts a handshake that has begun, and how it ends.
struct Running<'a> {
    counters: &'a WorkerCounters,
    /// Whether it has resumed a session, or why it has failed.
    result: Result<bool, TlsFailure>,
}

impl<'a> Running<'a> {
    fn new(counters: &'a WorkerCounters) -> Self {
        counters.tls_running.increment();
        // Unless it gets to its end.
        Self { counters, result: Err(TlsFailure::Closed) }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let counters = self.counters;
        counters.tls_running.decrement();
        match self.result {
            Ok(true) => counters.tls_resumed.increment(),
            Ok(false) => counters.tls_full.increment(),
            Err(failure) => counters.tls_failures.increment(failure as usize),
        }
    }
}

/// Why a handshake failed, and in the library's words.
type Failed = (TlsFailure, String);

/// A handshake on its way.
struct Handshake<'a> {
    base: &'a SessionBase,
    tls: &'a TlsListening,
    /// Lower than that of every handshake that began later.
    number: u64,
    /// Received, and not processed yet.
    received: Vec<u8>,
}

/// Completes the handshake of a client that has connected.
///
/// # Errors
///
/// Why the session ends.
pub(super) async fn accept(
    base: &SessionBase,
    mut socket: SocketStream,
) -> Result<TlsStream<ServerSide>, EndReason> {
    base.stage.set(Stage::Handshaking);
    let Some(tls) = base.context.shared.service.options.now().tls.clone() else {
        // A reload has turned TLS off, and this client was in the queue.
        return Err(EndReason::TlsHandshakeFailed);
    };
    let deadline = (Instant::now() + tls.handshake_timeout).into();
    let number = base.context.shared.limits.handshakes.number();
    let mut handshake = Handshake { base, tls: &tls, number, received: Vec::new() };
    let first = handshake.wait(|cx, to| tls_stream::poll_receive(&mut socket, cx, to));
    let first = tokio::select! {
        biased;
        () = base.ticket.cut() => return Err(EndReason::Cut),
        first = tokio::time::timeout_at(deadline, first) => first,
    };
    let first = match first {
        // The client has gone without a byte.
        Ok(Ok(Ok(0))) => return Err(EndReason::ClientClosed),
        Ok(Ok(Err(error))) => return Err(EndReason::from_error(Side::Client, error.kind())),
        Ok(Err(evicted)) => Err(evicted),
        // What follows is past the deadline then.
        Ok(Ok(Ok(_))) | Err(_) => Ok(()),
    };
    let mut running = Running::new(&base.context.counters);
    let complete = async {
        first?;
        handshake.complete(socket).await
    };
    let result = tokio::select! {
        biased;
        () = base.ticket.cut() => return Err(EndReason::Cut),
        result = tokio::time::timeout_at(deadline, complete) => result,
    };
    let late = |_elapsed| Err((TlsFailure::Timeout, "it was not complete in time".to_owned()));
    match result.unwrap_or_else(late) {
        Ok(client) => {
            running.result = Ok(client.connection().is_resumed() == Some(true));
            Ok(client)
        }
        Err((failure, error)) => {
            running.result = Err(failure);
            log(base, failure, &error);
            Err(EndReason::TlsHandshakeFailed)
        }
    }
}

/// Clients that only test whether the port is open are frequent, and say nothing to anybody.
fn log(base: &SessionBase, failure: TlsFailure, error: &str) {
    let service = &*base.context.shared.service.name;
    let (client, reason) = (base.peer, failure.label());
    match failure {
        TlsFailure::Evicted => {
            let log = &base.context.shared.logs.evicted_handshakes;
            if let Some(unlogged) = log.due(0, Instant::now()) {
                tracing::warn!(service, %client, error, unlogged, "TLS handshake evicted");
            }
        }
        TlsFailure::Timeout | TlsFailure::Closed => {
            tracing::debug!(service, %client, reason, error, "TLS handshake failed");
        }
        TlsFailure::Internal => {
            tracing::error!(service, %client, reason, error, "TLS handshake failed");
        }
        _ => tracing::info!(service, %client, reason, error, "TLS handshake failed"),
    }
}

impl Handshake<'_> {
    /// Everything after the first bytes.
    async fn complete(
        &mut self,
        mut socket: SocketStream,
    ) -> Result<TlsStream<ServerSide>, Failed> {
        match self.received.first() {
            Some(&HANDSHAKE_RECORD) => {}
            // The deadline has passed, and the caller sees that first.
            None => return Err((TlsFailure::Timeout, "the client sent nothing".to_owned())),
            Some(_) => {
                refusals::finish(&mut socket, NOT_TLS).await;
                return Err((TlsFailure::NotTls, "the client does not speak TLS".to_owned()));
            }
        }
        let connection = TlsConnection::accept(self.tls.settings.config())
            .map_err(|error| (TlsFailure::Internal, error.to_string()))?;
        let mut client = TlsStream::new(socket, connection);
        loop {
            tasks::record_bytes(run_queue::HEAVY);
            tasks::yield_now().await;
            match self.wait(|cx, received| poll_step(cx, &mut client, received)).await? {
                Ok(HandshakeStep::Complete) => return Ok(client),
                Ok(HandshakeStep::Receive) => {}
                Err(error) => {
                    let Some(cause) = tls_stream::cause_of(&error) else {
                        return Err((TlsFailure::Closed, error.to_string()));
                    };
                    // So that the alert arrives.
                    refusals::finish(client.socket(), &[]).await;
                    return Err((TlsFailure::of(cause), cause.to_string()));
                }
            }
            match self.wait(|cx, received| client.poll_receive(cx, received)).await? {
                Ok(1..) => {}
                Ok(0) => return Err((TlsFailure::Closed, "the client closed it".to_owned())),
                Err(error) => return Err((TlsFailure::Closed, error.to_string())),
            }
        }
    }

    /// Waits for the client, in most cases for its next bytes.
    ///
    /// # Errors
    ///
    /// The handshake was evicted.
    async fn wait<T>(
        &mut self,
        mut poll: impl FnMut(&mut Context<'_>, &mut Vec<u8>) -> Poll<T>,
    ) -> Result<T, Failed> {
        let Self { base, tls, number, received } = self;
        if let Poll::Ready(done) = poll_fn(|cx| Poll::Ready(poll(cx, received))).await {
            return Ok(done);
        }
        let limits = &base.context.shared.limits;
        let mut waiting = limits.wait_for_client(base.peer.ip(), *number, tls.max_waiting);
        tokio::select! {
            biased;
            done = poll_fn(|cx| poll(cx, received)) => Ok(done),
            () = waiting.evicted() => {
                let error = "too many handshakes waited for their clients".to_owned();
                Err((TlsFailure::Evicted, error))
            }
        }
    }
}

/// Computes a step of a handshake, and counts the time as that of a session with large values.
pub(super) fn poll_step<S: TlsSide>(
    cx: &mut Context<'_>,
    stream: &mut TlsStream<S>,
    received: &mut Vec<u8>,
) -> Poll<io::Result<HandshakeStep>> {
    let begin = Instant::now();
    let step = stream.poll_handshake(cx, received);
    let took = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let bytes = took.saturating_mul(BYTES_PER_NANOSECOND);
    tasks::record_bytes(usize::try_from(bytes).unwrap_or(usize::MAX));
    step
}
