//! Sentinels that are cut off from their peers, and know it.

use super::rig::{Rig, id, view};
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

/// Only the third sentinel is reachable, and it reaches none of the others.
fn isolate(rig: &mut Rig) {
    rig.disconnects(1).disconnects(2).change(3, alone);
    rig.run(8000);
}

fn heal(rig: &mut Rig) {
    rig.reconnects(1).reconnects(2).change(3, together);
}

#[test]
fn keeps_master_in_minority_with_policy_keep() {
    let mut rig = with(Minority::Keep);
    isolate(&mut rig);
    assert!(rig.outcomes().is_empty());
    assert_eq!(rig.warnings(Warning::Minority), 1);
}

#[test]
fn holds_until_majority_answers_again() {
    let mut rig = with(Minority::Hold);
    isolate(&mut rig);
    assert_eq!(rig.outcomes_untimed(), ["hold"]);
    // Now the last one falls silent too, which is not a majority.
    rig.disconnects(3).run(60_000);
    assert_eq!(rig.outcomes_untimed(), ["hold"]);
    rig.reconnects(3).change(3, |it| it.tilt = true).run(60_000);
    assert_eq!(rig.outcomes_untimed(), ["hold"], "in TILT its view is void");
    rig.change(3, |it| it.tilt = false).change(3, together).run(60_000);
    assert_eq!(
        rig.outcomes_untimed(),
        ["hold"],
        "it alone is not a majority, whatever it reports of its peers"
    );
    heal(&mut rig);
    rig.run(2000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "release"]);
}

/// Seed 469: all sentinels were restarted without their files.
#[test]
fn ends_policy_hold_by_a_majority_at_a_lower_epoch() {
    let mut rig = with(Minority::Hold);
    rig.disconnects(1).disconnects(2).disconnects(3).run(6000);
    assert_eq!(rig.outcomes_untimed(), ["hold"]);
    for sentinel in 1..=3 {
        rig.names(sentinel, 'A', 0).reconnects(sentinel);
    }
    rig.mark();
    rig.run(2000);
    assert_eq!(rig.outcomes_untimed(), ["release"]);
    // One of them is no majority, and what names another node does not end it.
    let mut rig = with(Minority::Hold);
    rig.disconnects(1).disconnects(2).disconnects(3).run(6000);
    rig.names(1, 'A', 0).reconnects(1).names(2, 'B', 0).reconnects(2).run(6000);
    assert_eq!(rig.outcomes_untimed(), ["hold"]);
}

/// One of the configured sentinels lies: it names a replica, at an epoch that no other has heard
/// of. The two others are a majority.
#[test]
fn ends_minority_by_a_majority_despite_a_lie() {
    for (minority, lie, open) in [
        (Minority::Hold, 'B', "release"),
        (Minority::Hold, 'D', "release"),
        (Minority::Cut, 'B', "commit A@5 reconfirmed"),
        (Minority::Cut, 'D', "commit A@5 reconfirmed"),
    ] {
        let mut rig = with(minority);
        rig.names(3, lie, 999).disconnects(1).disconnects(2).run(8000);
        assert_eq!(rig.outcomes_untimed().len(), 1, "{:?}", rig.outcomes());
        rig.reconnects(1).reconnects(2).run(15_000);
        let seen = rig.outcomes_untimed();
        assert_eq!(seen.last().map(String::as_str), Some(open), "{minority:?} {lie}");
        // It may be right, if what it names is a master.
        let mut rig = with(minority);
        rig.promotes('B').names(3, 'B', 6).disconnects(1).disconnects(2).run(8000);
        rig.reconnects(1).reconnects(2).run(8000);
        assert!(!rig.outcomes_untimed().contains(&open.to_owned()), "{:?}", rig.outcomes());
    }
}

