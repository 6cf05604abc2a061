//! The composition root: configuration, command line, and the wiring of everything else.
//!
//! The other crates each do one thing and know nothing of their neighbours; here they meet. What a
//! person or a script touches (flags, files, exit codes) is in `cli` and `config`; `run` is the
//! process itself.

pub mod admin;
pub mod cli;
pub mod config;
pub mod process;
pub mod system;
pub mod telemetry;
