//! Switchovers input by input: the requested actions, the end, and the state that is left.

mod handovers;
mod pauses;

use super::*;

const MS: fn(u64) -> Duration = Duration::from_millis;

fn node(port: u16) -> NodeAddr {
    NodeAddr { host: "10.0.0.1".into(), port }
}

fn participants() -> Participants {
    Participants {
        master: master(1, 4, 6),
        replicas: vec![
            (node(2), "10.0.0.1:2".parse().unwrap()),
            (node(3), "10.0.0.1:3".parse().unwrap()),
        ],
        sentinels: vec![node(9)],
    }
}

fn offsets(master: u64, replica: u64) -> Input {
    let offsets_of = |is_master, offset| ReplicationState {
        is_master,
        link_up: true,
        offset,
        priority: 100,
        is_handing_over: false,
    };
    Input::OffsetsRead(Ok(ReplicationReading {
        master: offsets_of(true, master),
        replicas: vec![
            (node(2), offsets_of(false, replica)),
            (node(3), offsets_of(false, replica)),
        ],
    }))
}

fn master(port: u16, generation: u64, epoch: u64) -> MasterSnapshot {
    MasterSnapshot {
        addr: node(port),
        dialled: ([10, 0, 0, 1], port).into(),
        generation,
        epoch,
        run_id: None,
        since: Instant::now(),
        sessions: 0,
        connects_fail: false,
    }
}

fn discovery(holding: bool, port: u16, generation: u64, epoch: u64) -> Input {
    Input::Discovery { holding, master: Some(master(port, generation, epoch)) }
}

fn calm_view() -> LeaderView {
    LeaderView {
        master: node(1),
        epoch: 6,
        failing_over: false,
        down: false,
        selected: None,
        down_after: None,
        replicas: Vec::new(),
    }
}

/// A state machine with its clock, and all its actions.
struct Scenario {
    machine: SwitchoverMachine,
    start: Instant,
    at: u64,
    actions: Vec<(u64, Action)>,
    /// How many actions [`pass`](Self::pass) has answered.
    answered: usize,
    /// When [`pass`](Self::pass) reports offsets.
    read_at: Option<u64>,
}

impl Scenario {
    fn begin(down_after: Option<Duration>) -> Self {
        let start = Instant::now();
        let mut machine =
            SwitchoverMachine::begin(start, participants(), node(9), down_after).unwrap();
        let actions = machine.step(start, Input::Tick);
        let actions = actions.into_iter().map(|it| (0, it)).collect();
        Self { machine, start, at: 0, actions, answered: 0, read_at: None }
    }

    fn step(&mut self, input: Input) -> &mut Self {
        let actions = self.machine.step(self.start + MS(self.at), input);
        self.actions.extend(actions.into_iter().map(|it| (self.at, it)));
        self
    }

    /// Advances time in steps of a millisecond. Grants pauses and reports caught-up offsets.
    fn pass(&mut self, millis: u64) -> &mut Self {
        let until = self.at + millis;
        while self.at < until {
            self.at += 1;
            self.step(Input::Tick);
            if self.read_at.take_if(|at| *at <= self.at).is_some() {
                self.step(offsets(100, 100));
            }
            while let Some((_, action)) = self.actions.get(self.answered).cloned() {
                self.answered += 1;
                let answer = match action {
                    Action::Master(MasterCommand::Pause(_)) => Input::Paused(Ok(())),
                    Action::ReadOffsets(after) => {
                        self.read_at = Some(self.at + u64::try_from(after.as_millis()).unwrap());
                        continue;
                    }
                    Action::Master(MasterCommand::Unpause | MasterCommand::EndHandover) => {
                        Input::Unpaused(Ok(()))
                    }
                    _ => continue,
                };
                self.step(answer);
            }
        }
        self
    }

    /// Up to the leader's selection of node 2 at epoch 7.
    fn select(&mut self) -> &mut Self {
        self.order().step(Input::Event(LeaderEvent::Selected(node(2))))
    }

    /// Up to an accepted command and a failover that has begun.
    fn order(&mut self) -> &mut Self {
        self.pass(2).step(discovery(true, 1, 4, 6)).pass(150);
        assert_eq!(
            self.count(|it| matches!(it, Action::Leader(LeaderCommand::StartFailover(_)))),
            1,
            "{:?}",
            self.actions
        );
        self.step(Input::Event(LeaderEvent::Epoch(7)));
        self.step(Input::Event(LeaderEvent::Begun))
            .step(Input::FailoverReply(Ok(FailoverKind::Plain)))
    }

