//! Handshakes of real clients: what they agree on, how they fail, and what is counted.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use tls::Version;
use tls::rustls::{AlertDescription, Error};

use crate::testing::tls_client::{TestCa, TlsClient, complete, expect_tls, over, rest_tls, send};
use crate::testing::{Backend, TestProxy, expect, rest};
use crate::{EndReason, Options, ServiceSnapshot, TlsFailure};

fn proxy(options: Options) -> (TestProxy, Backend) {
    let backend = Backend::new();
    let mut proxy = TestProxy::new(options);
    proxy.commit(backend.addr());
    (proxy, backend)
}

fn failed(stats: &ServiceSnapshot, failure: TlsFailure) -> u64 {
    stats.tls_failures[failure as usize]
}

/// Waits until a handshake has failed for this reason, and nothing else is counted.
#[track_caller]
fn wait_for_failure(proxy: &TestProxy, failure: TlsFailure) {
    let ended = |stats: &ServiceSnapshot| stats.closed_in_all() > 0;
    let stats = proxy.wait_for("the end of a handshake", ended);
    assert_eq!(stats.closed_for(EndReason::TlsHandshakeFailed), 1, "{stats:?}");
    assert_eq!(stats.tls_failures.iter().sum::<u64>(), 1, "{stats:?}");
    assert_eq!(failed(&stats, failure), 1, "{stats:?}");
    assert_eq!((stats.tls_running, stats.tls_full, stats.dials), (0, 0, 0), "{stats:?}");
}

#[test]
fn serves_both_versions_and_resumes() {
    for version in Version::ALL {
        let ca = TestCa::new();
        let (proxy, backend) = proxy(ca.options(Options::default()));
        let config = ca.client_config((version, version), None);
        for number in 0..2 {
            let mut client = over(proxy.client(), config.clone());
            complete(&mut client);
            let mut upstream = backend.accept();
            send(&mut client, b"PING\r\n");
            expect(&mut upstream, b"PING\r\n");
            upstream.write_all(b"+PONG\r\n").unwrap();
            expect_tls(&mut client, b"+PONG\r\n");
            let stats = proxy.stats();
            assert_eq!((stats.tls_full, stats.tls_resumed), (1, number), "{version:?}");
            // The client leaves first: a session that loses its target connects to it again.
            drop(client);
            proxy.wait_for("the end of the session", |stats| stats.closed_in_all() > number);
        }
        assert_eq!(proxy.stats().tls_running, 0);
    }
}

#[test]
fn forwards_a_request_that_comes_with_the_handshake() {
    let ca = TestCa::new();
    let (proxy, backend) = proxy(ca.options(Options::default()));
    let mut client = ca.client(&proxy);
    // Sent together with the last message of the handshake.
    client.conn.writer().write_all(b"PING\r\n").unwrap();
    complete(&mut client);
    client.flush().unwrap();
    let mut upstream = backend.accept();
    expect(&mut upstream, b"PING\r\n");
    upstream.write_all(b"+PONG\r\n").unwrap();
    expect_tls(&mut client, b"+PONG\r\n");
}

#[test]
fn answers_clients_without_tls_in_their_protocol() {
    let (proxy, _backend) = proxy(TestCa::new().options(Options::default()));
    let mut client = proxy.client();
    client.write_all(b"*1\r\n$4\r\nPING\r\n").unwrap();
    assert_eq!(rest(&mut client), b"-ERR this port accepts TLS connections only\r\n");
    wait_for_failure(&proxy, TlsFailure::NotTls);
}

#[test]
fn counts_junk_as_protocol_fault_and_alerts() {
    let (proxy, _backend) = proxy(TestCa::new().options(Options::default()));
    let mut client = proxy.client();
    // A hello of one byte.
    client.write_all(&[0x16, 3, 1, 0, 5, 1, 0, 0, 1, 0]).unwrap();
    let alert = rest(&mut client);
    assert_eq!((alert[0], alert.len()), (0x15, 7), "{alert:?}");
    wait_for_failure(&proxy, TlsFailure::Protocol);
}

