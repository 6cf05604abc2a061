//! The TLS handshakes of a service that wait for their clients.
//!
//! A handshake computes only when bytes of its client are there, in one step on its worker, so as
//! many compute at once as there are workers. While it waits, it costs a place among the sessions
//! of the service and some memory, and no other handshake waits for it. Waiting ones may take all
//! but an eighth of the places that established sessions leave. One more evicts the oldest of the
//! source that has the most, so a source with few of them is safe, however slow its network is.
//!
//! A handshake is in the list only while nothing of its client is there to be processed. So of
//! thousands of clients that come back at once, those that wait for the CPU are not evicted. One
//! that is evicted and finds bytes when its task runs, continues.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::limits::sources::ClientSource;

/// One in this many places is kept free of waiting handshakes.
const KEPT_FREE: usize = 8;

/// The handshakes of a service that wait for their clients.
#[derive(Debug, Default)]
pub(crate) struct WaitingHandshakes {
    next: AtomicU64,
    list: Mutex<WaitingList>,
}

/// Where a client comes from; `None` on a Unix socket.
type Source = Option<ClientSource>;

/// The waiting handshakes of a source by their numbers. A handshake whose sender is dropped has
/// been evicted.
type OfSource = BTreeMap<u64, oneshot::Sender<()>>;

#[derive(Debug, Default)]
struct WaitingList {
    sources: HashMap<Source, OfSource>,
    /// The sources by the number of their handshakes, and by the age of the oldest.
    ranking: BTreeSet<(usize, Reverse<u64>, Source)>,
    waiting: usize,
    /// Evicted ones whose places are not free yet.
    evicted: usize,
}

/// A handshake that waits for its client until it is dropped.
#[derive(Debug)]
pub(crate) struct WaitingHandshake<'a> {
    all: &'a WaitingHandshakes,
    source: Source,
    number: u64,
    eviction: oneshot::Receiver<()>,
}

impl WaitingHandshakes {
    /// The number of a new handshake: later ones have higher numbers.
    pub(crate) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Enters a handshake that waits for its client, and evicts those that are too many: more than
    /// `most`, or more than leaves an eighth of the places free, of which `free` are free now.
    pub(super) fn enter(
        &self,
        source: Source,
        number: u64,
        free: usize,
        most: usize,
    ) -> WaitingHandshake<'_> {
        let (entry, eviction) = oneshot::channel();
        let mut list = self.list();
        list.insert(source, number, entry);
        let evicted = list.evict_surplus(free, most);
        drop(list);
        // Wakes their tasks, without the lock.
        drop(evicted);
        WaitingHandshake { all: self, source, number, eviction }
    }

    fn list(&self) -> MutexGuard<'_, WaitingList> {
        // No critical section can panic half-way.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WaitingHandshake<'_> {
    /// Ready when it has been evicted.
    pub(crate) async fn evicted(&mut self) {
        let _dropped = (&mut self.eviction).await;
    }
}

impl Drop for WaitingHandshake<'_> {
    fn drop(&mut self) {
        let mut list = self.all.list();
        if list.remove(self.source, self.number).is_none() {
            list.evicted = list.evicted.saturating_sub(1);
        }
    }
}

impl WaitingList {
    fn insert(&mut self, source: Source, number: u64, entry: oneshot::Sender<()>) {
        self.waiting += 1;
        self.change(source, |of_source| of_source.insert(number, entry));
    }

    fn remove(&mut self, source: Source, number: u64) -> Option<oneshot::Sender<()>> {
        let entry = self.change(source, |of_source| of_source.remove(&number))?;
        self.waiting = self.waiting.saturating_sub(1);
        Some(entry)
    }

    /// Changes the handshakes of a source, and its rank.
    fn change<R>(&mut self, source: Source, change: impl FnOnce(&mut OfSource) -> R) -> R {
        let of_source = self.sources.entry(source).or_default();
        self.ranking.remove(&rank(source, of_source));
        let changed = change(of_source);
        if of_source.is_empty() {
            self.sources.remove(&source);
        } else {
            self.ranking.insert(rank(source, of_source));
        }
        changed
    }

