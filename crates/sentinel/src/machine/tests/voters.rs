//! Who may vote.

use super::rig::{Rig, id, master, node, view};
use crate::View;
use crate::machine::{MachineState, Warning};

fn speaks(rig: &mut Rig, sentinel: u8, view: &View) {
    rig.hears(sentinel, view.clone());
}

/// The same, for as long as `millis`, twice a second.
fn keeps_saying(rig: &mut Rig, sentinels: &[u8], view: &View, millis: u64) {
    for _ in 0..millis / 500 {
        for sentinel in sentinels {
            speaks(rig, *sentinel, view);
        }
        rig.run(500);
    }
}

#[test]
fn a_sentinel_reached_under_many_names_has_one_vote() {
    let mut rig = Rig::booted();
    rig.promotes('B').names(1, 'B', 6);
    let word = rig.sentinels[&1].clone();
    for _ in 0..10 {
        speaks(&mut rig, 1, &word);
    }
    rig.run(2000);
    assert!(
        !rig.outcomes_untimed().iter().any(|it| it.starts_with("commit")),
        "{:?}",
        rig.outcomes()
    );
}

#[test]
fn strangers_do_not_vote_however_many_they_are() {
    let mut rig = Rig::booted();
    rig.nodes.insert('D', master('D', "other", ""));
    keeps_saying(
        &mut rig,
        &[11, 12, 13, 14, 15],
        &view('D', 99, &[11, 12, 13, 14, 15], &[]),
        60_000,
    );
    assert!(rig.outcomes().is_empty());
    assert_eq!(rig.machine.quorum(), (3, 2));
}

#[test]
fn a_merging_cluster_that_one_member_lists_does_not_get_in() {
    let mut rig = Rig::booted();
    rig.nodes.insert('D', master('D', "other", ""));
    rig.change(1, |it| it.peers.extend([11, 12, 13, 14, 15].map(|peer| (id(peer), true))));
    keeps_saying(
        &mut rig,
        &[11, 12, 13, 14, 15],
        &view('D', 99, &[11, 12, 13, 14, 15, 1], &[]),
        60_000,
    );
    assert_eq!(rig.machine.quorum(), (3, 2));
    assert!(rig.outcomes().is_empty(), "{:?}", rig.outcomes());
}

#[test]
fn a_new_sentinel_that_most_members_list_votes() {
    let mut rig = Rig::booted();
    rig.change(1, |it| it.peers.push((id(4), true)))
        .change(2, |it| it.peers.push((id(4), true)))
        .run(1100);
    assert_eq!(rig.machine.quorum(), (4, 3));
}

#[test]
fn a_member_that_fell_silent_stays_while_it_is_listed() {
    let mut rig = Rig::booted();
    rig.loses(3).run(600_000);
    assert_eq!(rig.machine.quorum(), (3, 2));
    assert_eq!(rig.warnings(Warning::Minority), 0);
    assert!(rig.outcomes().is_empty());
}

#[test]
fn pods_that_were_replaced_do_not_keep_the_living_from_being_a_majority() {
    let mut rig = Rig::booted();
    // Sentinel never forgets: six dead ones are listed, until somebody says SENTINEL RESET.
    let dead = [21, 22, 23, 24, 25, 26].map(|peer| (id(peer), false));
    for sentinel in 1..=3 {
        rig.change(sentinel, |it| it.peers.extend(dead.clone()));
    }
    rig.run(2000);
    assert_eq!(rig.machine.quorum(), (9, 5));
    for sentinel in 1..=3 {
        rig.change(sentinel, |it| it.peers.truncate(2));
    }
    rig.run(20_000);
    assert_eq!(rig.machine.quorum(), (9, 5), "not at once");
    rig.run(20_000);
    assert_eq!(rig.machine.quorum(), (3, 2));
    rig.promotes('B').all_name('B', 6).run(2000);
    assert_eq!(rig.outcomes_untimed().last().map(String::as_str), Some("commit B@6 majority"));
}

#[test]
fn a_lonely_sentinel_after_a_reset_does_not_inherit_the_electorate_at_once() {
    let mut rig = Rig::booted();
    rig.loses(1).loses(2).change(3, |it| it.peers.clear()).run(25_000);
    assert_eq!(rig.machine.quorum(), (3, 2));
}

#[test]
fn all_sentinels_replaced() {
    let mut rig = Rig::booted();
    rig.loses(1).loses(2).loses(3);
    let new = view('B', 1, &[31, 32, 33], &['A', 'C']);
    rig.promotes('B');
    keeps_saying(&mut rig, &[31, 32, 33], &new, 20_000);
    assert!(
        !rig.outcomes_untimed().iter().any(|it| it.starts_with("commit")),
        "not at once: {:?}",
        rig.outcomes()
    );
    keeps_saying(&mut rig, &[31, 32, 33], &new, 40_000);
    assert_eq!(rig.machine.quorum(), (3, 2));
    assert_eq!(
        rig.outcomes_untimed().last().map(String::as_str),
        Some("commit B@1 epoch_regression")
    );
}

