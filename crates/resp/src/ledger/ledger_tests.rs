//! Tests of the rules for matching replies and for the state of a session, one test per rule.

use crate::commands::class::ClassGroup;
use crate::ledger::model::Dialogue;
use crate::{
    Class, Direction, FrameCounts, Hint, Ledger, Limits, Replay, ReplyOutcome, SessionState,
};

#[test]
fn limits_the_size_of_an_idle_ledger() {
    assert!(size_of::<Ledger>() <= 288, "{} bytes", size_of::<Ledger>());
    assert_eq!(Ledger::new(&Limits::default()).allocated(), 0);
}

#[test]
fn is_quiet_only_at_boundaries_with_nothing_owed() {
    let mut talk = Dialogue::new();
    talk.is(SessionState::Quiet, 0)
        .c("GET k")
        .is(SessionState::Busy, 1)
        .c("GET k")
        .is(SessionState::Busy, 2);
    talk.s("$1/a/").is(SessionState::Busy, 1).s("$-1/").is(SessionState::Quiet, 0);
    talk.0.request(b"*");
    talk.is(SessionState::Busy, 0);
    talk.0.request(b"1\r\n$4\r\nPING\r\n");
    talk.s("+PON").is(SessionState::Busy, 1).s("G/").is(SessionState::Quiet, 0);
    assert_eq!(talk.0.take_counts(), FrameCounts { requests: 3, replies: 3, pushes: 0 });
}

#[test]
fn expects_no_reply_to_empty_requests() {
    let mut talk = Dialogue::new();
    talk.0.request(b"\r\n*0\r\n\n   \r\nPING\r\n*-1\r\n");
    talk.is(SessionState::Busy, 1).s("+PONG/").is(SessionState::Quiet, 0);
    assert_eq!(talk.0.take_counts().requests, 1);
    assert_eq!(talk.0.last_request(), None);
}

#[test]
fn turns_opaque_on_a_reply_without_request() {
    let mut talk = Dialogue::new();
    talk.s("-LOADING Redis is loading/").is(SessionState::Opaque, 0);
    assert_eq!(talk.0.take_hint(), Some(Hint::Loading));
    assert!(!talk.0.at_boundary(Direction::Request) && !talk.0.at_boundary(Direction::Reply));
    assert_eq!((talk.0.request_one(b"GET k\r\n"), talk.0.reply_split(b"abc").0.len()), (7, 3));
    talk.is(SessionState::Opaque, 0);
}

#[test]
fn counts_pushes_separately_from_replies() {
    let mut talk = Dialogue::new();
    talk.s(">2/$10/invalidate/_/").is(SessionState::Quiet, 0);
    talk.c("GET k")
        .s(">3/+message/+c/+x/")
        .is(SessionState::Busy, 1)
        .s("+v/")
        .is(SessionState::Quiet, 0);
    assert_eq!(talk.0.take_counts(), FrameCounts { requests: 1, replies: 1, pushes: 2 });
}

#[test]
fn reports_a_transaction_between_multi_and_its_end() {
    for (end, answer) in [
        ("EXEC", "*1/+OK/"),
        ("EXEC", "*-1/"),
        ("exec", "-EXECABORT Transaction discarded/"),
        ("EXEC", "-MOVED 1 a:1/"),
        ("DISCARD", "+OK/"),
    ] {
        let mut talk = Dialogue::new();
        talk.c("WATCH k").s("+OK/").is(SessionState::Pinned, 0);
        talk.c("MULTI").is(SessionState::Busy, 1).s("+OK/").is(SessionState::Transaction, 0);
        talk.c("SET k v")
            .is(SessionState::Transaction, 1)
            .s("+QUEUED/")
            .is(SessionState::Transaction, 0);
        talk.c(end).is(SessionState::Transaction, 1).s(answer).is(SessionState::Quiet, 0);
    }
}

