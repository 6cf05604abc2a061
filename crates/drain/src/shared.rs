//! The state that tickets, accept permits and the controller share, and the types in which it is
//! reported.
//!
//! The counts are exact: each of them only grows, by one per ticket, and the number of open
//! sessions is computed as opened minus closed. The closed ones are read first, so a reader may
//! count a session that has just left as still open, but never the reverse.
//!
//! There is no list of sessions, and no lock on the path of a session except those of the
//! `Notify`s.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::plan::{Phase, ShutdownSettings, StopRequest};

/// The number of `Notify`s that tickets are spread over, so that workers whose sessions begin and
/// end waits rarely contend for one lock.
const NOTIFY_SHARDS: usize = 16;

/// The number of requests that may wait for the controller. Any more can only be repetitions.
const MAX_PENDING_REQUESTS: usize = 16;

/// The value of `DrainState::leaving_from` before sessions are asked to leave.
const NOT_ASKED: u64 = u64::MAX;

/// The value of `DrainState::leaving_from` when every session has to leave immediately.
const ALL_NOW: u64 = 0;

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Exit {
    /// By itself: the client or the server closed it, or an error did.
    Left,
    /// Because it was asked to leave, at a boundary.
    Asked,
    /// Because the remaining sessions were cut.
    Cut,
}

/// How many sessions are open, and how many ended in which way. `open + left + asked + cut` is the
/// number ever opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SessionCounts {
    /// Sessions open now.
    pub open: u64,
    /// Sessions that ended by themselves.
    pub left: u64,
    /// Sessions that ended because they were asked to.
    pub asked: u64,
    /// Sessions that were cut.
    pub cut: u64,
}

impl SessionCounts {
    /// The number of sessions ever opened.
    #[must_use]
    pub fn opened(&self) -> u64 {
        self.open + self.left + self.asked + self.cut
    }

    /// The sessions that ended after `earlier` was taken, by the way they ended, and those open
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

/// A value on cache lines of its own, to keep what is read all the time apart from what others
/// write.
#[derive(Debug, Default)]
#[repr(align(128))]
struct CacheAligned<T>(T);

/// The counters that are written once per connection.
#[derive(Debug, Default)]
struct DrainCounters {
    opened: AtomicU64,
    left: AtomicU64,
    asked: AtomicU64,
    cut: AtomicU64,
    accept_permits: AtomicU64,
    /// Nanoseconds since `DrainState::origin` at which a real client last arrived during Leaving; 0
    /// for never.
    last_arrival: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct DrainState {
    /// The origin of all stamps.
    origin: Instant,
    /// Nanoseconds over which the leave times are spread. Fixed once sessions have been asked to
    /// leave.
    spread: AtomicU64,
    settings: Mutex<Option<ShutdownSettings>>,
    phase: AtomicU8,
    /// Nanoseconds since `origin` at which the first session has to leave, or one of `NOT_ASKED`
    /// and `ALL_NOW`.
    leaving_from: AtomicU64,
    /// Nanoseconds since `origin` at which the remaining sessions are cut; 0 while unknown.
    cut_at: AtomicU64,
    counts: CacheAligned<DrainCounters>,
    requests: Mutex<Vec<(Instant, StopRequest)>>,
    /// Notified when there is something for the controller: a request, or, while it waits for them,
    /// a closed ticket or permit.
    pub(crate) controller_notify: Notify,
    /// Notified when the phase changes.
    phase_notify: Notify,
    /// Notified when sessions are asked to leave and when they are cut.
    session_notify: [CacheAligned<Notify>; NOTIFY_SHARDS],
    /// The drain that this group belongs to; `None` for the drain of the process.
    parent: Option<Arc<DrainState>>,
    /// The groups of this drain. They follow its phases, so that a session asks its group only.
    groups: Mutex<Vec<Weak<DrainState>>>,
}

impl DrainState {
    pub(crate) fn new(origin: Instant, spread: Duration) -> Self {
        Self {
            origin,
            spread: AtomicU64::new(as_nanos(spread)),
            settings: Mutex::new(None),
            phase: AtomicU8::new(Phase::Serving as u8),
            leaving_from: AtomicU64::new(NOT_ASKED),
            cut_at: AtomicU64::new(0),
            counts: CacheAligned::default(),
            requests: Mutex::new(Vec::new()),
            controller_notify: Notify::new(),
            phase_notify: Notify::new(),
            session_notify: Default::default(),
            parent: None,
            groups: Mutex::default(),
        }
    }

