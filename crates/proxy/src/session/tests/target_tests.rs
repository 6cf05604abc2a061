//! Sessions when their target changes: the fence, the gate, the hold, and failed dials.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::session::carry::proof_tests::{PING, answer_proof};
use crate::testing::{
    Backend, SOON, TestProxy, closed_port, expect, is_silent, rest, rest_or_reset, session,
};
use crate::{DialFailure, EndReason, Hint, Options, Sessions};

fn hold(timeout: Duration) -> Options {
    Options { hold_timeout: timeout, ..Options::default() }
}

#[test]
fn sends_no_byte_to_the_old_target_after_the_fence() {
    // Each session waits a second for its last replies, so the rounds run side by side.
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| flood_across_fences(10));
        }
    });
}

fn flood_across_fences(rounds: u64) {
    let (old, new) = (Backend::new(), Backend::new());
    let mut proxy = TestProxy::with(2, 1000, Options::default());
    for round in 0..rounds {
        let before = proxy.stats().bytes_in;
        proxy.commit(old.addr());
        let mut client = proxy.client();
        let mut upstream = old.accept();
        let reader = thread::spawn(move || {
            let mut all = Vec::new();
            // However it ends, only the received bytes matter.
            drop(upstream.read_to_end(&mut all));
            all
        });
        let mut flood = client.try_clone().unwrap();
        // Requests, because many clients that send none would be connected slowly.
        let requests = b"GET a\r\n".repeat(1000);
        let writer = thread::spawn(move || while flood.write_all(&requests).is_ok() {});
        proxy.wait_for("the flood", |stats| stats.bytes_in > before + 10_000);
        proxy.commit(new.addr());
        // The fence was certainly raised before these bytes existed.
        drop(client.write_all(b"MARK\r\n"));
        let came = reader.join().unwrap();
        assert!(!came.contains(&b'M'), "round {round}: forwarded after the fence was raised");
        drop(client);
        writer.join().unwrap();
        // A new client is connected to the new target.
        let mut client = proxy.client();
        client.write_all(b"PING\r\n").unwrap();
        expect(&mut new.accept(), b"PING\r\n");
    }
    assert!(proxy.stats().closed_for(EndReason::Fenced) >= rounds);
}

#[test]
fn delivers_whole_replies_before_the_end_at_a_fence() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut proxy = TestProxy::new(Options { sessions: Sessions::Close, ..Options::default() });
    proxy.commit(old.addr());
    let (mut client, mut upstream) = session(&proxy, &old);
    client.write_all(b"GET k\r\n").unwrap();
    expect(&mut upstream, b"GET k\r\n");
    upstream.write_all(b"$1\r\nv\r\n").unwrap();
    proxy.commit(new.addr());
    // Unread bytes in the proxy's socket must not turn the end into a reset.
    client.write_all(b"GET k\r\n").unwrap();
    let came = rest(&mut client);
    // Whether the reply had reached the proxy depends on the network, and whether the second
    // request had: it was not forwarded, and is refused after a whole reply only.
    let is_refusal = |it: &[u8]| it.starts_with(b"-LOADING ") && it.ends_with(b"\r\n");
    let after_reply = came.strip_prefix(b"$1\r\nv\r\n");
    let is_whole = after_reply.is_some_and(|it| it.is_empty() || is_refusal(it));
    assert!(came.is_empty() || is_whole, "{came:?}");
    proxy.wait_for_end(EndReason::Fenced);
}

#[test]
fn holds_requests_and_forwards_replies_at_a_closed_gate() {
    let backend = Backend::new();
    let mut proxy = TestProxy::with_target(&backend);
    let (mut client, mut upstream) = session(&proxy, &backend);
    client.write_all(b"GET k\r\n").unwrap();
    expect(&mut upstream, b"GET k\r\n");
    for _ in 0..50 {
        proxy.publisher.hold();
        client.write_all(b"GET l\r\n").unwrap();
        upstream.write_all(b"$1\r\nv\r\n").unwrap();
        // The session is polled for the reply, with the request waiting before it.
        expect(&mut client, b"$1\r\nv\r\n");
        assert!(is_silent(&mut upstream));
        proxy.publisher.release();
        expect(&mut upstream, b"GET l\r\n");
    }
}

