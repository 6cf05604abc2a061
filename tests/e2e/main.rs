//! The program as people run it, against real redis-server and redis-sentinel, with real signals.
//!
//! Every test has a cluster of its own on an address of its own; they run side by side. Nothing sleeps: each wait names the
//! condition it waits for.
//!
//! Faults of the data plane, and the tests that hold them (files without a folder are of this one):
//!
//! | Fault | Test |
//! |---|---|
//! | 21: thousands of connections cut by a failover | `faults_net.rs::thousands_of_connections_cut_by_a_failover_stall_nothing` |
//! | 22: the master refuses | `faults_peers.rs::a_master_that_refuses_is_waited_for_and_then_given_up` |
//! | 23: the master swallows SYNs | `faults_net.rs::a_master_that_swallows_connections_is_given_up_in_time` |
//! | 24: RST of the client | `traffic.rs::a_client_that_resets_leaves_nothing_behind` |
//! | 25: half-close of the client | `traffic.rs::inline_commands_and_a_half_closed_client_are_answered_to_the_end` |
//! | 26: the server ends, the client does not | `faults_peers.rs::a_client_that_does_not_close_behind_a_closed_server_is_closed_in_time` |
//! | 27: the client loses its power | `faults_net.rs::a_client_that_lost_its_power_is_noticed` |
//! | 28: slow readers | `faults_peers.rs::readers_that_do_not_read_cost_little_memory_and_no_one_elses_time` |
//! | 29: connect and say nothing | `faults_peers.rs::who_connects_and_sends_nothing_is_closed_where_that_is_wanted_and_costs_little` |
//! | 30: a flood beyond the limit | `faults_limits.rs::a_flood_beyond_the_limit_is_answered_counted_and_hurts_neither_probes_nor_those_inside` |
//! | 31: EMFILE | `faults_limits.rs::out_of_file_descriptors_it_waits_says_so_once_a_second_and_recovers` |
//! | 32: ENFILE, ENOBUFS, ECONNABORTED | `entrance_tests.rs` of the crate `proxy` |
//! | 33: no free local port | `faults_net.rs::without_free_ports_clients_are_closed_fast_and_nothing_spins` |
//! | 34: loss | `faults_net.rs::over_a_network_that_loses_packets_every_byte_arrives` |
//! | 34: packets out of order | `faults_net.rs::over_a_network_where_packets_overtake_each_other_every_byte_arrives` |
//! | 34: one megabit a second | `faults_net.rs::over_a_line_of_one_megabit_every_byte_arrives_and_buffers_stay_small` |
//! | 35: the limit on memory | `faults_limits.rs::a_limit_on_memory_refuses_clients_before_the_kernel_ends_the_process` |
//! | 36: a fifth of a core | `faults_limits.rs::with_a_fifth_of_a_core_probes_are_answered_within_a_second` |
//! | 61: a new master that is full, stopped or busy | `new_master.rs` |
//! | 54: a stopped master wakes while its successor is promoted | `faults_replies.rs::acknowledges_nothing_of_a_master_that_wakes_after_the_promotion` |
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests report by a clear panic"
)]

mod accounts;
mod bytes;
mod carry;
mod carry_state;
mod compose;
mod control_socket;
mod cutover;
mod descriptors;
mod discovery;
mod doctor;
mod drain;
mod failover;
mod faults_limits;
mod faults_net;
mod faults_peers;
mod faults_probe;
mod faults_process;
mod faults_replies;
mod faults_takeover;
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
mod replicas;
mod restart;
mod schema;
mod services;
mod session_bounds;
mod shutdown;
mod subscribers;
mod supervised;
mod switchover;
mod switchover_faults;
mod traffic;
mod two_faults;
mod unix_socket;
mod vitals;
mod warning;
#[path = "../docs/yaml.rs"]
mod yaml;

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
