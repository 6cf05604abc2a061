//! The start without any knowledge: nothing is accepted too easily.

use std::time::Duration;

use super::rig::{Answer, Rig, master, ms, node, replica, view};
use crate::machine::{MachineEvent, MachineState, VoteOutcome};
use crate::{MachineRules, Minority, NodeReport, PingReply, ProbeFailure, Role, View};

fn rules() -> MachineRules {
    MachineRules::default()
}

fn stray_view(addr: char, epoch: u64) -> View {
    view(addr, epoch, &[], &[])
}

#[test]
fn commits_on_majority_without_the_third() {
    let mut rig = Rig::new();
    rig.disconnects(3);
    rig.run(3000);
    assert_eq!(rig.outcomes(), ["2 commit A@5 majority"]);
    assert_eq!(rig.machine.quorum(), (3, 2));
    assert_eq!(*rig.machine.state(), MachineState::Stable);
}

#[test]
fn commits_minority_only_after_grace() {
    let mut rig = Rig::new();
    rig.disconnects(2).disconnects(3);
    rig.run(5000);
    assert_eq!(rig.outcomes(), ["1502 commit A@5 bootstrap_minority"]);
}

#[test]
fn commits_majority_during_grace_at_once() {
    let mut rig = Rig::new();
    rig.disconnects(2).disconnects(3);
    rig.at(700).reconnects(2);
    rig.run(3000);
    let outcomes = rig.outcomes();
    assert_eq!(rig.outcomes_untimed(), ["commit A@5 majority"]);
    let at: u64 = outcomes[0].split(' ').next().and_then(|it| it.parse().ok()).expect("a time");
    assert!((700..=803).contains(&at), "{outcomes:?}");
}

#[test]
fn keeps_asking_silent_sentinels() {
    let mut rig = Rig::new();
    rig.disconnects(1).disconnects(2).disconnects(3);
    rig.run(600_000);
    assert!(rig.outcomes().is_empty());
    assert_eq!(*rig.machine.vote_outcome(), VoteOutcome::Silence);
    assert!(rig.log.len() <= 6001, "at most ten queries per second: {}", rig.log.len());
}

#[test]
fn restarts_bootstrap_grace_after_silence() {
    let grace = Duration::from_secs(8);
    let mut rig = Rig::with(MachineRules { bootstrap_grace: grace, ..rules() }, 3);
    rig.disconnects(2).disconnects(3).run(200);
    rig.disconnects(1).run(20_000);
    rig.mark();
    rig.reconnects(3).run(7900);
    assert!(rig.outcomes().is_empty());
    rig.run(300);
    assert_eq!(rig.outcomes_untimed(), ["commit A@5 bootstrap_minority"]);
}

#[test]
fn ignores_sentinel_in_empty_state() {
    let mut rig = Rig::new();
    let empty = View { run_id: "".into(), ..stray_view('C', 0) };
    for sentinel in 1..=3 {
        rig.change(sentinel, |it| *it = empty.clone());
    }
    rig.nodes.insert('C', master('C', "other", ""));
    rig.run(20_000);
    assert!(rig.outcomes().is_empty());
    assert_eq!(rig.machine.quorum().0, 0);
}

#[test]
fn rejects_stray_sentinel_as_sole_majority() {
    let mut rig = Rig::new();
    rig.disconnects(1).disconnects(2).disconnects(3);
    rig.nodes.insert('D', master('D', "other", ""));
    rig.answers(9, stray_view('D', 2));
    rig.run(600);
    assert!(rig.outcomes().is_empty());
    rig.reconnects(1).reconnects(2).reconnects(3);
    rig.run(3000);
    // It has a vote, since no member could confirm any sentinel yet, but three against one is a
    // majority.
    assert_eq!(rig.outcomes_untimed(), ["commit A@5 majority"]);
}

