//! Liveness depends on our own event loops and on nothing else.

use std::time::{Duration, Instant};

use harness::{Cluster, pause, wait_until};

use crate::builder;

const PATIENCE: Duration = Duration::from_secs(30);

fn small() -> Cluster {
    Cluster::builder().replicas(0).sentinels(1).start()
}

/// Needs a switch that only builds with debug assertions have.
#[cfg(debug_assertions)]
#[test]
fn fails_liveness_while_a_worker_hangs() {
    let cluster = small();
    let switch = cluster.folder().join("stall");
    let pointsman = builder(&cluster)
        .env("POINTSMAN_TEST_STALL", switch.to_str().expect("a path"))
        .lines("[process]\nworkers = 2")
        .start();
    assert_eq!(pointsman.get("/alive").expect("alive").0, 200);
    let begin = Instant::now();
    std::fs::write(&switch, "1").expect("a file");
    let body = wait_until("liveness to be red", PATIENCE, || match pointsman.get("/alive") {
        Ok((503, body)) => Ok(body),
        other => Err(format!("{other:?}")),
    });
    assert!(body.contains("worker 1"), "{body}");
    assert!(
        begin.elapsed() >= Duration::from_secs(4),
        "red after {:?}: one slow turn is no hang",
        begin.elapsed()
    );
    // The kernel chooses the worker of each client; the healthy worker keeps serving.
    wait_until("liveness to be green again", PATIENCE, || {
        pointsman.get("/alive").is_ok_and(|(status, _)| status == 200)
    });
}

/// Kills every peer of pointsman and checks its probes for `time`.
fn nothing_behind_it(time: Duration) {
    let cluster = Cluster::builder().replicas(1).sentinels(3).start();
    let pointsman = builder(&cluster)
        .service_line("hold_timeout = \"2s\"")
        .lines("ready_without_master = false")
        .start();
    let servers = || cluster.nodes().iter().chain(cluster.sentinels());
    let begin = Instant::now();
    servers().for_each(harness::Node::kill);
    let mut unready = None;
    while begin.elapsed() < time {
        let (status, body) = pointsman.get("/alive").expect("an answer");
        assert_eq!(status, 200, "after {:?}: {body}", begin.elapsed());
        let (status, body) = pointsman.get("/ready").expect("an answer");
        if status != 200 {
            unready.get_or_insert((begin.elapsed(), body));
        }
        pause(Duration::from_millis(100));
    }
    let (after, why) = unready.expect("it never became unready");
    assert!(after >= Duration::from_secs(2), "unready after {after:?}, within the hold");
    assert!(why.contains("no master for"), "{why}");
    servers().for_each(harness::Node::restart);
    wait_until("it to be ready again", PATIENCE, || {
        pointsman.get("/ready").is_ok_and(|(status, _)| status == 200)
    });
}

#[test]
fn stays_alive_without_any_peer() {
    nothing_behind_it(Duration::from_secs(10));
}

#[test]
#[ignore = "takes a minute: cargo test --test e2e -- --ignored for_a_minute"]
fn stays_alive_a_minute_without_peers() {
    nothing_behind_it(Duration::from_secs(60));
}
