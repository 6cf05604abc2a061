//! Which reply belongs to which request, and what the two together did to the session.
//!
//! First in, first out, one reply a request; this file holds the exceptions. Nothing takes effect
//! because it was asked for, only because it was answered with success: a `MULTI` that is refused
//! opens nothing. What cannot be known (commands that change the session while replies are off, a
//! transaction that subscribes) makes the ledger let go, which the caller turns into an opaque
//! session, instead of guess. The rules are those of `redis:src/networking.c` and
//! `redis:src/pubsub.c`.
//!
//! Deliberately absent: bytes. Both scanners hand over whole frames.

mod carrying;
mod marking;
mod notices;
mod pinned;
mod runs;

use crate::commands::class::{Class, Group};
use crate::commands::maintenance::Novel;
use crate::ledger::client_reply::Silence;
use crate::ledger::in_flight::{InFlightMarks, Mark};
use crate::ledger::server_state::Bound;
use crate::ledger::session_state::{Answer, Counts, Fault, MustEnd, SessionState};
use crate::ledger::subscriptions::Subscriptions;
use crate::ledger::waiting::Waiting;
use crate::replay::recorder::{Answered, Recorder};
use crate::scan::message_kind::MessageKind;
use crate::scan::reply::Replies;

/// The session left what can be followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lost;

/// More requests in flight than this are not followed, so that positions can be compared modulo
/// 2^32.
pub(crate) const MOST_OWED: u32 = 1 << 31;

/// Whether the session is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Followed,
    /// `QUIT` was answered.
    Ended,
    /// Given up.
    Opaque,
}

/// What the server keeps for this connection; as of the last reply.
#[derive(Debug, Clone, Copy, Default)]
struct Kept {
    resp3: bool,
    transaction: bool,
    watching: bool,
    asking: bool,
    tracking: bool,
}

#[derive(Debug)]
pub(crate) struct Matcher {
    owed: u32,
    /// Position of the oldest request without a reply, modulo 2^32.
    answered: u32,
    marks: InFlightMarks,
    kept: Kept,
    subscriptions: Subscriptions,
    counts: Counts,
    silence: Silence,
    life: Life,
    last_answer: Option<(Class, Answer)>,
    recorder: Recorder,
    waiting: Waiting,
    novel: Novel,
    bound: Bound,
    must_end: Option<MustEnd>,
    /// The pin may have changed.
    changed: bool,
}

impl Matcher {
    pub(crate) fn new() -> Self {
        Self {
            owed: 0,
            answered: 0,
            marks: InFlightMarks::new(),
            kept: Kept::default(),
            subscriptions: Subscriptions::default(),
            counts: Counts::default(),
            silence: Silence::new(),
            life: Life::Followed,
            last_answer: None,
            recorder: Recorder::default(),
            waiting: Waiting::Never,
            novel: Novel::default(),
            bound: Bound::default(),
            must_end: None,
            changed: false,
        }
    }

    pub(crate) fn owed(&self) -> u32 {
        self.owed
    }

    /// Whether arrays have to be looked into: one of them may be a message or a confirmation.
    #[inline]
    pub(crate) fn is_curious(&self) -> bool {
        !self.marks.is_empty() || self.is_subscribed()
    }

    /// A request ended: `class`, and its number of words, or the digest of its cursor.
    #[inline]
    pub(crate) fn request(&mut self, class: Class, args: u32, most_marks: u16) -> Result<(), Lost> {
        self.counts.requests = self.counts.requests.saturating_add(1);
        if class == Class::Ordinary && !self.silence.is_kept() {
            return self.owe();
        }
        self.special_request(class, args, most_marks)
    }

    /// A request that gets no reply ended. Whether it uses up `CLIENT REPLY SKIP` differs between
    /// servers.
    pub(crate) fn empty_request(&mut self) -> Result<(), Lost> {
        if self.silence.is_once() { Err(Lost) } else { Ok(()) }
    }

    fn owe(&mut self) -> Result<(), Lost> {
        if self.owed >= MOST_OWED {
            return Err(Lost);
        }
        self.owed += 1;
        Ok(())
    }

