//! An operator's order to follow a node while the sentinels are lost.

use super::rig::{Answer, Rig, id, lineage, master, ms, node, replica, view};
use crate::machine::{MachineEvent, MachineState, Pause, Warning};
use crate::{MachineRules, Minority, NodeReport, PingReply, ProbeFailure, Role, Verify};

fn with(minority: Minority) -> Rig {
    Rig::booted_with(MachineRules { minority, ..MachineRules::default() })
}

/// All sentinels and the master die; an operator promotes B.
fn lose_all(rig: &mut Rig) {
    rig.disconnects(1).disconnects(2).disconnects(3);
    rig.fails('A', ProbeFailure::Unreachable).run(10_000);
    rig.promotes('B');
    rig.mark();
}

/// The sentinels come back and name `letter` at `epoch`.
fn come_back(rig: &mut Rig, letter: char, epoch: u64) {
    rig.reconnects(1).reconnects(2).reconnects(3).all_name(letter, epoch);
}

#[test]
fn follows_ordered_master_without_sentinels() {
    for minority in [Minority::Keep, Minority::Hold, Minority::Cut] {
        let mut rig = with(minority);
        lose_all(&mut rig);
        rig.orders('B').run(10);
        assert_eq!(rig.outcomes(), ["1 commit B@5 operator", "1 follow Switched"], "{minority:?}");
        assert!(!rig.machine.is_holding(), "{minority:?}");
        rig.run(30_000);
        assert_eq!(rig.outcomes().len(), 2, "{minority:?}: {:?}", rig.outcomes());
        assert_eq!(rig.machine.override_in_force().map(|it| &it.addr), Some(&node('B')));
    }
}

/// The sentinel in reach sees it down, and a replica is a master of other data.
#[test]
fn follows_order_at_cold_start_against_evidence() {
    let mut rig = Rig::new();
    rig.disconnects(2).disconnects(3).change(1, |it| it.down = true);
    rig.nodes.insert('B', master('B', "other", ""));
    rig.run(100);
    rig.orders('A').run(100);
    let outcomes = rig.outcomes_untimed();
    assert!(outcomes.contains(&"commit A@0 operator".to_owned()), "{outcomes:?}");
    assert!(!rig.machine.is_holding(), "{:?}", rig.machine.state());
}

#[test]
fn follows_ordered_master_at_cold_start() {
    for minority in [Minority::Keep, Minority::Hold, Minority::Cut] {
        let mut rig = Rig::with(MachineRules { minority, ..MachineRules::default() }, 3);
        rig.disconnects(1).disconnects(2).disconnects(3).promotes('B').run(20_000);
        rig.mark();
        rig.orders('B').run(20_000);
        assert_eq!(rig.outcomes_untimed(), ["commit B@0 operator", "follow Switched"]);
        assert!(!rig.machine.is_holding(), "{minority:?}");
        // One of three is not a majority, although it is the whole electorate by now.
        rig.reconnects(3).run(10_000);
        assert_eq!(rig.outcomes().len(), 2, "{minority:?}: {:?}", rig.outcomes());
        come_back(&mut rig, 'B', 6);
        rig.run(3000);
        assert_eq!(rig.outcomes_untimed()[2..], ["override confirmed"], "{minority:?}");
        assert_eq!(rig.machine.committed().map(|it| it.epoch), Some(6));
    }
}

/// The sentinel that is left still lists the replica, so that its promotion by hand looks like the
/// beginning of a failover.
#[test]
fn follows_node_whose_promotion_began_a_hold() {
    let mut rig = Rig::booted();
    rig.disconnects(1).disconnects(2).run(10_000);
    rig.fails('A', ProbeFailure::Unreachable).promotes('B');
    let promotion_seen = (0..5000).any(|_| {
        rig.run(1);
        matches!(rig.machine.state(), MachineState::Armed { .. })
    });
    assert!(promotion_seen, "{:?}", rig.machine.state());
    rig.mark();
    rig.orders('C').orders('B').run(10);
    let outcomes = ["refuse Replaced", "commit B@5 operator", "follow Switched"];
    assert_eq!(rig.outcomes_untimed(), outcomes);
    assert!(!rig.machine.is_holding());
}

#[test]
fn refuses_order_while_majority_answers() {
    let mut rig = Rig::booted();
    rig.promotes('B').disconnects(3).orders('B').run(100);
    assert_eq!(rig.outcomes_untimed()[0], "refuse MajorityAnswers");
    assert!(rig.machine.override_in_force().is_none());
    // At the start, one of three is no majority, and two are.
    let mut rig = Rig::new();
    rig.disconnects(2).disconnects(3).run(500);
    rig.promotes('B').orders('B').run(500);
    assert_eq!(rig.outcomes_untimed(), ["commit B@0 operator", "follow Switched"]);
}