    /// A group: counted here as well as by itself, and in no earlier phase than this.
    pub(crate) fn group(self: &Arc<Self>) -> Arc<Self> {
        let spread = Duration::from_nanos(self.spread.load(Ordering::Relaxed));
        let mut group = Self::new(self.origin, spread);
        group.parent = Some(Arc::clone(self));
        let group = Arc::new(group);
        // Under the lock, so that no change of the phase passes between the copy and the entry.
        let mut groups = self.groups();
        groups.retain(|it| it.strong_count() > 0);
        groups.push(Arc::downgrade(&group));
        group.phase.store(self.phase.load(Ordering::SeqCst), Ordering::SeqCst);
        group.leaving_from.store(self.leaving_from.load(Ordering::Acquire), Ordering::Release);
        drop(groups);
        group
    }

    fn groups(&self) -> MutexGuard<'_, Vec<Weak<Self>>> {
        // No critical section can panic half-way.
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn for_groups(&self, act: impl Fn(&Self)) {
        self.groups().iter().filter_map(Weak::upgrade).for_each(|group| act(&group));
    }

    /// Sequentially consistent, as are the counts: a ticket increments a count and then reads the
    /// phase, while the controller stores the phase and then reads the counts, so at least one of
    /// the two sees the other.
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
        self.phase_notify.notify_waiters();
        self.for_groups(|group| group.publish(phase));
    }

    /// Asks the sessions to leave, the first one at `from`.
    pub(crate) fn ask(&self, from: Instant) {
        // Neither marker can occur: 0 is replaced by 1, and the other one is 584 years away. A
        // group may have asked its sessions already: then they keep the earlier time.
        self.leaving_from.fetch_min(self.stamp(from).max(1), Ordering::AcqRel);
        self.notify_sessions();
        self.for_groups(|group| group.ask(from));
    }

    /// Sets when the remaining sessions will be cut.
    pub(crate) fn set_cut_at(&self, at: Instant) {
        self.cut_at.store(self.stamp(at).max(1), Ordering::Relaxed);
    }

