//! The tables: one per scenario, one line per measure, one column per proxy; median and extremes.

use std::fmt::Write as _;

use super::record::{Measure, Proxy, Record, Scenario};
use crate::name_of;
use crate::stats::{short, spread};

/// The rows of one scenario's table, if it was run.
pub(super) fn rows(records: &[Record], scenario: Scenario) -> Option<Vec<[String; 3]>> {
    let of = |proxy: Proxy| {
        records.iter().filter(move |it| it.scenario == scenario && it.proxy == proxy)
    };
    let runs = |proxy: Proxy| of(proxy).count();
    if Proxy::ALL.iter().all(|proxy| runs(*proxy) == 0) {
        return None;
    }
    let cell = |measure: Measure, proxy: Proxy| {
        let values: Vec<f64> = of(proxy).filter_map(|record| record.value(measure)).collect();
        let Some(spread) = spread(&values) else { return "–".to_owned() };
        let few = if spread.runs < runs(proxy) {
            format!(", of {} runs", spread.runs)
        } else {
            String::new()
        };
        if spread.min < spread.max || !few.is_empty() {
            let (min, max) = (short(spread.min), short(spread.max));
            format!("{} ({min} to {max}{few})", short(spread.median))
        } else {
            short(spread.median)
        }
    };
    let header = [String::new(), name_of(&Proxy::Haproxy), name_of(&Proxy::Pointsman)];
    let line = |measure: Measure| {
        [measure.title().to_owned(), cell(measure, Proxy::Haproxy), cell(measure, Proxy::Pointsman)]
    };
    Some(std::iter::once(header).chain(Measure::ALL.map(line)).collect())
}

/// For a terminal.
pub(super) fn plain(rows: &[[String; 3]]) -> String {
    let width = |column: usize| {
        rows.iter()
            .map(|row| row.get(column).map_or(0, |cell| cell.chars().count()))
            .max()
            .unwrap_or(0)
    };
    let widths = [width(0), width(1), width(2)];
    rows.iter().fold(String::new(), |mut text, row| {
        let line = format!(
            "  {:<w0$}   {:<w1$}   {}",
            row[0],
            row[1],
            row[2],
            w0 = widths[0],
            w1 = widths[1]
        );
        let _ = writeln!(text, "{}", line.trim_end());
        text
    })
}

/// For a document.
pub(super) fn markdown(rows: &[[String; 3]]) -> String {
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        let _ = writeln!(text, "| {} |", row.join(" | "));
        if index == 0 {
            text.push_str("|---|---|---|\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn record(proxy: Proxy, lost: f64, gap: Option<f64>) -> Record {
        let mut values = BTreeMap::from([(Measure::Lost, lost)]);
        values.extend(gap.map(|gap| (Measure::Gap, gap)));
        Record { scenario: Scenario::Planned, proxy, run: 1, values, more: serde_json::Value::Null }
    }

    #[test]
    fn formats_median_and_extremes() {
        let records = [
            record(Proxy::Haproxy, 7000.0, Some(20.0)),
            record(Proxy::Haproxy, 6900.0, None),
            record(Proxy::Haproxy, 7100.0, Some(40.0)),
            record(Proxy::Pointsman, 0.0, None),
        ];
        let rows = rows(&records, Scenario::Planned).expect("a table");
        let line = |measure: Measure| {
            rows.iter().find(|row| row[0] == measure.title()).expect("a line").clone()
        };
        assert_eq!(line(Measure::Lost)[1..], ["7,000 (6,900 to 7,100)", "0"]);
        assert_eq!(line(Measure::Gap)[1..], ["30 (20 to 40, of 2 runs)", "–"]);
        assert_eq!(super::rows(&records, Scenario::Sigkill), None);
    }

    #[test]
    fn writes_one_line_per_measure() {
        let rows =
            rows(&[record(Proxy::Pointsman, 0.0, None)], Scenario::Planned).expect("a table");
        assert_eq!(plain(&rows).lines().count(), 1 + Measure::ALL.len());
        let markdown = markdown(&rows);
        assert!(markdown.starts_with(
            "|  | haproxy | pointsman |\n|---|---|---|\n| acknowledged writes | – | – |\n"
        ));
    }
}
