//! What a pool does to readers: the spread, the dismissal, the bar, and what stands in for replicas
//! that are not there.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use target::{EmptyPool, PoolWriter};

use crate::options::Sessions;
use crate::testing::{
    Backend, House, SOON, closed_port, destination, expect, is_silent, rest, session,
};
use crate::{EndReason, Options};

const NO_REPLICA: &str = "-MASTERDOWN No replica is in sync and able to serve reads.\r\n";

fn publish(writer: &mut PoolWriter, backends: &[&Backend]) {
    writer.publish(backends.iter().map(|it| destination(it.addr())).collect());
}

/// However long the test takes to play an answer, it is not taken for a server that gives none.
fn patient() -> Options {
    Options { connect_timeout: SOON, ..Options::default() }
}

fn ask(client: &mut TcpStream) {
    client.write_all(b"GET k\r\n").unwrap();
}

fn answer(client: &mut TcpStream, upstream: &mut TcpStream) {
    expect(upstream, b"GET k\r\n");
    upstream.write_all(b"$-1\r\n").unwrap();
    expect(client, b"$-1\r\n");
}

#[test]
fn readers_go_where_fewest_are() {
    let (house, mut writer) = House::reading(EmptyPool::Reject, Options::default());
    let (one, other) = (Backend::new(), Backend::new());
    publish(&mut writer, &[&one]);
    let first = [session(&house, &one), session(&house, &one)];
    publish(&mut writer, &[&one, &other]);
    let second = [session(&house, &other), session(&house, &other)];
    assert_eq!(writer.targets().iter().map(|it| it.load()).collect::<Vec<_>>(), [2, 2]);
    drop(first);
    house.until("two free places", |stats| stats.open == 2);
    let _third = [session(&house, &one), session(&house, &one)];
    drop(second);
}

#[test]
fn who_is_on_a_dismissed_replica_goes_on_with_another_one() {
    let (house, mut writer) = House::reading(EmptyPool::Reject, patient());
    let (one, other) = (Backend::new(), Backend::new());
    publish(&mut writer, &[&one]);
    let (mut quiet, mut left) = session(&house, &one);
    publish(&mut writer, &[&other]);
    let mut upstream = other.accept_carried();
    ask(&mut quiet);
    answer(&mut quiet, &mut upstream);
    assert_eq!(rest(&mut left), b"", "the former replica got something");
    // The answer to a request that was on its way comes from where it went.
    ask(&mut quiet);
    expect(&mut upstream, b"GET k\r\n");
    publish(&mut writer, &[&one]);
    assert!(is_silent(&mut quiet));
    upstream.write_all(b"$1\r\nv\r\n").unwrap();
    expect(&mut quiet, b"$1\r\nv\r\n");
    let mut again = one.accept_carried();
    ask(&mut quiet);
    answer(&mut quiet, &mut again);
    let stats = house.stats();
    assert_eq!((stats.carried, stats.open, stats.closed_for(EndReason::Dismissed)), (2, 1, 0));
}

#[test]
fn who_cannot_be_carried_leaves_a_dismissed_replica_behind_an_answer() {
    let options = Options { sessions: Sessions::Close, ..Options::default() };
    let (house, mut writer) = House::reading(EmptyPool::Reject, options);
    let (one, other) = (Backend::new(), Backend::new());
    publish(&mut writer, &[&one]);
    let (mut quiet, _kept) = session(&house, &one);
    let (mut busy, mut upstream) = session(&house, &one);
    ask(&mut busy);
    expect(&mut upstream, b"GET k\r\n");
    publish(&mut writer, &[&other]);
    assert_eq!(rest(&mut quiet), b"");
    drop(quiet);
    // However long the answer takes, its session is not ended before.
    assert!(is_silent(&mut busy));
    upstream.write_all(b"$1\r\nv\r\n").unwrap();
    assert_eq!(rest(&mut busy), b"$1\r\nv\r\n");
    house.until("both to leave", |stats| stats.closed_for(EndReason::Dismissed) == 2);
    let _new = session(&house, &other);
}

