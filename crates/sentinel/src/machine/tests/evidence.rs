//! The rules E1 to E3 of `machine::evidence`: what closes the gate to the master, and what alone
//! opens it again.

use std::time::Duration;

use super::rig::{Answer, Rig, dialled, id, master, node};
use crate::machine::{MachineEvent, MachineState, Warning};
use crate::{NodeReport, Notice, ProbeFailure, Role, View};

/// B is promoted, and its idle connection ends with that.
fn promote(rig: &mut Rig) {
    rig.promotes('B').step(MachineEvent::ProbeConnectionLost { node: node('B') });
}

fn sees_no_peer(view: &mut View) {
    view.peers.iter_mut().for_each(|(_, up)| *up = false);
}

/// Sentinel 1 is cut off together with the master, and sentinel 2 from the proxy alone; sentinel 3
/// leads the failover.
fn partitioned() -> Rig {
    let mut rig = Rig::booted();
    rig.disconnects(2).at(2500).change(3, |view| view.peers[0].1 = false);
    rig.selects(3, 'B').at(2600);
    promote(&mut rig);
    rig.at(3400);
    rig
}

#[test]
fn follows_leader_against_a_voter_without_peers() {
    let mut rig = partitioned();
    rig.change(1, sees_no_peer).names(3, 'B', 6).publishes(3, Notice::Switched { to: node('B') });
    rig.at(60_000);
    assert_eq!(rig.outcomes(), ["2500 hold", "3402 commit B@6 single_sentinel"]);
}

#[test]
fn waits_while_a_voter_with_peers_names_the_master() {
    let mut rig = partitioned();
    rig.names(3, 'B', 6).publishes(3, Notice::Switched { to: node('B') }).at(40_000);
    assert_eq!(rig.outcomes(), ["2500 hold"], "the old master may be right");
    rig.change(1, sees_no_peer).run(300);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit B@6 single_sentinel"]);
}

