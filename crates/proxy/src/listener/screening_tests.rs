//! Clients that are checked by their address, over real sockets.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use drain::StopRequest;

use crate::listener::accept_loop::MAX_AWAITING_HEADER;
use crate::testing::{Backend, SOON, TestProxy, expect, is_silent, rest, session};
use crate::{Limit, Options, Rejection, ServiceSnapshot};
use target::{Network, Networks};

fn networks(texts: &[&str]) -> Networks {
    texts.iter().map(|text| Network::parse(text).unwrap()).collect()
}

/// Every client of the test is a load balancer.
fn balanced() -> Options {
    Options {
        connect_timeout: SOON,
        proxy_protocol_from: networks(&["127.0.0.0/8"]),
        proxy_protocol_timeout: Duration::from_secs(3600),
        ..Options::default()
    }
}

fn proxy_with(backend: &Backend, total: usize, options: Options) -> TestProxy {
    let mut proxy = TestProxy::with(2, total, options);
    proxy.commit(backend.addr());
    proxy
}

fn header(client: &str) -> Vec<u8> {
    format!("PROXY TCP4 {client} 127.0.0.1 1 2\r\n").into_bytes()
}

/// A session whose header and first request arrive in one piece.
fn balanced_session(proxy: &TestProxy, backend: &Backend, from: &str) -> (TcpStream, TcpStream) {
    let mut client = proxy.client();
    client.write_all(&[&header(from)[..], b"PING\r\n"].concat()).unwrap();
    let mut upstream = backend.accept();
    expect(&mut upstream, b"PING\r\n");
    upstream.write_all(b"+PONG\r\n").unwrap();
    expect(&mut client, b"+PONG\r\n");
    (client, upstream)
}

fn rejected(stats: &ServiceSnapshot, why: Rejection) -> u64 {
    stats.rejected[why as usize]
}

#[test]
fn limits_source_of_header_and_not_of_connection() {
    let backend = Backend::new();
    let options = Options { max_connections_per_source: 1, ..balanced() };
    let proxy = proxy_with(&backend, 100, options);
    let first = balanced_session(&proxy, &backend, "192.0.2.1");
    let mut second = proxy.client();
    second.write_all(&header("192.0.2.1")).unwrap();
    assert_eq!(rest(&mut second), b"-ERR max number of clients reached\r\n");
    assert_eq!(proxy.stats().refused[Limit::Source as usize], 1);
    let _other = balanced_session(&proxy, &backend, "192.0.2.2");
    drop(first);
    proxy.wait_for("a free place", |stats| stats.open() == 1);
    // The place is returned when the session is dropped, a moment after it was counted.
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < SOON, "the place of its source was not returned");
        let (refused, mut again) = (proxy.stats().refused_in_all(), proxy.client());
        again.write_all(&[&header("192.0.2.1")[..], b"PING\r\n"].concat()).unwrap();
        let now =
            proxy.wait_for("an answer", |now| now.refused_in_all() > refused || now.accepted == 3);
        if now.accepted == 3 {
            break expect(&mut backend.accept(), b"PING\r\n");
        }
    }
    assert_eq!(proxy.stats().rejected, [0; Rejection::ALL.len()]);
}

#[test]
fn reads_header_in_any_pieces_and_nothing_beyond() {
    let backend = Backend::new();
    let proxy = proxy_with(&backend, 100, balanced());
    let mut sessions = Vec::new();
    for number in 0..40_usize {
        let mut client = proxy.client();
        let bytes = [&header("192.0.2.1")[..], b"PING\r\n"].concat();
        for piece in bytes.chunks(1 + number) {
            client.write_all(piece).unwrap();
        }
        let mut upstream = backend.accept();
        expect(&mut upstream, b"PING\r\n");
        sessions.push((client, upstream));
    }
    let stats = proxy.stats();
    assert_eq!((stats.accepted, stats.proxy_headers, stats.refused_in_all()), (40, 40, 0));
    // They are handed over to the worker with fewer sessions, as other clients are.
    let open = proxy.running().stats.open_on_workers();
    assert!(open.iter().all(|count| (10..=30).contains(count)), "{open:?}");
}

