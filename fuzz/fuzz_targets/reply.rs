//! Fuzzes replies: the same bytes must give the same frame ends in any pieces, and in runs as byte
//! by byte. The first byte of the input selects the sizes of the pieces.

#![no_main]

mod compare;

use compare::{cut, feed_both, pair};
use libfuzzer_sys::fuzz_target;
use resp::{Direction, Hint, Ledger, Limits, SessionState};

type FrameEnds = (Vec<(usize, u64)>, Vec<Hint>, bool);

fn limits() -> Limits {
    Limits { depth: 80, elements: 1000, memory: 200, names: 1024, ..Limits::default() }
}

/// Requests of many kinds, because the owed replies determine how frames are read.
const ASKED: &[u8] =
    b"HELLO 3\r\nMULTI\r\nGET k\r\nEXEC\r\nSUBSCRIBE a b\r\nPING\r\nUNSUBSCRIBE\r\nHELLO 2\r\nPSUBSCRIBE p\r\nPING\r\n";
/// A request whose reply need not be inspected.
const ORDINARY: &[u8] = b"PING\r\n";

fn ends(bytes: &[u8], sizes: impl Iterator<Item = usize>) -> FrameEnds {
    let mut ledger = Ledger::new(&limits());
    ledger.request(ASKED);
    // Enough for inputs of short frames. Each costs time, three times per
    // input.
    ledger.request(&ORDINARY.repeat(20));
    let (mut found, mut hints, mut offset, mut rest) = (Vec::new(), Vec::new(), 0, bytes);
    for size in sizes {
        if rest.is_empty() {
            break;
        }
        let (mut piece, after) = rest.split_at(size.clamp(1, rest.len()));
        rest = after;
        while !piece.is_empty() {
            let taken = ledger.reply_split(piece).0.len();
            assert!(taken > 0, "no progress");
            piece = &piece[taken..];
            offset += taken;
            if ledger.session_state() == SessionState::Opaque {
                return (found, hints, true);
            }
            if ledger.at_boundary(Direction::Reply) {
                hints.extend(std::iter::from_fn(|| ledger.take_hint()));
                found.push((offset, ledger.owed()));
            }
        }
    }
    (found, hints, false)
}

fuzz_target!(|data: &[u8]| {
    let Some((seed, bytes)) = data.split_first() else { return };
    let seed = usize::from(*seed);
    let whole = ends(bytes, std::iter::repeat(usize::MAX));
    assert_eq!(whole, ends(bytes, std::iter::repeat(1)));
    assert_eq!(whole, ends(bytes, (0..).map(|i| 1 + (seed + i * 7) % 13)));
    for asked in [ASKED, b""] {
        let (mut at_once, mut in_pieces) = (pair(&limits()), pair(&limits()));
        for pair in [&mut at_once, &mut in_pieces] {
            feed_both(pair, Direction::Request, asked);
            feed_both(pair, Direction::Request, &ORDINARY.repeat(20));
        }
        feed_both(&mut at_once, Direction::Reply, bytes);
        for piece in cut(bytes, seed, 40) {
            feed_both(&mut in_pieces, Direction::Reply, piece);
        }
    }
});
