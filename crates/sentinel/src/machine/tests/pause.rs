//! The operator's pause.

use super::rig::{Rig, ms};
use crate::machine::{MachineEvent, Pause};

fn pause(rig: &Rig, millis: u64, ends_with_commit: bool) -> MachineEvent {
    MachineEvent::Pause(Pause { since: rig.now, until: rig.now + ms(millis), ends_with_commit })
}

#[test]
fn pauses_until_resumed() {
    let mut rig = Rig::booted();
    let event = pause(&rig, 60_000, false);
    rig.step(event);
    rig.at(5000).step(MachineEvent::Resume);
    assert_eq!(rig.outcomes(), ["0 hold", "5000 release"]);
}

#[test]
fn ends_pause_at_its_deadline() {
    let mut rig = Rig::booted();
    let event = pause(&rig, 2500, false);
    rig.step(event);
    rig.at(60_000);
    assert_eq!(rig.outcomes(), ["0 hold", "2500 release"]);
}

#[test]
fn opens_gate_at_commit_of_switchover() {
    let mut rig = Rig::booted();
    let event = pause(&rig, 20_000, true);
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
    assert!(hold >= ms(1000), "traffic waited since the command: {hold:?}");
}

#[test]
fn keeps_pause_across_failover() {
    let mut rig = Rig::booted();
    let event = pause(&rig, 20_000, false);
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