#[test]
fn counts_sentinel_behind_several_seeds_once() {
    let mut rig = Rig::with(rules(), 3);
    rig.disconnects(2).disconnects(3);
    rig.change(1, |it| it.peers.clear());
    rig.run(3000);
    assert_eq!(rig.outcomes(), ["1502 commit A@5 bootstrap_minority"]);
    let mut rig = Rig::with(rules(), 5);
    rig.disconnects(3);
    rig.run(3000);
    assert_eq!(
        rig.outcomes(),
        ["1502 commit A@5 bootstrap_minority"],
        "two of five seeds are no majority yet"
    );
    assert_eq!(rig.machine.quorum(), (3, 2), "the electorate counts identities, not names");
}

#[test]
fn waits_for_and_follows_highest_epoch() {
    let mut rig = Rig::new();
    rig.names(1, 'B', 6).promotes('B');
    rig.at(1000);
    assert!(
        rig.outcomes().is_empty(),
        "two votes at a lower epoch are not the majority that counts"
    );
    rig.names(2, 'B', 6);
    rig.run(2000);
    assert_eq!(rig.outcomes_untimed(), ["commit B@6 majority"]);
}

#[test]
fn keeps_verifying_majority_despite_newer_vote() {
    let mut rig = Rig::new();
    rig.nodes.insert('A', Answer::Lost);
    rig.promotes('B');
    rig.at(100).names(1, 'B', 6);
    rig.at(1000);
    assert!(
        matches!(rig.machine.state(), MachineState::Committing { addr, .. } if *addr == node('A'))
    );
    rig.nodes.insert('A', master('A', "history-1", ""));
    rig.at(2000);
    assert_eq!(rig.outcomes_untimed().first().map(String::as_str), Some("commit A@5 majority"));
}

#[test]
fn commits_only_verified_node() {
    let loading = || match master('A', "history-1", "") {
        Answer::Report(report) => Answer::Report(NodeReport { ping: PingReply::Loading, ..report }),
        other => other,
    };
    let unreadable = || match master('A', "history-1", "") {
        Answer::Report(report) => Answer::Report(NodeReport { role: Role::Unknown, ..report }),
        other => other,
    };
    let failing = [
        ProbeFailure::Unreachable,
        ProbeFailure::Unresponsive,
        ProbeFailure::Denied,
        ProbeFailure::UnusableAddress,
    ];
    let mut answers: Vec<Answer> = failing.into_iter().map(Answer::Failure).collect();
    answers.extend([loading(), unreadable(), replica('A', 'B', "history-1"), Answer::Lost]);
    for answer in answers {
        let mut rig = Rig::new();
        rig.nodes.insert('A', answer.clone());
        rig.run(30_000);
        assert!(rig.outcomes().is_empty(), "{answer:?}");
        // It is followed as soon as it verifies.
        rig.nodes.insert('A', master('A', "history-1", ""));
        rig.run(1700);
        assert_eq!(rig.outcomes_untimed(), ["commit A@5 majority"], "{answer:?}");
    }
}

#[test]
fn applies_weaker_verification_modes() {
    for (verify, role, ping, commits) in [
        (crate::Verify::Ping, Role::Unknown, PingReply::Pong, true),
        (crate::Verify::Ping, Role::Unknown, PingReply::Misconf, true),
        (crate::Verify::Ping, Role::Unknown, PingReply::Loading, false),
        (crate::Verify::Ping, Role::Unknown, PingReply::Other, false),
        (crate::Verify::Role, Role::Master, PingReply::Misconf, true),
        (crate::Verify::Role, Role::Master, PingReply::Busy, true),
        (crate::Verify::Role, Role::Master, PingReply::MasterDown, false),
        (crate::Verify::Tcp, Role::Unknown, PingReply::Other, true),
        (
            crate::Verify::Tcp,
            Role::Replica { master: node('B'), connected: true },
            PingReply::Pong,
            false,
        ),
        (crate::Verify::Role, Role::Unknown, PingReply::Pong, false),
    ] {
        let mut rig = Rig::with(MachineRules { verify, ..rules() }, 3);
        let Answer::Report(report) = master('A', "", "") else { panic!("a report") };
        rig.nodes.insert(
            'A',
            Answer::Report(NodeReport { role: role.clone(), ping, lineage: None, ..report }),
        );
        rig.run(3000);
        assert_eq!(!rig.outcomes().is_empty(), commits, "{verify:?} {role:?} {ping:?}");
    }
}

