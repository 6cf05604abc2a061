//! The composition root: configuration, command line, and the wiring of the other crates.
//!
//! Every other crate has one purpose and does not know its neighbours; they are connected here.
//! `cli` and `config` hold the interface (flags, files, exit codes), `process` the running process,
//! `admin` what it reports, `system` its limits, and `logging` its log.

mod admin;
pub mod cli;
mod config;
mod logging;
mod process;
mod system;

/// What documents, charts and tests are compared with.
pub mod reference {
    pub use crate::admin::metrics::{CATALOGUE, HAPROXY, Metric, MetricKind, SPARSE_ABOVE};
    pub use crate::config::schema::{ConfigSection, SECTIONS};
    pub use crate::config::{OptionSpec, Reload, ValueKind};
    pub use crate::system::memory::{SESSION_BYTES, TLS_BYTES};
}

/// For the fuzz targets.
#[cfg(fuzzing)]
pub mod fuzzing {
    pub use crate::admin::control::rig::run as run_guards;
    pub use crate::config::rig::run as run_config;
    pub use crate::process::takeover::rig::run as run_takeover;
}