#[test]
fn ends_policy_hold_by_failover_of_majority() {
    let mut rig = with(Minority::Hold);
    isolate(&mut rig);
    rig.promotes('B').reconnects(1).reconnects(2).names(1, 'B', 6).names(2, 'B', 6);
    rig.run(3000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit B@6 majority"]);
    assert!(!rig.machine.is_holding());
}

#[test]
fn clears_target_in_minority_and_recovers() {
    let mut rig = with(Minority::Cut);
    isolate(&mut rig);
    assert_eq!(rig.outcomes_untimed(), ["clear Minority"]);
    rig.run(60_000);
    assert_eq!(
        rig.outcomes_untimed(),
        ["clear Minority"],
        "the isolated one still names it, and it still verifies"
    );
    rig.change(3, together).reconnects(1).reconnects(2).run(3000);
    assert_eq!(rig.outcomes_untimed(), ["clear Minority", "commit A@5 reconfirmed"]);
}

#[test]
fn does_not_flap_if_all_sentinels_are_isolated() {
    let mut rig = with(Minority::Cut);
    rig.disconnects(1).change(2, alone).change(3, alone).run(60_000);
    assert_eq!(rig.outcomes_untimed(), ["clear Minority"]);
    // A newer claim is not accepted during that time either.
    rig.promotes('B').names(2, 'B', 6).names(3, 'B', 6).run(20_000);
    assert_eq!(rig.outcomes_untimed(), ["clear Minority"]);
    rig.change(2, together).run(3000);
    assert_eq!(rig.outcomes_untimed(), ["clear Minority", "commit B@6 majority"]);
}

#[test]
fn does_not_leave_minority_on_single_vote() {
    // The partition heals, and the isolated sentinel answers first: it sees its peers again, but
    // has not received their hello.
    for minority in [Minority::Hold, Minority::Cut] {
        let mut rig = with(minority);
        isolate(&mut rig);
        let before = rig.outcomes_untimed().len();
        rig.change(3, together).run(700);
        assert_eq!(rig.outcomes_untimed().len(), before, "{minority:?}: {:?}", rig.outcomes());
        // A sentinel of the other side answers: a claim at a higher epoch, without a majority yet.
        rig.promotes('B').reconnects(1).names(1, 'B', 6).run(100);
        assert!(
            !rig.outcomes_untimed().iter().any(|it| it.starts_with("release")),
            "{minority:?}: {:?}",
            rig.outcomes()
        );
        rig.reconnects(2).names(2, 'B', 6).run(2000);
        assert_eq!(
            rig.outcomes_untimed().last().map(String::as_str),
            Some("commit B@6 majority"),
            "{minority:?}"
        );
        assert!(!rig.machine.is_holding() && !rig.machine.is_minority());
    }
}

#[test]
fn treats_one_of_three_voters_as_minority() {
    for (minority, outcomes_untimed) in [
        (Minority::Keep, vec![]),
        (Minority::Hold, vec!["hold"]),
        (Minority::Cut, vec!["clear Minority"]),
    ] {
        let mut rig = with(minority);
        rig.disconnects(1).disconnects(2).change(3, |view| view.peers[0].1 = false).run(60_000);
        assert_eq!(rig.outcomes_untimed(), outcomes_untimed, "{minority:?}");
    }
}

#[test]
fn does_not_treat_two_of_three_as_minority() {
    for minority in [Minority::Hold, Minority::Cut] {
        let mut rig = with(minority);
        rig.disconnects(1)
            .change(2, |view| view.peers[0].1 = false)
            .change(3, |view| view.peers[0].1 = false);
        rig.run(60_000);
        assert!(rig.outcomes().is_empty(), "{minority:?}: {:?}", rig.outcomes());
    }
}

#[test]
fn treats_long_silence_as_minority() {
    for (minority, deed) in [(Minority::Hold, "hold"), (Minority::Cut, "clear Minority")] {
        let mut rig = with(minority);
        rig.disconnects(1).disconnects(2).disconnects(3).run(2000);
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
        rig.reconnects(1).reconnects(2).reconnects(3).run(2000);
        let back = if minority == Minority::Hold { "release" } else { "commit A@5 reconfirmed" };
        assert_eq!(rig.outcomes_untimed(), [deed, back]);
    }
    let mut rig = with(Minority::Keep);
    rig.disconnects(1).disconnects(2).disconnects(3).run(60_000);
    assert!(rig.outcomes().is_empty());
    assert_eq!(*rig.machine.state(), MachineState::Stable);
}

#[test]
fn does_not_treat_rare_polls_as_silence() {
    let poll = std::time::Duration::from_secs(4);
    let mut rig =
        Rig::with(MachineRules { minority: Minority::Hold, poll, ..MachineRules::default() }, 3);
    rig.run(60_000);
    assert_eq!(rig.outcomes_untimed(), ["commit A@5 majority"]);
}

#[test]
fn keeps_gate_closed_after_single_commit_in_minority() {
    let mut rig = with(Minority::Hold);
    rig.disconnects(1).disconnects(2).run(8000);
    assert_eq!(rig.outcomes_untimed(), ["hold"]);
    rig.promotes('B').names(3, 'B', 6).run(3000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit B@6 single_sentinel"]);
    assert!(rig.machine.is_holding(), "a third failover may be in progress out of reach");
    rig.reconnects(1).names(1, 'B', 6).run(1000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit B@6 single_sentinel", "release"]);
}

#[test]
fn holds_or_skips_first_master_of_a_minority() {
    for (minority, outcomes_untimed) in
        [(Minority::Hold, vec!["commit A@5 bootstrap_minority"]), (Minority::Cut, vec![])]
    {
        let mut rig = Rig::with(MachineRules { minority, ..MachineRules::default() }, 3);
        rig.disconnects(2).disconnects(3).run(20_000);
        assert_eq!(rig.outcomes_untimed(), outcomes_untimed, "{minority:?}");
        assert_eq!(rig.machine.is_holding(), minority == Minority::Hold);
        rig.reconnects(2).run(2000);
        let open =
            rig.machine.committed().is_some_and(|it| it.published) && !rig.machine.is_holding();
        assert!(open, "{minority:?}: {:?}", rig.outcomes());
    }
}

/// The only one in reach was RESET, or lost its file: it lists no peers.
#[test]
fn takes_a_sentinel_without_peers_for_no_majority() {
    for minority in [Minority::Hold, Minority::Cut] {
        let mut rig = with(minority);
        isolate(&mut rig);
        let stopped = rig.outcomes_untimed();
        assert_eq!(stopped.len(), 1, "{minority:?}");
        rig.change(3, |it| it.peers.clear()).run(120_000);
        assert_eq!(rig.outcomes_untimed(), stopped, "{minority:?}");
        heal(&mut rig);
        rig.change(3, |it| it.peers = [1, 2].map(|peer| (id(peer), true)).to_vec()).run(3000);
        let last = rig.outcomes_untimed();
        assert_eq!(last.len(), 2, "{minority:?}: {last:?}");

        let mut rig = Rig::with(MachineRules { minority, ..MachineRules::default() }, 3);
        rig.disconnects(1).disconnects(2).change(3, |it| it.peers.clear()).run(120_000);
        let is_open = !rig.outcomes().is_empty() && !rig.machine.is_holding();
        assert!(!is_open, "{minority:?}: {:?}", rig.outcomes());
    }
}

#[test]
fn ignores_ghosts_in_minority_check() {
    // After a rolling restart with new identities, the oldest of the new sentinels lists two
    // ghosts, the next one lists one.
    let mut rig = with(Minority::Hold);
    let ghosts = [(id(21), false), (id(22), false)];
    rig.change(1, |it| it.peers.extend(ghosts.clone()))
        .change(2, |it| it.peers.push(ghosts[1].clone()));
    rig.run(3000);
    // Then one of the three is lost as well.
    rig.disconnects(1);
    for sentinel in [2, 3] {
        rig.change(sentinel, |it| {
            it.peers.iter_mut().filter(|(peer, _)| *peer == id(1)).for_each(|(_, up)| *up = false);
        });
    }
    rig.run(60_000);
    assert_eq!(rig.warnings(Warning::Minority), 0, "{:?}", rig.machine.quorum());
    assert!(rig.outcomes().is_empty(), "{:?}", rig.outcomes());
}

/// Anybody who may publish can announce a sentinel. Its word on who is up must not hide that a
/// majority of the configured ones is gone.
#[test]
fn counts_no_learned_sentinel_against_a_minority() {
    for minority in [Minority::Hold, Minority::Cut] {
        let mut rig = with(minority);
        for sentinel in 1..=3 {
            rig.change(sentinel, |it| it.peers.push((id(71), true)));
        }
        let lie = view('A', 5, &[1], &['B', 'C']);
        for _ in 0..4 {
            rig.answers(71, lie.clone()).run(500);
        }
        rig.mark();
        rig.disconnects(2).disconnects(3);
        rig.change(1, |it| it.peers.iter_mut().for_each(|(peer, up)| *up = *peer == id(71)));
        for _ in 0..20 {
            rig.answers(71, lie.clone()).run(500);
        }
        assert!(rig.machine.is_minority(), "{minority:?}: {:?}", rig.outcomes());
    }
}

/// They answer nowhere: three hellos that a client published, or former sentinels.
#[test]
fn counts_no_unheard_sentinel_as_lost() {
    for minority in [Minority::Hold, Minority::Cut] {
        let mut rig = with(minority);
        for sentinel in 1..=3 {
            rig.change(sentinel, |it| it.peers.extend([71, 72, 73].map(|it| (id(it), false))));
        }
        rig.run(30_000);
        assert!(!rig.machine.is_minority(), "{minority:?}: {:?}", rig.outcomes());
        // One of the three is lost as well.
        rig.disconnects(1);
        for sentinel in [2, 3] {
            rig.change(sentinel, |it| {
                it.peers.iter_mut().for_each(|(peer, up)| *up &= *peer != id(1));
            });
        }
        rig.run(30_000);
        assert!(rig.outcomes().is_empty(), "{minority:?}: {:?}", rig.outcomes());
    }
}

/// Two of five remain, and the three elsewhere could replace the master, though only one of them is
/// configured here.
#[test]
fn counts_learned_sentinels_that_have_answered_as_lost() {
    let mut rig = with(Minority::Hold);
    for sentinel in 1..=3 {
        rig.change(sentinel, |it| it.peers.extend([4, 5].map(|it| (id(it), true))));
    }
    for _ in 0..4 {
        for sentinel in [4, 5] {
            let peers = [1, 2, 3, 9 - sentinel];
            rig.answers(sentinel, view('A', 5, &peers, &['B', 'C']));
        }
        rig.run(500);
    }
    assert!(rig.outcomes().is_empty());
    rig.disconnects(3);
    for sentinel in [1, 2] {
        rig.change(sentinel, |it| it.peers.iter_mut().for_each(|(peer, up)| *up = *peer < id(3)));
    }
    rig.run(10_000);
    assert_eq!(rig.outcomes_untimed(), ["hold"]);
}
