//! The accept loop of one listener; it works even when the system is out of resources.
//!
//! Probes matter most when something is wrong. Without free file descriptors, the loop therefore
//! releases one that it has kept in reserve and accepts the connection with it; if the reserve is
//! empty, it closes the connection that has kept the server waiting longest. Only then does it back
//! off. It never spins and logs at most one line per second.
//!
//! There is no rate limit: a connection costs little, and their number is bounded.

use std::fs::File;
use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::watch;
use tokio_util::either::Either;
use tracing::warn;

use crate::connection::{self, ServerState};
use crate::connection_clock::ConnectionClock;
use crate::listener::{AdminListener, Stream};
use crate::log_limit::LogLimit;
use crate::routes::Origin;
use crate::stop_stage::StopStage;

/// The pause after a failed accept: short enough to answer a probe within its second.
const BACKOFF: Duration = Duration::from_millis(5);

/// The pause after an attempt that failed for lack of descriptors while no connection was waiting.
const RECHECK: Duration = Duration::from_millis(20);

/// The minimum interval between two log lines.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// File descriptors kept in reserve by each listener: enough for a liveness probe, a readiness
/// probe, a scraper and a person.
const RESERVE: usize = 4;

/// The share of all connections that may be new ones of an address with TLS, as one of N: in the
/// handshake, or without TLS and a request.
const MOST_HANDSHAKES: usize = 2;

/// The number of evictions after which the evicted sockets are closed, before they pile up. Not
/// after each: a report may be made meanwhile, and a probe waits behind all others to be accepted.
const EVICTIONS: u64 = 16;

/// Refills the descriptors that are held only to be released, as far as possible; called again
/// later.
fn refill(reserve: &mut Vec<File>) {
    while reserve.len() < RESERVE {
        let Ok(file) = File::open("/dev/null") else { return };
        reserve.push(file);
    }
}

/// Accepts connections until `stop` is set.
pub(crate) async fn run(
    shared: Arc<ServerState>,
    listener: AdminListener,
    mut stop: watch::Receiver<StopStage>,
) {
    let stopped = stop.clone();
    let mut reserve = Vec::new();
    let mut log = LogLimit::default();
    loop {
        refill(&mut reserve);
        let freed = shared.registry.freed.notified();
        let accepted = tokio::select! {
            _ = stop.wait_for(|stage| *stage >= StopStage::Leaving) => return,
            accepted = listener.accept() => accepted,
            // A connection was closed, so a descriptor may be free for the reserve.
            () = freed => continue,
        };
        match accepted {
            Ok(stream) => {
                admit(&shared, &listener, stream, reserve.len() < RESERVE, &stopped).await;
            }
            Err(error) if is_connection_error(&error) => {}
            // The system reports a lack of descriptors before it looks into the queue. If no
            // connection is waiting, none is needed, and no open connection may be closed for it.
            Err(_) if !has_pending_connection(&listener) => tokio::select! {
                _ = stop.wait_for(|stage| *stage >= StopStage::Leaving) => return,
                () = tokio::time::sleep(RECHECK) => {}
            },
            Err(error) => {
                shared.registry.stats.count(|it| &mut it.accept_errors);
                if let Some(repeated) = log.admit(LOG_EVERY) {
                    warn!(%error, repeated, "admin listener failed to accept a connection");
                }
                rescue(&shared, &listener, &mut reserve, &stopped).await;
            }
        }
    }
}

/// Whether the error concerns this connection only and says nothing about the next one.
fn is_connection_error(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}

/// Whether a connection is waiting in the queue; true if the system does not tell.
fn has_pending_connection(listener: &AdminListener) -> bool {
    let mut asked = [PollFd::new(listener, PollFlags::IN)];
    poll(&mut asked, Some(&Timespec::default())).map_or(true, |ready| ready > 0)
}

/// After a failure: frees a descriptor and accepts one connection with it, or pauses.
async fn rescue(
    shared: &Arc<ServerState>,
    listener: &AdminListener,
    reserve: &mut Vec<File>,
    stop: &watch::Receiver<StopStage>,
) {
    let freed = reserve.pop().is_some() || shared.registry.evict();
    if freed {
        // Lets the task of an evicted connection run, which closes its socket.
        tokio::task::yield_now().await;
        // One attempt without a pause, because any thread may take the free descriptor. If no
        // connection is there, none is kept waiting: the system reports a lack of descriptors
        // before it looks into the queue.
        match poll_fn(|cx| Poll::Ready(listener.poll_accept(cx))).await {
            Poll::Ready(Ok(stream)) => return admit(shared, listener, stream, true, stop).await,
            Poll::Ready(Err(_)) => {}
            Poll::Pending => return,
        }
    }
    let mut stop = stop.clone();
    tokio::select! {
        _ = stop.wait_for(|stage| *stage >= StopStage::Leaving) => {}
        () = tokio::time::sleep(BACKOFF) => {}
    }
}

/// Finds a slot for a connection and serves it, or drops it.
async fn admit(
    shared: &Arc<ServerState>,
    listener: &AdminListener,
    stream: Stream,
    once: bool,
    stop: &watch::Receiver<StopStage>,
) {
    let registry = &shared.registry;
    if !listener.is_allowed(&stream) {
        registry.stats.count(|it| &mut it.refused);
        return;
    }
    let mut evicted = registry.is_full() && registry.evict();
    let is_secure = shared.tls.is_some() && matches!(stream, Either::Left(_));
    let clock = Arc::new(Mutex::new(ConnectionClock::new(Instant::now(), is_secure)));
    let most = shared.settings.max_connections / MOST_HANDSHAKES;
    evicted |= is_secure && registry.evict_handshake(most);
    if evicted && registry.stats.counts().evicted.is_multiple_of(EVICTIONS) {
        tokio::task::yield_now().await;
    }
    // A peer without an address has disconnected already.
    let (is_owner, peer) = match &stream {
        Either::Left(stream) => (false, stream.peer_addr().ok().map(|addr| addr.ip())),
        Either::Right(_) => (true, None),
    };
    let origin = Origin { is_owner, is_read_only: listener.is_read_only(), peer };
    let Some(slot) = registry.admit(Arc::clone(&clock), peer) else {
        registry.stats.count(|it| &mut it.refused);
        return;
    };
    // Responses are small and written at once, so waiting for more would only delay them. This may
    // fail on a dead connection.
    if let Either::Left(stream) = &stream {
        let _ = stream.set_nodelay(true);
    }
    let number = slot.number;
    let task = tokio::spawn(connection::serve(
        Arc::clone(shared),
        stream,
        clock,
        slot,
        once,
        origin,
        stop.clone(),
    ));
    registry.started(number, task.abort_handle());
}
