//! The tables: one per scenario, one line per contender, one column per measure; median and
//! extremes.

use clap::ValueEnum as _;

use super::contender::Contender;
use super::record::{Measure, Record};
use super::scenario::Scenario;
use crate::stats::{short, spread};
use crate::{markdown, title_of};

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

/// The table of one scenario, if it was run.
pub(super) fn table(records: &[Record], scenario: Scenario) -> Option<String> {
    let mut rows = Vec::new();
    for contender in Contender::value_variants() {
        let is_one = |it: &&Record| it.scenario == scenario && it.contender == *contender;
        let of: Vec<&Record> = records.iter().filter(is_one).collect();
        if !of.is_empty() {
            let cells = Measure::COLUMNS.iter().map(|(measure, _)| cell(&of, *measure));
            let title = title_of(contender).replace("Pointsman", "**Pointsman**");
            rows.push(std::iter::once(title).chain(cells).collect());
        }
    }
    let titles = Measure::COLUMNS.iter().map(|(_, title)| *title);
    let heading: Vec<&str> = std::iter::once("").chain(titles).collect();
    (!rows.is_empty()).then(|| markdown::table(&heading, &rows))
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
        let text = table(&records, Scenario::Planned).expect("a table");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "nothing is said of contenders without a record");
        assert_eq!(lines[1], "|---|---|---|---|---|---|---|");
        assert_eq!(lines[2], "| **Pointsman** | 0 | – | – | – | – | – |");
        let haproxy = "| haproxy 3.2, redis-ha chart | 7,000 (6,900 to 7,100) | – | – | 30 (20 to 40, of 2 runs) | – | – |";
        assert_eq!(lines[3], haproxy);
        assert_eq!(table(&records, Scenario::Sigkill), None);
    }
}
