//! The pointsman that a measurement is of, and where its raw data goes.

use std::path::PathBuf;

use clap::Args;
use setup::build;

use crate::raw::Raw;
use crate::{machine, space};

/// Options that benchmarks have in common.
#[derive(Debug, Default, Args)]
pub(crate) struct Subject {
    /// Write the raw data to this new file. Nothing is written to benches/ then.
    #[arg(long, value_name = "FILE")]
    pub(crate) raw: Option<PathBuf>,
    /// Measure this pointsman instead of building one.
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
}

impl Subject {
    /// Fetches what is needed, builds the program, and starts this command again in a network
    /// namespace. Returns there with the program, or here if there can be none.
    ///
    /// # Errors
    /// That of `fetch` and of the build.
    pub(crate) fn enter(
        &self,
        fetch: impl FnOnce() -> Result<(), String>,
    ) -> Result<PathBuf, String> {
        if let Some(program) = space::entered() {
            return Ok(program);
        }
        fetch()?;
        let program = build::released_or(self.program.as_deref())?;
        let why = space::enter(&program);
        println!("No network namespace: {why}. Everything runs on the machine's own loopback.");
        Ok(program)
    }

    /// Describes the machine: in a sentence, and in the first line of the raw data. These go to a
    /// file in benches/runs/ if there is a `kind`.
    ///
    /// # Errors
    /// A message for people, if the file cannot be written.
    pub(crate) fn describe(
        &self,
        program: &std::path::Path,
        versions: &[(String, Option<String>)],
        kind: Option<&str>,
    ) -> Result<(String, Option<Raw>), String> {
        let described = machine::describe(program, versions);
        let sentence = machine::sentence(&described);
        println!("{sentence}");
        let mut raw = match (&self.raw, kind) {
            (Some(file), _) => Some(Raw::at(file)?),
            (None, Some(kind)) => Some(Raw::create(kind)?),
            (None, None) => None,
        };
        raw.iter_mut().try_for_each(|raw| raw.line(&described.to_string()))?;
        Ok((sentence, raw))
    }
}
