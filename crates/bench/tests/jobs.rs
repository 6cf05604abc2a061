//! Runs every job directly against the backend and compares its counts.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "tests report by a clear panic")]

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use bench::load::{Churn, Flow, Loader, Meter, Pace, Target, Workload};

const SHORT: Duration = Duration::from_millis(50);
const TIME: Duration = Duration::from_millis(300);
const PACE: Pace = Pace { warm: SHORT, time: TIME };
const SMALL: Flow = Flow { workload: Workload::SMALL, clients: 50, pipeline: 1, rate: None };

fn loader() -> Loader {
    Loader::start(0, IpAddr::V4(Ipv4Addr::LOCALHOST)).expect("a core and a port")
}

fn me() -> Meter {
    Meter { proxy: vec![std::process::id()], others: Vec::new() }
}

/// Counts in as many windows as it takes to exceed `least`: the speed depends on the machine.
fn counts(least: u64, mut window: impl FnMut() -> u64) {
    let (start, mut counted) = (Instant::now(), 0);
    while counted <= least {
        assert!(start.elapsed() < Duration::from_secs(30), "only {counted} in 30 s");
        counted += window();
    }
}

#[test]
fn counts_replies_and_cpu_in_a_closed_loop() {
    let loader = loader();
    for pipeline in [1, 16] {
        let to = loader.sink();
        let flow = Flow { pipeline, ..SMALL };
        counts(500, || {
            let done = loader.run(move |engine| flow.run(engine, to, None, PACE, &me()));
            let done = done.expect("a rate");
            println!("{pipeline}: {done:?}");
            assert!(done.window.seconds >= 0.3 && done.window.proxy > 0.0, "{done:?}");
            assert_eq!(done.requests % pipeline as u64, 0);
            done.requests
        });
    }
}

#[test]
fn keeps_the_rate_in_an_open_loop() {
    let loader = loader();
    let to = loader.sink();
    let flow = Flow { clients: 10, rate: Some(2000), ..SMALL };
    let done = loader.run(move |engine| flow.run(engine, to, None, PACE, &me()));
    let done = done.expect("latencies");
    assert!((590..=602).contains(&done.requests), "{done:?}");
    assert_eq!(done.replies.len() as u64, done.requests);
}

#[test]
fn alternates_between_targets_and_waits_for_all_replies() {
    let loader = loader();
    let target = Target { to: loader.sink(), pid: std::process::id() };
    for (pipeline, rate) in [(1, None), (16, None), (1, Some(2000))] {
        let flow = Flow { clients: 10, pipeline, rate, ..SMALL };
        let run = loader.run(move |engine| {
            flow.alternate(engine, [target, target], TIME / 3, 2, &AtomicBool::new(false))
        });
        let rounds = run.expect("costs");
        println!("{pipeline} {rate:?}: {rounds:?}");
        assert_eq!(rounds.len(), 2);
        for cost in rounds.into_iter().flatten() {
            assert!(cost.requests > 0 && cost.requests % pipeline as u64 == 0 && cost.cpu > 0.0);
            // A request is due at the beginning, and then every half millisecond.
            assert!(rate.is_none() || (200..=202).contains(&cost.requests), "{cost:?}");
        }
    }
}

#[test]
fn reconnects_for_every_request() {
    let loader = loader();
    let to = loader.sink();
    counts(100, || {
        let job = Churn { to, tls: None, at_once: 16, pace: PACE };
        let done = loader.run(move |engine| job.run(engine, &me())).expect("visits");
        println!("{:?}", done.window);
        assert!(done.replies.iter().all(|it| !it.took.is_zero()));
        done.requests
    });
}

#[test]
fn fails_on_unexpected_reply() {
    let loader = loader();
    let to = loader.sink();
    // The backend does not support SET.
    let flow = Flow { workload: Workload::Set(64 << 10), clients: 1, ..SMALL };
    let error = loader.run(move |engine| flow.run(engine, to, None, PACE, &me()));
    let error = error.expect_err("a wrong reply");
    assert!(!error.to_string().is_empty());
}
