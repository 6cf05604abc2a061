//! What sessions on replicas do when theirs ends the connection, falls silent, or has more sessions
//! than another one.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use target::{EmptyPool, PoolWriter, ReplicaStatus};

use crate::session::proof_tests::prove;
use crate::testing::{Backend, House, destination, expect, is_silent, rest, session};
use crate::{EndReason, Options};

const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
const GET: &[u8] = b"GET k\r\n";

fn publish(writer: &mut PoolWriter, backends: &[&Backend]) {
    writer.publish(backends.iter().map(|it| destination(it.addr())).collect());
}

/// Tells the sessions on `backend` when it was asked last, and when it was re-pointed.
fn tell(writer: &mut PoolWriter, backend: &Backend, repointed: bool) {
    let now = Instant::now();
    let look = ReplicaStatus {
        asked_at: Some(now),
        repointed_at: repointed.then_some(now),
        ..ReplicaStatus::default()
    };
    writer.set_replica_status(&backend.addr().to_string(), None, look, false);
}

/// Answers a PING, as it is sent to see whether a replica is alive.
fn answer_ping(upstream: &mut TcpStream) {
    expect(upstream, PING);
    upstream.write_all(b"+PONG\r\n").unwrap();
}

/// One request of the client answered on `upstream`, which may be asked for a sign of life before.
fn serve(client: &mut TcpStream, upstream: &mut TcpStream) {
    client.write_all(GET).unwrap();
    let mut read = Vec::new();
    loop {
        let mut byte = [0];
        upstream.read_exact(&mut byte).unwrap();
        read.push(byte[0]);
        if read == PING {
            upstream.write_all(b"+PONG\r\n").unwrap();
            read.clear();
        } else if read == GET {
            break;
        }
    }
    upstream.write_all(b"$-1\r\n").unwrap();
    expect(client, b"$-1\r\n");
}

#[test]
fn keeps_a_reader_whose_replica_was_repointed() {
    let (house, mut writer) = House::reading(EmptyPool::Reject, Options::default());
    let one = Backend::new();
    publish(&mut writer, &[&one]);
    let (mut client, upstream) = session(&house, &one);
    tell(&mut writer, &one, false);
    drop(upstream);
    // It answers, which alone would mean that it was on purpose; whom it follows is not known yet.
    answer_ping(&mut one.accept());
    assert!(is_silent(&mut client));
    tell(&mut writer, &one, true);
    let mut again = one.accept();
    serve(&mut client, &mut again);
    assert_eq!((house.stats().carried, house.stats().open), (1, 1));
    // The next end is later than the change, and nothing else is known of it.
    drop(again);
    answer_ping(&mut one.accept());
    tell(&mut writer, &one, false);
    assert_eq!(rest(&mut client), b"");
    house.ended(EndReason::UpstreamClosed);
}

#[test]
fn keeps_readers_at_once_while_failing_over() {
    let (house, mut writer) = House::reading(EmptyPool::Reject, Options::default());
    let one = Backend::new();
    publish(&mut writer, &[&one]);
    let (mut client, upstream) = session(&house, &one);
    let look = ReplicaStatus { failing_over: true, ..ReplicaStatus::default() };
    writer.set_replica_status(&one.addr().to_string(), None, look, false);
    drop(upstream);
    let mut again = one.accept();
    serve(&mut client, &mut again);
    assert_eq!(house.stats().carried, 1);
}

#[test]
fn ends_a_kicked_reader_though_another_replica_is_emptier() {
    let (house, mut writer) = House::reading(EmptyPool::Reject, Options::default());
    let (one, other) = (Backend::new(), Backend::new());
    publish(&mut writer, &[&one]);
    let (mut client, upstream) = session(&house, &one);
    publish(&mut writer, &[&one, &other]);
    tell(&mut writer, &one, false);
    drop(upstream);
    answer_ping(&mut one.accept());
    tell(&mut writer, &one, false);
    assert_eq!(rest(&mut client), b"");
    house.ended(EndReason::UpstreamClosed);
    assert!(other.next().is_none() && house.stats().carried == 0);
}

#[test]
fn keeps_readers_of_a_replica_that_answers_nobody() {
    let (house, mut writer) = House::reading(EmptyPool::Reject, Options::default());
    let (one, other) = (Backend::new(), Backend::new());
    publish(&mut writer, &[&one]);
    let (mut client, upstream) = session(&house, &one);
    publish(&mut writer, &[&one, &other]);
    tell(&mut writer, &one, false);
    let _port = one.close();
    drop(upstream);
    let mut again = other.accept();
    serve(&mut client, &mut again);
    assert_eq!(house.stats().carried, 1);
}

#[test]
fn ends_requests_on_a_silent_replica_after_the_bound() {
    let options = Options { silent_timeout: Duration::from_millis(50), ..Options::default() };
    let (house, mut writer) = House::reading(EmptyPool::Reject, options);
    let (one, other) = (Backend::new(), Backend::new());
    publish(&mut writer, &[&one]);
    let (mut quiet, _kept) = session(&house, &one);
    let (mut waiting, mut upstream) = session(&house, &one);
    waiting.write_all(GET).unwrap();
    expect(&mut upstream, GET);
    publish(&mut writer, &[&other]);
    writer.set_replica_status(&one.addr().to_string(), None, ReplicaStatus::default(), true);
    let mut again = other.accept();
    serve(&mut quiet, &mut again);
    assert_eq!(rest(&mut waiting), b"");
    house.ended(EndReason::TargetSilent);
    assert_eq!((house.stats().carried, house.stats().open), (1, 1));
}

