//! What clients are told of maintenance, from socket to socket: who gets which push when, and what
//! becomes of them then.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;

use drain::StopRequest;

use crate::session::proof_tests::prove;
use crate::testing::{Backend, House, expect, is_silent, rest};
use crate::{EndReason, MaintenanceKind, Options};

const HERE: &str = "CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type none\r\n";
const THERE: &str = "CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type internal-ip\r\n";
const UNKNOWN: &str = "-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP.\r\n";
const HELLO: (&str, &str) = ("HELLO 3\r\n", "%1\r\n+proto\r\n:3\r\n");

fn array(inline: &str) -> String {
    let words: Vec<&str> = inline.split_whitespace().collect();
    let words_on_the_wire: String =
        words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    format!("*{}\r\n{words_on_the_wire}", words.len())
}

/// A client that has spoken RESP3 and had its handshake, which the server refused, and its server.
fn agreed(house: &House, backend: &Backend, handshake: &str) -> (TcpStream, TcpStream) {
    let mut client = house.client();
    let mut upstream = backend.accept();
    for (request, answer, heard) in [(HELLO.0, HELLO.1, HELLO.1), (handshake, UNKNOWN, "+OK\r\n")] {
        client.write_all(array(request).as_bytes()).unwrap();
        expect(&mut upstream, array(request).as_bytes());
        upstream.write_all(answer.as_bytes()).unwrap();
        expect(&mut client, heard.as_bytes());
    }
    (client, upstream)
}

/// Reads a `MOVING` and returns the address in it as it is sent. The seconds are ten unless the
/// test itself was held up for long.
#[track_caller]
fn moving(client: &mut TcpStream) -> String {
    let all = push(client, 4, "MOVING");
    let (seconds, to) = all.split_once("\r\n").unwrap();
    assert!((1..=10).contains(&seconds[1..].parse::<u64>().unwrap()), "{all:?}");
    to.to_owned()
}

/// Reads one push and returns what stands behind its number.
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

fn told(house: &House, kind: MaintenanceKind) -> u64 {
    house.stats().notices[kind as usize]
}

#[test]
fn only_resp3_clients_are_answered_and_only_if_it_is_wanted() {
    for (hello, wanted) in [(false, true), (true, false)] {
        let backend = Backend::new();
        let mut house = House::new(Options { maintenance_push: wanted, ..Options::default() });
        house.commit(backend.addr());
        let (mut client, mut upstream) = (house.client(), backend.accept());
        if hello {
            client.write_all(HELLO.0.as_bytes()).unwrap();
            expect(&mut upstream, HELLO.0.as_bytes());
            upstream.write_all(HELLO.1.as_bytes()).unwrap();
            expect(&mut client, HELLO.1.as_bytes());
        }
        client.write_all(array(HERE).as_bytes()).unwrap();
        expect(&mut upstream, array(HERE).as_bytes());
        upstream.write_all(UNKNOWN.as_bytes()).unwrap();
        expect(&mut client, UNKNOWN.as_bytes());
        house.points.hold();
        assert_eq!((house.stats().maintenance_handshakes, is_silent(&mut client)), (0, true));
    }
}

#[test]
fn in_a_drain_a_client_is_told_to_move_and_has_its_time_for_that() {
    let backend = Backend::new();
    let house = House::towards(&backend);
    let (mut client, mut upstream) = agreed(&house, &backend, HERE);
    house.drain.request_stop(StopRequest::DrainAtOnce);
    assert_eq!(moving(&mut client), "_\r\n");
    // It is served until it goes.
    for _ in 0..3 {
        client.write_all(b"GET k\r\n").unwrap();
        expect(&mut upstream, b"GET k\r\n");
        upstream.write_all(b"$1\r\nv\r\n").unwrap();
        expect(&mut client, b"$1\r\nv\r\n");
    }
    drop(client);
    assert_eq!(rest(&mut upstream), b"");
    drop(upstream);
    house.ended(EndReason::ClientClosed);
    let (summary, stats) = house.end(StopRequest::DrainAtOnce);
    assert_eq!(
        (summary.session_counts.left, summary.session_counts.asked, summary.session_counts.cut),
        (1, 0, 0)
    );
    assert_eq!(stats.notices, [1, 0, 0]);
}

