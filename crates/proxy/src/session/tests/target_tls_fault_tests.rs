//! Targets with which no TLS session can be opened, or whose TLS session breaks: each fault has a
//! kind, and the client waits as for a target that refuses connections.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tls::{ClientSettings, ClientTls, FaultKind, Version};

use crate::session::carry::proof_tests::PING;
use crate::testing::tls_client::{NAME, TestCa};
use crate::testing::tls_target::{answer_proof_tls, expect_from, read_to_end, say};
use crate::testing::{Backend, SOON, TestProxy, rest};
use crate::{DialFailure, EndReason, Hint, Options, Sessions, TargetTlsSnapshot, WaitsFor};

/// A proxy with these settings towards a server.
fn proxy(settings: &ClientSettings, backend: &Backend) -> (TestProxy, ClientTls) {
    let tls = ClientTls::new(settings).unwrap();
    let options =
        Options { connect_timeout: SOON, target_tls: Some(tls.clone()), ..Options::default() };
    let mut proxy = TestProxy::new(options);
    proxy.commit(backend.addr());
    (proxy, tls)
}

/// Waits until a session with the target has failed, and checks why.
#[track_caller]
fn wait_for_failure(proxy: &TestProxy, failure: FaultKind) {
    let stats =
        proxy.wait_for("a failure", |stats| stats.target_tls.failures != [0; FaultKind::COUNT]);
    let failed = |it: &FaultKind| stats.target_tls.failed(*it) > 0;
    let all: Vec<_> = TargetTlsSnapshot::FAULTS.iter().filter(|it| failed(it)).collect();
    assert_eq!(all, [&failure]);
}

/// Waits until discovery has received a hint, which comes after the failure is counted.
#[track_caller]
fn wait_for_hint(proxy: &TestProxy) {
    let begin = Instant::now();
    while proxy.hints().is_empty() {
        assert!(begin.elapsed() < SOON, "no hint");
        std::thread::yield_now();
    }
    assert_eq!(proxy.hints()[0], Hint::DialFailed(DialFailure::Tls));
}

/// Lets handshakes fail on their own thread until the test ends.
fn refuse_in_background(backend: Backend, config: Arc<tls::rustls::ServerConfig>) {
    std::thread::spawn(move || {
        loop {
            let mut server = backend.accept_silent_tls(&config);
            while server.conn.is_handshaking() && server.conn.complete_io(&mut server.sock).is_ok()
            {
            }
        }
    });
}

#[test]
fn waits_until_the_certificate_has_the_right_name() {
    let ca = TestCa::new();
    let backend = Backend::new();
    let wrong =
        ClientSettings { server_name: Some("other.example".to_owned()), ..ca.target_settings() };
    let (proxy, tls) = proxy(&wrong, &backend);
    let mut client = proxy.client();
    say(&mut client, b"GET k\r\n");
    let mut server = backend.accept_silent_tls(&ca.server());
    // The server learns why.
    let error = loop {
        if let Err(error) = server.conn.complete_io(&mut server.sock) {
            break error.to_string();
        }
    };
    assert!(error.contains("certificate") || error.contains("Certificate"), "{error}");
    wait_for_failure(&proxy, FaultKind::WrongName);
    wait_for_hint(&proxy);
    assert!(proxy.stats().dial_failures[DialFailure::Tls as usize] > 0);
    // The client was not disconnected, and is served by the first attempt that succeeds.
    tls.replace(&ca.target_settings()).unwrap();
    let mut server = backend.accept_next_tls(&ca.server());
    answer_proof_tls(&mut server);
    expect_from(&mut server, b"GET k\r\n");
    say(&mut server, b"$1\r\nv\r\n");
    expect_from(&mut client, b"$1\r\nv\r\n");
}

#[test]
fn verifies_the_address_of_a_target_without_a_configured_name() {
    let ca = TestCa::new();
    let backend = Backend::new();
    let settings = ClientSettings { server_name: None, ..ca.target_settings() };
    let (proxy, _tls) = proxy(&settings, &backend);
    let _client = proxy.client();
    refuse_in_background(backend, ca.server());
    // The certificate is not for 127.0.0.1.
    wait_for_failure(&proxy, FaultKind::WrongName);
}

