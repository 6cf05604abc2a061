//! The process itself, from a checked configuration to its exit code.
//!
//! Deliberately absent: reading flags and files (that is `cli` and `config`), and printing.

use std::process::ExitCode;

use crate::config::Config;

/// Why a run ended other than by being told to.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// This build has no data plane yet.
    #[error("running is not wired up in this build")]
    NotWired,
}

/// Runs until told to stop.
///
/// # Errors
///
/// What kept the process from starting, or made it end early.
pub fn run(config: Config) -> Result<ExitCode, RunError> {
    drop(config);
    Err(RunError::NotWired)
}
