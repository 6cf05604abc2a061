//! `cargo xtask bench alternate`: the CPU of a request, in windows that alternate between Pointsman
//! and the baseline or another proxy.
//!
//! The rows of `cargo xtask bench` differ by several percent between rounds, because the machine's
//! speed drifts within the seconds of a row. These windows are a fifth of a second long, the
//! connections stay open, and a few hundred pairs tell the median ratio within one percent.
//!
//! Deliberately absent: latencies, which `cargo xtask bench` measures; rows that need new
//! connections or TLS.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use clap::Args;
use serde_json::json;
use setup::{build, install};

use super::flow::Flow;
use super::record::Row;
use super::scene::{Built, Scene};
use super::{baseline, environment, stage};
use crate::load::Cost;
use crate::peers::{self, Peer};
use crate::raw::Raw;
use crate::stats::{Likely, figure, likely_median};
use crate::{machine, space, stop_on_signals};

/// The length of a window.
const WINDOW: Duration = Duration::from_millis(200);
/// Rounds that do not count: connections are opened in the first one.
const WARM: u32 = 4;

/// Options of `bench alternate`.
#[derive(Debug, Args)]
pub(crate) struct AlternateOptions {
    /// The rows. Only those with lasting connections and without TLS are possible.
    #[arg(long, value_enum, value_name = "ROW", value_delimiter = ',', default_values_t = [Row::Small, Row::Pipeline, Row::Latency])]
    only: Vec<Row>,
    /// Pairs of windows per row; a hundred take 40 seconds.
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(10..=10_000))]
    rounds: u32,
    /// The other proxy.
    #[arg(long, value_enum, value_name = "PEER", default_value_t = Peer::Baseline)]
    with: Peer,
    /// Another pointsman in place of the other proxy.
    #[arg(long, value_name = "PATH", conflicts_with = "with")]
    with_program: Option<PathBuf>,
    /// Write the raw data to this new file.
    #[arg(long, value_name = "FILE")]
    raw: Option<PathBuf>,
    /// Measure this pointsman instead of building one.
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    #[arg(long, hide = true)]
    namespaced: bool,
}

/// Runs the measurement.
///
/// # Errors
/// A message for people, if it cannot start, or if a request fails.
pub(crate) fn run(options: &AlternateOptions) -> Result<ExitCode, String> {
    let flows: Vec<(Row, Flow)> =
        options.only.iter().copied().map(flow).collect::<Result<_, _>>()?;
    if options.with == Peer::Direct {
        return Err("there is no proxy to measure in `direct`; choose another `--with`".to_owned());
    }
    if !options.namespaced {
        install::for_traffic()?;
        peers::fetch(&[options.with]);
    }
    let built = Built {
        pointsman: build::released_or(options.program.as_deref())?,
        baseline: baseline(options.with == Peer::Baseline && options.with_program.is_none()),
    };
    if !options.namespaced {
        let why = space::enter(&built.pointsman);
        println!("No network namespace: {why}. Everything runs on the machine's own loopback.");
    }
    let stop = stop_on_signals().map_err(|error| format!("signals cannot be handled: {error}"))?;
    environment::prepare(options.namespaced);
    let described = machine::describe(&built.pointsman, options.namespaced, &[]);
    println!("{}", machine::sentence(&described));
    let cores = environment::cores()?;
    let mut raw = options.raw.as_deref().map(Raw::at).transpose()?;
    if let Some(raw) = &mut raw {
        raw.line(&described.to_string())?;
    }
    let mut scene = stage(|| Scene::start(built, cores))?;
    for (row, flow) in flows {
        let pairs = alternate(options, &mut scene, flow, &stop)?;
        for [one, other] in &pairs {
            let Some(raw) = &mut raw else { break };
            let [one, other] = [one, other].map(|it| json!([it.requests, it.cpu]));
            raw.line(&json!({"row": row.name(), "one": one, "other": other}).to_string())?;
        }
        println!("{:>11}  {}", row.name(), line(&pairs));
        if stop.load(Ordering::Acquire) {
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn flow(row: Row) -> Result<(Row, Flow), String> {
    match Flow::of(row).filter(|_| !row.is_tls()) {
        Some(flow) => Ok((row, flow)),
        None => Err(format!("`{}` has no lasting connections without TLS", row.name())),
    }
}

/// The costs of both in each round, without those of the first rounds.
fn alternate(
    options: &AlternateOptions,
    scene: &mut Scene,
    flow: Flow,
    stop: &Arc<AtomicBool>,
) -> Result<Vec<[Cost; 2]>, String> {
    let (said, heard) = channel();
    let go_on = until(WARM + options.rounds, Arc::clone(stop), said);
    let against = (Peer::Pointsman, options.with, options.with_program.as_deref());
    stage(|| scene.alternate(flow, WINDOW, against, go_on))?;
    Ok(heard.into_iter().skip(WARM as usize).collect())
}

/// Sends the costs of so many rounds, and ends them early if `stop` is set.
fn until(
    rounds: u32,
    stop: Arc<AtomicBool>,
    to: Sender<[Cost; 2]>,
) -> impl FnMut(&[Cost]) -> bool + Send + 'static {
    let mut done = 0;
    move |costs| {
        if let [one, other] = costs {
            // The receiver waits for the end.
            let _ = to.send([*one, *other]);
        }
        done += 1;
        done < rounds && !stop.load(Ordering::Acquire)
    }
}

/// The result for people.
fn line(pairs: &[[Cost; 2]]) -> String {
    let [one, other] = [0, 1].map(|place| {
        let costs = pairs.iter().filter_map(|pair| pair.get(place)).map(each);
        likely_median(&costs.collect::<Vec<_>>())
    });
    let ratios: Vec<f64> = pairs.iter().map(|[one, other]| each(one) / each(other)).collect();
    let (Some(one), Some(other), Some(ratio)) = (one, other, likely_median(&ratios)) else {
        return "no window".to_owned();
    };
    let Likely { median, low, high } = ratio;
    format!(
        "{median:.3} (95 %: {low:.3} to {high:.3}, {} pairs)  CPU s / million: {} and {}",
        pairs.len(),
        figure(one.median),
        figure(other.median),
    )
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
            "1.100 (95 %: 1.100 to 1.100, 90 pairs)  CPU s / million: 11.0 and 10.0"
        );
        assert_eq!(line(&[]), "no window");
    }

    #[test]
    fn refuses_rows_of_new_connections() {
        let why = flow(Row::Connections).expect_err("no flow");
        assert_eq!(why, "`connections` has no lasting connections without TLS");
        assert!(flow(Row::TlsSmall).is_err());
    }
}
