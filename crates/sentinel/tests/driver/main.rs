//! The real driver against scripted sentinels and Redis nodes, for faults that a real server cannot
//! be made to show on demand. Everything runs on loopback ports chosen by the kernel, and every
//! wait is for a condition.
//!
//! The faults of discovery by their number in the fault table, each with the tests that cover it:
//! here, or against real servers in `tests/e2e`.
//!
//! | Fault | Test |
//! |---|---|
//! | 1: the master is killed | `golden::commits_at_first_majority_switch_after_master_death`, e2e `failover::after_a_masters_death_writes_go_on_within_50_ms_of_the_first_switch` |
//! | 2: the master hangs | `nodes::stopped_node_costs_one_connection_and_answers_late`, e2e `isolation::a_hung_master_is_sent_nothing_after_the_commit`, `isolation::not_a_packet_of_a_client_goes_to_a_hung_master_once_the_gate_is_shut` |
//! | 3: the master is cut off, without RST | e2e `isolation::a_master_that_is_cut_off_without_a_word_costs_a_connect_timeout_and_executes_nothing_late` |
//! | 4: the proxy sees the master, the sentinels do not | e2e `isolation::a_master_that_the_proxy_sees_and_the_sentinels_do_not_is_left` |
//! | 5: the old master returns as a master | `nodes::never_returns_to_zombie_master` |
//! | 6: sentinels disagree | `disagreement::majority_decides_at_equal_epoch_without_flapping` |
//! | 7: a stale sentinel | `disagreement::ignores_and_counts_stale_sentinel_with_old_master` |
//! | 8, 9: one sentinel down, all sentinels down | `disagreement::keeps_master_with_one_or_all_sentinels_down`, e2e `discovery::with_all_sentinels_down_traffic_goes_on` |
//! | 10: all sentinels down at the start | `disagreement::waits_for_sentinels_that_are_down_at_start` |
//! | 11: Pub/Sub silently dead | `disagreement::detects_dead_subscription_and_reconnects`, `links::second_resp2_connection_is_part_of_heartbeat` |
//! | 12: a missed switch | `disagreement::finds_missed_switch_by_polling` |
//! | 13: garbage, lengths, nesting | `peers::garbage`, `peers::closes_connection_on_huge_or_negative_length`, `peers::deep_nesting` |
//! | 14: byte by byte, without end | `peers::reads_single_bytes_until_timeout`, `peers::closes_connection_on_endless_line_or_array` |
//! | 15: NOAUTH, WRONGPASS, NOPERM | `refusals::distinguishes_refusing_sentinels_and_recovers`, `refusals::distinguishes_refusing_nodes_and_retries_with_backoff` |
//! | 16: an unknown name | `disagreement::reports_and_counts_unknown_name_as_abstention` |
//! | 17: loopback, port 0, our own address | `disagreement::rejects_port_zero_and_own_address` |
//! | 18: ten failovers per second | `storm::ten_failovers_per_second_end_at_latest_without_leaks` |
//! | 19: LOADING and the like | `nodes::keeps_gate_closed_while_new_master_loads`, `nodes::probes_loading_master_faster_and_keeps_it` |
//! | 20: DNS | `names::retries_seed_name_that_does_not_resolve`, `names::slow_resolver_blocks_nothing_and_late_answer_counts`, `names::pins_named_master_and_follows_it_to_new_address` |
//! | 56: a busy master at its limit of clients | `probes::keeps_probe_connection_of_busy_full_master`, `probes::node_that_rejects_connections_stays_present`, e2e `faults_probe::keeps_gate_open_while_master_is_busy_and_full` |
//! | 59: `ip_nonlocal_bind`, a name of two families | `names::finds_address_family_that_answers_and_keeps_it`, e2e `faults_probe::tells_own_addresses_where_any_address_can_be_bound`, `faults_probe::stays_with_the_family_that_worked_after_one_lost_dial` |
//! | 37: the proxy itself was stopped | e2e `failover::a_proxy_that_was_stopped_looks_again_before_it_sends_a_byte` |
//! | a replica that is down, lagging, loading, mute, a master, of another master | `pool::ejects_unfit_replica_with_reason_and_readmits_it` |
//! | a failover, seen by readers | `pool::readers_leave_next_master_before_switch_and_others_stay` |
//! | a member of the electorate that lies about replicas | `storm::limits_dials_to_replicas_listed_by_liars` |
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    reason = "test code reports failures by panicking"
)]

mod cluster;
mod fake;
mod scripts;
mod wire;

mod absences;
mod disagreement;
mod golden;
mod links;
mod names;
mod nodes;
mod pacing;
mod peers;
mod pool;
mod probes;
mod refusals;
mod storm;
mod swap;
