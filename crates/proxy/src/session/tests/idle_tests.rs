//! Which clients are closed for their silence, and which are not.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::testing::{Backend, TestProxy, expect, rest, rest_or_reset, session};
use crate::{EndReason, Options};

const SHORT: Duration = Duration::from_millis(100);
/// Several times as long, so that whatever must not happen after the short time would have
/// happened.
const LONG: Duration = Duration::from_millis(400);

/// Shortens the first-byte timeout. Called when all sessions are in place: however long that takes,
/// no client is silent meanwhile.
fn shorten_first_byte_timeout(proxy: &TestProxy) {
    proxy.running().tune(0, Options { first_byte_timeout: SHORT, ..Options::default() });
}

/// Shortens the idle timeout. Called at the same point.
fn shorten_idle_timeout(proxy: &TestProxy) {
    proxy.running().tune(0, Options { client_idle_timeout: SHORT, ..Options::default() });
}

/// Nothing comes from this stream for a long while, not even an end.
#[track_caller]
fn stays_silent(stream: &mut TcpStream) {
    let before = stream.read_timeout().unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let read = stream.read(&mut [0; 64]);
    assert!(matches!(&read, Err(error) if error.kind() == io::ErrorKind::WouldBlock), "{read:?}");
    stream.set_read_timeout(before).unwrap();
}

#[test]
fn closes_clients_that_send_nothing_and_keeps_those_that_asked() {
    let backend = Backend::new();
    let options = Options { first_byte_timeout: SHORT, ..Options::default() };
    let (proxy, mut asking) = TestProxy::with_waiting_client(options, Some(&backend), b"PING\r\n");
    let mut asking_upstream = backend.accept();
    expect(&mut asking_upstream, b"PING\r\n");
    asking_upstream.write_all(b"+PONG\r\n").unwrap();
    expect(&mut asking, b"+PONG\r\n");
    let mut silent = proxy.client();
    assert_eq!(rest(&mut silent), b"");
    proxy.wait_for_end(EndReason::FirstByteTimeout);
    stays_silent(&mut asking);
    asking.write_all(b"PING\r\n").unwrap();
    expect(&mut asking_upstream, b"PING\r\n");
}

#[test]
fn closes_clients_that_stop_within_a_request() {
    // The beginning of a request whose command is not known yet is not forwarded.
    let forwarded: &[&[u8]] = &[b"*2\r\n$3\r\nGET\r\n$1\r\n", b"\r\n"];
    for part in [&b"*"[..], b"*2\r\n$3\r\nGET\r\n$1\r\n", b"GET k", b"\r\n"] {
        let backend = Backend::new();
        let options = Options { first_byte_timeout: SHORT, ..Options::default() };
        let (proxy, mut client) = TestProxy::with_waiting_client(options, Some(&backend), part);
        let mut upstream = backend.accept();
        if forwarded.contains(&part) {
            expect(&mut upstream, part);
        }
        assert_eq!(rest(&mut client), b"");
        assert_eq!(rest_or_reset(&mut upstream), b"");
        proxy.wait_for_end(EndReason::FirstByteTimeout);
    }
    for part in [&b"*"[..], b"*2\r\n$3\r\nGET\r\n$1\r\n", b"GET k"] {
        let backend = Backend::new();
        let proxy = TestProxy::with_target(&backend);
        let (mut client, mut upstream) = session(&proxy, &backend);
        client.write_all(part).unwrap();
        if forwarded.contains(&part) {
            expect(&mut upstream, part);
        }
        shorten_idle_timeout(&proxy);
        assert_eq!(rest(&mut client), b"");
        proxy.wait_for_end(EndReason::IdleTimeout);
    }
}

#[test]
fn keeps_clients_whose_request_waits_for_the_server() {
    const VALUE: usize = 64 * 1024 * 1024;
    let backend = Backend::new();
    let proxy = TestProxy::with_target(&backend);
    let (mut client, mut upstream) = session(&proxy, &backend);
    let mut writing = client.try_clone().unwrap();
    let head = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${VALUE}\r\n");
    let request = [head.as_bytes(), &vec![b'x'; VALUE], b"\r\n"].concat();
    let len = request.len();
    let writer = std::thread::spawn(move || writing.write_all(&request).unwrap());
    expect(&mut upstream, head.as_bytes());
    shorten_idle_timeout(&proxy);
    // The server reads nothing, so the client is not read either.
    stays_silent(&mut client);
    let mut left = len - head.len();
    let mut buffer = vec![0; 1024 * 1024];
    while left > 0 {
        left -= upstream.read(&mut buffer).unwrap();
    }
    writer.join().unwrap();
    upstream.write_all(b"+OK\r\n").unwrap();
    expect(&mut client, b"+OK\r\n");
    assert_eq!(rest(&mut client), b"");
    proxy.wait_for_end(EndReason::IdleTimeout);
}

