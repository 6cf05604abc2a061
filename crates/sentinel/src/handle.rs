//! What the rest of the process holds of discovery: a picture to look at, a bell to ring, a pulse to feel.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::Notify;

use crate::auth::Credentials;
use crate::resolve::Resolver;
use crate::{Event, Pause, Seen};

/// How the servers of a service are reached, for what is done beside discovery.
#[derive(Debug)]
pub(crate) struct Reach {
    pub(crate) name: Arc<str>,
    pub(crate) auth: Option<Credentials>,
    pub(crate) sentinel_auth: Option<Credentials>,
    pub(crate) resolver: Resolver,
}

/// What the rest of the process holds of one service's discovery.
#[derive(Debug, Clone)]
pub struct Handle {
    seen: Arc<ArcSwap<Seen>>,
    hinted: Arc<AtomicBool>,
    hinted_by_a_reader: Arc<AtomicBool>,
    /// The latest order that discovery has not carried out yet: a newer one replaces it.
    order: Arc<Mutex<Option<Event>>>,
    switching: Arc<AtomicBool>,
    reach: Arc<Reach>,
    bell: Arc<Notify>,
}

impl Handle {
    pub(crate) fn new(seen: Arc<ArcSwap<Seen>>, reach: Reach, bell: Arc<Notify>) -> Self {
        let (hinted, hinted_by_a_reader, switching) = (Arc::default(), Arc::default(), Arc::default());
        Self { seen, hinted, hinted_by_a_reader, order: Arc::default(), switching, reach: Arc::new(reach), bell }
    }

    pub(crate) fn reach(&self) -> &Reach {
        &self.reach
    }

    /// Keeps the gate shut as `pause` says. The next picture shows it.
    pub fn pause(&self, pause: Pause) {
        self.order(Event::Pause(pause));
    }

    /// Ends a pause. Without one it does nothing.
    pub fn resume(&self) {
        self.order(Event::Resume);
    }

    fn order(&self, event: Event) {
        *self.order.lock().unwrap_or_else(PoisonError::into_inner) = Some(event);
        self.bell.notify_one();
    }

    /// The order that waits to be carried out.
    pub(crate) fn next_order(&self) -> Option<Event> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// This order has been carried out. One that came meanwhile is the next.
    pub(crate) fn carried_out(&self, order: &Event) {
        let mut waiting = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.as_ref() == Some(order) {
            *waiting = None;
        }
    }

    /// Whether an order was given that has not taken effect yet.
    #[must_use]
    pub fn has_order(&self) -> bool {
        self.next_order().is_some()
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
    pub fn seen(&self) -> Arc<Seen> {
        self.seen.load_full()
    }

    /// The data plane saw something that makes a look worth while. Cheap, and any number of times.
    pub fn hint(&self) {
        if !self.hinted.swap(true, Ordering::AcqRel) {
            self.bell.notify_one();
        }
    }

    /// The same of a session on a replica. The replicas are asked again; the master is not suspected for it.
    pub fn hint_by_a_reader(&self) {
        if !self.hinted_by_a_reader.swap(true, Ordering::AcqRel) {
            self.bell.notify_one();
        }
    }

    /// Whether a reader hinted since the last call.
    pub(crate) fn take_readers_hint(&self) -> bool {
        self.hinted_by_a_reader.load(Ordering::Relaxed) && self.hinted_by_a_reader.swap(false, Ordering::AcqRel)
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
        self.start.elapsed().saturating_sub(Duration::from_millis(self.beat_ms.load(Ordering::Relaxed)))
    }
}
