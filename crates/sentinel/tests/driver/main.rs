//! The real driver against scripted sentinels and redis nodes: every fault that a real server
//! cannot be made to show on demand. Everything runs on loopback ports that the kernel chose, and
//! every wait is for a condition.
//!
//! The faults of discovery by their number in the fault table, each with the test that holds it:
//! here, or against real servers in `tests/e2e` of the root.
//!
//! | Fault | Test |
//! |---|---|
//! | 1: the master is killed | `golden::a_killed_master_is_followed_at_the_first_switch_that_makes_a_majority`, e2e `failover::resumes_writes_50_ms_after_the_switch` |
//! | 2: the master hangs | `nodes::a_stopped_node_costs_one_connection_and_its_late_answer_counts`, e2e `isolation::sends_nothing_to_hung_master_after_commit`, `isolation::sends_no_packet_after_the_gate_closed` |
//! | 3: the master is cut off, without RST | e2e `isolation::leaves_vanished_master_without_late_writes` |
//! | 4: the proxy sees the master, the sentinels do not | e2e `isolation::leaves_master_that_sentinels_do_not_see` |
//! | 5: the old master comes back as master | `nodes::the_old_master_is_never_gone_back_to_while_it_says_that_it_is_one` |
//! | 6: sentinels disagree | `disagreement::at_one_epoch_the_majority_decides_and_the_points_do_not_flap` |
//! | 7: a stale sentinel | `disagreement::a_stale_sentinel_with_a_living_old_master_is_ignored_and_counted` |
//! | 8, 9: one sentinel down, all of them | `disagreement::with_one_sentinel_or_all_of_them_down_the_master_stays`, e2e `discovery::serves_while_all_sentinels_are_down` |
//! | 10: all of them down at the start | `disagreement::with_all_sentinels_down_at_the_start_it_waits_for_them` |
//! | 11: Pub/Sub silently dead | `disagreement::a_silent_subscription_is_found_out_and_dialled_again`, `links::resp2s_second_connection_is_part_of_the_heartbeat` |
//! | 12: a missed switch | `disagreement::a_missed_switch_is_found_by_polling` |
//! | 13: garbage, lengths, nesting | `peers::garbage`, `peers::huge_and_negative_lengths`, `peers::deep_nesting` |
//! | 14: byte by byte, without end | `peers::one_byte_at_a_time_is_understood_if_it_comes_in_time_and_given_up_if_not`, `peers::a_line_and_an_array_that_never_end` |
//! | 15: NOAUTH, WRONGPASS, NOPERM | `refusals::sentinels_that_refuse_are_told_apart_and_served_once_they_let_in`, `refusals::nodes_that_refuse_are_told_apart_asked_with_back_off_and_verified_once_they_let_in` |
//! | 16: an unknown name | `disagreement::an_unknown_name_is_told_and_counted_and_abstains` |
//! | 17: loopback, port 0, our own address | `disagreement::port_zero_and_our_own_address_are_rejected` |
//! | 18: ten failovers a second | `storm::ten_failovers_a_second_end_at_the_latest_and_leave_nothing_behind` |
//! | 19: LOADING and the like | `nodes::a_new_master_that_is_loading_is_waited_for_with_the_gate_shut`, `nodes::a_target_that_is_loading_is_looked_at_harder_and_stays` |
//! | 20: DNS | `names::a_seeds_name_that_does_not_resolve_yet_is_asked_again`, `names::a_slow_resolver_blocks_nothing_and_its_late_answer_counts`, `names::a_master_with_a_name_is_pinned_and_followed_to_another_address` |
//! | 56: a busy master at its limit of clients | `probes::keeps_probe_connection_of_a_busy_full_master`, `probes::takes_a_node_that_turns_away_for_present`, e2e `faults_probe::keeps_gate_open_while_master_is_busy_and_full` |
//! | 59: `ip_nonlocal_bind`, a name of two families | `names::finds_the_family_that_answers_and_stays_with_it`, e2e `faults_probe::tells_own_addresses_where_any_address_can_be_bound`, `faults_probe::stays_with_the_family_that_worked_after_one_lost_dial` |
//! | 37: the proxy itself was stopped | e2e `failover::verifies_master_after_sigstop` |
//! | a replica that is down, behind, loading, mute, a master, a stranger | `pool::whoever_is_unfit_is_put_out_for_the_right_reason_and_let_in_again` |
//! | a failover, seen by readers | `pool::readers_leave_the_next_master_before_the_points_lead_there_and_the_rest_stay` |
//! | a member that lies about replicas | `storm::a_member_that_lists_other_replicas_each_time_makes_few_dials_and_stops_nothing` |
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    reason = "this is test code: a clear panic is how it reports"
)]

mod fake;
mod players;
mod stage;
mod wire;

mod disagreement;
mod golden;
mod links;
mod names;
mod nodes;
mod peers;
mod pool;
mod probes;
mod refusals;
mod storm;
mod swap;
