//! Sessions that share connections: order, promotion, return, and what they survive.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::num::NonZeroU16;

use crate::session::carry::proof_tests::PING;
use crate::shared::server_limits::ASK_LIMITS;
use crate::shared::server_table::ask_table;
use crate::testing::{Backend, SOON, TestProxy, expect, is_silent, rest, rest_or_reset};
use crate::{EndReason, Options, UpstreamMode};

const MULTI: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";
const EXEC: &[u8] = b"*1\r\n$4\r\nEXEC\r\n";

pub(crate) fn options() -> Options {
    Options {
        connect_timeout: SOON,
        upstream: UpstreamMode::Shared(NonZeroU16::MIN),
        ..Options::default()
    }
}

pub(crate) fn proxy(backend: &Backend) -> TestProxy {
    let mut proxy = TestProxy::new(options());
    proxy.commit(backend.addr());
    proxy
}

pub(crate) fn request(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len());
    for word in words {
        bytes += &format!("${}\r\n{word}\r\n", word.len());
    }
    bytes.into_bytes()
}

pub(crate) fn get(key: &str) -> Vec<u8> {
    request(&["GET", key])
}

/// The next shared connection.
pub(crate) fn accept_shared(backend: &Backend) -> TcpStream {
    let mut shared = backend.accept_carried();
    refuse_table(&mut shared);
    shared
}

/// A connection that verified another client is taken back to the start.
pub(crate) fn answer_reset(own: &mut TcpStream) {
    expect(own, b"*1\r\n$5\r\nRESET\r\n");
    own.write_all(b"+RESET\r\n").unwrap();
}

/// The server is asked on a new connection whether it admits clients without credentials.
pub(crate) fn admit(backend: &Backend) -> TcpStream {
    let mut asked = backend.accept_carried();
    answer_reset(&mut asked);
    asked
}

pub(crate) fn refuse_table(shared: &mut TcpStream) {
    expect(shared, &ask_table());
    shared.write_all(b"-NOPERM x\r\n").unwrap();
    refuse_limits(shared);
}

pub(crate) fn refuse_limits(shared: &mut TcpStream) {
    expect(shared, ASK_LIMITS);
    shared.write_all(b"-NOPERM x\r\n").unwrap();
}

/// A client with a request and its reply behind it, and the shared connection.
pub(crate) fn sharing(proxy: &TestProxy, backend: &Backend) -> (TcpStream, TcpStream) {
    let mut client = proxy.client();
    client.write_all(&get("first")).unwrap();
    let mut shared = accept_shared(backend);
    expect(&mut shared, &get("first"));
    shared.write_all(b"$-1\r\n").unwrap();
    expect(&mut client, b"$-1\r\n");
    (client, shared)
}

/// One more client on the same connection.
pub(crate) fn another(proxy: &TestProxy, shared: &mut TcpStream) -> TcpStream {
    let mut client = proxy.client();
    exchange(&mut client, shared, &get("another"), b"$-1\r\n");
    client
}

pub(crate) fn exchange(
    client: &mut TcpStream,
    upstream: &mut TcpStream,
    request: &[u8],
    reply: &[u8],
) {
    client.write_all(request).unwrap();
    expect(upstream, request);
    upstream.write_all(reply).unwrap();
    expect(client, reply);
}

#[test]
fn hands_replies_to_clients_in_order() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let (mut one, mut shared) = sharing(&proxy, &backend);
    let mut two = another(&proxy, &mut shared);
    one.write_all(&get("a")).unwrap();
    expect(&mut shared, &get("a"));
    two.write_all(&[get("b"), get("c")].concat()).unwrap();
    expect(&mut shared, &[get("b"), get("c")].concat());
    one.write_all(&get("d")).unwrap();
    expect(&mut shared, &get("d"));
    // A reply in pieces, and replies of several clients in one.
    shared.write_all(b"$1\r\nA\r\n$1\r\nB").unwrap();
    expect(&mut one, b"$1\r\nA\r\n");
    assert!(is_silent(&mut one));
    shared.write_all(b"\r\n$1\r\nC\r\n$1\r\nD\r\n").unwrap();
    expect(&mut two, b"$1\r\nB\r\n$1\r\nC\r\n");
    expect(&mut one, b"$1\r\nD\r\n");
    assert!(!backend.has_pending_connection());
    let stats = proxy.stats();
    assert_eq!((stats.shared.sessions, stats.shared.connections, stats.dials), (2, 1, 1));
}