#[test]
fn ignores_clients_that_only_connect() {
    let (proxy, _backend) = proxy(TestCa::new().options(Options::default()));
    drop(proxy.client());
    proxy.wait_for_end(EndReason::ClientClosed);
    let stats = proxy.stats();
    assert_eq!((stats.tls_running, stats.tls_failures.iter().sum::<u64>()), (0, 0));
}

#[test]
fn ends_handshakes_that_stall_at_any_point() {
    let ca = TestCa::new();
    // Nothing, the beginning of a hello, and a hello without what has to follow it.
    for sent in 0..3 {
        let mut options = ca.options(Options::default());
        let tls = options.tls.as_mut().unwrap();
        tls.handshake_timeout = Duration::from_millis(100);
        let (proxy, _backend) = proxy(options);
        let mut client = ca.client(&proxy);
        let mut hello = Vec::new();
        client.conn.write_tls(&mut hello).unwrap();
        let length = [0, 7, hello.len()][sent];
        client.sock.write_all(&hello[..length]).unwrap();
        // What the proxy says meanwhile does not matter; the end comes.
        let mut all = Vec::new();
        let _reset = client.sock.read_to_end(&mut all);
        assert_eq!(all.is_empty(), sent < 2, "{sent}");
        wait_for_failure(&proxy, TlsFailure::Timeout);
    }
}

#[test]
fn counts_clients_that_leave_within_a_handshake() {
    let ca = TestCa::new();
    let (proxy, _backend) = proxy(ca.options(Options::default()));
    let mut client = ca.client(&proxy);
    let mut hello = Vec::new();
    client.conn.write_tls(&mut hello).unwrap();
    client.sock.write_all(&hello[..20]).unwrap();
    client.sock.shutdown(Shutdown::Write).unwrap();
    wait_for_failure(&proxy, TlsFailure::Closed);
}

#[test]
fn names_what_the_two_sides_do_not_share() {
    let ca = TestCa::new();
    let mut settings = ca.settings();
    settings.protocols.min = Version::Tls13;
    let tls = Some(ca.listening(&settings));
    let (proxy, _backend) = proxy(Options { tls, ..Options::default() });
    let config = ca.client_config((Version::Tls12, Version::Tls12), None);
    let mut client = over(proxy.client(), config);
    let error = client.conn.complete_io(&mut client.sock).unwrap_err();
    let error = error.get_ref().and_then(|it| it.downcast_ref::<Error>());
    assert_eq!(error, Some(&Error::AlertReceived(AlertDescription::ProtocolVersion)));
    wait_for_failure(&proxy, TlsFailure::NothingInCommon);
}

#[test]
fn requires_certificates_of_clients() {
    let (ca, other) = (TestCa::new(), TestCa::new());
    let versions = (Version::Tls12, Version::Tls13);
    for certificate in [None, Some(other.issue())] {
        let (proxy, _backend) = proxy(ca.mutual());
        let mut client = over(proxy.client(), ca.client_config(versions, certificate));
        // In TLS 1.3 the client is done before its certificate is examined.
        let _early = client.write_all(b"PING\r\n");
        assert!(client.read(&mut [0]).is_err());
        wait_for_failure(&proxy, TlsFailure::ClientCertificate);
    }
    let (proxy, backend) = proxy(ca.mutual());
    let mut client = over(proxy.client(), ca.client_config(versions, Some(ca.issue())));
    send(&mut client, b"PING\r\n");
    expect(&mut backend.accept(), b"PING\r\n");
}

#[test]
fn counts_clients_that_do_not_trust_the_certificate() {
    let (ca, other) = (TestCa::new(), TestCa::new());
    let (proxy, _backend) = proxy(ca.options(Options::default()));
    let config = other.client_config((Version::Tls12, Version::Tls13), None);
    let mut client = over(proxy.client(), config);
    assert!(client.conn.complete_io(&mut client.sock).is_err());
    wait_for_failure(&proxy, TlsFailure::RefusedByClient);
}

