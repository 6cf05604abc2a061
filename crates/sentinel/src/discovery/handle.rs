//! What the rest of the process holds of discovery: a picture to look at, a bell to ring, a pulse
//! to feel.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::Notify;

use crate::discovery::resolve::Resolver;
use crate::link::auth::Credentials;
use crate::{DiscoverySnapshot, Event, Pause};

/// How the servers of a service are reached, for what is done beside discovery.
#[derive(Debug)]
pub(crate) struct Reach {
    pub(crate) name: Arc<str>,
    pub(crate) auth: Option<Credentials>,
    pub(crate) sentinel_auth: Option<Credentials>,
    pub(crate) resolver: Resolver,
}

/// An order to discovery, by which it can be asked for and taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order(u64);

/// Orders that discovery has not carried out, oldest first. None replaces another one, since the
/// client of each gets the answer that it was carried out.
#[derive(Debug, Default)]
struct Orders {
    given: u64,
    waiting: VecDeque<(Order, Event)>,
}

impl Orders {
    fn give(&mut self, event: Event) -> Order {
        self.given += 1;
        self.waiting.push_back((Order(self.given), event));
        Order(self.given)
    }

    /// Whether it was waiting.
    fn remove(&mut self, order: Order) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|(number, _)| *number != order);
        self.waiting.len() < before
    }
}

/// What the rest of the process holds of one service's discovery.
#[derive(Debug, Clone)]
pub struct Handle {
    seen: Arc<ArcSwap<DiscoverySnapshot>>,
    hinted: Arc<AtomicBool>,
    hinted_by_a_reader: Arc<AtomicBool>,
    orders: Arc<Mutex<Orders>>,
    switching: Arc<AtomicBool>,
    reach: Arc<Reach>,
    bell: Arc<Notify>,
}

impl Handle {
    pub(crate) fn new(
        seen: Arc<ArcSwap<DiscoverySnapshot>>,
        reach: Reach,
        bell: Arc<Notify>,
    ) -> Self {
        let (hinted, hinted_by_a_reader, switching) =
            (Arc::default(), Arc::default(), Arc::default());
        Self {
            seen,
            hinted,
            hinted_by_a_reader,
            orders: Arc::default(),
            switching,
            reach: Arc::new(reach),
            bell,
        }
    }

    pub(crate) fn reach(&self) -> &Reach {
        &self.reach
    }

    /// Keeps the gate shut as `pause` says. The next picture shows it.
    pub fn pause(&self, pause: Pause) -> Order {
        self.order(Event::Pause(pause))
    }

    /// Ends a pause. Without one it does nothing.
    pub fn resume(&self) -> Order {
        self.order(Event::Resume)
    }

    fn order(&self, event: Event) -> Order {
        let order = self.orders().give(event);
        self.bell.notify_one();
        order
    }

    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The order that is to be carried out next.
    pub(crate) fn next_order(&self) -> Option<(Order, Event)> {
        self.orders().waiting.front().cloned()
    }

    /// This order has been carried out.
    pub(crate) fn carried_out(&self, order: Order) {
        self.orders().remove(order);
    }

    /// Whether this order has not been carried out yet.
    #[must_use]
    pub fn is_waiting(&self, order: Order) -> bool {
        self.orders().waiting.iter().any(|(number, _)| *number == order)
    }

    /// Takes an order back. `false` if it was carried out before.
    #[must_use]
    pub fn withdraw(&self, order: Order) -> bool {
        self.orders().remove(order)
    }

    /// Whether a switchover may begin: one at a time.
    pub(crate) fn begin_switchover(&self) -> bool {
        !self.switching.swap(true, Ordering::AcqRel)
    }

    /// Whether a switchover is under way.
    #[must_use]
    pub fn is_switching(&self) -> bool {
        self.switching.load(Ordering::Acquire)
    }

    pub(crate) fn end_switchover(&self) {
        self.switching.store(false, Ordering::Release);
    }

    /// The latest picture, at most a quarter of a second old.
    #[must_use]
    pub fn seen(&self) -> Arc<DiscoverySnapshot> {
        self.seen.load_full()
    }

    /// The data plane saw something that makes a look worth while. Cheap, and any number of times.
    pub fn hint(&self) {
        if !self.hinted.swap(true, Ordering::AcqRel) {
            self.bell.notify_one();
        }
    }

    /// The same of a session on a replica. The replicas are asked again; the master is not
    /// suspected for it.
    pub fn hint_by_a_reader(&self) {
        if !self.hinted_by_a_reader.swap(true, Ordering::AcqRel) {
            self.bell.notify_one();
        }
    }

    /// Whether a reader hinted since the last call.
    pub(crate) fn take_readers_hint(&self) -> bool {
        self.hinted_by_a_reader.load(Ordering::Relaxed)
            && self.hinted_by_a_reader.swap(false, Ordering::AcqRel)
    }

    /// Whether it was hinted since the last call.
    pub(crate) fn take_hint(&self) -> bool {
        self.hinted.load(Ordering::Relaxed) && self.hinted.swap(false, Ordering::AcqRel)
    }
}

/// Beats as long as the loop turns.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    start: Instant,
    beat_ms: Arc<AtomicU64>,
}

impl Heartbeat {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), beat_ms: Arc::new(AtomicU64::new(0)) }
    }

    pub(crate) fn beat(&self) {
        let ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.beat_ms.store(ms, Ordering::Relaxed);
    }

    /// How long ago the loop last turned. It turns every second at least.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.start
            .elapsed()
            .saturating_sub(Duration::from_millis(self.beat_ms.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_every_order_until_carried_out_or_withdrawn() {
        let mut orders = Orders::default();
        let pause = Pause { since: Instant::now(), until: Instant::now(), ends_with_commit: false };
        let (first, second) = (orders.give(Event::Pause(pause)), orders.give(Event::Resume));
        assert_ne!(first, second);
        // The newer one does not replace the older one, which would be answered without having been
        // executed.
        assert_eq!(orders.waiting.front().map(|(order, _)| *order), Some(first));
        assert!(orders.remove(first), "it was taken back in time");
        assert!(!orders.remove(first), "it is not there twice");
        assert_eq!(orders.waiting.front().map(|(order, _)| *order), Some(second));
        assert!(orders.remove(second) && orders.waiting.is_empty());
    }
}
