//! Maintenance notifications over sockets: which client gets which push when, and how its
//! connection ends.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;

use drain::StopRequest;

use crate::session::carry::proof_tests::answer_proof;
use crate::testing::{Backend, TestProxy, expect, is_silent, rest, rest_or_reset};
use crate::{EndReason, MaintenanceKind, Options};

const SAME_ADDRESS: &str = "CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type none\r\n";
const OTHER_ADDRESS: &str = "CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type internal-ip\r\n";
const UNKNOWN: &str = "-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP.\r\n";
const HELLO: (&str, &str) = ("HELLO 3\r\n", "%1\r\n+proto\r\n:3\r\n");

fn array(inline: &str) -> String {
    let words: Vec<&str> = inline.split_whitespace().collect();
    let words_on_the_wire: String =
        words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    format!("*{}\r\n{words_on_the_wire}", words.len())
}

/// A RESP3 client that has agreed to notifications, after the server refused its handshake, and the
/// server's side.
fn agreed(proxy: &TestProxy, backend: &Backend, handshake: &str) -> (TcpStream, TcpStream) {
    let mut client = proxy.client();
    let mut upstream = backend.accept();
    for (request, answer, heard) in [(HELLO.0, HELLO.1, HELLO.1), (handshake, UNKNOWN, "+OK\r\n")] {
        client.write_all(array(request).as_bytes()).unwrap();
        expect(&mut upstream, array(request).as_bytes());
        upstream.write_all(answer.as_bytes()).unwrap();
        expect(&mut client, heard.as_bytes());
    }
    (client, upstream)
}

/// Reads a `MOVING` and returns the address as it was sent. The seconds are ten unless the test
/// itself was stalled for long.
#[track_caller]
fn moving(client: &mut TcpStream) -> String {
    let all = push(client, 4, "MOVING");
    let (seconds, to) = all.split_once("\r\n").unwrap();
    assert!((1..=10).contains(&seconds[1..].parse::<u64>().unwrap()), "{all:?}");
    to.to_owned()
}

/// Reads one push and returns what follows its number.
#[track_caller]
fn push(client: &mut TcpStream, elements: usize, name: &str) -> String {
    expect(client, format!(">{elements}\r\n${}\r\n{name}\r\n:", name.len()).as_bytes());
    let mut line = || {
        let mut text = String::new();
        while !text.ends_with("\r\n") {
            let mut byte = [0];
            std::io::Read::read_exact(client, &mut byte).unwrap();
            text.push(char::from(byte[0]));
        }
        text
    };
    assert!(line().trim_end().parse::<u64>().unwrap() > 0, "a number");
    let lines = match name {
        "MOVING" => 2,
        "FAILING_OVER" => 3,
        _ => 2,
    };
    let mut all: String = (0..lines).map(|_| line()).collect();
    if name == "MOVING" && !all.ends_with("_\r\n") {
        all += &line();
    }
    all
}

fn sent(proxy: &TestProxy, kind: MaintenanceKind) -> u64 {
    proxy.stats().notices[kind as usize]
}

#[test]
fn answers_handshakes_of_resp3_clients_only_if_enabled() {
    for (hello, wanted) in [(false, true), (true, false)] {
        let backend = Backend::new();
        let mut proxy = TestProxy::new(Options { maintenance_push: wanted, ..Options::default() });
        proxy.commit(backend.addr());
        let (mut client, mut upstream) = (proxy.client(), backend.accept());
        if hello {
            client.write_all(HELLO.0.as_bytes()).unwrap();
            expect(&mut upstream, HELLO.0.as_bytes());
            upstream.write_all(HELLO.1.as_bytes()).unwrap();
            expect(&mut client, HELLO.1.as_bytes());
        }
        client.write_all(array(SAME_ADDRESS).as_bytes()).unwrap();
        expect(&mut upstream, array(SAME_ADDRESS).as_bytes());
        upstream.write_all(UNKNOWN.as_bytes()).unwrap();
        expect(&mut client, UNKNOWN.as_bytes());
        proxy.publisher.hold();
        assert_eq!((proxy.stats().maintenance_handshakes, is_silent(&mut client)), (0, true));
    }
}

#[test]
fn asks_clients_to_move_in_a_drain_and_waits() {
    let backend = Backend::new();
    let proxy = TestProxy::with_target(&backend);
    let (mut client, mut upstream) = agreed(&proxy, &backend, SAME_ADDRESS);
    proxy.drain.request_stop(StopRequest::DrainAtOnce);
    assert_eq!(moving(&mut client), "_\r\n");
    // It is served until it disconnects.
    for _ in 0..3 {
        client.write_all(b"GET k\r\n").unwrap();
        expect(&mut upstream, b"GET k\r\n");
        upstream.write_all(b"$1\r\nv\r\n").unwrap();
        expect(&mut client, b"$1\r\nv\r\n");
    }
    drop(client);
    assert_eq!(rest_or_reset(&mut upstream), b"");
    drop(upstream);
    proxy.wait_for_end(EndReason::ClientClosed);
    let (summary, stats) = proxy.stop(StopRequest::DrainAtOnce);
    assert_eq!(
        (summary.session_counts.left, summary.session_counts.asked, summary.session_counts.cut),
        (1, 0, 0)
    );
    assert_eq!(stats.notices, [1, 0, 0]);
}

