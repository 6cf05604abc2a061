//! Histories that are possible, and planted mistakes that are not.

use fastrand::Rng;

use super::checker::{Change, Verdict, check};
use super::operation::{Action, Kind, Micros, Object, Operation, Outcome, State};

/// The old master stops to acknowledge at 150; the new one may begin at 100.
const CHANGE: Change = Change { opens: 100, until: 130, gone: 150, empties: false };

fn op(action: Action, outcome: Outcome, invoked: Micros, ended: Micros) -> Operation {
    let kind = match action {
        Action::Get | Action::Set(_) | Action::Swap(_) | Action::Cas { .. } => Kind::Register,
        Action::Increment => Kind::Counter,
        Action::Add(_) | Action::Remove(_) | Action::Members => Kind::Set,
        Action::Take | Action::Acknowledge(_) => Kind::Queue,
        _ => Kind::Lists,
    };
    let object = Object { epoch: 1, kind, number: 1 };
    let (client, proxy, way) = (0, 0, "");
    Operation { client, proxy, object, action, way, outcome, invoked, ended }
}

fn set(value: u64, invoked: Micros, ended: Micros) -> Operation {
    op(Action::Set(value), Outcome::Done, invoked, ended)
}

fn get(value: u64, invoked: Micros, ended: Micros) -> Operation {
    op(Action::Get, Outcome::Value(value), invoked, ended)
}

fn append(value: u64, length: u64, invoked: Micros, ended: Micros) -> Operation {
    op(Action::Append { list: 0, value }, Outcome::Number(length), invoked, ended)
}

fn range(values: &[u64], invoked: Micros, ended: Micros) -> Operation {
    op(Action::Range(0), Outcome::Lists(vec![values.to_vec()]), invoked, ended)
}

fn both(first: &[u64], second: &[u64], invoked: Micros, ended: Micros) -> Operation {
    let lists = Outcome::Lists(vec![first.to_vec(), second.to_vec()]);
    op(Action::RangeBoth, lists, invoked, ended)
}

fn lost(mut it: Operation) -> Operation {
    it.outcome = Outcome::Unknown;
    it
}

fn is_fine(operations: &[Operation], changes: &[Change]) -> bool {
    check(operations, changes, false) == Verdict::Linearizable
}