    fn special_request(&mut self, class: Class, args: u32, most_marks: u16) -> Result<(), Lost> {
        // With a wrong number of words these are mere errors, but for EXEC, whose error may or may
        // not end a transaction.
        let class = match class {
            Class::Exec if args != 1 => return Err(Lost),
            Class::Reset if args != 1 => Class::Ordinary,
            Class::ReplyOn | Class::ReplyOff | Class::ReplySkip if args != 3 => Class::Ordinary,
            Class::Replication | Class::Debugger => return Err(Lost),
            class => class,
        };
        self.changed = true;
        self.bound.asked(class);
        let position = self.answered.wrapping_add(self.owed);
        if !self.silence.request(class, position)? {
            return Ok(());
        }
        if class == Class::Wait {
            self.waiting = self.waiting.asked();
            self.must_end =
                self.must_end.or((self.waiting == Waiting::Forfeit).then_some(MustEnd::Forfeit));
        }
        if class.is_marked() || (class.runs_script() && self.silence.may_queue()) {
            self.mark(class, args, most_marks)?;
        }
        self.owe()
    }

    /// A frame from the server ended; `frame` still knows it.
    #[inline]
    pub(crate) fn frame(&mut self, frame: &Replies) -> Result<(), Lost> {
        let top = frame.top();
        match top {
            b'>' => return self.push(frame),
            b'-' => self.bound.refused(frame.line()),
            b'*' if !self.kept.resp3
                && frame.said().0 != MessageKind::Other
                && self.message(frame)? =>
            {
                return Ok(());
            }
            _ => {}
        }
        if self.owed == 0 {
            return Err(Lost);
        }
        if !self.marks.is_empty() || self.kept.asking || self.silence.is_unsure() {
            return self.special_reply(frame);
        }
        self.answered();
        Ok(())
    }

    #[inline]
    fn answered(&mut self) {
        self.replies(1);
    }

    fn uncounted(&mut self) {
        self.counts.pushes = self.counts.pushes.saturating_add(1);
    }

    /// A push (RESP3).
    fn push(&mut self, frame: &Replies) -> Result<(), Lost> {
        match frame.said() {
            (MessageKind::Confirmed(class), count) => self.confirmed(class, count),
            (MessageKind::Message | MessageKind::Other, _) => {
                self.uncounted();
                Ok(())
            }
        }
    }

