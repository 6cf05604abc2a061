//! What sessions and listeners hold of the drain, and the few words of memory they share with its controller.
//!
//! A ticket costs a connection three atomic operations in its life, and a look at it one load. Nobody keeps a list of
//! sessions: the number on a ticket says when its holder's turn comes. Multiples of the golden ratio, taken modulo one, fill
//! an interval evenly whichever run or every-so-manieth of the numbers is still there, so whoever happens to be left when
//! the drain begins leaves evenly spread, and nothing had to be arranged beforehand.
//!
//! The counts are exact because each is only ever added to, once for a ticket, and because what is open is not counted but
//! computed: opened less closed. The closed are read first, so a reader may see a session that has just left as still open
//! but never the other way round.
//!
//! Deliberately absent: timers before the drain begins (ten thousand idle sessions wait on a bell, not on a clock), and any
//! way for a ticket to influence the plan other than by being closed.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::plan::{Order, Phase};

/// How many bells tickets are spread over, so that workers whose sessions begin and end waits rarely meet at one lock.
const BELLS: usize = 16;

/// How many orders may wait for the controller. More than this are repetitions.
const ORDERS: usize = 16;

/// `Shared::turns_from` before anybody is asked.
const NOBODY: u64 = u64::MAX;

/// `Shared::turns_from` when it is everybody's turn.
const EVERYBODY: u64 = 0;

/// 2^64 divided by the golden ratio, rounded to an odd number.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Exit {
    /// By itself: the client or the server ended it, or an error did.
    Left,
    /// Because it was its turn, at a boundary.
    Asked,
    /// Because everything left was cut.
    Cut,
}

/// How many sessions are open and how many ended in which way. `open + left + asked + cut` is the number ever opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Sessions open now.
    pub open: u64,
    /// Ended by themselves.
    pub left: u64,
    /// Ended because they were asked to.
    pub asked: u64,
    /// Ended by the cut.
    pub cut: u64,
}

impl Tally {
    /// Sessions ever opened.
    #[must_use]
    pub fn opened(&self) -> u64 {
        self.open + self.left + self.asked + self.cut
    }

    /// The sessions that ended after `earlier` was taken, by the way they ended, beside those open now.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            open: self.open,
            left: self.left.saturating_sub(earlier.left),
            asked: self.asked.saturating_sub(earlier.asked),
            cut: self.cut.saturating_sub(earlier.cut),
        }
    }
}

/// A place of its own in the processor's caches, so that what is read all the time is not where others write.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Apart<T>(T);

/// What is written once for a connection.
#[derive(Debug, Default)]
struct Counts {
    opened: AtomicU64,
    left: AtomicU64,
    asked: AtomicU64,
    cut: AtomicU64,
    doors: AtomicU64,
    /// Nanoseconds since `Shared::origin` at which a real client last came during Leaving; 0 for never.
    arrived: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Shared {
    /// The time that all stamps count from.
    origin: Instant,
    /// How long the turns are spread over.
    spread: Duration,
    phase: AtomicU8,
    /// Nanoseconds since `origin` at which the first turn comes, or one of `NOBODY` and `EVERYBODY`.
    turns_from: AtomicU64,
    counts: Apart<Counts>,
    orders: Mutex<Vec<(Instant, Order)>>,
    /// Rung when the controller has something to look at: an order, or a closed ticket or door while it waits for them.
    pub(crate) news: Notify,
    /// Rung when the phase changes.
    passage: Notify,
    /// Rung when sessions are asked and when they are cut.
    bells: [Apart<Notify>; BELLS],
}

impl Shared {
    pub(crate) fn new(origin: Instant, spread: Duration) -> Self {
        Self {
            origin,
            spread,
            phase: AtomicU8::new(Phase::Serving as u8),
            turns_from: AtomicU64::new(NOBODY),
            counts: Apart::default(),
            orders: Mutex::new(Vec::new()),
            news: Notify::new(),
            passage: Notify::new(),
            bells: Default::default(),
        }
    }

    /// Sequentially consistent, as are the counts: a ticket adds itself to the closed and then looks at the phase, while
    /// the controller stores the phase and then looks at the counts, so that at least one of the two sees the other.
    fn phase(&self) -> Phase {
        match self.phase.load(Ordering::SeqCst) {
            0 => Phase::Serving,
            1 => Phase::Leaving,
            2 => Phase::Draining,
            3 => Phase::Cutting,
            _ => Phase::Stopped,
        }
    }

