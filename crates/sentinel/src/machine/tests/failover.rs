//! Failovers: the measured timelines as scripts, and the ways in which real ones differ from them.

use std::time::Duration;

use super::rig::{Answer, Rig, id, lineage, master, node, replica};
use crate::machine::{Action, Event, Note, State};
use crate::{Notice, ProbeFailure, Report, Rules};

/// From `+selected-slave` on, all four timelines run alike: S1 leads, S2 is the first observer, S3
/// the other.
fn from_selection(rig: &mut Rig, [selected, writable, promoted, first, other, leader]: [u64; 6]) {
    rig.at(selected).selects(1, 'B').selects(1, 'B');
    rig.at(writable).promotes('B');
    rig.selects(1, 'B').step(Event::CanaryLost { node: node('B') });
    rig.at(promoted).names(1, 'B', 6).says(1, Notice::Promoted { candidate: node('B') });
    rig.at(first).switches(2, Some(1), 'B', 6);
    if other > 0 {
        rig.at(other).switches(3, Some(1), 'B', 6);
    }
    rig.at(leader).says(1, Notice::Switched { to: node('B') });
}

#[test]
fn golden_planned() {
    let mut rig = Rig::booted();
    rig.says(1, Notice::Trouble)
        .at(8)
        .says(1, Notice::Trouble)
        .change(1, |it| it.failing_over = true);
    from_selection(&mut rig, [84, 175, 1061, 1146, 1147, 2164]);
    rig.change(1, |it| it.failing_over = false);
    // The old master says role:master and takes writes for eleven seconds.
    rig.at(11_198).demotes('A', 'B');
    rig.at(60_000);
    assert_eq!(rig.told(), ["84 hold", "1146 commit B@6 Majority"]);
    assert_eq!(*rig.machine.state(), State::Stable);
    let story = rig.machine.story();
    // In the very step in which the first observer's switch is heard: the leader's word and the
    // node's answer are there.
    assert_eq!(story.verification(), Some(Duration::ZERO));
    assert_eq!(story.hold().map(|it| it.as_millis()), Some(1062));
}

#[test]
fn golden_sigkill() {
    let mut rig = Rig::booted();
    rig.fails('A', ProbeFailure::Unreachable).step(Event::CanaryLost { node: node('A') });
    rig.at(2051).says(1, Notice::Trouble).change(1, |it| it.down = true);
    rig.at(2112).says(1, Notice::Trouble);
    from_selection(&mut rig, [2279, 2351, 3124, 3191, 3192, 4318]);
    rig.at(19_463).demotes('A', 'B');
    rig.at(40_000);
    // Unreachable for a second: the gate is shut, and its sessions are left to die by themselves.
    assert_eq!(rig.told(), ["1001 hold", "3191 commit B@6 Majority"]);
}

#[test]
fn golden_sigstop() {
    let mut rig = Rig::booted();
    rig.fails('A', ProbeFailure::Unresponsive);
    rig.at(2024).says(1, Notice::Trouble).change(1, |it| it.down = true);
    rig.at(2429).says(1, Notice::Trouble);
    from_selection(&mut rig, [2585, 2638, 3472, 3536, 3536, 4549]);
    // SIGCONT: it wakes up as a master.
    rig.at(10_000).nodes.insert('A', master('A', "history-1", ""));
    rig.at(19_015).demotes('A', 'B');
    rig.at(40_000);
    assert_eq!(rig.told(), ["2585 hold", "3536 commit B@6 Majority"]);
}

#[test]
fn golden_partition() {
    for proxy_sees_it in [false, true] {
        let mut rig = Rig::booted();
        if !proxy_sees_it {
            rig.fails('A', ProbeFailure::Unreachable);
        }
        // The third sentinel is on the old master's side.
        let alone = |it: &mut crate::View| it.peers.iter_mut().for_each(|(_, up)| *up = false);
        rig.at(2233).says(1, Notice::Trouble).change(1, |it| it.down = true).change(3, alone);
        rig.at(2801).says(1, Notice::Trouble);
        from_selection(&mut rig, [2993, 3056, 3850, 3935, 0, 4953]);
        rig.at(15_000);
        let hold = if proxy_sees_it { "2993 hold" } else { "1023 hold" };
        assert_eq!(
            rig.told(),
            [hold, "3935 commit B@6 Majority"],
            "proxy sees the old master: {proxy_sees_it}"
        );
        assert!(rig.notes(Note::StaleView) > 0);
        // The partition heals.
        rig.names(3, 'B', 6).change(3, |it| it.peers.iter_mut().for_each(|(_, up)| *up = true));
        rig.at(22_174).demotes('A', 'B');
        rig.at(40_000);
        assert_eq!(rig.told().len(), 2);
        assert_eq!(*rig.machine.state(), State::Stable);
    }
}