#[test]
fn ignores_refused_requests() {
    let mut talk = Dialogue::new();
    talk.c("MULTI").s("-ERR no/").is(SessionState::Quiet, 0);
    talk.c("WATCH k").s("-NOPERM/").is(SessionState::Quiet, 0);
    talk.c("ASKING").s("-ERR cluster off/").is(SessionState::Quiet, 0);
    talk.c("SUBSCRIBE a b c").s("-NOPERM/").is(SessionState::Quiet, 0);
    talk.c("SUBSCRIBE").s("-ERR wrong number/").is(SessionState::Quiet, 0);
    talk.c("MONITOR").is(SessionState::Busy, 1).s("-NOPERM/").is(SessionState::Quiet, 0);
    talk.c("CLIENT TRACKING ON").s("-ERR x/").is(SessionState::Quiet, 0);
    talk.c("QUIT").s("-NOPERM/").is(SessionState::Quiet, 0);
    talk.c("HELLO 9").s("-NOPROTO/").c("RESET").s("-ERR unknown/").is(SessionState::Quiet, 0);
    // A refused request does not end what has begun either.
    talk.c("WATCH k").s("+OK/").c("EXEC").s("-ERR EXEC without MULTI/").is(SessionState::Pinned, 0);
    talk.c("UNWATCH").s("-NOPERM/").is(SessionState::Pinned, 0);
    talk.c("MULTI")
        .s("+OK/")
        .c("DISCARD x")
        .s("-ERR wrong number/")
        .is(SessionState::Transaction, 0);
    talk.c("RESET").s("-ERR/").is(SessionState::Transaction, 0);
    talk.c("MULTI").s("-ERR nested/").c("UNWATCH").s("+QUEUED/").is(SessionState::Transaction, 0);
    talk.c("EXEC").s("*1/+OK/").is(SessionState::Quiet, 0);
}

#[test]
fn judges_requests_by_their_number_of_words() {
    let mut talk = Dialogue::new();
    talk.c("MULTI x").s("-ERR wrong number/").is(SessionState::Quiet, 0);
    assert!(!talk.0.may_queue());
    talk.c("WATCH k").s("+OK/").c("MULTI").s("+OK/");
    for malformed in ["DISCARD x", "RESET x", "MULTI x", "CLIENT REPLY OFF x"] {
        talk.c(malformed).s("-ERR wrong number/").is(SessionState::Transaction, 0);
        assert_eq!((talk.0.last_request(), talk.0.may_queue()), (Some(Class::Ordinary), true));
    }
    talk.c("EXEC x").s("-EXECABORT wrong number/").is(SessionState::Quiet, 0);
    assert!(!talk.0.may_queue());
}

#[test]
fn opens_no_transaction_when_multi_is_refused() {
    let mut talk = Dialogue::new();
    talk.c("MULTI").c("SET k v").c("EXEC").c("GET k").is(SessionState::Busy, 4);
    talk.s("-NOAUTH/")
        .is(SessionState::Busy, 3)
        .s("-NOAUTH/-NOAUTH/")
        .is(SessionState::Busy, 1)
        .s("-NOAUTH/")
        .is(SessionState::Quiet, 0);
    talk.c("MULTI").c("SET k v");
    assert!(talk.0.may_queue());
    talk.s("-NOAUTH/");
    assert!(!talk.0.may_queue());
}

#[test]
fn keeps_pins_until_cleared() {
    let mut talk = Dialogue::new();
    talk.c("WATCH k")
        .s("+OK/")
        .c("GET k")
        .s("+v/")
        .is(SessionState::Pinned, 0)
        .c("UNWATCH")
        .s("+OK/")
        .is(SessionState::Quiet, 0);
    talk.c("ASKING")
        .s("+OK/")
        .is(SessionState::Pinned, 0)
        .c("GET k")
        .s("+v/")
        .is(SessionState::Quiet, 0);
    // A refused one keeps an earlier one, unless a request without a reply was executed between.
    talk.c("ASKING").s("+OK/").c("ASKING").s("-ERR no/").is(SessionState::Pinned, 0);
    talk.c("CLIENT REPLY SKIP").c("GET k").c("ASKING").s("-ERR no/").is(SessionState::Quiet, 0);
    talk.c("client tracking on").s("+OK/").c("GET k").s("+v/").is(SessionState::Pinned, 0);
    talk.c("client tracking off").s("+OK/").is(SessionState::Quiet, 0);
}

#[test]
fn reports_blocked_when_the_oldest_request_blocks() {
    let mut talk = Dialogue::new();
    talk.c("GET k").c("BLPOP q 0").is(SessionState::Busy, 2).s("+v/").is(SessionState::Blocked, 1);
    talk.c("GET k")
        .is(SessionState::Blocked, 2)
        .s("*2/+q/+x/")
        .is(SessionState::Busy, 1)
        .s("+v/")
        .is(SessionState::Quiet, 0);
    talk.c("WAIT 1 0").is(SessionState::Blocked, 1).s(":0/").is(SessionState::Quiet, 0);
    talk.c("xread STREAMS s $")
        .is(SessionState::Blocked, 1)
        .s("-UNBLOCKED force/")
        .is(SessionState::Quiet, 0);
    assert_eq!(talk.0.take_hint(), Some(Hint::Unblocked));
}

