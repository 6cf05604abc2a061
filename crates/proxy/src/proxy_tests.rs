//! The house as a whole: how many it lets in, and how it closes.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::Instant;

use drain::StopRequest;

use crate::testing::{Backend, House, SOON, expect, is_silent, rest, session};
use crate::{EndReason, Limit, Options};

#[test]
fn one_too_many_is_refused_in_the_words_of_redis() {
    let backend = Backend::new();
    for (limit, total, of_the_service, of_a_source) in
        [(Limit::Process, 2, 100, 0), (Limit::Service, 100, 2, 0), (Limit::Source, 100, 100, 2)]
    {
        let (max_connections, max_connections_per_source) = (of_the_service, of_a_source);
        let options = Options { max_connections, max_connections_per_source, ..Options::default() };
        let mut house = House::with(1, total, options);
        house.commit(backend.addr());
        let first = session(&house, &backend);
        let _second = session(&house, &backend);
        for _ in 0..3 {
            let mut third = house.client();
            assert_eq!(rest(&mut third), b"-ERR max number of clients reached\r\n");
        }
        let stats = house.stats();
        assert_eq!((stats.accepted, stats.refused[limit as usize], stats.open), (2, 3, 2));
        assert_eq!(stats.refused_in_all(), 3);
        drop(first);
        house.until("a free place", |stats| stats.open == 1);
        // The place is given back when the session is dropped, a moment after it was counted.
        let begin = Instant::now();
        while house.stats().accepted == 2 {
            assert!(begin.elapsed() < SOON);
            let mut client = house.client();
            client.write_all(b"PING\r\n").unwrap();
            let answered = stats.accepted + stats.refused_in_all();
            if house
                .until("an answer", |now| now.accepted + now.refused_in_all() > answered)
                .accepted
                == 3
            {
                expect(&mut backend.accept(), b"PING\r\n");
            }
        }
    }
}

#[test]
fn while_memory_is_scarce_nobody_new_is_let_in_and_whoever_is_here_stays() {
    let backend = Backend::new();
    let house = House::towards(&backend);
    let (mut client, mut upstream) = session(&house, &backend);
    house.running().resource_shortage().set(true);
    assert_eq!(rest(&mut house.client()), b"-ERR max number of clients reached\r\n");
    assert_eq!(house.stats().refused[Limit::Memory as usize], 1);
    client.write_all(b"PING\r\n").unwrap();
    expect(&mut upstream, b"PING\r\n");
    house.running().resource_shortage().set(false);
    let _next = session(&house, &backend);
}

#[test]
fn a_quiet_session_leaves_at_once_and_a_busy_one_with_its_reply() {
    let backend = Backend::new();
    let house = House::towards(&backend);
    let (mut quiet, _upstream) = session(&house, &backend);
    let (mut busy, mut busy_upstream) = session(&house, &backend);
    busy.write_all(b"GET k\r\n").unwrap();
    expect(&mut busy_upstream, b"GET k\r\n");
    house.drain.request_stop(StopRequest::DrainAtOnce);
    assert_eq!(rest(&mut quiet), b"");
    drop(quiet);
    assert!(is_silent(&mut busy));
    busy_upstream.write_all(b"$1\r\nv\r\n").unwrap();
    assert_eq!(rest(&mut busy), b"$1\r\nv\r\n");
    drop(busy);
    let (summary, stats) = house.end(StopRequest::Drain);
    assert_eq!((summary.session_counts.asked, summary.session_counts.cut), (2, 0));
    assert_eq!((stats.closed_for(EndReason::Drained), stats.open), (2, 0));
}

#[test]
fn the_listener_is_closed_by_a_drain_and_those_in_the_queue_are_served() {
    let backend = Backend::new();
    let house = House::towards(&backend);
    let (mut busy, mut busy_upstream) = session(&house, &backend);
    busy.write_all(b"GET k\r\n").unwrap();
    expect(&mut busy_upstream, b"GET k\r\n");
    let mut late = house.client();
    late.write_all(b"PING\r\n").unwrap();
    house.drain.request_stop(StopRequest::DrainAtOnce);
    let mut late_upstream = backend.accept();
    expect(&mut late_upstream, b"PING\r\n");
    late_upstream.write_all(b"+PONG\r\n").unwrap();
    assert_eq!(rest(&mut late), b"+PONG\r\n");
    let begin = Instant::now();
    while TcpStream::connect(house.addr()).is_ok() {
        assert!(begin.elapsed() < SOON, "still listening");
    }
    drop((late, late_upstream));
    busy_upstream.write_all(b"$1\r\nv\r\n").unwrap();
    assert_eq!(rest(&mut busy), b"$1\r\nv\r\n");
}

#[test]
fn a_quiet_client_is_given_time_to_leave_behind_a_reply() {
    let backend = Backend::new();
    let house = House::towards(&backend);
    let (mut client, _upstream) = session(&house, &backend);
    let begin = Instant::now();
    house.drain.request_stop(StopRequest::DrainAtOnce);
    assert_eq!(rest(&mut client), b"");
    assert!(
        begin.elapsed() >= crate::session::leave::LISTEN,
        "it was closed in its pause, after {:?}",
        begin.elapsed()
    );
    house.ended(EndReason::Drained);
}

