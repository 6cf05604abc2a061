//! Courses of switchovers, input by input: what is asked for, what ends them, and what is then left
//! behind.

mod pauses;

use super::*;

const MS: fn(u64) -> Duration = Duration::from_millis;

fn node(port: u16) -> NodeAddr {
    NodeAddr { host: "10.0.0.1".into(), port }
}

fn cast() -> Cast {
    Cast {
        master: node(1),
        dialled: "10.0.0.1:1".parse().unwrap(),
        generation: 4,
        epoch: 6,
        replicas: vec![
            (node(2), "10.0.0.1:2".parse().unwrap()),
            (node(3), "10.0.0.1:3".parse().unwrap()),
        ],
        sentinels: vec![node(9)],
    }
}

fn offsets(master: u64, replica: u64) -> Input {
    let standing =
        |is_master, offset| ReplicationOffsets { is_master, link_up: true, offset, priority: 100 };
    Input::Looked(Ok((
        standing(true, master),
        vec![(node(2), standing(false, replica)), (node(3), standing(false, replica))],
    )))
}

fn sight(holding: bool, port: u16, generation: u64, epoch: u64) -> Input {
    Input::DiscoverySnapshot(Sight { holding, master: Some((node(port), generation, epoch)) })
}

fn calm_view() -> LeaderView {
    LeaderView {
        master: node(1),
        epoch: 6,
        failing_over: false,
        down: false,
        selected: None,
        down_after: None,
    }
}

/// A course with its clock, and everything that it asked for.
struct Play {
    course: Course,
    start: Instant,
    at: u64,
    did: Vec<(u64, Action)>,
    /// How many actions [`pass`](Self::pass) has answered.
    answered: usize,
}

impl Play {
    fn begin(down_after: Option<Duration>) -> Self {
        let start = Instant::now();
        let cast_of = (cast(), node(9));
        let (course, actions) =
            Course::begin(start, cast_of, Limits::default(), down_after).unwrap();
        Self {
            course,
            start,
            at: 0,
            did: actions.into_iter().map(|it| (0, it)).collect(),
            answered: 0,
        }
    }

    fn put(&mut self, input: Input) -> &mut Self {
        let actions = self.course.step(self.start + MS(self.at), input);
        self.did.extend(actions.into_iter().map(|it| (self.at, it)));
        self
    }

    /// Lets time pass, called as often as it wants to be. Pauses are granted, looks answered with
    /// nothing lacking.
    fn pass(&mut self, millis: u64) -> &mut Self {
        let until = self.at + millis;
        while self.at < until {
            self.at += 1;
            self.put(Input::Tick);
            while let Some((_, action)) = self.did.get(self.answered).cloned() {
                self.answered += 1;
                match action {
                    Action::Pause(_) => drop(self.put(Input::Paused(Ok(())))),
                    Action::Look => drop(self.put(offsets(100, 100))),
                    Action::Unpause => drop(self.put(Input::Unpaused)),
                    _ => {}
                }
            }
        }
        self
    }

    /// Up to the leader's selection of node 2 at epoch 7.
    fn select(&mut self) -> &mut Self {
        self.order().put(Input::Event(LeaderEvent::Selected(node(2))))
    }

    /// Up to an order that was taken and a failover that has begun.
    fn order(&mut self) -> &mut Self {
        self.pass(2).put(sight(true, 1, 4, 6)).pass(150);
        assert_eq!(self.count(|it| *it == Action::Order), 1, "{:?}", self.did);
        self.put(Input::Event(LeaderEvent::Epoch(7)));
        self.put(Input::Event(LeaderEvent::Begun)).put(Input::Ordered(Answer::Taken))
    }

    fn count(&self, wanted: impl Fn(&Action) -> bool) -> usize {
        self.did.iter().filter(|(_, action)| wanted(action)).count()
    }

    fn result(&self) -> Option<Result<Outcome, Reason>> {
        self.did.iter().find_map(|(_, it)| {
            if let Action::Done(result) = it { Some(result.clone()) } else { None }
        })
    }

    /// It is over with this reason now, the gate is open, and nobody is left paused.
    fn ended_with(&self, reason: &Reason) {
        assert_eq!(self.result(), Some(Err(reason.clone())), "{:?}", self.did);
        self.left_nothing_behind();
    }

    fn left_nothing_behind(&self) {
        let last = |wanted: fn(&Action) -> bool| self.did.iter().rposition(|(_, it)| wanted(it));
        let (held, released) = (
            last(|it| matches!(it, Action::Hold { .. })),
            last(|it| matches!(it, Action::Release)),
        );
        assert!(held < released, "the gate stays shut: {:?}", self.did);
        let paused = last(|it| matches!(it, Action::Pause(_)));
        assert!(
            paused.is_none() || paused < last(|it| matches!(it, Action::Unpause)),
            "{:?}",
            self.did
        );
        assert_eq!(self.count(|it| matches!(it, Action::Done(_))), 1, "{:?}", self.did);
        let (done, others) = (last(|it| matches!(it, Action::Done(_))), self.did.len());
        assert_eq!(done, Some(others - 1), "something comes after the end: {:?}", self.did);
    }
}

