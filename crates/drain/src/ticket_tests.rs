//! Tickets: their size, their even spread, their exact counts, and that no waiting session is
//! forgotten.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::plan::{Phase, ShutdownSettings, StopRequest};
use crate::shared::Exit;
use crate::ticket::{Ticket, spread_position};
use crate::{Drain, SessionCounts, new};

fn settings(spread: u64, timeout: u64) -> ShutdownSettings {
    ShutdownSettings {
        accept_min: Duration::ZERO,
        accept_quiet: Duration::ZERO,
        accept_max: Duration::ZERO,
        drain_spread: Duration::from_millis(spread),
        drain_timeout: Duration::from_millis(timeout),
    }
}

#[test]
fn keeps_ticket_and_its_wait_small() {
    assert!(size_of::<Ticket>() <= 32, "{}", size_of::<Ticket>());
    let (drain, _controller) = new(ShutdownSettings::default());
    let ticket = drain.ticket();
    let waiting = ticket.asked();
    // Two waiting list entries and a few words; a timer would add 100 bytes.
    assert!(size_of_val(&waiting) <= 256, "{}", size_of_val(&waiting));
}

/// The highest and lowest number of leave times in any of `parts` equal parts of the spread.
fn densest_and_sparsest(numbers: impl Iterator<Item = u64>, parts: u32) -> (u32, u32) {
    let mut counts = vec![0_u32; parts as usize];
    for number in numbers {
        let spread_position = spread_position(number);
        assert!((0.0..1.0).contains(&spread_position), "{spread_position}");
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let part = (spread_position * f64::from(parts)) as usize;
        counts[part] += 1;
    }
    (counts.iter().copied().max().unwrap_or(0), counts.iter().copied().min().unwrap_or(0))
}

#[test]
fn spreads_leave_times_evenly_for_any_remaining_set() {
    // Ten thousand sessions over five seconds are 100 in every 50 ms.
    let (most, fewest) = densest_and_sparsest(0..10_000, 100);
    assert!(most <= 105 && fewest >= 95, "{fewest} to {most}");
    // The same for any other run of numbers.
    let (most, fewest) = densest_and_sparsest(1_234_567..1_244_567, 100);
    assert!(most <= 105 && fewest >= 95, "{fewest} to {most}");
    // The same if only every n-th session is left, as when one kind of client comes and goes.
    for step in 2..=64_u64 {
        let (most, fewest) =
            densest_and_sparsest((0..10_000 * step).step_by(usize::try_from(step).unwrap()), 20);
        assert!(most <= 600 && fewest >= 400, "every {step}: {fewest} to {most}");
    }
}

#[tokio::test(start_paused = true)]
async fn spreads_ten_thousand_idle_sessions_evenly() {
    let (drain, controller) = new(settings(5_000, 20_000));
    let mut sessions = tokio::task::JoinSet::new();
    for _ in 0..10_000 {
        let ticket = drain.ticket();
        sessions.spawn(async move {
            ticket.asked().await;
            assert!(ticket.is_asked());
            assert!(!ticket.is_cut());
            ticket.close(Exit::Asked);
            tokio::time::Instant::now()
        });
    }
    let begin = tokio::time::Instant::now();
    drain.request_stop(StopRequest::Drain);
    let summary = controller.run().await;
    let mut per_100_ms = [0_u32; 50];
    while let Some(left) = sessions.join_next().await {
        let after = left.unwrap().duration_since(begin).as_millis();
        per_100_ms[usize::try_from(after / 100).unwrap().min(49)] += 1;
    }
    assert!(per_100_ms.iter().all(|count| (180..=220).contains(count)), "{per_100_ms:?}");
    assert_eq!(summary.session_counts, SessionCounts { open: 0, left: 0, asked: 10_000, cut: 0 });
    assert!(summary.total <= Duration::from_millis(5_010), "{:?}", summary.total);
    assert!(summary.is_clean());
}

