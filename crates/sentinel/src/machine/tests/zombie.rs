//! Old masters, old epochs and old views: what was true once and is not any more.

use super::rig::{Answer, Rig, master, ms, node};
use crate::machine::{Event, Finding, Note, State};
use crate::{Notice, Probe, ProbeFailure, Report, Role};

/// B at epoch 6, committed two milliseconds after the switch; A is a zombie that calls itself
/// master.
fn after_failover() -> Rig {
    let mut rig = Rig::booted();
    rig.promotes('B').all_name('B', 6).at(10).says(2, Notice::Switched { to: node('B') });
    rig.run(2000);
    assert_eq!(rig.deeds().last().map(String::as_str), Some("commit B@6 Majority"));
    rig.mark();
    rig
}

#[test]
fn a_stale_sentinel_is_ignored_and_counted_though_the_old_master_says_master() {
    let mut rig = after_failover();
    rig.names(3, 'A', 5).run(30_000);
    assert!(rig.told().is_empty());
    assert!(rig.notes(Note::StaleView) >= 29);
    assert_eq!(
        *rig.machine.state(),
        State::Stable,
        "one stale sentinel is no reason for suspicion"
    );
}

#[test]
fn a_stale_sentinel_alone_after_the_others_fell_silent_is_ignored_too() {
    let mut rig = after_failover();
    rig.names(3, 'A', 5).loses(1).loses(2).run(120_000);
    assert!(rig.told().is_empty());
    assert!(matches!(rig.machine.finding(), Finding::Regressed(claim) if !claim.majority));
}

#[test]
fn an_old_master_that_wakes_up_holds_nothing_and_gets_nothing() {
    for lineage in [true, false] {
        let mut rig = after_failover();
        rig.fails('A', ProbeFailure::Unresponsive).run(5000);
        rig.nodes.insert('A', master('A', "history-1", ""));
        if !lineage {
            rig.without_lineage();
        }
        rig.run(11_000);
        rig.demotes('A', 'B').run(5000);
        assert!(rig.told().is_empty(), "{:?}", rig.told());
    }
}

#[test]
fn an_old_view_with_the_old_epoch_contradicts_and_is_then_outvoted() {
    let mut rig = Rig::booted();
    // The leader: the new epoch shows with the old address nowhere, since the address is asked from
    // get-master-addr.
    rig.promotes('B').names(1, 'B', 6).at(1500);
    assert!(
        !rig.deeds().iter().any(|it| it.starts_with("commit")),
        "two of three still name the old one"
    );
    rig.names(2, 'B', 6).at(2600);
    assert_eq!(rig.deeds().last().map(String::as_str), Some("commit B@6 Majority"));
}

#[test]
fn there_and_back_and_there_again() {
    let mut rig = after_failover();
    let mut epoch = 6;
    for (new, old) in [('A', 'B'), ('B', 'A'), ('A', 'B'), ('B', 'A')] {
        // The last one became a replica in good order, and is promoted again.
        rig.demotes(new, old).run(3000);
        rig.mark();
        epoch += 1;
        rig.nodes.insert(new, master(new, &format!("h{epoch}"), &format!("h{}", epoch - 1)));
        rig.without_lineage();
        rig.step(Event::CanaryLost { node: node(new) });
        rig.run(900);
        assert_eq!(rig.deeds(), ["hold"], "its promotion is seen, though it was a zombie before");
        rig.all_name(new, epoch).says(2, Notice::Switched { to: node(new) }).run(2000);
        assert_eq!(rig.deeds(), ["hold".to_owned(), format!("commit {new}@{epoch} Majority")]);
    }
}

