//! Exhaustive model checking of the real machine: every interleaving, up to a stated depth, of a
//! small but faithful model of Sentinel.
//!
//! Three sentinels, three Redis nodes, epochs 0 to 2. A planned failover follows Sentinel's steps:
//! a leader takes the next epoch, selects a candidate (`+selected-slave`), promotes it while the
//! old master still reports that it is a master, observes the promotion (`+promoted-slave`; from
//! here on it names the candidate), and sends hellos; an observer that receives a hello with a
//! higher epoch follows it (`+config-update-from`, `+switch-master`). A leader may die between any
//! two of these steps. Two leaders may be active at once, even at the same epoch, as was measured.
//!
//! The network to the machine is as bad as possible. Whatever was ever published may arrive at any
//! later time, in any order, any number of times, or never. A view may be as old as the last long
//! pause, but a connection does not run backwards. A probe may be answered late, twice or never,
//! with what was true when it was sent or when it was answered.
//!
//! Time stands still except for two kinds of pauses, a few of each: one in which a solo grace
//! passes, and one in which holds and votes expire. States that differ only in the order of events
//! within one moment are therefore one state.

#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::print_stdout)]

mod world;

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sentinel::{Basis, MachineEvent, Minority, Notice, ProbeFailure};
use stateright::{Checker, HasDiscoveries, Model, Property};

