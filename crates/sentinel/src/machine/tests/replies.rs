//! What becomes of the old master's replies while the gate is shut.

use super::rig::{Rig, master, ms, node};
use crate::machine::{Action, Event, Pause, State};
use crate::{Notice, ProbeFailure};

/// What was said of replies and of the gate, with its milliseconds. A hold lets them pass, and
/// every end of it does.
fn told(rig: &Rig, zero: std::time::Instant) -> Vec<String> {
    let said = |action: &Action| match action {
        Action::ReplyPolicy(replies) => Some(format!("{replies:?}")),
        Action::Hold => Some("Hold".to_owned()),
        Action::Release => Some("Release".to_owned()),
        Action::Commit(_) => Some("Commit".to_owned()),
        _ => None,
    };
    let at = |at: std::time::Instant| at.saturating_duration_since(zero).as_millis();
    rig.log
        .iter()
        .filter_map(|(when, action)| Some(format!("{} {}", at(*when), said(action)?)))
        .collect()
}

fn ordered(candidate: char) -> Notice {
    Notice::PromotionOrdered { candidate: node(candidate) }
}

#[test]
fn passes_them_between_selection_and_promotion() {
    let mut rig = Rig::booted();
    let zero = rig.now;
    rig.selects(1, 'B').at(90);
    assert_eq!(told(&rig, zero), ["0 Hold"]);
}

#[test]
fn drops_them_from_the_order_of_the_promotion_on() {
    let mut rig = Rig::booted();
    let zero = rig.now;
    rig.selects(1, 'B')
        .at(90)
        .says(1, ordered('B'))
        .says(1, ordered('B'))
        .at(92)
        .promotes('B')
        .at(900);
    rig.says(1, Notice::Promoted { candidate: node('B') }).all_name('B', 6).at(2100);
    let told = told(&rig, zero);
    assert_eq!(told[..2], ["0 Hold", "90 Drop"], "{told:?}");
    assert!(
        told.len() == 3 && told[2].ends_with("Commit"),
        "said once, and over with the commit: {told:?}"
    );
}

#[test]
fn drops_them_where_any_one_piece_of_evidence_is_heard() {
    // The leader's order, without a selection before it.
    let mut rig = Rig::booted();
    let zero = rig.now;
    rig.says(1, ordered('B'));
    assert_eq!(told(&rig, zero), ["0 Hold", "0 Drop"]);
    // The leader saw the promotion; as the first that is heard, and after a selection.
    let promoted = || Notice::Promoted { candidate: node('B') };
    let mut rig = Rig::booted();
    let zero = rig.now;
    rig.says(1, promoted());
    assert_eq!(told(&rig, zero), ["0 Hold", "0 Drop"]);
    let mut rig = Rig::booted();
    let zero = rig.now;
    rig.selects(1, 'B').at(90).says(1, promoted());
    assert_eq!(told(&rig, zero), ["0 Hold", "90 Drop"]);
    // The candidate says that it is the master.
    let mut rig = Rig::booted();
    let zero = rig.now;
    rig.promotes('B').step(Event::CanaryLost { node: node('B') });
    rig.run(5);
    assert_eq!(told(&rig, zero), ["1 Hold", "1 Drop"]);
}

#[test]
fn drops_them_while_a_majoritys_master_is_verified() {
    // Every event was lost, and the next master takes its time to answer.
    let mut rig = Rig::booted();
    let zero = rig.now;
    rig.fails('B', ProbeFailure::Silent).all_name('B', 6).run(1200);
    assert!(matches!(rig.machine.state(), State::Committing { .. }));
    let said = told(&rig, zero);
    assert!(said.len() == 2 && said[0].ends_with("Hold") && said[1].ends_with("Drop"), "{said:?}");
}

