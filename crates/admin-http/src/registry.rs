//! The open connections, and which of them to evict when there is one too many.
//!
//! It is used by the admin thread only; the locks satisfy the compiler and are never contended.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::connection_clock::ConnectionClock;

/// What the server has counted since it was bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServerCounts {
    /// Connections open now.
    pub open: u64,
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

/// The server's own statistics, for a report. Cheap to clone; available before the server runs.
#[derive(Debug, Clone, Default)]
pub struct ServerStats(Arc<Mutex<ServerCounts>>);

impl ServerStats {
    /// The current counts.
    #[must_use]
    pub fn counts(&self) -> ServerCounts {
        *lock(&self.0)
    }

    /// Adds one to a count.
    pub(crate) fn count(&self, of: fn(&mut ServerCounts) -> &mut u64) {
        *of(&mut lock(&self.0)) += 1;
    }

    fn set_open(&self, open: usize) {
        lock(&self.0).open = open as u64;
    }
}

/// A connection's clock, shared by the connection's parts.
pub(crate) type SharedClock = Arc<Mutex<ConnectionClock>>;

/// Locks a mutex and ignores poisoning: no critical section can leave invalid data.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct ConnectionEntry {
    clock: SharedClock,
    /// Where it comes from; none on a Unix socket.
    source: Option<IpAddr>,
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
    pub(crate) number: u64,
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
    pub(crate) fn admit(&self, clock: SharedClock, peer: Option<IpAddr>) -> Option<ConnectionSlot> {
        let mut inner = lock(&self.inner);
        if inner.entries.len() >= self.max {
            return None;
        }
        let number = inner.next;
        inner.next += 1;
        inner
            .entries
            .insert(number, ConnectionEntry { clock, source: peer.map(source_of), abort: None });
        self.stats.set_open(inner.entries.len());
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
        let mut inner = lock(&self.inner);
        let oldest = inner.waiting(|_| true).map(|(since, number, _)| (since, number)).min();
        let number = oldest.map(|(_, number)| number);
        self.close(&mut inner, number)
    }

    /// Closes one of the connections whose handshake is not complete, if there are `most`, so that
    /// stalled ones take no slot of a client that was served: the oldest one of the source that has
    /// the most of them, so that a source cannot close those of others.
    pub(crate) fn evict_handshake(&self, most: usize) -> bool {
        let mut inner = lock(&self.inner);
        let mut sources: BTreeMap<Option<IpAddr>, (usize, Instant, u64)> = BTreeMap::new();
        for (since, number, source) in inner.waiting(ConnectionClock::is_handshaking) {
            let (count, oldest, first) = sources.entry(source).or_insert((0, since, number));
            *count += 1;
            if (since, number) < (*oldest, *first) {
                (*oldest, *first) = (since, number);
            }
        }
        let all: usize = sources.values().map(|(count, ..)| count).sum();
        let crowded = sources.values().max_by_key(|(count, since, _)| (*count, Reverse(*since)));
        let number = crowded.map(|(_, _, number)| *number).filter(|_| all >= most.max(1));
        self.close(&mut inner, number)
    }

    fn close(&self, inner: &mut RegistryState, number: Option<u64>) -> bool {
        let Some(number) = number else { return false };
        if let Some(abort) = inner.entries.remove(&number).and_then(|entry| entry.abort) {
            abort.abort();
        }
        self.stats.count(|it| &mut it.evicted);
        true
    }
}

impl RegistryState {
    /// The connections of a kind that keep the server waiting: since when, their numbers, and
    /// where they come from.
    fn waiting(
        &self,
        is_of_kind: impl Fn(&ConnectionClock) -> bool,
    ) -> impl Iterator<Item = (Instant, u64, Option<IpAddr>)> {
        let started = self.entries.iter().filter(|(_, entry)| entry.abort.is_some());
        started.filter_map(move |(number, entry)| {
            let clock = lock(&entry.clock);
            let since = clock.waiting_since().filter(|_| is_of_kind(&clock))?;
            Some((since, *number, entry.source))
        })
    }
}

/// The network that an address stands for: a host has a whole /64 of IPv6.
fn source_of(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(peer) => Ipv6Addr::from_bits(peer.to_bits() & !u128::from(u64::MAX)).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut inner = lock(&self.registry.inner);
        inner.entries.remove(&self.number);
        self.registry.stats.set_open(inner.entries.len());
        drop(inner);
        self.registry.freed.notify_waiters();
    }
}
