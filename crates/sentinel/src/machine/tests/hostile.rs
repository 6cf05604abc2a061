//! Hostile sentinels: learned ones in any number, and a minority of the configured ones.

use std::collections::BTreeSet;

use super::rig::{Answer, Rig, id, master, node, view};
use crate::machine::{Admission, MachineEvent, MachineState, Trust};
use crate::{MachineRules, Minority, MyId, Notice, View};

/// The attacker's sentinels.
const HOSTILE: [u8; 6] = [71, 72, 73, 74, 75, 76];

fn claim(epoch: u64) -> View {
    view('X', epoch, &HOSTILE, &['X'])
}

/// The configured sentinels list the attacker's, which name X.
fn attacked(mut rig: Rig) -> Rig {
    rig.nodes.insert('X', master('X', "forged", ""));
    for sentinel in rig.sentinels.keys().copied().collect::<Vec<_>>() {
        rig.change(sentinel, |it| it.peers.extend(HOSTILE.map(|peer| (id(peer), true))));
    }
    rig.run(1100);
    rig
}

/// Each hostile sentinel answers twice per second for `millis`.
fn insist(rig: &mut Rig, claim: &View, millis: u64) {
    for _ in 0..millis / 500 {
        for sentinel in HOSTILE {
            rig.answers(sentinel, claim.clone());
        }
        rig.run(500);
    }
}

/// A rig with one configured sentinel; 4 and 5 are learned from it.
fn one_configured() -> Rig {
    let mut rig = Rig::with(MachineRules::default(), 1);
    rig.disconnects(2).disconnects(3).change(1, |it| it.peers = peers(&[4, 5]));
    for _ in 0..8 {
        for sentinel in [4, 5] {
            rig.answers(sentinel, view('A', 5, &[1, 9 - sentinel], &['B', 'C']));
        }
        rig.run(500);
    }
    assert_eq!(rig.outcomes_untimed(), ["commit A@5 majority"]);
    assert_eq!(rig.machine.quorum(), (3, 2));
    rig.mark();
    rig
}

fn peers(ids: &[u8]) -> Vec<(MyId, bool)> {
    ids.iter().map(|peer| (id(*peer), true)).collect()
}

fn probes_none(rig: &Rig) {
    assert_eq!(rig.probes('X'), 0, "a password would reach the attacker");
}

#[test]
fn never_outvotes_configured_sentinels() {
    for epoch in [5, 6, 99] {
        for rig in [Rig::booted(), one_configured()] {
            let mut rig = attacked(rig);
            insist(&mut rig, &claim(epoch), 30_000);
            assert!(rig.outcomes().is_empty(), "epoch {epoch}: {:?}", rig.outcomes());
            assert!(rig.machine.quorum().0 >= 9, "they were admitted");
            probes_none(&rig);
        }
    }
}

#[test]
fn follows_failover_despite_hostile_sentinels() {
    let mut rig = attacked(Rig::booted());
    insist(&mut rig, &claim(99), 2000);
    rig.promotes('B').all_name('B', 6);
    insist(&mut rig, &claim(99), 2000);
    assert_eq!(rig.outcomes_untimed().last().map(String::as_str), Some("commit B@6 majority"));
    probes_none(&rig);
}

#[test]
fn learns_only_from_most_configured_sentinels() {
    let mut rig = Rig::booted();
    rig.change(1, |it| it.peers.extend(HOSTILE.map(|peer| (id(peer), true))));
    insist(&mut rig, &claim(99), 5000);
    assert_eq!(rig.machine.quorum(), (3, 2));
    rig.change(2, |it| it.peers.extend(HOSTILE.map(|peer| (id(peer), true)))).run(1100);
    assert_eq!(rig.machine.quorum(), (9, 5));
}

/// Those that were learned list another one, which one of the configured sentinels lists, too.
#[test]
fn learned_sentinels_admit_no_others() {
    let mut rig = attacked(Rig::booted());
    insist(&mut rig, &claim(5), 2000);
    assert_eq!(rig.machine.quorum().0, 9, "six were learned");
    rig.change(1, |it| it.peers.push((id(77), true)));
    let lists = view('A', 5, &[HOSTILE.as_slice(), &[77]].concat(), &['B', 'C']);
    insist(&mut rig, &lists, 5000);
    assert!(!rig.machine.is_member(&id(77)), "seven of nine list it");
    rig.change(2, |it| it.peers.push((id(77), true)));
    insist(&mut rig, &lists, 2000);
    assert!(rig.machine.is_member(&id(77)));
}

