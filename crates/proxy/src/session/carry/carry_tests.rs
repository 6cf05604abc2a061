//! What becomes of a session whose target is gone: carried, held, refused, or ended.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use crate::session::carry::proof_tests::{PING, prove};
use crate::testing::{Backend, TestProxy, expect, is_silent, rest, session};
use crate::{DialFailure, EndReason, Options, Sessions};

const LOADING: &str = "-LOADING No master is known at present. This request was not forwarded and can be tried again.\r\n";

fn impatient() -> Options {
    Options { hold_timeout: Duration::from_millis(300), ..Options::default() }
}

/// Sends a request and plays its answer.
fn say(client: &mut TcpStream, upstream: &mut TcpStream, request: &str, answer: &str) {
    client.write_all(request.as_bytes()).unwrap();
    expect(upstream, request.as_bytes());
    upstream.write_all(answer.as_bytes()).unwrap();
    expect(client, answer.as_bytes());
}

#[test]
fn a_plain_session_goes_on_with_the_new_target_and_hears_nothing_of_it() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut proxy = TestProxy::with_target(&old);
    let (mut client, mut upstream) = session(&proxy, &old);
    proxy.commit(new.addr());
    let mut next = new.accept_carried();
    assert!(is_silent(&mut next) && is_silent(&mut client));
    say(&mut client, &mut next, "GET k\r\n", "$1\r\nv\r\n");
    proxy.wait_for("the count", |stats| stats.carried == 1);
    // And the old one got an end, and nothing else.
    assert!(matches!(std::io::Read::read(&mut upstream, &mut [0; 8]), Ok(0) | Err(_)));
    assert_eq!(proxy.stats().open, 1);
}

#[test]
fn the_state_is_said_again_before_a_request_that_waited() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut proxy = TestProxy::with_target(&old);
    let (mut client, mut upstream) = session(&proxy, &old);
    say(&mut client, &mut upstream, "AUTH me pw\r\n", "+OK\r\n");
    say(&mut client, &mut upstream, "SELECT 4\r\n", "+OK\r\n");
    proxy.publisher.hold();
    client.write_all(b"GET k\r\nGET l\r\n").unwrap();
    proxy.commit(new.addr());
    let mut next = new.accept();
    expect(
        &mut next,
        b"*3\r\n$4\r\nAUTH\r\n$2\r\nme\r\n$2\r\npw\r\n*2\r\n$6\r\nSELECT\r\n$1\r\n4\r\n",
    );
    expect(&mut next, PING);
    assert!(is_silent(&mut next), "requests go only behind the answers");
    next.write_all(b"+OK\r\n+OK\r\n+PONG\r\n").unwrap();
    expect(&mut next, b"GET k\r\nGET l\r\n");
    next.write_all(b"$1\r\na\r\n$1\r\nb\r\n").unwrap();
    expect(&mut client, b"$1\r\na\r\n$1\r\nb\r\n");
    // And once more.
    proxy.commit(old.addr());
    let mut third = old.accept();
    expect(&mut third, b"*3\r\n$4\r\nAUTH\r\n");
}

#[test]
fn who_is_refused_there_gets_an_end_and_no_more() {
    for (answer, reason) in [
        ("-WRONGPASS no\r\n", EndReason::CarryRefused),
        ("+OK\r\n+PONG\r\n+news\r\n", EndReason::CarryRefused),
    ] {
        let (old, new) = (Backend::new(), Backend::new());
        let mut proxy = TestProxy::with_target(&old);
        let (mut client, mut upstream) = session(&proxy, &old);
        say(&mut client, &mut upstream, "AUTH pw\r\n", "+OK\r\n");
        proxy.commit(new.addr());
        new.accept().write_all(answer.as_bytes()).unwrap();
        assert_eq!(rest(&mut client), b"");
        proxy.wait_for_end(reason);
    }
}

#[test]
fn a_target_that_is_not_ready_is_asked_again() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut proxy = TestProxy::with_target(&old);
    let (mut client, mut upstream) = session(&proxy, &old);
    say(&mut client, &mut upstream, "SELECT 4\r\n", "+OK\r\n");
    proxy.commit(new.addr());
    new.accept().write_all(b"-LOADING soon\r\n").unwrap();
    drop(new.accept());
    let mut next = new.accept();
    expect(&mut next, b"*2\r\n$6\r\nSELECT\r\n$1\r\n4\r\n");
    next.write_all(b"+OK\r\n").unwrap();
    prove(&mut next);
    say(&mut client, &mut next, "GET k\r\n", "$1\r\nv\r\n");
}

