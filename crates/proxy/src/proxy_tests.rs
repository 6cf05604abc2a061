//! The proxy as a whole: its limits, and how it stops.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::Instant;

use drain::StopRequest;

use crate::testing::{Backend, SOON, TestProxy, expect, is_silent, rest, session};
use crate::{EndReason, Limit, Options};

#[test]
fn refuses_clients_beyond_a_limit_as_redis_does() {
    let backend = Backend::new();
    for (limit, total, of_the_service, of_a_source) in
        [(Limit::Process, 2, 100, 0), (Limit::Service, 100, 2, 0), (Limit::Source, 100, 100, 2)]
    {
        let (max_connections, max_connections_per_source) = (of_the_service, of_a_source);
        let options = Options { max_connections, max_connections_per_source, ..Options::default() };
        let mut proxy = TestProxy::with(1, total, options);
        proxy.commit(backend.addr());
        let first = session(&proxy, &backend);
        let _second = session(&proxy, &backend);
        for _ in 0..3 {
            let mut third = proxy.client();
            assert_eq!(rest(&mut third), b"-ERR max number of clients reached\r\n");
        }
        let stats = proxy.stats();
        assert_eq!((stats.accepted, stats.refused[limit as usize], stats.open()), (2, 3, 2));
        assert_eq!(stats.refused_in_all(), 3);
        drop(first);
        proxy.wait_for("a free place", |stats| stats.open() == 1);
        // The place is returned when the session is dropped, a moment after it was counted.
        let begin = Instant::now();
        while proxy.stats().accepted == 2 {
            assert!(begin.elapsed() < SOON);
            let mut client = proxy.client();
            client.write_all(b"PING\r\n").unwrap();
            let answered = stats.accepted + stats.refused_in_all();
            if proxy
                .wait_for("an answer", |now| now.accepted + now.refused_in_all() > answered)
                .accepted
                == 3
            {
                expect(&mut backend.accept(), b"PING\r\n");
            }
        }
    }
}

#[test]
fn refuses_only_new_clients_while_memory_is_scarce() {
    let backend = Backend::new();
    let proxy = TestProxy::with_target(&backend);
    let (mut client, mut upstream) = session(&proxy, &backend);
    proxy.running().shortage.set(true);
    assert_eq!(rest(&mut proxy.client()), b"-ERR max number of clients reached\r\n");
    assert_eq!(proxy.stats().refused[Limit::Memory as usize], 1);
    client.write_all(b"PING\r\n").unwrap();
    expect(&mut upstream, b"PING\r\n");
    proxy.running().shortage.set(false);
    let _next = session(&proxy, &backend);
}

#[test]
fn drains_quiet_sessions_and_busy_ones_after_their_reply() {
    let backend = Backend::new();
    let proxy = TestProxy::with_target(&backend);
    let (mut quiet, _upstream) = session(&proxy, &backend);
    let (mut busy, mut busy_upstream) = session(&proxy, &backend);
    busy.write_all(b"GET k\r\n").unwrap();
    expect(&mut busy_upstream, b"GET k\r\n");
    proxy.drain.request_stop(StopRequest::DrainAtOnce);
    assert_eq!(rest(&mut quiet), b"");
    drop(quiet);
    assert!(is_silent(&mut busy));
    busy_upstream.write_all(b"$1\r\nv\r\n").unwrap();
    assert_eq!(rest(&mut busy), b"$1\r\nv\r\n");
    drop(busy);
    let (summary, stats) = proxy.stop(StopRequest::Drain);
    assert_eq!((summary.session_counts.asked, summary.session_counts.cut), (2, 0));
    assert_eq!((stats.closed_for(EndReason::Drained), stats.open()), (2, 0));
}

#[test]
fn closes_listeners_in_a_drain_and_serves_their_queues() {
    let backend = Backend::new();
    let proxy = TestProxy::with_target(&backend);
    let (mut busy, mut busy_upstream) = session(&proxy, &backend);
    busy.write_all(b"GET k\r\n").unwrap();
    expect(&mut busy_upstream, b"GET k\r\n");
    let mut late = proxy.client();
    late.write_all(b"PING\r\n").unwrap();
    proxy.drain.request_stop(StopRequest::DrainAtOnce);
    let mut late_upstream = backend.accept();
    expect(&mut late_upstream, b"PING\r\n");
    late_upstream.write_all(b"+PONG\r\n").unwrap();
    assert_eq!(rest(&mut late), b"+PONG\r\n");
    let begin = Instant::now();
    while TcpStream::connect(proxy.addr()).is_ok() {
        assert!(begin.elapsed() < SOON, "still listening");
    }
    drop((late, late_upstream));
    busy_upstream.write_all(b"$1\r\nv\r\n").unwrap();
    assert_eq!(rest(&mut busy), b"$1\r\nv\r\n");
}

#[test]
fn gives_quiet_clients_time_to_leave_after_a_reply() {
    let backend = Backend::new();
    let proxy = TestProxy::with_target(&backend);
    let (mut client, _upstream) = session(&proxy, &backend);
    let begin = Instant::now();
    proxy.drain.request_stop(StopRequest::DrainAtOnce);
    assert_eq!(rest(&mut client), b"");
    assert!(
        begin.elapsed() >= crate::session::leave::REPLY_WAIT,
        "it was closed in its pause, after {:?}",
        begin.elapsed()
    );
    proxy.wait_for_end(EndReason::Drained);
}

