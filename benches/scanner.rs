//! The cost of following RESP: one request, one reply, a pipeline, bodies that are only skipped,
//! and nested arrays.
//!
//! Run with `cargo bench -p pointsman-resp`. The targets are about 14 ns per small request and 6 ns
//! per small reply.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use resp::{Ledger, Limits, SessionState};

const GET: &[u8] = b"*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000042\r\n";
const SET: &[u8] = b"*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000042\r\n$3\r\nxxx\r\n";
const OK: &[u8] = b"+OK\r\n";
const VALUE: &[u8] = b"$3\r\nxxx\r\n";

fn bulk(len: usize) -> Vec<u8> {
    let mut bytes = format!("${len}\r\n").into_bytes();
    bytes.resize(bytes.len() + len, b'x');
    bytes.extend_from_slice(b"\r\n");
    bytes
}

/// Requests and their replies. No reply is owed at the end, so it can be repeated.
fn exchange(c: &mut Criterion, name: &str, request: &[u8], reply: &[u8]) {
    let mut ledger = Ledger::new(&Limits::default());
    c.bench_function(name, |b| {
        b.iter(|| {
            ledger.request(black_box(request));
            ledger.reply(black_box(reply));
        });
    });
    assert_eq!(ledger.session_state(), SessionState::Quiet, "{name}");
}

fn junk(c: &mut Criterion) {
    // What a stranger sends: the first part of a line that has no end.
    let line = vec![b'a'; 60_000];
    c.bench_function("request/60 KB of an inline word", |b| {
        b.iter(|| {
            let mut ledger = Ledger::new(&Limits::default());
            ledger.request(black_box(&line));
            assert_eq!(ledger.session_state(), SessionState::Busy);
        });
    });
}

fn small(c: &mut Criterion) {
    // One direction only: unanswered requests accumulate, which costs the ledger nothing.
    for (name, request) in [("request/GET 16-byte key", GET), ("request/SET 3-byte value", SET)] {
        let mut ledger = Ledger::new(&Limits::default());
        c.bench_function(name, |b| {
            b.iter(|| {
                if ledger.owed() > 1 << 30 {
                    ledger = Ledger::new(&Limits::default());
                }
                ledger.request(black_box(request));
            });
        });
        assert_eq!(ledger.session_state(), SessionState::Busy, "{name}");
    }
    exchange(c, "exchange/GET", GET, VALUE);
    exchange(c, "exchange/SET", SET, OK);
    exchange(c, "exchange/PING inline", b"PING\r\n", b"+PONG\r\n");
}

fn replies(c: &mut Criterion) {
    // A thousand replies to a thousand requests. The requests are not part of the measurement.
    let mut group = c.benchmark_group("1000 replies");
    group.throughput(Throughput::Elements(1000));
    for (name, reply) in [
        ("OK", OK),
        ("3-byte value", VALUE),
        ("integer", b":42\r\n"),
        ("null", b"$-1\r\n"),
        ("error", b"-ERR no such key\r\n"),
    ] {
        let (requests, replies) = (GET.repeat(1000), reply.repeat(1000));
        group.bench_function(name, |b| {
            b.iter_batched_ref(
                || {
                    let mut ledger = Ledger::new(&Limits::default());
                    ledger.request(&requests);
                    ledger
                },
                |ledger| ledger.reply(black_box(&replies)),
                criterion::BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

fn larger(c: &mut Criterion) {
    exchange(c, "pipeline/16 GET", &GET.repeat(16), &VALUE.repeat(16));
    exchange(c, "transaction/MULTI SET EXEC", &transaction(), b"+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
    for (name, len) in [("64 KiB", 64 << 10), ("1 MiB", 1 << 20)] {
        exchange(c, &format!("bulk/{name} in one piece"), GET, &bulk(len));
        let body = bulk(len);
        let mut ledger = Ledger::new(&Limits::default());
        c.bench_with_input(BenchmarkId::new("bulk in pieces of 16 KiB", name), &body, |b, body| {
            b.iter(|| {
                ledger.request(GET);
                for piece in black_box(body).chunks(16 << 10) {
                    ledger.reply(piece);
                }
            });
        });
        assert_eq!(ledger.session_state(), SessionState::Quiet);
    }
    let list: Vec<u8> = [b"*100\r\n".to_vec(), bulk(16).repeat(100)].concat();
    exchange(c, "nested/array of 100 strings", GET, &list);
    let nested: Vec<u8> = [b"*2\r\n:1\r\n".repeat(64), b":2\r\n".to_vec()].concat();
    exchange(c, "nested/64 deep", GET, &nested);
    let nested: Vec<u8> = [b"*2\r\n:1\r\n".repeat(4), b":2\r\n".to_vec()].concat();
    exchange(c, "nested/4 deep", GET, &nested);
}

fn transaction() -> Vec<u8> {
    [b"*1\r\n$5\r\nMULTI\r\n", SET, b"*1\r\n$4\r\nEXEC\r\n"].concat()
}

criterion_group!(benches, junk, small, replies, larger);
criterion_main!(benches);
