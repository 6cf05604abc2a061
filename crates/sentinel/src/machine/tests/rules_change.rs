//! Rules that change while the machine runs.

use super::rig::{Rig, ms, node};
use crate::machine::{MachineEvent, MachineState};
use crate::{MachineRules, Minority, Verify, View};

const POLICIES: [Minority; 3] = [Minority::Keep, Minority::Hold, Minority::Cut];

fn rules(minority: Minority) -> MachineRules {
    MachineRules { minority, ..MachineRules::default() }
}

fn change(rig: &mut Rig, minority: Minority) {
    rig.step(MachineEvent::Rules(Box::new(rules(minority))));
}

fn set_peers(view: &mut View, up: bool) {
    view.peers.iter_mut().for_each(|(_, it)| *it = up);
}

/// Only the third sentinel is reachable, and it reaches none of the others.
fn isolate(rig: &mut Rig) {
    rig.disconnects(1).disconnects(2).change(3, |it| set_peers(it, false));
    rig.run(8000);
}

fn heal(rig: &mut Rig) {
    rig.reconnects(1).reconnects(2).change(3, |it| set_peers(it, true));
    rig.run(5000);
}

#[test]
fn applies_minority_policy_in_the_middle_of_one() {
    for (from, to, then, healed) in [
        (Minority::Keep, Minority::Hold, "hold", "release"),
        (Minority::Keep, Minority::Cut, "clear Minority", "commit A@5 reconfirmed"),
        (Minority::Hold, Minority::Keep, "release", ""),
        (Minority::Hold, Minority::Cut, "clear Minority", "commit A@5 reconfirmed"),
        (Minority::Cut, Minority::Keep, "commit A@5 reconfirmed", ""),
    ] {
        let mut rig = Rig::booted_with(rules(from));
        isolate(&mut rig);
        rig.mark();
        change(&mut rig, to);
        rig.run(4000);
        assert_eq!(rig.outcomes_untimed(), [then], "{from:?} to {to:?}");
        rig.mark();
        heal(&mut rig);
        let expected: Vec<&str> = [healed].into_iter().filter(|it| !it.is_empty()).collect();
        assert_eq!(rig.outcomes_untimed(), expected, "{from:?} to {to:?}, healed");
        assert_eq!(rig.machine.state(), &MachineState::Stable);
        assert!(!rig.machine.is_holding() && !rig.machine.is_minority());
    }
}

#[test]
fn holds_the_master_that_was_cut_off_before() {
    let mut rig = Rig::booted_with(rules(Minority::Cut));
    isolate(&mut rig);
    rig.mark();
    change(&mut rig, Minority::Hold);
    rig.run(10_000);
    // The master is known again, and the gate stays closed, as with "hold" from the start.
    assert_eq!(rig.outcomes_untimed(), ["commit A@5 reconfirmed"]);
    assert!(rig.machine.is_holding() && rig.machine.is_minority());
    heal(&mut rig);
    assert!(!rig.machine.is_holding() && !rig.machine.is_minority());
}

#[test]
fn applies_policy_to_silence_that_began_before() {
    let mut rig = Rig::booted_with(rules(Minority::Keep));
    rig.disconnects(1).disconnects(2).disconnects(3).run(60_000);
    rig.mark();
    change(&mut rig, Minority::Hold);
    assert_eq!(rig.outcomes(), ["0 hold"], "a majority has been silent for a minute");
    change(&mut rig, Minority::Keep);
    assert_eq!(rig.outcomes(), ["0 hold", "0 release"]);
    assert!(!rig.machine.is_minority(), "silence proves nothing with the policy keep");
}

/// A machine that changes its policy ends up like one that had the new policy from the start.
#[test]
fn equals_machine_with_policy_from_the_start() {
    let mut random = fastrand::Rng::with_seed(7);
    for round in 0..150 {
        let (from, to) = (POLICIES[round % 3], POLICIES[random.usize(..3)]);
        let mut rigs = [Rig::booted_with(rules(from)), Rig::booted_with(rules(to))];
        let steps: Vec<(u8, u8, u64)> = (0..random.usize(2..9))
            .map(|_| (random.u8(0..4), random.u8(1..4), random.u64(10..6000)))
            .collect();
        let switch = random.usize(..steps.len());
        for (number, (what, sentinel, long)) in steps.iter().copied().enumerate() {
            if number == switch {
                change(&mut rigs[0], to);
            }
            for rig in &mut rigs {
                match what {
                    0 => rig.disconnects(sentinel),
                    1 => rig.reconnects(sentinel),
                    other => rig.change(sentinel, |it| set_peers(it, other == 2)),
                };
                rig.run(long);
            }
        }
        rigs.iter_mut().for_each(|rig| rig.run(30_000));
        let [changed, always] = &rigs;
        let seen = |rig: &Rig| {
            let published = rig.machine.committed().is_some_and(|it| it.published);
            (rig.machine.is_minority(), rig.machine.is_holding(), published)
        };
        // A target that was removed comes back only if a sentinel answers.
        let removed = from == Minority::Cut && to != Minority::Cut && changed.sentinels.is_empty();
        if !removed {
            assert_eq!(seen(changed), seen(always), "{from:?} to {to:?} at {switch}: {steps:?}");
        }
    }
}

#[test]
fn asks_at_once_after_intervals_became_shorter() {
    let slow =
        MachineRules { poll: ms(60_000), probe_master: ms(60_000), ..MachineRules::default() };
    let mut rig = Rig::booted_with(slow);
    rig.run(1000);
    rig.mark();
    rig.step(MachineEvent::Rules(Box::default()));
    assert!(rig.machine.next_deadline() <= rig.now + ms(1500));
    assert_eq!(rig.probes('A'), 1);
    rig.run(3000);
    assert!(rig.probes('A') >= 6, "{}", rig.probes('A'));
    assert!(rig.outcomes().is_empty());
}

#[test]
fn does_not_judge_old_answers_by_new_verification() {
    let ping = MachineRules { verify: Verify::Ping, ..MachineRules::default() };
    let mut rig = Rig::booted_with(ping);
    rig.step(MachineEvent::Rules(Box::default()));
    assert!(
        rig.machine.nodes().all(|(addr, probe)| probe.is_none() || *addr != node('A')),
        "an answer to PING says nothing about the role"
    );
    rig.run(10_000);
    assert!(rig.outcomes().is_empty(), "{:?}", rig.outcomes());
    assert_eq!(rig.machine.state(), &MachineState::Stable);
}
