//! Tests of the state that only one server has, and of the pins that follow from it.

use crate::ledger::model::Dialogue;
use crate::{Ledger, Limits, Pin, Replay, SessionState, StatelessCommands};

fn talk() -> Dialogue {
    Dialogue(Ledger::new(&Limits { memory: 1024, names: 64 * 1024, ..Limits::default() }))
}

/// A reply whose first element is the cursor.
fn page(cursor: &str) -> String {
    format!("*2/${}/{cursor}/*1/$1/k/", cursor.len())
}

#[track_caller]
fn assert_pinned(talk: &Dialogue) {
    assert!(!talk.0.can_be_carried());
}

#[track_caller]
fn assert_carriable(talk: &Dialogue) {
    assert_eq!(talk.0.session_state(), SessionState::Quiet);
    assert!(talk.0.can_be_carried());
}

#[test]
fn pins_a_session_until_the_cursor_is_zero() {
    for command in
        ["SCAN", "scan", "HSCAN h", "SScan s", "ZSCAN z", "BF.SCANDUMP f", "cf.scandump f"]
    {
        let mut it = talk();
        it.c(&format!("{command} 0 COUNT 10")).s(&page("18446744073709551615"));
        assert_pinned(&it);
        it.c(&format!("{command} 18446744073709551615 COUNT 10")).s(&page("176"));
        assert_pinned(&it);
        it.c("GET k").s("$1/v/");
        assert_pinned(&it);
        it.c(&format!("{command} 176 COUNT 10")).s(&page("0"));
        assert_carriable(&it);
        it.c(&format!("{command} 0")).s(&page("0"));
        assert_carriable(&it);
        assert_eq!(it.0.allocated(), 0, "{command}");
    }
}

#[test]
fn follows_iterations_that_are_interleaved() {
    let mut it = talk();
    it.c("SCAN 0").c("SCAN 0 MATCH a*").c("HSCAN h 0").s(&page("5")).s(&page("5")).s(&page("7"));
    assert_pinned(&it);
    it.c("SCAN 5").s(&page("0"));
    assert_pinned(&it);
    it.c("HSCAN h 7").s(&page("0"));
    assert_pinned(&it);
    it.c("SCAN 5 MATCH a*").s(&page("9")).c("SCAN 9 MATCH a*").s(&page("0"));
    assert_carriable(&it);
    // The end of an iteration that began on another connection does not end the one of this
    // connection.
    it.c("SCAN 0").s(&page("11")).c("SCAN 12").s(&page("0"));
    assert_pinned(&it);
}

#[test]
fn keeps_a_cursor_whose_page_was_refused() {
    let mut it = talk();
    it.c("SCAN 0").s(&page("5")).c("SCAN 5").s("-LOADING x/");
    assert_pinned(&it);
    it.c("SCAN 5").s(&page("0"));
    assert_carriable(&it);
    it.c("SCAN nonsense").c("SCAN").c("SCAN 1 2 3").s("-ERR invalid cursor/-ERR args/-ERR syntax/");
    assert_carriable(&it);
}

#[test]
fn pins_permanently_when_a_cursor_is_not_seen() {
    let mut it = talk();
    it.c("MULTI").c("SCAN 0").c("EXEC").s("+OK/+QUEUED/").s(&format!("*1/{}", page("0")));
    assert_pinned(&it);
    for odd in ["*1/*2/$1/0/*0/", "$1/0/", "%1/+a/$1/0/", "*2/$3/abc/*0/", "*-1/"] {
        let mut it = talk();
        it.c("HELLO 3").s("%1/+proto/:3/").c("SCAN 0").s(odd);
        assert_pinned(&it);
        it.c("SCAN 0").s(&page("0"));
        assert_pinned(&it);
    }
    let mut discarded = talk();
    discarded.c("MULTI").c("SCAN 0").c("DISCARD").s("+OK/+QUEUED/+OK/");
    assert_pinned(&discarded);
    let mut silent = talk();
    silent.c("CLIENT REPLY SKIP").c("SCAN 0").c("GET k").s("$-1/");
    assert_carriable(&silent);
}