#[test]
fn verifies_the_host_of_the_address_map() {
    let ca = TestCa::new();
    let backend = Backend::new();
    let settings = ClientSettings { server_name: None, ..ca.target_settings() };
    let names = [(backend.addr().to_string().into(), NAME.into())];
    let options = Options {
        connect_timeout: SOON,
        target_tls: Some(ClientTls::new(&settings).unwrap()),
        target_names: Arc::new(names.into()),
        ..Options::default()
    };
    let mut proxy = TestProxy::new(options);
    proxy.commit(backend.addr());
    let mut client = proxy.client();
    let mut server = backend.accept_proved_tls(&ca.server());
    say(&mut client, b"PING\r\n");
    expect_from(&mut server, b"PING\r\n");
}

#[test]
fn refuses_certificates_of_another_authority() {
    let (ca, other) = (TestCa::new(), TestCa::new());
    let backend = Backend::new();
    let (proxy, _tls) = proxy(&ca.target_settings(), &backend);
    let _client = proxy.client();
    refuse_in_background(backend, other.server());
    wait_for_failure(&proxy, FaultKind::UnknownIssuer);
}

#[test]
fn names_targets_that_want_a_certificate() {
    for version in Version::ALL {
        let ca = TestCa::new();
        let backend = Backend::new();
        let (proxy, _tls) = proxy(&ca.target_settings(), &backend);
        let _client = proxy.client();
        refuse_in_background(backend, ca.mutual_server(version));
        wait_for_failure(&proxy, FaultKind::Refused);
    }
}

#[test]
fn holds_clients_whose_target_refuses_the_certificate() {
    for version in Version::ALL {
        let ca = TestCa::new();
        let backend = Backend::new();
        let (proxy, tls) = proxy(&ca.target_settings(), &backend);
        let mut client = proxy.client();
        say(&mut client, b"GET k\r\n");
        let config = ca.mutual_server(version);
        let mut refused = backend.accept_silent_tls(&config);
        while refused.conn.complete_io(&mut refused.sock).is_ok() {}
        drop(refused);
        wait_for_failure(&proxy, FaultKind::Refused);
        wait_for_hint(&proxy);
        assert!(proxy.stats().dial_failures[DialFailure::Tls as usize] > 0, "{version:?}");
        // The client is served when there is a certificate that the server accepts.
        let certificate = Some(ca.issue());
        tls.replace(&ClientSettings { certificate, ..ca.target_settings() }).unwrap();
        let mut server = backend.accept_next_tls(&config);
        answer_proof_tls(&mut server);
        expect_from(&mut server, b"GET k\r\n");
        say(&mut server, b"$1\r\nv\r\n");
        expect_from(&mut client, b"$1\r\nv\r\n");
    }
}

#[test]
fn shows_its_certificate_to_targets_that_want_one() {
    for version in Version::ALL {
        let ca = TestCa::new();
        let backend = Backend::new();
        let settings = ClientSettings { certificate: Some(ca.issue()), ..ca.target_settings() };
        let (proxy, _tls) = proxy(&settings, &backend);
        let mut client = proxy.client();
        let mut server = backend.accept_proved_tls(&ca.mutual_server(version));
        say(&mut client, b"PING\r\n");
        expect_from(&mut server, b"PING\r\n");
        assert!(server.conn.peer_certificates().is_some(), "{version:?}");
    }
}

#[test]
fn names_targets_that_do_not_speak_tls() {
    let ca = TestCa::new();
    let backend = Backend::new();
    let (proxy, _tls) = proxy(&ca.target_settings(), &backend);
    let _client = proxy.client();
    let mut server = backend.accept();
    server.write_all(b"-ERR unknown command\r\n").unwrap();
    wait_for_failure(&proxy, FaultKind::NotTls);
}

#[test]
fn counts_the_handshake_as_part_of_the_dial() {
    let ca = TestCa::new();
    let backend = Backend::new();
    let connect_timeout = Duration::from_millis(50);
    let options = Options { connect_timeout, hold_timeout: SOON, ..Options::default() };
    let mut proxy = TestProxy::new(ca.towards_targets(options));
    proxy.commit(backend.addr());
    let _client = proxy.client();
    let mut server = backend.accept();
    wait_for_failure(&proxy, FaultKind::TimedOut);
    // It is closed, and the next attempt follows.
    let mut hello = Vec::new();
    server.read_to_end(&mut hello).unwrap();
    assert_eq!(hello.first(), Some(&0x16));
    drop(backend.accept());
}