#[test]
fn follows_if_sentinels_do_not_know_the_name() {
    // They answer nil, which is no view; or name a dead address and know nothing else.
    let mut rig = Rig::booted();
    lose_all(&mut rig);
    come_back(&mut rig, 'A', 0);
    for sentinel in 1..=3 {
        rig.change(sentinel, |it| (it.run_id, it.peers) = ("".into(), Vec::new()));
    }
    rig.run(6000);
    rig.mark();
    rig.orders('B').run(10_000);
    assert_eq!(rig.outcomes_untimed(), ["commit B@5 operator", "follow Switched"]);
}

#[test]
fn refuses_node_that_is_no_master_and_changes_nothing() {
    let loading = |answer: Answer| match answer {
        Answer::Report(report) => Answer::Report(NodeReport { ping: PingReply::Loading, ..report }),
        other => other,
    };
    let unknown = |answer: Answer| match answer {
        Answer::Report(report) => Answer::Report(NodeReport { role: Role::Unknown, ..report }),
        other => other,
    };
    let fresh = || master('B', "another-history", "");
    for (answer, reason) in [
        (replica('B', 'A', "history-1"), "refuse Replica"),
        (loading(fresh()), "refuse NotReady"),
        (unknown(fresh()), "refuse NotRedis"),
        (fresh(), "refuse OtherHistory"),
        (Answer::Failure(ProbeFailure::UnusableAddress), "refuse Failed(UnusableAddress)"),
        (Answer::Failure(ProbeFailure::Denied), "refuse Failed(Denied)"),
        (Answer::Failure(ProbeFailure::Unreachable), "refuse Failed(Unreachable)"),
        (Answer::Lost, "refuse Failed(Unresponsive)"),
    ] {
        let mut rig = Rig::booted();
        rig.disconnects(1).disconnects(2).disconnects(3).run(10_000);
        rig.nodes.insert('B', answer.clone());
        rig.mark();
        rig.orders('B').run(60_000);
        let outcomes = rig.outcomes_untimed();
        assert!(outcomes.len() == 1 && outcomes[0].starts_with(reason), "{answer:?}: {outcomes:?}");
        assert_eq!(*rig.machine.state(), MachineState::Stable, "{answer:?}");
        assert!(rig.machine.override_in_force().is_none());
    }
}

#[test]
fn follows_another_history_only_by_force() {
    let mut rig = Rig::booted();
    lose_all(&mut rig);
    rig.nodes.insert('D', master('D', "restored", ""));
    rig.orders('D').run(100);
    assert!(rig.outcomes_untimed()[0].starts_with("refuse OtherHistory"), "{:?}", rig.outcomes());
    rig.mark();
    rig.order('D', 60_000, true).run(100);
    assert_eq!(rig.outcomes_untimed(), ["commit D@5 operator", "follow Switched"]);
    assert_eq!(rig.warnings(Warning::LineageBroken), 1);
    // A replica remains one, whatever the order says.
    rig.nodes.insert('B', replica('B', 'A', "history-1"));
    rig.mark();
    rig.order('B', 60_000, true).run(100);
    assert!(rig.outcomes_untimed()[0].starts_with("refuse Replica"), "{:?}", rig.outcomes());
}

#[test]
fn requires_listed_replica_without_lineage() {
    let mut rig = Rig::booted();
    lose_all(&mut rig);
    rig.nodes.insert('D', master('D', "restored", ""));
    rig.without_lineage();
    rig.orders('D').run(100);
    assert!(rig.outcomes_untimed()[0].starts_with("refuse UnknownHistory"), "{:?}", rig.outcomes());
    rig.mark();
    rig.orders('B').run(100);
    assert_eq!(rig.outcomes_untimed(), ["commit B@5 operator", "follow Switched"]);
}

#[test]
fn refuses_order_without_role_queries() {
    let mut rig = Rig::with(MachineRules { verify: Verify::Ping, ..MachineRules::default() }, 3);
    rig.disconnects(1).disconnects(2).disconnects(3).orders('A').run(100);
    assert_eq!(rig.outcomes_untimed(), ["refuse RoleNotQueried"]);
}

