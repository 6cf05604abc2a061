//! Commands that are refused to clients: no spelling of one reaches Redis, everything else does.

use std::time::Duration;

use harness::{Client, Cluster, Node, Pointsman, Value, encode, wait_until};

use crate::replicas::{PATIENT, wait_eligible, with_readers};
use crate::tls_clients::Secured;
use crate::{builder, metric, pointsman};

const PATIENCE: Duration = Duration::from_secs(20);
const CHANNEL: &str = "__sentinel__:attack";

/// A subscriber on the server itself.
fn subscriber(node: &Node) -> Client {
    let mut subscriber = node.client();
    subscriber.set_timeout(PATIENCE).expect("a timeout");
    subscriber.cmd(&["SUBSCRIBE", CHANNEL]).expect("a confirmation");
    subscriber
}

/// That a message of ours is the first one that arrives there.
fn assert_silent(node: &Node, subscriber: &mut Client) {
    node.ask(&["PUBLISH", CHANNEL, "direct"]).expect("an answer");
    let message = subscriber.read_value().expect("a message");
    assert_eq!(message.items().get(2).and_then(Value::text), Some("direct"), "{message:?}");
}

/// Spellings of a request to publish.
fn spellings() -> Vec<Vec<u8>> {
    let inline = [
        format!("PUBLISH {CHANNEL} x\r\n"),
        format!("publish {CHANNEL} x\n"),
        format!("  PuBlIsH\t\"{CHANNEL}\"  'a b'\r\n"),
        format!("\"PUBLISH\" {CHANNEL} x\r\n"),
        format!("'publish' '{CHANNEL}' x\r\n"),
        format!("PUB\"LISH\" {CHANNEL} x\r\n"),
        "PUBLISH \"\\x5f_sentinel__:attack\" x\r\n".to_owned(),
        "PUBLISH __sent\"inel__:attack\" x\r\n".to_owned(),
        format!("\r\n\r\nPUBLISH {CHANNEL} x\r\n"),
        format!("\x0b\x0cPUBLISH \x0b{CHANNEL} x\r\n"),
    ];
    let mut all: Vec<Vec<u8>> = inline.into_iter().map(String::into_bytes).collect();
    let long = "x".repeat(300_000);
    all.push(encode(&["PUBLISH", CHANNEL, "x"]));
    all.push(encode(&["pUBLISh", CHANNEL, &long]));
    all.push([b"*0\r\n".as_slice(), b"*-1\r\n", &encode(&["PUBLISH", CHANNEL, "x"])].concat());
    all
}

/// Sends each spelling alone, in a pipeline and in pieces, and expects the refusal in its place.
fn attack(mut connect: impl FnMut() -> Client) {
    let mut client = connect();
    for spelling in spellings() {
        let shown = String::from_utf8_lossy(&spelling[..spelling.len().min(80)]).into_owned();
        let pipeline = [&encode(&["ECHO", "a"]), &spelling[..], &encode(&["ECHO", "b"])].concat();
        client.send(&pipeline).expect("sent");
        assert_eq!(client.read_value().expect("a reply").text(), Some("a"), "{shown}");
        let refusal = client.read_value().expect("a reply");
        assert!(
            refusal.error().is_some_and(|it| it.starts_with("NOPERM ")),
            "{shown}: {refusal:?}"
        );
        assert_eq!(client.read_value().expect("a reply").text(), Some("b"), "{shown}");
        for piece in spelling.chunks(1 + spelling.len() / 40) {
            client.send(piece).expect("sent");
            client.stream().set_nodelay(true).expect("an option");
        }
        let refusal = client.read_value().expect("a reply");
        assert!(refusal.is_error(), "{shown}: {refusal:?}");
    }
    assert_eq!(client.cmd(&["PUBLISH", "news", "x"]).expect("a reply").int(), Some(0));
    assert_eq!(client.cmd(&["GET", "nothing"]).expect("a reply"), Value::Nil);
}

