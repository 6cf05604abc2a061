//! The life of the process: start, run, reload, takeover by a new process, and stop.
//!
//! `startup` loads the configuration and installs signal handlers, `launch` binds sockets and
//! starts all parts, `run` waits for the end, and `reload` applies a changed configuration. Modules
//! import downwards only: `run` uses `launch`, and both use `settings`, `capacity` and `error`.

pub(crate) mod activation;
pub(crate) mod capacity;
pub(crate) mod config_reader;
pub(crate) mod config_source;
pub(crate) mod error;
pub(crate) mod inherit;
pub(crate) mod launch;
pub(crate) mod listener_plan;
pub(crate) mod listener_set;
pub(crate) mod reload;
pub(crate) mod run;
mod secret_watch;
pub(crate) mod service_manager;
pub(crate) mod service_set;
pub(crate) mod session_options;
pub(crate) mod settings;
pub(crate) mod signals;
pub(crate) mod startup;
pub(crate) mod takeover;
pub(crate) mod tls_servers;
