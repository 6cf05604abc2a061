//! Sessions whose target is lost: each is carried, held, refused or closed.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use drain::StopRequest;

use crate::session::carry::proof_tests::{PING, answer_proof};
use crate::testing::{
    Backend, SOON, TestProxy, expect, is_silent, reset, rest, rest_or_reset, session,
};
use crate::{DialFailure, EndReason, Options, Sessions};

const LOADING: &str = "-LOADING No master can take requests at present. \
     This request was not forwarded and can be tried again.\r\n";

const NOT_CARRIED: &str = "-LOADING This connection cannot continue on another server. \
     This request was not forwarded and can be tried again.\r\n";

fn short_hold() -> Options {
    Options { hold_timeout: Duration::from_millis(300), ..Options::default() }
}

/// Sends a request and plays its reply.
fn exchange(client: &mut TcpStream, upstream: &mut TcpStream, request: &str, answer: &str) {
    client.write_all(request.as_bytes()).unwrap();
    expect(upstream, request.as_bytes());
    upstream.write_all(answer.as_bytes()).unwrap();
    expect(client, answer.as_bytes());
}

#[test]
fn carries_a_session_without_state_unnoticed() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut proxy = TestProxy::with_target(&old);
    let (mut client, mut upstream) = session(&proxy, &old);
    proxy.commit(new.addr());
    let mut next = new.accept_carried();
    assert!(is_silent(&mut next) && is_silent(&mut client));
    exchange(&mut client, &mut next, "GET k\r\n", "$1\r\nv\r\n");
    proxy.wait_for("the count", |stats| stats.carried == 1);
    // The former target got an end, and nothing else.
    assert!(matches!(upstream.read(&mut [0; 8]), Ok(0) | Err(_)));
    assert_eq!(proxy.stats().open(), 1);
}

#[test]
fn replays_state_before_waiting_requests() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut proxy = TestProxy::with_target(&old);
    let (mut client, mut upstream) = session(&proxy, &old);
    exchange(&mut client, &mut upstream, "AUTH me pw\r\n", "+OK\r\n");
    exchange(&mut client, &mut upstream, "SELECT 4\r\n", "+OK\r\n");
    proxy.publisher.hold();
    client.write_all(b"GET k\r\nGET l\r\n").unwrap();
    proxy.commit(new.addr());
    let mut next = new.accept();
    expect(
        &mut next,
        b"*3\r\n$4\r\nAUTH\r\n$2\r\nme\r\n$2\r\npw\r\n*2\r\n$6\r\nSELECT\r\n$1\r\n4\r\n",
    );
    expect(&mut next, PING);
    assert!(is_silent(&mut next), "requests are sent only after the answers");
    next.write_all(b"+OK\r\n+OK\r\n+PONG\r\n").unwrap();
    expect(&mut next, b"GET k\r\nGET l\r\n");
    next.write_all(b"$1\r\na\r\n$1\r\nb\r\n").unwrap();
    expect(&mut client, b"$1\r\na\r\n$1\r\nb\r\n");
    // It is carried a second time.
    proxy.commit(old.addr());
    let mut third = old.accept();
    expect(&mut third, b"*3\r\n$4\r\nAUTH\r\n");
}

#[test]
fn closes_sessions_whose_state_is_refused() {
    for (answer, reason) in [
        ("-WRONGPASS no\r\n", EndReason::CarryRefused),
        ("+OK\r\n+PONG\r\n+news\r\n", EndReason::CarryRefused),
    ] {
        let (old, new) = (Backend::new(), Backend::new());
        let mut proxy = TestProxy::with_target(&old);
        let (mut client, mut upstream) = session(&proxy, &old);
        exchange(&mut client, &mut upstream, "AUTH pw\r\n", "+OK\r\n");
        proxy.commit(new.addr());
        new.accept().write_all(answer.as_bytes()).unwrap();
        assert_eq!(rest(&mut client), b"");
        proxy.wait_for_end(reason);
    }
}

