//! Which nodes have the data of the committed master, and which get a password.

use super::rig::{Answer, Letter, Rig, lineage, master, node, replica, view};
use crate::ProbeFailure;
use crate::machine::{MachineAction, Trust, Warning};

/// Whether each commit closed the sessions of the former master.
fn closes(rig: &Rig) -> Vec<bool> {
    let commits = rig.log.iter().filter_map(|(_, action)| match action {
        MachineAction::Commit(commit) => Some(commit.new_lineage),
        _ => None,
    });
    commits.collect()
}

fn with_lineage(answer: Answer, run_id: &str, replid: &str, replid2: &str) -> Answer {
    let Answer::Report(mut report) = answer else { return answer };
    report.lineage = Some(lineage(run_id, replid, replid2));
    Answer::Report(report)
}

/// A, B, C at the time when B and C have followed A, and were promoted one after the other.
fn fails_over_twice(rig: &mut Rig) {
    for letter in ['A', 'B'] {
        let process = format!("process-{letter}");
        let follows = replica(letter, 'C', "");
        rig.nodes.insert(letter, with_lineage(follows, &process, "history-3", "history-2"));
    }
    rig.nodes.insert('C', master('C', "history-3", "history-2"));
}

#[test]
fn carries_over_two_unseen_failovers() {
    for suspended in [false, true] {
        let mut rig = Rig::booted();
        rig.run(10_000);
        fails_over_twice(&mut rig);
        rig.all_name('C', 7);
        if suspended {
            rig.stall(20_000);
        }
        rig.run(3000);
        assert_eq!(rig.outcomes_untimed().last().map(String::as_str), Some("commit C@7 majority"));
        assert_eq!((closes(&rig).last(), rig.warnings(Warning::LineageBroken)), (Some(&false), 0));
    }
}

#[test]
fn follows_history_that_a_replica_showed_between() {
    let mut rig = Rig::booted();
    // C has left A for B, and then another process takes its place.
    let follows = with_lineage(replica('C', 'B', ""), "process-C", "history-2", "history-1");
    rig.nodes.insert('C', follows);
    rig.run(10_000);
    rig.nodes.insert('C', with_lineage(master('C', "", ""), "new", "history-3", "history-2"));
    rig.all_name('C', 7).run(3000);
    assert_eq!((closes(&rig), rig.warnings(Warning::LineageBroken)), (vec![false], 0));
}

#[test]
fn closes_sessions_for_another_process_with_other_data() {
    let mut rig = Rig::booted();
    rig.run(10_000);
    fails_over_twice(&mut rig);
    rig.nodes.insert('C', with_lineage(master('C', "", ""), "new", "history-3", "history-2"));
    rig.all_name('C', 7).run(3000);
    assert_eq!((closes(&rig), rig.warnings(Warning::LineageBroken)), (vec![true], 1));
}

#[test]
fn closes_sessions_for_replica_that_followed_strangers() {
    let mut rig = Rig::booted();
    rig.run(10_000);
    let follows = with_lineage(replica('C', 'X', ""), "process-C", "strange-1", "strange-0");
    rig.nodes.insert('C', follows);
    rig.run(10_000);
    rig.nodes.insert('C', master('C', "strange-2", "strange-1"));
    rig.all_name('C', 7).run(3000);
    assert_eq!((closes(&rig), rig.warnings(Warning::LineageBroken)), (vec![true], 1));
}

#[test]
fn carries_to_branch_of_the_history_and_warns() {
    let mut rig = Rig::booted();
    rig.promotes('B').all_name('B', 6).run(3000);
    // C never followed B, and has lost what B wrote.
    rig.nodes.insert('C', with_lineage(master('C', "", ""), "new", "history-9", "history-1"));
    rig.all_name('C', 7).run(3000);
    let warnings = rig.warnings(Warning::LineageBroken);
    assert_eq!((closes(&rig), warnings), (vec![false, false], 1), "{:?}", rig.outcomes());
}

#[test]
fn carries_without_readable_history_to_listed_replicas_only() {
    for (letter, closed) in [('B', false), ('D', true)] {
        let mut rig = Rig::booted();
        rig.run(10_000);
        rig.nodes.insert('D', master('D', "history-9", ""));
        rig.promotes('B').without_lineage().all_name(letter, 6).run(3000);
        let warned = rig.warnings(Warning::HistoryUnknown);
        assert_eq!((closes(&rig), warned), (vec![closed], usize::from(closed)), "{letter}");
    }
}

#[test]
fn one_of_three_lists_no_replica_of_the_family() {
    let mut rig = Rig::booted();
    let listed = crate::ReplicaView { addr: node('D'), healthy: true };
    rig.change(1, |it| it.replicas.push(listed.clone()));
    rig.nodes.insert('D', master('D', "history-9", ""));
    rig.run(10_000);
    assert_eq!(rig.machine.trust(&node('D')), Trust::Stranger);
    rig.without_lineage().all_name('D', 6).run(3000);
    assert_eq!(closes(&rig), [true]);
}

