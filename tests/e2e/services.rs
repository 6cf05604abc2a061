//! Several masters in one process, and the ways to start it.

use std::time::Duration;

use harness::{Cluster, wait_until};

use crate::{builder, metric};

const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn shares_sentinels_of_two_services() {
    let cluster = Cluster::builder().masters(&["alpha", "beta"]).replicas(1).start();
    let pointsman = builder(&cluster).start();
    let sentinel = &cluster.sentinels()[0];
    // A sentinel sees one connection of this proxy for both services.
    let named = |list: &str| list.lines().filter(|line| line.contains("name=pointsman")).count();
    wait_until("one connection to each sentinel", PATIENCE, || {
        sentinel.ask(&["CLIENT", "LIST"]).is_ok_and(|list| list.text().map(named) == Some(1))
    });
    for (service, value) in [("alpha", "a"), ("beta", "b")] {
        let addr = pointsman.addr_of(service).expect("an address");
        let mut client = harness::Client::connect(addr).expect("a connection");
        assert!(client.cmd(&["SET", "who", value]).expect("SET").is_ok());
    }
    cluster.failover_of("beta");
    wait_until("beta's points to move", PATIENCE, || {
        metric(&pointsman, "pointsman_target_generation{service=\"beta\"}") == Some(2.0)
    });
    assert_eq!(metric(&pointsman, "pointsman_target_generation{service=\"alpha\"}"), Some(1.0));
    for (service, value) in [("alpha", "a"), ("beta", "b")] {
        let addr = pointsman.addr_of(service).expect("an address");
        let mut client = harness::Client::connect(addr).expect("a connection");
        assert_eq!(client.cmd(&["GET", "who"]).expect("GET").text(), Some(value));
    }
}

#[test]
fn runs_one_service_without_a_file() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let pointsman = builder(&cluster).by_flags().start();
    assert_eq!(pointsman.client().cmd(&["PING"]).expect("PING").text(), Some("PONG"));
    let status = std::process::Command::new(crate::PROGRAM)
        .args(["status", "--admin", &pointsman.admin().to_string()])
        .output()
        .expect("status");
    let said = String::from_utf8_lossy(&status.stdout);
    let has =
        |words: &[&str]| said.lines().any(|line| line.split_whitespace().eq(words.iter().copied()));
    assert!(status.status.success() && has(&["mymaster:", "stable,", "generation", "1"]), "{said}");
}

#[test]
fn refuses_to_start_on_a_used_address() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let taken = cluster.nodes()[0].addr().to_string();
    let sentinel = cluster.sentinels()[0].addr().to_string();
    let started = std::process::Command::new(crate::PROGRAM)
        .args([
            "run",
            "--service",
            "mymaster",
            "--sentinel",
            &sentinel,
            "--listen",
            &taken,
            "--admin",
            "127.0.0.1:0",
        ])
        .output()
        .expect("a run");
    assert_eq!(started.status.code(), Some(1));
    let said = String::from_utf8_lossy(&started.stderr);
    assert!(said.contains(&taken) && said.contains("already in use"), "{said}");
}
