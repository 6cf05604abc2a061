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
//! under the same load ([`windows`]). So the ratio is what Pointsman does to its sessions. Requests
//! that were open while the host withheld a core are left out: on a shared host they are about a
//! hundredth, enough to decide a p99.
//!
//! The rate is bounded. This shows what junk costs, not how much of it a machine survives.

mod sink;
mod stranger;
mod traces;
mod windows;
mod words;

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::Args;
use harness::{Absences, Authority, Cluster, Pointsman, Tls};
use rustix::thread::gettid;
use setup::{build, install};

use crate::caught;
use crate::cores::{self, move_to, pin};
use crate::load::{Loader, Meter};
use stranger::{BALANCER, Port, is_answered};
use traces::Traces;
use windows::{WINDOW, Windows, verdict};
use words::Kind;

/// The name in the certificate.
const NAME: &str = "redis.junk";

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
    let absences = Absences::watch();
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
    let windows = Windows {
        to: pointsman.addr(),
        loader: Loader::start(other, IpAddr::from([127, 0, 0, 1]))
            .map_err(|error| format!("no load: {error}"))?,
        meter: Meter::of(&pointsman, &cluster),
        absences,
        rate: options.strangers,
        core: other,
        tls: Tls::new(&authority, NAME),
    };
    // Clients and every kind, so that what is made once is there before the first comparison.
    windows.window(&ports)?;
    let before = caught(|| Ok(Traces::when_quiet(&pointsman)))?;
    let rounds = options.minutes * 60 / u32::try_from(WINDOW.as_secs()).unwrap_or(1);
    let mut pairs = Vec::new();
    for round in 1..=rounds {
        let pair = windows.pair(round, &sinks, &ports)?;
        println!("{round:>4}/{rounds}  {}", pair.line());
        pairs.push(pair);
    }
    let after = caught(|| Ok(Traces::when_quiet(&pointsman)))?;
    let left = before.differences(&after);
    println!();
    left.iter().for_each(|what| println!("left behind: {what}"));
    if left.is_empty() {
        println!("Nothing but counters has changed: {}.", after.line());
    }
    let is_good = verdict(&pairs)? && left.is_empty();
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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

/// The core for what is measured, and that for the generator: the same if there is only one.
fn cores() -> Result<(usize, usize), String> {
    let all = cores::allowed()?;
    let first = *all.first().ok_or("there is no core")?;
    Ok((first, all.get(1).copied().unwrap_or(first)))
}

/// Lets this thread run only while nothing else on its core wants to. rustix has no call for it;
/// `chrt` of util-linux is on every system.
fn give_way() -> Result<(), String> {
    let thread = gettid().to_string();
    setup::run(Command::new("chrt").args(["--idle", "--pid", "0", &thread])).map(drop)
}