#[test]
fn waits_for_the_rest_of_a_request() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let (mut one, mut shared) = sharing(&proxy, &backend);
    let mut two = another(&proxy, &mut shared);
    let split = get("split");
    let (first, second) = split.split_at(9);
    one.write_all(first).unwrap();
    exchange(&mut two, &mut shared, &get("whole"), b"$1\r\nw\r\n");
    one.write_all(second).unwrap();
    expect(&mut shared, &get("split"));
    shared.write_all(b"$1\r\ns\r\n").unwrap();
    expect(&mut one, b"$1\r\ns\r\n");
}

#[test]
fn promotes_a_transaction_and_returns_later() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let (mut one, mut shared) = sharing(&proxy, &backend);
    let mut two = another(&proxy, &mut shared);
    // Everything after the request that promotes waits for the replies before it.
    one.write_all(&[&get("before")[..], MULTI, &get("in"), EXEC].concat()).unwrap();
    expect(&mut shared, &get("before"));
    exchange_of_another(&mut two, &mut shared);
    assert!(!backend.has_pending_connection());
    shared.write_all(b"$1\r\nb\r\n$1\r\n2\r\n").unwrap();
    expect(&mut one, b"$1\r\nb\r\n");
    expect(&mut two, b"$1\r\n2\r\n");
    let mut own = backend.accept_carried();
    expect(&mut own, &[MULTI, &get("in"), EXEC].concat());
    own.write_all(b"+OK\r\n+QUEUED\r\n*1\r\n$1\r\ni\r\n").unwrap();
    expect(&mut one, b"+OK\r\n+QUEUED\r\n*1\r\n$1\r\ni\r\n");
    exchange(&mut one, &mut own, &get("own"), b"$1\r\no\r\n");
    proxy.wait_for("the return", |stats| stats.shared.returned == 1);
    assert_eq!(rest_or_reset(&mut own), b"");
    one.write_all(&get("back")).unwrap();
    admit(&backend);
    expect(&mut shared, &get("back"));
    shared.write_all(b"$1\r\nb\r\n").unwrap();
    expect(&mut one, b"$1\r\nb\r\n");
    let stats = proxy.stats();
    let promoted: u64 = stats.shared.promoted.iter().sum();
    assert_eq!((promoted, stats.carried, stats.shared.sessions), (1, 0, 2));
    let keys = ["first", "another", "before", "in", "two", "own", "back"];
    let sent: usize = keys.iter().map(|key| get(key).len()).sum();
    assert_eq!(stats.bytes_in, (sent + MULTI.len() + EXEC.len()) as u64, "some counted twice");
}

fn exchange_of_another(client: &mut TcpStream, shared: &mut TcpStream) {
    client.write_all(&get("two")).unwrap();
    expect(shared, &get("two"));
}

#[test]
fn ends_only_sessions_in_flight_on_a_lost_connection() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let (mut one, mut shared) = sharing(&proxy, &backend);
    let mut idle = another(&proxy, &mut shared);
    one.write_all(&get("lost")).unwrap();
    expect(&mut shared, &get("lost"));
    drop(shared);
    assert_eq!(rest_of(one), b"");
    idle.write_all(&get("next")).unwrap();
    let mut shared = accept_shared(&backend);
    expect(&mut shared, &get("next"));
    shared.write_all(b"$1\r\nn\r\n").unwrap();
    expect(&mut idle, b"$1\r\nn\r\n");
    let stats = proxy.stats();
    assert_eq!((stats.shared.members_lost, stats.closed_in_all(), stats.carried), (1, 1, 0));
}

/// What is left to read, whether the end is orderly or not.
pub(crate) fn rest_of(mut client: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _reset = std::io::Read::read_to_end(&mut client, &mut bytes);
    bytes
}

#[test]
fn closes_a_connection_with_an_impossible_reply() {
    for reply in [&b"+QUEUED\r\n"[..], b"$-1\r\n$-1\r\n", b"%1\r\n+a\r\n+b\r\n", b"\0"] {
        let backend = Backend::new();
        let proxy = proxy(&backend);
        let (mut one, mut shared) = sharing(&proxy, &backend);
        let mut idle = another(&proxy, &mut shared);
        one.write_all(&get("k")).unwrap();
        expect(&mut shared, &get("k"));
        shared.write_all(reply).unwrap();
        proxy.wait_for("the disagreement", |stats| stats.shared.desyncs == 1);
        assert_eq!(rest(&mut shared), b"");
        if reply.starts_with(b"$") {
            // The first one was its reply.
            expect(&mut one, b"$-1\r\n");
        } else {
            proxy.wait_for_end(EndReason::SharedDesync);
            let tls = proxy.stats().target_tls.failures;
            assert!(tls.iter().all(|count| *count == 0), "{tls:?}");
        }
        idle.write_all(&get("next")).unwrap();
        let mut shared = accept_shared(&backend);
        expect(&mut shared, &get("next"));
        shared.write_all(b"$1\r\nn\r\n").unwrap();
        expect(&mut idle, b"$1\r\nn\r\n");
    }
}

