//! Sessions that rest: what wakes them, what they still know, and how they end.

use std::io::Write;
use std::time::Duration;

use drain::StopRequest;

use crate::session::carry::proof_tests::answer_proof;
use crate::shared::shared_tests::{
    another, exchange, get, options, proxy, refuse_table, request, sharing,
};
use crate::testing::{Backend, TestProxy, expect, is_silent, reset, rest};
use crate::workers::session_visitor_tests::{block_on, wait_for};
use crate::{ConnectionUse, EndReason, ListedState, Options};

/// Waits until so many rests have begun.
#[track_caller]
fn wait_for_rests(proxy: &TestProxy, rests: u64) {
    proxy.wait_for("a rest", |stats| stats.shared.rests == rests);
}

#[test]
fn rests_at_once_and_again_after_an_interval() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let (mut client, mut shared) = sharing(&proxy, &backend);
    wait_for_rests(&proxy, 1);
    for value in 0..20 {
        // In pieces: the first wakes the session, which does not rest with half a request.
        let request = get(&value.to_string());
        let (first, second) = request.split_at(value % request.len());
        client.write_all(first).unwrap();
        client.write_all(second).unwrap();
        expect(&mut shared, &request);
        shared.write_all(b"$1\r\nv\r\n").unwrap();
        expect(&mut client, b"$1\r\nv\r\n");
    }
    wait_for_rests(&proxy, 2);
    exchange(&mut client, &mut shared, &get("k"), b"$-1\r\n");
    wait_for_rests(&proxy, 3);
    let stats = proxy.stats();
    assert_eq!((stats.shared.sessions, stats.shared.connections, stats.commands), (1, 1, 22));
    assert!(!backend.has_pending_connection());
}

#[test]
fn keeps_what_the_server_was_told_while_it_rests() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let mut client = proxy.client();
    client.write_all(&request(&["SELECT", "7"])).unwrap();
    let mut own = backend.accept_carried();
    expect(&mut own, &request(&["SELECT", "7"]));
    own.write_all(b"+OK\r\n").unwrap();
    expect(&mut client, b"+OK\r\n");
    wait_for_rests(&proxy, 1);
    // It rests without a connection, and joins one in its database.
    client.write_all(&get("k")).unwrap();
    let mut shared = backend.accept();
    expect(&mut shared, &request(&["SELECT", "7"]));
    shared.write_all(b"+OK\r\n").unwrap();
    answer_proof(&mut shared);
    refuse_table(&mut shared);
    expect(&mut shared, &get("k"));
    shared.write_all(b"$-1\r\n").unwrap();
    expect(&mut client, b"$-1\r\n");
}

#[test]
fn refuses_wait_after_writes_on_a_shared_connection() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let (mut client, _shared) = sharing(&proxy, &backend);
    wait_for_rests(&proxy, 1);
    client.write_all(&request(&["WAIT", "1", "0"])).unwrap();
    let _own = backend.accept_carried();
    assert_eq!(rest(&mut client), b"");
    proxy.wait_for_end(EndReason::StateLost);
}

#[test]
fn ends_with_a_client_that_leaves_while_it_rests() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let (client, mut shared) = sharing(&proxy, &backend);
    let other = another(&proxy, &mut shared);
    wait_for_rests(&proxy, 2);
    drop(client);
    reset(other);
    let ends = [EndReason::ClientClosed, EndReason::ClientReset];
    proxy.wait_for("both ends", |stats| ends.map(|end| stats.closed_for(end)) == [1, 1]);
    let stats = proxy.stats();
    assert_eq!((stats.shared.sessions, stats.shared.rests), (0, 2));
    assert!(is_silent(&mut shared), "it is kept for the next client");
}

#[test]
fn lists_and_ends_a_session_that_rests() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let (mut client, mut shared) = sharing(&proxy, &backend);
    wait_for_rests(&proxy, 1);
    let row = wait_for(&proxy, "the session", |row| row.state == ListedState::Idle);
    assert_eq!((row.connection, row.commands), (Some(ConnectionUse::Shared), 1));
    assert_eq!(row.upstream.map(|(addr, _)| addr), Some(backend.addr()));
    assert_eq!(row.bytes, (get("first").len() as u64, 5));
    // It rests again by itself, and serves.
    proxy.wait_for("a rest", |stats| stats.shared.rests >= 2);
    exchange(&mut client, &mut shared, &get("k"), b"$-1\r\n");
    let before = proxy.stats().shared.rests;
    proxy.wait_for("a rest", |stats| stats.shared.rests > before);
    block_on(proxy.running().sessions.kill(row.id)).unwrap();
    assert_eq!(rest(&mut client), b"");
    proxy.wait_for_end(EndReason::Killed);
}

#[test]
fn holds_a_request_that_comes_at_a_closed_gate() {
    let backend = Backend::new();
    let mut proxy = proxy(&backend);
    let (mut client, mut shared) = sharing(&proxy, &backend);
    wait_for_rests(&proxy, 1);
    proxy.publisher.hold();
    client.write_all(&get("held")).unwrap();
    assert!(is_silent(&mut shared));
    proxy.publisher.release();
    expect(&mut shared, &get("held"));
    shared.write_all(b"$1\r\nh\r\n").unwrap();
    expect(&mut client, b"$1\r\nh\r\n");
}

#[test]
fn closes_an_idle_client_that_rests() {
    const SHORT: Duration = Duration::from_millis(300);
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let (mut client, _shared) = sharing(&proxy, &backend);
    wait_for_rests(&proxy, 1);
    proxy.running().tune(0, Options { client_idle_timeout: SHORT, ..options() });
    // It wakes for each check, and rests in between.
    assert_eq!(rest(&mut client), b"");
    proxy.wait_for_end(EndReason::IdleTimeout);
    assert!(proxy.stats().shared.rests >= 3, "{:?}", proxy.stats().shared);
}

#[test]
fn leaves_in_a_drain_while_it_rests() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let (client, _shared) = sharing(&proxy, &backend);
    wait_for_rests(&proxy, 1);
    let (summary, stats) = proxy.stop(StopRequest::DrainAtOnce);
    assert_eq!((summary.session_counts.asked, summary.session_counts.cut), (1, 0));
    assert_eq!(stats.closed_for(EndReason::Drained), 1);
    drop(client);
}
