//! The few words of memory that tickets, doors and the controller share.
//!
//! The counts are exact because each is only ever added to, once for a ticket, and because what is
//! open is not counted but computed: opened less closed. The closed are read first, so a reader may
//! see a session that has just left as still open but never the other way round.
//!
//! Deliberately absent: a list of sessions, and locks where sessions come by, except those of the
//! bells.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::plan::{Phase, Settings, StopRequest};
use crate::ticket::Exit;

/// How many bells tickets are spread over, so that workers whose sessions begin and end waits
/// rarely meet at one lock.
const BELLS: usize = 16;

/// How many orders may wait for the controller. More than this are repetitions.
const ORDERS: usize = 16;

/// `Shared::turns_from` before anybody is asked.
const NOBODY: u64 = u64::MAX;

/// `Shared::turns_from` when it is everybody's turn.
const EVERYBODY: u64 = 0;

/// How many sessions are open and how many ended in which way. `open + left + asked + cut` is the
/// number ever opened.
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

    /// The sessions that ended after `earlier` was taken, by the way they ended, beside those open
    /// now.
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

/// A place of its own in the processor's caches, so that what is read all the time is not where
/// others write.
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
    /// Nanoseconds since `Shared::origin` at which a real client last came during Leaving; 0 for
    /// never.
    arrived: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Shared {
    /// The time that all stamps count from.
    origin: Instant,
    /// Nanoseconds that the turns are spread over. Not changed any more once somebody is asked.
    spread: AtomicU64,
    settings: Mutex<Option<Settings>>,
    phase: AtomicU8,
    /// Nanoseconds since `origin` at which the first turn comes, or one of `NOBODY` and
    /// `EVERYBODY`.
    turns_from: AtomicU64,
    /// Nanoseconds since `origin` at which those who have not left are cut; 0 before that is known.
    cut_at: AtomicU64,
    counts: Apart<Counts>,
    orders: Mutex<Vec<(Instant, StopRequest)>>,
    /// Rung when the controller has something to look at: an order, or a closed ticket or door
    /// while it waits for them.
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
            spread: AtomicU64::new(nanos(spread)),
            settings: Mutex::new(None),
            phase: AtomicU8::new(Phase::Serving as u8),
            turns_from: AtomicU64::new(NOBODY),
            cut_at: AtomicU64::new(0),
            counts: Apart::default(),
            orders: Mutex::new(Vec::new()),
            news: Notify::new(),
            passage: Notify::new(),
            bells: Default::default(),
        }
    }

    /// Sequentially consistent, as are the counts: a ticket adds itself to the closed and then
    /// looks at the phase, while the controller stores the phase and then looks at the counts, so
    /// that at least one of the two sees the other.
    pub(crate) fn phase(&self) -> Phase {
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

    /// Tells when those who have not left are cut.
    pub(crate) fn cut_comes(&self, at: Instant) {
        self.cut_at.store(self.stamp(at).max(1), Ordering::Relaxed);
    }

    /// How long it is until then.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        match self.cut_at.load(Ordering::Relaxed) {
            0 => None,
            at => Some(Duration::from_nanos(at.saturating_sub(self.stamp(now())))),
        }
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

    /// Whether everything is to end now: one load.
    pub(crate) fn is_cut(&self) -> bool {
        self.phase.load(Ordering::Acquire) >= Phase::Cutting as u8
    }

    /// When the turn at `place` (0 to 1) of the spread comes: one load; `None` while nobody is
    /// asked.
    pub(crate) fn turn(&self, place: f64) -> Option<Instant> {
        match self.turns_from.load(Ordering::Acquire) {
            NOBODY => None,
            EVERYBODY => Some(self.origin),
            from => {
                let offset =
                    Duration::from_nanos(self.spread.load(Ordering::Relaxed)).mul_f64(place);
                self.origin.checked_add(Duration::from_nanos(from).saturating_add(offset))
            }
        }
    }

    /// Wakes on every change of the phase that comes after this call, polled or not.
    pub(crate) fn passage(&self) -> Notified<'_> {
        self.passage.notified()
    }

    /// Wakes when sessions are asked or cut after this call, polled or not.
    pub(crate) fn bell(&self, number: u64) -> Notified<'_> {
        let [first, ..] = &self.bells;
        // The index is always within; the fallback only spares a way to panic.
        let index = usize::try_from(number % BELLS as u64).unwrap_or(0);
        self.bells.get(index).unwrap_or(first).0.notified()
    }

    /// Counts a session that begins and gives it its number.
    pub(crate) fn open_session(&self) -> u64 {
        self.counts.0.opened.fetch_add(1, Ordering::SeqCst)
    }

    /// Counts a session that ended.
    pub(crate) fn close_session(&self, exit: Exit) {
        let counts = &self.counts.0;
        let count = match exit {
            Exit::Left => &counts.left,
            Exit::Asked => &counts.asked,
            Exit::Cut => &counts.cut,
        };
        count.fetch_add(1, Ordering::SeqCst);
        self.tell_if_awaited();
    }

    pub(crate) fn open_door(&self) {
        self.counts.0.doors.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn close_door(&self) {
        self.counts.0.doors.fetch_sub(1, Ordering::SeqCst);
        self.tell_if_awaited();
    }

    /// Notes that a real client came now.
    pub(crate) fn note_arrival(&self) {
        // Only Leaving waits for quiet; any other time the stamp would be written for nobody and
        // shared for nothing.
        if self.phase.load(Ordering::Relaxed) == Phase::Leaving as u8 {
            self.counts.0.arrived.store(self.stamp(now()).max(1), Ordering::Relaxed);
        }
    }

    /// Keeps an order for the controller and wakes it.
    pub(crate) fn put_order(&self, at: Instant, order: StopRequest) {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        if orders.len() >= ORDERS {
            // So many unread orders can only be repetitions, except that a cut among them must not
            // be lost.
            if order != StopRequest::Cut {
                return;
            }
            orders.pop();
        }
        orders.push((at, order));
        drop(orders);
        self.news.notify_one();
    }

    pub(crate) fn tally(&self) -> Tally {
        let counts = &self.counts.0;
        let left = counts.left.load(Ordering::SeqCst);
        let asked = counts.asked.load(Ordering::SeqCst);
        let cut = counts.cut.load(Ordering::SeqCst);
        let opened = counts.opened.load(Ordering::SeqCst);
        Tally { open: opened.saturating_sub(left + asked + cut), left, asked, cut }
    }

    /// Sessions and listeners that are open now. A listener lets a session in before it goes
    /// itself, so the listeners are counted first: a session can then be counted beside its
    /// listener but not be missed with it.
    pub(crate) fn open(&self) -> u64 {
        let doors = self.doors();
        doors + self.tally().open
    }

    /// Listeners that are open now.
    pub(crate) fn doors(&self) -> u64 {
        self.counts.0.doors.load(Ordering::SeqCst)
    }

    /// When a real client last came during Leaving.
    pub(crate) fn arrived(&self) -> Option<Instant> {
        match self.counts.0.arrived.load(Ordering::Relaxed) {
            0 => None,
            stamp => self.origin.checked_add(Duration::from_nanos(stamp)),
        }
    }

    /// Keeps settings for the controller and wakes it. Of several only the last count.
    pub(crate) fn put_settings(&self, settings: Settings) {
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner) = Some(settings);
        self.news.notify_one();
    }

    /// The settings given since this was last called.
    pub(crate) fn take_settings(&self) -> Option<Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Spreads the turns over another time, unless somebody has been told his turn already.
    pub(crate) fn spread_over(&self, spread: Duration) {
        if self.turns_from.load(Ordering::Acquire) == NOBODY {
            self.spread.store(nanos(spread), Ordering::Relaxed);
        }
    }

    /// The orders given since this was last called, oldest first.
    pub(crate) fn take_orders(&self) -> Vec<(Instant, StopRequest)> {
        std::mem::take(&mut *self.orders.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn tell_if_awaited(&self) {
        if self.phase() >= Phase::Draining {
            self.news.notify_one();
        }
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// The present time by the runtime's clock, which is the system's monotonic clock unless a test has
/// stopped it.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