#[test]
fn drops_replies_to_a_client_that_left() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let (mut one, mut shared) = sharing(&proxy, &backend);
    let mut two = another(&proxy, &mut shared);
    one.write_all(&get("gone")).unwrap();
    expect(&mut shared, &get("gone"));
    crate::testing::reset(one);
    proxy.wait_for("the end", |stats| stats.closed_in_all() == 1);
    two.write_all(&get("two")).unwrap();
    expect(&mut shared, &get("two"));
    shared.write_all(b"$6\r\nsecret\r\n$1\r\n2\r\n").unwrap();
    expect(&mut two, b"$1\r\n2\r\n");
}

#[test]
fn carries_sessions_at_a_master_change() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut proxy = proxy(&old);
    let (mut idle, mut shared) = sharing(&proxy, &old);
    let mut asking = another(&proxy, &mut shared);
    let mut lost = another(&proxy, &mut shared);
    lost.write_all(&get("lost")).unwrap();
    expect(&mut shared, &get("lost"));
    // Requests wait at the closed gate, and go to the next target only.
    proxy.publisher.hold();
    asking.write_all(&get("held")).unwrap();
    assert!(is_silent(&mut shared));
    proxy.commit(new.addr());
    let mut next = accept_shared(&new);
    expect(&mut next, &get("held"));
    next.write_all(b"$1\r\nh\r\n").unwrap();
    expect(&mut asking, b"$1\r\nh\r\n");
    exchange(&mut idle, &mut next, &get("idle"), b"$1\r\ni\r\n");
    assert_eq!(rest_of(lost), b"");
    assert_eq!(rest_of(shared), b"", "the old connection ends, and nothing more was sent");
    proxy.wait_for("the carry", |stats| {
        (stats.carried, stats.shared.sessions, stats.closed_for(EndReason::Fenced)) == (2, 2, 1)
    });
}

#[test]
fn answers_before_it_closes_for_a_client_that_ended() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let (mut one, mut shared) = sharing(&proxy, &backend);
    one.write_all(&[&get("last")[..], b"*2\r\n$3\r\nGE"].concat()).unwrap();
    one.shutdown(Shutdown::Write).unwrap();
    expect(&mut shared, &get("last"));
    shared.write_all(b"$1\r\nl\r\n").unwrap();
    assert_eq!(rest(&mut one), b"$1\r\nl\r\n");
    proxy.wait_for_end(EndReason::ClientClosed);
    assert!(is_silent(&mut shared), "it is kept for the next client");
}

#[test]
fn promotes_a_client_that_ended_its_direction() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let mut client = proxy.client();
    client.write_all(b"PING\r\n").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut own = backend.accept_carried();
    expect(&mut own, b"PING\r\n");
    own.write_all(b"+PONG\r\n").unwrap();
    assert_eq!(rest(&mut own), b"", "the end is passed on");
    drop(own);
    assert_eq!(rest(&mut client), b"+PONG\r\n");
    proxy.wait_for_end(EndReason::ClientClosed);
}

#[test]
fn opens_own_connections_if_none_can_be_shared() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let mut client = proxy.client();
    client.write_all(&get("k")).unwrap();
    let mut shared = backend.accept();
    expect(&mut shared, PING);
    shared.write_all(b"-ERR max number of clients reached\r\n").unwrap();
    drop(shared);
    let mut own = backend.accept_carried();
    expect(&mut own, &get("k"));
    own.write_all(b"$-1\r\n").unwrap();
    expect(&mut client, b"$-1\r\n");
}

/// A client that does not read a reply of 16 MiB. Returns what it is sent.
fn send_large(client: &mut TcpStream, shared: &mut TcpStream) -> Vec<u8> {
    client.write_all(&get("large")).unwrap();
    expect(shared, &get("large"));
    let size = 16 << 20;
    let mut reply = format!("${size}\r\n").into_bytes();
    reply.resize(reply.len() + size, b'x');
    reply.extend_from_slice(b"\r\n");
    shared.write_all(&reply).unwrap();
    reply
}