#[test]
fn never_publishes_minority_with_policy_cut() {
    let mut rig = Rig::with(MachineRules { minority: Minority::Cut, ..rules() }, 3);
    rig.disconnects(2).disconnects(3);
    rig.change(1, |it| it.peers.iter_mut().for_each(|(_, up)| *up = false));
    rig.run(20_000);
    assert!(rig.outcomes().is_empty());
    rig.reconnects(2)
        .reconnects(3)
        .change(1, |it| it.peers.iter_mut().for_each(|(_, up)| *up = true));
    rig.run(2000);
    assert_eq!(rig.outcomes_untimed(), ["commit A@5 majority"]);
}

#[test]
fn restarts_bootstrap_grace_after_stall() {
    let mut rig = Rig::new();
    rig.disconnects(2).disconnects(3);
    rig.at(1000);
    rig.stall(30_000);
    rig.mark();
    rig.run(1300);
    assert!(rig.outcomes().is_empty());
    rig.run(400);
    assert_eq!(rig.outcomes_untimed(), ["commit A@5 bootstrap_minority"]);
}

#[test]
fn drops_evidence_at_stall() {
    let mut rig = Rig::new();
    rig.nodes.insert('A', Answer::Lost);
    rig.run(500);
    assert!(matches!(rig.machine.state(), MachineState::Committing { .. }));
    // The majority's evidence is half a minute old when the answer of its verification arrives.
    let asked_at = rig.now;
    rig.disconnects(1).disconnects(2).disconnects(3);
    rig.stall(30_000);
    let Answer::Report(report) = master('A', "history-1", "") else { panic!("a report") };
    rig.step(MachineEvent::Probed {
        node: node('A'),
        probe: crate::Probe { asked_at, outcome: Ok(report) },
    });
    rig.now += ms(1);
    assert!(rig.outcomes().is_empty());
}

/// The first sentinel was replaced by one without a file at a new address, beside an empty redis
/// server. The two others keep the entry of the former one.
fn lost_its_file(rig: &mut Rig) {
    rig.sentinels.remove(&1);
    rig.sentinels.insert(4, stray_view('D', 0));
    rig.nodes.insert('D', master('D', "empty", ""));
    for sentinel in [2, 3] {
        rig.change(sentinel, |it| it.peers[0].1 = false);
    }
}

#[test]
fn rejects_reset_sentinel_as_sole_majority() {
    // One name for all sentinels: it counts for the addresses that it resolves to, and for one
    // until these are known.
    for late in [1, 700, 1400] {
        let mut rig = Rig::with(rules(), 1);
        lost_its_file(&mut rig);
        rig.step(MachineEvent::ExpectedSentinels(3));
        rig.disconnects(2).disconnects(3).run(late);
        rig.reconnects(2).reconnects(3).run(5000);
        assert_eq!(rig.outcomes_untimed(), ["commit A@5 majority"], "{late} ms late");
    }
    // Only its own address is known yet: its quorum shows that it is not alone.
    let mut rig = Rig::with(rules(), 1);
    lost_its_file(&mut rig);
    rig.disconnects(2).disconnects(3).run(700);
    assert!(rig.outcomes().is_empty(), "{:?}", rig.outcomes());
    rig.step(MachineEvent::ExpectedSentinels(3));
    rig.reconnects(2).reconnects(3).run(3000);
    assert_eq!(rig.outcomes_untimed(), ["commit A@5 majority"]);
}

#[test]
fn follows_late_majority_after_minority_start() {
    let mut rig = Rig::with(rules(), 1);
    lost_its_file(&mut rig);
    rig.step(MachineEvent::ExpectedSentinels(3));
    rig.disconnects(2).disconnects(3).run(10_000);
    assert_eq!(rig.outcomes_untimed(), ["commit D@0 bootstrap_minority"]);
    rig.mark();
    rig.reconnects(2).reconnects(3).run(2000);
    assert_eq!(
        rig.outcomes_untimed().last().map(String::as_str),
        Some("commit A@5 majority"),
        "{:?}",
        rig.outcomes()
    );
    assert!(rig.machine.named_masters().len() > 1, "the disagreement is reported");
    rig.run(60_000);
    assert!(
        rig.machine.committed().is_some_and(|it| it.published && it.addr == node('A')),
        "permanently"
    );
}