    /// An array (RESP2) that begins like a message or confirmation; whether it is one.
    fn message(&mut self, frame: &Replies) -> Result<bool, Lost> {
        match frame.said() {
            (MessageKind::Message, _) if self.is_subscribed() => {
                self.uncounted();
                Ok(true)
            }
            (MessageKind::Confirmed(class), count)
                if self.head() == Some(class)
                    || (class == Class::SUnsubscribe && self.subscriptions.has_shards()) =>
            {
                self.confirmed(class, count)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// One channel is subscribed to, or no longer; `count` is how many the server says there are
    /// now.
    fn confirmed(&mut self, class: Class, count: Option<u32>) -> Result<(), Lost> {
        let count = count.ok_or(Lost)?;
        let before = self.subscriptions.confirm(class, count);
        let asked = self.head() == Some(class);
        let Some(mark) = self.marks.first_mut().filter(|_| asked) else {
            // A cluster takes shard channels away when their slot moves. Nothing else comes
            // unasked.
            self.changed = true;
            self.uncounted();
            self.note_the_last();
            return if class == Class::SUnsubscribe { Ok(()) } else { Err(Lost) };
        };
        // Without channels, the request is about all there are, and is answered once if there are
        // none.
        let expected = if mark.expected() == 0 { before.max(1) } else { mark.expected() };
        mark.expect(expected - 1);
        if expected > 1 {
            self.uncounted();
            return Ok(());
        }
        self.marks.pop();
        self.heard(Some(class));
        self.answered();
        self.last_answer = Some((class, Answer::Done));
        self.recorder.answered(Answered { class, answer: Answer::Done, top: b'>', line: &[] });
        self.note_the_last();
        Ok(())
    }

    /// Notes if a confirmation was that of the end of all subscriptions.
    fn note_the_last(&mut self) {
        if !self.is_subscribed() {
            self.recorder.unsubscribed();
        }
    }

    /// Notes that the server has come to the request that is answered now.
    fn heard(&mut self, class: Option<Class>) {
        self.changed = true;
        // Even a refused `ASKING` leaves an earlier one as it is (`redis:src/networking.c`,
        // `resetClient`).
        self.kept.asking = self.kept.asking && class == Some(Class::Asking);
        self.silence.heard(self.answered);
    }

    fn special_reply(&mut self, frame: &Replies) -> Result<(), Lost> {
        let head = self.head();
        self.heard(head);
        let detail = self.marks.first().map_or(0, Mark::expected);
        let Some(class) = head else {
            self.answered();
            return Ok(());
        };
        let answer = match frame.top() {
            b'-' | b'!' => Answer::Error,
            b'+' if frame.line().starts_with(b"QUEUED\r") => Answer::Queued,
            _ => Answer::Done,
        };
        self.marks.pop();
        self.answered();
        self.last_answer = Some((class, answer));
        self.novel.answered(class);
        self.recorder.answered(Answered { class, answer, top: frame.top(), line: frame.line() });
        match answer {
            _ if class == Class::Iterate => {
                self.iterated(detail, answer, frame);
                Ok(())
            }
            Answer::Done => self.took_effect(class, frame.top()),
            Answer::Queued if class.takes_effect_unseen() => Err(Lost),
            Answer::Queued => {
                self.bound.queued(class);
                Ok(())
            }
            Answer::Error => {
                // `-EXECABORT`, and every other refusal within a transaction, ends it.
                if class == Class::Exec && self.kept.transaction {
                    self.end_transaction();
                }
                Ok(())
            }
        }
    }

    fn end_transaction(&mut self) {
        self.kept.transaction = false;
        self.kept.watching = false;
    }

    /// A marked request was answered with success.
    fn took_effect(&mut self, class: Class, top: u8) -> Result<(), Lost> {
        match class {
            Class::Multi => self.kept.transaction = true,
            Class::Exec | Class::Discard => self.end_transaction(),
            Class::Watch => self.kept.watching = true,
            Class::Unwatch => self.kept.watching = false,
            Class::Asking => self.kept.asking = true,
            Class::TrackingOn => self.kept.tracking = true,
            Class::TrackingOff => self.kept.tracking = false,
            // The answer is a map in RESP3 only.
            Class::Hello => self.kept.resp3 = top == b'%',
            Class::Reset => {
                (self.kept, self.subscriptions) = (Kept::default(), Subscriptions::default());
                self.novel.reset();
                self.forget_missed();
            }
            _ if class.is_novel() => self.novel.accepted(class),
            Class::Quit => self.life = Life::Ended,
            // The stream that follows is no sequence of replies. And a subscription is answered by
            // confirmations only.
            Class::Monitor => return Err(Lost),
            _ if class.group() == Group::Subscribing => return Err(Lost),
            _ => {}
        }
        Ok(())
    }

    fn is_subscribed(&self) -> bool {
        self.subscriptions.is_any()
    }

    /// The standing of a session that is between frames in both directions, or not.
    pub(crate) fn standing(&self, between_frames: bool) -> SessionState {
        if self.life == Life::Opaque {
            return SessionState::Opaque;
        }
        // What is missed may have ended it.
        if self.kept.transaction && !self.has_missed() {
            return SessionState::Transaction;
        }
        if self.owed > 0 || !between_frames {
            let blocked =
                between_frames && self.head().is_some_and(|class| class.group() == Group::Blocking);
            return if blocked { SessionState::Blocked } else { SessionState::Busy };
        }
        if self.life == Life::Ended {
            SessionState::Ended
        } else if self.is_subscribed() {
            SessionState::Subscribed
        } else if self.is_pinned() {
            SessionState::Pinned
        } else {
            SessionState::Quiet
        }
    }

    fn is_pinned(&self) -> bool {
        let Kept { watching, asking, tracking, transaction: _, resp3: _ } = self.kept;
        watching
            || asking
            || tracking
            || self.has_missed()
            || self.novel.is_kept()
            || !self.silence.is_over()
    }

    /// Whether nothing is owed, and neither a subscription nor an open transaction is a reason for
    /// the client's silence.
    pub(crate) fn awaits_client(&self) -> bool {
        let in_transaction = self.kept.transaction && !self.has_missed();
        self.life == Life::Followed && self.owed == 0 && !in_transaction && !self.is_subscribed()
    }

    pub(crate) fn has_asked(&self) -> bool {
        self.counts.requests > 0 || self.is_opaque()
    }

    pub(crate) fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }

    pub(crate) fn last_answer(&self) -> Option<(Class, Answer)> {
        self.last_answer
    }

    #[cfg(test)]
    pub(crate) fn allocated(&self) -> usize {
        self.marks.allocated() + self.recorder.allocated()
    }

    /// An invariant does not hold.
    pub(crate) fn fail(&mut self, fault: Fault) {
        self.turn_opaque();
        self.must_end = Some(MustEnd::Broken(fault));
    }

    pub(crate) fn must_end(&self) -> Option<MustEnd> {
        self.must_end
    }

    pub(crate) fn recorder(&mut self) -> &mut Recorder {
        &mut self.recorder
    }
}