#[test]
fn serves_large_replies_and_then_promotes() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let (mut client, mut shared) = sharing(&proxy, &backend);
    let mut other = another(&proxy, &mut shared);
    let reply = send_large(&mut client, &mut shared);
    exchange(&mut other, &mut shared, &get("small"), b"$1\r\ns\r\n");
    let mut read = vec![0; reply.len()];
    std::io::Read::read_exact(&mut client, &mut read).unwrap();
    assert!(read == reply);
    client.write_all(&get("next")).unwrap();
    let mut own = backend.accept_carried();
    expect(&mut own, &get("next"));
}

/// It may not read before it has sent all of its requests.
#[test]
fn promotes_clients_with_replies_that_they_have_not_read() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let (mut client, mut shared) = sharing(&proxy, &backend);
    let reply = send_large(&mut client, &mut shared);
    client.write_all(&get("next")).unwrap();
    let mut own = backend.accept_carried();
    expect(&mut own, &get("next"));
    own.write_all(b"$1\r\nn\r\n").unwrap();
    client.write_all(&get("last")).unwrap();
    expect(&mut own, &get("last"));
    let mut read = vec![0; reply.len()];
    std::io::Read::read_exact(&mut client, &mut read).unwrap();
    assert!(read == reply);
    expect(&mut client, b"$1\r\nn\r\n");
    exchange(&mut client, &mut own, b"", b"$1\r\nl\r\n");
}

/// Its error follows the replies that it has not read.
#[test]
fn delivers_replies_before_it_refuses_a_request() {
    let backend = Backend::new();
    let mut proxy = TestProxy::new(Options { hold_timeout: SOON / 20, ..options() });
    proxy.commit(backend.addr());
    let (mut client, mut shared) = sharing(&proxy, &backend);
    let reply = send_large(&mut client, &mut shared);
    let _closed = backend.close();
    client.write_all(&get("next")).unwrap();
    proxy.wait_for("the promotion", |stats| stats.shared.promoted.iter().sum::<u64>() == 1);
    let all = rest(&mut client);
    let refusal = all.strip_prefix(&reply[..]).expect("the reply comes first");
    assert!(refusal.starts_with(b"-LOADING "), "{}", refusal.escape_ascii());
}

#[test]
fn cuts_clients_that_do_not_read() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let (mut slow, mut shared) = sharing(&proxy, &backend);
    let mut other = another(&proxy, &mut shared);
    slow.write_all(&get("large")).unwrap();
    expect(&mut shared, &get("large"));
    let size = 64 << 20;
    shared.write_all(format!("${size}\r\n").as_bytes()).unwrap();
    shared.write_all(&vec![b'x'; size]).unwrap();
    shared.write_all(b"\r\n").unwrap();
    proxy.wait_for_end(EndReason::SlowReader);
    // The connection takes no further requests.
    other.write_all(&get("small")).unwrap();
    let mut next = accept_shared(&backend);
    expect(&mut next, &get("small"));
    next.write_all(b"$1\r\ns\r\n").unwrap();
    expect(&mut other, b"$1\r\ns\r\n");
}

/// It reads steadily, and its connection is not read because of it while another client waits.
#[test]
fn cuts_clients_that_hold_up_others_for_long() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let (mut slow, mut shared) = sharing(&proxy, &backend);
    let mut other = another(&proxy, &mut shared);
    for (client, key) in [(&mut slow, "large"), (&mut other, "small")] {
        client.write_all(&get(key)).unwrap();
        expect(&mut shared, &get(key));
    }
    let reader = std::thread::spawn(move || {
        let mut chunk = vec![0; 256 << 10];
        while std::io::Read::read_exact(&mut slow, &mut chunk).is_ok() {
            std::thread::park_timeout(SOON / 100);
        }
    });
    let writer = std::thread::spawn(move || {
        let size = 80 << 20;
        shared.write_all(format!("${size}\r\n").as_bytes()).unwrap();
        shared.write_all(&vec![b'x'; size]).unwrap();
        shared.write_all(b"\r\n$1\r\ns\r\n").unwrap();
        shared
    });
    proxy.wait_for_end(EndReason::SlowReader);
    expect(&mut other, b"$1\r\ns\r\n");
    reader.join().unwrap();
    writer.join().unwrap();
}