#[test]
fn reports_hints_once_in_order_of_severity() {
    let mut talk = Dialogue::new();
    for error in [
        "LOADING x",
        "READONLY You can't",
        "MASTERDOWN Link",
        "CLUSTERDOWN",
        "READONLYX",
        "ERR READONLY",
        "NOREPLICAS x",
        "TRYAGAIN x",
    ] {
        talk.c("SET k v").s(&format!("-{error}/"));
    }
    talk.c("EXEC").s("*1/-UNBLOCKED x/").is(SessionState::Quiet, 0);
    let hints: Vec<Hint> = std::iter::from_fn(|| talk.0.take_hint()).collect();
    assert_eq!(
        hints,
        [
            Hint::ReadOnly,
            Hint::MasterDown,
            Hint::Loading,
            Hint::ClusterDown,
            Hint::NoReplicas,
            Hint::TryAgain
        ]
    );
}

#[test]
fn detects_hints_byte_by_byte() {
    let mut talk = Dialogue::new();
    talk.c("SET k v");
    for byte in b"-CLUSTERDOWN The cluster is down\r\n" {
        talk.0.reply(&[*byte]);
    }
    assert_eq!((talk.0.take_hint(), talk.0.take_hint()), (Some(Hint::ClusterDown), None));
}

#[test]
fn tracks_client_reply_off() {
    let mut talk = Dialogue::new();
    talk.c("CLIENT REPLY OFF")
        .is(SessionState::Pinned, 0)
        .c("SET k v")
        .c("BLPOP q 1")
        .c("CLIENT REPLY SKIP")
        .is(SessionState::Pinned, 0);
    talk.c("CLIENT REPLY NO")
        .is(SessionState::Pinned, 0)
        .c("CLIENT REPLY ON")
        .is(SessionState::Busy, 1);
    talk.s("+OK/")
        .is(SessionState::Quiet, 0)
        .c("GET k")
        .is(SessionState::Busy, 1)
        .s("+v/")
        .is(SessionState::Quiet, 0);
    assert_eq!(talk.0.take_counts(), FrameCounts { requests: 7, replies: 2, pushes: 0 });
    // RESET switches them on again.
    talk.c("CLIENT REPLY OFF")
        .c("RESET")
        .is(SessionState::Busy, 1)
        .s("+RESET/")
        .is(SessionState::Quiet, 0);
    // A refusal is a reply to no request.
    talk.c("CLIENT REPLY OFF").s("-NOPERM/").is(SessionState::Opaque, 0);
}

#[test]
fn confirms_skipped_replies_by_the_next_reply() {
    let mut talk = Dialogue::new();
    talk.c("GET a")
        .c("CLIENT REPLY SKIP")
        .c("SET k v")
        .is(SessionState::Busy, 1)
        .s("+a/")
        .is(SessionState::Pinned, 0);
    talk.c("GET k").s("+v/").is(SessionState::Quiet, 0);
    talk.c("CLIENT REPLY SKIP")
        .c("SET k v")
        .c("GET k")
        .c("CLIENT REPLY SKIP")
        .c("SET k v")
        .s("+v/")
        .is(SessionState::Pinned, 0);
    talk.c("CLIENT REPLY SKIP")
        .c("CLIENT REPLY SKIP")
        .c("GET k")
        .c("GET k")
        .is(SessionState::Busy, 1)
        .s("+v/")
        .is(SessionState::Quiet, 0);
    talk.c("CLIENT REPLY SKIP")
        .c("CLIENT REPLY ON")
        .is(SessionState::Busy, 1)
        .s("+OK/")
        .is(SessionState::Quiet, 0);
}

#[test]
fn turns_opaque_on_effects_that_cannot_be_seen() {
    let silent = [
        "MULTI",
        "SELECT 1",
        "SUBSCRIBE a",
        "HELLO 3",
        "MONITOR",
        "QUIT",
        "WATCH k",
        "EXEC",
        "CLIENT TRACKING ON",
    ];
    for command in silent {
        Dialogue::new().c("CLIENT REPLY OFF").c(command).is(SessionState::Opaque, 0);
        Dialogue::new().c("CLIENT REPLY SKIP").c(command).is(SessionState::Opaque, 0);
    }
    Dialogue::new().c("CLIENT REPLY SKIP").c("RESET").is(SessionState::Opaque, 0);
    for command in [
        "SUBSCRIBE a",
        "PUNSUBSCRIBE",
        "HELLO 3",
        "MONITOR",
        "CLIENT TRACKING OFF",
        "CLIENT REPLY ON",
    ] {
        Dialogue::new().c("MULTI").s("+OK/").c(command).s("+QUEUED/").is(SessionState::Opaque, 0);
    }
    for command in ["CLIENT REPLY OFF", "CLIENT REPLY SKIP"] {
        Dialogue::new().c("MULTI").c(command).is(SessionState::Opaque, 1);
        Dialogue::new()
            .c("MULTI")
            .s("+OK/")
            .c("EXEC")
            .s("*0/")
            .c(command)
            .is(SessionState::Pinned, 0);
    }
    let mut talk = Dialogue::new();
    talk.c("CLIENT REPLY SKIP");
    talk.0.request(b"\r\n");
    talk.is(SessionState::Opaque, 0);
}

