//! Counters that one thread writes and any may read.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number with one writer.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds without an atomic read-modify-write. Only the owning worker may call it.
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn increment(&self) {
        self.add(1);
    }

    /// Subtracts one, for a number that goes up and down.
    pub(crate) fn decrement(&self) {
        self.add(u64::MAX);
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters by the number of a kind.
#[derive(Debug)]
pub(crate) struct Counters<const KINDS: usize>([Counter; KINDS]);

impl<const KINDS: usize> Default for Counters<KINDS> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Counter::default()))
    }
}

impl<const KINDS: usize> Counters<KINDS> {
    pub(crate) fn increment(&self, kind: usize) {
        self.0.get(kind).inspect(|count| count.increment());
    }

    /// Subtracts one, for numbers that go up and down.
    pub(crate) fn decrement(&self, kind: usize) {
        self.0.get(kind).inspect(|count| count.decrement());
    }

    pub(crate) fn sum(&self) -> u64 {
        self.0.iter().map(Counter::get).sum()
    }

    /// Adds each to the sum of its kind. Returns what was added in total.
    pub(crate) fn add_to(&self, sums: &mut [u64; KINDS]) -> u64 {
        let mut total = 0;
        for (sum, count) in sums.iter_mut().zip(&self.0) {
            let count = count.get();
            *sum += count;
            total += count;
        }
        total
    }
}
