//! The composition root: configuration, command line, and the wiring of the other crates.
//!
//! Every other crate has one purpose and does not know its neighbours; they are connected here.
//! `cli` and `config` hold the interface (flags, files, exit codes), `process` the running process,
//! `admin` what it reports, `system` its limits, and `telemetry` its log.

pub mod admin;
pub mod cli;
pub mod config;
pub mod logging;
pub mod process;
pub mod system;

/// For the fuzz targets of the takeover and of the admin server's guards.
#[cfg(fuzzing)]
pub mod fuzzing {
    pub use crate::admin::control::rig::run as run_guards;
    pub use crate::process::takeover::rig::run as run_takeover;
}