/// A refused request within a transaction aborts it.
fn aborts_transaction(client: &mut Client) {
    let mut say = |words: &[&str]| client.cmd(words).expect("a reply");
    assert!(say(&["MULTI"]).is_ok());
    assert_eq!(say(&["SET", "aborted", "1"]).text(), Some("QUEUED"));
    assert!(say(&["PUBLISH", CHANNEL, "x"]).error().is_some_and(|it| it.starts_with("NOPERM")));
    assert_eq!(say(&["SET", "aborted", "2"]).text(), Some("QUEUED"));
    assert!(say(&["EXEC"]).error().is_some_and(|it| it.starts_with("EXECABORT")));
    assert_eq!(say(&["EXISTS", "aborted"]).int(), Some(0));
    assert!(say(&["MULTI"]).is_ok());
    assert_eq!(say(&["EXEC"]).items(), []);
}

fn refused(pointsman: &Pointsman, command: &str) -> Option<f64> {
    let labels = format!("service=\"mymaster\",listener=\"writers\",command=\"{command}\"");
    let name = "pointsman_refused_commands_total";
    metric(pointsman, &format!("{name}{{{labels}}}")).or_else(|| {
        metric(pointsman, &format!("{name}{{service=\"mymaster\",command=\"{command}\"}}"))
    })
}

#[test]
fn refuses_to_publish_as_a_sentinel_by_default() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let mut subscriber = subscriber(cluster.master());
    for mode in ["upstream = \"dedicated\"", "upstream = \"shared\"", "sessions = \"close\""] {
        let pointsman = builder(&cluster).service_line(mode).start();
        let connect = || {
            let client = pointsman.client();
            client.set_timeout(PATIENCE).expect("a timeout");
            client
        };
        attack(connect);
        aborts_transaction(&mut connect());
        let mut client = connect();
        for channel in ["__sentinel__:hello", "__pointsman__:x", "__sentinel__:"] {
            for name in ["PUBLISH", "SPUBLISH"] {
                let reply = client.cmd(&[name, channel, "x"]).expect("a reply");
                assert!(reply.is_error(), "{name} {channel}: {reply:?}");
            }
        }
        assert!(refused(&pointsman, "publish") > Some(20.0), "{mode}");
        assert_eq!(refused(&pointsman, "spublish"), Some(3.0), "{mode}");
        // One line per command and interval; the log is written by a thread of its own.
        wait_until("a line for each of the two commands", PATIENCE, || {
            let log = pointsman.process().log();
            let lines = log.matches("client's command refused").count();
            if (2..10).contains(&lines) { Ok(()) } else { Err(log) }
        });
    }
    assert_silent(cluster.master(), &mut subscriber);
}

#[test]
fn refuses_when_nothing_else_is_followed() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let mut subscriber = subscriber(cluster.master());
    let pointsman = pointsman(&cluster);
    let publish = encode(&["PUBLISH", CHANNEL, "x"]);
    let marked = |client: &mut Client| client.read_to_end().expect("an end");
    // What makes a session opaque does not end the refusal.
    let openings: [&[&[&str]]; 5] = [
        &[&["MONITOR"]],
        &[&["CLIENT", "REPLY", "OFF"]],
        &[&["CLIENT", "REPLY", "SKIP"]],
        &[&["MULTI"], &["CLIENT", "REPLY", "OFF"]],
        &[&["REPLCONF", "listening-port", "1"], &["PSYNC", "?", "-1"]],
    ];
    for opening in openings {
        let mut client = pointsman.client();
        client.set_timeout(PATIENCE).expect("a timeout");
        for request in opening {
            client.send(&encode(request)).expect("sent");
        }
        client.send(&publish).expect("sent");
        client.send(&encode(&["QUIT"])).expect("sent");
        client.shutdown_write().expect("a half-closed connection");
        marked(&mut client);
    }
    // Bytes that are no request end the connection with the server's error.
    let large = [b"PUBLISH ".as_slice(), &[b'x'; 70_000]].concat();
    let broken: [&[u8]; 8] = [
        b"GET \"k\r\n",
        b"GET a\0b\r\n",
        b"\"\\x50UBLISH\" a b\r\n",
        b"*1\r\n:1\r\n",
        b"*2\r\n$3\r\nGET\r\n$04\r\nkeys\r\n",
        b"*2\r\n$3\r\nGET\r\n:3\r\nkey\r\n",
        b"*03\r\n",
        &large,
    ];
    for bytes in broken {
        let mut client = pointsman.client();
        client.set_timeout(PATIENCE).expect("a timeout");
        let all = [&encode(&["PING"]), bytes, &publish, b"\r\n", &publish].concat();
        client.send(&all).expect("sent");
        let (received, _) = marked(&mut client);
        let received = String::from_utf8_lossy(&received).into_owned();
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(30)]).into_owned();
        assert!(received.starts_with("+PONG\r\n-ERR Protocol error"), "{shown:?}: {received:?}");
    }
    assert_silent(cluster.master(), &mut subscriber);
}

