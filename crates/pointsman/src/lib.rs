//! The composition root: configuration, command line, and the wiring of everything else.
//!
//! The other crates each do one thing and know nothing of their neighbours; here they meet. What a
//! person or a script touches (flags, files, exit codes) is in `cli` and `config`; `run` is the
//! process itself.

pub mod cgroup;
pub mod cli;
pub mod commands;
pub mod config;
mod control;
mod control_socket;
pub mod descriptors;
pub mod health;
pub mod histogram;
mod history;
pub mod in_force;
pub mod inherit;
mod launch;
pub mod memory;
pub mod metrics;
pub mod own;
pub mod planes;
mod reader;
pub mod reload;
pub mod report;
pub mod room;
pub mod run;
pub mod signals;
mod socket_file;
pub mod startup;
pub mod status;
pub mod supervisor;
pub mod takeover;
pub mod telemetry;
mod threads;
mod unix;
pub mod watch;
