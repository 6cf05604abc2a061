//! A new target has to prove itself by its answers: one that is full, busy, unresponsive or
//! superseded gets no session, and clients notice nothing.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use resp::{Ledger, Limits};

use crate::runtime::reactor::{self, Reactor};
use crate::runtime::tasks::WorkerHandle;
use crate::session::carry::replay::{Failed, Server};
use crate::testing::{
    Backend, SOON, TestProxy, context, destination, expect, is_silent, rest, session,
};
use crate::{EndReason, Hint, Options};

pub(crate) const FULL: &[u8] = b"-ERR max number of clients reached\r\n";
const BUSY: &[u8] =
    b"-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n";
const SELECT: &[u8] = b"*2\r\n$6\r\nSELECT\r\n$1\r\n4\r\n";

/// The request by which a target proves itself.
pub(crate) const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

/// Plays the answer to it.
#[track_caller]
pub(crate) fn answer_proof(upstream: &mut TcpStream) {
    expect(upstream, PING);
    upstream.write_all(b"+PONG\r\n").unwrap();
}

impl Backend {
    /// The next connection of the proxy, which carries a session without state to replay; the
    /// backend has proved itself.
    pub(crate) fn accept_carried(&self) -> TcpStream {
        let mut stream = self.accept();
        answer_proof(&mut stream);
        stream
    }
}

/// A session, with or without state to replay.
fn with_state(proxy: &TestProxy, backend: &Backend, state: bool) -> (TcpStream, TcpStream) {
    let (mut client, mut upstream) = session(proxy, backend);
    if state {
        client.write_all(SELECT).unwrap();
        expect(&mut upstream, SELECT);
        upstream.write_all(b"+OK\r\n").unwrap();
        expect(&mut client, b"+OK\r\n");
    }
    (client, upstream)
}

/// Plays the answers to the replay of such a session.
fn answer_replay(next: &mut TcpStream, state: bool) {
    if state {
        expect(next, SELECT);
        next.write_all(b"+OK\r\n").unwrap();
    }
    answer_proof(next);
}

#[test]
fn waits_silently_for_a_full_or_busy_target() {
    for (refusal, state) in [
        (FULL, false),
        (FULL, true),
        (BUSY, false),
        (BUSY, true),
        (b"-DENIED x\r\n", false),
        (b"", true),
    ] {
        let (old, new) = (Backend::new(), Backend::new());
        let mut proxy = TestProxy::with_target(&old);
        let (mut client, _upstream) = with_state(&proxy, &old, state);
        proxy.commit(new.addr());
        for _ in 0..3 {
            // Sent unrequested, as by a server at its `maxclients`, which then closes.
            new.accept().write_all(refusal).unwrap();
        }
        let mut next = new.accept();
        assert!(is_silent(&mut client), "{refusal:?}");
        client.write_all(b"GET k\r\n").unwrap();
        answer_replay(&mut next, state);
        expect(&mut next, b"GET k\r\n");
        next.write_all(b"$-1\r\n").unwrap();
        expect(&mut client, b"$-1\r\n");
        proxy.wait_for("the carry", |stats| stats.carried == 1 && stats.held == 0);
        assert!(proxy.hints().contains(&Hint::UpstreamEnded));
    }
}

#[test]
fn gives_up_on_a_full_target_at_the_end_of_the_hold() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut proxy =
        TestProxy::new(Options { hold_timeout: Duration::from_millis(300), ..Options::default() });
    proxy.commit(old.addr());
    let (mut idle, _one) = session(&proxy, &old);
    let (mut asking, _other) = session(&proxy, &old);
    proxy.publisher.hold();
    asking.write_all(b"GET k\r\n").unwrap();
    proxy.commit(new.addr());
    while proxy.stats().open() > 0 {
        if let Some(mut next) = new.next() {
            // The proxy may have given up already.
            drop(next.write_all(FULL));
        }
    }
    assert_eq!(rest(&mut idle), b"");
    assert!(rest(&mut asking).starts_with(b"-LOADING No master"));
    assert_eq!(proxy.stats().carried, 0);
    proxy.wait_for_end(EndReason::DialFailed);
}

