//! Places: how many sessions there may be, in a service, in the process, and waiting at a gate.
//!
//! A place is taken when a connection is accepted and given back when its guard is dropped, so no way of ending a
//! session can forget it. The counts are shared by all workers, since a limit a worker would refuse clients while another
//! worker has room.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A number of places.
#[derive(Debug)]
pub(crate) struct Places {
    taken: AtomicUsize,
    most: usize,
}

impl Places {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { taken: AtomicUsize::new(0), most })
    }

    /// A place, if one is left.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Place> {
        // Adding first and looking then never lets in one too many; at worst two who ask for the last place at the same moment
        // are both refused.
        if self.taken.fetch_add(1, Ordering::Relaxed) < self.most {
            return Some(Place(Arc::clone(self)));
        }
        self.taken.fetch_sub(1, Ordering::Relaxed);
        None
    }

    /// How many there are.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// How many are taken.
    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

/// One place, given back when dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Place(Arc<Places>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_end_and_come_back() {
        let places = Places::new(2);
        let first = places.take();
        let second = places.take();
        assert!(first.is_some() && second.is_some());
        assert!(places.take().is_none() && places.take().is_none());
        assert_eq!(places.taken(), 2);
        drop(first);
        assert!(places.take().is_some());
        assert_eq!(places.taken(), 1);
    }

    #[test]
    fn threads_never_get_more_than_there_are() {
        let places = Places::new(3);
        let most = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let inside = AtomicUsize::new(0);
                    for _ in 0..10_000 {
                        if let Some(place) = places.take() {
                            inside.fetch_add(1, Ordering::Relaxed);
                            drop(place);
                        }
                    }
                    most.fetch_max(inside.into_inner(), Ordering::Relaxed);
                });
            }
        });
        assert_eq!(places.taken(), 0);
        assert!(most.into_inner() > 0);
    }
}
