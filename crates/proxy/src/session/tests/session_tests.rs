//! Sessions over real sockets: bytes pass unchanged, and each kind of end reaches the other side.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;

use crate::testing::{
    Backend, SOON, TestProxy, expect, is_silent, reset, rest, rest_or_reset, session,
};
use crate::{EndReason, Hint, Options, Refusals, Sessions};

/// A small random number generator with a seed, so that a failure can be repeated.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % below
    }
}

/// Writes `bytes` in pieces of any size.
fn write_in_pieces(stream: &mut TcpStream, bytes: &[u8], dice: &mut Dice) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let most = [1, 3, 100, 5_000, 300_000][dice.roll(5)];
        let (piece, later) = rest.split_at((1 + dice.roll(most)).min(rest.len()));
        stream.write_all(piece).unwrap();
        rest = later;
    }
}

/// A backend that sends back what it receives.
fn echo(mut stream: TcpStream, mut dice: Dice) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut buffer = vec![0; 100_000];
        loop {
            let room = 1 + dice.roll(buffer.len());
            match stream.read(&mut buffer[..room]).unwrap() {
                0 => return,
                n => write_in_pieces(&mut stream, &buffer[..n], &mut dice),
            }
        }
    })
}

/// Nothing is refused, so bytes that are no request pass as well, and none is held back.
fn without_refusals(backend: &Backend) -> TestProxy {
    let refusals = Refusals::default();
    let options = Options { connect_timeout: SOON, refusals, ..Options::default() };
    let mut proxy = TestProxy::new(options);
    proxy.commit(backend.addr());
    proxy
}

fn echo_unchanged(sent: Vec<u8>, seed: u64) -> EndReason {
    let backend = Backend::new();
    let proxy = without_refusals(&backend);
    let mut client = proxy.client();
    let echo = echo(backend.accept(), Dice(seed));
    let sent = Arc::new(sent);
    let writer = {
        let (mut client, sent) = (client.try_clone().unwrap(), Arc::clone(&sent));
        thread::spawn(move || {
            write_in_pieces(&mut client, &sent, &mut Dice(seed + 1));
            client.shutdown(Shutdown::Write).unwrap();
        })
    };
    let back = rest(&mut client);
    writer.join().unwrap();
    echo.join().unwrap();
    assert!(back == *sent, "{} bytes sent, {} received, seed {seed}", sent.len(), back.len());
    let stats = proxy.wait_for("the end", |stats| stats.closed_in_all() == 1);
    assert_eq!((stats.bytes_in, stats.bytes_out), (sent.len() as u64, sent.len() as u64));
    *EndReason::ALL.iter().find(|reason| stats.closed_for(**reason) == 1).unwrap()
}

/// Whether the kernel watches, by keepalive, this process's connection to `addr`.
fn keeps_alive_to(addr: SocketAddr) -> bool {
    let IpAddr::V4(ip) = addr.ip() else { panic!("{addr}") };
    let remote = format!("{:08X}:{:04X}", u32::from_le_bytes(ip.octets()), addr.port());
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    // Timer 2 is that of keepalive.
    rows.into_iter().any(|row| row[2] == remote && row[5].starts_with("02:"))
}

#[test]
fn sets_keepalive_to_targets_of_lasting_sessions() {
    let backend = Backend::new();
    let proxy = TestProxy::with_target(&backend);
    let mut client = proxy.client();
    let mut upstream = backend.accept();
    proxy.wait_for("the keepalive timer", |_| keeps_alive_to(backend.addr()));
    client.write_all(b"PING\r\n").unwrap();
    expect(&mut upstream, b"PING\r\n");
    assert!(keeps_alive_to(backend.addr()), "the visit changes nothing else");
}

#[test]
fn forwards_any_bytes_in_any_pieces_unchanged() {
    for seed in 0..4 {
        let mut dice = Dice(seed);
        let length = 1 + dice.roll(3_000_000);
        let bytes = (0..length).map(|_| u8::try_from(dice.roll(256)).unwrap()).collect();
        assert_eq!(echo_unchanged(bytes, seed), EndReason::ClientClosed);
    }
}

