//! Tests of the recorded state, and of its replay.

use crate::ledger::model::Dialogue;
use crate::{Hint, Ledger, Limits, Replay, ReplayError};

fn talk() -> Dialogue {
    Dialogue(Ledger::new(&Limits { memory: 1024, ..Limits::default() }))
}

/// The requests of a replay, one string each, without the `PING`; `None` if the session is pinned.
pub(crate) fn replayed(talk: &Dialogue) -> Option<Vec<String>> {
    let replay = Replay::of(&talk.0)?;
    let text = String::from_utf8(replay.requests().to_vec()).unwrap();
    let requests = text.split('*').skip(1);
    // Of `2 $4 AUTH $2 pw`, every second word from the third on.
    let mut all: Vec<String> = requests
        .map(|it| it.split("\r\n").skip(2).step_by(2).collect::<Vec<_>>().join(" "))
        .collect();
    // The `PING` follows everything but the subscriptions.
    let ping = all.iter().position(|it| it == "PING").unwrap();
    all.remove(ping);
    assert!(
        all.iter().enumerate().all(|(at, it)| it.contains("SUBSCRIBE") == (at >= ping)),
        "{ping} {all:?}"
    );
    Some(all)
}

#[track_caller]
pub(crate) fn replays(talk: &Dialogue, requests: &[&str]) {
    assert_eq!(
        replayed(talk).as_deref(),
        Some(&requests.iter().map(ToString::to_string).collect::<Vec<_>>()[..])
    );
}

#[test]
fn replays_accepted_state_in_a_working_order() {
    let mut it = talk();
    replays(&it, &[]);
    it.c("SELECT 3")
        .c("CLIENT SETNAME app")
        .c("AUTH me pw")
        .c("HELLO 3")
        .s("+OK/+OK/+OK/%1/+proto/:3/");
    replays(&it, &["AUTH me pw", "HELLO 3 SETNAME app", "SELECT 3"]);
    it.c("CLIENT SETINFO lib-name redis-py").c("CLIENT SETINFO LIB-VER 5.0").s("+OK/+OK/");
    it.c("client no-evict on").c("CLIENT NO-TOUCH ON").c("READONLY").s("+OK/+OK/+OK/");
    let all = ["AUTH me pw", "HELLO 3 SETNAME app", "CLIENT SETINFO LIB-NAME redis-py"];
    let more = [
        "CLIENT SETINFO LIB-VER 5.0",
        "CLIENT NO-EVICT ON",
        "CLIENT NO-TOUCH ON",
        "READONLY",
        "SELECT 3",
    ];
    replays(&it, &[&all[..], &more[..]].concat());
    it.c("CLIENT NO-EVICT OFF")
        .c("CLIENT NO-TOUCH OFF")
        .c("READWRITE")
        .c("SELECT 0")
        .s("+OK/+OK/+OK/+OK/");
    replays(&it, &[&all[..], &more[..1]].concat());
    it.c("RESET").s("+RESET/");
    replays(&it, &["CLIENT SETINFO LIB-NAME redis-py", "CLIENT SETINFO LIB-VER 5.0"]);
}

#[test]
fn records_credentials_and_name_of_hello() {
    let mut it = talk();
    it.c("HELLO 3 AUTH default pw SETNAME app").s("%1/+proto/:3/");
    replays(&it, &["AUTH default pw", "HELLO 3 SETNAME app"]);
    it.c("AUTH other").c("HELLO 2").s("+OK/*2/+proto/:2/");
    // The user may not be allowed to set a name, and `HELLO` needs no permission.
    replays(&it, &["AUTH other", "HELLO 2 SETNAME app"]);
    it.c("HELLO").s("*2/+proto/:2/");
    replays(&it, &["AUTH other", "HELLO 2 SETNAME app"]);
    it.c("CLIENT SETNAME new").s("+OK/");
    replays(&it, &["AUTH other", "CLIENT SETNAME new"]);
}

