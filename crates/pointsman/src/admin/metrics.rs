//! Exports counters and snapshots under names that follow the Prometheus conventions.
//!
//! Nothing here is on a hot path. Workers and discovery count in integers of their own; a scrape
//! takes a snapshot of them and formats it. Labels are bounded by construction: see [`catalogue`].

pub(crate) mod catalogue;
mod exposition;
mod failovers;
mod haproxy;
pub(crate) mod histogram;
mod scrape;
mod services;

pub use catalogue::{CATALOGUE, HAPROXY, Metric, MetricKind};
pub use scrape::SPARSE_ABOVE;
pub(crate) use scrape::Scraper;
