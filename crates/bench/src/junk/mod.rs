//! `cargo xtask bench junk`: what strangers at every port cost established sessions.
//!
//! Strangers come to the ports of clients, with and without TLS and the PROXY protocol, of clients
//! of Sentinel, and of the admin server: random bytes, half hellos, handshakes that stop, slow and
//! false headers, requests that no parser can like, floods of connections. When all of them have
//! left, nothing but counters may have changed: the series of `/metrics`, the master, descriptors,
//! tasks and sessions are as before, the memory has not grown, and the log has no line about a
//! fault of the process.
//!
//! Pointsman has a core of its own, as a pod has. Redis, the sentinels and the load have another
//! one, and so have the generator of junk and a [`sink`], which run only when nothing else does
//! there. What the generator still costs is compensated: windows in which the junk goes to
//! Pointsman alternate with windows in which the same junk goes to the sink, which does nothing,
//! under the same load ([`paired`](crate::paired)). So the ratio is what Pointsman does to its
//! sessions. Requests that a stall of the machine delayed are left out
//! ([`StallWatch`](crate::load::StallWatch)): on a shared host they are about a hundredth, enough
//! to decide a p99.
//!
//! The rate is bounded. This shows what junk costs, not how much of it a machine survives.

mod sink;
mod stranger;
mod traces;
mod words;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use harness::{Authority, Client, Cluster, Pointsman, Tls, pause};
use setup::{build, install};

use crate::cores::{self, move_to, pin};
use crate::load::Meter;
use crate::paired::{Load, verdict};
use crate::priority::give_way;
use stranger::{BALANCER, Port, Strangers, is_answered};
use traces::Traces;
use words::Kind;

/// The name in the certificate.
const NAME: &str = "redis.junk";
/// The length of a window, in seconds.
const WINDOW: u32 = 5;
/// Requests per second of the established sessions.
const RATE: u32 = 5000;
/// The largest ratio of the p99 with and without junk, in the median of the pairs.
const MOST: f64 = 1.10;
/// The least number of strangers that shows anything.
const ENOUGH: u64 = 1000;

/// Options of `bench junk`.
#[derive(Debug, Args)]
pub(crate) struct JunkOptions {
    /// Minutes of junk; the measurement takes twice as long.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=600))]
    minutes: u32,
    /// Visits of strangers per second; every 32nd is a flood.
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(10..=10_000))]
    strangers: u32,
    /// Measure this pointsman instead of building one.
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
}

/// Runs the measurement; success if the p99 moves by less than a tenth and nothing is left behind.
///
/// # Errors
/// A message for people, if it cannot start, or if a request of an established session fails.
pub(crate) fn run(options: &JunkOptions) -> Result<ExitCode, String> {
    install::whatever_is_missing()?;
    let program = build::released_or(options.program.as_deref())?;
    // What is started from here on stays on this core, except for Pointsman.
    let (core, other) = cores()?;
    pin(other)?;
    let cluster = Cluster::builder().replicas(1).start();
    let authority = Authority::new("junk");
    let (pointsman, ports) = start(program, &cluster, &authority);
    move_to(core, pointsman.process().pid())?;
    if let Some(port) = ports.iter().find(|port| port.kind == Kind::Tls && !is_answered(**port)) {
        return Err(format!("{} does not answer a hello", port.addr));
    }
    let sink = sink::start(cluster.address().ip(), other).map_err(|error| error.to_string())?;
    let sinks = ports.map(|port| Port { addr: sink, ..port });
    let junk = Junk { rate: options.strangers, core: other, tls: Tls::new(&authority, NAME) };
    let meter = Meter::of(&pointsman, &cluster);
    let mut load = Load::new(pointsman.addr(), RATE, WINDOW, meter)?;
    if let Err(error) = load.watch_stalls(&[core, other]) {
        println!("Stalls of the machine count, too. They cannot be noticed: {error}");
    }
    // A client and every kind, so that what is made once is there before the first comparison.
    Client::connect(pointsman.addr())
        .and_then(|mut client| client.cmd(&["PING"]))
        .map_err(|error| format!("no reply through pointsman: {error}"))?;
    junk.send(&ports, &AtomicBool::new(false), Some(Duration::from_secs(3)))?;
    let before = Traces::when_quiet(&pointsman)?;
    let rounds = options.minutes * 60 / WINDOW;
    let mut pairs = Vec::new();
    let to_sink = |over: &AtomicBool| junk.send(&sinks, over, None);
    let to_pointsman = |over: &AtomicBool| junk.send(&ports, over, None);
    for round in 1..=rounds {
        let pair = load.pair(round, [&to_sink, &to_pointsman])?;
        println!("{round:>4}/{rounds}  {}", pair.line("strangers"));
        pairs.push(pair);
    }
    let after = Traces::when_quiet(&pointsman)?;
    let left = before.differences(&after);
    println!();
    for what in &left {
        println!("left behind: {what}");
    }
    if left.is_empty() {
        println!("Nothing but counters has changed: {}.", after.line());
    }
    println!("Without: the same strangers went to a server that does nothing.");
    let measured = verdict(&pairs, "strangers", ENOUGH, MOST)?;
    Ok(if left.is_empty() { measured } else { ExitCode::FAILURE })
}