#[test]
fn stops_a_continuous_pipeline_at_a_boundary() {
    let backend = Backend::new();
    let proxy = TestProxy::with_target(&backend);
    let (mut client, mut upstream) = session(&proxy, &backend);
    let reader = {
        let mut client = client.try_clone().unwrap();
        thread::spawn(move || rest(&mut client).iter().filter(|byte| **byte == b':').count())
    };
    // Several requests are always in flight, and no write ends with a request.
    client.write_all(b"INCR ").unwrap();
    let (mut sent, mut executed) = (0, 0);
    let begin = Instant::now();
    while !reader.is_finished() {
        assert!(begin.elapsed() < SOON, "never stopped");
        if sent < executed + 8 {
            sent += 1;
            // The end may be in transit.
            drop(client.write_all(b"a\r\nINCR "));
        }
        if has_request(&mut upstream) {
            executed += 1;
            if executed == 20 {
                proxy.drain.request_stop(StopRequest::DrainAtOnce);
            }
            upstream.write_all(format!(":{executed}\r\n").as_bytes()).unwrap();
        }
    }
    assert_eq!(reader.join().unwrap(), executed, "every request that was forwarded was answered");
    assert!(executed >= 20);
    proxy.wait_for_end(EndReason::Drained);
}

/// Reads a complete `INCR a` if one is readable at once.
fn has_request(stream: &mut TcpStream) -> bool {
    let mut request = [0; 8];
    stream.set_nonblocking(true).unwrap();
    let there = stream.peek(&mut request).is_ok_and(|n| n == request.len());
    stream.set_nonblocking(false).unwrap();
    there && stream.read_exact(&mut request).is_ok()
}

#[test]
fn keeps_subscribers_until_the_cut() {
    let backend = Backend::new();
    let proxy = TestProxy::with_target(&backend);
    let (mut client, mut upstream) = session(&proxy, &backend);
    client.write_all(b"SUBSCRIBE c\r\n").unwrap();
    expect(&mut upstream, b"SUBSCRIBE c\r\n");
    upstream.write_all(b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n").unwrap();
    expect(&mut client, b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
    let (mut quiet, _upstream) = session(&proxy, &backend);
    proxy.drain.request_stop(StopRequest::DrainAtOnce);
    assert_eq!(rest(&mut quiet), b"");
    upstream.write_all(b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n").unwrap();
    expect(&mut client, b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n");
    drop(quiet);
    let (summary, stats) = proxy.stop(StopRequest::Cut);
    assert_eq!(rest(&mut client), b"");
    assert_eq!(
        (summary.session_counts.cut, stats.closed_for(EndReason::Cut), stats.open()),
        (1, 1, 0)
    );
}

#[test]
fn ends_held_and_half_closed_sessions_at_the_cut() {
    let backend = Backend::new();
    let mut proxy = TestProxy::with_target(&backend);
    let (mut half, mut upstream) = session(&proxy, &backend);
    // It is owed a reply, or it would end with its direction.
    half.write_all(b"GET k\r\n").unwrap();
    half.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rest(&mut upstream), b"GET k\r\n");
    proxy.publisher.hold();
    let held = proxy.client();
    proxy.wait_for("the hold", |stats| stats.held == 1);
    let begin = Instant::now();
    let (summary, stats) = proxy.stop(StopRequest::Cut);
    assert!(begin.elapsed() < SOON);
    assert_eq!(
        (summary.session_counts.cut, stats.closed_for(EndReason::Cut), stats.held),
        (2, 2, 0)
    );
    drop((held, half, upstream));
}

#[test]
fn renews_heartbeats() {
    let backend = Backend::new();
    let proxy = TestProxy::with_target(&backend);
    let running = proxy.running();
    let begin = Instant::now();
    // Seen from a fixed moment, the age decreases with every beat.
    let age = || running.heartbeats[0].age(begin + SOON * 2);
    let first = age();
    while age() >= first {
        assert!(begin.elapsed() < SOON, "no beat");
        thread::yield_now();
    }
    assert_eq!(running.heartbeats.len(), 1);
    assert_eq!(running.connections(), (0, 1000));
}

#[test]
fn spreads_long_sessions_over_the_workers() {
    const WORKERS: usize = 4;
    let backend = Backend::new();
    let mut proxy = TestProxy::with(WORKERS, 1000, Options::default());
    proxy.commit(backend.addr());
    // One at a time, so that each finds the earlier ones counted.
    let sessions: Vec<_> = (0..200).map(|_| session(&proxy, &backend)).collect();
    let mut open = proxy.running().stats.open_on_workers();
    open.sort_unstable();
    assert_eq!(open.iter().sum::<u64>(), 200);
    // By the kernel's hash alone they differ by some 14 on average.
    assert!(open[WORKERS - 1] - open[0] <= 8, "{open:?}");
    let passed = proxy.stats().handed_over;
    assert!((1..100).contains(&passed), "{passed}");
    drop(sessions);
    proxy.wait_for("the end of all", |stats| stats.open() == 0);
}
