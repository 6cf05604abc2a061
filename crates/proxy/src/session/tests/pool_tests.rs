//! Readers of a replica pool: how they are spread, what happens when a replica is ejected or
//! fenced, and when there is none.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use target::{EmptyPool, PoolWriter};

use crate::options::Sessions;
use crate::testing::{
    Backend, SOON, TestProxy, closed_port, destination, expect, is_silent, rest, session,
};
use crate::{EndReason, Options};

const NO_REPLICA: &str = "-MASTERDOWN No node of this listener is in sync and able to answer.\r\n";

fn publish(writer: &mut PoolWriter, backends: &[&Backend]) {
    writer.publish(backends.iter().map(|it| destination(it.addr())).collect());
}

/// However long the test takes to play an answer, the backend is not taken for one that does not
/// answer.
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
fn connects_readers_where_fewest_are() {
    let (proxy, mut writer) = TestProxy::for_readers(EmptyPool::Reject, Options::default());
    let (one, other) = (Backend::new(), Backend::new());
    publish(&mut writer, &[&one]);
    let first = [session(&proxy, &one), session(&proxy, &one)];
    publish(&mut writer, &[&one, &other]);
    let second = [session(&proxy, &other), session(&proxy, &other)];
    assert_eq!(writer.targets().iter().map(|it| it.load()).collect::<Vec<_>>(), [2, 2]);
    drop(first);
    proxy.wait_for("two free places", |stats| stats.open() == 2);
    let _third = [session(&proxy, &one), session(&proxy, &one)];
    drop(second);
}

#[test]
fn carries_readers_from_an_ejected_replica() {
    let (proxy, mut writer) = TestProxy::for_readers(EmptyPool::Reject, patient());
    let (one, other) = (Backend::new(), Backend::new());
    publish(&mut writer, &[&one]);
    let (mut quiet, mut left) = session(&proxy, &one);
    publish(&mut writer, &[&other]);
    let mut upstream = other.accept_carried();
    ask(&mut quiet);
    answer(&mut quiet, &mut upstream);
    assert_eq!(rest(&mut left), b"", "bytes were sent to the former replica");
    // The reply to a request that was forwarded comes from where it was sent.
    ask(&mut quiet);
    expect(&mut upstream, b"GET k\r\n");
    publish(&mut writer, &[&one]);
    assert!(is_silent(&mut quiet));
    upstream.write_all(b"$1\r\nv\r\n").unwrap();
    expect(&mut quiet, b"$1\r\nv\r\n");
    let mut again = one.accept_carried();
    ask(&mut quiet);
    answer(&mut quiet, &mut again);
    let stats = proxy.stats();
    assert_eq!(
        (stats.carried, stats.open(), stats.closed_for(EndReason::ReplicaEjected)),
        (2, 1, 0)
    );
}

#[test]
fn ends_uncarried_readers_after_a_reply_when_ejected() {
    let options = Options { sessions: Sessions::Close, ..Options::default() };
    let (proxy, mut writer) = TestProxy::for_readers(EmptyPool::Reject, options);
    let (one, other) = (Backend::new(), Backend::new());
    publish(&mut writer, &[&one]);
    let (mut quiet, _kept) = session(&proxy, &one);
    let (mut busy, mut upstream) = session(&proxy, &one);
    ask(&mut busy);
    expect(&mut upstream, b"GET k\r\n");
    publish(&mut writer, &[&other]);
    assert_eq!(rest(&mut quiet), b"");
    drop(quiet);
    // However long the reply takes, its session is not ended before.
    assert!(is_silent(&mut busy));
    upstream.write_all(b"$1\r\nv\r\n").unwrap();
    assert_eq!(rest(&mut busy), b"$1\r\nv\r\n");
    proxy.wait_for("the end of both", |stats| stats.closed_for(EndReason::ReplicaEjected) == 2);
    let _new = session(&proxy, &other);
}

