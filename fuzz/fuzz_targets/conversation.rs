//! Fuzzes both directions in turn: the byte `0xff`, which belongs to neither, switches the
//! direction. Ledgers that are given the bytes in other pieces, or without the bodies that may be
//! skipped, must report the same.

#![no_main]

mod compare;

use compare::{agree, cut, feed, feed_both, pair};
use libfuzzer_sys::fuzz_target;
use resp::{Direction, Ledger, Limits, SessionState};

fn feed_without_bodies(ledger: &mut Ledger, direction: Direction, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let unseen =
            usize::try_from(ledger.body_left(direction)).unwrap_or(usize::MAX).min(bytes.len());
        ledger.skip_body(direction, unseen as u64);
        bytes = &bytes[unseen..];
        // Small steps, so that no body is passed over.
        let (shown, rest) = bytes.split_at(bytes.len().min(1));
        feed(ledger, direction, shown);
        bytes = rest;
    }
}

fuzz_target!(|data: &[u8]| {
    let limits = Limits { inline_bytes: 256, depth: 70, marks: 5, ..Limits::default() };
    let (mut ledger, mut other) = (Ledger::new(&limits), Ledger::new(&limits));
    // Bytes that are not shown cannot be recorded, so only these two record the state.
    let mut recording = pair(&Limits { memory: 200, names: 1024, ..limits });
    let mut direction = Direction::Request;
    for turn in data.split(|byte| *byte == 0xff) {
        feed(&mut ledger, direction, turn);
        feed_without_bodies(&mut other, direction, turn);
        agree(&mut ledger, &mut other);
        for piece in cut(turn, data.len(), 50) {
            feed_both(&mut recording, direction, piece);
        }
        let session_state = ledger.session_state();
        assert_eq!(recording[0].session_state(), session_state);
        let between =
            ledger.at_boundary(Direction::Request) && ledger.at_boundary(Direction::Reply);
        match session_state {
            SessionState::Opaque => assert!(!between),
            SessionState::Quiet
            | SessionState::Pinned
            | SessionState::Subscribed
            | SessionState::Ended => {
                assert!(between && ledger.owed() == 0);
            }
            SessionState::Blocked => assert!(between && ledger.owed() > 0),
            SessionState::Busy => assert!(!between || ledger.owed() > 0),
            SessionState::Transaction => {}
        }
        direction =
            if direction == Direction::Request { Direction::Reply } else { Direction::Request };
    }
});
