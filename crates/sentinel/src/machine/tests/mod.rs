//! Scenarios for every hazard of Sentinel discovery, in the language of [`rig`], under the eyes of
//! a [`oracle`].
//!
//! Each rule of the machine was broken once by hand, and these are the tests that failed. `prop` is
//! `property_tests`; where several failed, the scenario that names the rule is given. `model` is
//! the exhaustive search in `tests/model`. Twenty-two of them were broken a second time later on,
//! by a script and with the scenarios alone: all were caught.
//!
//! | Broken rule | Fails |
//! |---|---|
//! | the epoch comparison dropped: every vote counts | `agree`, prop, `zombie::a_regression_interrupted_does_not_count_its_grace_twice` |
//! | every view a vote of its own, whoever gave it | prop, `bootstrap::a_majority_is_enough_and_the_third_is_not_waited_for` |
//! | a sentinel's own word and its second-hand vote both count | model, prop, `failover::an_announced_switch_that_the_announced_one_denies_is_one_vote` |
//! | the zombie guard dropped | prop, `zombie::monitored_back_and_forth_by_an_operator_that_never_raises_the_epoch` |
//! | an answer older than the evidence verifies | model, prop, `failover::a_slow_answer_from_before_the_evidence_verifies_nothing` |
//! | answers that newer ones have overtaken count | `zombie::an_answer_that_newer_ones_have_overtaken_is_history` |
//! | PONG not required | prop, `bootstrap::whoever_does_not_verify_is_not_committed` |
//! | a sentinel that knows nothing (`View::is_empty_state`) votes | `bootstrap::a_sentinel_that_knows_nothing_has_no_vote` |
//! | solo without lineage | `failover::one_voice_alone_moves_nothing_to_a_stranger` |
//! | solo without its grace | prop, `failover::the_leaders_own_word_is_not_enough_while_observers_contradict` |
//! | solo although contradicted | prop, `failover::a_switch_without_an_announcement_is_one_vote` |
//! | the leader's word alone is a majority | model, prop, `failover::the_leaders_own_word_is_not_enough_while_observers_contradict` |
//! | any view after an announcement is its switch | `failover::a_round_that_was_under_way_does_not_use_the_announcement_up` |
//! | an announcement need not leave what was named | model, prop, `failover::an_announcement_that_comes_after_its_own_switch_was_seen_is_not_of_the_next_one` |
//! | an announced switch counts wherever it leads | `ahead::a_switch_is_one_vote_if_it_is_not_announced_or_does_not_lead_to_what_the_announced_one_names` |
//! | an announced switch counts whoever was announced | the same |
//! | an announced switch may lead to a lower epoch | `ahead::nobody_switches_to_a_lower_epoch` |
//! | an old announcement makes a vote | `ahead::an_old_announcement_is_no_vote` |
//! | an announced switch is a vote for ever | `ahead::an_announced_switch_is_a_vote_for_one_move_and_its_own_next_view_replaces_it` |
//! | an old answer verifies ahead | `ahead::an_answer_that_is_no_longer_young_verifies_nothing_ahead` |
//! | an answer from before the first word verifies ahead | `ahead::an_answer_from_before_the_first_word_verifies_nothing_ahead` |
//! | an answer from before the idle connection's end verifies ahead | `ahead::an_answer_before_the_idle_connection_ended_verifies_nothing_ahead` |
//! | a bad answer verifies ahead | `ahead::an_answer_that_a_worse_one_followed_verifies_nothing_ahead` |
//! | an open gate is no matter | `ahead::nothing_is_verified_ahead_while_the_gate_is_open` |
//! | a claim's first word counts although it was taken back | `ahead::a_claim_that_was_given_up_in_between_begins_anew` |
//! | denials do not count | `failover::an_announced_switch_that_the_announced_one_denies_is_one_vote` |
//! | votes never expire | prop, `bootstrap::a_grace_that_began_before_everybody_fell_silent_is_over_for_nobody` |
//! | the start takes the first view | prop, `bootstrap::a_stray_sentinel_that_answers_first_is_no_majority_of_one` |
//! | a regression is believed at once | `zombie::removed_and_monitored_anew_at_another_address` |
//! | no bound on failed holds | prop, `hold::a_sentinel_that_keeps_trying_cannot_stop_traffic` |
//! | a hold never runs out | `hold::the_leader_dies_after_the_promotion` |
//! | anybody's abort opens the gate | `hold::somebody_elses_failed_attempt_does_not_open_the_gate` |
//! | a candidate need not be of the family; a stranger may announce it | `hold::only_a_member_and_only_for_one_of_ours` |
//! | a zombie is an heir | `zombie::an_old_master_that_wakes_up_holds_nothing_and_gets_nothing` |
//! | silence of all sentinels takes the master away | `master::all_sentinels_silent_for_an_hour_and_the_master_stays` |
//! | a hung master is gone | `master::hung_is_not_gone`, `failover::golden_sigstop` |
//! | a cleared target stays published (S1) | model, prop, `master::demoted` |
//! | a stall is not noticed | `stall::looks_again_before_it_trusts_the_old_master` |
//! | a suspend is not noticed | `stall::looks_again_after_a_suspend_that_the_clock_does_not_show` |
//! | replies pass although a promotion was ordered | `replies::drops_them_from_the_order_of_the_promotion_on` |
//! | the selection alone drops replies | `replies::passes_them_between_selection_and_promotion` |
//! | a minority that falls silent is none | `minority::hold_until_a_majority_is_heard_again` |
//! | one member alone admits a sentinel | `voters::a_merging_cluster_that_one_member_lists_does_not_get_in` |
//! | strangers take over at once | `voters::whoever_speaks_first_after_a_long_silence_gains_nothing` |
//! | silent members are never dismissed | prop, `voters::pods_that_were_replaced_do_not_keep_the_living_from_being_a_majority` |
//! | a deadline that has passed stays | prop, and every scenario in which a grace passes |

mod ahead;
mod bootstrap;
mod doubt;
mod failover;
mod hold;
mod master;
mod minority;
pub(crate) mod oracle;
mod pause;
mod replies;
pub(super) mod rig;
mod stall;
mod voters;
mod zombie;

pub(super) use oracle::Oracle;
