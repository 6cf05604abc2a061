//! What the book says about the handshake that a client may have about maintenance.
//!
//! Deliberately absent: what is kept of it ([`novel`](crate::commands::maintenance)), and the pushes.

use super::Matcher;
use crate::commands::class::Class;
use crate::commands::maintenance::MaintenanceHandshake;
use crate::ledger::session_state::Answer;

impl Matcher {
    /// Whether a handshake is unanswered.
    #[inline]
    pub(crate) fn awaits_notices(&self) -> bool {
        self.novel.is_asked()
    }

    /// Whether the next reply answers one.
    pub(crate) fn next_is_about_notices(&self) -> bool {
        self.head().is_some_and(Class::is_about_notices)
    }

    /// What the client may be sent.
    pub(crate) fn notices(&self) -> MaintenanceHandshake {
        if self.kept.resp3 { self.novel.agreed() } else { MaintenanceHandshake::Off }
    }

    /// Agrees to the handshake that the server has just refused. Whether that is possible.
    pub(crate) fn agree(&mut self) -> bool {
        let in_transaction = self.kept.transaction || self.has_missed();
        match self.last_answer {
            Some((class, Answer::Error))
                if class.is_about_notices() && self.kept.resp3 && !in_transaction =>
            {
                self.novel.agree(class);
                true
            }
            _ => false,
        }
    }

    pub(crate) fn is_told(&self) -> bool {
        self.novel.is_told()
    }

    pub(crate) fn tell(&mut self, told: bool) {
        self.novel.tell(told);
    }
}