#[test]
fn retries_a_target_that_is_not_ready() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut proxy = TestProxy::with_target(&old);
    let (mut client, mut upstream) = session(&proxy, &old);
    exchange(&mut client, &mut upstream, "SELECT 4\r\n", "+OK\r\n");
    proxy.commit(new.addr());
    new.accept().write_all(b"-LOADING soon\r\n").unwrap();
    drop(new.accept());
    let mut next = new.accept();
    expect(&mut next, b"*2\r\n$6\r\nSELECT\r\n$1\r\n4\r\n");
    next.write_all(b"+OK\r\n").unwrap();
    answer_proof(&mut next);
    exchange(&mut client, &mut next, "GET k\r\n", "$1\r\nv\r\n");
}

#[test]
fn closes_sessions_in_flight_or_pinned_on_switch() {
    for request in ["INCR k\r\n", "WATCH k\r\n", "MULTI\r\n", "*2\r\n$3\r\nGET\r\n$5\r\nha"] {
        let (old, new) = (Backend::new(), Backend::new());
        let mut proxy = TestProxy::with_target(&old);
        let (mut client, mut upstream) = session(&proxy, &old);
        if request.ends_with('\n') && !request.starts_with("INCR") {
            exchange(&mut client, &mut upstream, request, "+OK\r\n");
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
fn closes_sessions_where_carrying_is_disabled() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut proxy = TestProxy::new(Options { sessions: Sessions::Close, ..Options::default() });
    proxy.commit(old.addr());
    let (mut client, _upstream) = session(&proxy, &old);
    proxy.commit(new.addr());
    assert_eq!(rest(&mut client), b"");
    proxy.wait_for_end(EndReason::Fenced);
}

#[test]
fn closes_sessions_that_a_live_target_closed() {
    let backend = Backend::new();
    let proxy = TestProxy::with_target(&backend);
    let (mut client, upstream) = session(&proxy, &backend);
    drop(upstream);
    let mut asked = backend.accept();
    expect(&mut asked, b"*1\r\n$4\r\nPING\r\n");
    assert!(is_silent(&mut client), "closed before the cause is known");
    asked.write_all(b"-NOAUTH Authentication required.\r\n").unwrap();
    assert_eq!(rest(&mut client), b"");
    proxy.wait_for_end(EndReason::UpstreamClosed);
}

/// A server ends idle connections in order: something between has forgotten this one. If that
/// happens again at once, the session ends.
#[test]
fn carries_an_idle_session_whose_connection_was_reset() {
    let backend = Backend::new();
    let proxy = TestProxy::with_target(&backend);
    let (mut client, mut upstream) = session(&proxy, &backend);
    exchange(&mut client, &mut upstream, "SELECT 4\r\n", "+OK\r\n");
    reset(upstream);
    let mut next = backend.accept();
    expect(&mut next, b"*2\r\n$6\r\nSELECT\r\n$1\r\n4\r\n");
    next.write_all(b"+OK\r\n").unwrap();
    answer_proof(&mut next);
    exchange(&mut client, &mut next, "GET k\r\n", "$1\r\nv\r\n");
    reset(next);
    let mut asked = backend.accept();
    expect(&mut asked, PING);
    asked.write_all(b"+PONG\r\n").unwrap();
    assert_eq!(rest(&mut client), b"");
    proxy.wait_for_end(EndReason::UpstreamReset);
    assert_eq!(proxy.stats().carried, 1);
}

#[test]
fn holds_sessions_of_a_dead_target_for_the_next() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut proxy = TestProxy::with_target(&old);
    let (mut client, mut upstream) = session(&proxy, &old);
    exchange(&mut client, &mut upstream, "SELECT 4\r\n", "+OK\r\n");
    let _closed = old.close();
    drop(upstream);
    proxy.wait_for("a failed dial", |stats| stats.dial_failures[DialFailure::Refused as usize] > 0);
    client.write_all(b"GET k\r\n").unwrap();
    proxy.commit(new.addr());
    let mut next = new.accept();
    expect(&mut next, b"*2\r\n$6\r\nSELECT\r\n$1\r\n4\r\n");
    next.write_all(b"+OK\r\n").unwrap();
    answer_proof(&mut next);
    expect(&mut next, b"GET k\r\n");
    assert_eq!(proxy.stats().held, 0);
}

#[test]
fn asks_no_target_about_a_loss_at_a_closed_gate() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut proxy = TestProxy::with_target(&old);
    let (mut client, upstream) = session(&proxy, &old);
    proxy.publisher.hold();
    drop(upstream);
    proxy.wait_for("the hold", |stats| stats.held == 1);
    proxy.commit(new.addr());
    exchange(&mut client, &mut new.accept_carried(), "GET k\r\n", "$1\r\nv\r\n");
    assert!(!old.has_pending_connection());
}