#[test]
fn carries_no_session_to_a_target_that_only_accepts() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut proxy = TestProxy::new(Options {
        connect_timeout: Duration::from_millis(50),
        ..Options::default()
    });
    proxy.commit(old.addr());
    let mut sessions: Vec<(TcpStream, TcpStream)> =
        (0..100).map(|_| session(&proxy, &old)).collect();
    proxy.commit(new.addr());
    // Half of the permits, and then fewer at a time.
    let mut stopped: Vec<TcpStream> = (0..40).map(|_| new.accept()).collect();
    assert_eq!(proxy.stats().carried, 0);
    let (client, _) = &mut sessions[0];
    assert!(is_silent(client));
    // The target resumes, and answers every connection that is still open.
    let (mut answered, begin) = (0, Instant::now());
    while proxy.stats().carried < 100 {
        assert!(begin.elapsed() < SOON, "{answered} were answered");
        if let Some(next) = new.next() {
            stopped.push(next);
        }
        for next in &mut stopped {
            next.set_nonblocking(true).unwrap();
            if matches!(next.read(&mut [0; 64]), Ok(1..)) {
                drop(next.write_all(b"+PONG\r\n"));
                answered += 1;
            }
        }
    }
    assert!(answered >= 100);
    assert!(sessions.iter_mut().all(|(client, _)| is_silent(client)));
}

#[test]
fn leaves_a_target_superseded_during_its_proof() {
    let (old, middle, new) = (Backend::new(), Backend::new(), Backend::new());
    let mut proxy = TestProxy::with_target(&old);
    let (mut client, _upstream) = session(&proxy, &old);
    proxy.commit(middle.addr());
    let mut asked = middle.accept();
    expect(&mut asked, PING);
    proxy.commit(new.addr());
    let mut next = new.accept_carried();
    // Its answer comes too late, and it is sent nothing more.
    drop(asked.write_all(b"+PONG\r\n"));
    client.write_all(b"GET k\r\n").unwrap();
    expect(&mut next, b"GET k\r\n");
    assert!(matches!(asked.read(&mut [0; 8]), Ok(0) | Err(_)));
    assert!(!middle.has_pending_connection());
}

#[tokio::test]
async fn sends_nothing_to_a_fenced_or_held_target() {
    let home = WorkerHandle::new().unwrap();
    reactor::install(Reactor::new(home.wake_fd()).unwrap());
    let backend = Backend::new();
    let (_writer, context) = context();
    let ledger = Ledger::new(&Limits { memory: 1024, ..Limits::default() });
    let deadline = Instant::now() + SOON;
    for change in [target::TargetWriter::hold, target::TargetWriter::clear] {
        let (mut publisher, _route) = target::TargetWriter::new();
        let target = publisher.commit(destination(backend.addr()));
        // Between loading the target and connecting to it.
        change(&mut publisher);
        let server = Server { target: &target, context: &context, deadline };
        assert_eq!(server.replay(&ledger).await.err(), Some(Failed::Superseded));
        assert_eq!(server.answers().await.err(), Some(Failed::Superseded));
        for _ in 0..2 {
            assert_eq!(rest(&mut backend.accept()), b"");
        }
    }
}

#[test]
fn carries_no_session_through_a_gate_closed_meanwhile() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut proxy = TestProxy::with_target(&old);
    let (mut client, mut upstream) = session(&proxy, &old);
    proxy.commit(new.addr());
    let mut asked = new.accept();
    expect(&mut asked, PING);
    proxy.publisher.hold();
    asked.write_all(b"+PONG\r\n").unwrap();
    assert!(matches!(asked.read(&mut [0; 8]), Ok(0) | Err(_)));
    assert_eq!(proxy.stats().carried, 0);
    proxy.publisher.release();
    let mut next = new.accept_carried();
    client.write_all(b"GET k\r\n").unwrap();
    expect(&mut next, b"GET k\r\n");
    assert!(matches!(upstream.read(&mut [0; 8]), Ok(0) | Err(_)));
}

