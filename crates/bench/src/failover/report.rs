//! The report of a whole measurement: method, machine, tables, promises, and how to read them.

use std::fmt::Write as _;

use clap::ValueEnum as _;

use super::record::{Record, Scenario};
use super::table::{markdown, rows};
use super::targets::Target;

/// What the report contains besides the runs.
pub(super) struct About<'a> {
    pub(super) machine: &'a str,
    pub(super) runs: u32,
    pub(super) writers: usize,
    pub(super) rate: u32,
    /// Name of the file of raw data.
    pub(super) raw: &'a str,
    /// A message for each run that failed.
    pub(super) failed: &'a [String],
}

/// The report as Markdown.
pub(super) fn document(records: &[Record], targets: &[Target], about: &About<'_>) -> String {
    let About { machine, runs, writers, rate, raw, failed } = about;
    let mut text = format!(
        "# Failovers, counted\n\n\
         Written by `cargo xtask bench failover`; every run is a line of `benches/runs/{raw}`.\n\n\
         {writers} writers on connections of their own, {rate} writes a second in all, each write with a key of its own, once; a \
         writer connects anew\n\
         after any error, and gives a reply up after five seconds. One master, two replicas, three sentinels\n\
         (`down-after-milliseconds 2000`), a fresh cluster for each run. haproxy is configured as the redis-ha chart does it. The \
         writers go on\n\
         until the old master is back and follows the new one; then every acknowledged key is looked for on the new master.\n\
         {runs} runs of each, in turns; median (smallest to largest).\n\n{machine}\n"
    );
    for scenario in Scenario::value_variants().iter().copied() {
        if let Some(rows) = rows(records, scenario) {
            let _ = write!(text, "\n## {}\n\n{}", scenario.title(), markdown(&rows));
        }
    }
    text.push_str("\n## What pointsman promises\n\n");
    for target in targets {
        let _ = writeln!(text, "- {}", target.line());
    }
    if !failed.is_empty() {
        text.push_str("\n## Runs without a result\n\n");
        for why in *failed {
            let _ = writeln!(text, "- {why}");
        }
    }
    text.push_str(READING);
    text
}

const READING: &str = "
## How to read it

- **Acknowledged writes lost**: answered with OK, and not there at the end. In a planned failover they are what the old master
  took after the new one had been promoted. After SIGKILL and the like, at most what the master had acknowledged and not yet
  sent to the replica; no proxy can help that, because Redis replicates asynchronously.
- **Longest gap**: the longest time in which no writer got an OK. A short gap with many lost writes is not a good failover: the
  writes went on to a master that was no longer one.
  After SIGSTOP and in a partition, a writer whose connection nobody closes waits for its own timeout: with haproxy the gap is the
  writers' five seconds, as it is with no proxy at all. Writers with a shorter timeout would see a shorter gap there.
- **haproxy's check of the sentinels** does not wait for an answer to QUIT, as the chart's does: the sentinel of Redis 7.0 knows no
  QUIT, and every vote would fail.
- **Sentinel's own time**: from the cause to the first `+switch-master`. Before that no one may say who the new master is.
  Pointsman stops traffic in a planned failover when a replica is selected, and starts it again at the switch.
- **New master writable to first write**: mostly Sentinel's as well. It announces a promotion about a second after it.
- **Writes on the superseded master**: SETs that the old master executed while it called itself master, after pointsman's commit
  or, with haproxy, after the first `+switch-master`. In a partition it is asked from its own side, all the time. After SIGSTOP it
  cannot be asked; there they are the SETs that it executed and nobody got an OK for: those that lay in its sockets when it was
  stopped, and a writer has at most one such request under way. No proxy can take them back.
- **Connections with a write sent to the superseded master**: those on which a packet with a SET left for it after the commit, or the
  first `+switch-master`, by the kernel's clock, whether the server took it or not: what the kernel sends again to a server that is cut
  off is among them, unless the connection was reset.
- **The moment of the cause** is aimed at the same ages of a sentinel's last ping through both proxies, spread evenly over its period
  of a second. A hang is noticed up to a second sooner or later depending on that age alone, so its extremes lie that far apart;
  the medians of the two columns can be compared.
";

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::record::{Measure, Proxy};
    use super::*;

    #[test]
    fn writes_machine_data_promises_and_failures() {
        let values = BTreeMap::from([(Measure::Lost, 0.0)]);
        let (scenario, proxy) = (Scenario::Planned, Proxy::Pointsman);
        let record = Record { scenario, proxy, run: 1, values, more: serde_json::Value::Null };
        let target = Target { promise: "nothing is lost".to_owned(), kept: 1, of: 1, worst: 0.0 };
        let failed = ["run 2: no +switch-master".to_owned()];
        let about = About {
            machine: "2 cores.",
            runs: 1,
            writers: 16,
            rate: 2000,
            raw: "failover-1.jsonl",
            failed: &failed,
        };
        let text = document(&[record], &[target], &about);
        for part in [
            "benches/runs/failover-1.jsonl",
            "2 cores.",
            "- kept: nothing is lost",
            "- run 2: no +switch-master",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(text.contains("## Planned") && !text.contains("## SIGKILL"));
    }
}
