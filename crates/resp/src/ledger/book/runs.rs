//! Many ordinary requests, or replies to such, at once.

use super::{Life, Lost, MOST_OWED, Matcher};

impl Matcher {
    /// Whether ordinary requests are merely counted now.
    #[inline]
    pub(crate) fn counts_requests(&self) -> bool {
        self.life != Life::Opaque && !self.silence.is_kept()
    }

    /// Whether a transaction may be open by the time the server reads the next request.
    #[inline]
    pub(crate) fn may_queue(&self) -> bool {
        self.silence.may_queue()
    }

    /// So many ordinary requests ended, while they are merely counted.
    #[inline]
    pub(crate) fn requests(&mut self, n: u32) -> Result<(), Lost> {
        self.counts.requests = self.counts.requests.saturating_add(n);
        let owed = self.owed.checked_add(n).filter(|owed| *owed <= MOST_OWED);
        self.owed = owed.ok_or(Lost)?;
        Ok(())
    }

    /// How many replies may be merely counted now.
    #[inline]
    pub(crate) fn countable_replies(&self) -> u32 {
        let plain = self.life != Life::Opaque
            && !self.is_curious()
            && !self.kept.asking
            && !self.silence.is_unsure();
        if plain { self.owed } else { 0 }
    }

    /// So many replies came, no more than may be merely counted.
    #[inline]
    pub(crate) fn replies(&mut self, n: u32) {
        self.last_answer = None;
        self.owed -= n;
        self.answered = self.answered.wrapping_add(n);
        self.counts.replies = self.counts.replies.saturating_add(n);
    }
}
