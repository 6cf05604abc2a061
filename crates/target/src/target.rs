//! A target: one verified node, fixed at the moment of its commit, and its fence.

use std::fmt;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::ReplicaStatus;
use crate::gate::{Gate, ReplyPolicy};
use crate::lease::{ClockReading, CoarseDeadline};

/// How long a target is passed over after a failed connect while there are alternatives.
const DEFERRED_FOR: Duration = Duration::from_secs(1);
/// How long a failed connect is news. Clients that wait for the target try it more often than that.
const FAILING_FOR: Duration = Duration::from_secs(10);

/// The flag of a target that says it was superseded. It is raised once and never lowered. While it
/// is not raised, bytes may be sent to its target.
///
/// It belongs to the target that a session loaded and is no entry of a list, so every holder of the
/// target sees it, and every task that waits for it is woken. The hot path reads it with one atomic
/// load.
#[derive(Debug, Default)]
pub struct Fence {
    raised: AtomicBool,
    raised_notify: Notify,
}

impl Fence {
    /// Whether the fence is raised: one atomic load, cheap enough for every write.
    #[must_use]
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }

    /// Returns when the fence is raised, immediately if it already is. Cancel-safe.
    pub async fn raised(&self) {
        // `Notified` receives `notify_waiters` from its creation on, so checking after creating it
        // leaves no gap.
        let raised_notify = self.raised_notify.notified();
        if self.is_raised() {
            return;
        }
        raised_notify.await;
    }

    /// Raises the fence and wakes every task that waits for it. Reserved for the one writer.
    pub(crate) fn raise(&self) {
        self.raised.store(true, Ordering::Release);
        self.raised_notify.notify_waiters();
    }
}

/// The number of a commit, counted from 1. A higher generation is a later decision; it has no other
/// meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(u64);

impl Generation {
    pub(crate) const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The plain number, for logs, metrics and the status page.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What is to be committed: the verified address and the facts known about the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// The address that was verified. Sessions connect to it and resolve no name again.
    pub addr: SocketAddr,
    /// How the node was announced (`host:port`), for display. Equal to `addr` if no host names are
    /// in use.
    pub name: Box<str>,
    /// Sentinel's config-epoch of the decision; 0 if unknown.
    pub epoch: u64,
    /// The node's `run_id` if known. It distinguishes a restarted node from its predecessor at the
    /// same address.
    pub run_id: Option<Box<str>>,
}

/// A published destination. The destination never changes; only whether it may still be used does.
#[derive(Debug)]
pub struct Target {
    generation: Generation,
    lineage: u64,
    destination: Destination,
    fence: Arc<Fence>,
    gate: Arc<Gate>,
    draining: AtomicBool,
    deferred: CoarseDeadline,
    failing: CoarseDeadline,
    unproved: AtomicBool,
    load: AtomicUsize,
    failed_connects: AtomicUsize,
    first_use: OnceLock<Instant>,
    replica_status: ArcSwapOption<ReplicaStatus>,
    replica_status_changed: Notify,
    silent: AtomicBool,
    /// Sessions that may be moved from here to other members now.
    moves: AtomicUsize,
}

impl Target {
    pub(crate) fn new(generation: Generation, destination: Destination, gate: Arc<Gate>) -> Self {
        Self {
            generation,
            lineage: gate.lineage(),
            destination,
            fence: Arc::default(),
            gate,
            draining: AtomicBool::new(false),
            deferred: CoarseDeadline::default(),
            failing: CoarseDeadline::default(),
            unproved: AtomicBool::new(false),
            load: AtomicUsize::new(0),
            failed_connects: AtomicUsize::new(0),
            first_use: OnceLock::new(),
            replica_status: ArcSwapOption::empty(),
            replica_status_changed: Notify::new(),
            silent: AtomicBool::new(false),
            moves: AtomicUsize::new(0),
        }
    }

    /// A target with the same destination, fence and gate, whose sessions can be drained
    /// independently of the sessions of this one.
    pub(crate) fn sharing_fence(&self, generation: Generation) -> Self {
        let mut target = Self::new(generation, self.destination.clone(), Arc::clone(&self.gate));
        target.fence = Arc::clone(&self.fence);
        target.lineage = self.lineage;
        target
    }

