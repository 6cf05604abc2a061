//! The command line: what a person or a script types, and what they get back.
//!
//! Everything is decided inside and shown here, once: commands return their text or a `Failure`,
//! and [`main`] writes the one to the standard output and the other to the standard error, each
//! error with its chain of causes. A reader that goes away (`pointsman config | head`) is no error.
//!
//! Exit codes follow sysexits where a script has a use for them: 64 for a wrong command line, 78
//! for a wrong configuration, 1 for the rest.

mod args;
pub mod commands_reference;
mod failure;
mod http;
mod import;
mod man;
mod order;
mod screen;
mod sentinels;
mod status;

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use args::{Cli, Command, ImportFrom, SourceArgs};
use failure::{Failure, is_broken_pipe};

use crate::config::{self, Finding};
use crate::process::reload::Source;
use crate::process::run;
use crate::process::startup::Startup;

/// Runs the program as the process was called, and gives its exit code.
#[must_use]
pub fn main() -> ExitCode {
    let done = match Cli::try_parse_from(std::env::args_os()) {
        Ok(cli) => dispatch(cli.command),
        Err(usage) => Err(Failure::Usage(usage)),
    };
    done.unwrap_or_else(|failure| {
        failure.show();
        failure.code()
    })
}

fn dispatch(command: Command) -> Result<ExitCode, Failure> {
    let text = match command {
        Command::Run(args) => {
            let mut startup =
                Startup::begin(Source::new(args.source.flags())).map_err(run::RunError::from)?;
            let Some(loaded) = startup.read().map_err(run::RunError::from)? else {
                return Ok(ExitCode::SUCCESS);
            };
            let config = loaded.config().cloned_faults()?;
            return Ok(run::run(startup, &config, loaded.settings(), args.takeover)?);
        }
        Command::Check(source) => check(&source)?,
        Command::Config(source) => {
            let loaded = load(&source);
            loaded.config().cloned_faults()?;
            warn(loaded.warnings())?;
            loaded.print()
        }
        Command::Status(args) if args.watch => return status::watch(&args, environment()),
        Command::Status(args) => status::status(&args, environment())?,
        Command::Sentinels(args) => {
            let (text, healthy) = sentinels::sentinels(&args, environment())?;
            write(io::stdout().lock(), &text)?;
            return Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Switchover(args) => {
            let pause_clients = if args.pause_clients { "true" } else { "false" };
            let parameters = [("pause_clients", pause_clients)];
            order::order(
                "switchover",
                (&args.order, &parameters),
                &environment().collect::<Vec<_>>(),
            )?
        }
        Command::Pause(args) => order::order(
            "pause",
            (&args.order, &[("for", &args.span)]),
            &environment().collect::<Vec<_>>(),
        )?,
        Command::Resume(args) => {
            order::order("resume", (&args, &[]), &environment().collect::<Vec<_>>())?
        }
        Command::Import(ImportFrom::Haproxy(args)) => {
            let (toml, report) = import::haproxy(&args)?;
            write(io::stderr().lock(), &report)?;
            toml
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "pointsman", &mut script);
            String::from_utf8_lossy(&script).into_owned()
        }
        Command::Man => man::page(Cli::command()).map_err(Failure::Output)?,
    };
    write(io::stdout().lock(), &text)?;
    Ok(ExitCode::SUCCESS)
}

/// Text from the environment, on one place so that tests of the parts need none.
fn environment() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os()
}

fn load(source: &SourceArgs) -> config::Loaded {
    config::load(&source.flags(), environment())
}

/// The verdict in a line; warnings go beside it.
fn check(source: &SourceArgs) -> Result<String, Failure> {
    let loaded = load(source);
    warn(loaded.warnings())?;
    let config = loaded.config().cloned_faults()?;
    let names: Vec<&str> = config.services.iter().map(|service| service.name.as_str()).collect();
    let (count, plural) = (names.len(), if names.len() == 1 { "service" } else { "services" });
    Ok(format!("fine: {count} {plural} ({}), configuration {}\n", names.join(", "), config.hash))
}

fn warn(warnings: &[Finding]) -> Result<(), Failure> {
    let lines: String = warnings.iter().map(|warning| format!("warning: {warning}\n")).collect();
    write(io::stderr().lock(), &lines)
}

fn write(mut to: impl io::Write, text: &str) -> Result<(), Failure> {
    match to.write_all(text.as_bytes()).and_then(|()| to.flush()) {
        Err(error) if !is_broken_pipe(&error) => Err(Failure::Output(error)),
        _ => Ok(()),
    }
}

/// Faults are shown once, at the edge; they are taken along by value.
trait ClonedFaults<T> {
    fn cloned_faults(self) -> Result<T, Failure>;
}

impl<T> ClonedFaults<T> for Result<T, &config::Faults> {
    fn cloned_faults(self) -> Result<T, Failure> {
        self.map_err(|faults| Failure::Faults(faults.clone()))
    }
}
