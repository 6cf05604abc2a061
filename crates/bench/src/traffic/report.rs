//! The report of a whole measurement: verdicts, tables, omissions, and how to read them.

use std::fmt::Write as _;

use clap::ValueEnum as _;

use super::record::{Measure, Record, Row};
use super::targets::Verdict;
use crate::peers::Peer;
use crate::stats::{figure, spread};
use crate::{markdown, title_of};

/// What the report contains besides the records.
pub(super) struct About<'a> {
    pub(super) machine: &'a str,
    /// Number of rounds.
    pub(super) rounds: u32,
    /// Seconds per measurement.
    pub(super) seconds: f64,
    /// Name of the file of raw data.
    pub(super) raw: &'a str,
    /// A message for each omission or failure.
    pub(super) missing: &'a [String],
}

/// The report as Markdown.
pub(super) fn document(records: &[Record], verdicts: &[Verdict], about: &About<'_>) -> String {
    let About { machine, rounds, seconds, raw, missing } = about;
    let disturbed = records.iter().filter(|record| record.disturbed).count();
    let mut text = format!(
        "# Traffic, measured\n\nWritten by `cargo xtask bench`; every measurement is a line of `benches/runs/{raw}`.\n\n{machine}\n\n\
         {rounds} rounds, the proxies alternating within each, {seconds:.1} s per measurement. One thread per proxy, alone on one \
         core; the load, Redis and\nSentinel on another. {disturbed} of {} measurements were disturbed by other processes.\n",
        records.len()
    );
    text.push_str("\n## Targets\n\nWhat Pointsman takes of what the best of the baseline and the other proxies takes, within each round; of rates what the best \
                   one\nreaches. Median (minimum to maximum, number of rounds; if three were undisturbed, only those).\n\n");
    let rows = verdicts.iter().map(|verdict| {
        let said = if verdict.is_met() { "met" } else { "**missed**" };
        let (most, measured) = (format!("≤ {:.2}", verdict.most), verdict.measured());
        vec![verdict.what.clone(), verdict.best.clone(), most, measured, said.to_owned()]
    });
    let heading = ["", "the best", "target", "measured", ""];
    text.push_str(&markdown::table(&heading, &rows.collect::<Vec<_>>()));
    for row in Row::value_variants().iter().copied() {
        if let Some(table) = table(records, row) {
            let _ = write!(text, "\n## {}\n\n{table}", title_of(&row));
        }
    }
    if !missing.is_empty() {
        text.push_str("\n## Left out\n\n");
        text.push_str(&markdown::list(missing.iter().cloned()));
    }
    text.push('\n');
    text.push_str(READING);
    text
}

/// One line per peer: the median of each measure (minimum to maximum), and, with the first CPU time
/// or rate, its ratio to haproxy 3.
fn table(records: &[Record], row: Row) -> Option<String> {
    let of = |peer: Peer, measure: Measure| {
        let records = records.iter().filter(|it| it.row == row && it.peer == peer);
        spread(&records.filter_map(|record| record.value(measure)).collect::<Vec<_>>())
    };
    let peers: Vec<&Peer> = Peer::value_variants()
        .iter()
        .filter(|peer| row.measures().iter().any(|it| of(**peer, *it).is_some()))
        .collect();
    if peers.is_empty() {
        return None;
    }
    let dash = || "–".to_owned();
    let rows = peers.iter().map(|peer| {
        let cells = row.measures().iter().flat_map(|measure| {
            let own = of(**peer, *measure);
            let ratio =
                own.zip(of(Peer::Haproxy3, *measure)).map(|(own, it)| own.median / it.median);
            [
                own.map_or_else(dash, |it| {
                    format!("{} ({} to {})", figure(it.median), figure(it.min), figure(it.max))
                }),
                ratio.map_or_else(dash, |ratio| format!("{ratio:.2}")),
            ]
        });
        let title = title_of(*peer).replace("pointsman", "**pointsman**");
        std::iter::once(title).chain(cells).collect()
    });
    let heading = row.measures().iter().flat_map(|it| [title_of(it), "÷ haproxy 3".to_owned()]);
    let heading: Vec<String> = std::iter::once(String::new()).chain(heading).collect();
    Some(markdown::table(&heading, &rows.collect::<Vec<_>>()))
}

const READING: &str = include_str!("reading.md");

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
        let missing = ["nginx: no\nnetwork".to_owned()];
        let about = About {
            machine: "2 cores.",
            rounds: 1,
            seconds: 1.0,
            raw: "traffic-1.jsonl",
            missing: &missing,
        };
        let text = document(&records, &judge(&records), &about);
        for part in [
            "| pointsman: small, CPU s / million | haproxy 3 | ≤ 1.10 | 0.750 (0.750 to 0.750 in 1) | met |",
            "| haproxy 3 | – | – | 12.0 (12.0 to 12.0) | 1.00 |",
            "| **pointsman** | – | – | 9.00 (9.00 to 9.00) | 0.75 |",
            "2 of 2 measurements were disturbed",
            "benches/runs/traffic-1.jsonl",
            "- nginx: no network\n",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(!text.contains("## Idle"));
    }
}
