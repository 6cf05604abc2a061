//! Matches replies to requests and tracks their combined effect on the session.
//!
//! Requests are answered in order, with one reply each; this module handles the exceptions. A
//! request takes effect only when it is answered with success: a refused `MULTI` opens no
//! transaction. If an effect cannot be known (commands that change the session while replies are
//! off, a transaction that subscribes), the result is [`Untrackable`] and the session becomes
//! opaque; nothing is guessed. The rules are those of `redis:src/networking.c` and
//! `redis:src/pubsub.c`.
//!
//! The methods of [`Matcher`] are in several modules: `counting` (ordinary frames), `marking`,
//! `pinning`, `carrying` and `maintenance`.
//!
//! Deliberately absent: bytes. Both scanners report whole frames.

use crate::commands::class::{Class, ClassGroup};
use crate::ledger::affinity::ServerAffinity;
use crate::ledger::carrying::WaitUse;
use crate::ledger::connection_state::{ConnectionState, SubscriptionCounts};
use crate::ledger::in_flight::{InFlightMarks, Mark};
use crate::ledger::maintenance::ConnectionFeatures;
use crate::ledger::recorder::{Answered, Recorder};
use crate::ledger::reply_suppression::ReplySuppression;
use crate::ledger::session_state::{FrameCounts, LedgerFault, MustEnd, ReplyOutcome, SessionState};
use crate::scan::message_kind::MessageKind;
use crate::scan::reply::ReplyScanner;

/// The session can no longer be tracked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Untrackable;

/// Maximum number of requests in flight, so that positions can be compared modulo 2^32.
pub(crate) const MAX_OWED: u32 = 1 << 31;

/// Whether the session is tracked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LedgerPhase {
    Tracked,
    /// `QUIT` was answered.
    Ended,
    /// No longer tracked.
    Opaque,
}

#[derive(Debug)]
pub(crate) struct Matcher {
    pub(super) owed: u32,
    /// Position of the oldest request without a reply, modulo 2^32.
    pub(super) answered: u32,
    pub(super) marks: InFlightMarks,
    pub(super) connection: ConnectionState,
    pub(super) subscriptions: SubscriptionCounts,
    pub(super) counts: FrameCounts,
    pub(super) suppression: ReplySuppression,
    pub(super) phase: LedgerPhase,
    pub(super) last_answer: Option<(Class, ReplyOutcome)>,
    pub(super) recorder: Recorder,
    pub(super) wait_use: WaitUse,
    pub(super) features: ConnectionFeatures,
    pub(super) affinity: ServerAffinity,
    must_end: Option<MustEnd>,
    /// Whether the pin may have changed since it was last evaluated.
    pub(super) pin_changed: bool,
}

impl Matcher {
    pub(crate) fn new() -> Self {
        Self {
            owed: 0,
            answered: 0,
            marks: InFlightMarks::new(),
            connection: ConnectionState::default(),
            subscriptions: SubscriptionCounts::default(),
            counts: FrameCounts::default(),
            suppression: ReplySuppression::new(),
            phase: LedgerPhase::Tracked,
            last_answer: None,
            recorder: Recorder::default(),
            wait_use: WaitUse::Never,
            features: ConnectionFeatures::default(),
            affinity: ServerAffinity::default(),
            must_end: None,
            pin_changed: false,
        }
    }

    pub(crate) fn owed(&self) -> u32 {
        self.owed
    }

    /// Whether the first element of arrays must be read: one may be a message or a confirmation.
    #[inline]
    pub(crate) fn must_inspect_arrays(&self) -> bool {
        !self.marks.is_empty() || self.is_subscribed()
    }

    /// A request of `class` ended. `args` is its number of words, or the digest of its cursor.
    #[inline]
    pub(crate) fn request(
        &mut self,
        class: Class,
        args: u32,
        max_marks: u16,
    ) -> Result<(), Untrackable> {
        self.counts.requests = self.counts.requests.saturating_add(1);
        if class == Class::Ordinary && !self.suppression.is_active() {
            return self.owe();
        }
        self.track_request(class, args, max_marks)
    }

    /// An empty request ended, which gets no reply. Servers differ in whether it uses up
    /// `CLIENT REPLY SKIP`.
    pub(crate) fn empty_request(&mut self) -> Result<(), Untrackable> {
        if self.suppression.is_skip() { Err(Untrackable) } else { Ok(()) }
    }

    fn owe(&mut self) -> Result<(), Untrackable> {
        if self.owed >= MAX_OWED {
            return Err(Untrackable);
        }
        self.owed += 1;
        Ok(())
    }

