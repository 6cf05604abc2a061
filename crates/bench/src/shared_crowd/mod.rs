//! `cargo xtask bench shared-crowd`: thousands of clients on a few shared connections, beside a
//! client that reads slowly, through a planned failover and the death of a master.
//!
//! Every client writes and reads a key of its own, and its values name it, so a reply of another
//! client is recognized. The phases follow each other under one load: undisturbed, with the slow
//! reader, around the planned failover, and around `SIGKILL` of the master.
//!
//! It fails if a reply was wrong, if a planned failover lost an acknowledged write or closed a
//! connection, or if Redis had more connections than were configured. Latencies are reported and
//! not judged: the machine carries everything.

mod client;
mod crowd;
mod part;
mod slow;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::Args;
use harness::{Cluster, Node, Pointsman, pause, wait_until};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use setup::{build, install};

use crate::load::private_memory;
use crate::stats::short;
use crowd::Seen;
use part::{Part, PartOfCrowd};

/// The phases, in their order.
const PHASES: [&str; 5] =
    ["undisturbed", "slow reader", "planned failover", "between", "SIGKILL of the master"];

/// Connections to Redis that are not shared, per proxy: probes, sentinels, and this program.
const OTHERS: usize = 16;

/// Clients of a proxy that may connect again before their last connection is gone.
const RECONNECTING: u32 = 90;

/// Descriptors for everything else.
const SPARE: u64 = 400;

/// Limit for the replicas to follow the new master.
const PATIENCE: Duration = Duration::from_secs(60);

/// Options of `bench shared-crowd`.
#[derive(Debug, Args)]
pub(crate) struct SharedCrowdOptions {
    /// Clients of all proxies.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(10..=100_000))]
    clients: u32,
    /// Proxies: a process may often have 20,000 descriptors only.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=16))]
    proxies: u32,
    /// Shared connections of all proxies, each of which has one worker.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=64))]
    connections: u32,
    /// Requests per second of all clients.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=100_000))]
    rate: u32,
    /// Values of 1 MiB that the slow reader asks for.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    values: u32,
    /// Length of a phase in seconds.
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(5..=120))]
    seconds: u32,
    /// Measure this pointsman instead of building one.
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// Is a part of the crowd.
    #[arg(long, hide = true)]
    part: Option<PartOfCrowd>,
}

/// Clients of a part of the crowd, at most.
const PART: u32 = 10_000;

/// Runs the measurement.
///
/// # Errors
/// A message for people, if it cannot start or complete.
pub(crate) fn run(options: &SharedCrowdOptions) -> Result<ExitCode, String> {
    if let Some(part) = &options.part {
        return part::run(part).map(|()| ExitCode::SUCCESS);
    }
    install::whatever_is_missing()?;
    let program = build::released_or(options.program.as_deref())?;
    raise_limit(options)?;
    let cluster = Cluster::builder().replicas(2).start();
    let proxies: Vec<Pointsman> =
        (0..options.proxies).map(|_| start(program.clone(), &cluster, options)).collect();
    let to: Vec<SocketAddr> = proxies.iter().map(Pointsman::addr).collect();
    let mut parts = gather(options, &to)?;
    println!("{} clients are connected", short(f64::from(options.clients)));
    let observed = conduct(options, &cluster, &proxies, &mut parts)?;
    let mut seen = vec![Seen::default(); PHASES.len()];
    for part in parts {
        for (all, some) in seen.iter_mut().zip(part.end()?) {
            all.add(some);
        }
    }
    Ok(report(&seen, &observed))
}

/// Starts the parts of the crowd, and waits until all clients are connected.
fn gather(options: &SharedCrowdOptions, to: &[SocketAddr]) -> Result<Vec<Part>, String> {
    let count = options.clients.div_ceil(PART);
    let (clients, rate) = (options.clients.div_ceil(count), options.rate.div_ceil(count));
    let start = |number: u32| {
        let first = number * clients;
        let count = clients.min(options.clients.saturating_sub(first)) as usize;
        Part::start(&PartOfCrowd { first: first as usize, count, rate, to: to.to_vec() })
    };
    let parts: std::io::Result<Vec<Part>> = (0..count).map(start).collect();
    let mut parts = parts.map_err(|error| format!("the crowd: {error}"))?;
    parts.iter_mut().try_for_each(Part::connected)?;
    Ok(parts)
}

/// Every client has a descriptor in its part of the crowd, and another one in its proxy, which
/// allows for two.
fn raise_limit(options: &SharedCrowdOptions) -> Result<(), String> {
    let limit = getrlimit(Resource::Nofile).maximum;
    let _raised = setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit });
    let most = options.clients.div_ceil(options.proxies) + RECONNECTING;
    let each = 2 * u64::from(most) + SPARE;
    let needed = each.max(u64::from(options.clients.min(PART)) + SPARE);
    match limit {
        Some(limit) if limit < needed => Err(format!(
            "{needed} open files are needed, and {limit} are allowed: use fewer --clients, or more --proxies"
        )),
        _ => Ok(()),
    }
}