#[test]
fn keeps_held_clients_past_the_first_byte_timeout() {
    let backend = Backend::new();
    let mut proxy = TestProxy::with_target(&backend);
    // A client that connected while the gate was open, and sent its request after it closed.
    let mut early = proxy.client();
    let mut early_upstream = backend.accept();
    // Its worker may still be about to check the gate.
    let target = proxy.publisher.reader().current().unwrap();
    proxy.wait_for("the first session to be let in", |_| target.first_use().is_some());
    proxy.publisher.hold();
    shorten_first_byte_timeout(&proxy);
    early.write_all(b"GET a\r\n").unwrap();
    // A client that connected while the gate was closed.
    let mut late = proxy.client();
    late.write_all(b"GET b\r\n").unwrap();
    proxy.wait_for("both to be counted as waiting", |stats| stats.held == 2);
    stays_silent(&mut early);
    proxy.publisher.release();
    expect(&mut early_upstream, b"GET a\r\n");
    proxy.wait_for("none to be counted", |stats| stats.held == 0);
    let mut late_upstream = backend.accept();
    expect(&mut late_upstream, b"GET b\r\n");
    stays_silent(&mut late);
    assert_eq!(proxy.stats().closed_in_all(), 0);
}

#[test]
fn restarts_the_first_byte_timeout_after_a_hold() {
    let backend = Backend::new();
    let mut proxy = TestProxy::with_target(&backend);
    proxy.publisher.hold();
    shorten_first_byte_timeout(&proxy);
    let mut client = proxy.client();
    proxy.wait_for("the hold", |stats| stats.held == 1);
    stays_silent(&mut client);
    proxy.publisher.release();
    assert_eq!(rest(&mut client), b"");
    proxy.wait_for_end(EndReason::FirstByteTimeout);
}

#[test]
fn counts_no_idle_time_at_a_closed_gate() {
    let backend = Backend::new();
    let mut proxy = TestProxy::with_target(&backend);
    let (mut client, mut upstream) = session(&proxy, &backend);
    proxy.publisher.hold();
    client.write_all(b"GET a\r\n").unwrap();
    shorten_idle_timeout(&proxy);
    stays_silent(&mut client);
    proxy.publisher.release();
    expect(&mut upstream, b"GET a\r\n");
    stays_silent(&mut client);
    upstream.write_all(b"$-1\r\n").unwrap();
    expect(&mut client, b"$-1\r\n");
    assert_eq!(rest(&mut client), b"");
    proxy.wait_for_end(EndReason::IdleTimeout);
}

#[test]
fn keeps_silent_subscribers_and_transactions() {
    let backend = Backend::new();
    let proxy = TestProxy::with_target(&backend);
    let (mut subscriber, mut messages) = session(&proxy, &backend);
    subscriber.write_all(b"SUBSCRIBE c\r\n").unwrap();
    expect(&mut messages, b"SUBSCRIBE c\r\n");
    let confirmed = b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n";
    messages.write_all(confirmed).unwrap();
    expect(&mut subscriber, confirmed);
    let (mut multi, mut queue) = session(&proxy, &backend);
    multi.write_all(b"MULTI\r\n").unwrap();
    expect(&mut queue, b"MULTI\r\n");
    queue.write_all(b"+OK\r\n").unwrap();
    expect(&mut multi, b"+OK\r\n");
    let (mut idle, _upstream) = session(&proxy, &backend);
    shorten_idle_timeout(&proxy);
    // The timer runs for all sessions.
    assert_eq!(rest(&mut idle), b"");
    proxy.wait_for_end(EndReason::IdleTimeout);
    stays_silent(&mut subscriber);
    stays_silent(&mut multi);
    assert_eq!(proxy.stats().closed_in_all(), 1);
}
