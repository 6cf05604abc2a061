//! Memory budgets that the ledgers of all sessions share.
//!
//! A single session may need much memory for a moment; ten thousand may not do so at once. Nothing
//! waits for a budget: a holder that gets no more memory keeps less state and handles the
//! consequences.

use std::sync::atomic::{AtomicUsize, Ordering};

/// For names of channels and patterns, in subscriptions and in unanswered requests to subscribe.
pub(crate) static NAMES: Budget = Budget::new(32 * 1024 * 1024);

/// For marks beyond those that every session may have.
pub(crate) static MARKS: Budget = Budget::new(16 * 1024 * 1024);

/// The remaining bytes of a budget.
#[derive(Debug)]
pub(crate) struct Budget(AtomicUsize);

impl Budget {
    pub(crate) const fn new(bytes: usize) -> Self {
        Self(AtomicUsize::new(bytes))
    }

    #[cfg(test)]
    pub(crate) fn left(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// The part of a budget that one holder has taken. Returned when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: &'static Budget,
    bytes: usize,
}

/// An empty share of the budget of names.
impl Default for Share {
    fn default() -> Self {
        Self::of(&NAMES)
    }
}

impl Share {
    /// An empty share.
    pub(crate) const fn of(budget: &'static Budget) -> Self {
        Self { budget, bytes: 0 }
    }

    /// Grows to at least `bytes`. False, without any change, if the budget does not have them.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let take = |left: usize| left.checked_sub(more);
        let Budget(left) = self.budget;
        let taken =
            more == 0 || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
        self.bytes += if taken { more } else { 0 };
        taken
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns `bytes` of the share to the budget.
    pub(crate) fn give(&mut self, bytes: usize) {
        self.bytes -= bytes;
        self.budget.0.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the whole share to the budget.
    pub(crate) fn give_back(&mut self) {
        self.give(self.bytes);
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
    fn returns_shares_to_the_budget() {
        let (mut one, mut other) = (Share::of(&TIGHT), Share::of(&TIGHT));
        assert!(one.grow_to(60) && one.grow_to(50), "it has that many already");
        assert!(other.grow_to(40) && !other.grow_to(41));
        assert_eq!(TIGHT.left(), 0);
        one.give_back();
        assert!(other.grow_to(100));
        drop((one, other));
        assert_eq!(TIGHT.left(), 100);
    }
}
