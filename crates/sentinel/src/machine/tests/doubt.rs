//! Sight of the master lost and found again: its own word does not open the gate.

use super::rig::{Answer, Rig, master, node};
use crate::machine::{Action, Event, Note, State};
use crate::{Minority, Notice, ProbeFailure, Rules};

/// Neither the master nor the sentinels can be reached.
fn blackout(rig: &mut Rig, failure: ProbeFailure) {
    rig.loses(1).loses(2).loses(3).fails('A', failure).fails('B', failure).fails('C', failure);
}

fn old_master_is_back(rig: &mut Rig) {
    rig.nodes.insert('A', master('A', "history-1", ""));
}

/// The same address, another process, another history: an empty pod.
fn empty_master(letter: char) -> Answer {
    let Answer::Report(mut report) = master(letter, "fresh", "") else { panic!("a report") };
    report.lineage.as_mut().expect("a lineage").run_id = "fresh process".into();
    Answer::Report(report)
}

#[test]
fn old_masters_own_word_does_not_open_the_gate() {
    // The network of this process is gone for a while, in which a planned failover takes place.
    for (failure, dark) in [
        (ProbeFailure::Unreachable, 4000),
        (ProbeFailure::Unresponsive, 2000),
        (ProbeFailure::Unresponsive, 600),
    ] {
        for late in [300, 1000, 2000] {
            let mut rig = Rig::booted();
            blackout(&mut rig, failure);
            rig.run(dark);
            old_master_is_back(&mut rig);
            rig.promotes('B').run(late);
            assert_eq!(
                rig.deeds(),
                ["hold"],
                "{failure:?} for {dark} ms, sentinels {late} ms late: {:?}",
                rig.told()
            );
            // The stale one is heard first.
            rig.finds(3).run(200);
            assert_eq!(
                rig.deeds(),
                ["hold"],
                "{failure:?} for {dark} ms, sentinels {late} ms late: {:?}",
                rig.told()
            );
            rig.finds(1).finds(2).names(1, 'B', 6).names(2, 'B', 6).run(2000);
            assert_eq!(
                rig.deeds(),
                ["hold", "commit B@6 Majority"],
                "{failure:?} for {dark} ms, {late} ms late"
            );
        }
    }
}

#[test]
fn votes_from_before_the_blackout_confirm_nothing() {
    let mut rig = Rig::booted();
    // All is heard until the very moment before; what was heard is fresh for five seconds more.
    rig.run(950);
    blackout(&mut rig, ProbeFailure::Unreachable);
    rig.run(2500);
    old_master_is_back(&mut rig);
    rig.run(1000);
    assert_eq!(rig.deeds(), ["hold"]);
    assert!(
        rig.machine.finding() != &crate::machine::Finding::Silence,
        "the votes are there: {:?}",
        rig.machine.finding()
    );
    // An answer that comes now, to a question from the blackout, is no younger.
    let view = super::rig::view('A', 5, &[2, 3], &['B', 'C']);
    for sentinel in [1, 2] {
        let (from, asked_at) = (super::rig::id(sentinel), rig.now - super::rig::ms(1200));
        rig.step(Event::View { from, view: view.clone(), asked_at, configured: true });
    }
    assert_eq!(rig.deeds(), ["hold"]);
    rig.finds(1).finds(2).run(300);
    assert_eq!(rig.deeds(), ["hold", "release"]);
}

#[test]
fn a_master_that_was_busy_while_sentinels_were_heard_costs_no_hold() {
    let mut rig = Rig::booted();
    rig.fails('A', ProbeFailure::Unresponsive).run(6000);
    old_master_is_back(&mut rig);
    rig.run(3000);
    assert!(rig.told().is_empty(), "{:?}", rig.told());
    // Nor where the sentinels had been gone for long.
    rig.loses(1).loses(2).loses(3).run(20_000);
    rig.fails('A', ProbeFailure::Unresponsive).run(6000);
    old_master_is_back(&mut rig);
    rig.run(3000);
    assert!(rig.told().is_empty(), "{:?}", rig.told());
}

#[test]
fn unopposed_word_opens_after_the_grace_and_silence_later() {
    for (heard, least) in [(1_u8, 1500), (0, 5000)] {
        let mut rig = Rig::booted();
        blackout(&mut rig, ProbeFailure::Unreachable);
        rig.run(4000);
        old_master_is_back(&mut rig);
        if heard == 1 {
            rig.finds(1);
        }
        rig.mark();
        rig.run(least - 30);
        assert!(rig.told().is_empty(), "{heard} heard: {:?}", rig.told());
        rig.run(100);
        assert_eq!(rig.deeds(), ["release"], "{heard} heard");
    }
}