    fn evict_surplus(&mut self, free: usize, most: usize) -> Vec<oneshot::Sender<()>> {
        let mut evicted = Vec::new();
        while self.has_surplus(free, most)
            && let Some((_, Reverse(oldest), source)) = self.ranking.last().copied()
            && let Some(entry) = self.remove(source, oldest)
        {
            self.evicted += 1;
            evicted.push(entry);
        }
        evicted
    }

    fn has_surplus(&self, free: usize, most: usize) -> bool {
        let free = free.saturating_add(self.evicted);
        let places = free.saturating_add(self.waiting);
        self.waiting > most || places / KEPT_FREE > free
    }
}

fn rank(source: Source, of_source: &OfSource) -> (usize, Reverse<u64>, Source) {
    let oldest = of_source.first_key_value().map_or(u64::MAX, |(number, _)| *number);
    (of_source.len(), Reverse(oldest), source)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More places than any test needs.
    const FREE: usize = 1000;

    fn source(number: u8) -> Source {
        Some(ClientSource::of([192, 0, 2, number].into()))
    }

    fn is_evicted(handshake: &mut WaitingHandshake<'_>) -> bool {
        handshake.eviction.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    /// Enters handshakes of these sources, one after another, and returns the order in which they
    /// are evicted.
    fn evictions(sources: &[u8], most: usize) -> Vec<usize> {
        let all = WaitingHandshakes::default();
        let (mut entered, mut order) = (Vec::new(), Vec::new());
        for number in sources {
            entered.push(all.enter(source(*number), all.number(), FREE, most));
            for (at, handshake) in entered.iter_mut().enumerate() {
                if is_evicted(handshake) && !order.contains(&at) {
                    order.push(at);
                }
            }
        }
        drop(entered);
        let list = all.list();
        assert_eq!((list.waiting, list.evicted, list.ranking.len()), (0, 0, 0));
        assert!(list.sources.is_empty());
        order
    }

    #[test]
    fn evicts_oldest_handshake_of_the_crowded_source() {
        assert!(evictions(&[1, 2, 2, 2], 4).is_empty());
        assert_eq!(evictions(&[1, 2, 2, 2, 3], 4), [1]);
        assert_eq!(evictions(&[1, 2, 2, 2, 3, 4, 5], 4), [1, 2, 0]);
        // A source evicts its own, and of sources with as many the oldest goes.
        assert_eq!(evictions(&[1, 2, 3, 3, 3, 3, 3], 3), [2, 3, 4, 5]);
        assert_eq!(evictions(&[1, 2, 3, 4, 5], 2), [0, 1, 2]);
        assert_eq!(evictions(&[1, 1, 1], 1), [0, 1]);
    }

    #[test]
    fn keeps_an_eighth_of_places_free() {
        let all = WaitingHandshakes::default();
        let mut places: usize = 80;
        let mut waiting = Vec::new();
        for number in 0..200 {
            places -= 1;
            waiting.push(all.enter(source(number % 3), all.number(), places, usize::MAX));
            let before = waiting.len();
            waiting.retain_mut(|it| !is_evicted(it));
            places += before - waiting.len();
        }
        assert_eq!((waiting.len(), places), (70, 10));
        // Sessions take the rest: waiting ones give way.
        let _last = all.enter(source(9), all.number(), 0, usize::MAX);
        waiting.retain_mut(|it| !is_evicted(it));
        assert_eq!(waiting.len() + 1, 63);
        assert_eq!(all.list().evicted, 0);
    }

    #[test]
    fn evicts_none_where_places_are_few() {
        let all = WaitingHandshakes::default();
        let mut waiting: Vec<_> =
            (0..7).map(|at| all.enter(source(1), all.number(), 6 - at, usize::MAX)).collect();
        assert!(!waiting.iter_mut().any(is_evicted));
    }

    /// A client that sends a byte at a time is still the oldest.
    #[test]
    fn keeps_the_age_of_a_handshake_that_waits_again() {
        let all = WaitingHandshakes::default();
        let (first, second) = (all.number(), all.number());
        let mut waiting = all.enter(source(1), second, FREE, 2);
        drop(all.enter(source(1), first, FREE, 2));
        let mut again = all.enter(source(1), first, FREE, 2);
        let mut third = all.enter(source(1), all.number(), FREE, 2);
        assert!(is_evicted(&mut again) && !is_evicted(&mut waiting) && !is_evicted(&mut third));
    }
}
