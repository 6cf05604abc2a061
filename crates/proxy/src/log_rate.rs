//! A limit of log lines about what peers do: at most one per kind and interval, since peers decide
//! how often it happens.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The minimum interval between two lines of one kind.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// The lines of `KINDS` kinds.
#[derive(Debug)]
pub(crate) struct LogRate<const KINDS: usize>(Mutex<[Reported; KINDS]>);

#[derive(Debug, Default, Clone, Copy)]
struct Reported {
    last: Option<Instant>,
    /// Events since.
    unlogged: u64,
}

impl<const KINDS: usize> Default for LogRate<KINDS> {
    fn default() -> Self {
        Self(Mutex::new([Reported::default(); KINDS]))
    }
}

impl<const KINDS: usize> LogRate<KINDS> {
    /// Whether to log an event of this kind, and how many were not logged since the last line.
    pub(crate) fn due(&self, kind: usize, now: Instant) -> Option<u64> {
        let mut reported = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let reported = reported.get_mut(kind)?;
        let is_due =
            reported.last.is_none_or(|last| now.saturating_duration_since(last) >= LOG_EVERY);
        if !is_due {
            reported.unlogged += 1;
            return None;
        }
        reported.last = Some(now);
        Some(std::mem::take(&mut reported.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_one_line_per_kind_and_interval() {
        let (log, start) = (LogRate::<2>::default(), Instant::now());
        assert_eq!(log.due(0, start), Some(0));
        for _ in 0..1000 {
            assert_eq!(log.due(0, start + LOG_EVERY / 2), None);
        }
        assert_eq!(log.due(1, start), Some(0));
        assert_eq!(log.due(0, start + LOG_EVERY), Some(1000));
        assert_eq!(log.due(0, start + LOG_EVERY * 2), Some(0));
        assert_eq!(log.due(2, start), None);
    }
}
