//! Ordinary traffic: through the proxy a client may do what it may do directly, and gets the same
//! bytes.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use harness::{Client, Cluster, Ending, Value, encode, wait_until};

use crate::{metric, pointsman};

/// The longest wait.
const PATIENCE: Duration = Duration::from_secs(30);

/// One master and one sentinel are enough for tests without a failover.
fn small() -> Cluster {
    Cluster::builder().replicas(0).sentinels(1).start()
}

fn text(value: &Value) -> &str {
    value.text().unwrap_or_else(|| panic!("no text: {value:?}"))
}

#[test]
fn answers_commands_as_directly() {
    let cluster = small();
    let pointsman = pointsman(&cluster);
    let mut client = pointsman.client();
    assert!(client.cmd(&["SET", "key", "value"]).expect("SET").is_ok());
    assert_eq!(text(&client.cmd(&["GET", "key"]).expect("GET")), "value");
    assert!(client.cmd(&["NOSUCH"]).expect("an answer").is_error());

    let commands: Vec<Vec<String>> =
        (0..1000).map(|_| vec!["INCR".to_owned(), "n".to_owned()]).collect();
    let answers = client.pipeline(&commands).expect("a pipeline");
    let numbers: Vec<i64> = answers.iter().map(|it| it.int().expect("a number")).collect();
    assert_eq!(numbers, (1..=1000).collect::<Vec<i64>>());

    assert!(client.cmd(&["MULTI"]).expect("MULTI").is_ok());
    assert_eq!(text(&client.cmd(&["SET", "key", "in a transaction"]).expect("SET")), "QUEUED");
    assert_eq!(text(&client.cmd(&["GET", "key"]).expect("GET")), "QUEUED");
    let answer = client.cmd(&["EXEC"]).expect("EXEC");
    assert_eq!(answer.items().len(), 2);
    assert_eq!(text(&answer.items()[1]), "in a transaction");
    wait_until("the commands to be counted", PATIENCE, || {
        metric(&pointsman, "pointsman_commands_total{service=\"mymaster\"}") >= Some(1007.0)
    });
}

