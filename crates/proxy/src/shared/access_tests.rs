//! Clients without credentials: the server is asked before they join a connection that it admitted
//! long ago.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::time::Instant;

use crate::EndReason;
use crate::session::carry::proof_tests::PING;
use crate::shared::access::KNOWN_FOR;
use crate::shared::shared_tests::{
    accept_shared, answer_reset, exchange, get, proxy, refuse_limits, rest_of, sharing,
};
use crate::testing::{Backend, TestProxy, expect, is_silent, rest};

const NOAUTH: &[u8] = b"-NOAUTH Authentication required.\r\n";

/// A client, and a shared connection about which nothing is known any more.
fn forgotten(proxy: &TestProxy, backend: &Backend) -> (TcpStream, TcpStream) {
    let (one, mut shared) = sharing(proxy, backend);
    forget(proxy);
    assert!(is_silent(&mut shared));
    (one, shared)
}

/// Waits until an answer counts no more.
fn forget(proxy: &TestProxy) {
    let begin = Instant::now();
    proxy.wait_for("its age", |_| begin.elapsed() > KNOWN_FOR);
}

/// A new client with a request.
fn asking(proxy: &TestProxy, key: &str) -> TcpStream {
    let mut client = proxy.client();
    client.write_all(&get(key)).unwrap();
    client
}

#[test]
fn asks_the_server_before_a_client_joins_an_old_connection() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let (_one, mut shared) = forgotten(&proxy, &backend);
    let (mut two, mut three) = (asking(&proxy, "two"), asking(&proxy, "two"));
    // One question for both.
    let mut asked = backend.accept();
    expect(&mut asked, PING);
    assert!(is_silent(&mut shared));
    asked.write_all(b"+PONG\r\n").unwrap();
    answer_reset(&mut asked);
    expect(&mut shared, &[get("two"), get("two")].concat());
    shared.write_all(b"$1\r\n2\r\n$1\r\n3\r\n").unwrap();
    let replies = [&mut two, &mut three].map(|client| {
        let mut reply = [0; 7];
        std::io::Read::read_exact(client, &mut reply).unwrap();
        reply
    });
    assert!(replies.iter().all(|reply| reply.starts_with(b"$1\r\n")), "{replies:?}");
    // The next ones join at once, until the answer is old. Then the same connection is used.
    let mut four = asking(&proxy, "four");
    expect(&mut shared, &get("four"));
    shared.write_all(b"$1\r\n4\r\n").unwrap();
    expect(&mut four, b"$1\r\n4\r\n");
    forget(&proxy);
    let mut five = asking(&proxy, "five");
    answer_reset(&mut asked);
    expect(&mut asked, PING);
    asked.write_all(b"+PONG\r\n").unwrap();
    expect(&mut shared, &get("five"));
    shared.write_all(b"$1\r\n5\r\n").unwrap();
    expect(&mut five, b"$1\r\n5\r\n");
    assert!(!backend.has_pending_connection());
    let stats = proxy.stats();
    assert_eq!((stats.shared.connections, stats.shared.promoted.iter().sum::<u64>()), (1, 0));
    assert_eq!(stats.shared.access_checks, [2, 0, 0]);
}

/// Refuses the client's request on a new connection: the server says it itself. It is not asked for
/// its table, for which it would close.
fn refuse(backend: &Backend, client: &mut TcpStream) -> TcpStream {
    let mut closed = backend.accept();
    expect(&mut closed, PING);
    closed.write_all(NOAUTH).unwrap();
    expect(&mut closed, &get("secret"));
    closed.write_all(NOAUTH).unwrap();
    expect(client, NOAUTH);
    closed
}

#[test]
fn keeps_clients_that_were_not_admitted_off_an_old_connection() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let (mut one, mut shared) = forgotten(&proxy, &backend);
    let mut two = asking(&proxy, "secret");
    let mut asked = backend.accept();
    expect(&mut asked, PING);
    asked.write_all(NOAUTH).unwrap();
    answer_reset(&mut asked);
    let _closed = refuse(&backend, &mut two);
    // The one that was admitted stays.
    exchange(&mut one, &mut shared, &get("mine"), b"$1\r\nm\r\n");
    let stats = proxy.stats();
    assert_eq!((stats.shared.connections, stats.shared.access_checks), (2, [0, 1, 0]));
}