/// A client that has the answer to its hello, and does not go on.
fn half_way(ca: &TestCa, proxy: &TestProxy) -> TlsClient {
    let mut client = ca.client(proxy);
    client.conn.write_tls(&mut client.sock).unwrap();
    client.sock.peek(&mut [0; 5]).unwrap();
    client
}

#[test]
fn evicts_the_oldest_handshake_that_waits() {
    let ca = TestCa::new();
    let mut options = ca.options(Options::default());
    options.tls.as_mut().unwrap().max_waiting = 2;
    let (proxy, backend) = proxy(options);
    let mut oldest = half_way(&ca, &proxy);
    let mut second = half_way(&ca, &proxy);
    // Has not sent anything.
    let mut third = ca.client(&proxy);
    proxy.wait_for("an eviction", |stats| failed(stats, TlsFailure::Evicted) == 1);
    let _reset = oldest.sock.read_to_end(&mut Vec::new());
    for client in [&mut third, &mut second] {
        complete(client);
        send(client, b"PING\r\n");
        expect(&mut backend.accept(), b"PING\r\n");
    }
    let stats = proxy.stats();
    assert_eq!(stats.tls_failures.iter().sum::<u64>(), 1, "{stats:?}");
    assert_eq!(stats.tls_running, 0, "{stats:?}");
}

/// Otherwise it would be the youngest whenever it sends something.
#[test]
fn evicts_a_client_that_sends_a_byte_at_a_time() {
    let ca = TestCa::new();
    let mut options = ca.options(Options::default());
    options.tls.as_mut().unwrap().max_waiting = 2;
    let (proxy, backend) = proxy(options);
    let mut slow = ca.client(&proxy);
    let mut hello = Vec::new();
    slow.conn.write_tls(&mut hello).unwrap();
    slow.sock.write_all(&hello[..1]).unwrap();
    proxy.wait_for("its first byte", |stats| stats.tls_running == 1);
    let mut other = half_way(&ca, &proxy);
    slow.sock.write_all(&hello[1..2]).unwrap();
    let _third = half_way(&ca, &proxy);
    let _reset = slow.sock.read_to_end(&mut Vec::new());
    complete(&mut other);
    send(&mut other, b"PING\r\n");
    expect(&mut backend.accept(), b"PING\r\n");
    assert_eq!(failed(&proxy.stats(), TlsFailure::Evicted), 1);
}

#[test]
fn closes_refused_clients_without_an_answer() {
    let ca = TestCa::new();
    let (proxy, _backend) = proxy(ca.options(Options { max_connections: 1, ..Options::default() }));
    let _first = ca.connected(&proxy);
    let mut second = ca.client(&proxy);
    let mut hello = Vec::new();
    second.conn.write_tls(&mut hello).unwrap();
    let _reset = second.sock.write_all(&hello);
    let mut answer = Vec::new();
    let _reset = second.sock.read_to_end(&mut answer);
    assert!(answer.is_empty(), "{answer:?}");
    assert_eq!(proxy.stats().refused_in_all(), 1);
}

#[test]
fn uses_replaced_certificates_for_new_sessions_only() {
    let ca = TestCa::new();
    let options = ca.options(Options::default());
    let settings = options.tls.as_ref().unwrap().settings.clone();
    let (proxy, backend) = proxy(options);
    let mut before = ca.connected(&proxy);
    let mut upstream = backend.accept();
    let mut changed = ca.settings();
    changed.certificates = vec![ca.issue()];
    settings.commit(&tls::ServerTls::prepare(&changed).unwrap());
    let after = ca.connected(&proxy);
    let shown =
        |client: &TlsClient| client.conn.peer_certificates().unwrap()[0].clone().into_owned();
    assert_ne!(shown(&before), shown(&after));
    send(&mut before, b"PING\r\n");
    expect(&mut upstream, b"PING\r\n");
    drop(upstream);
    assert_eq!(rest_tls(&mut before), b"");
}
