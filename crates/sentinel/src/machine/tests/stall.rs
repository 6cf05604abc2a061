//! The process itself was stopped, and wakes up in a world that has moved on.

use super::rig::{Answer, Rig, master, node, view};
use crate::MachineRules;
use crate::machine::{MachineEvent, MachineState, Warning};

#[test]
fn looks_again_before_it_trusts_the_old_master() {
    let mut rig = Rig::booted();
    rig.stall(30_000);
    rig.mark();
    rig.run(1000);
    assert_eq!(rig.outcomes(), ["0 hold", "1 release"], "a round trip");
    assert_eq!(rig.warnings(Warning::Stalled), 1);
}

#[test]
fn looks_again_after_a_suspend_that_the_clock_does_not_show() {
    let mut rig = Rig::booted();
    rig.step(MachineEvent::Stalled);
    rig.run(1000);
    assert_eq!(rig.outcomes(), ["0 hold", "1 release"], "a round trip");
    assert_eq!(rig.warnings(Warning::Stalled), 1);
    // A failover happened meanwhile: the old master still says master.
    rig.mark();
    rig.promotes('B').names(1, 'B', 6).names(2, 'B', 6);
    rig.step(MachineEvent::Stalled);
    rig.run(1000);
    assert_eq!(rig.outcomes(), ["0 hold", "2 commit B@6 majority"]);
}

#[test]
fn a_failover_happened_meanwhile() {
    let mut rig = Rig::booted();
    rig.stall(30_000);
    rig.mark();
    // The old master still says master, and the isolated third sentinel still names it.
    rig.promotes('B').names(1, 'B', 6).names(2, 'B', 6);
    rig.run(1000);
    assert_eq!(rig.outcomes(), ["0 hold", "2 commit B@6 majority"]);
}

#[test]
fn one_stale_sentinel_that_answers_first_does_not_open_the_gate() {
    let mut rig = Rig::booted();
    rig.loses(1).loses(2);
    rig.stall(30_000);
    rig.mark();
    rig.run(100);
    assert_eq!(rig.outcomes(), ["0 hold"], "one voice has to stand uncontradicted for a while");
    rig.promotes('B').finds(1).finds(2).names(1, 'B', 6).names(2, 'B', 6).run(1000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit B@6 majority"]);
}

#[test]
fn the_only_sentinel_that_answers_is_believed_after_its_grace() {
    let mut rig = Rig::booted();
    rig.loses(1).loses(2);
    rig.stall(30_000);
    rig.mark();
    rig.run(2000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "release"]);
    let at: u64 =
        rig.outcomes()[1].split(' ').next().and_then(|it| it.parse().ok()).expect("a time");
    assert!((1500..=1525).contains(&at), "as at the start: {:?}", rig.outcomes());
}

#[test]
fn nobody_answers_and_the_hold_runs_out() {
    let mut rig = Rig::booted();
    rig.loses(1).loses(2).loses(3);
    rig.stall(30_000);
    rig.mark();
    rig.run(60_000);
    assert_eq!(rig.outcomes(), ["0 hold", "5000 release"]);
}

#[test]
fn an_answer_from_before_the_stall_is_no_answer() {
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

#[test]
fn a_commit_that_was_under_way_begins_anew() {
    let mut rig = Rig::booted();
    rig.nodes.insert('B', Answer::Lost);
    rig.all_name('B', 6).run(1100);
    assert!(matches!(rig.machine.state(), MachineState::Committing { .. }));
    rig.stall(30_000);
    rig.mark();
    // Meanwhile it came to nothing.
    rig.all_name('A', 5).demotes('B', 'A').run(1000);
    assert_eq!(rig.outcomes_untimed(), ["release"]);
}

#[test]
fn without_a_target_there_is_still_none() {
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
fn whoever_polls_seldom_is_not_stalled() {
    let slow = MachineRules { poll: std::time::Duration::from_secs(4), ..MachineRules::default() };
    let mut rig = Rig::with(slow, 1);
    rig.run(60_000);
    assert_eq!(rig.warnings(Warning::Stalled), 0);
}

#[test]
fn a_stranger_that_speaks_first_after_a_long_stall_gains_nothing() {
    let mut rig = Rig::booted();
    rig.stall(3_600_000);
    rig.nodes.insert('D', master('D', "other", ""));
    rig.hears(9, view('D', 99, &[], &[]));
    assert_eq!(rig.machine.quorum(), (3, 2));
    rig.run(3000);
    assert!(rig.machine.committed().is_some_and(|it| it.addr == node('A')));
}

#[test]
fn restarted_old_master_needs_a_fresh_vote_after_a_stall() {
    for late in [0, 300, 1000, 4000] {
        let mut rig = Rig::booted();
        rig.loses(1).loses(2).loses(3);
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
        rig.finds(1).finds(2).finds(3).all_name('B', 6).run(2000);
        assert_eq!(rig.outcomes_untimed(), ["hold", "commit B@6 majority"], "{late} ms late");
    }
}
