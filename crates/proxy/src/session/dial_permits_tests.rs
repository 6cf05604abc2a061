//! Who gets a dial permit next, and how the pace follows the target.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::time::Instant;

use crate::session::dial_permits::{DialPermits, Turn};

const MOST: usize = 64;
const MOST_IDLE: usize = MOST / 2;
const FEW: usize = 8;

fn poll<'a, F: Future<Output = Turn<'a>> + ?Sized>(taking: Pin<&mut F>) -> Option<Turn<'a>> {
    match taking.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(turn) => Some(turn),
        Poll::Pending => None,
    }
}

fn now(turns: &DialPermits, urgent: bool) -> Option<Turn<'_>> {
    poll(pin!(turns.take(urgent)))
}

fn as_many(turns: &DialPermits, urgent: bool) -> Vec<Turn<'_>> {
    std::iter::from_fn(|| now(turns, urgent)).take(1000).collect()
}

/// Sessions in line, in their order.
fn line(
    turns: &DialPermits,
    urgent: bool,
    count: usize,
) -> Vec<Pin<Box<dyn Future<Output = Turn<'_>> + '_>>> {
    (0..count)
        .map(|_| {
            let mut taking: Pin<Box<dyn Future<Output = Turn<'_>> + '_>> =
                Box::pin(turns.take(urgent));
            assert!(poll(taking.as_mut()).is_none());
            taking
        })
        .collect()
}

#[test]
fn bounds_permits_and_leaves_half_to_requests() {
    let turns = DialPermits::default();
    let idle = as_many(&turns, false);
    assert_eq!(idle.len(), MOST_IDLE);
    let urgent = as_many(&turns, true);
    assert_eq!(urgent.len(), MOST - MOST_IDLE);
    drop(idle);
    assert!(now(&turns, true).is_some() && now(&turns, false).is_some());
}

#[test]
fn prefers_requests_and_does_not_starve_idle_sessions() {
    let turns = DialPermits::default();
    let mut out = as_many(&turns, true);
    assert_eq!(out.len(), MOST);
    let mut idle = line(&turns, false, 10);
    let mut urgent = line(&turns, true, 40);
    let (mut order, mut given) = (Vec::new(), 0);
    while given < 50 {
        drop(out.pop().expect("a permit that is out"));
        let next =
            idle.iter_mut().map(|it| (false, it)).chain(urgent.iter_mut().map(|it| (true, it)));
        let Some((kind, turn)) = next.filter_map(|(kind, it)| Some((kind, poll_once(it)?))).next()
        else {
            panic!("nobody got the permit that was given back; {order:?}");
        };
        order.push(kind);
        out.insert(0, turn);
        given += 1;
    }
    let idle_at: Vec<usize> =
        order.iter().enumerate().filter(|(_, urgent)| !**urgent).map(|(at, _)| at).collect();
    // The first permits were all of requests, so that it is an idle one's turn.
    assert_eq!(idle_at, [0, 8, 16, 24, 32, 40, 46, 47, 48, 49]);
}

/// One poll of a session in line that has no permit yet.
fn poll_once<'a>(taking: &mut Pin<Box<dyn Future<Output = Turn<'a>> + 'a>>) -> Option<Turn<'a>> {
    let turn = poll(taking.as_mut())?;
    // It must not be asked again.
    *taking = Box::pin(std::future::pending());
    Some(turn)
}

#[tokio::test(start_paused = true)]
async fn slows_down_after_a_failure_and_recovers_by_arrivals() {
    let turns = DialPermits::default();
    let all = as_many(&turns, true);
    // All of them were under way together: that is one failure.
    all.into_iter().for_each(Turn::failed);
    let begin = Instant::now();
    assert!(now(&turns, true).is_none(), "not during the pause");
    let first = turns.take(true).await;
    assert_eq!(begin.elapsed(), Duration::from_millis(10));
    assert_eq!(as_many(&turns, true).len(), FEW - 1);
    // Each failure after the pause is one more.
    first.failed();
    let mut pauses = Vec::new();
    for _ in 0..5 {
        let begin = Instant::now();
        turns.take(false).await.failed();
        pauses.push(begin.elapsed().as_millis());
    }
    assert_eq!(pauses, [20, 40, 80, 125, 125]);
    turns.take(true).await.arrived();
    assert_eq!(as_many(&turns, true).len(), 2 * FEW);
    for _ in 0..2 {
        now(&turns, true).expect("a permit").arrived();
    }
    assert_eq!(as_many(&turns, true).len(), MOST);
    let begin = Instant::now();
    now(&turns, true).expect("a permit").failed();
    drop(turns.take(true).await);
    assert_eq!(begin.elapsed(), Duration::from_millis(10), "the pause begins anew");
}

