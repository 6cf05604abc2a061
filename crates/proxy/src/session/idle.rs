//! Timeouts of clients that send nothing, from the start or any more.
//!
//! Silence counts only while the client could have been read and has to send next: no reply is owed
//! or under way, and nothing that it sent waits here. Only arriving bytes are activity. An
//! incomplete request is no excuse: a large value that arrives slowly is fine, one that stops
//! arriving is silence like any other. While the gate is closed no client is read, so that time
//! does not count. The check comes after everything received was forwarded, so a request that waits
//! in the kernel while this process is stalled is never taken for silence. Blocked and subscribed
//! sessions, sessions in a transaction and sessions that wait for a reply are silent by nature.
//!
//! Until its first request is complete, a client gets the first-byte timeout for each next byte, or
//! the idle timeout if that is shorter. The check runs once per timeout, so it is late by at most
//! one timeout.
//!
//! Idleness is counted in quarters of its timeout in which nothing came. That needs no clock
//! reading per read, and is late by at most one quarter.

use std::task::Waker;
use std::time::Duration;

use crate::end_reason::EndReason;
use crate::options::Options;
use crate::runtime::timers::LazyTimer;

/// Silent quarters of the idle timeout after which a client is idle.
const QUARTERS: u8 = 4;

/// The facts that the check depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IdleFacts {
    /// The client has sent something.
    pub(crate) has_received: bool,
    /// The client has sent a complete request.
    pub(crate) asked: bool,
    /// Bytes forwarded from the client, of which only a change matters.
    pub(crate) moved: u32,
    /// The client has to send next.
    pub(crate) awaited: bool,
}

/// The idle timer of one session's client.
#[derive(Debug, Default)]
pub(crate) struct IdleWatch {
    alarm: LazyTimer,
    /// The client was not read for a while because the gate was closed.
    pub(crate) gate_was_closed: bool,
    /// The client has sent a complete request.
    asked: bool,
    /// Consecutive silent quarters.
    quarters: u8,
    moved: u32,
}

impl IdleWatch {
    /// The timer of a client that has sent a complete request, or not.
    pub(crate) fn of(asked: bool) -> Self {
        Self { asked, ..Self::default() }
    }

    /// Starts the timer, unless it runs: that of a session that has rested does.
    pub(crate) fn begin(&mut self, options: &Options, has_received: bool, waker: &Waker) {
        if !self.alarm.is_set() {
            self.watch(options, has_received, waker);
        }
    }

    /// Starts the timer, if a timeout is configured.
    fn watch(&mut self, options: &Options, has_received: bool, waker: &Waker) {
        let (first, idle) = (options.first_byte_timeout, options.client_idle_timeout);
        let span = match (self.asked || first.is_zero(), has_received && !idle.is_zero()) {
            (true, _) => idle / u32::from(QUARTERS),
            (false, true) => first.min(idle),
            (false, false) => first,
        };
        if span > Duration::ZERO {
            self.alarm.set(span, waker);
        }
    }

    /// The timer keeps running while no pump does. `moved` is what the former one has forwarded;
    /// the next one begins at zero.
    pub(crate) fn begin_rest(&mut self, moved: u32, options: &Options) {
        self.moved = u32::from(moved != self.moved);
        if options.client_idle_timeout.is_zero() {
            self.alarm.clear();
        }
    }

    /// Whether the client is to be checked.
    pub(crate) fn is_due(&mut self, waker: &Waker) -> bool {
        self.alarm.is_due(waker)
    }

    /// Why the session ends, if the client was silent for too long. Call after everything received
    /// was forwarded.
    pub(crate) fn check(
        &mut self,
        options: &Options,
        facts: IdleFacts,
        waker: &Waker,
    ) -> Option<EndReason> {
        self.asked |= facts.asked;
        if !self.alarm.is_set() {
            // A reload may have configured a timeout.
            self.watch(options, facts.has_received, waker);
            return None;
        }
        if !self.alarm.is_due(waker) {
            return None;
        }
        self.alarm.clear();
        let gate_was_closed = std::mem::take(&mut self.gate_was_closed);
        let silent =
            !gate_was_closed && facts.moved == self.moved && (facts.awaited || !facts.has_received);
        self.moved = facts.moved;
        if !silent {
            self.quarters = 0;
        } else if !self.asked && !options.first_byte_timeout.is_zero() {
            return Some(EndReason::FirstByteTimeout);
        } else {
            self.quarters += 1;
        }
        self.watch(options, facts.has_received, waker);
        (self.quarters >= QUARTERS).then_some(EndReason::IdleTimeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_nanos(1);
    const HALF_A_REQUEST: IdleFacts =
        IdleFacts { has_received: true, asked: false, moved: 1, awaited: true };

    /// Checks when the alarm is due, which it is after the shortest interval of the timer.
    async fn checked(
        watch: &mut IdleWatch,
        options: &Options,
        facts: IdleFacts,
    ) -> Option<EndReason> {
        tokio::time::sleep(Duration::from_millis(5)).await;
        watch.check(options, facts, Waker::noop())
    }

    fn watching(asked: bool, options: &Options) -> IdleWatch {
        let mut watch = IdleWatch::of(asked);
        watch.watch(options, asked, Waker::noop());
        watch
    }

    #[tokio::test]
    async fn ends_idle_clients_that_stopped_within_a_request() {
        let options = Options { client_idle_timeout: 4 * NOW, ..Options::default() };
        let mut watch = watching(true, &options);
        for quarter in 0..=QUARTERS {
            let expected = (quarter == QUARTERS).then_some(EndReason::IdleTimeout);
            assert_eq!(checked(&mut watch, &options, HALF_A_REQUEST).await, expected, "{quarter}");
        }
    }

    #[tokio::test]
    async fn ends_clients_that_stop_within_their_first_request() {
        for client_idle_timeout in [Duration::ZERO, NOW, Duration::from_secs(60)] {
            let options =
                Options { first_byte_timeout: NOW, client_idle_timeout, ..Options::default() };
            let mut watch = watching(false, &options);
            assert_eq!(
                checked(&mut watch, &options, HALF_A_REQUEST).await,
                None,
                "a byte was received"
            );
            let reason = checked(&mut watch, &options, HALF_A_REQUEST).await;
            assert_eq!(reason, Some(EndReason::FirstByteTimeout));
        }
        // One complete request is enough.
        let options = Options { first_byte_timeout: NOW, ..Options::default() };
        let mut watch = watching(false, &options);
        assert_eq!(
            checked(&mut watch, &options, IdleFacts { asked: true, ..HALF_A_REQUEST }).await,
            None
        );
        assert_eq!(checked(&mut watch, &options, HALF_A_REQUEST).await, None);
        assert!(!watch.alarm.is_set());
    }

    #[tokio::test]
    async fn keeps_clients_whose_bytes_arrive_or_that_wait() {
        let options =
            Options { first_byte_timeout: NOW, client_idle_timeout: 4 * NOW, ..Options::default() };
        for asked in [true, false] {
            let (mut arriving, mut waiting) =
                (watching(asked, &options), watching(asked, &options));
            for moved in 1..20 {
                let facts = IdleFacts { moved, ..HALF_A_REQUEST };
                assert_eq!(checked(&mut arriving, &options, facts).await, None, "{moved}");
                let facts = IdleFacts { awaited: false, ..HALF_A_REQUEST };
                assert_eq!(checked(&mut waiting, &options, facts).await, None, "{moved}");
            }
        }
    }
}