#[test]
fn warns_of_configured_stranger_without_vote() {
    let mut rig = Rig::booted();
    rig.sentinels.insert(9, stray_view('D', 99));
    rig.nodes.insert('D', master('D', "other", ""));
    rig.run(60_000);
    assert!(rig.outcomes().is_empty(), "{:?}", rig.outcomes());
    assert_eq!((rig.machine.quorum(), rig.warnings(crate::Warning::Stranger)), ((3, 2), 1));
    assert_eq!(rig.machine.named_masters().len(), 2);
    // A new sentinel that knows the others is not a stranger, although none of them lists it yet.
    rig.sentinels.insert(8, view('A', 5, &[1, 2, 3], &['B', 'C']));
    rig.run(1500);
    assert_eq!(rig.machine.quorum(), (4, 3));
}

/// One of the configured addresses is that of a sentinel of another cluster, whose master has the
/// same name and a higher epoch. It was the only one that answered at the start.
#[test]
fn leaves_foreign_master_of_minority_start() {
    for clustered in [true, false] {
        let mut rig = Rig::with(rules(), 3);
        rig.sentinels.remove(&1);
        rig.sentinels.insert(4, stray_view('D', 7));
        rig.nodes.insert('D', master('D', "foreign", ""));
        for sentinel in [2, 3] {
            rig.change(sentinel, |it| it.peers[0].1 = clustered);
        }
        rig.disconnects(2).disconnects(3).run(5000);
        assert_eq!(rig.outcomes_untimed(), ["commit D@7 bootstrap_minority"]);
        rig.mark();
        rig.reconnects(2).reconnects(3).run(30_000);
        let seen = rig.outcomes_untimed();
        assert_eq!(seen, ["hold", "commit A@5 epoch_regression"], "{:?}", rig.outcomes());
    }
}

/// The sentinel that answered at the start has seen a failover, of which the others have not heard.
/// Its master is the one that the others adopt, not theirs.
#[test]
fn keeps_newer_master_of_minority_start_until_others_hear_of_it() {
    let mut rig = Rig::new();
    rig.promotes('B').demotes('A', 'B');
    rig.change(1, |it| (it.addr, it.epoch, it.run_id) = (node('B'), 6, "process-B".into()));
    rig.disconnects(2).disconnects(3).run(5000);
    assert_eq!(rig.outcomes_untimed(), ["commit B@6 bootstrap_minority"]);
    rig.mark();
    // Theirs is a replica, and cannot be verified.
    rig.reconnects(2).reconnects(3).run(20_000);
    assert!(rig.outcomes().is_empty(), "{:?}", rig.outcomes());
    rig.all_name('B', 6).run(3000);
    assert!(rig.outcomes().is_empty(), "{:?}", rig.outcomes());
    assert_eq!(*rig.machine.state(), MachineState::Stable);
}

/// The newer master is away for a moment, and the former one is back as a master.
#[test]
fn waits_for_others_to_hear_of_a_newer_master_that_is_away() {
    let mut rig = Rig::new();
    rig.promotes('B')
        .change(1, |it| (it.addr, it.epoch, it.run_id) = (node('B'), 6, "process-B".into()));
    rig.disconnects(2).disconnects(3).run(5000);
    assert_eq!(rig.outcomes_untimed(), ["commit B@6 bootstrap_minority"]);
    rig.mark();
    rig.fails('B', ProbeFailure::Unreachable).reconnects(2).reconnects(3).run(4000);
    rig.promotes('B').all_name('B', 6).run(3000);
    let committed: Vec<_> =
        rig.outcomes_untimed().into_iter().filter(|it| it.contains("commit A")).collect();
    assert!(committed.is_empty(), "{:?}", rig.outcomes());
}
