//! Plots: one panel per measure with one bar per proxy, as SVG, which repositories display and
//! diffs can show.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::record::{Measure, Record, Row};
use crate::peers::Peer;
use crate::stats::{figure, spread};

const WIDTH: i32 = 860;
const LABELS: i32 = 200;
const FIGURES: i32 = 90;
const BAR: i32 = 22;
const HEAD: i32 = 40;

/// A file and its content.
struct Plot {
    file: &'static str,
    panels: &'static [(Row, Measure)],
}

const PLOTS: [Plot; 3] = [
    Plot {
        file: "small-requests.svg",
        panels: &[
            (Row::Small, Measure::CpuRequest),
            (Row::Small, Measure::Rps),
            (Row::Pipeline, Measure::CpuRequest),
            (Row::Latency, Measure::P50),
            (Row::Latency, Measure::P99),
        ],
    },
    Plot {
        file: "bulk.svg",
        panels: &[
            (Row::Get64, Measure::CpuBulk),
            (Row::Set64, Measure::CpuBulk),
            (Row::Get1m, Measure::CpuBulk),
            (Row::Set1m, Measure::CpuBulk),
            (Row::Get1m, Measure::Bulk),
        ],
    },
    Plot {
        file: "connections.svg",
        panels: &[
            (Row::Idle, Measure::Memory),
            (Row::Connections, Measure::Conns),
            (Row::Connections, Measure::CpuConn),
            (Row::First, Measure::P50),
        ],
    },
];

/// A panel: its title, and the bars with their medians.
type Panel = (String, Vec<(Peer, f64)>);

/// Draws all plots into a folder; returns the names of those with content.
///
/// # Errors
/// A message for people, if a file cannot be written.
pub(super) fn draw(records: &[Record], folder: &Path) -> Result<Vec<&'static str>, String> {
    let mut drawn = Vec::new();
    for Plot { file, panels } in PLOTS {
        let panels: Vec<Panel> =
            panels.iter().filter_map(|(row, measure)| panel(records, *row, *measure)).collect();
        if !panels.is_empty() {
            paint(&panels, &folder.join(file)).map_err(|error| format!("{file}: {error}"))?;
            drawn.push(file);
        }
    }
    Ok(drawn)
}

fn panel(records: &[Record], row: Row, measure: Measure) -> Option<Panel> {
    let median = |peer: Peer| {
        let records = records.iter().filter(|it| it.row == row && it.peer == peer);
        let values: Vec<f64> = records.filter_map(|record| record.value(measure)).collect();
        spread(&values).map(|it| (peer, it.median))
    };
    let bars: Vec<_> = Peer::ALL.into_iter().filter_map(median).collect();
    (!bars.is_empty()).then(|| (format!("{}: {}", row.title(), measure.title()), bars))
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "the width of a bar is below the width of the picture"
)]
fn paint(panels: &[Panel], file: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let height = |(_, bars): &Panel| HEAD + BAR * i32::try_from(bars.len()).unwrap_or(0);
    let total: i32 = panels.iter().map(height).sum::<i32>() + HEAD / 2;
    let size = (WIDTH.unsigned_abs(), total.unsigned_abs());
    let area = SVGBackend::new(file, size).into_drawing_area();
    area.fill(&WHITE)?;
    let style = |bold: bool| {
        let font = ("sans-serif", if bold { 15 } else { 13 }).into_font();
        let font = if bold { font.style(FontStyle::Bold) } else { font };
        font.color(&BLACK).pos(Pos::new(HPos::Left, VPos::Center))
    };
    let mut top = 0;
    for (title, bars) in panels {
        area.draw(&Text::new(title.clone(), (10, top + HEAD * 2 / 3), style(true)))?;
        let most = bars.iter().map(|(_, value)| *value).fold(f64::MIN_POSITIVE, f64::max);
        for (index, (peer, value)) in (0..).zip(bars) {
            let y = top + HEAD + index * BAR;
            let length = (f64::from(WIDTH - LABELS - FIGURES) * value.max(0.0) / most) as i32;
            let color = if *peer == Peer::Pointsman {
                RGBColor(0, 110, 180)
            } else {
                RGBColor(170, 175, 180)
            };
            let bar = Rectangle::new(
                [(LABELS, y + 3), (LABELS + length.max(1), y + BAR - 3)],
                color.filled(),
            );
            area.draw(&bar)?;
            let name = peer.title().replace("**", "");
            area.draw(&Text::new(name, (10, y + BAR / 2), style(*peer == Peer::Pointsman)))?;
            area.draw(&Text::new(
                figure(*value),
                (LABELS + length + 8, y + BAR / 2),
                style(false),
            ))?;
        }
        top += height(&(String::new(), bars.clone()));
    }
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn draws_a_bar_per_measured_proxy() {
        let record = |peer, value| {
            let values = BTreeMap::from([(Measure::Memory, value)]);
            Record { row: Row::Idle, peer, round: 1, values, foreign: 0.0, disturbed: false }
        };
        let folder = tempfile::tempdir().expect("a folder");
        let drawn =
            draw(&[record(Peer::Pointsman, 900.0), record(Peer::Haproxy3, 3800.0)], folder.path());
        assert_eq!(drawn, Ok(vec!["connections.svg"]));
        let text = std::fs::read_to_string(folder.path().join("connections.svg")).expect("a plot");
        assert!(
            text.contains("pointsman") && text.contains("haproxy 3") && text.contains("3,800"),
            "{text}"
        );
        assert!(!text.contains("nginx"));
    }
}