    fn track_request(
        &mut self,
        class: Class,
        args: u32,
        max_marks: u16,
    ) -> Result<(), Untrackable> {
        // With a wrong number of words these are refused and have no effect, except EXEC, whose
        // error may or may not end a transaction.
        let class = match class {
            Class::Exec if args != 1 => return Err(Untrackable),
            Class::Reset if args != 1 => Class::Ordinary,
            Class::ReplyOn | Class::ReplyOff | Class::ReplySkip if args != 3 => Class::Ordinary,
            Class::Replication | Class::Debugger => return Err(Untrackable),
            class => class,
        };
        self.pin_changed = true;
        self.affinity.sent(class);
        let position = self.answered.wrapping_add(self.owed);
        if !self.suppression.request(class, position)? {
            return Ok(());
        }
        if class == Class::Wait {
            self.wait_use = self.wait_use.after_wait();
            self.must_end = self
                .must_end
                .or((self.wait_use == WaitUse::AfterCarry).then_some(MustEnd::WaitAfterCarry));
        }
        if class.needs_mark() || (class.runs_script() && self.suppression.may_queue()) {
            self.mark(class, args, max_marks)?;
        }
        self.owe()
    }

    /// A frame from the server ended, the last one of `frame`.
    #[inline]
    pub(crate) fn frame(&mut self, frame: &ReplyScanner) -> Result<(), Untrackable> {
        let top = frame.top();
        match top {
            b'>' => return self.push(frame),
            b'-' => self.affinity.error_received(frame.line()),
            b'*' if !self.connection.resp3
                && frame.message().0 != MessageKind::Other
                && self.message(frame)? =>
            {
                return Ok(());
            }
            _ => {}
        }
        if self.owed == 0 {
            return Err(Untrackable);
        }
        if !self.marks.is_empty() || self.connection.asking || self.suppression.is_unconfirmed() {
            return self.match_reply(frame);
        }
        self.answered();
        Ok(())
    }

    #[inline]
    fn answered(&mut self) {
        self.count_replies(1);
    }

    fn count_push(&mut self) {
        self.counts.pushes = self.counts.pushes.saturating_add(1);
    }

    /// A push message (RESP3).
    fn push(&mut self, frame: &ReplyScanner) -> Result<(), Untrackable> {
        match frame.message() {
            (MessageKind::Confirmed(class), count) => self.confirmed(class, count),
            (MessageKind::Message | MessageKind::Other, _) => {
                self.count_push();
                Ok(())
            }
        }
    }

