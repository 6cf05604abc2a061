//! Sentinels that are cut off from their peers, and know it.

use super::rig::Rig;
use crate::machine::{Note, State};
use crate::{Minority, Rules, View};

fn with(minority: Minority) -> Rig {
    Rig::booted_with(Rules { minority, ..Rules::default() })
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

#[test]
fn keep() {
    let mut rig = with(Minority::Keep);
    isolate(&mut rig);
    assert!(rig.told().is_empty());
    assert_eq!(rig.notes(Note::Minority), 1);
}

#[test]
fn hold_until_a_majority_is_heard_again() {
    let mut rig = with(Minority::Hold);
    isolate(&mut rig);
    assert_eq!(rig.deeds(), ["hold"]);
    // Now the last one falls silent too: that is no majority.
    rig.loses(3).run(60_000);
    assert_eq!(rig.deeds(), ["hold"]);
    rig.finds(3).change(3, |it| it.tilt = true).run(60_000);
    assert_eq!(rig.deeds(), ["hold"], "in TILT it does not know");
    rig.change(3, |it| it.tilt = false).change(3, together).run(2000);
    assert_eq!(rig.deeds(), ["hold", "release"]);
}

#[test]
fn a_failover_ends_a_policy_hold_once_the_majority_is_back() {
    let mut rig = with(Minority::Hold);
    isolate(&mut rig);
    rig.promotes('B').finds(1).finds(2).names(1, 'B', 6).names(2, 'B', 6);
    rig.run(3000);
    assert_eq!(rig.deeds(), ["hold", "commit B@6 Majority"]);
    assert!(!rig.machine.is_holding());
}

#[test]
fn cut_and_back() {
    let mut rig = with(Minority::Cut);
    isolate(&mut rig);
    assert_eq!(rig.deeds(), ["clear Minority"]);
    rig.run(60_000);
    assert_eq!(rig.deeds(), ["clear Minority"], "the isolated one still names it, and it still verifies");
    rig.change(3, together).finds(1).finds(2).run(3000);
    assert_eq!(rig.deeds(), ["clear Minority", "commit A@5 Again"]);
}

#[test]
fn cut_does_not_flap_when_a_majority_is_heard_but_nobody_hears_anybody() {
    let mut rig = with(Minority::Cut);
    rig.loses(1).change(2, alone).change(3, alone).run(60_000);
    assert_eq!(rig.deeds(), ["clear Minority"]);
    // Nor does a newer claim get through while that is so.
    rig.promotes('B').names(2, 'B', 6).names(3, 'B', 6).run(20_000);
    assert_eq!(rig.deeds(), ["clear Minority"]);
    rig.change(2, together).run(3000);
    assert_eq!(rig.deeds(), ["clear Minority", "commit B@6 Majority"]);
}

#[test]
fn cut_ends_where_the_one_that_can_be_heard_belongs_to_the_majority() {
    let mut rig = with(Minority::Cut);
    isolate(&mut rig);
    rig.change(3, together).run(3000);
    assert_eq!(rig.deeds(), ["clear Minority", "commit A@5 Again"]);
}

#[test]
fn two_of_three_is_no_minority() {
    for minority in [Minority::Hold, Minority::Cut] {
        let mut rig = with(minority);
        rig.loses(1).loses(2).change(3, |view| view.peers[0].1 = false).run(60_000);
        assert!(rig.told().is_empty());
    }
}

#[test]
fn silence_is_no_minority() {
    for minority in [Minority::Hold, Minority::Cut] {
        let mut rig = with(minority);
        rig.loses(1).loses(2).loses(3).run(60_000);
        assert!(rig.told().is_empty());
        assert_eq!(*rig.machine.state(), State::Stable);
    }
}
