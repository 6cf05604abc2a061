//! Connections on which one client after the other is verified.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use crate::EndReason;
use crate::session::carry::proof_tests::answer_proof;
use crate::shared::shared_tests::{
    accept_shared, answer_reset, exchange, get, options, proxy, refuse_table, request, sharing,
};
use crate::testing::tls_client::TestCa;
use crate::testing::{Backend, TestProxy, expect, is_silent, rest, rest_or_reset};

/// A client whose request was verified on the connection, which was then given up.
fn verify(proxy: &TestProxy, own: &mut TcpStream, returns: u64) -> TcpStream {
    let mut client = proxy.client();
    let select = request(&["SELECT", "1"]);
    client.write_all(&select).unwrap();
    answer_reset(own);
    answer_proof(own);
    expect(own, &select);
    own.write_all(b"+OK\r\n").unwrap();
    expect(&mut client, b"+OK\r\n");
    proxy.wait_for("its return", |stats| stats.shared.returned == returns);
    answer_reset(own);
    client
}

/// The first client that is verified, and the new connection that is kept for the next one.
fn verify_first(proxy: &TestProxy, backend: &Backend) -> (TcpStream, TcpStream) {
    let mut client = proxy.client();
    let select = request(&["SELECT", "1"]);
    client.write_all(&select).unwrap();
    let mut own = backend.accept_carried();
    expect(&mut own, &select);
    own.write_all(b"+OK\r\n").unwrap();
    expect(&mut client, b"+OK\r\n");
    proxy.wait_for("its return", |stats| stats.shared.returned == 1);
    answer_reset(&mut own);
    (client, own)
}

#[test]
fn verifies_clients_on_one_connection() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let (_first, mut own) = verify_first(&proxy, &backend);
    let _clients: Vec<TcpStream> = (2..6).map(|n| verify(&proxy, &mut own, n)).collect();
    assert!(!backend.has_pending_connection());
    assert_eq!(proxy.stats().dials, 1);
    // Unused, it is closed.
    assert_eq!(rest(&mut own), b"");
}

#[test]
fn closes_a_connection_whose_id_was_told() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let hello = request(&["HELLO", "3"]);
    for round in 1..3 {
        let mut client = proxy.client();
        client.write_all(&hello).unwrap();
        let mut own = backend.accept_carried();
        expect(&mut own, &hello);
        own.write_all(b"%1\r\n$2\r\nid\r\n:3\r\n").unwrap();
        expect(&mut client, b"%1\r\n$2\r\nid\r\n:3\r\n");
        proxy.wait_for("its return", |stats| stats.shared.returned == round);
        assert_eq!(rest_or_reset(&mut own), b"");
    }
}

#[test]
fn keeps_the_connection_of_a_client_that_leaves_at_once() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let select = request(&["SELECT", "1"]);
    let mut own = None;
    for round in 1..5 {
        let mut client = proxy.client();
        client.write_all(&select).unwrap();
        let is_used = own.is_some();
        let own = own.get_or_insert_with(|| backend.accept());
        if is_used {
            answer_reset(own);
        }
        answer_proof(own);
        expect(own, &select);
        own.write_all(b"+OK\r\n").unwrap();
        expect(&mut client, b"+OK\r\n");
        drop(client);
        proxy.wait_for("its end", |stats| stats.closed_for(EndReason::ClientClosed) == round);
        answer_reset(own);
    }
    // One that leaves in a transaction takes its connection along.
    let mut client = proxy.client();
    client.write_all(&select).unwrap();
    let mut own = own.unwrap();
    answer_reset(&mut own);
    answer_proof(&mut own);
    expect(&mut own, &select);
    own.write_all(b"+OK\r\n").unwrap();
    expect(&mut client, b"+OK\r\n");
    let multi = request(&["MULTI"]);
    client.write_all(&multi).unwrap();
    expect(&mut own, &multi);
    own.write_all(b"+OK\r\n").unwrap();
    expect(&mut client, b"+OK\r\n");
    drop(client);
    assert_eq!(rest(&mut own), b"");
}

#[test]
fn opens_another_connection_if_one_cannot_be_reset() {
    // Before Redis 6.2, without permission, closed meanwhile, and not what was asked.
    let replies =
        [&b"-ERR unknown command 'RESET'\r\n"[..], b"-NOPERM x\r\n", b"", b"+RESET\r\n+OK\r\n"];
    for reply in replies {
        let backend = Backend::new();
        let proxy = proxy(&backend);
        let mut own = backend_connection(&proxy, &backend);
        if reply.is_empty() {
            answer_reset(&mut own);
            drop(own);
        } else {
            expect(&mut own, b"*1\r\n$5\r\nRESET\r\n");
            own.write_all(reply).unwrap();
            assert_eq!(rest(&mut own), b"", "neither the state nor the secret of a client");
        }
        let mut client = proxy.client();
        let auth = request(&["AUTH", "me", "secret"]);
        client.write_all(&auth).unwrap();
        let mut next = backend.accept_carried();
        expect(&mut next, &auth);
        next.write_all(b"+OK\r\n").unwrap();
        expect(&mut client, b"+OK\r\n");
    }
}