#[test]
fn records_nothing_that_was_refused() {
    let mut it = talk();
    it.c("AUTH me no")
        .c("SELECT 99")
        .c("HELLO 3 AUTH me no")
        .c("HELLO 4")
        .c("HELLO 3 NOSUCH")
        .s("-WRONGPASS x/-ERR x/-WRONGPASS x/-NOPROTO x/-ERR Syntax error in HELLO option/");
    replays(&it, &[]);
    assert_eq!(it.0.allocated(), 0);
}

#[test]
fn doubts_the_state_after_a_partly_refused_hello() {
    let mut it = talk();
    it.c("HELLO 3 AUTH me pw SETNAME a\tb").s("-ERR Client names cannot contain spaces/");
    assert_eq!(replayed(&it), None);
    it.c("AUTH me pw").s("+OK/");
    assert_eq!(replayed(&it), None, "the name is still unknown");
    it.c("CLIENT SETNAME b").s("+OK/");
    replays(&it, &["AUTH me pw", "CLIENT SETNAME b"]);
    // The first of two `AUTH` may have been accepted.
    it.c("HELLO 2 AUTH lim pw AUTH np bad").s("-WRONGPASS x/");
    assert_eq!(replayed(&it), None, "the user is unknown");
}

#[test]
fn doubts_state_changed_in_a_transaction() {
    let mut it = talk();
    it.c("SELECT 1").c("MULTI").c("SELECT 2").s("+OK/+OK/+QUEUED/");
    assert_eq!(replayed(&it), None);
    it.c("EXEC").s("*1/+OK/");
    assert_eq!(replayed(&it), None);
    it.c("SELECT 2").s("+OK/");
    replays(&it, &["SELECT 2"]);
    for end in ["DISCARD", "EXEC"] {
        it.c("MULTI").c("SELECT 5").c(end).s("+OK/+QUEUED/");
        it.s(if end == "EXEC" { "-EXECABORT x/" } else { "+OK/" });
        replays(&it, &["SELECT 2"]);
    }
    it.c("MULTI").c("GET k").c("EXEC").s("+OK/+QUEUED/*1/$-1/");
    replays(&it, &["SELECT 2"]);
}

#[test]
fn carries_no_session_that_is_not_quiet() {
    for (ask, answer) in [
        ("GET k", ""),
        ("WATCH k", "+OK/"),
        ("MULTI", "+OK/"),
        ("SUBSCRIBE c", "*3/$9/subscribe/$1/c/:1/"),
        ("MONITOR", "+OK/"),
        ("CLIENT TRACKING ON", "+OK/"),
        ("SELECT 1", ""),
        ("WAIT 0 0", ":0/"),
    ] {
        let mut it = talk();
        it.c(ask).s(answer);
        assert!(!it.0.can_be_carried(), "{ask}");
    }
    let mut forgetful = Dialogue::new();
    forgetful.c("SELECT 1").s("+OK/");
    assert!(!forgetful.0.can_be_carried());
}

#[test]
fn records_requests_in_pieces_of_any_size() {
    let wire = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n*3\r\n$4\r\nAUTH\r\n$2\r\nme\r\n$2\r\npw\r\nSELECT 7\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
    for size in 1..wire.len() {
        let mut it = talk();
        wire.chunks(size).for_each(|piece| it.0.request(piece));
        it.s("+OK/+OK/+OK/$1/v/");
        replays(&it, &["AUTH me pw", "SELECT 7"]);
    }
}

#[test]
fn doubts_requests_too_long_unseen_or_quoted() {
    let mut it = talk();
    it.c(&format!("AUTH {}", "p".repeat(2000))).s("+OK/");
    assert_eq!(replayed(&it), None);
    it.c("AUTH pw").s("+OK/");
    replays(&it, &["AUTH pw"]);
    it.0.request(b"AUTH \"p w\"\r\n");
    it.s("+OK/");
    assert_eq!(replayed(&it), None);
    it.c("RESET").s("+RESET/");
    replays(&it, &[]);
    // A body that was forwarded without being shown.
    it.0.request(b"*2\r\n$4\r\nAUTH\r\n$100\r\n");
    it.0.skip_body(crate::Direction::Request, 100);
    it.0.request(b"\r\n");
    it.s("+OK/");
    assert_eq!(replayed(&it), None);
}

