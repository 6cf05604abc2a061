//! How the master's clients are kept paused: by short pauses that are renewed, and never for so
//! long that a sentinel notices.
//!
//! `CLIENT PAUSE … WRITE` stops every command that may replicate, and `PUBLISH` is one: the hello
//! message of a sentinel waits at the paused master, and every PING that the sentinel sends after
//! it on the same connection waits as well. So a pause of `down-after-milliseconds` makes the
//! sentinels hold the master to be down, and fail over once more. Whatever ends this process leaves
//! a pause that ends by itself soon.

use std::time::{Duration, Instant};

use super::reason::Reason;

/// One pause. What is left of it if this process is killed.
const SPAN: Duration = Duration::from_millis(500);
/// From one to the next.
const RENEW_EVERY: Duration = Duration::from_millis(150);
/// From the order to the commit it takes Sentinel about a second: a pause that has to end earlier
/// would be for nothing.
const PROMOTION: Duration = Duration::from_millis(1200);

/// What is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    /// Send `CLIENT PAUSE` with this time.
    Pause(Duration),
    /// No more may be sent. Comes once.
    Over,
}

/// See the module's header.
#[derive(Debug)]
pub(super) struct Pausing {
    /// How long all pauses together may last.
    budget: Duration,
    /// There is to be no further pause.
    stopped: bool,
    first: Option<Instant>,
    /// When the next one is to be sent; `None` if there is none to be.
    due: Option<Instant>,
    /// When one was sent that has not been answered, and its time.
    asked: Option<(Instant, Duration)>,
    /// The master's clients are paused until then at least.
    until: Option<Instant>,
}

impl Pausing {
    /// Three quarters of `down_after` may be used.
    pub(super) fn within(down_after: Duration) -> Result<Self, Reason> {
        let budget = down_after * 3 / 4;
        if budget < PROMOTION + SPAN / 2 {
            return Err(Reason::TooLong(down_after));
        }
        Ok(Self { budget, stopped: false, first: None, due: None, asked: None, until: None })
    }

    /// By when the failover has to be ordered, so that the pause lasts until the commit.
    pub(super) fn order_by(&self, latest: Instant) -> Instant {
        self.first.map_or(latest, |first| latest.min(first + self.budget - PROMOTION))
    }

    /// Sends no more. Whether there is something to be taken back, which is said once.
    pub(super) fn stop(&mut self) -> bool {
        self.due = None;
        !std::mem::replace(&mut self.stopped, true) && self.was_tried()
    }

    /// Whether a pause was sent at all.
    pub(super) fn was_tried(&self) -> bool {
        self.first.is_some()
    }

    /// Whether the clients are paused at `now` for certain.
    pub(super) fn holds_at(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// When [`due`](Self::due) is to be called.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.filter(|_| self.asked.is_none())
    }

    /// What is due; a pause counts as sent.
    pub(super) fn due(&mut self, now: Instant) -> Due {
        let first = match self.first {
            Some(first) => first,
            None => *self.due.insert(*self.first.insert(now)),
        };
        if self.asked.is_some() || self.due.is_none_or(|at| now < at) {
            return Due::Nothing;
        }
        let left = (first + self.budget).saturating_duration_since(now);
        if left < RENEW_EVERY {
            self.due = None;
            return Due::Over;
        }
        let span = SPAN.min(left);
        self.asked = Some((now, span));
        Due::Pause(span)
    }

    /// The master's answer, which is passed on.
    pub(super) fn answered(
        &mut self,
        now: Instant,
        answer: Result<(), String>,
    ) -> Result<(), String> {
        let Some((sent, span)) = self.asked.take() else { return answer };
        if answer.is_ok() && !self.stopped {
            // The time runs from the execution, which was not before it was sent.
            self.until = Some(sent + span);
            self.due = Some((sent + RENEW_EVERY).max(now));
        } else {
            self.due = None;
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    /// Sends whatever is due, every millisecond, each answered at once; gives the times and spans.
    fn run(pausing: &mut Pausing, start: Instant, millis: u64) -> Vec<(u64, Duration)> {
        let mut sent = Vec::new();
        for at in 0..millis {
            let now = start + MS(at);
            if let Due::Pause(span) = pausing.due(now) {
                sent.push((at, span));
                pausing.answered(now, Ok(())).unwrap();
            }
        }
        sent
    }

    #[test]
    fn overlaps_pauses_and_ends_before_down_after() {
        let start = Instant::now();
        for down_after in [2000, 5000, 10_000, 30_000] {
            let mut pausing = Pausing::within(MS(down_after)).unwrap();
            let sent = run(&mut pausing, start, down_after * 2);
            let ends: Vec<u64> =
                sent.iter().map(|(at, span)| at + span.as_millis() as u64).collect();
            for (next, end) in sent.iter().skip(1).zip(&ends) {
                assert!(next.0 < *end, "a gap at {end} ms: {sent:?}");
            }
            assert!(sent.iter().all(|(_, span)| *span <= SPAN));
            let last = ends.iter().max().copied().unwrap();
            assert!(
                last <= down_after * 3 / 4 && last + 150 >= down_after * 3 / 4,
                "{down_after}: {last}"
            );
            assert!(sent.len() as u64 <= down_after / 150 + 1);
        }
    }

    #[test]
    fn refuses_when_promotion_does_not_fit() {
        assert_eq!(Pausing::within(MS(1000)).unwrap_err(), Reason::TooLong(MS(1000)));
        assert!(Pausing::within(MS(0)).is_err());
        let start = Instant::now();
        let mut pausing = Pausing::within(MS(2000)).unwrap();
        assert!(!pausing.was_tried());
        assert_eq!(pausing.due(start), Due::Pause(SPAN));
        assert!(pausing.was_tried());
        assert_eq!(pausing.order_by(start + MS(2000)), start + MS(1500) - PROMOTION);
    }

    #[test]
    fn ignores_unanswered_pause() {
        let start = Instant::now();
        let mut pausing = Pausing::within(MS(10_000)).unwrap();
        assert_eq!(pausing.due(start), Due::Pause(SPAN));
        assert!(!pausing.holds_at(start));
        assert_eq!(pausing.due(start + MS(400)), Due::Nothing, "one at a time");
        pausing.answered(start + MS(400), Ok(())).unwrap();
        assert!(
            pausing.holds_at(start + MS(499)) && !pausing.holds_at(start + MS(500)),
            "from its sending on"
        );
        assert_eq!(pausing.due(start + MS(400)), Due::Pause(SPAN));
        assert!(pausing.answered(start + MS(410), Err("NOPERM".to_owned())).is_err());
        assert_eq!((pausing.next_due(), pausing.due(start + MS(900))), (None, Due::Nothing));
    }
}
