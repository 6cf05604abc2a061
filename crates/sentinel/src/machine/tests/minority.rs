//! Sentinels that are cut off from their peers, and know it.

use super::rig::{Rig, id};
use crate::machine::{MachineState, Warning};
use crate::{MachineRules, Minority, View};

fn with(minority: Minority) -> Rig {
    Rig::booted_with(MachineRules { minority, ..MachineRules::default() })
}

fn alone(view: &mut View) {
    view.peers.iter_mut().for_each(|(_, up)| *up = false);
}

fn together(view: &mut View) {
    view.peers.iter_mut().for_each(|(_, up)| *up = true);
}

/// Only the third sentinel can be heard, and it hears nobody.
fn isolate(rig: &mut Rig) {
    rig.loses(1).loses(2).change(3, alone);
    rig.run(8000);
}

fn heal(rig: &mut Rig) {
    rig.finds(1).finds(2).change(3, together);
}

#[test]
fn keep() {
    let mut rig = with(Minority::Keep);
    isolate(&mut rig);
    assert!(rig.outcomes().is_empty());
    assert_eq!(rig.warnings(Warning::Minority), 1);
}

#[test]
fn hold_until_a_majority_is_heard_again() {
    let mut rig = with(Minority::Hold);
    isolate(&mut rig);
    assert_eq!(rig.outcomes_untimed(), ["hold"]);
    // Now the last one falls silent too: that is no majority.
    rig.loses(3).run(60_000);
    assert_eq!(rig.outcomes_untimed(), ["hold"]);
    rig.finds(3).change(3, |it| it.tilt = true).run(60_000);
    assert_eq!(rig.outcomes_untimed(), ["hold"], "in TILT it does not know");
    rig.change(3, |it| it.tilt = false).change(3, together).run(60_000);
    assert_eq!(
        rig.outcomes_untimed(),
        ["hold"],
        "its word alone is no majority, whatever it says of its peers"
    );
    heal(&mut rig);
    rig.run(2000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "release"]);
}

