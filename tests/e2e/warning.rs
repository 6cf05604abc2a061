//! How much warning a planned failover gave: Sentinel leaves 50 to 90 ms between the naming of a
//! candidate and its promotion, and traffic has to be held by then. A machine that is away in that
//! time lets the old master acknowledge what the new one never gets, which nobody in front of Redis
//! can prevent (decision 63). So "nothing is lost" is held against the program whenever it was
//! given some of that time, and otherwise only what was under way in these milliseconds may be
//! lost.

use std::time::{Duration, Instant};

use harness::{Absences, Event, Events};

const PATIENCE: Duration = Duration::from_secs(30);
/// So much of the warning has to be left by the machine: a good part of what Sentinel leaves at the
/// least.
const ENOUGH: Duration = Duration::from_millis(20);
/// What the gate may need to shut on a machine that is there.
const SHUT: Duration = Duration::from_millis(100);

/// Of the first failover that came as far as a promotion.
#[derive(Debug)]
pub(crate) struct Warning {
    /// What was left of the time between the two notices, as they were heard, when the absences of
    /// all cores are taken off.
    left: Duration,
    /// No write that was acknowledged before this may be lost, however little warning there was.
    pub(crate) from: Instant,
    /// By then the gate is shut.
    pub(crate) until: Instant,
}

impl Warning {
    #[track_caller]
    pub(crate) fn of(events: &Events, absences: &Absences) -> Self {
        let promotion = events.wait_for("+failover-state-wait-promotion", PATIENCE);
        // One sentinel's notices are heard in their order.
        let before = |event: &Event| event.from == promotion.from && event.at <= promotion.at;
        let mut heard = events.all().into_iter().rev().skip_while(|event| event.at > promotion.at);
        let selected = heard
            .find(|event| event.channel == "+selected-slave" && before(event))
            .expect("a candidate");
        let away = absences.between(selected.at, promotion.at);
        let left = promotion.at.saturating_duration_since(selected.at).saturating_sub(away);
        // Who listens here may have been held up, too.
        let around = absences.between(selected.at - Duration::from_secs(1), promotion.at + SHUT);
        Self { left, from: selected.at - around, until: promotion.at + SHUT + around }
    }

    /// Whether nothing at all may be lost. If not, that is said, with what is not tested therefore.
    #[allow(clippy::print_stderr, reason = "what could not be tested is told")]
    pub(crate) fn was_enough(&self, what: &str) -> bool {
        let enough = self.left >= ENOUGH;
        if !enough {
            eprintln!(
                "NOT TESTED as strictly as usual: {what}; the machine left {:?} of the warning",
                self.left
            );
        }
        enough
    }
}
