//! The ledger of one shared connection, rule by rule.

use crate::shared::upstream_ledger::{DECIDING, Desync, Load, MemberId, UpstreamLedger};

const A: MemberId = MemberId(1);
const B: MemberId = MemberId(2);

fn ledger() -> UpstreamLedger {
    UpstreamLedger::new(true, true, Load::MOST)
}

fn room(ledger: &UpstreamLedger) -> (u32, u32) {
    let Load { requests, bytes } = ledger.room();
    (requests, bytes)
}

fn all<'a>(ledger: &mut UpstreamLedger, mut input: &'a [u8]) -> Vec<(&'a [u8], u64, u32)> {
    let mut found = Vec::new();
    while let Some(piece) = ledger.take(&mut input).expect("in step") {
        found.push((piece.bytes, piece.to.map_or(0, |it| it.0), piece.ended));
    }
    assert!(input.len() < DECIDING);
    found
}

#[test]
fn delivers_replies_in_the_order_of_requests() {
    let mut it = ledger();
    assert!(it.send(A, 2, 40, false) && it.send(B, 1, 20, false) && it.send(A, 1, 20, false));
    let found = all(&mut it, b"$1\r\nx\r\n:7\r\n+OK\r\n*1\r\n:1\r\n");
    let expected: [(&[u8], u64, u32); 3] =
        [(b"$1\r\nx\r\n:7\r\n", 1, 2), (b"+OK\r\n", 2, 1), (b"*1\r\n:1\r\n", 1, 1)];
    assert_eq!(found, expected);
    assert_eq!((it.in_flight(), room(&it)), (0, (16 * 1024, 512 * 1024)));
}

#[test]
fn streams_a_large_reply_in_pieces() {
    let mut it = ledger();
    assert!(it.send(A, 1, 20, false) && it.send(B, 1, 20, false));
    assert_eq!(all(&mut it, b"$1000\r\nxx"), [(&b"$1000\r\nxx"[..], 1, 0)]);
    assert_eq!(all(&mut it, &[b'x'; 998]), [(&[b'x'; 998][..], 1, 0)]);
    let expected: [(&[u8], u64, u32); 2] = [(b"\r\n", 1, 1), (b"_\r\n", 2, 1)];
    assert_eq!(all(&mut it, b"\r\n_\r\n"), expected);
    // A script may reply more than the longest string that a client may send.
    assert!(it.send(A, 1, 20, false));
    assert_eq!(all(&mut it, b"$536870913\r\nxx"), [(&b"$536870913\r\nxx"[..], 1, 0)]);
}

#[test]
fn drops_replies_to_clients_that_left() {
    let mut it = ledger();
    assert!(it.send(A, 1, 20, false) && it.send(B, 1, 20, false));
    assert_eq!(all(&mut it, b"$9\r\nsec"), [(&b"$9\r\nsec"[..], 1, 0)]);
    it.leave(A);
    let expected: [(&[u8], u64, u32); 2] = [(b"retxxx\r\n", 0, 1), (b":1\r\n", 2, 1)];
    assert_eq!(all(&mut it, b"retxxx\r\n:1\r\n"), expected);
}

