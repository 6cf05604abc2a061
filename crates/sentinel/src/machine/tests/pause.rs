//! The gate shut by order.

use super::rig::{Rig, ms};
use crate::machine::{MachineEvent, Pause};

fn order(rig: &Rig, millis: u64, ends_with_commit: bool) -> MachineEvent {
    MachineEvent::Pause(Pause { since: rig.now, until: rig.now + ms(millis), ends_with_commit })
}

#[test]
fn a_pause_holds_until_it_is_taken_back() {
    let mut rig = Rig::booted();
    let event = order(&rig, 60_000, false);
    rig.step(event);
    rig.at(5000).step(MachineEvent::Resume);
    assert_eq!(rig.outcomes(), ["0 hold", "5000 release"]);
}

#[test]
fn a_pause_that_nobody_takes_back_ends_by_itself() {
    let mut rig = Rig::booted();
    let event = order(&rig, 2500, false);
    rig.step(event);
    rig.at(60_000);
    assert_eq!(rig.outcomes(), ["0 hold", "2500 release"]);
}

#[test]
fn a_switchover_opens_the_gate_with_the_commit_and_tells_the_whole_pause() {
    let mut rig = Rig::booted();
    let event = order(&rig, 20_000, true);
    rig.step(event);
    rig.at(100).selects(1, 'B').at(150).promotes('B').at(1000).all_name('B', 6);
    rig.at(1100);
    let outcomes = rig.outcomes();
    assert_eq!(outcomes.first().map(String::as_str), Some("0 hold"), "{outcomes:?}");
    assert!(
        outcomes.get(1).is_some_and(|it| it.contains("commit B@6")) && outcomes.len() == 2,
        "{outcomes:?}"
    );
    let hold = rig.machine.timeline().hold().expect("a hold");
    assert!(hold >= ms(1000), "traffic waited from the order on: {hold:?}");
}

#[test]
fn a_pause_of_an_operator_outlives_a_failover() {
    let mut rig = Rig::booted();
    let event = order(&rig, 20_000, false);
    rig.step(event);
    rig.at(100).selects(1, 'B').at(150).promotes('B').at(1000).all_name('B', 6);
    rig.at(30_000);
    let outcomes_untimed = rig.outcomes_untimed();
    assert_eq!(outcomes_untimed.first().map(String::as_str), Some("hold"), "{outcomes_untimed:?}");
    assert_eq!(
        rig.outcomes().last().map(String::as_str),
        Some("20000 release"),
        "{:?}",
        rig.outcomes()
    );
    assert_eq!(outcomes_untimed.len(), 3, "{outcomes_untimed:?}");
}
