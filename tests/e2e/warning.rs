//! How much warning a planned failover gave. Sentinel leaves 50 to 90 ms between the selection of a
//! replica and its promotion, and the gate must be closed by then. If the machine is suspended in
//! that time, the old master acknowledges writes that the new one never gets, which no proxy can
//! prevent (`docs/decisions/holding-and-fencing.md#raise-the-priority-of-discovery`). So "nothing
//! is lost" is checked whenever the program was given enough of that time; otherwise only writes in
//! flight in these milliseconds may be lost.

use std::time::{Duration, Instant};

use harness::{Absences, Event, Events};

const PATIENCE: Duration = Duration::from_secs(30);
/// The least warning that the machine must leave: a good part of what Sentinel leaves.
const ENOUGH: Duration = Duration::from_millis(20);
/// How long closing the gate may take on an undisturbed machine.
const SHUT: Duration = Duration::from_millis(100);

/// The warning of the first failover that reached a promotion.
#[derive(Debug)]
pub(crate) struct Warning {
    /// The time between the two events as they were heard, minus the absences of all cores.
    left: Duration,
    /// No write acknowledged before this instant may be lost, however short the warning.
    pub(crate) from: Instant,
    /// The gate is closed by then.
    pub(crate) until: Instant,
}

impl Warning {
    #[track_caller]
    pub(crate) fn of(events: &Events, absences: &Absences) -> Self {
        let promotion = events.wait_for("+failover-state-wait-promotion", PATIENCE);
        // The events of one sentinel arrive in order.
        let before = |event: &Event| event.from == promotion.from && event.at <= promotion.at;
        let mut heard = events.all().into_iter().rev().skip_while(|event| event.at > promotion.at);
        let selected = heard
            .find(|event| event.channel == "+selected-slave" && before(event))
            .expect("a candidate");
        let away = absences.between(selected.at, promotion.at);
        let left = promotion.at.saturating_duration_since(selected.at).saturating_sub(away);
        // The listening thread may have been delayed as well.
        let around = absences.between(selected.at - Duration::from_secs(1), promotion.at + SHUT);
        Self { left, from: selected.at - around, until: promotion.at + SHUT + around }
    }

    /// Whether nothing at all may be lost. If not, reports what is not tested.
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
