//! Early holds: what closes the gate, and what opens it again.

use super::rig::{Answer, Rig, id, master, node, view};
use crate::machine::{MachineEvent, MachineState, Warning};
use crate::{Notice, ProbeFailure};

#[test]
fn releases_at_once_on_abort() {
    let mut rig = Rig::booted();
    rig.selects(1, 'B').at(500).publishes(1, Notice::Aborted);
    rig.at(5000);
    assert_eq!(rig.outcomes(), ["0 hold", "500 release"]);
    assert_eq!(*rig.machine.state(), MachineState::Stable);
}

#[test]
fn ignores_abort_of_another_sentinel() {
    let mut rig = Rig::booted();
    rig.selects(1, 'B').at(500).publishes(2, Notice::Aborted);
    rig.step(MachineEvent::Notice { from: None, notice: Notice::Aborted });
    rig.step(MachineEvent::Notice { from: Some(id(77)), notice: Notice::Aborted });
    rig.at(2900);
    assert_eq!(rig.outcomes(), ["0 hold"]);
}

#[test]
fn holds_until_demotion_if_leader_dies_after_promotion() {
    let mut rig = Rig::booted();
    rig.selects(1, 'B').at(90).promotes('B').disconnects(1);
    // The others never learned of it; the promoted replica reports `role:master` until they demote
    // it.
    rig.at(13_900).demotes('B', 'A');
    rig.at(60_000);
    assert_eq!(
        rig.outcomes(),
        ["0 hold", "13902 release"],
        "the promoted replica follows the master"
    );
    assert_eq!(*rig.machine.state(), MachineState::Stable);
    // Once it has been seen as a replica again, its next promotion counts.
    rig.promotes('B').run(1100);
    assert_eq!(rig.outcomes_untimed().last().map(String::as_str), Some("hold"));
}

#[test]
fn expires_hold_without_promotion() {
    // Repeating a selection does not extend the limit.
    let mut rig = Rig::booted();
    rig.selects(1, 'B').at(2500).selects(1, 'B').at(3500);
    assert_eq!(rig.outcomes(), ["0 hold", "3001 release"]);
    // Neither does an announcement that the replica itself does not confirm.
    for notice in [
        Notice::Promoted { candidate: node('B') },
        Notice::PromotionOrdered { candidate: node('B') },
    ] {
        let mut rig = Rig::booted();
        rig.selects(1, 'B').at(2500).publishes(1, notice).at(3500);
        assert_eq!(rig.outcomes(), ["0 hold", "3001 release"]);
        assert_eq!(rig.warnings(Warning::HoldExpired), 1);
    }
}

#[test]
fn keeps_holding_if_old_master_dies() {
    let mut rig = Rig::booted();
    rig.selects(1, 'B').fails('A', ProbeFailure::Unreachable);
    rig.at(60_000);
    assert_eq!(
        rig.outcomes(),
        ["0 hold"],
        "when the hold expires there is nothing to open the gate to"
    );
    rig.nodes.insert('A', master('A', "history-1", ""));
    rig.run(300);
    assert_eq!(rig.outcomes_untimed(), ["hold", "release"]);
}

#[test]
fn holds_on_promotion_found_by_probe() {
    let mut rig = Rig::booted();
    rig.change(1, |view| view.failing_over = true);
    rig.promotes('B').step(MachineEvent::ProbeConnectionLost { node: node('B') });
    rig.run(2);
    assert_eq!(rig.outcomes(), ["1 hold"]);
}

#[test]
fn bounds_holds_of_repeating_sentinel() {
    let mut rig = Rig::booted();
    for _ in 0..600 {
        rig.selects(1, 'B').run(100);
    }
    // Three holds of three seconds, announced again before the sentinels could deny the last one.
    assert_eq!(rig.outcomes(), ["0 hold", "9001 release"]);
    assert_eq!(rig.warnings(Warning::HoldsExhausted), 1, "reported once, not six hundred times");
    // After the window, a hold is possible again.
    rig.mark();
    rig.run(60_000);
    rig.selects(1, 'B');
    assert_eq!(rig.outcomes_untimed(), ["hold"]);
}

/// A sentinel whose failovers fail, or that lies, does not use up the holds of the others.
#[test]
fn holds_for_the_leader_after_false_announcements() {
    let mut rig = Rig::booted();
    for _ in 0..4 {
        rig.selects(1, 'B').run(100);
        rig.publishes(1, Notice::Aborted).run(100);
    }
    rig.mark();
    rig.selects(1, 'B').run(100);
    assert!(rig.outcomes().is_empty(), "its own are used up");
    rig.selects(2, 'B').run(100);
    // An abort of one of those that announce it does not end the hold of the other.
    rig.selects(1, 'B').publishes(1, Notice::Aborted).run(100);
    assert_eq!(rig.outcomes_untimed(), ["hold"]);
    rig.publishes(2, Notice::Aborted).run(100);
    assert_eq!(rig.outcomes_untimed(), ["hold", "release"]);
}

