//! A full master rejects the prober: its sentinels and its replicas tell whether it is the same.

use super::rig::{Answer, Rig, node, replica};
use crate::machine::MachineState;
use crate::{MachineRules, Minority, ProbeFailure};

/// No sentinel answers. The master was unreachable, is back, and admits no new client.
fn full_master_after_outage(rules: MachineRules) -> Rig {
    let mut rig = Rig::booted_with(rules);
    rig.disconnects(1).disconnects(2).disconnects(3);
    rig.fails('A', ProbeFailure::Unreachable).run(10_000);
    rig.fails('A', ProbeFailure::ConnectionRejected).mark();
    rig
}

#[test]
fn recognises_full_master_by_its_replicas() {
    let mut rig = full_master_after_outage(MachineRules::default());
    rig.run(4000);
    assert_eq!(rig.outcomes_untimed(), [""; 0], "after the same time as without its replicas");
    rig.run(1500);
    assert_eq!(rig.outcomes_untimed(), ["release"]);
    rig.run(60_000);
    assert_eq!(rig.outcomes_untimed(), ["release"]);
    // With the policy `hold` a majority has to confirm it.
    let rules = MachineRules { minority: Minority::Hold, ..MachineRules::default() };
    let mut rig = full_master_after_outage(rules);
    rig.run(60_000);
    assert_eq!(rig.outcomes_untimed(), [""; 0]);
}

#[test]
fn requires_linked_replica_to_recognise_full_master() {
    let unlinked = || {
        let Answer::Report(mut report) = replica('C', 'A', "history-1") else { panic!("a report") };
        report.role = crate::Role::Replica { master: node('A'), connected: false };
        Answer::Report(report)
    };
    let unreachable = || Answer::Failure(ProbeFailure::Unreachable);
    for (b, c) in [
        (unreachable(), unreachable()),
        (unreachable(), unlinked()),
        (unreachable(), replica('C', 'B', "history-1")),
        (unreachable(), replica('C', 'A', "history-2")),
        // One has copied the data of another process at the address.
        (replica('B', 'A', "history-1"), replica('C', 'A', "history-2")),
    ] {
        let mut rig = full_master_after_outage(MachineRules::default());
        rig.nodes.insert('B', b.clone());
        rig.nodes.insert('C', c.clone());
        rig.run(60_000);
        assert_eq!(rig.outcomes_untimed(), [""; 0], "{b:?} {c:?}");
    }
}

#[test]
fn believes_sentinel_before_replicas_of_full_master() {
    type Flag = fn(&mut crate::View);
    let flags: [Flag; 4] = [
        |it| it.down = true,
        |it| it.rebooted = true,
        |it| it.failing_over = true,
        |it| it.run_id = "another".into(),
    ];
    for flag in flags {
        let mut rig = full_master_after_outage(MachineRules::default());
        // It says so shortly before the gate would open, and continues to.
        rig.run(4500);
        rig.reconnects(1).change(1, |it| it.run_id = "process-A".into()).change(1, flag);
        rig.run(60_000);
        assert_eq!(rig.outcomes_untimed(), [""; 0]);
    }
}

/// A promotion by hand is the operator's, who orders to follow it. It begins no hold, which would
/// refuse the order, and the former master is not used again.
#[test]
fn waits_for_order_after_promotion_by_hand_in_doubt() {
    for c in ['A', 'B'] {
        let mut rig = full_master_after_outage(MachineRules::default());
        rig.demotes('C', c).promotes('B').run(60_000);
        assert_eq!(rig.outcomes_untimed(), [""; 0], "C follows {c}");
        assert!(
            matches!(rig.machine.state(), MachineState::NoMaster { .. }),
            "{:?}",
            rig.machine.state()
        );
    }
}
