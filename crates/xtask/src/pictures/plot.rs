//! The plot of a planned failover: one panel per proxy, on one time axis.
//!
//! Each bar counts the writes acknowledged in its interval; the part that the new master lacks in
//! the end has another colour. The picture has a light background, so that it is readable on a dark
//! page as well.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::record::{AFTER, BEFORE, RATE, Run};

const SIZE: (u32, u32) = (860, 500);
/// Seconds per bar.
const BAR: f64 = 0.2;
/// Blue and vermilion of the palette by Okabe and Ito, which colour-blind readers can tell apart.
const KEPT: RGBColor = RGBColor(0, 114, 178);
const LOST: RGBColor = RGBColor(213, 94, 0);
const INK: RGBColor = RGBColor(50, 55, 60);
const GRID: RGBColor = RGBColor(228, 231, 235);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Outcome = Result<(), Box<dyn std::error::Error>>;

/// A bar: its start, the acknowledged writes per second, and how many of these are lost.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Bar {
    from: f64,
    acknowledged: f64,
    lost: f64,
}

/// The bars of a run over the whole time axis.
fn bars(run: &Run) -> Vec<Bar> {
    let count = ((BEFORE + AFTER) / BAR).round();
    let mut bars = Vec::new();
    let mut index = 0.0;
    while index < count {
        let from = index * BAR - BEFORE;
        let within = run.writes.iter().filter(|write| write.at >= from && write.at < from + BAR);
        let (mut acknowledged, mut lost) = (0.0, 0.0);
        for write in within {
            acknowledged += 1.0 / BAR;
            lost += if write.lost { 1.0 / BAR } else { 0.0 };
        }
        bars.push(Bar { from, acknowledged, lost });
        index += 1.0;
    }
    bars
}

/// Draws the runs below each other.
pub(super) fn draw(runs: &[Run], file: &Path) -> Outcome {
    let area = SVGBackend::new(file, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let (panels, foot) = area.split_vertically(SIZE.1 - 36);
    for (index, (run, panel)) in runs.iter().zip(panels.split_evenly((runs.len(), 1))).enumerate() {
        paint(run, &panel, index + 1 == runs.len())?;
    }
    legend(&foot)?;
    area.present()?;
    Ok(())
}

fn text(size: u32, bold: bool) -> TextStyle<'static> {
    let font = ("sans-serif", size).into_font();
    let font = if bold { font.style(FontStyle::Bold) } else { font };
    font.color(&INK).pos(Pos::new(HPos::Left, VPos::Center))
}

fn paint(run: &Run, panel: &Area<'_>, last: bool) -> Outcome {
    panel.draw(&Text::new(run.sentence(), (66, 20), text(17, true)))?;
    let mut chart = ChartBuilder::on(panel)
        .margin_top(38)
        .margin_right(18)
        .x_label_area_size(if last { 42 } else { 24 })
        .y_label_area_size(66)
        .build_cartesian_2d(-BEFORE..AFTER, 0.0..f64::from(RATE) * 1.25)?;
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh().light_line_style(WHITE).bold_line_style(GRID).axis_style(INK);
    mesh.label_style(text(13, false)).axis_desc_style(text(14, false));
    let signed = |at: &f64| format!("{at:.0}").replace('-', "\u{2212}");
    let thousands = |rate: &f64| {
        if *rate < 1000.0 { format!("{rate:.0}") } else { format!("{:.0},000", rate / 1000.0) }
    };
    mesh.x_labels(10).y_labels(3).x_label_formatter(&signed).y_label_formatter(&thousands);
    mesh.y_desc("writes per second");
    if last {
        mesh.x_desc("seconds after SENTINEL FAILOVER");
    }
    mesh.draw()?;
    let bars = bars(run);
    let rectangle = |bar: &Bar, from: f64, to: f64, color: RGBColor| {
        Rectangle::new([(bar.from, from), (bar.from + BAR, to)], color.filled())
    };
    chart.draw_series(bars.iter().map(|bar| rectangle(bar, bar.lost, bar.acknowledged, KEPT)))?;
    let lost = bars.iter().filter(|bar| bar.lost > 0.0);
    chart.draw_series(lost.map(|bar| rectangle(bar, 0.0, bar.lost, LOST)))?;
    let top = f64::from(RATE) * 1.25;
    chart.draw_series([PathElement::new([(0.0, 0.0), (0.0, top)], INK.stroke_width(1))])?;
    Ok(())
}

fn legend(area: &Area<'_>) -> Outcome {
    for (left, color, words) in [
        (66, KEPT, "acknowledged, and on the new master in the end"),
        (430, LOST, "acknowledged, and lost"),
    ] {
        area.draw(&Rectangle::new([(left, 10), (left + 14, 24)], color.filled()))?;
        area.draw(&Text::new(words, (left + 21, 17), text(14, false)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::record::Write;
    use super::*;

    fn run(writes: &[(f64, bool)]) -> Run {
        let writes = writes.iter().map(|(at, lost)| Write { at: *at, lost: *lost }).collect();
        Run { name: "haproxy 2.6".to_owned(), writes, errors: 0 }
    }

    #[test]
    fn counts_each_write_in_its_bar() {
        let bars = bars(&run(&[
            (-3.1, false),
            (-2.95, false),
            (0.05, false),
            (0.1, true),
            (14.95, true),
            (15.1, false),
        ]));
        assert_eq!(bars.len(), 90);
        assert_eq!(bars[0].acknowledged, 5.0);
        let at = bars.iter().position(|bar| bar.from > -0.01).expect("a bar at zero");
        assert_eq!((bars[at].acknowledged, bars[at].lost), (10.0, 5.0));
        assert_eq!((bars[89].acknowledged, bars[89].lost), (5.0, 5.0));
    }

    #[test]
    fn draws_titles_axes_and_legend() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("plot.svg");
        draw(&[run(&[(1.0, true)]), run(&[(1.0, false)])], &file).expect("a plot");
        let text = std::fs::read_to_string(file).expect("a plot");
        for words in [
            "1 of 1 acknowledged",
            "0 of 1 acknowledged",
            "writes per second",
            "SENTINEL FAILOVER",
            "and lost",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}