    fn count(&self, wanted: impl Fn(&Action) -> bool) -> usize {
        self.actions.iter().filter(|(_, action)| wanted(action)).count()
    }

    fn result(&self) -> Option<Result<SwitchoverOutcome, SwitchoverError>> {
        self.actions.iter().find_map(|(_, it)| {
            if let Action::Done(result) = it { Some(result.clone()) } else { None }
        })
    }

    /// It ended with this error, the gate is open, and no client is left paused.
    fn assert_failed(&self, reason: &SwitchoverError) {
        assert_eq!(self.result(), Some(Err(reason.clone())), "{:?}", self.actions);
        self.assert_cleaned_up();
    }

    fn assert_cleaned_up(&self) {
        let last =
            |wanted: fn(&Action) -> bool| self.actions.iter().rposition(|(_, it)| wanted(it));
        let (held, released) =
            (last(|it| matches!(it, Action::Hold(_))), last(|it| matches!(it, Action::Release)));
        assert!(held < released, "the gate stays closed: {:?}", self.actions);
        let paused = last(|it| matches!(it, Action::Master(MasterCommand::Pause(_))));
        assert!(
            paused.is_none()
                || paused < last(|it| matches!(it, Action::Master(MasterCommand::Unpause))),
            "{:?}",
            self.actions
        );
        assert_eq!(self.count(|it| matches!(it, Action::Done(_))), 1, "{:?}", self.actions);
        let (done, others) = (last(|it| matches!(it, Action::Done(_))), self.actions.len());
        assert_eq!(done, Some(others - 1), "an action after the end: {:?}", self.actions);
    }
}

fn aborted(event: &str) -> SwitchoverError {
    SwitchoverError::Aborted(node(9), event.into())
}

#[test]
fn succeeds_with_the_selected_replica_at_its_epoch() {
    let mut scenario = Scenario::begin(None);
    scenario
        .select()
        .pass(900)
        .step(Input::Event(LeaderEvent::Promoted(node(2))))
        .pass(90)
        .step(discovery(false, 2, 5, 7));
    let outcome = scenario.result().unwrap().unwrap();
    assert_eq!((outcome.from, outcome.to, outcome.generation), (node(1), node(2), 5));
    assert!(
        outcome.held >= MS(1020) && outcome.sentinel < outcome.held,
        "{:?} {:?}",
        outcome.held,
        outcome.sentinel
    );
    scenario.assert_cleaned_up();
    assert_eq!(scenario.count(|it| *it == Action::Selected), 1);
    assert_eq!(
        scenario.count(|it| matches!(
            it,
            Action::Master(MasterCommand::Pause(_)) | Action::Master(MasterCommand::Unpause)
        )),
        0,
        "no pause was requested"
    );
}

#[test]
fn ends_at_abort_event() {
    for down_after in [None, Some(MS(10_000))] {
        let mut scenario = Scenario::begin(down_after);
        scenario.select().pass(3000);
        let at = scenario.at;
        assert_eq!(scenario.result(), None);
        let event = "-failover-abort-slave-timeout";
        scenario.step(Input::Event(LeaderEvent::Aborted(event.into())));
        let released =
            scenario.actions.iter().rfind(|(_, it)| *it == Action::Release).map(|(at, _)| *at);
        assert_eq!(released, Some(at), "the gate does not wait for the answer to UNPAUSE");
        assert_eq!(
            scenario.count(|it| *it == Action::Master(MasterCommand::Unpause)),
            usize::from(down_after.is_some())
        );
        scenario.step(Input::Unpaused(Ok(()))).assert_failed(&aborted(event));
    }
}

#[test]
fn ends_when_leader_reports_no_failover() {
    let mut scenario = Scenario::begin(None);
    scenario.select().step(Input::View(LeaderView { failing_over: true, ..calm_view() })).pass(200);
    assert_eq!(scenario.result(), None);
    scenario
        .step(Input::View(calm_view()))
        .assert_failed(&aborted("no failover is in progress on this sentinel"));
    // After the promotion the same answer comes shortly before the leader's own switch.
    let mut scenario = Scenario::begin(None);
    scenario
        .select()
        .step(Input::Event(LeaderEvent::Promoted(node(2))))
        .step(Input::View(calm_view()));
    assert_eq!(scenario.result(), None);
}

