//! The drain as sessions and listeners see it.
//!
//! A ticket costs a connection three atomic operations, and a check of it costs one load. There is
//! no list of sessions: the number of a ticket determines when its session has to leave. Multiples
//! of the golden ratio modulo one are distributed evenly over an interval, for any run of
//! consecutive or equidistant numbers. So whichever sessions remain when the drain begins, they
//! leave evenly spread, without prior arrangement.
//!
//! There are no timers before the drain begins: ten thousand idle sessions wait on a `Notify`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::plan::{Phase, ShutdownSettings, StopRequest};
use crate::shared::{DrainState, Exit, SessionCounts, now};

/// 2^64 divided by the golden ratio, rounded to an odd number.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The handle to a drain: cheap to clone, usable from any thread. Without a running
/// [`Controller`](crate::Controller), requests wait and the phase does not change.
#[derive(Debug, Clone)]
pub struct Drain {
    shared: Arc<DrainState>,
}

impl Drain {
    pub(crate) fn new(shared: Arc<DrainState>) -> Self {
        Self { shared }
    }

    pub(crate) fn state(&self) -> Arc<DrainState> {
        Arc::clone(&self.shared)
    }

    /// A group of sessions and listeners within this drain, such as those of one listening
    /// address. It follows every phase of this drain and is counted in it, and it can be
    /// [closed](Self::close_group) by itself.
    #[must_use]
    pub fn group(&self) -> Self {
        Self { shared: self.shared.group() }
    }

    /// A ticket for a new session, in any phase. A session that begins after the drain is asked to
    /// leave like any other, possibly immediately.
    pub fn ticket(&self) -> Ticket {
        Ticket {
            shared: Arc::clone(&self.shared),
            number: self.shared.open_session(),
            exit: Exit::Left,
        }
    }

    /// A permit for a listener, to be held until the listener is closed and everything that it
    /// accepted has a ticket. The drain is not complete while a permit is held, so a client in a
    /// listener's queue is not forgotten.
    pub fn accept_permit(&self) -> AcceptPermit {
        self.shared.open_accept_permit();
        AcceptPermit { shared: Arc::clone(&self.shared) }
    }

    /// The number of listeners of this drain, or group, that are open.
    #[must_use]
    pub fn accept_permits(&self) -> u64 {
        self.shared.accept_permits()
    }

    /// Records that a real client has arrived: one that sent a byte. Not to be called for health
    /// checks that connect and close. One load while serving, plus one store while leaving; never a
    /// lock.
    pub fn record_arrival(&self) {
        self.shared.record_arrival();
    }

    /// The current phase of the shutdown.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.shared.phase()
    }

    /// Returns once the shutdown is in `phase` or a later one, immediately if it already is.
    /// Cancel-safe.
    pub async fn reached(&self, phase: Phase) {
        loop {
            let phase_changed = self.shared.phase_notify();
            if self.phase() >= phase {
                return;
            }
            phase_changed.await;
        }
    }

    /// Requests a stop, stamped with the current time. [`Plan`](crate::Plan) decides what follows.
    pub fn request_stop(&self, request: StopRequest) {
        self.shared.put_request(now(), request);
    }

    /// Replaces the settings, also during a shutdown: a longer `drain_timeout` gives the remaining
    /// sessions more time. The spread is fixed once sessions have been asked to leave.
    pub fn configure(&self, settings: ShutdownSettings) {
        self.shared.put_settings(settings);
    }

    /// The time until the remaining sessions are cut. `None` before they are asked to leave.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        self.shared.time_left()
    }

    /// How many sessions are open and how many ended in which way, since the start of the process.
    #[must_use]
    pub fn session_counts(&self) -> SessionCounts {
        self.shared.session_counts()
    }
}

/// Held by a listener until it is closed, then dropped.
#[derive(Debug)]
#[must_use]
pub struct AcceptPermit {
    shared: Arc<DrainState>,
}

impl Drop for AcceptPermit {
    fn drop(&mut self) {
        self.shared.close_accept_permit();
    }
}

/// Held by a session from its beginning to its end. Dropping it counts as [`Exit::Left`].
#[derive(Debug)]
#[must_use]
pub struct Ticket {
    shared: Arc<DrainState>,
    number: u64,
    exit: Exit,
}

impl Ticket {
    /// Whether this session has to leave: one atomic load until the drain begins, plus a clock read
    /// after that. Cheap enough to be called at every boundary.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.leave_time().is_some_and(|leave_time| leave_time <= now())
    }

    /// Returns when this session has to leave, immediately if it already has to. Cancel-safe. It
    /// enters a waiting list behind a lock, so a busy session is better served by
    /// [`is_asked`](Self::is_asked) or by keeping one future across iterations. Uses a timer only
    /// once the drain has begun. The future may outlive the ticket.
    pub fn asked(&self) -> impl Future<Output = ()> + Send + use<> {
        asked(Arc::clone(&self.shared), self.number)
    }

    /// Whether this session is cut, wherever it is: one atomic load.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.shared.is_cut()
    }

    /// Returns when this session is cut, immediately if it already is. Cancel-safe.
    pub async fn cut(&self) {
        cut(&self.shared, self.number).await;
    }

    /// Ends the session and records how it ended.
    pub fn close(mut self, exit: Exit) {
        self.ends_by(exit);
    }

    /// Sets how the session ends; it ends when this is dropped.
    pub fn ends_by(&mut self, exit: Exit) {
        self.exit = exit;
    }

    /// When this session has to leave; `None` while sessions are not asked to.
    fn leave_time(&self) -> Option<Instant> {
        self.shared.leave_time(spread_position(self.number))
    }
}

async fn asked(shared: Arc<DrainState>, number: u64) {
    let leave_time = loop {
        let notified_session = shared.notified_session(number);
        if let Some(leave_time) = shared.leave_time(spread_position(number)) {
            break leave_time;
        }
        notified_session.await;
    };
    if leave_time <= now() {
        return;
    }
    // Boxed, so that the timer takes no space in ten thousand sessions while no drain is in
    // progress.
    let leave_time_reached = Box::pin(tokio::time::sleep_until(leave_time.into()));
    tokio::select! {
        () = leave_time_reached => {}
        () = cut(&shared, number) => {}
    }
}

async fn cut(shared: &DrainState, number: u64) {
    loop {
        let notified_session = shared.notified_session(number);
        if shared.is_cut() {
            return;
        }
        notified_session.await;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.shared.close_session(self.exit);
    }
}

/// The position of a ticket's leave time within the spread: at least 0, below 1.
pub(crate) fn spread_position(number: u64) -> f64 {
    // The upper 53 bits, which an f64 holds exactly.
    #[allow(clippy::cast_precision_loss)]
    let numerator = (number.wrapping_mul(GOLDEN) >> 11) as f64;
    numerator / (1_u64 << 53) as f64
}
