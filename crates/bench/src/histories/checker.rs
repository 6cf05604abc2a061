//! Whether a history of one object is linearizable, with the losses that its changes of the master
//! excuse. Pure.
//!
//! This is the algorithm of Wing and Gong with the memory of Lowe's and Porcupine's, run forward:
//! it walks along the invocations and replies in order of time and keeps every *configuration*, a
//! state together with the pending operations that have taken effect. At a reply it keeps those in
//! which the operation took effect with that outcome; if none is left, the history is impossible.
//! Operations without a reply stay pending until the end and may never take effect.
//!
//! **Changes of the master.** Asynchronous replication gives a successor a prefix of what the old
//! master executed. For a time both may execute operations, so a configuration has a state for each
//! master in that time. The successor's state is chosen when its first operation takes effect,
//! among all states that the old master was in. With durability it contains every write that was
//! acknowledged before. A change that may lose nothing is no change here: the history continues.
//!
//! Effort is bounded; a history that needs more is undecided, which is counted.

use std::collections::{BTreeSet, HashSet};

use super::operation::{Action, Kind, Micros, Operation, Outcome, State};

/// Configurations looked at for one reply, and for all replies of one object: some seconds.
const EFFORT: usize = 20_000;
const TOTAL_EFFORT: usize = 400_000;
/// Configurations kept.
const KEPT: usize = 2_000;

/// A change of the master that may lose what was acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Change {
    /// The successor may be a master from here on.
    pub(super) opens: Micros,
    /// What is invoked later is executed by the successor.
    pub(super) until: Micros,
    /// What the old master executes is not acknowledged later than this.
    pub(super) gone: Micros,
    /// The successor may have lost its memory, and with it what was confirmed.
    pub(super) empties: bool,
}

/// Why no linearization exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Violation {
    /// The operation, by its index, whose reply no order explains.
    pub(super) at: usize,
    /// The states that were possible before its reply.
    pub(super) before: Vec<State>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Linearizable,
    Undecided,
    Violated(Violation),
}

/// Checks the operations of one object, which did not exist at first.
pub(super) fn check(operations: &[Operation], changes: &[Change], durable: bool) -> Verdict {
    let Some(kind) = operations.first().map(|it| it.object.kind) else {
        return Verdict::Linearizable;
    };
    let events = events(operations, changes);
    let mut search = Search {
        operations,
        changes,
        kind,
        durable,
        witnesses: Witness::of_all(operations, changes),
        first: 0,
        effort: 0,
        pending: Vec::new(),
        reached: vec![BTreeSet::from([State::default()])],
        configurations: BTreeSet::from([Configuration {
            states: vec![Some(State::default())],
            done: BTreeSet::new(),
            tail: if durable { vec![(usize::MAX, State::default())] } else { Vec::new() },
        }]),
    };
    for (_, event) in events {
        match event {
            Event::Open => search.open(),
            Event::Invoke(index) => search.invoke(index),
            Event::Reply(index) => match search.reply(index) {
                Some(true) => {}
                Some(false) => {
                    let before = search.states();
                    return Verdict::Violated(Violation { at: index, before });
                }
                None => return Verdict::Undecided,
            },
            Event::Gone => search.leave(),
        }
    }
    Verdict::Linearizable
}

/// In the order of events at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The next master may begin.
    Open,
    Invoke(usize),
    Reply(usize),
    /// The oldest master is gone.
    Gone,
}

fn events(operations: &[Operation], changes: &[Change]) -> Vec<(Micros, Event)> {
    let observed: HashSet<u64> = operations
        .iter()
        .flat_map(|it| match it.action {
            Action::Cas { expected, .. } => vec![expected],
            Action::Remove(value) => vec![value],
            _ => it.named(),
        })
        .collect();
    let fails = |it: &Operation| {
        matches!(it.action, Action::Cas { .. }) && it.outcome == Outcome::Number(0)
    };
    let any_fails = operations.iter().any(fails);
    // Whether nothing that was seen can depend on an operation without a reply.
    let is_unseen = |it: &Operation| match it.action {
        Action::Set(value) | Action::Swap(value) | Action::Cas { new: value, .. } => {
            !any_fails && !observed.contains(&value)
        }
        Action::Add(value) => !observed.contains(&value),
        _ => it.changes_nothing(),
    };
    let mut events = Vec::new();
    for (index, it) in operations.iter().enumerate() {
        if it.is_refused() || (it.is_unknown() && is_unseen(it)) {
            continue;
        }
        events.push((it.invoked, Event::Invoke(index)));
        if !it.is_unknown() {
            events.push((it.ended, Event::Reply(index)));
        }
    }
    for change in changes {
        events.push((change.opens, Event::Open));
        events.push((change.gone, Event::Gone));
    }
    events.sort_unstable();
    events
}

