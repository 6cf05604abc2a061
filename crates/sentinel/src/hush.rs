//! A bound on what one thing may write to the log: a few lines at once, then one every few seconds, with the number of those
//! that were left out. A sentinel that comes and goes all day must not fill a disk.

use std::time::{Duration, Instant};

/// A token bucket that counts what it refuses.
#[derive(Debug, Clone)]
pub(crate) struct Hush {
    most: u32,
    every: Duration,
    left: u32,
    filled_at: Option<Instant>,
    unsaid: u64,
}

impl Hush {
    /// `most` lines at once, and another one after each `every`.
    pub(crate) fn new(most: u32, every: Duration) -> Self {
        Self { most, every, left: most, filled_at: None, unsaid: 0 }
    }

    /// Whether a line may be written now, and if so, how many were not since the last one.
    pub(crate) fn speak(&mut self, now: Instant) -> Option<u64> {
        let since = *self.filled_at.get_or_insert(now);
        let earned = now.saturating_duration_since(since).as_nanos() / self.every.as_nanos().max(1);
        if earned > 0 {
            self.left = self.left.saturating_add(u32::try_from(earned).unwrap_or(u32::MAX)).min(self.most);
            self.filled_at = Some(now);
        }
        if self.left == 0 {
            self.unsaid += 1;
            return None;
        }
        self.left -= 1;
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_then_one_a_while_and_what_was_left_out_is_counted() {
        let (mut hush, start) = (Hush::new(2, Duration::from_secs(10)), Instant::now());
        let said: Vec<Option<u64>> = (0..5).map(|_| hush.speak(start)).collect();
        assert_eq!(said, [Some(0), Some(0), None, None, None]);
        assert_eq!(hush.speak(start + Duration::from_secs(10)), Some(3));
        assert_eq!(hush.speak(start + Duration::from_secs(11)), None);
        let rested = start + Duration::from_secs(3600);
        assert_eq!((hush.speak(rested), hush.speak(rested), hush.speak(rested)), (Some(1), Some(0), None));
    }
}
