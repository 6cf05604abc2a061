//! What the points lead to: one verified node, frozen at the moment of its commit.

use std::fmt;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::gate::{Gate, Replies};
use crate::lease::Until;
use crate::{Fence, Look};

/// A target that could not be dialled is passed over for this long while there are others.
const SHUNNED_FOR: Duration = Duration::from_secs(1);

/// Counts the commits of one route, from 1. A higher generation is a later decision; nothing else
/// may be read from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(u64);

impl Generation {
    pub(crate) const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The bare number, for logs, metrics and the status page.
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

/// What a writer asks to be committed: the address that was verified, and what is known of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// The very address that was verified; sessions dial this one and resolve no name again.
    pub addr: SocketAddr,
    /// How the node was announced (`host:port`), for people. Equal to `addr` where no names are in
    /// use.
    pub name: Box<str>,
    /// Sentinel's config-epoch of the decision; 0 where none is known.
    pub epoch: u64,
    /// The node's `run_id` where it could be learnt: tells a restarted node on the same address
    /// from the old one.
    pub run_id: Option<Box<str>>,
}

/// A published destination. What was published never changes; what changes is whether it may still
/// be used.
#[derive(Debug)]
pub struct Target {
    generation: Generation,
    destination: Destination,
    fence: Arc<Fence>,
    gate: Arc<Gate>,
    dismissed: AtomicBool,
    shunned: Until,
    load: AtomicUsize,
    first_use: OnceLock<Instant>,
    look: ArcSwapOption<Look>,
    looked: Notify,
    silent: AtomicBool,
    /// Sessions that it may give up to other members now.
    moves: AtomicUsize,
}

impl Target {
    pub(crate) fn new(generation: Generation, destination: Destination, gate: Arc<Gate>) -> Self {
        Self {
            generation,
            destination,
            fence: Arc::default(),
            gate,
            dismissed: AtomicBool::new(false),
            shunned: Until::default(),
            load: AtomicUsize::new(0),
            first_use: OnceLock::new(),
            look: ArcSwapOption::empty(),
            looked: Notify::new(),
            silent: AtomicBool::new(false),
            moves: AtomicUsize::new(0),
        }
    }

    /// The same destination behind the same fence and gate, for riders who may be asked to leave
    /// without the others.
    pub(crate) fn beside(&self, generation: Generation) -> Self {
        let mut target = Self::new(generation, self.destination.clone(), Arc::clone(&self.gate));
        target.fence = Arc::clone(&self.fence);
        target
    }