#[test]
fn who_has_something_in_flight_or_is_pinned_ends() {
    for request in ["INCR k\r\n", "WATCH k\r\n", "MULTI\r\n", "GET half of a requ"] {
        let (old, new) = (Backend::new(), Backend::new());
        let mut proxy = TestProxy::with_target(&old);
        let (mut client, mut upstream) = session(&proxy, &old);
        if request.ends_with('\n') && !request.starts_with("INCR") {
            say(&mut client, &mut upstream, request, "+OK\r\n");
        } else {
            client.write_all(request.as_bytes()).unwrap();
            expect(&mut upstream, request.as_bytes());
        }
        proxy.commit(new.addr());
        assert_eq!(rest(&mut client), b"");
        proxy.wait_for_end(EndReason::Fenced);
        assert!(!new.has_pending_connection(), "{request}");
    }
}

#[test]
fn where_sessions_are_to_be_closed_they_are() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut proxy = TestProxy::new(Options { sessions: Sessions::Close, ..Options::default() });
    proxy.commit(old.addr());
    let (mut client, _upstream) = session(&proxy, &old);
    proxy.commit(new.addr());
    assert_eq!(rest(&mut client), b"");
    proxy.wait_for_end(EndReason::Fenced);
}

#[test]
fn a_target_that_answers_has_ended_the_session_on_purpose() {
    let backend = Backend::new();
    let proxy = TestProxy::with_target(&backend);
    let (mut client, upstream) = session(&proxy, &backend);
    drop(upstream);
    let mut asked = backend.accept();
    expect(&mut asked, b"*1\r\n$4\r\nPING\r\n");
    assert!(is_silent(&mut client), "not before that is known");
    asked.write_all(b"-NOAUTH Authentication required.\r\n").unwrap();
    assert_eq!(rest(&mut client), b"");
    proxy.wait_for_end(EndReason::UpstreamClosed);
}

#[test]
fn a_target_that_does_not_answer_has_died_and_its_session_waits_for_the_next() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut proxy = TestProxy::with_target(&old);
    let (mut client, mut upstream) = session(&proxy, &old);
    say(&mut client, &mut upstream, "SELECT 4\r\n", "+OK\r\n");
    let _closed = old.close();
    drop(upstream);
    proxy
        .wait_for("a dial in vain", |stats| stats.dial_failures[DialFailure::Refused as usize] > 0);
    client.write_all(b"GET k\r\n").unwrap();
    proxy.commit(new.addr());
    let mut next = new.accept();
    expect(&mut next, b"*2\r\n$6\r\nSELECT\r\n$1\r\n4\r\n");
    next.write_all(b"+OK\r\n").unwrap();
    prove(&mut next);
    expect(&mut next, b"GET k\r\n");
    assert_eq!(proxy.stats().held, 0);
}

#[test]
fn at_a_shut_gate_nobody_is_asked_why_a_connection_ended() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut proxy = TestProxy::with_target(&old);
    let (mut client, upstream) = session(&proxy, &old);
    proxy.publisher.hold();
    drop(upstream);
    proxy.wait_for("the hold", |stats| stats.held == 1);
    proxy.commit(new.addr());
    say(&mut client, &mut new.accept_carried(), "GET k\r\n", "$1\r\nv\r\n");
    assert!(!old.has_pending_connection());
}

#[test]
fn a_client_that_leaves_while_it_is_held_is_forgotten_with_its_request() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut proxy = TestProxy::with_target(&old);
    // More than is read of a held client, so that its end stands behind bytes.
    for (round, size) in [(1, 10), (2, 5_000)] {
        let (mut client, upstream) = session(&proxy, &old);
        proxy.publisher.hold();
        drop(upstream);
        proxy.wait_for("the hold", |stats| stats.held == 1);
        client.write_all(&b"INCR k\r\n".repeat(size)).unwrap();
        drop(client);
        proxy.wait_for("the end", |stats| {
            stats.closed_for(EndReason::HoldAbandoned) == round && stats.open == 0
        });
        proxy.commit(new.addr());
        assert!(!new.has_pending_connection());
        proxy.commit(old.addr());
    }
}

