//! Tests of recorded subscriptions, and of their replay.

use crate::ledger::model::Dialogue;
use crate::replay::state_tests::{replayed, replays};
use crate::{Ledger, Limits, Replay, ReplayError};

const KILOBYTE: u32 = 1024;

fn talk() -> Dialogue {
    Dialogue(Ledger::new(&Limits { memory: 1024, names: 4 * KILOBYTE, ..Limits::default() }))
}

#[test]
fn replays_confirmed_subscriptions_last() {
    let mut it = talk();
    it.c("SUBSCRIBE b a").s("*3/$9/subscribe/$1/b/:1/");
    assert_eq!(replayed(&it), None, "one confirmation is missing");
    it.s("*3/$9/subscribe/$1/a/:2/");
    replays(&it, &["SUBSCRIBE a b"]);
    it.c("PSUBSCRIBE p?")
        .c("SSUBSCRIBE s")
        .s("*3/$10/psubscribe/$2/p?/:3/*3/$10/ssubscribe/$1/s/:1/");
    replays(&it, &["SUBSCRIBE a b", "PSUBSCRIBE p?", "SSUBSCRIBE s"]);
    it.c("UNSUBSCRIBE b x").s("*3/$11/unsubscribe/$1/b/:2/*3/$11/unsubscribe/$1/x/:2/");
    it.c("PUNSUBSCRIBE").s("*3/$12/punsubscribe/$2/p?/:1/");
    replays(&it, &["SUBSCRIBE a", "SSUBSCRIBE s"]);
    it.c("SUNSUBSCRIBE")
        .c("UNSUBSCRIBE a")
        .s("*3/$12/sunsubscribe/$1/s/:0/*3/$11/unsubscribe/$1/a/:0/");
    replays(&it, &[]);
    assert_eq!(it.0.allocated(), 0);
}

#[test]
fn replays_state_before_subscriptions_in_resp3() {
    let mut it = talk();
    it.c("HELLO 3").c("SELECT 2").c("SUBSCRIBE a").c("GET k").c("CLIENT SETNAME me");
    it.s("%1/+proto/:3/+OK/>3/$9/subscribe/$1/a/:1/");
    assert_eq!(replayed(&it), None);
    it.s("$-1/>3/$7/message/$1/a/$1/x/+OK/");
    replays(&it, &["HELLO 3 SETNAME me", "SELECT 2", "SUBSCRIBE a"]);
    it.c("WATCH k").s("+OK/");
    assert_eq!(replayed(&it), None, "pinned for another reason");
    it.c("UNWATCH").s("+OK/");
    it.c("SUBSCRIBE refused").s("-NOPERM no/");
    replays(&it, &["HELLO 3 SETNAME me", "SELECT 2", "SUBSCRIBE a"]);
    it.c("RESET").s("+RESET/");
    replays(&it, &[]);
}

#[test]
fn records_names_with_any_bytes_in_any_pieces() {
    let wire = b"*3\r\n$9\r\nsubscribe\r\n$4\r\na\r\nb\r\n$0\r\n\r\n";
    for size in 1..wire.len() {
        let mut it = talk();
        wire.chunks(size).for_each(|piece| it.0.request(piece));
        it.0.reply(b"*3\r\n$9\r\nsubscribe\r\n$4\r\na\r\nb\r\n:1\r\n*3\r\n$9\r\nsubscribe\r\n$0\r\n\r\n:2\r\n");
        let again = b"*1\r\n$4\r\nPING\r\n*3\r\n$9\r\nSUBSCRIBE\r\n$0\r\n\r\n$4\r\na\r\nb\r\n";
        assert_eq!(Replay::of(&it.0).unwrap().requests(), again);
    }
}

#[test]
fn pins_sessions_with_unrecorded_names_until_none_left() {
    let long = |letter: &str| letter.repeat(3000);
    let mut it = talk();
    it.c(&format!("SUBSCRIBE {}", long("a"))).s("*3/$9/subscribe/$1/a/:1/");
    it.c(&format!("SUBSCRIBE {}", long("b"))).s("*3/$9/subscribe/$1/b/:2/");
    assert_eq!(replayed(&it), None, "more than may be recorded");
    assert!(it.0.allocated() < 100, "nothing is recorded in part");
    it.c("SUBSCRIBE c").s("*3/$9/subscribe/$1/c/:3/");
    assert_eq!(replayed(&it), None);
    it.c("UNSUBSCRIBE")
        .s("*3/$11/unsubscribe/$1/a/:2/*3/$11/unsubscribe/$1/b/:1/*3/$11/unsubscribe/$1/c/:0/");
    replays(&it, &[]);
    it.c("SUBSCRIBE c").s("*3/$9/subscribe/$1/c/:1/");
    replays(&it, &["SUBSCRIBE c"]);
    // A shard channel that a cluster removes.
    it.c("SSUBSCRIBE s t").s("*3/$10/ssubscribe/$1/s/:1/*3/$10/ssubscribe/$1/t/:2/");
    replays(&it, &["SUBSCRIBE c", "SSUBSCRIBE s t"]);
    it.s("*3/$12/sunsubscribe/$1/s/:1/");
    assert_eq!(replayed(&it), None);
}

