//! `cargo xtask bench swap`: how long a master change takes, over many real failovers.
//!
//! A planned failover takes Sentinel a second, and another ten until the old master may be promoted
//! again. So there are several masters, each with its replica, under the same sentinels and behind
//! one pointsman, and they alternate. Pointsman itself measures the time from the read of the
//! deciding `+switch-master` to the store of the new target: exactly in its log, in buckets in its
//! histogram; the two have to agree.
//!
//! Sentinel aborts a failover now and then. Such a failover is counted, and the next one begins.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use harness::{Cluster, Events, Pointsman, wait_until};
use serde_json::{Value, json};

use super::raw::{Raw, benches};
use super::{machine, words};
use setup::{build, install};

/// The promise, in microseconds.
const PROMISE: u64 = 2000;
const PATIENCE: Duration = Duration::from_secs(30);
const HISTOGRAM: &str = "pointsman_failover_switch_seconds";
/// The least number of figures for a 99th percentile.
const ENOUGH: usize = 100;

/// Options of `bench swap`.
#[derive(Debug, Args)]
pub(crate) struct SwapOptions {
    /// Number of masters.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=16))]
    masters: u32,
    /// Failovers per master. Below a hundred in total, nothing is written to benches/.
    #[arg(long, value_name = "N", default_value_t = 13, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Measure this pointsman instead of building one.
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// Only print the figures; write nothing to benches/.
    #[arg(long)]
    dry: bool,
}

/// One master change, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Swap {
    /// From the read of the deciding event to the store.
    switched: u64,
    /// From the read of the last evidence to the store: the verification.
    verified: Option<u64>,
}

/// A part of the time.
type Part = fn(&Swap) -> Option<u64>;

