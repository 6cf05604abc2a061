//! The start: nothing is known, and nothing is believed too easily.

use std::time::Duration;

use super::rig::{Answer, Rig, master, ms, node, replica, view};
use crate::machine::{Event, Finding, State};
use crate::{Minority, ProbeFailure, Report, Role, Rules, View};

fn rules() -> Rules {
    Rules::default()
}

fn stray(addr: char, epoch: u64) -> View {
    view(addr, epoch, &[], &[])
}

#[test]
fn a_majority_is_enough_and_the_third_is_not_waited_for() {
    let mut rig = Rig::new();
    rig.loses(3);
    rig.run(3000);
    assert_eq!(rig.told(), ["2 commit A@5 Majority"]);
    assert_eq!(rig.machine.quorum(), (3, 2));
    assert_eq!(*rig.machine.state(), State::Stable);
}

#[test]
fn one_of_three_counts_only_after_the_grace() {
    let mut rig = Rig::new();
    rig.loses(2).loses(3);
    rig.run(5000);
    assert_eq!(rig.told(), ["1502 commit A@5 BootstrapMinority"]);
}

#[test]
fn a_majority_that_comes_during_the_grace_is_taken_at_once() {
    let mut rig = Rig::new();
    rig.loses(2).loses(3);
    rig.at(700).finds(2);
    rig.run(3000);
    let told = rig.told();
    assert_eq!(rig.deeds(), ["commit A@5 Majority"]);
    let at: u64 = told[0].split(' ').next().and_then(|it| it.parse().ok()).expect("a time");
    assert!((700..=803).contains(&at), "{told:?}");
}

#[test]
fn silence_commits_nothing_and_asks_without_end() {
    let mut rig = Rig::new();
    rig.loses(1).loses(2).loses(3);
    rig.run(600_000);
    assert!(rig.told().is_empty());
    assert_eq!(*rig.machine.finding(), Finding::Silence);
    assert!(rig.log.len() <= 6001, "ten questions a second at most: {}", rig.log.len());
}

#[test]
fn a_grace_that_began_before_everybody_fell_silent_is_over_for_nobody() {
    let grace = Duration::from_secs(8);
    let mut rig = Rig::with(Rules { bootstrap_grace: grace, ..rules() }, 3);
    rig.loses(2).loses(3).run(200);
    rig.loses(1).run(20_000);
    rig.mark();
    rig.finds(3).run(7900);
    assert!(rig.told().is_empty());
    rig.run(300);
    assert_eq!(rig.deeds(), ["commit A@5 BootstrapMinority"]);
}

#[test]
fn a_sentinel_that_knows_nothing_has_no_vote() {
    let mut rig = Rig::new();
    let empty = View { run_id: "".into(), ..stray('C', 0) };
    for sentinel in 1..=3 {
        rig.change(sentinel, |it| *it = empty.clone());
    }
    rig.nodes.insert('C', master('C', "other", ""));
    rig.run(20_000);
    assert!(rig.told().is_empty());
    assert_eq!(rig.machine.quorum().0, 0);
}

#[test]
fn a_stray_sentinel_that_answers_first_is_no_majority_of_one() {
    let mut rig = Rig::new();
    rig.loses(1).loses(2).loses(3);
    rig.nodes.insert('D', master('D', "other", ""));
    rig.hears(9, stray('D', 2));
    rig.run(600);
    assert!(rig.told().is_empty());
    rig.finds(1).finds(2).finds(3);
    rig.run(3000);
    // It votes, since nobody could vouch for anybody yet, but three against one is a majority.
    assert_eq!(rig.deeds(), ["commit A@5 Majority"]);
}

#[test]
fn seeds_that_are_one_and_the_same_sentinel_have_one_vote_and_do_not_block_the_start() {
    let mut rig = Rig::with(rules(), 3);
    rig.loses(2).loses(3);
    rig.change(1, |it| it.peers.clear());
    rig.run(3000);
    assert_eq!(rig.told(), ["1502 commit A@5 BootstrapMinority"]);
    let mut rig = Rig::with(rules(), 5);
    rig.loses(3);
    rig.run(3000);
    assert_eq!(
        rig.told(),
        ["1502 commit A@5 BootstrapMinority"],
        "two of five seeds are no majority yet"
    );
    assert_eq!(
        rig.machine.quorum(),
        (3, 2),
        "but the electorate is who they are, not how often they are named"
    );
}