#[test]
fn bounds_and_frees_the_recorded_bytes() {
    let mut it = talk();
    for round in 0..400 {
        it.c(&format!("CLIENT SETNAME {}{round}", "n".repeat(100)));
        assert!(it.0.allocated() < 8192, "{}", it.0.allocated());
    }
    for _ in 0..400 {
        it.s("+OK/");
    }
    it.c("RESET").s("+RESET/");
    assert_eq!(it.0.allocated(), 0);
    // A long request whose first words show that it is not recorded.
    it.0.request(b"*3\r\n$3\r\nSE");
    it.0.request(b"T\r\n$1\r\nk\r\n$5000\r\n");
    it.0.request(&[b'x'; 4000]);
    assert_eq!(it.0.allocated(), 0);
    it.0.request(&[b'x'; 1000]);
    it.0.request(b"\r\n");
    it.s("+OK/");
    replays(&it, &[]);
}

fn authenticated() -> Dialogue {
    let mut it = talk();
    it.c("HELLO 3 AUTH me pw").c("SELECT 2").s("%1/+proto/:3/+OK/");
    it
}

#[test]
fn continues_the_session_after_an_accepted_replay() {
    let before = authenticated();
    let mut replay = Replay::of(&before.0).unwrap();
    let answers = b"+OK\r\n%1\r\n+proto\r\n:3\r\n+OK\r\n+PONG\r\n";
    for byte in answers {
        assert!(!replay.is_answered());
        assert_eq!(replay.answer(&[*byte]), Ok(1));
    }
    assert_eq!(replay.answer(b">1\r\n+news\r\n"), Ok(0), "what follows is not part of the replies");
    let after = Dialogue(replay.finish(&before.0).unwrap().0);
    replays(&after, &["AUTH me pw", "HELLO 3", "SELECT 2"]);
    let mut after = after;
    after.c("GET k").s("$-1/");
    assert_eq!(after.0.take_counts().requests, 1, "only that of the client");
    // It can be carried to a third server.
    assert!(after.0.can_be_carried());
}

#[test]
fn refuses_unexpected_replies() {
    let before = authenticated();
    let answer = |bytes: &[u8]| Replay::of(&before.0).unwrap().answer(bytes);
    assert_eq!(answer(b"-WRONGPASS no\r\n"), Err(ReplayError::Refused));
    assert_eq!(answer(b"+OK\r\n-ERR unknown command\r\n"), Err(ReplayError::Refused));
    let words = |bytes: &[u8]| {
        let mut replay = Replay::of(&before.0).unwrap();
        assert_eq!(replay.answer(bytes), Err(ReplayError::Refused));
        String::from_utf8(replay.refusal().to_vec()).unwrap()
    };
    assert_eq!(words(b"-WRONGPASS no\r\n"), "WRONGPASS no");
    assert_eq!(words(b"+OK\r\n-NOPERM no\r\n+PONG\r\n"), "NOPERM no");
    // The server repeats the arguments of a command that it does not know.
    let echo = b"-ERR unknown command 'AUTH', with args beginning with: 'me' 'pw' \r\n";
    assert_eq!(words(echo), "ERR unknown command 'AUTH'");
    assert_eq!(answer(b"-LOADING not yet\r\n"), Err(ReplayError::NotReady(Hint::Loading)));
    assert_eq!(answer(b"HTTP/1.1 400\r\n"), Err(ReplayError::Unexpected));
    // A server that accepts HELLO 3 and answers with an array: accepted, but
    // not the same.
    let mut replay = Replay::of(&before.0).unwrap();
    replay.answer(b"+OK\r\n*2\r\n+proto\r\n:2\r\n+OK\r\n+PONG\r\n").unwrap();
    assert_eq!(replay.finish(&before.0).unwrap_err(), ReplayError::Unexpected);
    let unanswered = Replay::of(&before.0).unwrap();
    assert_eq!(unanswered.finish(&before.0).unwrap_err(), ReplayError::Unexpected);
}

