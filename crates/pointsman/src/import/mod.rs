//! From haproxy: reads a haproxy.cfg as it stands in front of Redis today and writes the configuration that takes its place.
//!
//! The intuition is a translator who hands over the translation together with the original, annotated: each line of the old file is
//! accounted for as mapped, as not needed any more (and why), as without counterpart, or as a guess to be looked at. Nothing is
//! dropped in silence. The reading is tolerant, since what haproxy accepted is what people have; only what leaves no configuration at
//! all is a fault. Everything here is pure: texts and an environment in, a text, an account and faults out.
//!
//! What counts: which listeners lead to Redis (their backends' checks speak its protocol), which of them want the master, who the
//! sentinels are and what they call the master, passwords, bounds and times. haproxy's way of finding the master is not taken over;
//! it is what Pointsman is there to replace.
//!
//! Deliberately absent: conditional blocks, Lua, HTTP, and anything about other protocols than Redis.

mod account;
mod checks;
mod plan;
mod proxies;
mod render;
mod sections;
mod settings;
mod surroundings;
#[cfg(test)]
mod tests;
mod units;
mod words;

use std::fmt;
use std::sync::Arc;

use crate::config::Endpoint;

pub use account::{Entry, Verdict};

/// A place in one of the files; line and column count from 1.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The file's name as it was given.
    pub file: Arc<str>,
    /// Line.
    pub line: usize,
    /// Column, in characters.
    pub column: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// Why no configuration can be made of the files.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// Where; none if it is about all of the files.
    pub place: Option<Place>,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

impl Fault {
    fn new(place: Place, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { place: Some(place), what: what.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(f, "{}:{}:{}: ", place.file, place.line, place.column)?;
        }
        write!(f, "{}; {}", self.what, self.remedy)
    }
}

/// What a person knows and the files do not say.
#[derive(Debug, Clone, Default)]
pub struct Given {
    /// Names of masters by the listener they are for; without a listener, for all that have none.
    pub names: Vec<(Option<String>, String)>,
    /// The sentinels, in place of those in the files.
    pub sentinels: Vec<Endpoint>,
}

/// What came of it. With faults there is no text.
#[derive(Debug)]
pub struct Imported {
    /// The configuration, commented; holds the passwords that the files hold.
    pub toml: String,
    /// Every line of the files that says something, in their order; without secrets.
    pub account: Vec<Entry>,
    /// In the order of the files.
    pub faults: Vec<Fault>,
}

/// Reads files, each its name and its text, as haproxy would read them together. `env` gives the variables that addresses hold;
/// passwords are never looked up, their variables are named in the configuration.
#[must_use]
pub fn haproxy(files: &[(String, String)], given: &Given, env: &dyn Fn(&str) -> Option<String>) -> Imported {
    let mut faults = Vec::new();
    let mut sections = sections::read(files, &mut faults);
    sections::expand(&mut sections, env);
    let book = sections::Book::new(sections);
    let mut account = account::Account::default();
    let plan = plan::plan(&book, given, &mut account, &mut faults);
    faults.sort();
    faults.dedup();
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    let toml = if faults.is_empty() { render::render(&plan, &names) } else { String::new() };
    Imported { toml, account: account.complete(&book, &plan.secrets()), faults }
}
