//! Finds connections on which a request holds up those after it: a slow script, a module that
//! blocks its connection, a paused server, or one that stopped.
//!
//! A stalled connection gets no further requests until it has made progress; its clients use
//! another one as soon as they have nothing in flight. It is not closed for that: the requests on
//! it may be executing, and on a connection of its own each would wait, too.
//!
//! The caller passes the time. A late check finds a stall late, and never one that is none:
//! progress since the last check ends it, however long ago that was.

use std::time::Duration;

/// Observes the progress of one connection.
#[derive(Debug, Clone, Copy)]
pub struct StallDetector {
    limit: Duration,
    answered: u64,
    /// Since when nothing was answered while something was in flight.
    waiting_since: Option<Duration>,
}

impl StallDetector {
    /// A connection is stalled if nothing is answered for `limit` while something is in flight.
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        Self { limit, answered: 0, waiting_since: None }
    }

    /// Observes the connection at `now`, on a monotonic clock; returns whether it is stalled.
    /// `answered` is the number of replies so far, `in_flight` that of outstanding requests.
    pub fn observe(&mut self, now: Duration, answered: u64, in_flight: u32) -> bool {
        let progress = answered != self.answered;
        self.answered = answered;
        if in_flight == 0 {
            self.waiting_since = None;
            return false;
        }
        if progress || self.waiting_since.is_none() {
            self.waiting_since = Some(now);
            return false;
        }
        self.waiting_since.is_some_and(|since| now.saturating_sub(since) >= self.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalls_only_without_any_reply_for_the_limit() {
        let at = Duration::from_millis;
        let mut it = StallDetector::new(at(100));
        assert!(!it.observe(at(0), 0, 0));
        assert!(!it.observe(at(1_000), 0, 1), "idle time does not count");
        assert!(!it.observe(at(1_099), 0, 2));
        assert!(it.observe(at(1_100), 0, 2));
        assert!(!it.observe(at(1_150), 1, 1), "a reply");
        assert!(!it.observe(at(1_249), 1, 1) && it.observe(at(1_250), 1, 1));
        assert!(!it.observe(at(1_300), 2, 0));
        assert!(!it.observe(at(9_000), 2, 1), "a late check");
        // A clock that is read out of order stalls nothing.
        assert!(!it.observe(at(8_000), 2, 1));
    }
}
