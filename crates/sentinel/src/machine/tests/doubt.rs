//! Loss of contact with the master: its own answer does not reopen the gate.

use std::time::Duration;

use super::rig::{Answer, Rig, master, node};
use crate::machine::{MachineAction, MachineEvent, MachineState, Warning};
use crate::{MachineRules, Minority, Notice, ProbeFailure};

/// Neither the master nor the sentinels are reachable.
fn outage(rig: &mut Rig, failure: ProbeFailure) {
    rig.disconnects(1)
        .disconnects(2)
        .disconnects(3)
        .fails('A', failure)
        .fails('B', failure)
        .fails('C', failure);
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

/// Another process at the address, with the data of the former one.
fn restarted_master(letter: char) -> Answer {
    let Answer::Report(mut report) = master(letter, "history-2", "history-1") else {
        panic!("a report")
    };
    report.lineage.as_mut().expect("a lineage").run_id = "next process".into();
    Answer::Report(report)
}

#[test]
fn keeps_gate_closed_on_old_masters_own_answer() {
    // This process loses its network for a while, during which a planned failover takes place.
    for (failure, dark) in [
        (ProbeFailure::Unreachable, 4000),
        (ProbeFailure::Unresponsive, 2000),
        (ProbeFailure::Unresponsive, 600),
    ] {
        for late in [300, 1000, 2000] {
            let mut rig = Rig::booted();
            outage(&mut rig, failure);
            rig.run(dark);
            old_master_is_back(&mut rig);
            rig.promotes('B').run(late);
            assert_eq!(
                rig.outcomes_untimed(),
                ["hold"],
                "{failure:?} for {dark} ms, sentinels {late} ms late: {:?}",
                rig.outcomes()
            );
            // The stale sentinel answers first.
            rig.reconnects(3).run(200);
            assert_eq!(
                rig.outcomes_untimed(),
                ["hold"],
                "{failure:?} for {dark} ms, sentinels {late} ms late: {:?}",
                rig.outcomes()
            );
            rig.reconnects(1).reconnects(2).names(1, 'B', 6).names(2, 'B', 6).run(2000);
            assert_eq!(
                rig.outcomes_untimed(),
                ["hold", "commit B@6 majority"],
                "{failure:?} for {dark} ms, {late} ms late"
            );
        }
    }
}

#[test]
fn ignores_votes_from_before_the_outage() {
    let mut rig = Rig::booted();
    // All answers arrive until the last moment before; they remain unexpired for five more seconds.
    rig.run(950);
    outage(&mut rig, ProbeFailure::Unreachable);
    rig.run(2500);
    old_master_is_back(&mut rig);
    rig.run(1000);
    assert_eq!(rig.outcomes_untimed(), ["hold"]);
    assert!(
        rig.machine.vote_outcome() != &crate::machine::VoteOutcome::Silence,
        "the votes are there: {:?}",
        rig.machine.vote_outcome()
    );
    // An answer that arrives now, to a query sent during the outage, is no newer.
    let view = super::rig::view('A', 5, &[2, 3], &['B', 'C']);
    for sentinel in [1, 2] {
        let (from, asked_at) = (super::rig::id(sentinel), rig.now - super::rig::ms(1200));
        rig.step(MachineEvent::View { from, view: view.clone(), asked_at, configured: true });
    }
    assert_eq!(rig.outcomes_untimed(), ["hold"]);
    rig.reconnects(1).reconnects(2).run(300);
    assert_eq!(rig.outcomes_untimed(), ["hold", "release"]);
}

/// Each answer takes about as long as the prober waits for one: every other one is too late, and
/// those of the sentinels are older than the last failure.
#[test]
fn opens_gate_on_network_that_delays_every_answer() {
    let mut rig = Rig::booted();
    outage(&mut rig, ProbeFailure::Unresponsive);
    rig.run(2000);
    rig.nodes.insert('A', Answer::Lost);
    rig.mark();
    for tick in 0..20 {
        rig.run(250);
        let ago = |millis| rig.now - super::rig::ms(millis);
        let Answer::Report(report) = master('A', "history-1", "") else { panic!("a report") };
        let (asked_at, outcome) = match tick % 2 {
            0 => (ago(250), Err(ProbeFailure::Unresponsive)),
            _ => (ago(240), Ok(report)),
        };
        let (probe, asked_at) = (crate::Probe { asked_at, outcome }, ago(600));
        for from in (1..=3).map(super::rig::id) {
            let view = super::rig::view('A', 5, &[1, 2, 3], &['B', 'C']);
            rig.step(MachineEvent::View { from, view, asked_at, configured: true });
        }
        rig.step(MachineEvent::Probed { node: node('A'), probe });
    }
    assert_eq!(rig.outcomes_untimed(), ["release"], "{:?}", rig.outcomes());
}

#[test]
fn does_not_hold_for_busy_master_with_majority() {
    let mut rig = Rig::booted();
    rig.fails('A', ProbeFailure::Unresponsive).run(6000);
    old_master_is_back(&mut rig);
    rig.run(3000);
    assert!(rig.outcomes().is_empty(), "{:?}", rig.outcomes());
    // The same if the sentinels had been unreachable for long.
    rig.disconnects(1).disconnects(2).disconnects(3).run(20_000);
    rig.fails('A', ProbeFailure::Unresponsive).run(6000);
    old_master_is_back(&mut rig);
    rig.run(3000);
    assert!(rig.outcomes().is_empty(), "{:?}", rig.outcomes());
}

#[test]
fn opens_gate_after_grace_of_uncontradicted_vote() {
    for (answering, least) in [(1_u8, 1500), (0, 5000)] {
        let mut rig = Rig::booted();
        outage(&mut rig, ProbeFailure::Unreachable);
        rig.run(4000);
        old_master_is_back(&mut rig);
        if answering == 1 {
            rig.reconnects(1);
        }
        rig.mark();
        rig.run(least - 30);
        assert!(rig.outcomes().is_empty(), "{answering} answering: {:?}", rig.outcomes());
        rig.run(100);
        assert_eq!(rig.outcomes_untimed(), ["release"], "{answering} answering");
    }
}

#[test]
fn ends_every_hold_for_a_doubt() {
    // One sentinel claims a newer master that is unreachable; the others are gone.
    let mut rig = Rig::booted();
    outage(&mut rig, ProbeFailure::Unreachable);
    rig.run(4000);
    old_master_is_back(&mut rig);
    rig.reconnects(1).change(1, |it| (it.addr, it.epoch) = (node('X'), 99)).mark();
    rig.run(9500);
    assert!(rig.outcomes().is_empty(), "{:?}", rig.outcomes());
    rig.run(1000);
    assert_eq!(rig.outcomes_untimed(), ["release"]);
}

#[test]
fn waits_for_failover_in_progress() {
    let mut rig = Rig::booted();
    outage(&mut rig, ProbeFailure::Unreachable);
    rig.run(4000);
    rig.mark();
    old_master_is_back(&mut rig);
    // The leader has begun; no sentinel has switched.
    rig.reconnects(1).reconnects(2).reconnects(3).change(1, |it| it.failing_over = true).run(900);
    assert!(rig.outcomes().is_empty(), "{:?}", rig.outcomes());
    rig.promotes('B').all_name('B', 6).run(500);
    assert_eq!(rig.outcomes_untimed(), ["commit B@6 majority"]);
    // A failover that hangs is not waited for without end.
    let mut rig = Rig::booted();
    rig.change(1, |it| it.failing_over = true).fails('A', ProbeFailure::Unreachable).run(4000);
    rig.mark();
    old_master_is_back(&mut rig);
    rig.run(4000);
    assert_eq!(rig.outcomes_untimed(), ["release"]);
}

#[test]
fn holds_for_candidate_announced_during_doubt() {
    let mut rig = Rig::booted();
    rig.fails('A', ProbeFailure::Unreachable).run(4000);
    rig.selects(1, 'B');
    old_master_is_back(&mut rig);
    rig.run(1000);
    assert_eq!(
        rig.outcomes_untimed(),
        ["hold"],
        "sentinels confirm it, and are about to promote another"
    );
    rig.publishes(1, Notice::Aborted).run(1000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "release"]);
}