#[test]
fn at_the_end_of_a_hold_each_request_gets_an_error_and_silence_gets_none() {
    for (requests, answers) in
        [(&b""[..], 0), (b"GET k\r\n", 1), (b"*1\r\n$4\r\nPING\r\nMULTI\r\nEXEC\r\nSET k", 3)]
    {
        let backend = Backend::new();
        // What is asked is there before the time begins to run: from the first moment, and at a
        // gate where nobody is held yet.
        let (mut proxy, mut newcomer) = TestProxy::with_waiting_client(impatient(), None, requests);
        assert_eq!(String::from_utf8(rest(&mut newcomer)).unwrap(), LOADING.repeat(answers));
        proxy.commit(backend.addr());
        let (mut client, upstream) = session(&proxy, &backend);
        proxy.publisher.hold();
        client.write_all(requests).unwrap();
        drop(upstream);
        assert_eq!(String::from_utf8(rest(&mut client)).unwrap(), LOADING.repeat(answers));
        proxy.wait_for("both ends", |stats| stats.closed_for(EndReason::HoldTimeout) == 2);
    }
}

#[test]
fn requests_that_wait_at_the_gate_for_too_long_are_refused_though_the_target_lives() {
    let backend = Backend::new();
    let mut proxy = TestProxy::new(impatient());
    proxy.commit(backend.addr());
    let (mut idle, _idle) = session(&proxy, &backend);
    let (mut client, _upstream) = session(&proxy, &backend);
    let (mut other, mut transaction) = session(&proxy, &backend);
    let (mut busy, mut asked) = session(&proxy, &backend);
    say(&mut other, &mut transaction, "MULTI\r\n", "+OK\r\n");
    busy.write_all(b"INCR k\r\n").unwrap();
    expect(&mut asked, b"INCR k\r\n");
    proxy.publisher.hold();
    client.write_all(b"GET k\r\nGET l\r\n").unwrap();
    other.write_all(b"GET k\r\nEXEC\r\n").unwrap();
    busy.write_all(b"GET k\r\n").unwrap();
    assert_eq!(String::from_utf8(rest(&mut client)).unwrap(), LOADING.repeat(2));
    let aborted =
        format!("{LOADING}-EXECABORT Transaction discarded because of: {}", &LOADING[1..]);
    assert_eq!(String::from_utf8(rest(&mut other)).unwrap(), aborted);
    // What may have run is not answered.
    assert_eq!(rest(&mut busy), b"");
    assert_eq!(rest(&mut transaction), b"");
    proxy.publisher.release();
    assert!(is_silent(&mut idle), "who has nothing waiting waits for nothing");
    proxy.wait_for("the three ends", |stats| stats.open == 1);
}

#[test]
fn only_so_many_are_held() {
    let backend = Backend::new();
    let mut proxy = TestProxy::new(Options { max_held: 1, ..Options::default() });
    proxy.commit(backend.addr());
    let (_first, one) = session(&proxy, &backend);
    let (mut second, two) = session(&proxy, &backend);
    proxy.publisher.hold();
    drop(one);
    proxy.wait_for("the hold", |stats| stats.held == 1);
    second.write_all(b"GET k\r\n").unwrap();
    drop(two);
    assert_eq!(String::from_utf8(rest(&mut second)).unwrap(), LOADING);
    proxy.wait_for_end(EndReason::HoldFull);
}

#[test]
fn a_carried_session_that_asks_about_its_writes_gets_an_end_and_no_answer() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut proxy = TestProxy::with_target(&old);
    let (mut client, mut upstream) = session(&proxy, &old);
    say(&mut client, &mut upstream, "INCR k\r\n", ":1\r\n");
    proxy.commit(new.addr());
    let mut next = new.accept_carried();
    proxy.wait_for("the carry", |stats| stats.carried == 1);
    client.write_all(b"WAIT 1 100\r\n").unwrap();
    // It may answer at once, for on this connection nothing was written.
    drop(next.write_all(b":1\r\n"));
    assert_eq!(rest(&mut client), b"");
    proxy.wait_for_end(EndReason::StateLost);
}

#[test]
fn many_come_over_and_never_too_many_at_a_time() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut proxy = TestProxy::with_target(&old);
    let mut clients: Vec<(TcpStream, TcpStream)> =
        (0..200).map(|_| session(&proxy, &old)).collect();
    for (client, upstream) in &mut clients {
        say(client, upstream, "SELECT 1\r\n", "+OK\r\n");
    }
    proxy.commit(new.addr());
    // Idle sessions take half of the turns, and none is given back before an answer.
    let mut over: Vec<TcpStream> = (0..32).map(|_| new.accept()).collect();
    assert!(!new.has_pending_connection());
    while over.len() < clients.len() {
        let first = over.len() - 32;
        over[first].write_all(b"+OK\r\n+PONG\r\n").unwrap();
        over.push(new.accept());
    }
    let last = over.len() - 32;
    over[last..].iter_mut().for_each(|upstream| upstream.write_all(b"+OK\r\n+PONG\r\n").unwrap());
    proxy.wait_for("all of them", |stats| stats.carried == 200);
}
