//! State changes of the committed master itself.

use super::rig::{Answer, Rig, dialled, master, node};
use crate::machine::{MachineAction, MachineEvent, MachineState, NoMasterReason, Warning};
use crate::{NodeReport, Notice, PingReply, ProbeFailure};

fn report(letter: char) -> NodeReport {
    match master(letter, "history-1", "") {
        Answer::Report(report) => report,
        other => panic!("{other:?}"),
    }
}

#[test]
fn clears_demoted_master() {
    let mut rig = Rig::booted();
    rig.demotes('A', 'B').at(20_000);
    assert_eq!(
        rig.outcomes_untimed(),
        ["clear Demoted"],
        "the sentinels still name it, but it does not verify"
    );
    rig.nodes.insert('A', master('A', "history-1", ""));
    rig.run(300);
    assert_eq!(rig.outcomes_untimed(), ["clear Demoted", "commit A@5 reconfirmed"]);
}

#[test]
fn continues_verification_when_master_is_demoted() {
    let mut rig = Rig::booted();
    rig.nodes.insert('B', Answer::Lost);
    rig.all_name('B', 6).publishes(2, Notice::Switched { to: node('B') }).run(50);
    rig.demotes('A', 'B').run(100);
    assert_eq!(rig.outcomes_untimed(), ["hold", "clear Demoted"]);
    let MachineState::Committing { evidence_at, .. } = rig.machine.state() else {
        panic!("{:?}", rig.machine.state())
    };
    assert!(
        rig.now.duration_since(*evidence_at).as_millis() >= 140,
        "the verification continues and does not restart"
    );
    // The claim is dropped: back to no master, and not to `stable` without one.
    rig.all_name('A', 5).run(2000);
    assert!(
        matches!(rig.machine.state(), MachineState::NoMaster { .. }),
        "{:?}",
        rig.machine.state()
    );
    rig.nodes.insert('A', master('A', "history-1", ""));
    rig.run(300);
    assert_eq!(rig.outcomes_untimed().last().map(String::as_str), Some("commit A@5 reconfirmed"));
}

#[test]
fn keeps_generation_when_unreachable_master_returns() {
    let mut rig = Rig::booted();
    rig.fails('A', ProbeFailure::Unreachable).at(10_000);
    assert_eq!(rig.outcomes_untimed(), ["hold"]);
    assert!(matches!(
        rig.machine.state(),
        MachineState::NoMaster { reason: NoMasterReason::Unreachable, .. }
    ));
    rig.nodes.insert('A', Answer::Report(report('A')));
    rig.run(3000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "release"]);
    assert_eq!(*rig.machine.state(), MachineState::Stable);
}

#[test]
fn ignores_short_unreachability() {
    let mut rig = Rig::booted();
    for _ in 0..20 {
        rig.fails('A', ProbeFailure::Unreachable).run(900);
        rig.nodes.insert('A', Answer::Report(report('A')));
        rig.run(300);
    }
    assert!(rig.outcomes().is_empty(), "{:?}", rig.outcomes());
}

#[test]
fn keeps_unresponsive_master() {
    for answer in [Answer::Failure(ProbeFailure::Unresponsive), Answer::Lost] {
        let mut rig = Rig::booted();
        rig.nodes.insert('A', answer);
        rig.at(600_000);
        assert!(
            rig.outcomes().is_empty(),
            "a server busy with a long command accepts connections and stays silent"
        );
    }
}

#[test]
fn keeps_master_that_denies_probes() {
    let mut rig = Rig::booted();
    rig.fails('A', ProbeFailure::Denied).at(600_000);
    assert!(rig.outcomes().is_empty());
    assert_eq!(*rig.machine.state(), MachineState::Stable);
    // Restarted with another password: a server is present again, which is sufficient.
    rig.fails('A', ProbeFailure::Unreachable).run(3000);
    rig.fails('A', ProbeFailure::Denied).run(3000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "release"]);
}

#[test]
fn holds_while_master_is_loading() {
    let mut rig = Rig::booted();
    rig.fails('A', ProbeFailure::Unreachable).run(3000);
    rig.nodes.insert('A', Answer::Report(NodeReport { ping: PingReply::Loading, ..report('A') }));
    rig.run(3000);
    assert_eq!(rig.outcomes_untimed(), ["hold"]);
    rig.nodes.insert('A', Answer::Report(report('A')));
    rig.run(300);
    assert_eq!(rig.outcomes_untimed(), ["hold", "release"]);
}

fn restarted(letter: char) -> Answer {
    let mut report = report(letter);
    let lineage = report.lineage.as_mut().expect("a lineage");
    (lineage.run_id, lineage.replid) = ("another process".into(), "another history".into());
    Answer::Report(report)
}

