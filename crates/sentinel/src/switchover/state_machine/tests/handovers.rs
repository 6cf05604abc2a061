//! Coordinated failovers: the master takes part, and may not.

use super::*;

const fn reports(is_master: bool, is_handing_over: bool) -> Option<ReplicationState> {
    Some(ReplicationState { is_master, link_up: true, offset: 1, priority: 100, is_handing_over })
}

const IDLE: Option<ReplicationState> = reports(true, false);
const WAITING_FOR_REPLICA: Option<ReplicationState> = reports(true, true);
const HANDED_OVER: Option<ReplicationState> = reports(false, false);

/// A coordinated failover up to the selection.
fn selected() -> Scenario {
    let mut scenario = Scenario::begin(None);
    scenario.pass(2).step(discovery(true, 1, 4, 6)).pass(150);
    let coordinated = FailoverKind::Coordinated;
    assert_eq!(
        scenario.count(|it| *it == Action::Leader(LeaderCommand::StartFailover(coordinated))),
        1
    );
    scenario
        .step(Input::Event(LeaderEvent::Epoch(7)))
        .step(Input::Event(LeaderEvent::Begun))
        .step(Input::FailoverReply(Ok(coordinated)))
        .step(Input::Event(LeaderEvent::Selected(node(2))));
    scenario
}

/// Advances time; the master answers with this state.
fn pass_with(scenario: &mut Scenario, millis: u64, state: Option<ReplicationState>) {
    for _ in 0..millis {
        let reads =
            |it: &Scenario| it.count(|it| *it == Action::Master(MasterCommand::ReadHandover));
        let before = reads(scenario);
        scenario.pass(1);
        if reads(scenario) > before {
            scenario.step(Input::HandoverRead(state));
        }
    }
}

fn not_carried_out() -> SwitchoverError {
    SwitchoverError::NotCarriedOut(node(1), node(9))
}

#[test]
fn ends_when_the_master_does_not_carry_it_out() {
    let mut scenario = selected();
    pass_with(&mut scenario, 999, IDLE);
    assert_eq!(
        scenario.count(|it| *it == Action::Master(MasterCommand::ReadHandover)),
        0,
        "it may not have the order yet"
    );
    pass_with(&mut scenario, 300, IDLE);
    assert_eq!(scenario.result(), None);
    pass_with(&mut scenario, 110, IDLE);
    assert_eq!(scenario.count(|it| *it == Action::Master(MasterCommand::EndHandover)), 1);
    scenario.pass(1).assert_failed(&not_carried_out());
}

#[test]
fn waits_for_a_master_that_carries_it_out() {
    for state in [WAITING_FOR_REPLICA, HANDED_OVER, None] {
        let mut scenario = selected();
        pass_with(&mut scenario, 4000, state);
        assert_eq!(scenario.result(), None, "{state:?}");
        scenario.step(Input::Event(LeaderEvent::Promoted(node(2))));
        let reads = scenario.count(|it| *it == Action::Master(MasterCommand::ReadHandover));
        pass_with(&mut scenario, 500, IDLE);
        assert!(
            scenario.count(|it| *it == Action::Master(MasterCommand::ReadHandover)) <= reads + 1
        );
        scenario.step(discovery(false, 2, 5, 7));
        assert!(scenario.result().unwrap().is_ok(), "{:?}", scenario.actions);
        assert_eq!(scenario.count(|it| *it == Action::Master(MasterCommand::EndHandover)), 0);
    }
}

#[test]
fn lets_the_master_write_after_every_failure() {
    let aborted_by = "-failover-abort-master-timeout";
    let lost = SwitchoverError::LeaderLost(node(9), "gone".to_owned());
    for (input, wait, reason) in [
        (Input::Event(LeaderEvent::Aborted(aborted_by.into())), 0, aborted(aborted_by)),
        (Input::LeaderLost("gone".to_owned()), 5001, lost),
        (Input::Tick, 10_000, SwitchoverError::NoCommit),
    ] {
        let mut scenario = selected();
        scenario.step(input);
        pass_with(&mut scenario, wait, WAITING_FOR_REPLICA);
        scenario.pass(1).assert_failed(&reason);
        assert_eq!(
            scenario.count(|it| *it == Action::Master(MasterCommand::EndHandover)),
            1,
            "{reason}"
        );
    }
}

#[test]
fn reports_a_master_that_stays_paused() {
    let mut scenario = selected();
    scenario.step(Input::Event(LeaderEvent::Aborted("-failover-abort-slave-timeout".into())));
    assert_eq!(scenario.result(), None);
    let problem = "it may accept no writes".to_owned();
    scenario.step(Input::Unpaused(Err(problem.clone())));
    assert_eq!(scenario.count(|it| *it == Action::ReportStep("pause", problem.clone())), 1);
    scenario.assert_failed(&aborted("-failover-abort-slave-timeout"));
}

#[test]
fn leaves_a_superseded_master_alone() {
    let mut scenario = selected();
    scenario.pass(500).step(discovery(false, 3, 5, 8));
    scenario.assert_failed(&SwitchoverError::OtherFailover(node(3)));
    assert_eq!(scenario.count(|it| *it == Action::Master(MasterCommand::EndHandover)), 0);
}

#[test]
fn watches_no_master_in_a_plain_failover() {
    // Because clients are paused, or because the servers do not support anything else.
    for down_after in [Some(MS(10_000)), None] {
        let mut scenario = Scenario::begin(down_after);
        scenario.select();
        let requested = scenario
            .count(|it| *it == Action::Leader(LeaderCommand::StartFailover(FailoverKind::Plain)));
        assert_eq!(requested, usize::from(down_after.is_some()));
        pass_with(&mut scenario, 3000, IDLE);
        assert_eq!(
            (
                scenario.count(|it| *it == Action::Master(MasterCommand::ReadHandover)),
                scenario.result()
            ),
            (0, None)
        );
    }
}
