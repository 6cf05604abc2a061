//! `cargo xtask bench scrapes`: the effect of continuous `/metrics` scrapes on clients.
//!
//! A scrape reads atomics on the admin server's thread, so even a thousand in a row should not be
//! noticeable. The load has a fixed rate and measures latencies from the times at which requests
//! were due. Windows with and without scrapes alternate, with the order reversed in each pair, and
//! the result is the median of the pairs' ratios. A pair that was disturbed by other processes is
//! left out.
//!
//! Deliberately absent: a file of results. This checks one promise and is not compared with peers.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::load::{Latency, Loader, Meter, Open, Window, Workload};
use clap::Args;
use harness::{Cluster, Pointsman, http_get};
use rustix::process::setpriority_process;
use rustix::thread::{CpuSet, sched_getaffinity};

use crate::stats::{Spread, figure, spread};
use setup::{build, install};

/// Connections of the load.
const CLIENTS: usize = 50;
/// The least number of scrapes that shows anything.
const ENOUGH: u64 = 1000;
/// The least number of pairs: quiet windows were seen to differ eightfold.
const PAIRS: usize = 5;
/// The part of a core that other processes or the host may take before a pair does not count.
const FOREIGN: f64 = 0.1;
/// The largest ratio of the p99 with and without scrapes, in the median of the pairs.
const MOST: f64 = 1.25;

/// Options of `bench scrapes`.
#[derive(Debug, Args)]
pub(crate) struct ScrapesOptions {
    /// Pairs of windows.
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Length of a window in seconds.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Requests per second.
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(100..=50_000))]
    rate: u32,
    /// Measure this pointsman instead of building one.
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
}

/// Runs the measurement; success if the p99 does not change.
///
/// # Errors
/// A message for people, if it cannot start, or if a request or a scrape fails.
pub(crate) fn run(options: &ScrapesOptions) -> Result<ExitCode, String> {
    install::whatever_is_missing()?;
    let program = match &options.program {
        Some(program) => {
            fs::canonicalize(program).map_err(|error| format!("{}: {error}", program.display()))?
        }
        None => build::released_pointsman()?,
    };
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let pointsman = Pointsman::builder(program, &cluster).start();
    let others =
        cluster.nodes().iter().chain(cluster.sentinels()).filter_map(harness::Node::pid).collect();
    let meter = Meter { proxy: vec![pointsman.process().pid()], others };
    let words = |error: std::io::Error| format!("no load: {error}");
    let loader = Loader::start(first_core()?, IpAddr::V4(Ipv4Addr::LOCALHOST)).map_err(words)?;
    let mut pairs = Vec::new();
    for round in 1..=options.rounds {
        let window = || window(options, &loader, &pointsman, &meter);
        let (quiet, (scraped, scrapes)) = if round % 2 == 0 {
            (window()?, while_scraped(&pointsman, window)?)
        } else {
            let scraped = while_scraped(&pointsman, window)?;
            (window()?, scraped)
        };
        let pair = Pair { quiet, scraped, scrapes };
        println!("{round:>4}/{}  {}", options.rounds, pair.line());
        pairs.push(pair);
    }
    verdict(&pairs)
}

/// Two consecutive windows.
struct Pair {
    quiet: (Latency, Window),
    scraped: (Latency, Window),
    scrapes: u64,
}

impl Pair {
    fn ratio(&self) -> f64 {
        self.scraped.0.p99 / self.quiet.0.p99
    }

    fn is_disturbed(&self) -> bool {
        [self.quiet.1, self.scraped.1]
            .iter()
            .any(|it| (it.foreign + it.stolen) / it.seconds > FOREIGN)
    }

    /// CPU time per scrape in milliseconds: the difference of the windows.
    fn cost(&self) -> f64 {
        let a_second = |window: Window| window.proxy / window.seconds;
        let more = a_second(self.scraped.1) - a_second(self.quiet.1);
        more * self.scraped.1.seconds / f64::from(u32::try_from(self.scrapes).unwrap_or(u32::MAX))
            * 1e3
    }