#[tokio::test(start_paused = true)]
async fn ends_the_pause_when_the_target_changes() {
    let turns = DialPermits::default();
    for _ in 0..8 {
        turns.take(true).await.failed();
    }
    let before = now(&turns, true);
    assert!(before.is_none());
    let late = {
        turns.start_again();
        let begin = Instant::now();
        let turn = turns.take(true).await;
        assert_eq!(begin.elapsed(), Duration::ZERO);
        turn
    };
    let others = as_many(&turns, true);
    assert_eq!(others.len(), MOST - 1);
    // What was under way to the target before says nothing about this one.
    turns.start_again();
    late.failed();
    assert!(now(&turns, true).is_some());
}

/// Counts how often it was woken.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn hands_the_timer_on_when_its_session_leaves() {
    let turns = DialPermits::default();
    turns.take(true).await.failed();
    let counts: Vec<Arc<Count>> = (0..3).map(|_| Arc::default()).collect();
    let mut waiting: Vec<Pin<Box<dyn Future<Output = Turn<'_>>>>> = counts
        .iter()
        .map(|_| Box::pin(turns.take(true)) as Pin<Box<dyn Future<Output = _>>>)
        .collect();
    for (taking, count) in waiting.iter_mut().zip(&counts) {
        let waker = Waker::from(Arc::clone(count));
        assert!(taking.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    drop(waiting.remove(0));
    assert_eq!(counts[1].0.load(Ordering::Relaxed), 1, "the next one has to set its timer");
    // And by that timer, both get their permits.
    let (last, first) = (waiting.pop().expect("the third"), waiting.pop().expect("the second"));
    drop((first.await, last.await));
    assert!(now(&turns, false).is_some());
}

#[tokio::test(start_paused = true)]
async fn has_a_timer_after_a_pause_that_another_session_ended() {
    let turns = DialPermits::default();
    let (first, other) = (turns.take(true).await, turns.take(true).await);
    first.failed();
    let mut taking = Box::pin(turns.take(true));
    assert!(poll(taking.as_mut()).is_none());
    // Its timer is due, and it was not polled.
    tokio::time::advance(Duration::from_millis(20)).await;
    drop(other);
    poll(taking.as_mut()).expect("a permit").failed();
    let next = tokio::time::timeout(Duration::from_secs(1), turns.take(true)).await;
    assert!(next.is_ok(), "nobody ended the second pause");
}

#[test]
fn gives_permits_back_that_nobody_came_for() {
    let turns = DialPermits::default();
    let mut out = as_many(&turns, true);
    let mut waiting = line(&turns, true, 2);
    out.truncate(MOST - 2);
    // Both have one now, and leave without it.
    waiting.clear();
    assert_eq!(as_many(&turns, true).len(), 2);
    drop(out);
    assert_eq!(as_many(&turns, false).len(), MOST_IDLE);
}

/// Some sessions that come, wait, give up, fail and arrive, in an order that follows from `seed`.
async fn crowd(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let turns = Arc::new(DialPermits::default());
    let sessions = tokio::task::LocalSet::new();
    for _ in 0..random.usize(1..150) {
        let (turns, mut random) = (Arc::clone(&turns), random.fork());
        sessions.spawn_local(async move {
            let millis = |random: &mut fastrand::Rng| Duration::from_millis(random.u64(0..60));
            tokio::time::sleep(millis(&mut random)).await;
            for _ in 0..random.usize(1..20) {
                let patience =
                    if random.u8(0..4) == 0 { millis(&mut random) } else { Duration::MAX };
                let taking = turns.take(random.bool());
                let Ok(turn) = tokio::time::timeout(patience, taking).await else { continue };
                tokio::time::sleep(millis(&mut random)).await;
                match random.u8(0..8) {
                    0 => turn.arrived(),
                    1 => turns.start_again(),
                    2 => drop(turn),
                    _ => turn.failed(),
                }
            }
        });
    }
    tokio::time::timeout(Duration::from_secs(3600), sessions)
        .await
        .expect("a session waits for ever");
    turns.start_again();
    assert_eq!(as_many(&turns, true).len(), MOST, "a permit was lost");
    let idle = as_many(&turns, false);
    assert_eq!(idle.len(), MOST_IDLE, "a permit was lost");
}

#[tokio::test(start_paused = true)]
async fn leaves_nobody_waiting_and_loses_no_permit() {
    for seed in 0..200 {
        crowd(seed).await;
    }
}
