//! What makes the swap follow the deciding notice at once: an announced switch is a vote as soon as
//! the announced one has spoken for itself, and an answer of the new master from after the first
//! word for it is a verification. And what of both is not enough.

use super::rig::{Answer, Letter, Rig, id, master, node, replica, view};
use crate::Notice;
use crate::machine::{Event, State};

/// S1 leads: it selected B at 0, B is a master since 90, and S1 says so since 1000. It is 1085, and
/// nobody else has spoken. From here on no sentinel answers a question.
fn led() -> Rig {
    let mut rig = Rig::booted();
    rig.selects(1, 'B').at(90).promotes('B').step(Event::CanaryLost { node: node('B') });
    rig.at(1000).names(1, 'B', 6).says(1, Notice::Promoted { candidate: node('B') });
    rig.at(1085).loses(1).loses(2).loses(3);
    assert_eq!(rig.told(), ["0 hold"]);
    rig
}

fn announces(rig: &mut Rig, sentinel: u8, peer: u8, leaving: Letter) {
    rig.says(sentinel, Notice::ConfigUpdateFrom { peer: id(peer), leaving: node(leaving) });
}

fn switched(rig: &mut Rig, sentinel: u8, to: Letter) {
    rig.says(sentinel, Notice::Switched { to: node(to) });
}

fn last(rig: &Rig) -> String {
    rig.told().last().cloned().unwrap_or_default()
}

#[test]
fn an_announced_switch_to_what_the_leader_names_moves_the_points_at_once() {
    let mut rig = led();
    announces(&mut rig, 2, 1, 'A');
    assert_eq!(rig.told(), ["0 hold"], "the announcement alone is nothing");
    switched(&mut rig, 2, 'B');
    assert_eq!(
        rig.told(),
        ["0 hold", "1085 commit B@6 Majority"],
        "neither a sentinel nor the node is asked again"
    );
    assert_eq!(*rig.machine.state(), State::Stable);
    assert!(!rig.machine.is_holding());
}

#[test]
fn the_leaders_word_may_come_last() {
    let mut rig = Rig::booted();
    rig.selects(1, 'B').at(90).promotes('B').loses(1).loses(2).loses(3).at(1000);
    announces(&mut rig, 2, 1, 'A');
    switched(&mut rig, 2, 'B');
    rig.run(5);
    assert_eq!(rig.told(), ["0 hold"]);
    rig.hears(1, view('B', 6, &[2, 3], &['A', 'C']));
    rig.run(1);
    // All that was asked before the first word verifies nothing: one question more.
    assert_eq!(rig.told(), ["0 hold", "1006 commit B@6 Majority"]);
}

type Case<'a> = &'a dyn Fn(&mut Rig);

