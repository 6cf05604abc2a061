//! Tests of the maintenance handshake and of other features of a connection.

use crate::ledger::model::Dialogue;
use crate::{Class, Direction, Ledger, Limits, MaintenanceHandshake, Replay, SessionState};

const ASK: &str = "CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type internal-ip";
const HERE: &str = "client maint_notifications on moving-endpoint-type none";
const OFF: &str = "CLIENT MAINT_NOTIFICATIONS OFF";
const UNKNOWN: &str = "-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP./";

fn resp3() -> Dialogue {
    let mut talk = Dialogue(Ledger::new(&Limits { memory: 1024, ..Limits::default() }));
    talk.c("HELLO 3").s("%1/+proto/:3/");
    talk
}

#[test]
fn accepts_a_handshake_that_the_server_refused() {
    let mut it = resp3();
    assert!(!it.0.awaits_handshake_reply() && !it.0.next_reply_is_handshake());
    it.c("GET k").c(ASK).c("GET k");
    assert!(it.0.awaits_handshake_reply() && !it.0.next_reply_is_handshake());
    it.s("+v/");
    assert!(it.0.next_reply_is_handshake());
    it.s("-ERR unknown subc");
    assert!(!it.0.next_reply_is_handshake(), "it is incomplete");
    it.s("ommand 'MAINT_NOTIFICATIONS'/");
    assert_eq!(
        (it.0.awaits_handshake_reply(), it.0.maintenance_handshake()),
        (false, MaintenanceHandshake::Off)
    );
    assert!(it.0.accept_handshake());
    assert_eq!(it.0.maintenance_handshake(), MaintenanceHandshake::On);
    it.s("+v/").is(SessionState::Quiet, 0).c(HERE).s(UNKNOWN);
    assert_eq!(
        (it.0.accept_handshake(), it.0.maintenance_handshake()),
        (true, MaintenanceHandshake::WithoutAddress)
    );
    it.c(OFF).s(UNKNOWN);
    assert_eq!(
        (it.0.accept_handshake(), it.0.maintenance_handshake()),
        (true, MaintenanceHandshake::Off)
    );
    it.is(SessionState::Quiet, 0);
}

/// What was sent before the request that makes the session opaque is answered as usual.
#[test]
fn accepts_handshakes_before_the_session_turns_opaque() {
    for rest in ["REPLCONF ACK 1", "SCRIPT DEBUG YES", "*1/$-5/"] {
        let mut it = resp3();
        it.c("GET k").c(HERE);
        if rest.starts_with('*') {
            it.0.request(b"*1\r\n$-5\r\n");
        } else {
            it.c(rest);
        }
        it.s("+v/-ERR unknown subc");
        assert_eq!(it.0.session_state(), SessionState::Opaque, "{rest}");
        assert!(it.0.awaits_handshake_reply() && !it.0.at_boundary(Direction::Reply), "{rest}");
        it.s("ommand 'MAINT_NOTIFICATIONS'/");
        assert!(it.0.at_boundary(Direction::Reply) && it.0.accept_handshake(), "{rest}");
        it.s("+v/").is(SessionState::Opaque, 0);
        assert!(!it.0.at_boundary(Direction::Reply) && it.0.allocated() == 0, "{rest}");
    }
}

#[test]
fn accepts_no_handshake_in_resp2_or_a_transaction() {
    let mut it = Dialogue::new();
    assert!(!it.c(HERE).s(UNKNOWN).0.accept_handshake());
    let mut it = resp3();
    it.c("MULTI").c(HERE).s("+OK/").s(UNKNOWN);
    assert!(!it.0.accept_handshake());
    let mut it = resp3();
    assert!(!it.c("CLIENT SETNAME a b").s("-ERR syntax/").0.accept_handshake());
}

