//! A bound on what one thing may write to the log: a few lines at once, then one every few seconds,
//! with the number of those that were left out. A sentinel that comes and goes all day must not
//! fill a disk.

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
        if !self.has_room(now) {
            self.unsaid += 1;
            return None;
        }
        self.left -= 1;
        Some(std::mem::take(&mut self.unsaid))
    }

    fn has_room(&mut self, now: Instant) -> bool {
        let since = *self.filled_at.get_or_insert(now);
        let earned = now.saturating_duration_since(since).as_nanos() / self.every.as_nanos().max(1);
        if earned > 0 {
            self.left =
                self.left.saturating_add(u32::try_from(earned).unwrap_or(u32::MAX)).min(self.most);
            self.filled_at = Some(now);
        }
        self.left > 0
    }
}

/// A line that may have to wait; it is given how many others were left out.
type Line = Box<dyn FnOnce(u64) + Send>;

/// Speaks within a bound and never keeps the last word to itself: the latest line that was left out
/// is told when there is room again. In a storm of failovers the log then says at least where it
/// ended.
pub(crate) struct Voice {
    hush: Hush,
    last: Option<Line>,
}

impl Voice {
    /// As [`Hush::new`].
    pub(crate) fn new(most: u32, every: Duration) -> Self {
        Self { hush: Hush::new(most, every), last: None }
    }

    /// Writes `line` now, or later if nothing else is said meanwhile.
    pub(crate) fn say(&mut self, now: Instant, line: impl FnOnce(u64) + Send + 'static) {
        match self.hush.speak(now) {
            Some(unsaid) => {
                self.last = None;
                line(unsaid);
            }
            None => self.last = Some(Box::new(line)),
        }
    }

    /// Says what is still to be said, if there is room. To be called now and then.
    pub(crate) fn catch_up(&mut self, now: Instant) {
        if self.last.is_some() && self.hush.has_room(now) {
            let (line, unsaid) = (self.last.take(), self.hush.speak(now).unwrap_or_default());
            // The line itself was counted as unsaid, and is said now.
            line.into_iter().for_each(|line| line(unsaid.saturating_sub(1)));
        }
    }
}

impl std::fmt::Debug for Voice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Voice")
            .field("hush", &self.hush)
            .field("waits", &self.last.is_some())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn the_last_word_of_a_storm_is_said_when_there_is_room_again() {
        let (said, start) = (Arc::new(Mutex::new(Vec::new())), Instant::now());
        let mut voice = Voice::new(2, Duration::from_secs(10));
        for number in 0..100 {
            let said = Arc::clone(&said);
            voice.say(start, move |unsaid| said.lock().expect("no poison").push((number, unsaid)));
        }
        voice.catch_up(start);
        voice.catch_up(start + Duration::from_secs(9));
        assert_eq!(*said.lock().expect("no poison"), [(0, 0), (1, 0)]);
        for late in [10, 20, 30] {
            voice.catch_up(start + Duration::from_secs(late));
        }
        assert_eq!(
            *said.lock().expect("no poison"),
            [(0, 0), (1, 0), (99, 97)],
            "once, and the 97 between are counted"
        );
    }

    #[test]
    fn a_burst_then_one_a_while_and_what_was_left_out_is_counted() {
        let (mut hush, start) = (Hush::new(2, Duration::from_secs(10)), Instant::now());
        let said: Vec<Option<u64>> = (0..5).map(|_| hush.speak(start)).collect();
        assert_eq!(said, [Some(0), Some(0), None, None, None]);
        assert_eq!(hush.speak(start + Duration::from_secs(10)), Some(3));
        assert_eq!(hush.speak(start + Duration::from_secs(11)), None);
        let rested = start + Duration::from_secs(3600);
        assert_eq!(
            (hush.speak(rested), hush.speak(rested), hush.speak(rested)),
            (Some(1), Some(0), None)
        );
    }
}