#[test]
fn detects_every_kind_of_disagreement() {
    let cases: [(&[u8], u32, Desync); 11] = [
        (b"-ERR max number of clients reached\r\n", 0, Desync::Unasked),
        (b":1\r\n", 0, Desync::Unasked),
        (b"+QUEUED\r\n", 1, Desync::OtherState),
        (b"+RESET\r\n", 1, Desync::OtherState),
        (b"-NOAUTH Authentication required.\r\n", 1, Desync::OtherState),
        (b"-ERR Protocol error: invalid bulk length\r\n", 1, Desync::ProtocolError),
        (b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n", 1, Desync::Subscribed),
        (b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n", 0, Desync::Subscribed),
        (b"HTTP/1.1 200 OK\r\n", 1, Desync::NotResp),
        (b"*-7\r\n", 1, Desync::NotResp),
        (b"\r\n", 1, Desync::NotResp),
    ];
    for (wire, requests, expected) in cases {
        // Whole, and byte by byte: nothing is delivered before it is checked.
        for size in [wire.len(), 1] {
            let mut it = ledger();
            assert!(it.send(A, requests, 20, false));
            assert_eq!(desync(&mut it, wire, size), Some(expected), "{}", wire.escape_ascii());
            assert_eq!(it.take(&mut &b":1\r\n"[..]), Err(expected), "closed for good");
            assert_eq!((it.send(B, 1, 1, false), room(&it)), (false, (0, 0)));
        }
    }
}

/// Feeds pieces of that size; returns the disagreement. No line may have been delivered.
fn desync(it: &mut UpstreamLedger, wire: &[u8], size: usize) -> Option<Desync> {
    let (mut kept, mut delivered) = (Vec::new(), Vec::new());
    for piece in wire.chunks(size) {
        kept.extend_from_slice(piece);
        let mut input = &kept[..];
        loop {
            match it.take(&mut input) {
                Err(desync) => return Some(desync),
                Ok(None) => break,
                Ok(Some(piece)) => delivered.extend_from_slice(piece.bytes),
            }
        }
        assert!(!delivered.first().is_some_and(|first| b"+-".contains(first)));
        kept = input.to_vec();
    }
    None
}

#[test]
fn knows_no_type_of_resp3_in_resp2() {
    for wire in [&b"_\r\n"[..], b"%0\r\n", b"#t\r\n", b",1\r\n", b">1\r\n+x\r\n", b"|0\r\n+x\r\n"] {
        let mut it = UpstreamLedger::new(false, true, Load::MOST);
        assert!(it.send(A, 1, 20, false));
        assert_eq!(desync(&mut it, wire, wire.len()), Some(Desync::NotResp));
    }
}

#[test]
fn accepts_any_reply_of_a_script() {
    let mut it = ledger();
    assert!(it.send(A, 2, 40, true));
    let wire = b"+QUEUED\r\n-NOAUTH made up\r\n";
    assert_eq!(all(&mut it, wire).len(), 2);
}

#[test]
fn reports_a_client_that_is_not_authenticated() {
    let mut it = UpstreamLedger::new(false, false, Load::MOST);
    assert!(it.send(A, 1, 20, false));
    let mut input = &b"-NOAUTH Authentication required.\r\n"[..];
    let piece = it.take(&mut input).unwrap().unwrap();
    assert!(piece.not_authenticated && piece.to == Some(A) && piece.ended == 1);
}

#[test]
fn drops_push_messages_between_replies() {
    let mut it = ledger();
    assert!(it.send(A, 1, 20, false));
    let wire = b">2\r\n+server\r\n:1\r\n:5\r\n>1\r\n+later\r\n";
    assert_eq!(all(&mut it, wire), [(&b":5\r\n"[..], 1, 1)]);
}

#[test]
fn bounds_requests_and_bytes_in_flight() {
    let limits = Load { requests: 3, bytes: 100 };
    let mut it = UpstreamLedger::new(true, true, limits);
    assert!(it.send(A, 2, 60, false) && !it.send(B, 2, 10, false) && !it.send(B, 1, 41, false));
    assert!(it.send(B, 1, 40, false) && !it.send(A, 1, 0, false));
    assert_eq!(room(&it), (0, 0));
    all(&mut it, b":1\r\n");
    assert_eq!(room(&it), (1, 0), "the bytes of a run count until it has ended");
    all(&mut it, b":1\r\n");
    assert_eq!(room(&it), (2, 60));
    // A client that always has something in flight frees its bytes all the same.
    for _ in 0..1000 {
        assert!(it.send(A, 1, 30, false), "{:?}", room(&it));
        all(&mut it, b":1\r\n");
    }
}