#[test]
fn accepts_any_reply_to_ping_but_unavailability() {
    let blank = talk();
    let answer = |bytes: &[u8]| {
        let mut replay = Replay::of(&blank.0).unwrap();
        assert_eq!(replay.requests(), b"*1\r\n$4\r\nPING\r\n");
        assert!(!replay.is_answered(), "a connection alone proves nothing");
        let taken = replay.answer(bytes)?;
        assert!(replay.is_answered());
        replay.finish(&blank.0).map(|_| taken)
    };
    for proof in [
        "+PONG/",
        "-NOAUTH Authentication required./",
        "-NOPERM x/",
        "-ERR unknown command 'PING'/",
        "-MISCONF x/",
    ] {
        assert_eq!(answer(proof.replace('/', "\r\n").as_bytes()), Ok(proof.len() + 1), "{proof}");
    }
    for (hint, error) in
        [(Hint::Loading, "-LOADING x\r\n"), (Hint::MasterDown, "-MASTERDOWN x\r\n")]
    {
        assert_eq!(answer(error.as_bytes()), Err(ReplayError::NotReady(hint)));
    }
    for nonsense in ["$4\r\nPONG\r\n", ":1\r\n", "HTTP/1.1 400\r\n"] {
        assert_eq!(answer(nonsense.as_bytes()), Err(ReplayError::Unexpected), "{nonsense}");
    }
}

#[test]
fn reports_busy_and_full_servers_as_unavailable() {
    const FULL: &[u8] = b"-ERR max number of clients reached\r\n";
    let state = authenticated();
    for before in [talk(), state] {
        for error in [
            FULL,
            b"-BUSY Redis is busy running a script.\r\n",
            b"-DENIED Redis is running in protected mode\r\n",
        ] {
            assert_eq!(Replay::of(&before.0).unwrap().answer(error), Err(ReplayError::Unavailable));
            let mut replay = Replay::of(&before.0).unwrap();
            let last = error.chunks(1).map(|byte| replay.answer(byte)).find(Result::is_err);
            assert_eq!(last, Some(Err(ReplayError::Unavailable)), "in pieces");
        }
    }
    // The replayed requests may be answered while other commands are not.
    let mut replay = Replay::of(&authenticated().0).unwrap();
    let answers = b"+OK\r\n%1\r\n+proto\r\n:3\r\n+OK\r\n";
    assert_eq!(replay.answer(answers), Ok(answers.len()));
    assert_eq!(replay.answer(b"-LOADING x\r\n"), Err(ReplayError::NotReady(Hint::Loading)));
}

#[test]
fn accepts_a_script_on_the_same_server_only() {
    const BUSY: &[u8] = b"-BUSY Redis is busy running a script.\r\n";
    let mut before = talk();
    before.c("HELLO 3").c("CLIENT SETINFO LIB-NAME app").s("%1/+proto/:3/+OK/");
    let answers = [b"%1\r\n+proto\r\n:3\r\n", BUSY, BUSY].concat();
    let replay = || Replay::of_shared(&before.0, true).unwrap();
    assert_eq!(replay().answer(&answers), Err(ReplayError::Unavailable));
    let mut there = replay().on_same_server();
    assert_eq!(there.answer(&answers), Ok(answers.len()));
    assert!(there.met_script() && there.has_shared_state_of(&before.0), "only the name is missing");
    let full = b"-ERR max number of clients reached\r\n";
    assert_eq!(replay().on_same_server().answer(full), Err(ReplayError::Unavailable));
    // Requests of this session would go to another database.
    let mut elsewhere = talk();
    elsewhere.c("SELECT 1").s("+OK/");
    let mut there = Replay::of_shared(&elsewhere.0, true).unwrap().on_same_server();
    assert_eq!(there.answer(&[BUSY, BUSY].concat()), Ok(2 * BUSY.len()));
    assert!(there.met_script() && !there.has_shared_state_of(&elsewhere.0));
    assert!(there.has_user_of(&elsewhere.0));
}

