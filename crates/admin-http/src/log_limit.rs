//! Limits how often one line is logged.

use std::time::{Duration, Instant};

/// When a line was logged, and how often it was left out since.
#[derive(Debug, Default)]
pub(crate) struct LogLimit(Option<Instant>, u64);

impl LogLimit {
    /// Returns how many lines were left out before this one, unless it is left out as well.
    pub(crate) fn admit(&mut self, interval: Duration) -> Option<u64> {
        let now = Instant::now();
        if self.0.is_some_and(|logged| now.saturating_duration_since(logged) < interval) {
            self.1 += 1;
            return None;
        }
        self.0 = Some(now);
        Some(std::mem::take(&mut self.1))
    }
}