#[test]
fn an_answer_from_before_the_commit_does_not_absolve_a_zombie() {
    let mut rig = Rig::booted();
    rig.without_lineage();
    rig.nodes.insert('A', Answer::Lost);
    let asked_at = rig.now;
    rig.promotes('B')
        .without_lineage()
        .all_name('B', 6)
        .at(10)
        .says(2, Notice::Switched { to: node('B') });
    rig.run(100);
    rig.mark();
    // Somebody demoted it for a moment, long ago; now it is a zombie master.
    let role = Role::Replica { master: node('C'), connected: true };
    let Answer::Report(report) = master('A', "", "") else { panic!("a report") };
    let old = Report { role, lineage: None, ..report.clone() };
    rig.step(Event::Probed { node: node('A'), probe: Probe { asked_at, outcome: Ok(old) } });
    rig.nodes.insert('A', Answer::Report(Report { lineage: None, ..report }));
    rig.run(5000);
    assert!(rig.told().is_empty(), "{:?}", rig.told());
}

#[test]
fn an_answer_that_newer_ones_have_overtaken_is_history() {
    let mut rig = Rig::booted();
    let asked_at = rig.now;
    rig.run(2000);
    let Answer::Report(report) = master('A', "history-1", "") else { panic!("a report") };
    let demoted = Report { role: Role::Replica { master: node('C'), connected: true }, ..report };
    rig.step(Event::Probed {
        node: node('A'),
        probe: Probe { asked_at, outcome: Ok(demoted.clone()) },
    });
    assert!(rig.told().is_empty());
    rig.step(Event::Probed {
        node: node('A'),
        probe: Probe { asked_at: rig.now, outcome: Ok(demoted) },
    });
    assert_eq!(rig.deeds(), ["clear Demoted"]);
}

#[test]
fn removed_and_monitored_anew_at_another_address() {
    let mut rig = after_failover();
    rig.nodes.insert('C', master('C', "history-C", "history-B"));
    rig.all_name('C', 0).run(9500);
    assert!(
        !rig.deeds().iter().any(|it| it.starts_with("commit")),
        "a majority has to insist: {:?}",
        rig.told()
    );
    rig.run(2500);
    assert_eq!(rig.deeds().last().map(String::as_str), Some("commit C@0 Regress"));
    // Their clock counts from there: also for an address that was superseded at a higher epoch
    // before.
    rig.demotes('A', 'C').run(3000);
    rig.nodes.insert('A', master('A', "history-A", "history-C"));
    rig.all_name('A', 1).run(2000);
    assert_eq!(rig.deeds().last().map(String::as_str), Some("commit A@1 Majority"));
}

#[test]
fn a_regression_interrupted_does_not_count_its_grace_twice() {
    let mut rig = after_failover();
    rig.nodes.insert('C', master('C', "history-C", "history-B"));
    rig.all_name('C', 0).run(9000);
    rig.all_name('B', 6).run(2000);
    rig.all_name('C', 0).run(9000);
    assert!(!rig.deeds().iter().any(|it| it.starts_with("commit")), "{:?}", rig.told());
}

#[test]
fn removed_and_monitored_anew_at_the_same_address_cuts_nobody() {
    let mut rig = after_failover();
    rig.demotes('A', 'B').all_name('B', 0).run(15_000);
    assert!(rig.told().is_empty());
    assert_eq!(rig.machine.committed().map(|it| it.epoch), Some(0));
    rig.nodes.insert('C', master('C', "history-C", "history-B"));
    rig.all_name('C', 1).run(2000);
    assert_eq!(rig.deeds().last().map(String::as_str), Some("commit C@1 Majority"));
}

#[test]
fn a_regression_is_believed_at_once_where_the_master_is_bad() {
    let mut rig = after_failover();
    rig.nodes.insert('A', master('A', "history-1", ""));
    // The promotion was undone: the others never learnt of it, and made it a replica of the old
    // master.
    rig.demotes('B', 'A').names(2, 'A', 5).names(3, 'A', 5).loses(1);
    rig.run(7000);
    assert_eq!(rig.deeds(), ["clear Demoted", "commit A@5 Regress"], "{:?}", rig.told());
}