#[test]
fn pins_and_tracks_more_iterations_than_marks() {
    // At growing distances: two inline marks and a run of three.
    let mut it = Dialogue(Ledger::new(&Limits { memory: 200, marks: 1, ..Limits::default() }));
    for distance in 0..6 {
        it.c("HSCAN h 0");
        (0..distance).for_each(|_| _ = it.c("GET k"));
    }
    for distance in 0..6 {
        it.s(&page("0")).s(&"$1/v/".repeat(distance));
    }
    it.is(SessionState::Quiet, 0);
    assert_pinned(&it);
    // Any number of one kind is one run.
    let mut it = talk();
    for _ in 0..100_000 {
        it.c("HSCAN h 0");
    }
    for _ in 0..100_000 {
        it.s(&page("0"));
    }
    it.is(SessionState::Quiet, 0);
    assert!(it.0.can_be_carried());
    it.c("GET k").s("$1/v/").is(SessionState::Quiet, 0);
}

#[test]
fn reads_a_cursor_in_pieces_and_inline() {
    let mut it = talk();
    for byte in b"  sCaN   0 count 10\r\n" {
        it.0.request(&[*byte]);
    }
    for byte in page("1234567890123456789").replace('/', "\r\n").bytes() {
        it.0.reply(&[byte]);
    }
    assert_pinned(&it);
    for byte in b"*2\r\n$4\r\nSCAN\r\n$19\r\n1234567890123456789\r\n" {
        it.0.request(&[*byte]);
    }
    for byte in page("0").replace('/', "\r\n").bytes() {
        it.0.reply(&[byte]);
    }
    assert_carriable(&it);
}

#[test]
fn pins_a_session_with_an_open_search_cursor() {
    let mut it = talk();
    it.c("FT.AGGREGATE idx * LOAD 1 name").s("*2/:1/*2/$1/a/$1/b/");
    assert_carriable(&it);
    it.c("ft.aggregate idx * LOAD 1 name withcursor COUNT 10").s("*2/*2/:1/*2/$1/a/$1/b/:77/");
    assert_pinned(&it);
    it.c("FT.CURSOR READ idx 77").s("*2/*1/:0/:78/");
    assert_pinned(&it);
    it.c("FT.CURSOR READ idx 78").s("*2/*1/:0/:0/");
    assert_carriable(&it);
    it.c("FT.AGGREGATE idx * WITHCURSOR").s("*2/*1/:0/:79/").c("ft.cursor del idx 79").s("+OK/");
    assert_carriable(&it);
    it.c("HELLO 3")
        .s("%1/+proto/:3/")
        .c("FT.AGGREGATE idx * WITHCURSOR")
        .s("*2/%1/+results/*0/:80/");
    assert_pinned(&it);
}

#[test]
fn pins_a_session_that_knows_its_client_id() {
    let mut it = talk();
    it.c("client id").s(":113/");
    assert_pinned(&it);
    it.c("RESET").s("+RESET/");
    assert_pinned(&it);
    // StackExchange.Redis asks in its handshake and uses the number for its log.
    let mut handshake = talk();
    handshake.c("CLIENT SETINFO LIB-NAME SE.Redis").c("CLIENT ID").s("+OK/:113/");
    assert_carriable(&handshake);
    handshake.c("CLIENT SETINFO LIB-NAME other").s("+OK/");
    assert_pinned(&handshake);
}

#[test]
fn pins_a_session_that_loaded_or_looked_up_a_script() {
    for command in ["SCRIPT LOAD x", "script exists 0a", "SCRIPT SHOW 0a"] {
        let mut it = talk();
        it.c(command).s("$2/0a/");
        assert_pinned(&it);
        assert_eq!(it.0.pin(), Some(Pin::Script));
        let mut queued = talk();
        queued.c("MULTI").c(command).c("EXEC").s("+OK/+QUEUED/*1/:1/");
        assert_pinned(&queued);
        let mut silent = talk();
        silent
            .c("CLIENT REPLY OFF")
            .c(command)
            .c("CLIENT REPLY ON")
            .s("+OK/")
            .is(SessionState::Quiet, 0);
        assert_pinned(&silent);
        let mut falls_back = talk();
        falls_back.c("EVALSHA 0a 0").s("-NOSCRIPT No matching script./").c(command).s("$2/0a/");
        assert_carriable(&falls_back);
        falls_back.c("EVALSHA 0a 0").s(":1/");
        assert_carriable(&falls_back);
    }
    let mut it = talk();
    it.c("SCRIPT LOAD x").c("GET k").s("-ERR NOSCRIPT /$-1/");
    assert_pinned(&it);
}