#[test]
fn confirms_current_master_and_ends_policy_stop() {
    let mut rig = with(Minority::Hold);
    rig.disconnects(1).disconnects(2).disconnects(3).run(10_000);
    assert_eq!(rig.outcomes_untimed(), ["hold"]);
    rig.orders('A').run(10_000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "follow Confirmed", "release"]);
    rig.step(MachineEvent::Unfollow);
    assert_eq!(rig.outcomes_untimed()[3..], ["override unfollowed", "hold"]);
    let mut rig = with(Minority::Cut);
    rig.disconnects(1).disconnects(2).disconnects(3).run(10_000);
    rig.orders('A').run(10_000);
    let outcomes = ["clear Minority", "commit A@5 operator", "follow Switched"];
    assert_eq!(rig.outcomes_untimed(), outcomes);
    rig.step(MachineEvent::Unfollow);
    assert_eq!(rig.outcomes_untimed()[3..], ["override unfollowed", "clear Minority"]);
}

#[test]
fn confirms_restarted_master_without_sentinels() {
    let mut rig = Rig::booted();
    rig.disconnects(1).disconnects(2).disconnects(3).run(10_000);
    let restarted = lineage("process-A2", "history-1b", "history-1");
    let Answer::Report(report) = master('A', "", "") else { panic!("a report") };
    let report = NodeReport { lineage: Some(restarted), ..report };
    rig.nodes.insert('A', Answer::Report(report));
    rig.run(30_000);
    assert_eq!(rig.outcomes_untimed(), ["hold"], "another process needs a vote");
    rig.orders('A').run(10_000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit A@5 operator", "follow Switched"]);
}

#[test]
fn ends_silently_when_majority_names_followed_master() {
    for minority in [Minority::Keep, Minority::Hold, Minority::Cut] {
        let mut rig = with(minority);
        lose_all(&mut rig);
        rig.orders('B').run(5000);
        rig.mark();
        rig.reconnects(1).names(1, 'B', 6).run(10_000);
        assert!(rig.outcomes().is_empty(), "one of three: {:?}", rig.outcomes());
        rig.reconnects(2).names(2, 'B', 6).run(3000);
        assert_eq!(rig.outcomes_untimed(), ["override confirmed"], "{minority:?}");
        rig.run(60_000);
        assert_eq!(rig.outcomes().len(), 1, "{minority:?}: {:?}", rig.outcomes());
    }
}

#[test]
fn switches_when_majority_names_another_master() {
    for minority in [Minority::Keep, Minority::Hold, Minority::Cut] {
        let mut rig = with(minority);
        lose_all(&mut rig);
        rig.orders('B').run(5000);
        rig.mark();
        rig.promotes('C').reconnects(1).names(1, 'C', 6).run(10_000);
        assert!(rig.outcomes().is_empty(), "one of three: {:?}", rig.outcomes());
        come_back(&mut rig, 'C', 6);
        rig.run(5000);
        let outcomes = rig.outcomes_untimed();
        assert!(outcomes.contains(&"commit C@6 majority".to_owned()), "{outcomes:?}");
        assert!(outcomes.contains(&"override switched".to_owned()), "{outcomes:?}");
        assert!(!rig.machine.is_holding(), "{minority:?}");
    }
}

#[test]
fn stays_while_majority_names_dead_old_master() {
    let mut rig = Rig::booted();
    lose_all(&mut rig);
    rig.order('B', 600_000, false).run(5000);
    rig.mark();
    // The sentinels restart from their files, and A is gone.
    come_back(&mut rig, 'A', 5);
    rig.run(60_000);
    assert!(rig.outcomes().is_empty(), "{:?}", rig.outcomes());
    assert!(rig.machine.override_in_force().is_some());
    // A comes back as a master: the majority insists, and A verifies.
    rig.nodes.insert('A', master('A', "history-1", ""));
    rig.run(20_000);
    let outcomes = rig.outcomes_untimed();
    assert!(outcomes.contains(&"commit A@5 epoch_regression".to_owned()), "{outcomes:?}");
    assert!(rig.machine.override_in_force().is_none());
}

#[test]
fn expires_and_applies_policy_for_minority() {
    for (minority, then) in [
        (Minority::Keep, vec!["override expired"]),
        (Minority::Hold, vec!["override expired", "hold"]),
        (Minority::Cut, vec!["override expired", "clear Minority"]),
    ] {
        let mut rig = with(minority);
        lose_all(&mut rig);
        rig.orders('B').run(59_000);
        rig.mark();
        rig.run(60_000);
        assert_eq!(rig.outcomes_untimed(), then, "{minority:?}");
    }
}

#[test]
fn renews_override_by_another_order() {
    let mut rig = Rig::booted();
    lose_all(&mut rig);
    rig.orders('B').run(50_000);
    rig.orders('B').run(50_000);
    let outcomes = ["commit B@5 operator", "follow Switched", "follow Confirmed"];
    assert_eq!(rig.outcomes_untimed(), outcomes);
    rig.run(20_000);
    assert_eq!(rig.outcomes_untimed()[3..], ["override expired"]);
}

#[test]
fn holds_and_clears_followed_master_like_any_other() {
    let mut rig = with(Minority::Hold);
    lose_all(&mut rig);
    rig.order('B', 600_000, false).run(5000);
    rig.mark();
    rig.fails('B', ProbeFailure::Unreachable).run(10_000);
    assert_eq!(rig.outcomes_untimed(), ["hold"]);
    rig.promotes('B').run(10_000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "release"], "the same process");
    rig.demotes('B', 'A').run(10_000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "release", "clear Demoted"]);
    rig.promotes('B').run(60_000);
    assert_eq!(rig.outcomes().len(), 3, "a former replica needs votes or an order");
    rig.orders('B').run(100);
    assert_eq!(rig.outcomes_untimed()[3..], ["commit B@5 operator", "follow Switched"]);
}

