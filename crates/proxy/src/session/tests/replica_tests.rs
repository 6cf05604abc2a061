//! Sessions on a replica that closes the connection, becomes unresponsive, or has more sessions
//! than another one.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use target::{EmptyPool, PoolWriter, ReplicaStatus};

use crate::session::carry::proof_tests::{FULL, answer_proof};
use crate::testing::{
    Backend, SOON, TestProxy, destination, expect, is_silent, rest, run_alone, session,
};
use crate::{DialFailure, EndReason, Options, Sessions};

const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
const GET: &[u8] = b"GET k\r\n";

fn publish(writer: &mut PoolWriter, backends: &[&Backend]) {
    writer.publish(backends.iter().map(|it| destination(it.addr())).collect());
}

/// Publishes when `backend` was last asked for its role, and whether it now follows another master.
fn note_role(writer: &mut PoolWriter, backend: &Backend, repointed: bool) {
    let now = Instant::now();
    let look = ReplicaStatus {
        asked_at: Some(now),
        repointed_at: repointed.then_some(now),
        ..ReplicaStatus::default()
    };
    writer.set_replica_status(&backend.addr().to_string(), None, look, false);
}

/// Answers a `PING`, as it is sent to find out whether a replica is alive.
fn answer_ping(upstream: &mut TcpStream) {
    expect(upstream, PING);
    upstream.write_all(b"+PONG\r\n").unwrap();
}

/// Serves one request of the client on `upstream`, which may be sent a `PING` before.
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
    let (proxy, mut writer) = TestProxy::for_readers(EmptyPool::Reject, Options::default());
    let one = Backend::new();
    publish(&mut writer, &[&one]);
    let (mut client, upstream) = session(&proxy, &one);
    note_role(&mut writer, &one, false);
    drop(upstream);
    // It answers, which alone would mean that it closed the session on purpose; its master is not
    // known yet.
    answer_ping(&mut one.accept());
    assert!(is_silent(&mut client));
    note_role(&mut writer, &one, true);
    let mut again = one.accept();
    serve(&mut client, &mut again);
    assert_eq!((proxy.stats().carried, proxy.stats().open()), (1, 1));
    // The next close is later than the change, and nothing else is known of it.
    drop(again);
    answer_ping(&mut one.accept());
    note_role(&mut writer, &one, false);
    assert_eq!(rest(&mut client), b"");
    proxy.wait_for_end(EndReason::UpstreamClosed);
}

#[test]
fn keeps_readers_at_once_while_failing_over() {
    let (proxy, mut writer) = TestProxy::for_readers(EmptyPool::Reject, Options::default());
    let one = Backend::new();
    publish(&mut writer, &[&one]);
    let (mut client, upstream) = session(&proxy, &one);
    let look = ReplicaStatus { failing_over: true, ..ReplicaStatus::default() };
    writer.set_replica_status(&one.addr().to_string(), None, look, false);
    drop(upstream);
    let mut again = one.accept();
    serve(&mut client, &mut again);
    assert_eq!(proxy.stats().carried, 1);
}

#[test]
fn ends_a_kicked_reader_despite_another_replica() {
    let (proxy, mut writer) = TestProxy::for_readers(EmptyPool::Reject, Options::default());
    let (one, other) = (Backend::new(), Backend::new());
    publish(&mut writer, &[&one]);
    let (mut client, upstream) = session(&proxy, &one);
    publish(&mut writer, &[&one, &other]);
    note_role(&mut writer, &one, false);
    drop(upstream);
    answer_ping(&mut one.accept());
    note_role(&mut writer, &one, false);
    assert_eq!(rest(&mut client), b"");
    proxy.wait_for_end(EndReason::UpstreamClosed);
    assert!(other.next().is_none() && proxy.stats().carried == 0);
}

#[test]
fn keeps_readers_of_a_dead_replica() {
    let (proxy, mut writer) = TestProxy::for_readers(EmptyPool::Reject, Options::default());
    let (one, other) = (Backend::new(), Backend::new());
    publish(&mut writer, &[&one]);
    let (mut client, upstream) = session(&proxy, &one);
    publish(&mut writer, &[&one, &other]);
    note_role(&mut writer, &one, false);
    let _port = one.close();
    drop(upstream);
    let mut again = other.accept();
    serve(&mut client, &mut again);
    assert_eq!(proxy.stats().carried, 1);
}