#[test]
fn every_event_lost() {
    let mut rig = Rig::booted();
    rig.at(300).promotes('B').all_name('B', 6);
    rig.at(20_000);
    // The probe of the replica tells of the promotion, the poll of the switch: one poll interval
    // and two round trips.
    assert_eq!(rig.deeds(), ["hold", "commit B@6 Majority"]);
    let at: u64 = rig.told()[1].split(' ').next().and_then(|it| it.parse().ok()).expect("a time");
    assert!(at <= 300 + 1000 + 4, "{:?}", rig.told());
}

#[test]
fn an_observers_announced_switch_is_two_votes() {
    let mut rig = Rig::booted();
    rig.promotes('B');
    // Neither the leader nor the other observer can be heard.
    rig.loses(1).loses(3).at(100).switches(2, Some(1), 'B', 6);
    rig.at(103);
    assert_eq!(rig.deeds().last().map(String::as_str), Some("commit B@6 Majority"));
    assert_eq!(rig.told().last().map(String::as_str), Some("102 commit B@6 Majority"));
}

#[test]
fn an_announced_switch_that_the_announced_one_denies_is_one_vote() {
    let mut rig = Rig::booted();
    rig.nodes.insert('B', Answer::Lost);
    rig.at(100).switches(2, Some(1), 'B', 6);
    rig.at(1000);
    assert_eq!(
        rig.told(),
        ["101 hold", "101 release"],
        "S1 itself, asked after that, still names the old one"
    );
    rig.promotes('B').at(1100);
    assert!(!rig.deeds().iter().any(|it| it.starts_with("commit")), "{:?}", rig.told());
}

#[test]
fn a_switch_without_an_announcement_is_one_vote() {
    let mut rig = Rig::booted();
    rig.promotes('B');
    rig.at(100).switches(2, None, 'B', 6);
    rig.at(4000);
    assert!(!rig.deeds().iter().any(|it| it.starts_with("commit")), "{:?}", rig.told());
}

#[test]
fn the_leaders_own_word_is_not_enough_while_observers_contradict() {
    let mut rig = Rig::booted();
    rig.selects(1, 'B').at(90).promotes('B');
    rig.at(1000).names(1, 'B', 6).says(1, Notice::Promoted { candidate: node('B') });
    rig.at(2900);
    assert_eq!(rig.told(), ["0 hold"]);
}

#[test]
fn an_old_announcement_does_not_double_the_leaders_word() {
    let mut rig = Rig::booted();
    // S3 was behind, and catches up with what is committed already: this says nothing about the
    // next failover.
    rig.names(3, 'C', 4).at(2000);
    rig.names(3, 'A', 5).says(3, Notice::ConfigUpdateFrom { peer: id(1), leaving: node('C') });
    rig.at(2500);
    // Now S3 leads one, and dies before anybody heard of it.
    rig.selects(3, 'B').promotes('B');
    rig.at(3400).names(3, 'B', 6);
    rig.at(5000);
    assert_eq!(rig.told(), ["2500 hold"]);
    // The same without a selection heard, right after the announcement.
    let mut rig = Rig::booted();
    rig.names(3, 'C', 4).at(2000);
    rig.names(3, 'A', 5).says(3, Notice::ConfigUpdateFrom { peer: id(1), leaving: node('C') });
    rig.at(2010).names(3, 'B', 6).promotes('B');
    rig.at(4000);
    assert!(!rig.deeds().iter().any(|it| it.starts_with("commit")), "{:?}", rig.told());
}

#[test]
fn a_round_that_was_under_way_does_not_use_the_announcement_up() {
    let mut rig = Rig::booted();
    let old = rig.sentinels[&2].clone();
    rig.promotes('B').loses(1).loses(3).at(100);
    rig.says(2, Notice::ConfigUpdateFrom { peer: id(1), leaving: node('A') });
    rig.hears(2, old);
    rig.names(2, 'B', 6).says(2, Notice::Switched { to: node('B') });
    rig.at(104);
    assert_eq!(rig.told().last().map(String::as_str), Some("102 commit B@6 Majority"));
}

#[test]
fn an_announcement_that_comes_after_its_own_switch_was_seen_is_not_of_the_next_one() {
    let mut rig = Rig::booted();
    rig.promotes('B').all_name('B', 6).at(2000);
    rig.mark();
    // Events and answers on two connections: the event was overtaken.
    rig.says(2, Notice::ConfigUpdateFrom { peer: id(1), leaving: node('A') });
    rig.names(2, 'C', 7).promotes('C').run(3000);
    assert!(!rig.deeds().iter().any(|it| it.starts_with("commit")), "{:?}", rig.told());
}