#[test]
fn every_hold_for_a_doubt_ends() {
    // One sentinel claims a newer master that cannot be reached, the others are gone.
    let mut rig = Rig::booted();
    blackout(&mut rig, ProbeFailure::Unreachable);
    rig.run(4000);
    old_master_is_back(&mut rig);
    rig.finds(1).change(1, |it| (it.addr, it.epoch) = (node('X'), 99)).mark();
    rig.run(9500);
    assert!(rig.told().is_empty(), "{:?}", rig.told());
    rig.run(1000);
    assert_eq!(rig.deeds(), ["release"]);
}

#[test]
fn a_failover_under_way_is_waited_for() {
    let mut rig = Rig::booted();
    blackout(&mut rig, ProbeFailure::Unreachable);
    rig.run(4000);
    rig.mark();
    old_master_is_back(&mut rig);
    // The leader has begun; nobody has switched.
    rig.finds(1).finds(2).finds(3).change(1, |it| it.failing_over = true).run(900);
    assert!(rig.told().is_empty(), "{:?}", rig.told());
    rig.promotes('B').all_name('B', 6).run(500);
    assert_eq!(rig.deeds(), ["commit B@6 Majority"]);
    // And one that hangs is not waited for without end.
    let mut rig = Rig::booted();
    rig.change(1, |it| it.failing_over = true).fails('A', ProbeFailure::Unreachable).run(4000);
    rig.mark();
    old_master_is_back(&mut rig);
    rig.run(4000);
    assert_eq!(rig.deeds(), ["release"]);
}

#[test]
fn a_candidate_announced_during_the_doubt_is_heeded() {
    let mut rig = Rig::booted();
    rig.fails('A', ProbeFailure::Unreachable).run(4000);
    rig.selects(1, 'B');
    old_master_is_back(&mut rig);
    rig.run(1000);
    assert_eq!(rig.deeds(), ["hold"], "sentinels confirm it, and are about to promote another");
    rig.says(1, Notice::Aborted).run(1000);
    assert_eq!(rig.deeds(), ["hold", "release"]);
}

#[test]
fn an_empty_process_at_the_address_waits_for_calm_sentinels() {
    type Flag = fn(&mut crate::View);
    let flags: [Flag; 3] =
        [|it| it.down = true, |it| it.rebooted = true, |it| it.failing_over = true];
    for flag in flags {
        let mut rig = Rig::booted();
        rig.fails('A', ProbeFailure::Unreachable).change(2, flag).run(3000);
        rig.nodes.insert('A', empty_master('A'));
        rig.run(20_000);
        assert_eq!(rig.deeds(), ["hold"], "the sentinels are about to replace it");
        rig.change(2, |it| (it.down, it.rebooted, it.failing_over) = (false, false, false))
            .run(1000);
        assert_eq!(rig.deeds(), ["hold", "commit A@5 Again"], "they keep it");
        assert_eq!(rig.notes(Note::LineageBroken), 1);
    }
}

#[test]
fn another_process_is_not_used_without_a_vote() {
    let mut rig = Rig::booted();
    rig.loses(1).loses(2).loses(3).run(10_000);
    rig.nodes.insert('A', empty_master('A'));
    rig.run(600_000);
    assert_eq!(rig.deeds(), ["hold"]);
    assert!(matches!(rig.machine.state(), State::Unconfirmed { .. }), "{:?}", rig.machine.state());
    rig.finds(2).run(3000);
    assert_eq!(rig.deeds(), ["hold", "commit A@5 Again"]);
}

#[test]
fn demoted_master_is_used_again_only_on_fresh_votes() {
    let mut rig = Rig::booted();
    rig.demotes('A', 'B').run(1000);
    assert_eq!(rig.deeds(), ["clear Demoted"]);
    rig.loses(1).loses(2).loses(3);
    old_master_is_back(&mut rig);
    rig.run(4000);
    assert_eq!(
        rig.deeds(),
        ["clear Demoted"],
        "what was heard before it was a replica says nothing"
    );
    rig.finds(1).finds(2).run(300);
    assert_eq!(rig.deeds(), ["clear Demoted", "commit A@5 Again"]);
}

#[test]
fn doubt_and_minority_end_together() {
    let mut rig = Rig::booted_with(Rules { minority: Minority::Hold, ..Rules::default() });
    blackout(&mut rig, ProbeFailure::Unreachable);
    rig.run(10_000);
    old_master_is_back(&mut rig);
    rig.finds(1).run(20_000);
    assert_eq!(rig.deeds(), ["hold"]);
    rig.finds(2).run(500);
    assert_eq!(rig.deeds(), ["hold", "release"]);
}

#[test]
fn gate_stays_shut_without_a_gap() {
    let mut rig = Rig::booted();
    blackout(&mut rig, ProbeFailure::Unreachable);
    rig.run(3000);
    for _ in 0..20 {
        old_master_is_back(&mut rig);
        rig.run(30);
        rig.fails('A', ProbeFailure::Unreachable).run(1500);
    }
    let opened = rig
        .log
        .iter()
        .filter(|(_, action)| matches!(action, Action::Release | Action::Hold))
        .count();
    assert_eq!(opened, 1, "{:?}", rig.told());
}

