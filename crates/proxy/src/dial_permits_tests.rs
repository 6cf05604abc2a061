//! The order of dial permits, and how their pace follows the target.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::time::Instant;

use crate::dial_permits::{DialPermit, DialPermits};

const MAX_PERMITS: usize = 64;
const MAX_IDLE: usize = MAX_PERMITS / 2;
const MAX_AFTER_FAILURE: usize = 8;

fn poll<'a, F: Future<Output = DialPermit<'a>> + ?Sized>(
    request: Pin<&mut F>,
) -> Option<DialPermit<'a>> {
    match request.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(permit) => Some(permit),
        Poll::Pending => None,
    }
}

fn now(permits: &DialPermits, urgent: bool) -> Option<DialPermit<'_>> {
    poll(pin!(permits.take(urgent)))
}

fn all_available(permits: &DialPermits, urgent: bool) -> Vec<DialPermit<'_>> {
    std::iter::from_fn(|| now(permits, urgent)).take(1000).collect()
}

/// Sessions in the queue, in order.
fn queue(
    permits: &DialPermits,
    urgent: bool,
    count: usize,
) -> Vec<Pin<Box<dyn Future<Output = DialPermit<'_>> + '_>>> {
    (0..count)
        .map(|_| {
            let mut request: Pin<Box<dyn Future<Output = DialPermit<'_>> + '_>> =
                Box::pin(permits.take(urgent));
            assert!(poll(request.as_mut()).is_none());
            request
        })
        .collect()
}

#[test]
fn bounds_permits_and_reserves_half_for_requests() {
    let permits = DialPermits::default();
    let idle = all_available(&permits, false);
    assert_eq!(idle.len(), MAX_IDLE);
    let urgent = all_available(&permits, true);
    assert_eq!(urgent.len(), MAX_PERMITS - MAX_IDLE);
    drop(idle);
    assert!(now(&permits, true).is_some() && now(&permits, false).is_some());
}

#[test]
fn prefers_requests_and_does_not_starve_idle_sessions() {
    let permits = DialPermits::default();
    let mut out = all_available(&permits, true);
    assert_eq!(out.len(), MAX_PERMITS);
    let mut idle = queue(&permits, false, 10);
    let mut urgent = queue(&permits, true, 40);
    let (mut order, mut granted) = (Vec::new(), 0);
    while granted < 50 {
        drop(out.pop().expect("a permit that is out"));
        let next =
            idle.iter_mut().map(|it| (false, it)).chain(urgent.iter_mut().map(|it| (true, it)));
        let Some((kind, permit)) =
            next.filter_map(|(kind, it)| Some((kind, poll_once(it)?))).next()
        else {
            panic!("no session got the permit that was returned; {order:?}");
        };
        order.push(kind);
        out.insert(0, permit);
        granted += 1;
    }
    let idle_at: Vec<usize> =
        order.iter().enumerate().filter(|(_, urgent)| !**urgent).map(|(at, _)| at).collect();
    // All permits that were out went to requests, so the first one returned goes to an idle
    // session.
    assert_eq!(idle_at, [0, 8, 16, 24, 32, 40, 46, 47, 48, 49]);
}

/// One poll of a queued session that has no permit yet.
fn poll_once<'a>(
    request: &mut Pin<Box<dyn Future<Output = DialPermit<'a>> + 'a>>,
) -> Option<DialPermit<'a>> {
    let permit = poll(request.as_mut())?;
    // It must not be polled again.
    *request = Box::pin(std::future::pending());
    Some(permit)
}

#[tokio::test(start_paused = true)]
async fn slows_down_after_a_failure_and_recovers_by_arrivals() {
    let permits = DialPermits::default();
    let all = all_available(&permits, true);
    // All of them were under way together: that is one failure.
    all.into_iter().for_each(DialPermit::failed);
    let begin = Instant::now();
    assert!(now(&permits, true).is_none(), "not during the pause");
    let first = permits.take(true).await;
    assert_eq!(begin.elapsed(), Duration::from_millis(10));
    assert_eq!(all_available(&permits, true).len(), MAX_AFTER_FAILURE - 1);
    // Each failure after the pause counts again.
    first.failed();
    let mut pauses = Vec::new();
    for _ in 0..5 {
        let begin = Instant::now();
        permits.take(false).await.failed();
        pauses.push(begin.elapsed().as_millis());
    }
    assert_eq!(pauses, [20, 40, 80, 125, 125]);
    permits.take(true).await.succeeded();
    assert_eq!(all_available(&permits, true).len(), 2 * MAX_AFTER_FAILURE);
    for _ in 0..2 {
        now(&permits, true).expect("a permit").succeeded();
    }
    assert_eq!(all_available(&permits, true).len(), MAX_PERMITS);
    let begin = Instant::now();
    now(&permits, true).expect("a permit").failed();
    drop(permits.take(true).await);
    assert_eq!(begin.elapsed(), Duration::from_millis(10), "the pause begins anew");
}