#[test]
fn drops_requests_of_carried_clients_that_leave() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut proxy = TestProxy::with_target(&old);
    // The second is more than is read of a held client, so its end follows unread bytes.
    for (round, size) in [(1, 10), (2, 5_000)] {
        let (mut client, upstream) = session(&proxy, &old);
        proxy.publisher.hold();
        drop(upstream);
        proxy.wait_for("the hold", |stats| stats.held == 1);
        client.write_all(&b"INCR k\r\n".repeat(size)).unwrap();
        drop(client);
        proxy.wait_for("the end", |stats| {
            stats.closed_for(EndReason::HoldAbandoned) == round && stats.open() == 0
        });
        proxy.commit(new.addr());
        assert!(!new.has_pending_connection());
        proxy.commit(old.addr());
    }
}

#[test]
fn refuses_each_held_request_at_the_end_of_a_hold() {
    for (requests, answers) in
        [(&b""[..], 0), (b"GET k\r\n", 1), (b"*1\r\n$4\r\nPING\r\nMULTI\r\nEXEC\r\nSET k", 3)]
    {
        let backend = Backend::new();
        // The requests are there before the hold begins: with no target from the start, and at a
        // gate where no other client is held.
        let (mut proxy, mut newcomer) =
            TestProxy::with_waiting_client(short_hold(), None, requests);
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
fn refuses_requests_that_wait_too_long_at_the_gate() {
    let backend = Backend::new();
    let mut proxy = TestProxy::new(short_hold());
    proxy.commit(backend.addr());
    let (mut idle, _idle) = session(&proxy, &backend);
    let (mut client, _upstream) = session(&proxy, &backend);
    let (mut other, mut transaction) = session(&proxy, &backend);
    let (mut busy, mut asked) = session(&proxy, &backend);
    exchange(&mut other, &mut transaction, "MULTI\r\n", "+OK\r\n");
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
    // A request that may have been executed gets no error reply.
    assert_eq!(rest(&mut busy), b"");
    assert_eq!(rest(&mut transaction), b"");
    proxy.publisher.release();
    assert!(is_silent(&mut idle), "an idle client was closed");
    proxy.wait_for("the three ends", |stats| stats.open() == 1);
}

/// The state that the request puts a session into, with the reply.
type State = (&'static str, &'static str);

const WATCH: State = ("WATCH k\r\n", "+OK\r\n");
const SUBSCRIBED: State = ("SUBSCRIBE c\r\n", "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");

/// A session of `proxy` in that state, with requests that wait at the closed gate.
fn held(
    proxy: &mut TestProxy,
    backend: &Backend,
    state: State,
    requests: &str,
) -> (TcpStream, TcpStream) {
    proxy.commit(backend.addr());
    let (mut client, mut upstream) = session(proxy, backend);
    exchange(&mut client, &mut upstream, state.0, state.1);
    proxy.publisher.hold();
    client.write_all(requests.as_bytes()).unwrap();
    (client, upstream)
}

/// Nothing of them was forwarded, also if only the former target had the state of the session.
#[test]
fn refuses_held_requests_of_sessions_that_are_not_carried() {
    let states = [
        WATCH,
        SUBSCRIBED,
        ("CLIENT ID\r\n", ":7\r\n"),
        ("SCAN 0\r\n", "*2\r\n$2\r\n17\r\n*0\r\n"),
        ("SCRIPT LOAD x\r\n", "$1\r\nx\r\n"),
        ("NOSUCH\r\n", "+OK\r\n"),
        ("CLIENT TRACKING ON\r\n", "+OK\r\n"),
    ];
    for (state, is_closed) in states.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let (old, new) = (Backend::new(), Backend::new());
        let mut proxy = TestProxy::new(Options::default());
        let (mut client, upstream) = held(&mut proxy, &old, state, "INCR k\r\nPING\r\n");
        let reason = if is_closed {
            drop(upstream);
            EndReason::UpstreamClosed
        } else {
            proxy.commit(new.addr());
            EndReason::Fenced
        };
        let replies = String::from_utf8(rest(&mut client)).unwrap();
        assert_eq!(replies, NOT_CARRIED.repeat(2), "{state:?}");
        proxy.wait_for_end(reason);
        assert!(!new.has_pending_connection());
    }
}

#[test]
fn refuses_held_requests_in_a_transaction_or_without_carrying() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut proxy = TestProxy::new(Options::default());
    let (mut queues, _) = held(&mut proxy, &old, ("MULTI\r\n", "+OK\r\n"), "GET k\r\nEXEC\r\n");
    proxy.commit(new.addr());
    let aborted =
        format!("{NOT_CARRIED}-EXECABORT Transaction discarded because of: {}", &NOT_CARRIED[1..]);
    assert_eq!(String::from_utf8(rest(&mut queues)).unwrap(), aborted);

    let mut proxy = TestProxy::new(Options { sessions: Sessions::Close, ..Options::default() });
    let (mut closed, _) = held(&mut proxy, &old, ("PING\r\n", "+PONG\r\n"), "GET k\r\n");
    proxy.commit(new.addr());
    assert_eq!(String::from_utf8(rest(&mut closed)).unwrap(), NOT_CARRIED);

    // Its user has another password on the new master.
    let mut proxy = TestProxy::new(Options::default());
    let (mut unknown, _) = held(&mut proxy, &old, ("AUTH pw\r\n", "+OK\r\n"), "GET k\r\n");
    proxy.commit(new.addr());
    new.accept().write_all(b"-WRONGPASS no\r\n").unwrap();
    assert_eq!(String::from_utf8(rest(&mut unknown)).unwrap(), NOT_CARRIED);
    proxy.wait_for_end(EndReason::CarryRefused);
}

