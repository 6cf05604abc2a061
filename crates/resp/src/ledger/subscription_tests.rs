//! Tests of the rules that distinguish confirmations, messages and replies in both protocol
//! versions.

use crate::ledger::model::Dialogue;
use crate::{FrameCounts, SessionState};

#[test]
fn expects_one_confirmation_per_channel() {
    let mut talk = Dialogue::new();
    talk.c("SUBSCRIBE a b").is(SessionState::Busy, 1);
    talk.s("*3/$9/subscribe/$1/a/:1/")
        .is(SessionState::Busy, 1)
        .s("*3/$9/subscribe/$1/b/:2/")
        .is(SessionState::Subscribed, 0);
    talk.c("PSUBSCRIBE p*").s("*3/$10/psubscribe/$2/p*/:3/").is(SessionState::Subscribed, 0);
    // Messages are not replies; the reply to PING is an array in this state.
    talk.c("PING")
        .s("*3/$7/message/$1/a/$1/x/*4/$8/pmessage/$2/p*/$1/p/$1/x/")
        .is(SessionState::Busy, 1);
    talk.s("*2/$4/pong/$0//").is(SessionState::Subscribed, 0);
    talk.c("UNSUBSCRIBE").s("*3/$11/unsubscribe/$1/a/:2/").is(SessionState::Busy, 1);
    talk.s("*3/$11/unsubscribe/$1/b/:1/").is(SessionState::Subscribed, 0);
    talk.c("UNSUBSCRIBE").s("*3/$11/unsubscribe/$-1/:1/").is(SessionState::Subscribed, 0);
    talk.c("PUNSUBSCRIBE p* q*").s("*3/$12/punsubscribe/$2/p*/:0/").is(SessionState::Busy, 1);
    talk.s("*3/$12/punsubscribe/$2/q*/:0/").is(SessionState::Quiet, 0);
    assert_eq!(talk.0.take_counts(), FrameCounts { requests: 6, replies: 6, pushes: 5 });
    // Without subscriptions, an array that looks like a message is a reply.
    talk.c("LRANGE l 0 -1").s("*3/$7/message/$1/a/$1/x/").is(SessionState::Quiet, 0);
    talk.c("LRANGE l 0 -1").s("*3/$9/subscribe/$1/a/:1/").is(SessionState::Quiet, 0);
    talk.c("LRANGE l 0 -1")
        .c("UNWATCH")
        .s("*3/$7/message/$1/a/$1/x/")
        .is(SessionState::Busy, 1)
        .s("+OK/")
        .is(SessionState::Quiet, 0);
}

#[test]
fn counts_shard_channels_separately_and_their_removal() {
    let mut talk = Dialogue::new();
    talk.c("SUBSCRIBE a")
        .s("*3/$9/subscribe/$1/a/:1/")
        .c("SSUBSCRIBE s t")
        .s("*3/$10/ssubscribe/$1/s/:1/");
    talk.s("*3/$10/ssubscribe/$1/t/:2/*3/$8/smessage/$1/s/$1/x/").is(SessionState::Subscribed, 0);
    talk.c("PING")
        .s("*3/$12/sunsubscribe/$1/s/:1/")
        .is(SessionState::Busy, 1)
        .s("*2/$4/pong/$0//")
        .is(SessionState::Subscribed, 0);
    talk.c("UNSUBSCRIBE a").s("*3/$11/unsubscribe/$1/a/:0/").is(SessionState::Subscribed, 0);
    talk.c("SUNSUBSCRIBE").s("*3/$12/sunsubscribe/$1/t/:0/").is(SessionState::Quiet, 0);
}

#[test]
fn takes_pushes_for_confirmations_in_resp3() {
    let mut talk = Dialogue::new();
    talk.c("HELLO 3").s("%1/+proto/:3/").is(SessionState::Quiet, 0);
    talk.c("SUBSCRIBE a b")
        .c("GET k")
        .s(">3/$9/subscribe/$1/a/:1/>3/+invalidate/_/:1/")
        .is(SessionState::Busy, 2);
    talk.s(">3/$9/subscribe/$1/b/:2/")
        .is(SessionState::Busy, 1)
        .s("*3/$7/message/$1/a/$1/x/")
        .is(SessionState::Subscribed, 0);
    talk.s(">3/$7/message/$1/a/$1/x/").is(SessionState::Subscribed, 0);
    talk.c("UNSUBSCRIBE")
        .c("PING")
        .s(">3/$11/unsubscribe/$1/a/:1/>3/$11/unsubscribe/$1/b/:0/")
        .is(SessionState::Busy, 1);
    talk.s("+PONG/")
        .is(SessionState::Quiet, 0)
        .s(">3/$12/sunsubscribe/$1/s/:0/")
        .is(SessionState::Quiet, 0);
    talk.s(">3/$9/subscribe/$1/a/:1/").is(SessionState::Opaque, 0);
}

#[test]
fn changes_protocol_when_hello_succeeds() {
    let mut talk = Dialogue::new();
    talk.c("SUBSCRIBE a").s("*3/$9/subscribe/$1/a/:1/");
    talk.c("HELLO 3")
        .s("-NOAUTH/")
        .c("PING")
        .s("*3/$7/message/$1/a/$1/x/")
        .is(SessionState::Busy, 1)
        .s("*2/+pong/$0//");
    talk.c("HELLO 3")
        .s("*3/$7/message/$1/a/$1/x/")
        .is(SessionState::Busy, 1)
        .s("%1/+proto/:3/")
        .is(SessionState::Subscribed, 0);
    talk.c("LRANGE l 0 -1").s("*3/$7/message/$1/a/$1/x/").is(SessionState::Subscribed, 0);
    talk.c("HELLO 2")
        .s("*2/+proto/:2/")
        .c("PING")
        .s("*3/$7/message/$1/a/$1/x/")
        .is(SessionState::Busy, 1);
}
