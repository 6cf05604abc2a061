//! The program as people run it, against real redis-server and redis-sentinel, with real signals.
//!
//! Every test has a cluster of its own on an address of its own; they run side by side. Nothing sleeps: each wait names the
//! condition it waits for.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests report by a clear panic"
)]

mod carry;
mod discovery;
mod doctor;
mod failover;
mod import;
mod reload;
mod restart;
mod services;
mod shutdown;
mod supervised;
mod switchover;
mod traffic;

use harness::{Cluster, Pointsman, PointsmanBuilder};

/// The program under test.
const PROGRAM: &str = env!("CARGO_BIN_EXE_pointsman");

/// A pointsman in front of `cluster`, ready.
fn pointsman(cluster: &Cluster) -> Pointsman {
    builder(cluster).start()
}

fn builder(cluster: &Cluster) -> PointsmanBuilder<'_> {
    Pointsman::builder(PROGRAM, cluster)
}

/// One value of the metrics, by its whole name with labels.
fn metric(pointsman: &Pointsman, series: &str) -> Option<f64> {
    let (status, text) = pointsman.get("/metrics").expect("metrics");
    assert_eq!(status, 200);
    text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}