#[test]
fn rejects_connections_that_never_send_their_header() {
    let backend = Backend::new();
    let proxy = proxy_with(&backend, 100, balanced());
    let mut silent: Vec<TcpStream> = (0..MAX_AWAITING_HEADER).map(|_| proxy.client()).collect();
    silent.iter_mut().for_each(|client| client.write_all(b"PROXY ").unwrap());
    // Any of them may be the one that finds no place, since each worker accepts in its own time.
    let mut more = proxy.client();
    proxy
        .wait_for("a rejected connection", |stats| rejected(stats, Rejection::TooManyHeaders) >= 1);
    let _ = more.write_all(b"PROXY ");
    // With a shorter timeout, new connections are closed in time.
    drop((silent, more));
    let short = Options { proxy_protocol_timeout: Duration::from_millis(50), ..balanced() };
    proxy.running().tune(0, short);
    let begin = Instant::now();
    while rejected(&proxy.stats(), Rejection::HeaderTimeout) == 0 {
        assert!(begin.elapsed() < SOON, "not closed");
        let mut client = proxy.client();
        client.write_all(b"PROXY TCP4 192.0.2.1").unwrap();
        assert_eq!(rest(&mut client), b"");
    }
    let _served = balanced_session(&proxy, &backend, "192.0.2.1");
}

#[test]
fn counts_connections_without_header_against_the_limits() {
    let backend = Backend::new();
    let proxy = proxy_with(&backend, 2, balanced());
    // Each of the workers accepts in its own time, so any of the three may be the one. Two attempts
    // for the last place may both fail.
    let _clients = [proxy.client(), proxy.client(), proxy.client()];
    proxy.wait_for("a refused connection", |stats| stats.refused[Limit::Process as usize] >= 1);
    assert_eq!(proxy.stats().accepted, 0);
}

#[test]
fn ignores_health_checks_and_counts_cut_headers() {
    let backend = Backend::new();
    let proxy = proxy_with(&backend, 100, balanced());
    let mut check = proxy.client();
    check.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rest(&mut check), b"");
    assert_eq!(proxy.stats().rejected, [0; Rejection::ALL.len()]);
    let mut cut = proxy.client();
    cut.write_all(b"PROXY TCP4 192.0.2.1").unwrap();
    cut.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rest(&mut cut), b"");
    assert_eq!(rejected(&proxy.stats(), Rejection::HeaderMalformed), 1);
    let mut bare = proxy.client();
    bare.write_all(b"*1\r\n").unwrap();
    assert!(rest(&mut bare).starts_with(b"-DENIED"));
    assert_eq!(rejected(&proxy.stats(), Rejection::HeaderMissing), 1);
    assert_eq!((proxy.stats().accepted, proxy.stats().proxy_headers), (0, 0));
}

#[test]
fn changes_allowed_networks_for_new_clients() {
    let backend = Backend::new();
    let proxy = TestProxy::with_target(&backend);
    let (mut client, mut upstream) = session(&proxy, &backend);
    let allow = |texts: &[&str]| {
        let allow = networks(texts);
        proxy.running().tune(0, Options { connect_timeout: SOON, allow, ..Options::default() });
    };
    allow(&["192.0.2.0/24", "2001:db8::/32"]);
    assert!(rest(&mut proxy.client()).starts_with(b"-DENIED"));
    assert_eq!(rejected(&proxy.stats(), Rejection::NotAllowed), 1);
    assert_eq!(proxy.stats().refused_in_all(), 1);
    client.write_all(b"PING\r\n").unwrap();
    expect(&mut upstream, b"PING\r\n");
    assert!(is_silent(&mut client), "an established session continues");
    allow(&["127.0.0.1"]);
    let _second = session(&proxy, &backend);
    allow(&[]);
    let _third = session(&proxy, &backend);
}

#[test]
fn serves_header_that_arrives_during_a_drain() {
    let backend = Backend::new();
    let proxy = proxy_with(&backend, 100, balanced());
    let mut late = proxy.client();
    let (before, after) = (&header("192.0.2.1")[..9], &header("192.0.2.1")[9..]);
    late.write_all(before).unwrap();
    proxy.drain.request_stop(StopRequest::DrainAtOnce);
    late.write_all(&[after, b"PING\r\n"].concat()).unwrap();
    let mut upstream = backend.accept();
    expect(&mut upstream, b"PING\r\n");
    upstream.write_all(b"+PONG\r\n").unwrap();
    assert_eq!(rest(&mut late), b"+PONG\r\n");
}

#[test]
fn cuts_connections_without_header_with_the_drain() {
    let backend = Backend::new();
    let proxy = proxy_with(&backend, 100, balanced());
    let mut silent = proxy.client();
    silent.write_all(b"PROXY ").unwrap();
    let begin = Instant::now();
    let (_, stats) = proxy.stop(StopRequest::Cut);
    assert!(begin.elapsed() < SOON, "the drain waited for the header");
    assert_eq!((stats.accepted, stats.rejected), (0, [0; Rejection::ALL.len()]));
}
