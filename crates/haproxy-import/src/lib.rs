//! Converts a haproxy.cfg that stands in front of Redis into a Pointsman configuration.
//!
//! `import` is pure: file contents, options and a lookup of environment variables go in; TOML, a
//! report on every line, and refusals come out. The stages are `tokenizer` (words and quoting),
//! `sections` (lines and inherited defaults), `health_check` (which Redis commands the checks
//! send), `config_file` (lookups in all of it), `proxies` (which sections carry Redis traffic),
//! `plan` with `services`, `names`, `sentinels`, `clients`, `admin`, `tls` and `settings` (the new
//! configuration as data), and `render` (TOML). Contents of certificates are not read.
//!
//! Two rules decide what is refused. A configuration that could lead clients to another dataset,
//! drops encryption, or admits clients that haproxy turns away by their address is never written by
//! default. A line that is merely unknown is reported and ignored, since the next haproxy has more
//! keywords.
//!
//! `.if` blocks, Lua and HTTP are not evaluated. haproxy's way to find the master is not converted,
//! because the sentinels replace it.

mod admin;
mod clients;
mod config_file;
mod health_check;
mod keywords;
mod line_options;
mod names;
mod plan;
mod proxies;
mod redact;
mod render;
mod report;
mod sections;
mod sentinel_group;
mod sentinels;
mod services;
mod settings;
#[cfg(test)]
mod tests;
mod tls;
mod tls_servers;
mod tls_words;
mod tokenizer;
mod values;
mod variables;

use std::fmt;
use std::sync::Arc;

pub use report::{ImportReport, LineOutcome, LineReport};

/// The port of Sentinel where none is given.
const SENTINEL_PORT: u16 = 26379;

/// A place in one of the files; line and column count from 1.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The file name as it was given.
    pub file: Arc<str>,
    /// Line.
    pub line: usize,
    /// Column, in characters.
    pub column: usize,
}

impl AsRef<Self> for Position {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// A reason why no configuration is written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Refusal {
    /// The line in question; none if it is about all of the files or a flag.
    pub position: Option<Position>,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub remedy: String,
}

impl Refusal {
    fn new(
        at: &impl AsRef<Position>,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { position: Some(at.as_ref().clone()), ..Self::general(message, remedy) }
    }

    fn general(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { position: None, message: message.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(position) = &self.position {
            write!(f, "{}:{}:{}: ", position.file, position.line, position.column)?;
        }
        write!(f, "{}; {}", self.message, self.remedy)
    }
}

/// Facts that the files do not contain, and decisions that only a person can make.
#[derive(Debug, Clone, Default)]
pub struct ImportOptions {
    /// Master names: per listener, or, without a listener, for every listener that names none.
    pub names: Vec<(Option<String>, String)>,
    /// Sentinels as `host:port`, in place of those in the files: per listener, or, without a
    /// listener, for every listener that has none of its own here.
    pub sentinels: Vec<(Option<String>, String)>,
    /// Convert listeners and servers that use TLS to plain text.
    pub allow_plaintext: bool,
    /// Refuse to guess and to leave anything out.
    pub strict: bool,
}

/// What the caller knows that this crate must not decide by itself.
pub struct Environment<'a> {
    /// The value of an environment variable. That of a password is never used.
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    /// The names of the files in a folder, sorted; `None` if it cannot be listed.
    pub folder: &'a dyn Fn(&str) -> Option<Vec<String>>,
    /// `host:port` in the spelling that Pointsman's configuration accepts; `None` if it does not.
    pub endpoint: &'a dyn Fn(&str) -> Option<String>,
}

/// The result of an import. `toml` is empty if and only if there are refusals.
#[derive(Debug)]
pub struct Import {
    /// The configuration with comments; contains the passwords that the files contain.
    pub toml: String,
    /// Every line of the files that is not blank or a comment; contains no secrets.
    pub report: ImportReport,
    /// In the order of the files.
    pub refusals: Vec<Refusal>,
}

/// Reads `files` (name and contents) as haproxy reads several `-f` files.
#[must_use]
pub fn import(
    files: &[(String, String)],
    options: &ImportOptions,
    env: &Environment<'_>,
) -> Import {
    let mut refusals = Vec::new();
    let mut sections = sections::read(files, &mut refusals);
    let variables = variables::Variables::new(&sections, env.variable);
    variables.expand_all(&mut sections);
    let config = &config_file::ConfigFile::new(sections, &variables);
    let proxies = &proxies::sort(config);
    let notes = report::Notes::default();
    let mut planner =
        plan::Planner { config, options, env, proxies, notes, refusals, sentinel_groups: None };
    let plan = planner.plan();
    let report = planner.notes.complete(config, &plan.secrets);
    let mut refusals = planner.refusals;
    if options.strict {
        refusals.extend(report.strict_refusal());
    }
    refusals.sort();
    refusals.dedup();
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    let toml = if refusals.is_empty() { render::render(&plan, &names) } else { String::new() };
    Import { toml, report, refusals }
}