#[test]
fn follows_majority_at_whatever_epoch() {
    // All sentinels restarted with old files.
    let mut rig = Rig::booted();
    rig.all_name('A', 0).at(1000).selects(1, 'B').at(1090);
    promote(&mut rig);
    rig.at(2000).all_name('B', 1).publishes(2, Notice::Switched { to: node('B') }).at(60_000);
    assert_eq!(rig.outcomes(), ["1000 hold", "2002 commit B@1 epoch_regression"]);
    // One of them lost its file, and the other one is out of reach.
    let mut rig = Rig::booted();
    rig.selects(1, 'B').at(90);
    promote(&mut rig);
    rig.disconnects(3).at(1000).names(1, 'B', 6).names(2, 'B', 1).at(60_000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit B@6 single_sentinel"]);
}

#[test]
fn starts_closed_to_parent_of_a_promoted_replica() {
    // The leader shows its failover; and then it is out of reach, and the replica itself tells.
    for leader_answers in [true, false] {
        let mut rig = Rig::new();
        rig.selects(1, 'B').promotes('B');
        if !leader_answers {
            rig.disconnects(1);
        }
        rig.run(900);
        assert_eq!(rig.outcomes_untimed(), ["commit A@5 majority"]);
        assert!(rig.machine.is_holding(), "{leader_answers}: {:?}", rig.machine.state());
        rig.all_name('B', 6).run(1100);
        assert_eq!(rig.outcomes_untimed(), ["commit A@5 majority", "commit B@6 majority"]);
        assert!(!rig.machine.is_holding());
    }
}

#[test]
fn starts_closed_to_parent_although_few_list_the_child() {
    for (is_reset, is_heard) in [(false, true), (true, true), (false, false)] {
        let mut rig = Rig::new();
        rig.disconnects(3).fails('A', ProbeFailure::Unreachable).run(500);
        rig.promotes('B').run(if is_heard { 200 } else { 0 });
        rig.names(2, 'B', 6).run(10);
        if is_reset {
            rig.change(1, |view| view.replicas.clear());
        }
        rig.run(300);
        rig.nodes.insert('A', master('A', "history-1", ""));
        rig.run(200);
        assert_eq!(rig.outcomes_untimed(), ["commit A@5 majority"]);
        assert!(rig.machine.is_holding(), "{is_reset}: {:?}", rig.machine.state());
        rig.all_name('B', 6).run(1100);
        assert_eq!(rig.outcomes_untimed(), ["commit A@5 majority", "commit B@6 majority"]);
        assert!(!rig.machine.is_holding());
    }
}

/// It writes a history of its own since then, as far as can be read: no child, but no other master
/// is to be expected among the replicas of this one.
#[test]
fn starts_closed_if_the_parent_has_restarted() {
    let mut rig = Rig::new();
    rig.disconnects(1).promotes('B');
    rig.nodes.insert('A', master('A', "history-of-the-restart", ""));
    rig.run(900);
    assert_eq!(rig.outcomes_untimed(), ["commit A@5 majority"]);
    assert!(rig.machine.is_holding(), "{:?}", rig.machine.state());
    rig.all_name('B', 6).run(1100);
    assert_eq!(rig.outcomes_untimed().last().map(String::as_str), Some("commit B@6 majority"));
    assert!(!rig.machine.is_holding());
}

/// Sentinels see the master down. It may be an empty process at its address, and they are about to
/// replace it.
#[test]
fn starts_closed_to_a_master_that_sentinels_see_down() {
    for flag in ["down", "not reached"] {
        starts_closed_while(|it, on| match flag {
            "down" => it.down = on,
            _ => it.pong_age = Duration::from_secs(if on { 4 } else { 1 }),
        });
    }
}

fn starts_closed_while(set: impl Fn(&mut View, bool)) {
    let starting = |down: u8| {
        let mut rig = Rig::new();
        for sentinel in 1..=down {
            rig.change(sentinel, |it| set(it, true));
        }
        rig.run(2000);
        assert_eq!(rig.outcomes_untimed().first().map(String::as_str), Some("commit A@5 majority"));
        // One of three may be wrong.
        assert_eq!(rig.machine.is_holding(), down > 1, "{down}: {:?}", rig.machine.state());
        rig
    };
    for down in [1, 2, 3] {
        let mut rig = starting(down);
        for sentinel in 1..=down {
            rig.change(sentinel, |it| set(it, false));
        }
        rig.run(1100);
        assert!(!rig.machine.is_holding(), "{down}: {:?}", rig.machine.state());
        // All may be wrong, for lack of a password.
        let mut rig = starting(down);
        rig.run(6000);
        assert_eq!(rig.machine.is_holding(), down > 1);
        rig.run(3000);
        assert!(!rig.machine.is_holding(), "{down}: {:?}", rig.machine.state());
    }
    // They replace it.
    let mut rig = starting(3);
    rig.promotes('B').all_name('B', 6).run(1100);
    assert_eq!(rig.outcomes_untimed(), ["commit A@5 majority", "commit B@6 majority"]);
}

#[test]
fn starts_closed_while_a_failover_is_in_progress() {
    let mut rig = Rig::new();
    rig.change(1, |view| view.failing_over = true).run(500);
    assert!(rig.machine.is_holding());
    promote(&mut rig);
    rig.run(9000);
    assert!(rig.machine.is_holding());
    // It came to nothing.
    rig.demotes('B', 'A').change(1, |view| view.failing_over = false).run(4000);
    assert_eq!(rig.outcomes_untimed(), ["commit A@5 majority", "release"]);
}

#[test]
fn keeps_gate_closed_despite_an_abort() {
    let mut rig = Rig::booted();
    rig.selects(1, 'B').at(90);
    promote(&mut rig);
    // Two sentinels led a failover at once.
    rig.change(2, |view| view.failing_over = true).at(500).publishes(1, Notice::Aborted);
    rig.change(1, |view| view.failing_over = false).at(60_000);
    assert_eq!(rig.outcomes(), ["0 hold"]);
    rig.all_name('B', 6).run(2000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit B@6 majority"]);
}

#[test]
fn holds_for_one_question_if_replica_was_detached() {
    let mut rig = Rig::booted();
    promote(&mut rig);
    rig.at(60_000);
    assert_eq!(rig.outcomes(), ["1 hold", "2 release"]);
    assert_eq!(rig.warnings(Warning::HoldExpired), 1);
    // It is a stray, until a voter names it.
    rig.mark();
    rig.names(1, 'B', 6).run(1500);
    assert_eq!(rig.outcomes_untimed(), ["hold"]);
}

#[test]
fn outlasts_demotion_if_a_voter_is_silent() {
    let mut rig = Rig::booted();
    rig.disconnects(3);
    promote(&mut rig);
    rig.at(60_000);
    assert_eq!(rig.outcomes(), ["1 hold", "20002 release"]);
    // A word for the child, or a failover, starts it again.
    let mut rig = Rig::booted();
    rig.disconnects(3);
    promote(&mut rig);
    rig.at(15_000).change(1, |view| view.failing_over = true).run(1000);
    rig.change(1, |view| view.failing_over = false).at(35_000);
    assert_eq!(rig.outcomes(), ["1 hold"]);
    rig.at(60_000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "release"]);
}

#[test]
fn stays_closed_without_a_word_of_a_majority() {
    let mut rig = Rig::booted();
    rig.selects(1, 'B').at(90);
    promote(&mut rig);
    rig.at(200).disconnects(1).disconnects(2).at(300);
    // The child is out of reach as well: what was seen stands.
    rig.fails('B', ProbeFailure::Unreachable).stall(20_000);
    rig.run(120_000);
    assert_eq!(rig.outcomes(), ["0 hold"]);
    rig.reconnects(1).reconnects(2).all_name('A', 5).run(5000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "release"]);
}