#[test]
fn sends_an_address_if_wanted_and_configured() {
    for to in [Some("redis.example:6379"), None] {
        let backend = Backend::new();
        let mut proxy =
            TestProxy::new(Options { moving_to: to.map(Arc::from), ..Options::default() });
        proxy.commit(backend.addr());
        let (mut client, _upstream) = agreed(&proxy, &backend, OTHER_ADDRESS);
        proxy.drain.request_stop(StopRequest::DrainAtOnce);
        if to.is_some() {
            assert_eq!(moving(&mut client), "$18\r\nredis.example:6379\r\n");
        } else {
            // A client library that did not ask for it would fail on a push without an address.
            assert_eq!(rest(&mut client), b"");
            proxy.wait_for_end(EndReason::Drained);
        }
    }
}

#[test]
fn notifies_clients_when_the_gate_closes_and_opens() {
    let (backend, other) = (Backend::new(), Backend::new());
    let mut proxy = TestProxy::with_target(&backend);
    let (mut client, mut upstream) = agreed(&proxy, &backend, OTHER_ADDRESS);
    // With a reply under way: the push comes after its end.
    client.write_all(b"GET k\r\n").unwrap();
    expect(&mut upstream, b"GET k\r\n");
    upstream.write_all(b"$3\r\na").unwrap();
    expect(&mut client, b"$3\r\na");
    proxy.publisher.hold();
    assert!(is_silent(&mut client));
    upstream.write_all(b"bc\r\n").unwrap();
    expect(&mut client, b"bc\r\n");
    assert_eq!(push(&mut client, 4, "FAILING_OVER"), ":10\r\n$2\r\n[]\r\n");
    proxy.publisher.release();
    assert_eq!(push(&mut client, 3, "FAILED_OVER"), "$2\r\n[]\r\n");
    // Once more, now with a new master: the failover is over when the session is connected there.
    proxy.publisher.hold();
    push(&mut client, 4, "FAILING_OVER");
    client.write_all(b"GET l\r\n").unwrap();
    proxy.commit(other.addr());
    let mut next = other.accept();
    expect(&mut next, array(HELLO.0).as_bytes());
    assert!(is_silent(&mut client));
    next.write_all(HELLO.1.as_bytes()).unwrap();
    answer_proof(&mut next);
    push(&mut client, 3, "FAILED_OVER");
    expect(&mut next, b"GET l\r\n");
    next.write_all(b"$1\r\nv\r\n").unwrap();
    expect(&mut client, b"$1\r\nv\r\n");
    // The agreement was carried, too.
    proxy.publisher.hold();
    push(&mut client, 4, "FAILING_OVER");
    assert_eq!(
        (sent(&proxy, MaintenanceKind::FailingOver), sent(&proxy, MaintenanceKind::FailedOver)),
        (3, 2)
    );
    assert_eq!(proxy.stats().carried, 1);
}

#[test]
fn notifies_clients_that_lost_their_master_while_held() {
    let (backend, other) = (Backend::new(), Backend::new());
    let mut proxy = TestProxy::with_target(&backend);
    let (mut client, upstream) = agreed(&proxy, &backend, SAME_ADDRESS);
    let _closed = backend.close();
    drop(upstream);
    push(&mut client, 4, "FAILING_OVER");
    client.write_all(b"GET k\r\n").unwrap();
    proxy.commit(other.addr());
    let mut next = other.accept();
    expect(&mut next, array(HELLO.0).as_bytes());
    next.write_all(HELLO.1.as_bytes()).unwrap();
    answer_proof(&mut next);
    push(&mut client, 3, "FAILED_OVER");
    expect(&mut next, b"GET k\r\n");
}

#[test]
fn announces_the_end_of_a_failover_before_closing() {
    let (backend, other) = (Backend::new(), Backend::new());
    let mut proxy = TestProxy::with_target(&backend);
    let (mut client, mut upstream) = agreed(&proxy, &backend, SAME_ADDRESS);
    client.write_all(b"INCR k\r\n").unwrap();
    expect(&mut upstream, b"INCR k\r\n");
    proxy.publisher.hold();
    push(&mut client, 4, "FAILING_OVER");
    proxy.commit(other.addr());
    push(&mut client, 3, "FAILED_OVER");
    assert_eq!(rest(&mut client), b"");
    proxy.wait_for_end(EndReason::Fenced);
}

#[test]
fn announces_no_failover_for_a_kick() {
    let backend = Backend::new();
    let proxy = TestProxy::with_target(&backend);
    let (mut client, upstream) = agreed(&proxy, &backend, SAME_ADDRESS);
    drop(upstream);
    // The master is alive: it closed this session on purpose.
    drop(backend.accept().write_all(b"+PONG\r\n"));
    assert_eq!(rest(&mut client), b"");
    proxy.wait_for_end(EndReason::UpstreamClosed);
    assert_eq!(proxy.stats().notices, [0, 0, 0]);
}
