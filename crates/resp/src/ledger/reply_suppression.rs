//! `CLIENT REPLY`: requests that the server has been told not to answer.
//!
//! A silent request leaves two questions. Whether it is executed at all is told by the next reply
//! to a request behind it, and until then the session is unconfirmed. Whether it succeeded is told by
//! nothing, so a command that changes the session while replies are off cannot be followed
//! (`redis:src/networking.c`, `clientCommand`, `resetClient`).

use crate::commands::class::Class;
use crate::ledger::matcher::{MAX_OWED, Untrackable};

/// What the server has been told, as of the last request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReplyMode {
    /// To answer.
    On,
    /// Not to answer the next request.
    Skip,
    /// Not to answer until it is told otherwise.
    Off,
}

#[derive(Debug)]
pub(crate) struct ReplySuppression {
    /// If `unconfirmed`: the position from which on a reply tells that the silent requests have been
    /// executed, modulo 2^32.
    until: u32,
    /// A silent request was sent, and nothing behind it has been answered.
    unconfirmed: bool,
    mode: ReplyMode,
    /// A transaction may be open by the time the server reads the next request.
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

    /// Whether it is not known yet that the silent requests have been executed.
    #[inline]
    pub(crate) fn is_unconfirmed(&self) -> bool {
        self.unconfirmed
    }

    /// Whether every request gets a reply again, and what was silent has been executed.
    pub(crate) fn is_settled(&self) -> bool {
        !self.unconfirmed && !self.is_active()
    }

    /// Whether a transaction may be open by the time the server reads the next request.
    #[inline]
    pub(crate) fn may_queue(&self) -> bool {
        self.may_queue
    }

    /// A request was answered, the one at `position`.
    pub(crate) fn answered(&mut self, position: u32) {
        if position.wrapping_sub(self.until) < MAX_OWED {
            self.unconfirmed = false;
        }
    }

    /// A request of that class is sent; whether it gets a reply, which then is the one at
    /// `position`.
    pub(crate) fn request(&mut self, class: Class, position: u32) -> Result<bool, Untrackable> {
        match class {
            Class::Multi => self.may_queue = true,
            Class::Exec | Class::Discard | Class::Reset => self.may_queue = false,
            _ => {}
        }
        match (class, self.mode) {
            // In a transaction these are queued, and so answered.
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
