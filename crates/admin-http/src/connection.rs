//! One connection: hyper on a socket that reports every read and write to a clock.
//!
//! The clock is checked in the same poll as the connection, after it, so it is always up to date
//! and needs no wake-up of its own.

use std::convert::Infallible;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::header::{self, HeaderValue};
use hyper::http::request::Parts;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Sleep, sleep_until};
use tokio_util::either::Either;
use tracing::warn;

use crate::admin_tls::{AdminTls, Channel, Refusal, Session};
use crate::listener::Stream;
use crate::log_limit::LogLimit;
use crate::registry::{ConnectionSlot, Registry, SharedClock, lock};
use crate::report::Reporter;
use crate::routes::{Body, Origin, PROBES, Reply, Routes};
use crate::settings::ServerSettings;
use crate::stop_stage::StopStage;

/// The smallest buffer that hyper accepts.
const SMALLEST_BUFFER: usize = 8192;

/// The minimum interval between two log lines about failed handshakes.
const HANDSHAKE_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// More header lines than any probe, scraper or browser sends.
const MAX_HEADERS: usize = 64;

/// What every connection needs and none changes.
pub(crate) struct ServerState {
    pub(crate) settings: ServerSettings,
    pub(crate) routes: Routes,
    pub(crate) reporter: Arc<dyn Reporter>,
    pub(crate) registry: Registry,
    /// Held by the request that is next to be answered, unless it is a probe.
    pub(crate) turn: tokio::sync::Mutex<()>,
    /// The endless responses that may begin.
    pub(crate) streams: Arc<Semaphore>,
    /// TLS of the network addresses, if they have it.
    pub(crate) tls: Option<AdminTls>,
    pub(crate) handshake_log: Mutex<LogLimit>,
    /// Keys for nonces, taken from the system's random source once.
    pub(crate) keys: [RandomState; 2],
}