#[test]
fn drops_requests_of_clients_that_left_at_a_closed_gate() {
    let backend = Backend::new();
    let mut proxy = TestProxy::with_target(&backend);
    let (mut client, mut upstream) = session(&proxy, &backend);
    proxy.publisher.hold();
    client.write_all(b"INCR k\r\n").unwrap();
    drop(client);
    proxy.wait_for_end(EndReason::HoldAbandoned);
    proxy.publisher.release();
    assert_eq!(rest_or_reset(&mut upstream), b"");
}

#[test]
fn sees_every_close_of_a_gate_that_toggles_fast() {
    let backend = Backend::new();
    let mut proxy = TestProxy::with_target(&backend);
    let (mut client, mut upstream) = session(&proxy, &backend);
    for _ in 0..200 {
        proxy.publisher.hold();
        proxy.publisher.release();
    }
    proxy.publisher.hold();
    client.write_all(b"GET l\r\n").unwrap();
    upstream.write_all(b"+x\r\n").unwrap();
    expect(&mut client, b"+x\r\n");
    assert!(is_silent(&mut upstream));
    proxy.publisher.release();
    expect(&mut upstream, b"GET l\r\n");
    proxy.publisher.clear();
    assert_eq!(rest(&mut client), b"");
}

#[test]
fn forwards_held_requests_to_the_first_target() {
    let backend = Backend::new();
    let mut proxy = TestProxy::new(Options::default());
    let mut client = proxy.client();
    client.write_all(b"PING\r\n").unwrap();
    proxy.wait_for("the hold", |stats| stats.held == 1);
    // More than is read of a held client.
    let large = vec![b'x'; 100_000];
    client.write_all(format!("*2\r\n$4\r\nECHO\r\n${}\r\n", large.len()).as_bytes()).unwrap();
    client.write_all(&large).unwrap();
    client.write_all(b"\r\n").unwrap();
    proxy.commit(backend.addr());
    let mut upstream = backend.accept();
    expect(&mut upstream, b"PING\r\n*2\r\n$4\r\nECHO\r\n$100000\r\n");
    let mut read = vec![0; large.len() + 2];
    upstream.read_exact(&mut read).unwrap();
    assert!(read.starts_with(&large) && read.ends_with(b"\r\n"));
    assert_eq!(proxy.stats().held, 0);
    upstream.write_all(b"+PONG\r\n").unwrap();
    expect(&mut client, b"+PONG\r\n");
    proxy.wait_for("the first reply", |stats| stats.commands == 2);
}

#[test]
fn holds_new_clients_while_the_gate_is_closed() {
    let backend = Backend::new();
    let mut proxy = TestProxy::with_target(&backend);
    proxy.publisher.hold();
    let _client = proxy.client();
    proxy.wait_for("the hold", |stats| stats.held == 1);
    assert!(!backend.has_pending_connection());
    proxy.publisher.release();
    backend.accept();
}

#[test]
fn ends_a_hold_after_its_timeout() {
    let proxy = TestProxy::new(hold(Duration::from_millis(30)));
    let mut client = proxy.client();
    assert_eq!(rest(&mut client), b"");
    proxy.wait_for_end(EndReason::HoldTimeout);
    assert_eq!(proxy.stats().held, 0);
}

#[test]
fn drops_requests_of_held_clients_that_leave() {
    let backend = Backend::new();
    let mut proxy = TestProxy::new(Options::default());
    let mut client = proxy.client();
    client.write_all(b"SET k v\r\n").unwrap();
    proxy.wait_for("the hold", |stats| stats.held == 1);
    drop(client);
    proxy.wait_for_end(EndReason::HoldAbandoned);
    proxy.commit(backend.addr());
    assert!(!backend.has_pending_connection());
}

#[test]
fn dials_again_while_a_target_starts() {
    let (socket, addr) = closed_port();
    let mut proxy =
        TestProxy::new(Options { connect_timeout: Duration::from_secs(20), ..Options::default() });
    proxy.commit(addr);
    let mut client = proxy.client();
    client.write_all(b"PING\r\n").unwrap();
    proxy.wait_for("a refusal", |stats| stats.dial_failures[DialFailure::Refused as usize] >= 2);
    socket.listen(16).unwrap();
    let mut upstream = TcpStream::from(socket.accept().unwrap().0);
    answer_proof(&mut upstream);
    expect(&mut upstream, b"PING\r\n");
    assert_eq!(proxy.hints()[0], Hint::DialFailed(DialFailure::Refused));
    assert_eq!(proxy.stats().dials, 1);
}