#[test]
fn a_failover_ends_a_policy_hold_once_the_majority_is_back() {
    let mut rig = with(Minority::Hold);
    isolate(&mut rig);
    rig.promotes('B').finds(1).finds(2).names(1, 'B', 6).names(2, 'B', 6);
    rig.run(3000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit B@6 majority"]);
    assert!(!rig.machine.is_holding());
}

#[test]
fn cut_and_back() {
    let mut rig = with(Minority::Cut);
    isolate(&mut rig);
    assert_eq!(rig.outcomes_untimed(), ["clear Minority"]);
    rig.run(60_000);
    assert_eq!(
        rig.outcomes_untimed(),
        ["clear Minority"],
        "the isolated one still names it, and it still verifies"
    );
    rig.change(3, together).finds(1).finds(2).run(3000);
    assert_eq!(rig.outcomes_untimed(), ["clear Minority", "commit A@5 reconfirmed"]);
}

#[test]
fn cut_does_not_flap_when_a_majority_is_heard_but_nobody_hears_anybody() {
    let mut rig = with(Minority::Cut);
    rig.loses(1).change(2, alone).change(3, alone).run(60_000);
    assert_eq!(rig.outcomes_untimed(), ["clear Minority"]);
    // Nor does a newer claim get through while that is so.
    rig.promotes('B').names(2, 'B', 6).names(3, 'B', 6).run(20_000);
    assert_eq!(rig.outcomes_untimed(), ["clear Minority"]);
    rig.change(2, together).run(3000);
    assert_eq!(rig.outcomes_untimed(), ["clear Minority", "commit B@6 majority"]);
}

#[test]
fn does_not_leave_minority_on_one_word() {
    // The partition heals, and the sentinel that was alone is heard first: it sees its peers again,
    // and has not heard their hello.
    for minority in [Minority::Hold, Minority::Cut] {
        let mut rig = with(minority);
        isolate(&mut rig);
        let before = rig.outcomes_untimed().len();
        rig.change(3, together).run(700);
        assert_eq!(rig.outcomes_untimed().len(), before, "{minority:?}: {:?}", rig.outcomes());
        // One of the other side is heard: a claim at a higher epoch, without a majority yet.
        rig.promotes('B').finds(1).names(1, 'B', 6).run(100);
        assert!(
            !rig.outcomes_untimed().iter().any(|it| it.starts_with("release")),
            "{minority:?}: {:?}",
            rig.outcomes()
        );
        rig.finds(2).names(2, 'B', 6).run(2000);
        assert_eq!(
            rig.outcomes_untimed().last().map(String::as_str),
            Some("commit B@6 majority"),
            "{minority:?}"
        );
        assert!(!rig.machine.is_holding() && !rig.machine.is_minority());
    }
}

#[test]
fn one_fresh_voter_of_three_is_a_minority_unless_kept() {
    for (minority, outcomes_untimed) in [
        (Minority::Keep, vec![]),
        (Minority::Hold, vec!["hold"]),
        (Minority::Cut, vec!["clear Minority"]),
    ] {
        let mut rig = with(minority);
        rig.loses(1).loses(2).change(3, |view| view.peers[0].1 = false).run(60_000);
        assert_eq!(rig.outcomes_untimed(), outcomes_untimed, "{minority:?}");
    }
}

#[test]
fn two_of_three_is_no_minority() {
    for minority in [Minority::Hold, Minority::Cut] {
        let mut rig = with(minority);
        rig.loses(1)
            .change(2, |view| view.peers[0].1 = false)
            .change(3, |view| view.peers[0].1 = false);
        rig.run(60_000);
        assert!(rig.outcomes().is_empty(), "{minority:?}: {:?}", rig.outcomes());
    }
}

#[test]
fn silence_is_a_minority_after_its_time_unless_kept() {
    for (minority, deed) in [(Minority::Hold, "hold"), (Minority::Cut, "clear Minority")] {
        let mut rig = with(minority);
        rig.loses(1).loses(2).loses(3).run(2000);
        assert!(
            rig.outcomes().is_empty(),
            "{minority:?}: a poll or two may be lost: {:?}",
            rig.outcomes()
        );
        rig.run(60_000);
        assert_eq!(rig.outcomes_untimed(), [deed]);
        let at: u64 =
            rig.outcomes()[0].split(' ').next().and_then(|it| it.parse().ok()).expect("a time");
        assert!(
            (2000..=3001).contains(&at),
            "three seconds after the last majority: {:?}",
            rig.outcomes()
        );
        rig.finds(1).finds(2).finds(3).run(2000);
        let back = if minority == Minority::Hold { "release" } else { "commit A@5 reconfirmed" };
        assert_eq!(rig.outcomes_untimed(), [deed, back]);
    }
    let mut rig = with(Minority::Keep);
    rig.loses(1).loses(2).loses(3).run(60_000);
    assert!(rig.outcomes().is_empty());
    assert_eq!(*rig.machine.state(), MachineState::Stable);
}

#[test]
fn seldom_polls_are_no_silence() {
    let poll = std::time::Duration::from_secs(4);
    let mut rig =
        Rig::with(MachineRules { minority: Minority::Hold, poll, ..MachineRules::default() }, 3);
    rig.run(60_000);
    assert_eq!(rig.outcomes_untimed(), ["commit A@5 majority"]);
}

#[test]
fn solo_commit_in_minority_keeps_gate_shut() {
    let mut rig = with(Minority::Hold);
    rig.loses(1).loses(2).run(8000);
    assert_eq!(rig.outcomes_untimed(), ["hold"]);
    rig.promotes('B').names(3, 'B', 6).run(3000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit B@6 single_sentinel"]);
    assert!(rig.machine.is_holding(), "a third failover may be under way where nobody is heard");
    rig.finds(1).names(1, 'B', 6).run(1000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit B@6 single_sentinel", "release"]);
}

#[test]
fn first_minority_master_is_held_or_not_published() {
    for (minority, outcomes_untimed) in
        [(Minority::Hold, vec!["commit A@5 bootstrap_minority"]), (Minority::Cut, vec![])]
    {
        let mut rig = Rig::with(MachineRules { minority, ..MachineRules::default() }, 3);
        rig.loses(2).loses(3).run(20_000);
        assert_eq!(rig.outcomes_untimed(), outcomes_untimed, "{minority:?}");
        assert_eq!(rig.machine.is_holding(), minority == Minority::Hold);
        rig.finds(2).run(2000);
        let open =
            rig.machine.committed().is_some_and(|it| it.published) && !rig.machine.is_holding();
        assert!(open, "{minority:?}: {:?}", rig.outcomes());
    }
}

#[test]
fn ghosts_are_no_minority() {
    // After a rolling restart with new identities, two ghosts are listed by the oldest of the new
    // ones, one by the next.
    let mut rig = with(Minority::Hold);
    let ghosts = [(id(21), false), (id(22), false)];
    rig.change(1, |it| it.peers.extend(ghosts.clone()))
        .change(2, |it| it.peers.push(ghosts[1].clone()));
    rig.run(3000);
    // Then one of the three is lost as well.
    rig.loses(1);
    for sentinel in [2, 3] {
        rig.change(sentinel, |it| {
            it.peers.iter_mut().filter(|(peer, _)| *peer == id(1)).for_each(|(_, up)| *up = false);
        });
    }
    rig.run(60_000);
    assert_eq!(rig.warnings(Warning::Minority), 0, "{:?}", rig.machine.quorum());
    assert!(rig.outcomes().is_empty(), "{:?}", rig.outcomes());
}
