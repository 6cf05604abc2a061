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
