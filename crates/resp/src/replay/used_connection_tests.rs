//! Tests of the replay on a connection that is not a new one, and of what its `PING` says about
//! clients without credentials.

use crate::ledger::model::Dialogue;
use crate::{Hint, Ledger, Limits, Replay, ReplayError};

fn talk() -> Dialogue {
    Dialogue(Ledger::new(&Limits { memory: 1024, ..Limits::default() }))
}

#[test]
fn resets_a_used_connection_before_the_rest() {
    let mut it = talk();
    it.c("AUTH me pw").c("HELLO 3").c("SELECT 3").s("+OK/%1/+proto/:3/+OK/");
    let replay = || Replay::of_shared(&it.0, true).unwrap().on_used_connection();
    let requests = String::from_utf8(replay().requests().to_vec()).unwrap();
    assert!(requests.starts_with("*1\r\n$5\r\nRESET\r\n*3\r\n$4\r\nAUTH\r\n"), "{requests}");
    let state = b"+OK\r\n%1\r\n+proto\r\n:3\r\n+OK\r\n+PONG\r\n";
    let mut accepted = replay();
    let answers = [&b"+RESET\r\n"[..], state].concat();
    assert_eq!(accepted.answer(&answers), Ok(answers.len()));
    assert!(accepted.has_shared_state_of(&it.0) && !accepted.is_unauthenticated());
    let mut refused = replay();
    let answers = [&b"-NOPERM no\r\n"[..], state].concat();
    assert_eq!(refused.answer(&answers), Err(ReplayError::Refused));
}

#[test]
fn notices_that_nobody_has_authenticated() {
    let refusal = b"-NOAUTH Authentication required.\r\n";
    let mut new = Replay::of_new();
    assert_eq!(new.answer(refusal), Ok(refusal.len()));
    assert!(new.is_answered() && new.is_unauthenticated());
    for (answers, unauthenticated) in [
        (&b"+RESET\r\n-NOAUTH x\r\n"[..], true),
        (b"+RESET\r\n-NOPERM x\r\n", false),
        (b"+RESET\r\n+PONG\r\n", false),
    ] {
        let mut used = Replay::of_new().on_used_connection();
        assert_eq!(used.answer(answers), Ok(answers.len()));
        assert_eq!((used.is_answered(), used.is_unauthenticated()), (true, unauthenticated));
    }
    let mut loading = Replay::of_new();
    assert_eq!(loading.answer(b"-LOADING x\r\n"), Err(ReplayError::NotReady(Hint::Loading)));
}

/// A carried session has to be served as before, and not read `-NOAUTH` from then on.
#[test]
fn refuses_to_carry_an_admitted_client_into_noauth() {
    const NOAUTH: &str = "-NOAUTH Authentication required./";
    let carried = |requests: &[&str], replies: &str| {
        let (mut it, mut again) = (talk(), talk());
        for request in requests {
            it.c(request);
        }
        it.s(replies);
        it.0.take_counts();
        let rested = it.0.rest().expect("a session that may rest").wake();
        again.0 = rested;
        let mut replay = Replay::of(&again.0).unwrap();
        let owed = replay.requests().split(|byte| *byte == b'*').count() - 1;
        let answers = NOAUTH.repeat(owed).replace('/', "\r\n");
        let answered = replay.answer(answers.as_bytes()).map(|_| ());
        assert_eq!(answered.is_err(), replay.refusal().starts_with(b"NOAUTH"), "{requests:?}");
        answered
    };
    for (requests, replies) in [
        (&["GET k"][..], "$-1/"),
        (&["GET k", "GET k"], "$-1/$-1/"),
        (&["GET"], "-WRONGTYPE x/"),
        (&["GET k"], "-NOPERM x/"),
        (&["HELLO 2"], "*2/+proto/:2/"),
        (&["SELECT 2", "GET k"], "+OK/-ERR unknown command/"),
        (&["MULTI", "GET k", "EXEC"], "+OK/+QUEUED/*1/$-1/"),
        (&["AUTH me pw", "RESET", "GET k"], "+OK/+RESET/$-1/"),
        (&["GET k", "GET k"], "-NOAUTH x/$-1/"),
    ] {
        assert_eq!(carried(requests, replies), Err(ReplayError::Refused), "{requests:?}");
    }
    // Nothing shows that the server admits the client: it may authenticate on the next one, too.
    for (requests, replies) in [
        (&[][..], ""),
        (&["GET k"], NOAUTH),
        (&["GET k", "GET k"], "$-1/-NOAUTH x/"),
        (&["GET k", "AUTH me no"], "-NOAUTH x/-WRONGPASS x/"),
        (&["HELLO 9"], "-NOPROTO x/"),
        (&["GET", "GET k"], "-ERR wrong number of arguments/-ERR unknown command/"),
        (&["RESET"], "+RESET/"),
        (&["GET k", "RESET"], "$-1/+RESET/"),
    ] {
        assert_eq!(carried(requests, replies), Ok(()), "{requests:?}");
    }
    // The next server that admits the client is the one that counts.
    let before = talk();
    let mut replay = Replay::of(&before.0).unwrap();
    assert!(replay.answer(b"+PONG\r\n").is_ok());
    let (after, _) = replay.finish(&before.0).unwrap();
    let refused = Replay::of(&after).unwrap().answer(b"-NOAUTH no\r\n");
    assert_eq!(refused, Err(ReplayError::Refused));
}