#[test]
fn one_voice_alone_suffices_after_its_grace_if_the_history_continues() {
    let mut rig = Rig::booted();
    rig.loses(2).loses(3).at(6000).names(1, 'B', 6).promotes('B');
    rig.mark();
    rig.run(5000);
    let told = rig.told();
    assert_eq!(rig.deeds().last().map(String::as_str), Some("commit B@6 Solo"), "{told:?}");
    let at: u64 = told
        .last()
        .and_then(|it| it.split(' ').next())
        .and_then(|it| it.parse().ok())
        .expect("a time");
    assert!((250..=250 + 1003).contains(&at), "{told:?}");
}

#[test]
fn one_voice_alone_moves_nothing_to_a_stranger() {
    for readable in [true, false] {
        let mut rig = Rig::booted();
        rig.loses(2).loses(3).at(6000);
        // D is a master with another history, and nobody's replica so far.
        rig.change(1, |it| (it.addr, it.epoch) = (node('D'), 6));
        rig.nodes.insert('D', master('D', "another history", ""));
        if !readable {
            rig.without_lineage();
        }
        rig.mark();
        rig.run(60_000);
        assert!(rig.told().is_empty(), "lineage readable: {readable}: {:?}", rig.told());
        assert!(rig.machine.committed().is_some_and(|it| it.published && it.addr == node('A')));
    }
}

#[test]
fn one_voice_alone_moves_to_a_listed_replica_where_histories_cannot_be_read() {
    let mut rig = Rig::booted();
    rig.loses(2).loses(3).at(6000).names(1, 'B', 6).promotes('B').without_lineage();
    rig.mark();
    rig.run(3000);
    assert_eq!(rig.deeds().last().map(String::as_str), Some("commit B@6 Solo"));
}

#[test]
fn one_liar_with_a_dead_address_neither_stops_traffic_nor_takes_the_master_away() {
    let mut rig = Rig::booted();
    rig.loses(2).loses(3).at(6000).change(1, |it| (it.addr, it.epoch) = (node('X'), 99));
    rig.mark();
    rig.run(600_000);
    assert!(rig.told().is_empty(), "{:?}", rig.told());
}

#[test]
fn one_voice_for_the_same_master_at_a_higher_epoch_cuts_nobody_while_the_others_disagree() {
    let mut rig = Rig::booted();
    rig.names(1, 'A', 99).run(30_000);
    assert!(rig.told().is_empty(), "{:?}", rig.told());
}

#[test]
fn a_solo_claim_that_is_contradicted_while_it_is_verified_is_dropped() {
    let mut rig = Rig::booted();
    rig.loses(2).loses(3).at(6000).names(1, 'B', 6).promotes('B');
    rig.run(1300);
    let mut rig2 = Rig::booted();
    rig2.loses(2).loses(3).at(6000).names(1, 'B', 6).promotes('B');
    // Runs until the claim is being verified, then its answer is lost and another sentinel is back.
    while !matches!(rig2.machine.state(), State::Committing { .. }) {
        rig2.run(1);
        assert!(rig2.now < rig.now, "it is verified at some time");
    }
    rig2.nodes.insert('B', Answer::Lost);
    rig2.finds(2);
    rig2.mark();
    rig2.run(300);
    assert!(matches!(rig2.machine.state(), State::Suspect { .. }), "{:?}", rig2.machine.state());
    assert_eq!(rig2.deeds(), ["release"]);
}

#[test]
fn a_switch_to_a_node_that_is_still_a_replica_waits_for_its_promotion() {
    let mut rig = Rig::booted();
    rig.at(100).all_name('B', 6).says(2, Notice::Switched { to: node('B') });
    rig.at(1500).promotes('B');
    rig.at(3000);
    assert_eq!(rig.told()[0], "101 hold");
    assert_eq!(rig.deeds(), ["hold", "commit B@6 Majority"]);
    let at: u64 = rig.told()[1].split(' ').next().and_then(|it| it.parse().ok()).expect("a time");
    assert!((1500..=1523).contains(&at), "asked every twenty milliseconds: {:?}", rig.told());
}

#[test]
fn a_new_master_that_never_verifies_ends_the_old_ones_sessions_and_is_still_waited_for() {
    for answer in
        [replica('B', 'A', "history-1"), Answer::Lost, Answer::Failure(ProbeFailure::Denied)]
    {
        let mut rig = Rig::booted();
        rig.nodes.insert('B', answer);
        rig.at(100).all_name('B', 6).says(2, Notice::Switched { to: node('B') });
        rig.at(40_000);
        assert_eq!(rig.told(), ["101 hold", "10101 clear Unverified"]);
        rig.promotes('B').at(42_000);
        assert_eq!(rig.deeds().last().map(String::as_str), Some("commit B@6 Majority"));
    }
}