#[test]
fn refuses_to_readers_and_over_tls() {
    let cluster = Cluster::builder().replicas(1).sentinels(1).start();
    let mut on_replica = subscriber(cluster.replicas()[0]);
    let (pointsman, addr) = with_readers(&cluster, &[PATIENT]);
    wait_eligible(&pointsman, 1);
    attack(|| {
        let client = Client::connect(addr).expect("a connection");
        client.set_timeout(PATIENCE).expect("a timeout");
        client
    });
    assert_silent(cluster.replicas()[0], &mut on_replica);
    drop(pointsman);
    let mut on_master = subscriber(cluster.master());
    let secured = Secured::start(&cluster, "", "");
    attack(|| secured.client());
    aborts_transaction(&mut secured.client());
    assert_silent(cluster.master(), &mut on_master);
}

#[test]
fn refuses_what_changes_the_deployment() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let line = "refuse = [\"@deployment\", \"flushall\", \"client|kill\"]";
    let pointsman = builder(&cluster).service_line(line).start();
    let mut client = pointsman.client();
    for refused in [
        "REPLICAOF 127.0.0.1 1",
        "slaveof no one",
        "FAILOVER",
        "SHUTDOWN",
        "shutdown nosave",
        "PSYNC ? -1",
        "SYNC",
        "REPLCONF listening-port 1",
        "MIGRATE a 1 k 0 1",
        "FLUSHALL",
        "CLUSTER MEET a 1",
        "DEBUG sleep 0",
        "MODULE LOAD x",
        "CONFIG SET maxmemory 1",
        "config rewrite",
        "ACL SETUSER x on",
        "acl deluser x",
        "client KILL id 1",
        "PUBLISH __sentinel__:hello x",
    ] {
        let words: Vec<&str> = refused.split(' ').collect();
        let reply = client.cmd(&words).expect("a reply");
        assert!(reply.error().is_some_and(|it| it.starts_with("NOPERM ")), "{refused}: {reply:?}");
    }
    for passed in ["CONFIG GET maxmemory", "ACL WHOAMI", "MODULE LIST", "ROLE", "CLIENT LIST"] {
        let words: Vec<&str> = passed.split(' ').collect();
        assert!(!client.cmd(&words).expect("a reply").is_error(), "{passed}");
    }
    for arity in ["CONFIG", "ACL", "CLUSTER"] {
        let reply = client.cmd(&[arity]).expect("a reply");
        assert!(reply.error().is_some_and(|it| it.starts_with("ERR ")), "{arity}: {reply:?}");
    }
    assert_eq!(refused(&pointsman, "config"), Some(2.0));
    assert_eq!(refused(&pointsman, "flushall"), Some(1.0));
    // Other entries replace the default.
    for line in ["refuse = []", "refuse = [\"flushall\"]"] {
        let open = builder(&cluster).service_line(line).start();
        let reply = open.client().cmd(&["PUBLISH", CHANNEL, "x"]).expect("a reply");
        assert_eq!(reply.int(), Some(0), "{line}");
    }
}

#[test]
fn carries_sessions_that_were_refused_something() {
    let cluster = Cluster::builder().start();
    for mode in ["upstream = \"dedicated\"", "upstream = \"shared\""] {
        cluster.wait_whole();
        let pointsman = builder(&cluster).service_line(mode).start();
        let mut client = pointsman.client();
        client.set_timeout(PATIENCE).expect("a timeout");
        assert!(client.cmd(&["PUBLISH", CHANNEL, "x"]).expect("a reply").is_error());
        let publish = encode(&["PUBLISH", CHANNEL, "x"]);
        let (begin, end) = publish.split_at(publish.len() - 4);
        client.send(begin).expect("sent");
        cluster.failover();
        client.send(end).expect("sent");
        assert!(client.read_value().expect("carried").is_error(), "{mode}");
        assert!(client.cmd(&["SET", "k", "v"]).expect("a reply").is_ok(), "{mode}");
    }
}
