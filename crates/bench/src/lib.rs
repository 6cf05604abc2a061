//! Measurements that a person starts: `cargo xtask bench NAME`.
//!
//! Each says what it does while it does it, compares with what people use today in the same run,
//! and writes down everything that it saw, so that a number can be traced to the runs behind it.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a person reads the progress")]

mod clients;
mod failover;
mod instructions;
pub mod load;
mod machine;
mod peers;
mod raw;
mod scrapes;
mod space;
mod stats;
mod swap;
mod switchover;
mod traffic;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{Args, Subcommand};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// What can be measured; without a name, the traffic.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Bench {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    traffic: traffic::Options,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Failovers with writers that count: what is lost, and for how long nobody can write.
    ///
    /// Planned failover, SIGKILL, SIGSTOP and network partition of the master, through pointsman
    /// and through haproxy as the redis-ha chart configures it, in turns. Installs what is missing.
    /// Everything happens on loopback addresses, as root in a network namespace of its own. Takes
    /// about half a minute a failover; leaves nothing behind.
    Failover(failover::Options),
    /// What redis-py, ioredis, redis-rs, go-redis and hiredis notice of a planned failover and of a
    /// master's death, beside haproxy.
    ///
    /// Needs python3 and npm, and installs the libraries into a folder that goes away. go-redis
    /// needs Go 1.24 and its modules, or the program built before, and is left out without. Takes
    /// about four minutes.
    Clients(clients::Options),
    /// `pointsman switchover` again and again under writers that count: what is lost, who sees an
    /// error, how long it takes.
    Switchover(switchover::Options),
    /// From the `+switch-master` that makes a majority to the move of the points, over many real
    /// failovers at once.
    ///
    /// Several masters under the same three sentinels fail over one after the other, round by
    /// round; the figures are those that pointsman itself took down, in its log and in its
    /// histogram. Takes about three seconds a failover.
    Swap(swap::Options),
    /// What clients notice of `/metrics` being asked for without a pause: the p99 of a fixed load
    /// with and without, in turns.
    Scrapes(scrapes::Options),
    /// User-space instructions a request, counted by valgrind and held against
    /// benches/instructions.json.
    ///
    /// The scanner alone, and the data plane between a client and a backend. Says the same on every
    /// machine with the same kind of CPU, so CI runs it. Installs what is missing.
    Instructions(instructions::Options),
}

/// Runs one of them.
///
/// # Errors
/// In words, if it cannot begin or cannot be brought to its end.
pub fn run(bench: &Bench) -> Result<ExitCode, String> {
    match &bench.what {
        None => traffic::run(&bench.traffic),
        Some(What::Failover(options)) => failover::run(options),
        Some(What::Clients(options)) => clients::run(options),
        Some(What::Switchover(options)) => switchover::run(options),
        Some(What::Swap(options)) => swap::run(options),
        Some(What::Scrapes(options)) => scrapes::run(options),
        Some(What::Instructions(options)) => instructions::run(options),
    }
}

fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic".to_owned())
}

/// Set by the first signal that asks to end; the second ends at once, and the kernel then ends what
/// was started.
fn stop_on_signals() -> std::io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}