#[test]
fn reports_no_success_for_another_failover() {
    for (port, epoch) in [(3, 7), (2, 8), (3, 8)] {
        let mut scenario = Scenario::begin(None);
        scenario.select().pass(1000).step(discovery(false, port, 5, epoch));
        scenario.assert_failed(&SwitchoverError::OtherFailover(node(port)));
    }
    // A commit without any event of the leader is no success, either.
    let mut scenario = Scenario::begin(None);
    scenario
        .order()
        .pass(1000)
        .step(discovery(false, 2, 5, 7))
        .pass(499)
        .step(discovery(false, 2, 5, 7));
    assert_eq!(scenario.result(), None, "its events may be read later than the commit");
    scenario
        .pass(1)
        .step(discovery(false, 2, 5, 7))
        .assert_failed(&SwitchoverError::OtherFailover(node(2)));
}

#[test]
fn accepts_selection_read_after_commit() {
    let mut scenario = Scenario::begin(None);
    scenario.order().pass(1800).step(discovery(false, 2, 5, 7)).pass(400);
    assert_eq!(scenario.result(), None, "the sentinel has started the failover");
    scenario.step(Input::Event(LeaderEvent::Selected(node(2)))).step(discovery(false, 2, 5, 7));
    assert!(scenario.result().unwrap().is_ok(), "{:?}", scenario.actions);
}

#[test]
fn follows_answers_where_events_are_lost() {
    let mut scenario = Scenario::begin(None);
    scenario
        .pass(2)
        .step(discovery(true, 1, 4, 6))
        .pass(150)
        .step(Input::FailoverReply(Ok(FailoverKind::Plain)));
    let selected = LeaderView { failing_over: true, selected: Some(node(2)), ..calm_view() };
    scenario.step(Input::View(selected.clone())).pass(900);
    scenario.step(Input::View(LeaderView { epoch: 7, ..selected })).step(discovery(false, 2, 5, 7));
    assert!(scenario.result().unwrap().is_ok(), "{:?}", scenario.actions);
}

#[test]
fn ignores_aborts_from_before_failover_command() {
    let mut scenario = Scenario::begin(None);
    let stale = || Input::Event(LeaderEvent::Aborted("-failover-abort-not-elected".into()));
    scenario
        .step(stale())
        .pass(2)
        .step(discovery(true, 1, 4, 6))
        .pass(150)
        .step(stale())
        .step(Input::FailoverReply(Ok(FailoverKind::Plain)));
    assert_eq!(scenario.result(), None);
    scenario.step(stale());
    assert_eq!(scenario.result(), None, "the failover has not begun");
}

#[test]
fn ends_hold_when_leader_does_not_begin() {
    let mut scenario = Scenario::begin(None);
    scenario.order().step(Input::View(LeaderView { failing_over: true, ..calm_view() }));
    let ordered = scenario
        .actions
        .iter()
        .find(|(_, it)| matches!(it, Action::Leader(LeaderCommand::StartFailover(_))))
        .unwrap()
        .0;
    scenario.pass(ordered + 1999 - scenario.at);
    assert_eq!(scenario.result(), None);
    scenario.pass(1).assert_failed(&SwitchoverError::NotBegun(node(9), MS(2000)));
}

#[test]
fn ends_hold_when_leader_is_lost() {
    let mut scenario = Scenario::begin(None);
    scenario.order().step(Input::LeaderLost("gone".to_owned()));
    let lost = SwitchoverError::LeaderLost(node(9), "gone".to_owned());
    scenario.assert_failed(&lost);
    let unknown = |scenario: &mut Scenario| {
        scenario.pass(2).step(discovery(true, 1, 4, 6)).pass(150);
        scenario.step(Input::Event(LeaderEvent::Epoch(7))).step(Input::Event(LeaderEvent::Begun));
        scenario
            .step(Input::Event(LeaderEvent::Selected(node(2))))
            .step(Input::LeaderLost("gone".to_owned()));
        assert_eq!(
            (scenario.result(), scenario.count(|it| *it == Action::Release)),
            (None, 1),
            "traffic is not held for it"
        );
    };
    let mut scenario = Scenario::begin(None);
    unknown(&mut scenario);
    scenario.pass(1000).step(discovery(false, 2, 5, 7));
    assert!(scenario.result().unwrap().is_ok());
    let mut scenario = Scenario::begin(None);
    unknown(&mut scenario);
    scenario.pass(5001).assert_failed(&lost);
}