#[test]
fn holds_new_clients_while_the_target_is_loading() {
    const LOADING: &[u8] = b"-LOADING Redis is loading the dataset in memory\r\n";
    let backend = Backend::new();
    let proxy = TestProxy::with_target(&backend);
    let (mut first, mut upstream) = session(&proxy, &backend);
    first.write_all(b"GET k\r\n").unwrap();
    expect(&mut upstream, b"GET k\r\n");
    upstream.write_all(LOADING).unwrap();
    expect(&mut first, LOADING);
    let mut second = proxy.client();
    second.write_all(b"GET k\r\n").unwrap();
    for _ in 0..3 {
        let mut asked = backend.accept();
        expect(&mut asked, PING);
        asked.write_all(LOADING).unwrap();
        assert_eq!(rest_or_reset(&mut asked), b"");
    }
    assert!(is_silent(&mut second));
    let mut upstream = backend.accept_carried();
    expect(&mut upstream, b"GET k\r\n");
    upstream.write_all(b"$1\r\nv\r\n").unwrap();
    expect(&mut second, b"$1\r\nv\r\n");
    let loading = Hint::Replied(resp::Hint::Loading);
    assert!(proxy.hints().len() >= 4 && proxy.hints().iter().all(|it| *it == loading));
}

#[test]
fn gives_up_a_target_that_keeps_refusing() {
    let (_socket, addr) = closed_port();
    // Attempts at 0, 10, 30, 70, 150 and 310 ms, and none at 560; fewer on a slow machine.
    let short = Duration::from_millis(500);
    let mut proxy = TestProxy::new(Options {
        connect_timeout: short,
        hold_timeout: short,
        ..Options::default()
    });
    proxy.commit(addr);
    let mut client = proxy.client();
    assert_eq!(rest(&mut client), b"");
    proxy.wait_for_end(EndReason::DialFailed);
    let attempts = proxy.stats().dial_failures[DialFailure::Refused as usize];
    assert!((2..=6).contains(&attempts), "{attempts}");
}

#[test]
fn follows_a_master_change_while_dials_fail() {
    let (_socket, addr) = closed_port();
    let backend = Backend::new();
    let mut proxy =
        TestProxy::new(Options { connect_timeout: Duration::from_secs(20), ..Options::default() });
    proxy.commit(addr);
    let mut client = proxy.client();
    client.write_all(b"PING\r\n").unwrap();
    proxy.wait_for("a refusal", |stats| stats.dial_failures[DialFailure::Refused as usize] >= 1);
    proxy.publisher.hold();
    proxy.wait_for("the hold", |stats| stats.held == 1);
    proxy.commit(backend.addr());
    expect(&mut backend.accept(), b"PING\r\n");
}

/// Listens with a queue of one, and fills it: later connection attempts get no answer.
fn fill(socket: &socket2::Socket, addr: SocketAddr) -> Vec<socket2::Socket> {
    socket.listen(0).unwrap();
    let filler = |_| {
        let filler =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        filler.set_nonblocking(true).unwrap();
        drop(filler.connect(&addr.into()));
        filler
    };
    (0..4).map(filler).collect()
}

/// Whether a socket that is not one of the fillers tries to connect to that port and has got no
/// answer yet. The fillers enter and leave that state, so their number says nothing.
fn is_dialled(addr: SocketAddr, fillers: &[socket2::Socket]) -> bool {
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let port = |addr: SocketAddr| format!(":{:04X}", addr.port());
    let to = port(addr);
    let theirs: Vec<String> =
        fillers.iter().map(|it| port(it.local_addr().unwrap().as_socket().unwrap())).collect();
    // proc_net_tcp: number, local address, remote address, state; 02 is SYN_SENT.
    let words =
        table.lines().map(|line| line.split_whitespace().skip(1).take(3).collect::<Vec<_>>());
    let mut dials = words.filter_map(|words| match words[..] {
        [local, remote, "02"] if remote.ends_with(&to) => Some(local.to_owned()),
        _ => None,
    });
    dials.any(|local| !theirs.iter().any(|port| local.ends_with(port)))
}