#[tokio::test(start_paused = true)]
async fn agrees_on_leave_time_when_polled_or_awaited() {
    let (drain, controller) = new(settings(10_000, 20_000));
    let early = drain.ticket();
    let late = drain.ticket();
    assert!(spread_position(0) < f64::EPSILON && (0.6..0.63).contains(&spread_position(1)));
    assert!(!early.is_asked() && !late.is_asked());
    drain.request_stop(StopRequest::Drain);
    let running = tokio::spawn(controller.run());
    early.asked().await;
    assert!(early.is_asked() && !late.is_asked());
    let begin = tokio::time::Instant::now();
    late.asked().await;
    assert!(late.is_asked() && !late.is_cut());
    let waited = begin.elapsed();
    assert!(
        (Duration::from_millis(6_100)..Duration::from_millis(6_300)).contains(&waited),
        "{waited:?}"
    );
    early.close(Exit::Asked);
    late.close(Exit::Asked);
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn ends_every_wait_on_cut() {
    let (drain, controller) = new(settings(10_000, 20_000));
    let _first = drain.ticket();
    let ticket = drain.ticket();
    let waiting = tokio::spawn(async move {
        tokio::join!(ticket.asked(), ticket.cut());
        assert!(ticket.is_asked() && ticket.is_cut());
        ticket.close(Exit::Cut);
    });
    let begin = tokio::time::Instant::now();
    drain.request_stop(StopRequest::DrainAtOnce);
    let running = tokio::spawn(controller.run());
    drain.reached(Phase::Draining).await;
    // The second ticket would have to leave after six seconds.
    tokio::time::sleep(Duration::from_secs(2)).await;
    drain.request_stop(StopRequest::Cut);
    waiting.await.unwrap();
    assert_eq!(begin.elapsed(), Duration::from_secs(2));
    let summary = running.await.unwrap();
    assert_eq!(summary.session_counts, SessionCounts { open: 1, left: 0, asked: 0, cut: 1 });
    assert!(!summary.is_clean());
}

#[tokio::test(start_paused = true)]
async fn asks_session_that_began_late() {
    let (drain, controller) = new(settings(1_000, 20_000));
    let held = drain.ticket();
    drain.request_stop(StopRequest::DrainAtOnce);
    let running = tokio::spawn(controller.run());
    drain.reached(Phase::Draining).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let late = drain.ticket();
    assert!(late.is_asked());
    late.asked().await;
    late.close(Exit::Asked);
    drop(held);
    let summary = running.await.unwrap();
    assert_eq!(summary.session_counts, SessionCounts { open: 0, left: 1, asked: 1, cut: 0 });
}

/// Many workers take tickets, wait and leave in every way while the shutdown begins: none hangs and
/// none is lost.
#[test]
fn counts_exactly_and_loses_no_wake_up_with_threads() {
    for round in 0..20 {
        let (drain, controller) = new(settings(20, 5_000));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(4)
            .enable_time()
            .build()
            .unwrap();
        let total = 400_u64;
        let begin = Instant::now();
        let summary = runtime.block_on(async {
            let gate = Arc::new(tokio::sync::Barrier::new(usize::try_from(total).unwrap() + 1));
            let permit = drain.accept_permit();
            let mut sessions = tokio::task::JoinSet::new();
            for number in 0..total {
                sessions.spawn(session(drain.clone(), number, Arc::clone(&gate)));
            }
            let running = tokio::spawn(controller.run());
            // The request races with sessions that begin to wait.
            gate.wait().await;
            drain.request_stop(if round % 2 == 0 {
                StopRequest::Drain
            } else {
                StopRequest::DrainAtOnce
            });
            drop(permit);
            while let Some(ended) = sessions.join_next().await {
                ended.unwrap();
            }
            running.await.unwrap()
        });
        assert!(begin.elapsed() < Duration::from_secs(5), "a session had to be cut");
        assert_eq!(
            summary.session_counts,
            SessionCounts { open: 0, left: total / 2, asked: total / 2, cut: 0 }
        );
        assert_eq!(drain.session_counts().opened(), total);
    }
}

async fn session(drain: Drain, number: u64, gate: Arc<tokio::sync::Barrier>) {
    let ticket = drain.ticket();
    gate.wait().await;
    match number % 4 {
        0 => drop(ticket),
        1 => ticket.close(Exit::Left),
        _ => {
            ticket.asked().await;
            ticket.close(Exit::Asked);
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum TicketOp {
    Open,
    Close(usize, Option<Exit>),
}

fn ticket_ops() -> impl Strategy<Value = Vec<TicketOp>> {
    let exit = prop_oneof![
        Just(None),
        Just(Some(Exit::Left)),
        Just(Some(Exit::Asked)),
        Just(Some(Exit::Cut))
    ];
    let op = prop_oneof![
        Just(TicketOp::Open),
        (any::<prop::sample::Index>(), exit)
            .prop_map(|(which, exit)| TicketOp::Close(which.index(1000), exit)),
    ];
    prop::collection::vec(op, 0..200)
}

proptest! {
    #![proptest_config(ProptestConfig {
        fork: false,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn counts_add_up_for_any_sequence(ticket_ops in ticket_ops()) {
        let (drain, _controller) = new(ShutdownSettings::default());
        let mut open: Vec<Ticket> = Vec::new();
        let mut expected = SessionCounts::default();
        let mut opened = 0;
        for op in ticket_ops {
            match op {
                TicketOp::Open => {
                    open.push(drain.ticket());
                    opened += 1;
                }
                TicketOp::Close(which, exit) if !open.is_empty() => {
                    let ticket = open.swap_remove(which % open.len());
                    match exit {
                        None | Some(Exit::Left) => expected.left += 1,
                        Some(Exit::Asked) => expected.asked += 1,
                        Some(Exit::Cut) => expected.cut += 1,
                    }
                    match exit {
                        None => drop(ticket),
                        Some(exit) => ticket.close(exit),
                    }
                }
                TicketOp::Close(..) => {}
            }
            expected.open = open.len() as u64;
            prop_assert_eq!(drain.session_counts(), expected);
            prop_assert_eq!(drain.session_counts().opened(), opened);
        }
    }
}
