//! Clients that send nothing: from the start, or any more.
//!
//! Silence is only held against a client that could have been heard, and from which the next word
//! has to come: nothing is owed to it, no reply is under way, and nothing that it sent waits here.
//! Only bytes that arrive count as activity. A request of which a part has come is none: a large
//! value that arrives slowly is fine, one that stops arriving is silence like any other. While the
//! gate is shut nobody is read from, so that time does not count; and it is judged after everything
//! that has come was moved, so a request that waits in the kernel while this process is held up is
//! never taken for silence. Blocked and subscribed sessions, those in a transaction and those that
//! wait for a reply are silent by nature.
//!
//! Until its first request is whole a client has the timeout of the first byte for each next one,
//! or that of an idle client if that is shorter. The time between two looks is that timeout, so it
//! errs by at most that much, to the client's favour.
//!
//! Idleness is counted in quarters of its timeout in which nothing came: that needs no clock on the
//! way of a byte, and errs by at most one quarter, to the client's favour.
//!
//! Deliberately absent: the end of one direction, which has a timeout of its own.

use std::task::Waker;
use std::time::Duration;

use crate::options::Options;
use crate::runtime::timers::LazyTimer;
use crate::session::end_reason::EndReason;

/// Silent quarters of the idle timeout after which a client counts as idle.
const QUARTERS: u8 = 4;

/// What is looked at when the time has come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    /// The client has sent something since it came.
    pub(crate) heard: bool,
    /// It has sent a whole request.
    pub(crate) asked: bool,
    /// Bytes forwarded from it, of which only a change counts.
    pub(crate) moved: u32,
    /// The next word has to come from it.
    pub(crate) awaited: bool,
}

/// The watch over one session's client.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    alarm: LazyTimer,
    /// Nothing was read for a while because the gate was shut.
    excused: bool,
    /// The client has sent a whole request.
    asked: bool,
    /// Silent quarters so far.
    quarters: u8,
    moved: u32,
}

impl Silence {
    /// The watch over a client that has sent a whole request, or not yet.
    pub(crate) fn of(asked: bool) -> Self {
        Self { asked, ..Self::default() }
    }

    /// Begins to watch, if the options want it.
    pub(crate) fn watch(&mut self, options: &Options, heard: bool, waker: &Waker) {
        let (first, idle) = (options.first_byte_timeout, options.client_idle_timeout);
        let span = match (self.asked || first.is_zero(), heard && !idle.is_zero()) {
            (true, _) => idle / QUARTERS.into(),
            (false, true) => first.min(idle),
            (false, false) => first,
        };
        if span > Duration::ZERO {
            self.alarm.set(span, waker);
        }
    }

    /// The client is not read from at present.
    pub(crate) fn excuse(&mut self) {
        self.excused = true;
    }

    /// Why the session should end, if it should. To be asked after everything that had come was
    /// moved.
    pub(crate) fn judge(
        &mut self,
        options: &Options,
        facts: Facts,
        waker: &Waker,
    ) -> Option<EndReason> {
        self.asked |= facts.asked;
        if !self.alarm.is_set() {
            // A reload may have turned it on.
            self.watch(options, facts.heard, waker);
            return None;
        }
        if !self.alarm.is_due(waker) {
            return None;
        }
        self.alarm.clear();
        let excused = std::mem::take(&mut self.excused);
        let silent = !excused && facts.moved == self.moved && (facts.awaited || !facts.heard);
        self.moved = facts.moved;
        if !silent {
            self.quarters = 0;
        } else if !self.asked && !options.first_byte_timeout.is_zero() {
            return Some(EndReason::FirstByteTimeout);
        } else {
            self.quarters += 1;
        }
        self.watch(options, facts.heard, waker);
        (self.quarters >= QUARTERS).then_some(EndReason::IdleTimeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_nanos(1);
    const HALF_A_REQUEST: Facts = Facts { heard: true, asked: false, moved: 1, awaited: true };

    /// Judges when the alarm is due, which it is after the shortest span that the timer knows.
    async fn judged(silence: &mut Silence, options: &Options, facts: Facts) -> Option<EndReason> {
        tokio::time::sleep(Duration::from_millis(5)).await;
        silence.judge(options, facts, Waker::noop())
    }

    fn watching(asked: bool, options: &Options) -> Silence {
        let mut silence = Silence::of(asked);
        silence.watch(options, asked, Waker::noop());
        silence
    }

    #[tokio::test]
    async fn ends_idle_clients_that_stopped_within_a_request() {
        let options = Options { client_idle_timeout: 4 * NOW, ..Options::default() };
        let mut silence = watching(true, &options);
        for quarter in 0..=QUARTERS {
            let expected = (quarter == QUARTERS).then_some(EndReason::IdleTimeout);
            assert_eq!(judged(&mut silence, &options, HALF_A_REQUEST).await, expected, "{quarter}");
        }
    }

    #[tokio::test]
    async fn ends_clients_that_stop_within_their_first_request() {
        for client_idle_timeout in [Duration::ZERO, NOW, Duration::from_secs(60)] {
            let options =
                Options { first_byte_timeout: NOW, client_idle_timeout, ..Options::default() };
            let mut silence = watching(false, &options);
            assert_eq!(judged(&mut silence, &options, HALF_A_REQUEST).await, None, "a byte came");
            let reason = judged(&mut silence, &options, HALF_A_REQUEST).await;
            assert_eq!(reason, Some(EndReason::FirstByteTimeout));
        }
        // One whole request is enough.
        let options = Options { first_byte_timeout: NOW, ..Options::default() };
        let mut silence = watching(false, &options);
        assert_eq!(
            judged(&mut silence, &options, Facts { asked: true, ..HALF_A_REQUEST }).await,
            None
        );
        assert_eq!(judged(&mut silence, &options, HALF_A_REQUEST).await, None);
        assert!(!silence.alarm.is_set());
    }

    #[tokio::test]
    async fn keeps_clients_whose_bytes_arrive_or_that_wait() {
        let options =
            Options { first_byte_timeout: NOW, client_idle_timeout: 4 * NOW, ..Options::default() };
        for asked in [true, false] {
            let (mut arriving, mut waiting) =
                (watching(asked, &options), watching(asked, &options));
            for moved in 1..20 {
                let facts = Facts { moved, ..HALF_A_REQUEST };
                assert_eq!(judged(&mut arriving, &options, facts).await, None, "{moved}");
                let facts = Facts { awaited: false, ..HALF_A_REQUEST };
                assert_eq!(judged(&mut waiting, &options, facts).await, None, "{moved}");
            }
        }
    }
}
