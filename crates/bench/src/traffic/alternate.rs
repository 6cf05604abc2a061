//! `cargo xtask bench alternate`: the CPU of a request, in windows that alternate between Pointsman
//! and the baseline or another pointsman.
//!
//! The rows of `cargo xtask bench` differ by several percent between rounds, because the machine's
//! speed drifts within the seconds of a row. These windows are a fifth of a second long, the
//! connections stay open, and 25 pairs tell the median ratio within one percent. A process has luck
//! with its memory, though: started again, it may take one percent more for all its life. So both
//! are started again for every series of pairs, and the result is the median of the series.
//!
//! Latencies, new connections and TLS are measured by `cargo xtask bench`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use clap::Args;
use serde_json::json;
use setup::{build, install};

use super::record::Row;
use super::scene::{Built, Scene};
use super::{baseline, environment, replicas};
use crate::load::{Cost, Flow};
use crate::raw::Raw;
use crate::stats::{Likely, figure, likely_median, spread};
use crate::subject::Subject;
use crate::{caught, name_of, stop_on_signals};

/// Rounds that do not count: connections are opened in the first one.
const WARM: u32 = 4;

/// Options of `bench alternate`.
#[derive(Debug, Args)]
pub(crate) struct AlternateOptions {
    /// The rows. Only those with lasting connections and without TLS are possible.
    #[arg(long, value_enum, value_name = "ROW", value_delimiter = ',', default_values_t = [Row::Small, Row::Pipeline, Row::Latency])]
    only: Vec<Row>,
    /// Series of pairs of windows per row, each with new processes and about twelve seconds long.
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=200))]
    series: u32,
    /// Pairs of windows per series.
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u32).range(5..=1000))]
    pairs: u32,
    /// Another pointsman in place of the baseline.
    #[arg(long, value_name = "PATH")]
    with_program: Option<PathBuf>,
    #[command(flatten)]
    subject: Subject,
}

/// Runs the measurement.
///
/// # Errors
/// A message for people, if it cannot start, or if a request fails.
pub(crate) fn run(options: &AlternateOptions) -> Result<ExitCode, String> {
    let flows: Vec<(Row, Flow)> =
        options.only.iter().copied().map(flow).collect::<Result<_, _>>()?;
    let other = options.with_program.as_deref();
    let other = other.map(|it| build::released_or(Some(it))).transpose()?;
    let baseline = || baseline(other.is_none());
    let pointsman = options.subject.enter(|| {
        install::for_traffic()?;
        // In the namespace there is no network for a build.
        drop(baseline());
        Ok(())
    })?;
    let stop = stop_on_signals()?;
    environment::prepare();
    let (_, mut raw) = options.subject.describe(&pointsman, &[], None)?;
    let cores = environment::cores()?;
    let built = Built { pointsman, baseline: baseline() };
    let mut scene = caught(|| Scene::start(built, cores, replicas(&options.only)))?;
    for (row, flow) in flows {
        let mut series = Vec::new();
        for number in 1..=options.series {
            let rounds = WARM + options.pairs;
            let mut pairs = caught(|| scene.alternate(row, flow, other.as_deref(), rounds, &stop))?;
            pairs.drain(..pairs.len().min(WARM as usize));
            if stop.load(Ordering::Acquire) {
                return Ok(ExitCode::FAILURE);
            }
            if let Some(raw) = &mut raw {
                record(raw, row, number, &pairs)?;
            }
            println!("{:>11}  {number:>3}/{}  {}", name_of(&row), options.series, line(&pairs));
            series.push(pairs);
        }
        println!("{:>11}  {}", name_of(&row), result(&series));
    }
    Ok(ExitCode::SUCCESS)
}

fn flow(row: Row) -> Result<(Row, Flow), String> {
    match row.flow().filter(|_| !row.is_tls() && row != Row::Fairness) {
        Some(flow) => Ok((row, flow)),
        None => Err(format!("`{}` has no lasting connections without TLS", name_of(&row))),
    }
}

fn record(raw: &mut Raw, row: Row, series: u32, pairs: &[[Cost; 2]]) -> Result<(), String> {
    for pair in pairs {
        let [one, other] = pair.map(|it| json!([it.requests, it.cpu]));
        let line = json!({"row": name_of(&row), "series": series, "one": one, "other": other});
        raw.line(&line.to_string())?;
    }
    Ok(())
}

/// The median ratio of a series.
fn ratio(pairs: &[[Cost; 2]]) -> Option<Likely> {
    let ratios: Vec<f64> = pairs.iter().map(|[one, other]| each(one) / each(other)).collect();
    likely_median(&ratios)
}

/// A series for people.
fn line(pairs: &[[Cost; 2]]) -> String {
    let median = |of: fn(&[Cost; 2]) -> f64| {
        spread(&pairs.iter().map(of).collect::<Vec<_>>()).map_or(f64::NAN, |it| it.median)
    };
    let [one, other] = [median(|pair| each(&pair[0])), median(|pair| each(&pair[1]))].map(figure);
    match ratio(pairs) {
        Some(Likely { median, low, high }) => format!(
            "{median:.3} ({low:.3} to {high:.3}, {} pairs)  CPU s / million: {one} and {other}",
            pairs.len()
        ),
        None => "no window".to_owned(),
    }
}

/// The result of a row for people.
fn result(series: &[Vec<[Cost; 2]>]) -> String {
    let medians: Vec<f64> = series.iter().filter_map(|it| ratio(it)).map(|it| it.median).collect();
    match likely_median(&medians) {
        Some(Likely { median, low, high }) => {
            format!("{median:.3} (95 %: {low:.3} to {high:.3}, {} series)", medians.len())
        }
        None => "no window".to_owned(),
    }
}

/// CPU seconds per million requests.
fn each(cost: &Cost) -> f64 {
    cost.cpu / f64::from(u32::try_from(cost.requests).unwrap_or(u32::MAX)) * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_the_median_of_ratios_of_pairs() {
        let cost = |requests, cpu| Cost { requests, cpu };
        // The machine is half as fast in every third pair, which leaves the ratio as it is.
        let pairs: Vec<[Cost; 2]> = (0..90)
            .map(|round| if round % 3 == 0 { 2.0 } else { 1.0 })
            .map(|slow| [cost(2000, 0.022 * slow), cost(1000, 0.010 * slow)])
            .collect();
        assert_eq!(
            line(&pairs),
            "1.100 (1.100 to 1.100, 90 pairs)  CPU s / million: 11.0 and 10.0"
        );
        assert_eq!(line(&[]), "no window");
        let others = vec![[cost(1000, 0.012), cost(1000, 0.010)]];
        assert_eq!(
            result(&[others.clone(), pairs, others]),
            "1.200 (95 %: 1.100 to 1.200, 3 series)"
        );
    }

    #[test]
    fn refuses_rows_of_new_connections() {
        let why = flow(Row::Connections).expect_err("no flow");
        assert_eq!(why, "`connections` has no lasting connections without TLS");
        assert!(flow(Row::TlsSmall).is_err());
    }
}
