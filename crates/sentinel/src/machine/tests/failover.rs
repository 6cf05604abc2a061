//! Failovers: the measured timelines as scripts, and variations that occur in practice.

use std::time::Instant;

use super::rig::{Answer, Rig, id, lineage, master, node, replica};
use crate::machine::{MachineAction, MachineEvent, MachineState, Warning};
use crate::{MachineRules, NodeReport, Notice, ProbeFailure};

/// All four timelines are alike from `+selected-slave` on: S1 leads, S2 is the first observer, S3
/// the second.
fn from_selection(rig: &mut Rig, [selected, writable, promoted, first, other, leader]: [u64; 6]) {
    rig.at(selected).selects(1, 'B').selects(1, 'B');
    rig.at(writable).promotes('B');
    rig.selects(1, 'B').step(MachineEvent::ProbeConnectionLost { node: node('B') });
    rig.at(promoted).names(1, 'B', 6).publishes(1, Notice::Promoted { candidate: node('B') });
    rig.at(first).switches(2, Some(1), 'B', 6);
    if other > 0 {
        rig.at(other).switches(3, Some(1), 'B', 6);
    }
    rig.at(leader).publishes(1, Notice::Switched { to: node('B') });
}

#[test]
fn replays_planned_failover() {
    let mut rig = Rig::booted();
    rig.publishes(1, Notice::Trouble)
        .at(8)
        .publishes(1, Notice::Trouble)
        .change(1, |it| it.failing_over = true);
    from_selection(&mut rig, [84, 175, 1061, 1146, 1147, 2164]);
    rig.change(1, |it| it.failing_over = false);
    // The old master reports `role:master` and accepts writes for eleven seconds.
    rig.at(11_198).demotes('A', 'B');
    rig.at(60_000);
    assert_eq!(rig.outcomes(), ["84 hold", "1146 commit B@6 majority"]);
    assert_eq!(*rig.machine.state(), MachineState::Stable);
    let timeline = rig.machine.timeline();
    // Committed in the very step that processes the first observer's switch: the leader's vote and
    // the node's answer are present.
    assert!(timeline.evidence_at.is_some());
    assert_eq!(timeline.evidence_at, timeline.committed_at);
    assert_eq!(timeline.hold().map(|it| it.as_millis()), Some(1062));
}

/// The polls of all sentinels between two times of the scenario.
fn asks(rig: &Rig, from: Instant) -> usize {
    rig.log.iter().filter(|(at, action)| *at >= from && *action == MachineAction::Ask).count()
}

#[test]
fn asks_rarely_in_large_fleet_and_switches_as_fast() {
    let failover = |connections: u32| {
        let mut rig = Rig::booted();
        rig.step(MachineEvent::SentinelConnections(connections));
        let (start, probes) = (rig.now, rig.probes('B'));
        // What a leader publishes on its way, as a real one does, and the disconnects.
        for millis in 0..8 {
            rig.at(10 * millis).publishes(1, Notice::Trouble);
        }
        from_selection(&mut rig, [84, 175, 1061, 1146, 1147, 2164]);
        (rig.outcomes(), asks(&rig, start), rig.probes('B') - probes)
    };
    let (alone, asks_alone, probes_alone) = failover(1);
    let (in_fleet, asks_in_fleet, probes_in_fleet) = failover(1000);
    assert_eq!(alone, ["84 hold", "1146 commit B@6 majority"]);
    assert_eq!(in_fleet, ["84 hold", "1148 commit B@6 majority"]);
    assert!(asks_alone > 25 && asks_in_fleet <= 8, "{asks_alone}, {asks_in_fleet}");
    assert!(probes_alone > 90 && probes_in_fleet <= 12, "{probes_alone}, {probes_in_fleet}");
}

#[test]
fn replays_failover_after_sigkill() {
    let mut rig = Rig::booted();
    rig.fails('A', ProbeFailure::Unreachable)
        .step(MachineEvent::ProbeConnectionLost { node: node('A') });
    rig.at(2051).publishes(1, Notice::Trouble).change(1, |it| it.down = true);
    rig.at(2112).publishes(1, Notice::Trouble);
    from_selection(&mut rig, [2279, 2351, 3124, 3191, 3192, 4318]);
    rig.at(19_463).demotes('A', 'B');
    rig.at(40_000);
    // Unreachable for a second: the gate is closed, and the sessions are not cut.
    assert_eq!(rig.outcomes(), ["1 hold", "3191 commit B@6 majority"]);
}

