//! Fuzzes requests: the same bytes must give the same request ends in any pieces, and in runs as
//! byte by byte. The first byte of the input selects the sizes of the pieces.

#![no_main]

mod compare;

use compare::{cut, feed_both, pair};
use libfuzzer_sys::fuzz_target;
use resp::{Class, Direction, Ledger, Limits, SessionState};

fn limits() -> Limits {
    Limits { inline_bytes: 64, elements: 1000, memory: 200, names: 1024, ..Limits::default() }
}

fn ends(bytes: &[u8], sizes: impl Iterator<Item = usize>) -> (Vec<(usize, Option<Class>)>, bool) {
    let mut ledger = Ledger::new(&limits());
    let (mut found, mut offset, mut rest) = (Vec::new(), 0, bytes);
    for size in sizes {
        if rest.is_empty() {
            break;
        }
        let (mut piece, after) = rest.split_at(size.clamp(1, rest.len()));
        rest = after;
        while !piece.is_empty() {
            let taken = ledger.request_one(piece);
            assert!(taken > 0, "no progress");
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

fuzz_target!(|data: &[u8]| {
    let Some((seed, bytes)) = data.split_first() else { return };
    let seed = usize::from(*seed);
    let whole = ends(bytes, std::iter::repeat(usize::MAX));
    assert_eq!(whole, ends(bytes, std::iter::repeat(1)));
    assert_eq!(whole, ends(bytes, (0..).map(|i| 1 + (seed + i * 7) % 13)));
    let (mut at_once, mut in_pieces) = (pair(&limits()), pair(&limits()));
    feed_both(&mut at_once, Direction::Request, bytes);
    for piece in cut(bytes, seed, 40) {
        feed_both(&mut in_pieces, Direction::Request, piece);
    }
});
