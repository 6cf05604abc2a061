//! Sessions on replicas that speak TLS: moved, ejected, or closed by their replica.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use target::{EmptyPool, PoolWriter, ReplicaStatus};

use crate::testing::tls_client::TestCa;
use crate::testing::tls_target::{TlsServer, expect_from, read_to_end, say};
use crate::testing::{Backend, SOON, TestProxy, destination, rest};
use crate::{EndReason, Options};

fn readers(ca: &TestCa) -> (TestProxy, PoolWriter) {
    let options = Options { connect_timeout: SOON, ..Options::default() };
    TestProxy::for_readers(EmptyPool::Reject, ca.towards_targets(options))
}

fn publish(writer: &mut PoolWriter, backends: &[&Backend]) {
    writer.publish(backends.iter().map(|it| destination(it.addr())).collect());
}

fn session(proxy: &TestProxy, backend: &Backend, ca: &TestCa) -> (TcpStream, TlsServer) {
    let mut client = proxy.client();
    let mut server = backend.accept_proved_tls(&ca.server());
    exchange(&mut client, &mut server);
    (client, server)
}

fn exchange(client: &mut TcpStream, server: &mut TlsServer) {
    say(client, b"GET k\r\n");
    expect_from(server, b"GET k\r\n");
    say(server, b"$1\r\nv\r\n");
    expect_from(client, b"$1\r\nv\r\n");
}

/// Publishes when `backend` was last asked for its role, and whether it now follows another master.
fn note_role(writer: &mut PoolWriter, backend: &Backend, repointed: bool) {
    let now = Instant::now();
    let look = ReplicaStatus {
        asked_at: Some(now),
        repointed_at: repointed.then_some(now),
        ..ReplicaStatus::default()
    };
    writer.set_replica_status(&backend.addr().to_string(), None, look, false);
}

#[test]
fn moves_readers_to_another_tls_replica() {
    let ca = TestCa::new();
    let (proxy, mut writer) = readers(&ca);
    let (one, other) = (Backend::new(), Backend::new());
    publish(&mut writer, &[&one]);
    let mut sessions: Vec<_> = (0..4).map(|_| session(&proxy, &one, &ca)).collect();
    publish(&mut writer, &[&one, &other]);
    let start = Instant::now();
    for seconds in 0..=10 {
        writer.balance(start + Duration::from_secs(seconds), 10, true);
    }
    let mut moved = [other.accept_proved_tls(&ca.server()), other.accept_proved_tls(&ca.server())];
    proxy.wait_for("two sessions to move", |stats| stats.rebalanced == 2);
    // The former connections of two sessions are closed at a boundary, which is announced.
    let mut left = 0;
    for (client, server) in &mut sessions {
        say(client, b"GET k\r\n");
        let gone = proxy_has_left(server);
        left += u32::from(gone);
        if !gone {
            expect_from(server, b"GET k\r\n");
            say(server, b"$1\r\nv\r\n");
            expect_from(client, b"$1\r\nv\r\n");
        }
    }
    assert_eq!(left, 2);
    for server in &mut moved {
        expect_from(server, b"GET k\r\n");
    }
    assert_eq!(proxy.stats().closed_in_all(), 0);
}

/// Whether the next thing that arrives is an announced end, and no request.
fn proxy_has_left(server: &mut TlsServer) -> bool {
    let mut peeked = [0; 1];
    loop {
        let state = server.conn.process_new_packets().unwrap();
        if state.plaintext_bytes_to_read() > 0 {
            return false;
        }
        if state.peer_has_closed() {
            return true;
        }
        assert!(server.sock.peek(&mut peeked).unwrap() > 0, "the end was not announced");
        server.conn.read_tls(&mut server.sock).unwrap();
    }
}

#[test]
fn keeps_readers_of_an_ejected_tls_replica() {
    let ca = TestCa::new();
    let (proxy, mut writer) = readers(&ca);
    let (one, other) = (Backend::new(), Backend::new());
    publish(&mut writer, &[&one]);
    let (mut client, mut server) = session(&proxy, &one, &ca);
    publish(&mut writer, &[&other]);
    let mut next = other.accept_proved_tls(&ca.server());
    exchange(&mut client, &mut next);
    assert_eq!(read_to_end(&mut server), (Vec::new(), true));
    assert_eq!(proxy.stats().carried, 1);
}

#[test]
fn asks_a_tls_replica_whether_it_meant_the_session() {
    let ca = TestCa::new();
    let (proxy, mut writer) = readers(&ca);
    let one = Backend::new();
    publish(&mut writer, &[&one]);
    let (mut client, server) = session(&proxy, &one, &ca);
    note_role(&mut writer, &one, false);
    drop(server);
    let mut asked = one.accept_proved_tls(&ca.server());
    assert_eq!(read_to_end(&mut asked), (Vec::new(), true));
    note_role(&mut writer, &one, true);
    let mut again = one.accept_proved_tls(&ca.server());
    exchange(&mut client, &mut again);
    // The next close is on purpose.
    drop(again);
    let _asked = one.accept_proved_tls(&ca.server());
    note_role(&mut writer, &one, false);
    assert_eq!(rest(&mut client), b"");
    proxy.wait_for_end(EndReason::UpstreamClosed);
}
