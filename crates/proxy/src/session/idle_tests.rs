//! Who is closed for saying nothing, and who is not.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::testing::{Backend, House, expect, rest, session};
use crate::{EndReason, Options};

const SHORT: Duration = Duration::from_millis(100);
/// Several times as long, so that whatever should not happen after the short one would have.
const LONG: Duration = Duration::from_millis(400);

/// From now on a client has only so long to say its first byte. For when everybody is where he
/// belongs: however long that takes, nobody is silent meanwhile.
fn want_a_first_byte(house: &House) {
    house.running().tune(0, Options { first_byte_timeout: SHORT, ..Options::default() });
}

/// From now on a client is idle after so long. For the same moment.
fn want_no_idlers(house: &House) {
    house.running().tune(0, Options { client_idle_timeout: SHORT, ..Options::default() });
}

/// Nothing comes from this stream for a long while, not even an end.
#[track_caller]
fn stays(stream: &mut TcpStream) {
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
    let (house, mut spoke) = House::awaited(options, Some(&backend), b"PING\r\n");
    let mut spoken_to = backend.accept();
    expect(&mut spoken_to, b"PING\r\n");
    spoken_to.write_all(b"+PONG\r\n").unwrap();
    expect(&mut spoke, b"+PONG\r\n");
    let mut silent = house.client();
    assert_eq!(rest(&mut silent), b"");
    house.ended(EndReason::FirstByteTimeout);
    stays(&mut spoke);
    spoke.write_all(b"PING\r\n").unwrap();
    expect(&mut spoken_to, b"PING\r\n");
}

#[test]
fn closes_clients_that_stop_within_a_request() {
    for part in [&b"*"[..], b"*2\r\n$3\r\nGET\r\n$1\r\n", b"GET k", b"\r\n"] {
        let backend = Backend::new();
        let options = Options { first_byte_timeout: SHORT, ..Options::default() };
        let (house, mut client) = House::awaited(options, Some(&backend), part);
        let mut upstream = backend.accept();
        expect(&mut upstream, part);
        assert_eq!(rest(&mut client), b"");
        house.ended(EndReason::FirstByteTimeout);
    }
    for part in [&b"*"[..], b"*2\r\n$3\r\nGET\r\n$1\r\n", b"GET k"] {
        let backend = Backend::new();
        let house = House::towards(&backend);
        let (mut client, mut upstream) = session(&house, &backend);
        client.write_all(part).unwrap();
        expect(&mut upstream, part);
        want_no_idlers(&house);
        assert_eq!(rest(&mut client), b"");
        house.ended(EndReason::IdleTimeout);
    }
}

#[test]
fn keeps_clients_whose_request_waits_for_the_server() {
    const VALUE: usize = 64 * 1024 * 1024;
    let backend = Backend::new();
    let house = House::towards(&backend);
    let (mut client, mut upstream) = session(&house, &backend);
    let mut writing = client.try_clone().unwrap();
    let head = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${VALUE}\r\n");
    let request = [head.as_bytes(), &vec![b'x'; VALUE], b"\r\n"].concat();
    let len = request.len();
    let writer = std::thread::spawn(move || writing.write_all(&request).unwrap());
    expect(&mut upstream, head.as_bytes());
    want_no_idlers(&house);
    // The server reads nothing, and so nothing of the client's is read.
    stays(&mut client);
    let mut left = len - head.len();
    let mut buffer = vec![0; 1024 * 1024];
    while left > 0 {
        left -= upstream.read(&mut buffer).unwrap();
    }
    writer.join().unwrap();
    upstream.write_all(b"+OK\r\n").unwrap();
    expect(&mut client, b"+OK\r\n");
    assert_eq!(rest(&mut client), b"");
    house.ended(EndReason::IdleTimeout);
}

#[test]
fn a_held_client_is_never_taken_for_a_silent_one() {
    let backend = Backend::new();
    let mut house = House::towards(&backend);
    // One that came while the gate was open, and spoke when nobody listened.
    let mut early = house.client();
    let mut early_upstream = backend.accept();
    // Its worker may still be about to look at the gate.
    let target = house.points.reader().current().unwrap();
    house.until("the first session to be let in", |_| target.first_use().is_some());
    house.points.hold();
    want_a_first_byte(&house);
    early.write_all(b"GET a\r\n").unwrap();
    // And one that came while it was shut.
    let mut late = house.client();
    late.write_all(b"GET b\r\n").unwrap();
    house.until("the hold", |stats| stats.held == 1);
    stays(&mut early);
    house.points.release();
    expect(&mut early_upstream, b"GET a\r\n");
    let mut late_upstream = backend.accept();
    expect(&mut late_upstream, b"GET b\r\n");
    stays(&mut late);
    assert_eq!(house.stats().closed_in_all(), 0);
}

#[test]
fn a_held_client_that_says_nothing_has_its_whole_time_after_the_hold() {
    let backend = Backend::new();
    let mut house = House::towards(&backend);
    house.points.hold();
    want_a_first_byte(&house);
    let mut client = house.client();
    house.until("the hold", |stats| stats.held == 1);
    stays(&mut client);
    house.points.release();
    assert_eq!(rest(&mut client), b"");
    house.ended(EndReason::FirstByteTimeout);
}

#[test]
fn time_at_a_shut_gate_makes_nobody_idle() {
    let backend = Backend::new();
    let mut house = House::towards(&backend);
    let (mut client, mut upstream) = session(&house, &backend);
    house.points.hold();
    client.write_all(b"GET a\r\n").unwrap();
    want_no_idlers(&house);
    stays(&mut client);
    house.points.release();
    expect(&mut upstream, b"GET a\r\n");
    stays(&mut client);
    upstream.write_all(b"$-1\r\n").unwrap();
    expect(&mut client, b"$-1\r\n");
    assert_eq!(rest(&mut client), b"");
    house.ended(EndReason::IdleTimeout);
}

#[test]
fn subscribers_and_transactions_are_not_idle() {
    let backend = Backend::new();
    let house = House::towards(&backend);
    let (mut subscriber, mut messages) = session(&house, &backend);
    subscriber.write_all(b"SUBSCRIBE c\r\n").unwrap();
    expect(&mut messages, b"SUBSCRIBE c\r\n");
    let confirmed = b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n";
    messages.write_all(confirmed).unwrap();
    expect(&mut subscriber, confirmed);
    let (mut multi, mut queue) = session(&house, &backend);
    multi.write_all(b"MULTI\r\n").unwrap();
    expect(&mut queue, b"MULTI\r\n");
    queue.write_all(b"+OK\r\n").unwrap();
    expect(&mut multi, b"+OK\r\n");
    let (mut idle, _upstream) = session(&house, &backend);
    want_no_idlers(&house);
    // The time runs for everybody.
    assert_eq!(rest(&mut idle), b"");
    house.ended(EndReason::IdleTimeout);
    stays(&mut subscriber);
    stays(&mut multi);
    assert_eq!(house.stats().closed_in_all(), 1);
}