#[test]
fn carries_a_session_that_runs_scripts_outside_multi() {
    for command in ["EVAL x 0", "eval_ro x 0", "EVALSHA 0a 0", "evalsha_ro 0a 0"] {
        let mut it = talk();
        it.c(command).s(":1/").c("SET k v").s("+OK/");
        assert_carriable(&it);
        it.c("MULTI").c("SET k v").c("EXEC").s("+OK/+QUEUED/*1/+OK/").c(command).s(":1/");
        assert_carriable(&it);
        let mut silent = talk();
        silent
            .c("CLIENT REPLY OFF")
            .c(command)
            .c("CLIENT REPLY ON")
            .s("+OK/")
            .is(SessionState::Quiet, 0);
        assert_carriable(&silent);
        // A client has no fallback for `NOSCRIPT` among the replies of `EXEC`, and the other
        // commands are executed.
        let mut queued = talk();
        queued.c("EVALSHA 0a 0").s("-NOSCRIPT No matching script./");
        queued.c("MULTI").c(command).c("EXEC").s("+OK/+QUEUED/*1/:1/");
        assert_pinned(&queued);
        assert_eq!(queued.0.pin(), Some(Pin::Script));
    }
    // In one piece with its transaction, and before and after one.
    let evalsha = "*3\r\n$7\r\nEvalSha\r\n$2\r\n0a\r\n$1\r\n0\r\n";
    let (multi, exec) = ("*1\r\n$5\r\nMULTI\r\n", "*1\r\n$4\r\nEXEC\r\n");
    let mut around = talk();
    around.0.request([evalsha, evalsha, multi, exec, evalsha].concat().as_bytes());
    around.s(":1/:1/+OK/*0/:1/");
    assert_carriable(&around);
    let mut within = talk();
    within.0.request([evalsha, multi, evalsha, exec].concat().as_bytes());
    within.s(":1/+OK/+QUEUED/*1/:1/");
    assert_pinned(&within);
    let mut it = talk();
    it.c("FCALL f 0").c("SCRIPT FLUSH").c("FUNCTION LOAD x").s(":1/+OK/$1/x/");
    assert_carriable(&it);
}

#[test]
fn detects_scripts_of_the_former_server_in_multi() {
    let carried = |before: &mut Dialogue| {
        assert_carriable(before);
        let mut replay = Replay::of(&before.0).expect("a replay");
        // There is no state to replay, only the `PING`.
        if !replay.is_answered() {
            replay.answer(b"+PONG\r\n").expect("an answer");
        }
        Dialogue(replay.finish(&before.0).expect("the same state").0)
    };
    let queue = |it: &mut Dialogue, command: &str| {
        it.c("MULTI").c(command).c("EXEC").s("+OK/+QUEUED/*1/-NOSCRIPT x/");
        it.0.relies_on_former_scripts()
    };
    let mut filled = talk();
    filled.c("EVAL x 0").s(":1/");
    let mut it = carried(&mut filled);
    it.c("EVALSHA 0a 0").s("-NOSCRIPT x/").c("EVAL x 0").s(":1/");
    assert!(!it.0.relies_on_former_scripts());
    let mut twice = carried(&mut it);
    assert!(!queue(&mut twice, "EVAL x 0"));
    assert!(queue(&mut twice, "EVALSHA 0a 0"));
    let mut without = talk();
    without.c("EVALSHA 0a 0").s(":1/");
    assert!(!queue(&mut carried(&mut without), "EVALSHA 0a 0"));
    assert!(!queue(&mut filled, "EVALSHA 0a 0"));
}

