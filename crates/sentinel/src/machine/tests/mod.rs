//! Scenarios for every hazard of Sentinel discovery, written with [`rig`] and checked by
//! [`oracle`].
//!
//! Each rule of the machine was broken once by hand; the list names the tests that failed. `prop`
//! is `property_tests`, `model` is the exhaustive search in `tests/model`. If several scenarios
//! failed, the one named after the rule is given. Twenty-two of the rules were broken a second time
//! later, by a script and with the scenarios alone: all were detected.
//!
//! - the epoch comparison dropped, so that every vote counts: `vote_count`, prop,
//!   `zombie::restarts_grace_of_interrupted_regression`
//! - every view a vote of its own, whichever sentinel sent it: prop,
//!   `bootstrap::commits_on_majority_without_the_third`
//! - a sentinel's own vote and its endorsement both count: model, prop,
//!   `failover::counts_denied_announced_switch_as_one_vote`
//! - the zombie guard dropped: prop, `zombie::requires_insistence_to_return_at_same_epoch`
//! - an answer older than the evidence verifies: model, prop,
//!   `failover::rejects_answer_queried_before_evidence`
//! - answers that newer ones have overtaken count: `zombie::ignores_answer_overtaken_by_newer_one`
//! - PONG not required: prop, `bootstrap::commits_only_verified_node`
//! - a sentinel that knows nothing (`View::is_empty_state`) votes:
//!   `bootstrap::ignores_sentinel_in_empty_state`
//! - a single sentinel followed without lineage:
//!   `single_sentinel::rejects_stranger_named_by_single_sentinel`
//! - a single sentinel followed without its grace: prop,
//!   `failover::requires_more_than_the_contradicted_leader`
//! - a single sentinel followed although contradicted: prop,
//!   `failover::counts_unannounced_switch_as_one_vote`
//! - the leader's vote alone is a majority: model, prop,
//!   `failover::requires_more_than_the_contradicted_leader`
//! - any view after an announcement is its switch:
//!   `failover::keeps_announcement_during_poll_in_progress`
//! - an announcement need not leave the named address: model, prop,
//!   `failover::ignores_announcement_after_its_own_switch`
//! - an announced switch counts to any address: `ahead::counts_unrelated_switch_as_one_vote`
//! - an announced switch counts for any announced peer: the same
//! - an announced switch may lead to a lower epoch:
//!   `ahead::ignores_announced_switch_to_lower_epoch`
//! - an expired announcement makes a vote: `ahead::ignores_expired_announcement`
//! - an announced switch is a vote forever: `ahead::expires_endorsement_after_one_switch`
//! - an old answer verifies ahead: `ahead::rejects_old_answer_ahead_of_evidence`
//! - an answer from before the first vote verifies ahead:
//!   `ahead::rejects_answer_from_before_the_first_vote`
//! - an answer from before the end of the idle connection verifies ahead:
//!   `ahead::rejects_answer_before_connection_loss`
//! - a bad answer verifies ahead: `ahead::rejects_answer_followed_by_a_failure`
//! - an open gate is ignored when verifying ahead:
//!   `ahead::verifies_nothing_ahead_while_gate_is_open`
//! - the first vote for a claim counts although it was withdrawn:
//!   `ahead::restarts_claim_after_withdrawal`
//! - denials do not count: `failover::counts_denied_announced_switch_as_one_vote`
//! - votes never expire: prop, `bootstrap::restarts_bootstrap_grace_after_silence`
//! - the start accepts the first view: prop, `bootstrap::rejects_stray_sentinel_as_sole_majority`
//! - a regression is followed at once: `zombie::follows_monitor_at_another_address`
//! - a child of the master opens the gate when its hold is aborted, or its time is over:
//!   `evidence::keeps_gate_closed_despite_an_abort`,
//!   `evidence::stays_closed_without_a_word_of_a_majority`
//! - no bound on failed holds: prop, `hold::bounds_holds_of_repeating_sentinel`
//! - a hold never expires: `hold::expires_hold_without_promotion`
//! - the abort of any sentinel opens the gate: `hold::ignores_abort_of_another_sentinel`
//! - a candidate need not be of the family, and a stranger may announce it:
//!   `hold::holds_only_for_members_and_own_replicas`
//! - a zombie may be a promoted replica: `zombie::ignores_old_master_that_wakes_up`
//! - silence of all sentinels removes the master:
//!   `master::keeps_master_while_all_sentinels_are_silent`
//! - an unresponsive master counts as gone: `master::keeps_unresponsive_master`,
//!   `failover::replays_failover_after_sigstop`
//! - a cleared target stays published (S1): model, prop, `master::clears_demoted_master`
//! - a stall is not detected: `stall::confirms_master_after_stall`
//! - a suspend is not detected: `stall::confirms_master_after_suspend_hidden_from_clock`
//! - replies pass although a promotion was ordered:
//!   `replies::drops_replies_from_promotion_order_on`
//! - the selection alone drops replies: `replies::passes_replies_between_selection_and_promotion`
//! - a minority that falls silent is not one: `minority::holds_until_majority_answers_again`
//! - a single member admits a sentinel: `voters::excludes_cluster_listed_by_one_member`
//! - learned sentinels outvote configured ones: `hostile::never_outvotes_configured_sentinels`
//! - votes that no configured sentinel shares count: `hostile::never_outvotes_configured_sentinels`
//! - a majority without configured sentinels needs no history:
//!   `hostile::rejects_forged_master_when_configured_ones_are_gone`
//! - an endorsement is as good as a vote: `hostile::rejects_votes_forged_by_announcements`
//! - a displaced identity keeps its vote: `hostile::counts_one_identity_per_configured_address`
//! - strangers become the electorate at once:
//!   `voters::ignores_stranger_answering_first_after_silence`
//! - silent members are never removed: prop, `voters::removes_replaced_pods_from_electorate`
//! - the replicas of a full master are not asked:
//!   `recognition::recognises_full_master_by_its_replicas`
//! - a promotion seen in a doubt is a failover: `override_order::replaces_pending_order`
//! - a deadline in the past remains: prop, and every scenario with a grace period

mod ahead;
mod bootstrap;
mod confirmed;
mod doubt;
mod evidence;
mod failover;
mod history;
mod hold;
mod hostile;
mod master;
mod minority;
mod names;
pub(crate) mod oracle;
mod override_order;
mod pause;
mod recognition;
mod replaced_sentinels;
mod replies;
pub(super) mod rig;
mod rules_change;
mod single_sentinel;
mod stall;
mod voters;
mod zombie;

pub(super) use oracle::Oracle;
