//! `cargo xtask verify`: the comparison of `bench::verify`, with the installed server or with one
//! of those that `cargo xtask test --servers --list` names; and whether it still finds planted
//! faults.

use std::process::{Command, ExitCode};

use crate::mutations::{self, Mutated};
use crate::servers;

/// The folder of the patches, from the workspace's root. Its list has the mode, and how many
/// conversations may be needed.
pub(crate) const MUTATIONS: &str = "crates/bench/mutations";

#[derive(Debug, clap::Args)]
pub(crate) struct VerifyCommand {
    /// Compare with this server instead of the installed one; `cargo xtask test --servers --list`
    /// lists them.
    #[arg(long, value_name = "NAME")]
    server: Option<String>,
    /// Put in every known fault, one at a time, and check that it is found.
    #[arg(long, conflicts_with_all = ["server", "seed", "mode", "failovers", "program"])]
    mutations: bool,
    /// With --mutations: only those whose name contains this text.
    #[arg(long, requires = "mutations")]
    only: Option<String>,
    #[command(flatten)]
    options: bench::verify::VerifyOptions,
}

/// Runs the command.
///
/// # Errors
/// A message for people, if it cannot start.
pub(crate) fn run(options: &VerifyCommand) -> Result<ExitCode, String> {
    if options.mutations {
        return mutations::check(MUTATIONS, options.only.as_deref(), find);
    }
    let Some(name) = &options.server else { return bench::verify::run(&options.options) };
    let (server, sentinel) = (harness::Binary::Server, harness::Binary::Sentinel);
    let programs = servers::programs(name)?;
    // The programs are named by the environment, which a process cannot safely change for itself.
    if std::env::var_os(server.variable()).is_some_and(|it| programs.server == *it) {
        return bench::verify::run(&options.options);
    }
    let own = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let status = Command::new(own)
        .args(std::env::args_os().skip(1))
        .env(server.variable(), &programs.server)
        .env(sentinel.variable(), &programs.sentinel)
        .status()
        .map_err(|error| format!("this program again: {error}"))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn find(words: &[&str], mutated: &Mutated) -> Result<String, String> {
    let [mode @ ("shared" | "dedicated" | "carried"), most] = words else {
        return Err(format!("a mode and a number are needed, not {words:?}"));
    };
    let conversations: u64 = most.parse().map_err(|_| format!("no number: {most}"))?;
    let build = ["build", "--quiet", "--package", "pointsman", "--bin", "pointsman"];
    setup::must(mutated.cargo().args(build))?;
    let program = Mutated::build().join("debug/pointsman");
    let (is_shared, is_carried) = (*mode == "shared", *mode == "carried");
    match bench::verify::first_difference(&program, is_shared, is_carried, 1..conversations + 1)? {
        Some((after, _)) => Ok(format!("after {after} conversations")),
        None => Err(format!("not found by {most} conversations")),
    }
}
