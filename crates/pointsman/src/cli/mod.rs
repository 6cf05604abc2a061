//! The command line: parses arguments, runs the command, and prints its result.
//!
//! Commands return their text or a `Failure`, and [`main`] writes the text to standard output and
//! the failure, with its chain of causes, to standard error. A reader that closes the pipe
//! (`pointsman config | head`) is not an error.
//!
//! Exit codes follow sysexits where scripts need them: 64 for an invalid command line, 78 for an
//! invalid configuration, 1 for any other failure.

mod admin_server;
mod admin_tls;
mod args;
mod control;
mod failure;
mod http;
mod import;
mod man;
mod screen;
mod screen_certificates;
mod screen_shared;
mod sentinels;
mod sessions;
mod sessions_table;
mod status;
mod token;

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory as _, Parser as _};

use args::{Arguments, Command, FollowArgs, ImportFrom, RunArgs};
use failure::Failure;

use crate::config::{self, Finding, Flags};
use crate::process::config_source::ConfigSource;
use crate::process::error::RunError;
use crate::process::run;
use crate::process::startup::Startup;

/// The environment. It is read in one place, so that tests of the parts do not depend on it.
type Variables = [(OsString, OsString)];

/// Runs the command that the process was started with, and returns the exit code.
pub fn main() -> ExitCode {
    let done = match Arguments::try_parse_from(std::env::args_os()) {
        Ok(cli) => dispatch(cli.command),
        Err(usage) => Err(Failure::Usage(with_tip(usage))),
    };
    done.unwrap_or_else(|failure| {
        failure.print();
        failure.code()
    })
}

/// Adds what was meant to the error about frequent mistakes, and removes the values: one of them
/// may be a password.
fn with_tip(mut usage: clap::Error) -> clap::Error {
    let said = |kind| match usage.get(kind) {
        Some(ContextValue::String(said)) => said.clone(),
        _ => String::new(),
    };
    let tip = match (said(ContextKind::InvalidArg), said(ContextKind::InvalidSubcommand)) {
        (argument, command) if argument == "-v" || command == "version" => {
            "for the version, use 'pointsman --version'".to_owned()
        }
        (file, _) if usage.kind() == ErrorKind::UnknownArgument && is_file(&file) => {
            format!("for a configuration file, use '--config {file}'")
        }
        (argument, command) => {
            let hidden = || ContextValue::String("...".to_owned());
            if !argument.is_empty() && usage.kind() == ErrorKind::UnknownArgument {
                let flag = argument.split('=').next().filter(|it| it.starts_with("--"));
                let shown = flag.map(|flag| ContextValue::String(flag.to_owned()));
                usage.insert(ContextKind::InvalidArg, shown.unwrap_or_else(hidden));
            }
            if !command.is_empty() && usage.get(ContextKind::SuggestedSubcommand).is_none() {
                usage.insert(ContextKind::InvalidSubcommand, hidden());
            }
            if usage.get(ContextKind::InvalidValue).is_some() {
                usage.insert(ContextKind::InvalidValue, hidden());
            }
            return usage;
        }
    };
    usage.remove(ContextKind::SuggestedSubcommand);
    usage.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    usage
}

/// Whether an argument is meant as a file.
pub(super) fn is_file(argument: &str) -> bool {
    !argument.starts_with('-') && Path::new(argument).is_file()
}

fn dispatch(command: Command) -> Result<ExitCode, Failure> {
    let env: Vec<_> = std::env::vars_os().collect();
    let text = match command {
        Command::Run(args) => return serve(&args),
        Command::Check(source) => check(&source, env)?,
        Command::Config(source) => {
            let loaded = config::load(&source, env);
            loaded.config()?;
            warn(&loaded.warnings)?;
            loaded.print()
        }
        Command::Status(args) if args.watch => return Ok(status::watch(&args, &env)?),
        Command::Status(args) => status::status(&args, &env)?,
        Command::Sentinels(args) => {
            let (text, severity) = sentinels::sentinels(&args, &env)?;
            write(io::stdout().lock(), &text)?;
            return Ok(sentinels::exit_code(severity));
        }
        Command::Switchover(args) => {
            let pause_clients = if args.pause_clients { "true" } else { "false" };
            let to = args.to.as_deref().map(|to| ("to", to));
            let parameters: Vec<_> =
                [("pause_clients", pause_clients)].into_iter().chain(to).collect();
            control::send("switchover", &args.control, &parameters, &env)?
        }
        Command::Pause(args) => {
            let duration = args.duration.as_deref().map(|time| ("for", time));
            let parameters: Vec<_> = duration.into_iter().collect();
            control::send("pause", &args.control, &parameters, &env)?
        }
        Command::Resume(args) => control::send("resume", &args, &[], &env)?,
        Command::Follow(args) => follow(&args, &env)?,
        Command::Unfollow(args) => control::send("unfollow", &args, &[], &env)?,
        Command::Sessions(args) => return Ok(sessions::sessions(&args, &env)?),
        Command::Kill(args) => sessions::kill(args, &env)?,
        Command::Import(ImportFrom::Haproxy(args)) => {
            let (toml, report) = import::haproxy(&args)?;
            write(io::stderr().lock(), &report)?;
            toml
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "pointsman", &mut script);
            String::from_utf8_lossy(&script).into_owned()
        }
        Command::Man => man::page(Arguments::command()).map_err(Failure::Output)?,
    };
    write(io::stdout().lock(), &text)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the proxy until it is stopped.
fn serve(args: &RunArgs) -> Result<ExitCode, Failure> {
    let mut startup = Startup::new(ConfigSource(args.source.clone())).map_err(RunError::from)?;
    let Some(loaded) = startup.read().map_err(RunError::from)? else {
        return Ok(ExitCode::SUCCESS);
    };
    let config = loaded.config()?;
    Ok(run::run(startup, &config, &loaded.settings, args.takeover)?)
}

/// Orders a running pointsman to follow a node.
fn follow(args: &FollowArgs, env: &Variables) -> Result<String, Failure> {
    let force = if args.force { "true" } else { "false" };
    let (host, port) = args.addr.rsplit_once(':').unwrap_or((&args.addr, ""));
    let parameters = [
        ("host", host.trim_start_matches('[').trim_end_matches(']')),
        ("port", port),
        ("for", &args.duration),
        ("force", force),
    ];
    Ok(control::send("follow", &args.control, &parameters, env)?)
}

/// Returns the result in one line; warnings are printed to standard error.
fn check(source: &Flags, env: Vec<(OsString, OsString)>) -> Result<String, Failure> {
    let loaded = config::load(source, env);
    warn(&loaded.warnings)?;
    let config = loaded.config()?;
    let names: Vec<String> = config.services.iter().map(describe).collect();
    let (count, plural) = (names.len(), if names.len() == 1 { "service" } else { "services" });
    Ok(format!("valid: {count} {plural} ({}), configuration {}\n", names.join(", "), config.hash))
}

/// The name of a service, and of its master if that is another.
fn describe(service: &config::ServiceConfig) -> String {
    match service.master_name() {
        master if master == service.name => service.name.clone(),
        master => format!("{} of master {master}", service.name),
    }
}

fn warn(warnings: &[Finding]) -> Result<(), Failure> {
    let lines: String = warnings.iter().map(|warning| format!("warning: {warning}\n")).collect();
    write(io::stderr().lock(), &lines)
}

fn write(to: impl io::Write, text: &str) -> Result<(), Failure> {
    status::write_all(to, text).map(drop).map_err(Failure::Output)
}
