//! The process itself was suspended, and the cluster may have changed meanwhile.

use super::rig::{Answer, Rig, master, node, view};
use crate::machine::{MachineEvent, MachineState, Warning};
use crate::{MachineRules, Minority, ProbeFailure};

#[test]
fn confirms_master_after_stall() {
    let mut rig = Rig::booted();
    rig.stall(30_000);
    rig.mark();
    rig.run(1000);
    assert_eq!(rig.outcomes(), ["0 hold", "1 release"], "a round trip");
    assert_eq!(rig.warnings(Warning::Stalled), 1);
}

#[test]
fn confirms_master_after_suspend_hidden_from_clock() {
    let mut rig = Rig::booted();
    rig.step(MachineEvent::Stalled);
    rig.run(1000);
    assert_eq!(rig.outcomes(), ["0 hold", "1 release"], "a round trip");
    assert_eq!(rig.warnings(Warning::Stalled), 1);
    // A failover happened meanwhile: the old master still reports `role:master`.
    rig.mark();
    rig.promotes('B').names(1, 'B', 6).names(2, 'B', 6);
    rig.step(MachineEvent::Stalled);
    rig.run(1000);
    assert_eq!(rig.outcomes(), ["0 hold", "2 commit B@6 majority"]);
}

#[test]
fn detects_failover_during_stall() {
    let mut rig = Rig::booted();
    rig.stall(30_000);
    rig.mark();
    // The old master still reports `role:master`, and the isolated third sentinel still names it.
    rig.promotes('B').names(1, 'B', 6).names(2, 'B', 6);
    rig.run(1000);
    assert_eq!(rig.outcomes(), ["0 hold", "2 commit B@6 majority"]);
}

/// The leader of the failover is out of reach, and the promoted replica is slow.
#[test]
fn asks_all_replicas_after_a_stall() {
    let mut rig = Rig::booted();
    rig.disconnects(1).stall(30_000);
    rig.mark();
    rig.fails('B', ProbeFailure::Unresponsive).run(1000);
    assert_eq!(rig.outcomes(), ["0 hold"]);
    rig.promotes('B').run(2000);
    assert_eq!(rig.outcomes(), ["0 hold"], "{:?}", rig.machine.state());
    // One that never answers is not waited for.
    let mut rig = Rig::booted();
    rig.disconnects(1).stall(30_000);
    rig.mark();
    rig.nodes.insert('B', Answer::Lost);
    rig.run(2000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "release"]);
}

#[test]
fn keeps_gate_closed_on_single_stale_sentinel() {
    let mut rig = Rig::booted();
    rig.disconnects(1).disconnects(2);
    rig.stall(30_000);
    rig.mark();
    rig.run(100);
    assert_eq!(rig.outcomes(), ["0 hold"], "a single vote has to stand uncontradicted for a while");
    rig.promotes('B').reconnects(1).reconnects(2).names(1, 'B', 6).names(2, 'B', 6).run(1000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit B@6 majority"]);
}

#[test]
fn accepts_only_answering_sentinel_after_grace() {
    let mut rig = Rig::booted();
    rig.disconnects(1).disconnects(2);
    rig.stall(30_000);
    rig.mark();
    rig.run(2000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "release"]);
    let at: u64 =
        rig.outcomes()[1].split(' ').next().and_then(|it| it.parse().ok()).expect("a time");
    assert!((1500..=1525).contains(&at), "as at the start: {:?}", rig.outcomes());
}

#[test]
fn releases_after_stall_if_no_sentinel_answers() {
    let mut rig = Rig::booted();
    rig.disconnects(1).disconnects(2).disconnects(3);
    rig.stall(30_000);
    rig.mark();
    rig.run(60_000);
    assert_eq!(rig.outcomes(), ["0 hold", "5000 release"]);
}

#[test]
fn ignores_answer_queried_before_stall() {
    let mut rig = Rig::booted();
    let asked_at = rig.now;
    rig.stall(30_000);
    rig.mark();
    rig.nodes.insert('A', Answer::Lost);
    let Answer::Report(report) = master('A', "history-1", "") else { panic!("a report") };
    rig.step(MachineEvent::Probed {
        node: node('A'),
        probe: crate::Probe { asked_at, outcome: Ok(report) },
    });
    rig.run(500);
    assert_eq!(rig.outcomes(), ["0 hold"]);
}