#[test]
fn trusts_master_and_what_a_majority_names_or_lists() {
    let mut rig = Rig::booted();
    rig.nodes.insert('D', master('D', "history-9", ""));
    rig.run(10_000);
    let trust = |rig: &Rig, letter: Letter| rig.machine.trust(&node(letter));
    assert_eq!(trust(&rig, 'A'), Trust::Committed);
    assert!(matches!(trust(&rig, 'B'), Trust::Shown(_)), "{:?}", trust(&rig, 'B'));
    assert_eq!(trust(&rig, 'D'), Trust::Stranger);
    rig.change(1, |it| (it.addr, it.epoch) = (node('D'), 9)).run(2000);
    assert_eq!(trust(&rig, 'D'), Trust::Stranger);
    rig.disconnects(2).disconnects(3).run(60_000);
    assert_eq!(trust(&rig, 'D'), Trust::Stranger, "one of three is no majority");
    rig.reconnects(2).reconnects(3);
    rig.change(2, |it| (it.addr, it.epoch) = (node('D'), 9));
    rig.run(20);
    assert_ne!(trust(&rig, 'D'), Trust::Stranger);
}

#[test]
fn trusts_no_node_of_the_first_answer_of_a_start() {
    let mut rig = Rig::new();
    rig.nodes.insert('X', master('X', "forged", ""));
    rig.disconnects(2).disconnects(3).change(1, |it| *it = view('X', 99, &[2, 3], &['Y']));
    rig.run(500);
    for letter in ['X', 'Y'] {
        assert_eq!(rig.machine.trust(&node(letter)), Trust::Stranger, "{letter}");
    }
    rig.reconnects(2).reconnects(3).run(5000);
    assert_eq!(rig.outcomes_untimed(), ["commit A@5 majority"]);
    assert_eq!(rig.machine.trust(&node('X')), Trust::Stranger);
}

#[test]
fn trusts_no_node_of_the_last_configured_sentinel() {
    let mut rig = Rig::booted();
    rig.run(10_000);
    rig.disconnects(2).disconnects(3);
    rig.change(1, |it| it.replicas = view('A', 5, &[], &['B', 'C', 'X']).replicas).run(60_000);
    assert_eq!(rig.machine.trust(&node('X')), Trust::Stranger);
    let b = rig.machine.trust(&node('B'));
    assert!(matches!(b, Trust::Shown(_)), "it has shown the history: {b:?}");
}

/// The address of B, a known replica, is taken over. Sentinels show the `run_id` of each node, so
/// that of B proves nothing.
#[test]
fn trusts_no_known_address_more_than_its_last_answer() {
    let others = [
        with_lineage(master('B', "", ""), "new", "foreign-2", "foreign-1"),
        with_lineage(master('B', "", ""), "process-B", "foreign-2", "foreign-1"),
        with_lineage(replica('B', 'A', ""), "process-B", "foreign-2", ""),
        Answer::Failure(ProbeFailure::Denied),
    ];
    for other in others {
        let mut rig = Rig::booted();
        rig.run(5000);
        let before = rig.now;
        let shown = rig.machine.trust(&node('B'));
        assert!(matches!(shown, Trust::Shown(at) if at < before), "{shown:?}");
        rig.nodes.insert('B', other.clone());
        rig.run(5000);
        assert_eq!(rig.machine.trust(&node('B')), Trust::Vouched, "{other:?}");
        rig.nodes.insert('B', replica('B', 'A', "history-1"));
        rig.run(5000);
        let again = rig.machine.trust(&node('B'));
        assert!(matches!(again, Trust::Shown(at) if at > before), "{again:?}");
    }
}

/// One sentinel that answers names C, where another process shows the `run_id` of the replica and
/// data that no other node has seen.
#[test]
fn run_id_of_a_replica_proves_nothing_to_one_sentinel() {
    let mut rig = Rig::booted();
    rig.run(10_000);
    let forged = with_lineage(master('C', "", ""), "process-C", "forged-2", "forged-1");
    rig.nodes.insert('C', forged);
    rig.disconnects(2).disconnects(3).names(1, 'C', 7);
    rig.mark();
    rig.run(30_000);
    assert!(
        !rig.outcomes_untimed().iter().any(|it| it.starts_with("commit C")),
        "{:?}",
        rig.outcomes()
    );
    // Once most of the configured sentinels name it, it has followed masters that were not seen.
    rig.reconnects(2).names(2, 'C', 7).run(3000);
    assert_eq!(rig.outcomes_untimed().last().map(String::as_str), Some("commit C@7 majority"));
    assert_eq!(closes(&rig), [false]);
}