#[test]
fn the_highest_epoch_is_waited_for_and_then_followed() {
    let mut rig = Rig::new();
    rig.names(1, 'B', 6).promotes('B');
    rig.at(1000);
    assert!(rig.told().is_empty(), "two votes at a lower epoch are not the majority that counts");
    rig.names(2, 'B', 6);
    rig.run(2000);
    assert_eq!(rig.deeds(), ["commit B@6 Majority"]);
}

#[test]
fn one_newer_word_does_not_displace_a_majority_that_is_being_verified() {
    let mut rig = Rig::new();
    rig.nodes.insert('A', Answer::Lost);
    rig.promotes('B');
    rig.at(100).names(1, 'B', 6);
    rig.at(1000);
    assert!(matches!(rig.machine.state(), State::Committing { addr, .. } if *addr == node('A')));
    rig.nodes.insert('A', master('A', "history-1", ""));
    rig.at(2000);
    assert_eq!(rig.deeds().first().map(String::as_str), Some("commit A@5 Majority"));
}

#[test]
fn whoever_does_not_verify_is_not_committed() {
    let loading = || match master('A', "history-1", "") {
        Answer::Report(report) => Answer::Report(Report { pong: false, ..report }),
        other => other,
    };
    let unreadable = || match master('A', "history-1", "") {
        Answer::Report(report) => Answer::Report(Report { role: Role::Unknown, ..report }),
        other => other,
    };
    let failing = [
        ProbeFailure::Unreachable,
        ProbeFailure::Unresponsive,
        ProbeFailure::Denied,
        ProbeFailure::UnusableAddress,
    ];
    let mut answers: Vec<Answer> = failing.into_iter().map(Answer::Failure).collect();
    answers.extend([loading(), unreadable(), replica('A', 'B', "history-1"), Answer::Lost]);
    for answer in answers {
        let mut rig = Rig::new();
        rig.nodes.insert('A', answer.clone());
        rig.run(30_000);
        assert!(rig.told().is_empty(), "{answer:?}");
        // And it is followed as soon as it does.
        rig.nodes.insert('A', master('A', "history-1", ""));
        rig.run(1700);
        assert_eq!(rig.deeds(), ["commit A@5 Majority"], "{answer:?}");
    }
}

#[test]
fn a_weaker_verification_is_a_weaker_verification() {
    for (verify, role, pong, commits) in [
        (crate::Verify::Ping, Role::Unknown, true, true),
        (crate::Verify::Ping, Role::Unknown, false, false),
        (crate::Verify::Tcp, Role::Unknown, false, true),
        (crate::Verify::Tcp, Role::Replica { master: node('B'), connected: true }, true, false),
        (crate::Verify::Role, Role::Unknown, true, false),
    ] {
        let mut rig = Rig::with(Rules { verify, ..rules() }, 3);
        let Answer::Report(report) = master('A', "", "") else { panic!("a report") };
        rig.nodes.insert(
            'A',
            Answer::Report(Report { role: role.clone(), pong, lineage: None, ..report }),
        );
        rig.run(3000);
        assert_eq!(!rig.told().is_empty(), commits, "{verify:?} {role:?} pong={pong}");
    }
}

#[test]
fn where_a_minority_is_to_be_cut_it_is_not_published_in_the_first_place() {
    let mut rig = Rig::with(Rules { minority: Minority::Cut, ..rules() }, 3);
    rig.loses(2).loses(3);
    rig.change(1, |it| it.peers.iter_mut().for_each(|(_, up)| *up = false));
    rig.run(20_000);
    assert!(rig.told().is_empty());
    rig.finds(2).finds(3).change(1, |it| it.peers.iter_mut().for_each(|(_, up)| *up = true));
    rig.run(2000);
    assert_eq!(rig.deeds(), ["commit A@5 Majority"]);
}