#[test]
fn ends_sessions_after_the_hold_with_the_cause() {
    let (ca, other) = (TestCa::new(), TestCa::new());
    let backend = Backend::new();
    let hold_timeout = Duration::from_millis(100);
    let options = Options { hold_timeout, connect_timeout: hold_timeout, ..Options::default() };
    let mut proxy = TestProxy::new(ca.towards_targets(options));
    proxy.commit(backend.addr());
    let mut client = proxy.client();
    say(&mut client, b"GET a\r\nGET b\r\n");
    refuse_in_background(backend, other.server());
    let replies = String::from_utf8(rest(&mut client)).unwrap();
    assert_eq!(replies.matches("-LOADING ").count(), 2, "{replies}");
    proxy.wait_for_end(EndReason::TargetTlsFailed);
}

#[test]
fn ends_sessions_at_a_forged_record_of_the_target() {
    let ca = TestCa::new();
    let backend = Backend::new();
    let options =
        Options { connect_timeout: SOON, sessions: Sessions::Close, ..Options::default() };
    let mut proxy = TestProxy::new(ca.towards_targets(options));
    proxy.commit(backend.addr());
    let mut client = proxy.client();
    let mut server = backend.accept_proved_tls(&ca.server());
    say(&mut client, b"GET k\r\n");
    expect_from(&mut server, b"GET k\r\n");
    server.conn.writer().write_all(b"$1\r\nv\r\n").unwrap();
    let mut record = Vec::new();
    server.conn.write_tls(&mut record).unwrap();
    *record.last_mut().unwrap() ^= 1;
    server.sock.write_all(&record).unwrap();
    assert_eq!(rest(&mut client), b"");
    proxy.wait_for_end(EndReason::TargetTlsFailed);
    wait_for_failure(&proxy, FaultKind::Broken);
    // The alert says that the record was refused.
    assert!(server.read(&mut [0; 16]).is_err());
}

#[test]
fn hints_at_a_failed_target_of_a_carried_session() {
    let ca = TestCa::new();
    let (old, new) = (Backend::new(), Backend::new());
    let (mut proxy, _tls) = proxy(&ca.target_settings(), &old);
    let mut client = proxy.client();
    let mut server = old.accept_proved_tls(&ca.server());
    say(&mut client, b"PING\r\n");
    expect_from(&mut server, b"PING\r\n");
    say(&mut server, b"+PONG\r\n");
    expect_from(&mut client, b"+PONG\r\n");
    proxy.commit(new.addr());
    let mut next = new.accept();
    next.write_all(b"-ERR no\r\n").unwrap();
    wait_for_failure(&proxy, FaultKind::NotTls);
    wait_for_hint(&proxy);
    let mut next = new.accept_tls(&ca.server());
    expect_from(&mut next, PING);
    assert_eq!(proxy.stats().carried, 0);
    say(&mut next, b"+PONG\r\n");
    proxy.wait_for("the session to continue", |stats| stats.carried == 1);
    assert_eq!(read_to_end(&mut server).0, b"");
}

#[test]
fn bounds_attempts_after_failed_handshakes() {
    let ca = TestCa::new();
    let backend = Backend::new();
    let (proxy, _tls) = proxy(&ca.target_settings(), &backend);
    let clients = [(); 100].map(|()| proxy.client());
    while proxy.stats().target_tls.failed(FaultKind::NotTls) < 100 {
        if let Some(mut server) = backend.next() {
            // The proxy may have closed it.
            drop(server.write_all(b"-ERR no\r\n"));
        }
    }
    // From now on the server answers nothing. A handshake costs as much as a hundred requests, so
    // only those with a permit try again.
    let sessions = &proxy.running().sessions;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let begin = Instant::now();
    loop {
        let rows = runtime.block_on(sessions.list(0, 0, 200)).unwrap().0;
        let in_line = rows.iter().filter(|row| row.waits_for == WaitsFor::Permit).count();
        if in_line >= clients.len() - 64 {
            break;
        }
        assert!(begin.elapsed() < SOON, "{in_line} of {} sessions wait", rows.len());
    }
}
