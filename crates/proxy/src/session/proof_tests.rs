//! A new target is proved by its answers: one that is full, busy, silent or superseded carries
//! nobody, and its clients see nothing.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use resp::{Ledger, Limits};

use crate::runtime::reactor::{self, Reactor};
use crate::runtime::tasks::WorkerHandle;
use crate::session::resume::{self, Failed};
use crate::testing::{Backend, House, SOON, destination, expect, is_silent, rest, session};
use crate::{EndReason, Hint, LiveOptions, Options};

const FULL: &[u8] = b"-ERR max number of clients reached\r\n";
const BUSY: &[u8] =
    b"-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n";
const SELECT: &[u8] = b"*2\r\n$6\r\nSELECT\r\n$1\r\n4\r\n";

/// The question that proves a target.
pub(crate) const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

/// Plays the answer to it.
#[track_caller]
pub(crate) fn prove(upstream: &mut TcpStream) {
    expect(upstream, PING);
    upstream.write_all(b"+PONG\r\n").unwrap();
}

impl Backend {
    /// The next connection of the proxy, that of a session which is carried over and has nothing to
    /// say again; it is proved.
    pub(crate) fn accept_carried(&self) -> TcpStream {
        let mut stream = self.accept();
        prove(&mut stream);
        stream
    }
}

/// A session, perhaps with something to say again.
fn with_state(house: &House, backend: &Backend, state: bool) -> (TcpStream, TcpStream) {
    let (mut client, mut upstream) = session(house, backend);
    if state {
        client.write_all(SELECT).unwrap();
        expect(&mut upstream, SELECT);
        upstream.write_all(b"+OK\r\n").unwrap();
        expect(&mut client, b"+OK\r\n");
    }
    (client, upstream)
}

/// Plays the answers to all that is said of such a session.
fn welcome(next: &mut TcpStream, state: bool) {
    if state {
        expect(next, SELECT);
        next.write_all(b"+OK\r\n").unwrap();
    }
    prove(next);
}

#[test]
fn waits_for_a_full_or_busy_target_without_a_word() {
    for (refusal, state) in [
        (FULL, false),
        (FULL, true),
        (BUSY, false),
        (BUSY, true),
        (b"-DENIED x\r\n", false),
        (b"", true),
    ] {
        let (old, new) = (Backend::new(), Backend::new());
        let mut house = House::towards(&old);
        let (mut client, _upstream) = with_state(&house, &old, state);
        house.commit(new.addr());
        for _ in 0..3 {
            // Unasked, as a server does at its maxclients, which closes then.
            new.accept().write_all(refusal).unwrap();
        }
        let mut next = new.accept();
        assert!(is_silent(&mut client), "{refusal:?}");
        client.write_all(b"GET k\r\n").unwrap();
        welcome(&mut next, state);
        expect(&mut next, b"GET k\r\n");
        next.write_all(b"$-1\r\n").unwrap();
        expect(&mut client, b"$-1\r\n");
        house.until("the carry", |stats| stats.carried == 1 && stats.held == 0);
        assert!(house.hints().contains(&Hint::UpstreamEnded));
    }
}

#[test]
fn gives_up_on_a_full_target_at_the_end_of_the_hold() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut house =
        House::new(Options { hold_timeout: Duration::from_millis(300), ..Options::default() });
    house.commit(old.addr());
    let (mut idle, _one) = session(&house, &old);
    let (mut asking, _other) = session(&house, &old);
    house.points.hold();
    asking.write_all(b"GET k\r\n").unwrap();
    house.commit(new.addr());
    while house.stats().open > 0 {
        if let Some(mut next) = new.next() {
            // It may have given up already.
            drop(next.write_all(FULL));
        }
    }
    assert_eq!(rest(&mut idle), b"");
    assert!(rest(&mut asking).starts_with(b"-LOADING No master"));
    assert_eq!(house.stats().carried, 0);
    house.ended(EndReason::DialFailed);
}

#[test]
fn carries_nobody_to_a_target_that_only_accepts() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut house =
        House::new(Options { connect_timeout: Duration::from_millis(50), ..Options::default() });
    house.commit(old.addr());
    let mut sessions: Vec<(TcpStream, TcpStream)> =
        (0..100).map(|_| session(&house, &old)).collect();
    house.commit(new.addr());
    // Half of the turns, and then a few at a time.
    let mut stopped: Vec<TcpStream> = (0..40).map(|_| new.accept()).collect();
    assert_eq!(house.stats().carried, 0);
    let (client, _) = &mut sessions[0];
    assert!(is_silent(client));
    // It wakes up, and answers everybody who is still there.
    let (mut over, begin) = (0, Instant::now());
    while house.stats().carried < 100 {
        assert!(begin.elapsed() < SOON, "{over} were answered");
        if let Some(next) = new.next() {
            stopped.push(next);
        }
        for next in &mut stopped {
            next.set_nonblocking(true).unwrap();
            if matches!(next.read(&mut [0; 64]), Ok(1..)) {
                drop(next.write_all(b"+PONG\r\n"));
                over += 1;
            }
        }
    }
    assert!(over >= 100);
    assert!(sessions.iter_mut().all(|(client, _)| is_silent(client)));
}

