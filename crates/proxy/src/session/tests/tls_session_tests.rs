//! Sessions over TLS keep the promises of plain ones: bytes, ends, holds, carries and drains.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::Duration;

use drain::StopRequest;
use tls::Version;

use crate::testing::tls_client::{
    TestCa, TlsClient, complete, end_direction, expect_tls, is_silent_tls, over, rest_tls, send,
};
use crate::testing::{Backend, TestProxy, expect, rest, rest_or_reset};
use crate::{EndReason, Options};

/// A proxy with a target, a client that has sent a request, and its answered connection there.
fn session(ca: &TestCa, options: Options) -> (TestProxy, Backend, TlsClient, std::net::TcpStream) {
    let backend = Backend::new();
    let mut proxy = TestProxy::new(ca.options(options));
    proxy.commit(backend.addr());
    let mut client = ca.connected(&proxy);
    let mut upstream = backend.accept();
    ping(&mut client, &mut upstream);
    (proxy, backend, client, upstream)
}

#[track_caller]
fn ping(client: &mut TlsClient, upstream: &mut std::net::TcpStream) {
    send(client, b"PING\r\n");
    expect(upstream, b"PING\r\n");
    upstream.write_all(b"+PONG\r\n").unwrap();
    expect_tls(client, b"+PONG\r\n");
}

/// A request of this size, which is also a valid reply.
fn value(size: usize, seed: u8) -> Vec<u8> {
    let mut value = format!("*2\r\n$4\r\nECHO\r\n${size}\r\n").into_bytes();
    value.extend((0..size).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)));
    value.extend_from_slice(b"\r\n");
    value
}

#[test]
fn transfers_large_values_unchanged_both_ways() {
    for version in Version::ALL {
        let ca = TestCa::new();
        let backend = Backend::new();
        let mut proxy = TestProxy::new(ca.options(Options::default()));
        proxy.commit(backend.addr());
        let mut client = over(proxy.client(), ca.client_config((version, version), None));
        complete(&mut client);
        let mut upstream = backend.accept();
        let sizes = [1, 100, 16_384, 16_385, 70_000, 1 << 20, 3 << 20];
        let all: Vec<u8> = sizes.iter().flat_map(|size| value(*size, *size as u8)).collect();
        let echo = thread::spawn(move || {
            let mut buffer = vec![0; 50_000];
            loop {
                match upstream.read(&mut buffer) {
                    Ok(0) | Err(_) => return,
                    Ok(n) => upstream.write_all(&buffer[..n]).unwrap(),
                }
            }
        });
        // The replies of one request are read before the next one, and in pieces of any size.
        for size in sizes {
            let request = value(size, size as u8);
            send(&mut client, &request);
            let mut reply = vec![0; request.len()];
            for piece in reply.chunks_mut(777_777) {
                client.read_exact(piece).unwrap();
            }
            assert!(reply == request, "{version:?} {size}");
        }
        end_direction(&mut client);
        assert_eq!(rest_tls(&mut client), b"");
        echo.join().unwrap();
        let stats = proxy.wait_for("the end", |stats| stats.closed_in_all() == 1);
        assert_eq!(stats.closed_for(EndReason::ClientClosed), 1);
        assert_eq!((stats.bytes_in, stats.bytes_out), (all.len() as u64, all.len() as u64));
        assert_eq!((stats.commands, stats.bytes_spliced), (sizes.len() as u64, 0));
    }
}

#[test]
fn keeps_order_for_clients_that_read_late() {
    let ca = TestCa::new();
    let (proxy, _backend, mut client, mut upstream) = session(&ca, Options::default());
    let reply: Vec<u8> = value(6 << 20, 3);
    send(&mut client, b"GET k\r\n");
    expect(&mut upstream, b"GET k\r\n");
    let sent = reply.clone();
    let writer = thread::spawn(move || {
        upstream.write_all(&sent).unwrap();
        upstream
    });
    // The proxy has what fits on the way and no more, until the client reads.
    let full = proxy.wait_for("bytes to be delivered", |stats| stats.bytes_out > 100_000);
    assert!(full.bytes_out < reply.len() as u64);
    let mut read = vec![0; reply.len()];
    client.read_exact(&mut read).unwrap();
    assert!(read == reply);
    let mut upstream = writer.join().unwrap();
    ping(&mut client, &mut upstream);
}

#[test]
fn delivers_the_reply_after_the_client_has_ended() {
    let ca = TestCa::new();
    let (proxy, _backend, mut client, mut upstream) = session(&ca, Options::default());
    send(&mut client, b"GET k\r\n");
    end_direction(&mut client);
    expect(&mut upstream, b"GET k\r\n");
    // The end is passed on, and the other direction is open.
    assert_eq!(rest(&mut upstream), b"");
    upstream.write_all(b"$1\r\nv\r\n").unwrap();
    drop(upstream);
    assert_eq!(rest_tls(&mut client), b"$1\r\nv\r\n");
    proxy.wait_for_end(EndReason::ClientClosed);
}

#[test]
fn takes_a_bare_end_of_the_socket_for_the_clients_end() {
    let ca = TestCa::new();
    let (proxy, _backend, client, mut upstream) = session(&ca, Options::default());
    client.sock.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rest_or_reset(&mut upstream), b"");
    proxy.wait_for_end(EndReason::ClientClosed);
}

