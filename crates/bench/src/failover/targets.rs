//! Compares the promises with the runs.

use super::contender::CLIENTS;
use super::record::{Measure, Record};
use super::scenario::Scenario::{
    self, NodeLoss, Partition, Planned, RollingProxy, RollingRedis, Sigkill, Sigstop,
};
use crate::stats::short;

/// A promise and how it was kept.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Target {
    /// The promise as text.
    pub(super) promise: &'static str,
    /// Number of results that kept it.
    pub(super) kept: usize,
    /// Number of results.
    pub(super) of: usize,
    /// The worst value of all.
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
            "{verdict}: {}; in {} of {}, worst {}",
            self.promise,
            self.kept,
            self.of,
            short(self.worst)
        )
    }
}

/// A promise: what is at most this much, in which scenarios; in all if there are none.
struct Promise {
    text: &'static str,
    scenarios: &'static [Scenario],
    /// Only of Pointsman with durability.
    durable: bool,
    measure: Measure,
    most: f64,
}

const fn promise(
    text: &'static str,
    scenarios: &'static [Scenario],
    measure: Measure,
    most: f64,
) -> Promise {
    Promise { text, scenarios, durable: false, measure, most }
}

/// A writer has one write under way.
#[allow(clippy::cast_precision_loss, reason = "a handful")]
const CLIENTS_OF_EACH: f64 = CLIENTS as f64;
const CHANGES: &[Scenario] = &[Planned, RollingRedis, RollingProxy];
const SWITCHES: &[Scenario] = &[Planned, RollingRedis, Sigkill, NodeLoss, Partition];

const PROMISES: [Promise; 7] = [
    promise("planned changes, no acknowledged write is lost", CHANGES, Measure::Lost, 0.0),
    promise("planned failover, no error", &[Planned], Measure::Errors, 0.0),
    promise("planned changes, no wrong or stale reply", CHANGES, Measure::Wrong, 0.0),
    promise(
        "planned failover, SIGKILL, node loss and partition, no write on the old master after the majority's switch",
        SWITCHES,
        Measure::Late,
        0.0,
    ),
    promise(
        "SIGSTOP, at most one write of each writer is executed late by the old master",
        &[Sigstop],
        Measure::Late,
        CLIENTS_OF_EACH,
    ),
    promise(
        "SIGKILL, the first write at most 50 ms after the majority's switch",
        &[Sigkill],
        Measure::First,
        50.0,
    ),
    Promise {
        text: "with durability, no acknowledged write is lost, whatever happens",
        scenarios: &[],
        durable: true,
        measure: Measure::Lost,
        most: 0.0,
    },
];

/// The promises that the runs can check. A run without the value has not kept its promise.
pub(super) fn judge(records: &[Record]) -> Vec<Target> {
    let judged = PROMISES.iter().filter_map(|promise| {
        let concerns = |it: &&Record| {
            (promise.scenarios.contains(&it.scenario) || promise.scenarios.is_empty())
                && it.contender.is_pointsman()
                && (it.contender.is_durable() || !promise.durable)
        };
        let value = |it: &Record| it.value(promise.measure).unwrap_or(f64::INFINITY);
        let values: Vec<f64> = records.iter().filter(concerns).map(value).collect();
        let worst = values.iter().copied().reduce(f64::max)?;
        let kept = values.iter().filter(|value| **value <= promise.most).count();
        Some(Target { promise: promise.text, kept, of: values.len(), worst })
    });
    judged.collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::contender::Contender;
    use super::*;

    fn record(scenario: Scenario, contender: Contender, values: &[(Measure, f64)]) -> Record {
        let values: BTreeMap<_, _> = values.iter().copied().collect();
        Record { scenario, contender, run: 1, values, more: serde_json::Value::Null }
    }

    #[test]
    fn requires_every_run_to_keep_a_promise() {
        let kill = |contender, first| {
            let values = [(Measure::Late, 0.0), (Measure::First, first), (Measure::Lost, 1.0)];
            record(Sigkill, contender, &values)
        };
        let judged = judge(&[
            kill(Contender::Pointsman, 20.0),
            kill(Contender::PointsmanShared, 50.4),
            kill(Contender::Asking, 900.0),
        ]);
        assert_eq!(judged.len(), 2, "nothing is said of what was not run");
        assert!(judged[0].met() && judged[0].of == 2);
        assert!(!judged[1].met());
        assert!(judged[1].line().starts_with("MISSED: SIGKILL, the first write"));
        assert!(judged[1].line().ends_with("in 1 of 2, worst 50"));
    }

    #[test]
    fn fails_promises_without_measurement() {
        let record = record(Scenario::Minority, Contender::PointsmanDurable, &[]);
        let judged = judge(&[record]);
        assert_eq!(judged.iter().map(Target::met).collect::<Vec<_>>(), [false]);
    }
}
