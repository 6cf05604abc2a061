//! Fencing early: what shuts the gate, and what opens it again.

use super::rig::{Answer, Rig, id, master, node, view};
use crate::machine::{MachineEvent, MachineState, Warning};
use crate::{Notice, ProbeFailure};

#[test]
fn an_aborted_failover_releases_at_once() {
    let mut rig = Rig::booted();
    rig.selects(1, 'B').at(500).says(1, Notice::Aborted);
    rig.at(5000);
    assert_eq!(rig.outcomes(), ["0 hold", "500 release"]);
    assert_eq!(*rig.machine.state(), MachineState::Stable);
}

#[test]
fn somebody_elses_failed_attempt_does_not_open_the_gate() {
    let mut rig = Rig::booted();
    rig.selects(1, 'B').at(500).says(2, Notice::Aborted);
    rig.step(MachineEvent::Notice { from: None, notice: Notice::Aborted });
    rig.step(MachineEvent::Notice { from: Some(id(77)), notice: Notice::Aborted });
    rig.at(2900);
    assert_eq!(rig.outcomes(), ["0 hold"]);
}

#[test]
fn the_leader_dies_after_the_promotion() {
    let mut rig = Rig::booted();
    rig.selects(1, 'B').at(90).promotes('B').loses(1);
    // The others never learnt of it; the promoted replica says it is the master until they demote
    // it.
    rig.at(13_900).demotes('B', 'A');
    rig.at(60_000);
    assert_eq!(
        rig.outcomes(),
        ["0 hold", "3102 release"],
        "the same promotion does not hold twice"
    );
    assert_eq!(rig.warnings(Warning::HoldExpired), 1);
    assert_eq!(*rig.machine.state(), MachineState::Stable);
    // Seen as a replica again, its next promotion counts again.
    rig.promotes('B').run(1100);
    assert_eq!(rig.outcomes_untimed().last().map(String::as_str), Some("hold"));
}

#[test]
fn the_time_of_a_hold_begins_anew_at_the_promotion_and_only_then() {
    let mut rig = Rig::booted();
    rig.selects(1, 'B').at(2500).selects(1, 'B').at(2900).promotes('B');
    // On a slow machine the others hear of it late: the gate is not opened to the old master before
    // they could.
    rig.at(5500);
    assert_eq!(rig.outcomes(), ["0 hold"]);
    rig.selects(1, 'B').says(1, Notice::Promoted { candidate: node('B') });
    rig.at(7000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "release"]);
    // A selection alone gets no more time by being repeated.
    let mut rig = Rig::booted();
    rig.selects(1, 'B').at(2500).selects(1, 'B').at(3500);
    assert_eq!(rig.outcomes(), ["0 hold", "3001 release"]);
    // Nor by the word of a sentinel that the replica itself does not bear out.
    for word in [
        Notice::Promoted { candidate: node('B') },
        Notice::PromotionOrdered { candidate: node('B') },
    ] {
        let mut rig = Rig::booted();
        rig.selects(1, 'B').at(2500).says(1, word).at(3500);
        assert_eq!(rig.outcomes(), ["0 hold", "3001 release"]);
    }
    // The order before the promotion itself does not use that time up.
    let mut rig = Rig::booted();
    rig.selects(1, 'B')
        .at(90)
        .says(1, Notice::PromotionOrdered { candidate: node('B') })
        .at(2900)
        .promotes('B')
        .at(5500);
    assert_eq!(rig.outcomes(), ["0 hold"]);
}