#[test]
fn carries_the_agreement_until_reset_or_resp2() {
    let mut it = resp3();
    it.c(HERE).s(UNKNOWN);
    assert!(it.0.accept_handshake() && it.0.can_be_carried());
    let mut replay = Replay::of(&it.0).unwrap();
    assert_eq!(replay.requests(), b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n*1\r\n$4\r\nPING\r\n");
    replay.answer(b"%1\r\n+proto\r\n:3\r\n+PONG\r\n").unwrap();
    let mut next = Dialogue(replay.finish(&it.0).unwrap().0);
    assert_eq!(next.0.maintenance_handshake(), MaintenanceHandshake::WithoutAddress);
    next.c("HELLO 2").s("*2/+proto/:2/");
    assert_eq!(next.0.maintenance_handshake(), MaintenanceHandshake::Off);
    next.c("HELLO 3").s("%1/+proto/:3/");
    assert_eq!(next.0.maintenance_handshake(), MaintenanceHandshake::WithoutAddress);
    next.0.set_failover_announced(true);
    next.c("RESET").s("+RESET/").c("HELLO 3").s("%1/+proto/:3/");
    // After a new handshake nothing has been announced yet: the next failover must not count as
    // announced.
    assert_eq!(
        (next.0.maintenance_handshake(), next.0.failover_announced()),
        (MaintenanceHandshake::Off, false)
    );
}

#[test]
fn pins_sessions_with_permanent_features() {
    for request in [HERE, ASK, OFF, "CLIENT CAPA redirect", "client import-source on"] {
        let mut it = resp3();
        it.c(request).s("-ERR/").is(SessionState::Quiet, 0);
        it.c(request).s("+OK/").is(SessionState::Pinned, 0);
        it.c("RESET").s("+RESET/").is(SessionState::Pinned, 0);
        assert!(!it.0.can_be_carried(), "{request}");
    }
}

#[test]
fn pins_sessions_with_prepared_fields_until_discarded() {
    let mut it = resp3();
    it.c("HIMPORT PREPARE u name age").s("-ERR/").is(SessionState::Quiet, 0);
    it.c("HIMPORT PREPARE u name age")
        .s("+OK/")
        .c("HIMPORT SET k u a 1")
        .s("+OK/")
        .is(SessionState::Pinned, 0);
    it.c("HIMPORT DISCARD u")
        .s(":1/")
        .is(SessionState::Pinned, 0)
        .c("HIMPORT DISCARDALL")
        .s(":0/")
        .is(SessionState::Quiet, 0);
    it.c("HIMPORT PREPARE u name")
        .s("+OK/")
        .is(SessionState::Pinned, 0)
        .c("RESET")
        .s("+RESET/")
        .is(SessionState::Quiet, 0);
}

#[test]
fn turns_opaque_when_a_transaction_queues_a_feature() {
    for request in [HERE, "CLIENT CAPA redirect", "HIMPORT PREPARE u f"] {
        let mut it = resp3();
        it.c("MULTI").c(request).s("+OK/+QUEUED/").is(SessionState::Opaque, 0);
        assert_eq!(
            (it.0.awaits_handshake_reply(), it.0.maintenance_handshake()),
            (false, MaintenanceHandshake::Off)
        );
    }
}

#[test]
fn classifies_names_that_arrive_in_pieces() {
    let class = |pieces: usize, words: &str| {
        let mut whole = String::new();
        let words: Vec<&str> = words.split(' ').collect();
        whole += &format!("*{}\r\n", words.len());
        words.iter().for_each(|word| whole += &format!("${}\r\n{word}\r\n", word.len()));
        let mut ledger = Ledger::new(&Limits::default());
        whole.as_bytes().chunks(pieces).for_each(|piece| ledger.request(piece));
        assert!(ledger.at_boundary(Direction::Request));
        ledger.last_request()
    };
    let all = [
        (ASK, Class::MaintenanceOn),
        (HERE, Class::MaintenanceOnWithoutAddress),
        (OFF, Class::MaintenanceOff),
        ("CLIENT IMPORT-SOURCE ON", Class::ClientCapability),
        ("CLIENT SOMETHING-ELSE-NEW x", Class::Unknown),
        ("CLUSTER SYNCSLOTS-NOT", Class::Ordinary),
    ];
    for (words, expected) in all {
        for pieces in 1..100 {
            assert_eq!(class(pieces, words), Some(expected), "{words} in pieces of {pieces}");
        }
    }
}