/// A request after one with an unknown outcome gets no error: it would be taken for the reply to
/// that one.
#[test]
fn refuses_nothing_after_a_request_in_flight() {
    let (old, new) = (Backend::new(), Backend::new());
    for first in ["INCR k\r\n", "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$9\r\nab"] {
        for state in [WATCH, ("MULTI\r\n", "+OK\r\n")] {
            let mut proxy = TestProxy::with_target(&old);
            let (mut client, mut upstream) = session(&proxy, &old);
            exchange(&mut client, &mut upstream, state.0, state.1);
            client.write_all(first.as_bytes()).unwrap();
            expect(&mut upstream, first.as_bytes());
            proxy.publisher.hold();
            client.write_all(b"\r\nPING\r\n\r\nPING\r\n").unwrap();
            proxy.commit(new.addr());
            assert_eq!(String::from_utf8(rest(&mut client)).unwrap(), "", "{first} {state:?}");
        }
    }
}

#[test]
fn refuses_as_many_requests_as_expect_a_reply() {
    const OFF: State = ("CLIENT REPLY OFF\r\n", "");
    const SKIP: State = ("CLIENT REPLY SKIP\r\n", "");
    for (state, requests, replies) in [
        (SUBSCRIBED, "PING\r\nUNSUBSCRIBE c\r\n", 2),
        (SUBSCRIBED, "", 0),
        (OFF, "INCR k\r\nINCR k\r\n", 0),
        (SKIP, "INCR k\r\n", 0),
    ] {
        let backend = Backend::new();
        let mut proxy = TestProxy::new(short_hold());
        let (mut client, _upstream) = held(&mut proxy, &backend, state, requests);
        if requests.is_empty() {
            proxy.stop(StopRequest::Cut);
            assert_eq!(rest_or_reset(&mut client), b"");
            continue;
        }
        let refused = String::from_utf8(rest(&mut client)).unwrap();
        assert_eq!(refused, LOADING.repeat(replies), "{state:?}");
        // The cut of a drain refuses as many.
        let mut proxy = TestProxy::new(Options::default());
        let (mut client, _upstream) = held(&mut proxy, &backend, state, requests);
        proxy.wait_for("the hold", |stats| stats.held == 1);
        proxy.stop(StopRequest::Cut);
        let refused = String::from_utf8(rest_or_reset(&mut client)).unwrap();
        assert_eq!(refused, LOADING.repeat(replies), "{state:?}");
    }
}

