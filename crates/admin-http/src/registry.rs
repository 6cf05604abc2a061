//! The connections there are, and which of them has to go when there is one too many.
//!
//! All of it happens on the probe's one thread; the locks only satisfy the compiler and are never
//! waited for. Deliberately absent: anything about what the connections carry.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::life::Life;

/// What the server has counted since it was bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// Connections open now.
    pub open: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Connections closed to make room for another one.
    pub evicted: u64,
    /// Connections closed at once because there was no room and nobody to be evicted.
    pub refused: u64,
    /// Connections closed because their client kept us waiting too long.
    pub timed_out: u64,
    /// Requests answered, with whatever status.
    pub requests: u64,
    /// Failures to accept, such as a lack of file descriptors.
    pub accept_errors: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) accepted: AtomicU64,
    pub(crate) evicted: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) timed_out: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) accept_errors: AtomicU64,
    open: AtomicU64,
}

/// The server's view of itself, for a report. Cheap to clone; there before the server is served.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    pub(crate) counters: Arc<Counters>,
}

impl Stats {
    /// What has been counted so far.
    #[must_use]
    pub fn counted(&self) -> Counted {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counted {
            open: read(&self.counters.open),
            accepted: read(&self.counters.accepted),
            evicted: read(&self.counters.evicted),
            refused: read(&self.counters.refused),
            timed_out: read(&self.counters.timed_out),
            requests: read(&self.counters.requests),
            accept_errors: read(&self.counters.accept_errors),
        }
    }
}

/// Adds one.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A connection's life, as its parts share it.
pub(crate) type SharedLife = Arc<Mutex<Life>>;

/// Access to a life or another thing behind a lock that nobody can have poisoned for good.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Entry {
    life: SharedLife,
    /// Missing for the moment between admission and the start of its task.
    abort: Option<AbortHandle>,
}

#[derive(Default)]
struct Inner {
    next: u64,
    entries: BTreeMap<u64, Entry>,
}

/// The connections there are.
#[derive(Clone)]
pub(crate) struct Registry {
    inner: Arc<Mutex<Inner>>,
    /// Rung when a connection has gone.
    pub(crate) freed: Arc<Notify>,
    pub(crate) stats: Stats,
    max: usize,
}

/// A place in the registry; dropping it gives it back.
pub(crate) struct Place {
    registry: Registry,
    number: u64,
}

impl Registry {
    pub(crate) fn new(stats: Stats, max: usize) -> Self {
        Self { inner: Arc::default(), freed: Arc::default(), stats, max: max.max(1) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.inner).entries.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        lock(&self.inner).entries.len() >= self.max
    }

    /// A place for a connection, unless the house is full.
    pub(crate) fn admit(&self, life: SharedLife) -> Option<Place> {
        let mut inner = lock(&self.inner);
        if inner.entries.len() >= self.max {
            return None;
        }
        let number = inner.next;
        inner.next += 1;
        inner.entries.insert(number, Entry { life, abort: None });
        self.stats.counters.open.store(inner.entries.len() as u64, Ordering::Relaxed);
        drop(inner);
        Some(Place { registry: self.clone(), number })
    }

    /// Names the task of an admitted connection, so that it can be ended.
    pub(crate) fn started(&self, number: u64, abort: AbortHandle) {
        if let Some(entry) = lock(&self.inner).entries.get_mut(&number) {
            entry.abort = Some(abort);
        }
    }

    /// Closes the connection whose client has kept us waiting longest. Its place is free at once,
    /// its socket as soon as the runtime comes to it. `false` if there is none.
    pub(crate) fn evict(&self) -> bool {
        let mut inner = lock(&self.inner);
        let oldest = inner
            .entries
            .iter()
            .filter(|(_, entry)| entry.abort.is_some())
            .filter_map(|(number, entry)| {
                lock(&entry.life).waiting_since().map(|since| (since, *number))
            })
            .min();
        let Some((_, number)) = oldest else { return false };
        if let Some(abort) = inner.entries.remove(&number).and_then(|entry| entry.abort) {
            abort.abort();
        }
        count(&self.stats.counters.evicted);
        true
    }
}

impl Place {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut inner = lock(&self.registry.inner);
        inner.entries.remove(&self.number);
        self.registry.stats.counters.open.store(inner.entries.len() as u64, Ordering::Relaxed);
        drop(inner);
        self.registry.freed.notify_waiters();
    }
}
