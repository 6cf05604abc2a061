//! The admin interface: health, metrics, the status document and page, and the control API.
//!
//! It reads counters and snapshots that other parts publish, and never holds a lock that traffic or
//! discovery waits for. The HTTP server itself is the crate `admin-http`.

pub(crate) mod certificates;
pub(crate) mod control;
pub(crate) mod effective_config;
mod follow;
pub(crate) mod health;
pub(crate) mod history;
pub(crate) mod metrics;
pub(crate) mod report;
pub(crate) mod service_registry;
pub(crate) mod sessions;
pub(crate) mod status;