    /// The same generation behind the same fence and gate, dialled at another address.
    pub(crate) fn at(&self, addr: SocketAddr) -> Self {
        let mut target = self.beside(self.generation);
        target.destination.addr = addr;
        target.first_use = self.first_use.clone();
        target
    }

    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// Whether this is behind the fence of `other`.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.fence, &other.fence)
    }

    /// The commit that published this target.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
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

    /// A session has just reached this target. Only the first call takes note of the time; any
    /// other is one atomic load.
    #[inline]
    pub fn note_use(&self) {
        if self.first_use.get().is_none() {
            // Of two that come first at the same moment, either is as good.
            let _earlier = self.first_use.set(Instant::now());
        }
    }

    /// When the first session reached this target; `None` while none has.
    #[must_use]
    pub fn first_use(&self) -> Option<Instant> {
        self.first_use.get().copied()
    }

    /// The barrier before every byte to this target.
    #[must_use]
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// Whether the gate before this target is shut, or counts as shut because the writer's word has
    /// run out: nobody may read from a client on behalf of it, or write to it.
    #[inline]
    #[must_use]
    pub fn is_shut(&self) -> bool {
        self.gate.is_shut()
    }

    /// Whether bytes may be written to this target at this very moment. Made to be asked before
    /// every write.
    #[inline]
    #[must_use]
    pub fn takes_requests(&self) -> bool {
        // The gate first: a commit lets the fence fall before it opens the gate. The other way
        // round, a whole commit between the two looks would find the fence standing and the gate
        // open.
        !self.gate.is_shut() && !self.fence.has_fallen()
    }

    /// Whether it is of use to read what a client has for this target: cheaper than
    /// [`takes_requests`](Self::takes_requests), which is asked before any of it is written.
    #[inline]
    #[must_use]
    pub fn expects_requests(&self) -> bool {
        !self.gate.is_held() && !self.fence.has_fallen()
    }

    /// What becomes of bytes that were just read from this target. To be asked after the read: a
    /// promotion may have become known since any look before it.
    #[inline]
    #[must_use]
    pub fn replies(&self) -> Replies {
        self.gate.replies(|| self.fence.has_fallen())
    }

    /// Whether a session on this target should leave at its next command boundary: it may be used
    /// to the end of what is under way, and there are better ones. Never so for a master on its own
    /// route.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.dismissed.load(Ordering::Acquire)
    }

    pub(crate) fn set_dismissed(&self, dismissed: bool) {
        self.dismissed.store(dismissed, Ordering::Release);
    }

    /// What discovery knows of this replica. Never anything of a master, standing in or not.
    #[must_use]
    pub fn look(&self) -> Option<Look> {
        self.look.load().as_deref().copied()
    }

    /// Returns at the next change of [`look`](Self::look) after this call, polled or not.
    pub fn looked(&self) -> Notified<'_> {
        self.looked.notified()
    }

    pub(crate) fn set_look(&self, look: Look) {
        if self.look() != Some(look) {
            self.look.store(Some(Arc::new(look)));
            self.looked.notify_waiters();
        }
    }

    /// Whether it has answered no question for so long that it was put out for it: a reply that is
    /// owed may never come.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Acquire)
    }

    /// Whether that is a change.
    pub(crate) fn set_silent(&self, silent: bool) -> bool {
        self.silent.swap(silent, Ordering::AcqRel) != silent
    }

    /// Whether sessions may be moved from here to emptier members.
    #[must_use]
    pub fn offers_moves(&self) -> bool {
        self.moves() > 0
    }

    /// Whether a session may be moved from here to an emptier member. Takes the permission; a
    /// session that has it compares the loads once more with
    /// [`is_fuller_than`](Self::is_fuller_than).
    #[must_use]
    pub fn claim_move(&self) -> bool {
        let left = |moves: usize| moves.checked_sub(1);
        self.moves.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_ok()
    }

    /// Whether all of its connections are about to end: sessions leave it at once, and not spread
    /// over a while.
    #[must_use]
    pub fn is_urgent(&self) -> bool {
        self.is_silent() || self.look.load().as_ref().is_some_and(|look| look.about_to_end)
    }

    pub(crate) fn set_moves(&self, moves: usize) {
        self.moves.store(moves, Ordering::Relaxed);
    }

    /// Permissions that nobody has taken.
    pub(crate) fn moves(&self) -> usize {
        self.moves.load(Ordering::Relaxed)
    }

    /// Whether shares become more equal if a session that is counted on both leaves this target for
    /// `other`.
    #[must_use]
    pub fn is_fuller_than(&self, other: &Self) -> bool {
        self.load() > other.load()
    }

    /// A connection to it could not be opened: others are tried first for a moment, where there are
    /// others.
    pub fn shun(&self) {
        self.shunned.set(SHUNNED_FOR);
    }

    pub(crate) fn is_shunned(&self) -> bool {
        self.shunned.holds()
    }

    /// How many hold a [`TargetRef`] to it now.
    #[must_use]
    pub fn load(&self) -> usize {
        self.load.load(Ordering::Relaxed)
    }
}

/// A target in somebody's hands: counted on it from here to the drop.
#[derive(Debug)]
pub struct TargetRef(Arc<Target>, Instant);

impl TargetRef {
    pub(crate) fn new(target: Arc<Target>) -> Self {
        target.load.fetch_add(1, Ordering::Relaxed);
        Self(target, Instant::now())
    }

    /// When it began. A connection of whoever holds it is younger.
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