#[test]
fn pins_a_subscriber_to_invalidation_messages() {
    let mut it = talk();
    it.c("SUBSCRIBE news").s("*3/$9/subscribe/$4/news/:1/");
    assert!(it.0.can_be_carried());
    it.c("SUBSCRIBE __redis__:invalidate").s("*3/$9/subscribe/$20/__redis__:invalidate/:2/");
    assert_pinned(&it);
    it.c("UNSUBSCRIBE")
        .s("*3/$11/unsubscribe/$4/news/:1/*3/$11/unsubscribe/$20/__redis__:invalidate/:0/");
    assert_carriable(&it);
}

#[test]
fn pins_a_session_that_sent_an_unknown_command() {
    for command in ["FETCH k", "GRAPH.QUERY g q", "CLIENT NOVELTY", "A.NAME.THAT.IS.VERY.LONG k"] {
        let mut it = talk();
        it.c("GET k").s("$1/v/");
        assert_carriable(&it);
        it.c(command).s("$1/v/").is(SessionState::Quiet, 0);
        assert_pinned(&it);
        it.c("RESET").s("+RESET/");
        assert_pinned(&it);
        let mut silent = talk();
        silent
            .c("CLIENT REPLY OFF")
            .c(command)
            .c("CLIENT REPLY ON")
            .s("+OK/")
            .is(SessionState::Quiet, 0);
        assert_pinned(&silent);
    }
    let mut it = talk();
    for _ in 0..2000 {
        it.c("FETCH k");
    }
    it.is(SessionState::Busy, 2000);
    for _ in 0..2000 {
        it.s(":1/");
    }
    it.is(SessionState::Quiet, 0);
    // Only the name of the first unknown command is allocated.
    assert_eq!((it.0.allocated(), it.0.unknown_command()), (1, Some("FETCH")));
}

#[test]
fn carries_a_session_that_sent_declared_commands() {
    let declared = StatelessCommands::new(["fetch", "GRAPH|QUERY", "client|novelty"]).unwrap();
    let requests: [&[u8]; 4] = [
        b"*2\r\n$5\r\nFetch\r\n$1\r\nk\r\n",
        b"*3\r\n$5\r\ngraph\r\n$5\r\nquery\r\n$2\r\ng1\r\n",
        b"*2\r\n$6\r\nCLIENT\r\n$7\r\nNOVELTY\r\n",
        b"fetch k\r\n",
    ];
    let unlike: [&[u8]; 4] = [
        b"*2\r\n$7\r\nFetched\r\n$1\r\nk\r\n",
        b"*3\r\n$5\r\ngraph\r\n$6\r\ndelete\r\n$2\r\ng1\r\n",
        b"*2\r\n$6\r\nCLIENT\r\n$7\r\nNOVELTE\r\n",
        b"fetched k\r\n",
    ];
    let fresh = || Dialogue(talk().0.with_stateless(declared.clone()));
    // In one piece, in any two pieces, and byte by byte.
    for (request, unlike) in requests.iter().zip(unlike) {
        for at in 0..request.len() {
            let mut it = fresh();
            it.0.request(&request[..at]);
            it.0.request(&request[at..]);
            it.s(":1/");
            assert_carriable(&it);
            assert_eq!((it.0.pin(), it.0.allocated()), (None, 0), "{at}");
        }
        for at in 0..unlike.len() {
            let mut it = fresh();
            it.0.request(&unlike[..at]);
            it.0.request(&unlike[at..]);
            it.s(":1/");
            assert_pinned(&it);
            assert_eq!(it.0.pin(), Some(Pin::UnknownCommand));
            assert!(it.0.unknown_command().is_some_and(|name| !name.is_empty()), "{at}");
        }
        let mut it = fresh();
        request.iter().for_each(|byte| it.0.request(&[*byte]));
        it.s(":1/").c("GET k").s(":1/");
        assert_carriable(&it);
    }
}

