//! Other sentinels are configured while a master serves.

use super::rig::{Answer, Letter, Rig, id, master, view};
use crate::machine::{MachineAction, MachineEvent, Warning};
use crate::{MachineRules, Minority, Notice};

/// Replaces the sentinels 1 to 3 by 11 to 13, which name `addr` at `epoch`.
fn replace(rig: &mut Rig, addr: Letter, epoch: u64, reachable: &[u8]) {
    rig.sentinels.clear();
    for sentinel in reachable {
        let peers: Vec<u8> = (11..=13).filter(|peer| peer != sentinel).collect();
        let replicas: &[Letter] = if addr == 'A' { &['B', 'C'] } else { &[] };
        rig.sentinels.insert(*sentinel, view(addr, epoch, &peers, replicas));
    }
    rig.step(MachineEvent::SentinelsReplaced(3));
}

/// A rig with an unrelated master D.
fn with_other_master(rules: MachineRules) -> Rig {
    let mut rig = Rig::booted_with(rules);
    let other: Answer = master('D', "history-9", "");
    rig.nodes.insert('D', other);
    rig
}

fn new_lineages(rig: &Rig) -> Vec<bool> {
    rig.log
        .iter()
        .filter_map(|(_, action)| match action {
            MachineAction::Commit(commit) => Some(commit.new_lineage),
            _ => None,
        })
        .collect()
}

#[test]
fn keeps_master_that_replacing_sentinels_confirm() {
    for epoch in [0, 5, 9] {
        let mut rig = Rig::booted();
        replace(&mut rig, 'A', epoch, &[11, 12, 13]);
        rig.run(30_000);
        assert!(rig.outcomes().is_empty(), "epoch {epoch}: {:?}", rig.outcomes());
        assert_eq!(rig.machine.quorum(), (3, 2), "the former members have no vote");
        assert!(rig.machine.committed().is_some_and(|it| it.epoch == epoch));
        // A later failover is an ordinary one.
        rig.mark();
        rig.promotes('B').all_name('B', epoch + 1).run(5000);
        assert_eq!(
            rig.outcomes_untimed().last().map(String::as_str),
            Some(&*format!("commit B@{} majority", epoch + 1))
        );
        assert_eq!(new_lineages(&rig), [false]);
    }
}

#[test]
fn switches_to_other_data_by_a_majority_only() {
    let mut rig = with_other_master(MachineRules::default());
    replace(&mut rig, 'D', 9, &[11]);
    rig.run(60_000);
    assert!(rig.outcomes().is_empty(), "one of three decides nothing: {:?}", rig.outcomes());
    for sentinel in [12, 13] {
        let peers: Vec<u8> = (11..=13).filter(|peer| *peer != sentinel).collect();
        rig.sentinels.insert(sentinel, view('D', 9, &peers, &[]));
    }
    rig.run(5000);
    assert_eq!(rig.outcomes_untimed().last().map(String::as_str), Some("commit D@9 majority"));
    assert_eq!((new_lineages(&rig), rig.warnings(Warning::LineageBroken)), (vec![true], 1));
}

#[test]
fn ignores_sentinel_without_peers_after_replacement() {
    let mut rig = with_other_master(MachineRules::default());
    rig.sentinels.clear();
    // It lost its file, and its master was set by a script.
    rig.sentinels.insert(11, view('D', 9, &[], &[]));
    rig.step(MachineEvent::SentinelsReplaced(3));
    rig.run(60_000);
    assert!(rig.outcomes().is_empty(), "{:?}", rig.outcomes());
}

#[test]
fn waits_for_insistence_on_other_data_at_older_epoch() {
    let mut rig = with_other_master(MachineRules::default());
    replace(&mut rig, 'D', 0, &[11, 12, 13]);
    rig.run(9000);
    assert!(rig.outcomes().is_empty(), "{:?}", rig.outcomes());
    rig.run(5000);
    assert_eq!(new_lineages(&rig), [true]);
}

#[test]
fn carries_along_a_failover_seen_by_replacing_sentinels() {
    let mut rig = Rig::booted();
    // The new sentinels are reachable only after a failover of the same data.
    replace(&mut rig, 'A', 5, &[]);
    rig.run(5000);
    rig.promotes('B');
    for sentinel in 11..=13 {
        let peers: Vec<u8> = (11..=13).filter(|peer| *peer != sentinel).collect();
        rig.sentinels.insert(sentinel, view('B', 6, &peers, &['A', 'C']));
    }
    rig.run(5000);
    assert_eq!(rig.outcomes_untimed().last().map(String::as_str), Some("commit B@6 majority"));
    assert_eq!(new_lineages(&rig), [false]);
}

#[test]
fn applies_minority_policy_to_unreachable_new_sentinels() {
    let mut rig = Rig::booted();
    replace(&mut rig, 'A', 5, &[]);
    rig.run(600_000);
    assert!(rig.outcomes().is_empty(), "{:?}", rig.outcomes());
    let rules = MachineRules { minority: Minority::Hold, ..MachineRules::default() };
    let mut rig = Rig::booted_with(rules);
    replace(&mut rig, 'A', 5, &[]);
    rig.run(600_000);
    assert_eq!(
        (rig.outcomes_untimed(), rig.warnings(Warning::Minority)),
        (vec!["hold".to_owned()], 1)
    );
    for sentinel in 11..=13 {
        let peers: Vec<u8> = (11..=13).filter(|peer| *peer != sentinel).collect();
        rig.sentinels.insert(sentinel, view('A', 5, &peers, &['B', 'C']));
    }
    rig.run(5000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "release"]);
}

#[test]
fn forgets_announcements_of_former_sentinels() {
    let mut rig = Rig::booted();
    rig.selects(1, 'B').run(100);
    assert_eq!(rig.outcomes_untimed(), ["hold"]);
    replace(&mut rig, 'A', 5, &[11, 12, 13]);
    rig.run(10_000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "release"]);
    assert!(!rig.machine.members().any(|(member, ..)| *member == id(1)));
}

/// A failover has begun when all sentinels are replaced. The new ones never announce its promotion.
#[test]
fn holds_for_a_failover_that_former_sentinels_began() {
    let mut rig = Rig::booted();
    rig.change(1, |it| it.failing_over = true).publishes(1, Notice::Changed).run(2000);
    assert!(rig.outcomes().is_empty(), "{:?}", rig.outcomes());
    replace(&mut rig, 'A', 5, &[11, 12, 13]);
    assert_eq!(rig.outcomes_untimed(), ["hold"]);
    rig.run(500);
    rig.promotes('B').run(500);
    for sentinel in 11..=13 {
        rig.names(sentinel, 'B', 6);
    }
    rig.run(2000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit B@6 majority"], "{:?}", rig.outcomes());
    // It leads to nothing.
    let mut rig = Rig::booted();
    rig.change(1, |it| it.failing_over = true).run(2000);
    replace(&mut rig, 'A', 5, &[11, 12, 13]);
    rig.run(15_000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "release"], "{:?}", rig.outcomes());
}