#[test]
fn turns_opaque_on_streams_that_are_not_replies() {
    Dialogue::new()
        .c("GET k")
        .c("MONITOR")
        .s("+v/")
        .is(SessionState::Busy, 1)
        .s("+OK/")
        .is(SessionState::Opaque, 0);
    for command in ["PSYNC ? -1", "SYNC", "REPLCONF listening-port 1", "SCRIPT DEBUG YES"] {
        Dialogue::new().c(command).is(SessionState::Opaque, 0);
    }
    Dialogue::new().c("SUBSCRIBE a").s("+OK/").is(SessionState::Opaque, 0);
    Dialogue::new().c("SUBSCRIBE a").s("*3/$9/subscribe/$1/a/$1/1/").is(SessionState::Opaque, 1);
}

#[test]
fn clears_everything_on_reset_and_ends_on_quit() {
    let mut talk = Dialogue::new();
    talk.c("HELLO 3").s("%0/").c("WATCH k").s("+OK/").c("SUBSCRIBE a").s(">3/+subscribe/+a/:1/");
    talk.c("CLIENT TRACKING ON").s("+OK/").c("MULTI").s("+OK/").is(SessionState::Transaction, 0);
    talk.c("RESET").is(SessionState::Transaction, 1).s("+RESET/").is(SessionState::Quiet, 0);
    talk.c("CLIENT REPLY SKIP").c("SET k v").c("GET k").s("+v/").is(SessionState::Quiet, 0);
    // In RESP2 again, this is a confirmation.
    talk.c("SUBSCRIBE a").s("*3/$9/subscribe/$1/a/:1/").is(SessionState::Subscribed, 0);
    talk.c("QUIT").is(SessionState::Busy, 1).s("+OK/").is(SessionState::Ended, 0);
}

#[test]
fn counts_ordinary_pipelines_without_allocation() {
    let mut ledger = Ledger::new(&Limits::default());
    let request = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n".repeat(1000);
    for _ in 0..100 {
        ledger.request(&request);
    }
    ledger.request(b"MULTI\r\n");
    assert_eq!((ledger.owed(), ledger.allocated()), (100_001, 0));
    let reply = b"$1\r\nv\r\n".repeat(1000);
    for _ in 0..100 {
        ledger.reply(&reply);
    }
    assert_eq!((ledger.owed(), ledger.session_state()), (1, SessionState::Busy));
    ledger.reply(b"+OK\r\n");
    assert_eq!((ledger.owed(), ledger.session_state()), (0, SessionState::Transaction));
}

/// Requests whose marks form no run: more than fit with `marks: 1`.
fn beyond_marks(talk: &mut Dialogue, last: &str) {
    talk.c("WATCH a").c("MULTI").c("EXEC").c("SELECT 1").c(last);
}

#[test]
fn counts_blocking_requests_without_marks() {
    let mut talk = Dialogue(Ledger::new(&Limits { marks: 1, ..Limits::default() }));
    for distance in 0..6 {
        talk.c("BLPOP q 1");
        (0..distance).for_each(|_| _ = talk.c("GET k"));
    }
    talk.s("*-1/*-1/$-1/*-1/$-1/$-1/*-1/$-1/$-1/$-1/").is(SessionState::Blocked, 11);
    talk.s("*-1/$-1/$-1/$-1/$-1/").is(SessionState::Busy, 6).s("*-1/").is(SessionState::Busy, 5);
    talk.s("$-1/$-1/$-1/$-1/$-1/").is(SessionState::Quiet, 0);
}

