//! The gate of a target, shared by all targets of one reader or one pool.
//!
//! While it is closed, no session connects to a target or forwards a request to it, although the
//! target has not changed. It also counts as closed when the lease has expired. Every task that
//! waits for a change waits for `changed_notify`.
//!
//! A closed gate stops requests. Replies have a separate policy, [`ReplyPolicy`], kept in the same
//! atomic: they pass while a planned failover is only announced, wait after a stop of the process
//! until discovery has polled, and are discarded once another node is known to be promoted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::lease::{ClockReading, Lease};

/// No request may pass.
const CLOSED: u8 = 1;
/// Replies wait.
const WAIT: u8 = 2;
/// Replies are discarded.
const DROP: u8 = 4;
/// Replies of these targets acknowledge no write, so all of them pass, always.
const READS: u8 = 8;

/// What to do with a reply that has just been read from a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ReplyPolicy {
    /// Forward it.
    #[default]
    Pass,
    /// Neither forward nor discard it yet: whether it still acknowledges anything is being
    /// determined.
    Wait,
    /// Discard it: another node has been promoted, and the write that the reply acknowledges will
    /// be lost.
    Drop,
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Gate {
    state: AtomicU8,
    lease: Lease,
    pub(crate) changed_notify: Notify,
    /// The number of the data set that targets published now belong to. A pool shares it with its
    /// master.
    lineage: Arc<AtomicU64>,
}

impl Gate {
    /// An open gate with a lease that never expires.
    pub(crate) fn new() -> Self {
        Self {
            state: AtomicU8::new(0),
            lease: Lease::unbounded(),
            changed_notify: Notify::new(),
            lineage: Arc::default(),
        }
    }

    /// An open gate for targets that are only read from and have the data of `master`.
    pub(crate) fn read_only(master: &Self) -> Self {
        let lineage = Arc::clone(&master.lineage);
        Self { state: AtomicU8::new(READS), lineage, ..Self::new() }
    }

    /// The number of the data set that a target published now belongs to.
    pub(crate) fn lineage(&self) -> u64 {
        self.lineage.load(Ordering::Acquire)
    }

    /// Targets published from now on have other data than all earlier ones.
    pub(crate) fn begin_lineage(&self) {
        self.lineage.fetch_add(1, Ordering::AcqRel);
    }

    /// Two atomic loads and a read of the coarse clocks, cheap enough for the hot path.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.is_held() || self.lease.is_over()
    }

    /// [`is_closed`](Self::is_closed), judged by these clocks.
    pub(crate) fn is_closed_at(&self, now: ClockReading) -> bool {
        self.is_held() || self.lease.is_over_at(now)
    }

    /// Whether the writer has closed it. Cheaper than [`is_closed`](Self::is_closed): it reads no
    /// clock.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        self.state.load(Ordering::Acquire) & !READS != 0
    }

    /// What to do with a reply. `is_raised` reads the fence of its target and is called after the
    /// gate was read.
    #[inline(always)]
    pub(crate) fn reply_policy(&self, is_raised: impl FnOnce() -> bool) -> ReplyPolicy {
        self.reply_policy_of(is_raised, || self.lease.is_over_by_wall_clock())
    }

    /// [`reply_policy`](Self::reply_policy), judged by these clocks.
    pub(crate) fn reply_policy_at(&self, is_raised: bool, now: ClockReading) -> ReplyPolicy {
        self.reply_policy_of(|| is_raised, || self.lease.is_over_at(now))
    }

    #[inline(always)]
    fn reply_policy_of(
        &self,
        is_raised: impl FnOnce() -> bool,
        is_over: impl FnOnce() -> bool,
    ) -> ReplyPolicy {
        // Read the gate first: a commit raises the fence before it opens the gate, so one of the
        // two is always seen.
        let state = self.state.load(Ordering::Acquire);
        if state & READS != 0 {
            ReplyPolicy::Pass
        } else if state & DROP != 0 || is_raised() {
            ReplyPolicy::Drop
        } else if state & WAIT != 0 || is_over() {
            ReplyPolicy::Wait
        } else {
            ReplyPolicy::Pass
        }
    }

    /// Renews the lease; see [`TargetWriter::renew`](crate::TargetWriter::renew). Wakes waiting
    /// tasks if it had expired.
    pub(crate) fn renew(&self, since: ClockReading, span: Duration) {
        if self.lease.renew(since, span) {
            self.changed_notify.notify_waiters();
        }
    }

    /// Closes or opens the gate, resets the reply policy to pass, and wakes waiting tasks.
    pub(crate) fn set(&self, closed: bool) {
        self.store(if closed { CLOSED } else { 0 });
    }

    /// Closes the gate and sets the policy for replies until the next change.
    pub(crate) fn set_reply_policy(&self, replies: ReplyPolicy) {
        self.store(match replies {
            ReplyPolicy::Pass => CLOSED,
            ReplyPolicy::Wait => CLOSED | WAIT,
            ReplyPolicy::Drop => CLOSED | DROP,
        });
    }

    fn store(&self, state: u8) {
        // There is one writer, so nothing is lost between the load and the store.
        let kind = self.state.load(Ordering::Relaxed) & READS;
        self.state.store(state | kind, Ordering::Release);
        self.changed_notify.notify_waiters();
    }
}
