//! Metrics: what is counted elsewhere, under names by the Prometheus conventions.
//!
//! Nothing here is on a hot path. Workers and discovery count in integers of their own; a scrape takes a picture of them and
//! writes it down. Labels are bounded by construction: see [`catalogue`].

pub mod catalogue;
mod exposition;
mod failovers;
mod haproxy;
mod scrape;
mod services;

pub use catalogue::{CATALOGUE, HAPROXY, Kind, Metric};
pub use exposition::{Exposition, Pair};
pub use scrape::{SPARSE_ABOVE, Scraper};
