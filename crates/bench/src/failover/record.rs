//! The results of one run, and their line in the file of raw data.

use std::collections::BTreeMap;

use clap::ValueEnum;
use serde_json::{Value, json};

use crate::name_of;

/// The fault of the master, in the order of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Scenario {
    /// SENTINEL FAILOVER.
    Planned,
    /// Its process dies.
    Sigkill,
    /// Its process hangs, with all connections open.
    Sigstop,
    /// The master and the sentinel beside it are cut off from all other members.
    Partition,
}

impl Scenario {
    /// The name in the tables.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Planned => "Planned failover (SENTINEL FAILOVER)",
            Self::Sigkill => "SIGKILL of the master",
            Self::Sigstop => "SIGSTOP of the master",
            Self::Partition => "Network partition of the master and one sentinel",
        }
    }
}

/// The proxy between the writers and the master.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Proxy {
    /// No proxy, as a control: clients that query a sentinel themselves. Only on request.
    Direct,
    /// haproxy, configured like the redis-ha chart.
    Haproxy,
    /// Pointsman.
    Pointsman,
}

impl Proxy {
    /// The proxies that are compared, in the order of the tables.
    pub(super) const ALL: [Self; 2] = [Self::Haproxy, Self::Pointsman];
}

/// A measured value. Times are in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Measure {
    /// Writes answered with OK.
    Acknowledged,
    /// Of those, the ones missing on the final master after the old one had become its replica.
    Lost,
    /// Failed connections, broken ones, timeouts and error replies.
    Errors,
    /// Longest time without an acknowledged write, of all writers together.
    Gap,
    /// From the cause to the first `+switch-master` of any sentinel.
    Sentinel,
    /// [`Gap`](Self::Gap) minus [`Sentinel`](Self::Sentinel).
    Beyond,
    /// From ROLE of the new master saying master to the first write of a client on it.
    FirstWrite,
    /// SETs that the old master executed while it still was a master, after the commit (pointsman)
    /// or the first `+switch-master`; if it could not be queried then (SIGSTOP), those without an
    /// acknowledgement.
    OldWrites,
    /// Connections on which a SET was sent to the old master after the commit (pointsman) or the
    /// first `+switch-master`, measured on the network; includes retransmissions and packets that a
    /// partition drops.
    OldSenders,
}

impl Measure {
    /// In the order of the tables.
    pub(super) const ALL: [Self; 9] = [
        Self::Acknowledged,
        Self::Lost,
        Self::Errors,
        Self::Gap,
        Self::Sentinel,
        Self::Beyond,
        Self::FirstWrite,
        Self::OldWrites,
        Self::OldSenders,
    ];

    /// Its key in the raw data.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Acknowledged => "acknowledged",
            Self::Lost => "lost",
            Self::Errors => "errors",
            Self::Gap => "gap_ms",
            Self::Sentinel => "sentinel_ms",
            Self::Beyond => "gap_minus_sentinel_ms",
            Self::FirstWrite => "writable_to_first_write_ms",
            Self::OldWrites => "old_master_writes",
            Self::OldSenders => "connections_to_old_master",
        }
    }

    /// What the tables call it.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Acknowledged => "acknowledged writes",
            Self::Lost => "acknowledged writes lost",
            Self::Errors => "errors seen by writers",
            Self::Gap => "longest gap without a write, ms",
            Self::Sentinel => "Sentinel's own time, ms",
            Self::Beyond => "gap minus Sentinel's time, ms",
            Self::FirstWrite => "new master writable to first write, ms",
            Self::OldWrites => "writes on the superseded master",
            Self::OldSenders => "connections with a write sent to the superseded master",
        }
    }
}

/// One run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Record {
    pub(super) scenario: Scenario,
    pub(super) proxy: Proxy,
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
            "proxy": name_of(&self.proxy),
            "run": self.run,
            "more": self.more,
        });
        for measure in Measure::ALL {
            let value = self
                .value(measure)
                .map_or(Value::Null, |value| json!((value * 1000.0).round() / 1000.0));
            if let Some(object) = object.as_object_mut() {
                object.insert(measure.key().to_owned(), value);
            }
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
        let (scenario, proxy) = (Scenario::Sigkill, Proxy::Pointsman);
        let record = Record { scenario, proxy, run: 2, values, more: json!({"load": 0.5}) };
        let line: Value = serde_json::from_str(&record.line()).expect("JSON");
        assert_eq!(line["scenario"], "sigkill");
        assert_eq!(line["gap_ms"], 1234.568);
        assert_eq!(line["lost"], 3.0);
        assert_eq!(line["more"]["load"], 0.5);
        assert!(line["old_master_writes"].is_null() && !record.line().contains('\n'));
    }
}
