//! The results of one contender in one failover, and their line in the file of raw data.

use std::collections::BTreeMap;

use clap::ValueEnum;
use serde_json::{Value, json};

use super::contender::Contender;
use super::scenario::Scenario;
use crate::name_of;
use crate::stats::rounded;

/// A measured value, with its name in the raw data. Times are in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Measure {
    /// Writes answered with OK.
    Acknowledged,
    /// Of those, the ones missing on the final master.
    Lost,
    /// Failed connections, broken ones, timeouts and error replies.
    Errors,
    /// Replies to the reader that lacked a write acknowledged before the read, or were no value.
    Wrong,
    /// Longest time without an acknowledged write that was kept.
    #[value(name = "gap_ms")]
    Gap,
    /// From the majority's switch to the next acknowledged write that was kept.
    #[value(name = "majority_to_first_write_ms")]
    First,
    /// Writes that the old master executed after the majority's switch.
    #[value(name = "old_master_writes")]
    Late,
    /// From the fault to the majority's switch.
    #[value(name = "majority_ms")]
    Switch,
}

impl Measure {
    /// The columns of the tables, and their titles.
    pub(super) const COLUMNS: [(Self, &str); 6] = [
        (Self::Lost, "acknowledged writes lost"),
        (Self::Errors, "errors"),
        (Self::Wrong, "wrong or stale replies"),
        (Self::Gap, "longest gap, ms"),
        (Self::First, "majority to first write, ms"),
        (Self::Late, "writes on the old master"),
    ];
}

/// One contender in one failover.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Record {
    pub(super) scenario: Scenario,
    pub(super) contender: Contender,
    /// Counted from one.
    pub(super) run: u32,
    /// The values that could be measured.
    pub(super) values: BTreeMap<Measure, f64>,
    /// Further observations, for closer analysis.
    pub(super) more: Value,
}

impl Record {
    pub(super) fn value(&self, measure: Measure) -> Option<f64> {
        self.values.get(&measure).copied()
    }

    /// One line of JSON.
    pub(super) fn line(&self) -> String {
        let mut object = json!({
            "scenario": name_of(&self.scenario),
            "contender": name_of(&self.contender),
            "run": self.run,
            "more": self.more,
        });
        if let Some(object) = object.as_object_mut() {
            let named =
                |it: &Measure| (name_of(it), json!(self.value(*it).map(|value| rounded(value, 3))));
            object.extend(Measure::value_variants().iter().map(named));
        }
        object.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_every_measure_or_null() {
        let values = BTreeMap::from([(Measure::Lost, 3.0), (Measure::Gap, 1_234.567_89)]);
        let (scenario, contender) = (Scenario::Sigkill, Contender::Service30);
        let record = Record { scenario, contender, run: 2, values, more: json!({"load": 0.5}) };
        let line: Value = serde_json::from_str(&record.line()).expect("JSON");
        assert_eq!(
            (&line["scenario"], &line["contender"]),
            (&json!("sigkill"), &json!("service-30s"))
        );
        assert_eq!(line["gap_ms"], 1234.568);
        assert_eq!(line["lost"], 3.0);
        assert_eq!(line["more"]["load"], 0.5);
        assert!(line["old_master_writes"].is_null() && !record.line().contains('\n'));
    }
}