/// Serves one connection until it ends, its deadline passes, or the server stops.
pub(crate) async fn serve(
    shared: Arc<ServerState>,
    stream: Stream,
    clock: SharedClock,
    slot: ConnectionSlot,
    once: bool,
    origin: Origin,
    mut stop: watch::Receiver<StopStage>,
) {
    let opened = open(&shared, stream, &clock, &mut stop, origin.peer).await;
    let Some((stream, session)) = opened else { return drop(slot) };
    let io = TimedStream { io: TokioIo::new(stream), clock: Arc::clone(&clock) };
    let (session, stopped) = (session.as_ref(), &shared);
    let service = service_fn(|request| {
        let (shared, clock) = (Arc::clone(stopped), Arc::clone(&clock));
        async move {
            Ok::<_, Infallible>(respond(&shared, request, &clock, origin, session, once).await)
        }
    });
    let connection = http1::Builder::new()
        .half_close(true)
        .header_read_timeout(None)
        .max_buf_size(shared.settings.max_header_bytes.max(SMALLEST_BUFFER))
        .max_header_size(shared.settings.max_header_bytes)
        .max_headers(MAX_HEADERS)
        .serve_connection(io, service);
    let mut connection = pin!(connection);
    let deadline = pin!(DeadlineTimer { clock: &clock, settings: &shared.settings, sleep: None });
    let mut deadline = deadline;
    let mut leaving = false;
    loop {
        tokio::select! {
            biased;
            // The result says how the connection ended, which does not matter here.
            _ = connection.as_mut() => break,
            () = deadline.as_mut() => {
                shared.registry.stats.count(|it| &mut it.timed_out);
                break;
            }
            _ = stop.wait_for(|stage| *stage >= StopStage::Leaving), if !leaving => {
                leaving = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
    drop(slot);
}

/// Completes the handshake, if the address has TLS. `None` if the connection is over.
async fn open(
    shared: &ServerState,
    stream: Stream,
    clock: &SharedClock,
    stop: &mut watch::Receiver<StopStage>,
    peer: Option<IpAddr>,
) -> Option<(Channel, Option<Session>)> {
    let (Some(tls), Either::Left(_)) = (&shared.tls, &stream) else {
        return Some((Either::Right(stream), None));
    };
    let stats = &shared.registry.stats;
    let opened = tokio::select! {
        biased;
        opened = tls.open(stream) => opened,
        () = (DeadlineTimer { clock, settings: &shared.settings, sleep: None }) => {
            stats.count(|it| &mut it.timed_out);
            stats.count(|it| &mut it.failed_handshakes);
            return None;
        }
        _ = stop.wait_for(|it| *it >= StopStage::Leaving) => return None,
    };
    match opened {
        Ok(opened) => {
            // A client without TLS counts as one in the handshake until its request.
            if opened.1.is_some() {
                lock(clock).secured();
                stats.count(|it| &mut it.handshakes);
            }
            Some(opened)
        }
        // It was closed without a byte, as by checks that only connect.
        Err(error) if error.kind() == io::ErrorKind::NotConnected => None,
        Err(error) => {
            stats.count(|it| &mut it.failed_handshakes);
            if let Some(repeated) = lock(&shared.handshake_log).admit(HANDSHAKE_LOG_INTERVAL) {
                let peer = peer.map(tracing::field::display);
                warn!(peer, %error, repeated, "TLS handshake with an admin client failed");
            }
            None
        }
    }
}

/// Discards the request's body, gets the reply and builds the response.
async fn respond(
    shared: &ServerState,
    request: hyper::Request<Incoming>,
    clock: &SharedClock,
    origin: Origin,
    session: Option<&Session>,
    once: bool,
) -> Response<ResponseBody> {
    lock(clock).requested(Instant::now());
    let (parts, body) = request.into_parts();
    let is_small = discard_body(body, shared.settings.max_body_bytes).await;
    let tls = shared.tls.as_ref().filter(|_| !origin.is_owner);
    let refused = tls.and_then(|tls| tls.refuse(parts.uri.path(), session));
    let reply = match &refused {
        _ if !is_small => Reply::text(413, "request body too large; send no body\n"),
        Some(refusal) => refusal.reply(),
        None => {
            take_turn(shared, &parts, clock, origin).await;
            let (reporter, nonce) = (shared.reporter.as_ref(), || nonce(&shared.keys));
            let answer = shared.routes.answer(&parts, origin, &shared.streams, reporter, nonce);
            answer.unwrap_or_else(|refusal| refusal)
        }
    };
    let stats = &shared.registry.stats;
    stats.count(|it| &mut it.requests);
    match refused {
        Some(Refusal::Plaintext) => stats.count(|it| &mut it.plaintext),
        Some(Refusal::Uncertified) => stats.count(|it| &mut it.uncertified),
        None => {}
    }
    if reply.status == StatusCode::MISDIRECTED_REQUEST.as_u16() {
        stats.count(|it| &mut it.foreign_hosts);
    }
    // A client that reconnects gets the certificate that is in use now, and may show its own.
    let is_outdated = tls.zip(session).is_some_and(|(tls, session)| !tls.is_current(session));
    let last = once || !is_small || refused.is_some() || is_outdated;
    build_response(reply, clock, last)
}

/// Lets a request wait that comes over the network and is no probe.
///
/// A report takes milliseconds, and many clients may ask for one. Before each, all connections are
/// looked at, so that a probe waits for a few reports only, and not for all that were asked before.
/// A user of the Unix socket waits for nobody: a crowd must not evict the command of an operator.
async fn take_turn(shared: &ServerState, parts: &Parts, clock: &SharedClock, origin: Origin) {
    if !origin.is_owner && !PROBES.contains(&parts.uri.path()) {
        lock(clock).queued(Instant::now());
        let _turn = shared.turn.lock().await;
        tokio::task::yield_now().await;
        lock(clock).requested(Instant::now());
    }
}

/// Reads and ignores the body; returns whether it ended within the limit.
async fn discard_body(body: Incoming, limit: usize) -> bool {
    body.size_hint().lower() <= limit as u64 && Limited::new(body, limit).collect().await.is_ok()
}

/// Adds the headers that every response has.
fn build_response(reply: Reply, clock: &SharedClock, last: bool) -> Response<ResponseBody> {
    if matches!(reply.body, Body::Stream(..)) {
        lock(clock).streams(Instant::now());
    }
    let mut response =
        Response::new(ResponseBody { body: Some(reply.body), clock: Arc::clone(clock) });
    *response.status_mut() = StatusCode::from_u16(reply.status)
        .ok()
        .filter(|status| !status.is_informational())
        .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    let content_type = HeaderValue::from_str(&reply.content_type);
    headers.insert(
        header::CONTENT_TYPE,
        content_type.unwrap_or(HeaderValue::from_static("application/octet-stream")),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    let closed = HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'");
    headers.insert(header::CONTENT_SECURITY_POLICY, closed);
    for (name, value) in reply.headers {
        headers.insert(name, value);
    }
    if last {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// An unpredictable value: keyed hashes of the time, under keys that never leave the process.
fn nonce(keys: &[RandomState; 2]) -> String {
    let now = Instant::now();
    let [first, second] = keys;
    format!("{:016x}{:016x}", first.hash_one(now), second.hash_one(now))
}

/// Completes when the client has kept the server waiting too long.
struct DeadlineTimer<'a> {
    clock: &'a SharedClock,
    settings: &'a ServerSettings,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Future for DeadlineTimer<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(deadline) = lock(self.clock).deadline(self.settings) else {
            self.sleep = None;
            return Poll::Pending;
        };
        let deadline = deadline.into();
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if sleep.deadline() != deadline {
            sleep.as_mut().reset(deadline);
        }
        sleep.as_mut().poll(cx)
    }
}

/// A response body that tells the connection's clock when it has been handed over.
pub(crate) struct ResponseBody {
    body: Option<Body>,
    clock: SharedClock,
}

impl hyper::body::Body for ResponseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let content = match self.body.as_mut() {
            Some(Body::Stream(stream, _)) => ready!(stream.poll_recv(cx)),
            Some(Body::Whole(_)) | None => match self.body.take() {
                Some(Body::Whole(content)) => Some(content),
                _ => None,
            },
        };
        Poll::Ready(content.map(|content| Ok(Frame::data(content))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            Some(Body::Whole(content)) => content.is_empty(),
            Some(Body::Stream(..)) => false,
            None => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Some(Body::Whole(content)) => SizeHint::with_exact(content.len() as u64),
            Some(Body::Stream(..)) => SizeHint::default(),
            None => SizeHint::with_exact(0),
        }
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        lock(&self.clock).answered(Instant::now());
    }
}

/// A stream that reports its reads and writes to the connection's clock.
struct TimedStream {
    io: TokioIo<Channel>,
    clock: SharedClock,
}

impl TimedStream {
    fn note_write<T>(&self, result: &Poll<io::Result<T>>) {
        if !matches!(result, Poll::Ready(Err(_))) {
            lock(&self.clock).wrote(result.is_ready(), Instant::now());
        }
    }
}

impl Read for TimedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.io).poll_read(cx, buf);
        if result.is_ready() {
            lock(&self.clock).read(Instant::now());
        }
        result
    }
}

impl Write for TimedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.io).poll_write(cx, buf);
        self.note_write(&result);
        result
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        // TLS accepts bytes before the socket does. Without TLS there is nothing to flush.
        if matches!(self.io.inner(), Either::Left(_)) {
            self.note_write(&flushed);
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.note_write(&result);
        result
    }
}
