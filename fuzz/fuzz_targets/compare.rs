//! The comparison that every target uses: ledgers that are given the same bytes in different pieces
//! must agree in everything that they report, after every piece.
//!
//! Complete ordinary requests and replies are read many at a time by a separate loop
//! (`frame_runs.rs`). A ledger that is given single bytes never uses that loop and is the reference
//! for it.

use resp::{Class, Direction, Ledger, Limits, MaintenanceHandshake, Replay, SessionState};

const BOTH: [Direction; 2] = [Direction::Request, Direction::Reply];

/// Two ledgers of the same session.
pub type LedgerPair = [Ledger; 2];

pub fn pair(limits: &Limits) -> LedgerPair {
    [Ledger::new(limits), Ledger::new(limits)]
}

/// Gives a piece to the first ledger at once, and to the other byte by byte.
pub fn feed_both([pieces, bytes]: &mut LedgerPair, direction: Direction, piece: &[u8]) {
    feed(pieces, direction, piece);
    piece.iter().for_each(|byte| feed(bytes, direction, &[*byte]));
    agree(pieces, bytes);
}

pub fn feed(ledger: &mut Ledger, direction: Direction, piece: &[u8]) {
    match direction {
        Direction::Request => ledger.request(piece),
        Direction::Reply => ledger.reply(piece),
    }
}

/// Cuts `bytes` into pieces of different sizes, of at most `most` bytes.
pub fn cut(bytes: &[u8], seed: usize, most: usize) -> impl Iterator<Item = &[u8]> {
    let (mut rest, mut number) = (bytes, seed);
    std::iter::from_fn(move || {
        number += 1;
        let size = 1 + (seed + number * 7) % most;
        let (piece, after) = rest.split_at(size.min(rest.len()));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

type LedgerView =
    (SessionState, u64, [bool; 2], [u64; 2], Option<Class>, MaintenanceHandshake, [bool; 3]);

fn state(ledger: &Ledger) -> LedgerView {
    (
        ledger.session_state(),
        ledger.owed(),
        BOTH.map(|direction| ledger.at_boundary(direction)),
        BOTH.map(|direction| ledger.body_left(direction)),
        ledger.last_request(),
        ledger.maintenance_handshake(),
        [
            ledger.awaits_handshake_reply(),
            ledger.next_reply_is_handshake(),
            ledger.must_end().is_some(),
        ],
    )
}

/// Asserts that two ledgers that were given the same bytes report the same.
pub fn agree(one: &mut Ledger, other: &mut Ledger) {
    assert_eq!(state(one), state(other));
    assert_eq!(one.last_answer(), other.last_answer());
    loop {
        let hint = one.take_hint();
        assert_eq!(hint, other.take_hint());
        if hint.is_none() {
            break;
        }
    }
    if one.session_state() != SessionState::Opaque {
        assert_eq!(one.take_counts(), other.take_counts());
    }
    let replays = [Replay::of(one), Replay::of(other)];
    let [one, other] = replays.each_ref().map(|replay| replay.as_ref().map(Replay::requests));
    assert_eq!(one, other);
}