#[test]
fn replays_failover_after_sigstop() {
    let mut rig = Rig::booted();
    rig.fails('A', ProbeFailure::Unresponsive);
    rig.at(2024).publishes(1, Notice::Trouble).change(1, |it| it.down = true);
    rig.at(2429).publishes(1, Notice::Trouble);
    from_selection(&mut rig, [2585, 2638, 3472, 3536, 3536, 4549]);
    // SIGCONT: it wakes up as a master.
    rig.at(10_000).nodes.insert('A', master('A', "history-1", ""));
    rig.at(19_015).demotes('A', 'B');
    rig.at(40_000);
    assert_eq!(rig.outcomes(), ["2585 hold", "3536 commit B@6 majority"]);
}

#[test]
fn replays_failover_after_partition() {
    for proxy_sees_it in [false, true] {
        let mut rig = Rig::booted();
        if !proxy_sees_it {
            rig.fails('A', ProbeFailure::Unreachable);
        }
        // The third sentinel is on the old master's side.
        let alone = |it: &mut crate::View| it.peers.iter_mut().for_each(|(_, up)| *up = false);
        rig.at(2233).publishes(1, Notice::Trouble).change(1, |it| it.down = true).change(3, alone);
        rig.at(2801).publishes(1, Notice::Trouble);
        from_selection(&mut rig, [2993, 3056, 3850, 3935, 0, 4953]);
        rig.at(15_000);
        let hold = if proxy_sees_it { "2993 hold" } else { "1023 hold" };
        assert_eq!(
            rig.outcomes(),
            [hold, "3935 commit B@6 majority"],
            "old master reachable: {proxy_sees_it}"
        );
        assert!(rig.warnings(Warning::StaleView) > 0);
        // The partition heals.
        rig.names(3, 'B', 6).change(3, |it| it.peers.iter_mut().for_each(|(_, up)| *up = true));
        rig.at(22_174).demotes('A', 'B');
        rig.at(40_000);
        assert_eq!(rig.outcomes().len(), 2);
        assert_eq!(*rig.machine.state(), MachineState::Stable);
    }
}

#[test]
fn commits_by_polling_without_events() {
    let mut rig = Rig::booted();
    rig.at(300).promotes('B').all_name('B', 6);
    rig.at(20_000);
    // The probe of the replica detects the promotion and the poll the switch: one poll interval and
    // two round trips.
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit B@6 majority"]);
    let at: u64 =
        rig.outcomes()[1].split(' ').next().and_then(|it| it.parse().ok()).expect("a time");
    assert!(at <= 300 + 1000 + 4, "{:?}", rig.outcomes());
}

#[test]
fn counts_announced_switch_as_two_votes() {
    let mut rig = Rig::booted();
    rig.promotes('B');
    // Neither the leader nor the other observer is reachable.
    rig.disconnects(1).disconnects(3).at(100).switches(2, Some(1), 'B', 6);
    rig.at(103);
    assert_eq!(rig.outcomes_untimed().last().map(String::as_str), Some("commit B@6 majority"));
    assert_eq!(rig.outcomes().last().map(String::as_str), Some("102 commit B@6 majority"));
}

#[test]
fn counts_denied_announced_switch_as_one_vote() {
    let mut rig = Rig::booted();
    rig.nodes.insert('B', Answer::Lost);
    rig.at(100).switches(2, Some(1), 'B', 6);
    rig.at(1000);
    assert_eq!(
        rig.outcomes(),
        ["101 hold", "101 release"],
        "S1 itself, queried after that, still names the old master"
    );
    rig.promotes('B').at(1100);
    assert!(
        !rig.outcomes_untimed().iter().any(|it| it.starts_with("commit")),
        "{:?}",
        rig.outcomes()
    );
}

#[test]
fn counts_unannounced_switch_as_one_vote() {
    let mut rig = Rig::booted();
    rig.promotes('B');
    rig.at(100).switches(2, None, 'B', 6);
    rig.at(4000);
    assert!(
        !rig.outcomes_untimed().iter().any(|it| it.starts_with("commit")),
        "{:?}",
        rig.outcomes()
    );
}

#[test]
fn requires_more_than_the_contradicted_leader() {
    let mut rig = Rig::booted();
    rig.selects(1, 'B').at(90).promotes('B');
    rig.at(1000).names(1, 'B', 6).publishes(1, Notice::Promoted { candidate: node('B') });
    rig.at(2900);
    assert_eq!(rig.outcomes(), ["0 hold"]);
}

