//! Limits of what is kept per session, and of how long it may be silent: requests in flight, half a
//! request, unfinished names.

use std::io::Write;
use std::time::{Duration, Instant};

use harness::{Client, Cluster, Ending, Pointsman, encode, pause, wait_until};

use crate::{builder, metric, resources};

const PATIENCE: Duration = Duration::from_secs(40);
/// A lost election is repeated after twelve seconds.
const LONG_HOLD: &str = "hold_timeout = \"30s\"";

fn small() -> Cluster {
    Cluster::builder().replicas(0).sentinels(1).start()
}

fn series(pointsman: &Pointsman, name: &str, label: &str) -> f64 {
    metric(pointsman, &format!("pointsman_{name}{{service=\"mymaster\"{label}}}")).unwrap_or(0.0)
}

fn closed(pointsman: &Pointsman, reason: &str) -> f64 {
    series(pointsman, "sessions_closed_total", &format!(",reason=\"{reason}\""))
}

/// Sends a pipeline of which no request is answered before the server has all of it, and reads the
/// replies.
fn all_in_flight(
    cluster: &Cluster,
    pointsman: &Pointsman,
    pipeline: &[u8],
    answers: usize,
) -> Client {
    let mut client = pointsman.client();
    client.set_timeout(PATIENCE).expect("a timeout");
    let before = series(pointsman, "client_bytes_total", ",direction=\"in\"");
    let gate = encode(&["BLPOP", "gate", "0"]);
    client.send(&gate).expect("BLPOP");
    wait_until("the pop to block", PATIENCE, || {
        cluster.master().info("clients", "blocked_clients").is_ok_and(|count| count == "1")
    });
    client.send(pipeline).expect("a pipeline");
    let after = before + (gate.len() + pipeline.len()) as f64;
    wait_until("all of it to be forwarded", PATIENCE, || {
        series(pointsman, "client_bytes_total", ",direction=\"in\"") >= after
    });
    cluster.master().ask(&["LPUSH", "gate", "x"]).expect("LPUSH");
    for _ in 0..=answers {
        assert!(!client.read_value().expect("an answer").is_error());
    }
    client
}

/// Transactions of `commands(n)` commands each, and the number of replies.
fn transactions(count: usize, commands: impl Fn(usize) -> usize) -> (Vec<u8>, usize) {
    let (mut pipeline, mut answers) = (Vec::new(), 0);
    for n in 0..count {
        pipeline.extend(encode(&["MULTI"]));
        (0..commands(n)).for_each(|_| pipeline.extend(encode(&["INCR", "counter"])));
        pipeline.extend(encode(&["EXEC"]));
        answers += 2 + commands(n);
    }
    (pipeline, answers)
}

/// More than is recorded of a pipeline: no three consecutive requests are of a kind that repeats.
fn beyond_all_marks() -> (Vec<u8>, usize) {
    (b"WATCH a\r\nMULTI\r\nEXEC\r\n".repeat(20_000), 60_000)
}

#[test]
fn carries_sessions_after_deep_pipelines_of_transactions() {
    let cluster = Cluster::builder().start();
    let pointsman = builder(&cluster).service_line(LONG_HOLD).start();
    let pipelines =
        [transactions(600, |_| 1), transactions(3_000, |n| n * n % 5), beyond_all_marks()];
    let mut clients = pipelines
        .map(|(pipeline, answers)| all_in_flight(&cluster, &pointsman, &pipeline, answers));
    // The last one may watch keys until it resets.
    assert_eq!(clients[2].cmd(&["RESET"]).expect("RESET").text(), Some("RESET"));
    cluster.failover();
    for (number, client) in clients.iter_mut().enumerate() {
        let answer = client.cmd(&["INCR", "counter"]);
        assert!(answer.as_ref().is_ok_and(|answer| answer.int().is_some()), "{number}: {answer:?}");
    }
    assert_eq!(series(&pointsman, "sessions_carried_total", ""), 3.0);
}

#[test]
fn asks_a_session_beyond_its_marks_to_leave_in_a_drain() {
    let cluster = small();
    let shutdown = "[shutdown]\naccept_min = \"0s\"\naccept_quiet = \"0s\"\naccept_max = \"0s\"\n\
                    drain_spread = \"0s\"\ndrain_timeout = \"30s\"";
    let pointsman = builder(&cluster).lines(shutdown).start();
    let (pipeline, answers) = beyond_all_marks();
    let mut client = all_in_flight(&cluster, &pointsman, &pipeline, answers);
    let begin = Instant::now();
    pointsman.sigterm();
    assert_eq!(client.read_to_end().expect("its end"), (Vec::new(), Ending::Fin));
    assert_eq!(pointsman.wait_exit(PATIENCE).code(), Some(0));
    assert!(begin.elapsed() < Duration::from_secs(25), "it was cut after {:?}", begin.elapsed());
    assert!(
        pointsman.process().log().contains("\"drained\":1,\"cut\":0"),
        "{}",
        pointsman.process().tail()
    );
}