#[test]
fn forwards_every_byte_before_the_next_one_comes() {
    let backend = Backend::new();
    let proxy = without_refusals(&backend);
    let (mut client, mut upstream) = session(&proxy, &backend);
    let words: [(&[u8], &[u8]); 3] = [
        (b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", b"$5\r\na\r\nbc\r\n"),
        (b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n", b"%2\r\n+proto\r\n:3\r\n+modules\r\n*0\r\n"),
        (
            b"get k\r\n",
            b">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n\
              |1\r\n+ttl\r\n:1\r\n*?\r\n$?\r\n;1\r\nx\r\n;0\r\n.\r\n",
        ),
    ];
    for (request, reply) in words {
        for byte in request {
            client.write_all(&[*byte]).unwrap();
            expect(&mut upstream, &[*byte]);
        }
        for byte in reply {
            upstream.write_all(&[*byte]).unwrap();
            expect(&mut client, &[*byte]);
        }
    }
    // All replies were parsed, with the one of `session`.
    let stats = proxy.wait_for("the last reply to be counted", |stats| stats.replies == 4);
    assert_eq!((stats.commands, stats.closed_in_all()), (4, 0));
}

#[test]
fn forwards_pipelines_and_large_values_unchanged() {
    for seed in 10..13 {
        let mut dice = Dice(seed);
        let mut bytes = Vec::new();
        let mut sizes = vec![10_000_000];
        sizes.extend((0..3_000).map(|_| dice.roll(200)));
        sizes.extend((0..10).map(|_| dice.roll(400_000)));
        for size in sizes {
            // As a request it is `SET`, and as a reply an array of three.
            bytes
                .extend_from_slice(format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${size}\r\n").as_bytes());
            bytes.extend(std::iter::repeat_n(b'x', size));
            bytes.extend_from_slice(b"\r\n");
        }
        assert_eq!(echo_unchanged(bytes, seed), EndReason::ClientClosed);
    }
}

#[test]
fn counts_commands() {
    let backend = Backend::new();
    let proxy = TestProxy::with_target(&backend);
    let (mut client, mut upstream) = session(&proxy, &backend);
    client.write_all(b"GET a\r\nGET b\r\n").unwrap();
    expect(&mut upstream, b"GET a\r\nGET b\r\n");
    upstream.write_all(b"$1\r\nx\r\n$1\r\ny\r\n").unwrap();
    expect(&mut client, b"$1\r\nx\r\n$1\r\ny\r\n");
    let stats = proxy.stats();
    assert_eq!((stats.commands, stats.replies, stats.dials, stats.open()), (3, 3, 1, 1));
}

#[test]
fn passes_the_clients_end_on_and_delivers_replies() {
    let backend = Backend::new();
    let proxy = TestProxy::with_target(&backend);
    let (mut client, mut upstream) = session(&proxy, &backend);
    client.write_all(b"GET k\r\n").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rest(&mut upstream), b"GET k\r\n");
    upstream.write_all(b"$1\r\nv\r\n").unwrap();
    expect(&mut client, b"$1\r\nv\r\n");
    drop(upstream);
    assert_eq!(rest(&mut client), b"");
    proxy.wait_for_end(EndReason::ClientClosed);
    assert_eq!(proxy.hints(), []);
}

#[test]
fn passes_the_targets_end_on_and_forwards_requests() {
    let backend = Backend::new();
    let proxy = TestProxy::with_target(&backend);
    let (mut client, mut upstream) = session(&proxy, &backend);
    upstream.write_all(b"+BYE\r\n").unwrap();
    upstream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rest(&mut client), b"+BYE\r\n");
    client.write_all(b"GET k\r\n").unwrap();
    expect(&mut upstream, b"GET k\r\n");
    drop(client);
    assert_eq!(rest(&mut upstream), b"");
    proxy.wait_for_end(EndReason::UpstreamClosed);
    assert_eq!(proxy.hints(), [Hint::UpstreamEnded]);
}

#[test]
fn closes_half_closed_sessions_after_a_timeout() {
    let backend = Backend::new();
    for client_first in [true, false] {
        let timeout = std::time::Duration::from_millis(50);
        let mut proxy = TestProxy::new(Options {
            half_close_timeout: timeout,
            sessions: Sessions::Close,
            ..Options::default()
        });
        proxy.commit(backend.addr());
        let (mut client, mut upstream) = session(&proxy, &backend);
        // The side that is owed a reply closes its direction, and never gets it.
        client.write_all(b"GET k\r\n").unwrap();
        expect(&mut upstream, b"GET k\r\n");
        let (ended, other) =
            if client_first { (&mut client, &mut upstream) } else { (&mut upstream, &mut client) };
        ended.shutdown(Shutdown::Write).unwrap();
        assert_eq!(rest(other), b"");
        assert_eq!(rest(ended), b"");
        proxy.wait_for_end(EndReason::HalfCloseTimeout);
    }
}

#[test]
fn closes_at_once_a_client_that_is_owed_nothing() {
    let backend = Backend::new();
    let proxy = TestProxy::with_target(&backend);
    let (mut client, mut upstream) = session(&proxy, &backend);
    client.shutdown(Shutdown::Write).unwrap();
    // The target has not closed its direction.
    assert_eq!(rest(&mut client), b"");
    proxy.wait_for_end(EndReason::ClientClosed);
    assert_eq!(rest_or_reset(&mut upstream), b"");
}

#[test]
fn closes_the_upstream_when_the_client_resets() {
    let backend = Backend::new();
    let proxy = TestProxy::with_target(&backend);
    let (client, mut upstream) = session(&proxy, &backend);
    reset(client);
    assert_eq!(rest_or_reset(&mut upstream), b"");
    proxy.wait_for_end(EndReason::ClientReset);
}

#[test]
fn closes_the_client_when_the_target_resets() {
    let backend = Backend::new();
    let mut proxy = TestProxy::new(Options { sessions: Sessions::Close, ..Options::default() });
    proxy.commit(backend.addr());
    let (mut client, upstream) = session(&proxy, &backend);
    reset(upstream);
    assert_eq!(rest(&mut client), b"");
    proxy.wait_for_end(EndReason::UpstreamReset);
    assert_eq!(proxy.hints(), [Hint::UpstreamEnded]);
}

/// Strangers at a port: the target closes because of what they send, and is not examined for it.
#[test]
fn blames_no_target_for_an_end_that_the_client_provoked() {
    let refusal: &[u8] = b"-ERR Protocol error: invalid bulk length\r\n";
    let wrong_number = b"-ERR wrong number of arguments\r\n";
    // What is no request is replaced by other bytes that are none.
    let replaced = b"*1\r\n!\r\n".as_slice();
    let strangers: [(&[u8], &[u8], &[u8]); 5] = [
        (b"*1\r\n$-5\r\n", replaced, refusal),
        (b"*1\r\n:1\r\n", replaced, b""),
        (b"POST /x HTTP/1.1\r\n", b"POST /x HTTP/1.1\r\n", b""),
        (b"GET / HTTP/1.1\r\nHost: a\r\n", b"GET / HTTP/1.1\r\nHost: a\r\n", wrong_number),
        // Accepted here, refused by the target.
        (b"PING\r\n", b"PING\r\n", refusal),
    ];
    for (said, forwarded, reply) in strangers {
        let backend = Backend::new();
        let proxy = TestProxy::with_target(&backend);
        let (mut client, mut upstream) = session(&proxy, &backend);
        client.write_all(said).unwrap();
        expect(&mut upstream, forwarded);
        upstream.write_all(reply).unwrap();
        drop(upstream);
        assert_eq!(rest(&mut client), reply);
        drop(client);
        proxy.wait_for("its end", |stats| stats.closed_in_all() == 1);
        assert_eq!(proxy.hints(), [], "{:?}", String::from_utf8_lossy(said));
    }
}

/// It would discard replies that it has not written yet.
#[test]
fn announces_no_end_to_a_target_that_ends_by_itself() {
    let backend = Backend::new();
    let proxy = TestProxy::with_target(&backend);
    let (mut client, mut upstream) = session(&proxy, &backend);
    client.write_all(b"PING\r\n*1\r\n:1\r\n").unwrap();
    expect(&mut upstream, b"PING\r\n*1\r\n!\r\n");
    upstream.write_all(b"+PONG\r\n").unwrap();
    expect(&mut client, b"+PONG\r\n");
    assert!(is_silent(&mut upstream));
    upstream.write_all(b"-ERR Protocol error\r\n").unwrap();
    drop(upstream);
    assert_eq!(rest(&mut client), b"-ERR Protocol error\r\n");
}

/// Its session would otherwise occupy a place until a timeout.
#[test]
fn announces_the_end_of_a_client_that_leaves_after_nonsense() {
    let backend = Backend::new();
    let proxy = TestProxy::with_target(&backend);
    let (mut client, mut upstream) = session(&proxy, &backend);
    client.write_all(b"*1\r\n:1\r\n").unwrap();
    expect(&mut upstream, b"*1\r\n!\r\n");
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rest(&mut upstream), b"");
}