#[test]
fn a_stall_during_the_start_makes_the_grace_begin_anew() {
    let mut rig = Rig::new();
    rig.loses(2).loses(3);
    rig.at(1000);
    rig.stall(30_000);
    rig.mark();
    rig.run(1300);
    assert!(rig.told().is_empty());
    rig.run(400);
    assert_eq!(rig.deeds(), ["commit A@5 BootstrapMinority"]);
}

#[test]
fn evidence_from_before_a_stall_is_not_verified_after_it() {
    let mut rig = Rig::new();
    rig.nodes.insert('A', Answer::Lost);
    rig.run(500);
    assert!(matches!(rig.machine.state(), State::Committing { .. }));
    // The majority's word is half a minute old when its verification arrives.
    let asked_at = rig.now;
    rig.loses(1).loses(2).loses(3);
    rig.stall(30_000);
    let Answer::Report(report) = master('A', "history-1", "") else { panic!("a report") };
    rig.step(Event::Probed {
        node: node('A'),
        probe: crate::Probe { asked_at, outcome: Ok(report) },
    });
    rig.now += ms(1);
    assert!(rig.told().is_empty());
}

/// The first sentinel was replaced by one without a file at a new address, beside an empty redis.
/// The two others keep the entry of the one that was there before.
fn lost_its_file(rig: &mut Rig) {
    rig.sentinels.remove(&1);
    rig.sentinels.insert(4, stray('D', 0));
    rig.nodes.insert('D', master('D', "empty", ""));
    for sentinel in [2, 3] {
        rig.change(sentinel, |it| it.peers[0].1 = false);
    }
}

#[test]
fn one_that_lost_its_file_is_no_majority_of_one() {
    // One name for all: it counts for the addresses that it leads to, and until they are known for
    // one.
    for late in [1, 700, 1400] {
        let mut rig = Rig::with(rules(), 1);
        lost_its_file(&mut rig);
        rig.step(Event::Expected(3));
        rig.loses(2).loses(3).run(late);
        rig.finds(2).finds(3).run(5000);
        assert_eq!(rig.deeds(), ["commit A@5 Majority"], "{late} ms late");
    }
    // Where only its own address is known yet, its own quorum says that it is not alone.
    let mut rig = Rig::with(rules(), 1);
    lost_its_file(&mut rig);
    rig.loses(2).loses(3).run(700);
    assert!(rig.told().is_empty(), "{:?}", rig.told());
    rig.step(Event::Expected(3));
    rig.finds(2).finds(3).run(3000);
    assert_eq!(rig.deeds(), ["commit A@5 Majority"]);
}

#[test]
fn a_late_majority_is_followed_after_a_minority_began() {
    let mut rig = Rig::with(rules(), 1);
    lost_its_file(&mut rig);
    rig.step(Event::Expected(3));
    rig.loses(2).loses(3).run(10_000);
    assert_eq!(rig.deeds(), ["commit D@0 BootstrapMinority"]);
    rig.mark();
    rig.finds(2).finds(3).run(2000);
    assert_eq!(
        rig.deeds().last().map(String::as_str),
        Some("commit A@5 Majority"),
        "{:?}",
        rig.told()
    );
    assert!(rig.machine.named_masters().len() > 1, "the disagreement is shown");
    rig.run(60_000);
    assert!(
        rig.machine.committed().is_some_and(|it| it.published && it.addr == node('A')),
        "for good"
    );
}

#[test]
fn a_configured_stranger_is_told_and_has_no_vote() {
    let mut rig = Rig::booted();
    rig.sentinels.insert(9, stray('D', 99));
    rig.nodes.insert('D', master('D', "other", ""));
    rig.run(60_000);
    assert!(rig.told().is_empty(), "{:?}", rig.told());
    assert_eq!((rig.machine.quorum(), rig.notes(crate::Note::Stranger)), ((3, 2), 1));
    assert_eq!(rig.machine.named_masters().len(), 2);
    // A new sentinel that knows the others is none, although nobody lists it yet.
    rig.sentinels.insert(8, view('A', 5, &[1, 2, 3], &['B', 'C']));
    rig.run(1500);
    assert_eq!(rig.machine.quorum(), (4, 3));
}
