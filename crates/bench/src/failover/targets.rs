//! Compares the promises with the runs.

use super::record::{Measure, Proxy, Record, Scenario};
use crate::stats::short;

/// A promise and how it was kept.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Target {
    /// The promise as text.
    pub(super) promise: String,
    /// Number of runs that kept it.
    pub(super) kept: usize,
    /// Number of runs.
    pub(super) of: usize,
    /// The worst value of all runs.
    pub(super) worst: f64,
}

impl Target {
    /// Whether it was kept in every run.
    pub(super) fn met(&self) -> bool {
        self.kept == self.of
    }

    /// For people.
    pub(super) fn line(&self) -> String {
        let verdict = if self.met() { "kept" } else { "MISSED" };
        format!(
            "{verdict}: {}; in {} of {} runs, worst {}",
            self.promise,
            self.kept,
            self.of,
            short(self.worst)
        )
    }
}

/// The promises that the runs can check. A run without the value has not kept its promise.
pub(super) fn judge(records: &[Record], writers: usize) -> Vec<Target> {
    let one_each = number(writers);
    let nothing_sent = |what: &str| {
        format!("{what}, not a packet with a write is sent to the old master after the commit")
    };
    // Packets are counted in a network namespace only.
    let counted = records.iter().any(|it| it.value(Measure::OldSenders).is_some());
    let promises = [
        (
            Scenario::Planned,
            Measure::Lost,
            0.0,
            "planned failover, no acknowledged write is lost".to_owned(),
        ),
        (
            Scenario::Planned,
            Measure::OldWrites,
            0.0,
            "planned failover, no write on the old master after the commit".to_owned(),
        ),
        (
            Scenario::Sigkill,
            Measure::OldWrites,
            0.0,
            "SIGKILL, no write on the old master after the commit".to_owned(),
        ),
        (
            Scenario::Sigstop,
            Measure::OldWrites,
            one_each,
            format!(
                "SIGSTOP, no more than the {writers} requests under way are executed late by the old master"
            ),
        ),
        (
            Scenario::Partition,
            Measure::OldWrites,
            0.0,
            "partition, no write is executed by the old master after the commit".to_owned(),
        ),
        (Scenario::Planned, Measure::OldSenders, 0.0, nothing_sent("planned failover")),
        (Scenario::Sigstop, Measure::OldSenders, 0.0, nothing_sent("SIGSTOP")),
        (Scenario::Partition, Measure::OldSenders, 0.0, nothing_sent("partition")),
        (
            Scenario::Sigkill,
            Measure::Beyond,
            50.0,
            "SIGKILL, gap at most Sentinel's own time + 50 ms".to_owned(),
        ),
    ];
    let told =
        promises.into_iter().filter(|(_, measure, ..)| *measure != Measure::OldSenders || counted);
    let judged = told.filter_map(|(scenario, measure, most, promise)| {
        let runs =
            records.iter().filter(|it| it.scenario == scenario && it.proxy == Proxy::Pointsman);
        let values: Vec<f64> = runs.map(|it| it.value(measure).unwrap_or(f64::INFINITY)).collect();
        let worst = values.iter().copied().reduce(f64::max)?;
        Some(Target {
            promise,
            kept: values.iter().filter(|value| **value <= most).count(),
            of: values.len(),
            worst,
        })
    });
    judged.collect()
}

#[allow(clippy::cast_precision_loss, reason = "a handful")]
fn number(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn record(scenario: Scenario, proxy: Proxy, values: &[(Measure, f64)]) -> Record {
        let values: BTreeMap<_, _> = values.iter().copied().collect();
        Record { scenario, proxy, run: 1, values, more: serde_json::Value::Null }
    }

    #[test]
    fn requires_every_run_to_keep_a_promise() {
        let kill = |beyond| {
            record(
                Scenario::Sigkill,
                Proxy::Pointsman,
                &[(Measure::OldWrites, 0.0), (Measure::Beyond, beyond)],
            )
        };
        let haproxy = record(Scenario::Sigkill, Proxy::Haproxy, &[(Measure::Beyond, 900.0)]);
        let judged = judge(&[kill(20.0), kill(50.4), haproxy], 16);
        assert_eq!(judged.len(), 2, "nothing is said of scenarios that were not run");
        assert!(judged[0].met() && judged[0].of == 2);
        assert!(!judged[1].met());
        assert!(
            judged[1].line().starts_with("MISSED: SIGKILL, gap")
                && judged[1].line().ends_with("in 1 of 2 runs, worst 50")
        );
    }

    #[test]
    fn fails_promises_without_measurement() {
        let judged =
            judge(&[record(Scenario::Planned, Proxy::Pointsman, &[(Measure::Lost, 0.0)])], 16);
        assert_eq!(judged.iter().map(Target::met).collect::<Vec<_>>(), [true, false]);
    }
}
