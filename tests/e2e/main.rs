//! End-to-end tests: the program as people run it, against real redis-server and redis-sentinel,
//! with real signals.
//!
//! Every test has its own cluster on its own address; tests run in parallel. No test sleeps: each
//! wait names its condition.
//!
//! Faults of the data plane, and the tests that hold them (files without a folder are of this one):
//!
//! | Fault | Test |
//! |---|---|
//! | 21: thousands of connections cut by a failover | `faults_net.rs::closes_thousands_of_sessions_without_stall` |
//! | 22: the master refuses | `faults_peers.rs::waits_for_refusing_master_then_gives_up` |
//! | 23: the master swallows SYNs | `faults_net.rs::gives_up_master_that_drops_syns` |
//! | 24: RST of the client | `traffic.rs::cleans_up_after_client_reset` |
//! | 25: half-close of the client | `traffic.rs::answers_half_closed_client_to_the_end` |
//! | 26: the server ends, the client does not | `faults_peers.rs::closes_client_after_server_closed` |
//! | 27: the client loses its power | `faults_net.rs::detects_vanished_client` |
//! | 28: slow readers | `faults_peers.rs::bounds_cost_of_clients_that_do_not_read` |
//! | 29: connect and send nothing | `faults_peers.rs::closes_silent_clients_if_configured` |
//! | 30: a flood beyond the limit | `faults_limits.rs::refuses_flood_without_harm_to_sessions` |
//! | 31: EMFILE | `faults_limits.rs::recovers_from_lack_of_descriptors` |
//! | 32: ENFILE, ENOBUFS, ECONNABORTED | `accept_loop_tests.rs` of the crate `proxy` |
//! | 33: no free local port | `faults_net.rs::closes_clients_fast_without_free_ports` |
//! | 34: loss | `faults_net.rs::delivers_every_byte_despite_loss` |
//! | 34: packets out of order | `faults_net.rs::delivers_every_byte_despite_reordering` |
//! | 34: one megabit per second | `faults_net.rs::delivers_every_byte_over_a_slow_line` |
//! | 35: the limit on memory | `faults_limits.rs::refuses_clients_before_memory_runs_out` |
//! | 36: a fifth of a core | `faults_limits.rs::answers_probes_with_a_fifth_of_a_core` |
//! | 61: a new master that is full, stopped or busy | `new_master.rs` |
//! | 54: a stopped master wakes while its successor is promoted | `faults_replies.rs::drops_replies_of_a_superseded_master` |
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
mod doctor_cures;
mod drain;
mod failover;
mod faults_limits;
mod faults_net;
mod faults_peers;
mod faults_probe;
mod faults_process;
mod faults_replies;
mod faults_takeover;
mod fleet_pause;
mod follow;
mod import;
mod isolation;
mod liveness;
mod log_reader;
mod logs;
mod maintenance;
mod metrics;
mod new_master;
mod pinned;
mod readers;
mod reload;
mod reload_secrets;
mod reload_services;
mod replicas;
mod resources;
mod restart;
mod schema;
mod screening;
mod sentinel_listen;
mod services;
mod session_bounds;
mod sessions;
mod shared_upstreams;
mod shutdown;
mod subscribers;
mod supervised;
mod switchover;
mod switchover_faults;
mod switchover_to;
mod tls_clients;
mod tls_redis;
mod tls_rotation;
mod tls_sentinel;
mod tls_sessions;
mod traffic;
mod two_faults;
mod unix_socket;
mod upgrade;
mod warning;
#[path = "../docs/yaml.rs"]
mod yaml;

use harness::{Cluster, Pointsman, PointsmanBuilder};

/// The program under test.
const PROGRAM: &str = env!("CARGO_BIN_EXE_pointsman");

/// A ready pointsman in front of `cluster`.
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
