//! Turns: how many sessions of a worker may be on their way to a target at a time.
//!
//! A master that was just promoted has ten thousand sessions coming over at once, and each costs it a connection and some
//! commands. So only so many are on their way at a time, and the next one goes when one has arrived. Who has a request
//! waiting goes first: idle sessions get half of the turns at most, so behind them nobody waits for long. A session keeps its turn
//! while it pauses after a failure, which is what keeps a dead master from being dialled by all of them.
//!
//! Deliberately absent: a rate. The pace is the master's own: as fast as it answers.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Sessions of one worker and service on their way at a time. A quarter of what Redis lets wait to be accepted (`tcp-backlog`
/// is 511), since there are other workers and other proxies.
const MOST: usize = 64;

/// Idle ones among them.
const MOST_IDLE: usize = MOST / 2;

/// Gives turns to the sessions of one worker and service.
#[derive(Debug)]
pub(crate) struct Turns {
    all: Arc<Semaphore>,
    idle: Arc<Semaphore>,
}

/// A turn, given back when dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Turn {
    _any: Option<OwnedSemaphorePermit>,
    _idle: Option<OwnedSemaphorePermit>,
}

impl Default for Turns {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(MOST)), idle: Arc::new(Semaphore::new(MOST_IDLE)) }
    }
}

impl Turns {
    /// Waits for a turn, first come, first served among those of one kind. Safe to drop.
    pub(crate) async fn take(&self, urgent: bool) -> Turn {
        // Nobody closes a semaphore; if somebody did, there would be no pace, and still no harm.
        let idle = if urgent { None } else { Arc::clone(&self.idle).acquire_owned().await.ok() };
        Turn { _any: Arc::clone(&self.all).acquire_owned().await.ok(), _idle: idle }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::{MOST, MOST_IDLE, Turn, Turns};

    fn now(turns: &Turns, urgent: bool) -> Option<Turn> {
        match pin!(turns.take(urgent)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    #[test]
    fn idle_sessions_leave_room_for_those_with_a_request_and_all_are_bounded() {
        let turns = Turns::default();
        let idle: Vec<Turn> = std::iter::from_fn(|| now(&turns, false)).take(1000).collect();
        assert_eq!(idle.len(), MOST_IDLE);
        let urgent: Vec<Turn> = std::iter::from_fn(|| now(&turns, true)).take(1000).collect();
        assert_eq!(urgent.len(), MOST - MOST_IDLE);
        drop(idle);
        assert!(now(&turns, true).is_some() && now(&turns, false).is_some());
    }
}