#[test]
fn a_stranger_at_the_same_epoch_does_not_keep_the_gate_shut() {
    let mut rig = Rig::new();
    rig.all_name('A', 0).run(3000);
    rig.sentinels.remove(&1);
    rig.sentinels.insert(4, super::rig::view('B', 0, &[2, 3], &[]));
    rig.run(4000);
    rig.stall(5000);
    rig.mark();
    rig.run(3000);
    assert_eq!(
        rig.deeds(),
        ["hold", "release"],
        "{:?} {:?}",
        rig.machine.quorum(),
        rig.machine.finding()
    );
    rig.mark();
    rig.run(60_000);
    assert!(rig.told().is_empty(), "{:?}", rig.told());
}

#[test]
fn a_network_too_slow_for_questions_stops_traffic_for_ten_seconds_only() {
    let mut rig = Rig::booted();
    rig.loses(1).loses(2).loses(3).fails('A', ProbeFailure::Unresponsive).run(60_000);
    assert_eq!(rig.deeds(), ["hold", "release"], "{:?}", rig.told());
    let at: u64 = rig.told()[1].split(' ').next().and_then(|it| it.parse().ok()).expect("a time");
    assert!((10_000..=11_500).contains(&at), "{:?}", rig.told());
}

#[test]
fn a_full_master_is_confirmed_by_sentinels_that_see_the_same_process() {
    for (run_id, deeds) in [("process-A", vec!["hold", "release"]), ("another", vec!["hold"])] {
        let mut rig = Rig::booted();
        rig.fails('A', ProbeFailure::Unreachable).run(3000);
        // It is back, and its clients were faster than the prober.
        rig.fails('A', ProbeFailure::ConnectionRejected);
        for sentinel in 1..=3 {
            rig.change(sentinel, |it| it.run_id = run_id.into());
        }
        rig.run(4000);
        assert_eq!(rig.deeds(), deeds, "sentinels see {run_id}");
    }
}

#[test]
fn refused_probe_does_not_identify_the_process() {
    // The process that answers after the outage refuses the probe's password: an empty pod at a
    // reused address would, too.
    let mut rig = Rig::booted();
    blackout(&mut rig, ProbeFailure::Unreachable);
    rig.run(4000);
    rig.fails('A', ProbeFailure::Denied).run(600_000);
    assert_eq!(rig.deeds(), ["hold"], "opened without a vote: {:?}", rig.told());
    rig.finds(1).finds(2).run(1000);
    assert_eq!(rig.deeds(), ["hold", "release"], "the sentinels confirm it: {:?}", rig.told());
}

#[test]
fn refused_probe_waits_while_sentinels_see_a_restart() {
    let mut rig = Rig::booted();
    blackout(&mut rig, ProbeFailure::Unreachable);
    rig.run(4000);
    rig.fails('A', ProbeFailure::Denied).finds(1).finds(2).finds(3);
    rig.change(2, |it| (it.rebooted, it.run_id) = (true, "another".into()));
    rig.change(3, |it| it.run_id = "another".into()).run(20_000);
    assert_eq!(rig.deeds(), ["hold"], "the sentinels are about to replace it: {:?}", rig.told());
    rig.change(2, |it| it.rebooted = false).run(1000);
    assert_eq!(rig.deeds(), ["hold", "release"], "they keep it: {:?}", rig.told());
}

#[test]
fn another_process_in_between_voids_the_votes_before_it() {
    // Demoted, and master again a moment later: the sentinels, asked in between, still name it.
    let mut rig = Rig::booted();
    rig.demotes('A', 'B').run(1000);
    rig.nodes.insert('A', Answer::Lost);
    rig.run(100);
    for sentinel in [1, 2] {
        let (from, asked_at) = (super::rig::id(sentinel), rig.now);
        rig.step(Event::View {
            from,
            view: super::rig::view('A', 5, &[2, 3], &['B', 'C']),
            asked_at,
            configured: true,
        });
    }
    rig.loses(1).loses(2).loses(3);
    let probed = |rig: &mut Rig, answer: Answer| {
        let Answer::Report(report) = answer else { panic!("a report") };
        rig.now += super::rig::ms(1);
        let probe = crate::Probe { asked_at: rig.now, outcome: Ok(report) };
        rig.step(Event::Probed { node: node('A'), probe });
    };
    rig.mark();
    // An empty process answers at its address, and then the former one.
    probed(&mut rig, empty_master('A'));
    probed(&mut rig, master('A', "history-1", ""));
    assert_eq!(rig.deeds(), [""; 0], "the votes are older than the other process");
    rig.nodes.insert('A', master('A', "history-1", ""));
    rig.finds(1).finds(2).run(1500);
    assert_eq!(rig.deeds(), ["commit A@5 Again"]);
}