/// At a start, one of the configured sentinels and all learned ones name X at a higher epoch, and
/// the electorate is so large that the two others are no majority of it.
#[test]
fn starts_with_the_master_of_most_configured_sentinels() {
    for epoch in [5, 99] {
        let mut rig = Rig::new();
        rig.change(1, |it| (it.addr, it.epoch) = (node('X'), epoch));
        let mut rig = attacked(rig);
        insist(&mut rig, &claim(epoch), 10_000);
        assert_eq!(rig.outcomes_untimed(), ["commit A@5 majority"], "{epoch}");
        probes_none(&rig);
    }
}

/// One configured sentinel lies at a start. It answers first, and lists a master of its own, which
/// it then promotes or names.
#[test]
fn starts_despite_a_foreign_master_that_one_lists() {
    for (named, failing_over) in [('A', true), ('X', false)] {
        let mut rig = Rig::new();
        rig.disconnects(2).disconnects(3).nodes.insert('X', master('X', "other", ""));
        rig.change(1, |it| it.replicas.push(view('A', 5, &[], &['X']).replicas.remove(0)));
        rig.run(200);
        let lies = |it: &mut View| {
            (it.addr, it.failing_over) = (node(named), failing_over);
            it.epoch = if named == 'A' { 5 } else { 99 };
        };
        rig.change(1, lies).reconnects(2).reconnects(3).run(10_000);
        let outcomes = rig.outcomes_untimed();
        assert_eq!(outcomes.first().map(String::as_str), Some("commit A@5 majority"), "{named}");
        assert!(!rig.machine.is_holding(), "{named}: {:?}", rig.machine.state());
    }
}

/// The same with a quorum that the honest ones cannot reach: they start as a minority does. The
/// hostile one then names the true master, and lists a replica of its own.
#[test]
fn starts_below_the_quorum_with_most_configured_sentinels() {
    for named in ['X', 'A'] {
        let mut rig = Rig::new();
        for sentinel in 1..=3 {
            rig.change(sentinel, |it| it.quorum = 3);
        }
        rig.change(1, |it| *it = View { quorum: 3, ..view(named, 99, &[2, 3], &['B', 'X']) });
        let mut rig = attacked(rig);
        insist(&mut rig, &claim(99), 10_000);
        let outcomes = rig.outcomes_untimed();
        assert_eq!(outcomes.first().map(String::as_str), Some("commit A@5 bootstrap_minority"));
        assert!(outcomes.iter().all(|it| !it.contains('X')), "{outcomes:?}");
        assert_eq!(rig.machine.trust(&node('X')), Trust::Stranger, "{named}");
    }
}

/// Only a hostile sentinel of the three configured ones answers, and lists the attacker's.
#[test]
fn rejects_forged_master_of_last_configured_sentinel() {
    for hides in [true, false] {
        let mut rig = attacked(Rig::booted());
        if hides && let Some(Answer::Report(report)) = rig.nodes.get_mut(&'X') {
            report.lineage = None;
        }
        rig.disconnects(2).disconnects(3);
        rig.change(1, |it| it.replicas = view('A', 5, &[], &['B', 'C', 'X']).replicas).run(6000);
        rig.change(1, |it| (it.addr, it.epoch) = (node('X'), 99));
        insist(&mut rig, &claim(99), 60_000);
        let outcomes = rig.outcomes_untimed();
        assert!(!outcomes.iter().any(|it| it.starts_with("commit")), "{hides}: {outcomes:?}");
    }
}

/// Without any configured sentinel only a node with the history of the master is followed.
#[test]
fn rejects_forged_master_when_configured_ones_are_gone() {
    for readable in [true, false] {
        let mut rig = attacked(Rig::booted());
        if !readable && let Some(Answer::Report(report)) = rig.nodes.get_mut(&'X') {
            report.lineage = None;
            insist(&mut rig, &view('A', 5, &HOSTILE, &['X', 'B', 'C']), 2000);
        }
        rig.disconnects(1).disconnects(2).disconnects(3);
        insist(&mut rig, &claim(99), 60_000);
        let outcomes = rig.outcomes_untimed();
        assert!(!outcomes.iter().any(|it| it.starts_with("commit")), "{readable}: {outcomes:?}");
        assert!(rig.machine.committed().is_some_and(|it| it.addr == node('A')));
    }
}

