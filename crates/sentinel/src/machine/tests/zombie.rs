//! Former masters, old epochs and old views: facts that are no longer true.

use super::rig::{Answer, Letter, Rig, lineage, master, ms, node};
use crate::machine::{MachineEvent, MachineState, VoteOutcome, Warning};
use crate::{NodeReport, Notice, Probe, ProbeFailure, Role};

/// B at epoch 6, committed two milliseconds after the switch; A is a zombie that still reports
/// `role:master`.
fn after_failover() -> Rig {
    let mut rig = Rig::booted();
    rig.promotes('B').all_name('B', 6).at(10).publishes(2, Notice::Switched { to: node('B') });
    rig.run(2000);
    assert_eq!(rig.outcomes_untimed().last().map(String::as_str), Some("commit B@6 majority"));
    rig.mark();
    rig
}

/// Another process, with other data, runs at this address.
fn restores(rig: &mut Rig, letter: Letter) {
    let Answer::Report(report) = master(letter, "", "") else { panic!("a report") };
    let lineage = Some(lineage("another process", &format!("history-{letter}"), "elsewhere"));
    rig.nodes.insert(letter, Answer::Report(NodeReport { lineage, ..report }));
}

#[test]
fn ignores_and_counts_stale_views() {
    let mut rig = after_failover();
    rig.names(3, 'A', 5).run(30_000);
    assert!(rig.outcomes().is_empty());
    assert!(rig.warnings(Warning::StaleView) >= 29);
    assert_eq!(
        *rig.machine.state(),
        MachineState::Stable,
        "one stale sentinel is no reason for suspicion"
    );
}

#[test]
fn ignores_stale_sentinel_that_answers_alone() {
    let mut rig = after_failover();
    rig.names(3, 'A', 5).disconnects(1).disconnects(2).run(120_000);
    assert!(rig.outcomes().is_empty());
    assert!(matches!(rig.machine.vote_outcome(), VoteOutcome::Regressed(claim) if !claim.majority));
}

#[test]
fn ignores_old_master_that_wakes_up() {
    for lineage in [true, false] {
        let mut rig = after_failover();
        rig.fails('A', ProbeFailure::Unresponsive).run(5000);
        rig.nodes.insert('A', master('A', "history-1", ""));
        if !lineage {
            rig.without_lineage();
        }
        rig.run(11_000);
        rig.demotes('A', 'B').run(5000);
        assert!(rig.outcomes().is_empty(), "{:?}", rig.outcomes());
    }
}

#[test]
fn outvotes_views_at_the_old_epoch() {
    let mut rig = Rig::booted();
    // The leader never shows the new epoch with the old address, since the address is queried with
    // get-master-addr-by-name.
    rig.promotes('B').names(1, 'B', 6).at(1500);
    assert!(
        !rig.outcomes_untimed().iter().any(|it| it.starts_with("commit")),
        "two of three still name the old one"
    );
    rig.names(2, 'B', 6).at(2600);
    assert_eq!(rig.outcomes_untimed().last().map(String::as_str), Some("commit B@6 majority"));
}

#[test]
fn follows_repeated_failovers_of_two_nodes() {
    let mut rig = after_failover();
    let mut epoch = 6;
    for (new, old) in [('A', 'B'), ('B', 'A'), ('A', 'B'), ('B', 'A')] {
        // The last one became a replica in an orderly way, and is promoted again.
        rig.demotes(new, old).run(3000);
        rig.mark();
        epoch += 1;
        rig.nodes.insert(new, master(new, &format!("h{epoch}"), &format!("h{}", epoch - 1)));
        rig.without_lineage();
        rig.change(1, |view| view.failing_over = true);
        rig.step(MachineEvent::ProbeConnectionLost { node: node(new) });
        rig.run(900);
        assert_eq!(
            rig.outcomes_untimed(),
            ["hold"],
            "its promotion is seen, though it was a zombie before"
        );
        rig.all_name(new, epoch).publishes(2, Notice::Switched { to: node(new) }).run(2000);
        assert_eq!(
            rig.outcomes_untimed(),
            ["hold".to_owned(), format!("commit {new}@{epoch} majority")]
        );
    }
}