#[test]
fn returns_ten_megabytes_unchanged() {
    let cluster = small();
    let pointsman = pointsman(&cluster);
    let mut client = pointsman.client();
    // Not a repeated byte, so that a lost or duplicated piece is detected.
    let value: Vec<u8> =
        (0..10_000_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    client.send(&encode(&[b"SET".as_slice(), b"large", &value])).expect("send");
    assert!(client.read_value().expect("an answer").is_ok());
    client.send(&encode(&["GET", "large"])).expect("send");
    let head = format!("${}\r\n", value.len());
    assert_eq!(client.read_exact(head.len()).expect("a header"), head.as_bytes());
    let back = client.read_exact(value.len()).expect("the value");
    assert!(back == value, "the value came back changed");
    assert_eq!(client.read_exact(2).expect("its end"), b"\r\n");
}

#[test]
fn keeps_order_of_deep_pipelines() {
    let cluster = small();
    let pointsman = pointsman(&cluster);
    let mut client = pointsman.client();
    // More than all buffers on the way hold, and nothing is read before all is sent: a thread
    // writes it.
    let deep = 100_000;
    let mut writer = client.stream().try_clone().expect("a second handle");
    let sending = std::thread::spawn(move || {
        let requests: Vec<u8> =
            (0..deep).flat_map(|at| encode(&["ECHO", &at.to_string()])).collect();
        writer.write_all(&requests).expect("the whole pipeline");
    });
    for at in 0..deep {
        assert_eq!(text(&client.read_value().expect("an answer")), at.to_string());
    }
    sending.join().expect("the writer");
    for byte in encode(&["ECHO", "one by one"]) {
        client.send(&[byte]).expect("a byte");
    }
    assert_eq!(text(&client.read_value().expect("an answer")), "one by one");
}

#[test]
fn forwards_messages_and_blocked_pops() {
    let cluster = small();
    let pointsman = pointsman(&cluster);
    let (mut listener, mut popper, mut other) =
        (pointsman.client(), pointsman.client(), pointsman.client());
    let confirmed = listener.cmd(&["SUBSCRIBE", "news"]).expect("SUBSCRIBE");
    assert_eq!(text(&confirmed.items()[0]), "subscribe");
    assert_eq!(other.cmd(&["PUBLISH", "news", "hello"]).expect("PUBLISH").int(), Some(1));
    let message = listener.read_value().expect("a message");
    assert_eq!(message.items().iter().map(text).collect::<Vec<_>>(), ["message", "news", "hello"]);

    popper.send(&encode(&["BLPOP", "queue", "0"])).expect("send");
    wait_until("the pop to block on the server", PATIENCE, || {
        cluster.nodes()[0].info("clients", "blocked_clients").map(|it| it == "1").unwrap_or(false)
    });
    assert_eq!(other.cmd(&["LPUSH", "queue", "item"]).expect("LPUSH").int(), Some(1));
    assert_eq!(
        popper.read_value().expect("the item").items().iter().map(text).collect::<Vec<_>>(),
        ["queue", "item"]
    );
}

#[test]
fn forwards_resp3_maps_and_pushes() {
    let cluster = small();
    let pointsman = pointsman(&cluster);
    let mut client = pointsman.client();
    let hello = client.cmd(&["HELLO", "3"]).expect("HELLO");
    assert_eq!(hello.field("proto").and_then(Value::int), Some(3));
    let confirmed = client.cmd(&["SUBSCRIBE", "c"]).expect("SUBSCRIBE");
    assert!(matches!(confirmed, Value::Push(_)), "{confirmed:?}");
    client.send(&encode(&["PING"])).expect("send");
    assert_eq!(text(&client.read_value().expect("an answer")), "PONG");
}

#[test]
fn answers_half_closed_client_to_the_end() {
    let cluster = small();
    let pointsman = pointsman(&cluster);
    let mut client = pointsman.client();
    client.send(b"SET inline works\r\n\r\nGET inline\r\nPING\r\n").expect("send");
    client.shutdown_write().expect("half-close");
    let (bytes, ending) = client.read_to_end().expect("the rest");
    assert_eq!(String::from_utf8_lossy(&bytes), "+OK\r\n$5\r\nworks\r\n+PONG\r\n");
    assert_eq!(ending, Ending::Fin);
}

#[test]
fn cleans_up_after_client_reset() {
    let cluster = small();
    let pointsman = pointsman(&cluster);
    let connected = || {
        let found = cluster.nodes()[0].info("clients", "connected_clients").ok()?;
        found.parse::<u32>().ok()
    };
    let before = wait_until("the server to answer", PATIENCE, connected);
    let mut clients: Vec<Client> = (0..20).map(|_| pointsman.client()).collect();
    for client in &mut clients {
        assert_eq!(text(&client.cmd(&["PING"]).expect("PING")), "PONG");
    }
    for client in clients {
        client.reset().expect("RST");
    }
    wait_until("the server's connections to be gone too", PATIENCE, || {
        connected().is_some_and(|now| now <= before)
    });
    wait_until("the sessions to be counted as closed", PATIENCE, || {
        metric(&pointsman, "pointsman_sessions_open{service=\"mymaster\"}") == Some(0.0)
    });
}

#[test]
fn refuses_excess_client_like_redis() {
    let cluster = small();
    let pointsman = crate::builder(&cluster).service_line("max_connections = 2").start();
    let mut first = pointsman.client();
    let mut second = pointsman.client();
    assert_eq!(text(&first.cmd(&["PING"]).expect("PING")), "PONG");
    assert_eq!(text(&second.cmd(&["PING"]).expect("PING")), "PONG");
    let mut third = pointsman.client();
    let (bytes, _) = third.read_to_end().expect("an answer");
    assert_eq!(String::from_utf8_lossy(&bytes), "-ERR max number of clients reached\r\n");
    assert_eq!(pointsman.get("/alive").expect("alive").0, 200);
    drop(first);
    wait_until("the place to be free again", PATIENCE, || {
        let mut next = pointsman.client();
        next.cmd(&["PING"]).is_ok_and(|answer| answer.text() == Some("PONG"))
    });
}

#[test]
fn works_with_redis_benchmark_and_redis_cli() {
    let cluster = small();
    let pointsman = pointsman(&cluster);
    let (host, port) = (pointsman.addr().ip().to_string(), pointsman.addr().port().to_string());
    let bench = Command::new("redis-benchmark")
        .args([
            "-h",
            &host,
            "-p",
            &port,
            "-n",
            "20000",
            "-c",
            "50",
            "-P",
            "16",
            "-t",
            "set,get,incr",
            "--csv",
        ])
        .output()
        .expect("redis-benchmark");
    let printed = String::from_utf8_lossy(&bench.stdout);
    assert!(bench.status.success(), "{}", String::from_utf8_lossy(&bench.stderr));
    for test in ["\"SET\"", "\"GET\"", "\"INCR\""] {
        assert!(printed.lines().any(|line| line.starts_with(test)), "{printed}");
    }
    let mut cli = Command::new("redis-cli")
        .args(["-h", &host, "-p", &port])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("redis-cli");
    cli.stdin
        .take()
        .expect("its input")
        .write_all(b"SET a 1\nINCR a\nHELLO 3\nGET a\n")
        .expect("commands");
    let said = cli.wait_with_output().expect("its output");
    let said = String::from_utf8_lossy(&said.stdout);
    assert!(said.starts_with("OK\n2\n") && said.trim_end().ends_with('2'), "{said}");
}
