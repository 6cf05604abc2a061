//! Membership of the electorate.

use super::rig::{Rig, id, master, node, view};
use crate::machine::{MachineEvent, MachineState, Warning};
use crate::{MachineRules, Minority, ProbeFailure, View};

fn answers(rig: &mut Rig, sentinel: u8, view: &View) {
    rig.answers(sentinel, view.clone());
}

/// The same, repeated twice per second for `millis`.
fn repeats(rig: &mut Rig, sentinels: &[u8], view: &View, millis: u64) {
    for _ in 0..millis / 500 {
        for sentinel in sentinels {
            answers(rig, *sentinel, view);
        }
        rig.run(500);
    }
}

#[test]
fn counts_sentinel_with_many_names_once() {
    let mut rig = Rig::booted();
    rig.promotes('B').names(1, 'B', 6);
    let view = rig.sentinels[&1].clone();
    for _ in 0..10 {
        answers(&mut rig, 1, &view);
    }
    rig.run(2000);
    assert!(
        !rig.outcomes_untimed().iter().any(|it| it.starts_with("commit")),
        "{:?}",
        rig.outcomes()
    );
}

#[test]
fn excludes_any_number_of_strangers() {
    let mut rig = Rig::booted();
    rig.nodes.insert('D', master('D', "other", ""));
    repeats(&mut rig, &[11, 12, 13, 14, 15], &view('D', 99, &[11, 12, 13, 14, 15], &[]), 60_000);
    assert!(rig.outcomes().is_empty());
    assert_eq!(rig.machine.quorum(), (3, 2));
}

#[test]
fn excludes_cluster_listed_by_one_member() {
    let mut rig = Rig::booted();
    rig.nodes.insert('D', master('D', "other", ""));
    rig.change(1, |it| it.peers.extend([11, 12, 13, 14, 15].map(|peer| (id(peer), true))));
    repeats(&mut rig, &[11, 12, 13, 14, 15], &view('D', 99, &[11, 12, 13, 14, 15, 1], &[]), 60_000);
    assert_eq!(rig.machine.quorum(), (3, 2));
    assert!(rig.outcomes().is_empty(), "{:?}", rig.outcomes());
}

#[test]
fn admits_sentinel_listed_by_most_members() {
    let mut rig = Rig::booted();
    rig.change(1, |it| it.peers.push((id(4), true)))
        .change(2, |it| it.peers.push((id(4), true)))
        .run(1100);
    assert_eq!(rig.machine.quorum(), (4, 3));
}

#[test]
fn keeps_silent_member_while_listed() {
    let mut rig = Rig::booted();
    rig.disconnects(3).run(600_000);
    assert_eq!(rig.machine.quorum(), (3, 2));
    assert_eq!(rig.warnings(Warning::Minority), 0);
    assert!(rig.outcomes().is_empty());
}

#[test]
fn removes_replaced_pods_from_electorate() {
    let mut rig = Rig::booted();
    // Sentinel never forgets: six dead ones are listed until an operator runs SENTINEL RESET.
    let dead = [21, 22, 23, 24, 25, 26].map(|peer| (id(peer), false));
    for sentinel in 1..=3 {
        rig.change(sentinel, |it| it.peers.extend(dead.clone()));
    }
    rig.run(2000);
    assert_eq!(rig.machine.quorum(), (9, 5));
    for sentinel in 1..=3 {
        rig.change(sentinel, |it| it.peers.truncate(2));
    }
    rig.run(1100);
    assert_eq!(rig.machine.quorum(), (3, 2));
    rig.promotes('B').all_name('B', 6).run(2000);
    assert_eq!(rig.outcomes_untimed().last().map(String::as_str), Some("commit B@6 majority"));
}

#[test]
fn keeps_electorate_after_reset_of_last_sentinel() {
    let mut rig = Rig::booted();
    rig.disconnects(1).disconnects(2).change(3, |it| it.peers.clear()).run(25_000);
    assert_eq!(rig.machine.quorum(), (3, 2));
}

/// All sentinels come back with new identities and without their files, and name `addr` at `epoch`.
fn replace_all(rig: &mut Rig, addr: char, epoch: u64, replicas: &[char]) {
    rig.disconnects(1).disconnects(2).disconnects(3);
    for sentinel in [31, 32, 33] {
        let peers: Vec<u8> = (31..=33).filter(|peer| *peer != sentinel).collect();
        rig.sentinels.insert(sentinel, view(addr, epoch, &peers, replicas));
        rig.step(MachineEvent::Displaced { id: id(sentinel - 30) });
    }
}

