//! Runs every job directly against the backend and compares its counts.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "tests report by a clear panic")]

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use bench::load::{Alternating, Churn, Closed, Cost, Idle, Loader, Meter, Open, Target, Workload};

const SHORT: Duration = Duration::from_millis(50);
const TIME: Duration = Duration::from_millis(300);

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
        let job = Closed {
            to,
            tls: None,
            workload: Workload::Small,
            clients: 50,
            pipeline,
            warm: SHORT,
            time: TIME,
        };
        counts(500, || {
            let job = job.clone();
            let rate = loader.run(move |engine| job.run(engine, &me())).expect("a rate");
            println!("{pipeline}: {rate:?}");
            assert!(rate.window.seconds >= 0.3 && rate.window.proxy > 0.0, "{rate:?}");
            rate.requests
        });
    }
}

#[test]
fn keeps_the_rate_in_an_open_loop() {
    let loader = loader();
    let to = loader.sink();
    let job =
        Open { to, workload: Workload::Small, clients: 10, rate: 2000, warm: SHORT, time: TIME };
    let (latency, _) = loader.run(move |engine| job.run(engine, &me())).expect("latencies");
    println!("{latency:?}");
    assert!((590..=602).contains(&latency.count), "{latency:?}");
    assert!(
        latency.p50 > 0.0 && latency.p50 <= latency.p99 && latency.p99 <= latency.p999,
        "{latency:?}"
    );
}

#[test]
fn alternates_between_targets_and_waits_for_all_replies() {
    let loader = loader();
    let target = Target { to: loader.sink(), pid: std::process::id() };
    for (pipeline, rate) in [(1, None), (16, None), (1, Some(2000))] {
        let window = TIME / 3;
        let job = Alternating { workload: Workload::Small, clients: 10, pipeline, rate, window };
        let (said, heard) = std::sync::mpsc::channel::<Vec<Cost>>();
        let go_on = move |costs: &[Cost]| {
            said.send(costs.to_vec()).expect("the test waits");
            false
        };
        let run = loader.run(move |engine| job.run(engine, &[target, target], go_on));
        run.expect("costs");
        let rounds: Vec<Vec<Cost>> = heard.iter().collect();
        println!("{pipeline} {rate:?}: {rounds:?}");
        let [costs] = &rounds[..] else { panic!("one round, not {}", rounds.len()) };
        assert_eq!(costs.len(), 2);
        for cost in costs {
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
    let job = Churn { to, tls: None, at_once: 16, warm: SHORT, time: TIME };
    counts(100, || {
        let job = job.clone();
        let (latency, window) = loader.run(move |engine| job.run(engine, &me())).expect("visits");
        println!("{latency:?} {window:?}");
        assert!(latency.count == 0 || latency.p50 > 0.0, "{latency:?}");
        latency.count as u64
    });
}

#[test]
fn keeps_and_counts_idle_connections() {
    let loader = loader();
    let to = loader.sink();
    let job = Idle { to, tls: None, before: 10, pairs: 300, rest: SHORT };
    let memory = loader.run(move |engine| job.run(engine, &[std::process::id()])).expect("memory");
    assert!(memory.before > 0 && memory.after > 0, "{memory:?}");
}

#[test]
fn fails_on_unexpected_reply() {
    let loader = loader();
    let to = loader.sink();
    // The backend does not support SET.
    let workload = Workload::Set(64 << 10);
    let job = Closed { to, tls: None, workload, clients: 1, pipeline: 1, warm: SHORT, time: TIME };
    let error = loader.run(move |engine| job.run(engine, &me())).expect_err("a wrong reply");
    assert!(!error.to_string().is_empty());
}