/// Starts a proxy with its share of the connections.
fn start(program: PathBuf, cluster: &Cluster, options: &SharedCrowdOptions) -> Pointsman {
    let most = options.clients.div_ceil(options.proxies) + RECONNECTING;
    let connections = options.connections.div_ceil(options.proxies);
    Pointsman::builder(program, cluster)
        .service_line("upstream = \"shared\"")
        .service_line(&format!("shared_connections = {connections}"))
        .service_line("hold_timeout = \"60s\"")
        .service_line(&format!("max_connections = {most}"))
        .lines(&format!("[process]\nworkers = 1\nmax_connections = {most}"))
        .start()
}

/// What the conductor observed.
struct Observed {
    slow: slow::SlowRead,
    /// The most connections of clients at a Redis.
    most: usize,
    allowed: usize,
    memory: u64,
}

/// Lets the phases follow each other.
fn conduct(
    options: &SharedCrowdOptions,
    cluster: &Cluster,
    proxies: &[Pointsman],
    parts: &mut [Part],
) -> Result<Observed, String> {
    let span = Duration::from_secs(options.seconds.into());
    let mut most = 0;
    let mut rest = |node: &Node| {
        pause(span / 2);
        most = most.max(connections(node));
        pause(span / 2);
    };
    let mut enter = |phase: usize| {
        println!("{}", PHASES.get(phase).copied().unwrap_or_default());
        parts.iter_mut().try_for_each(|part| part.enter(phase))
    };
    enter(0)?;
    rest(cluster.master());
    enter(1)?;
    let first = proxies.first().ok_or("no proxy")?;
    let (to, values) = (first.addr(), options.values as usize);
    let rate = (values * slow::VALUE) / (2 * options.seconds as usize);
    let slow = thread::scope(|scope| {
        let reading = scope.spawn(move || slow::read(to, values, rate));
        rest(cluster.master());
        enter(2)?;
        cluster.failover();
        rest(cluster.master());
        enter(3)?;
        reading.join().map_err(|panic| crate::words(&*panic))?
    })?;
    wait_until("replicas that follow", PATIENCE, || {
        let up = |node: &&Node| {
            node.info("replication", "master_link_status").is_ok_and(|status| status == "up")
        };
        let replicas = cluster.replicas();
        if replicas.iter().all(up) { Ok(()) } else { Err("one does not") }
    });
    rest(cluster.master());
    enter(4)?;
    let memory = private_memory(&[first.process().pid()]);
    cluster.master().kill();
    pause(2 * span);
    let others = OTHERS * proxies.len();
    Ok(Observed { slow, most, allowed: options.connections as usize + others, memory })
}

/// The connections of a Redis, without those of replicas.
fn connections(node: &Node) -> usize {
    let list = node.ask(&["CLIENT", "LIST"]).ok();
    let text = list.as_ref().and_then(|list| list.text()).unwrap_or_default();
    text.lines().filter(|line| !line.contains(" flags=S ")).count()
}

fn report(seen: &[Seen], observed: &Observed) -> ExitCode {
    let millis = |time: Duration| format!("{:.2}", time.as_secs_f64() * 1000.0);
    println!(
        "\n{:<24}{:>10}{:>9}{:>9}{:>9}{:>10}{:>7}{:>6}{:>8}{:>8}{:>8}",
        "",
        "requests",
        "p50 ms",
        "p99 ms",
        "p99.9",
        "max ms",
        "wrong",
        "lost",
        "refused",
        "closed",
        "behind"
    );
    for (name, seen) in PHASES.iter().zip(seen) {
        println!(
            "{name:<24}{:>10}{:>9}{:>9}{:>9}{:>10}{:>7}{:>6}{:>8}{:>8}{:>8}",
            short(seen.latencies.len() as f64),
            millis(seen.quantile(0.5)),
            millis(seen.quantile(0.99)),
            millis(seen.quantile(0.999)),
            millis(seen.quantile(1.0)),
            seen.wrong,
            seen.lost,
            seen.refused,
            seen.closed,
            seen.behind
        );
        for (text, count) in &seen.texts {
            println!("  {count} times: {text}");
        }
    }
    let slow = &observed.slow;
    println!(
        "The slow reader received {} of {} bytes in {:.1} s{}{}.",
        short(slow.received as f64),
        short(slow.expected as f64),
        slow.took.as_secs_f64(),
        if slow.right { "" } else { ", AND NOT WHAT IT ASKED FOR" },
        slow.end.as_ref().map(|end| format!(", then: {end}")).unwrap_or_default()
    );
    println!(
        "Redis had at most {} connections, of which {} are allowed; Pointsman had {} MB.",
        observed.most,
        observed.allowed,
        short(observed.memory as f64 / 1e6)
    );
    let wrong: u64 = seen.iter().map(|seen| seen.wrong).sum();
    let planned: u64 = seen.iter().take(4).map(|seen| seen.lost + seen.closed + seen.refused).sum();
    let good = wrong == 0 && planned == 0 && slow.right && observed.most <= observed.allowed;
    println!("{}", if good { "As promised." } else { "NOT as promised." });
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
