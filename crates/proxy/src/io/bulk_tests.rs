//! Bodies of large values through pipes: they arrive intact, and what the fence forbids goes
//! nowhere.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::churn_tests::{Dice, echo};
use rustix::io::Errno;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

use crate::testing::{Backend, SOON, TestProxy, expect, is_silent, session};
use crate::{EndReason, Options, Sessions, Splice};

const MIB: usize = 1 << 20;

fn proxy(splice: Splice, backend: &Backend) -> TestProxy {
    let mut proxy =
        TestProxy::new(Options { splice, sessions: Sessions::Close, ..Options::default() });
    proxy.commit(backend.addr());
    proxy
}

/// A request, which is also a valid reply if it is echoed.
fn request(body: &[u8]) -> Vec<u8> {
    let mut request = format!("*2\r\n$4\r\nECHO\r\n${}\r\n", body.len()).into_bytes();
    request.extend_from_slice(body);
    request.extend_from_slice(b"\r\n");
    request
}

/// Writes in pieces of random size, with small requests in between.
fn write_in_pieces(mut client: TcpStream, requests: &[Vec<u8>], dice: &mut Dice) {
    for request in requests {
        let mut rest = &request[..];
        while !rest.is_empty() {
            let (piece, left) = rest.split_at((1 + dice.throw(300_000)).min(rest.len()));
            client.write_all(piece).unwrap();
            rest = left;
            if dice.throw(8) == 0 {
                // An occasional pause, so that the proxy finds the source empty in the middle of a
                // body.
                thread::yield_now();
            }
        }
    }
    client.shutdown(Shutdown::Write).unwrap();
}

#[test]
fn transfers_bodies_intact_in_pieces_of_any_size() {
    let backend = Backend::new();
    let proxy = proxy(Splice::On, &backend);
    for seed in 1..=3_u64 {
        let mut dice = Dice(seed * 0x51_7CC1);
        let requests: Vec<Vec<u8>> = (0..6)
            .map(|number| {
                let length = if number % 2 == 0 { dice.throw(3 * MIB) } else { dice.throw(100) };
                request(&dice.bytes(length))
            })
            .collect();
        let whole = requests.concat();
        let client = proxy.client();
        let writer = client.try_clone().unwrap();
        let echoing = backend.accept();
        let back = thread::scope(|scope| {
            scope.spawn(|| echo(echoing));
            scope.spawn(|| write_in_pieces(writer, &requests, &mut Dice(seed)));
            read_slowly(client, &mut dice)
        });
        assert!(back == whole, "{} of {} bytes", back.len(), whole.len());
    }
    let stats = proxy.wait_for("all sessions to end", |stats| stats.closed_in_all() == 3);
    assert_eq!(
        (stats.closed_for(EndReason::ClientClosed), stats.commands, stats.replies),
        (3, 18, 18)
    );
    assert!(stats.bytes_spliced > MIB as u64, "{}", stats.bytes_spliced);
}

/// Reads to the end in pieces of any size.
fn read_slowly(mut client: TcpStream, dice: &mut Dice) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let mut piece = vec![0; 1 + dice.throw(200_000)];
        let n = client.read(&mut piece).unwrap();
        if n == 0 {
            return all;
        }
        all.extend_from_slice(&piece[..n]);
    }
}

#[test]
fn splices_nothing_when_disabled() {
    let backend = Backend::new();
    let proxy = proxy(Splice::Off, &backend);
    assert_eq!(echo_large_value(&proxy, &backend), 0);
}

/// Makes the system refuse to splice more than `bytes` at once, for this thread and the threads it
/// starts.
fn forbid_more_than(bytes: u64, errno: i32) {
    // The fifth argument of splice(2) is the length.
    let condition =
        SeccompCondition::new(4, SeccompCmpArgLen::Qword, SeccompCmpOp::Gt, bytes).unwrap();
    let rules = [(libc::SYS_splice, vec![SeccompRule::new(vec![condition]).unwrap()])];
    let errno = SeccompAction::Errno(errno.cast_unsigned());
    let machine = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules.into(), SeccompAction::Allow, errno, machine).unwrap();
    seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
}

/// Sends a value to the backend and back, and returns how many of its bytes were spliced.
fn echo_large_value(proxy: &TestProxy, backend: &Backend) -> u64 {
    let (mut client, upstream) = session(proxy, backend);
    let echoing = thread::spawn(|| echo(upstream));
    let whole = request(&Dice(7).bytes(2 * MIB));
    let mut writer = client.try_clone().unwrap();
    let sent = whole.clone();
    let writing = thread::spawn(move || writer.write_all(&sent).unwrap());
    let mut back = vec![0; whole.len()];
    client.read_exact(&mut back).unwrap();
    assert!(back == whole);
    writing.join().unwrap();
    drop(client);
    echoing.join().unwrap();
    proxy.stats().bytes_spliced
}

#[test]
fn copies_when_sandbox_forbids_splice_from_start() {
    for (errno, code) in [(Errno::PERM, libc::EPERM), (Errno::NOSYS, libc::ENOSYS)] {
        let sandbox = thread::spawn(move || {
            forbid_more_than(0, code);
            let backend = Backend::new();
            let proxy = proxy(Splice::On, &backend);
            let known = proxy.running().splices.as_ref().unwrap_err();
            assert_eq!(Errno::from_io_error(known), Some(errno));
            assert_eq!(echo_large_value(&proxy, &backend), 0);
        });
        sandbox.join().unwrap();
    }
}

