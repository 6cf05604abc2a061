//! `cargo xtask verify`: the comparison of `bench::verify`, with the installed server or with one
//! of those that `cargo xtask test --servers --list` names.

use std::process::{Command, ExitCode};

use crate::servers;

#[derive(Debug, clap::Args)]
pub(crate) struct VerifyCommand {
    /// Compare with this server instead of the installed one; `cargo xtask test --servers --list`
    /// lists them.
    #[arg(long, value_name = "NAME")]
    server: Option<String>,
    #[command(flatten)]
    options: bench::verify::VerifyOptions,
}

/// Runs the command.
///
/// # Errors
/// A message for people, if it cannot start.
pub(crate) fn run(options: &VerifyCommand) -> Result<ExitCode, String> {
    let Some(name) = &options.server else { return bench::verify::run(&options.options) };
    let (server, sentinel) = (harness::Binary::Server, harness::Binary::Sentinel);
    if std::env::var_os(server.variable()).is_some() {
        return bench::verify::run(&options.options);
    }
    // The programs are named by the environment, which a process cannot safely change for itself.
    let programs = servers::programs(name)?;
    let own = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let status = Command::new(own)
        .args(std::env::args_os().skip(1))
        .env(server.variable(), &programs.server)
        .env(sentinel.variable(), &programs.sentinel)
        .status()
        .map_err(|error| format!("this program again: {error}"))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
