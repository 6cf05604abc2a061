//! Peers that do not speak RESP as they should: rows 13 and 14. One of them costs its own
//! connection and nothing else.

use crate::fake::Manner;
use crate::stage::{Driver, Stage, ms, quick, stays, timeouts, until};

const SILENT: &str = "does not answer within";
const NO_RESP: &str = "does not speak RESP within bounds";

/// `problem`: what is said of the sentinel that behaves like that; `None` if it does well enough.
async fn one_is_odd(manner: Manner, problem: Option<&str>) {
    let stage = Stage::new(3, 2).await;
    stage.sentinels[1].behave(manner.clone());
    let driver =
        Driver::timed(stage.watch(), if problem == Some(SILENT) { quick() } else { timeouts() });
    driver.leads_to(stage.addr(0)).await;
    if let Some(problem) = problem {
        let odd = stage.sentinels[1].addr.into();
        driver
            .sees("its problem", |seen| {
                seen.sentinels.iter().any(|it| {
                    it.addr == odd
                        && !it.up
                        && it.problem.as_ref().is_some_and(|why| why.contains(problem))
                })
            })
            .await;
    }
    stage.promote(1);
    stage.switch(0, 0, 1, 2);
    stage.switch(2, 0, 1, 2);
    stage.say(1, 1, 2);
    driver.leads_to(stage.addr(1)).await;
    assert!(driver.heartbeat.age() < ms(2000), "the loop turns");
    // The same from a redis node: the other replicas and the master are none the worse.
    let replica = &stage.nodes[0];
    replica.behave(manner);
    replica.cut();
    let accepted = replica.accepted();
    until("it is asked", || replica.accepted() > accepted).await;
    stays(ms(300), "the master stays", || {
        driver.target() == Some(stage.addr(1)) && !driver.route.is_closed()
    })
    .await;
    // And from the master itself, which is then no master any more, until it is one again.
    stage.nodes[1].behave(Manner::Raw(b"*3\r\n$-7\r\n".to_vec()));
    stage.nodes[1].cut();
    driver.sees("trouble", |seen| seen.state != "stable").await;
    stage.nodes[1].behave(Manner::Proper);
    driver.leads_to(stage.addr(1)).await;
}

fn memory_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a size");
    line.split_whitespace().nth(1).and_then(|it| it.parse().ok()).expect("a number")
}

#[tokio::test]
async fn garbage() {
    one_is_odd(
        Manner::Raw(b"HTTP/1.1 400 Bad Request\r\n\r\n\x00\xff\xfe".to_vec()),
        Some(NO_RESP),
    )
    .await;
}

#[tokio::test]
async fn huge_and_negative_lengths() {
    let refused =
        |wire: &'static [u8]| one_is_odd(Manner::Raw(wire.to_vec()), Some("beyond the limits"));
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
    one_is_odd(Manner::Raw(b"*1\r\n".repeat(100_000)), Some("beyond the limits")).await;
}

#[tokio::test]
async fn nothing_but_nothing() {
    one_is_odd(Manner::Raw(Vec::new()), Some(SILENT)).await;
}

#[tokio::test]
async fn answers_to_questions_that_nobody_asked() {
    one_is_odd(Manner::Raw(b"+OK\r\n+OK\r\n+OK\r\n+PONG\r\n".repeat(20)), Some("it")).await;
}

#[tokio::test]
async fn a_line_and_an_array_that_never_end() {
    let before = memory_kib();
    one_is_odd(
        Manner::Endless(b"+aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa".repeat(100)),
        Some("longer than 1 MiB"),
    )
    .await;
    one_is_odd(
        Manner::Endless(b">3\r\n$7\r\nmessage\r\n$5\r\n+tilt\r\n$1\r\nx\r\n".repeat(100)),
        Some("it"),
    )
    .await;
    one_is_odd(Manner::Endless(b":1\r\n".repeat(1000)), Some("it")).await;
    let grown = memory_kib().saturating_sub(before);
    assert!(grown < 100 * 1024, "grown by {grown} KiB");
}

#[tokio::test]
async fn one_byte_at_a_time_is_understood_if_it_comes_in_time_and_given_up_if_not() {
    one_is_odd(Manner::Dribble(std::time::Duration::ZERO), None).await;
    one_is_odd(Manner::Dribble(ms(5)), Some(SILENT)).await;
}

#[tokio::test]
async fn an_idle_node_that_floods_costs_no_memory() {
    let stage = Stage::new(3, 2).await;
    let driver = stage.drive();
    driver.leads_to(stage.addr(0)).await;
    stage.nodes[1].mind().chatter = b"+unasked\r\n".repeat(10_000);
    stage.nodes[1].cut();
    let before = memory_kib();
    let accepted = stage.nodes[1].accepted();
    until("it was dropped for it, again and again", || stage.nodes[1].accepted() > accepted + 5)
        .await;
    let grown = memory_kib().saturating_sub(before);
    assert!(grown < 64 * 1024, "grown by {grown} KiB");
    assert_eq!(driver.generation(), 1);
}

#[tokio::test]
async fn a_sentinel_that_floods_with_events_delays_neither_hints_nor_the_heartbeat() {
    let stage = Stage::new(3, 2).await;
    let driver: Driver = stage.drive();
    driver.leads_to(stage.addr(0)).await;
    driver.sees("three up", |seen| seen.sentinels.iter().filter(|it| it.up).count() == 3).await;
    for round in 0..20 {
        for _ in 0..1000 {
            stage.sentinels[0].publish("+sdown", "slave x 10.0.0.9 1 @ mymaster 10.0.0.1 1");
        }
        tokio::task::yield_now().await;
        assert!(driver.heartbeat.age() < ms(1500), "round {round}");
    }
    stage.promote(1);
    stage.switch(1, 0, 1, 2);
    stage.switch(2, 0, 1, 2);
    driver.leads_to(stage.addr(1)).await;
}