#[test]
fn a_pipeline_that_never_rests_is_stopped_at_a_boundary() {
    let backend = Backend::new();
    let house = House::towards(&backend);
    let (mut client, mut upstream) = session(&house, &backend);
    let reader = {
        let mut client = client.try_clone().unwrap();
        thread::spawn(move || rest(&mut client).iter().filter(|byte| **byte == b':').count())
    };
    // Always some requests ahead, and no write ends with a request.
    client.write_all(b"INCR ").unwrap();
    let (mut sent, mut executed) = (0, 0);
    let begin = Instant::now();
    while !reader.is_finished() {
        assert!(begin.elapsed() < SOON, "never stopped");
        if sent < executed + 8 {
            sent += 1;
            // The end may be on its way.
            drop(client.write_all(b"a\r\nINCR "));
        }
        if has_request(&mut upstream) {
            executed += 1;
            if executed == 20 {
                house.drain.request_stop(StopRequest::DrainAtOnce);
            }
            upstream.write_all(format!(":{executed}\r\n").as_bytes()).unwrap();
        }
    }
    assert_eq!(reader.join().unwrap(), executed, "every request that was forwarded was answered");
    assert!(executed >= 20);
    house.ended(EndReason::Drained);
}

/// Reads a whole `INCR a` if one is there at once.
fn has_request(stream: &mut TcpStream) -> bool {
    let mut request = [0; 8];
    stream.set_nonblocking(true).unwrap();
    let there = stream.peek(&mut request).is_ok_and(|n| n == request.len());
    stream.set_nonblocking(false).unwrap();
    there && stream.read_exact(&mut request).is_ok()
}

#[test]
fn a_subscriber_stays_until_the_cut() {
    let backend = Backend::new();
    let house = House::towards(&backend);
    let (mut client, mut upstream) = session(&house, &backend);
    client.write_all(b"SUBSCRIBE c\r\n").unwrap();
    expect(&mut upstream, b"SUBSCRIBE c\r\n");
    upstream.write_all(b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n").unwrap();
    expect(&mut client, b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
    let (mut quiet, _upstream) = session(&house, &backend);
    house.drain.request_stop(StopRequest::DrainAtOnce);
    assert_eq!(rest(&mut quiet), b"");
    upstream.write_all(b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n").unwrap();
    expect(&mut client, b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n");
    drop(quiet);
    let (summary, stats) = house.end(StopRequest::Cut);
    assert_eq!(rest(&mut client), b"");
    assert_eq!(
        (summary.session_counts.cut, stats.closed_for(EndReason::Cut), stats.open),
        (1, 1, 0)
    );
}

#[test]
fn a_cut_ends_held_and_half_closed_sessions_too() {
    let backend = Backend::new();
    let mut house = House::towards(&backend);
    let (mut half, mut upstream) = session(&house, &backend);
    // It is owed an answer, or it would end with its direction.
    half.write_all(b"GET k\r\n").unwrap();
    half.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rest(&mut upstream), b"GET k\r\n");
    house.points.hold();
    let held = house.client();
    house.until("the hold", |stats| stats.held == 1);
    let begin = Instant::now();
    let (summary, stats) = house.end(StopRequest::Cut);
    assert!(begin.elapsed() < SOON);
    assert_eq!(
        (summary.session_counts.cut, stats.closed_for(EndReason::Cut), stats.held),
        (2, 2, 0)
    );
    drop((held, half, upstream));
}

#[test]
fn heartbeats_are_young() {
    let backend = Backend::new();
    let house = House::towards(&backend);
    let running = house.running();
    let begin = Instant::now();
    // Seen from one and the same moment, the age shrinks with every beat.
    let age = || running.heartbeats()[0].age(begin + SOON * 2);
    let first = age();
    while age() >= first {
        assert!(begin.elapsed() < SOON, "no beat");
        thread::yield_now();
    }
    assert_eq!(running.heartbeats().len(), 1);
    assert_eq!(running.connections(), (0, 1000));
}

#[test]
fn long_sessions_are_spread_over_the_workers() {
    const WORKERS: usize = 4;
    let backend = Backend::new();
    let mut house = House::with(WORKERS, 1000, Options::default());
    house.commit(backend.addr());
    // One at a time, so that each finds the ones before it counted.
    let sessions: Vec<_> = (0..200).map(|_| session(&house, &backend)).collect();
    let mut open = house.running().stats().open_by_worker("s");
    open.sort_unstable();
    assert_eq!(open.iter().sum::<u64>(), 200);
    // By the kernel's hash alone they are some 14 apart on average.
    assert!(open[WORKERS - 1] - open[0] <= 8, "{open:?}");
    let passed = house.stats().handed_over;
    assert!((1..100).contains(&passed), "{passed}");
    drop(sessions);
    house.until("the end of all", |stats| stats.open == 0);
}
