//! What the process reports and accepts while it runs: health, metrics, the status document and
//! page, and the control API.
//!
//! Everything here reads counters and snapshots that other parts publish; nothing here holds a lock
//! that traffic or discovery waits for. The HTTP server itself is the crate `admin-http`.

pub(crate) mod control;
pub(crate) mod control_socket;
pub mod health;
pub mod histogram;
pub(crate) mod history;
pub mod metrics;
pub mod report;
pub mod status;