#[test]
fn loses_nothing_when_splice_is_refused_late() {
    let sandbox = thread::spawn(|| {
        // The trial at the start is a single byte.
        forbid_more_than(1, libc::EPERM);
        let backend = Backend::new();
        let proxy = proxy(Splice::On, &backend);
        assert!(proxy.running().splices.is_ok());
        assert_eq!(echo_large_value(&proxy, &backend), 0);
    });
    sandbox.join().unwrap();
}

#[test]
fn sends_rest_of_body_nowhere_after_fence() {
    let backend = Backend::new();
    let mut proxy = proxy(Splice::On, &backend);
    let (mut client, mut upstream) = session(&proxy, &backend);
    let mut writer = client.try_clone().unwrap();
    // More than all sockets on the way hold, for a target that does not read: the pipe is full when
    // the fence is raised.
    let flood = request(&vec![b'A'; 64 * MIB]);
    let writing = thread::spawn(move || drop(writer.write_all(&flood)));
    wait_until_stalled(&proxy);
    proxy.publisher.clear();
    proxy.wait_for_end(EndReason::Fenced);
    let forwarded = proxy.stats().bytes_in;
    let mut read = Vec::new();
    // It ends with a reset.
    drop(upstream.read_to_end(&mut read));
    assert!(read.len() as u64 + 6 <= forwarded, "{} read, {forwarded} forwarded", read.len());
    // For the client too, since what it still sends is not read.
    drop(client.read_to_end(&mut Vec::new()));
    writing.join().unwrap();
    // The values of the next session are its own.
    let next = Backend::new();
    proxy.commit(next.addr());
    let (mut client, mut upstream) = session(&proxy, &next);
    let whole = request(&vec![b'B'; 2 * MIB]);
    let (sent, mut writer) = (whole.clone(), client.try_clone().unwrap());
    let writing = thread::spawn(move || writer.write_all(&sent).unwrap());
    let mut read = vec![0; whole.len()];
    upstream.read_exact(&mut read).unwrap();
    assert!(read == whole);
    writing.join().unwrap();
    upstream.write_all(b"+OK\r\n").unwrap();
    expect(&mut client, b"+OK\r\n");
}

/// Waits until a body is in progress and its target accepts no more of it, and returns how many
/// bytes were forwarded.
#[track_caller]
fn wait_until_stalled(proxy: &TestProxy) -> u64 {
    let (mut before, mut still) = (0, 0);
    let begin = Instant::now();
    while still < 5 {
        assert!(begin.elapsed() < SOON, "the transfer never stalled");
        thread::park_timeout(Duration::from_millis(20));
        let stats = proxy.stats();
        still = if stats.bytes_in == before && stats.bytes_spliced > 0 { still + 1 } else { 0 };
        before = stats.bytes_in;
    }
    before
}

#[test]
fn keeps_pipe_content_while_gate_is_closed() {
    for switches in [false, true] {
        let backend = Backend::new();
        let mut proxy = proxy(Splice::On, &backend);
        let (mut client, mut upstream) = session(&proxy, &backend);
        let whole = request(&Dice(13).bytes(24 * MIB));
        let (mut writer, sent) = (client.try_clone().unwrap(), whole.clone());
        let writing = thread::spawn(move || drop(writer.write_all(&sent)));
        let forwarded = wait_until_stalled(&proxy);
        proxy.publisher.hold();
        // Now there is space for the content of the pipe, and the worker is notified.
        let mut read = vec![0; usize::try_from(forwarded).unwrap() - b"PING\r\n".len()];
        upstream.read_exact(&mut read).unwrap();
        // The worker accepts this client later, so it has tried to empty the pipe before.
        let held = proxy.client();
        proxy.wait_for("the next client to wait", |stats| stats.held == 1);
        assert_eq!(proxy.stats().bytes_in, forwarded, "forwarded while the gate was closed");
        assert!(is_silent(&mut upstream), "sent to a master that may be superseded");
        drop(held);
        if switches {
            proxy.commit(Backend::new().addr());
            proxy.wait_for("the end of the session", |stats| {
                stats.closed_for(EndReason::Fenced) == 1
            });
            // It ends with a reset.
            drop(upstream.read_to_end(&mut read));
            drop(client.read_to_end(&mut Vec::new()));
        } else {
            proxy.publisher.release();
            let at = read.len();
            read.resize(whole.len(), 0);
            upstream.read_exact(&mut read[at..]).unwrap();
            upstream.write_all(b"+OK\r\n").unwrap();
            expect(&mut client, b"+OK\r\n");
        }
        assert!(
            whole.starts_with(&read) && (switches == (read.len() < whole.len())),
            "{} bytes",
            read.len()
        );
        assert!(
            !switches || read.len() as u64 + 6 == forwarded,
            "{} bytes, {forwarded} forwarded",
            read.len()
        );
        writing.join().unwrap();
    }
}

#[test]
fn delivers_large_reply_after_target_has_closed() {
    let backend = Backend::new();
    let proxy = proxy(Splice::On, &backend);
    let (mut client, mut upstream) = session(&proxy, &backend);
    client.write_all(b"GET k\r\n").unwrap();
    expect(&mut upstream, b"GET k\r\n");
    let body = Dice(11).bytes(3 * MIB);
    let whole = [format!("${}\r\n", body.len()).as_bytes(), &body, b"\r\n"].concat();
    let sent = whole.clone();
    let writing = thread::spawn(move || {
        upstream.write_all(&sent).unwrap();
        drop(upstream);
    });
    let back = read_slowly(client, &mut Dice(12));
    assert!(back == whole, "{} of {} bytes", back.len(), whole.len());
    writing.join().unwrap();
    assert!(proxy.stats().bytes_spliced > 0);
    assert_eq!(proxy.stats().commands, 2);
}