#[test]
fn replaced_one_after_another() {
    let mut rig = Rig::booted();
    // S1 is replaced by S4, then S2 by S5, each listed by the rest, as a rolling update does.
    for (old, new) in [(1_u8, 4_u8), (2, 5), (3, 6)] {
        rig.loses(old);
        let rest: Vec<u8> = rig.sentinels.keys().copied().collect();
        for sentinel in &rest {
            rig.change(*sentinel, |it| it.peers.push((id(new), true)));
        }
        rig.sentinels.insert(new, view('A', 5, &rest, &['B', 'C']));
        rig.run(10_000);
        let all: Vec<u8> = rig.sentinels.keys().copied().collect();
        for sentinel in &all {
            // RESET: only the living are known.
            let peers =
                all.iter().filter(|peer| *peer != sentinel).map(|peer| (id(*peer), true)).collect();
            rig.change(*sentinel, |it| it.peers = peers);
        }
        rig.run(40_000);
        assert_eq!(rig.machine.quorum(), (3, 2));
    }
    assert!(rig.outcomes().is_empty());
    rig.promotes('B').all_name('B', 6).run(2000);
    assert_eq!(rig.outcomes_untimed().last().map(String::as_str), Some("commit B@6 majority"));
}

#[test]
fn whoever_speaks_first_after_a_long_silence_gains_nothing() {
    let mut rig = Rig::booted();
    rig.loses(1).loses(2).loses(3).run(600_000);
    rig.nodes.insert('D', master('D', "other", ""));
    keeps_saying(&mut rig, &[9], &view('D', 99, &[], &[]), 10_000);
    assert_eq!(rig.machine.quorum(), (3, 2));
    rig.finds(1).run(1500);
    keeps_saying(&mut rig, &[9], &view('D', 99, &[], &[]), 60_000);
    assert_eq!(rig.machine.quorum(), (3, 2));
    assert!(rig.outcomes().is_empty());
}

#[test]
fn an_empty_sentinel_among_three_has_no_vote_and_does_not_contradict() {
    let mut rig = Rig::booted();
    rig.change(3, |it| {
        (it.addr, it.epoch, it.run_id) = (node('X'), 0, "".into());
        it.peers.clear();
    });
    rig.run(10_000);
    assert!(rig.outcomes().is_empty());
    rig.promotes('B').names(1, 'B', 6).names(2, 'B', 6).run(2000);
    assert_eq!(rig.outcomes_untimed().last().map(String::as_str), Some("commit B@6 majority"));
}

#[test]
fn in_tilt_its_address_and_epoch_count_and_its_flags_do_not() {
    let mut rig = Rig::booted();
    rig.change(1, |it| (it.tilt, it.down, it.failing_over) = (true, true, true)).run(3000);
    assert_eq!(*rig.machine.state(), MachineState::Stable);
    rig.loses(3).promotes('B').names(1, 'B', 6).names(2, 'B', 6).run(2000);
    assert_eq!(rig.outcomes_untimed().last().map(String::as_str), Some("commit B@6 majority"));
}

#[test]
fn a_flood_of_names_stays_within_bounds() {
    let mut rig = Rig::booted();
    let crowd: Vec<u8> = (4..=255).collect();
    for sentinel in 1..=3 {
        rig.change(sentinel, |it| it.peers = crowd.iter().map(|peer| (id(*peer), true)).collect());
        rig.change(sentinel, |it| {
            it.replicas = (0..5000_u32)
                .map(|pod| crate::ReplicaView {
                    addr: node(char::from_u32(0x400 + pod).expect("a letter")),
                    healthy: true,
                })
                .collect();
        });
    }
    rig.run(3000);
    for sentinel in &crowd {
        speaks(&mut rig, *sentinel, &view('A', 5, &crowd, &[]));
    }
    assert!(rig.machine.quorum().0 <= 64);
    assert!(rig.machine.views().count() <= 64);
    assert!(rig.machine.nodes().count() <= 66);
    assert!(rig.machine.family.len() <= 64);
    assert!(rig.outcomes().is_empty());
}

#[test]
fn one_stranger_is_no_successor_of_three() {
    let mut rig = Rig::booted();
    // The only sentinel in reach has lost its file and names an empty node, for as long as it
    // takes.
    rig.loses(1).loses(2).loses(3);
    rig.nodes.insert('D', master('D', "empty", ""));
    rig.sentinels.insert(9, view('D', 0, &[], &[]));
    rig.run(600_000);
    assert!(rig.outcomes().is_empty(), "{:?}", rig.outcomes());
    assert_eq!(rig.machine.quorum(), (3, 2));
}