#[test]
fn accepts_replacement_of_all_sentinels_at_once() {
    let mut rig = Rig::booted_with(MachineRules { minority: Minority::Hold, ..rules() });
    replace_all(&mut rig, 'A', 0, &['B', 'C']);
    rig.run(1100);
    assert_eq!(rig.machine.quorum(), (3, 2), "the former members are forgotten");
    rig.run(10_000);
    assert!(rig.outcomes().is_empty(), "{:?}", rig.outcomes());
    // A planned failover: the announcement of a new sentinel closes the gate.
    rig.mark();
    rig.selects(31, 'B').at(90).promotes('B').at(1000).names(31, 'B', 1).at(1100).all_name('B', 1);
    rig.run(1000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit B@1 majority"]);
}

#[test]
fn follows_replaced_sentinels_to_another_master() {
    let mut rig = Rig::booted();
    rig.promotes('B');
    replace_all(&mut rig, 'B', 1, &['A', 'C']);
    rig.run(12_000);
    assert_eq!(rig.machine.quorum(), (3, 2));
    assert_eq!(
        rig.outcomes_untimed().last().map(String::as_str),
        Some("commit B@1 epoch_regression")
    );
}

/// The pods of another cluster were given the addresses of two that have ended.
#[test]
fn stays_at_master_that_one_old_sentinel_stands_by() {
    let mut rig = Rig::booted();
    rig.nodes.insert('X', master('X', "other", ""));
    for (old, new, peer) in [(2, 32, 33), (3, 33, 32)] {
        rig.disconnects(old);
        rig.sentinels.insert(new, view('X', 7, &[peer], &['Y']));
        rig.step(MachineEvent::Displaced { id: id(old) });
    }
    rig.run(20_000);
    assert!(rig.outcomes().is_empty(), "{:?}", rig.outcomes());
    rig.ends(1);
    rig.fails('A', ProbeFailure::Unreachable).run(20_000);
    let last = rig.outcomes_untimed().pop();
    assert_eq!(last.as_deref(), Some("commit X@7 majority"), "nothing is left of the old one");
}

/// The names lead to the new pods of our cluster only after another one has been adopted, whose
/// pods were given the old addresses.
#[test]
fn returns_from_strangers_at_former_addresses() {
    let mut rig = Rig::booted();
    rig.nodes.insert('X', master('X', "other", ""));
    rig.fails('A', ProbeFailure::Unreachable);
    replace_all(&mut rig, 'X', 0, &['Y']);
    rig.run(20_000);
    assert_eq!(
        rig.outcomes_untimed().last().map(String::as_str),
        Some("commit X@0 epoch_regression")
    );
    rig.former.extend([31, 32, 33]);
    rig.promotes('B');
    for sentinel in [41, 42, 43] {
        let peers: Vec<u8> = (41..=43).filter(|peer| *peer != sentinel).collect();
        rig.sentinels.insert(sentinel, view('B', 6, &peers, &['A', 'C']));
    }
    rig.run(3000);
    assert_eq!(rig.machine.quorum(), (3, 2));
    assert_eq!(rig.outcomes_untimed().last().map(String::as_str), Some("commit B@6 majority"));
}

/// A pod that is not ready is not in its service, and its sentinel votes.
#[test]
fn counts_sentinels_at_former_addresses() {
    let mut rig = Rig::booted();
    rig.former.extend([2, 3]);
    rig.run(40_000);
    assert_eq!(rig.machine.quorum(), (3, 2));
    rig.change(1, |it| it.peers.clear()).run(40_000);
    assert_eq!(rig.machine.quorum(), (3, 2), "a RESET is no opinion");
    rig.change(1, |it| it.peers.push((id(9), true))).run(2000);
    assert!([2, 3].iter().all(|it| rig.machine.is_member(&id(*it))), "they know it");
    rig.change(1, |it| it.peers.clear()).run(2000);
    rig.promotes('B').all_name('B', 6).run(2000);
    assert_eq!(rig.outcomes_untimed().last().map(String::as_str), Some("commit B@6 majority"));
}

fn rules() -> MachineRules {
    MachineRules::default()
}

#[test]
fn follows_rolling_replacement_of_sentinels() {
    let mut rig = Rig::booted();
    // S1 is replaced by S4, then S2 by S5, each listed by the rest, as in a rolling update.
    for (old, new) in [(1_u8, 4_u8), (2, 5), (3, 6)] {
        rig.disconnects(old);
        let rest: Vec<u8> = rig.sentinels.keys().copied().collect();
        for sentinel in &rest {
            rig.change(*sentinel, |it| it.peers.push((id(new), true)));
        }
        rig.sentinels.insert(new, view('A', 5, &rest, &['B', 'C']));
        rig.run(10_000);
        let all: Vec<u8> = rig.sentinels.keys().copied().collect();
        for sentinel in &all {
            // RESET: only the running ones are known.
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

/// The views of ended sentinels are votes for five more seconds, and list no successor.
#[test]
fn admits_learned_successors_within_a_second() {
    let mut rig = Rig::booted();
    let mut living = vec![1, 2, 3];
    for (old, new) in [(1, 11), (2, 12), (3, 13)] {
        rig.ends(old);
        living.retain(|it| *it != old);
        let peers = [living.as_slice(), &[old]].concat();
        for sentinel in living.iter().filter(|it| **it < 10) {
            rig.change(*sentinel, |it| it.peers.push((id(new), true)));
        }
        let learned: Vec<u8> = living.iter().copied().filter(|it| *it > 10).collect();
        living.push(new);
        for _ in 0..2 {
            for sentinel in &learned {
                let listed: Vec<u8> = living.iter().copied().filter(|it| it != sentinel).collect();
                rig.answers(*sentinel, view('A', 5, &listed, &['B', 'C']));
            }
            rig.answers(new, view('A', 5, &peers, &['B', 'C']));
            rig.run(500);
        }
        assert!(rig.machine.is_member(&id(new)), "{new} has no vote");
    }
}

#[test]
fn ignores_stranger_answering_first_after_silence() {
    let mut rig = Rig::booted();
    rig.disconnects(1).disconnects(2).disconnects(3).run(600_000);
    rig.nodes.insert('D', master('D', "other", ""));
    repeats(&mut rig, &[9], &view('D', 99, &[], &[]), 10_000);
    assert_eq!(rig.machine.quorum(), (3, 2));
    rig.reconnects(1).run(1500);
    repeats(&mut rig, &[9], &view('D', 99, &[], &[]), 60_000);
    assert_eq!(rig.machine.quorum(), (3, 2));
    assert!(rig.outcomes().is_empty());
}

#[test]
fn ignores_empty_sentinel_among_three() {
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
fn ignores_flags_but_not_votes_in_tilt() {
    let mut rig = Rig::booted();
    rig.change(1, |it| (it.tilt, it.down, it.failing_over) = (true, true, true)).run(3000);
    assert_eq!(*rig.machine.state(), MachineState::Stable);
    rig.disconnects(3).promotes('B').names(1, 'B', 6).names(2, 'B', 6).run(2000);
    assert_eq!(rig.outcomes_untimed().last().map(String::as_str), Some("commit B@6 majority"));
}

#[test]
fn bounds_sentinels_and_nodes() {
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
        answers(&mut rig, *sentinel, &view('A', 5, &crowd, &[]));
    }
    assert!(rig.machine.quorum().0 <= 64);
    assert!(rig.machine.views().count() <= 64);
    assert!(rig.machine.nodes().count() <= 66);
    assert!(rig.machine.nodes.family.len() <= 64);
    assert!(rig.outcomes().is_empty());
}

#[test]
fn rejects_single_stranger_as_successor() {
    let mut rig = Rig::booted();
    // The only reachable sentinel has lost its file and names an empty node, for any length of
    // time.
    rig.disconnects(1).disconnects(2).disconnects(3);
    rig.nodes.insert('D', master('D', "empty", ""));
    rig.sentinels.insert(9, view('D', 0, &[], &[]));
    rig.run(600_000);
    assert!(rig.outcomes().is_empty(), "{:?}", rig.outcomes());
    assert_eq!(rig.machine.quorum(), (3, 2));
}

/// Two of three sentinels answer that they do not know the name, and the third was RESET: it lists
/// nobody, since the others say hello no more. Then it is made to monitor an empty master.
fn forget_name(rig: &mut Rig) {
    rig.disconnects(1).disconnects(2).change(3, |it| it.peers.clear());
    for _ in 0..120 {
        rig.run(1000);
        rig.forgets_name(1).forgets_name(2);
    }
}

#[test]
fn keeps_members_that_forgot_the_name() {
    let mut rig = Rig::booted();
    forget_name(&mut rig);
    rig.nodes.insert('D', master('D', "empty", ""));
    rig.sentinels.insert(3, view('D', 1, &[], &[]));
    for _ in 0..60 {
        rig.run(1000);
        rig.forgets_name(1).forgets_name(2);
    }
    assert!(rig.outcomes().is_empty(), "{:?}", rig.outcomes());
    // Without any answer, as when they are stopped for good, they are removed as before.
    rig.run(60_000);
    assert_eq!(rig.machine.quorum(), (1, 1));
}

/// Sentinels that forget the name are treated as those that cannot be reached.
#[test]
fn treats_forgotten_name_as_a_minority() {
    let rules = |minority| MachineRules { minority, ..MachineRules::default() };
    for (policy, expected) in [
        (Minority::Keep, &[][..]),
        (Minority::Hold, &["hold"]),
        (Minority::Cut, &["clear Minority"]),
    ] {
        let mut rig = Rig::booted_with(rules(policy));
        rig.disconnects(1).disconnects(2);
        for _ in 0..60 {
            rig.run(1000);
            rig.forgets_name(1).forgets_name(2);
        }
        let outcomes = rig.outcomes_untimed();
        assert_eq!(outcomes, expected, "{policy:?}");
        rig.reconnects(1).reconnects(2).run(15_000);
        assert!(rig.machine.committed().is_some_and(|it| it.published), "{policy:?}");
        assert!(!rig.machine.is_holding(), "{policy:?}");
    }
}