#[test]
fn counts_the_wait_at_the_gate_when_the_target_is_lost() {
    let hold_timeout = Duration::from_secs(2);
    let backend = Backend::new();
    let mut proxy = TestProxy::new(Options { hold_timeout, ..Options::default() });
    proxy.commit(backend.addr());
    let (mut client, _upstream) = session(&proxy, &backend);
    proxy.publisher.hold();
    client.write_all(b"GET k\r\n").unwrap();
    let begin = Instant::now();
    client.set_read_timeout(Some(hold_timeout * 3 / 4)).unwrap();
    let read = client.read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(read, Err(ErrorKind::WouldBlock), "it is not held");
    client.set_read_timeout(Some(SOON)).unwrap();
    // No new master was verified in time.
    proxy.publisher.clear();
    assert_eq!(String::from_utf8(rest(&mut client)).unwrap(), LOADING);
    let waited = begin.elapsed();
    assert!(waited >= hold_timeout * 3 / 4 && waited < hold_timeout * 3 / 2, "{waited:?}");
    proxy.wait_for_end(EndReason::HoldTimeout);
}

#[test]
fn closes_carried_sessions_that_send_wait() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut proxy = TestProxy::with_target(&old);
    let (mut client, mut upstream) = session(&proxy, &old);
    exchange(&mut client, &mut upstream, "INCR k\r\n", ":1\r\n");
    proxy.commit(new.addr());
    let mut next = new.accept_carried();
    proxy.wait_for("the carry", |stats| stats.carried == 1);
    client.write_all(b"WAIT 1 100\r\n").unwrap();
    // A server may reply at once, because nothing was written on this connection.
    drop(next.write_all(b":1\r\n"));
    assert_eq!(rest(&mut client), b"");
    proxy.wait_for_end(EndReason::StateLost);
}

#[test]
fn bounds_the_number_of_sessions_carried_at_a_time() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut proxy = TestProxy::with_target(&old);
    let mut clients: Vec<(TcpStream, TcpStream)> =
        (0..200).map(|_| session(&proxy, &old)).collect();
    for (client, upstream) in &mut clients {
        exchange(client, upstream, "SELECT 1\r\n", "+OK\r\n");
    }
    proxy.commit(new.addr());
    // Idle sessions get half of the permits, and none is returned before an answer.
    let mut carried: Vec<TcpStream> = (0..32).map(|_| new.accept()).collect();
    assert!(!new.has_pending_connection());
    while carried.len() < clients.len() {
        let first = carried.len() - 32;
        carried[first].write_all(b"+OK\r\n+PONG\r\n").unwrap();
        carried.push(new.accept());
    }
    let last = carried.len() - 32;
    carried[last..]
        .iter_mut()
        .for_each(|upstream| upstream.write_all(b"+OK\r\n+PONG\r\n").unwrap());
    proxy.wait_for("all sessions", |stats| stats.carried == 200);
}
