//! Benchmarks beside other proxies: `cargo xtask bench NAME`.
//!
//! Each reports its progress, compares with other proxies in the same run, and records all raw
//! data, so that every figure can be traced to its runs.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a person reads the progress")]

mod clients;
mod cores;
mod failover;
mod histories;
mod instructions;
mod junk;
pub mod load;
mod machine;
mod markdown;
pub mod metrics;
mod peers;
mod raw;
pub mod space;
pub mod stats;
mod subject;
mod traffic;
pub mod verify;

use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clap::{Args, Subcommand, ValueEnum};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// The benchmark to run; without a name, the traffic benchmark.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Bench {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    traffic: traffic::TrafficOptions,
}

#[derive(Debug, Subcommand)]
enum What {
    /// CPU of a request beside the baseline, within one percent: pairs of short windows.
    ///
    /// Windows of a fifth of a second alternate between the two proxies over connections that stay
    /// open; both are started again every twelve seconds. Two and a half minutes per row.
    Alternate(traffic::alternate::AlternateOptions),
    /// Failovers of all contenders: lost writes, errors, stale replies and outage of each.
    ///
    /// Pointsman, haproxy in four configurations, a Service that an operator moves, and clients
    /// that ask sentinels serve the same failovers: planned, SIGKILL, SIGSTOP, loss of a node,
    /// partitions, rolling updates. Fetches what is missing and leaves out what cannot be fetched.
    /// Uses loopback addresses only, as root in its own network namespace. Takes about forty
    /// seconds per failover and leaves nothing behind.
    Failover(failover::FailoverOptions),
    /// Client libraries in a failover: what redis-py, ioredis, redis-rs, go-redis and hiredis
    /// notice.
    ///
    /// A planned failover and a master's death, beside haproxy. Needs python3 and npm, and fetches
    /// the libraries into a folder below target/. go-redis needs Debian's mirror; otherwise it is
    /// left out. Takes about four minutes.
    Clients(clients::ClientsOptions),
    /// Effect of junk at every port on clients: p99 of a fixed load with and without.
    ///
    /// Random bytes, half hellos, slow headers, floods. At the end nothing but counters may have
    /// changed. Takes twenty minutes by default.
    Junk(junk::JunkOptions),
    /// User-space instructions per request, counted by valgrind and compared with
    /// benches/instructions.json.
    ///
    /// The scanner alone, and the data plane between a client and a backend. The result is the same
    /// on every machine with the same kind of CPU, so CI runs it. Installs what is missing.
    Instructions(instructions::InstructionsOptions),
}

/// Runs a benchmark.
///
/// # Errors
/// A message for people, if it cannot start or complete.
pub fn run(bench: &Bench) -> Result<ExitCode, String> {
    match &bench.what {
        None => traffic::run(&bench.traffic),
        Some(What::Alternate(options)) => traffic::alternate::run(options),
        Some(What::Failover(options)) => failover::run(options),
        Some(What::Clients(options)) => clients::run(options),
        Some(What::Junk(options)) => junk::run(options),
        Some(What::Instructions(options)) => instructions::run(options),
    }
}

/// The name of a value on the command line, which is also that in the raw data.
fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|it| it.get_name().to_owned()).unwrap_or_default()
}

/// The name of a value in tables and on the command line's help.
fn title_of(value: &impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.and_then(|it| Some(it.get_help()?.to_string())).unwrap_or_default()
}

fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic".to_owned())
}

/// A flag that the first SIGINT, SIGTERM or SIGHUP sets; the second one ends the process, and the
/// kernel then ends its children.
///
/// # Errors
/// A message for people.
pub fn stop_on_signals() -> Result<Arc<AtomicBool>, String> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stop))
            .and_then(|_| flag::register(signal, Arc::clone(&stop)))
            .map_err(|error| format!("signals cannot be handled: {error}"))?;
    }
    Ok(stop)
}

/// Locks even if a thread panicked: what is locked here is consistent at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs code in a thread of its own and returns a panic as a message: the harness panics if
/// something is missing.
fn caught<T: Send>(act: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    std::thread::scope(|scope| scope.spawn(act).join()).unwrap_or_else(|panic| Err(words(&*panic)))
}
