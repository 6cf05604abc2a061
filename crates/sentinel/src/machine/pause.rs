//! An operator's pause, which is also the first half of a planned switchover: the gate is closed by
//! command.
//!
//! A pause is an additional reason to hold and affects no safety rule, since holding is always
//! safe. It carries its own end, so that an operator whose connection breaks does not leave traffic
//! stopped. It also says whether a commit ends it: a switchover waits for exactly that, while
//! maintenance of a server needs the gate closed whatever the sentinels do.
//!
//! Deliberately absent: authorization.

use std::time::Instant;

use super::Machine;

/// A command to keep the gate closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pause {
    /// When it was issued; traffic has been waiting since.
    pub since: Instant,
    /// When it ends by itself.
    pub until: Instant,
    /// Whether the next commit ends it too.
    pub ends_with_commit: bool,
}

impl Machine {
    /// The pause in force, if any.
    #[must_use]
    pub fn pause(&self) -> Option<&Pause> {
        self.hold.pause.as_ref()
    }

    pub(super) fn expire_pause(&mut self, now: Instant) {
        if self.hold.pause.is_some_and(|pause| now >= pause.until) {
            self.hold.pause = None;
        }
    }

    /// Called at a commit: returns whether the gate stays closed after it.
    pub(super) fn pause_outlives_commit(&mut self) -> bool {
        if self.hold.pause.is_some_and(|pause| pause.ends_with_commit) {
            self.hold.pause = None;
        }
        self.hold.pause.is_some()
    }
}