#[test]
fn not_a_byte_goes_to_a_barred_replica() {
    let (house, mut writer) = House::reading(EmptyPool::Reject, Options::default());
    let (one, other) = (Backend::new(), Backend::new());
    publish(&mut writer, &[&one]);
    let (mut client, mut upstream) = session(&house, &one);
    // Dismissed first, as in a failover; it must be found by the bar all the same.
    ask(&mut client);
    expect(&mut upstream, b"GET k\r\n");
    publish(&mut writer, &[&other]);
    writer.fence(one.addr());
    drop(client.write_all(b"SET k v\r\n"));
    house.ended(EndReason::Fenced);
    let mut after = [0; 16];
    // The connection is broken off and not closed; either way nothing came.
    assert!(matches!(std::io::Read::read(&mut upstream, &mut after), Ok(0) | Err(_)));
}

#[test]
fn without_a_replica_a_reader_is_told_so_and_before_the_first_look_it_waits() {
    let (house, mut writer) = House::reading(EmptyPool::Reject, Options::default());
    let one = Backend::new();
    let mut early = house.client();
    early.write_all(b"PING\r\n").unwrap();
    house.until("the reader to wait", |stats| stats.held == 1);
    publish(&mut writer, &[&one]);
    let mut upstream = one.accept();
    expect(&mut upstream, b"PING\r\n");
    publish(&mut writer, &[]);
    for said in [&b""[..], b"PING\r\n"] {
        let mut late = house.client();
        late.write_all(said).unwrap();
        assert_eq!(String::from_utf8(rest(&mut late)).unwrap(), NO_REPLICA);
    }
    house.until("their end", |stats| stats.closed_for(EndReason::NoReplica) == 2);
}

#[test]
fn the_master_stands_in_until_there_is_a_replica() {
    let (mut house, mut writer) = House::reading(EmptyPool::Master, patient());
    let (master, replica) = (Backend::new(), Backend::new());
    let mut early = house.client();
    early.write_all(b"PING\r\n").unwrap();
    publish(&mut writer, &[]);
    house.commit(master.addr());
    publish(&mut writer, &[]);
    let mut upstream = master.accept();
    expect(&mut upstream, b"PING\r\n");
    upstream.write_all(b"+PONG\r\n").unwrap();
    expect(&mut early, b"+PONG\r\n");
    // A shut gate before the master holds its readers, too.
    ask(&mut early);
    expect(&mut upstream, b"GET k\r\n");
    house.points.hold();
    ask(&mut early);
    upstream.write_all(b"$-1\r\n").unwrap();
    // The session is polled for the reply, with the request waiting before it.
    expect(&mut early, b"$-1\r\n");
    assert!(is_silent(&mut upstream));
    house.points.release();
    answer(&mut early, &mut upstream);
    publish(&mut writer, &[&replica]);
    let mut upstream = replica.accept_carried();
    ask(&mut early);
    answer(&mut early, &mut upstream);
    let _reader = session(&house, &replica);
}

#[test]
fn a_replica_that_refuses_is_passed_over_at_once() {
    let (house, mut writer) = House::reading(EmptyPool::Reject, Options::default());
    let there = Backend::new();
    let (_kept, nowhere) = closed_port();
    writer.publish(vec![destination(nowhere), destination(there.addr())]);
    let begun = Instant::now();
    let kept: Vec<_> = (0..6).map(|_| session(&house, &there)).collect();
    let failed: u64 = house.stats().dial_failures.iter().sum();
    // One, and then nobody for a second; less what the clock of that is rough by.
    let most = 1 + begun.elapsed().as_millis() / 950;
    assert!(
        (1..=most).contains(&failed.into()),
        "{failed} of {} sessions tried it, at most {most} may",
        kept.len()
    );
    // With nobody else to try, the attempts are paced.
    drop(kept);
    house.until("them to leave", |stats| stats.open == 0);
    publish(&mut writer, &[]);
    writer.publish(vec![destination(nowhere)]);
    let began = Instant::now();
    let _waiting = house.client();
    house.until("six more attempts", |stats| stats.dial_failures.iter().sum::<u64>() >= failed + 6);
    assert!(
        began.elapsed() >= Duration::from_millis(10 + 20 + 40 + 80 + 160),
        "after {:?}",
        began.elapsed()
    );
}