/// An error with those words that a script returns is followed by other replies.
#[test]
fn reports_an_end_after_a_reply_that_looks_like_the_last_one() {
    let backend = Backend::new();
    let proxy = TestProxy::with_target(&backend);
    let (mut client, mut upstream) = session(&proxy, &backend);
    for reply in [&b"-ERR Protocol error, says a script\r\n"[..], b"$1\r\nv\r\n"] {
        client.write_all(b"GET k\r\n").unwrap();
        expect(&mut upstream, b"GET k\r\n");
        upstream.write_all(reply).unwrap();
        expect(&mut client, reply);
    }
    client.write_all(b"GET k\r\n").unwrap();
    expect(&mut upstream, b"GET k\r\n");
    drop(upstream);
    assert_eq!(rest(&mut client), b"");
    drop(client);
    proxy.wait_for("its end", |stats| stats.closed_in_all() == 1);
    assert_eq!(proxy.hints(), [Hint::UpstreamEnded]);
}

#[test]
fn delivers_last_replies_of_a_closed_target() {
    let backend = Backend::new();
    let proxy = TestProxy::with_target(&backend);
    let mut client = proxy.client();
    let mut upstream = backend.accept();
    upstream.write_all(b"-ERR max number of clients reached\r\n").unwrap();
    drop(upstream);
    // The target has closed: these bytes are answered by a reset.
    client.write_all(b"PING\r\n").unwrap();
    expect(&mut client, b"-ERR max number of clients reached\r\n");
}

