//! Which requests are marked, because their reply needs an eye, and what follows where there is no
//! room for a mark.
//!
//! Without one the reply is counted like any other, so every boundary stays known; what the request
//! did is not. The session is pinned then, until a `RESET` that was sent after it is answered: that
//! clears whatever it was. Of requests whose replies cannot be told from messages or counted
//! without a mark (`SUBSCRIBE` and its like, `HELLO`, `RESET`, `MONITOR`, `CLIENT REPLY ON`) not
//! even that is known: the session is lost to sight.

use super::{Lost, MOST_OWED, Matcher};
use crate::commands::class::{Class, Group};
use crate::ledger::in_flight::{MOST_EXPECTED, Mark};

impl Matcher {
    /// Marks the request that ends now.
    pub(super) fn mark(&mut self, class: Class, args: u32, most_marks: u16) -> Result<(), Lost> {
        let expected = match class.group() {
            Group::Subscribing => args - 1,
            _ if class == Class::Iterate => args,
            _ => 0,
        };
        if expected > MOST_EXPECTED {
            return Err(Lost);
        }
        let mark = Mark::new(self.answered.wrapping_add(self.owed), class, expected);
        match class {
            _ if self.marks.push(mark, most_marks) => self.novel.asked(class),
            // Without a mark nobody looks for the cursor in the reply.
            Class::Iterate => self.bound.lose_sight(),
            // A blocking request is marked only to be told from others; it can do without.
            _ if class.group() == Group::Blocking => {}
            _ if class.is_counted_without_a_mark() => self.marks.miss(mark.at),
            _ => return Err(Lost),
        }
        Ok(())
    }

    /// Whether there was no mark for a request that needs one. What it did is not known until a
    /// `RESET` after it is answered.
    pub(super) fn has_missed(&self) -> bool {
        self.marks.missed_last().is_some()
    }

    /// Whether the request that ended last has no mark although it should.
    pub(crate) fn missed_the_last(&self) -> bool {
        self.marks.missed_last() == Some(self.answered.wrapping_add(self.owed).wrapping_sub(1))
    }

    /// The class of the request that the next reply answers, if it is marked.
    pub(super) fn head(&self) -> Option<Class> {
        self.marks.first().filter(|mark| mark.at == self.answered).map(Mark::class)
    }

    /// `RESET` was answered.
    pub(super) fn forget_missed(&mut self) {
        let position = self.answered.wrapping_sub(1);
        if self.marks.missed_last().is_some_and(|last| position.wrapping_sub(last) < MOST_OWED) {
            self.marks.forget_missed();
        }
    }
}
