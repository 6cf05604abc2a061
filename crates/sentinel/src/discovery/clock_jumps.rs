//! How long this process was away since it last looked at its clocks, whichever way it was stopped.
//!
//! [`Instant`](std::time::Instant) shows a process that was stopped, and does not show a machine
//! that was suspended: the monotonic clock stands still meanwhile. The boot clock shows both.
//! Neither shows a virtual machine that was paused or restored from a snapshot with all its clocks;
//! what shows it is that somebody sets the wall clock right afterwards. So a wall clock that jumps
//! forward counts as time away, too. It may also have been set by a time service for reasons of its
//! own, and then costs one needless look; that is why it is believed once a minute at most. A wall
//! clock that is set back says nothing.
//!
//! Deliberately absent: reading the clocks, and how long is too long.

use std::time::Duration;

/// The wall clock may gain this much on the boot clock between two looks without having been set.
const MAX_SLEW: Duration = Duration::from_secs(1);

/// The wall clock's word by itself is taken this often at most.
const WALL_CLOCK_INTERVAL: Duration = Duration::from_secs(60);

/// Both clocks at about the same moment, each since its own origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClockReadings {
    /// Since the machine was started, the time included in which it was suspended.
    pub(crate) boot: Duration,
    /// Since 1970.
    pub(crate) wall: Duration,
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct ClockJumps {
    last: ClockReadings,
    /// When the wall clock's word was last taken, on the boot clock.
    believed_at: Option<Duration>,
}

impl ClockJumps {
    pub(crate) fn new(now: ClockReadings) -> Self {
        Self { last: now, believed_at: None }
    }

    /// How long it is since the last look, by the clock that says most of those that are believed.
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
    fn counts_a_stopped_process_and_a_suspended_machine_alike() {
        // The monotonic clock would say 250 ms for the second one, and is not asked.
        let mut jumps = ClockJumps::new(clocks(0, WALL));
        assert_eq!(jumps.away(clocks(30_250, WALL + 30_250)), ms(30_250));
        assert_eq!(jumps.away(clocks(60_500, WALL + 60_500)), ms(30_250));
    }

    #[test]
    fn counts_a_machine_that_was_paused_with_its_clocks() {
        let mut jumps = ClockJumps::new(clocks(0, WALL));
        // Nothing is seen until its wall clock is set right.
        assert_eq!(jumps.away(clocks(250, WALL + 250)), ms(250));
        assert_eq!(jumps.away(clocks(500, WALL + 60_000)), ms(59_750));
        assert_eq!(jumps.away(clocks(750, WALL + 60_250)), ms(250));
    }

    #[test]
    fn ignores_a_wall_clock_that_is_set_back_or_slewed() {
        let mut jumps = ClockJumps::new(clocks(0, WALL));
        assert_eq!(jumps.away(clocks(250, WALL - 3_600_000)), ms(250));
        assert_eq!(jumps.away(clocks(500, WALL - 3_600_000 + 900)), ms(250));
        // A suspend shows although the wall clock was set back meanwhile.
        assert_eq!(jumps.away(clocks(30_500, WALL - 7_200_000)), ms(30_000));
    }

    #[test]
    fn believes_the_wall_clock_once_a_minute() {
        let mut jumps = ClockJumps::new(clocks(0, WALL));
        // Set forward by ten seconds, four times a second, for ten minutes.
        let looks = (1..=2400)
            .filter(|turn| jumps.away(clocks(turn * 250, WALL + turn * 10_250)) > ms(250))
            .count();
        assert_eq!(looks, 10);
        // A real stop is seen meanwhile.
        assert_eq!(jumps.away(clocks(630_000, WALL + 24_630_000)), ms(30_000));
    }
}