#[test]
fn ends_sessions_at_a_forged_record() {
    let ca = TestCa::new();
    let (proxy, _backend, mut client, mut upstream) = session(&ca, Options::default());
    client.conn.writer().write_all(b"SET k v\r\n").unwrap();
    let mut record = Vec::new();
    client.conn.write_tls(&mut record).unwrap();
    *record.last_mut().unwrap() ^= 1;
    client.sock.write_all(&record).unwrap();
    assert_eq!(rest_or_reset(&mut upstream), b"");
    proxy.wait_for_end(EndReason::ClientError);
}

#[test]
fn announces_the_end_when_the_target_ends() {
    let ca = TestCa::new();
    let (_proxy, _backend, mut client, mut upstream) = session(&ca, Options::default());
    send(&mut client, b"QUIT\r\n");
    expect(&mut upstream, b"QUIT\r\n");
    upstream.write_all(b"+OK\r\n").unwrap();
    drop(upstream);
    assert_eq!(rest_tls(&mut client), b"+OK\r\n");
}

#[test]
fn carries_sessions_to_the_next_master() {
    let ca = TestCa::new();
    let (mut proxy, _backend, mut client, _upstream) = session(&ca, Options::default());
    let next = Backend::new();
    proxy.commit(next.addr());
    let mut upstream = next.accept();
    // It was proved that the target answers.
    expect(&mut upstream, b"*1\r\n$4\r\nPING\r\n");
    upstream.write_all(b"+PONG\r\n").unwrap();
    ping(&mut client, &mut upstream);
    assert_eq!(proxy.stats().carried, 1);
}

#[test]
fn holds_requests_until_there_is_a_master() {
    let ca = TestCa::new();
    let backend = Backend::new();
    let mut proxy = TestProxy::new(ca.options(Options::default()));
    let mut client = ca.connected(&proxy);
    // More than is read of a held client, in several records.
    let request = value(20_000, 1);
    send(&mut client, &request);
    proxy.wait_for("the client to be held", |stats| stats.held == 1);
    proxy.commit(backend.addr());
    let mut upstream = backend.accept();
    let mut arrived = vec![0; request.len()];
    upstream.read_exact(&mut arrived).unwrap();
    assert!(arrived == request);
    upstream.write_all(b"+OK\r\n").unwrap();
    expect_tls(&mut client, b"+OK\r\n");
}

#[test]
fn refuses_held_requests_over_tls() {
    let ca = TestCa::new();
    let hold_timeout = Duration::from_millis(50);
    let connect_timeout = hold_timeout;
    let options = Options { hold_timeout, connect_timeout, ..Options::default() };
    let proxy = TestProxy::new(ca.options(options));
    let mut client = ca.client(&proxy);
    client.conn.writer().write_all(b"GET a\r\nGET b\r\n").unwrap();
    complete(&mut client);
    let replies = String::from_utf8(rest_tls(&mut client)).unwrap();
    assert_eq!(replies.matches("-LOADING ").count(), 2, "{replies}");
}

#[test]
fn notices_clients_that_leave_while_held() {
    let ca = TestCa::new();
    let proxy = TestProxy::new(ca.options(Options::default()));
    let mut client = ca.connected(&proxy);
    send(&mut client, b"GET a\r\n");
    proxy.wait_for("the client to be held", |stats| stats.held == 1);
    end_direction(&mut client);
    proxy.wait_for_end(EndReason::HoldAbandoned);
}

#[test]
fn drains_at_a_boundary_and_announces_the_end() {
    let ca = TestCa::new();
    let (proxy, _backend, mut client, mut upstream) = session(&ca, Options::default());
    send(&mut client, b"GET k\r\n");
    expect(&mut upstream, b"GET k\r\n");
    proxy.drain.request_stop(StopRequest::Drain);
    // The reply is owed, however long the drain takes.
    assert!(is_silent_tls(&mut client));
    upstream.write_all(b"$1\r\nv\r\n").unwrap();
    assert_eq!(rest_tls(&mut client), b"$1\r\nv\r\n");
    let (summary, stats) = proxy.stop(StopRequest::Drain);
    assert_eq!(stats.closed_for(EndReason::Drained), 1, "{summary:?}");
}

#[test]
fn serves_half_a_record_before_it_drains() {
    let ca = TestCa::new();
    let (proxy, _backend, mut client, mut upstream) = session(&ca, Options::default());
    client.conn.writer().write_all(b"GET k\r\n").unwrap();
    let mut record = Vec::new();
    client.conn.write_tls(&mut record).unwrap();
    let (half, rest) = record.split_at(record.len() / 2);
    client.sock.write_all(half).unwrap();
    proxy.drain.request_stop(StopRequest::Drain);
    assert!(is_silent_tls(&mut client));
    client.sock.write_all(rest).unwrap();
    expect(&mut upstream, b"GET k\r\n");
    upstream.write_all(b"$1\r\nv\r\n").unwrap();
    assert_eq!(rest_tls(&mut client), b"$1\r\nv\r\n");
}