#[test]
fn leaves_a_target_superseded_during_its_proof() {
    let (old, middle, new) = (Backend::new(), Backend::new(), Backend::new());
    let mut house = House::towards(&old);
    let (mut client, _upstream) = session(&house, &old);
    house.commit(middle.addr());
    let mut asked = middle.accept();
    expect(&mut asked, PING);
    house.commit(new.addr());
    let mut next = new.accept_carried();
    // Its answer comes too late, and it hears no more.
    drop(asked.write_all(b"+PONG\r\n"));
    client.write_all(b"GET k\r\n").unwrap();
    expect(&mut next, b"GET k\r\n");
    assert!(matches!(asked.read(&mut [0; 8]), Ok(0) | Err(_)));
    assert!(!middle.is_called());
}

#[tokio::test]
async fn sends_nothing_to_a_fenced_or_held_target() {
    let home = WorkerHandle::new().unwrap();
    let _reactor = reactor::install(Reactor::new(home.wake_fd()).unwrap());
    let backend = Backend::new();
    let options = LiveOptions::from(Options::default());
    let ledger = Ledger::new(&Limits { memory: 1024, ..Limits::default() });
    let until = Instant::now() + SOON;
    for change in [target::TargetWriter::hold, target::TargetWriter::clear] {
        let (mut points, _route) = target::TargetWriter::new();
        let target = points.commit(destination(backend.addr()));
        // Between the look at the target and the connection.
        change(&mut points);
        assert_eq!(
            resume::resume(&target, &options, &ledger, until).await.err(),
            Some(Failed::Superseded)
        );
        assert_eq!(resume::answers(&target, &options, until).await.err(), Some(Failed::Superseded));
        for _ in 0..2 {
            assert_eq!(rest(&mut backend.accept()), b"");
        }
    }
}

#[test]
fn carries_nobody_through_a_gate_shut_during_the_proof() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut house = House::towards(&old);
    let (mut client, mut upstream) = session(&house, &old);
    house.commit(new.addr());
    let mut asked = new.accept();
    expect(&mut asked, PING);
    house.points.hold();
    asked.write_all(b"+PONG\r\n").unwrap();
    assert!(matches!(asked.read(&mut [0; 8]), Ok(0) | Err(_)));
    assert_eq!(house.stats().carried, 0);
    house.points.release();
    let mut next = new.accept_carried();
    client.write_all(b"GET k\r\n").unwrap();
    expect(&mut next, b"GET k\r\n");
    assert!(matches!(upstream.read(&mut [0; 8]), Ok(0) | Err(_)));
}

#[test]
fn serves_sessions_beside_others_that_can_never_arrive() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut house =
        House::new(Options { connect_timeout: SOON, hold_timeout: SOON, ..Options::default() });
    house.commit(old.addr());
    let select = |db| format!("*2\r\n$6\r\nSELECT\r\n$1\r\n{db}\r\n");
    let mut sessions = Vec::new();
    for number in 0..45 {
        let (mut client, mut upstream) = session(&house, &old);
        let request = select(if number < 40 { 1 } else { 2 });
        client.write_all(request.as_bytes()).unwrap();
        expect(&mut upstream, request.as_bytes());
        upstream.write_all(b"+OK\r\n").unwrap();
        expect(&mut client, b"+OK\r\n");
        sessions.push((client, upstream));
    }
    house.commit(new.addr());
    let (mut kept, begin) = (Vec::new(), Instant::now());
    while house.stats().carried < 5 {
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
    assert_eq!(house.stats().closed_in_all(), 0);
}

#[test]
fn carries_sessions_with_a_request_before_idle_ones() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut house = House::towards(&old);
    let mut sessions: Vec<(TcpStream, TcpStream)> =
        (0..100).map(|_| session(&house, &old)).collect();
    house.points.hold();
    for (client, _) in sessions.iter_mut().skip(80) {
        client.write_all(b"GET k\r\n").unwrap();
    }
    // One more comes and goes: what was sent before has been noticed then, and brings nobody an
    // advantage.
    let newcomer = house.client();
    house.until("the newcomer", |stats| stats.held == 1);
    drop(newcomer);
    house.until("its end", |stats| stats.open == 100);
    house.commit(new.addr());
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
    house.until("all of them", |stats| stats.carried == 100);
}

#[test]
fn moves_an_idle_session_up_when_its_client_asks() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut house = House::towards(&old);
    let mut sessions: Vec<(TcpStream, TcpStream)> =
        (0..100).map(|_| session(&house, &old)).collect();
    house.commit(new.addr());
    // Idle sessions take half of the turns; nothing else comes before one of them is answered.
    let _first: Vec<TcpStream> = (0..32).map(|_| new.accept()).collect();
    assert!(!new.is_called());
    let asking = sessions.iter_mut().map(|(client, _)| client);
    asking.for_each(|client| client.write_all(b"GET k\r\n").unwrap());
    // 68 sessions stand in line, and there are 32 turns for those who ask.
    let mut kept = Vec::new();
    for _ in 0..68 {
        let mut next = new.accept_carried();
        expect(&mut next, b"GET k\r\n");
        kept.push(next);
    }
}