#[test]
fn who_wants_an_address_is_told_one_if_there_is_one_to_tell() {
    for to in [Some("redis.example:6379"), None] {
        let backend = Backend::new();
        let mut house = House::new(Options { moving_to: to.map(Arc::from), ..Options::default() });
        house.commit(backend.addr());
        let (mut client, _upstream) = agreed(&house, &backend, THERE);
        house.drain.request_stop(StopRequest::DrainAtOnce);
        if to.is_some() {
            assert_eq!(moving(&mut client), "$18\r\nredis.example:6379\r\n");
        } else {
            // A client library that did not ask for that would break down at a word without an
            // address.
            assert_eq!(rest(&mut client), b"");
            house.ended(EndReason::Drained);
        }
    }
}

#[test]
fn the_gate_is_told_of_when_it_shuts_and_when_it_opens() {
    let (backend, other) = (Backend::new(), Backend::new());
    let mut house = House::towards(&backend);
    let (mut client, mut upstream) = agreed(&house, &backend, THERE);
    // With a reply under way: behind its end.
    client.write_all(b"GET k\r\n").unwrap();
    expect(&mut upstream, b"GET k\r\n");
    upstream.write_all(b"$3\r\na").unwrap();
    expect(&mut client, b"$3\r\na");
    house.points.hold();
    assert!(is_silent(&mut client));
    upstream.write_all(b"bc\r\n").unwrap();
    expect(&mut client, b"bc\r\n");
    assert_eq!(push(&mut client, 4, "FAILING_OVER"), ":10\r\n$2\r\n[]\r\n");
    house.points.release();
    assert_eq!(push(&mut client, 3, "FAILED_OVER"), "$2\r\n[]\r\n");
    // Once more, and now there is another master: it is over when the session has arrived there.
    house.points.hold();
    push(&mut client, 4, "FAILING_OVER");
    client.write_all(b"GET l\r\n").unwrap();
    house.commit(other.addr());
    let mut next = other.accept();
    expect(&mut next, array(HELLO.0).as_bytes());
    assert!(is_silent(&mut client));
    next.write_all(HELLO.1.as_bytes()).unwrap();
    prove(&mut next);
    push(&mut client, 3, "FAILED_OVER");
    expect(&mut next, b"GET l\r\n");
    next.write_all(b"$1\r\nv\r\n").unwrap();
    expect(&mut client, b"$1\r\nv\r\n");
    // The agreement went along.
    house.points.hold();
    push(&mut client, 4, "FAILING_OVER");
    assert_eq!(
        (told(&house, MaintenanceKind::FailingOver), told(&house, MaintenanceKind::FailedOver)),
        (3, 2)
    );
    assert_eq!(house.stats().carried, 1);
}

#[test]
fn who_lost_its_master_while_the_gate_is_shut_is_told_so_while_it_waits() {
    let (backend, other) = (Backend::new(), Backend::new());
    let mut house = House::towards(&backend);
    let (mut client, upstream) = agreed(&house, &backend, HERE);
    let _closed = backend.close();
    drop(upstream);
    push(&mut client, 4, "FAILING_OVER");
    client.write_all(b"GET k\r\n").unwrap();
    house.commit(other.addr());
    let mut next = other.accept();
    expect(&mut next, array(HELLO.0).as_bytes());
    next.write_all(HELLO.1.as_bytes()).unwrap();
    prove(&mut next);
    push(&mut client, 3, "FAILED_OVER");
    expect(&mut next, b"GET k\r\n");
}

#[test]
fn who_cannot_be_carried_over_is_told_that_it_is_over_before_the_end() {
    let (backend, other) = (Backend::new(), Backend::new());
    let mut house = House::towards(&backend);
    let (mut client, mut upstream) = agreed(&house, &backend, HERE);
    client.write_all(b"INCR k\r\n").unwrap();
    expect(&mut upstream, b"INCR k\r\n");
    house.points.hold();
    push(&mut client, 4, "FAILING_OVER");
    house.commit(other.addr());
    push(&mut client, 3, "FAILED_OVER");
    assert_eq!(rest(&mut client), b"");
    house.ended(EndReason::Fenced);
}

#[test]
fn a_kick_is_not_told_of() {
    let backend = Backend::new();
    let house = House::towards(&backend);
    let (mut client, upstream) = agreed(&house, &backend, HERE);
    drop(upstream);
    // The master lives: it ended this session on purpose.
    drop(backend.accept().write_all(b"+PONG\r\n"));
    assert_eq!(rest(&mut client), b"");
    house.ended(EndReason::UpstreamClosed);
    assert_eq!(house.stats().notices, [0, 0, 0]);
}