/// Starts Pointsman with every kind of port.
fn start(program: PathBuf, cluster: &Cluster, authority: &Authority) -> (Pointsman, [Port; 5]) {
    let ip = cluster.address().ip().to_string();
    let files = authority.issue(&[NAME, &ip]).write(&cluster.folder().join("certificates"));
    let [secured, sentinels] = [(); 2].map(|()| cluster.address().port());
    let pointsman = Pointsman::builder(program, cluster)
        .tls_listen(secured, &files)
        .service_line(&format!("sentinel_listen = [\"{sentinels}\"]"))
        .service_line(&format!("proxy_protocol_from = [\"{BALANCER}/32\"]"))
        .start();
    let ports = [
        Port { kind: Kind::Clients, addr: pointsman.addr() },
        Port { kind: Kind::Tls, addr: secured },
        Port { kind: Kind::Proxied, addr: pointsman.addr() },
        Port { kind: Kind::Sentinels, addr: sentinels },
        Port { kind: Kind::Admin, addr: pointsman.admin() },
    ];
    (pointsman, ports)
}

/// The generator of junk.
struct Junk {
    /// Visits per second.
    rate: u32,
    core: usize,
    tls: Tls,
}

impl Junk {
    /// Sends junk until `over`, or for a time; the number of strangers.
    fn send(
        &self,
        ports: &[Port],
        over: &AtomicBool,
        time: Option<Duration>,
    ) -> Result<u64, String> {
        let Self { rate, core, ref tls } = *self;
        // In a thread of its own, because its core is not that of the caller.
        thread::scope(|scope| {
            let sending = scope.spawn(move || {
                pin(core)?;
                give_way()?;
                let mut strangers = Strangers::new(tls.clone());
                let (begin, gap) = (Instant::now(), Duration::from_secs(1) / rate);
                let mut next = begin;
                while !over.load(Ordering::Relaxed)
                    && time.is_none_or(|time| begin.elapsed() < time)
                {
                    if let Some(early) = next.checked_duration_since(Instant::now()) {
                        pause(early);
                    }
                    next += gap;
                    strangers.visit(ports);
                }
                Ok(strangers.count())
            });
            sending.join().map_err(|panic| crate::words(&*panic))?
        })
    }
}

/// The core for what is measured, and that for the generator: the same if there is only one.
fn cores() -> Result<(usize, usize), String> {
    let all = cores::allowed()?;
    let first = *all.first().ok_or("there is no core")?;
    Ok((first, all.get(1).copied().unwrap_or(first)))
}
