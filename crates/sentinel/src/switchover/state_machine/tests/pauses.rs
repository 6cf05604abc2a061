//! Switchovers that pause the master's other clients.

use super::*;

#[test]
fn pauses_clients_without_gap_until_after_commit() {
    let mut scenario = Scenario::begin(Some(MS(10_000)));
    scenario.select().pass(1000).step(discovery(false, 2, 5, 7));
    let committed = scenario.at;
    assert_eq!(scenario.result(), None);
    assert_eq!(
        scenario.count(|it| *it == Action::Release),
        1,
        "traffic through this proxy resumes at once"
    );
    scenario.pass(1100);
    assert!(scenario.result().unwrap().is_ok(), "{:?}", scenario.actions);
    let pauses: Vec<(u64, u64)> = scenario
        .actions
        .iter()
        .filter_map(|(at, it)| match it {
            Action::Master(MasterCommand::Pause(span)) => Some((*at, span.as_millis() as u64)),
            _ => None,
        })
        .collect();
    let shut = scenario
        .actions
        .iter()
        .find(|(_, it)| matches!(it, Action::ReportStep("hold", _)))
        .unwrap()
        .0;
    assert!(pauses[0].0 >= shut + 30, "our own requests are executed first: {pauses:?}");
    assert!(pauses.windows(2).all(|two| two[1].0 < two[0].0 + two[0].1), "{pauses:?}");
    let order = scenario
        .actions
        .iter()
        .find(|(_, it)| matches!(it, Action::Leader(LeaderCommand::StartFailover(_))))
        .unwrap()
        .0;
    assert!(pauses[0].0 < order && pauses.last().unwrap().0 >= committed + 800, "{pauses:?}");
    scenario.assert_cleaned_up();
}

#[test]
fn ends_when_pause_is_refused_or_too_long() {
    let mut scenario = Scenario::begin(Some(MS(10_000)));
    scenario.pass(2).step(discovery(true, 1, 4, 6));
    while scenario.count(|it| matches!(it, Action::Master(MasterCommand::Pause(_)))) == 0 {
        scenario.at += 1;
        scenario.step(Input::Tick);
    }
    scenario.step(Input::Paused(Err("NOPERM".to_owned()))).step(Input::Unpaused(Ok(())));
    scenario.assert_failed(&SwitchoverError::NotPaused("NOPERM".to_owned()));
    assert_eq!(
        scenario.count(|it| matches!(it, Action::Leader(LeaderCommand::StartFailover(_)))),
        0
    );
    let refused = SwitchoverMachine::begin(Instant::now(), participants(), node(9), Some(MS(1000)));
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("down-after-milliseconds is 1000 ms"), "{refused}");
}

#[test]
fn stops_pausing_before_sentinels_notice() {
    let mut scenario = Scenario::begin(Some(MS(2000)));
    scenario.select();
    let first = scenario
        .actions
        .iter()
        .find(|(_, it)| matches!(it, Action::Master(MasterCommand::Pause(_))))
        .unwrap()
        .0;
    scenario.pass(5000);
    for (at, action) in &scenario.actions {
        if let Action::Master(MasterCommand::Pause(span)) = action {
            assert!(at + span.as_millis() as u64 <= first + 1500, "{at} ms");
        }
    }
    assert_eq!(scenario.result(), None, "the failover is followed nevertheless");
    assert_eq!(scenario.count(|it| matches!(it, Action::ReportStep("pause", _))), 2);
}

#[test]
fn starts_no_failover_after_lapsed_pause() {
    let mut scenario = Scenario::begin(Some(MS(10_000)));
    scenario.pass(2).step(discovery(true, 1, 4, 6));
    let mut granted = false;
    while scenario.at < 1000 && scenario.result().is_none() {
        scenario.at += 10;
        let seen = scenario.actions.len();
        scenario.step(Input::Tick);
        let actions: Vec<Action> =
            scenario.actions[seen..].iter().map(|(_, it)| it.clone()).collect();
        // The first pause is granted; the master is then too busy to answer the next one, and
        // reports its offset late.
        if !granted
            && actions.iter().any(|it| matches!(it, Action::Master(MasterCommand::Pause(_))))
        {
            granted = true;
            scenario.step(Input::Paused(Ok(())));
        }
        if scenario.at > 600 {
            scenario.step(offsets(100, 100));
        }
    }
    assert_eq!(
        scenario.count(|it| matches!(it, Action::Leader(LeaderCommand::StartFailover(_)))),
        0,
        "{:?}",
        scenario.actions
    );
    scenario.step(Input::Unpaused(Ok(())));
    assert!(
        matches!(scenario.result(), Some(Err(SwitchoverError::NotPaused(_)))),
        "{:?}",
        scenario.actions
    );
}

#[test]
fn unpauses_clients_when_traffic_resumes_without_leader() {
    let mut scenario = Scenario::begin(Some(MS(30_000)));
    scenario
        .select()
        .step(Input::LeaderLost("gone".to_owned()))
        .step(discovery(true, 1, 4, 6))
        .pass(2900);
    assert_eq!(
        scenario.count(|it| *it == Action::Master(MasterCommand::Unpause)),
        0,
        "the promotion may have happened"
    );
    scenario.step(discovery(false, 1, 4, 6));
    let pauses = scenario.count(|it| matches!(it, Action::Master(MasterCommand::Pause(_))));
    assert_eq!(scenario.count(|it| *it == Action::Master(MasterCommand::Unpause)), 1);
    scenario.pass(1000).step(discovery(false, 1, 4, 6));
    assert_eq!(
        (
            scenario.result(),
            scenario.count(|it| matches!(it, Action::Master(MasterCommand::Pause(_))))
        ),
        (None, pauses)
    );
    scenario.pass(2000).assert_failed(&SwitchoverError::LeaderLost(node(9), "gone".to_owned()));
}
