//! A session whose state the server refuses ends a script: its request goes ahead of that state,
//! alone and once, and everything else is executed in its own database.

use std::io::Write;
use std::net::{Shutdown, TcpStream};

use crate::EndReason;
use crate::session::carry::proof_tests::{PING, answer_proof};
use crate::shared::shared_tests::{
    answer_reset, exchange, get, proxy, refuse_table, request, rest_of,
};
use crate::testing::{Backend, TestProxy, expect, is_silent, rest, rest_or_reset};

const BUSY: &[u8] = b"-BUSY Redis is busy running a script.\r\n";
const SELECT: &[&str] = &["SELECT", "1"];

fn kill() -> Vec<u8> {
    request(&["SCRIPT", "KILL"])
}

/// A client in database 1, and the connection that it shares.
fn in_database(proxy: &TestProxy, backend: &Backend) -> (TcpStream, TcpStream) {
    let mut client = proxy.client();
    client.write_all(&request(SELECT)).unwrap();
    let mut own = backend.accept_carried();
    expect(&mut own, &request(SELECT));
    own.write_all(b"+OK\r\n").unwrap();
    expect(&mut client, b"+OK\r\n");
    answer_reset(&mut own);
    client.write_all(&get("first")).unwrap();
    let mut shared = backend.accept();
    accept_state(&mut shared);
    refuse_table(&mut shared);
    expect(&mut shared, &get("first"));
    shared.write_all(b"$-1\r\n").unwrap();
    expect(&mut client, b"$-1\r\n");
    (client, shared)
}

fn accept_state(upstream: &mut TcpStream) {
    expect(upstream, &request(SELECT));
    upstream.write_all(b"+OK\r\n").unwrap();
    answer_proof(upstream);
}

/// The next connection, on which a server that runs a script refuses the database.
fn refuse_state(backend: &Backend) -> TcpStream {
    let mut own = backend.accept();
    expect(&mut own, &[&request(SELECT)[..], PING].concat());
    own.write_all(&[BUSY, BUSY].concat()).unwrap();
    own
}

#[test]
fn sends_an_interrupt_ahead_of_the_database() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let (mut client, mut shared) = in_database(&proxy, &backend);
    for round in 1..3 {
        // The last request is incomplete.
        let set = request(&["SET", "k", "v"]);
        let last = get("last");
        let (begin, end) = last.split_at(9);
        client.write_all(&[&kill()[..], &set, begin].concat()).unwrap();
        let mut own = refuse_state(&backend);
        expect(&mut own, &kill());
        assert!(is_silent(&mut own) && is_silent(&mut shared) && is_silent(&mut client));
        own.write_all(b"+OK\r\n").unwrap();
        expect(&mut client, b"+OK\r\n");
        assert_eq!(rest_of(own), b"", "nothing more was sent there");
        expect(&mut shared, &set);
        client.write_all(end).unwrap();
        shared.write_all(b"+OK\r\n").unwrap();
        expect(&mut shared, &last);
        shared.write_all(b"$1\r\nl\r\n").unwrap();
        expect(&mut client, b"+OK\r\n$1\r\nl\r\n");
        let stats = proxy.stats();
        let promoted: u64 = stats.shared.promoted.iter().sum();
        assert_eq!((promoted, stats.shared.returned), (1 + round, 1 + round));
        assert_eq!((stats.shared.sessions, stats.shared.dedicated), (1, 0));
        assert_eq!((stats.commands, stats.replies), (2 + 3 * round, 2 + 3 * round));
    }
    assert!(!backend.has_pending_connection());
}

#[test]
fn passes_the_refusal_of_an_interrupt() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let (mut client, mut shared) = in_database(&proxy, &backend);
    for words in [["FUNCTION", "KILL"], ["SHUTDOWN", "NOSAVE"]] {
        client.write_all(&request(&words)).unwrap();
        let mut own = refuse_state(&backend);
        expect(&mut own, &request(&words));
        own.write_all(b"-NOPERM no\r\n").unwrap();
        expect(&mut client, b"-NOPERM no\r\n");
        exchange(&mut client, &mut shared, &get("k"), b"$1\r\nv\r\n");
    }
    assert_eq!(proxy.stats().open(), 1);
}