/// One explanation of the history so far.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Configuration {
    /// The state of each master that may still execute operations, oldest first. `None` for a
    /// successor that has executed nothing yet.
    states: Vec<Option<State>>,
    /// Pending operations that have taken effect.
    done: BTreeSet<usize>,
    /// With durability: the states that a successor may begin with, each with the operation that
    /// led to it.
    tail: Vec<(usize, State)>,
}

/// The first reading of a whole object that only the successor can have served. It tells which
/// states the successor cannot have begun with, which saves trying them.
struct Witness {
    invoked: Micros,
    /// Two lists that only grow.
    lists: Option<Vec<Vec<u64>>>,
    seen: BTreeSet<u64>,
    /// Values that some operation may have removed before.
    removed: HashSet<u64>,
    /// Values that were perhaps written after the change.
    late: HashSet<u64>,
}

impl Witness {
    fn of_all(operations: &[Operation], changes: &[Change]) -> Vec<Option<Self>> {
        let next = changes.iter().skip(1).map(|it| it.opens).chain([Micros::MAX]);
        changes.iter().zip(next).map(|(change, end)| Self::of(operations, change, end)).collect()
    }

    fn of(operations: &[Operation], change: &Change, end: Micros) -> Option<Self> {
        let is_first = |it: &&Operation| {
            matches!(it.action, Action::Members | Action::RangeBoth)
                && matches!(it.outcome, Outcome::Lists(_))
                && it.invoked > change.until
                && it.ended < end
        };
        let first = operations.iter().find(is_first)?;
        let end = first.ended;
        let (invoked, seen) = (first.invoked, first.named().into_iter().collect());
        let lists = match &first.outcome {
            Outcome::Lists(lists) if first.object.kind == Kind::Lists => Some(lists.clone()),
            _ => None,
        };
        let removes = |it: &&Operation| {
            matches!(it.action, Action::Remove(_) | Action::Acknowledge(_)) && it.invoked < end
        };
        let is_late = |it: &&Operation| it.is_unknown() || it.ended >= change.opens;
        let values = |it: &Operation| it.value();
        let removed = operations.iter().filter(removes).filter_map(values).collect();
        let late = operations.iter().filter(is_late).filter_map(values).collect();
        Some(Self { invoked, lists, seen, removed, late })
    }

    /// Whether the successor did not execute an operation.
    fn excludes(&self, operation: &Operation) -> bool {
        let is_absent = |it: u64| !self.seen.contains(&it) && !self.removed.contains(&it);
        !operation.is_unknown()
            && operation.ended < self.invoked
            && (added(operation).is_some_and(is_absent)
                || removed(operation).is_some_and(|it| self.seen.contains(&it)))
    }

    /// Whether the successor executed an operation if it began with this state: it has what was
    /// added, or lacks what only this operation removed.
    fn needs(&self, operation: &Operation, state: &State) -> bool {
        let has = |value: &u64| state.lists.iter().any(|it| it.contains(value));
        added(operation).is_some_and(|it| self.seen.contains(&it) && !has(&it))
            || removed(operation).is_some_and(|it| !self.seen.contains(&it) && has(&it))
    }

    fn fits(&self, state: &State) -> bool {
        if let Some(lists) = &self.lists {
            return lists.iter().zip(&state.lists).all(|(seen, own)| seen.starts_with(own));
        }
        let own: BTreeSet<u64> = state.lists.iter().flatten().copied().collect();
        own.iter().all(|it| self.seen.contains(it) || self.removed.contains(it))
            && self.seen.iter().all(|it| own.contains(it) || self.late.contains(it))
    }
}

/// The value that an operation removes from a set, which no other one does.
fn removed(operation: &Operation) -> Option<u64> {
    match (operation.action, &operation.outcome) {
        (Action::Remove(value), Outcome::Number(1)) => Some(value),
        _ => None,
    }
}

/// The value that an operation adds to a list or a set.
fn added(operation: &Operation) -> Option<u64> {
    let adds =
        matches!(operation.action, Action::Append { .. } | Action::AppendBoth(_) | Action::Add(_));
    operation.value().filter(|_| adds)
}