fn aborted(event: &str) -> Reason {
    Reason::Aborted { sentinel: node(9), event: event.into() }
}

#[test]
fn succeeds_with_the_selected_replica_at_its_epoch() {
    let mut play = Play::begin(None);
    play.select()
        .pass(900)
        .put(Input::Event(LeaderEvent::Promoted(node(2))))
        .pass(90)
        .put(sight(false, 2, 5, 7));
    let outcome = play.result().unwrap().unwrap();
    assert_eq!((outcome.from, outcome.to, outcome.generation), (node(1), node(2), 5));
    assert!(
        outcome.held >= MS(1020) && outcome.sentinel < outcome.held,
        "{:?} {:?}",
        outcome.held,
        outcome.sentinel
    );
    play.left_nothing_behind();
    assert_eq!(
        play.count(|it| matches!(it, Action::Pause(_) | Action::Unpause)),
        0,
        "nobody asked for a pause"
    );
}

#[test]
fn ends_at_the_abort_event() {
    for down_after in [None, Some(MS(10_000))] {
        let mut play = Play::begin(down_after);
        play.select().pass(3000);
        let at = play.at;
        assert_eq!(play.result(), None);
        let event = "-failover-abort-slave-timeout";
        play.put(Input::Event(LeaderEvent::Aborted(event.into())));
        let released = play.did.iter().rfind(|(_, it)| *it == Action::Release).map(|(at, _)| *at);
        assert_eq!(released, Some(at), "the gate does not wait for the answer to UNPAUSE");
        assert_eq!(play.count(|it| *it == Action::Unpause), usize::from(down_after.is_some()));
        play.put(Input::Unpaused).ended_with(&aborted(event));
    }
}

#[test]
fn ends_when_the_leader_answers_that_nothing_is_under_way() {
    let mut play = Play::begin(None);
    play.select().put(Input::View(LeaderView { failing_over: true, ..calm_view() })).pass(200);
    assert_eq!(play.result(), None);
    play.put(Input::View(calm_view()))
        .ended_with(&aborted("no failover is under way there any more"));
    // After the promotion the same answer is the moment before its own switch.
    let mut play = Play::begin(None);
    play.select().put(Input::Event(LeaderEvent::Promoted(node(2)))).put(Input::View(calm_view()));
    assert_eq!(play.result(), None);
}

#[test]
fn takes_end_by_timeout_for_a_completion() {
    let mut play = Play::begin(None);
    play.select()
        .put(Input::Event(LeaderEvent::Promoted(node(2))))
        .put(Input::Event(LeaderEvent::Ended))
        .pass(500);
    assert_eq!(play.result(), None);
    play.put(sight(false, 2, 5, 7));
    assert!(play.result().unwrap().is_ok());
}

#[test]
fn reports_no_success_for_another_failover() {
    for (port, epoch) in [(3, 7), (2, 8), (3, 8)] {
        let mut play = Play::begin(None);
        play.select().pass(1000).put(sight(false, port, 5, epoch));
        play.ended_with(&Reason::OtherFailover { to: node(port) });
    }
    // Nor is one of which the leader told nothing.
    let mut play = Play::begin(None);
    play.order().pass(1000).put(sight(false, 2, 5, 7)).pass(499).put(sight(false, 2, 5, 7));
    assert_eq!(play.result(), None, "its events may be read later than the commit");
    play.pass(1).put(sight(false, 2, 5, 7)).ended_with(&Reason::OtherFailover { to: node(2) });
}

#[test]
fn accepts_selection_read_after_the_commit() {
    let mut play = Play::begin(None);
    play.order().pass(1800).put(sight(false, 2, 5, 7)).pass(400);
    assert_eq!(play.result(), None, "it is not the sentinel that does nothing");
    play.put(Input::Event(LeaderEvent::Selected(node(2)))).put(sight(false, 2, 5, 7));
    assert!(play.result().unwrap().is_ok(), "{:?}", play.did);
}

#[test]
fn follows_answers_where_events_are_lost() {
    let mut play = Play::begin(None);
    play.pass(2).put(sight(true, 1, 4, 6)).pass(150).put(Input::Ordered(Answer::Taken));
    let selected = LeaderView { failing_over: true, selected: Some(node(2)), ..calm_view() };
    play.put(Input::View(selected.clone())).pass(900);
    play.put(Input::View(LeaderView { epoch: 7, ..selected })).put(sight(false, 2, 5, 7));
    assert!(play.result().unwrap().is_ok(), "{:?}", play.did);
}