#[test]
fn keeps_zombie_despite_older_replica_answer() {
    let mut rig = Rig::booted();
    rig.without_lineage();
    rig.nodes.insert('A', Answer::Lost);
    let asked_at = rig.now;
    rig.promotes('B')
        .without_lineage()
        .all_name('B', 6)
        .at(10)
        .publishes(2, Notice::Switched { to: node('B') });
    rig.run(100);
    rig.mark();
    // It was demoted for a moment long ago; now it is a zombie master.
    let role = Role::Replica { master: node('C'), connected: true };
    let Answer::Report(report) = master('A', "", "") else { panic!("a report") };
    let old = NodeReport { role, lineage: None, ..report.clone() };
    rig.step(MachineEvent::Probed { node: node('A'), probe: Probe { asked_at, outcome: Ok(old) } });
    rig.nodes.insert('A', Answer::Report(NodeReport { lineage: None, ..report }));
    rig.run(5000);
    assert!(rig.outcomes().is_empty(), "{:?}", rig.outcomes());
}

/// A node that no sentinel lists is forgotten with its last answer. An answer that arrives when it
/// is listed again may be older than that one.
#[test]
fn ignores_answer_from_before_node_was_unlisted() {
    let mut rig = Rig::booted();
    let asked_at = rig.now;
    rig.run(100);
    for sentinel in 1..=3 {
        rig.change(sentinel, |it| it.replicas.retain(|replica| replica.addr != node('B')));
    }
    rig.run(3000);
    rig.nodes.insert('B', Answer::Lost);
    rig.all_name('A', 5).run(1100);
    let Answer::Report(report) = master('B', "history-B", "history-1") else { panic!("a report") };
    let probe = Probe { asked_at, outcome: Ok(report) };
    rig.step(MachineEvent::Probed { node: node('B'), probe });
    assert!(rig.outcomes().is_empty(), "{:?}", rig.outcomes());
    rig.promotes('B').run(2000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "release"], "a new answer counts");
}

#[test]
fn ignores_answer_overtaken_by_newer_one() {
    let mut rig = Rig::booted();
    let asked_at = rig.now;
    rig.run(2000);
    let Answer::Report(report) = master('A', "history-1", "") else { panic!("a report") };
    let demoted =
        NodeReport { role: Role::Replica { master: node('C'), connected: true }, ..report };
    rig.step(MachineEvent::Probed {
        node: node('A'),
        probe: Probe { asked_at, outcome: Ok(demoted.clone()) },
    });
    assert!(rig.outcomes().is_empty());
    rig.step(MachineEvent::Probed {
        node: node('A'),
        probe: Probe { asked_at: rig.now, outcome: Ok(demoted) },
    });
    assert_eq!(rig.outcomes_untimed(), ["clear Demoted"]);
}

#[test]
fn follows_monitor_at_another_address() {
    let mut rig = after_failover();
    restores(&mut rig, 'C');
    rig.all_name('C', 0).run(9500);
    assert!(
        !rig.outcomes_untimed().iter().any(|it| it.starts_with("commit")),
        "a majority has to insist: {:?}",
        rig.outcomes()
    );
    rig.run(2500);
    assert_eq!(
        rig.outcomes_untimed().last().map(String::as_str),
        Some("commit C@0 epoch_regression")
    );
    // The epoch counts from there, also for an address that was superseded at a higher epoch
    // before.
    rig.demotes('A', 'C').run(3000);
    rig.nodes.insert('A', master('A', "history-A", "history-C"));
    rig.all_name('A', 1).run(2000);
    assert_eq!(rig.outcomes_untimed().last().map(String::as_str), Some("commit A@1 majority"));
}

#[test]
fn restarts_grace_of_interrupted_regression() {
    let mut rig = after_failover();
    restores(&mut rig, 'C');
    rig.all_name('C', 0).run(9000);
    rig.all_name('B', 6).run(2000);
    rig.all_name('C', 0).run(9000);
    assert!(
        !rig.outcomes_untimed().iter().any(|it| it.starts_with("commit")),
        "{:?}",
        rig.outcomes()
    );
}

#[test]
fn adopts_monitor_at_the_same_address() {
    let mut rig = after_failover();
    rig.demotes('A', 'B').all_name('B', 0).run(15_000);
    assert!(rig.outcomes().is_empty());
    assert_eq!(rig.machine.committed().map(|it| it.epoch), Some(0));
    rig.nodes.insert('C', master('C', "history-C", "history-B"));
    rig.all_name('C', 1).run(2000);
    assert_eq!(rig.outcomes_untimed().last().map(String::as_str), Some("commit C@1 majority"));
}

