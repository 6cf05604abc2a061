//! Both directions, in turns: the byte `0xff`, which belongs to neither, changes the speaker. A second ledger is not shown the
//! bodies it may skip, and must come to the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use resp::{Direction, Ledger, Limits, Standing};

fn feed(ledger: &mut Ledger, direction: Direction, bytes: &[u8]) {
    match direction {
        Direction::Request => ledger.request(bytes),
        Direction::Reply => ledger.reply(bytes),
    }
}

fn feed_without_bodies(ledger: &mut Ledger, direction: Direction, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let unseen = usize::try_from(ledger.body_left(direction)).unwrap_or(usize::MAX).min(bytes.len());
        ledger.skip_body(direction, unseen as u64);
        bytes = &bytes[unseen..];
        // Small steps, so as to come across every body.
        let (shown, rest) = bytes.split_at(bytes.len().min(1));
        feed(ledger, direction, shown);
        bytes = rest;
    }
}

fuzz_target!(|data: &[u8]| {
    let limits = Limits { inline_bytes: 256, depth: 70, marks: 5, ..Limits::default() };
    let (mut ledger, mut other) = (Ledger::new(&limits), Ledger::new(&limits));
    let mut direction = Direction::Request;
    for turn in data.split(|byte| *byte == 0xff) {
        feed(&mut ledger, direction, turn);
        feed_without_bodies(&mut other, direction, turn);
        let standing = ledger.standing();
        assert_eq!(standing, other.standing());
        assert_eq!(ledger.owed(), other.owed());
        assert_eq!(ledger.take_hint(), other.take_hint());
        assert_eq!(ledger.last_answer(), other.last_answer());
        let between = ledger.at_boundary(Direction::Request) && ledger.at_boundary(Direction::Reply);
        match standing {
            Standing::Opaque => assert!(!between),
            Standing::Quiet | Standing::Pinned | Standing::Subscribed | Standing::Ended => {
                assert!(between && ledger.owed() == 0);
            }
            Standing::Blocked => assert!(between && ledger.owed() > 0),
            Standing::Busy => assert!(!between || ledger.owed() > 0),
            Standing::Transaction => {}
        }
        direction = if direction == Direction::Request { Direction::Reply } else { Direction::Request };
    }
});
