//! The configuration: loaded from flags, environment, file and defaults, checked as a whole, and
//! returned as plain structs.
//!
//! All faults are reported at once, each with its position and what to do: an invalid value is
//! recorded and loading continues. Only a syntax error is reported alone. `options` defines each
//! option once; the parser, the environment variables, the help, the man page and
//! `docs/configuration.md` are derived from that definition.
//!
//! The stages: `toml_file`, `environment` and `flags` read values with their origins, `merge`
//! combines them with the defaults, `credentials` resolves passwords, `pem_files` reads
//! certificates and keys, `consistency` checks values against each other, and `settings` converts
//! them to [`Config`].
//!
//! There are no default paths of configuration files, no includes, and no flag for passwords.

mod choices;
mod connection_limits;
mod consistency;
mod credentials;
mod duration;
mod endpoint;
mod environment;
mod file_reader;
mod finding;
mod flags;
mod hosts;
mod listen;
mod listener_certificates;
mod load;
mod merge;
mod option_spec;
mod options;
mod pem_files;
mod print;
mod reload_plan;
#[cfg(any(test, fuzzing))]
pub(crate) mod rig;
pub(crate) mod schema;
mod settings;
#[cfg(test)]
mod stateless_commands_tests;
#[cfg(test)]
mod tests;
mod tls_checks;
mod tls_clients;
mod tls_options;
mod tls_settings;
mod toml_file;
mod toml_value;
mod value;
mod value_parsers;

pub(crate) use choices::{LogFormat, Upstream};
pub(crate) use connection_limits::ConnectionLimits;
pub(crate) use credentials::{Credentials, Secret};
pub(crate) use duration::{format as format_duration, parse as parse_duration};
pub(crate) use endpoint::{SENTINEL_PORT, parse as parse_endpoint, parse_with_port};
pub(crate) use environment::CONFIG as CONFIG_VARIABLE;
pub(crate) use file_reader::{FileStamp, PendingReads, SECRET_PATIENCE, read_file, stamp};
pub(crate) use finding::{Faults, Finding};
pub(crate) use flags::{Flags, help, long_help};
pub(crate) use load::{Loaded, SecretFiles, load, load_tracked, read_config};
pub use option_spec::{OptionSpec, Reload};
pub(crate) use options::{
    AdminConfig, LogConfig, MetricsConfig, ProcessConfig, ServiceConfig, ShutdownConfig,
    TAKEOVER_SOCKET, TimersConfig,
};
pub(crate) use reload_plan::ReloadPlan;
#[cfg(any(test, fuzzing))]
pub(crate) use rig::load_text;
pub(crate) use settings::{Origin, SettingMap, Settings};
pub use value::ValueKind;
pub(crate) use value::{Problem, Value};

/// A configuration without faults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Config {
    /// The services: at least one, with distinct names and listen addresses.
    pub services: Vec<ServiceConfig>,
    /// The admin server, for probes, metrics and status.
    pub admin: AdminConfig,
    /// What `/metrics` contains.
    pub metrics: MetricsConfig,
    /// What happens on SIGTERM.
    pub shutdown: ShutdownConfig,
    /// What is logged, and in which format.
    pub log: LogConfig,
    /// The resources of the process.
    pub process: ProcessConfig,
    /// 16 hexadecimal digits that differ if any value differs. Of a password only its presence is
    /// included.
    pub hash: String,
    /// Warnings, each a line for the log: unknown environment variables, sentinels listed twice.
    pub warnings: Vec<String>,
}