    pub(crate) fn publish(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::SeqCst);
        self.passage.notify_waiters();
    }

    /// Lets the turns begin at `from`.
    pub(crate) fn ask(&self, from: Instant) {
        // Neither marker can be met: 0 is kept for everybody, and the other end is 584 years away.
        self.turns_from.store(self.stamp(from).max(1), Ordering::Release);
        self.ring();
    }

    /// Makes it everybody's turn. The phase has been published before.
    pub(crate) fn cut(&self) {
        self.turns_from.store(EVERYBODY, Ordering::Release);
        self.ring();
    }

    fn ring(&self) {
        for bell in &self.bells {
            bell.0.notify_waiters();
        }
    }

    fn stamp(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.origin).as_nanos()).unwrap_or(u64::MAX - 1)
    }

    pub(crate) fn tally(&self) -> Tally {
        let counts = &self.counts.0;
        let left = counts.left.load(Ordering::SeqCst);
        let asked = counts.asked.load(Ordering::SeqCst);
        let cut = counts.cut.load(Ordering::SeqCst);
        let opened = counts.opened.load(Ordering::SeqCst);
        Tally { open: opened.saturating_sub(left + asked + cut), left, asked, cut }
    }

    /// Sessions and listeners that are open now. A listener lets a session in before it goes itself, so the listeners are
    /// counted first: a session can then be counted beside its listener but not be missed with it.
    pub(crate) fn open(&self) -> u64 {
        let doors = self.counts.0.doors.load(Ordering::SeqCst);
        doors + self.tally().open
    }

    /// When a real client last came during Leaving.
    pub(crate) fn arrived(&self) -> Option<Instant> {
        match self.counts.0.arrived.load(Ordering::Relaxed) {
            0 => None,
            stamp => self.origin.checked_add(Duration::from_nanos(stamp)),
        }
    }

    /// The orders given since this was last called, oldest first.
    pub(crate) fn take_orders(&self) -> Vec<(Instant, Order)> {
        std::mem::take(&mut *self.orders.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn tell_if_awaited(&self) {
        if self.phase() >= Phase::Draining {
            self.news.notify_one();
        }
    }
}

/// The handle on a drain that everybody gets: cheap to clone, usable from any thread. Without a running
/// [`Controller`](crate::Controller) orders wait and the phase does not change.
#[derive(Debug, Clone)]
pub struct Drain {
    shared: Arc<Shared>,
}

impl Drain {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// A ticket for a session that begins now, in whatever phase. One let in after the drain began has its turn like any
    /// other, which may be at once.
    #[must_use]
    pub fn ticket(&self) -> Ticket {
        let number = self.shared.counts.0.opened.fetch_add(1, Ordering::SeqCst);
        Ticket { shared: Arc::clone(&self.shared), number, exit: Exit::Left }
    }

    /// A door for a listener, to be held until the listener is closed and everything it accepted has a ticket. The drain
    /// does not count as empty while a door is open, so a client in a listener's queue is not forgotten.
    #[must_use]
    pub fn door(&self) -> Door {
        self.shared.counts.0.doors.fetch_add(1, Ordering::SeqCst);
        Door { shared: Arc::clone(&self.shared) }
    }

    /// Notes that a real client has come: one that sent a byte. Health checks that connect and close are not to be told.
    /// One load while serving, one store more while leaving; never a lock.
    pub fn arrival(&self) {
        // Only Leaving waits for quiet; any other time the stamp would be written for nobody and shared for nothing.
        if self.shared.phase.load(Ordering::Relaxed) == Phase::Leaving as u8 {
            self.shared.counts.0.arrived.store(self.shared.stamp(now()).max(1), Ordering::Relaxed);
        }
    }

    /// Where the shutdown stands.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.shared.phase()
    }

    /// Returns once the shutdown stands at `phase` or beyond; at once if it already does. Safe to drop and to call again.
    pub async fn reached(&self, phase: Phase) {
        loop {
            let passage = self.shared.passage.notified();
            if self.phase() >= phase {
                return;
            }
            passage.await;
        }
    }

    /// Gives an order, stamped with the present time. What it leads to is decided by [`Plan`](crate::Plan).
    pub fn order(&self, order: Order) {
        let mut orders = self.shared.orders.lock().unwrap_or_else(PoisonError::into_inner);
        if orders.len() >= ORDERS {
            // Sixteen unread orders can only be repetitions, except that a cut among them must not be lost.
            if order != Order::Cut {
                return;
            }
            orders.pop();
        }
        orders.push((now(), order));
        drop(orders);
        self.shared.news.notify_one();
    }

    /// How many sessions are open and how many ended in which way, since the start of the process.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.shared.tally()
    }
}