#[track_caller]
fn refuses(operations: &[Operation], changes: &[Change], at: usize) {
    match check(operations, changes, false) {
        Verdict::Violated(found) => assert_eq!(found.at, at, "{found:?}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn accepts_concurrent_operations_in_any_order() {
    assert!(is_fine(&[set(1, 0, 10), set(2, 0, 10), get(1, 20, 30), get(1, 40, 50)], &[]));
    assert!(is_fine(&[set(1, 0, 10), get(0, 5, 15), get(1, 5, 15)], &[]));
    assert!(is_fine(&[set(1, 0, 50), get(1, 5, 10), get(1, 20, 30)], &[]));
    refuses(&[set(1, 0, 50), get(1, 5, 10), get(0, 20, 30)], &[], 2);
}

#[test]
fn finds_stale_read() {
    refuses(&[set(1, 0, 10), set(2, 20, 30), get(1, 40, 50)], &[], 2);
    refuses(&[append(1, 1, 0, 10), append(2, 2, 20, 30), range(&[1], 40, 50)], &[], 2);
}

#[test]
fn finds_request_executed_twice() {
    // Once at its time, and once more after another write.
    refuses(&[set(1, 0, 10), set(2, 20, 30), get(2, 40, 50), get(1, 60, 70)], &[], 3);
    refuses(&[append(1, 1, 0, 10), range(&[1, 1], 20, 30)], &[], 1);
    let increment = |to, at| op(Action::Increment, Outcome::Number(to), at, at + 5);
    refuses(&[increment(1, 0), increment(3, 10)], &[], 1);
    // Held through a failover, executed by both masters.
    let held = [append(1, 1, 90, 200), range(&[1, 1], 210, 220)];
    refuses(&held, &[CHANGE], 1);
}

#[test]
fn finds_reply_of_another_client() {
    let take = |value, at| op(Action::Take, Outcome::Value(value), at, at + 5);
    let mut push = append(7, 1, 0, 10);
    push.object.kind = Kind::Queue;
    refuses(&[push.clone(), take(7, 20), take(7, 30)], &[], 2);
    assert!(is_fine(&[push, take(7, 20), take(0, 30)], &[]));
    let wrong = op(Action::Get, Outcome::Wrong("a value of another key".to_owned()), 0, 10);
    refuses(&[wrong], &[], 0);
}

#[test]
fn finds_transaction_in_part() {
    let lengths = Outcome::Lists(vec![vec![1], vec![1]]);
    let write = op(Action::AppendBoth(5), lengths, 0, 10);
    assert!(is_fine(&[write.clone(), both(&[5], &[5], 20, 30)], &[]));
    refuses(&[write.clone(), both(&[5], &[], 20, 30)], &[], 1);
    // Not even one without a reply, or with a master that died.
    refuses(&[lost(write.clone()), both(&[5], &[], 20, 30)], &[], 1);
    refuses(&[write.clone(), both(&[], &[5], 220, 230)], &[CHANGE], 1);
    assert!(is_fine(&[write, both(&[], &[], 220, 230)], &[CHANGE]));
}

#[test]
fn lets_operation_without_reply_run_late_or_never() {
    let history = [set(1, 0, 10), lost(set(2, 20, 30)), get(1, 40, 50)];
    assert!(is_fine(&history, &[]));
    let late = [history.as_slice(), &[get(2, 60, 70)]].concat();
    assert!(is_fine(&late, &[]));
    let twice = [late.as_slice(), &[set(3, 80, 90), get(2, 100, 110)]].concat();
    refuses(&twice, &[], 5);
}

#[test]
fn excuses_lost_suffix_only_at_a_change() {
    let lost = [append(1, 1, 0, 10), append(2, 2, 20, 30), range(&[1], 200, 210)];
    assert!(is_fine(&lost, &[CHANGE]));
    refuses(&lost, &[], 2);
    // A prefix survives, nothing else.
    let hole = [append(1, 1, 0, 10), append(2, 2, 20, 30), range(&[2], 200, 210)];
    refuses(&hole, &[CHANGE], 2);
    // What the new master showed cannot vanish again.
    let again = [lost.as_slice(), &[range(&[], 220, 230)]].concat();
    refuses(&again, &[CHANGE], 3);
    let whole = [lost.as_slice(), &[range(&[1, 2], 220, 230)]].concat();
    refuses(&whole, &[CHANGE], 3);
}

#[test]
fn loses_nothing_acknowledged_with_durability() {
    let verdict = |operations: &[Operation]| check(operations, &[CHANGE], true);
    let writes = [append(1, 1, 0, 10), append(2, 2, 20, 30)];
    let end = |values: &[u64]| [writes.as_slice(), &[range(values, 200, 210)]].concat();
    assert_eq!(verdict(&end(&[1, 2])), Verdict::Linearizable);
    assert!(matches!(verdict(&end(&[1])), Verdict::Violated(_)));
    // Only a successor that lost its memory lacks what was confirmed, and then all of it.
    let emptied = |values: &[u64]| {
        check(&end(values), &[Change { empties: true, ..CHANGE }], true) == Verdict::Linearizable
    };
    assert_eq!([emptied(&[]), emptied(&[1, 2]), emptied(&[1])], [true, true, false]);
    // What was not confirmed may be lost, even if a reader saw it.
    let unconfirmed = [append(1, 1, 0, 10), lost(append(2, 2, 20, 30)), range(&[1, 2], 40, 50)];
    let end = |values: &[u64]| [unconfirmed.as_slice(), &[range(values, 200, 210)]].concat();
    assert_eq!(verdict(&end(&[1])), Verdict::Linearizable);
    assert_eq!(verdict(&end(&[1, 2])), Verdict::Linearizable);
    assert!(matches!(verdict(&end(&[])), Verdict::Violated(_)));
}

#[test]
fn finds_reads_and_acknowledgements_of_a_late_proxy() {
    let begin = [append(1, 1, 0, 10), append(2, 2, 20, 30), range(&[1], 160, 170)];
    // Another proxy still asks the old master, which has what was lost.
    let late = [begin.as_slice(), &[range(&[1, 2], 180, 190)]].concat();
    refuses(&late, &[CHANGE], 3);
    // In the time of the change it may.
    let early = [begin.as_slice(), &[range(&[1, 2], 120, 140)]].concat();
    assert!(is_fine(&early, &[CHANGE]));
    // A write that the old master acknowledged after the promotion was heard of.
    let write = [begin.as_slice(), &[append(3, 3, 180, 190)]].concat();
    refuses(&write, &[CHANGE], 3);
    let read = [begin.as_slice(), &[append(3, 2, 180, 190), range(&[1], 200, 210)]].concat();
    refuses(&read, &[CHANGE], 4);
    // One that was on its way, too.
    let on_its_way = [begin.as_slice(), &[append(3, 3, 125, 190)]].concat();
    refuses(&on_its_way, &[CHANGE], 3);
}

#[test]
fn follows_two_changes_in_a_row() {
    let next = Change { opens: 300, until: 330, gone: 350, empties: false };
    let begin = [set(1, 0, 10), set(2, 20, 30), get(1, 200, 210), set(3, 220, 230)];
    let ends = |value| [begin.as_slice(), &[get(value, 400, 410)]].concat();
    assert!(is_fine(&ends(3), &[CHANGE, next]));
    assert!(is_fine(&ends(1), &[CHANGE, next]));
    refuses(&ends(2), &[CHANGE, next], 4);
    // Nothing was done between them.
    let quiet = [set(1, 0, 10), set(2, 20, 30), get(1, 400, 410)];
    assert!(is_fine(&quiet, &[CHANGE, next]));
    // All that was done between them is lost.
    let between = |value| [set(1, 0, 10), set(2, 200, 210), get(value, 400, 410)];
    assert!(is_fine(&between(1), &[CHANGE, next]));
    refuses(&between(3), &[CHANGE, next], 2);
}

#[test]
fn compares_and_sets_once() {
    let cas = |expected, new, result, at| {
        op(Action::Cas { expected, new }, Outcome::Number(result), at, at + 20)
    };
    assert!(is_fine(&[set(1, 0, 10), cas(1, 2, 1, 20), cas(1, 3, 0, 20), get(2, 50, 60)], &[]));
    refuses(&[set(1, 0, 10), cas(1, 2, 1, 20), cas(1, 3, 1, 20)], &[], 2);
    // An operation without a reply explains why another one failed.
    assert!(is_fine(&[set(1, 0, 10), lost(set(2, 20, 30)), cas(1, 3, 0, 40)], &[]));
}

#[test]
fn decides_with_many_operations_without_reply() {
    let mut history: Vec<Operation> = (0..12)
        .map(|it| lost(op(Action::Increment, Outcome::Unknown, it, 90)))
        .chain((0..12).map(|it| lost(append(100 + it, 0, it, 90))))
        .collect();
    let count = |to| op(Action::Get, Outcome::Value(to), 200, 210);
    history.iter_mut().for_each(|it| it.object.kind = Kind::Counter);
    let counters = &history[..12];
    let with = |to| {
        let mut read = count(to);
        read.object.kind = Kind::Counter;
        [counters, &[read]].concat()
    };
    assert!(is_fine(&with(12), &[CHANGE]) && is_fine(&with(5), &[CHANGE]));
    refuses(&with(13), &[CHANGE], 12);
    let mut lists = history[12..].to_vec();
    lists.iter_mut().for_each(|it| it.object.kind = Kind::Lists);
    lists.push(range(&[103, 101], 200, 210));
    assert!(is_fine(&lists, &[CHANGE]));
    lists.push(range(&[101, 103], 220, 230));
    refuses(&lists, &[CHANGE], 13);
}

/// Whether an order of these operations begins with this state, by trying all of them.
fn has_order(state: &State, left: &[&Operation]) -> bool {
    if left.iter().all(|it| it.outcome == Outcome::Unknown) {
        return true;
    }
    left.iter().enumerate().any(|(at, it)| {
        let end = |it: &Operation| if it.is_unknown() { Micros::MAX } else { it.ended };
        let is_first = left.iter().all(|other| it.invoked <= end(other));
        let mut rest = left.to_vec();
        rest.remove(at);
        let skipped = it.is_unknown() && has_order(state, &rest);
        let next = state.after(it).filter(|_| is_first);
        skipped || next.is_some_and(|next| has_order(&next, &rest))
    })
}

/// The states that the old master goes through in any order of these operations.
fn states(state: &State, left: &[&Operation], found: &mut Vec<State>) {
    found.push(state.clone());
    for (at, it) in left.iter().enumerate() {
        let mut rest = left.to_vec();
        rest.remove(at);
        let end = |it: &Operation| if it.is_unknown() { Micros::MAX } else { it.ended };
        let is_first = left.iter().all(|other| it.invoked <= end(other));
        if let Some(next) = state.after(it).filter(|next| is_first && has_order(next, &rest)) {
            states(&next, &rest, found);
        }
    }
}

/// Whether the old master and its successor can have executed this history between them.
fn can_happen(history: &[Operation]) -> bool {
    (0..1 << history.len()).any(|old: u32| {
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for (at, it) in history.iter().enumerate() {
            let is_old = old & (1 << at) > 0;
            let side = if is_old { &mut first } else { &mut second };
            side.push(it);
            let is_possible = if is_old {
                it.invoked <= CHANGE.until
            } else {
                it.is_unknown() || it.ended >= CHANGE.opens
            };
            if !is_possible {
                return false;
            }
        }
        // What the successor had executed before cannot depend on it.
        let is_late = |it: &&&Operation| {
            second.iter().any(|other| !other.is_unknown() && other.ended < it.invoked)
        };
        let mut found = Vec::new();
        if !first.iter().any(|it| is_late(&it)) && has_order(&State::default(), &first) {
            states(&State::default(), &first, &mut found);
        }
        found.iter().any(|state| has_order(state, &second))
    })
}

/// A random history in which every outcome occurs somewhere.
fn random(rng: &mut Rng, end: Micros) -> Vec<Operation> {
    let register = rng.u64(..3) == 0;
    let is_set = rng.u64(..2) == 0;
    let mut history: Vec<Operation> = (1..=5)
        .map(|value| {
            let (invoked, seen) = (rng.u64(..end), rng.u64(..4));
            let ended = invoked + 1 + rng.u64(..60);
            let it = match (register, rng.u64(..4)) {
                (true, 0 | 1) => set(value, invoked, ended),
                (true, 2) => get(seen, invoked, ended),
                (true, _) => op(
                    Action::Cas { expected: seen, new: value },
                    Outcome::Number(rng.u64(..2)),
                    invoked,
                    ended,
                ),
                (false, 0 | 1) if is_set => {
                    op(Action::Add(value), Outcome::Number(1), invoked, ended)
                }
                (false, 2) if is_set && value > 1 => {
                    op(Action::Remove(value - 1), Outcome::Number(1), invoked, ended)
                }
                (false, _) if is_set => {
                    let all: Vec<u64> = (1..=5).filter(|_| rng.u64(..2) == 0).collect();
                    op(Action::Members, Outcome::Lists(vec![all]), invoked, ended)
                }
                (false, 0 | 1) => append(value, 1 + rng.u64(..3), invoked, ended),
                (false, _) => {
                    let all: Vec<u64> = (1..=seen).collect();
                    both(&all, &[], invoked, ended)
                }
            };
            if rng.u64(..5) == 0 { lost(it) } else { it }
        })
        .collect();
    history.sort_by_key(|it| it.invoked);
    history
}

/// The decision of the checker is that of trying every order.
#[test]
fn agrees_with_trying_every_order() {
    let mut rng = Rng::with_seed(1);
    let (mut possible, mut with_change) = (0, 0);
    for _ in 0..20_000 {
        let history = random(&mut rng, 100);
        let all: Vec<&Operation> = history.iter().collect();
        let expected = has_order(&State::default(), &all);
        assert_eq!(is_fine(&history, &[]), expected, "{history:#?}");
        possible += u32::from(expected);
        // An operation in flight when the old master is gone belongs to its successor.
        let mut history = random(&mut rng, 220);
        history.retain(|it| it.ended <= CHANGE.gone || it.invoked > CHANGE.until);
        if can_happen(&history) {
            with_change += 1;
            assert!(is_fine(&history, &[CHANGE]), "{history:#?}");
        }
    }
    assert!(possible > 1_000 && with_change > 1_000, "{possible} {with_change}");
}
