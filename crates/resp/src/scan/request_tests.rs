//! Tests of the request scanner: the ends of requests, in pieces of any size.

use proptest::prelude::{Strategy, any, prop, prop_assert_eq, prop_oneof, proptest};

use crate::{Class, Direction, FrameCounts, Ledger, LedgerFault, Limits, MustEnd, SessionState};

/// The end of each request in `bytes` and its class, and whether the session is opaque at the end.
fn ends(bytes: &[u8], pieces: &[usize], limits: &Limits) -> (Vec<(usize, Option<Class>)>, bool) {
    let mut ledger = Ledger::new(limits);
    let (mut found, mut offset, mut input) = (Vec::new(), 0, bytes);
    let mut sizes = pieces.iter().copied().cycle();
    while !input.is_empty() {
        let (mut piece, rest) =
            input.split_at(sizes.next().unwrap_or(usize::MAX).clamp(1, input.len()));
        input = rest;
        while !piece.is_empty() {
            let taken = ledger.request_one(piece);
            assert!(taken > 0 && taken <= piece.len());
            piece = &piece[taken..];
            offset += taken;
            if ledger.session_state() == SessionState::Opaque {
                return (found, true);
            }
            if ledger.at_boundary(Direction::Request) {
                found.push((offset, ledger.last_request()));
            }
        }
    }
    (found, false)
}

fn at_once(bytes: &[u8]) -> (Vec<(usize, Option<Class>)>, bool) {
    ends(bytes, &[usize::MAX], &Limits::default())
}

#[test]
fn finds_ends_of_arrays_inline_and_empty_requests() {
    let bytes =
        b"*1\r\n$4\r\nPING\r\nPING\r\n\r\n*0\r\n*-3\r\n*2\r\n$6\r\nselect\r\n$1\r\n3\r\n   \n*1\r\n$0\r\n\r\nget k\n";
    let (found, opaque) = at_once(bytes);
    assert!(!opaque);
    assert_eq!(
        found,
        [
            (14, Some(Class::Ordinary)),
            (20, Some(Class::Ordinary)),
            (22, None),
            (26, None),
            (31, None),
            (54, Some(Class::Select)),
            (58, None),
            (68, Some(Class::Unknown)),
            (74, Some(Class::Ordinary)),
        ]
    );
    assert_eq!(ends(bytes, &[1], &Limits::default()), (found, false));
}

#[test]
fn reads_words_across_pieces_and_skips_bodies() {
    let bytes = b"*4\r\n$6\r\nClient\r\n$8\r\ntrACKING\r\n$2\r\non\r\n$7\r\n$1\r\n*1\n\r\n*1\r\n$12\r\nSUNSUBSCRIBE\r\n";
    let (found, _) = at_once(bytes);
    assert_eq!(found, [(51, Some(Class::TrackingOn)), (74, Some(Class::SUnsubscribe))]);
    for size in 1..20 {
        assert_eq!(ends(bytes, &[size], &Limits::default()).0, found, "pieces of {size}");
    }
}

#[test]
fn turns_opaque_on_malformed_requests() {
    let bad: &[&[u8]] = &[
        b"*x\r\n",
        b"*01\r\n",
        b"*1\n",
        b"*?\r\n",
        b"*1\r\n+OK\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n$?\r\n",
        b"*99999999999\r\n",
        b"GET \"x\r\n",
        b"*1\r\n$999999999999\r\n",
        b"*1\r\n$4x\r\n",
    ];
    for bytes in bad {
        assert_eq!(at_once(bytes), (vec![], true), "{:?}", String::from_utf8_lossy(bytes));
    }
}

#[test]
fn enforces_request_limits_exactly() {
    let limits = Limits { inline_bytes: 8, bulk_bytes: 5, elements: 2, ..Limits::default() };
    let within: &[&[u8]] = &[b"GET abc\n", b"*2\r\n$3\r\nGET\r\n$5\r\nabcde\r\n"];
    let beyond: &[&[u8]] =
        &[b"GET abcd\n", b"GET abc\r\n", b"*1\r\n$6\r\nabcdef\r\n", b"*3\r\n$1\r\na\r\n"];
    for bytes in within {
        assert_eq!(ends(bytes, &[1], &limits).0.len(), 1, "{bytes:?}");
    }
    for bytes in beyond {
        assert_eq!(ends(bytes, &[3], &limits), (vec![], true), "{bytes:?}");
    }
}