#[test]
fn the_old_master_dies_while_held() {
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
fn a_promotion_seen_by_a_probe_holds() {
    let mut rig = Rig::booted();
    rig.promotes('B').step(MachineEvent::ProbeConnectionLost { node: node('B') });
    rig.run(2);
    assert_eq!(rig.outcomes(), ["1 hold"]);
}

#[test]
fn a_sentinel_that_keeps_trying_cannot_stop_traffic() {
    let mut rig = Rig::booted();
    for _ in 0..600 {
        rig.selects(1, 'B').run(100);
    }
    // Three holds of three seconds, announced anew before the sentinels could deny the last one.
    assert_eq!(rig.outcomes(), ["0 hold", "9001 release"]);
    assert_eq!(rig.warnings(Warning::HoldsExhausted), 1, "said once, not six hundred times");
    // After the window a hold is possible again.
    rig.mark();
    rig.run(60_000);
    rig.selects(1, 'B');
    assert_eq!(rig.outcomes_untimed(), ["hold"]);
}

#[test]
fn a_real_failover_after_the_holds_are_used_up_is_still_committed() {
    let mut rig = Rig::booted();
    for _ in 0..3 {
        rig.selects(1, 'B').run(100);
        rig.says(1, Notice::Aborted).run(100);
    }
    rig.mark();
    rig.selects(1, 'B').promotes('B').run(200);
    assert!(rig.outcomes().is_empty());
    rig.all_name('B', 6).says(2, Notice::Switched { to: node('B') }).run(5);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit B@6 majority"]);
    // A commit wipes the slate.
    rig.selects(1, 'C');
    assert_eq!(rig.outcomes_untimed().last().map(String::as_str), Some("hold"));
}

#[test]
fn only_a_member_and_only_for_one_of_ours() {
    let mut rig = Rig::booted();
    let selected = |letter| Notice::CandidateSelected { candidate: node(letter) };
    rig.step(MachineEvent::Notice { from: None, notice: selected('B') });
    rig.step(MachineEvent::Notice { from: Some(id(77)), notice: selected('B') });
    rig.says(1, selected('X'))
        .says(1, Notice::Promoted { candidate: node('X') })
        .says(1, selected('A'));
    rig.run(3000);
    assert!(rig.outcomes().is_empty());
}

#[test]
fn a_stranger_that_calls_itself_master_holds_nothing() {
    let mut rig = Rig::booted();
    // Listed as a replica, but with another history: it was put there by mistake, or is still
    // loading ours.
    rig.nodes.insert('C', master('C', "elsewhere", ""));
    rig.run(5000);
    assert!(rig.outcomes().is_empty());
}

#[test]
fn a_new_candidate_replaces_the_old_one_without_a_new_hold() {
    let mut rig = Rig::booted();
    rig.selects(1, 'B').at(1000).selects(2, 'C');
    assert!(
        matches!(rig.machine.state(), MachineState::Armed { candidate: Some(it), .. } if *it == node('C'))
    );
    rig.at(10_000);
    assert_eq!(rig.outcomes(), ["0 hold", "3001 release"]);
}

#[test]
fn the_candidate_is_asked_often_while_held() {
    let mut rig = Rig::booted();
    rig.selects(1, 'B').at(1000);
    assert!((45..=60).contains(&rig.probes('B')), "{}", rig.probes('B'));
}

#[test]
fn hints_make_it_look_and_are_taken_ever_more_seldom() {
    let mut rig = Rig::booted();
    rig.step(MachineEvent::Hint);
    assert!(matches!(rig.machine.state(), MachineState::Suspect { .. }));
    rig.at(900);
    assert!(rig.probes('A') > 30);
    rig.at(10_000);
    rig.mark();
    // A client that writes through a read-only script, a thousand times a second, for a minute.
    for _ in 0..60_000 {
        rig.step(MachineEvent::Hint);
        rig.run(1);
    }
    assert!(rig.outcomes().is_empty());
    assert!(rig.probes('A') < 60 * 25, "{}", rig.probes('A'));
    // After a quiet while they are taken at once again.
    rig.run(11_000);
    assert_eq!(*rig.machine.state(), MachineState::Stable);
    rig.step(MachineEvent::Hint);
    assert!(matches!(rig.machine.state(), MachineState::Suspect { .. }));
    rig.run(150);
    rig.step(MachineEvent::Hint);
    let pauses = rig.machine.hint_pause;
    assert!(pauses.as_millis() <= 400, "{pauses:?}");
}

#[test]
fn replicas_come_and_go_for_months_and_the_newest_is_still_one_of_ours() {
    let mut rig = Rig::booted();
    for pod in 0..500_u32 {
        let letter = char::from_u32(0x400 + pod).expect("a letter");
        for sentinel in 1..=3 {
            rig.change(sentinel, |it| it.replicas = view('A', 5, &[], &['B', letter]).replicas);
        }
        rig.run(1001);
    }
    assert!(rig.machine.family.len() <= 64);
    let newest = char::from_u32(0x400 + 499).expect("a letter");
    rig.mark();
    rig.selects(1, newest);
    assert_eq!(rig.outcomes_untimed(), ["hold"]);
}

#[test]
fn a_lost_answer_delays_the_next_question_and_does_not_prevent_it() {
    let mut rig = Rig::booted();
    rig.nodes.insert('B', Answer::Lost);
    rig.run(10_000);
    let asked = rig.probes('B');
    assert!((5..=8).contains(&asked), "{asked}");
}

#[test]
fn a_hold_that_ran_out_opens_on_the_sentinels_word_only() {
    let mut rig = Rig::booted();
    rig.selects(1, 'B').at(90).promotes('B');
    // The promotion was seen, and then nothing is heard any more.
    rig.loses(1).loses(2).loses(3).at(7500);
    assert_eq!(rig.outcomes(), ["0 hold"], "nobody says that it came to nothing");
    rig.finds(1).finds(2).all_name('B', 6).run(500);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit B@6 majority"]);
}