/// The selected replica died.
#[test]
fn ends_hold_when_promotion_takes_long() {
    for down_after in [None, Some(MS(30_000))] {
        let released = |it: &Scenario| it.count(|it| *it == Action::Release);
        let unpaused = |it: &Scenario| it.count(|it| *it == Action::Master(MasterCommand::Unpause));
        let mut scenario = Scenario::begin(down_after);
        scenario.select().pass(2700);
        assert_eq!(released(&scenario), 0);
        scenario.pass(300);
        assert_eq!((released(&scenario), scenario.result()), (1, None));
        // The old master is verified anew.
        scenario.step(discovery(false, 1, 5, 6)).step(discovery(false, 1, 5, 6)).pass(1);
        assert_eq!(unpaused(&scenario), usize::from(down_after.is_some()));
        let held = scenario.count(|it| matches!(it, Action::Hold(_)));
        assert_eq!(held, 1, "traffic is held again: {:?}", scenario.actions);
        scenario.pass(7000).assert_failed(&SwitchoverError::NoCommit);

        let mut scenario = Scenario::begin(down_after);
        scenario.select().pass(5000).step(discovery(false, 2, 5, 7)).pass(1500);
        assert!(scenario.result().expect("a result").is_ok(), "{:?}", scenario.actions);
    }
}

#[test]
fn revokes_all_on_refusal_lag_and_lost_node() {
    let refused = SwitchoverError::Refused("-INPROG".to_owned());
    let mut scenario = Scenario::begin(Some(MS(10_000)));
    scenario
        .pass(2)
        .step(discovery(true, 1, 4, 6))
        .pass(150)
        .step(Input::FailoverReply(Err(refused.clone())));
    assert_eq!(scenario.count(|it| *it == Action::Master(MasterCommand::Unpause)), 1);
    scenario.step(Input::Unpaused(Ok(()))).assert_failed(&refused);

    let mut scenario = Scenario::begin(None);
    scenario.pass(2).step(discovery(true, 1, 4, 6));
    for _ in 0..500 {
        scenario.at += 5;
        scenario.step(Input::Tick);
        if scenario.result().is_none() {
            scenario.step(offsets(100, 60));
        }
    }
    scenario.assert_failed(&SwitchoverError::node(
        &node(2),
        "lags by 40 bytes and did not catch up in time",
    ));
    assert_eq!(
        scenario.count(|it| matches!(it, Action::Leader(LeaderCommand::StartFailover(_)))),
        0
    );

    let mut scenario = Scenario::begin(None);
    let died = SwitchoverError::Node(node(1), "gone".to_owned());
    scenario
        .pass(2)
        .step(discovery(true, 1, 4, 6))
        .step(Input::OffsetsRead(Err(died.clone())))
        .assert_failed(&died);
}

#[test]
fn revokes_nothing_after_failover_command() {
    // Another failover, no master at all, a requester that disconnected, a gate that does not
    // close.
    for input in [discovery(true, 2, 5, 7), Input::Discovery { holding: false, master: None }] {
        let mut scenario = Scenario::begin(None);
        scenario
            .pass(2)
            .step(discovery(true, 1, 4, 6))
            .step(input)
            .assert_failed(&SwitchoverError::Unsettled);
    }
    let mut scenario = Scenario::begin(None);
    scenario
        .pass(2)
        .step(discovery(true, 1, 4, 6))
        .step(Input::Abandoned)
        .assert_failed(&SwitchoverError::Abandoned);
    let mut scenario = Scenario::begin(None);
    scenario.pass(499);
    assert_eq!(scenario.result(), None);
    scenario.pass(1).assert_failed(&SwitchoverError::Unsettled);
    let mut scenario = Scenario::begin(None);
    scenario.order().step(Input::Abandoned);
    assert_eq!(scenario.result(), None, "the failover command cannot be revoked");
}

#[test]
fn ends_although_nothing_answers() {
    // A task that died answers nothing.
    for ordered in [false, true] {
        let mut scenario = Scenario::begin(None);
        scenario.pass(2).step(discovery(true, 1, 4, 6));
        if ordered {
            scenario.pass(150);
        }
        for _ in 0..30_000 {
            scenario.at += 1;
            scenario.step(Input::Tick);
        }
        scenario.assert_failed(&SwitchoverError::NoCommit);
    }
}

#[test]
fn closes_gate_again_when_old_master_is_verified_anew() {
    let mut scenario = Scenario::begin(None);
    scenario.select().step(discovery(false, 1, 5, 6));
    assert_eq!((scenario.result(), scenario.count(|it| matches!(it, Action::Hold(_)))), (None, 2));
    scenario.step(discovery(true, 2, 6, 7));
    assert_eq!(scenario.result().unwrap().unwrap().generation, 6);
}