#[test]
fn keeps_requests_on_a_replica_that_answers_again() {
    let options = Options { silent_timeout: Duration::from_secs(3600), ..Options::default() };
    let (house, mut writer) = House::reading(EmptyPool::Reject, options);
    let (one, other) = (Backend::new(), Backend::new());
    publish(&mut writer, &[&one]);
    let (mut waiting, mut upstream) = session(&house, &one);
    waiting.write_all(GET).unwrap();
    expect(&mut upstream, GET);
    publish(&mut writer, &[&other]);
    writer.set_replica_status(&one.addr().to_string(), None, ReplicaStatus::default(), true);
    assert!(is_silent(&mut waiting));
    writer.set_replica_status(&one.addr().to_string(), None, ReplicaStatus::default(), false);
    publish(&mut writer, &[&one]);
    upstream.write_all(b"$1\r\nv\r\n").unwrap();
    expect(&mut waiting, b"$1\r\nv\r\n");
    assert_eq!(house.stats().open, 1);
}

/// A session that has chosen a database, which has to be said again elsewhere.
fn selected(house: &House, backend: &Backend) -> (TcpStream, TcpStream) {
    let (mut client, mut upstream) = session(house, backend);
    client.write_all(b"SELECT 3\r\n").unwrap();
    expect(&mut upstream, b"SELECT 3\r\n");
    upstream.write_all(b"+OK\r\n").unwrap();
    expect(&mut client, b"+OK\r\n");
    (client, upstream)
}

/// Takes one of them in.
fn take_in(backend: &Backend) -> TcpStream {
    let mut upstream = backend.accept();
    expect(&mut upstream, b"*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n");
    upstream.write_all(b"+OK\r\n").unwrap();
    prove(&mut upstream);
    upstream
}

/// Lets the pool balance as if this long had passed.
fn balance(writer: &mut PoolWriter) {
    let start = Instant::now();
    for seconds in [0, 1, 10] {
        writer.balance(start + Duration::from_secs(seconds), 10, true);
    }
}

#[test]
fn moves_quiet_and_busy_readers_to_an_emptier_replica() {
    let (house, mut writer) = House::reading(EmptyPool::Reject, Options::default());
    let (one, other) = (Backend::new(), Backend::new());
    publish(&mut writer, &[&one]);
    let mut quiet: Vec<_> = (0..2).map(|_| selected(&house, &one)).collect();
    let mut bound: Vec<_> = (0..2).map(|_| selected(&house, &one)).collect();
    let (mut busy, mut upstream) = selected(&house, &one);
    busy.write_all(GET).unwrap();
    expect(&mut upstream, GET);
    for (client, upstream) in &mut bound {
        client.write_all(b"WATCH k\r\n").unwrap();
        expect(upstream, b"WATCH k\r\n");
        upstream.write_all(b"+OK\r\n").unwrap();
        expect(client, b"+OK\r\n");
    }
    publish(&mut writer, &[&one, &other]);
    balance(&mut writer);
    // Five to none: two of the three that can are moved, the busy one after its reply.
    upstream.write_all(b"$1\r\nv\r\n").unwrap();
    expect(&mut busy, b"$1\r\nv\r\n");
    let mut moved = vec![take_in(&other), take_in(&other)];
    house.until("two moves", |stats| stats.rebalanced == 2);
    house.until("both to be there", |_| {
        writer.targets().iter().map(|it| it.load()).collect::<Vec<_>>() == [3, 2]
    });
    balance(&mut writer);
    for (client, upstream) in &mut bound {
        client.write_all(GET).unwrap();
        expect(upstream, GET);
    }
    assert!(other.next().is_none());
    quiet.push((busy, upstream));
    // Each still has one connection to ask through, and just one.
    for (mut client, mut before) in quiet {
        client.write_all(GET).unwrap();
        let served = [&mut before].into_iter().chain(&mut moved).filter_map(|upstream| {
            upstream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
            let mut read = [0; GET.len()];
            upstream.read_exact(&mut read).is_ok().then_some(read)
        });
        assert_eq!(served.collect::<Vec<_>>().iter().map(|it| &it[..]).collect::<Vec<_>>(), [GET]);
    }
    let stats = house.stats();
    assert_eq!((stats.rebalanced, stats.carried, stats.closed_in_all()), (2, 0, 0));
}

#[test]
fn keeps_the_connection_where_a_move_fails() {
    let (house, mut writer) = House::reading(EmptyPool::Reject, Options::default());
    let (one, other) = (Backend::new(), Backend::new());
    publish(&mut writer, &[&one]);
    let mut both: Vec<_> = (0..2).map(|_| selected(&house, &one)).collect();
    publish(&mut writer, &[&one, &other]);
    balance(&mut writer);
    // It takes the connection and no more.
    drop(other.accept());
    for (client, upstream) in &mut both {
        serve(client, upstream);
    }
    assert_eq!((house.stats().rebalanced, house.stats().closed_in_all()), (0, 0));
}
