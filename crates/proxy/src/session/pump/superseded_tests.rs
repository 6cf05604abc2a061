//! What becomes of replies after the first evidence of a promotion, and while nobody has looked
//! since a stop; and that both directions ask at the last moment at which it matters.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use target::{Moment, Replies, TargetRef, TargetWriter};

use crate::EndReason;
use crate::io::end::End;
use crate::io::scratch;
use crate::maintenance::notice::Notice;
use crate::session::pump::Pump;
use crate::testing::{Puppet, SOON, destination, seat};

const SET: &[u8] = b"SET k v\r\n";
const OK: &[u8] = b"+OK\r\n";

type Puppets<'a> = Pump<'a, Puppet, Puppet>;

fn poll<C: End, U: End>(pump: &mut Pump<'_, C, U>) -> Poll<EndReason> {
    let waker = Waker::noop();
    let mut cx = Context::from_waker(waker);
    scratch::with(|scratch| pump.poll(&mut cx, waker, scratch))
}

/// A session whose client has sent `requests`, all of them forwarded, and the points it is on.
fn with_requests(requests: &[u8], test: impl FnOnce(&mut TargetWriter, &mut Puppets<'_>)) {
    let (mut points, seat) = seat();
    let target = seat.shared.service.route.open_target().unwrap();
    let (mut client, mut upstream) = (Puppet::saying(&[requests]), Puppet::saying(&[]));
    let mut pump = Pump::new((&mut client, &mut upstream), &seat, &target, Vec::new());
    assert_eq!(poll(&mut pump), Poll::Pending);
    assert_eq!(pump.upstream.heard, requests);
    test(&mut points, &mut pump);
}

fn says(pump: &mut Puppets<'_>, bytes: &[u8]) -> Poll<EndReason> {
    pump.upstream.says.push_back(bytes.to_vec());
    poll(pump)
}

fn heard(pump: &Puppets<'_>) -> String {
    String::from_utf8_lossy(&pump.client.heard).into_owned()
}

#[test]
fn drops_a_reply_that_is_read_after_the_evidence() {
    with_requests(SET, |points, pump| {
        points.drop_replies();
        assert_eq!(
            poll(pump),
            Poll::Pending,
            "a session ends when something is dropped, and not before"
        );
        assert_eq!(says(pump, OK), Poll::Ready(EndReason::ReplyDropped));
        assert_eq!(heard(pump), "");
        let stopped = pump.stop(EndReason::ReplyDropped);
        assert!(stopped.undelivered.is_empty() && stopped.after.is_none());
    });
}

#[test]
fn forwards_what_was_read_before_the_evidence() {
    with_requests(b"SET k v\r\nSET k v\r\n", |points, pump| {
        pump.client.takes = 2;
        assert_eq!(says(pump, OK), Poll::Pending);
        points.drop_replies();
        pump.client.takes = usize::MAX;
        assert_eq!(poll(pump), Poll::Pending);
        assert_eq!(heard(pump), "+OK\r\n");
        // Nor is it lost where the next reply ends the session first.
        pump.client.takes = 0;
        points.release();
        assert_eq!(says(pump, b">1\r\n+push\r\n"), Poll::Pending);
        points.drop_replies();
        pump.client.takes = 1;
        pump.upstream.says.push_back(OK.to_vec());
        // The client takes a byte at a time, and what it was sent before goes first.
        let end = (0..100).find_map(|_| {
            pump.client.takes = 1;
            Some(poll(pump)).filter(Poll::is_ready)
        });
        assert_eq!(end, Some(Poll::Ready(EndReason::ReplyDropped)));
        let undelivered = pump.stop(EndReason::ReplyDropped).undelivered;
        let all = [pump.client.heard.as_slice(), &undelivered].concat();
        assert_eq!(String::from_utf8_lossy(&all), "+OK\r\n>1\r\n+push\r\n");
    });
}

#[test]
fn completes_a_reply_that_had_begun_and_drops_the_next() {
    with_requests(b"GET k\r\nSET k v\r\n", |points, pump| {
        assert_eq!(says(pump, b"$10\r\nab"), Poll::Pending);
        points.drop_replies();
        assert_eq!(says(pump, b"cd"), Poll::Pending);
        assert_eq!(says(pump, b"efghij\r\n+OK\r\n"), Poll::Ready(EndReason::ReplyDropped));
        let undelivered = pump.stop(EndReason::ReplyDropped).undelivered;
        assert_eq!(heard(pump) + &String::from_utf8_lossy(&undelivered), "$10\r\nabcdefghij\r\n");
    });
}

#[test]
fn passes_messages_on_and_keeps_the_subscriber() {
    with_requests(b"SUBSCRIBE c\r\n", |points, pump| {
        assert_eq!(says(pump, b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"), Poll::Pending);
        let message = b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n".repeat(3);
        for replies in [Replies::Drop, Replies::Wait] {
            points.set_replies(replies);
            pump.client.heard.clear();
            assert_eq!(says(pump, &message), Poll::Pending);
            assert_eq!(pump.client.heard, message, "{replies:?}");
        }
    });
}

#[test]
fn passes_pushes_on_before_a_reply_that_is_dropped() {
    with_requests(b"HELLO 3\r\n", |points, pump| {
        assert_eq!(says(pump, b"%1\r\n+proto\r\n:3\r\n"), Poll::Pending);
        pump.client.heard.clear();
        pump.client.says.push_back(SET.to_vec());
        assert_eq!(poll(pump), Poll::Pending);
        points.drop_replies();
        let push = b">2\r\n+invalidate\r\n_\r\n";
        assert_eq!(says(pump, push), Poll::Pending);
        assert_eq!(pump.client.heard, push);
        assert_eq!(says(pump, &[push, OK].concat()), Poll::Ready(EndReason::ReplyDropped));
        assert_eq!(pump.client.heard, push.repeat(2));
    });
}

#[test]
fn drops_whatever_an_opaque_session_is_sent() {
    with_requests(b"MONITOR\r\n", |points, pump| {
        assert_eq!(says(pump, OK), Poll::Pending);
        assert_eq!(pump.ledger.session_state(), resp::SessionState::Opaque);
        points.drop_replies();
        assert_eq!(says(pump, b"+a command\r\n"), Poll::Ready(EndReason::ReplyDropped));
        assert_eq!(heard(pump), "+OK\r\n");
    });
}

#[test]
fn drops_a_reply_that_our_own_words_stand_before() {
    with_requests(b"HELLO 3\r\n", |points, pump| {
        assert_eq!(says(pump, b"%1\r\n+proto\r\n:3\r\n"), Poll::Pending);
        let handshake = b"*3\r\n$6\r\nCLIENT\r\n$19\r\nMAINT_NOTIFICATIONS\r\n$2\r\nON\r\n";
        pump.client.says.push_back(handshake.to_vec());
        assert_eq!(poll(pump), Poll::Pending);
        assert_eq!(says(pump, OK), Poll::Pending);
        pump.client.says.push_back(SET.to_vec());
        assert_eq!(poll(pump), Poll::Pending);
        pump.client.heard.clear();
        let word = Notice::FailingOver { number: 7, seconds: 10 };
        pump.announce(word.clone());
        points.drop_replies();
        assert_eq!(says(pump, OK), Poll::Ready(EndReason::ReplyDropped));
        assert_eq!(heard(pump), word.encode());
    });
}

#[test]
fn lets_replies_pass_again_when_the_gate_opens() {
    for undo in [TargetWriter::release, TargetWriter::hold, |points: &mut TargetWriter| {
        points.set_replies(Replies::Pass)
    }] {
        with_requests(SET, |points, pump| {
            points.drop_replies();
            undo(points);
            assert_eq!(says(pump, OK), Poll::Pending);
            assert_eq!(heard(pump), "+OK\r\n");
        });
    }
}

#[test]
fn drops_a_reply_that_is_read_after_the_commit() {
    with_requests(b"GET k\r\nSET k v\r\n", |points, pump| {
        assert_eq!(says(pump, b"$3\r\na"), Poll::Pending);
        points.commit(destination("127.0.0.1:2".parse().unwrap()));
        // The end is the same with or without something to drop, and the reply that had begun is
        // complete.
        assert_eq!(says(pump, b"bc\r\n+OK\r\n"), Poll::Ready(EndReason::Fenced));
        let stopped = pump.stop(EndReason::Fenced);
        assert_eq!(heard(pump) + &String::from_utf8_lossy(&stopped.undelivered), "$3\r\nabc\r\n");
        assert!(stopped.after.is_none(), "carried over with a request in flight");
    });
}

#[test]
fn waits_with_a_reply_until_somebody_has_looked() {
    with_requests(b"SET k v\r\nSET k v\r\n", |points, pump| {
        points.set_replies(Replies::Wait);
        assert_eq!(says(pump, OK), Poll::Pending);
        // Nothing more is read meanwhile: no more than one read is ever kept.
        assert_eq!(says(pump, OK), Poll::Pending);
        assert_eq!((heard(pump).as_str(), pump.upstream.says.len()), ("", 1));
        points.release();
        for _ in 0..4 {
            assert_eq!(poll(pump), Poll::Pending);
        }
        assert_eq!(heard(pump), "+OK\r\n+OK\r\n");
        assert!(pump.aside.is_none(), "nothing is left over of the wait");
        assert_eq!(pump.ledger.owed(), 0);
    });
}

#[test]
fn drops_a_reply_that_waited_when_evidence_comes() {
    with_requests(SET, |points, pump| {
        points.set_replies(Replies::Wait);
        assert_eq!(says(pump, OK), Poll::Pending);
        points.drop_replies();
        assert_eq!(poll(pump), Poll::Ready(EndReason::ReplyDropped));
        assert_eq!(heard(pump), "");
    });
    with_requests(SET, |points, pump| {
        points.set_replies(Replies::Wait);
        assert_eq!(says(pump, OK), Poll::Pending);
        points.commit(destination("127.0.0.1:2".parse().unwrap()));
        assert_eq!(poll(pump), Poll::Ready(EndReason::Fenced));
        assert!(pump.stop(EndReason::Fenced).undelivered.is_empty());
        assert_eq!(heard(pump), "");
    });
    // Whatever else ends it: what waits is not delivered.
    with_requests(SET, |points, pump| {
        points.set_replies(Replies::Wait);
        assert_eq!(says(pump, OK), Poll::Pending);
        assert!(pump.stop(EndReason::IdleTimeout).undelivered.is_empty());
    });
}

#[test]
fn waits_with_a_reply_after_the_writers_word_has_run_out() {
    with_requests(SET, |points, pump| {
        points.renew(Moment::now(), Duration::ZERO);
        let begin = Instant::now();
        while !pump.target.is_shut() {
            assert!(begin.elapsed() < SOON, "the word never ran out");
        }
        // The coarse clocks tick together, and may be asked in between.
        while pump.target.replies() == Replies::Pass {
            assert!(begin.elapsed() < SOON, "the word never ran out for replies");
        }
        assert_eq!(says(pump, OK), Poll::Pending);
        assert_eq!(heard(pump), "");
        points.renew(Moment::now(), Duration::from_secs(60));
        assert_eq!(poll(pump), Poll::Pending);
        assert_eq!(heard(pump), "+OK\r\n");
    });
}

/// An end during whose next read something happens to the points.
struct Surprise {
    puppet: Puppet,
    points: Rc<RefCell<TargetWriter>>,
    happens: fn(&mut TargetWriter),
}

impl End for Surprise {
    fn look(&mut self, cx: &mut Context<'_>) {
        self.puppet.look(cx);
    }

    fn is_readable(&self) -> bool {
        self.puppet.is_readable()
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let read = self.puppet.poll_read(cx, buffer);
        (self.happens)(&mut self.points.borrow_mut());
        read
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.puppet.poll_write(cx, bytes)
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.puppet.poll_end(cx)
    }

    fn has_gone(&self) -> bool {
        self.puppet.has_gone()
    }

    fn has_unread(&self) -> bool {
        self.puppet.has_unread()
    }
}

fn move_on(points: &mut TargetWriter) {
    points.commit(destination("127.0.0.1:2".parse().unwrap()));
}

/// A seat, its points, and a target that may be used.
fn surprised() -> (Rc<RefCell<TargetWriter>>, crate::runtime::worker::WorkerContext, TargetRef) {
    let (points, seat) = seat();
    let target = seat.shared.service.route.open_target().unwrap();
    (Rc::new(RefCell::new(points)), seat, target)
}

#[test]
fn sends_nothing_that_was_read_while_the_points_moved() {
    for happens in [move_on, TargetWriter::hold, TargetWriter::clear, TargetWriter::drop_replies] {
        let (points, seat, target) = surprised();
        let mut client = Surprise { puppet: Puppet::saying(&[SET]), points, happens };
        let mut upstream = Puppet::saying(&[]);
        let mut pump = Pump::new((&mut client, &mut upstream), &seat, &target, Vec::new());
        let _pending_or_fenced = poll(&mut pump);
        assert!(pump.client.puppet.says.is_empty(), "it was read");
        let unsent = pump.requests.take_kept();
        assert_eq!((pump.upstream.heard.len(), unsent.as_slice()), (0, SET));
    }
}

#[test]
fn forwards_no_reply_that_was_read_while_the_evidence_came() {
    for (happens, reason) in [
        (TargetWriter::drop_replies as fn(&mut TargetWriter), EndReason::ReplyDropped),
        (move_on, EndReason::Fenced),
    ] {
        let (points, seat, target) = surprised();
        let mut client = Puppet::saying(&[SET]);
        let mut upstream = Surprise { puppet: Puppet::saying(&[]), points, happens };
        let mut pump = Pump::new((&mut client, &mut upstream), &seat, &target, Vec::new());
        assert_eq!(poll(&mut pump), Poll::Pending);
        pump.upstream.puppet.says.push_back(OK.to_vec());
        assert_eq!(poll(&mut pump), Poll::Ready(reason));
        assert!(pump.stop(reason).undelivered.is_empty());
        assert!(pump.client.heard.is_empty(), "{reason:?}");
    }
}