/// Plain bytes of a word are skipped together: each byte ends such a run, or not, as on its own.
#[test]
fn scans_inline_words_alike_in_any_pieces() {
    let limits = Limits { inline_bytes: 40, ..Limits::default() };
    for byte in 0..=u8::MAX {
        for quote in [&b""[..], b"'", b"\""] {
            for length in [0, 4, 30] {
                let fill = vec![b'a'; length];
                let line =
                    [b"GET k", quote, &fill, &[byte], b"bc", quote, b"\r\nPING\r\n"].concat();
                let whole = ends(&line, &[usize::MAX], &limits);
                assert_eq!(whole, ends(&line, &[1], &limits), "{byte} {}", line.escape_ascii());
                assert_eq!(whole, ends(&line, &[7, 2], &limits), "{byte} {}", line.escape_ascii());
            }
        }
    }
}

#[test]
fn skips_request_bodies_unseen() {
    let mut ledger = Ledger::new(&Limits::default());
    assert_eq!(ledger.body_left(Direction::Request), 0);
    ledger.request(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1000000\r\n");
    assert_eq!(ledger.body_left(Direction::Request), 1_000_000);
    ledger.request(b"abc");
    assert_eq!(ledger.body_left(Direction::Request), 999_997);
    ledger.skip_body(Direction::Request, 999_990);
    assert_eq!(
        (ledger.body_left(Direction::Request), ledger.at_boundary(Direction::Request)),
        (7, false)
    );
    ledger.skip_body(Direction::Request, 7);
    assert_eq!((ledger.body_left(Direction::Request), ledger.owed()), (0, 0));
    ledger.request(b"\r");
    assert_eq!(ledger.body_left(Direction::Request), 0);
    ledger.request(b"\n");
    assert_eq!((ledger.owed(), ledger.at_boundary(Direction::Request)), (1, true));
    assert_eq!(ledger.take_counts(), FrameCounts { requests: 1, replies: 0, pushes: 0 });
    assert_eq!(ledger.take_counts(), FrameCounts::default());
}

#[test]
fn requires_words_that_may_name_a_command() {
    let mut ledger = Ledger::new(&Limits::default());
    ledger.request(b"*2\r\n$6\r\nSEL");
    assert_eq!(ledger.body_left(Direction::Request), 0);
    ledger.request(b"ECT\r\n$2\r\n");
    assert_eq!(ledger.body_left(Direction::Request), 2);
    ledger.request(b"10\r\n");
    assert_eq!(ledger.last_request(), Some(Class::Select));
}

#[test]
fn ends_a_session_that_skipped_too_many_bytes() {
    for direction in [Direction::Request, Direction::Reply] {
        let mut ledger = Ledger::new(&Limits::default());
        ledger.request(b"PING\r\n*2\r\n$3\r\nGET\r\n$20\r\n");
        ledger.reply(b"$20\r\n");
        ledger.skip_body(direction, 0);
        ledger.skip_body(direction, 19);
        assert_eq!(ledger.session_state(), SessionState::Busy);
        assert_eq!(ledger.must_end(), None);
        ledger.skip_body(direction, 2);
        assert_eq!(ledger.must_end(), Some(MustEnd::Broken(LedgerFault::Unseen)));
        assert_eq!(
            (ledger.session_state(), ledger.body_left(direction)),
            (SessionState::Opaque, 0)
        );
        ledger.skip_body(direction, 5);
    }
}

const REQUESTS: &[&[u8]] = &[
    b"*1\r\n$4\r\nPING\r\n",
    b"*2\r\n$3\r\nGET\r\n$5\r\nab\r\nc\r\n",
    b"\r\n",
    b"PING\r\n",
    b"*0\r\n",
    b"*-1\r\n",
    b"*1\r\n$5\r\nmulti\r\n",
    b"*1\r\n$4\r\nEXEC\r\n",
    b"*3\r\n$9\r\nSUBSCRIBE\r\n$1\r\na\r\n$1\r\nb\r\n",
    b"SELECT '1'\n",
    b"*2\r\n$6\r\nCLIENT\r\n$2\r\nID\r\n",
    b"*3\r\n$6\r\nclient\r\n$8\r\nno-touch\r\n$2\r\non\r\n",
    b"set k \"a\\\"b\" ''\r\n",
    b"*2\r\n$20\r\n01234567890123456789\r\n$0\r\n\r\n",
];

/// Bytes that resemble requests.
fn requestlike() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        8 => prop::sample::select(REQUESTS).prop_map(<[u8]>::to_vec),
        1 => prop::collection::vec(prop::sample::select(&b"*$123?-+\r\n abM\"'\\\0"[..]), 0..6),
        1 => prop::collection::vec(any::<u8>(), 0..4),
    ];
    prop::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn finds_the_same_ends_in_any_pieces(
        bytes in requestlike(),
        pieces in prop::collection::vec(1_usize..9, 1..20),
    ) {
        let expected = at_once(&bytes);
        prop_assert_eq!(&ends(&bytes, &pieces, &Limits::default()), &expected);
        prop_assert_eq!(&ends(&bytes, &[1], &Limits::default()), &expected);
    }
}