struct Search<'a> {
    operations: &'a [Operation],
    changes: &'a [Change],
    kind: Kind,
    durable: bool,
    /// What is known of the first state after each change.
    witnesses: Vec<Option<Witness>>,
    /// The number of the oldest master that may still execute operations.
    first: usize,
    /// Configurations looked at so far.
    effort: usize,
    pending: Vec<usize>,
    /// The states of each master so far.
    reached: Vec<BTreeSet<State>>,
    configurations: BTreeSet<Configuration>,
}

impl Search<'_> {
    fn states(&self) -> Vec<State> {
        let all = self.configurations.iter().flat_map(|it| it.states.iter().flatten());
        all.cloned().collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn open(&mut self) {
        let is_new = |it: &Configuration| it.states.last().is_some_and(Option::is_none);
        let earlier = self.reached.len().checked_sub(2).and_then(|at| self.reached.get(at));
        if let (true, Some(earlier)) = (self.configurations.iter().any(is_new), earlier.cloned())
            && let Some(last) = self.reached.last_mut()
        {
            // The master that is replaced may not have executed anything.
            last.extend(earlier);
        }
        self.reached.push(BTreeSet::new());
        let add = |mut it: Configuration| {
            it.states.push(None);
            it
        };
        self.configurations =
            std::mem::take(&mut self.configurations).into_iter().map(add).collect();
    }

    fn leave(&mut self) {
        self.first += 1;
        let drop_first = |mut it: Configuration| {
            it.states.remove(0);
            it
        };
        let all = std::mem::take(&mut self.configurations);
        self.configurations = all.into_iter().map(drop_first).collect();
    }

    fn invoke(&mut self, index: usize) {
        self.pending.push(index);
        let all = std::mem::take(&mut self.configurations);
        self.configurations = all.into_iter().map(|it| self.with_reads(it)).collect();
    }

    /// Whether the master in this place may execute an operation.
    fn may_execute(&self, it: &Configuration, index: usize, place: usize) -> bool {
        let Some(operation) = self.operations.get(index) else { return false };
        let era = self.first + place;
        if self.changes.get(era).is_some_and(|change| operation.invoked > change.until) {
            return false;
        }
        let witness = |change: Option<usize>| self.witnesses.get(change?)?.as_ref();
        if witness(era.checked_sub(1)).is_some_and(|it| it.excludes(operation)) {
            return false;
        }
        let successor = it.states.get(place + 1).and_then(Option::as_ref);
        let needs = |state: &State| witness(Some(era)).is_some_and(|it| it.needs(operation, state));
        !successor.is_some_and(needs)
    }

    /// Lets every operation take effect that changes nothing and fits: waiting gains nothing.
    fn with_reads(&self, mut it: Configuration) -> Configuration {
        for index in &self.pending {
            let Some(operation) = self.operations.get(*index) else { continue };
            if operation.is_unknown() || !operation.changes_nothing() || it.done.contains(index) {
                continue;
            }
            let fits = it.states.iter().enumerate().any(|(place, state)| {
                let fits = state.as_ref().is_some_and(|state| state.after(operation).is_some());
                fits && self.may_execute(&it, *index, place)
            });
            if fits {
                it.done.insert(*index);
            }
        }
        it
    }

    /// Keeps what explains this reply. Whether anything is left; `None` if it takes too long.
    fn reply(&mut self, index: usize) -> Option<bool> {
        let mut kept = BTreeSet::new();
        let mut stack: Vec<Configuration> = self.configurations.iter().cloned().collect();
        let mut seen: HashSet<Configuration> = stack.iter().cloned().collect();
        while let Some(it) = stack.pop() {
            if it.done.contains(&index) {
                kept.insert(self.replied(it, index));
                continue;
            }
            for next in self.steps(&it, index) {
                self.effort += 1;
                if seen.len() > EFFORT || self.effort > TOTAL_EFFORT {
                    return None;
                }
                if seen.insert(next.clone()) {
                    stack.push(next);
                }
            }
        }
        if kept.is_empty() {
            return Some(false);
        }
        self.pending.retain(|it| *it != index);
        self.configurations = self.without_covered(kept);
        (self.configurations.len() <= KEPT).then_some(true)
    }

    /// A write that is acknowledged cannot be lost with durability.
    fn replied(&self, mut it: Configuration, index: usize) -> Configuration {
        it.done.remove(&index);
        if let Some(at) = it.tail.iter().position(|(by, _)| *by == index) {
            it.tail.drain(..at);
        }
        it
    }

    /// What one more operation leads to, on the way to the reply of `to`.
    fn steps(&mut self, it: &Configuration, to: usize) -> Vec<Configuration> {
        let mut found = Vec::new();
        for (place, state) in it.states.iter().enumerate() {
            let origins: Vec<State> = match state {
                Some(state) => vec![state.clone()],
                None => self.origins(it, place),
            };
            let is_last = place + 1 == it.states.len();
            for index in self.candidates(it, place, is_last) {
                let Some(operation) = self.operations.get(index) else { continue };
                for origin in &origins {
                    let Some(next) = origin.after(operation) else { continue };
                    if state.is_none()
                        && let Some(reached) = self.reached.get_mut(self.first + place)
                    {
                        // Its own successor may have nothing of what it executes.
                        reached.insert(origin.clone());
                    }
                    let step = self.step(it, place, index, origin, next);
                    let goal = self.operations.get(to);
                    let is_hopeless = |state: &Option<State>| {
                        let beyond = |state: &State| {
                            goal.is_some_and(|goal| state.is_beyond(self.kind, goal))
                        };
                        state.as_ref().is_some_and(beyond)
                    };
                    if index == to || !step.states.iter().all(is_hopeless) {
                        found.push(step);
                    }
                }
            }
        }
        for step in &found {
            for (place, state) in step.states.iter().enumerate() {
                if let (Some(state), Some(reached)) =
                    (state, self.reached.get_mut(self.first + place))
                    && !reached.contains(state)
                {
                    reached.insert(state.clone());
                }
            }
        }
        found
    }

    fn step(
        &self,
        it: &Configuration,
        place: usize,
        index: usize,
        origin: &State,
        next: State,
    ) -> Configuration {
        let mut step = it.clone();
        if self.durable {
            if it.states.get(place).is_some_and(Option::is_none) {
                step.tail = vec![(usize::MAX, origin.clone())];
            }
            let is_newest = it.states.iter().skip(place + 1).all(Option::is_none);
            if is_newest && next != *origin {
                step.tail.push((index, next.clone()));
            }
        }
        if let Some(state) = step.states.get_mut(place) {
            *state = Some(next);
        }
        step.done.insert(index);
        self.with_reads(step)
    }

    /// The states that a master may begin with.
    fn origins(&self, it: &Configuration, place: usize) -> Vec<State> {
        if self.durable {
            let empties = self.changes.iter().take(self.first + place).any(|it| it.empties);
            let tail = it.tail.iter().map(|(_, state)| state.clone());
            return tail.chain(empties.then(State::default)).collect();
        }
        let Some(change) = (self.first + place).checked_sub(1) else { return Vec::new() };
        let witness = self.witnesses.get(change).and_then(Option::as_ref);
        let fits = |it: &&State| witness.is_none_or(|witness| witness.fits(it));
        self.reached.get(change).into_iter().flatten().filter(fits).cloned().collect()
    }

    /// The operations that may take effect next. Of equal ones without a reply, one is enough.
    fn candidates(&self, it: &Configuration, place: usize, is_last: bool) -> Vec<usize> {
        let mut equal = BTreeSet::new();
        let mut all = self.pending.clone();
        if is_last {
            all.reverse();
        }
        all.retain(|index| {
            let Some(operation) = self.operations.get(*index) else { return false };
            !it.done.contains(index)
                && self.may_execute(it, *index, place)
                && (!operation.is_unknown() || equal.insert(operation.action))
        });
        all
    }

    /// Without configurations that used more operations without a reply than others with equal
    /// states: those can explain everything that these can.
    fn without_covered(&self, all: BTreeSet<Configuration>) -> BTreeSet<Configuration> {
        let is_unknown =
            |index: &usize| self.operations.get(*index).is_some_and(Operation::is_unknown);
        let known = |it: &Configuration| -> Vec<usize> {
            it.done.iter().filter(|index| !is_unknown(index)).copied().collect()
        };
        let mut kept: Vec<(Vec<usize>, Configuration)> = Vec::new();
        let mut sorted: Vec<Configuration> = all.into_iter().collect();
        sorted.sort_by_key(|it| it.done.len());
        for it in sorted {
            let own = known(&it);
            let is_covered = kept.iter().any(|(known, other)| {
                other.states == it.states
                    && other.tail == it.tail
                    && *known == own
                    && other.done.is_subset(&it.done)
            });
            if !is_covered {
                kept.push((own, it));
            }
        }
        kept.into_iter().map(|(_, it)| it).collect()
    }
}