    /// The time left until then.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        let own = match self.cut_at.load(Ordering::Relaxed) {
            0 => None,
            at => Some(Duration::from_nanos(at.saturating_sub(self.stamp(now())))),
        };
        let of_parent = self.parent.as_ref().and_then(|parent| parent.time_left());
        own.into_iter().chain(of_parent).min()
    }

    /// Makes every session leave immediately. The phase has been published before.
    pub(crate) fn cut(&self) {
        self.leaving_from.store(ALL_NOW, Ordering::Release);
        self.notify_sessions();
        self.for_groups(Self::cut);
    }

    fn notify_sessions(&self) {
        for notified_session in &self.session_notify {
            notified_session.0.notify_waiters();
        }
    }

    fn stamp(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.origin).as_nanos()).unwrap_or(u64::MAX - 1)
    }

    /// Whether every session has to end now: one load.
    pub(crate) fn is_cut(&self) -> bool {
        self.phase.load(Ordering::Acquire) >= Phase::Cutting as u8
    }

    /// When the session at `spread_position` (0 to 1) of the spread has to leave: one load; `None`
    /// while sessions are not asked to leave.
    pub(crate) fn leave_time(&self, spread_position: f64) -> Option<Instant> {
        match self.leaving_from.load(Ordering::Acquire) {
            NOT_ASKED => None,
            ALL_NOW => Some(self.origin),
            from => {
                let offset = Duration::from_nanos(self.spread.load(Ordering::Relaxed))
                    .mul_f64(spread_position);
                self.origin.checked_add(Duration::from_nanos(from).saturating_add(offset))
            }
        }
    }

    /// Resolves at every change of the phase after this call, whether or not the future has been
    /// polled.
    pub(crate) fn phase_notify(&self) -> Notified<'_> {
        self.phase_notify.notified()
    }

    /// Resolves when sessions are asked to leave or cut after this call, whether or not the future
    /// has been polled.
    pub(crate) fn notified_session(&self, number: u64) -> Notified<'_> {
        let [first, ..] = &self.session_notify;
        // The index is always in range; the fallback only avoids a panic path.
        let index = usize::try_from(number % NOTIFY_SHARDS as u64).unwrap_or(0);
        self.session_notify.get(index).unwrap_or(first).0.notified()
    }

    /// Counts a new session and returns its number.
    pub(crate) fn open_session(&self) -> u64 {
        if let Some(parent) = &self.parent {
            parent.open_session();
        }
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
        self.notify_controller_if_draining();
        if let Some(parent) = &self.parent {
            parent.close_session(exit);
        }
    }

    pub(crate) fn open_accept_permit(&self) {
        if let Some(parent) = &self.parent {
            parent.open_accept_permit();
        }
        self.counts.0.accept_permits.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn close_accept_permit(&self) {
        self.counts.0.accept_permits.fetch_sub(1, Ordering::SeqCst);
        self.notify_controller_if_draining();
        if let Some(parent) = &self.parent {
            parent.close_accept_permit();
        }
    }

    /// Records that a real client has arrived.
    pub(crate) fn record_arrival(&self) {
        // Only Leaving waits for quiet. In any other phase the write would only cost cache traffic.
        if self.phase.load(Ordering::Relaxed) == Phase::Leaving as u8 {
            if let Some(parent) = &self.parent {
                parent.record_arrival();
            }
            self.counts.0.last_arrival.store(self.stamp(now()).max(1), Ordering::Relaxed);
        }
    }

    /// Queues a request for the controller and wakes it.
    pub(crate) fn put_request(&self, at: Instant, request: StopRequest) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        if requests.len() >= MAX_PENDING_REQUESTS {
            // That many unread requests can only be repetitions, but a cut among them must not be
            // lost.
            if request != StopRequest::Cut {
                return;
            }
            requests.pop();
        }
        requests.push((at, request));
        drop(requests);
        self.controller_notify.notify_one();
    }

    pub(crate) fn session_counts(&self) -> SessionCounts {
        let counts = &self.counts.0;
        let left = counts.left.load(Ordering::SeqCst);
        let asked = counts.asked.load(Ordering::SeqCst);
        let cut = counts.cut.load(Ordering::SeqCst);
        let opened = counts.opened.load(Ordering::SeqCst);
        SessionCounts { open: opened.saturating_sub(left + asked + cut), left, asked, cut }
    }

    /// Sessions and listeners that are open now. A listener takes a ticket for a connection before
    /// it closes itself. Listeners are therefore counted first: a session may be counted together
    /// with its listener, but both cannot be missed.
    pub(crate) fn open(&self) -> u64 {
        let accept_permits = self.accept_permits();
        accept_permits + self.session_counts().open
    }

    /// Listeners that are open now.
    pub(crate) fn accept_permits(&self) -> u64 {
        self.counts.0.accept_permits.load(Ordering::SeqCst)
    }

    /// When a real client last arrived during Leaving.
    pub(crate) fn last_arrival(&self) -> Option<Instant> {
        match self.counts.0.last_arrival.load(Ordering::Relaxed) {
            0 => None,
            stamp => self.origin.checked_add(Duration::from_nanos(stamp)),
        }
    }

    /// Stores settings for the controller and wakes it. Only the latest ones are kept.
    pub(crate) fn put_settings(&self, settings: ShutdownSettings) {
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner) = Some(settings);
        self.controller_notify.notify_one();
        self.for_groups(|group| group.put_settings(settings));
    }

    /// The settings stored since the last call.
    pub(crate) fn take_settings(&self) -> Option<ShutdownSettings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Sets the spread of the leave times, unless sessions have already been given theirs.
    pub(crate) fn set_spread(&self, spread: Duration) {
        if self.leaving_from.load(Ordering::Acquire) == NOT_ASKED {
            self.spread.store(as_nanos(spread), Ordering::Relaxed);
        }
        self.for_groups(|group| group.set_spread(spread));
    }

    /// The requests queued since the last call, oldest first.
    pub(crate) fn take_requests(&self) -> Vec<(Instant, StopRequest)> {
        std::mem::take(&mut *self.requests.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn notify_controller_if_draining(&self) {
        if self.phase() >= Phase::Draining {
            self.controller_notify.notify_one();
        }
    }
}

fn as_nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// The current time by the runtime's clock, which is the system's monotonic clock unless a test has
/// paused it.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
