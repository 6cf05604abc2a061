//! What sessions and listeners hold of the drain.
//!
//! A ticket costs a connection three atomic operations in its life, and a look at it one load.
//! Nobody keeps a list of sessions: the number on a ticket says when its holder's turn comes.
//! Multiples of the golden ratio, taken modulo one, fill an interval evenly whichever run or
//! every-so-manieth of the numbers is still there, so whoever happens to be left when the drain
//! begins leaves evenly spread, and nothing had to be arranged beforehand.
//!
//! Deliberately absent: timers before the drain begins (ten thousand idle sessions wait on a bell,
//! not on a clock), and any way for a ticket to influence the plan other than by being closed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::plan::{Phase, Settings, StopRequest};
use crate::shared::{Shared, Tally, now};

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

/// The handle on a drain that everybody gets: cheap to clone, usable from any thread. Without a
/// running [`Controller`](crate::Controller) orders wait and the phase does not change.
#[derive(Debug, Clone)]
pub struct Drain {
    shared: Arc<Shared>,
}

impl Drain {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// A ticket for a session that begins now, in whatever phase. One let in after the drain began
    /// has its turn like any other, which may be at once.
    pub fn ticket(&self) -> Ticket {
        Ticket {
            shared: Arc::clone(&self.shared),
            number: self.shared.open_session(),
            exit: Exit::Left,
        }
    }

    /// A door for a listener, to be held until the listener is closed and everything it accepted
    /// has a ticket. The drain does not count as empty while a door is open, so a client in a
    /// listener's queue is not forgotten.
    pub fn door(&self) -> AcceptPermit {
        self.shared.open_door();
        AcceptPermit { shared: Arc::clone(&self.shared) }
    }

    /// Notes that a real client has come: one that sent a byte. Health checks that connect and
    /// close are not to be told. One load while serving, one store more while leaving; never a
    /// lock.
    pub fn arrival(&self) {
        self.shared.note_arrival();
    }

    /// Where the shutdown stands.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.shared.phase()
    }

    /// Returns once the shutdown stands at `phase` or beyond; at once if it already does. Safe to
    /// drop and to call again.
    pub async fn reached(&self, phase: Phase) {
        loop {
            let passage = self.shared.passage();
            if self.phase() >= phase {
                return;
            }
            passage.await;
        }
    }

    /// Gives an order, stamped with the present time. What it leads to is decided by
    /// [`Plan`](crate::Plan).
    pub fn order(&self, order: StopRequest) {
        self.shared.put_order(now(), order);
    }

    /// Puts other settings in force, also in the middle of a shutdown: a longer `drain_timeout`
    /// gives those who still stay more time. The spread holds as it is once the first have been
    /// asked.
    pub fn configure(&self, settings: Settings) {
        self.shared.put_settings(settings);
    }

    /// How long it is until those who have not left are cut. `None` before they are asked to.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        self.shared.time_left()
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
pub struct AcceptPermit {
    shared: Arc<Shared>,
}

impl Drop for AcceptPermit {
    fn drop(&mut self) {
        self.shared.close_door();
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
    /// Whether this session's turn to leave has come: one atomic load until the drain begins, a
    /// look at the clock more after that. Made to be asked at every boundary.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.turn().is_some_and(|turn| turn <= now())
    }

    /// Returns when this session's turn to leave has come; at once if it already has. Safe to drop
    /// and to call again, but it enters a waiting list behind a lock, so a busy session is better
    /// served by [`is_asked`](Self::is_asked) or by keeping one future across its rounds. Uses a
    /// timer only once the drain has begun.
    pub async fn asked(&self) {
        let turn = loop {
            let bell = self.shared.bell(self.number);
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
        self.shared.is_cut()
    }

    /// Returns when this session is to end now; at once if it already is. Safe to drop and to call
    /// again.
    pub async fn cut(&self) {
        loop {
            let bell = self.shared.bell(self.number);
            if self.is_cut() {
                return;
            }
            bell.await;
        }
    }

    /// Ends the session and says how it ended.
    pub fn close(mut self, exit: Exit) {
        self.ends_by(exit);
    }

    /// Says how the session ends, which it does when this is dropped.
    pub fn ends_by(&mut self, exit: Exit) {
        self.exit = exit;
    }

    /// When this session's turn comes; `None` while nobody is asked.
    fn turn(&self) -> Option<Instant> {
        self.shared.turn(place(self.number))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.shared.close_session(self.exit);
    }
}

/// Where in the spread a ticket's turn is: at least 0, below 1.
pub(crate) fn place(number: u64) -> f64 {
    // The upper 53 bits, which an f64 holds exactly.
    #[allow(clippy::cast_precision_loss)]
    let numerator = (number.wrapping_mul(GOLDEN) >> 11) as f64;
    numerator / (1_u64 << 53) as f64
}