/// `AUTH` and `HELLO` are executed by a server that runs a script. One that refuses them leaves the
/// connection with another user, who may do more.
#[test]
fn distinguishes_the_user_from_the_rest_of_the_state() {
    const BUSY: &[u8] = b"-BUSY Redis is busy running a script.\r\n";
    let mut before = talk();
    before.c("AUTH me pw").c("HELLO 3").c("SELECT 1").s("+OK/%1/+proto/:3/+OK/");
    let (ok, hello): (&[u8], &[u8]) = (b"+OK\r\n", b"%1\r\n+proto\r\n:3\r\n");
    let cases = [(ok, hello, true), (BUSY, hello, false), (ok, BUSY, false)];
    for (auth, hello, expected) in cases {
        let mut there = Replay::of_shared(&before.0, true).unwrap().on_same_server();
        assert!(!there.has_user_of(&before.0), "before the replies");
        let replies = [auth, hello, BUSY, BUSY].concat();
        assert_eq!(there.answer(&replies), Ok(replies.len()));
        assert!(there.met_script() && !there.has_shared_state_of(&before.0));
        assert_eq!(there.has_user_of(&before.0), expected);
    }
}

#[test]
fn ends_a_carried_session_that_sends_wait() {
    let before = talk();
    let mut replay = Replay::of(&before.0).unwrap();
    replay.answer(b"+PONG\r\n").unwrap();
    let mut after = Dialogue(replay.finish(&before.0).unwrap().0);
    after.c("GET k");
    assert!(after.0.must_end().is_none());
    after.c("WAIT 1 100");
    assert!(after.0.must_end() == Some(crate::MustEnd::WaitAfterCarry));
    let mut fresh = talk();
    fresh.c("WAIT 1 100");
    assert!(fresh.0.must_end().is_none());
}

#[test]
fn shows_no_secret_in_debug_output() {
    let mut it = authenticated();
    it.c("AUTH hush");
    let shown = format!("{:?} {:?}", it.0, Replay::of(&authenticated().0).unwrap());
    assert!(
        !shown.contains("pw") && !shown.contains("hush") && !shown.contains("104, 117"),
        "{shown}"
    );
}

#[test]
fn records_inline_credentials_as_redis_splits_them() {
    let mut it = talk();
    it.0.request(b"AUTH pa\x0css\r\n");
    it.s("+OK/");
    replays(&it, &["AUTH pa\x0css"]);
    it.0.request(b"\x0bAUTH \x0c me\x0b  pw\r\n");
    it.s("+OK/");
    replays(&it, &["AUTH me\x0b pw"]);
}

#[test]
fn pins_a_session_with_inline_import_source() {
    for line in [&b"CLIENT IMPORT-SOURCE ON\r\n"[..], b"client 'import-source' on\n"] {
        let mut it = talk();
        it.0.request(line);
        it.s("+OK/");
        it.is(crate::SessionState::Pinned, 0);
    }
}

#[test]
fn drops_names_that_the_user_may_not_set() {
    let mut before = talk();
    before.c("AUTH me pw").c("CLIENT SETNAME app").c("SELECT 3").s("+OK/+OK/+OK/");
    let mut replay = Replay::of(&before.0).unwrap();
    let answers = b"+OK\r\n-NOPERM no\r\n+OK\r\n+PONG\r\n";
    assert_eq!(replay.answer(answers), Ok(answers.len()));
    assert!(replay.lacks_names(&before.0) && replay.refusal() == b"NOPERM no");
    assert!(replay.before_authentication(&before.0).is_none(), "only a name is missing");
    let (after, _) = replay.finish(&before.0).unwrap();
    replays(&Dialogue(after), &["AUTH me pw", "SELECT 3"]);
}

