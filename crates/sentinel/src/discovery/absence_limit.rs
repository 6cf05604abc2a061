//! The longest absence of discovery after which what it knows is still trusted.
//!
//! A planned failover takes less than a second. A process that is stopped for that long, and then
//! forwards the requests that waited in its sockets, writes to a superseded master. The limit is
//! therefore far shorter than a failover, and an absence beyond it closes the gate until the
//! sentinels have answered again: a round trip.
//!
//! A process that is short of CPU time is absent as well, again and again. If each of these
//! absences closed the gate, it would hardly ever be open. Absences in close succession are
//! therefore taken for what they are: the limit rises above them, up to a maximum, and falls back
//! when they end. The workers of such a process are late, too, and the promise of the longer limit
//! still holds.
//!
//! Deliberately absent: reading the clocks ([`clock_jumps`](crate::discovery::clock_jumps)).

use std::time::{Duration, Instant};

/// This many absences within [`WINDOW`] raise the limit.
const MANY: usize = 3;
/// The kernel delays a process that is short of CPU time again within this time. A paused machine
/// or a frozen container is rarely paused twice in it.
const WINDOW: Duration = Duration::from_secs(8);
/// The limit falls back after this long without an absence beyond the usual limit.
const CALM: Duration = Duration::from_secs(10);

/// See the module's header.
#[derive(Debug)]
pub(crate) struct AbsenceLimit {
    /// The limit without starvation.
    usual: Duration,
    /// The limit never exceeds this.
    most: Duration,
    current: Duration,
    /// When the last absences beyond the current limit ended: fewer than [`MANY`].
    recent: Vec<Instant>,
    /// When the last absence beyond the usual limit ended.
    last: Option<Instant>,
}

impl AbsenceLimit {
    /// `usual` applies unless the process is starved; the limit never exceeds `most`.
    #[must_use]
    pub(crate) fn new(usual: Duration, most: Duration) -> Self {
        let most = most.max(usual);
        Self { usual, most, current: usual, recent: Vec::with_capacity(MANY), last: None }
    }

    /// The limit, and so the lease of the target.
    #[must_use]
    pub(crate) fn current(&self) -> Duration {
        self.current
    }

    /// An absence of this length ended just now. Returns whether it exceeds the limit.
    pub(crate) fn is_exceeded(&mut self, now: Instant, away: Duration) -> bool {
        let calm = self.last.is_none_or(|at| now.saturating_duration_since(at) >= CALM + away);
        if calm && self.current != self.usual {
            self.current = self.usual;
        }
        if away <= self.usual {
            return false;
        }
        self.last = Some(now);
        if away <= self.current {
            return false;
        }
        self.recent.retain(|at| now.saturating_duration_since(*at) < WINDOW);
        self.recent.push(now);
        if self.recent.len() >= MANY {
            self.recent.clear();
            self.current = away.saturating_mul(2).min(self.most);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Duration = Duration::from_millis(500);
    const MOST: Duration = Duration::from_secs(3);

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Absences that end at these times, each with its length. Returns which of them were too long.
    fn judge(limit: &mut AbsenceLimit, begin: Instant, absences: &[(u64, u64)]) -> Vec<bool> {
        absences.iter().map(|(at, away)| limit.is_exceeded(begin + ms(*at), ms(*away))).collect()
    }

    #[test]
    fn exceeds_after_any_single_stop_beyond_limit() {
        let (mut limit, begin) = (AbsenceLimit::new(USUAL, MOST), Instant::now());
        let stops = [(100, 100), (600, 500), (1101, 501), (10_000, 1000), (100_000, 60_000)];
        assert_eq!(judge(&mut limit, begin, &stops), [false, false, true, true, true]);
        assert_eq!(limit.current(), USUAL);
    }

    #[test]
    fn stays_strict_for_repeated_but_rare_stops() {
        let (mut limit, begin) = (AbsenceLimit::new(USUAL, MOST), Instant::now());
        let stops: Vec<(u64, u64)> = (1..100).map(|number| (number * 5000, 1000)).collect();
        assert!(judge(&mut limit, begin, &stops).into_iter().all(|it| it));
        assert_eq!(limit.current(), USUAL);
    }

    #[test]
    fn rises_when_starved_and_falls_back() {
        for away in [501, 600, 1000, 1500, 2400] {
            let (mut limit, begin) = (AbsenceLimit::new(USUAL, MOST), Instant::now());
            let starved: Vec<(u64, u64)> = (1..100).map(|turn| (turn * away, away)).collect();
            let closed = judge(&mut limit, begin, &starved).into_iter().filter(|it| *it).count();
            assert_eq!(closed, MANY, "absences of {away} ms close the gate without end");
            assert!(limit.current() > ms(away) && limit.current() <= MOST);
            // Beyond the raised limit nothing is trusted either.
            let end = begin + ms(99 * away);
            assert!(limit.is_exceeded(end + ms(3001), ms(3001)));
            // Short iterations for ten seconds.
            for turn in 1..=110 {
                assert!(!limit.is_exceeded(end + ms(3001 + turn * 100), ms(100)));
            }
            assert_eq!(limit.current(), USUAL);
            assert!(limit.is_exceeded(end + ms(20_000), ms(501)));
        }
    }

    #[test]
    fn never_exceeds_maximum() {
        let (mut limit, begin) = (AbsenceLimit::new(USUAL, MOST), Instant::now());
        let stops: Vec<(u64, u64)> = (1..100).map(|turn| (turn * 3500, 3500)).collect();
        let closed = judge(&mut limit, begin, &stops);
        assert!(closed.into_iter().all(|it| it));
        assert!(limit.current() <= MOST);
    }
}
