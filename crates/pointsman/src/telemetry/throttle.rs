//! At most so many lines a second from one place of the program; the others are counted.
//!
//! A failover of ten thousand sessions must not become ten thousand lines, and a line that repeats
//! says nothing new. The places share a table of counters: two may fall on one counter and then
//! share its lines, which is a bound all the same, and there is nothing to lock and nothing that
//! grows.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Counters in the table.
const PLACES: usize = 1024;

/// See the module's header. Clones are one.
#[derive(Debug, Clone)]
pub(super) struct Throttle(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    origin: Instant,
    /// Lines a second from one place; 0 for any number.
    most: AtomicU32,
    /// The second, and lines in it, in one number each.
    places: Vec<AtomicU64>,
    suppressed: AtomicU64,
}

impl Throttle {
    pub(super) fn new(most: u32) -> Self {
        let places = (0..PLACES).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(Inner {
            origin: Instant::now(),
            most: most.into(),
            places,
            suppressed: AtomicU64::new(0),
        }))
    }

    pub(super) fn set(&self, most: u32) {
        self.0.most.store(most, Ordering::Relaxed);
    }

    pub(super) fn suppressed(&self) -> u64 {
        self.0.suppressed.load(Ordering::Relaxed)
    }

    /// Whether one more line may come from the place with this number in this second.
    fn admits(&self, place: u64, second: u64) -> bool {
        let most = self.0.most.load(Ordering::Relaxed);
        let index = usize::try_from(place % PLACES as u64).unwrap_or(0);
        let Some(counter) = self.0.places.get(index).filter(|_| most > 0) else { return true };
        let count = |now: u64| if now >> 32 == second { now & u64::from(u32::MAX) } else { 0 };
        // Two at the same time may both find room for one: then there is a line more.
        let before = count(counter.load(Ordering::Relaxed));
        if before >= u64::from(most) {
            self.0.suppressed.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        counter.store(second << 32 | (before + 1), Ordering::Relaxed);
        true
    }
}

impl<S: Subscriber> Layer<S> for Throttle {
    fn event_enabled(&self, event: &Event<'_>, _context: Context<'_, S>) -> bool {
        let place =
            BuildHasherDefault::<DefaultHasher>::default().hash_one(event.metadata().callsite());
        self.admits(place, self.0.origin.elapsed().as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_has_its_lines_each_second() {
        let throttle = Throttle::new(3);
        let admitted = |place, second| (0..10).filter(|_| throttle.admits(place, second)).count();
        assert_eq!((admitted(1, 0), admitted(2, 0), admitted(1, 0), admitted(1, 1)), (3, 3, 0, 3));
        assert_eq!(throttle.suppressed(), 7 + 7 + 10 + 7);
        throttle.set(0);
        assert_eq!(admitted(1, 1), 10);
    }
}
