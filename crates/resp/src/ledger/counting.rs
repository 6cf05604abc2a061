//! Counts ordinary requests and replies many at a time.

use crate::ledger::matcher::{LedgerPhase, MAX_OWED, Matcher, Untrackable};

impl Matcher {
    /// Whether ordinary requests only need to be counted now.
    #[inline]
    pub(crate) fn may_count_requests(&self) -> bool {
        self.phase != LedgerPhase::Opaque && !self.suppression.is_active()
    }

    /// Whether a transaction may be open when the server reads the next request.
    #[inline]
    pub(crate) fn may_queue(&self) -> bool {
        self.suppression.may_queue()
    }

    /// `n` ordinary requests ended while they only need to be counted.
    #[inline]
    pub(crate) fn count_requests(&mut self, n: u32) -> Result<(), Untrackable> {
        self.counts.requests = self.counts.requests.saturating_add(n);
        let owed = self.owed.checked_add(n).filter(|owed| *owed <= MAX_OWED);
        self.owed = owed.ok_or(Untrackable)?;
        Ok(())
    }

    /// How many of the next replies only need to be counted.
    #[inline]
    pub(crate) fn countable_replies(&self) -> u32 {
        let plain = self.phase != LedgerPhase::Opaque
            && !self.must_inspect_arrays()
            && !self.connection.asking
            && !self.suppression.is_unconfirmed();
        if plain { self.owed } else { 0 }
    }

    /// `n` replies ended, at most [`countable_replies`](Self::countable_replies).
    #[inline]
    pub(crate) fn count_replies(&mut self, n: u32) {
        self.last_answer = None;
        self.owed -= n;
        self.answered = self.answered.wrapping_add(n);
        self.counts.replies = self.counts.replies.saturating_add(n);
    }
}
