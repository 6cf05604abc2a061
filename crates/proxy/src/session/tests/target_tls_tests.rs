//! Sessions with targets that speak TLS keep the promises of plain ones, whether or not their
//! clients speak TLS.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::thread;

use drain::StopRequest;
use tls::rustls::ServerConfig;
use tls::{ClientTls, Version};

use crate::session::carry::proof_tests::PING;
use crate::testing::tls_client::{TestCa, complete, over};
use crate::testing::tls_target::{TlsServer, expect_from, read_to_end, say};
use crate::testing::{Backend, SOON, TestProxy, rest};
use crate::{EndReason, Options, SessionRow, Sessions};

/// A CA, a server with its certificate, and a proxy towards that server.
struct Scene {
    config: Arc<ServerConfig>,
    backend: Backend,
    proxy: TestProxy,
}

impl Scene {
    fn new(options: Options) -> Self {
        let ca = TestCa::new();
        let config = ca.server();
        let backend = Backend::new();
        let options = Options { connect_timeout: SOON, ..options };
        let mut proxy = TestProxy::new(ca.towards_targets(options));
        proxy.commit(backend.addr());
        Self { config, backend, proxy }
    }

    /// A client and its answered connection.
    fn session(&self) -> (TcpStream, TlsServer) {
        let mut client = self.proxy.client();
        let mut server = self.backend.accept_proved_tls(&self.config);
        exchange(&mut client, &mut server);
        (client, server)
    }

    /// The connection over which a session continues here.
    fn accept_carried(&self, backend: &Backend) -> TlsServer {
        backend.accept_proved_tls(&self.config)
    }
}

fn exchange(client: &mut (impl Read + Write), server: &mut TlsServer) {
    say(client, b"GET k\r\n");
    expect_from(server, b"GET k\r\n");
    say(server, b"$1\r\nv\r\n");
    expect_from(client, b"$1\r\nv\r\n");
}

/// A request of this size, which is also a valid reply.
fn value(size: usize, seed: u8) -> Vec<u8> {
    let mut value = format!("*2\r\n$4\r\nECHO\r\n${size}\r\n").into_bytes();
    value.extend((0..size).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)));
    value.extend_from_slice(b"\r\n");
    value
}

fn rows(proxy: &TestProxy) -> Vec<SessionRow> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(proxy.running().sessions.list(0, 0, 100)).unwrap().0
}

/// Sends values of many sizes and reads them back.
fn echo(client: &mut (impl Read + Write), mut server: TlsServer) -> usize {
    let sizes = [1, 100, 16_384, 16_385, 70_000, 1 << 20, 3 << 20];
    let echo = thread::spawn(move || {
        let mut buffer = vec![0; 50_000];
        loop {
            match server.read(&mut buffer) {
                Ok(n @ 1..) => say(&mut server, &buffer[..n]),
                _ => return,
            }
        }
    });
    let mut sum = 0;
    for size in sizes {
        let request = value(size, size as u8);
        say(client, &request);
        let mut reply = vec![0; request.len()];
        for piece in reply.chunks_mut(777_777) {
            client.read_exact(piece).unwrap();
        }
        assert!(reply == request, "{size}");
        sum += request.len();
    }
    // The thread ends with the session.
    drop(echo);
    sum
}

#[test]
fn transfers_large_values_between_all_kinds_of_ends() {
    for version in Version::ALL {
        for client_tls in [false, true] {
            let ca = TestCa::new();
            let backend = Backend::new();
            let mut options = ca.towards_targets(Options::default());
            options.connect_timeout = SOON;
            let options = if client_tls { ca.options(options) } else { options };
            let mut proxy = TestProxy::new(options);
            proxy.commit(backend.addr());
            let config = ca.server_of(version);
            let sum = if client_tls {
                let both = (Version::Tls12, Version::Tls13);
                let mut client = over(proxy.client(), ca.client_config(both, None));
                complete(&mut client);
                echo(&mut client, backend.accept_proved_tls(&config))
            } else {
                echo(&mut proxy.client(), backend.accept_proved_tls(&config))
            };
            let stats = proxy.wait_for("the end", |stats| stats.closed_in_all() == 1);
            let bytes = (stats.bytes_in, stats.bytes_out, stats.bytes_spliced);
            assert_eq!(bytes, (sum as u64, sum as u64, 0), "{version:?} {client_tls}");
            assert_eq!((stats.commands, stats.target_tls.full), (7, 1));
        }
    }
}

