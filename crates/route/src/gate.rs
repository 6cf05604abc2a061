//! The gate before a target, shared by all targets of one route or one pool.
//!
//! While it is shut nobody starts towards a target behind it and nobody forwards a byte, although no target has changed. It
//! also counts as shut when the writer's word has run out. Everyone who waits for anything at all waits at its bell.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::lease::{Lease, Moment};

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Gate {
    shut: AtomicBool,
    lease: Lease,
    pub(crate) bell: Notify,
}

impl Gate {
    /// An open one, with a word that has no end.
    pub(crate) fn new() -> Self {
        Self { shut: AtomicBool::new(false), lease: Lease::endless(), bell: Notify::new() }
    }

    /// Two atomic loads and a look at the coarse clock, made to be asked on the hot path.
    #[inline]
    pub(crate) fn is_shut(&self) -> bool {
        self.shut.load(Ordering::Acquire) || self.lease.is_over()
    }

    /// The writer gives its word anew; see [`Points::vouch`](crate::Points::vouch). Rings if it comes late.
    pub(crate) fn vouch(&self, looked: Moment, span: Duration) {
        if self.lease.renew(looked, span) {
            self.bell.notify_waiters();
        }
    }

    /// Shuts or opens it, and rings.
    pub(crate) fn set(&self, shut: bool) {
        self.shut.store(shut, Ordering::Release);
        self.bell.notify_waiters();
    }
}
