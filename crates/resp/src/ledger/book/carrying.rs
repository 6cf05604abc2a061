//! Whether the session could go on over another connection, as far as the book knows.
//!
//! Deliberately absent: what would be said there ([`replay`](crate::replay)).

use super::Matcher;
use crate::ledger::session_state::Answer;
use crate::ledger::waiting::Waiting;
use crate::replay::state::ReplayState;
use crate::scan::reply::Replies;

impl Matcher {
    /// A request that iterates was answered, one that sent the cursor with the digest `sent`.
    pub(super) fn iterated(&mut self, sent: u32, answer: Answer, frame: &Replies) {
        match (answer, frame.top()) {
            // The cursor is what it was: the client may send it again.
            (Answer::Error, _) => {}
            (Answer::Queued, _) => self.bound.lose_sight(),
            (Answer::Done, b'+') => self.bound.closed(sent),
            (Answer::Done, _) => self.bound.page(sent, frame.cursor()),
        }
    }

    /// Whether all subscriptions are known by name, and nothing else pins the session.
    pub(crate) fn can_subscribe_again(&self) -> bool {
        !self.is_pinned() && self.subscriptions.are(self.recorder.subscriptions())
    }

    /// The state that can be had again on another connection, `None` for that of a fresh one; the
    /// outer `None` if something stands against that.
    pub(crate) fn memory(&self) -> Option<Option<&ReplayState>> {
        if self.has_missed()
            || self.waiting == Waiting::Stays
            || self.bound.is_bound(self.recorder.library())
        {
            None
        } else {
            self.recorder.memory()
        }
    }

    /// Notes that the session has been on another connection before, where it was that of `before`.
    pub(crate) fn was_carried(&mut self, before: &Self) {
        (self.waiting, self.changed) = (Waiting::Carried, true);
        self.novel.take_over(&before.novel);
        self.bound.take_over(before.bound);
    }

    /// Whether the session was carried over and then called a script within a transaction that its
    /// former server had: it goes on doing so for as long as its connection lasts (decision 81).
    pub(crate) fn is_spent(&self) -> bool {
        self.bound.is_spent()
    }
}