/// Sentinel shows a failover that hangs as being in progress until `failover-timeout`.
#[test]
fn waits_once_for_a_failover_that_hangs() {
    let mut rig = Rig::booted();
    rig.selects(1, 'B').change(1, |it| it.failing_over = true).run(20_000);
    let outcomes = rig.outcomes();
    let [held, released] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert_eq!(held, "0 hold");
    let (at, what) = released.split_once(' ').unwrap();
    assert!(what == "release" && at.parse::<u32>().unwrap() < 3500, "{released}");
}

#[test]
fn commits_failover_after_holds_are_exhausted() {
    let mut rig = Rig::booted();
    for _ in 0..3 {
        rig.selects(1, 'B').run(100);
        rig.publishes(1, Notice::Aborted).run(100);
    }
    rig.mark();
    rig.selects(1, 'B').promotes('B').run(200);
    assert_eq!(rig.outcomes_untimed(), ["hold"], "the promotion itself was seen");
    rig.all_name('B', 6).publishes(2, Notice::Switched { to: node('B') }).run(5);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit B@6 majority"]);
    // A commit resets the counter.
    rig.selects(1, 'C');
    assert_eq!(rig.outcomes_untimed().last().map(String::as_str), Some("hold"));
}

#[test]
fn holds_only_for_members_and_own_replicas() {
    let mut rig = Rig::booted();
    let selected = |letter| Notice::CandidateSelected { candidate: node(letter) };
    rig.step(MachineEvent::Notice { from: None, notice: selected('B') });
    rig.step(MachineEvent::Notice { from: Some(id(77)), notice: selected('B') });
    rig.publishes(1, selected('X'))
        .publishes(1, Notice::Promoted { candidate: node('X') })
        .publishes(1, selected('A'));
    rig.run(3000);
    assert!(rig.outcomes().is_empty());
}

#[test]
fn ignores_stranger_with_role_master() {
    let mut rig = Rig::booted();
    // Listed as a replica, but with another history: it was configured by mistake, or is still
    // loading ours.
    rig.nodes.insert('C', master('C', "elsewhere", ""));
    rig.run(5000);
    assert!(rig.outcomes().is_empty());
}

#[test]
fn replaces_candidate_within_the_same_hold() {
    let mut rig = Rig::booted();
    rig.selects(1, 'B').at(1000).selects(2, 'C');
    let MachineState::Armed { candidate, .. } = rig.machine.state() else { panic!("not armed") };
    assert_eq!(*candidate, Some(node('C')));
    rig.at(10_000);
    assert_eq!(rig.outcomes(), ["0 hold", "3001 release"]);
}

#[test]
fn probes_candidate_often_while_holding() {
    let mut rig = Rig::booted();
    rig.selects(1, 'B').at(1000);
    assert!((45..=60).contains(&rig.probes('B')), "{}", rig.probes('B'));
}

#[test]
fn backs_off_from_repeated_hints() {
    let mut rig = Rig::booted();
    rig.step(MachineEvent::Hint);
    assert!(matches!(rig.machine.state(), MachineState::Suspect { .. }));
    rig.at(900);
    assert!(rig.probes('A') > 30);
    rig.at(10_000);
    rig.mark();
    // A client that writes through a read-only script, a thousand times per second, for a minute.
    for _ in 0..60_000 {
        rig.step(MachineEvent::Hint);
        rig.run(1);
    }
    assert!(rig.outcomes().is_empty());
    assert!(rig.probes('A') < 60 * 25, "{}", rig.probes('A'));
    // After a calm period, hints are accepted at once again.
    rig.run(11_000);
    assert_eq!(*rig.machine.state(), MachineState::Stable);
    rig.step(MachineEvent::Hint);
    assert!(matches!(rig.machine.state(), MachineState::Suspect { .. }));
    rig.run(150);
    rig.step(MachineEvent::Hint);
    let pauses = rig.machine.pacing.hint_pause();
    assert!(pauses.as_millis() <= 400, "{pauses:?}");
}

#[test]
fn accepts_newest_of_many_replaced_replicas() {
    let mut rig = Rig::booted();
    for pod in 0..500_u32 {
        let letter = char::from_u32(0x400 + pod).expect("a letter");
        for sentinel in 1..=3 {
            rig.change(sentinel, |it| it.replicas = view('A', 5, &[], &['B', letter]).replicas);
        }
        rig.run(1001);
    }
    assert!(rig.machine.nodes.family.len() <= 64);
    let newest = char::from_u32(0x400 + 499).expect("a letter");
    rig.mark();
    rig.selects(1, newest);
    assert_eq!(rig.outcomes_untimed(), ["hold"]);
}

#[test]
fn probes_again_after_lost_answer() {
    let mut rig = Rig::booted();
    rig.nodes.insert('B', Answer::Lost);
    rig.run(10_000);
    let asked = rig.probes('B');
    assert!((5..=8).contains(&asked), "{asked}");
}

#[test]
fn opens_expired_hold_on_sentinel_votes_only() {
    let mut rig = Rig::booted();
    rig.selects(1, 'B').at(90).promotes('B');
    // The promotion was observed, and then nothing is reachable any more.
    rig.disconnects(1).disconnects(2).disconnects(3).at(7500);
    assert_eq!(rig.outcomes(), ["0 hold"], "no sentinel reports that it failed");
    rig.reconnects(1).reconnects(2).all_name('B', 6).run(500);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit B@6 majority"]);
}
