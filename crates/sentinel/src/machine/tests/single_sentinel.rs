//! Claims that only a single sentinel makes.

use super::rig::{Answer, Rig, master, node};
use crate::machine::MachineState;

#[test]
fn follows_single_sentinel_if_history_continues() {
    let mut rig = Rig::booted();
    rig.disconnects(2).disconnects(3).at(6000).names(1, 'B', 6).promotes('B');
    rig.mark();
    rig.run(5000);
    let outcomes = rig.outcomes();
    assert_eq!(
        rig.outcomes_untimed().last().map(String::as_str),
        Some("commit B@6 single_sentinel"),
        "{outcomes:?}"
    );
    let at: u64 = outcomes
        .last()
        .and_then(|it| it.split(' ').next())
        .and_then(|it| it.parse().ok())
        .expect("a time");
    assert!(at <= 1003, "no grace for a child that its leader names: {outcomes:?}");
}

#[test]
fn rejects_stranger_named_by_single_sentinel() {
    for readable in [true, false] {
        let mut rig = Rig::booted();
        rig.disconnects(2).disconnects(3).at(6000);
        // D is a master with another history, and not a listed replica.
        rig.change(1, |it| (it.addr, it.epoch) = (node('D'), 6));
        rig.nodes.insert('D', master('D', "another history", ""));
        if !readable {
            rig.without_lineage();
        }
        rig.mark();
        rig.run(60_000);
        assert!(rig.outcomes().is_empty(), "lineage readable: {readable}: {:?}", rig.outcomes());
        assert!(rig.machine.committed().is_some_and(|it| it.published && it.addr == node('A')));
    }
}

#[test]
fn follows_single_sentinel_to_listed_replica() {
    // No history could ever be read.
    let mut rig = Rig::new();
    rig.without_lineage();
    rig.run(3000);
    rig.mark();
    rig.disconnects(2).disconnects(3).at(6000).names(1, 'B', 6).promotes('B').without_lineage();
    rig.mark();
    rig.run(3000);
    assert_eq!(
        rig.outcomes_untimed().last().map(String::as_str),
        Some("commit B@6 single_sentinel")
    );
}

#[test]
fn ignores_single_liar_with_dead_address() {
    let mut rig = Rig::booted();
    rig.disconnects(2)
        .disconnects(3)
        .at(6000)
        .change(1, |it| (it.addr, it.epoch) = (node('X'), 99));
    rig.mark();
    rig.run(600_000);
    assert!(rig.outcomes().is_empty(), "{:?}", rig.outcomes());
}

#[test]
fn keeps_master_on_single_vote_for_higher_epoch() {
    let mut rig = Rig::booted();
    rig.names(1, 'A', 99).run(30_000);
    assert!(rig.outcomes().is_empty(), "{:?}", rig.outcomes());
}

#[test]
fn drops_single_claim_contradicted_in_verification() {
    let mut rig = Rig::booted();
    rig.disconnects(2).disconnects(3).at(6000).names(1, 'B', 6).promotes('B');
    rig.run(1300);
    let mut rig2 = Rig::booted();
    rig2.disconnects(2).disconnects(3).at(6000).names(1, 'B', 6).promotes('B');
    // Runs until the claim is being verified, then its answer is lost and another sentinel is back.
    while !matches!(rig2.machine.state(), MachineState::Committing { .. }) {
        rig2.run(1);
        assert!(rig2.now < rig.now, "it is verified eventually");
    }
    rig2.nodes.insert('B', Answer::Lost);
    rig2.reconnects(2);
    rig2.mark();
    rig2.run(300);
    assert!(
        matches!(rig2.machine.state(), MachineState::Armed { .. }),
        "{:?}",
        rig2.machine.state()
    );
    assert!(rig2.outcomes().is_empty(), "B is still promoted: {:?}", rig2.outcomes());
}