#[test]
fn serves_an_interrupt_of_a_client_that_ended_its_direction() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let (mut client, mut shared) = in_database(&proxy, &backend);
    client.write_all(&[kill(), get("k")].concat()).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut own = refuse_state(&backend);
    expect(&mut own, &kill());
    own.write_all(b"+OK\r\n").unwrap();
    expect(&mut shared, &get("k"));
    shared.write_all(b"$1\r\nv\r\n").unwrap();
    assert_eq!(rest(&mut client), b"+OK\r\n$1\r\nv\r\n");
    proxy.wait_for_end(EndReason::ClientClosed);
}

/// Its outcome is unknown then.
#[test]
fn ends_with_an_interrupt_that_is_not_answered() {
    // None, half of one, none but a push message, and one too many.
    for reply in ["", "+O", ">1\r\n+x\r\n", "+OK\r\n+OK\r\n"] {
        let backend = Backend::new();
        let proxy = proxy(&backend);
        let (mut client, mut shared) = in_database(&proxy, &backend);
        client.write_all(&[kill(), get("k")].concat()).unwrap();
        let mut own = refuse_state(&backend);
        expect(&mut own, &kill());
        own.write_all(reply.as_bytes()).unwrap();
        drop(own);
        assert_eq!(rest_of(client), b"", "{reply}");
        proxy.wait_for_end(EndReason::UpstreamClosed);
        assert!(is_silent(&mut shared) && !backend.has_pending_connection());
    }
}

#[test]
fn sends_no_interrupt_to_the_next_master_again() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut proxy = proxy(&old);
    let (mut client, _shared) = in_database(&proxy, &old);
    client.write_all(&[kill(), get("k")].concat()).unwrap();
    let mut own = refuse_state(&old);
    expect(&mut own, &kill());
    proxy.commit(new.addr());
    assert_eq!(rest_of(client), b"");
    proxy.wait_for_end(EndReason::Fenced);
    assert!(!new.has_pending_connection());
}

/// An error reply to the next request would be taken for that to the interrupt.
#[test]
fn refuses_nothing_after_an_interrupt_at_the_cut() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let (mut client, _shared) = in_database(&proxy, &backend);
    client.write_all(&[kill(), get("k")].concat()).unwrap();
    let mut own = refuse_state(&backend);
    expect(&mut own, &kill());
    let (_, stats) = proxy.stop(drain::StopRequest::Cut);
    assert_eq!(rest_or_reset(&mut client), b"");
    assert_eq!(stats.closed_for(EndReason::Cut), 1);
}

/// As any reply, that to an interrupt passes a gate that was closed meanwhile.
#[test]
fn answers_an_interrupt_at_a_closed_gate() {
    let (old, new) = (Backend::new(), Backend::new());
    let mut proxy = proxy(&old);
    let (mut client, mut shared) = in_database(&proxy, &old);
    client.write_all(&[kill(), get("k")].concat()).unwrap();
    let mut own = refuse_state(&old);
    expect(&mut own, &kill());
    proxy.publisher.hold();
    own.write_all(b"+OK\r\n").unwrap();
    expect(&mut client, b"+OK\r\n");
    assert!(is_silent(&mut shared));
    proxy.commit(new.addr());
    let mut next = new.accept();
    accept_state(&mut next);
    refuse_table(&mut next);
    expect(&mut next, &get("k"));
    next.write_all(b"$1\r\nv\r\n").unwrap();
    expect(&mut client, b"$1\r\nv\r\n");
}

#[test]
fn sends_nothing_else_without_the_database() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    for words in [&["INCR", "k"][..], &["FUNCTION", "STATS"], &["SELECT", "2"]] {
        let (mut client, shared) = in_database(&proxy, &backend);
        // In a transaction, or by themselves.
        client.write_all(&[request(&["MULTI"]), request(words), kill()].concat()).unwrap();
        let refused = refuse_state(&backend);
        assert_eq!(rest_of(refused), b"", "{words:?}");
        let mut own = backend.accept();
        accept_state(&mut own);
        expect(&mut own, &[request(&["MULTI"]), request(words), kill()].concat());
        drop((own, client, shared));
    }
}