/// A client that writes everything before it reads anything need not wait for the replies that it
/// does not read yet.
#[test]
fn forwards_deep_pipelines_of_clients_that_read_last() {
    const TRANSACTIONS: usize = 3_000;
    let cluster = small();
    let pointsman = builder(&cluster).start();
    let mut client = pointsman.client();
    client.set_timeout(PATIENCE).expect("a timeout");
    let value = "x".repeat(16 * 1024);
    assert!(client.cmd(&["SET", "k", &value]).expect("an answer").is_ok());
    let mut pipeline = Vec::new();
    for n in 0..TRANSACTIONS {
        pipeline.extend(encode(&["MULTI"]));
        (0..=n % 3).for_each(|_| pipeline.extend(encode(&["GET", "k"])));
        pipeline.extend(encode(&["EXEC"]));
    }
    let before = series(&pointsman, "client_bytes_total", ",direction=\"in\"");
    client.send(&pipeline).expect("a pipeline");
    wait_until("all of it to be forwarded", PATIENCE, || {
        series(&pointsman, "client_bytes_total", ",direction=\"in\"")
            >= before + pipeline.len() as f64
    });
    for n in 0..TRANSACTIONS {
        (0..2 + n % 3)
            .for_each(|_| assert!(client.read_value().expect("an answer").text().is_some()));
        let executed = client.read_value().expect("an answer");
        assert_eq!(executed.items().len(), 1 + n % 3);
        assert!(executed.items().iter().all(|item| item.text() == Some(&value)));
    }
    assert_eq!(client.cmd(&["PING"]).expect("an answer").text(), Some("PONG"));
}

#[test]
fn closes_clients_that_stop_within_a_request() {
    let cluster = small();
    let timeouts = "first_byte_timeout = \"2s\"\nclient_idle_timeout = \"2s\"";
    let pointsman = builder(&cluster).service_line(timeouts).start();
    let begin = Instant::now();
    let request = encode(&["SET", "slow", &"x".repeat(24)]);
    let mut slow = pointsman.client();
    let parts: [&[u8]; 3] = [b"*", b"*2\r\n$3\r\nGET\r\n$1\r\n", b"PING\r\n*2\r\n$3\r\nGET\r\n"];
    let mut stopped = parts.map(|part| {
        let mut client = pointsman.client();
        client.send(part).expect("a part of a request");
        client
    });
    // Eight seconds for a value that arrives byte by byte.
    for byte in &request {
        slow.send(&[*byte]).expect("a byte");
        pause(Duration::from_secs(8) / u32::try_from(request.len()).expect("a small number"));
    }
    assert!(slow.read_value().expect("an answer").is_ok());
    assert!(begin.elapsed() > Duration::from_secs(7));
    for client in &mut stopped {
        client.set_timeout(Duration::from_secs(1)).expect("a timeout");
        let (bytes, ending) = client.read_to_end().expect("an end, long ago");
        assert!(ending == Ending::Fin && (bytes.is_empty() || bytes == b"+PONG\r\n"), "{bytes:?}");
    }
    assert_eq!(
        (closed(&pointsman, "first_byte_timeout"), closed(&pointsman, "idle_timeout")),
        (2.0, 1.0)
    );
}

/// CPU time for single bytes of a session, each in its own packet as far as the machine is fast
/// enough.
fn cost_of_bytes(pointsman: &Pointsman, client: &Client) -> Duration {
    const BYTES: usize = 2_000;
    let before =
        (resources::cpu(pointsman), series(pointsman, "client_bytes_total", ",direction=\"in\""));
    let mut stream = client.stream();
    for _ in 0..BYTES {
        stream.write_all(b"x").expect("a byte");
        pause(Duration::from_micros(200));
    }
    wait_until("all of them to be forwarded", PATIENCE, || {
        series(pointsman, "client_bytes_total", ",direction=\"in\"") >= before.1 + BYTES as f64
    });
    resources::cpu(pointsman) - before.0
}

#[test]
fn bounds_memory_and_work_for_unfinished_subscriptions() {
    const SESSIONS: usize = 200;
    const NAMES: usize = 480_000;
    let cluster = small();
    let pointsman = builder(&cluster).service_line("subscriptions = \"replay\"").start();
    let mut plain = pointsman.client();
    plain
        .send(format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${NAMES}\r\n").as_bytes())
        .expect("a part of a request");
    let plain_cost = cost_of_bytes(&pointsman, &plain);
    // A thousand names, and the beginning of one more.
    let mut names = b"*1002\r\n$9\r\nSUBSCRIBE\r\n".to_vec();
    (0..1000).for_each(|n| names.extend(format!("$460\r\n{n:0460}\r\n").as_bytes()));
    names.extend(format!("${NAMES}\r\n").as_bytes());
    let before = (
        resources::memory(&pointsman),
        series(&pointsman, "client_bytes_total", ",direction=\"in\""),
    );
    let mut clients: Vec<Client> = (0..SESSIONS).map(|_| pointsman.client()).collect();
    for client in &mut clients {
        client.send(&names).expect("names");
    }
    wait_until("all of them to be forwarded", PATIENCE, || {
        series(&pointsman, "client_bytes_total", ",direction=\"in\"")
            >= before.1 + (SESSIONS * names.len()) as f64
    });
    let grown = resources::memory(&pointsman).saturating_sub(before.0) / 1024;
    let costs =
        [&clients[0], &clients[SESSIONS - 1]].map(|client| cost_of_bytes(&pointsman, client));
    println!(
        "{grown} KiB more for {SESSIONS} sessions; bytes cost {costs:?}, plain ones {plain_cost:?}"
    );
    // 32 MiB of names plus what the allocator keeps of grown copies; without the budget, names
    // alone take 94 MB.
    assert!(grown < 64 * 1024, "{grown} KiB");
    assert!(
        costs.iter().all(|cost| *cost < 4 * plain_cost),
        "{costs:?}, where plain ones need {plain_cost:?}"
    );
}
