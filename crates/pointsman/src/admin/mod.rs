//! The admin interface: health, metrics, the status document and page, and the control API.
//!
//! It reads counters and snapshots that other parts publish, and never holds a lock that traffic or
//! discovery waits for. The HTTP server itself is the crate `admin-http`.

pub mod certificates;
pub(crate) mod control;
pub mod effective_config;
mod follow;
pub mod health;
pub(crate) mod history;
pub mod metrics;
pub mod report;
pub mod service_registry;
pub(crate) mod sessions;
pub mod status;