#[test]
fn commits_restarted_master_again() {
    let mut rig = Rig::booted();
    rig.nodes.insert('A', restarted('A'));
    rig.at(5000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit A@5 reconfirmed"]);
    assert_eq!(rig.warnings(Warning::Rebooted), 1);
    assert_eq!(rig.warnings(Warning::LineageBroken), 1);
}

#[test]
fn holds_from_end_of_process_until_an_answer() {
    let mut rig = Rig::booted();
    rig.fails('A', ProbeFailure::Unreachable);
    rig.step(MachineEvent::ProbeConnectionLost { node: node('A') });
    rig.run(20);
    assert!(rig.machine.is_holding());
    rig.nodes.insert('A', restarted('A'));
    rig.run(5000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit A@5 reconfirmed"]);
    // The connection was killed, and the process is there.
    for answer in [
        Answer::Report(report('A')),
        Answer::Failure(ProbeFailure::Denied),
        Answer::Failure(ProbeFailure::Busy),
        Answer::Failure(ProbeFailure::ConnectionRejected),
        Answer::Failure(ProbeFailure::Unresponsive),
    ] {
        let mut rig = Rig::booted();
        rig.nodes.insert('A', answer.clone());
        rig.step(MachineEvent::ProbeConnectionLost { node: node('A') });
        rig.run(3000);
        assert!(rig.outcomes().is_empty(), "{answer:?}");
    }
    // Only a dial was lost.
    let mut rig = Rig::booted();
    rig.step(MachineEvent::ProbeConnectionLost { node: node('A') });
    rig.fails('A', ProbeFailure::Unreachable).run(500);
    rig.nodes.insert('A', Answer::Report(report('A')));
    rig.run(1000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "release"]);
}

#[test]
fn holds_while_another_process_is_loading() {
    let mut rig = Rig::booted();
    let Answer::Report(report) = restarted('A') else { panic!("a report") };
    let loading = NodeReport { ping: PingReply::Loading, ..report.clone() };
    rig.nodes.insert('A', Answer::Report(loading));
    rig.step(MachineEvent::ProbeConnectionLost { node: node('A') });
    rig.run(10_000);
    assert_eq!(rig.outcomes_untimed(), ["hold"]);
    rig.nodes.insert('A', Answer::Report(report));
    rig.run(5000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit A@5 reconfirmed"]);
}

#[test]
fn keeps_holding_when_master_restarts_in_failover() {
    let mut rig = Rig::booted();
    rig.selects(1, 'B');
    rig.nodes.insert('A', restarted('A'));
    rig.at(1000);
    assert_eq!(rig.outcomes(), ["0 hold"]);
    rig.publishes(1, Notice::Aborted).run(300);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit A@5 reconfirmed"]);
}

fn answers_at(rig: &mut Rig, letter: char) {
    let Some(Answer::Report(report)) = rig.nodes.get_mut(&'A') else { panic!("a report") };
    report.dialled = dialled(letter);
}

#[test]
fn redirects_to_other_address_of_same_process() {
    let mut rig = Rig::booted();
    answers_at(&mut rig, 'Z');
    rig.run(3000);
    assert_eq!(rig.outcomes_untimed(), ["redirect 10.0.0.90:6379"], "once, and no session is cut");
    answers_at(&mut rig, 'A');
    rig.run(3000);
    assert_eq!(rig.outcomes_untimed(), ["redirect 10.0.0.90:6379", "redirect 10.0.0.65:6379"]);
}

#[test]
fn commits_again_at_other_address_of_unknown_process() {
    let mut rig = Rig::booted();
    rig.without_lineage();
    rig.run(1000);
    answers_at(&mut rig, 'Z');
    rig.run(3000);
    let moved = rig
        .log
        .iter()
        .any(|(_, it)| matches!(it, MachineAction::Commit(it) if it.dialled == dialled('Z')));
    assert!(moved, "{:?}", rig.outcomes());
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit A@5 reconfirmed"], "and once is enough");
}

#[test]
fn keeps_master_while_all_sentinels_are_silent() {
    let mut rig = Rig::booted();
    rig.disconnects(1).disconnects(2).disconnects(3).at(3_600_000);
    assert!(rig.outcomes().is_empty());
    assert!(rig.probes('A') > 7000, "it is still probed twice per second");
    assert_eq!(*rig.machine.state(), MachineState::Stable);
    rig.mark();
    rig.reconnects(1).reconnects(2).reconnects(3).promotes('B').all_name('B', 6).run(2000);
    assert_eq!(rig.outcomes_untimed().last().map(String::as_str), Some("commit B@6 majority"));
}

#[test]
fn does_nothing_without_any_input() {
    let mut rig = Rig::booted();
    rig.disconnects(1).disconnects(2).disconnects(3);
    for letter in ['A', 'B', 'C'] {
        rig.nodes.insert(letter, Answer::Lost);
    }
    rig.at(3_600_000);
    assert!(rig.outcomes().is_empty());
}

#[test]
fn ends_suspicion_without_new_signs() {
    let mut rig = Rig::booted();
    for event in [MachineEvent::Hint, MachineEvent::ProbeConnectionLost { node: node('A') }] {
        rig.step(event);
        assert!(matches!(rig.machine.state(), MachineState::Suspect { .. }));
        rig.run(1100);
        assert_eq!(*rig.machine.state(), MachineState::Stable);
    }
    rig.publishes(1, Notice::Trouble).run(1100);
    assert_eq!(*rig.machine.state(), MachineState::Stable);
    rig.change(1, |it| it.down = true).run(30_000);
    assert!(
        matches!(rig.machine.state(), MachineState::Suspect { .. }),
        "as long as a sentinel reports it down"
    );
    rig.change(1, |it| it.tilt = true).run(3000);
    assert_eq!(*rig.machine.state(), MachineState::Stable, "meaningless in TILT");
    assert!(rig.outcomes().is_empty());
}

#[test]
fn slows_probes_during_long_suspicion() {
    let mut rig = Rig::booted();
    rig.change(1, |it| it.down = true).run(20_000);
    rig.mark();
    rig.run(10_000);
    assert!(rig.probes('A') <= 51, "five per second after a while: {}", rig.probes('A'));
}
