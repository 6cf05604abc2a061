//! The gate shut by order: an operator's pause, and the first half of a planned switchover.
//!
//! A pause is one more reason to hold and touches no rule of safety: holding is always safe. It
//! says itself when it ends, so that an operator whose connection breaks does not leave traffic
//! stopped, and whether a commit ends it: a switchover waits for exactly that, while somebody who
//! works on a server wants the gate shut whatever the sentinels do meanwhile.
//!
//! Deliberately absent: who may order it.

use std::time::Instant;

use super::Machine;

/// An order to keep the gate shut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pause {
    /// When it was given: traffic has been waiting since.
    pub since: Instant,
    /// When it ends by itself.
    pub until: Instant,
    /// The next move of the points ends it, too.
    pub ends_with_commit: bool,
}

impl Machine {
    /// Whether the gate is shut by order.
    #[must_use]
    pub fn pause(&self) -> Option<&Pause> {
        self.pause.as_ref()
    }

    pub(super) fn pause_ends_in_time(&mut self, now: Instant) {
        if self.pause.is_some_and(|pause| now >= pause.until) {
            self.pause = None;
        }
    }

    /// The points are about to move: whether the gate stays shut behind them.
    pub(super) fn pause_outlives_commit(&mut self) -> bool {
        if self.pause.is_some_and(|pause| pause.ends_with_commit) {
            self.pause = None;
        }
        self.pause.is_some()
    }
}