/// Learned sentinels stand in for configured ones that are gone for good.
#[test]
fn follows_learned_sentinels_when_configured_one_is_gone() {
    let mut rig = one_configured();
    rig.disconnects(1);
    let answer = |rig: &mut Rig, addr, epoch, replicas: &[char]| {
        for sentinel in [4, 5] {
            rig.answers(sentinel, view(addr, epoch, &[1, 9 - sentinel], replicas));
        }
        rig.run(500);
    };
    (0..20).for_each(|_| answer(&mut rig, 'A', 5, &['B', 'C']));
    rig.promotes('B');
    (0..4).for_each(|_| answer(&mut rig, 'B', 6, &['A', 'C']));
    assert_eq!(rig.outcomes_untimed().last().map(String::as_str), Some("commit B@6 majority"));
}

/// A sentinel of the attacker answers at one of three configured addresses.
#[test]
fn rejects_minority_of_hostile_configured_sentinels() {
    let mut rig = Rig::booted();
    rig.nodes.insert('X', master('X', "forged", ""));
    rig.change(3, |it| *it = view('X', 99, &[1, 2], &['X']));
    rig.change(3, |it| it.peers.extend(peers(&HOSTILE)));
    // It pretends to have adopted what the others say.
    for peer in [1, 2] {
        rig.publishes(3, Notice::ConfigUpdateFrom { peer: id(peer), leaving: node('A') });
        rig.publishes(3, Notice::Switched { to: node('X') });
        insist(&mut rig, &claim(99), 5000);
    }
    assert!(rig.outcomes().is_empty(), "{:?}", rig.outcomes());
    // Nor does it prevent a failover.
    rig.promotes('B').names(1, 'B', 6).names(2, 'B', 6).run(2000);
    assert_eq!(rig.outcomes_untimed().last().map(String::as_str), Some("commit B@6 majority"));
    // A start beside it waits for the highest epoch, and then follows the majority.
    let mut rig = Rig::new();
    rig.nodes.insert('X', master('X', "forged", ""));
    rig.change(3, |it| *it = view('X', 99, &[1, 2], &[])).run(5000);
    assert_eq!(rig.outcomes_untimed(), ["commit A@5 majority"]);
}

#[test]
fn rejects_votes_forged_by_announcements() {
    let mut rig = attacked(Rig::booted());
    for epoch in 99..110 {
        for (hostile, peer) in HOSTILE.into_iter().zip([1, 2, 3, 1, 2, 3]) {
            rig.answers(hostile, view('A', 5, &HOSTILE, &['B', 'C', 'X']));
            let leaving = node('A');
            rig.publishes(hostile, Notice::ConfigUpdateFrom { peer: id(peer), leaving });
            rig.publishes(hostile, Notice::Switched { to: node('X') });
            rig.answers(hostile, claim(epoch));
        }
        rig.run(500);
    }
    let outcomes = rig.outcomes_untimed();
    assert!(!outcomes.iter().any(|it| it.starts_with("commit")), "{outcomes:?}");
}

#[test]
fn counts_one_identity_per_configured_address() {
    let mut rig = Rig::booted();
    rig.nodes.insert('X', master('X', "forged", ""));
    rig.disconnects(3);
    // What answers at the third address takes another identity all the time.
    for identity in 31..90 {
        let forged = view('X', 99, &[1, 2], &['X']);
        rig.step(MachineEvent::View {
            from: id(identity),
            view: forged,
            asked_at: rig.now,
            configured: true,
        });
        rig.run(20);
        rig.step(MachineEvent::Displaced { id: id(identity) });
    }
    rig.run(3000);
    assert!(rig.outcomes().is_empty(), "{:?}", rig.outcomes());
    assert!(rig.machine.committed().is_some_and(|it| it.addr == node('A')));
}

