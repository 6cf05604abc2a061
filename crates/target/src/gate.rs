//! The gate before a target, shared by all targets of one route or one pool.
//!
//! While it is shut nobody starts towards a target behind it and nobody forwards a byte, although
//! no target has changed. It also counts as shut when the writer's word has run out. Everyone who
//! waits for anything at all waits at its bell.
//!
//! A shut gate stops requests. What becomes of replies is a second question with three answers,
//! [`Replies`], and is kept in the same atomic: replies pass while a planned failover is only
//! announced, wait while nobody has looked at the world since the process was stopped, and are
//! dropped once another node is known to be promoted.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::lease::{Lease, Moment};

/// No request may pass.
const SHUT: u8 = 1;
/// Replies wait.
const WAIT: u8 = 2;
/// Replies are dropped.
const DROP: u8 = 4;
/// A reply of a target here acknowledges no write, so all of them pass, always.
const READS: u8 = 8;

/// What becomes of a reply that has just been read from a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Replies {
    /// It is forwarded.
    #[default]
    Pass,
    /// It is neither forwarded nor dropped yet: whether it still acknowledges anything is being
    /// found out.
    Wait,
    /// It is not forwarded, now or later: another node has been promoted, and the write that it
    /// acknowledges will be lost.
    Drop,
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Gate {
    state: AtomicU8,
    lease: Lease,
    pub(crate) bell: Notify,
}

impl Gate {
    /// An open one, with a word that has no end.
    pub(crate) fn new() -> Self {
        Self { state: AtomicU8::new(0), lease: Lease::endless(), bell: Notify::new() }
    }

    /// The same before targets that are only read from.
    pub(crate) fn of_readers() -> Self {
        Self { state: AtomicU8::new(READS), ..Self::new() }
    }

    /// Two atomic loads and a look at the coarse clocks, made to be asked on the hot path.
    #[inline]
    pub(crate) fn is_shut(&self) -> bool {
        self.is_held() || self.lease.is_over()
    }

    /// Whether the writer has shut it. Less than [`is_shut`](Self::is_shut), and without a look at
    /// a clock.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        self.state.load(Ordering::Acquire) & !READS != 0
    }

    /// What becomes of a reply of a target whose fence has fallen or not, which is asked only after
    /// the gate.
    #[inline]
    pub(crate) fn replies(&self, has_fallen: impl FnOnce() -> bool) -> Replies {
        // The gate first: a commit lets the fence fall before it opens the gate, so that one of the
        // two is always seen.
        let state = self.state.load(Ordering::Acquire);
        if state & READS != 0 {
            Replies::Pass
        } else if state & DROP != 0 || has_fallen() {
            Replies::Drop
        } else if state & WAIT != 0 || self.lease.has_passed() {
            Replies::Wait
        } else {
            Replies::Pass
        }
    }

    /// The writer gives its word anew; see [`TargetWriter::renew`](crate::TargetWriter::renew). Rings if it
    /// comes late.
    pub(crate) fn renew(&self, looked: Moment, span: Duration) {
        if self.lease.renew(looked, span) {
            self.bell.notify_waiters();
        }
    }

    /// Shuts or opens it, lets replies pass again, and rings.
    pub(crate) fn set(&self, shut: bool) {
        self.store(if shut { SHUT } else { 0 });
    }

    /// Shuts it, if it is not shut, and says what becomes of replies as long as it is.
    pub(crate) fn set_replies(&self, replies: Replies) {
        self.store(match replies {
            Replies::Pass => SHUT,
            Replies::Wait => SHUT | WAIT,
            Replies::Drop => SHUT | DROP,
        });
    }

    fn store(&self, state: u8) {
        // There is one writer, so nothing is lost between the two.
        let kind = self.state.load(Ordering::Relaxed) & READS;
        self.state.store(state | kind, Ordering::Release);
        self.bell.notify_waiters();
    }
}
