//! The life of the process: start, run, reload, takeover by a new process, and stop.
//!
//! `startup` loads the configuration and sets up signals, `launch` binds sockets and starts the
//! parts, `run` waits for the end, and `reload` applies a changed configuration.

pub(crate) mod config_reader;
pub mod in_force;
pub mod inherit;
pub(crate) mod launch;
pub mod listener_set;
pub mod reload;
pub mod run;
pub mod signals;
pub mod startup;
pub mod supervisor;
pub mod takeover;
pub(crate) mod threads;
pub mod watch;
