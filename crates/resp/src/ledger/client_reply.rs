//! `CLIENT REPLY`: requests that the server has been told not to answer.
//!
//! A silent request leaves two questions. Whether it is executed at all is told by the next reply
//! to a request behind it, and until then the session is unsure. Whether it succeeded is told by
//! nothing, so a command that changes the session while replies are off cannot be followed
//! (`redis:src/networking.c`, `clientCommand`, `resetClient`).

use crate::commands::class::Class;
use crate::ledger::book::{Lost, MOST_OWED};

/// What the server has been told, as of the last request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    /// To answer.
    Nothing,
    /// Not to answer the next request.
    Skip,
    /// Not to answer until it is told otherwise.
    Off,
}

#[derive(Debug)]
pub(crate) struct Silence {
    /// If `unsure`: the position from which on a reply tells that the silent requests have been
    /// executed, modulo 2^32.
    until: u32,
    /// A silent request was sent, and nothing behind it has been answered.
    unsure: bool,
    told: Told,
    /// A transaction may be open by the time the server reads the next request.
    may_queue: bool,
}

impl Silence {
    pub(crate) fn new() -> Self {
        Self { until: 0, unsure: false, told: Told::Nothing, may_queue: false }
    }

    /// Whether the next request may get no reply.
    #[inline]
    pub(crate) fn is_kept(&self) -> bool {
        self.told != Told::Nothing
    }

    /// Whether exactly one more request gets no reply.
    pub(crate) fn is_once(&self) -> bool {
        self.told == Told::Skip
    }

    /// Whether it is not known yet that the silent requests have been executed.
    #[inline]
    pub(crate) fn is_unsure(&self) -> bool {
        self.unsure
    }

    /// Whether every request gets a reply again, and what was silent has been executed.
    pub(crate) fn is_over(&self) -> bool {
        !self.unsure && !self.is_kept()
    }

    /// Whether a transaction may be open by the time the server reads the next request.
    #[inline]
    pub(crate) fn may_queue(&self) -> bool {
        self.may_queue
    }

    /// A request was answered, the one at `position`.
    pub(crate) fn heard(&mut self, position: u32) {
        if position.wrapping_sub(self.until) < MOST_OWED {
            self.unsure = false;
        }
    }

    /// A request of that class is sent; whether it gets a reply, which then is the one at
    /// `position`.
    pub(crate) fn request(&mut self, class: Class, position: u32) -> Result<bool, Lost> {
        match class {
            Class::Multi => self.may_queue = true,
            Class::Exec | Class::Discard | Class::Reset => self.may_queue = false,
            _ => {}
        }
        match (class, self.told) {
            // In a transaction these are queued, and so answered.
            (Class::ReplyOff | Class::ReplySkip, _) if self.may_queue => return Err(Lost),
            (Class::ReplyOff, _) => self.told = Told::Off,
            (Class::ReplySkip, Told::Off) => {}
            (Class::ReplySkip, Told::Nothing | Told::Skip) => self.told = Told::Skip,
            (Class::ReplyOn, _) | (Class::Reset, Told::Off) => {
                self.told = Told::Nothing;
                return Ok(true);
            }
            (_, Told::Nothing) => return Ok(true),
            (class, Told::Skip) if class.may_be_silent() => {
                self.told = Told::Nothing;
            }
            (class, Told::Off) if class.may_be_silent() => {}
            _ => return Err(Lost),
        }
        self.unsure = true;
        self.until = position;
        Ok(false)
    }
}
