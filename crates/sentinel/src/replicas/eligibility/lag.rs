//! How far a replica is behind its master, in bytes and in time, from offsets in the replication
//! stream.
//!
//! Bytes are a subtraction. Time is read from the master's own past: what the master had written by
//! a certain moment, and the replica has not, is as old as that moment.
//! `master_last_io_seconds_ago` would not do: it is young on a link over which an idle master is
//! merely pinged, and says nothing of how much waits.
//!
//! Between a question and its answer an offset grows, by megabytes where a busy master answers
//! late, and nobody knows at which moment of these it was read. So each is stamped where it is true
//! in any case, in favour of the replica: what the master names, it had written by the time of its
//! answer; what a replica names, it had applied at its answer, and is held against its question.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Samples that are remembered; with one every quarter of a second that is a minute and more.
const MOST: usize = 256;

/// Samples are at least this far apart.
const APART: Duration = Duration::from_millis(250);

/// How far behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Lag {
    /// Bytes of the stream that the master had written and the replica has not applied.
    pub bytes: u64,
    /// For how long the master has had the first of them; as long as is known at least.
    pub time: Duration,
}

/// Offsets of one master, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Past {
    samples: VecDeque<(Instant, u64)>,
    /// When the question went out whose answer was noted last.
    asked_at: Option<Instant>,
}

impl Past {
    /// The master, asked at `asked_at`, has answered that it is at `offset`; heard at `at`. May be
    /// told as often as anybody likes.
    pub(super) fn note(&mut self, asked_at: Instant, at: Instant, offset: u64) {
        if self.asked_at.replace(asked_at) == Some(asked_at) {
            return;
        }
        match self.samples.back() {
            // Another stream than before, or an answer that was overtaken.
            Some((_, last)) if offset < *last => self.samples.clear(),
            Some((last, _)) if at.saturating_duration_since(*last) < APART => return,
            _ => {}
        }
        if self.samples.len() >= MOST {
            self.samples.pop_front();
        }
        self.samples.push_back((at, offset));
    }

    /// Nothing of this is about the present master.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// How far a replica is behind that was at `offset` when it was asked at `at`. What the master
    /// wrote after that counts against nobody.
    pub(super) fn lag(&self, at: Instant, offset: u64) -> Lag {
        let before = || self.samples.iter().filter(|(seen, _)| *seen <= at);
        let bytes = before().next_back().map_or(0, |(_, there)| there.saturating_sub(offset));
        let first_missing = before().find(|(_, there)| *there > offset);
        Lag {
            bytes,
            time: first_missing
                .map_or(Duration::ZERO, |(seen, _)| at.saturating_duration_since(*seen)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn what_is_missing_is_as_old_as_its_first_byte() {
        let (mut past, start) = (Past::default(), Instant::now());
        for second in 0..10_u64 {
            let at = start + ms(second * 1000);
            past.note(at, at, 100 * second);
        }
        let at = start + ms(9500);
        assert_eq!(past.lag(at, 900), Lag::default());
        assert_eq!(past.lag(at, 5000), Lag::default(), "ahead of the last answer is not behind");
        assert_eq!(past.lag(at, 850), Lag { bytes: 50, time: ms(500) });
        assert_eq!(past.lag(at, 600), Lag { bytes: 300, time: ms(2500) });
        assert_eq!(
            past.lag(start + ms(3500), 300),
            Lag::default(),
            "what came after the question does not count"
        );
    }

    #[test]
    fn what_a_busy_master_wrote_before_its_late_answer_counts_against_nobody_who_was_asked_meanwhile()
     {
        let (mut past, start) = (Past::default(), Instant::now());
        past.note(start, start, 0);
        // Asked at one second, it answers 400 ms later with all that it had written until then.
        past.note(start + ms(1000), start + ms(1400), 1400);
        assert_eq!(
            past.lag(start + ms(1200), 1200),
            Lag::default(),
            "as far as the master was when the replica was asked"
        );
        assert_eq!(past.lag(start + ms(1500), 1300), Lag { bytes: 100, time: ms(100) });
        // The same answer, told again, is no younger.
        past.note(start + ms(1000), start + ms(2000), 1400);
        assert_eq!(past.lag(start + ms(2100), 1300), Lag { bytes: 100, time: ms(700) });
    }

    #[test]
    fn an_idle_master_leaves_nobody_behind_and_the_past_is_bounded() {
        let (mut past, start) = (Past::default(), Instant::now());
        for sample in 0..10_000_u64 {
            let at = start + ms(sample * 20);
            past.note(at, at, 7);
        }
        assert!(past.samples.len() <= MOST);
        assert_eq!(past.lag(start + ms(200_000), 7), Lag::default());
        assert!(past.lag(start + ms(200_000), 6).time >= ms(60_000), "as old as is remembered");
        past.note(start + ms(300_000), start + ms(300_000), 3);
        assert_eq!(past.lag(start + ms(300_000), 3), Lag::default(), "another stream");
    }
}
