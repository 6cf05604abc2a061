//! Marks requests whose reply must be inspected, and handles those for which there is no mark.
//!
//! The reply to a request without a mark is counted like any other, so every boundary stays known;
//! the effect of the request does not. The session is pinned until a later `RESET` is answered,
//! which clears any such effect. If a request cannot be counted without a mark, because its replies
//! look like messages or change how replies are counted (`SUBSCRIBE` and similar commands, `HELLO`,
//! `RESET`, `MONITOR`, `CLIENT REPLY ON`), the session becomes opaque.

use crate::commands::class::{Class, ClassGroup};
use crate::ledger::in_flight::{MAX_EXPECTED, Mark};
use crate::ledger::matcher::{MAX_OWED, Matcher, Untrackable};

impl Matcher {
    /// Marks the request that ends now.
    pub(super) fn mark(
        &mut self,
        class: Class,
        args: u32,
        max_marks: u16,
    ) -> Result<(), Untrackable> {
        let expected = match class.group() {
            ClassGroup::Subscribing => args - 1,
            _ if matches!(class, Class::Iterate | Class::Refused) => args,
            _ => 0,
        };
        if expected > MAX_EXPECTED {
            return Err(Untrackable);
        }
        let mark = Mark::new(self.answered.wrapping_add(self.owed), class, expected);
        match class {
            _ if self.marks.push(mark, max_marks) => self.features.sent(class),
            // Without a mark, the cursor in the reply is not seen.
            Class::Iterate => self.affinity.cursor_missed(),
            // A blocking request is marked only to report it as blocking.
            _ if class.group() == ClassGroup::Blocking => {}
            _ if class.can_be_unmarked() => self.marks.record_unmarked(mark.at),
            _ => return Err(Untrackable),
        }
        Ok(())
    }

    /// Whether a request that needs a mark has none. Its effect is unknown until a later `RESET` is
    /// answered.
    pub(super) fn has_unmarked(&self) -> bool {
        self.marks.last_unmarked().is_some()
    }

    /// Whether the request that ended last needs a mark and has none.
    pub(crate) fn last_is_unmarked(&self) -> bool {
        self.marks.last_unmarked() == Some(self.answered.wrapping_add(self.owed).wrapping_sub(1))
    }

    /// The class of the request that the next reply answers, if it is marked.
    pub(super) fn head(&self) -> Option<Class> {
        self.marks.first().filter(|mark| mark.at == self.answered).map(Mark::class)
    }

    /// `RESET` was answered: clears the unmarked requests before it.
    pub(super) fn forget_unmarked(&mut self) {
        let position = self.answered.wrapping_sub(1);
        if self.marks.last_unmarked().is_some_and(|last| position.wrapping_sub(last) < MAX_OWED) {
            self.marks.forget_unmarked();
        }
    }
}