#[test]
fn sends_new_readers_past_a_full_replica() {
    let options = Options { sessions: Sessions::Close, ..Options::default() };
    let (proxy, mut writer) = TestProxy::for_readers(EmptyPool::Reject, options);
    let (full, other) = (Backend::new(), Backend::new());
    publish(&mut writer, &[&other]);
    let _established = [session(&proxy, &other), session(&proxy, &other)];
    publish(&mut writer, &[&full, &other]);
    let mut first = proxy.client();
    first.write_all(GET).unwrap();
    let mut refused = full.accept();
    expect(&mut refused, GET);
    refused.write_all(FULL).unwrap();
    drop(refused);
    // A client that leaves before the end of the server is known has hidden it.
    assert_eq!(rest(&mut first), FULL);
    // The full replica has fewer sessions.
    let mut second = proxy.client();
    serve(&mut second, &mut other.accept());
}

/// A limit on open files applies to the whole process.
#[test]
fn does_not_defer_a_replica_for_lack_of_files() {
    let name = "session::tests::replica_tests::does_not_defer_a_replica_for_lack_of_files";
    run_alone(name, ask_a_replica_without_files);
}

fn ask_a_replica_without_files() {
    let (proxy, mut writer) = TestProxy::for_readers(EmptyPool::Reject, Options::default());
    let one = Backend::new();
    publish(&mut writer, &[&one]);
    let (mut client, upstream) = session(&proxy, &one);
    note_role(&mut writer, &one, false);
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..limit }).unwrap();
    drop(upstream);
    // Counted at the first attempt to continue, which follows the question at once.
    proxy.wait_for("a failed dial", |stats| {
        stats.dial_failures[DialFailure::OutOfFiles as usize] > 0
    });
    // The pool has no other replica: an alternative is this one, unless it was deferred.
    let replica = &writer.targets()[0];
    assert!(proxy.route().has_alternative_to(replica), "deferred for a fault of this host");
    setrlimit(Resource::Nofile, limit).unwrap();
    serve(&mut client, &mut one.accept());
}

#[test]
fn ends_requests_on_an_unresponsive_replica() {
    let options = Options { silent_timeout: Duration::from_millis(50), ..Options::default() };
    let (proxy, mut writer) = TestProxy::for_readers(EmptyPool::Reject, options);
    let (one, other) = (Backend::new(), Backend::new());
    publish(&mut writer, &[&one]);
    let (mut quiet, _kept) = session(&proxy, &one);
    let (mut waiting, mut upstream) = session(&proxy, &one);
    waiting.write_all(GET).unwrap();
    expect(&mut upstream, GET);
    publish(&mut writer, &[&other]);
    writer.set_replica_status(&one.addr().to_string(), None, ReplicaStatus::default(), true);
    let mut again = other.accept();
    serve(&mut quiet, &mut again);
    assert_eq!(rest(&mut waiting), b"");
    proxy.wait_for_end(EndReason::TargetUnresponsive);
    assert_eq!((proxy.stats().carried, proxy.stats().open()), (1, 1));
}

#[test]
fn keeps_requests_on_a_replica_that_answers_again() {
    let options = Options { silent_timeout: Duration::from_secs(3600), ..Options::default() };
    let (proxy, mut writer) = TestProxy::for_readers(EmptyPool::Reject, options);
    let (one, other) = (Backend::new(), Backend::new());
    publish(&mut writer, &[&one]);
    let (mut waiting, mut upstream) = session(&proxy, &one);
    waiting.write_all(GET).unwrap();
    expect(&mut upstream, GET);
    publish(&mut writer, &[&other]);
    writer.set_replica_status(&one.addr().to_string(), None, ReplicaStatus::default(), true);
    assert!(is_silent(&mut waiting));
    writer.set_replica_status(&one.addr().to_string(), None, ReplicaStatus::default(), false);
    publish(&mut writer, &[&one]);
    upstream.write_all(b"$1\r\nv\r\n").unwrap();
    expect(&mut waiting, b"$1\r\nv\r\n");
    assert_eq!(proxy.stats().open(), 1);
}

