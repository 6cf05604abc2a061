//! A rate limiter for log lines and dials: a token bucket that counts what it suppresses.
//!
//! A sentinel that connects and disconnects all day must not fill a disk, nor a peer that lists new
//! addresses with every answer make this process dial without bound.

use std::time::{Duration, Instant};

/// A log line that may be delayed. It receives the number of lines that were suppressed.
type Line = Box<dyn FnOnce(u64) + Send>;

/// Allows `burst` events at once and another one per interval.
///
/// [`log`](Self::log) keeps the latest suppressed line, and [`flush`](Self::flush) writes it once
/// the limit allows. In a storm of failovers the log then shows at least the final state.
pub(crate) struct RateLimiter {
    burst: u32,
    interval: Duration,
    available: u32,
    refilled_at: Option<Instant>,
    suppressed: u64,
    delayed: Option<Line>,
}

impl RateLimiter {
    /// Allows `burst` events at once, and one more per `interval`.
    pub(crate) fn new(burst: u32, interval: Duration) -> Self {
        let (refilled_at, suppressed, delayed) = (None, 0, None);
        Self { burst, interval, available: burst, refilled_at, suppressed, delayed }
    }

    /// Whether an event is allowed now; if so, how many were suppressed since the last one.
    pub(crate) fn allow(&mut self, now: Instant) -> Option<u64> {
        if !self.is_available(now) {
            self.suppressed += 1;
            return None;
        }
        self.available -= 1;
        Some(std::mem::take(&mut self.suppressed))
    }

    /// Writes `line` now, or later unless another line replaces it meanwhile.
    pub(crate) fn log(&mut self, now: Instant, line: impl FnOnce(u64) + Send + 'static) {
        match self.allow(now) {
            Some(suppressed) => {
                self.delayed = None;
                line(suppressed);
            }
            None => self.delayed = Some(Box::new(line)),
        }
    }

    /// Writes the delayed line if the limit allows it. To be called periodically.
    pub(crate) fn flush(&mut self, now: Instant) {
        if self.delayed.is_some() && self.is_available(now) {
            let (line, suppressed) = (self.delayed.take(), self.allow(now).unwrap_or_default());
            // The delayed line was counted as suppressed, and is written after all.
            line.into_iter().for_each(|line| line(suppressed.saturating_sub(1)));
        }
    }

    fn is_available(&mut self, now: Instant) -> bool {
        let since = *self.refilled_at.get_or_insert(now);
        let earned =
            now.saturating_duration_since(since).as_nanos() / self.interval.as_nanos().max(1);
        if earned > 0 {
            let earned = u32::try_from(earned).unwrap_or(u32::MAX);
            self.available = self.available.saturating_add(earned).min(self.burst);
            self.refilled_at = Some(now);
        }
        self.available > 0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn writes_last_suppressed_line_when_limit_allows() {
        let (lines, start) = (Arc::new(Mutex::new(Vec::new())), Instant::now());
        let mut limiter = RateLimiter::new(2, Duration::from_secs(10));
        for number in 0..100 {
            let lines = Arc::clone(&lines);
            limiter.log(start, move |suppressed| {
                lines.lock().expect("not poisoned").push((number, suppressed));
            });
        }
        limiter.flush(start);
        limiter.flush(start + Duration::from_secs(9));
        assert_eq!(*lines.lock().expect("not poisoned"), [(0, 0), (1, 0)]);
        for late in [10, 20, 30] {
            limiter.flush(start + Duration::from_secs(late));
        }
        assert_eq!(
            *lines.lock().expect("not poisoned"),
            [(0, 0), (1, 0), (99, 97)],
            "written once, with the 97 lines in between counted"
        );
    }

    #[test]
    fn allows_burst_then_one_per_interval() {
        let start = Instant::now();
        let mut limiter = RateLimiter::new(2, Duration::from_secs(10));
        let allowed: Vec<Option<u64>> = (0..5).map(|_| limiter.allow(start)).collect();
        assert_eq!(allowed, [Some(0), Some(0), None, None, None]);
        assert_eq!(limiter.allow(start + Duration::from_secs(10)), Some(3));
        assert_eq!(limiter.allow(start + Duration::from_secs(11)), None);
        let late = start + Duration::from_secs(3600);
        assert_eq!(
            (limiter.allow(late), limiter.allow(late), limiter.allow(late)),
            (Some(1), Some(0), None)
        );
    }
}