/// `SENTINEL REMOVE` and `MONITOR` on all while this process is suspended: their epoch is 0 again.
/// Rule E4: without a child, a majority of the configured addresses that agrees decides.
#[test]
fn confirms_master_at_lower_epoch_after_stall() {
    for minority in [Minority::Keep, Minority::Hold, Minority::Cut] {
        let rules = MachineRules { minority, ..MachineRules::default() };
        let mut rig = Rig::booted_with(rules);
        rig.stall(30_000);
        rig.mark();
        rig.all_name('A', 0).run(1000);
        assert_eq!(rig.outcomes(), ["0 hold", "1 release"], "{minority:?}: a round trip");
        // One that names another node at a higher epoch contradicts a majority at a lower one.
        rig.stall(30_000);
        rig.mark();
        rig.names(3, 'B', 7).disconnects(1).disconnects(2).run(100);
        rig.reconnects(1).reconnects(2).run(1000);
        assert_eq!(rig.outcomes(), ["0 hold"], "{minority:?}");
    }
}

/// A failover, and then all sentinels restart from files that are older than it.
#[test]
fn keeps_gate_closed_to_parent_at_lower_epoch() {
    for late in [0, 1000] {
        let mut rig = Rig::booted();
        rig.stall(30_000);
        rig.mark();
        // The promoted node answers when the sentinels already have.
        rig.all_name('A', 4).nodes.insert('B', Answer::Lost);
        rig.run(late);
        rig.promotes('B').disconnects(3);
        rig.change(1, |it| it.failing_over = true).run(30_000);
        assert_eq!(rig.outcomes(), ["0 hold"], "{late} ms late");
    }
}

#[test]
fn restarts_verification_after_stall() {
    let mut rig = Rig::booted();
    rig.nodes.insert('B', Answer::Lost);
    rig.all_name('B', 6).run(1100);
    assert!(matches!(rig.machine.state(), MachineState::Committing { .. }));
    rig.stall(30_000);
    rig.mark();
    // Meanwhile the switch was undone.
    rig.all_name('A', 5).demotes('B', 'A').run(1000);
    assert_eq!(rig.outcomes_untimed(), ["release"]);
}

#[test]
fn stays_without_target_after_stall() {
    let mut rig = Rig::booted();
    rig.demotes('A', 'B').run(2000);
    assert_eq!(rig.outcomes_untimed(), ["clear Demoted"]);
    rig.stall(30_000);
    rig.mark();
    rig.run(3000);
    assert!(rig.outcomes().is_empty());
    assert!(matches!(rig.machine.state(), MachineState::NoMaster { .. }));
}

#[test]
fn does_not_treat_long_poll_interval_as_stall() {
    let slow = MachineRules { poll: std::time::Duration::from_secs(4), ..MachineRules::default() };
    let mut rig = Rig::with(slow, 1);
    rig.run(60_000);
    assert_eq!(rig.warnings(Warning::Stalled), 0);
}

#[test]
fn ignores_stranger_answering_first_after_stall() {
    let mut rig = Rig::booted();
    rig.stall(3_600_000);
    rig.nodes.insert('D', master('D', "other", ""));
    rig.answers(9, view('D', 99, &[], &[]));
    assert_eq!(rig.machine.quorum(), (3, 2));
    rig.run(3000);
    assert!(rig.machine.committed().is_some_and(|it| it.addr == node('A')));
}

#[test]
fn requires_fresh_vote_for_restarted_master() {
    for late in [0, 300, 1000, 4000] {
        let mut rig = Rig::booted();
        rig.disconnects(1).disconnects(2).disconnects(3);
        rig.stall(30_000);
        rig.mark();
        // Another process with the same history answers at once, the sentinels later: there was a
        // failover.
        let Answer::Report(mut report) = master('A', "history-2", "history-1") else {
            panic!("a report")
        };
        report.lineage.as_mut().expect("a lineage").run_id = "another process".into();
        rig.nodes.insert('A', Answer::Report(report));
        rig.promotes('B').run(late);
        assert!(
            !rig.outcomes_untimed().iter().any(|it| it != "hold"),
            "{late} ms late: {:?}",
            rig.outcomes()
        );
        rig.reconnects(1).reconnects(2).reconnects(3).all_name('B', 6).run(2000);
        assert_eq!(rig.outcomes_untimed(), ["hold", "commit B@6 majority"], "{late} ms late");
    }
}
