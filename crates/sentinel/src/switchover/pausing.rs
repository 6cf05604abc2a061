//! The schedule of `CLIENT PAUSE`: short pauses that are renewed, never for so long that a sentinel
//! considers the master down.
//!
//! `CLIENT PAUSE … WRITE` stops every command that may replicate, and `PUBLISH` is one: the hello
//! message of a sentinel waits at the paused master, and every PING that the sentinel sends later
//! on the same connection waits as well. A pause of `down-after-milliseconds` therefore makes the
//! sentinels consider the master down, and fail over once more. However this process ends, the
//! pause that it leaves ends by itself soon.

use std::time::{Duration, Instant};

use super::error::SwitchoverError;

/// Duration of one pause; the upper bound of what is left of it if this process is killed.
const SPAN: Duration = Duration::from_millis(500);
/// Interval of renewal.
const RENEW_EVERY: Duration = Duration::from_millis(150);
/// From the failover command to the commit Sentinel takes about a second: a pause that has to end
/// earlier would be pointless.
const PROMOTION: Duration = Duration::from_millis(1200);

/// The action that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    /// Send `CLIENT PAUSE` with this duration.
    Pause(Duration),
    /// The time budget is used up. Returned once.
    Over,
}

/// The pause schedule. See the module's header.
#[derive(Debug)]
pub(super) struct PauseSchedule {
    /// Upper bound of the total duration of all pauses.
    budget: Duration,
    /// No further pause may be sent.
    stopped: bool,
    first: Option<Instant>,
    /// When the next one is to be sent; `None` if none is planned.
    due: Option<Instant>,
    /// When an unanswered pause was sent, and its duration.
    asked: Option<(Instant, Duration)>,
    /// The master's clients are paused until then at least.
    until: Option<Instant>,
}

impl PauseSchedule {
    /// Three quarters of `down_after` may be used.
    pub(super) fn within(down_after: Duration) -> Result<Self, SwitchoverError> {
        let budget = down_after * 3 / 4;
        if budget < PROMOTION + SPAN / 2 {
            return Err(SwitchoverError::NotPaused(format!(
                "down-after-milliseconds is {} ms, and the sentinels get no answer to PING during \
                 a pause that is long enough",
                down_after.as_millis()
            )));
        }
        Ok(Self { budget, stopped: false, first: None, due: None, asked: None, until: None })
    }

    /// The first pause is due at `at`.
    pub(super) fn begin(&mut self, at: Instant) {
        self.due = Some(at);
    }

    /// The latest time to start the failover such that the pause lasts until the commit.
    pub(super) fn order_by(&self, latest: Instant) -> Instant {
        self.first.map_or(latest, |first| latest.min(first + self.budget - PROMOTION))
    }

    /// Stops the schedule. Whether there is a pause to revoke, reported once.
    pub(super) fn stop(&mut self) -> bool {
        self.due = None;
        !std::mem::replace(&mut self.stopped, true) && self.was_tried()
    }

    /// Whether a pause was sent at all.
    pub(super) fn was_tried(&self) -> bool {
        self.first.is_some()
    }

    /// Whether the clients are certainly paused at `now`.
    pub(super) fn holds_at(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// The action that is due; a returned pause counts as sent.
    pub(super) fn due(&mut self, now: Instant) -> Due {
        if self.asked.is_some() || self.due.is_none_or(|at| now < at) {
            return Due::Nothing;
        }
        let first = *self.first.get_or_insert(now);
        let left = (first + self.budget).saturating_duration_since(now);
        if left < RENEW_EVERY {
            self.due = None;
            return Due::Over;
        }
        let span = SPAN.min(left);
        self.asked = Some((now, span));
        Due::Pause(span)
    }

    /// Records the master's answer: whether the pause was granted.
    pub(super) fn answered(&mut self, now: Instant, granted: bool) {
        let Some((sent, span)) = self.asked.take() else { return };
        self.due = None;
        if granted && !self.stopped {
            // The duration runs from the execution, which was not before the sending.
            self.until = Some(sent + span);
            self.due = Some((sent + RENEW_EVERY).max(now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn schedule(down_after: u64, begin: Instant) -> PauseSchedule {
        let mut pausing = PauseSchedule::within(MS(down_after)).unwrap();
        pausing.begin(begin);
        pausing
    }

    /// Sends whatever is due every millisecond, each answered at once; returns times and durations.
    fn run(pausing: &mut PauseSchedule, start: Instant, millis: u64) -> Vec<(u64, Duration)> {
        let mut sent = Vec::new();
        for at in 0..millis {
            let now = start + MS(at);
            if let Due::Pause(span) = pausing.due(now) {
                sent.push((at, span));
                pausing.answered(now, true);
            }
        }
        sent
    }

    #[test]
    fn overlaps_pauses_and_ends_before_down_after() {
        let start = Instant::now();
        for down_after in [2000, 5000, 10_000, 30_000] {
            let mut pausing = schedule(down_after, start);
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
        assert!(matches!(
            PauseSchedule::within(MS(1000)).unwrap_err(),
            SwitchoverError::NotPaused(why) if why.contains("is 1000 ms")
        ));
        assert!(PauseSchedule::within(MS(0)).is_err());
        let start = Instant::now();
        let mut pausing = schedule(2000, start);
        assert!(!pausing.was_tried());
        assert_eq!(pausing.due(start), Due::Pause(SPAN));
        assert!(pausing.was_tried());
        assert_eq!(pausing.order_by(start + MS(2000)), start + MS(1500) - PROMOTION);
    }

    #[test]
    fn ignores_unanswered_pause() {
        let start = Instant::now();
        let mut pausing = schedule(10_000, start);
        assert_eq!(pausing.due(start), Due::Pause(SPAN));
        assert!(!pausing.holds_at(start));
        assert_eq!(pausing.due(start + MS(400)), Due::Nothing, "one at a time");
        pausing.answered(start + MS(400), true);
        assert!(
            pausing.holds_at(start + MS(499)) && !pausing.holds_at(start + MS(500)),
            "counted from its sending"
        );
        assert_eq!(pausing.due(start + MS(400)), Due::Pause(SPAN));
        pausing.answered(start + MS(410), false);
        assert_eq!(pausing.due(start + MS(900)), Due::Nothing);
    }
}