/// A session that has selected a database, which has to be replayed.
fn with_database(proxy: &TestProxy, backend: &Backend) -> (TcpStream, TcpStream) {
    let (mut client, mut upstream) = session(proxy, backend);
    client.write_all(b"SELECT 3\r\n").unwrap();
    expect(&mut upstream, b"SELECT 3\r\n");
    upstream.write_all(b"+OK\r\n").unwrap();
    expect(&mut client, b"+OK\r\n");
    (client, upstream)
}

/// Accepts such a session on another replica.
fn accept_with_database(backend: &Backend) -> TcpStream {
    let mut upstream = backend.accept();
    expect(&mut upstream, b"*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n");
    upstream.write_all(b"+OK\r\n").unwrap();
    answer_proof(&mut upstream);
    upstream
}

/// Lets the pool balance as if ten seconds had passed.
fn balance(writer: &mut PoolWriter) {
    let start = Instant::now();
    for seconds in [0, 1, 10] {
        writer.balance(start + Duration::from_secs(seconds), 10, true);
    }
}

#[test]
fn moves_readers_to_a_replica_with_fewer_sessions() {
    let (proxy, mut writer) = TestProxy::for_readers(EmptyPool::Reject, Options::default());
    let (one, other) = (Backend::new(), Backend::new());
    publish(&mut writer, &[&one]);
    let mut quiet: Vec<_> = (0..2).map(|_| with_database(&proxy, &one)).collect();
    let mut bound: Vec<_> = (0..2).map(|_| with_database(&proxy, &one)).collect();
    let (mut busy, mut upstream) = with_database(&proxy, &one);
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
    // Five sessions to none: two of the three that can be moved are moved, the busy one after its
    // reply.
    upstream.write_all(b"$1\r\nv\r\n").unwrap();
    expect(&mut busy, b"$1\r\nv\r\n");
    let mut moved = vec![accept_with_database(&other), accept_with_database(&other)];
    proxy.wait_for("two sessions to move", |stats| stats.rebalanced == 2);
    proxy.wait_for("both to be counted", |_| {
        writer.targets().iter().map(|it| it.load()).collect::<Vec<_>>() == [3, 2]
    });
    balance(&mut writer);
    for (client, upstream) in &mut bound {
        client.write_all(GET).unwrap();
        expect(upstream, GET);
    }
    assert!(other.next().is_none());
    quiet.push((busy, upstream));
    // Each still has exactly one connection to a replica.
    for (client, before) in &mut quiet {
        client.write_all(GET).unwrap();
        let mut upstreams: Vec<_> = [before].into_iter().chain(&mut moved).collect();
        assert_eq!(receivers_of_get(&mut upstreams), 1);
    }
    let stats = proxy.stats();
    assert_eq!((stats.rebalanced, stats.carried, stats.closed_in_all()), (2, 0, 0));
}

/// How many of these connections receive a GET. Waits until one has.
fn receivers_of_get(upstreams: &mut [&mut TcpStream]) -> usize {
    let deadline = Instant::now() + SOON;
    let receives = |upstream: &mut &mut TcpStream| {
        upstream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut read = [0; GET.len()];
        upstream.read_exact(&mut read).is_ok() && read == *GET
    };
    loop {
        let receivers: usize = upstreams.iter_mut().map(|it| usize::from(receives(it))).sum();
        if receivers > 0 || Instant::now() > deadline {
            return receivers;
        }
    }
}

#[test]
fn keeps_the_connection_where_a_move_fails() {
    let (proxy, mut writer) = TestProxy::for_readers(EmptyPool::Reject, Options::default());
    let (one, other) = (Backend::new(), Backend::new());
    publish(&mut writer, &[&one]);
    let mut both: Vec<_> = (0..2).map(|_| with_database(&proxy, &one)).collect();
    publish(&mut writer, &[&one, &other]);
    balance(&mut writer);
    // It accepts the connection and closes it.
    drop(other.accept());
    for (client, upstream) in &mut both {
        serve(client, upstream);
    }
    assert_eq!((proxy.stats().rebalanced, proxy.stats().closed_in_all()), (0, 0));
}