#[test]
fn does_not_endorse_by_old_announcement() {
    let mut rig = Rig::booted();
    // S3 was late, and catches up with what is committed already. That says nothing about the next
    // failover.
    rig.names(3, 'C', 4).at(2000);
    rig.names(3, 'A', 5).publishes(3, Notice::ConfigUpdateFrom { peer: id(1), leaving: node('C') });
    rig.at(2500);
    // Now S3 leads a failover, and dies before any sentinel learned of it.
    rig.selects(3, 'B').promotes('B');
    rig.at(3400).names(3, 'B', 6);
    rig.at(5000);
    assert_eq!(rig.outcomes(), ["2500 hold"]);
    // The same without a selection, right after the announcement.
    let mut rig = Rig::booted();
    rig.names(3, 'C', 4).at(2000);
    rig.names(3, 'A', 5).publishes(3, Notice::ConfigUpdateFrom { peer: id(1), leaving: node('C') });
    rig.at(2010).names(3, 'B', 6).promotes('B');
    rig.at(4000);
    assert!(
        !rig.outcomes_untimed().iter().any(|it| it.starts_with("commit")),
        "{:?}",
        rig.outcomes()
    );
}

#[test]
fn keeps_announcement_during_poll_in_progress() {
    let mut rig = Rig::booted();
    let old = rig.sentinels[&2].clone();
    rig.promotes('B').disconnects(1).disconnects(3).at(100);
    rig.publishes(2, Notice::ConfigUpdateFrom { peer: id(1), leaving: node('A') });
    rig.answers(2, old);
    rig.names(2, 'B', 6).publishes(2, Notice::Switched { to: node('B') });
    rig.at(104);
    assert_eq!(rig.outcomes().last().map(String::as_str), Some("102 commit B@6 majority"));
}

#[test]
fn ignores_announcement_after_its_own_switch() {
    let mut rig = Rig::booted();
    rig.promotes('B').all_name('B', 6).at(2000);
    rig.mark();
    // Events and replies on two connections: the event was overtaken.
    rig.publishes(2, Notice::ConfigUpdateFrom { peer: id(1), leaving: node('A') });
    rig.names(2, 'C', 7).promotes('C').run(3000);
    assert!(
        !rig.outcomes_untimed().iter().any(|it| it.starts_with("commit")),
        "{:?}",
        rig.outcomes()
    );
}

#[test]
fn waits_for_promotion_of_named_replica() {
    let mut rig = Rig::booted();
    rig.at(100).all_name('B', 6).publishes(2, Notice::Switched { to: node('B') });
    rig.at(1500).promotes('B');
    rig.at(3000);
    assert_eq!(rig.outcomes()[0], "101 hold");
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit B@6 majority"]);
    let at: u64 =
        rig.outcomes()[1].split(' ').next().and_then(|it| it.parse().ok()).expect("a time");
    assert!((1500..=1523).contains(&at), "queried every twenty milliseconds: {:?}", rig.outcomes());
}

#[test]
fn clears_target_if_new_master_never_verifies() {
    for answer in
        [replica('B', 'A', "history-1"), Answer::Lost, Answer::Failure(ProbeFailure::Denied)]
    {
        let mut rig = Rig::booted();
        rig.nodes.insert('B', answer);
        rig.at(100).all_name('B', 6).publishes(2, Notice::Switched { to: node('B') });
        rig.at(40_000);
        assert_eq!(rig.outcomes(), ["101 hold", "10101 clear Unverified"]);
        rig.promotes('B').at(42_000);
        assert_eq!(rig.outcomes_untimed().last().map(String::as_str), Some("commit B@6 majority"));
    }
}

#[test]
fn follows_ten_switches_per_second() {
    let mut rig = Rig::booted();
    let letters = ['B', 'C', 'A'];
    let mut epoch = 5;
    for round in 0..100_usize {
        let (new, old) = (letters[round % 3], letters[(round + 2) % 3]);
        epoch += 1;
        rig.at(100 * round as u64)
            .nodes
            .insert(new, master(new, &format!("h{epoch}"), &format!("h{}", epoch - 1)));
        rig.all_name(new, epoch).publishes(2, Notice::Switched { to: node(new) });
        rig.run(30);
        rig.demotes(old, new);
    }
    rig.at(20_000);
    let last = rig.log.iter().rev().find_map(|(_, action)| match action {
        MachineAction::Commit(commit) => Some((commit.addr.clone(), commit.epoch)),
        _ => None,
    });
    assert_eq!(last, Some((node('B'), 105)));
    assert_eq!(rig.outcomes_untimed().iter().filter(|it| it.starts_with("commit")).count(), 100);
    assert_eq!(*rig.machine.state(), MachineState::Stable);
}

#[test]
fn holds_for_second_failover_right_after_first() {
    let mut rig = Rig::booted();
    rig.promotes('B').all_name('B', 6).at(10).publishes(2, Notice::Switched { to: node('B') });
    rig.at(12);
    assert_eq!(rig.outcomes_untimed().last().map(String::as_str), Some("commit B@6 majority"));
    // Before any further view: the family of the new master is known from the views that named it.
    rig.selects(3, 'C');
    assert_eq!(rig.outcomes().last().map(String::as_str), Some("12 hold"));
}