#[test]
fn monitored_back_and_forth_by_an_operator_that_never_raises_the_epoch() {
    let mut rig = Rig::new();
    rig.all_name('A', 0).run(3000);
    rig.mark();
    rig.promotes('B').all_name('B', 0).run(2000);
    assert_eq!(rig.deeds().last().map(String::as_str), Some("commit B@0 Majority"));
    // Back to A, at the very epoch that superseded it: only if they insist.
    rig.mark();
    rig.all_name('A', 0).run(9000);
    assert!(!rig.deeds().iter().any(|it| it.starts_with("commit")), "{:?}", rig.told());
    rig.run(3000);
    assert_eq!(rig.deeds().last().map(String::as_str), Some("commit A@0 Regress"));
}

#[test]
fn split_at_one_epoch_keeps_what_stands_and_says_so() {
    let mut rig = Rig::booted();
    rig.names(1, 'B', 5).loses(3).promotes('B').at(20_000);
    assert!(
        !rig.deeds().iter().any(|it| it.starts_with("commit") || it.starts_with("clear")),
        "{:?}",
        rig.told()
    );
    assert_eq!(rig.notes(Note::Split), 1);
    rig.finds(3).names(3, 'B', 5).run(2000);
    assert_eq!(
        rig.deeds().last().map(String::as_str),
        Some("commit B@5 Majority"),
        "a majority decides"
    );
}

#[test]
fn nobody_names_the_present_master_and_that_is_no_confirmation() {
    let mut rig = Rig::booted();
    rig.loses(2).loses(3).at(6000).demotes('A', 'B').run(100);
    assert_eq!(rig.deeds().last().map(String::as_str), Some("clear Demoted"));
    rig.names(1, 'C', 5).run(6000);
    rig.mark();
    rig.nodes.insert('A', master('A', "history-1", ""));
    rig.run(20_000);
    assert!(rig.told().is_empty(), "one against, none for: {:?}", rig.told());
}

#[test]
fn books_on_old_masters_are_bounded() {
    let mut rig = Rig::booted();
    for epoch in 6..300_u32 {
        let letter = char::from_u32(0x400 + epoch).expect("a letter");
        rig.nodes.insert(letter, master(letter, &format!("h{epoch}"), &format!("h{}", epoch - 1)));
        rig.all_name(letter, u64::from(epoch))
            .says(2, Notice::Switched { to: node(letter) })
            .run(5);
    }
    assert_eq!(rig.machine.committed().map(|it| it.epoch), Some(299));
    assert!(rig.machine.superseded.len() <= 64);
    assert!(rig.machine.zombies.len() <= 128);
    rig.now += ms(1);
}

#[test]
fn files_lost_everywhere_do_not_take_a_healthy_master_away() {
    // Before the first failover the epochs are equal; later, theirs is lower.
    let mut rig = Rig::new();
    rig.all_name('A', 0).run(3000);
    rig.mark();
    rig.all_name('B', 0).run(300_000);
    assert!(rig.told().is_empty(), "{:?}", rig.told());
    assert_eq!(rig.notes(Note::RegressUnverified), 1);
    let mut rig = Rig::booted();
    // All sentinels come back without their files, with new identities, and were given a replica's
    // address.
    rig.loses(1).loses(2).loses(3);
    for sentinel in [31, 32, 33] {
        let peers: Vec<u8> = [31, 32, 33].into_iter().filter(|peer| *peer != sentinel).collect();
        rig.sentinels.insert(sentinel, super::rig::view('B', 0, &peers, &[]));
    }
    rig.run(300_000);
    assert!(rig.told().is_empty(), "{:?}", rig.told());
    assert_eq!(rig.notes(Note::RegressUnverified), 1);
    // They do take over once what they name is a master.
    rig.promotes('B').run(11_000);
    assert_eq!(rig.deeds().last().map(String::as_str), Some("commit B@0 Regress"));
}