#[test]
fn serves_sessions_beside_ones_that_cannot_connect() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut proxy =
        TestProxy::new(Options { connect_timeout: SOON, hold_timeout: SOON, ..Options::default() });
    proxy.commit(old.addr());
    let select = |db| format!("*2\r\n$6\r\nSELECT\r\n$1\r\n{db}\r\n");
    let mut sessions = Vec::new();
    for number in 0..45 {
        let (mut client, mut upstream) = session(&proxy, &old);
        let request = select(if number < 40 { 1 } else { 2 });
        client.write_all(request.as_bytes()).unwrap();
        expect(&mut upstream, request.as_bytes());
        upstream.write_all(b"+OK\r\n").unwrap();
        expect(&mut client, b"+OK\r\n");
        sessions.push((client, upstream));
    }
    proxy.commit(new.addr());
    let (mut kept, begin) = (Vec::new(), Instant::now());
    while proxy.stats().carried < 5 {
        assert!(begin.elapsed() < SOON, "{} of 5 were carried", kept.len());
        let Some(mut next) = new.next() else { continue };
        let mut request = vec![0; select(1).len()];
        next.read_exact(&mut request).unwrap();
        if request == select(1).as_bytes() {
            next.write_all(b"-LOADING not for you\r\n").unwrap();
        } else {
            next.write_all(b"+OK\r\n+PONG\r\n").unwrap();
            kept.push(next);
        }
    }
    assert_eq!(proxy.stats().closed_in_all(), 0);
}

#[test]
fn carries_sessions_with_a_request_before_idle_ones() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut proxy = TestProxy::with_target(&old);
    let mut sessions: Vec<(TcpStream, TcpStream)> =
        (0..100).map(|_| session(&proxy, &old)).collect();
    proxy.publisher.hold();
    for (client, _) in sessions.iter_mut().skip(80) {
        client.write_all(b"GET k\r\n").unwrap();
    }
    // One more client connects and disconnects: what was sent before it has been read by then, so
    // no session has an advantage.
    let newcomer = proxy.client();
    proxy.wait_for("the newcomer", |stats| stats.held == 1);
    drop(newcomer);
    proxy.wait_for("its end", |stats| stats.open() == 100);
    proxy.commit(new.addr());
    let mut kept = Vec::new();
    for number in 0..100 {
        let mut next = new.accept_carried();
        let asks = number < 20;
        if asks {
            expect(&mut next, b"GET k\r\n");
            next.write_all(b"$-1\r\n").unwrap();
        }
        kept.push(next);
    }
    for (client, _) in sessions.iter_mut().skip(80) {
        expect(client, b"$-1\r\n");
    }
    proxy.wait_for("all sessions", |stats| stats.carried == 100);
}

#[test]
fn moves_an_idle_session_up_when_its_client_asks() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut proxy = TestProxy::with_target(&old);
    let mut sessions: Vec<(TcpStream, TcpStream)> =
        (0..100).map(|_| session(&proxy, &old)).collect();
    proxy.commit(new.addr());
    // Idle sessions get half of the permits; no other connection comes before one of them is
    // answered.
    let _first: Vec<TcpStream> = (0..32).map(|_| new.accept()).collect();
    assert!(!new.has_pending_connection());
    let asking = sessions.iter_mut().map(|(client, _)| client);
    asking.for_each(|client| client.write_all(b"GET k\r\n").unwrap());
    // 68 sessions are in line, and 32 permits are left for sessions with a request.
    let mut kept = Vec::new();
    for _ in 0..68 {
        let mut next = new.accept_carried();
        expect(&mut next, b"GET k\r\n");
        kept.push(next);
    }
}
