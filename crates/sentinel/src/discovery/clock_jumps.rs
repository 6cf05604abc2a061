//! Measures how long this process was suspended since the last reading of its clocks, by any cause.
//!
//! [`Instant`](std::time::Instant) reveals a stopped process but not a suspended host, because the
//! monotonic clock stands still meanwhile. The boot clock reveals both. Neither reveals a virtual
//! machine that was paused or restored from a snapshot together with its clocks; there, the only
//! trace is that the wall clock is corrected right afterwards. A wall clock that jumps forward
//! therefore counts as time away, too. A time service may have set it for reasons of its own, which
//! causes a needless check, so a jump is believed at most once per minute. A wall clock that is set
//! back is ignored.
//!
//! Deliberately absent: reading the clocks, and the limit beyond which an absence matters.

use std::time::Duration;

/// The wall clock may gain this much on the boot clock between two readings without counting as
/// set.
const MAX_SLEW: Duration = Duration::from_secs(1);

/// The minimum interval between two jumps of the wall clock that are believed without the boot
/// clock.
const WALL_CLOCK_INTERVAL: Duration = Duration::from_secs(60);

/// Both clocks at about the same time, each since its own origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClockReadings {
    /// Since the host was started, including the time during which it was suspended.
    pub(crate) boot: Duration,
    /// Since 1970.
    pub(crate) wall: Duration,
}

/// Detects jumps; see the module documentation.
#[derive(Debug)]
pub(crate) struct ClockJumps {
    last: ClockReadings,
    /// When a jump of the wall clock was last believed, by the boot clock.
    believed_at: Option<Duration>,
}

impl ClockJumps {
    pub(crate) fn new(now: ClockReadings) -> Self {
        Self { last: now, believed_at: None }
    }

    /// The time since the last reading, by the largest of the clocks that are believed.
    pub(crate) fn away(&mut self, now: ClockReadings) -> Duration {
        let last = std::mem::replace(&mut self.last, now);
        let (boot, wall) = (now.boot.saturating_sub(last.boot), now.wall.saturating_sub(last.wall));
        if wall <= boot + MAX_SLEW {
            return boot;
        }
        let rare =
            self.believed_at.is_none_or(|at| now.boot.saturating_sub(at) >= WALL_CLOCK_INTERVAL);
        if !rare {
            return boot;
        }
        self.believed_at = Some(now.boot);
        wall
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALL: u64 = 1_700_000_000_000;

    fn clocks(boot_ms: u64, wall_ms: u64) -> ClockReadings {
        ClockReadings { boot: Duration::from_millis(boot_ms), wall: Duration::from_millis(wall_ms) }
    }

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn counts_the_time_of_an_ordinary_turn() {
        let mut jumps = ClockJumps::new(clocks(0, WALL));
        for turn in 1..100 {
            assert_eq!(jumps.away(clocks(turn * 250, WALL + turn * 250)), ms(250));
        }
    }

    #[test]
    fn counts_stopped_process_and_suspended_host_alike() {
        // The monotonic clock would show 250 ms for the second case, and is not used.
        let mut jumps = ClockJumps::new(clocks(0, WALL));
        assert_eq!(jumps.away(clocks(30_250, WALL + 30_250)), ms(30_250));
        assert_eq!(jumps.away(clocks(60_500, WALL + 60_500)), ms(30_250));
    }

    #[test]
    fn counts_a_host_paused_with_its_clocks() {
        let mut jumps = ClockJumps::new(clocks(0, WALL));
        // Nothing is detected until its wall clock is corrected.
        assert_eq!(jumps.away(clocks(250, WALL + 250)), ms(250));
        assert_eq!(jumps.away(clocks(500, WALL + 60_000)), ms(59_750));
        assert_eq!(jumps.away(clocks(750, WALL + 60_250)), ms(250));
    }

    #[test]
    fn ignores_a_wall_clock_that_is_set_back_or_slewed() {
        let mut jumps = ClockJumps::new(clocks(0, WALL));
        assert_eq!(jumps.away(clocks(250, WALL - 3_600_000)), ms(250));
        assert_eq!(jumps.away(clocks(500, WALL - 3_600_000 + 900)), ms(250));
        // A suspend is detected although the wall clock was set back meanwhile.
        assert_eq!(jumps.away(clocks(30_500, WALL - 7_200_000)), ms(30_000));
    }

    #[test]
    fn believes_the_wall_clock_once_a_minute() {
        let mut jumps = ClockJumps::new(clocks(0, WALL));
        // Set forward by ten seconds, four times per second, for ten minutes.
        let looks = (1..=2400)
            .filter(|turn| jumps.away(clocks(turn * 250, WALL + turn * 10_250)) > ms(250))
            .count();
        assert_eq!(looks, 10);
        // A real stop is detected meanwhile.
        assert_eq!(jumps.away(clocks(630_000, WALL + 24_630_000)), ms(30_000));
    }
}
