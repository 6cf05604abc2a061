//! The treatment of the old master's replies while the gate is closed.

use super::rig::{Rig, master, ms, node};
use crate::machine::{MachineAction, MachineEvent, MachineState, Pause};
use crate::{Notice, ProbeFailure};

/// The changes of the gate and of the treatment of replies, with their milliseconds. A hold lets
/// replies pass, and so does every end of it.
fn outcomes(rig: &Rig, zero: std::time::Instant) -> Vec<String> {
    let label = |action: &MachineAction| match action {
        MachineAction::ReplyPolicy(replies) => Some(format!("{replies:?}")),
        MachineAction::Hold => Some("Hold".to_owned()),
        MachineAction::Release => Some("Release".to_owned()),
        MachineAction::Commit(_) => Some("Commit".to_owned()),
        _ => None,
    };
    let at = |at: std::time::Instant| at.saturating_duration_since(zero).as_millis();
    rig.log
        .iter()
        .filter_map(|(when, action)| Some(format!("{} {}", at(*when), label(action)?)))
        .collect()
}

fn ordered(candidate: char) -> Notice {
    Notice::PromotionOrdered { candidate: node(candidate) }
}

#[test]
fn passes_replies_between_selection_and_promotion() {
    let mut rig = Rig::booted();
    let zero = rig.now;
    rig.selects(1, 'B').at(90);
    assert_eq!(outcomes(&rig, zero), ["0 Hold"]);
}

#[test]
fn drops_replies_from_promotion_order_on() {
    let mut rig = Rig::booted();
    let zero = rig.now;
    rig.selects(1, 'B')
        .at(90)
        .publishes(1, ordered('B'))
        .publishes(1, ordered('B'))
        .at(92)
        .promotes('B')
        .at(900);
    rig.publishes(1, Notice::Promoted { candidate: node('B') }).all_name('B', 6).at(2100);
    let outcomes = outcomes(&rig, zero);
    assert_eq!(outcomes[..2], ["0 Hold", "90 Drop"], "{outcomes:?}");
    assert!(
        outcomes.len() == 3 && outcomes[2].ends_with("Commit"),
        "emitted once, and reset by the commit: {outcomes:?}"
    );
}

#[test]
fn drops_replies_on_any_evidence() {
    // The leader's order, without a selection before it.
    let mut rig = Rig::booted();
    let zero = rig.now;
    rig.publishes(1, ordered('B'));
    assert_eq!(outcomes(&rig, zero), ["0 Hold", "0 Drop"]);
    // The leader saw the promotion: as the first event, and after a selection.
    let promoted = || Notice::Promoted { candidate: node('B') };
    let mut rig = Rig::booted();
    let zero = rig.now;
    rig.publishes(1, promoted());
    assert_eq!(outcomes(&rig, zero), ["0 Hold", "0 Drop"]);
    let mut rig = Rig::booted();
    let zero = rig.now;
    rig.selects(1, 'B').at(90).publishes(1, promoted());
    assert_eq!(outcomes(&rig, zero), ["0 Hold", "90 Drop"]);
    // The candidate reports that it is the master: it is not known yet whether a sentinel meant it.
    let mut rig = Rig::booted();
    let zero = rig.now;
    rig.change(1, |view| view.failing_over = true);
    rig.promotes('B').step(MachineEvent::ProbeConnectionLost { node: node('B') });
    rig.run(5);
    assert_eq!(outcomes(&rig, zero), ["1 Hold", "1 Wait"]);
}

#[test]
fn drops_replies_while_verifying_majority() {
    // Every event was lost, and the next master answers late.
    let mut rig = Rig::booted();
    let zero = rig.now;
    rig.fails('B', ProbeFailure::Unresponsive).all_name('B', 6).run(1200);
    assert!(matches!(rig.machine.state(), MachineState::Committing { .. }));
    let changes = outcomes(&rig, zero);
    assert!(changes.len() == 2, "{changes:?}");
    assert!(changes[0].ends_with("Hold") && changes[1].ends_with("Drop"), "{changes:?}");
}

