//! Counters that one thread writes and any may read. [`counted`] lists what is counted.

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
}

/// What one worker has counted, and what that is for a reader, who adds up all workers.
pub(crate) trait Counted<Sum> {
    /// Adds it to `sum`.
    fn add_to(&self, sum: &mut Sum);
}

impl Counted<u64> for Counter {
    fn add_to(&self, sum: &mut u64) {
        *sum += self.get();
    }
}

/// For more kinds than an array has a default for.
impl<const KINDS: usize> Counted<Vec<u64>> for Counters<KINDS> {
    fn add_to(&self, sums: &mut Vec<u64>) {
        sums.resize(KINDS, 0);
        sums.iter_mut().zip(&self.0).for_each(|(sum, count)| count.add_to(sum));
    }
}

impl<const KINDS: usize> Counted<[u64; KINDS]> for Counters<KINDS> {
    fn add_to(&self, sums: &mut [u64; KINDS]) {
        sums.iter_mut().zip(&self.0).for_each(|(sum, count)| count.add_to(sum));
    }
}

/// Defines the counters of one worker, and the same ones summed over all workers. They are read in
/// this order. A number that goes down when a session ends follows the counter of the ends, so that
/// a reader who sees the end sees that, too.
macro_rules! counted {
    (
        $(#[$about:meta])* pub(crate) struct $counters:ident;
        $(#[$about_sums:meta])* pub struct $sums:ident {
            $($(#[$doc:meta])* $name:ident: $counter:ty => $sum:ty,)+
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, Default)]
        pub(crate) struct $counters {
            $(pub(crate) $name: $counter,)+
        }

        $(#[$about_sums])*
        #[derive(Debug, Clone, PartialEq, Eq, Default)]
        pub struct $sums {
            $($(#[$doc])* pub $name: $sum,)+
        }

        impl $crate::counter::Counted<$sums> for $counters {
            fn add_to(&self, sums: &mut $sums) {
                $($crate::counter::Counted::add_to(&self.$name, &mut sums.$name);)+
            }
        }
    };
}

pub(crate) use counted;