#[test]
fn follows_regression_at_once_if_master_is_gone() {
    let mut rig = after_failover();
    rig.nodes.insert('A', master('A', "history-1", ""));
    // The promotion was undone: the others never learned of it, and made the node a replica of the
    // old master.
    rig.demotes('B', 'A').names(2, 'A', 5).names(3, 'A', 5).disconnects(1);
    rig.run(7000);
    assert_eq!(
        rig.outcomes_untimed(),
        ["clear Demoted", "commit A@5 epoch_regression"],
        "{:?}",
        rig.outcomes()
    );
}

#[test]
fn requires_insistence_to_return_at_same_epoch() {
    let mut rig = Rig::new();
    rig.all_name('A', 0).run(3000);
    rig.mark();
    rig.promotes('B').all_name('B', 0).run(2000);
    assert_eq!(rig.outcomes_untimed().last().map(String::as_str), Some("commit B@0 majority"));
    // Back to A, at the very epoch that superseded it: only if the majority insists.
    rig.mark();
    rig.all_name('A', 0).run(9000);
    assert!(
        !rig.outcomes_untimed().iter().any(|it| it.starts_with("commit")),
        "{:?}",
        rig.outcomes()
    );
    rig.run(3000);
    assert_eq!(
        rig.outcomes_untimed().last().map(String::as_str),
        Some("commit A@0 epoch_regression")
    );
    assert!(!rig.machine.is_holding(), "B was promoted from A, but is a former master");
}

#[test]
fn keeps_master_and_warns_on_split() {
    let mut rig = Rig::booted();
    rig.names(1, 'B', 5).disconnects(3).promotes('B').at(20_000);
    assert!(
        !rig.outcomes_untimed()
            .iter()
            .any(|it| it.starts_with("commit") || it.starts_with("clear")),
        "{:?}",
        rig.outcomes()
    );
    assert_eq!(rig.warnings(Warning::Split), 1);
    rig.reconnects(3).names(3, 'B', 5).run(2000);
    assert_eq!(
        rig.outcomes_untimed().last().map(String::as_str),
        Some("commit B@5 majority"),
        "a majority decides"
    );
}

#[test]
fn requires_a_vote_for_the_current_master() {
    let mut rig = Rig::booted();
    rig.disconnects(2).disconnects(3).at(6000).demotes('A', 'B').run(100);
    assert_eq!(rig.outcomes_untimed().last().map(String::as_str), Some("clear Demoted"));
    rig.names(1, 'C', 5).run(6000);
    rig.mark();
    rig.nodes.insert('A', master('A', "history-1", ""));
    rig.run(20_000);
    assert!(rig.outcomes().is_empty(), "one against, none for: {:?}", rig.outcomes());
}

#[test]
fn bounds_records_of_former_masters() {
    let mut rig = Rig::booted();
    for epoch in 6..300_u32 {
        let letter = char::from_u32(0x400 + epoch).expect("a letter");
        rig.nodes.insert(letter, master(letter, &format!("h{epoch}"), &format!("h{}", epoch - 1)));
        rig.all_name(letter, u64::from(epoch))
            .publishes(2, Notice::Switched { to: node(letter) })
            .run(5);
    }
    assert_eq!(rig.machine.committed().map(|it| it.epoch), Some(299));
    assert!(rig.machine.nodes.superseded.len() <= 64);
    assert!(rig.machine.succession.is_bounded());
    rig.now += ms(1);
}

#[test]
fn keeps_healthy_master_if_all_files_are_lost() {
    // Before the first failover the epochs are equal; later, that of the reset sentinels is lower.
    let mut rig = Rig::new();
    rig.all_name('A', 0).run(3000);
    rig.mark();
    rig.all_name('B', 0).run(300_000);
    assert!(rig.outcomes().is_empty(), "{:?}", rig.outcomes());
    assert_eq!(rig.warnings(Warning::RegressionUnverified), 1);
    let mut rig = Rig::booted();
    // All sentinels return without their files, with new identities, and were given a replica's
    // address.
    rig.disconnects(1).disconnects(2).disconnects(3);
    for sentinel in [31, 32, 33] {
        let peers: Vec<u8> = [31, 32, 33].into_iter().filter(|peer| *peer != sentinel).collect();
        rig.sentinels.insert(sentinel, super::rig::view('B', 0, &peers, &[]));
    }
    rig.run(300_000);
    assert!(rig.outcomes().is_empty(), "{:?}", rig.outcomes());
    assert_eq!(rig.warnings(Warning::Stranger), 1);
    // They are followed once the committed master is gone and the named node is one.
    rig.nodes.remove(&'A');
    rig.promotes('B').run(11_000);
    assert_eq!(
        rig.outcomes_untimed().last().map(String::as_str),
        Some("commit B@0 epoch_regression")
    );
}
