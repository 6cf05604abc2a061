//! Sentinels announce the same process by another text.

use super::rig::{Answer, Rig, node, view};
use crate::machine::{MachineState, Warning};
use crate::{NodeReport, PingReply, ProbeFailure};

/// N is another name of A.
fn named() -> Rig {
    let mut rig = Rig::booted();
    let answer = rig.nodes[&'A'].clone();
    rig.nodes.insert('N', answer);
    rig
}

fn master(rig: &Rig) -> String {
    rig.machine.committed().expect("a master").addr.to_string()
}

#[test]
fn adopts_name_of_same_process_without_commit() {
    let mut rig = named();
    for (from, to) in [('A', 'N'), ('N', 'A')] {
        rig.mark();
        rig.names(1, to, 5).run(3000);
        // One sentinel's word is not looked into: it is a disagreement until a second one agrees.
        assert_eq!((rig.outcomes_untimed(), master(&rig)), (vec![], node(from).to_string()));
        rig.names(2, to, 5).run(3000);
        assert_eq!(rig.outcomes_untimed(), ["redirect 10.0.0.65:6379"]);
        rig.names(3, to, 5).run(3000);
        assert_eq!(rig.outcomes_untimed(), ["redirect 10.0.0.65:6379"]);
        assert_eq!((rig.warnings(Warning::Split), master(&rig)), (1, node(to).to_string()));
        assert_eq!(*rig.machine.state(), MachineState::Stable);
    }
}

#[test]
fn adopts_name_at_newer_epoch_without_commit() {
    let mut rig = named();
    rig.names(1, 'N', 6).names(2, 'N', 6).names(3, 'N', 6).run(3000);
    let outcomes = rig.outcomes_untimed();
    assert!(outcomes.iter().all(|it| !it.starts_with("commit")), "{outcomes:?}");
    assert_eq!((master(&rig), rig.machine.is_holding()), (node('N').to_string(), false));
    assert_eq!(rig.machine.committed().map(|it| it.epoch), Some(6));
}

#[test]
fn follows_failover_after_names_were_adopted() {
    let mut rig = named();
    rig.names(1, 'N', 5).names(2, 'N', 5).names(3, 'N', 5).run(3000);
    rig.mark();
    rig.promotes('B').names(1, 'B', 6).names(2, 'B', 6).run(1000);
    assert_eq!(rig.outcomes_untimed().last().map(String::as_str), Some("commit B@6 majority"));
}

#[test]
fn reports_split_if_name_leads_elsewhere_or_nowhere() {
    for answer in [Answer::Failure(ProbeFailure::Unreachable), super::rig::master('N', "other", "")]
    {
        let mut rig = Rig::booted();
        rig.nodes.insert('N', answer);
        rig.names(1, 'N', 5).run(3000);
        assert_eq!((rig.warnings(Warning::Split), rig.outcomes().len()), (1, 0));
    }
}

/// From now on this sentinel calls the master N.
fn lists(rig: &mut Rig, sentinel: u8, replicas: &[char]) {
    let listed = view('N', 5, &[], replicas).replicas;
    rig.names(sentinel, 'N', 5).change(sentinel, |it| it.replicas = listed);
}

/// N is the name of A, M that of B; neither resolves.
#[test]
fn holds_at_selection_though_names_do_not_resolve() {
    let mut rig = Rig::booted();
    for letter in ['N', 'M'] {
        rig.nodes.insert(letter, Answer::Failure(ProbeFailure::Unreachable));
    }
    for sentinel in 1..=3 {
        lists(&mut rig, sentinel, &['M', 'C']);
    }
    rig.run(12_000);
    rig.mark();
    rig.selects(1, 'M').run(100);
    assert_eq!(rig.outcomes(), ["0 hold"]);
}

/// Names are announced one sentinel after the other.
#[test]
fn holds_at_selection_by_a_name_that_one_sentinel_uses() {
    for (leader, outcomes) in [(1, vec!["0 hold"]), (2, vec![])] {
        let mut rig = Rig::booted();
        lists(&mut rig, 1, &['M', 'C']);
        rig.run(3000);
        rig.mark();
        rig.selects(leader, 'M').run(100);
        assert_eq!(
            (rig.outcomes(), rig.probes('M')),
            (outcomes.into_iter().map(str::to_owned).collect(), 0)
        );
    }
}

#[test]
fn confirms_master_that_refuses_requests_after_stall() {
    for ping in [PingReply::Misconf, PingReply::Busy, PingReply::Other] {
        let mut rig = Rig::booted();
        let Answer::Report(report) = rig.nodes[&'A'].clone() else { panic!("a report") };
        rig.nodes.insert('A', Answer::Report(NodeReport { ping, ..report }));
        rig.run(3000);
        assert_eq!(rig.outcomes().len(), 0);
        rig.stall(5000);
        rig.mark();
        rig.run(1000);
        assert_eq!(rig.outcomes(), ["0 hold", "1 release"], "{ping:?}");
    }
}

/// At the start, and as the successor of another master.
#[test]
fn follows_master_that_refuses_requests() {
    for ping in [PingReply::Misconf, PingReply::Busy, PingReply::Other] {
        let refuses = |rig: &mut Rig, letter: char| {
            let Answer::Report(report) = rig.nodes[&letter].clone() else { panic!("a report") };
            rig.nodes.insert(letter, Answer::Report(NodeReport { ping, ..report }));
        };
        let mut rig = Rig::new();
        refuses(&mut rig, 'A');
        rig.run(3000);
        assert_eq!(rig.outcomes_untimed(), ["commit A@5 majority"], "{ping:?}");
        rig.mark();
        rig.selects(1, 'B').at(90).promotes('B');
        refuses(&mut rig, 'B');
        rig.at(1000).all_name('B', 6).at(3000);
        assert_eq!(rig.outcomes_untimed(), ["hold", "commit B@6 majority"], "{ping:?}");
    }
}

#[test]
fn keeps_probing_replicas_while_sentinels_are_silent() {
    let mut rig = Rig::booted();
    rig.disconnects(1).disconnects(2).disconnects(3).run(20_000);
    let fresh = |letter| {
        let mut nodes = rig.machine.nodes();
        let probe = nodes.find(|(addr, _)| **addr == node(letter)).and_then(|(_, probe)| probe);
        probe.is_some_and(|probe| rig.now.duration_since(probe.asked_at).as_secs() < 3)
    };
    assert!(fresh('A') && fresh('B') && fresh('C'));
}