#[test]
fn drops_replies_from_selection_if_master_is_silent() {
    for failure in [ProbeFailure::Unresponsive, ProbeFailure::Unreachable] {
        let mut rig = Rig::booted();
        let zero = rig.now;
        rig.fails('A', failure).at(900).selects(1, 'B');
        assert_eq!(outcomes(&rig, zero), ["900 Hold", "900 Drop"], "{failure:?}");
    }
    // A refused query shows that the master is present.
    let mut rig = Rig::booted();
    let zero = rig.now;
    rig.fails('A', ProbeFailure::Denied).at(900).selects(1, 'B');
    assert_eq!(outcomes(&rig, zero), ["900 Hold"]);
}

#[test]
fn keeps_gate_closed_to_waking_master_in_failover() {
    let mut rig = Rig::booted();
    rig.fails('A', ProbeFailure::Unreachable).at(2300);
    assert!(matches!(rig.machine.state(), MachineState::NoMaster { .. }));
    let zero = rig.now;
    rig.log.clear();
    rig.selects(1, 'B').run(50);
    rig.publishes(1, ordered('B'));
    rig.nodes.insert('A', master('A', "history-1", ""));
    rig.run(700);
    // The gate was closed before, because the master was unreachable.
    assert_eq!(
        outcomes(&rig, zero),
        ["0 Drop"],
        "gate opened to a master that is about to be replaced"
    );
    rig.promotes('B').all_name('B', 6).run(1100);
    assert!(outcomes(&rig, zero).last().is_some_and(|it| it.ends_with("Commit")));
}

#[test]
fn passes_replies_again_after_abort() {
    let mut rig = Rig::booted();
    let zero = rig.now;
    rig.selects(1, 'B')
        .at(90)
        .publishes(1, ordered('B'))
        .at(500)
        .publishes(1, Notice::Aborted)
        .at(5000);
    assert_eq!(outcomes(&rig, zero), ["0 Hold", "90 Drop", "500 Release"]);
    // The next failover starts from scratch.
    let zero = rig.now;
    rig.log.clear();
    rig.selects(1, 'B').run(90);
    assert_eq!(outcomes(&rig, zero), ["0 Hold"]);
}

#[test]
fn passes_replies_again_in_operator_pause() {
    let mut rig = Rig::booted();
    let zero = rig.now;
    let (since, until) = (rig.now, rig.now + ms(60_000));
    rig.step(MachineEvent::Pause(Pause { since, until, ends_with_commit: false }));
    rig.publishes(1, ordered('B')).at(500).publishes(1, Notice::Aborted).at(900);
    assert_eq!(outcomes(&rig, zero), ["0 Hold", "0 Drop", "500 Pass"]);
}

#[test]
fn keeps_replies_waiting_after_stall() {
    let mut rig = Rig::booted();
    rig.stall(30_000);
    let zero = rig.now;
    rig.run(1000);
    assert_eq!(outcomes(&rig, zero), ["0 Hold", "0 Wait", "1 Release"]);
    // A stall does not discard evidence from before.
    let mut rig = Rig::booted();
    rig.publishes(1, ordered('B'));
    rig.stall(30_000);
    let zero = rig.now;
    rig.log.clear();
    rig.disconnects(1).disconnects(2).disconnects(3).run(100);
    assert!(outcomes(&rig, zero).is_empty(), "dropped as before: {:?}", outcomes(&rig, zero));
}

#[test]
fn keeps_replies_waiting_while_unconfirmed() {
    let mut rig = Rig::booted();
    let zero = rig.now;
    rig.disconnects(1)
        .disconnects(2)
        .disconnects(3)
        .fails('A', ProbeFailure::Unresponsive)
        .run(3000);
    // Requests that were sent into the outage are executed now. It is unknown whether the node is
    // still the master.
    rig.nodes.insert('A', master('A', "history-1", ""));
    rig.run(500);
    let changes = outcomes(&rig, zero);
    assert!(changes.len() == 2, "{changes:?}");
    assert!(changes[0].ends_with("Hold") && changes[1].ends_with("Wait"), "{changes:?}");
    // It is not: its replies are dropped with its sessions.
    rig.promotes('B').reconnects(1).reconnects(2).names(1, 'B', 6).names(2, 'B', 6).run(500);
    assert!(
        outcomes(&rig, zero).last().is_some_and(|it| it.ends_with("Commit")),
        "{:?}",
        outcomes(&rig, zero)
    );
}
