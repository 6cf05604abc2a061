//! The document of a whole measurement: verdicts, tables, what was left out, and how to read them.

use std::fmt::Write as _;

use super::record::{Measure, Record, Row};
use super::targets::Verdict;
use crate::peers::Peer;
use crate::stats::{figure, spread};

/// What the document needs to know besides the records.
pub(super) struct About<'a> {
    pub(super) machine: &'a str,
    pub(super) command: &'a str,
    /// Rounds that were played.
    pub(super) rounds: u32,
    /// Seconds of one measurement.
    pub(super) seconds: f64,
    /// Name of the file of raw data.
    pub(super) raw: &'a str,
    /// What was left out or failed, in words.
    pub(super) missing: &'a [String],
    /// The plots, by their names.
    pub(super) plots: &'a [&'a str],
}

/// The document, in Markdown.
pub(super) fn document(records: &[Record], verdicts: &[Verdict], about: &About<'_>) -> String {
    let About { machine, command, rounds, seconds, raw, missing, plots } = about;
    let disturbed = records.iter().filter(|record| record.disturbed).count();
    let mut text = format!(
        "# Traffic, measured\n\nWritten by `{command}`; every measurement is a line of `benches/runs/{raw}`.\n\n{machine}\n\n\
         {rounds} rounds, the proxies in turns within each, {seconds:.1} s a measurement. One thread of each proxy, alone on one \
         core; the load, Redis and\nSentinel on another. {disturbed} of {} measurements were disturbed by other processes.\n",
        records.len()
    );
    text.push_str("\n## Targets\n\nRatios of pointsman to the other one, taken within each round: median (smallest to largest, and of how many rounds: where \
                   three\nwere not disturbed, only of those). The floor is what the least program there can be reached in the same rounds.\n\n");
    text.push_str("| | against | target | measured | the floor | |\n|---|---|---|---|---|---|\n");
    for verdict in verdicts {
        let said = if verdict.met { "met" } else { "**missed**" };
        let Verdict { title, against, bound, .. } = verdict;
        let _ = writeln!(
            text,
            "| {title} | {against} | {bound} | {} | {} | {said} |",
            verdict.measured(),
            verdict.floor()
        );
    }
    for plot in *plots {
        let _ = write!(text, "\n![{plot}]({plot})\n");
    }
    for row in Row::ALL {
        if let Some(table) = table(records, row) {
            let _ = write!(text, "\n## {}\n\n{table}", row.title());
        }
    }
    if !missing.is_empty() {
        text.push_str("\n## Left out\n\n");
        for why in *missing {
            let _ = writeln!(text, "- {}", why.replace('\n', " "));
        }
    }
    text.push_str(READING);
    text
}

/// One line a peer: each measure's median (smallest to largest), and beside the first CPU or rate
/// its ratio to haproxy 3.
fn table(records: &[Record], row: Row) -> Option<String> {
    let of = |peer: Peer, measure: Measure| {
        let records = records.iter().filter(|it| it.row == row && it.peer == peer);
        spread(&records.filter_map(|record| record.value(measure)).collect::<Vec<_>>())
    };
    let peers: Vec<Peer> = Peer::ALL
        .into_iter()
        .filter(|peer| row.measures().iter().any(|it| of(*peer, *it).is_some()))
        .collect();
    if peers.is_empty() {
        return None;
    }
    let mut text = String::from("| |");
    for measure in row.measures() {
        let _ = write!(text, " {} | ÷ haproxy 3 |", measure.title());
    }
    let _ = writeln!(text, "\n|---|{}", "---|---|".repeat(row.measures().len()));
    for peer in peers {
        let _ = write!(text, "| {} |", peer.title());
        for measure in row.measures() {
            let own = of(peer, *measure);
            let cell = own.map_or_else(
                || "–".to_owned(),
                |it| format!("{} ({} to {})", figure(it.median), figure(it.min), figure(it.max)),
            );
            let ratio =
                own.zip(of(Peer::Haproxy3, *measure)).map(|(own, other)| own.median / other.median);
            let _ = write!(
                text,
                " {cell} | {} |",
                ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}"))
            );
        }
        text.push('\n');
    }
    Some(text)
}

const READING: &str = "
## How to read it

- **CPU** is the steadiest figure: nanoseconds of all threads of the proxy (its process's CPU clock), pointsman's own talk with
  sentinels and Redis included.
- **The proxy being the limit**: the load is its own backend, in one loop on one core, and cheaper than the proxies. Where \"core used\"
  is below one the load was the limit after all, and that proxy could have done more.
- **To a Redis** load, Redis and Sentinel share one core, so the throughput is theirs; the proxy is to cost little of it.
- **Latency**: requests leave at fixed moments whatever the answers do, and count from the moment they were due.
- **Memory**: private dirty pages of a fresh process with 2,100 idle connections less those with 100, each used once. What the
  kernel holds for the sockets is the same for all and not in it.
- **Congestion control** is CUBIC or Reno in the namespace, whatever the machine's default is: BBR's pacing alone doubles the cost of bulk
  on loopback.
- **twemproxy** shares one connection to the server among all clients and answers PING by itself: its new connections and its idle
  ones have no second half.
- **The floor** is `crates/bench/examples/baseline.rs`: one thread, one epoll, a `recv` and a `send` for whatever came, through 256 KiB; no
  deadline, no limit, no fence, no protocol. What it misses on this machine, no proxy with a connection to the server for each client
  can reach here.
- **haproxy 3, tuned** stands beside stock because most of the difference in bulk is its default buffer of 16 KiB.
- A measurement is **disturbed** if other processes used more than a tenth of a core, or the host took the machine away. It is
  repeated once, and the quieter of the two is kept.
";

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::targets::judge;
    use super::*;

    #[test]
    fn writes_verdicts_tables_and_omissions() {
        let record = |peer, value| {
            let values = BTreeMap::from([(Measure::CpuRequest, value)]);
            Record { row: Row::Small, peer, round: 1, values, foreign: 0.0, disturbed: true }
        };
        let records = [record(Peer::Pointsman, 9.0), record(Peer::Haproxy3, 12.0)];
        let missing = ["envoy: no\nnetwork".to_owned()];
        let about = About {
            machine: "2 cores.",
            command: "cargo xtask bench",
            rounds: 1,
            seconds: 1.0,
            raw: "traffic-1.jsonl",
            missing: &missing,
            plots: &["cpu.svg"],
        };
        let text = document(&records, &judge(&records), &about);
        for part in [
            "| CPU a small request | haproxy 3 | ≤ 0.86 | 0.750 (0.750 to 0.750 in 1) | – | met |",
            "| haproxy 3 | – | – | 12.0 (12.0 to 12.0) | 1.00 |",
            "| **pointsman** | – | – | 9.00 (9.00 to 9.00) | 0.75 |",
            "2 of 2 measurements were disturbed",
            "benches/runs/traffic-1.jsonl",
            "![cpu.svg](cpu.svg)",
            "- envoy: no network\n",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(!text.contains("## Idle"));
    }
}