#[test]
fn keeps_place_for_configured_sentinel_in_a_crowd() {
    let mut rig = Rig::booted();
    let crowd: Vec<u8> = (100..=255).collect();
    for sentinel in 1..=3 {
        rig.change(sentinel, |it| it.peers.extend(peers(&crowd)));
    }
    rig.run(1100);
    rig.disconnects(3);
    let peers: Vec<u8> = vec![1, 2];
    rig.sentinels.insert(33, view('A', 5, &peers, &['B', 'C']));
    rig.run(1100);
    let configured: BTreeSet<MyId> = rig
        .machine
        .members()
        .filter(|(_, why, _)| *why == Admission::Configured)
        .map(|(id, ..)| id.clone())
        .collect();
    assert!(configured.contains(&id(33)), "{configured:?}");
    assert!(rig.machine.quorum().0 <= 64);
}

/// A majority of the configured sentinels is not stopped by what is merely listed.
#[test]
fn keeps_serving_under_attack_with_strict_policies() {
    for minority in [Minority::Hold, Minority::Cut] {
        let rules = MachineRules { minority, ..MachineRules::default() };
        let mut rig = attacked(Rig::booted_with(rules));
        insist(&mut rig, &claim(99), 20_000);
        assert!(rig.outcomes().is_empty(), "{minority:?}: {:?}", rig.outcomes());
    }
}

/// What a learned sentinel says of the master's state delays nothing for long, whatever happens.
#[test]
fn learned_sentinels_keep_no_gate_closed() {
    let detached = |rig: &mut Rig| {
        rig.promotes('B');
    };
    let restarted = |rig: &mut Rig| {
        let Answer::Report(mut report) = master('A', "fresh", "") else { panic!("a report") };
        report.lineage.as_mut().expect("a lineage").run_id = "fresh process".into();
        rig.nodes.insert('A', Answer::Report(report));
    };
    let events: [&dyn Fn(&mut Rig); 2] = [&detached, &restarted];
    for (number, event) in events.into_iter().enumerate() {
        let mut honest = Rig::booted();
        event(&mut honest);
        honest.run(30_000);
        assert!(!honest.machine.is_holding(), "{number}");
        let mut rig = attacked(Rig::booted());
        let mut lie = view('A', 5, &[1, 2, 3], &['B', 'C']);
        (lie.failing_over, lie.down) = (true, true);
        insist(&mut rig, &lie, 2000);
        rig.mark();
        event(&mut rig);
        insist(&mut rig, &lie, 30_000);
        assert_eq!(rig.outcomes_untimed(), honest.outcomes_untimed(), "{number}");
        assert!(!rig.machine.is_holding(), "{number}: {:?}", rig.outcomes());
    }
}

/// Nor does it make this process ask the sentinels more often, or report a suspicion: by a view at
/// whatever epoch, or by an event.
#[test]
fn learned_sentinels_raise_no_suspicion() {
    for epoch in [5, 99] {
        let mut rig = attacked(Rig::booted());
        let mut lie = view('A', epoch, &[1, 2, 3], &['B', 'C']);
        (lie.failing_over, lie.down) = (true, true);
        insist(&mut rig, &lie, 20_000);
        rig.publishes(71, Notice::Trouble);
        assert_eq!(*rig.machine.state(), MachineState::Stable, "{epoch}");
    }
}

/// Nor do its announcements use up the holds that the leader of a failover needs.
#[test]
fn holds_for_the_leader_beside_hostile_announcements() {
    let mut rig = attacked(Rig::booted());
    insist(&mut rig, &view('A', 5, &[1, 2, 3], &['B', 'C']), 2000);
    for sentinel in HOSTILE {
        rig.selects(sentinel, 'B').run(100);
        rig.publishes(sentinel, Notice::Aborted).run(100);
    }
    rig.mark();
    rig.selects(72, 'B').run(100);
    assert!(rig.outcomes().is_empty(), "all of them together have three");
    rig.selects(1, 'B').publishes(72, Notice::Aborted).run(100);
    assert_eq!(rig.outcomes_untimed(), ["hold"]);
}

/// A typing error, or a lie, of one of three.
#[test]
fn needs_the_quorum_of_most_sentinels() {
    let mut rig = Rig::new();
    rig.change(2, |it| it.quorum = 4).run(3000);
    assert_eq!(rig.outcomes_untimed(), ["commit A@5 majority"]);
    assert!(!rig.machine.depends_on_learned());
}