    /// This target with another name and address to connect to; generation, fence and gate stay.
    pub(crate) fn at(&self, addr: SocketAddr, name: Box<str>) -> Self {
        let mut target = self.sharing_fence(self.generation);
        (target.destination.addr, target.destination.name) = (addr, name);
        target.first_use = self.first_use.clone();
        target
    }

    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// Whether `other` has the same fence.
    pub(crate) fn shares_fence_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.fence, &other.fence)
    }

    /// The commit that published this target.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Whether a session of this target may continue on `other`: as far as known, both have the
    /// same data. They have not if the service was pointed to another deployment in between.
    #[must_use]
    pub fn has_data_of(&self, other: &Self) -> bool {
        self.lineage == other.lineage
    }

    pub(crate) fn lineage(&self) -> u64 {
        self.lineage
    }

    /// What was committed.
    #[must_use]
    pub fn destination(&self) -> &Destination {
        &self.destination
    }

    /// The address to dial.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.destination.addr
    }

    /// Records that a session has reached this target. Only the first call stores the time; each
    /// later one is a single atomic load.
    #[inline]
    pub fn record_use(&self) {
        if self.first_use.get().is_none() {
            // If two sessions are first at the same moment, either time will do.
            let _earlier = self.first_use.set(Instant::now());
        }
    }

    /// When the first session reached this target; `None` before that.
    #[must_use]
    pub fn first_use(&self) -> Option<Instant> {
        self.first_use.get().copied()
    }

    /// The flag to check before every byte sent to this target.
    #[must_use]
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// Whether the gate of this target is closed, or counts as closed because the lease has
    /// expired. While it is, nothing is read from a client for this target or written to it.
    #[inline]
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.gate.is_closed()
    }

    /// Whether the gate is closed by these clocks. For simulations.
    #[must_use]
    pub fn is_closed_at(&self, now: ClockReading) -> bool {
        self.gate.is_closed_at(now)
    }

    /// [`reply_policy`](Self::reply_policy) by these clocks. For simulations.
    #[must_use]
    pub fn reply_policy_at(&self, now: ClockReading) -> ReplyPolicy {
        self.gate.reply_policy_at(self.fence.is_raised(), now)
    }

    /// Whether bytes may be written to this target now. To be called before every write.
    #[inline]
    #[must_use]
    pub fn accepts_requests(&self) -> bool {
        // Check the gate first: a commit raises the fence before it opens the gate. In the other
        // order, a whole commit between the two checks would go unnoticed.
        !self.gate.is_closed() && !self.fence.is_raised()
    }

    /// Whether reading from a client of this target makes sense now. Cheaper than
    /// [`accepts_requests`](Self::accepts_requests), which is called before any of it is written.
    #[inline]
    #[must_use]
    pub fn may_accept_requests(&self) -> bool {
        !self.gate.is_held() && !self.fence.is_raised()
    }

    /// What to do with bytes that were just read from this target. To be called after the read: a
    /// promotion may have become known since any earlier check.
    #[inline]
    #[must_use]
    pub fn reply_policy(&self) -> ReplyPolicy {
        self.gate.reply_policy(|| self.fence.is_raised())
    }

    /// Whether a session on this target should leave at its next command boundary: commands in
    /// flight may finish, and better targets exist. Never true for the target of a
    /// [`TargetReader`](crate::TargetReader).
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    pub(crate) fn set_draining(&self, draining: bool) {
        self.draining.store(draining, Ordering::Release);
    }

    /// What discovery knows about this replica. Always `None` for a master, even if it serves in
    /// place of replicas.
    #[must_use]
    pub fn replica_status(&self) -> Option<ReplicaStatus> {
        self.replica_status.load().as_deref().copied()
    }

    /// Returns at the next change of [`replica_status`](Self::replica_status) after this call,
    /// whether or not the future has been polled.
    pub fn replica_status_changed(&self) -> Notified<'_> {
        self.replica_status_changed.notified()
    }

    pub(crate) fn set_replica_status(&self, replica_status: ReplicaStatus) {
        if self.replica_status() != Some(replica_status) {
            self.replica_status.store(Some(Arc::new(replica_status)));
            self.replica_status_changed.notify_waiters();
        }
    }

    /// Whether this replica was ejected because it has not answered for a long time. Replies that
    /// are still owed may never arrive.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Acquire)
    }

    /// Returns whether that is a change.
    pub(crate) fn set_silent(&self, silent: bool) -> bool {
        self.silent.swap(silent, Ordering::AcqRel) != silent
    }

    /// Whether sessions may be moved from here to less loaded members.
    #[must_use]
    pub fn has_move_permits(&self) -> bool {
        self.moves() > 0
    }

    /// Takes a permit to move one session from here to a less loaded member, if there is one. The
    /// session then compares the loads once more with
    /// [`has_more_sessions_than`](Self::has_more_sessions_than).
    #[must_use]
    pub fn take_move_permit(&self) -> bool {
        let left = |moves: usize| moves.checked_sub(1);
        self.moves.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_ok()
    }

    /// Whether all connections of this target are about to end. Sessions then leave immediately and
    /// are not spread over time.
    #[must_use]
    pub fn is_urgent(&self) -> bool {
        self.is_silent() || self.replica_status().is_some_and(|status| status.about_to_end)
    }

    pub(crate) fn set_move_permits(&self, moves: usize) {
        self.moves.store(moves, Ordering::Relaxed);
    }

    /// Permits that no session has taken.
    pub(crate) fn moves(&self) -> usize {
        self.moves.load(Ordering::Relaxed)
    }

    /// Whether the load becomes more even if a session that is counted on both targets leaves this
    /// one for `other`.
    #[must_use]
    pub fn has_more_sessions_than(&self, other: &Self) -> bool {
        self.load() > other.load()
    }

    /// Records a failed connect, or a server that cannot serve: for a moment, other targets are
    /// tried first if there are any.
    pub fn defer(&self) {
        self.deferred.set(DEFERRED_FOR);
        self.failing.set(FAILING_FOR);
        self.doubt();
        self.failed_connects.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of failed connects since this target was published.
    #[must_use]
    pub fn failed_connects(&self) -> usize {
        self.failed_connects.load(Ordering::Relaxed)
    }

    /// Whether a connect failed within the last ten seconds, and no new session has had an answer
    /// since.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.is_unproved() && self.failing.is_pending()
    }

    pub(crate) fn is_deferred(&self) -> bool {
        self.deferred.is_pending()
    }

    /// Records that the server may not serve new sessions. A client can cause this.
    pub fn doubt(&self) {
        self.unproved.store(true, Ordering::Relaxed);
    }

    /// Whether the server has not proved by an answer that it serves new sessions since there was a
    /// [doubt](Self::doubt). Until it has, a new session has it answer first.
    #[must_use]
    pub fn is_unproved(&self) -> bool {
        self.unproved.load(Ordering::Relaxed)
    }

    /// Records such an answer.
    pub fn record_proof(&self) {
        self.unproved.store(false, Ordering::Relaxed);
    }

    /// The number of [`TargetRef`]s to this target.
    #[must_use]
    pub fn load(&self) -> usize {
        self.load.load(Ordering::Relaxed)
    }
}

/// A counted reference to a target: it adds to the target's load until it is dropped.
#[derive(Debug)]
pub struct TargetRef(Arc<Target>, Instant);

impl TargetRef {
    pub(crate) fn new(target: Arc<Target>) -> Self {
        target.load.fetch_add(1, Ordering::Relaxed);
        Self(target, Instant::now())
    }

    /// The target, without adding to its load.
    #[must_use]
    pub fn target(&self) -> Arc<Target> {
        Arc::clone(&self.0)
    }

    /// When this reference was created. Every connection made with it is younger.
    #[must_use]
    pub fn since(&self) -> Instant {
        self.1
    }
}

impl Deref for TargetRef {
    type Target = Target;

    fn deref(&self) -> &Target {
        &self.0
    }
}

impl Drop for TargetRef {
    fn drop(&mut self) {
        self.0.load.fetch_sub(1, Ordering::Relaxed);
    }
}