#[test]
fn adopts_higher_epoch_of_same_master_without_commit() {
    let mut rig = Rig::booted();
    // Two failovers were missed, to B and back. The server itself has closed its sessions; the
    // present ones are new.
    rig.at(100).all_name('A', 7).publishes(2, Notice::Switched { to: node('A') });
    rig.at(3000);
    assert_eq!(rig.outcomes_untimed(), Vec::<String>::new());
    assert_eq!(rig.machine.committed().map(|it| it.epoch), Some(7));
    // From then on the older epoch is stale.
    rig.nodes.insert('B', master('B', "elsewhere", ""));
    rig.all_name('B', 6).run(2000);
    assert!(
        rig.outcomes_untimed().iter().all(|it| !it.starts_with("commit")),
        "{:?}",
        rig.outcomes()
    );
}

#[test]
fn estimates_lost_bytes() {
    for (second_offset, lost) in [(901, Some(100)), (1001, Some(0)), (-1, None)] {
        let mut rig = Rig::booted();
        rig.promotes('B').all_name('B', 6);
        let Some(Answer::Report(NodeReport { lineage: Some(it), .. })) = rig.nodes.get_mut(&'B')
        else {
            panic!("a report")
        };
        it.second_offset = second_offset;
        rig.run(2000);
        let commit = rig.log.iter().find_map(|(_, action)| match action {
            MachineAction::Commit(commit) => Some(commit.clone()),
            _ => None,
        });
        assert_eq!(commit.expect("a commit").lost_bytes, lost);
    }
}

/// The sentinels publish their hellos on the old master, too.
#[test]
fn counts_no_bytes_that_were_written_after_the_gate_closed() {
    for (in_flight, lost) in [(0, Some(0)), (50, Some(50))] {
        let mut rig = Rig::booted();
        let offset = |rig: &mut Rig, name, grown: u64, left_at: i64| {
            let Some(Answer::Report(NodeReport { lineage: Some(it), .. })) =
                rig.nodes.get_mut(&name)
            else {
                panic!("a report")
            };
            (it.offset, it.second_offset) = (it.offset + grown, left_at);
        };
        rig.selects(1, 'B');
        offset(&mut rig, 'A', in_flight, -1);
        rig.run(500);
        offset(&mut rig, 'A', 134, -1);
        rig.run(500);
        rig.promotes('B').all_name('B', 6);
        offset(&mut rig, 'B', 0, 1001);
        rig.run(2000);
        let commit = rig.log.iter().find_map(|(_, action)| match action {
            MachineAction::Commit(commit) => Some(commit.clone()),
            _ => None,
        });
        assert_eq!(commit.expect("a commit").lost_bytes, lost);
    }
}

#[test]
fn warns_of_broken_lineage_without_estimate() {
    let mut rig = Rig::booted();
    rig.nodes.insert('B', master('B', "elsewhere", "nowhere"));
    if let Some(Answer::Report(NodeReport { lineage: Some(it), .. })) = rig.nodes.get_mut(&'B') {
        it.run_id = "a stranger".into();
    }
    rig.all_name('B', 6);
    rig.run(2000);
    assert_eq!(rig.warnings(Warning::LineageBroken), 1);
    assert_eq!(rig.outcomes_untimed().last().map(String::as_str), Some("commit B@6 majority"));
    assert!(!lineage("", "elsewhere", "nowhere").continues(&lineage("", "history-1", "")));
}

#[test]
fn rejects_answer_queried_before_evidence() {
    let mut rig = Rig::with(MachineRules::default(), 3);
    rig.run(3000);
    rig.mark();
    rig.nodes.insert('B', Answer::Lost);
    let asked_at = rig.now;
    rig.run(5);
    rig.all_name('B', 6).publishes(2, Notice::Switched { to: node('B') });
    rig.run(5);
    assert!(matches!(rig.machine.state(), MachineState::Committing { .. }));
    let Answer::Report(report) = master('B', "history-B", "history-1") else { panic!("a report") };
    rig.step(MachineEvent::Probed {
        node: node('B'),
        probe: crate::Probe { asked_at, outcome: Ok(report) },
    });
    assert_eq!(rig.outcomes_untimed(), ["hold"]);
    rig.promotes('B').run(30);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit B@6 majority"]);
}

#[test]
fn ignores_late_announcement_after_return() {
    let mut rig = Rig::booted();
    // S2 followed S1 to B at 6, unnoticed, and then led a failover back to A itself. The
    // announcement arrives late.
    rig.disconnects(1).disconnects(3).at(100);
    rig.publishes(2, Notice::ConfigUpdateFrom { peer: id(1), leaving: node('A') });
    rig.names(2, 'A', 7).run(3000);
    assert_eq!(rig.machine.committed().map(|it| it.epoch), Some(5), "a single vote");
}
