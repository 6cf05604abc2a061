//! Takes connections from one listener, whatever state the system is in.
//!
//! A probe has to be answered above all when something is wrong. Out of file descriptors, the
//! accepting loop therefore gives up one it has kept in reserve and takes the connection with it,
//! and if there is none left it closes the connection that has kept us waiting longest. Only then
//! does it back off; it never spins and never logs more than a line a second.
//!
//! Deliberately absent: a limit on the rate. Work for one connection is small, and the bound on
//! their number holds.

use std::fs::File;
use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::watch;
use tokio_util::either::Either;

use crate::connection::{self, Shared};
use crate::door::{ConnectionLimit, Visitor};
use crate::life::Life;
use crate::registry::count;

/// The first and the longest pause after a failure to accept: short enough for a probe to be
/// answered within its second.
const PAUSE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(10));

/// How soon it is looked again after an attempt without a descriptor that nobody waited for.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// How often a failure may be logged.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// File descriptors kept in reserve by each listener: enough for a liveness and a readiness probe,
/// a scraper and a person.
const RESERVE: usize = 4;

/// Descriptors that are held only to be given up.
struct Reserve(Vec<File>);

impl Reserve {
    /// Tries to hold as many as there should be. Without success it stays smaller; it is tried
    /// again.
    fn refill(&mut self) {
        while self.0.len() < RESERVE {
            let Ok(file) = File::open("/dev/null") else { return };
            self.0.push(file);
        }
    }

    fn give_up_one(&mut self) -> bool {
        self.0.pop().is_some()
    }
}

/// What a listener remembers of its failures.
struct Trouble {
    pause: Duration,
    logged: Option<Instant>,
    unlogged: u64,
}

impl Trouble {
    fn log(&mut self, error: &io::Error) {
        let now = Instant::now();
        if self.logged.is_some_and(|logged| now.saturating_duration_since(logged) < LOG_EVERY) {
            self.unlogged += 1;
            return;
        }
        tracing::warn!(%error, repeated = self.unlogged, "the admin listener cannot accept a connection");
        self.logged = Some(now);
        self.unlogged = 0;
    }
}

/// Accepts until told to stop.
pub(crate) async fn run(
    shared: Arc<Shared>,
    door: ConnectionLimit,
    mut stop: watch::Receiver<bool>,
) {
    let stopped = stop.clone();
    let mut reserve = Reserve(Vec::new());
    let mut trouble = Trouble { pause: PAUSE.0, logged: None, unlogged: 0 };
    loop {
        reserve.refill();
        let freed = shared.registry.freed.notified();
        let accepted = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            accepted = door.accept() => accepted,
            // A connection has gone, so perhaps there is a descriptor for the reserve.
            () = freed => continue,
        };
        match accepted {
            Ok(visitor) => {
                trouble.pause = PAUSE.0;
                admit(&shared, &door, visitor, (reserve.0.len() < RESERVE, &stopped)).await;
            }
            Err(error) if is_the_clients(&error) => {}
            // The system says that it has no descriptor before it looks into the queue. If nobody
            // is there, none is needed, and nobody's connection may be given up for it.
            Err(_) if !is_awaited(&door) => tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return,
                () = tokio::time::sleep(LOOK_AGAIN) => {}
            },
            Err(error) => {
                count(&shared.registry.stats.counters.accept_errors);
                trouble.log(&error);
                rescue(&shared, &door, &mut reserve, &mut trouble, &stopped).await;
            }
        }
    }
}

/// Whether this one connection failed before we took it, which says nothing about the next one.
fn is_the_clients(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}

/// Whether a connection waits in the queue. If the system does not say, as if one did.
fn is_awaited(door: &ConnectionLimit) -> bool {
    let mut asked = [PollFd::new(door, PollFlags::IN)];
    poll(&mut asked, Some(&Timespec::default())).map_or(true, |ready| ready > 0)
}

/// After a failure: makes room for one connection and takes it, or pauses.
async fn rescue(
    shared: &Arc<Shared>,
    door: &ConnectionLimit,
    reserve: &mut Reserve,
    trouble: &mut Trouble,
    stop: &watch::Receiver<bool>,
) {
    let made_room = reserve.give_up_one() || shared.registry.evict();
    if made_room {
        // Lets an evicted connection's task run, which closes its socket.
        tokio::task::yield_now().await;
        // One try without a pause, because the descriptor just freed is anybody's. If no connection
        // is there, none is kept waiting: the system says that it has no descriptor before it looks
        // into the queue.
        match poll_fn(|cx| Poll::Ready(door.poll_accept(cx))).await {
            Poll::Ready(Ok(visitor)) => {
                trouble.pause = PAUSE.0;
                return admit(shared, door, visitor, (true, stop)).await;
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => return,
        }
    }
    let mut stop = stop.clone();
    tokio::select! {
        _ = stop.wait_for(|stop| *stop) => {}
        () = tokio::time::sleep(trouble.pause) => {}
    }
    trouble.pause = (trouble.pause * 2).min(PAUSE.1);
}

/// Finds a place for a connection and starts it, or drops it.
async fn admit(
    shared: &Arc<Shared>,
    door: &ConnectionLimit,
    visitor: Visitor,
    (once, stop): (bool, &watch::Receiver<bool>),
) {
    let registry = &shared.registry;
    count(&registry.stats.counters.accepted);
    if !door.lets_in(&visitor) {
        count(&registry.stats.counters.refused);
        return;
    }
    if registry.is_full() && registry.evict() {
        // So that sockets of the evicted do not pile up while newcomers rush in.
        tokio::task::yield_now().await;
    }
    let life = Arc::new(Mutex::new(Life::new(Instant::now())));
    let Some(place) = registry.admit(Arc::clone(&life)) else {
        count(&registry.stats.counters.refused);
        return;
    };
    // Small answers, each written at once: waiting for more would only delay them. It may fail on a
    // dead connection.
    if let Either::Left(stream) = &visitor {
        let _ = stream.set_nodelay(true);
    }
    let number = place.number();
    let task = tokio::spawn(connection::serve(
        Arc::clone(shared),
        visitor,
        life,
        place,
        once,
        stop.clone(),
    ));
    registry.started(number, task.abort_handle());
}