#[test]
fn waits_for_calm_sentinels_before_using_empty_pod() {
    type Flag = fn(&mut crate::View);
    let flags: [Flag; 3] =
        [|it| it.objectively_down = true, |it| it.rebooted = true, |it| it.failing_over = true];
    for flag in flags {
        let mut rig = Rig::booted();
        rig.fails('A', ProbeFailure::Unreachable).change(2, flag).run(3000);
        rig.nodes.insert('A', empty_master('A'));
        rig.run(20_000);
        assert_eq!(rig.outcomes_untimed(), ["hold"], "the sentinels are about to replace it");
        rig.change(2, |it| {
            (it.objectively_down, it.rebooted, it.failing_over) = (false, false, false);
        });
        rig.run(1000);
        assert_eq!(rig.outcomes_untimed(), ["hold", "commit A@5 reconfirmed"], "they keep it");
        assert_eq!(rig.warnings(Warning::LineageBroken), 1);
    }
}

/// One that is cut off from the master, or dials its former address for Sentinel's fifteen seconds.
#[test]
fn uses_empty_pod_that_too_few_sentinels_miss() {
    let used = ["hold", "commit A@5 reconfirmed"];
    let cases = [(1, 2, &used[..]), (2, 2, &used[..1]), (1, 1, &used[..1])];
    for (missing, quorum, outcomes) in cases {
        let mut rig = Rig::booted();
        rig.change(3, |it| it.quorum = quorum);
        rig.fails('A', ProbeFailure::Unreachable).run(3000);
        for sentinel in 1..=missing {
            rig.change(sentinel, |it| it.down = true);
        }
        rig.nodes.insert('A', empty_master('A'));
        rig.run(20_000);
        assert_eq!(rig.outcomes_untimed(), outcomes, "{missing} of three, quorum {quorum}");
    }
}

