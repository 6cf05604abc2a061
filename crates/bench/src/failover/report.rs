//! The report of a whole measurement: method, machine, tables, promises, and how to read them.

use std::fmt::Write as _;

use clap::ValueEnum as _;

use super::contender::{CLIENTS, RATE, TIMEOUT};
use super::record::{Measure, Record};
use super::scenario::Scenario;
use super::table::{cell, table};
use super::targets::Target;
use crate::markdown::list;
use crate::title_of;

/// What the report contains besides the runs.
pub(super) struct About<'a> {
    pub(super) machine: &'a str,
    pub(super) runs: u32,
    /// Name of the file of raw data.
    pub(super) raw: &'a str,
    /// A message for each contender that was left out, and for each run that failed.
    pub(super) failed: &'a [String],
}

/// The report as Markdown.
pub(super) fn document(records: &[Record], targets: &[Target], about: &About<'_>) -> String {
    let About { machine, runs, raw, failed } = about;
    let mut text = format!(
        "# Failovers of all contenders, counted\n\n\
         Written by `cargo xtask bench failover`; every result is a line of `benches/runs/{raw}`.\n\n\
         All contenders serve the same failover of the same cluster, each with {CLIENTS} writers and a reader of its own: {RATE} writes a\n\
         second, each with a key of its own, once, and 50 reads a second of the key that was acknowledged last. A client connects anew after\n\
         any error, and gives a reply up after {} seconds. One master, two replicas, three sentinels, each with an address of its own;\n\
         `down-after-milliseconds 2000`, for the loss of a node 5000. A fresh cluster for each of {runs} runs of each fault; median (smallest to\n\
         largest). The clients go on until the old master is back and follows the new one; then every acknowledged key is looked for\n\
         on the new master.\n\n{machine}{}\n",
        TIMEOUT.as_secs(),
        waiting(records)
    );
    for scenario in Scenario::value_variants().iter().copied() {
        if let Some(table) = table(records, scenario) {
            let _ = write!(text, "\n## {}\n\n", title_of(&scenario));
            if scenario.switches() {
                let of: Vec<&Record> =
                    records.iter().filter(|it| it.scenario == scenario).collect();
                let switch = cell(&of, Measure::Switch);
                let _ =
                    write!(text, "A majority of the sentinels had switched after {switch} ms.\n\n");
            }
            text.push_str(&table);
        }
    }
    text.push_str("\n## What pointsman promises\n\n");
    text.push_str(&list(targets.iter().map(Target::line)));
    if !failed.is_empty() {
        text.push_str("\n## Without a result\n\n");
        text.push_str(&list(failed.iter().cloned()));
    }
    text.push('\n');
    text.push_str(READING);
    text
}

/// How busy the machine was.
fn waiting(records: &[Record]) -> String {
    let share = |it: &Record| it.more.get("share_of_time_waited_for_cpu")?.as_f64();
    let shares: Vec<f64> = records.iter().filter_map(share).map(|it| it * 100.0).collect();
    let spread = crate::stats::spread(&shares);
    spread.map_or_else(String::new, |it| {
        format!(
            " The machine was not quiet:\nsome process waited for a core in {:.0} % of the time ({:.0} to {:.0}).",
            it.median, it.min, it.max
        )
    })
}

const READING: &str = include_str!("reading.md");

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::contender::Contender;
    use super::*;

    #[test]
    fn writes_machine_data_promises_and_failures() {
        let values = BTreeMap::from([(Measure::Lost, 0.0), (Measure::Switch, 1150.0)]);
        let (scenario, contender) = (Scenario::Planned, Contender::Pointsman);
        let more = serde_json::json!({"share_of_time_waited_for_cpu": 0.25});
        let record = Record { scenario, contender, run: 1, values, more };
        let target = Target { promise: "nothing is lost", kept: 1, of: 1, worst: 0.0 };
        let failed = ["ioredis is left out: no network".to_owned()];
        let about =
            About { machine: "2 cores.", runs: 1, raw: "failover-1.jsonl", failed: &failed };
        let text = document(&[record], &[target], &about);
        for part in [
            "benches/runs/failover-1.jsonl",
            "2 cores. The machine was not quiet:\nsome process waited for a core in 25 %",
            "A majority of the sentinels had switched after 1,150 ms.",
            "- kept: nothing is lost",
            "- ioredis is left out: no network",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(text.contains("## Planned") && !text.contains("## SIGKILL"));
    }
}
