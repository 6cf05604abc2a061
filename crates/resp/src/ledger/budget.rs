//! Memory that all sessions of a process share for what the ledger keeps of them.
//!
//! One session may need much of it for a moment, but ten thousand may not do so at once. Nothing
//! waits for a budget: a holder that gets no more keeps less, and says what follows from that.
//!
//! Deliberately absent: what is kept.

use std::sync::atomic::{AtomicUsize, Ordering};

/// For names of channels and patterns: of subscriptions, and of requests under way that may become
/// such.
pub(crate) static NAMES: Budget = Budget::new(32 * 1024 * 1024);

/// For marks beyond those that every session may have.
pub(crate) static MARKS: Budget = Budget::new(16 * 1024 * 1024);

/// Bytes that may still be taken.
#[derive(Debug)]
pub(crate) struct Budget(AtomicUsize);

impl Budget {
    pub(crate) const fn new(bytes: usize) -> Self {
        Self(AtomicUsize::new(bytes))
    }

    /// Takes so many bytes, if that many are left.
    pub(crate) fn take(&self, bytes: usize) -> bool {
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes))
            .is_ok()
    }

    pub(crate) fn give(&self, bytes: usize) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn left(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// What one holder has taken from a budget; given back when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: &'static Budget,
    bytes: usize,
}

impl Share {
    /// Nothing yet.
    pub(crate) const fn of(budget: &'static Budget) -> Self {
        Self { budget, bytes: 0 }
    }

    /// Has at least so many bytes from now on. False, and nothing changes, if the budget does not
    /// have them.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        if more > 0 && !self.budget.take(more) {
            return false;
        }
        self.bytes += more;
        true
    }

    /// Gives all of it back.
    pub(crate) fn give_back(&mut self) {
        self.budget.give(std::mem::take(&mut self.bytes));
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::{Budget, Share};

    static TIGHT: Budget = Budget::new(100);

    #[test]
    fn gives_back_what_holders_took() {
        let (mut one, mut other) = (Share::of(&TIGHT), Share::of(&TIGHT));
        assert!(one.grow_to(60) && one.grow_to(50), "it has that already");
        assert!(other.grow_to(40) && !other.grow_to(41));
        assert_eq!(TIGHT.left(), 0);
        one.give_back();
        assert!(other.grow_to(100));
        drop((one, other));
        assert_eq!(TIGHT.left(), 100);
    }
}
