//! The tables: one per scenario, one line per contender, one column per measure; median and
//! extremes.

use std::fmt::Write as _;

use clap::ValueEnum as _;

use super::contender::Contender;
use super::record::{Measure, Record};
use super::scenario::Scenario;
use crate::stats::{short, spread};

/// Median and extremes of the records' values.
pub(super) fn cell(records: &[&Record], measure: Measure) -> String {
    let values: Vec<f64> = records.iter().filter_map(|record| record.value(measure)).collect();
    let Some(spread) = spread(&values) else { return "–".to_owned() };
    let few = if spread.runs < records.len() {
        format!(", of {} runs", spread.runs)
    } else {
        String::new()
    };
    let [median, min, max] = [spread.median, spread.min, spread.max].map(short);
    if min != max || !few.is_empty() { format!("{median} ({min} to {max}{few})") } else { median }
}

/// The rows of one scenario's table, if it was run.
pub(super) fn rows(records: &[Record], scenario: Scenario) -> Option<Vec<Vec<String>>> {
    let header = Measure::COLUMNS.map(|column| column.1.to_owned());
    let mut rows = vec![std::iter::once(String::new()).chain(header).collect()];
    for contender in Contender::value_variants() {
        let is_one = |it: &&Record| it.scenario == scenario && it.contender == *contender;
        let of: Vec<&Record> = records.iter().filter(is_one).collect();
        if !of.is_empty() {
            let cells = Measure::COLUMNS.map(|column| cell(&of, column.0));
            rows.push(std::iter::once(contender.title().to_owned()).chain(cells).collect());
        }
    }
    (rows.len() > 1).then_some(rows)
}

/// As Markdown.
pub(super) fn markdown(rows: &[Vec<String>]) -> String {
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        let _ = writeln!(text, "| {} |", row.join(" | "));
        if index == 0 {
            let _ = writeln!(text, "|{}", "---|".repeat(row.len()));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn record(contender: Contender, lost: f64, gap: Option<f64>) -> Record {
        let mut values = BTreeMap::from([(Measure::Lost, lost)]);
        values.extend(gap.map(|gap| (Measure::Gap, gap)));
        let (scenario, more) = (Scenario::Planned, serde_json::Value::Null);
        Record { scenario, contender, run: 1, values, more }
    }

    #[test]
    fn formats_median_and_extremes() {
        let records = [
            record(Contender::HaproxyVotes, 7000.0, Some(20.0)),
            record(Contender::HaproxyVotes, 6900.0, None),
            record(Contender::HaproxyVotes, 7100.0, Some(40.0)),
            record(Contender::Pointsman, 0.0, None),
        ];
        let rows = rows(&records, Scenario::Planned).expect("a table");
        assert_eq!(rows.len(), 3, "nothing is said of contenders without a record");
        assert_eq!(rows[1][..2], ["**Pointsman**", "0"]);
        assert_eq!(rows[1][4], "–");
        assert_eq!(rows[2][1], "7,000 (6,900 to 7,100)");
        assert_eq!(rows[2][4], "30 (20 to 40, of 2 runs)");
        assert_eq!(super::rows(&records, Scenario::Sigkill), None);
    }

    #[test]
    fn writes_one_line_per_contender() {
        let rows = rows(&[record(Contender::Ioredis, 0.0, None)], Scenario::Planned).expect("rows");
        let markdown = markdown(&rows);
        assert_eq!(markdown.lines().count(), 3);
        assert_eq!(markdown.lines().nth(1), Some("|---|---|---|---|---|---|---|"));
        assert!(markdown.contains("| ioredis, Sentinel | 0 | – |"), "{markdown}");
    }
}