#[test]
fn a_switch_is_one_vote_if_it_is_not_announced_or_does_not_lead_to_what_the_announced_one_names() {
    let unannounced = |rig: &mut Rig| switched(rig, 2, 'B');
    let elsewhere = |rig: &mut Rig| {
        announces(rig, 2, 1, 'A');
        switched(rig, 2, 'C');
    };
    let of_another = |rig: &mut Rig| {
        // S3 names A still.
        announces(rig, 2, 3, 'A');
        switched(rig, 2, 'B');
    };
    let of_a_stranger = |rig: &mut Rig| {
        rig.hears(9, view('B', 6, &[2, 3], &['A', 'C']));
        announces(rig, 2, 9, 'A');
        switched(rig, 2, 'B');
    };
    let of_another_switch = |rig: &mut Rig| {
        announces(rig, 2, 1, 'C');
        switched(rig, 2, 'B');
    };
    let by_a_stranger = |rig: &mut Rig| {
        rig.hears(9, view('A', 5, &[1, 2, 3], &['B', 'C']));
        announces(rig, 9, 1, 'A');
        switched(rig, 9, 'B');
    };
    let by_itself = |rig: &mut Rig| {
        announces(rig, 1, 1, 'B');
        switched(rig, 1, 'B');
    };
    let cases: [(&str, Case<'_>); 7] = [
        ("unannounced", &unannounced),
        ("elsewhere", &elsewhere),
        ("of another", &of_another),
        ("of a stranger", &of_a_stranger),
        ("of another switch", &of_another_switch),
        ("by a stranger", &by_a_stranger),
        ("by itself", &by_itself),
    ];
    for (name, case) in cases {
        let mut rig = led();
        case(&mut rig);
        rig.run(200);
        assert_eq!(rig.told(), ["0 hold"], "{name}");
    }
}

#[test]
fn an_announced_switch_is_a_vote_for_one_move_and_its_own_next_view_replaces_it() {
    let mut rig = led();
    // S2 is the only one to speak: it switches back before anything comes of it, because nobody
    // answers for B.
    rig.nodes.insert('B', Answer::Lost);
    rig.run(100);
    announces(&mut rig, 2, 1, 'A');
    switched(&mut rig, 2, 'B');
    assert!(matches!(rig.machine.state(), State::Committing { .. }));
    rig.hears(2, view('A', 5, &[1, 3], &['B', 'C']));
    rig.hears(3, view('A', 5, &[1, 2], &['B', 'C']));
    assert!(
        !matches!(rig.machine.state(), State::Committing { .. }),
        "its own word is newer than what was inferred"
    );
    // What the leader says again does not revive the vote.
    rig.hears(1, view('B', 6, &[2, 3], &['A', 'C']));
    rig.promotes('B').run(300);
    assert!(!rig.deeds().iter().any(|it| it.starts_with("commit")), "{:?}", rig.told());
}

#[test]
fn an_old_announcement_is_no_vote() {
    let mut rig = led();
    // S3 goes on to contradict the leader.
    rig.finds(1).finds(3);
    announces(&mut rig, 2, 1, 'A');
    rig.run(5_100);
    switched(&mut rig, 2, 'B');
    rig.run(100);
    assert!(!rig.deeds().iter().any(|it| it.starts_with("commit")), "{:?}", rig.told());
}

#[test]
fn nobody_switches_to_a_lower_epoch() {
    let mut rig = led();
    rig.finds(3).names(3, 'A', 5).hears(2, view('C', 7, &[1, 3], &['A', 'B']));
    rig.run(4_900);
    announces(&mut rig, 2, 1, 'C');
    // What S2 named last is forgotten by now, but not that it was newer.
    rig.run(200);
    rig.hears(1, view('B', 6, &[2, 3], &['A', 'C']));
    switched(&mut rig, 2, 'B');
    rig.run(100);
    assert!(!rig.deeds().iter().any(|it| it.starts_with("commit")), "{:?}", rig.told());
}

/// Two votes are heard at 1085; `spoil` is what happened to the node before.
fn verified_later(spoil: impl FnOnce(&mut Rig)) -> Rig {
    let mut rig = led();
    spoil(&mut rig);
    announces(&mut rig, 2, 1, 'A');
    switched(&mut rig, 2, 'B');
    assert!(!rig.deeds().iter().any(|it| it.starts_with("commit")), "{:?}", rig.told());
    assert!(matches!(rig.machine.state(), State::Committing { .. }));
    rig
}

#[test]
fn an_answer_that_is_no_longer_young_verifies_nothing_ahead() {
    let mut rig = verified_later(|rig| {
        rig.nodes.insert('B', Answer::Lost);
        rig.run(51);
    });
    rig.promotes('B').run(2000);
    assert!(last(&rig).ends_with("commit B@6 Majority"), "{:?}", rig.told());
}

#[test]
fn an_answer_before_the_idle_connection_ended_verifies_nothing_ahead() {
    // A sentinel that re-points the node ends its connections first of all.
    let mut rig = verified_later(|rig| rig.step(Event::CanaryLost { node: node('B') }));
    rig.run(5);
    assert_eq!(last(&rig), "1086 commit B@6 Majority");
}

#[test]
fn an_answer_that_a_worse_one_followed_verifies_nothing_ahead() {
    for worse in
        [replica('B', 'A', "history-1"), Answer::Failure(crate::ProbeFailure::Unresponsive)]
    {
        let rig = verified_later(|rig| {
            rig.nodes.insert('B', worse);
            rig.run(30);
        });
        assert_eq!(rig.told(), ["0 hold"]);
    }
}

#[test]
fn an_answer_from_before_the_first_word_verifies_nothing_ahead() {
    let mut rig = Rig::booted();
    rig.selects(1, 'B').at(90).promotes('B').at(1000);
    // The last answer of B is a few milliseconds old when S1 and S2 speak in one breath.
    rig.nodes.insert('B', Answer::Lost);
    rig.hears(1, view('B', 6, &[2, 3], &['A', 'C']));
    rig.hears(2, view('B', 6, &[1, 3], &['A', 'C']));
    assert!(matches!(rig.machine.state(), State::Committing { .. }));
    assert_eq!(rig.told(), ["0 hold"]);
}

#[test]
fn a_claim_that_was_given_up_in_between_begins_anew() {
    let mut rig = led();
    // The leader falls back to what is committed, and comes again.
    rig.hears(1, view('A', 5, &[2, 3], &['B', 'C']));
    rig.nodes.insert('B', Answer::Lost);
    rig.hears(1, view('B', 6, &[2, 3], &['A', 'C']));
    rig.hears(3, view('B', 6, &[1, 2], &['A', 'C']));
    assert!(matches!(rig.machine.state(), State::Committing { .. }), "{:?}", rig.told());
}

#[test]
fn nothing_is_verified_ahead_while_the_gate_is_open() {
    let mut rig = Rig::booted();
    // D is nobody's replica, so nothing holds for it; a majority's word is followed all the same.
    rig.nodes.insert('D', master('D', "history-D", "history-1"));
    rig.loses(1).loses(2).loses(3).run(10);
    rig.hears(1, view('D', 6, &[2, 3], &['A', 'C']));
    rig.run(20);
    rig.hears(2, view('D', 6, &[1, 3], &['A', 'C']));
    assert_eq!(rig.deeds(), ["hold"], "the gate shuts, then the node is asked");
    rig.run(5);
    assert_eq!(rig.deeds(), ["hold", "commit D@6 Majority"]);
}

#[test]
fn who_gathers_votes_is_asked_and_watched_whoever_else_was_selected() {
    let voted = |ended: bool| {
        let mut rig = Rig::booted();
        // D is nobody's replica: only the claim itself makes it known.
        rig.nodes.insert('D', master('D', "history-D", "history-1"));
        rig.selects(1, 'B').loses(1).loses(2).loses(3).run(10);
        rig.hears(1, view('D', 6, &[2, 3], &['A', 'C']));
        rig.run(20);
        if ended {
            rig.nodes.insert('D', Answer::Lost);
            rig.step(Event::CanaryLost { node: node('D') });
        }
        rig.hears(2, view('D', 6, &[1, 3], &['A', 'C']));
        rig.told()
    };
    assert_eq!(voted(false), ["0 hold", "30 commit D@6 Majority"]);
    assert_eq!(voted(true), ["0 hold"]);
}
