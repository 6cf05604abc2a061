//! The configuration: read from flags, environment, file and defaults, checked as a whole, and
//! handed on as plain structs.
//!
//! The intuition is a form that is read to its end before it is handed back: a person who made
//! three mistakes is shown three, each with its place and what to do, and not one after another. So
//! nothing here stops at the first fault; a value at fault is put aside and the reading goes on.
//! `sections` defines each option once, and everything else follows from it.
//!
//! Deliberately absent: default files in magic places, includes, and any way to give a password by
//! flag.

mod change;
mod check;
mod choices;
#[cfg(test)]
mod commands_tests;
mod credentials;
mod duration;
mod endpoint;
mod environment;
mod file;
mod files;
mod finding;
mod flags;
mod hash;
mod layer;
mod limits;
mod listen;
mod load;
mod nearest;
mod passwords;
mod print;
mod reference;
pub mod schema;
mod secret;
mod section;
mod sections;
mod settings;
#[cfg(test)]
mod tests;
mod toml_value;
mod value;
mod values;

pub use change::Change;
pub use choices::{
    LogFormat, LogLevel, Minority, NoReplica, SessionLines, Sessions, Splice, Subscriptions, Verify,
};
pub use credentials::{Credentials, Token};
pub use endpoint::{Endpoint, REDIS_PORT, SENTINEL_PORT};
pub use environment::CONFIG as CONFIG_VARIABLE;
pub use files::InProgress;
pub(crate) use files::read_file;
pub use finding::{Faults, Finding};
pub use flags::Flags;
pub use limits::{Connections, DEFAULT_EACH};
pub(crate) use load::read_config;
pub use load::{Loaded, load, load_in_view};
pub use reference::reference;
pub use secret::{HIDDEN, Secret};
pub use section::{OptionSpec, Reload};
pub use sections::{
    Admin, CredentialKeys, Log, Metrics, Process, Replicas, Service, Shutdown, Timers,
};
pub use settings::Settings;
pub use value::{Kind, Problem, Value};
pub use values::{Origin, Setting, Values};

/// A duration as the configuration writes it, such as "250ms"; `None` if it is none.
#[must_use]
pub fn parse_duration(text: &str) -> Option<std::time::Duration> {
    duration::parse(text).ok()
}

/// A configuration without a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// At least one; names and listen addresses differ.
    pub services: Vec<Service>,
    /// The server for probes, metrics and status.
    pub admin: Admin,
    /// What `/metrics` shows.
    pub metrics: Metrics,
    /// What happens on SIGTERM.
    pub shutdown: Shutdown,
    /// What is logged, and how.
    pub log: Log,
    /// The resources of the process.
    pub process: Process,
    /// 16 hexadecimal digits that differ where any value differs; of passwords only whether there
    /// is one.
    pub hash: String,
    /// What is not wrong but odd, each a line for the log: unknown variables of the environment,
    /// sentinels named twice.
    pub warnings: Vec<String>,
}