/// What has arrived on a kept connection would be taken for the reply to the next client.
#[test]
fn uses_no_connection_on_which_more_has_arrived() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let (mut one, mut shared) = sharing(&proxy, &backend);
    let mut own = backend_connection(&proxy, &backend);
    answer_reset(&mut own);
    // When the worker has forwarded this, it has read the confirmation.
    exchange(&mut one, &mut shared, &get("k"), b"$-1\r\n");
    own.write_all(b"+PONG\r\n").unwrap();
    let mut client = proxy.client();
    let auth = request(&["AUTH", "me", "secret"]);
    client.write_all(&auth).unwrap();
    let mut next = backend.accept_carried();
    expect(&mut next, &auth);
    // What was not read resets it.
    let end = own.read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(end, Err(ErrorKind::ConnectionReset), "it received something of the client");
}

/// The connection that has verified a client.
fn backend_connection(proxy: &TestProxy, backend: &Backend) -> TcpStream {
    let mut client = proxy.client();
    let select = request(&["SELECT", "1"]);
    client.write_all(&select).unwrap();
    let mut own = backend.accept_carried();
    expect(&mut own, &select);
    own.write_all(b"+OK\r\n").unwrap();
    expect(&mut client, b"+OK\r\n");
    proxy.wait_for("its return", |stats| stats.shared.returned == 1);
    own
}

#[test]
fn uses_no_connection_to_a_former_target() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut proxy = proxy(&old);
    let mut own = backend_connection(&proxy, &old);
    answer_reset(&mut own);
    assert!(is_silent(&mut own));
    proxy.commit(new.addr());
    let mut client = proxy.client();
    let select = request(&["SELECT", "2"]);
    client.write_all(&select).unwrap();
    let mut next = new.accept_carried();
    expect(&mut next, &select);
    assert_eq!(rest(&mut own), b"", "it is closed");
}

#[test]
fn closes_a_connection_that_reset_may_not_take_back() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let mut client = proxy.client();
    for words in [&["SELECT", "1"][..], &["CLIENT", "NO-TOUCH", "ON"]] {
        client.write_all(&request(words)).unwrap();
    }
    let mut own = backend.accept_carried();
    for words in [&["SELECT", "1"][..], &["CLIENT", "NO-TOUCH", "ON"]] {
        expect(&mut own, &request(words));
        own.write_all(b"+OK\r\n").unwrap();
    }
    expect(&mut client, b"+OK\r\n+OK\r\n");
    assert_eq!(rest_or_reset(&mut own), b"");
    let stats = proxy.stats();
    assert_eq!((stats.shared.returned, stats.closed_in_all()), (1, 0));
}

#[test]
fn verifies_state_for_each_client_and_separates_groups() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let auth = |secret| request(&["AUTH", "me", secret]);
    let mut groups = Vec::new();
    let mut own = None;
    for (round, (secret, is_new)) in (1..).zip([("one", true), ("two", true), ("one", false)]) {
        let mut client = proxy.client();
        client.write_all(&auth(secret)).unwrap();
        // The server itself checks the secret, on one connection after the other client.
        let is_used = own.is_some();
        let own = own.get_or_insert_with(|| backend.accept());
        if is_used {
            answer_reset(own);
        }
        answer_proof(own);
        expect(own, &auth(secret));
        own.write_all(b"+OK\r\n").unwrap();
        expect(&mut client, b"+OK\r\n");
        proxy.wait_for("its return", |stats| stats.shared.returned == round);
        answer_reset(own);
        client.write_all(&get(secret)).unwrap();
        if is_new {
            let mut shared = backend.accept();
            expect(&mut shared, &auth(secret));
            shared.write_all(b"+OK\r\n").unwrap();
            answer_proof(&mut shared);
            refuse_table(&mut shared);
            groups.push(shared);
        }
        let shared = &mut groups[if secret == "one" { 0 } else { 1 }];
        expect(shared, &get(secret));
        shared.write_all(b"$-1\r\n").unwrap();
        expect(&mut client, b"$-1\r\n");
    }
    // A wrong secret is refused by the server, and does not join.
    let mut client = proxy.client();
    client.write_all(&auth("wrong")).unwrap();
    let mut own = own.unwrap();
    answer_reset(&mut own);
    answer_proof(&mut own);
    expect(&mut own, &auth("wrong"));
    own.write_all(b"-WRONGPASS x\r\n").unwrap();
    expect(&mut client, b"-WRONGPASS x\r\n");
    proxy.wait_for("its return", |stats| stats.shared.returned == 4);
    client.write_all(&get("k")).unwrap();
    let mut shared = accept_shared(&backend);
    expect(&mut shared, &get("k"));
    // It has to authenticate: the connection is not shared by clients that have not.
    shared.write_all(b"-NOAUTH x\r\n").unwrap();
    expect(&mut client, b"-NOAUTH x\r\n");
    backend.accept_carried();
}

#[test]
fn shares_nothing_of_before_tls_was_demanded() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let (_first, mut shared) = sharing(&proxy, &backend);
    let (_second, mut own) = verify_first(&proxy, &backend);
    proxy.running().tune(0, TestCa::new().towards_targets(options()));
    for words in [&["GET", "k"][..], &["SELECT", "1"]] {
        let mut client = proxy.client();
        client.write_all(&request(words)).unwrap();
        let mut secured = backend.accept();
        let mut first = [0];
        secured.read_exact(&mut first).unwrap();
        assert_eq!(first, [22], "no TLS handshake");
    }
    assert!(is_silent(&mut shared) && is_silent(&mut own));
}
