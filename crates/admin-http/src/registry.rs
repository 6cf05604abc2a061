//! The open connections, and which of them to evict when there is one too many.
//!
//! It is used by the admin thread only; the locks satisfy the compiler and are never contended.
//! Deliberately absent: anything about what the connections carry.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::connection_clock::ConnectionClock;

/// What the server has counted since it was bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServerCounts {
    /// Connections open now.
    pub open: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Connections closed in favour of a new one.
    pub evicted: u64,
    /// Connections closed immediately because none could be evicted for them.
    pub refused: u64,
    /// Connections closed because the client exceeded a timeout.
    pub timed_out: u64,
    /// Requests answered, with any status.
    pub requests: u64,
    /// Requests that named a foreign host.
    pub foreign_hosts: u64,
    /// Requests without TLS that needed it.
    pub plaintext: u64,
    /// Requests without a valid client certificate that needed one.
    pub uncertified: u64,
    /// TLS handshakes completed.
    pub handshakes: u64,
    /// TLS handshakes that failed.
    pub failed_handshakes: u64,
    /// Failed accepts, for example for lack of file descriptors.
    pub accept_errors: u64,
}

#[derive(Debug, Default)]
pub(crate) struct AtomicCounters {
    pub(crate) accepted: AtomicU64,
    pub(crate) evicted: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) timed_out: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) foreign_hosts: AtomicU64,
    pub(crate) plaintext: AtomicU64,
    pub(crate) uncertified: AtomicU64,
    pub(crate) handshakes: AtomicU64,
    pub(crate) failed_handshakes: AtomicU64,
    pub(crate) accept_errors: AtomicU64,
    open: AtomicU64,
}

/// The server's own statistics, for a report. Cheap to clone; available before the server runs.
#[derive(Debug, Clone, Default)]
pub struct ServerStats {
    pub(crate) counters: Arc<AtomicCounters>,
}

impl ServerStats {
    /// The current counts.
    #[must_use]
    pub fn counts(&self) -> ServerCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ServerCounts {
            open: read(&self.counters.open),
            accepted: read(&self.counters.accepted),
            evicted: read(&self.counters.evicted),
            refused: read(&self.counters.refused),
            timed_out: read(&self.counters.timed_out),
            requests: read(&self.counters.requests),
            foreign_hosts: read(&self.counters.foreign_hosts),
            plaintext: read(&self.counters.plaintext),
            uncertified: read(&self.counters.uncertified),
            handshakes: read(&self.counters.handshakes),
            failed_handshakes: read(&self.counters.failed_handshakes),
            accept_errors: read(&self.counters.accept_errors),
        }
    }
}

/// Adds one.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A connection's clock, shared by the connection's parts.
pub(crate) type SharedClock = Arc<Mutex<ConnectionClock>>;

/// Locks a mutex and ignores poisoning: no critical section can leave invalid data.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct ConnectionEntry {
    clock: SharedClock,
    /// Missing between admission and the start of the task.
    abort: Option<AbortHandle>,
}

#[derive(Default)]
struct RegistryState {
    next: u64,
    entries: BTreeMap<u64, ConnectionEntry>,
}

/// The open connections.
#[derive(Clone)]
pub(crate) struct Registry {
    inner: Arc<Mutex<RegistryState>>,
    /// Notified when a connection has been closed.
    pub(crate) freed: Arc<Notify>,
    pub(crate) stats: ServerStats,
    max: usize,
}

/// A slot in the registry, released on drop.
pub(crate) struct ConnectionSlot {
    registry: Registry,
    number: u64,
}

impl Registry {
    pub(crate) fn new(stats: ServerStats, max: usize) -> Self {
        Self { inner: Arc::default(), freed: Arc::default(), stats, max: max.max(1) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.inner).entries.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        lock(&self.inner).entries.len() >= self.max
    }

    /// Takes a slot for a connection, unless all are taken.
    pub(crate) fn admit(&self, clock: SharedClock) -> Option<ConnectionSlot> {
        let mut inner = lock(&self.inner);
        if inner.entries.len() >= self.max {
            return None;
        }
        let number = inner.next;
        inner.next += 1;
        inner.entries.insert(number, ConnectionEntry { clock, abort: None });
        self.stats.counters.open.store(inner.entries.len() as u64, Ordering::Relaxed);
        drop(inner);
        Some(ConnectionSlot { registry: self.clone(), number })
    }

    /// Sets the task of an admitted connection, so that it can be aborted.
    pub(crate) fn started(&self, number: u64, abort: AbortHandle) {
        if let Some(entry) = lock(&self.inner).entries.get_mut(&number) {
            entry.abort = Some(abort);
        }
    }

    /// Closes the connection that has kept the server waiting longest. Its slot is free
    /// immediately, its socket as soon as the runtime runs its task. `false` if there is none.
    pub(crate) fn evict(&self) -> bool {
        self.evict_among(|_| true, 1)
    }

    /// Closes the oldest of the connections whose handshake is not complete, if there are `most`,
    /// so that handshakes that stall take no slot of a client that was served.
    pub(crate) fn evict_handshake(&self, most: usize) -> bool {
        self.evict_among(ConnectionClock::is_handshaking, most.max(1))
    }

    /// Closes the oldest of the connections of a kind, if there are `least`.
    fn evict_among(&self, is_of_kind: impl Fn(&ConnectionClock) -> bool, least: usize) -> bool {
        let mut inner = lock(&self.inner);
        let waiting = inner.entries.iter().filter(|(_, entry)| entry.abort.is_some());
        let waiting = waiting.filter_map(|(number, entry)| {
            let clock = lock(&entry.clock);
            let since = clock.waiting_since().filter(|_| is_of_kind(&clock));
            since.map(|since| (since, *number))
        });
        let waiting: Vec<_> = waiting.collect();
        let Some((_, number)) = waiting.iter().min().copied().filter(|_| waiting.len() >= least)
        else {
            return false;
        };
        if let Some(abort) = inner.entries.remove(&number).and_then(|entry| entry.abort) {
            abort.abort();
        }
        count(&self.stats.counters.evicted);
        true
    }
}

impl ConnectionSlot {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut inner = lock(&self.registry.inner);
        inner.entries.remove(&self.number);
        self.registry.stats.counters.open.store(inner.entries.len() as u64, Ordering::Relaxed);
        drop(inner);
        self.registry.freed.notify_waiters();
    }
}