use world::{
    FailoverAttempt, LAST_EPOCH, LONG, ModelState, NODES, Node, Published, SENTINELS, SHORT,
    SentinelNumber, addr, id,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ModelStep {
    Start(SentinelNumber, Node),
    Promote(SentinelNumber),
    Notice(SentinelNumber),
    Hello(SentinelNumber, SentinelNumber),
    Die(SentinelNumber),
    Demote(Node),
    HearView(SentinelNumber, usize),
    HearNotice(SentinelNumber, Published),
    Answer(Node, Instant, bool),
    /// The node does not answer, or is unreachable.
    Refuse(Node, Instant, ProbeFailure),
    /// The node restarts as another process, with or without its data.
    Restart(Node, bool),
    /// The sentinel restarts without its file: it names a co-located node that restarts empty as a
    /// master.
    LoseFile(SentinelNumber, Node),
    Pause(Duration),
}

struct Cluster {
    /// How many of the initial states are searched.
    beginnings: usize,
    /// The policy for a minority.
    minority: Minority,
    /// Nodes are restarted, and do not always answer.
    faults: bool,
    /// How many pauses of each kind.
    pauses: (u8, u8),
    start: Instant,
    /// A failover was followed somewhere: the search is not empty.
    followed: AtomicBool,
    /// The first rule that was broken anywhere.
    fault: OnceLock<&'static str>,
}

impl Model for Cluster {
    type State = ModelState;
    type Action = ModelStep;

    /// Four initial states, so that the same depth reaches further: all is well; a failover was
    /// committed, and the old master still reports that it is a master; a leader died right after
    /// its promotion was observed; a failover of which nothing was received.
    fn init_states(&self) -> Vec<ModelState> {
        if self.beginnings == 0 {
            // Nothing was received yet, and one of three sentinels has lost its file.
            let fresh = ModelState::new(self.start, self.minority);
            return vec![self.next_state(&fresh, ModelStep::LoseFile(2, 2)).expect("a change")];
        }
        let calm = ModelState::booted(self.start, self.minority);
        if self.faults {
            return vec![calm];
        }
        let failover = [
            ModelStep::Start(0, 1),
            ModelStep::HearNotice(0, Published::Selected(1)),
            ModelStep::Promote(0),
            ModelStep::Answer(1, self.start, true),
            ModelStep::Notice(0),
            ModelStep::Hello(0, 1),
            ModelStep::HearView(0, 1),
            ModelStep::HearView(1, 1),
        ];
        let run = |state: &ModelState, steps: &[ModelStep]| {
            steps
                .iter()
                .fold(state.clone(), |state, step| self.next_state(&state, *step).unwrap_or(state))
        };
        let claimed = run(&calm, &failover);
        let committed = run(&claimed, &[ModelStep::Answer(1, claimed.now, true)]);
        assert_eq!(committed.record.published, Some((1, 1)));
        let orphaned = run(&calm, &[failover[0], failover[1], failover[2], ModelStep::Die(0)]);
        assert!(orphaned.record.held);
        let unheard = [failover[0], failover[2], failover[4], failover[5], ModelStep::Pause(SHORT)];
        let unheard = run(&calm, &unheard);
        assert!(!unheard.record.held);
        vec![calm, committed, orphaned, unheard].into_iter().take(self.beginnings).collect()
    }

    fn actions(&self, state: &ModelState, steps: &mut Vec<ModelStep>) {
        sentinel_steps(state, steps);
        if let Some((node, _)) = state.settled() {
            let leading = |it: &Node| {
                state.sentinels.iter().any(|s| s.attempt.is_some_and(|a| a.candidate == *it))
            };
            let zombies = NODES
                .into_iter()
                .filter(|it| *it != node && state.masters[usize::from(*it)] && !leading(it));
            steps.extend(zombies.map(ModelStep::Demote));
        }
        steps.extend(
            state.published_events.iter().map(|(who, event)| ModelStep::HearNotice(*who, *event)),
        );
        for (node, at, then) in &state.open {
            steps.push(ModelStep::Answer(*node, *at, *then));
            if state.masters[usize::from(*node)] != *then {
                steps.push(ModelStep::Answer(*node, *at, !*then));
            }
            if self.faults && *node == 0 {
                steps.push(ModelStep::Refuse(*node, *at, ProbeFailure::Unresponsive));
                steps.push(ModelStep::Refuse(*node, *at, ProbeFailure::Unreachable));
            }
        }
        if self.faults && state.restarts[0].0 == 0 {
            steps.extend([ModelStep::Restart(0, false), ModelStep::Restart(0, true)]);
        }
        if state.pauses.0 < self.pauses.0 {
            steps.push(ModelStep::Pause(SHORT));
        }
        if state.pauses.1 < self.pauses.1 {
            steps.push(ModelStep::Pause(LONG));
        }
    }

    fn next_state(&self, last: &ModelState, step: ModelStep) -> Option<ModelState> {
        let mut state = last.clone();
        match step {
            ModelStep::Start(who, candidate) => {
                let epoch = state.sentinels[usize::from(who)].config().1 + 1;
                let attempt = FailoverAttempt { candidate, epoch, promoted: false };
                state.sentinels[usize::from(who)].attempt = Some(attempt);
                state.published_events.insert((who, Published::Selected(candidate)));
            }
            ModelStep::Promote(who) => {
                let attempt = state.sentinels[usize::from(who)].attempt.as_mut()?;
                attempt.promoted = true;
                state.masters[usize::from(attempt.candidate)] = true;
            }
            ModelStep::Notice(who) => {
                let attempt = state.sentinels[usize::from(who)].attempt.take()?;
                if state.sentinels[usize::from(who)].config().1 < attempt.epoch {
                    state.adopt(who, (attempt.candidate, attempt.epoch));
                    state.published_events.insert((who, Published::Promoted(attempt.candidate)));
                    state.published_events.insert((who, Published::Switched(attempt.candidate)));
                }
            }
            ModelStep::Hello(from, who) => {
                let config = state.sentinels[usize::from(from)].config();
                let (old, _) = state.sentinels[usize::from(who)].config();
                state.adopt(who, config);
                state.published_events.insert((who, Published::Following(from, old)));
                state.published_events.insert((who, Published::Switched(config.0)));
            }
            ModelStep::Die(who) => {
                state.sentinels[usize::from(who)].alive = false;
                state.sentinels[usize::from(who)].attempt = None;
            }
            ModelStep::Demote(node) => state.masters[usize::from(node)] = false,
            ModelStep::HearView(who, index) => state.hear_view(who, index),
            ModelStep::HearNotice(who, event) => hear_notice(&mut state, who, event),
            ModelStep::Answer(node, at, master) => state.answer(node, at, master),
            ModelStep::Refuse(node, at, failure) => state.refuse(node, at, failure),
            ModelStep::Restart(node, empty) => {
                let (process, _) = state.restarts[usize::from(node)];
                state.restarts[usize::from(node)] = (process + 1, empty);
            }
            ModelStep::LoseFile(who, node) => {
                state.restarts[usize::from(node)] = (1, true);
                state.masters[usize::from(node)] = true;
                state.sentinels[usize::from(who)].named = vec![(node, 0)];
            }
            ModelStep::Pause(long) => {
                *(if long == SHORT { &mut state.pauses.0 } else { &mut state.pauses.1 }) += 1;
                state.pass(long);
            }
        }
        self.followed.fetch_or(state.record.bases.contains(&Basis::Majority), Ordering::Relaxed);
        if let Some(fault) = state.record.fault {
            self.fault.get_or_init(|| fault);
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("every rule holds at every step", |_, state: &ModelState| {
                state.record.fault.is_none()
            }),
            // Following every state to its end would make the search a hundred times as long; one
            // in sixteen is followed, always the same ones.
            Property::always("left alone, the machine follows", |_, state: &ModelState| {
                let what = (
                    &state.sentinels,
                    &state.masters,
                    &state.published_events,
                    &state.record.bases,
                    state.pauses,
                );
                let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(what);
                hash % 16 != 0 || state.converges()
            }),
        ]
    }
}

/// The steps that sentinels can take next.
fn sentinel_steps(state: &ModelState, steps: &mut Vec<ModelStep>) {
    let dead = state.sentinels.iter().any(|it| !it.alive);
    for who in SENTINELS {
        let sentinel = &state.sentinels[usize::from(who)];
        let (master, epoch) = sentinel.config();
        if let Some(attempt) = sentinel.attempt.filter(|_| sentinel.alive) {
            steps.push(if attempt.promoted {
                ModelStep::Notice(who)
            } else {
                ModelStep::Promote(who)
            });
        } else if sentinel.alive && epoch < LAST_EPOCH && who < 2 {
            // B and C differ in name only until one of them was selected; so do the sentinels,
            // except for the leader.
            let first =
                state.sentinels.iter().all(|it| it.named.len() == 1 && it.attempt.is_none());
            let candidates =
                NODES.into_iter().filter(|node| *node != master && (!first || *node == 1));
            steps.extend(
                candidates.filter(|_| !first || who == 0).map(|node| ModelStep::Start(who, node)),
            );
        }
        let leads = sentinel.attempt.is_some() || sentinel.named.len() > 1;
        if sentinel.alive && !dead && leads {
            steps.push(ModelStep::Die(who));
        }
        for from in SENTINELS {
            let theirs = &state.sentinels[usize::from(from)];
            if from != who && theirs.alive && sentinel.alive && theirs.config().1 > epoch {
                steps.push(ModelStep::Hello(from, who));
            }
        }
        if sentinel.alive {
            steps.extend(
                (sentinel.oldest..sentinel.named.len())
                    .map(|index| ModelStep::HearView(who, index)),
            );
        }
    }
}

/// Delivers a published event to the machine.
fn hear_notice(state: &mut ModelState, who: SentinelNumber, event: Published) {
    if let Published::Switched(node) = event {
        state.heard_switching(who, node);
    }
    let notice = match event {
        Published::Selected(node) => Notice::CandidateSelected { candidate: addr(node) },
        Published::Promoted(node) => Notice::Promoted { candidate: addr(node) },
        Published::Following(peer, old) => {
            Notice::ConfigUpdateFrom { peer: id(peer), leaving: addr(old) }
        }
        Published::Switched(node) => Notice::Switched { to: addr(node) },
    };
    state.step(MachineEvent::Notice { from: Some(id(who)), notice });
}

/// Searches every state reachable from the first `beginnings` within `steps` steps. Returns the
/// number of distinct states.
fn search(beginnings: usize, steps: usize, pauses: (u8, u8)) -> usize {
    search_with(Minority::Keep, false, beginnings, steps, pauses)
}

fn search_with(
    minority: Minority,
    faults: bool,
    beginnings: usize,
    steps: usize,
    pauses: (u8, u8),
) -> usize {
    let (start, followed, fault) = (Instant::now(), AtomicBool::default(), OnceLock::new());
    let cluster = Cluster { beginnings, minority, faults, pauses, start, followed, fault };
    // The checker creates the states of the last depth without checking them; `next_state` does.
    // With one thread every state is first reached on its shortest path, and the depth has a
    // meaning.
    let checker = cluster.checker().threads(1).target_max_depth(steps + 1);
    let checker = checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    if let Some((name, path)) = checker.discoveries().into_iter().next() {
        let (fault, state) =
            (path.last_state().record.fault, path.last_state().machine.state().clone());
        panic!("{name}: {fault:?} in {state:?}, after {:#?}", path.into_actions());
    }
    assert_eq!(
        checker.model().fault.get(),
        None,
        "in a state of the last depth; one more step shows the way there"
    );
    let followed = checker.model().followed.load(Ordering::Relaxed);
    assert!(followed || faults, "the search never reached a failover");
    checker.unique_state_count()
}

/// Seven steps from a calm start are just enough for a whole failover; five from the other initial
/// states reach into the next one.
#[test]
fn to_the_daily_depth() {
    let states = (search(1, 7, (1, 1)), search(4, 5, (1, 1)));
    println!("distinct states: {states:?}");
    assert!(states.0 > 50_000 && states.1 > 30_000, "{states:?}");
}

/// The master is restarted with and without its data, does not answer, or is unreachable; with each
/// policy for a minority. That sentinels are heard again one by one needs no step: every view
/// arrives at any time, or never.
#[test]
fn follows_rules_when_master_is_lost_and_found() {
    for minority in [Minority::Keep, Minority::Hold, Minority::Cut] {
        let states = search_with(minority, true, 1, 5, (1, 2));
        println!("distinct states with {minority:?}: {states}");
        assert!(states > 10_000, "{minority:?}: {states}");
    }
}

/// One name for all sentinels, one of which has lost its file and names an empty node.
#[test]
fn begins_with_majority_of_one_names_addresses() {
    for minority in [Minority::Keep, Minority::Hold, Minority::Cut] {
        let states = search_with(minority, false, 0, 5, (2, 1));
        println!("distinct states with {minority:?}: {states}");
        assert!(states > 500, "{minority:?}: {states}");
    }
}

/// The depth for a release: some minutes, and gigabytes for the pending states.
#[test]
#[ignore = "minutes; run with --ignored before a release"]
fn to_the_full_depth() {
    let states = (search(4, 7, (1, 2)), 0);
    println!("distinct states: {states:?}");
}