#[test]
fn applies_backpressure_to_a_slow_reader() {
    let backend = Backend::new();
    let proxy = TestProxy::with_target(&backend);
    let (mut client, mut upstream) = session(&proxy, &backend);
    let (mut other, mut others) = session(&proxy, &backend);
    let total = 64 * 1024 * 1024_usize;
    let bytes: Arc<Vec<u8>> =
        Arc::new((0..total).map(|n| u8::try_from(n % 251).unwrap()).collect());
    let writer = {
        let bytes = Arc::clone(&bytes);
        thread::spawn(move || upstream.write_all(&bytes).unwrap())
    };
    // Everything that the kernel buffers is written; then nothing moves, however long the test
    // waits.
    let mut before =
        proxy.wait_for("the first bytes", |stats| stats.bytes_out > 1_000_000).bytes_out;
    for _ in 0..200 {
        // Each round trip of another session is a round of the worker's event loop.
        other.write_all(b"PING\r\n").unwrap();
        expect(&mut others, b"PING\r\n");
        others.write_all(b"+PONG\r\n").unwrap();
        expect(&mut other, b"+PONG\r\n");
        before = proxy.stats().bytes_out.max(before);
    }
    assert!(
        before < total as u64 - 1024 * 1024 && !writer.is_finished(),
        "{before} of {total} bytes were taken"
    );
    let mut read = vec![0; total];
    client.read_exact(&mut read).unwrap();
    assert!(read == *bytes);
    writer.join().unwrap();
}

#[test]
fn reports_hints() {
    let backend = Backend::new();
    let proxy = TestProxy::with_target(&backend);
    let (mut client, mut upstream) = session(&proxy, &backend);
    client.write_all(b"SET k v\r\n").unwrap();
    expect(&mut upstream, b"SET k v\r\n");
    upstream.write_all(b"-READONLY You can't write against a read only replica.\r\n").unwrap();
    let mut line = [0; 9];
    client.read_exact(&mut line).unwrap();
    assert_eq!(proxy.hints(), [Hint::Replied(resp::Hint::ReadOnly)]);
    assert_eq!(proxy.stats().hints, 1);
}

#[test]
fn closes_idle_clients_and_keeps_blocked_ones() {
    let backend = Backend::new();
    let timeout = std::time::Duration::from_millis(80);
    let proxy = TestProxy::with_target(&backend);
    let (mut blocked, mut blocking) = session(&proxy, &backend);
    blocked.write_all(b"BLPOP q 0\r\n").unwrap();
    expect(&mut blocking, b"BLPOP q 0\r\n");
    for round in 1..=2 {
        // Configured only when the session is in place: however long that takes, it is not idle
        // meanwhile.
        proxy.running().tune(0, Options::default());
        let (mut idle, _upstream) = session(&proxy, &backend);
        proxy.running().tune(0, Options { client_idle_timeout: timeout, ..Options::default() });
        assert_eq!(rest(&mut idle), b"");
        proxy.wait_for("its end", |stats| stats.closed_for(EndReason::IdleTimeout) == round);
    }
    assert!(is_silent(&mut blocked));
    blocking.write_all(b"*-1\r\n").unwrap();
    expect(&mut blocked, b"*-1\r\n");
}
