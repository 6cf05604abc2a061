//! Writes that replicas have confirmed: a promoted node that lacks some is not followed at once.

use super::rig::{Answer, Rig, ms, node};
use crate::machine::MachineEvent;
use crate::{AttachedReplica, MachineRules, NodeReport};

fn report(rig: &mut Rig, letter: char) -> &mut NodeReport {
    match rig.nodes.get_mut(&letter) {
        Some(Answer::Report(report)) => report,
        _ => panic!("{letter} reports nothing"),
    }
}

/// A master whose replicas have acknowledged these offsets, and with writes that this many of them
/// have to confirm.
fn durable(confirmed_by: u8, acknowledged: [u64; 2]) -> Rig {
    durable_for(8000, confirmed_by, acknowledged)
}

/// With this many milliseconds before a node that lacks confirmed writes is followed.
fn durable_for(hold: u64, confirmed_by: u8, acknowledged: [u64; 2]) -> Rig {
    let rules = MachineRules { confirmed_by, confirmed_hold: ms(hold), ..MachineRules::default() };
    let mut rig = Rig::booted_with(rules);
    let replicas = ['B', 'C'].into_iter().zip(acknowledged);
    let replicas =
        replicas.map(|(letter, acknowledged)| AttachedReplica { addr: node(letter), acknowledged });
    report(&mut rig, 'A').replicas = Some(replicas.collect());
    rig.run(1500);
    rig.mark();
    rig
}

/// The sentinels promote B, which left the history after this offset.
fn fail_over_to_b(rig: &mut Rig, offset: i64) {
    rig.selects(1, 'B').at(90).promotes('B');
    let lineage = report(rig, 'B').lineage.as_mut().expect("a lineage");
    lineage.second_offset = offset + 1;
    rig.step(MachineEvent::ProbeConnectionLost { node: node('B') });
    rig.at(1000).all_name('B', 6);
}

