//! What every target compares: ledgers that were shown the same bytes in different pieces, after
//! each of which they must agree in all that can be asked of them.
//!
//! Ordinary requests and replies that come whole are taken many at a time by a loop of their own
//! (`run.rs`). A ledger that is shown single bytes never gets there, so it is the judge of that
//! loop.

use resp::{Class, Direction, Ledger, Limits, MaintenanceHandshake, Replay, SessionState};

const BOTH: [Direction; 2] = [Direction::Request, Direction::Reply];

/// The same session, followed in two ways.
pub type Pair = [Ledger; 2];

pub fn pair(limits: &Limits) -> Pair {
    [Ledger::new(limits), Ledger::new(limits)]
}

/// Shows a piece to the first at once, and to the other byte by byte.
pub fn feed_both([pieces, bytes]: &mut Pair, direction: Direction, piece: &[u8]) {
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

/// Cuts `bytes` into pieces of up to `most` bytes, of many sizes.
pub fn cut(bytes: &[u8], seed: usize, most: usize) -> impl Iterator<Item = &[u8]> {
    let (mut rest, mut number) = (bytes, seed);
    std::iter::from_fn(move || {
        number += 1;
        let size = 1 + (seed + number * 7) % most;
        let (piece, behind) = rest.split_at(size.min(rest.len()));
        rest = behind;
        (!piece.is_empty()).then_some(piece)
    })
}

type LedgerView = (SessionState, u64, [bool; 2], [u64; 2], Option<Class>, MaintenanceHandshake, [bool; 3]);

fn state(ledger: &Ledger) -> LedgerView {
    (
        ledger.session_state(),
        ledger.owed(),
        BOTH.map(|direction| ledger.at_boundary(direction)),
        BOTH.map(|direction| ledger.body_left(direction)),
        ledger.last_request(),
        ledger.maintenance_handshake(),
        [ledger.awaits_handshake_reply(), ledger.next_reply_is_handshake(), ledger.must_end().is_some()],
    )
}

/// Two ledgers that were shown the same bytes.
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
