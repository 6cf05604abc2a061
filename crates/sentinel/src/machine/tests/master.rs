//! What becomes of the committed master itself.

use super::rig::{Answer, Rig, dialled, master, node};
use crate::machine::{Action, Event, Lack, Note, State};
use crate::{Notice, ProbeFailure, Report};

fn report(letter: char) -> Report {
    match master(letter, "history-1", "") {
        Answer::Report(report) => report,
        other => panic!("{other:?}"),
    }
}

#[test]
fn demoted() {
    let mut rig = Rig::booted();
    rig.demotes('A', 'B').at(20_000);
    assert_eq!(
        rig.deeds(),
        ["clear Demoted"],
        "the sentinels still name it, but it does not verify"
    );
    rig.nodes.insert('A', master('A', "history-1", ""));
    rig.run(300);
    assert_eq!(rig.deeds(), ["clear Demoted", "commit A@5 Again"]);
}

#[test]
fn demoted_while_its_successor_is_verified() {
    let mut rig = Rig::booted();
    rig.nodes.insert('B', Answer::Lost);
    rig.all_name('B', 6).says(2, Notice::Switched { to: node('B') }).run(50);
    rig.demotes('A', 'B').run(100);
    assert_eq!(rig.deeds(), ["hold", "clear Demoted"]);
    let State::Committing { evidence_at, .. } = rig.machine.state() else {
        panic!("{:?}", rig.machine.state())
    };
    assert!(
        rig.now.duration_since(*evidence_at).as_millis() >= 140,
        "the verification goes on, it does not begin anew"
    );
    // The claim falls: back to no master, and not to a calm without one.
    rig.all_name('A', 5).run(2000);
    assert!(matches!(rig.machine.state(), State::NoMaster { .. }), "{:?}", rig.machine.state());
    rig.nodes.insert('A', master('A', "history-1", ""));
    rig.run(300);
    assert_eq!(rig.deeds().last().map(String::as_str), Some("commit A@5 Again"));
}

#[test]
fn unreachable_and_back_is_the_same_generation() {
    let mut rig = Rig::booted();
    rig.fails('A', ProbeFailure::Unreachable).at(10_000);
    assert_eq!(rig.deeds(), ["hold"]);
    assert!(matches!(rig.machine.state(), State::NoMaster { lack: Lack::Unreachable, .. }));
    rig.nodes.insert('A', Answer::Report(report('A')));
    rig.run(3000);
    assert_eq!(rig.deeds(), ["hold", "release"]);
    assert_eq!(*rig.machine.state(), State::Stable);
}

#[test]
fn unreachable_for_a_moment_is_nothing() {
    let mut rig = Rig::booted();
    for _ in 0..20 {
        rig.fails('A', ProbeFailure::Unreachable).run(900);
        rig.nodes.insert('A', Answer::Report(report('A')));
        rig.run(300);
    }
    assert!(rig.told().is_empty(), "{:?}", rig.told());
}

#[test]
fn hung_is_not_gone() {
    for answer in [Answer::Failure(ProbeFailure::Unresponsive), Answer::Lost] {
        let mut rig = Rig::booted();
        rig.nodes.insert('A', answer);
        rig.at(600_000);
        assert!(
            rig.told().is_empty(),
            "a server busy with a long command accepts connections and stays silent"
        );
    }
}

#[test]
fn not_allowed_to_ask_is_not_gone_either() {
    let mut rig = Rig::booted();
    rig.fails('A', ProbeFailure::Denied).at(600_000);
    assert!(rig.told().is_empty());
    assert_eq!(*rig.machine.state(), State::Stable);
    // Restarted with another password: somebody is there again, and that is all that was missing.
    rig.fails('A', ProbeFailure::Unreachable).run(3000);
    rig.fails('A', ProbeFailure::Denied).run(3000);
    assert_eq!(rig.deeds(), ["hold", "release"]);
}

#[test]
fn back_but_still_loading_stays_held() {
    let mut rig = Rig::booted();
    rig.fails('A', ProbeFailure::Unreachable).run(3000);
    rig.nodes.insert('A', Answer::Report(Report { pong: false, ..report('A') }));
    rig.run(3000);
    assert_eq!(rig.deeds(), ["hold"]);
    rig.nodes.insert('A', Answer::Report(report('A')));
    rig.run(300);
    assert_eq!(rig.deeds(), ["hold", "release"]);
}