#[test]
fn gives_clients_own_connections_if_the_server_cannot_be_asked() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let (mut one, mut shared) = forgotten(&proxy, &backend);
    let mut two = asking(&proxy, "two");
    let mut asked = backend.accept();
    expect(&mut asked, PING);
    asked.write_all(b"-LOADING x\r\n").unwrap();
    let mut own = backend.accept_carried();
    expect(&mut own, &get("two"));
    own.write_all(b"$1\r\n2\r\n").unwrap();
    expect(&mut two, b"$1\r\n2\r\n");
    exchange(&mut one, &mut shared, &get("mine"), b"$1\r\nm\r\n");
}

#[test]
fn answers_a_half_closed_client_that_waits() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let (_one, mut shared) = forgotten(&proxy, &backend);
    let mut two = asking(&proxy, "last");
    two.shutdown(Shutdown::Write).unwrap();
    let mut gone = asking(&proxy, "gone");
    let mut asked = backend.accept();
    expect(&mut asked, PING);
    gone.write_all(&get("more")).unwrap();
    crate::testing::reset(gone);
    proxy.wait_for("its end", |stats| stats.closed_in_all() == 1);
    asked.write_all(b"+PONG\r\n").unwrap();
    answer_reset(&mut asked);
    expect(&mut shared, &get("last"));
    shared.write_all(b"$1\r\nl\r\n").unwrap();
    assert_eq!(rest(&mut two), b"$1\r\nl\r\n");
    proxy.wait_for("its end", |stats| stats.closed_for(EndReason::ClientClosed) >= 1);
}

#[test]
fn carries_clients_that_wait_for_the_answer_to_the_next_target() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut proxy = proxy(&old);
    let (_one, mut shared) = forgotten(&proxy, &old);
    let mut two = asking(&proxy, "two");
    let mut asked = old.accept();
    expect(&mut asked, PING);
    proxy.publisher.hold();
    asked.write_all(b"+PONG\r\n").unwrap();
    assert!(is_silent(&mut shared));
    proxy.commit(new.addr());
    let mut next = accept_shared(&new);
    expect(&mut next, &get("two"));
    next.write_all(b"$1\r\n2\r\n").unwrap();
    expect(&mut two, b"$1\r\n2\r\n");
    assert_eq!(rest_of(shared), b"", "nothing was sent");
}

#[test]
fn serves_a_client_after_the_gate_has_opened() {
    for is_answered in [true, false] {
        let backend = Backend::new();
        let mut proxy = proxy(&backend);
        let (_one, mut shared) = forgotten(&proxy, &backend);
        let mut two = asking(&proxy, "two");
        let mut asked = backend.accept();
        expect(&mut asked, PING);
        proxy.publisher.hold();
        if is_answered {
            asked.write_all(b"+PONG\r\n").unwrap();
        } else {
            drop(asked);
        }
        assert!(is_silent(&mut shared));
        proxy.publisher.release();
        let mut upstream = if is_answered { shared } else { backend.accept_carried() };
        expect(&mut upstream, &get("two"));
        upstream.write_all(b"$1\r\n2\r\n").unwrap();
        expect(&mut two, b"$1\r\n2\r\n");
    }
}

/// The server was asked when the connection began to be opened, and that takes long.
#[test]
fn asks_before_a_client_joins_a_connection_in_opening() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let mut one = asking(&proxy, "one");
    let mut opening = backend.accept_carried();
    expect(&mut opening, &crate::shared::server_table::ask_table());
    forget(&proxy);
    let mut two = asking(&proxy, "secret");
    let mut asked = backend.accept();
    expect(&mut asked, PING);
    asked.write_all(NOAUTH).unwrap();
    let _closed = refuse(&backend, &mut two);
    opening.write_all(b"-NOPERM x\r\n").unwrap();
    refuse_limits(&mut opening);
    expect(&mut opening, &get("one"));
    opening.write_all(b"$1\r\n1\r\n").unwrap();
    expect(&mut one, b"$1\r\n1\r\n");
}
