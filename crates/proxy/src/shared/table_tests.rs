//! What the server's own table of commands changes for sessions that share connections.

use std::io::Write;

use crate::session::carry::proof_tests::answer_proof;
use crate::shared::server_limits::ASK_LIMITS;
use crate::shared::server_table::ask_table;
use crate::shared::shared_tests::{get, proxy, refuse_limits, refuse_table, request};
use crate::testing::{Backend, expect, is_silent};

/// What a server says if it has one command only, with this flag.
fn table(command: &str, flag: &str) -> Vec<u8> {
    let asked = String::from_utf8(ask_table()).unwrap();
    let names: Vec<&str> = asked.split("\r\n").skip(6).step_by(2).collect();
    let len = command.len();
    let entry = |name: &&str| match name.eq_ignore_ascii_case(command) {
        true => format!("*3\r\n${len}\r\n{command}\r\n:1\r\n*1\r\n+{flag}\r\n"),
        false => "*-1\r\n".to_owned(),
    };
    format!("*{}\r\n{}", names.len(), names.iter().map(entry).collect::<String>()).into_bytes()
}

#[test]
fn shares_nothing_that_the_table_of_the_server_excludes() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let mut client = proxy.client();
    // The request waits for the table, which is read once.
    client.write_all(&request(&["SET", "k", "v"])).unwrap();
    let mut shared = backend.accept_carried();
    expect(&mut shared, &ask_table());
    let table = table("get", "noscript");
    let (first, second) = table.split_at(table.len() / 2);
    shared.write_all(first).unwrap();
    assert!(is_silent(&mut shared));
    shared.write_all(second).unwrap();
    refuse_limits(&mut shared);
    expect(&mut shared, &request(&["SET", "k", "v"]));
    shared.write_all(b"+OK\r\n").unwrap();
    expect(&mut client, b"+OK\r\n");
    client.write_all(&get("k")).unwrap();
    let mut own = backend.accept_carried();
    expect(&mut own, &get("k"));
    own.write_all(b"$1\r\nv\r\n").unwrap();
    expect(&mut client, b"$1\r\nv\r\n");
    assert!(is_silent(&mut shared));
    // Another group, which finds the table.
    let mut other = proxy.client();
    let select = request(&["SELECT", "1"]);
    other.write_all(&select).unwrap();
    let mut own = backend.accept_carried();
    expect(&mut own, &select);
    own.write_all(b"+OK\r\n").unwrap();
    expect(&mut other, b"+OK\r\n");
    proxy.wait_for("its return", |stats| stats.shared.returned == 1);
    other.write_all(&get("k")).unwrap();
    let mut second = backend.accept();
    expect(&mut second, &select);
    second.write_all(b"+OK\r\n").unwrap();
    answer_proof(&mut second);
    let mut own = backend.accept();
    expect(&mut own, &select);
    assert!(is_silent(&mut second), "neither COMMAND nor GET");
    assert_eq!(proxy.stats().shared.by_table, [2, 0]);
}

/// A server that refuses to show its table is asked again for each connection.
#[test]
fn counts_connections_without_the_table_of_the_server() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let mut client = proxy.client();
    client.write_all(&get("k")).unwrap();
    let mut shared = backend.accept_carried();
    refuse_table(&mut shared);
    expect(&mut shared, &get("k"));
    shared.write_all(b"$-1\r\n").unwrap();
    expect(&mut client, b"$-1\r\n");
    assert_eq!(proxy.stats().shared.by_table, [0, 1]);
    drop((client, shared));
    proxy.wait_for("its end", |stats| stats.shared.connections == 0);
    assert_eq!(proxy.stats().shared.by_table, [0, 0]);
}

#[test]
fn opens_own_connections_if_the_table_cannot_be_read() {
    // Closed in the middle, not RESP, and more than was asked for.
    for reply in [&b"*200\r\n"[..], b"HTTP/1.1 400\r\n", b"*0\r\n*0\r\n"] {
        let backend = Backend::new();
        let proxy = proxy(&backend);
        let mut client = proxy.client();
        client.write_all(&get("k")).unwrap();
        let mut shared = backend.accept_carried();
        expect(&mut shared, &ask_table());
        shared.write_all(reply).unwrap();
        drop(shared);
        let mut own = backend.accept_carried();
        expect(&mut own, &get("k"));
        own.write_all(b"$-1\r\n").unwrap();
        expect(&mut client, b"$-1\r\n");
    }
}

#[test]
fn asks_a_server_with_limits_only_now_and_then() {
    let backend = Backend::new();
    let proxy = proxy(&backend);
    let mut served = Vec::new();
    for round in 0..3 {
        let mut client = proxy.client();
        client.write_all(&get("k")).unwrap();
        if round == 0 {
            let mut shared = backend.accept_carried();
            expect(&mut shared, &ask_table());
            shared.write_all(b"-NOPERM x\r\n").unwrap();
            expect(&mut shared, ASK_LIMITS);
            shared.write_all(b"*2\r\n$17\r\nmaxmemory-clients\r\n$1\r\n1\r\n").unwrap();
        }
        let mut own = backend.accept_carried();
        expect(&mut own, &get("k"));
        own.write_all(b"$-1\r\n").unwrap();
        expect(&mut client, b"$-1\r\n");
        served.push((client, own));
    }
    assert_eq!(proxy.stats().shared.not_opened, 1);
}