fn restarted(letter: char) -> Answer {
    let mut report = report(letter);
    let lineage = report.lineage.as_mut().expect("a lineage");
    (lineage.run_id, lineage.replid) = ("another process".into(), "another history".into());
    Answer::Report(report)
}

#[test]
fn another_process_on_the_same_address_is_verified_again_and_cuts_the_sessions() {
    let mut rig = Rig::booted();
    rig.nodes.insert('A', restarted('A'));
    rig.at(5000);
    assert_eq!(rig.deeds(), ["hold", "commit A@5 Again"]);
    assert_eq!(rig.notes(Note::Rebooted), 1);
    assert_eq!(rig.notes(Note::LineageBroken), 1);
}

#[test]
fn a_restart_in_the_middle_of_a_failover_does_not_open_the_gate() {
    let mut rig = Rig::booted();
    rig.selects(1, 'B');
    rig.nodes.insert('A', restarted('A'));
    rig.at(1000);
    assert_eq!(rig.told(), ["0 hold"]);
    rig.says(1, Notice::Aborted).run(300);
    assert_eq!(rig.deeds(), ["hold", "commit A@5 Again"]);
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
    assert_eq!(rig.deeds(), ["redirect 10.0.0.90:6379"], "once, and no session is cut");
    answers_at(&mut rig, 'A');
    rig.run(3000);
    assert_eq!(rig.deeds(), ["redirect 10.0.0.90:6379", "redirect 10.0.0.65:6379"]);
}

#[test]
fn commits_anew_at_other_address_of_unknown_process() {
    let mut rig = Rig::booted();
    rig.without_lineage();
    rig.run(1000);
    answers_at(&mut rig, 'Z');
    rig.run(3000);
    let moved = rig
        .log
        .iter()
        .any(|(_, it)| matches!(it, Action::Commit(it) if it.dialled == dialled('Z')));
    assert!(moved, "{:?}", rig.told());
    assert_eq!(rig.deeds(), ["hold", "commit A@5 Again"], "and once is enough");
}

#[test]
fn all_sentinels_silent_for_an_hour_and_the_master_stays() {
    let mut rig = Rig::booted();
    rig.loses(1).loses(2).loses(3).at(3_600_000);
    assert!(rig.told().is_empty());
    assert!(rig.probes('A') > 7000, "it is still asked twice a second");
    assert_eq!(*rig.machine.state(), State::Stable);
    rig.mark();
    rig.finds(1).finds(2).finds(3).promotes('B').all_name('B', 6).run(2000);
    assert_eq!(rig.deeds().last().map(String::as_str), Some("commit B@6 Majority"));
}

#[test]
fn nobody_says_anything_at_all_any_more_and_nothing_happens() {
    let mut rig = Rig::booted();
    rig.loses(1).loses(2).loses(3);
    for letter in ['A', 'B', 'C'] {
        rig.nodes.insert(letter, Answer::Lost);
    }
    rig.at(3_600_000);
    assert!(rig.told().is_empty());
}

#[test]
fn suspicion_ends_by_itself() {
    let mut rig = Rig::booted();
    for event in [Event::Hint, Event::CanaryLost { node: node('A') }] {
        rig.step(event);
        assert!(matches!(rig.machine.state(), State::Suspect { .. }));
        rig.run(1100);
        assert_eq!(*rig.machine.state(), State::Stable);
    }
    rig.says(1, Notice::Trouble).run(1100);
    assert_eq!(*rig.machine.state(), State::Stable);
    rig.change(1, |it| it.down = true).run(30_000);
    assert!(
        matches!(rig.machine.state(), State::Suspect { .. }),
        "as long as somebody says it is down"
    );
    rig.change(1, |it| it.tilt = true).run(3000);
    assert_eq!(*rig.machine.state(), State::Stable, "in TILT that means nothing");
    assert!(rig.told().is_empty());
}

#[test]
fn long_suspicion_is_patient() {
    let mut rig = Rig::booted();
    rig.change(1, |it| it.down = true).run(20_000);
    rig.mark();
    rig.run(10_000);
    assert!(rig.probes('A') <= 51, "five a second after a while: {}", rig.probes('A'));
}
