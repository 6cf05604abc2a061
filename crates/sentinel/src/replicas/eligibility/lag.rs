//! Replication lag in bytes and in time, from replication offsets.
//!
//! Bytes are a subtraction. Time is read from the master's own offset history: what the master had
//! written by a certain moment, and the replica has not applied, is as old as that moment.
//! `master_last_io_seconds_ago` would not do: it is small on a link over which an idle master only
//! sends PINGs, and says nothing about the amount of pending data.
//!
//! Between a probe and its answer an offset grows, by megabytes if a busy master answers late, and
//! the moment at which it was read is unknown. Each offset is therefore given the time that is
//! correct in any case, in favour of the replica: the master had written its offset by the time of
//! its answer; a replica had applied its offset at its answer, and is compared as of its probe.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Limit of samples; at four per second they cover more than a minute.
const MAX_SAMPLES: usize = 256;

/// Minimum time between samples.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);

/// Replication lag of one replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Lag {
    /// Bytes of the stream that the master had written and the replica has not applied.
    pub bytes: u64,
    /// For how long the master has had the first of them; a lower bound if that is beyond the
    /// history.
    pub time: Duration,
}

/// Replication offsets of one master over time, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct OffsetHistory {
    samples: VecDeque<(Instant, u64)>,
    /// When the probe was sent whose answer was recorded last.
    asked_at: Option<Instant>,
}

impl OffsetHistory {
    /// Records that the master, probed at `asked_at`, answered at `at` with `offset`. Repeated
    /// answers are ignored.
    pub(super) fn note(&mut self, asked_at: Instant, at: Instant, offset: u64) {
        if self.asked_at.replace(asked_at) == Some(asked_at) {
            return;
        }
        match self.samples.back() {
            // Another replication stream, or an answer that was overtaken.
            Some((_, last)) if offset < *last => self.samples.clear(),
            Some((last, _)) if at.saturating_duration_since(*last) < SAMPLE_INTERVAL => return,
            _ => {}
        }
        if self.samples.len() >= MAX_SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back((at, offset));
    }

    /// Drops samples of the previous master.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// The lag of a replica that reported `offset` when it was probed at `at`. What the master
    /// wrote after that does not count.
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
    fn lag_is_as_old_as_first_missing_byte() {
        let (mut history, start) = (OffsetHistory::default(), Instant::now());
        for second in 0..10_u64 {
            let at = start + ms(second * 1000);
            history.note(at, at, 100 * second);
        }
        let at = start + ms(9500);
        assert_eq!(history.lag(at, 900), Lag::default());
        assert_eq!(history.lag(at, 5000), Lag::default(), "ahead of the last sample is no lag");
        assert_eq!(history.lag(at, 850), Lag { bytes: 50, time: ms(500) });
        assert_eq!(history.lag(at, 600), Lag { bytes: 300, time: ms(2500) });
        assert_eq!(
            history.lag(start + ms(3500), 300),
            Lag::default(),
            "what was written after the probe does not count"
        );
    }

    #[test]
    fn ignores_writes_between_late_answer_and_probe() {
        let (mut history, start) = (OffsetHistory::default(), Instant::now());
        history.note(start, start, 0);
        // Probed at one second, it answers 400 ms later with everything written until then.
        history.note(start + ms(1000), start + ms(1400), 1400);
        assert_eq!(
            history.lag(start + ms(1200), 1200),
            Lag::default(),
            "the master's offset when the replica was probed"
        );
        assert_eq!(history.lag(start + ms(1500), 1300), Lag { bytes: 100, time: ms(100) });
        // The same answer, recorded again, is no younger.
        history.note(start + ms(1000), start + ms(2000), 1400);
        assert_eq!(history.lag(start + ms(2100), 1300), Lag { bytes: 100, time: ms(700) });
    }

    #[test]
    fn idle_master_causes_no_lag_and_history_is_bounded() {
        let (mut history, start) = (OffsetHistory::default(), Instant::now());
        for sample in 0..10_000_u64 {
            let at = start + ms(sample * 20);
            history.note(at, at, 7);
        }
        assert!(history.samples.len() <= MAX_SAMPLES);
        assert_eq!(history.lag(start + ms(200_000), 7), Lag::default());
        assert!(history.lag(start + ms(200_000), 6).time >= ms(60_000), "as old as the history");
        history.note(start + ms(300_000), start + ms(300_000), 3);
        assert_eq!(history.lag(start + ms(300_000), 3), Lag::default(), "another stream");
    }
}