/// Runs the measurement; success if the promise is kept.
///
/// # Errors
/// A message for people, if it cannot start.
pub(crate) fn run(options: &SwapOptions) -> Result<ExitCode, String> {
    install::whatever_is_missing()?;
    let program = build::released_or(options.program.as_deref())?;
    let described = machine::describe(&program, false, &[]);
    let names: Vec<String> =
        (0..options.masters).map(|number| format!("master-{number}")).collect();
    let list: Vec<&str> = names.iter().map(String::as_str).collect();
    let cluster = Cluster::builder()
        .masters(&list)
        .replicas(1)
        .failover_timeout(Duration::from_secs(2))
        .start();
    let pointsman =
        Pointsman::builder(program, &cluster).arg("--set").arg("log.format=json").start();
    let events = Events::of_all(cluster.sentinels());
    let mut given_up = Vec::new();
    for round in 1..=options.rounds {
        // Sentinel demotes an old master some ten seconds later, and only then it can be promoted
        // again.
        attempt(|| cluster.wait_whole())?;
        for name in &list {
            let began = Instant::now();
            match attempt(|| fail_over(&cluster, &pointsman, &events, name)).and_then(|end| end) {
                Ok(()) => println!(
                    "{round:>4}/{}  {name}  {} ms",
                    options.rounds,
                    began.elapsed().as_millis()
                ),
                Err(why) => {
                    println!("{round:>4}/{}  {name}  given up: {why}", options.rounds);
                    given_up.push(why);
                }
            }
        }
    }
    let swaps = logged(&pointsman.process().log());
    let text =
        document(options, &swaps, &histogram(&scrape(&pointsman)), given_up.len(), &described);
    println!("\n{text}");
    let (took, counted) =
        (sorted(&swaps, |it| Some(it.switched)), counted(&histogram(&scrape(&pointsman))));
    let wanted = (options.masters * options.rounds) as usize;
    if took.len() as u64 != counted || took.len() + given_up.len() < wanted {
        return Err(format!(
            "{wanted} failovers, {} in the log and {counted} in the histogram",
            took.len()
        ));
    }
    if !options.dry && took.len() >= ENOUGH {
        let mut raw = Raw::create("swap")?;
        raw.line(&described.to_string())?;
        swaps.iter().try_for_each(|it| {
            raw.line(&json!({"switched_us": it.switched, "verified_us": it.verified}).to_string())
        })?;
        let text = text.replace("RAW", &raw.name);
        fs::write(benches().join("SWAP.md"), text)
            .map_err(|error| format!("benches/SWAP.md: {error}"))?;
    }
    Ok(if at(&took, 990) <= PROMISE { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// In a separate thread: the harness panics if something is missing, and the other failovers should
/// continue.
fn attempt<T: Send>(what: impl FnOnce() -> T + Send) -> Result<T, String> {
    std::thread::scope(|scope| scope.spawn(what).join()).map_err(|panic| words(&*panic))
}

/// Runs one failover to its end, or returns why it was aborted.
fn fail_over(
    cluster: &Cluster,
    pointsman: &Pointsman,
    events: &Events,
    name: &str,
) -> Result<(), String> {
    let (before, heard) = (generation(pointsman, name), events.all().len());
    cluster.begin_failover_of(name);
    let about = |payload: &str| payload.split(' ').nth(1) == Some(name);
    let aborted = || {
        let heard = events.after(heard);
        let mut given_up = heard
            .into_iter()
            .filter(|it| it.channel.starts_with("-failover-abort") && about(&it.payload));
        given_up.next().map(|it| it.channel)
    };
    let end = wait_until("the master change", PATIENCE, || {
        let moved = (generation(pointsman, name) > before).then_some(None);
        moved.or_else(|| aborted().map(Some))
    });
    end.map_or(Ok(()), Err)
}

fn scrape(pointsman: &Pointsman) -> String {
    pointsman.get("/metrics").map(|(_, text)| text).unwrap_or_default()
}

fn generation(pointsman: &Pointsman, name: &str) -> u64 {
    let series = format!("pointsman_target_generation{{service=\"{name}\"}} ");
    let text = scrape(pointsman);
    text.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok()).unwrap_or(0)
}

/// The master changes in the log.
fn logged(log: &str) -> Vec<Swap> {
    let number = |line: &str, key: &str| -> Option<u64> {
        let (_, rest) = line.split_once(&format!("\"{key}\":"))?;
        rest.trim_matches('"').split([',', '}', '"']).next()?.parse().ok()
    };
    let swap = |line| {
        let switched = number(line, "switched_us")?;
        Some(Swap { switched, verified: number(line, "verified_us") })
    };
    log.lines().filter_map(swap).collect()
}

/// The number of master changes within each bound, in microseconds, over all services; the last
/// bound is infinite.
fn histogram(text: &str) -> Vec<(f64, u64)> {
    let mut counts: BTreeMap<u64, (f64, u64)> = BTreeMap::new();
    for line in
        text.lines().filter_map(|line| line.strip_prefix(HISTOGRAM)?.strip_prefix("_bucket"))
    {
        let bound = line.split_once("le=\"").and_then(|(_, rest)| rest.split('"').next());
        let (Some(bound), Some(count)) =
            (bound, line.rsplit(' ').next().and_then(|count| count.parse::<u64>().ok()))
        else {
            continue;
        };
        let bound =
            if bound == "+Inf" { f64::INFINITY } else { bound.parse().unwrap_or(f64::INFINITY) };
        let entry = counts.entry(bound.to_bits()).or_insert((bound, 0));
        entry.1 += count;
    }
    counts.into_values().collect()
}

fn counted(buckets: &[(f64, u64)]) -> u64 {
    buckets.last().map_or(0, |(_, count)| *count)
}

fn sorted(swaps: &[Swap], part: impl Fn(&Swap) -> Option<u64>) -> Vec<u64> {
    let mut took: Vec<u64> = swaps.iter().filter_map(part).collect();
    took.sort_unstable();
    took
}

fn at(sorted: &[u64], per_mille: usize) -> u64 {
    sorted
        .get((sorted.len() * per_mille / 1000).min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or(u64::MAX)
}

/// The report as Markdown; `RAW` stands for the name of the file of raw data.
fn document(
    options: &SwapOptions,
    swaps: &[Swap],
    buckets: &[(f64, u64)],
    given_up: usize,
    described: &Value,
) -> String {
    let SwapOptions { masters, rounds, .. } = options;
    let took = sorted(swaps, |it| Some(it.switched));
    let mut text = format!(
        "# From the deciding `+switch-master` to the swap\n\n\
         Written by `cargo xtask bench swap --masters {masters} --rounds {rounds}`; every move is a line of `benches/runs/RAW`.\n\n\
         {masters} masters with a replica each under the same three sentinels, behind one pointsman; `SENTINEL FAILOVER` of one after \
         the other,\n{rounds} times. Measured by pointsman itself, from the read of the `+switch-master` that makes a majority of \
         distinct sentinels to\nthe store of the new target. {} moves; {given_up} failovers were given up by Sentinel.\n\n{}\n\n\
         | microseconds | p50 | p90 | p99 | largest |\n|---|---|---|---|---|\n",
        took.len(),
        machine::sentence(described)
    );
    let parts: [(&str, Part); 3] = [
        ("from the deciding notice to the swap", |it| Some(it.switched)),
        ("of that: until the evidence was complete", |it| {
            Some(it.switched.saturating_sub(it.verified?))
        }),
        ("of that: the verification", |it| it.verified),
    ];
    for (name, part) in parts {
        let took = sorted(swaps, part);
        if took.is_empty() {
            continue;
        }
        let [half, ninety, most, last] =
            [500, 900, 990, 1000].map(|per_mille| at(&took, per_mille));
        // Writing to a string does not fail.
        let _ = writeln!(text, "| {name} | {half} | {ninety} | {most} | {last} |");
    }
    let verdict = if at(&took, 990) <= PROMISE { "kept" } else { "MISSED" };
    let _ = writeln!(
        text,
        "\n- {verdict}: p99 at most {PROMISE} us\n\n| `{HISTOGRAM}`, ms at most | moves |\n|---|---|"
    );
    let whole = counted(buckets);
    // From the first bound with a value to the first that all values are within.
    let last = buckets.iter().position(|(_, count)| *count == whole).unwrap_or(buckets.len());
    for (bound, count) in buckets.iter().take(last + 1).filter(|(_, count)| *count > 0) {
        let bound =
            if bound.is_finite() { format!("{}", bound * 1000.0) } else { "any".to_owned() };
        let _ = writeln!(text, "| {bound} | {count} of {whole} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_log_and_histogram() {
        let log = "{\"fields\":{\"switched_us\":912,\"verified_us\":300,\"x\":1}}\n{\"fields\":{\"message\":\"other\"}}\n\
                   {\"switched_us\":1500}";
        let swap = |switched, verified| Swap { switched, verified };
        assert_eq!(logged(log), [swap(912, Some(300)), swap(1500, None)]);
        let line = |service: &str, bound: &str, count: u64| {
            format!("{HISTOGRAM}_bucket{{service=\"{service}\",le=\"{bound}\"}} {count}\n")
        };
        let text = line("a", "0.001", 2)
            + &line("a", "+Inf", 3)
            + &line("b", "0.001", 1)
            + &line("b", "+Inf", 1);
        assert_eq!(histogram(&text), [(0.001, 3), (f64::INFINITY, 4)]);
    }

    #[test]
    fn writes_promise_and_abandoned_failovers() {
        let options = SwapOptions { masters: 2, rounds: 50, program: None, dry: true };
        let swaps: Vec<Swap> =
            (1..=100).map(|us| Swap { switched: us * 20, verified: Some(us) }).collect();
        let buckets = [(0.001, 50), (f64::INFINITY, 100)];
        let text = document(&options, &swaps, &buckets, 3, &json!({}));
        assert!(
            text.contains("| from the deciding notice to the swap | 1020 | 1820 | 2000 | 2000 |"),
            "{text}"
        );
        assert!(
            text.contains("100 moves; 3 failovers were given up") && text.contains("- kept: p99"),
            "{text}"
        );
        assert!(text.ends_with("| 1 | 50 of 100 |\n| any | 100 of 100 |\n"), "{text}");
        let slow: Vec<Swap> =
            swaps.iter().map(|it| Swap { switched: it.switched + 1, ..*it }).collect();
        assert!(document(&options, &slow, &buckets, 0, &json!({})).contains("- MISSED: p99"));
    }

    #[test]
    fn continues_after_abandoned_failover() {
        assert_eq!(attempt(|| 1), Ok(1));
        assert_eq!(
            attempt(|| panic!("-failover-abort-not-elected")),
            Err::<(), _>("-failover-abort-not-elected".to_owned())
        );
    }
}