#[test]
fn stops_at_another_process_of_followed_address() {
    let mut rig = Rig::booted();
    lose_all(&mut rig);
    rig.order('B', 600_000, false).run(5000);
    rig.mark();
    let Answer::Report(report) = master('B', "", "") else { panic!("a report") };
    let other = Some(lineage("process-X", "empty", ""));
    rig.nodes.insert('B', Answer::Report(NodeReport { lineage: other, ..report }));
    rig.run(60_000);
    assert_eq!(rig.outcomes_untimed(), ["hold"]);
    rig.orders('B').run(3000);
    assert!(rig.outcomes_untimed()[1].starts_with("refuse OtherHistory"), "{:?}", rig.outcomes());
}

#[test]
fn ignores_single_sentinel_after_others_were_forgotten() {
    // After `SENTINEL RESET` it lists no peers, so the electorate shrinks to it.
    let mut rig = Rig::booted();
    lose_all(&mut rig);
    rig.order('B', 600_000, false).run(5000);
    rig.mark();
    rig.promotes('C').reconnects(1);
    rig.change(1, |it| *it = view('C', 9, &[], &['A', 'B'])).run(300_000);
    assert!(rig.outcomes().is_empty(), "{:?} {:?}", rig.outcomes(), rig.machine.quorum());
}

#[test]
fn refuses_order_during_switchover_and_keeps_pause() {
    let mut rig = Rig::booted();
    lose_all(&mut rig);
    let pause = |rig: &Rig, ends_with_commit| {
        MachineEvent::Pause(Pause { since: rig.now, until: rig.now + ms(60_000), ends_with_commit })
    };
    let event = pause(&rig, true);
    rig.step(event);
    rig.orders('B').run(100);
    assert_eq!(rig.outcomes_untimed(), ["refuse Switchover"]);
    let event = pause(&rig, false);
    rig.step(event);
    rig.orders('B').run(100);
    assert!(rig.machine.is_holding(), "the pause is an order, too");
    rig.step(MachineEvent::Resume);
    let outcomes = ["refuse Switchover", "commit B@5 operator", "follow Switched", "release"];
    assert_eq!(rig.outcomes_untimed(), outcomes);
}

#[test]
fn replaces_pending_order() {
    let mut rig = Rig::booted();
    lose_all(&mut rig);
    rig.nodes.insert('C', Answer::Lost);
    rig.orders('C').run(100);
    rig.orders('B').run(100);
    let outcomes = ["refuse Replaced", "commit B@5 operator", "follow Switched"];
    assert_eq!(rig.outcomes_untimed(), outcomes);
    rig.orders('C').run(100);
    rig.step(MachineEvent::Unfollow);
    assert_eq!(rig.outcomes_untimed()[3..], ["refuse Replaced", "override unfollowed"]);
}

#[test]
fn ignores_announcements_of_a_minority() {
    let mut rig = Rig::booted();
    lose_all(&mut rig);
    rig.order('B', 600_000, false).run(5000);
    rig.mark();
    rig.promotes('C').reconnects(2).run(1000);
    rig.selects(2, 'C').switches(2, None, 'C', 6);
    rig.run(30_000);
    assert!(!rig.outcomes_untimed().iter().any(|it| it.contains("commit")), "{:?}", rig.outcomes());
    assert!(rig.machine.override_in_force().is_some() && !rig.machine.is_holding());
    assert!(rig.machine.views().any(|(voter, ..)| *voter == id(2)), "the view is shown");
}
