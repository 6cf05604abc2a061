//! Why a command failed, how it is shown, and with which exit code.

use std::error::Error;
use std::fmt::Write as _;
use std::io;
use std::process::ExitCode;

use super::import::ImportError;
use super::order::OrderError;
use super::status::StatusError;
use crate::config::Faults;
use crate::process::run::RunError;
use crate::process::threads;

/// The command line was wrong (`EX_USAGE` of sysexits).
const USAGE: u8 = 64;
/// The configuration was wrong (`EX_CONFIG` of sysexits).
const CONFIG: u8 = 78;

/// Why a command failed. Also carries the help, which comes out of the parser of flags as an error.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The command line was wrong, or asks for help.
    #[error("the command line is wrong")]
    Usage(#[source] clap::Error),
    /// The configuration was wrong.
    #[error("the configuration has faults")]
    Faults(#[source] Faults),
    /// The process could not start, or ended early.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The status could not be had.
    #[error(transparent)]
    Status(#[from] StatusError),
    /// An order was not carried out.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// No configuration could be made of another program's.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// The text could not be written.
    #[error("the output could not be written")]
    Output(#[source] io::Error),
}

impl Failure {
    /// The exit code that tells a script what kind of failure it was.
    pub(super) fn code(&self) -> ExitCode {
        match self {
            Self::Usage(error) if !error.use_stderr() => ExitCode::SUCCESS,
            Self::Usage(_) => ExitCode::from(USAGE),
            // Numbers that somebody configured and that the system does not allow.
            Self::Faults(_) | Self::Import(_) | Self::Run(RunError::Files(_)) => {
                ExitCode::from(CONFIG)
            }
            Self::Run(_) | Self::Status(_) | Self::Order(_) | Self::Output(_) => ExitCode::FAILURE,
        }
    }

    /// Shows it, once. What cannot be shown has nobody to read it, so errors in writing end here.
    /// Waits for the reader no longer than a second.
    pub(super) fn show(&self) {
        let text = match self {
            // Knows itself whether it is help or an error, and whether there are colours.
            Self::Usage(error) => {
                let _ = error.print();
                return;
            }
            // The bare lines, so that editors find their places.
            Self::Faults(faults) => {
                let count = faults.findings().len();
                format!(
                    "{faults}\npointsman: {count} {} in the configuration\n",
                    if count == 1 { "fault" } else { "faults" }
                )
            }
            Self::Import(ImportError::Refused(text)) => text.clone(),
            other => chain(other),
        };
        threads::say(text);
    }
}

fn chain(error: &dyn Error) -> String {
    let mut text = format!("pointsman: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text.push('\n');
    text
}

/// Whether the reader of our output has gone, which is its right.
pub(super) fn is_broken_pipe(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}