#[test]
fn records_no_names_without_a_limit() {
    let mut it = Dialogue(Ledger::new(&Limits { memory: 1024, ..Limits::default() }));
    it.c("SUBSCRIBE a").s("*3/$9/subscribe/$1/a/:1/");
    assert_eq!((replayed(&it), it.0.allocated()), (None, 0));
    it.c("UNSUBSCRIBE").s("*3/$11/unsubscribe/$1/a/:0/");
    replays(&it, &[]);
}

fn subscribed() -> Dialogue {
    let mut it = talk();
    it.c("SELECT 2").c("SUBSCRIBE a").c("PSUBSCRIBE p?");
    it.s("+OK/*3/$9/subscribe/$1/a/:1/*3/$10/psubscribe/$2/p?/:2/");
    it
}

const CONFIRMED_ONE: &[u8] = b"+OK\r\n+PONG\r\n*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n";
const CONFIRMED_OTHER: &[u8] = b"*3\r\n$10\r\npsubscribe\r\n$2\r\np?\r\n:2\r\n";
const MESSAGE: &[u8] = b"*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$2\r\nhi\r\n";

#[test]
fn passes_messages_and_no_confirmations_to_the_client() {
    let before = subscribed();
    let wire = [CONFIRMED_ONE, MESSAGE, CONFIRMED_OTHER, MESSAGE, b"*3\r\n$7\r\nmess"].concat();
    for size in 1..wire.len() {
        let mut replay = Replay::of(&before.0).unwrap();
        let mut pieces = wire.chunks(size);
        while !replay.is_answered() {
            let piece = pieces.next().unwrap();
            let taken = replay.answer(piece).unwrap();
            replay.follow(&piece[taken..]).unwrap();
            if taken < piece.len() {
                break;
            }
        }
        let (mut ledger, mut messages) = replay.finish(&before.0).unwrap();
        for piece in pieces {
            ledger.reply(piece);
            messages.extend_from_slice(piece);
        }
        ledger.reply(b"age\r\n$1\r\na\r\n$0\r\n\r\n");
        assert_eq!(
            messages,
            [MESSAGE, MESSAGE, b"*3\r\n$7\r\nmess"].concat(),
            "in pieces of {size}"
        );
        replays(&Dialogue(ledger), &["SELECT 2", "SUBSCRIBE a", "PSUBSCRIBE p?"]);
    }
}

#[test]
fn bounds_buffered_messages_and_refuses_other_frames() {
    let before = subscribed();
    let mut replay = Replay::of(&before.0).unwrap();
    replay.answer(CONFIRMED_ONE).unwrap();
    let big =
        [&b"*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$60000\r\n"[..], &[b'x'; 60_000], b"\r\n"].concat();
    for bytes in [MESSAGE, &big, &big, MESSAGE, CONFIRMED_OTHER] {
        bytes.chunks(7000).for_each(|piece| assert_eq!(replay.answer(piece), Ok(piece.len())));
    }
    let (_, messages) = replay.finish(&before.0).unwrap();
    assert_eq!(messages, [MESSAGE, &big, MESSAGE].concat(), "the second large one did not fit");

    let mut replay = Replay::of(&before.0).unwrap();
    assert_eq!(replay.answer(b"+OK\r\n+PONG\r\n-NOPERM no\r\n"), Err(ReplayError::Refused));
    let mut replay = Replay::of(&before.0).unwrap();
    replay.answer(&[CONFIRMED_ONE, CONFIRMED_OTHER].concat()).unwrap();
    assert_eq!(replay.follow(b"+OK\r\n"), Err(ReplayError::Unexpected));
    let quiet = talk();
    assert_eq!(
        Replay::of(&quiet.0).unwrap().follow(b">1\r\n+news\r\n"),
        Err(ReplayError::Unexpected)
    );
}
