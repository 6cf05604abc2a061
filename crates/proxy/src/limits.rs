//! How many sessions there may be, for a service and for the process. One atomic counter each; a permit gives its place back
//! when it is dropped, so the number cannot drift.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A bound and the number of places taken.
#[derive(Debug)]
pub(crate) struct Limit {
    taken: AtomicUsize,
    most: usize,
}

impl Limit {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { taken: AtomicUsize::new(0), most: most.max(1) })
    }

    pub(crate) fn most(&self) -> usize {
        self.most
    }

    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// A place, if one is free.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<Permit> {
        let step = |taken: usize| (taken < self.most).then_some(taken + 1);
        let entered = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step);
        entered.is_ok().then(|| Permit { limit: Arc::clone(self) })
    }
}

/// One place, given back on drop.
#[derive(Debug)]
pub(crate) struct Permit {
    limit: Arc<Limit>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.limit.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_given_back_exactly() {
        let limit = Limit::new(2);
        let first = limit.enter().expect("a place");
        let second = limit.enter().expect("a place");
        assert!(limit.enter().is_none());
        drop(first);
        assert_eq!(limit.taken(), 1);
        let third = limit.enter().expect("the place that was given back");
        drop((second, third));
        assert_eq!(limit.taken(), 0);
    }
}
