//! Tracks `CLIENT REPLY OFF` and `SKIP`, by which the server does not answer requests.
//!
//! The next reply to a later request shows that an unanswered request was executed; until then its
//! execution is unconfirmed. Nothing shows whether it succeeded, so the effect of a command that
//! changes the session while replies are off cannot be tracked (`redis:src/networking.c`,
//! `clientCommand`, `resetClient`).

use crate::commands::class::Class;
use crate::ledger::matcher::{MAX_OWED, Untrackable};

/// The reply mode after the last request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReplyMode {
    /// Requests are answered.
    On,
    /// The next request is not answered.
    Skip,
    /// Requests are not answered until `CLIENT REPLY ON`.
    Off,
}

#[derive(Debug)]
pub(crate) struct ReplySuppression {
    /// If `unconfirmed`: a reply at this position or later shows that the unanswered requests were
    /// executed. Modulo 2^32.
    until: u32,
    /// A request without a reply was sent, and no later request has been answered.
    unconfirmed: bool,
    mode: ReplyMode,
    /// A transaction may be open when the server reads the next request.
    may_queue: bool,
}

impl ReplySuppression {
    pub(crate) fn new() -> Self {
        Self { until: 0, unconfirmed: false, mode: ReplyMode::On, may_queue: false }
    }

    /// Whether the next request may get no reply.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.mode != ReplyMode::On
    }

    /// Whether exactly one more request gets no reply.
    pub(crate) fn is_skip(&self) -> bool {
        self.mode == ReplyMode::Skip
    }

    /// Whether the execution of unanswered requests is not confirmed yet.
    #[inline]
    pub(crate) fn is_unconfirmed(&self) -> bool {
        self.unconfirmed
    }

    /// Whether every request gets a reply, and all unanswered requests are confirmed.
    pub(crate) fn is_settled(&self) -> bool {
        !self.unconfirmed && !self.is_active()
    }

    /// Whether a transaction may be open when the server reads the next request.
    #[inline]
    pub(crate) fn may_queue(&self) -> bool {
        self.may_queue
    }

    /// The request at `position` was answered.
    pub(crate) fn answered(&mut self, position: u32) {
        if position.wrapping_sub(self.until) < MAX_OWED {
            self.unconfirmed = false;
        }
    }

    /// A request of that class was sent. Returns whether it gets a reply, which is then the one at
    /// `position`.
    pub(crate) fn request(&mut self, class: Class, position: u32) -> Result<bool, Untrackable> {
        match class {
            Class::Multi => self.may_queue = true,
            Class::Exec | Class::Discard | Class::Reset => self.may_queue = false,
            _ => {}
        }
        match (class, self.mode) {
            // In a transaction these are queued, and the server answers `+QUEUED`.
            (Class::ReplyOff | Class::ReplySkip, _) if self.may_queue => return Err(Untrackable),
            (Class::ReplyOff, _) => self.mode = ReplyMode::Off,
            (Class::ReplySkip, ReplyMode::Off) => {}
            (Class::ReplySkip, ReplyMode::On | ReplyMode::Skip) => self.mode = ReplyMode::Skip,
            (Class::ReplyOn, _) | (Class::Reset, ReplyMode::Off) => {
                self.mode = ReplyMode::On;
                return Ok(true);
            }
            (_, ReplyMode::On) => return Ok(true),
            (class, ReplyMode::Skip) if class.may_be_unanswered() => {
                self.mode = ReplyMode::On;
            }
            (class, ReplyMode::Off) if class.may_be_unanswered() => {}
            _ => return Err(Untrackable),
        }
        self.unconfirmed = true;
        self.until = position;
        Ok(false)
    }
}