#[test]
fn uses_empty_pod_only_once_sentinels_reach_it() {
    let mut rig = Rig::booted();
    rig.nodes.insert('A', Answer::Failure(ProbeFailure::Unreachable));
    rig.run(1500);
    // It is back before the sentinels see it down, and they do not reach it.
    rig.nodes.insert('A', empty_master('A'));
    for sentinel in 1..=3 {
        rig.change(sentinel, |it| it.pong_age = Duration::from_secs(60));
    }
    rig.run(20_000);
    assert_eq!(rig.outcomes_untimed(), ["hold"], "the sentinels may be about to replace it");
    rig.change(1, |it| it.pong_age = Duration::ZERO);
    rig.change(2, |it| it.pong_age = Duration::ZERO).run(1000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit A@5 reconfirmed"], "they reach it");
}

/// It was restarted from an old file. Its replicas have what it lacks.
#[test]
fn uses_master_with_older_data_only_once_sentinels_reach_it() {
    let mut rig = Rig::booted();
    let Answer::Report(mut report) = restarted_master('A') else { panic!("a report") };
    report.lineage.as_mut().expect("a lineage").offset = 900;
    rig.nodes.insert('A', Answer::Report(report));
    for sentinel in 1..=3 {
        rig.change(sentinel, |it| it.pong_age = Duration::from_secs(60));
    }
    rig.run(20_000);
    assert_eq!(rig.outcomes_untimed(), ["hold"]);
    rig.change(1, |it| it.pong_age = Duration::ZERO);
    rig.change(2, |it| it.pong_age = Duration::ZERO).run(1000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit A@5 reconfirmed"]);
}

/// Each sentinel that is given sees that process at the address of its master, and has read that so
/// long ago.
fn sees(rig: &mut Rig, sentinels: &[u8], process: &str, info_age: Duration) {
    for sentinel in sentinels {
        rig.change(*sentinel, |it| (it.run_id, it.info_age) = (process.into(), info_age));
    }
}

#[test]
fn starts_closed_to_another_process_than_sentinels_see() {
    let starting = |process: &str| {
        let mut rig = Rig::new();
        rig.nodes.insert('A', empty_master('A'));
        sees(&mut rig, &[1, 2, 3], process, Duration::MAX);
        rig.run(60_000);
        assert_eq!(rig.outcomes_untimed(), ["commit A@5 majority"]);
        rig
    };
    // None has read it yet.
    assert!(!starting("").machine.is_holding());
    // One of three may be late.
    let mut late = Rig::new();
    sees(&mut late, &[1], "another", Duration::MAX);
    late.run(2000);
    assert!(!late.machine.is_holding(), "{:?}", late.outcomes());
    // It hides what it is, now that they see another one.
    let mut hiding = starting("process-A");
    hiding.without_lineage().run(20_000);
    assert!(hiding.machine.is_holding(), "{:?}", hiding.outcomes());
    hiding.fails('A', ProbeFailure::Denied).run(20_000);
    assert!(hiding.machine.is_holding(), "{:?}", hiding.outcomes());
    // Most read it later: it was restarted a moment ago.
    let mut rig = starting("process-A");
    assert!(rig.machine.is_holding());
    sees(&mut rig, &[1], "fresh process", Duration::ZERO);
    rig.run(2000);
    assert!(rig.machine.is_holding(), "one of three");
    sees(&mut rig, &[2], "fresh process", Duration::ZERO);
    rig.run(1100);
    assert_eq!(rig.outcomes_untimed(), ["commit A@5 majority", "release"]);
    // They replace it.
    let mut rig = starting("process-A");
    rig.promotes('B').all_name('B', 6).run(1100);
    assert_eq!(rig.outcomes_untimed(), ["commit A@5 majority", "commit B@6 majority"]);
    assert!(!rig.machine.is_holding());
}

/// The successor's name leads to another server here.
#[test]
fn holds_for_successor_that_is_another_server() {
    let mut rig = Rig::booted();
    rig.nodes.insert('B', empty_master('B'));
    rig.demotes('A', 'B').all_name('B', 6);
    sees(&mut rig, &[1, 2, 3], "", Duration::MAX);
    rig.run(5000);
    assert!(rig.machine.is_holding(), "they have not read it yet: {:?}", rig.outcomes());
    sees(&mut rig, &[1, 2, 3], "process-B", Duration::ZERO);
    rig.run(60_000);
    assert!(rig.machine.is_holding(), "{:?}", rig.outcomes());
    rig.promotes('B').run(2000);
    assert!(!rig.machine.is_holding(), "{:?}", rig.outcomes());
}

/// All pods have new addresses, and a stranger was given the old one of the master, where its name
/// still leads from here. The sentinels reach their master, which is neither.
#[test]
fn holds_for_stranger_at_the_former_address() {
    for seeing in [&[1, 2, 3][..], &[3]] {
        let mut rig = Rig::booted();
        sees(&mut rig, seeing, "moved process", Duration::ZERO);
        rig.nodes.insert('A', empty_master('A'));
        rig.run(60_000);
        assert_eq!(rig.outcomes_untimed(), ["hold"], "{seeing:?}");
        assert_eq!(rig.warnings(Warning::SeenAsAnother), 1);
        // It was the successor, restarted twice.
        sees(&mut rig, &[1, 2], "fresh process", Duration::ZERO);
        rig.run(1100);
        assert_eq!(rig.outcomes_untimed(), ["hold", "commit A@5 reconfirmed"]);
    }
}

/// It watches another server at that address, and another sentinel is down.
#[test]
fn odd_sentinel_has_no_veto_on_a_restart() {
    let mut rig = Rig::booted();
    rig.disconnects(3);
    sees(&mut rig, &[1], "odd process", Duration::ZERO);
    rig.nodes.insert('A', empty_master('A'));
    rig.run(9000);
    assert_eq!(rig.outcomes_untimed(), ["hold"], "nobody has seen it yet");
    sees(&mut rig, &[2], "fresh process", Duration::ZERO);
    rig.run(5000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit A@5 reconfirmed"]);
}

/// A sentinel that has not asked since shows the process before both.
#[test]
fn waits_for_no_sentinel_after_two_restarts() {
    let mut rig = Rig::booted();
    rig.nodes.insert('A', empty_master('A'));
    rig.run(3000);
    sees(&mut rig, &[1], "process-A", Duration::from_secs(9));
    sees(&mut rig, &[2, 3], "fresh process", Duration::from_secs(2));
    let Answer::Report(mut report) = empty_master('A') else { panic!("a report") };
    let lineage = report.lineage.as_mut().expect("a lineage");
    (lineage.run_id, lineage.replid) = ("next process".into(), "next".into());
    rig.nodes.insert('A', Answer::Report(report));
    rig.run(1500);
    let each = ["hold", "commit A@5 reconfirmed"];
    assert_eq!(rig.outcomes_untimed(), [each, each].concat());
}

#[test]
fn holds_when_most_sentinels_see_another_process() {
    let seen_by = |sentinels: &[u8], info_age| {
        let mut rig = Rig::booted();
        rig.run(2000);
        sees(&mut rig, sentinels, "another", info_age);
        rig.run(20_000);
        rig
    };
    for calm in [seen_by(&[1], Duration::ZERO), seen_by(&[1, 2, 3], Duration::from_secs(60))] {
        assert!(calm.outcomes().is_empty(), "{:?}", calm.outcomes());
    }
    let mut rig = seen_by(&[1, 2], Duration::ZERO);
    assert_eq!(rig.outcomes_untimed(), ["hold"]);
    assert_eq!(rig.warnings(Warning::SeenAsAnother), 1);
    sees(&mut rig, &[1, 2], "process-A", Duration::ZERO);
    rig.run(1100);
    assert_eq!(rig.outcomes_untimed(), ["hold", "release"]);
}

#[test]
fn requires_a_vote_for_another_process() {
    let mut rig = Rig::booted();
    rig.disconnects(1).disconnects(2).disconnects(3).run(10_000);
    rig.nodes.insert('A', empty_master('A'));
    rig.run(600_000);
    assert_eq!(rig.outcomes_untimed(), ["hold"]);
    assert!(
        matches!(rig.machine.state(), MachineState::Unconfirmed { .. }),
        "{:?}",
        rig.machine.state()
    );
    rig.reconnects(2).run(3000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit A@5 reconfirmed"]);
}

/// The third address is that of a sentinel of another cluster, or one of the group lies. A majority
/// confirms the master after its restart.
#[test]
fn ends_doubt_by_a_majority_despite_a_lie() {
    for (addr, epoch, restarted) in [
        ('D', 999, restarted_master as fn(char) -> Answer),
        ('D', 999, empty_master),
        ('B', 999, restarted_master),
    ] {
        let mut rig = Rig::new();
        rig.sentinels.remove(&3);
        rig.sentinels.insert(4, super::rig::view(addr, epoch, &[], &[]));
        for sentinel in [1, 2] {
            rig.change(sentinel, |it| it.peers.truncate(1));
        }
        rig.nodes.insert('D', master('D', "foreign", ""));
        rig.change(1, |it| it.peers[0].0 = super::rig::id(2));
        rig.run(15_000);
        rig.mark();
        rig.fails('A', ProbeFailure::Unreachable).run(3000);
        rig.nodes.insert('A', restarted('A'));
        rig.run(12_000);
        assert_eq!(
            rig.outcomes_untimed(),
            ["hold", "commit A@5 reconfirmed"],
            "{addr}: {:?}",
            rig.outcomes()
        );
    }
}

/// The leader of a failover is the first one to know of it, and its master is not reachable.
#[test]
fn keeps_gate_closed_after_a_restart_if_few_name_a_known_node() {
    let mut rig = Rig::booted();
    rig.fails('A', ProbeFailure::Unreachable).run(3000);
    rig.names(1, 'B', 6).fails('B', ProbeFailure::Unreachable);
    rig.nodes.insert('A', restarted_master('A'));
    rig.run(60_000);
    assert_eq!(rig.outcomes_untimed(), ["hold"], "{:?}", rig.outcomes());
}

#[test]
fn reuses_demoted_master_only_on_fresh_votes() {
    let mut rig = Rig::booted();
    rig.demotes('A', 'B').run(1000);
    assert_eq!(rig.outcomes_untimed(), ["clear Demoted"]);
    rig.disconnects(1).disconnects(2).disconnects(3);
    old_master_is_back(&mut rig);
    rig.run(4000);
    assert_eq!(
        rig.outcomes_untimed(),
        ["clear Demoted"],
        "views from before it was a replica prove nothing"
    );
    rig.reconnects(1).reconnects(2).run(300);
    assert_eq!(rig.outcomes_untimed(), ["clear Demoted", "commit A@5 reconfirmed"]);
}

#[test]
fn ends_doubt_and_minority_together() {
    let mut rig =
        Rig::booted_with(MachineRules { minority: Minority::Hold, ..MachineRules::default() });
    outage(&mut rig, ProbeFailure::Unreachable);
    rig.run(10_000);
    old_master_is_back(&mut rig);
    rig.reconnects(1).run(20_000);
    assert_eq!(rig.outcomes_untimed(), ["hold"]);
    rig.reconnects(2).run(500);
    assert_eq!(rig.outcomes_untimed(), ["hold", "release"]);
}

#[test]
fn keeps_gate_closed_without_gap() {
    let mut rig = Rig::booted();
    outage(&mut rig, ProbeFailure::Unreachable);
    rig.run(3000);
    for _ in 0..20 {
        old_master_is_back(&mut rig);
        rig.run(30);
        rig.fails('A', ProbeFailure::Unreachable).run(1500);
    }
    let opened = rig
        .log
        .iter()
        .filter(|(_, action)| matches!(action, MachineAction::Release | MachineAction::Hold))
        .count();
    assert_eq!(opened, 1, "{:?}", rig.outcomes());
}

#[test]
fn ignores_claim_for_replica_at_same_epoch() {
    let mut rig = Rig::new();
    rig.all_name('A', 0).run(3000);
    rig.sentinels.remove(&1);
    rig.sentinels.insert(4, super::rig::view('B', 0, &[2, 3], &[]));
    rig.run(4000);
    rig.stall(5000);
    rig.mark();
    rig.run(3000);
    assert_eq!(
        rig.outcomes_untimed(),
        ["hold", "release"],
        "{:?} {:?}",
        rig.machine.quorum(),
        rig.machine.vote_outcome()
    );
    rig.mark();
    rig.run(60_000);
    assert!(rig.outcomes().is_empty(), "{:?}", rig.outcomes());
}

#[test]
fn limits_hold_for_slow_network_to_ten_seconds() {
    let mut rig = Rig::booted();
    rig.disconnects(1)
        .disconnects(2)
        .disconnects(3)
        .fails('A', ProbeFailure::Unresponsive)
        .run(60_000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "release"], "{:?}", rig.outcomes());
    let at: u64 =
        rig.outcomes()[1].split(' ').next().and_then(|it| it.parse().ok()).expect("a time");
    assert!((10_000..=11_500).contains(&at), "{:?}", rig.outcomes());
}

#[test]
fn confirms_full_master_by_run_id_of_sentinels() {
    for (run_id, outcomes_untimed) in
        [("process-A", vec!["hold", "release"]), ("another", vec!["hold"])]
    {
        let mut rig = Rig::booted();
        for sentinel in 1..=3 {
            rig.change(sentinel, |it| it.run_id = run_id.into());
        }
        rig.fails('A', ProbeFailure::Unreachable).run(3000);
        // It is back, but its clients reconnected faster than the prober.
        rig.fails('A', ProbeFailure::ConnectionRejected).run(4000);
        assert_eq!(rig.outcomes_untimed(), outcomes_untimed, "sentinels see {run_id}");
    }
}

#[test]
fn treats_refused_probe_as_unknown_process() {
    // The process that answers after the outage refuses the probe's password, as an empty pod at a
    // reused address would.
    let mut rig = Rig::booted();
    outage(&mut rig, ProbeFailure::Unreachable);
    rig.run(4000);
    rig.fails('A', ProbeFailure::Denied).run(600_000);
    assert_eq!(rig.outcomes_untimed(), ["hold"], "opened without a vote: {:?}", rig.outcomes());
    rig.reconnects(1).reconnects(2).run(1000);
    assert_eq!(
        rig.outcomes_untimed(),
        ["hold", "release"],
        "the sentinels confirm it: {:?}",
        rig.outcomes()
    );
}

#[test]
fn waits_on_refused_probe_while_restart_is_seen() {
    let mut rig = Rig::booted();
    outage(&mut rig, ProbeFailure::Unreachable);
    rig.run(4000);
    rig.fails('A', ProbeFailure::Denied).reconnects(1).reconnects(2).reconnects(3);
    rig.change(2, |it| (it.rebooted, it.run_id) = (true, "another".into()));
    rig.change(3, |it| it.run_id = "another".into()).run(20_000);
    assert_eq!(
        rig.outcomes_untimed(),
        ["hold"],
        "the sentinels are about to replace it: {:?}",
        rig.outcomes()
    );
    rig.change(2, |it| it.rebooted = false).run(1000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "release"], "they keep it: {:?}", rig.outcomes());
}

#[test]
fn voids_votes_when_another_process_answered() {
    // Demoted, and master again a moment later: the sentinels, queried in between, still name it.
    let mut rig = Rig::booted();
    rig.demotes('A', 'B').run(1000);
    rig.nodes.insert('A', Answer::Lost);
    rig.run(100);
    for sentinel in [1, 2] {
        let (from, asked_at) = (super::rig::id(sentinel), rig.now);
        rig.step(MachineEvent::View {
            from,
            view: super::rig::view('A', 5, &[2, 3], &['B', 'C']),
            asked_at,
            configured: true,
        });
    }
    rig.disconnects(1).disconnects(2).disconnects(3);
    let probed = |rig: &mut Rig, answer: Answer| {
        let Answer::Report(report) = answer else { panic!("a report") };
        rig.now += super::rig::ms(1);
        let probe = crate::Probe { asked_at: rig.now, outcome: Ok(report) };
        rig.step(MachineEvent::Probed { node: node('A'), probe });
    };
    rig.mark();
    // An empty process answers at its address, and then the former one.
    probed(&mut rig, empty_master('A'));
    probed(&mut rig, master('A', "history-1", ""));
    assert_eq!(rig.outcomes_untimed(), [""; 0], "the votes are older than the other process");
    rig.nodes.insert('A', master('A', "history-1", ""));
    rig.reconnects(1).reconnects(2).run(1500);
    assert_eq!(rig.outcomes_untimed(), ["commit A@5 reconfirmed"]);
}

/// The votes were for the process that answered when they were asked for. If the history of the
/// committed one could not be read, nothing else distinguishes the third.
#[test]
fn requires_vote_for_third_process_without_history() {
    let mut rig = Rig::new();
    rig.without_lineage().run(3000);
    rig.demotes('A', 'B').run(1500);
    assert_eq!(rig.outcomes_untimed()[1..], ["clear Demoted"]);
    rig.mark();
    rig.nodes.insert('A', master('A', "history-1", ""));
    let votes_counted = (0..5000).any(|_| {
        rig.run(1);
        matches!(rig.machine.state(), MachineState::Committing { .. })
    });
    assert!(votes_counted, "{:?}", rig.machine.state());
    rig.nodes.insert('A', empty_master('A'));
    rig.disconnects(1).disconnects(2).disconnects(3).run(3000);
    assert_eq!(rig.outcomes_untimed(), Vec::<String>::new());
    rig.reconnects(1).reconnects(2).reconnects(3).run(3000);
    assert_eq!(rig.outcomes_untimed(), ["commit A@5 reconfirmed"]);
}