#[test]
fn ignores_aborts_from_before_the_order() {
    let mut play = Play::begin(None);
    let stale = || Input::Event(LeaderEvent::Aborted("-failover-abort-not-elected".into()));
    play.put(stale())
        .pass(2)
        .put(sight(true, 1, 4, 6))
        .pass(150)
        .put(stale())
        .put(Input::Ordered(Answer::Taken));
    assert_eq!(play.result(), None);
    play.put(stale());
    assert_eq!(play.result(), None, "the failover has not begun");
}

#[test]
fn ends_hold_when_leader_does_not_begin() {
    let mut play = Play::begin(None);
    play.order().put(Input::View(LeaderView { failing_over: true, ..calm_view() }));
    let ordered = play.did.iter().find(|(_, it)| *it == Action::Order).unwrap().0;
    play.pass(ordered + 1999 - play.at);
    assert_eq!(play.result(), None);
    play.pass(1).ended_with(&Reason::NotBegun(node(9), MS(2000)));
}

#[test]
fn ends_hold_when_leader_is_lost() {
    let mut play = Play::begin(None);
    play.order().put(Input::LeaderLost("gone".to_owned()));
    let lost = Reason::LeaderLost { sentinel: node(9), problem: "gone".to_owned() };
    play.ended_with(&lost);
    let unknown = |play: &mut Play| {
        play.pass(2).put(sight(true, 1, 4, 6)).pass(150);
        play.put(Input::Event(LeaderEvent::Epoch(7))).put(Input::Event(LeaderEvent::Begun));
        play.put(Input::Event(LeaderEvent::Selected(node(2))))
            .put(Input::Ordered(Answer::Unknown("gone".to_owned())));
        assert_eq!(
            (play.result(), play.count(|it| *it == Action::Release)),
            (None, 1),
            "traffic is not held for it"
        );
    };
    let mut play = Play::begin(None);
    unknown(&mut play);
    play.pass(1000).put(sight(false, 2, 5, 7));
    assert!(play.result().unwrap().is_ok());
    let mut play = Play::begin(None);
    unknown(&mut play);
    play.pass(5001).ended_with(&lost);
}

#[test]
fn takes_all_back_on_refusal_lag_and_death() {
    let refused = Reason::Refused("-INPROG".to_owned());
    let mut play = Play::begin(Some(MS(10_000)));
    play.pass(2)
        .put(sight(true, 1, 4, 6))
        .pass(150)
        .put(Input::Ordered(Answer::Refused(refused.clone())));
    assert_eq!(play.count(|it| *it == Action::Unpause), 1);
    play.put(Input::Unpaused).ended_with(&refused);

    let mut play = Play::begin(None);
    play.pass(2).put(sight(true, 1, 4, 6));
    for _ in 0..500 {
        play.at += 5;
        play.put(Input::Tick);
        if play.result().is_none() {
            play.put(offsets(100, 60));
        }
    }
    play.ended_with(&Reason::Lagging { node: node(2), lag: 40 });
    assert_eq!(play.count(|it| *it == Action::Order), 0);

    let mut play = Play::begin(None);
    let died = Reason::Node { node: node(1), problem: "gone".to_owned() };
    play.pass(2).put(sight(true, 1, 4, 6)).put(Input::Looked(Err(died.clone()))).ended_with(&died);
}

#[test]
fn takes_all_back_before_the_order_only() {
    // Somebody else's failover, no master at all, the one that gave the order gone, a gate that
    // does not shut.
    for input in
        [sight(true, 2, 5, 7), Input::DiscoverySnapshot(Sight { holding: false, master: None })]
    {
        let mut play = Play::begin(None);
        play.pass(2).put(sight(true, 1, 4, 6)).put(input).ended_with(&Reason::Unsettled);
    }
    let mut play = Play::begin(None);
    play.pass(2).put(sight(true, 1, 4, 6)).put(Input::Abandoned).ended_with(&Reason::Abandoned);
    let mut play = Play::begin(None);
    play.pass(499);
    assert_eq!(play.result(), None);
    play.pass(1).ended_with(&Reason::Unsettled);
    let mut play = Play::begin(None);
    play.order().put(Input::Abandoned);
    assert_eq!(play.result(), None, "after the order it is too late");
}

#[test]
fn ends_although_nothing_answers() {
    // A task that died answers nothing.
    for ordered in [false, true] {
        let mut play = Play::begin(None);
        play.pass(2).put(sight(true, 1, 4, 6));
        if ordered {
            play.pass(150);
        }
        for _ in 0..30_000 {
            play.at += 1;
            play.put(Input::Tick);
        }
        play.ended_with(&Reason::NoCommit);
    }
}

#[test]
fn shuts_gate_again_when_old_master_is_verified_anew() {
    let mut play = Play::begin(None);
    play.select().put(sight(false, 1, 5, 6));
    assert_eq!((play.result(), play.count(|it| matches!(it, Action::Hold { .. }))), (None, 2));
    play.put(sight(true, 2, 6, 7));
    assert_eq!(play.result().unwrap().unwrap().generation, 6);
}