#[test]
fn keeps_requests_in_order_while_the_server_reads_late() {
    let scene = Scene::new(Options::default());
    let (mut client, mut server) = scene.session();
    let request = value(16 << 20, 3);
    let (whole, last) = (request.clone(), b"GET last\r\n");
    let writer = thread::spawn(move || {
        say(&mut client, &whole);
        say(&mut client, last);
        client
    });
    scene.proxy.wait_for("a part to be sent", |stats| stats.bytes_in > 100_000);
    let mut read = vec![0; request.len()];
    server.read_exact(&mut read).unwrap();
    assert!(read == request);
    expect_from(&mut server, last);
    say(&mut server, b"$1\r\na\r\n$1\r\nb\r\n");
    expect_from(&mut writer.join().unwrap(), b"$1\r\na\r\n$1\r\nb\r\n");
}

#[test]
fn resumes_tls_sessions_with_a_target() {
    let scene = Scene::new(Options::default());
    for _ in 0..3 {
        let (client, mut server) = scene.session();
        drop(client);
        assert_eq!(read_to_end(&mut server), (Vec::new(), true));
    }
    let stats = scene.proxy.stats().target_tls;
    assert_eq!((stats.full, stats.resumed), (1, 2));
}

#[test]
fn announces_the_end_of_a_finished_session() {
    let scene = Scene::new(Options::default());
    let (client, mut server) = scene.session();
    drop(client);
    assert_eq!(read_to_end(&mut server), (Vec::new(), true));
    scene.proxy.wait_for_end(EndReason::ClientClosed);
}

#[test]
fn passes_a_half_close_on_and_delivers_the_reply() {
    let scene = Scene::new(Options::default());
    let (mut client, mut server) = scene.session();
    say(&mut client, b"GET k\r\n");
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_to_end(&mut server), (b"GET k\r\n".to_vec(), true));
    say(&mut server, b"$1\r\nv\r\n");
    drop(server);
    assert_eq!(rest(&mut client), b"$1\r\nv\r\n");
    scene.proxy.wait_for_end(EndReason::ClientClosed);
}

#[test]
fn takes_both_ends_of_a_target_for_its_end() {
    for announced in [true, false] {
        let scene = Scene::new(Options { sessions: Sessions::Close, ..Options::default() });
        let (mut client, mut server) = scene.session();
        say(&mut client, b"QUIT\r\n");
        expect_from(&mut server, b"QUIT\r\n");
        say(&mut server, b"+OK\r\n");
        if announced {
            server.conn.send_close_notify();
            server.conn.complete_io(&mut server.sock).unwrap();
        } else {
            server.sock.shutdown(Shutdown::Write).unwrap();
        }
        assert_eq!(rest(&mut client), b"+OK\r\n");
        drop(client);
        scene.proxy.wait_for_end(EndReason::UpstreamClosed);
    }
}

#[test]
fn carries_sessions_with_their_state_to_the_next_master() {
    let mut scene = Scene::new(Options::default());
    let (mut client, mut server) = scene.session();
    say(&mut client, b"SELECT 4\r\n");
    expect_from(&mut server, b"SELECT 4\r\n");
    say(&mut server, b"+OK\r\n");
    expect_from(&mut client, b"+OK\r\n");
    let next = Backend::new();
    scene.proxy.commit(next.addr());
    let mut server_of_next = next.accept_tls(&scene.config);
    expect_from(&mut server_of_next, b"*2\r\n$6\r\nSELECT\r\n$1\r\n4\r\n");
    expect_from(&mut server_of_next, PING);
    say(&mut server_of_next, b"+OK\r\n+PONG\r\n");
    exchange(&mut client, &mut server_of_next);
    // The former one is sent nothing more. Its connection is reset, so that a master that hangs is
    // not sent anything when it comes back.
    assert_eq!(read_to_end(&mut server).0, b"");
    assert_eq!(scene.proxy.stats().carried, 1);
}

#[test]
fn continues_after_the_master_has_closed() {
    let mut scene = Scene::new(Options::default());
    let (mut client, server) = scene.session();
    scene.proxy.publisher.hold();
    drop(server);
    say(&mut client, b"GET k\r\n");
    scene.proxy.wait_for("the session to wait", |stats| stats.held == 1);
    let next = Backend::new();
    scene.proxy.commit(next.addr());
    let mut server = scene.accept_carried(&next);
    expect_from(&mut server, b"GET k\r\n");
    say(&mut server, b"$1\r\nv\r\n");
    expect_from(&mut client, b"$1\r\nv\r\n");
}