#[test]
fn discards_a_connection_opened_while_the_gate_is_closed() {
    let (socket, addr) = closed_port();
    let fillers = fill(&socket, addr);
    let options = Options {
        connect_timeout: Duration::from_secs(3600),
        sessions: Sessions::Close,
        ..hold(Duration::from_secs(3600))
    };
    let mut proxy = TestProxy::new(options);
    proxy.commit(addr);
    let mut client = proxy.client();
    client.write_all(b"PING\r\n").unwrap();
    proxy.wait_for("the dial", |_| is_dialled(addr, &fillers));
    proxy.publisher.hold();
    // With a free place in its queue the target answers when the kernel retransmits.
    socket.set_nonblocking(true).unwrap();
    let (mut arrived, begin) = (Vec::new(), Instant::now());
    while proxy.stats().dials == 0 {
        assert!(begin.elapsed() < SOON, "the connection was never opened");
        arrived.extend(socket.accept().ok().map(|(stream, _)| TcpStream::from(stream)));
        thread::yield_now();
    }
    proxy.wait_for("the wait at the gate", |stats| stats.held == 1);
    let backend = Backend::new();
    proxy.commit(backend.addr());
    expect(&mut backend.accept(), b"PING\r\n");
    drop(fillers);
    arrived.extend(
        std::iter::from_fn(|| socket.accept().ok()).map(|(stream, _)| TcpStream::from(stream)),
    );
    for mut stream in arrived {
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        assert_eq!(rest(&mut stream), b"");
    }
}

#[test]
fn gives_up_a_dial_without_answer_at_a_master_change() {
    let (socket, addr) = closed_port();
    let fillers = fill(&socket, addr);
    let backend = Backend::new();
    let mut proxy = TestProxy::new(Options {
        connect_timeout: Duration::from_secs(3600),
        ..Options::default()
    });
    proxy.commit(addr);
    let mut client = proxy.client();
    client.write_all(b"PING\r\n").unwrap();
    proxy.wait_for("the session", |stats| stats.open() == 1);
    proxy.commit(backend.addr());
    expect(&mut backend.accept(), b"PING\r\n");
    assert_eq!((proxy.stats().dials, proxy.stats().dial_failures), (1, [0; 7]));
    drop(fillers);
}

#[test]
fn ends_a_dial_at_the_cut() {
    let (socket, addr) = closed_port();
    socket.listen(0).unwrap();
    let _fillers: Vec<_> =
        (0..4).map(|_| TcpStream::connect_timeout(&addr, Duration::from_millis(1))).collect();
    let mut proxy = TestProxy::new(Options {
        connect_timeout: Duration::from_secs(3600),
        ..Options::default()
    });
    proxy.commit(addr);
    let _client = proxy.client();
    proxy.wait_for("the session", |stats| stats.open() == 1);
    let (_, stats) = proxy.stop(drain::StopRequest::Cut);
    assert_eq!((stats.closed_for(EndReason::Cut), stats.open()), (1, 0));
}

#[test]
fn records_the_first_session_on_a_target() {
    let there = Backend::new();
    let mut proxy = TestProxy::with(1, 10, hold(Duration::from_secs(10)));
    let (_kept, nowhere) = closed_port();
    let before = proxy.commit(nowhere);
    let mut client = proxy.client();
    client.write_all(b"PING\r\n").unwrap();
    proxy.wait_for("a failed dial", |stats| stats.dial_failures.iter().sum::<u64>() > 0);
    assert_eq!(before.first_use(), None, "a session that was not let in has not reached it");
    let after = proxy.commit(there.addr());
    expect(&mut there.accept(), b"PING\r\n");
    proxy.wait_for("the session", |stats| stats.bytes_in > 0);
    assert!(after.first_use().is_some() && before.first_use().is_none());
}

#[test]
fn sends_no_request_back_to_a_refused_client() {
    let (proxy, mut client) =
        TestProxy::with_waiting_client(hold(Duration::from_millis(50)), None, b"SET k v\r\n");
    let reply = String::from_utf8(rest(&mut client)).unwrap();
    assert!(reply.starts_with("-LOADING ") && reply.matches("\r\n").count() == 1, "{reply}");
    proxy.wait_for_end(EndReason::HoldTimeout);
}