#[test]
fn follows_a_node_that_has_all_confirmed_writes() {
    let mut rig = durable(1, [700, 900]);
    fail_over_to_b(&mut rig, 900);
    rig.at(3000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit B@6 majority"]);
    // Two have to confirm, and only one has acknowledged more.
    let mut rig = durable(2, [700, 900]);
    fail_over_to_b(&mut rig, 700);
    rig.at(3000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit B@6 majority"]);
    // Nothing is confirmed.
    let mut rig = durable(0, [700, 900]);
    fail_over_to_b(&mut rig, 10);
    rig.at(3000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit B@6 majority"]);
}

fn acknowledge(rig: &mut Rig, offset: u64) {
    let replicas = report(rig, 'A').replicas.as_mut().expect("replicas");
    replicas.iter_mut().for_each(|it| it.acknowledged = offset);
}

/// The old master is a master for seconds after a planned failover, and goes on with its other
/// replica. No client hears of that.
#[test]
fn ignores_what_is_acknowledged_while_the_gate_is_closed() {
    let mut rig = durable(1, [700, 900]);
    rig.selects(1, 'B').at(90).promotes('B');
    report(&mut rig, 'B').lineage.as_mut().expect("a lineage").second_offset = 901;
    acknowledge(&mut rig, 950);
    rig.at(1000).all_name('B', 6).at(3000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit B@6 majority"]);
}

/// A process that may replicate can acknowledge anything.
#[test]
fn believes_no_acknowledgement_beyond_the_masters_offset() {
    let mut rig = durable(1, [700, 900]);
    acknowledge(&mut rig, 1 << 60);
    rig.run(1500);
    rig.mark();
    fail_over_to_b(&mut rig, 1000);
    rig.at(3000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit B@6 majority"]);
}

#[test]
fn waits_before_it_follows_a_node_that_lacks_some() {
    let mut rig = durable(1, [700, 900]);
    fail_over_to_b(&mut rig, 899);
    rig.at(8000);
    assert_eq!(rig.outcomes_untimed(), ["hold"], "nothing is opened, to nobody");
    let lacking = rig.machine.lacking().expect("an alarm");
    assert_eq!((&lacking.node, lacking.bytes), (&node('B'), 1));
    rig.at(9500);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit B@6 majority"]);
    assert_eq!(rig.machine.lacking(), None);
}

/// B was promoted, killed, and came back without its data.
#[test]
fn waits_before_it_follows_a_node_with_other_data() {
    let mut rig = durable(1, [700, 900]);
    rig.nodes.insert('B', super::rig::master('B', "other", ""));
    rig.all_name('B', 6).at(7000);
    assert_eq!(rig.outcomes_untimed(), ["hold"]);
    let lacking = rig.machine.lacking().expect("an alarm");
    assert_eq!((&lacking.node, lacking.bytes), (&node('B'), 900));
    rig.at(9500);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit B@6 majority"]);
}

/// A master that loads its data from an append-only file begins another history, and no other node
/// is promoted.
#[test]
fn confirms_restarted_master_at_once() {
    let mut rig = durable(1, [700, 900]);
    rig.nodes.insert('A', super::rig::master('A', "other", ""));
    report(&mut rig, 'A').lineage.as_mut().expect("a lineage").run_id = "new".into();
    rig.step(MachineEvent::ProbeConnectionLost { node: node('A') });
    rig.at(2000);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit A@5 reconfirmed"]);
}

/// Longer than the limit for the verification, after which the sessions are closed.
#[test]
fn waits_as_long_as_clients_do() {
    let mut rig = durable_for(30_000, 1, [700, 900]);
    fail_over_to_b(&mut rig, 700);
    rig.at(30_500);
    assert_eq!(rig.outcomes_untimed(), ["hold", "clear Unverified"]);
    rig.at(32_000);
    let outcomes = rig.outcomes_untimed();
    assert_eq!(outcomes.last().map(String::as_str), Some("commit B@6 majority"), "{outcomes:?}");
}

#[test]
fn counts_replicas_beyond_those_that_confirm() {
    assert_eq!(durable(1, [1, 1]).machine.spare_replicas(), Some(1));
    assert_eq!(durable(3, [1, 1]).machine.spare_replicas(), Some(-1));
    assert_eq!(durable(0, [1, 1]).machine.spare_replicas(), None);
    // The server does not list them.
    let rules = MachineRules { confirmed_by: 1, ..MachineRules::default() };
    assert_eq!(Rig::booted_with(rules).machine.spare_replicas(), None);
}

#[test]
fn follows_a_better_node_at_once() {
    let mut rig = durable(1, [700, 900]);
    fail_over_to_b(&mut rig, 700);
    rig.at(3000).promotes('C');
    report(&mut rig, 'C').lineage.as_mut().expect("a lineage").second_offset = 901;
    rig.all_name('C', 7).at(3500);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit C@7 majority"]);
    assert_eq!(rig.machine.lacking(), None);
}

/// Another failover follows before the new master was asked what its replicas have.
#[test]
fn remembers_confirmed_writes_under_the_next_master() {
    for (letter, bytes) in [('C', 801), ('A', 900)] {
        let mut rig = durable(1, [700, 900]);
        fail_over_to_b(&mut rig, 900);
        rig.at(3000);
        rig.mark();
        if letter == 'C' {
            // It follows B, and is promoted with less than was confirmed on A.
            rig.nodes.insert('C', super::rig::master('C', "history-C", "history-B"));
            report(&mut rig, 'C').lineage.as_mut().expect("a lineage").second_offset = 100;
        } else {
            // It has come back without its data, and is promoted.
            rig.nodes.insert('A', super::rig::master('A', "other", ""));
        }
        rig.all_name(letter, 7).at(6000);
        assert_eq!(rig.outcomes_untimed(), ["hold"]);
        let lacking = rig.machine.lacking().expect("an alarm");
        assert_eq!((&lacking.node, lacking.bytes), (&node(letter), bytes));
        rig.at(13_000);
        assert_eq!(
            rig.outcomes_untimed(),
            ["hold".to_owned(), format!("commit {letter}@7 majority")]
        );
        assert_eq!(rig.machine.lacking(), None);
    }
}