#[test]
fn counts_replies_beyond_the_marks_and_stays_pinned_until_reset() {
    let limits = Limits { marks: 1, memory: 200, ..Limits::default() };
    for (last, answer) in
        [("MULTI", "+OK/"), ("SELECT 2", "-ERR/"), ("CLIENT SETNAME me", "+OK/"), ("QUIT", "+OK/")]
    {
        let mut talk = Dialogue(Ledger::new(&limits));
        beyond_marks(&mut talk, last);
        // An earlier reset does not clear what came later.
        talk.is(SessionState::Busy, 5).s("+OK/+OK/*0/+OK/").is(SessionState::Busy, 1);
        talk.s(answer)
            .is(SessionState::Pinned, 0)
            .c("GET k")
            .is(SessionState::Busy, 1)
            .s("+QUEUED/")
            .is(SessionState::Pinned, 0);
        assert!(talk.0.at_boundary(Direction::Reply) && !talk.0.can_be_carried());
        talk.c("EXEC").s("*1/+v/").is(SessionState::Pinned, 0);
        talk.c("RESET").s("+RESET/").is(SessionState::Quiet, 0);
        assert!(talk.0.can_be_carried(), "{last}");
        assert_eq!(talk.0.take_counts(), FrameCounts { requests: 8, replies: 8, pushes: 0 });
    }
}

#[test]
fn stays_pinned_when_reset_precedes_unmarked_requests() {
    let mut talk = Dialogue(Ledger::new(&Limits { marks: 1, memory: 200, ..Limits::default() }));
    talk.c("WATCH a").c("MULTI").c("RESET").c("SELECT 1").c("SELECT 2");
    talk.s("+OK/+OK/+RESET/+OK/").is(SessionState::Busy, 1).s("+OK/").is(SessionState::Pinned, 0);
    assert!(!talk.0.can_be_carried());
}

#[test]
fn turns_opaque_without_a_mark_needed_for_counting() {
    for last in ["HELLO 3", "RESET", "MONITOR", "SUBSCRIBE a", "CLIENT REPLY ON"] {
        let mut talk = Dialogue(Ledger::new(&Limits { marks: 1, ..Limits::default() }));
        beyond_marks(&mut talk, last);
        talk.is(SessionState::Opaque, 4);
        assert_eq!(talk.0.allocated(), 0, "{last}");
    }
}

#[test]
fn follows_deep_pipelines_of_transactions_to_the_end() {
    for commands in [|_| 3, |n| n % 4, |n: usize| n * n % 7] {
        let mut talk = Dialogue(Ledger::new(&Limits { memory: 200, ..Limits::default() }));
        for n in 0..10_000 {
            talk.c("MULTI");
            (0..commands(n)).for_each(|_| _ = talk.c("GET k"));
            talk.c("EXEC");
        }
        for n in 0..10_000 {
            talk.s("+OK/").s(&"+QUEUED/".repeat(commands(n))).s("*0/");
        }
        talk.is(SessionState::Quiet, 0);
        assert!(talk.0.can_be_carried());
        assert_eq!(talk.0.allocated(), 0);
    }
}

#[test]
fn records_the_last_of_more_requests_than_kept() {
    let mut talk = Dialogue(Ledger::new(&Limits { memory: 1000, ..Limits::default() }));
    for db in 0..5000 {
        talk.c(&format!("SELECT {}", db % 16)).c("CLIENT SETNAME me");
    }
    for n in 1..=5000 {
        talk.s("+OK/+OK/");
        assert!(n == 5000 || !talk.0.can_be_carried());
    }
    let replay = Replay::of(&talk.0).expect("all of it is known again");
    let requests = String::from_utf8(replay.requests().to_vec()).unwrap();
    assert!(
        requests.contains("$2\r\nme\r\n")
            && requests.ends_with("SELECT\r\n$1\r\n7\r\n*1\r\n$4\r\nPING\r\n"),
        "{requests}"
    );
}

#[test]
fn reports_class_and_outcome_of_each_request() {
    let mut ledger = Ledger::new(&Limits::default());
    let bytes = b"*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n*1\r\n$5\r\nMULTI\r\nauth a b\r\nGET k\r\n";
    let first = ledger.request_one(bytes);
    assert_eq!(
        (&bytes[..first], ledger.last_request()),
        (&b"*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n"[..], Some(Class::Select))
    );
    assert_eq!(ledger.last_request().map(Class::group), Some(ClassGroup::Replayable));
    ledger.request(&bytes[first..]);
    assert_eq!((ledger.last_request(), ledger.owed()), (Some(Class::Ordinary), 4));
    let mut replies = &b"+OK\r\n+OK\r\n+QUEUED\r\n-ERR\r\n"[..];
    let mut answers = Vec::new();
    while !replies.is_empty() {
        replies = ledger.reply_split(replies).1;
        answers.push(ledger.last_answer());
    }
    assert_eq!(
        answers,
        [
            Some((Class::Select, ReplyOutcome::Done)),
            Some((Class::Multi, ReplyOutcome::Done)),
            Some((Class::Auth, ReplyOutcome::Queued)),
            None
        ]
    );
}
