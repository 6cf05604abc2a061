//! Why a command failed, its message, and its exit code.

use std::error::Error;
use std::fmt::Write as _;
use std::io;
use std::process::ExitCode;

use super::admin_server::AdminServerError;
use super::control::ControlError;
use super::import::ImportError;
use super::status::StatusError;
use crate::config::Faults;
use crate::process::error::RunError;
use crate::process::takeover::TakeoverError;
use crate::system::threads;

/// The command line is invalid (`EX_USAGE` of sysexits).
const USAGE: u8 = 64;
/// The configuration is invalid (`EX_CONFIG` of sysexits).
const CONFIG: u8 = 78;

/// Why a command failed. Includes help output, which the argument parser returns as an error.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The command line is invalid, or requests help.
    #[error("the command line is invalid")]
    Usage(#[source] clap::Error),
    /// The configuration is invalid.
    #[error("the configuration has faults")]
    Faults(#[from] Faults),
    /// The process could not start, or ended early.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The status is not available.
    #[error(transparent)]
    Status(#[from] StatusError),
    /// A control command failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// No configuration was generated from that of another program.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// The output could not be written.
    #[error("the output could not be written")]
    Output(#[source] io::Error),
}

impl Failure {
    /// Returns the exit code, which tells a script the kind of failure.
    pub(super) fn code(&self) -> ExitCode {
        match self {
            Self::Usage(error) if !error.use_stderr() => ExitCode::SUCCESS,
            Self::Usage(_) => ExitCode::from(USAGE),
            // Numbers that exceed a limit of the system, sockets of a service manager that do not
            // fit, and a takeover without a folder: another start would end in the same way.
            Self::Faults(_)
            | Self::Import(_)
            | Self::Run(
                RunError::Files(_)
                | RunError::Inherited(_)
                | RunError::Takeover(TakeoverError::NoFolder),
            ) => ExitCode::from(CONFIG),
            Self::Status(StatusError::Server(AdminServerError::Faults(_)))
            | Self::Control(ControlError::Address(AdminServerError::Faults(_))) => {
                ExitCode::from(CONFIG)
            }
            Self::Run(_) | Self::Status(_) | Self::Control(_) | Self::Output(_) => {
                ExitCode::FAILURE
            }
        }
    }

    /// Prints the failure, once. A failed write is ignored, since the message has no reader then.
    /// Waits for the reader for at most one second.
    pub(super) fn print(&self) {
        let text = match self {
            // The parser's error distinguishes help from errors, and knows whether to use colours.
            Self::Usage(error) => {
                let _ = error.print();
                return;
            }
            // The lines without a prefix, so that editors find the places.
            Self::Faults(faults) => {
                let count = faults.0.len();
                format!(
                    "{faults}\npointsman: {count} {} in the configuration\n",
                    if count == 1 { "fault" } else { "faults" }
                )
            }
            Self::Import(ImportError::Refused(text)) => text.clone(),
            other => chain(other),
        };
        threads::write_stderr(text);
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
