//! End-to-end tests: the program as people run it, against real redis-server and redis-sentinel,
//! with real signals.
//!
//! Every test has its own cluster on its own address; tests run in parallel. No test sleeps: each
//! wait names its condition.
//!
//! `docs/guarantees.md` names the promises that these tests hold.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests report by a clear panic"
)]

mod accounts;
mod admin_surface;
mod alarms;
mod attacker;
mod bytes;
mod carry;
mod carry_state;
mod compose;
mod control_socket;
mod credentials;
mod crowd;
mod cutover;
mod descriptors;
mod discovery;
mod doctor;
mod doctor_causes;
mod doctor_cures;
mod doctor_listeners;
mod drain;
mod durability;
mod evidence;
mod failover;
mod faults_limits;
mod faults_net;
mod faults_peers;
mod faults_probe;
mod faults_process;
mod faults_replies;
mod faults_takeover;
mod follow;
mod history;
mod hostile_replicas;
mod hostile_sentinels;
mod identity;
mod import;
mod import_tls;
mod isolation;
mod liveness;
mod log_reader;
mod logs;
mod maintenance;
mod metrics;
mod new_master;
mod nodes;
mod one_name;
mod outside_text;
mod owners;
mod pinned;
mod readers;
mod refused;
mod reload;
mod reload_secrets;
mod reload_services;
mod replicas;
mod resources;
mod restart;
mod schema;
mod screening;
mod sentinel_listen;
mod sequences;
mod services;
mod session_bounds;
mod sessions;
mod shared_access;
mod shared_commands;
mod shared_faults;
mod shared_isolation;
mod shared_load;
mod shared_replies;
mod shared_restarts;
mod shared_scripts;
mod shared_surface;
mod shared_tables;
mod shared_upstreams;
mod shutdown;
mod subscribers;
mod supervised;
mod switchover;
mod switchover_faults;
mod switchover_to;
mod tls_activation;
mod tls_admin;
mod tls_admin_faults;
mod tls_clients;
mod tls_half_handshakes;
mod tls_listeners;
mod tls_promises;
mod tls_redis;
mod tls_resumption;
mod tls_rotation;
mod tls_sentinel;
mod tls_sessions;
mod tls_upstream_rotation;
mod traffic;
mod two_faults;
mod unix_socket;
mod upgrade;
mod verify;
mod warning;
#[path = "../docs/yaml.rs"]
mod yaml;

use harness::{Cluster, Pointsman, PointsmanBuilder};

/// The program under test.
const PROGRAM: &str = env!("CARGO_BIN_EXE_pointsman");

/// A ready pointsman in front of `cluster`.
/// For tests about connections of single clients, also if all others are repeated with shared ones.
const DEDICATED: &str = "upstream = \"dedicated\"";

fn pointsman(cluster: &Cluster) -> Pointsman {
    builder(cluster).start()
}

fn builder(cluster: &Cluster) -> PointsmanBuilder<'_> {
    Pointsman::builder(PROGRAM, cluster)
}

/// One value of the metrics, by its full name with labels.
fn metric(pointsman: &Pointsman, series: &str) -> Option<f64> {
    let (status, text) = pointsman.get("/metrics").expect("metrics");
    assert_eq!(status, 200);
    text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}