#[test]
fn finds_a_command_name_before_a_large_value() {
    let declared = StatelessCommands::new(["fetch"]).unwrap();
    for (name, free) in [("FETCH", true), ("STORE", false)] {
        let mut it = Dialogue(talk().0.with_stateless(declared.clone()));
        it.0.request(format!("*2\r\n$5\r\n{name}\r\n$100000\r\n").as_bytes());
        it.0.request(&[b'x'; 50_000]);
        assert!(it.0.allocated() < 10, "{name}");
        it.0.skip_body(crate::Direction::Request, 50_000);
        it.0.request(b"\r\n");
        it.s(":1/");
        assert_eq!(
            (it.0.can_be_carried(), it.0.unknown_command()),
            (free, (!free).then_some("STORE"))
        );
    }
}

#[test]
fn reports_the_pin_of_a_session() {
    let pin = |talking: &dyn for<'a> Fn(&'a mut Dialogue) -> &'a mut Dialogue| {
        let mut it = talk();
        talking(&mut it);
        assert_eq!(it.0.pin().is_none(), it.0.can_be_carried(), "{:?}", it.0.pin());
        assert!(it.0.take_pin_change(), "{:?}", it.0.pin());
        assert!(!it.0.take_pin_change());
        it.0.pin()
    };
    assert_eq!(pin(&|it| it.c("MULTI").s("+OK/")), Some(Pin::Transaction));
    assert_eq!(pin(&|it| it.c("MULTI").c("EXEC").s("+OK/*0/")), None);
    assert_eq!(pin(&|it| it.c("WATCH k").s("+OK/")), Some(Pin::Watch));
    assert_eq!(pin(&|it| it.c("BLPOP k 0")), Some(Pin::Blocking));
    assert_eq!(pin(&|it| it.c("GET k").c("BLPOP k 0").s("$-1/")), Some(Pin::Blocking));
    assert_eq!(pin(&|it| it.c("BLPOP k 0").s("*-1/")), None);
    assert_eq!(pin(&|it| it.c("CLIENT TRACKING ON").s("+OK/")), Some(Pin::Tracking));
    assert_eq!(pin(&|it| it.c("CLIENT REPLY OFF")), Some(Pin::ReplyOff));
    assert_eq!(pin(&|it| it.c("SUBSCRIBE a").s("*3/$9/subscribe/$1/a/:1/")), None);
    assert_eq!(pin(&|it| it.c("MONITOR").s("+OK/")), Some(Pin::Monitor));
    assert_eq!(pin(&|it| it.c("PSYNC ? -1")), Some(Pin::Replication));
    assert_eq!(pin(&|it| it.c("SCRIPT DEBUG YES")), Some(Pin::Debugger));
    assert_eq!(
        pin(&|it| {
            it.0.request(b"*1\r\n!");
            it
        }),
        Some(Pin::NotResp)
    );
    assert_eq!(pin(&|it| it.c("MULTI").c("SUBSCRIBE a").s("+OK/+QUEUED/")), Some(Pin::NotFollowed));
    assert_eq!(pin(&|it| it.c("SCAN 0").s(&page("7"))), Some(Pin::Cursor));
    assert_eq!(pin(&|it| it.c("WAIT 1 0").s(":1/")), Some(Pin::Wait));
    assert_eq!(pin(&|it| it.c("HIMPORT PREPARE f").s("+OK/")), Some(Pin::PreparedFields));
    assert_eq!(pin(&|it| it.c("CLIENT CAPA redirect").s("+OK/")), Some(Pin::ClientCapability));
    assert_eq!(pin(&|it| it.c("CLIENT ID").s(":1/")), Some(Pin::ClientId));
    assert_eq!(
        pin(&|it| it.c("MULTI").c("AUTH a").c("EXEC").s("+OK/+QUEUED/*1/+OK/")),
        Some(Pin::UnknownState)
    );
    let mut closed = Dialogue::new();
    closed.c("SUBSCRIBE a").s("*3/$9/subscribe/$1/a/:1/");
    assert_eq!(closed.0.pin(), Some(Pin::Subscribed));
}