#[test]
fn sends_no_byte_to_a_fenced_replica() {
    let (proxy, mut writer) = TestProxy::for_readers(EmptyPool::Reject, Options::default());
    let (one, other) = (Backend::new(), Backend::new());
    publish(&mut writer, &[&one]);
    let (mut client, mut upstream) = session(&proxy, &one);
    // Ejected first, as in a failover; the fence must find its sessions even so.
    ask(&mut client);
    expect(&mut upstream, b"GET k\r\n");
    publish(&mut writer, &[&other]);
    writer.fence(one.addr());
    drop(client.write_all(b"SET k v\r\n"));
    proxy.wait_for_end(EndReason::Fenced);
    let mut after = [0; 16];
    // The connection is reset or closed; in either case nothing came.
    assert!(matches!(std::io::Read::read(&mut upstream, &mut after), Ok(0) | Err(_)));
}

#[test]
fn refuses_readers_without_replica_after_the_first_pool() {
    let (proxy, mut writer) = TestProxy::for_readers(EmptyPool::Reject, Options::default());
    let one = Backend::new();
    let mut early = proxy.client();
    early.write_all(b"PING\r\n").unwrap();
    proxy.wait_for("the reader to wait", |stats| stats.held == 1);
    publish(&mut writer, &[&one]);
    let mut upstream = one.accept();
    expect(&mut upstream, b"PING\r\n");
    publish(&mut writer, &[]);
    for request in [&b""[..], b"PING\r\n"] {
        let mut late = proxy.client();
        late.write_all(request).unwrap();
        assert_eq!(String::from_utf8(rest(&mut late)).unwrap(), NO_REPLICA);
    }
    proxy.wait_for("the end of both", |stats| stats.closed_for(EndReason::NoReplica) == 2);
}

#[test]
fn reads_from_the_master_until_there_is_a_replica() {
    let (mut proxy, mut writer) = TestProxy::for_readers(EmptyPool::Master, patient());
    let (master, replica) = (Backend::new(), Backend::new());
    let mut early = proxy.client();
    early.write_all(b"PING\r\n").unwrap();
    publish(&mut writer, &[]);
    proxy.commit(master.addr());
    publish(&mut writer, &[]);
    let mut upstream = master.accept();
    expect(&mut upstream, b"PING\r\n");
    upstream.write_all(b"+PONG\r\n").unwrap();
    expect(&mut early, b"+PONG\r\n");
    // A closed gate of the master holds its readers, too.
    ask(&mut early);
    expect(&mut upstream, b"GET k\r\n");
    proxy.publisher.hold();
    ask(&mut early);
    upstream.write_all(b"$-1\r\n").unwrap();
    // The session is polled for the reply, with the request waiting before it.
    expect(&mut early, b"$-1\r\n");
    assert!(is_silent(&mut upstream));
    proxy.publisher.release();
    answer(&mut early, &mut upstream);
    publish(&mut writer, &[&replica]);
    let mut upstream = replica.accept_carried();
    ask(&mut early);
    answer(&mut early, &mut upstream);
    let _reader = session(&proxy, &replica);
}

#[test]
fn skips_a_refusing_replica_at_once() {
    let (proxy, mut writer) = TestProxy::for_readers(EmptyPool::Reject, Options::default());
    let there = Backend::new();
    let (_kept, nowhere) = closed_port();
    writer.publish(vec![destination(nowhere), destination(there.addr())]);
    let begun = Instant::now();
    let kept: Vec<_> = (0..6).map(|_| session(&proxy, &there)).collect();
    let failed: u64 = proxy.stats().dial_failures.iter().sum();
    // One attempt, and then none for a second, less the inaccuracy of that clock.
    let most = 1 + begun.elapsed().as_millis() / 950;
    assert!(
        (1..=most).contains(&failed.into()),
        "{failed} of {} sessions tried it, at most {most} allowed",
        kept.len()
    );
    // Without another replica to try, there are pauses between the attempts.
    drop(kept);
    proxy.wait_for("the end of all sessions", |stats| stats.open() == 0);
    publish(&mut writer, &[]);
    writer.publish(vec![destination(nowhere)]);
    let began = Instant::now();
    let _waiting = proxy.client();
    proxy.wait_for("six more attempts", |stats| {
        stats.dial_failures.iter().sum::<u64>() >= failed + 6
    });
    assert!(
        began.elapsed() >= Duration::from_millis(10 + 20 + 40 + 80 + 160),
        "after {:?}",
        began.elapsed()
    );
}
