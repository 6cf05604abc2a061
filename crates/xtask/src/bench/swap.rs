//! `cargo xtask bench swap`: how long the points take to move, over many real failovers.
//!
//! A planned failover takes Sentinel a second, and another ten until the old master may be promoted again. So there are several
//! masters, each with its replica, under the same sentinels and behind one pointsman, and they take turns. What is measured is what
//! pointsman takes down of itself, from the read of the deciding `+switch-master` to the store of the new target: exact in its log,
//! in buckets in its histogram, and the two have to agree.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use harness::{Cluster, Pointsman, wait_until};

use crate::{build, install};

/// The promise, in microseconds.
const PROMISE: u64 = 2000;
const PATIENCE: Duration = Duration::from_secs(30);
const HISTOGRAM: &str = "pointsman_failover_switch_seconds";

/// What to measure.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Masters that take turns.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=16))]
    masters: u32,
    /// Failovers of each of them.
    #[arg(long, value_name = "N", default_value_t = 13, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Measure this pointsman instead of building one.
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
}

/// Measures: success if the promise is kept.
///
/// # Errors
/// In words, if it cannot begin.
pub(crate) fn run(options: &Options) -> Result<ExitCode, String> {
    install::whatever_is_missing()?;
    let program = match &options.program {
        Some(program) => fs::canonicalize(program).map_err(|error| format!("{}: {error}", program.display()))?,
        None => build::released_pointsman()?,
    };
    let names: Vec<String> = (0..options.masters).map(|number| format!("master-{number}")).collect();
    let list: Vec<&str> = names.iter().map(String::as_str).collect();
    let cluster = Cluster::builder().masters(&list).replicas(1).failover_timeout(Duration::from_secs(2)).start();
    let pointsman = Pointsman::builder(program, &cluster).arg("--set").arg("log.format=json").start();
    let whole = options.masters * options.rounds;
    for number in 1..=whole {
        let name = list.get(usize::try_from(number - 1).unwrap_or(0) % list.len()).copied().unwrap_or_default();
        if name == list.first().copied().unwrap_or_default() {
            // Sentinel demotes an old master some ten seconds later, and only then it can be promoted again.
            cluster.wait_whole();
        }
        let before = generation(&pointsman, name);
        let began = Instant::now();
        cluster.failover_of(name);
        wait_until("the points to move", PATIENCE, || generation(&pointsman, name) > before);
        println!("{number:>4}/{whole}  {name}  {} ms", began.elapsed().as_millis());
    }
    let mut took = logged(&pointsman.process().log());
    took.sort_unstable();
    let buckets = histogram(&scrape(&pointsman));
    report(&took, &buckets);
    let counted = buckets.last().map_or(0, |(_, count)| *count);
    if took.len() as u64 != counted || took.len() < usize::try_from(whole).unwrap_or(0) {
        return Err(format!("{whole} failovers, {} in the log and {counted} in the histogram", took.len()));
    }
    Ok(if at(&took, 990) <= PROMISE { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn scrape(pointsman: &Pointsman) -> String {
    pointsman.get("/metrics").map(|(_, text)| text).unwrap_or_default()
}

fn generation(pointsman: &Pointsman, name: &str) -> u64 {
    let series = format!("pointsman_target_generation{{service=\"{name}\"}} ");
    let text = scrape(pointsman);
    text.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok()).unwrap_or(0)
}

/// The microseconds that each line about a move gives.
fn logged(log: &str) -> Vec<u64> {
    let number = |line: &str| {
        let (_, rest) = line.split_once("\"switched_us\":")?;
        rest.trim_matches('"').split([',', '}', '"']).next()?.parse().ok()
    };
    log.lines().filter_map(number).collect()
}

/// How many moves took so long at most, by the bound in microseconds, over all services; the last bound is endless.
fn histogram(text: &str) -> Vec<(f64, u64)> {
    let mut counts: BTreeMap<u64, (f64, u64)> = BTreeMap::new();
    for line in text.lines().filter_map(|line| line.strip_prefix(HISTOGRAM)?.strip_prefix("_bucket")) {
        let bound = line.split_once("le=\"").and_then(|(_, rest)| rest.split('"').next());
        let (Some(bound), Some(count)) = (bound, line.rsplit(' ').next().and_then(|count| count.parse::<u64>().ok()))
        else {
            continue;
        };
        let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().unwrap_or(f64::INFINITY) };
        let entry = counts.entry(bound.to_bits()).or_insert((bound, 0));
        entry.1 += count;
    }
    counts.into_values().collect()
}

fn at(sorted: &[u64], per_mille: usize) -> u64 {
    sorted.get((sorted.len() * per_mille / 1000).min(sorted.len().saturating_sub(1))).copied().unwrap_or(u64::MAX)
}

fn report(took: &[u64], buckets: &[(f64, u64)]) {
    let whole = buckets.last().map_or(0, |(_, count)| *count);
    println!("\nfrom the +switch-master that makes a majority to the swap, {} failovers:", took.len());
    println!(
        "  log: p50 {} us, p90 {} us, p99 {} us, max {} us",
        at(took, 500),
        at(took, 900),
        at(took, 990),
        took.last().copied().unwrap_or_default()
    );
    for (bound, count) in buckets.iter().filter(|(_, count)| *count > 0) {
        println!("  {HISTOGRAM} <= {:>8} ms: {count:>5} of {whole}", bound * 1000.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_and_histogram_are_read() {
        let log =
            "{\"fields\":{\"switched_us\":912,\"x\":1}}\n{\"fields\":{\"message\":\"other\"}}\n{\"switched_us\":1500}";
        assert_eq!(logged(log), [912, 1500]);
        let line = |service: &str, bound: &str, count: u64| {
            format!("{HISTOGRAM}_bucket{{service=\"{service}\",le=\"{bound}\"}} {count}\n")
        };
        let text = line("a", "0.001", 2) + &line("a", "+Inf", 3) + &line("b", "0.001", 1) + &line("b", "+Inf", 1);
        assert_eq!(histogram(&text), [(0.001, 3), (f64::INFINITY, 4)]);
    }
}
