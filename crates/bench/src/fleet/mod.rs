//! `cargo xtask bench fleet`: what a fleet of proxies costs each sentinel and each Redis node.
//!
//! Every cell of the table is a number of real pointsman processes times a number of services. The
//! servers count for themselves (`INFO`): connections, commands and CPU time, in a calm period,
//! during a planned failover, and after a sentinel's restart. What the cluster does without any
//! proxy is measured first and subtracted. Clients are deliberately absent: their load depends on
//! them, not on the size of the fleet.

mod counters;
mod observation;
mod report;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use harness::{Cluster, Pointsman, pause, wait_until};

use crate::machine;
use crate::raw::{Raw, benches};
use observation::{Loads, Observation};
use setup::{build, install};

/// Limit for the start of a fleet, and for a failover to reach all of it.
const PATIENCE: Duration = Duration::from_secs(180);
/// How long the load is observed after a failover and after the restart of a sentinel.
const AFTERMATH: Duration = Duration::from_secs(8);
/// How long a restarted sentinel is away.
const AWAY: Duration = Duration::from_secs(3);

/// Options of `bench fleet`.
#[derive(Debug, Args)]
pub(crate) struct FleetOptions {
    /// Numbers of proxies.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,10,100", value_parser = clap::value_parser!(u32).range(1..=1000))]
    proxies: Vec<u32>,
    /// Numbers of services. Each is a master with one replica, all under the same three sentinels.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,50", value_parser = clap::value_parser!(u32).range(1..=50))]
    services: Vec<u32>,
    /// The largest number of proxies times services that this machine shall carry. Larger cells are
    /// extrapolated.
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=50_000))]
    largest: u32,
    /// Length of the calm period in seconds.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(2..=600))]
    seconds: u32,
    /// Measure this pointsman instead of building one.
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// Only print the figures; write nothing to benches/.
    #[arg(long)]
    dry: bool,
}

/// The result for one number of proxies and of services.
#[derive(Debug, Clone)]
struct Cell {
    proxies: u32,
    services: u32,
    calm: Loads,
    failover: Loads,
    restart: Loads,
    /// The longest time a sentinel took to answer during the failover.
    slowest: Duration,
    /// From the first proxy's switch to the last one's.
    spread: Duration,
}

/// Runs the measurement.
///
/// # Errors
/// A message for people, if it cannot start, or if a proxy misses the failover.
pub(crate) fn run(options: &FleetOptions) -> Result<ExitCode, String> {
    install::whatever_is_missing()?;
    let program = build::released_or(options.program.as_deref())?;
    let described = machine::describe(&program, false, &[]);
    let mut cells = Vec::new();
    for services in &options.services {
        let names: Vec<String> = (0..*services).map(|number| format!("service-{number}")).collect();
        for proxies in &options.proxies {
            if services * proxies > options.largest {
                println!("{proxies} proxies with {services} services: left out, see --largest");
                continue;
            }
            let cell = measure(&program, &names, *proxies, options.seconds)?;
            println!("{}", report::line(&cell));
            cells.push(cell);
        }
    }
    let text = report::document(&cells, &machine::sentence(&described));
    println!("\n{text}");
    if !options.dry {
        let mut raw = Raw::create("fleet")?;
        raw.line(&described.to_string())?;
        cells.iter().try_for_each(|cell| raw.line(&report::json(cell).to_string()))?;
        fs::write(benches().join("FLEET.md"), text.replace("RAW", &raw.name))
            .map_err(|error| format!("benches/FLEET.md: {error}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(program: &Path, names: &[String], proxies: u32, seconds: u32) -> Result<Cell, String> {
    let list: Vec<&str> = names.iter().map(String::as_str).collect();
    let cluster = Cluster::builder().masters(&list).replicas(1).start();
    cluster.wait_whole();
    let mut observation = Observation::of(&cluster);
    let calm = Duration::from_secs(seconds.into());
    let alone = observation.average(calm / 2)?;
    let fleet = start(program, &cluster, proxies);
    // The probes and polls of the start are over once each interval has passed a few times.
    pause(Duration::from_secs(5));
    let calm = observation.average(calm)?.beyond(alone);
    println!("{proxies} proxies with {} services: measured in a calm period", names.len());
    let (failover, slowest, spread) = fail_over(&cluster, &fleet, &mut observation)?;
    let restart = restart_sentinel(&cluster, &mut observation)?;
    let services = u32::try_from(names.len()).unwrap_or(u32::MAX);
    let (failover, restart) = (failover.beyond(alone), restart.beyond(alone));
    Ok(Cell { proxies, services, calm, failover, restart, slowest, spread })
}

/// Starts the fleet and waits until each proxy serves. All start at once, as after an outage.
fn start(program: &Path, cluster: &Cluster, proxies: u32) -> Vec<Pointsman> {
    let start = || {
        Pointsman::builder(program, cluster)
            .arg("--set=process.workers=1")
            .without_waiting()
            .start()
    };
    let fleet: Vec<Pointsman> = (0..proxies).map(|_| start()).collect();
    fleet.iter().for_each(|proxy| proxy.wait_ready(PATIENCE));
    fleet
}

/// One planned failover of the first service: the highest load of a tenth of a second, the slowest
/// answer of a sentinel, and the time between the first and the last proxy's switch.
fn fail_over(
    cluster: &Cluster,
    fleet: &[Pointsman],
    observation: &mut Observation<'_>,
) -> Result<(Loads, Duration, Duration), String> {
    let name = cluster.name().to_owned();
    let switches = |proxy: &Pointsman| report::switch_times(&proxy.process().log(), &name);
    let before: Vec<usize> = fleet.iter().map(|proxy| switches(proxy).len()).collect();
    cluster.begin_failover_of(&name);
    let (peak, slowest) = observation.peak(Instant::now() + AFTERMATH)?;
    let mut at = Vec::new();
    for (proxy, before) in fleet.iter().zip(before) {
        let switched = || switches(proxy).get(before).copied().ok_or("no switch in its log");
        at.push(wait_until("every proxy to switch", PATIENCE, switched));
    }
    let (first, last) = (at.iter().min(), at.iter().max());
    let spread = first.zip(last).map_or(Duration::ZERO, |(first, last)| last.abs_diff(*first));
    Ok((peak, slowest, spread))
}

/// Ends a sentinel and starts it again: the highest load of a tenth of a second.
fn restart_sentinel(cluster: &Cluster, observation: &mut Observation<'_>) -> Result<Loads, String> {
    let Some(sentinel) = cluster.sentinels().last() else { return Ok(Loads::default()) };
    sentinel.kill();
    pause(AWAY);
    sentinel.start();
    sentinel.wait_answers();
    Ok(observation.peak(Instant::now() + AFTERMATH)?.0)
}