#[tokio::test(start_paused = true)]
async fn ends_the_pause_when_the_target_changes() {
    let permits = DialPermits::default();
    for _ in 0..8 {
        permits.take(true).await.failed();
    }
    let before = now(&permits, true);
    assert!(before.is_none());
    let late = {
        permits.reset();
        let begin = Instant::now();
        let permit = permits.take(true).await;
        assert_eq!(begin.elapsed(), Duration::ZERO);
        permit
    };
    let others = all_available(&permits, true);
    assert_eq!(others.len(), MAX_PERMITS - 1);
    // An attempt at the former target says nothing about this one.
    permits.reset();
    late.failed();
    assert!(now(&permits, true).is_some());
}

/// Counts its wake-ups.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn passes_the_timer_on_when_its_session_leaves() {
    let permits = DialPermits::default();
    permits.take(true).await.failed();
    let counts: Vec<Arc<Count>> = (0..3).map(|_| Arc::default()).collect();
    let mut waiting: Vec<Pin<Box<dyn Future<Output = DialPermit<'_>>>>> = counts
        .iter()
        .map(|_| Box::pin(permits.take(true)) as Pin<Box<dyn Future<Output = _>>>)
        .collect();
    for (request, count) in waiting.iter_mut().zip(&counts) {
        let waker = Waker::from(Arc::clone(count));
        assert!(request.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    drop(waiting.remove(0));
    assert_eq!(counts[1].0.load(Ordering::Relaxed), 1, "the next one has to set its timer");
    // By that timer, both get their permits.
    let (last, first) = (waiting.pop().expect("the third"), waiting.pop().expect("the second"));
    drop((first.await, last.await));
    assert!(now(&permits, false).is_some());
}

#[tokio::test(start_paused = true)]
async fn sets_a_timer_after_a_pause_that_another_session_ended() {
    let permits = DialPermits::default();
    let (first, other) = (permits.take(true).await, permits.take(true).await);
    first.failed();
    let mut request = Box::pin(permits.take(true));
    assert!(poll(request.as_mut()).is_none());
    // Its timer is due, and it was not polled.
    tokio::time::advance(Duration::from_millis(20)).await;
    drop(other);
    poll(request.as_mut()).expect("a permit").failed();
    let next = tokio::time::timeout(Duration::from_secs(1), permits.take(true)).await;
    assert!(next.is_ok(), "no session ended the second pause");
}

#[test]
fn returns_permits_that_were_not_taken() {
    let permits = DialPermits::default();
    let mut out = all_available(&permits, true);
    let mut waiting = queue(&permits, true, 2);
    out.truncate(MAX_PERMITS - 2);
    // Both are granted a permit now, and leave without it.
    waiting.clear();
    assert_eq!(all_available(&permits, true).len(), 2);
    drop(out);
    assert_eq!(all_available(&permits, false).len(), MAX_IDLE);
}

/// Sessions that arrive, wait, give up, fail and succeed, in an order that follows from `seed`.
async fn crowd(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let permits = Arc::new(DialPermits::default());
    let sessions = tokio::task::LocalSet::new();
    for _ in 0..random.usize(1..150) {
        let (permits, mut random) = (Arc::clone(&permits), random.fork());
        sessions.spawn_local(async move {
            let millis = |random: &mut fastrand::Rng| Duration::from_millis(random.u64(0..60));
            tokio::time::sleep(millis(&mut random)).await;
            for _ in 0..random.usize(1..20) {
                let patience =
                    if random.u8(0..4) == 0 { millis(&mut random) } else { Duration::MAX };
                let request = permits.take(random.bool());
                let Ok(permit) = tokio::time::timeout(patience, request).await else { continue };
                tokio::time::sleep(millis(&mut random)).await;
                match random.u8(0..8) {
                    0 => permit.succeeded(),
                    1 => permits.reset(),
                    2 => drop(permit),
                    _ => permit.failed(),
                }
            }
        });
    }
    tokio::time::timeout(Duration::from_secs(3600), sessions)
        .await
        .expect("a session waits forever");
    permits.reset();
    assert_eq!(all_available(&permits, true).len(), MAX_PERMITS, "a permit was lost");
    let idle = all_available(&permits, false);
    assert_eq!(idle.len(), MAX_IDLE, "a permit was lost");
}

#[tokio::test(start_paused = true)]
async fn serves_every_session_and_loses_no_permit() {
    for seed in 0..200 {
        crowd(seed).await;
    }
}
