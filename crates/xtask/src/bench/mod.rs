//! Measurements that a person starts: `cargo xtask bench NAME`.
//!
//! Each says what it does while it does it, compares with what people use today in the same run, and writes down everything
//! that it saw, so that a number can be traced to the runs behind it.

mod failover;

use std::process::ExitCode;

use clap::Subcommand;

/// What can be measured.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Failovers with writers that count: what is lost, and for how long nobody can write.
    ///
    /// Planned failover, SIGKILL, SIGSTOP and network partition of the master, through pointsman and through haproxy as the
    /// redis-ha chart configures it, in turns. Installs what is missing. Everything happens on loopback addresses, as root in
    /// a network namespace of its own. Takes about half a minute a failover; leaves nothing behind.
    Failover(failover::Options),
}

/// Runs one of them.
///
/// # Errors
/// In words, if it cannot begin or cannot be brought to its end.
pub(crate) fn run(bench: &Bench) -> Result<ExitCode, String> {
    match bench {
        Bench::Failover(options) => failover::run(options),
    }
}