/// What a listener holds until it is closed. Dropping it is the only thing to be done with it.
#[derive(Debug)]
#[must_use]
pub struct Door {
    shared: Arc<Shared>,
}

impl Drop for Door {
    fn drop(&mut self) {
        self.shared.counts.0.doors.fetch_sub(1, Ordering::SeqCst);
        self.shared.tell_if_awaited();
    }
}

/// What a session holds from its first moment to its last. Dropping it counts as [`Exit::Left`].
#[derive(Debug)]
#[must_use]
pub struct Ticket {
    shared: Arc<Shared>,
    number: u64,
    exit: Exit,
}

impl Ticket {
    /// Whether this session's turn to leave has come: one atomic load until the drain begins, a look at the clock more
    /// after that. Made to be asked at every boundary.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.turn().is_some_and(|turn| turn <= now())
    }

    /// Returns when this session's turn to leave has come; at once if it already has. Safe to drop and to call again, but
    /// it enters a waiting list behind a lock, so a busy session is better served by [`is_asked`](Self::is_asked) or by
    /// keeping one future across its rounds. Uses a timer only once the drain has begun.
    pub async fn asked(&self) {
        let turn = loop {
            let bell = self.bell().notified();
            if let Some(turn) = self.turn() {
                break turn;
            }
            bell.await;
        };
        if turn <= now() {
            return;
        }
        // In a box, so that the sleep takes no room in ten thousand sessions while nobody drains.
        let turn_comes = Box::pin(tokio::time::sleep_until(turn.into()));
        tokio::select! {
            () = turn_comes => {}
            () = self.cut() => {}
        }
    }

    /// Whether this session is to end now, wherever it is: one atomic load.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.shared.phase.load(Ordering::Acquire) >= Phase::Cutting as u8
    }

    /// Returns when this session is to end now; at once if it already is. Safe to drop and to call again.
    pub async fn cut(&self) {
        loop {
            let bell = self.bell().notified();
            if self.is_cut() {
                return;
            }
            bell.await;
        }
    }

    /// Ends the session and says how it ended.
    pub fn close(mut self, exit: Exit) {
        self.exit = exit;
    }

    /// When this session's turn comes; `None` while nobody is asked.
    fn turn(&self) -> Option<Instant> {
        match self.shared.turns_from.load(Ordering::Acquire) {
            NOBODY => None,
            EVERYBODY => Some(self.shared.origin),
            from => {
                let offset = self.shared.spread.mul_f64(place(self.number));
                self.shared.origin.checked_add(Duration::from_nanos(from).saturating_add(offset))
            }
        }
    }

    fn bell(&self) -> &Notify {
        let [first, ..] = &self.shared.bells;
        // The index is always within; the fallback only spares a way to panic.
        let index = usize::try_from(self.number % BELLS as u64).unwrap_or(0);
        &self.shared.bells.get(index).unwrap_or(first).0
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let counts = &self.shared.counts.0;
        let count = match self.exit {
            Exit::Left => &counts.left,
            Exit::Asked => &counts.asked,
            Exit::Cut => &counts.cut,
        };
        count.fetch_add(1, Ordering::SeqCst);
        self.shared.tell_if_awaited();
    }
}

/// Where in the spread a ticket's turn is: at least 0, below 1.
pub(crate) fn place(number: u64) -> f64 {
    // The upper 53 bits, which an f64 holds exactly.
    #[allow(clippy::cast_precision_loss)]
    let numerator = (number.wrapping_mul(GOLDEN) >> 11) as f64;
    numerator / (1_u64 << 53) as f64
}

/// The present time by the runtime's clock, which is the system's monotonic clock unless a test has stopped it.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