    /// An array (RESP2) that begins like a message or confirmation. Returns whether it is one.
    fn message(&mut self, frame: &ReplyScanner) -> Result<bool, Untrackable> {
        match frame.message() {
            (MessageKind::Message, _) if self.is_subscribed() => {
                self.count_push();
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

    /// A subscription to one channel began or ended; `count` is the current number according to the
    /// server.
    fn confirmed(&mut self, class: Class, count: Option<u32>) -> Result<(), Untrackable> {
        let count = count.ok_or(Untrackable)?;
        let before = self.subscriptions.confirm(class, count);
        let asked = self.head() == Some(class);
        let Some(mark) = self.marks.first_mut().filter(|_| asked) else {
            // A cluster removes shard channels when their slot moves. No other confirmation comes
            // without a request.
            self.pin_changed = true;
            self.count_push();
            self.note_if_unsubscribed();
            return if class == Class::SUnsubscribe { Ok(()) } else { Err(Untrackable) };
        };
        // A request without channels removes all of its kind, and is answered once if there are
        // none.
        let expected = if mark.expected() == 0 { before.max(1) } else { mark.expected() };
        mark.expect(expected - 1);
        if expected > 1 {
            self.count_push();
            return Ok(());
        }
        self.marks.pop();
        self.server_reached(Some(class));
        self.answered();
        self.last_answer = Some((class, ReplyOutcome::Done));
        self.recorder.answered(Answered {
            class,
            answer: ReplyOutcome::Done,
            top: b'>',
            line: &[],
        });
        self.note_if_unsubscribed();
        Ok(())
    }

    /// Informs the recorder if a confirmation ended the last subscription.
    fn note_if_unsubscribed(&mut self) {
        if !self.is_subscribed() {
            self.recorder.unsubscribed();
        }
    }

    /// The server has processed the requests up to the one that is answered now.
    fn server_reached(&mut self, class: Option<Class>) {
        self.pin_changed = true;
        // A refused `ASKING` does not clear an earlier one (`redis:src/networking.c`,
        // `resetClient`).
        self.connection.asking = self.connection.asking && class == Some(Class::Asking);
        self.suppression.answered(self.answered);
    }

    fn match_reply(&mut self, frame: &ReplyScanner) -> Result<(), Untrackable> {
        let head = self.head();
        self.server_reached(head);
        let detail = self.marks.first().map_or(0, Mark::expected);
        let Some(class) = head else {
            self.answered();
            return Ok(());
        };
        let answer = match frame.top() {
            b'-' | b'!' => ReplyOutcome::Error,
            b'+' if frame.line().starts_with(b"QUEUED\r") => ReplyOutcome::Queued,
            _ => ReplyOutcome::Done,
        };
        self.marks.pop();
        self.answered();
        self.last_answer = Some((class, answer));
        self.features.answered(class);
        self.recorder.answered(Answered { class, answer, top: frame.top(), line: frame.line() });
        match answer {
            _ if class == Class::Iterate => {
                self.iterated(detail, answer, frame);
                Ok(())
            }
            ReplyOutcome::Done => self.apply(class, frame.top()),
            ReplyOutcome::Queued if class.is_untrackable_in_transaction() => Err(Untrackable),
            ReplyOutcome::Queued => {
                self.affinity.queued(class);
                Ok(())
            }
            ReplyOutcome::Error => {
                // `-EXECABORT`, and every other refusal within a transaction, ends it.
                if class == Class::Exec && self.connection.transaction {
                    self.end_transaction();
                }
                Ok(())
            }
        }
    }

    fn end_transaction(&mut self) {
        self.connection.transaction = false;
        self.connection.watching = false;
    }

    /// A marked request was answered with success.
    fn apply(&mut self, class: Class, top: u8) -> Result<(), Untrackable> {
        match class {
            Class::Multi => self.connection.transaction = true,
            Class::Exec | Class::Discard => self.end_transaction(),
            Class::Watch => self.connection.watching = true,
            Class::Unwatch => self.connection.watching = false,
            Class::Asking => self.connection.asking = true,
            Class::TrackingOn => self.connection.tracking = true,
            Class::TrackingOff => self.connection.tracking = false,
            // The reply is a map in RESP3 only.
            Class::Hello => self.connection.resp3 = top == b'%',
            Class::Reset => {
                (self.connection, self.subscriptions) =
                    (ConnectionState::default(), SubscriptionCounts::default());
                self.features.reset();
                self.forget_unmarked();
            }
            _ if class.is_connection_feature() => self.features.accepted(class),
            Class::Quit => self.phase = LedgerPhase::Ended,
            // After `MONITOR`, the stream is no sequence of replies. A subscription is answered by
            // confirmations only, so any other reply to it is not understood.
            Class::Monitor => return Err(Untrackable),
            _ if class.group() == ClassGroup::Subscribing => return Err(Untrackable),
            _ => {}
        }
        Ok(())
    }

    pub(super) fn is_subscribed(&self) -> bool {
        self.subscriptions.is_any()
    }

    /// The state of the session. `between_frames`: both directions are at a frame boundary.
    pub(crate) fn session_state(&self, between_frames: bool) -> SessionState {
        if self.phase == LedgerPhase::Opaque {
            return SessionState::Opaque;
        }
        // An unmarked request may have ended the transaction.
        if self.connection.transaction && !self.has_unmarked() {
            return SessionState::Transaction;
        }
        if self.owed > 0 || !between_frames {
            let blocked = between_frames
                && self.head().is_some_and(|class| class.group() == ClassGroup::Blocking);
            return if blocked { SessionState::Blocked } else { SessionState::Busy };
        }
        if self.phase == LedgerPhase::Ended {
            SessionState::Ended
        } else if self.is_subscribed() {
            SessionState::Subscribed
        } else if self.is_pinned() {
            SessionState::Pinned
        } else {
            SessionState::Quiet
        }
    }

    /// Whether nothing is owed, and there is neither a subscription nor an open transaction.
    pub(crate) fn awaits_client(&self) -> bool {
        let in_transaction = self.connection.transaction && !self.has_unmarked();
        self.phase == LedgerPhase::Tracked
            && self.owed == 0
            && !in_transaction
            && !self.is_subscribed()
    }

    pub(crate) fn has_sent_requests(&self) -> bool {
        self.counts.requests > 0 || self.is_opaque()
    }

    /// The requests that have ended since the counts were last taken.
    pub(crate) fn uncounted_requests(&self) -> u32 {
        self.counts.requests
    }

    /// Whether the connection uses RESP3 now.
    pub(crate) fn uses_resp3(&self) -> bool {
        self.connection.resp3
    }

    pub(crate) fn take_counts(&mut self) -> FrameCounts {
        std::mem::take(&mut self.counts)
    }

    pub(crate) fn last_answer(&self) -> Option<(Class, ReplyOutcome)> {
        self.last_answer
    }

    #[cfg(test)]
    pub(crate) fn allocated(&self) -> usize {
        self.marks.allocated() + self.recorder.allocated()
    }

    /// An invariant was violated.
    pub(crate) fn fail(&mut self, fault: LedgerFault) {
        self.become_opaque();
        self.must_end = Some(MustEnd::Broken(fault));
    }

    pub(crate) fn must_end(&self) -> Option<MustEnd> {
        self.must_end
    }

    pub(crate) fn recorder(&mut self) -> &mut Recorder {
        &mut self.recorder
    }
}