#[test]
fn obeys_operator_between_two_masters() {
    let mut rig = Rig::booted();
    rig.disconnects(1).disconnects(2).disconnects(3).at(6000);
    rig.mark();
    promote(&mut rig);
    rig.at(30_000);
    assert_eq!(rig.outcomes(), ["1 hold"]);
    rig.orders('A').run(100);
    assert_eq!(rig.outcomes_untimed(), ["hold", "follow Confirmed", "release"]);
}

#[test]
fn ends_with_child_that_follows_the_master_only() {
    let mut rig = Rig::booted();
    rig.selects(1, 'B').at(90);
    promote(&mut rig);
    // A second failover: C replaced B, and B follows it.
    rig.at(200).nodes.insert('C', master('C', "history-C", "history-B"));
    rig.at(300);
    let Answer::Report(report) = master('B', "history-B", "history-1") else { panic!("a report") };
    let role = Role::Replica { master: node('C'), connected: true };
    rig.nodes.insert('B', Answer::Report(NodeReport { role, ..report.clone() }));
    rig.at(5000);
    assert_eq!(rig.outcomes(), ["0 hold"]);
    rig.demotes('C', 'A').at(5300);
    // The address that was dialled is the master's as well.
    let role = Role::Replica { master: dialled('A').into(), connected: false };
    rig.nodes.insert('B', Answer::Report(NodeReport { role, ..report }));
    rig.at(9000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "release"]);
    assert!(!matches!(rig.machine.state(), MachineState::Armed { .. }));
}

fn sees_down(view: &mut View, sentinel: u8) {
    view.peers.iter_mut().filter(|(peer, _)| *peer == id(sentinel)).for_each(|(_, up)| *up = false);
}

#[test]
fn waits_for_no_voter_that_was_gone_before() {
    let gone = || {
        let mut rig = Rig::booted();
        rig.disconnects(3).change(1, |view| sees_down(view, 3));
        rig
    };
    let mut rig = gone();
    rig.change(2, |view| sees_down(view, 3)).at(6000);
    promote(&mut rig);
    rig.at(60_000);
    assert_eq!(rig.outcomes(), ["6001 hold", "6002 release"]);
    // Another voter sees it up: it may have led the failover.
    let mut rig = gone();
    rig.at(6000);
    promote(&mut rig);
    rig.change(2, |view| sees_down(view, 3)).at(60_000);
    assert_eq!(rig.outcomes(), ["6001 hold", "26002 release"]);
    // It was lost after the promotion.
    let mut rig = Rig::booted();
    promote(&mut rig);
    rig.disconnects(3);
    rig.change(1, |view| sees_down(view, 3)).change(2, |view| sees_down(view, 3)).at(60_000);
    assert_eq!(rig.outcomes(), ["1 hold", "20002 release"]);
}

#[test]
fn awaits_no_voter_that_was_replaced() {
    let mut rig = Rig::booted();
    promote(&mut rig);
    rig.disconnects(3).step(MachineEvent::Displaced { id: id(3) });
    rig.change(1, |view| sees_down(view, 3)).change(2, |view| sees_down(view, 3));
    rig.at(60_000);
    assert_eq!(rig.outcomes(), ["1 hold", "2 release"]);
}

/// A wrong or hostile process answers at the address of a voter that another voter sees up: it has
/// moved, or is hidden from this process only, and may have led the failover.
#[test]
fn awaits_displaced_voter_that_another_sees_up() {
    let mut rig = Rig::booted();
    promote(&mut rig);
    rig.disconnects(3).step(MachineEvent::Displaced { id: id(3) });
    rig.at(5000);
    assert_eq!(rig.outcomes(), ["1 hold"]);
    rig.all_name('B', 6).at(6000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit B@6 majority"]);
}

#[test]
fn asks_all_replicas_before_a_start() {
    let mut rig = Rig::new();
    rig.nodes.insert('B', Answer::Lost);
    rig.run(1000);
    assert!(rig.outcomes().is_empty(), "B may have been promoted: {:?}", rig.outcomes());
    rig.run(1000);
    assert_eq!(rig.outcomes_untimed(), ["commit A@5 majority"]);
    // It answers with an error.
    for failure in [ProbeFailure::ConnectionRejected, ProbeFailure::Busy] {
        let mut rig = Rig::new();
        rig.fails('B', failure).run(1000);
        assert!(rig.outcomes().is_empty(), "{failure:?}: {:?}", rig.outcomes());
        rig.run(1000);
        assert_eq!(rig.outcomes_untimed(), ["commit A@5 majority"]);
    }
    // The sentinels see it down.
    let mut rig = Rig::new();
    rig.nodes.insert('B', Answer::Lost);
    for sentinel in 1..=3 {
        rig.change(sentinel, |view| view.replicas[0].healthy = false);
    }
    rig.run(100);
    assert_eq!(rig.outcomes(), ["2 commit A@5 majority"]);
}