#[test]
fn sets_state_before_authenticating_if_denied_after_that() {
    let mut before = talk();
    before.c("SELECT 3").c("READONLY").c("AUTH me pw").c("HELLO 3 SETNAME app");
    before.s("+OK/+OK/+OK/%1/+proto/:3/");
    let denied = b"+OK\r\n%1\r\n+proto\r\n:3\r\n+OK\r\n-NOPERM no\r\n+PONG\r\n";
    let mut replay = Replay::of(&before.0).unwrap();
    assert_eq!(replay.answer(denied), Ok(denied.len()));
    let mut second = replay.before_authentication(&before.0).unwrap();
    assert_eq!(replay.finish(&before.0).err(), Some(ReplayError::Unexpected));
    let text = String::from_utf8(second.requests().to_vec()).unwrap();
    let at = |word: &str| text.find(word).unwrap();
    assert!(at("SELECT") < at("AUTH") && text.rfind("SELECT").unwrap() > at("AUTH"), "{text}");
    let early = b"-NOPERM no\r\n+OK\r\n+OK\r\n";
    let late = b"+OK\r\n%1\r\n+proto\r\n:3\r\n+OK\r\n-NOPERM no\r\n+PONG\r\n";
    assert_eq!(second.answer(&[&early[..], late].concat()), Ok(early.len() + late.len()));
    assert!(!second.lacks_names(&before.0));
    let (after, _) = second.finish(&before.0).unwrap();
    replays(&Dialogue(after), &["AUTH me pw", "HELLO 3 SETNAME app", "READONLY", "SELECT 3"]);
    // The shared connections of a database are in that database.
    let mut pooled = Replay::of_shared(&before.0, false).unwrap();
    assert_eq!(pooled.answer(denied), Ok(denied.len()));
    assert!(!pooled.has_shared_state());
}

/// What a user has set that its next one may not set.
#[test]
fn sets_state_as_the_user_that_set_it() {
    let mut before = talk();
    before.c("AUTH alice a").c("SELECT 3").c("AUTH bob b").c("AUTH carol c").s("+OK/+OK/+OK/+OK/");
    let denied = b"+OK\r\n-NOPERM no\r\n+PONG\r\n";
    let second = || {
        let mut replay = Replay::of(&before.0).unwrap();
        assert_eq!(replay.answer(denied), Ok(denied.len()));
        replay.before_authentication(&before.0).unwrap()
    };
    let text = String::from_utf8(second().requests().to_vec()).unwrap();
    let words = ["alice", "SELECT", "carol", "SELECT", "PING"];
    let mut rest = &text[..];
    for word in words {
        rest = rest.split_once(word).unwrap_or_else(|| panic!("{word} in {text}")).1;
    }
    assert!(!text.contains("bob"), "{text}");
    let mut replay = second();
    let answers = [b"+OK\r\n+OK\r\n", &denied[..]].concat();
    assert_eq!(replay.answer(&answers), Ok(answers.len()));
    let (after, _) = replay.finish(&before.0).unwrap();
    // The credentials are kept for the next time.
    let mut replay = Replay::of(&after).unwrap();
    assert_eq!(replay.answer(denied), Ok(denied.len()));
    assert_eq!(replay.before_authentication(&after).unwrap().requests(), second().requests());
    // Where they have changed, only who has not authenticated might be allowed to.
    for (select, expected) in [("+OK", true), ("-NOAUTH no", false)] {
        let mut replay = second();
        let answers = format!("-WRONGPASS no\r\n{select}\r\n+OK\r\n-NOPERM no\r\n+PONG\r\n");
        assert_eq!(replay.answer(answers.as_bytes()), Ok(answers.len()));
        assert_eq!(replay.finish(&before.0).is_ok(), expected, "{select}");
    }
    // Without settings they are forgotten.
    before.c("SELECT 0").s("+OK/");
    let allocated = before.0.allocated();
    before.c("AUTH alice a").s("+OK/");
    assert_eq!(before.0.allocated(), allocated);
}

#[test]
fn doubts_no_evict_that_was_on_before_reset() {
    let mut it = talk();
    it.c("CLIENT NO-EVICT ON").c("RESET").s("+OK/+RESET/");
    assert_eq!((replayed(&it), it.0.shared_state().is_some()), (None, false));
    it.c("RESET").s("+RESET/");
    assert_eq!(replayed(&it), None);
    it.c("CLIENT NO-EVICT OFF").s("+OK/");
    replays(&it, &[]);
}
