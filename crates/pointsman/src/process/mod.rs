//! The life of the process: start, run, reload, takeover by a new process, and stop.
//!
//! `startup` loads the configuration and installs signal handlers, `launch` binds sockets and
//! starts all parts, `run` waits for the end, and `reload` applies a changed configuration. Modules
//! import downwards only: `run` uses `launch`, and both use `settings`, `capacity` and `error`.

pub mod activation;
pub(crate) mod capacity;
pub(crate) mod config_reader;
pub mod config_source;
pub mod error;
pub mod inherit;
pub(crate) mod launch;
pub(crate) mod listener_plan;
pub mod listener_set;
pub mod reload;
pub mod run;
mod secret_watch;
pub mod service_manager;
pub(crate) mod service_set;
pub(crate) mod session_options;
pub mod settings;
pub mod signals;
pub mod startup;
pub mod takeover;
pub(crate) mod tls_servers;
