//! Peers that violate RESP: rows 13 and 14. Such a peer affects its own connection and nothing
//! else.

use crate::cluster::{Driver, FakeCluster, ms, quick, stays, timeouts, until};
use crate::fake::Behavior;

const SILENT: &str = "does not answer within";
const NO_RESP: &str = "sends invalid or oversized RESP";

/// `problem`: what is reported about a sentinel with this behavior; `None` if it is tolerated.
async fn check_odd_peer(behavior: Behavior, problem: Option<&str>) {
    let cluster = FakeCluster::new(3, 2).await;
    cluster.sentinels[1].behave(behavior.clone());
    let driver =
        Driver::timed(cluster.watch(), if problem == Some(SILENT) { quick() } else { timeouts() });
    driver.wait_for_target(cluster.addr(0)).await;
    if let Some(problem) = problem {
        let odd = cluster.sentinels[1].addr.into();
        driver
            .wait_for("its problem", |seen| {
                seen.sentinels.iter().any(|it| {
                    it.addr == odd
                        && !it.up
                        && it.problem.as_ref().is_some_and(|why| why.contains(problem))
                })
            })
            .await;
    }
    cluster.promote(1);
    cluster.switch(0, 0, 1, 2);
    cluster.switch(2, 0, 1, 2);
    cluster.set_master(1, 1, 2);
    driver.wait_for_target(cluster.addr(1)).await;
    assert!(driver.heartbeat.age() < ms(2000), "the loop turns");
    // The same from a Redis node: neither the other replicas nor the master are affected.
    let replica = &cluster.nodes[0];
    replica.behave(behavior);
    replica.cut();
    let accepted = replica.accepted();
    until("it is asked", || replica.accepted() > accepted).await;
    stays(ms(300), "the master stays", || {
        driver.target() == Some(cluster.addr(1)) && !driver.route.is_closed()
    })
    .await;
    // The same from the master itself, which is then not a master any more until it recovers.
    cluster.nodes[1].behave(Behavior::Raw(b"*3\r\n$-7\r\n".to_vec()));
    cluster.nodes[1].cut();
    driver.wait_for("trouble", |seen| seen.state != "stable").await;
    cluster.nodes[1].behave(Behavior::Normal);
    driver.wait_for_target(cluster.addr(1)).await;
}

fn memory_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a size");
    line.split_whitespace().nth(1).and_then(|it| it.parse().ok()).expect("a number")
}

#[tokio::test]
async fn garbage() {
    check_odd_peer(
        Behavior::Raw(b"HTTP/1.1 400 Bad Request\r\n\r\n\x00\xff\xfe".to_vec()),
        Some(NO_RESP),
    )
    .await;
}

#[tokio::test]
async fn closes_connection_on_huge_or_negative_length() {
    let refused = |wire: &'static [u8]| {
        check_odd_peer(Behavior::Raw(wire.to_vec()), Some("beyond the limits"))
    };
    tokio::join!(
        refused(b"$999999999999\r\n"),
        refused(b"*2147483647\r\n"),
        refused(b"*-7\r\n"),
        refused(b"$-2\r\n"),
        refused(b"%99999999\r\n"),
        refused(b"$1048577\r\nx"),
    );
}

#[tokio::test]
async fn deep_nesting() {
    check_odd_peer(Behavior::Raw(b"*1\r\n".repeat(100_000)), Some("beyond the limits")).await;
}

#[tokio::test]
async fn closes_connection_that_never_answers() {
    check_odd_peer(Behavior::Raw(Vec::new()), Some(SILENT)).await;
}

#[tokio::test]
async fn rejects_reply_without_request() {
    check_odd_peer(Behavior::Raw(b"+OK\r\n+OK\r\n+OK\r\n+PONG\r\n".repeat(20)), Some("it")).await;
}

#[tokio::test]
async fn closes_connection_on_endless_line_or_array() {
    let before = memory_kib();
    check_odd_peer(
        Behavior::Endless(b"+aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa".repeat(100)),
        Some("longer than 1 MiB"),
    )
    .await;
    check_odd_peer(
        Behavior::Endless(b">3\r\n$7\r\nmessage\r\n$5\r\n+tilt\r\n$1\r\nx\r\n".repeat(100)),
        Some("it"),
    )
    .await;
    check_odd_peer(Behavior::Endless(b":1\r\n".repeat(1000)), Some("it")).await;
    let grown = memory_kib().saturating_sub(before);
    assert!(grown < 100 * 1024, "grown by {grown} KiB");
}

#[tokio::test]
async fn reads_single_bytes_until_timeout() {
    check_odd_peer(Behavior::ByteByByte(std::time::Duration::ZERO), None).await;
    check_odd_peer(Behavior::ByteByByte(ms(5)), Some(SILENT)).await;
}

#[tokio::test]
async fn unsolicited_data_costs_no_memory() {
    let cluster = FakeCluster::new(3, 2).await;
    let driver = cluster.drive();
    driver.wait_for_target(cluster.addr(0)).await;
    cluster.nodes[1].script().chatter = b"+unasked\r\n".repeat(10_000);
    cluster.nodes[1].cut();
    let before = memory_kib();
    let accepted = cluster.nodes[1].accepted();
    until("it was dropped for it, again and again", || cluster.nodes[1].accepted() > accepted + 5)
        .await;
    let grown = memory_kib().saturating_sub(before);
    assert!(grown < 64 * 1024, "grown by {grown} KiB");
    assert_eq!(driver.generation(), 1);
}

#[tokio::test]
async fn event_flood_delays_neither_hints_nor_heartbeat() {
    let cluster = FakeCluster::new(3, 2).await;
    let driver: Driver = cluster.drive();
    driver.wait_for_target(cluster.addr(0)).await;
    driver.wait_for("three up", |seen| seen.sentinels.iter().filter(|it| it.up).count() == 3).await;
    for round in 0..20 {
        for _ in 0..1000 {
            cluster.sentinels[0].publish("+sdown", "slave x 10.0.0.9 1 @ mymaster 10.0.0.1 1");
        }
        tokio::task::yield_now().await;
        assert!(driver.heartbeat.age() < ms(1500), "round {round}");
    }
    cluster.promote(1);
    cluster.switch(1, 0, 1, 2);
    cluster.switch(2, 0, 1, 2);
    driver.wait_for_target(cluster.addr(1)).await;
}
