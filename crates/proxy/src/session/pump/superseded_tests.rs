//! Replies after the first evidence of a promotion, and after a stop of the process until discovery
//! has examined the master. Both directions check at the last possible moment.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use target::{ClockReading, ReplyPolicy, TargetRef, TargetWriter};

use crate::EndReason;
use crate::io::buffer;
use crate::io::stream::ByteStream;
use crate::maintenance::pending::MaintenancePush;
use crate::session::pump::{Pump, Stop};
use crate::session::upstream::TargetStream;
use crate::testing::{FakeStream, SOON, context, destination};

const SET: &[u8] = b"SET k v\r\n";
const OK: &[u8] = b"+OK\r\n";

type FakePump<'a> = Pump<&'a mut FakeStream, &'a mut FakeStream>;

fn poll<C: ByteStream, U: TargetStream>(pump: &mut Pump<C, U>) -> Poll<Stop> {
    let waker = Waker::noop();
    let mut cx = Context::from_waker(waker);
    buffer::with_scratch(|scratch| pump.poll(&mut cx, waker, scratch))
}

/// A session whose client has sent `requests`, all of them forwarded, and its target publisher.
fn with_requests(requests: &[u8], test: impl FnOnce(&mut TargetWriter, &mut FakePump<'_>)) {
    let (mut publisher, context) = context();
    let target = context.shared.service.route.usable_target().unwrap();
    let (mut client, mut upstream) = (FakeStream::sending(&[requests]), FakeStream::sending(&[]));
    let mut pump = Pump::new(&mut client, &mut upstream, &context, &target, Vec::new());
    assert_eq!(poll(&mut pump), Poll::Pending);
    assert_eq!(pump.upstream.written, requests);
    test(&mut publisher, &mut pump);
}

fn reply(pump: &mut FakePump<'_>, bytes: &[u8]) -> Poll<Stop> {
    pump.upstream.incoming.push_back(bytes.to_vec());
    poll(pump)
}

fn received(pump: &FakePump<'_>) -> String {
    String::from_utf8_lossy(&pump.client.written).into_owned()
}

#[test]
fn drops_a_reply_that_is_read_after_the_evidence() {
    with_requests(SET, |publisher, pump| {
        publisher.discard_replies();
        assert_eq!(
            poll(pump),
            Poll::Pending,
            "the session ends when a reply is dropped, and not before"
        );
        assert_eq!(reply(pump, OK), Poll::Ready(EndReason::ReplyDropped.into()));
        assert_eq!(received(pump), "");
        let stopped = pump.stop(EndReason::ReplyDropped.into());
        assert!(stopped.undelivered.is_empty() && stopped.left.is_none());
    });
}

#[test]
fn forwards_what_was_read_before_the_evidence() {
    with_requests(b"SET k v\r\nSET k v\r\n", |publisher, pump| {
        pump.client.capacity = 2;
        assert_eq!(reply(pump, OK), Poll::Pending);
        publisher.discard_replies();
        pump.client.capacity = usize::MAX;
        assert_eq!(poll(pump), Poll::Pending);
        assert_eq!(received(pump), "+OK\r\n");
        // It is not lost either if the next reply ends the session first.
        pump.client.capacity = 0;
        publisher.release();
        assert_eq!(reply(pump, b">1\r\n+push\r\n"), Poll::Pending);
        publisher.discard_replies();
        pump.client.capacity = 1;
        pump.upstream.incoming.push_back(OK.to_vec());
        // The client takes one byte at a time, and what it was sent before goes first.
        let end = (0..100).find_map(|_| {
            pump.client.capacity = 1;
            Some(poll(pump)).filter(Poll::is_ready)
        });
        assert_eq!(end, Some(Poll::Ready(EndReason::ReplyDropped.into())));
        let undelivered = pump.stop(EndReason::ReplyDropped.into()).undelivered;
        let all = [pump.client.written.as_slice(), &undelivered].concat();
        assert_eq!(String::from_utf8_lossy(&all), "+OK\r\n>1\r\n+push\r\n");
    });
}

#[test]
fn completes_a_reply_that_had_begun_and_drops_the_next() {
    with_requests(b"GET k\r\nSET k v\r\n", |publisher, pump| {
        assert_eq!(reply(pump, b"$10\r\nab"), Poll::Pending);
        publisher.discard_replies();
        assert_eq!(reply(pump, b"cd"), Poll::Pending);
        assert_eq!(reply(pump, b"efghij\r\n+OK\r\n"), Poll::Ready(EndReason::ReplyDropped.into()));
        let undelivered = pump.stop(EndReason::ReplyDropped.into()).undelivered;
        assert_eq!(
            received(pump) + &String::from_utf8_lossy(&undelivered),
            "$10\r\nabcdefghij\r\n"
        );
    });
}

#[test]
fn forwards_messages_and_keeps_the_subscriber() {
    with_requests(b"SUBSCRIBE c\r\n", |publisher, pump| {
        assert_eq!(reply(pump, b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"), Poll::Pending);
        let message = b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n".repeat(3);
        for replies in [ReplyPolicy::Drop, ReplyPolicy::Wait] {
            publisher.set_reply_policy(replies);
            pump.client.written.clear();
            assert_eq!(reply(pump, &message), Poll::Pending);
            assert_eq!(pump.client.written, message, "{replies:?}");
        }
    });
}

#[test]
fn forwards_pushes_before_a_dropped_reply() {
    with_requests(b"HELLO 3\r\n", |publisher, pump| {
        assert_eq!(reply(pump, b"%1\r\n+proto\r\n:3\r\n"), Poll::Pending);
        pump.client.written.clear();
        pump.client.incoming.push_back(SET.to_vec());
        assert_eq!(poll(pump), Poll::Pending);
        publisher.discard_replies();
        let push = b">2\r\n+invalidate\r\n_\r\n";
        assert_eq!(reply(pump, push), Poll::Pending);
        assert_eq!(pump.client.written, push);
        assert_eq!(reply(pump, &[push, OK].concat()), Poll::Ready(EndReason::ReplyDropped.into()));
        assert_eq!(pump.client.written, push.repeat(2));
    });
}

#[test]
fn drops_all_replies_of_an_opaque_session() {
    with_requests(b"MONITOR\r\n", |publisher, pump| {
        assert_eq!(reply(pump, OK), Poll::Pending);
        assert_eq!(pump.ledger.session_state(), resp::SessionState::Opaque);
        publisher.discard_replies();
        assert_eq!(reply(pump, b"+a command\r\n"), Poll::Ready(EndReason::ReplyDropped.into()));
        assert_eq!(received(pump), "+OK\r\n");
    });
}

#[test]
fn drops_a_reply_after_a_push_of_our_own() {
    with_requests(b"HELLO 3\r\n", |publisher, pump| {
        assert_eq!(reply(pump, b"%1\r\n+proto\r\n:3\r\n"), Poll::Pending);
        let handshake = b"*3\r\n$6\r\nCLIENT\r\n$19\r\nMAINT_NOTIFICATIONS\r\n$2\r\nON\r\n";
        pump.client.incoming.push_back(handshake.to_vec());
        assert_eq!(poll(pump), Poll::Pending);
        assert_eq!(reply(pump, OK), Poll::Pending);
        pump.client.incoming.push_back(SET.to_vec());
        assert_eq!(poll(pump), Poll::Pending);
        pump.client.written.clear();
        let push = MaintenancePush::failing_over(7, 10);
        pump.announce(push.clone());
        publisher.discard_replies();
        assert_eq!(reply(pump, OK), Poll::Ready(EndReason::ReplyDropped.into()));
        assert_eq!(received(pump), push.text);
    });
}

#[test]
fn lets_replies_pass_again_when_the_gate_opens() {
    for undo in [TargetWriter::release, TargetWriter::hold, |publisher: &mut TargetWriter| {
        publisher.set_reply_policy(ReplyPolicy::Pass);
    }] {
        with_requests(SET, |publisher, pump| {
            publisher.discard_replies();
            undo(publisher);
            assert_eq!(reply(pump, OK), Poll::Pending);
            assert_eq!(received(pump), "+OK\r\n");
        });
    }
}

#[test]
fn drops_a_reply_that_is_read_after_the_commit() {
    with_requests(b"GET k\r\nSET k v\r\n", |publisher, pump| {
        assert_eq!(reply(pump, b"$3\r\na"), Poll::Pending);
        publisher.commit(destination("127.0.0.1:2".parse().unwrap()));
        // The end is the same with or without something to discard, and the reply under way is
        // complete.
        assert_eq!(reply(pump, b"bc\r\n+OK\r\n"), Poll::Ready(EndReason::Fenced.into()));
        let stopped = pump.stop(EndReason::Fenced.into());
        assert_eq!(
            received(pump) + &String::from_utf8_lossy(&stopped.undelivered),
            "$3\r\nabc\r\n"
        );
        assert!(stopped.left.is_none(), "carried with a request in flight");
    });
}

#[test]
fn withholds_replies_until_the_master_was_examined() {
    with_requests(b"SET k v\r\nSET k v\r\n", |publisher, pump| {
        publisher.set_reply_policy(ReplyPolicy::Wait);
        assert_eq!(reply(pump, OK), Poll::Pending);
        // Nothing more is read meanwhile: no more than one read is ever kept.
        assert_eq!(reply(pump, OK), Poll::Pending);
        assert_eq!((received(pump).as_str(), pump.upstream.incoming.len()), ("", 1));
        publisher.release();
        for _ in 0..4 {
            assert_eq!(poll(pump), Poll::Pending);
        }
        assert_eq!(received(pump), "+OK\r\n+OK\r\n");
        assert!(pump.interleaved.is_none(), "nothing is left over");
        assert_eq!(pump.ledger.owed(), 0);
    });
}

#[test]
fn drops_a_withheld_reply_when_evidence_comes() {
    with_requests(SET, |publisher, pump| {
        publisher.set_reply_policy(ReplyPolicy::Wait);
        assert_eq!(reply(pump, OK), Poll::Pending);
        publisher.discard_replies();
        assert_eq!(poll(pump), Poll::Ready(EndReason::ReplyDropped.into()));
        assert_eq!(received(pump), "");
    });
    with_requests(SET, |publisher, pump| {
        publisher.set_reply_policy(ReplyPolicy::Wait);
        assert_eq!(reply(pump, OK), Poll::Pending);
        publisher.commit(destination("127.0.0.1:2".parse().unwrap()));
        assert_eq!(poll(pump), Poll::Ready(EndReason::Fenced.into()));
        assert!(pump.stop(EndReason::Fenced.into()).undelivered.is_empty());
        assert_eq!(received(pump), "");
    });
    // For any other end reason, withheld bytes are not delivered.
    with_requests(SET, |publisher, pump| {
        publisher.set_reply_policy(ReplyPolicy::Wait);
        assert_eq!(reply(pump, OK), Poll::Pending);
        assert!(pump.stop(EndReason::IdleTimeout.into()).undelivered.is_empty());
    });
}

#[test]
fn withholds_replies_after_the_lease_has_expired() {
    with_requests(SET, |publisher, pump| {
        publisher.renew(ClockReading::now(), Duration::ZERO);
        let begin = Instant::now();
        while !pump.target.is_closed() {
            assert!(begin.elapsed() < SOON, "the lease never expired");
        }
        // The coarse clocks tick together, and may be read in between.
        while pump.target.reply_policy() == ReplyPolicy::Pass {
            assert!(begin.elapsed() < SOON, "the lease never expired for replies");
        }
        assert_eq!(reply(pump, OK), Poll::Pending);
        assert_eq!(received(pump), "");
        publisher.renew(ClockReading::now(), Duration::from_secs(60));
        assert_eq!(poll(pump), Poll::Pending);
        assert_eq!(received(pump), "+OK\r\n");
    });
}

/// A stream that changes the target during its next read.
struct Meddling {
    stream: FakeStream,
    publisher: Rc<RefCell<TargetWriter>>,
    action: fn(&mut TargetWriter),
}

impl TargetStream for Meddling {}

impl ByteStream for Meddling {
    fn update_readiness(&mut self, cx: &mut Context<'_>) {
        self.stream.update_readiness(cx);
    }

    fn is_readable(&self) -> bool {
        self.stream.is_readable()
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let read = self.stream.poll_read(cx, buffer);
        (self.action)(&mut self.publisher.borrow_mut());
        read
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.stream.poll_write(cx, bytes)
    }

    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_shutdown(cx)
    }

    fn peer_closed(&self) -> bool {
        self.stream.peer_closed()
    }

    fn has_unread(&self) -> bool {
        self.stream.has_unread()
    }
}

fn change_master(publisher: &mut TargetWriter) {
    publisher.commit(destination("127.0.0.1:2".parse().unwrap()));
}

/// A target publisher, a worker context, and a target that may be used.
fn meddling()
-> (Rc<RefCell<TargetWriter>>, std::sync::Arc<crate::context::WorkerContext>, TargetRef) {
    let (publisher, context) = context();
    let target = context.shared.service.route.usable_target().unwrap();
    (Rc::new(RefCell::new(publisher)), context, target)
}

#[test]
fn sends_nothing_read_during_a_master_change() {
    for action in
        [change_master, TargetWriter::hold, TargetWriter::clear, TargetWriter::discard_replies]
    {
        let (publisher, context, target) = meddling();
        let mut client = Meddling { stream: FakeStream::sending(&[SET]), publisher, action };
        let mut upstream = FakeStream::sending(&[]);
        let mut pump = Pump::new(&mut client, &mut upstream, &context, &target, Vec::new());
        let _pending_or_fenced = poll(&mut pump);
        assert!(pump.client.stream.incoming.is_empty(), "it was read");
        let unsent = pump.requests.take_kept();
        assert_eq!((pump.upstream.written.len(), unsent.as_slice()), (0, SET));
    }
}

#[test]
fn forwards_no_reply_that_was_read_while_the_evidence_came() {
    for (action, reason) in [
        (TargetWriter::discard_replies as fn(&mut TargetWriter), EndReason::ReplyDropped),
        (change_master, EndReason::Fenced),
    ] {
        let (publisher, context, target) = meddling();
        let mut client = FakeStream::sending(&[SET]);
        let mut upstream = Meddling { stream: FakeStream::sending(&[]), publisher, action };
        let mut pump = Pump::new(&mut client, &mut upstream, &context, &target, Vec::new());
        assert_eq!(poll(&mut pump), Poll::Pending);
        pump.upstream.stream.incoming.push_back(OK.to_vec());
        assert_eq!(poll(&mut pump), Poll::Ready(reason.into()));
        assert!(pump.stop(reason.into()).undelivered.is_empty());
        assert!(pump.client.written.is_empty(), "{reason:?}");
    }
}