#[test]
fn ten_switches_a_second_end_at_the_latest() {
    let mut rig = Rig::booted();
    let letters = ['B', 'C', 'A'];
    let mut epoch = 5;
    for round in 0..100_usize {
        let (new, old) = (letters[round % 3], letters[(round + 2) % 3]);
        epoch += 1;
        rig.at(100 * round as u64)
            .nodes
            .insert(new, master(new, &format!("h{epoch}"), &format!("h{}", epoch - 1)));
        rig.all_name(new, epoch).says(2, Notice::Switched { to: node(new) });
        rig.run(30);
        rig.demotes(old, new);
    }
    rig.at(20_000);
    let last = rig.log.iter().rev().find_map(|(_, action)| match action {
        Action::Commit(commit) => Some((commit.addr.clone(), commit.epoch)),
        _ => None,
    });
    assert_eq!(last, Some((node('B'), 105)));
    assert_eq!(rig.deeds().iter().filter(|it| it.starts_with("commit")).count(), 100);
    assert_eq!(*rig.machine.state(), State::Stable);
}

#[test]
fn a_second_failover_right_after_the_first_is_held_too() {
    let mut rig = Rig::booted();
    rig.promotes('B').all_name('B', 6).at(10).says(2, Notice::Switched { to: node('B') });
    rig.at(12);
    assert_eq!(rig.deeds().last().map(String::as_str), Some("commit B@6 Majority"));
    // Before any further view: the family of the new master is known from the views that named it.
    rig.selects(3, 'C');
    assert_eq!(rig.told().last().map(String::as_str), Some("12 hold"));
}

#[test]
fn adopts_higher_epoch_of_same_master_without_commit() {
    let mut rig = Rig::booted();
    // Two failovers were missed: there and back. The server itself has ended its sessions; those
    // that are there are new.
    rig.at(100).all_name('A', 7).says(2, Notice::Switched { to: node('A') });
    rig.at(3000);
    assert_eq!(rig.deeds(), Vec::<String>::new());
    assert_eq!(rig.machine.committed().map(|it| it.epoch), Some(7));
    // And from then on the older epoch is stale.
    rig.promotes('B').all_name('B', 6).run(2000);
    assert!(rig.deeds().iter().all(|it| !it.starts_with("commit")), "{:?}", rig.told());
}

#[test]
fn what_the_new_master_never_received_is_estimated() {
    for (second_offset, lost) in [(901, Some(100)), (1001, Some(0)), (-1, None)] {
        let mut rig = Rig::booted();
        rig.promotes('B').all_name('B', 6);
        let Some(Answer::Report(Report { lineage: Some(it), .. })) = rig.nodes.get_mut(&'B') else {
            panic!("a report")
        };
        it.second_offset = second_offset;
        rig.run(2000);
        let commit = rig.log.iter().find_map(|(_, action)| match action {
            Action::Commit(commit) => Some(commit.clone()),
            _ => None,
        });
        assert_eq!(commit.expect("a commit").lost_bytes, lost);
    }
}

#[test]
fn a_broken_history_is_an_alarm_and_not_an_estimate() {
    let mut rig = Rig::booted();
    rig.nodes.insert('B', master('B', "elsewhere", "nowhere"));
    rig.all_name('B', 6);
    rig.run(2000);
    assert_eq!(rig.notes(Note::LineageBroken), 1);
    assert_eq!(rig.deeds().last().map(String::as_str), Some("commit B@6 Majority"));
    assert!(!lineage("", "elsewhere", "nowhere").continues(&lineage("", "history-1", "")));
}

#[test]
fn a_slow_answer_from_before_the_evidence_verifies_nothing() {
    let mut rig = Rig::with(Rules::default(), 3);
    rig.run(3000);
    rig.mark();
    rig.nodes.insert('B', Answer::Lost);
    let asked_at = rig.now;
    rig.run(5);
    rig.all_name('B', 6).says(2, Notice::Switched { to: node('B') });
    rig.run(5);
    assert!(matches!(rig.machine.state(), State::Committing { .. }));
    let Answer::Report(report) = master('B', "history-B", "history-1") else { panic!("a report") };
    rig.step(Event::Probed {
        node: node('B'),
        probe: crate::Probe { asked_at, outcome: Ok(report) },
    });
    assert_eq!(rig.deeds(), ["hold"]);
    rig.promotes('B').run(30);
    assert_eq!(rig.deeds(), ["hold", "commit B@6 Majority"]);
}

#[test]
fn a_late_announcement_does_not_double_a_return_to_the_old_master() {
    let mut rig = Rig::booted();
    // S2 followed S1 to B at 6, unheard, and then led a failover back to A itself. The announcement
    // comes late.
    rig.loses(1).loses(3).at(100);
    rig.says(2, Notice::ConfigUpdateFrom { peer: id(1), leaving: node('A') });
    rig.names(2, 'A', 7).run(3000);
    assert_eq!(rig.machine.committed().map(|it| it.epoch), Some(5), "one sentinel's word");
}