    fn line(&self) -> String {
        let (quiet, scraped, ratio) =
            (figure(self.quiet.0.p99), figure(self.scraped.0.p99), figure(self.ratio()));
        let disturbed = if self.is_disturbed() { "  (disturbed)" } else { "" };
        let (scrapes, cost) = (self.scrapes, figure(self.cost()));
        format!(
            "p99 {quiet} us, with {scrapes} scrapes of {cost} ms CPU {scraped} us: {ratio}{disturbed}"
        )
    }
}

/// The verdict on the undisturbed pairs.
fn verdict(pairs: &[Pair]) -> Result<ExitCode, String> {
    let good: Vec<&Pair> = pairs.iter().filter(|pair| !pair.is_disturbed()).collect();
    let of =
        |what: fn(&Pair) -> f64| spread(&good.iter().map(|pair| what(pair)).collect::<Vec<f64>>());
    let scrapes: u64 = good.iter().map(|pair| pair.scrapes).sum();
    println!();
    for (name, spread) in [
        ("p99 without, in us", of(|pair| pair.quiet.0.p99)),
        ("p99 with scrapes, in us", of(|pair| pair.scraped.0.p99)),
        ("CPU of a scrape, in ms", of(Pair::cost)),
        ("the ratio of the p99s", of(Pair::ratio)),
    ] {
        if let Some(Spread { median, min, max, .. }) = spread {
            println!("{name:>24}: {} ({} to {})", figure(median), figure(min), figure(max));
        }
    }
    println!("{scrapes} scrapes in {} undisturbed pairs of {}", good.len(), pairs.len());
    match of(Pair::ratio) {
        Some(ratio) if scrapes >= ENOUGH && good.len() >= PAIRS => {
            Ok(if ratio.median <= MOST { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        _ => Err("too few to tell: take more rounds, or a quieter machine".to_owned()),
    }
}

fn first_core() -> Result<usize, String> {
    let allowed = sched_getaffinity(None)
        .map_err(|error| format!("the CPU cores cannot be read: {error}"))?;
    (0..CpuSet::MAX_CPU)
        .find(|core| allowed.is_set(*core))
        .ok_or_else(|| "there is no core".to_owned())
}

fn window(
    options: &ScrapesOptions,
    loader: &Loader,
    pointsman: &Pointsman,
    meter: &Meter,
) -> Result<(Latency, Window), String> {
    let open = Open {
        to: pointsman.addr(),
        workload: Workload::Ping,
        clients: CLIENTS,
        rate: options.rate,
        warm: Duration::from_millis(300),
        time: Duration::from_secs(options.seconds.into()),
    };
    let meter = meter.clone();
    loader.run(move |engine| open.run(engine, &meter)).map_err(|error| format!("the load: {error}"))
}

/// The result of a window with continuous scrapes, and the number of scrapes.
fn while_scraped<T>(
    pointsman: &Pointsman,
    window: impl FnOnce() -> Result<T, String>,
) -> Result<(T, u64), String> {
    let (admin, over) = (pointsman.admin(), AtomicBool::new(false));
    thread::scope(|scope| {
        let scraper = scope.spawn(|| {
            // Prometheus would run on another machine, so it must not slow the load down.
            let yielded = setpriority_process(None, 19);
            yielded.map_err(|error| format!("the scraper cannot step back: {error}"))?;
            let mut done = 0;
            while !over.load(Ordering::Relaxed) {
                match http_get(admin, "/metrics") {
                    Ok((200, _)) => done += 1,
                    Ok((status, _)) => return Err(format!("a scrape was answered with {status}")),
                    Err(error) => return Err(format!("a scrape: {error}")),
                }
            }
            Ok(done)
        });
        let measured = window();
        over.store(true, Ordering::Relaxed);
        let done = scraper.join().map_err(|panic| super::words(&*panic))??;
        Ok((measured?, done))
    })
}