#[test]
fn closes_sessions_that_the_master_has_closed_on_purpose() {
    let scene = Scene::new(Options::default());
    let (mut client, server) = scene.session();
    drop(server);
    // Whether it is alive is asked over TLS, too.
    let mut asked = scene.accept_carried(&scene.backend);
    assert_eq!(rest(&mut client), b"");
    assert_eq!(read_to_end(&mut asked), (Vec::new(), true));
    scene.proxy.wait_for_end(EndReason::UpstreamClosed);
}

#[test]
fn closes_sessions_with_a_request_in_flight_at_the_fence() {
    let mut scene = Scene::new(Options::default());
    let (mut client, mut server) = scene.session();
    say(&mut client, b"INCR k\r\n");
    expect_from(&mut server, b"INCR k\r\n");
    scene.proxy.commit(Backend::new().addr());
    assert_eq!(rest(&mut client), b"");
    assert_eq!(read_to_end(&mut server).0, b"");
    scene.proxy.wait_for_end(EndReason::Fenced);
}

#[test]
fn drains_at_a_boundary_of_a_tls_target() {
    let scene = Scene::new(Options::default());
    let (mut client, mut server) = scene.session();
    say(&mut client, b"GET k\r\n");
    expect_from(&mut server, b"GET k\r\n");
    scene.proxy.drain.request_stop(StopRequest::Drain);
    say(&mut server, b"$1\r\nv\r\n");
    assert_eq!(rest(&mut client), b"$1\r\nv\r\n");
    assert_eq!(read_to_end(&mut server), (Vec::new(), true));
    let (_, stats) = scene.proxy.stop(StopRequest::Drain);
    assert_eq!(stats.closed_for(EndReason::Drained), 1);
}

#[test]
fn lists_the_tls_of_both_ends() {
    let ca = TestCa::new();
    let backend = Backend::new();
    let options = Options { connect_timeout: SOON, ..Options::default() };
    let mut proxy = TestProxy::new(ca.options(ca.towards_targets(options)));
    proxy.commit(backend.addr());
    let versions = (Version::Tls12, Version::Tls12);
    let mut client = over(proxy.client(), ca.client_config(versions, None));
    complete(&mut client);
    let mut server = backend.accept_proved_tls(&ca.server_of(Version::Tls13));
    exchange(&mut client, &mut server);
    let rows = rows(&proxy);
    let [row] = rows.as_slice() else { panic!("{rows:?}") };
    let version = |facts: Option<crate::TlsFacts>| facts.map(|facts| facts.version);
    assert_eq!(version(row.client_tls), Some(Version::Tls12));
    assert_eq!(version(row.target_tls), Some(Version::Tls13));
    assert!(row.target_tls.unwrap().cipher.starts_with("TLS_AES"), "{row:?}");
}

#[test]
fn applies_changed_settings_to_new_connections() {
    let (old, new) = (TestCa::new(), TestCa::new());
    let backend = Backend::new();
    let tls = ClientTls::new(&old.target_settings()).unwrap();
    let options =
        Options { connect_timeout: SOON, target_tls: Some(tls.clone()), ..Options::default() };
    let mut proxy = TestProxy::new(options);
    proxy.commit(backend.addr());
    let mut first = proxy.client();
    let mut first_server = backend.accept_proved_tls(&old.server());
    exchange(&mut first, &mut first_server);
    // The server has a certificate of another CA from now on.
    tls.replace(&new.target_settings()).unwrap();
    let mut second = proxy.client();
    let mut second_server = backend.accept_proved_tls(&new.server());
    exchange(&mut second, &mut second_server);
    // The established session keeps what it has.
    exchange(&mut first, &mut first_server);
}

#[test]
fn moves_sessions_from_plain_to_tls_and_back() {
    let ca = TestCa::new();
    let (plain, secure) = (Backend::new(), Backend::new());
    let options = Options { connect_timeout: SOON, ..Options::default() };
    let mut proxy = TestProxy::new(options.clone());
    proxy.commit(plain.addr());
    let (mut client, _upstream) = crate::testing::session(&proxy, &plain);
    proxy.running().tune(0, ca.towards_targets(options.clone()));
    proxy.commit(secure.addr());
    let mut server = secure.accept_proved_tls(&ca.server());
    exchange(&mut client, &mut server);
    proxy.running().tune(0, options);
    proxy.commit(plain.addr());
    let mut upstream = plain.accept_carried();
    say(&mut client, b"PING\r\n");
    expect_from(&mut upstream, b"PING\r\n");
    assert_eq!(proxy.stats().carried, 2);
}