#[test]
fn drops_them_from_the_selection_on_where_the_master_is_silent() {
    for failure in [ProbeFailure::Silent, ProbeFailure::Unreachable] {
        let mut rig = Rig::booted();
        let zero = rig.now;
        rig.fails('A', failure).at(900).selects(1, 'B');
        assert_eq!(told(&rig, zero), ["900 Hold", "900 Drop"], "{failure:?}");
    }
    // One that denies an answer is there.
    let mut rig = Rig::booted();
    let zero = rig.now;
    rig.fails('A', ProbeFailure::Denied).at(900).selects(1, 'B');
    assert_eq!(told(&rig, zero), ["900 Hold"]);
}

#[test]
fn keeps_the_gate_shut_to_an_unreachable_master_that_wakes() {
    let mut rig = Rig::booted();
    rig.fails('A', ProbeFailure::Unreachable).at(2300);
    assert!(matches!(rig.machine.state(), State::NoMaster { .. }));
    let zero = rig.now;
    rig.log.clear();
    rig.selects(1, 'B').run(50);
    rig.says(1, ordered('B'));
    rig.nodes.insert('A', master('A', "history-1", ""));
    rig.run(700);
    // It was held before, as unreachable.
    assert_eq!(told(&rig, zero), ["0 Drop"], "opened to a master that is about to be replaced");
    rig.promotes('B').all_name('B', 6).run(1100);
    assert!(told(&rig, zero).last().is_some_and(|it| it.ends_with("Commit")));
}

#[test]
fn passes_them_again_when_the_failover_is_aborted() {
    let mut rig = Rig::booted();
    let zero = rig.now;
    rig.selects(1, 'B').at(90).says(1, ordered('B')).at(500).says(1, Notice::Aborted).at(5000);
    assert_eq!(told(&rig, zero), ["0 Hold", "90 Drop", "500 Release"]);
    // The next failover counts anew.
    let zero = rig.now;
    rig.log.clear();
    rig.selects(1, 'B').run(90);
    assert_eq!(told(&rig, zero), ["0 Hold"]);
}

#[test]
fn passes_them_again_behind_a_gate_that_an_operator_keeps_shut() {
    let mut rig = Rig::booted();
    let zero = rig.now;
    let (since, until) = (rig.now, rig.now + ms(60_000));
    rig.step(Event::Pause(Pause { since, until, ends_with_commit: false }));
    rig.says(1, ordered('B')).at(500).says(1, Notice::Aborted).at(900);
    assert_eq!(told(&rig, zero), ["0 Hold", "0 Drop", "500 Pass"]);
}

#[test]
fn waits_with_them_after_a_stop_until_the_master_is_confirmed() {
    let mut rig = Rig::booted();
    rig.stall(30_000);
    let zero = rig.now;
    rig.run(1000);
    assert_eq!(told(&rig, zero), ["0 Hold", "0 Wait", "1 Release"]);
    // Evidence from before the stop is not forgotten by it.
    let mut rig = Rig::booted();
    rig.says(1, ordered('B'));
    rig.stall(30_000);
    let zero = rig.now;
    rig.log.clear();
    rig.loses(1).loses(2).loses(3).run(100);
    assert!(told(&rig, zero).is_empty(), "dropped as before: {:?}", told(&rig, zero));
}

#[test]
fn waits_with_them_while_the_master_is_unconfirmed() {
    let mut rig = Rig::booted();
    let zero = rig.now;
    rig.loses(1).loses(2).loses(3).fails('A', ProbeFailure::Silent).run(3000);
    // Requests that were sent into the outage are executed now. Nobody knows yet whether it still
    // is the master.
    rig.nodes.insert('A', master('A', "history-1", ""));
    rig.run(500);
    let said = told(&rig, zero);
    assert!(said.len() == 2 && said[0].ends_with("Hold") && said[1].ends_with("Wait"), "{said:?}");
    // It is not: whatever it said is dropped with its sessions.
    rig.promotes('B').finds(1).finds(2).names(1, 'B', 6).names(2, 'B', 6).run(500);
    assert!(
        told(&rig, zero).last().is_some_and(|it| it.ends_with("Commit")),
        "{:?}",
        told(&rig, zero)
    );
}
