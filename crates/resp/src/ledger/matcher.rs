//! Matches replies to requests and tracks their combined effect on the session.
//!
//! Requests are answered in order, with one reply each; this module handles the exceptions. A
//! request takes effect only when it is answered with success: a refused `MULTI` opens no
//! transaction. If an effect cannot be known (commands that change the session while replies are
//! off, a transaction that subscribes), the result is [`Untrackable`] and the session becomes
//! opaque; nothing is guessed. The rules are those of `redis:src/networking.c` and
//! `redis:src/pubsub.c`.
//!
//! It sees no bytes: both scanners report whole frames. What is sent to another server is decided
//! in [`replay`](crate::replay).

use crate::commands::class::{Class, ClassGroup};
use crate::ledger::affinity::ServerAffinity;
use crate::ledger::in_flight::{InFlightMarks, MAX_EXPECTED, Mark};
use crate::ledger::maintenance::ConnectionFeatures;
use crate::ledger::recorder::Recorder;
use crate::ledger::replay_state::{ReplayState, Text};
use crate::ledger::session_state::Pin;
use crate::ledger::session_state::{FrameCounts, MustEnd, ReplyOutcome, SessionState};
use crate::scan::message_kind::MessageKind;
use crate::scan::reply::ReplyScanner;

/// The session can no longer be tracked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Untrackable;

/// Maximum number of requests in flight, so that positions can be compared modulo 2^32.
pub(crate) const MAX_OWED: u32 = 1 << 31;

/// Whether the session is tracked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum LedgerPhase {
    #[default]
    Tracked,
    /// `QUIT` was answered.
    Ended,
    /// No longer tracked, except for replies to earlier requests until none may be replaced.
    Leaving,
    /// No longer tracked.
    Opaque,
}

/// The use of `WAIT` in a session.
///
/// `WAIT` and `WAITAOF` refer to the writes of their own connection. On another connection the
/// server would answer at once, and about nothing (`redis:src/replication.c`, `waitCommand`,
/// compares with the offset of the client's own last write). A session that has used them is
/// therefore not carried, and one that uses them after it was carried is ended before that reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum WaitUse {
    /// Never sent.
    #[default]
    Never,
    /// Sent on the connection on which the writes were made.
    OnThisConnection,
    /// Not sent on this connection, but the session was carried: writes may have been made on the
    /// connection before.
    Carried,
}

/// The protocol version, and the state that pins the session until it is cleared.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ConnectionState {
    pub(crate) resp3: bool,
    pub(crate) transaction: bool,
    pub(crate) watching: bool,
    pub(crate) asking: bool,
    pub(crate) tracking: bool,
}

/// The number of subscriptions, as of the last confirmation.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SubscriptionCounts {
    channels: u32,
    patterns: u32,
    shards: u32,
}

impl SubscriptionCounts {
    /// A request of `class` was confirmed with `count` as the current number of subscriptions.
    /// Returns the previous number of its kind.
    pub(crate) fn confirm(&mut self, class: Class, count: u32) -> u32 {
        // The server counts channels and patterns together, and shard channels separately.
        let (counter, others) = match class {
            Class::Subscribe | Class::Unsubscribe => (&mut self.channels, self.patterns),
            Class::PSubscribe | Class::PUnsubscribe => (&mut self.patterns, self.channels),
            _ => (&mut self.shards, 0),
        };
        std::mem::replace(counter, count.saturating_sub(others))
    }

    pub(crate) fn is_any(self) -> bool {
        self.channels | self.patterns | self.shards != 0
    }

    pub(crate) fn has_shards(self) -> bool {
        self.shards > 0
    }

    /// Whether the numbers of channels, patterns and shard channels equal `counts`.
    pub(crate) fn are(self, counts: [usize; 3]) -> bool {
        [self.channels, self.patterns, self.shards].map(u64::from)
            == counts.map(|count| count as u64)
    }
}

/// The reply mode after the last request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum ReplyMode {
    /// Requests are answered.
    #[default]
    On,
    /// The next request is not answered.
    Skip,
    /// Requests are not answered until `CLIENT REPLY ON`.
    Off,
}

/// Tracks `CLIENT REPLY OFF` and `SKIP`, by which the server does not answer requests.
///
/// The next reply to a later request shows that an unanswered request was executed; until then its
/// execution is unconfirmed. Nothing shows whether it succeeded, so the effect of a command that
/// changes the session while replies are off cannot be tracked (`redis:src/networking.c`,
/// `clientCommand`, `resetClient`).
#[derive(Debug, Default)]
pub(crate) struct ReplySuppression {
    /// If `unconfirmed`: a reply at this position or later shows that the unanswered requests were
    /// executed. Modulo 2^32.
    until: u32,
    /// A request without a reply was sent, and no later request has been answered.
    unconfirmed: bool,
    mode: ReplyMode,
    /// A transaction may be open when the server reads the next request.
    pub(super) may_queue: bool,
}

impl ReplySuppression {
    /// Whether the next request may get no reply.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.mode != ReplyMode::On
    }

    /// Whether every request gets a reply, and all unanswered requests are confirmed.
    pub(crate) fn is_settled(&self) -> bool {
        !self.unconfirmed && !self.is_active()
    }

    /// Whether requests without replies were sent directly before the one at `position`.
    fn is_unconfirmed_at(&self, position: u32) -> bool {
        self.unconfirmed && self.until == position
    }

    /// The request at `position` was answered.
    pub(crate) fn answered(&mut self, position: u32) {
        if position.wrapping_sub(self.until) < MAX_OWED {
            self.unconfirmed = false;
        }
    }

    /// A request of that class was sent. Returns whether it gets a reply, which is then the one at
    /// `position`.
    pub(crate) fn request(&mut self, class: Class, position: u32) -> Result<bool, Untrackable> {
        match class {
            Class::Multi => self.may_queue = true,
            Class::Exec | Class::Discard | Class::Reset => self.may_queue = false,
            _ => {}
        }
        match (class, self.mode) {
            // In a transaction these are queued, and the server answers `+QUEUED`.
            (Class::ReplyOff | Class::ReplySkip, _) if self.may_queue => return Err(Untrackable),
            (Class::ReplyOff, _) => self.mode = ReplyMode::Off,
            (Class::ReplySkip, ReplyMode::Off) => {}
            (Class::ReplySkip, ReplyMode::On | ReplyMode::Skip) => self.mode = ReplyMode::Skip,
            (Class::ReplyOn, _) | (Class::Reset, ReplyMode::Off) => {
                self.mode = ReplyMode::On;
                return Ok(true);
            }
            (_, ReplyMode::On) => return Ok(true),
            (class, ReplyMode::Skip) if class.may_be_unanswered() => {
                self.mode = ReplyMode::On;
            }
            (class, ReplyMode::Off) if class.may_be_unanswered() => {}
            _ => return Err(Untrackable),
        }
        self.unconfirmed = true;
        self.until = position;
        Ok(false)
    }
}

/// What the server keeps for one connection, as its requests and replies show it.
///
/// It has five kinds of methods:
///
/// - A. Counting ordinary requests and replies, many at a time.
/// - B. Matching every other request and reply, one at a time.
/// - C. Marking requests whose reply must be inspected.
/// - D. Determining what pins the session to its server.
/// - E. Carrying it to another connection.
#[derive(Debug, Default)]
pub(crate) struct Matcher {
    pub(super) owed: u32,
    /// Position of the oldest request without a reply, modulo 2^32.
    pub(super) answered: u32,
    /// Differs from `answered` if a reply since the last `-NOAUTH` or `RESET` shows that the server
    /// admits the client. Modulo 2^32.
    pub(super) unadmitted: u32,
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
    pub(super) must_end: Option<MustEnd>,
    /// Whether the pin may have changed since it was last evaluated.
    pub(super) pin_changed: bool,
}

// A. Counting ordinary requests and replies.
impl Matcher {
    /// Whether ordinary requests only need to be counted now.
    #[inline]
    pub(crate) fn may_count_requests(&self) -> bool {
        !self.is_opaque() && !self.suppression.is_active()
    }

    /// `n` ordinary requests ended while they only need to be counted.
    #[inline]
    pub(crate) fn count_requests(&mut self, n: u32) -> Result<(), Untrackable> {
        self.counts.requests = self.counts.requests.saturating_add(n);
        let owed = self.owed.checked_add(n).filter(|owed| *owed <= MAX_OWED);
        self.owed = owed.ok_or(Untrackable)?;
        Ok(())
    }

    /// How many of the next replies only need to be counted.
    #[inline]
    pub(crate) fn countable_replies(&self) -> u32 {
        let plain = !self.is_opaque()
            && !self.must_inspect_arrays()
            && !self.connection.asking
            && !self.suppression.unconfirmed;
        if plain { self.owed } else { 0 }
    }

    /// `n` replies ended, at most [`countable_replies`](Self::countable_replies).
    #[inline]
    pub(crate) fn count_replies(&mut self, n: u32) {
        self.last_answer = None;
        self.owed -= n;
        self.answered = self.answered.wrapping_add(n);
        self.counts.replies = self.counts.replies.saturating_add(n);
    }
}

// B. Matching other requests and replies.
impl Matcher {
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
        if self.suppression.mode == ReplyMode::Skip { Err(Untrackable) } else { Ok(()) }
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
        if matches!(class, Class::Replication | Class::Debugger) {
            return Err(Untrackable);
        }
        self.pin_changed = true;
        self.affinity.sent(class);
        let position = self.answered.wrapping_add(self.owed);
        if !self.suppression.request(class, position)? {
            return Ok(());
        }
        if class == Class::Wait {
            if self.wait_use == WaitUse::Carried {
                self.must_end = self.must_end.or(Some(MustEnd::WaitAfterCarry));
            } else {
                self.wait_use = WaitUse::OnThisConnection;
            }
        }
        if class.needs_mark() || (class.runs_script() && self.suppression.may_queue) {
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
            b'-' => self.error_received(frame.line()),
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
        if !self.marks.is_empty() || self.connection.asking || self.suppression.unconfirmed {
            return self.match_reply(frame);
        }
        self.count_replies(1);
        Ok(())
    }

    /// An error was received, which is counted next. A server checks the command and the number of
    /// its words first, and answers `AUTH` and `HELLO` to anyone.
    fn error_received(&mut self, line: &[u8]) {
        self.affinity.error_received(line);
        if line.starts_with(b"NOAUTH") {
            self.unadmitted = self.answered.wrapping_add(1);
        } else if line.starts_with(b"ERR unknown ")
            || line.starts_with(b"ERR wrong number of ")
            || matches!(self.head(), Some(Class::Auth | Class::Hello))
        {
            self.unadmitted = self.unadmitted.wrapping_add(1);
        }
    }

    /// Whether the server has served the client, with or without credentials.
    pub(crate) fn is_admitted(&self) -> bool {
        self.unadmitted != self.answered
    }

    fn count_push(&mut self) {
        self.counts.pushes = self.counts.pushes.saturating_add(1);
    }

    /// A push message (RESP3).
    fn push(&mut self, frame: &ReplyScanner) -> Result<(), Untrackable> {
        match frame.message() {
            (MessageKind::Confirmed(class), count) => self.confirmed(class, count, frame),
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
                self.confirmed(class, count, frame)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// A subscription to one channel began or ended; `count` is the current number according to the
    /// server.
    fn confirmed(
        &mut self,
        class: Class,
        count: Option<u32>,
        frame: &ReplyScanner,
    ) -> Result<(), Untrackable> {
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
        self.server_reached(false);
        self.count_replies(1);
        self.last_answer = Some((class, ReplyOutcome::Done));
        self.recorder.answered(class, ReplyOutcome::Done, frame);
        self.note_if_unsubscribed();
        Ok(())
    }

    /// Informs the recorder if a confirmation ended the last subscription.
    fn note_if_unsubscribed(&mut self) {
        if !self.is_subscribed() {
            self.recorder.unsubscribed();
        }
    }

    /// The server has processed the requests up to the one that is answered now. Each clears an
    /// earlier `ASKING`, except another one that directly follows it, though refused
    /// (`redis:src/networking.c`, `resetClient`).
    fn server_reached(&mut self, keeps_asking: bool) {
        self.pin_changed = true;
        self.connection.asking &= keeps_asking;
        self.suppression.answered(self.answered);
    }

    fn match_reply(&mut self, frame: &ReplyScanner) -> Result<(), Untrackable> {
        let head = self.head();
        let detail = self.marks.first().map_or(0, Mark::expected);
        self.server_reached(head == Some(Class::Asking) && detail == 0);
        let Some(class) = head else {
            self.count_replies(1);
            return Ok(());
        };
        let answer = match frame.top() {
            b'-' | b'!' => ReplyOutcome::Error,
            b'+' if frame.line().starts_with(b"QUEUED\r") => ReplyOutcome::Queued,
            _ => ReplyOutcome::Done,
        };
        self.marks.pop();
        self.count_replies(1);
        self.last_answer = Some((class, answer));
        self.features.answered(class);
        self.recorder.answered(class, answer, frame);
        let tracked = match answer {
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
        };
        // Nothing in flight begins or ends a transaction.
        if self.marks.is_empty() && !self.has_unmarked() {
            self.suppression.may_queue = self.connection.transaction;
        }
        tracked
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
                self.unadmitted = self.answered;
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
        if self.is_opaque() {
            return SessionState::Opaque;
        }
        if self.is_in_transaction() {
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

    /// Whether a transaction is open: an unmarked request may have ended it.
    pub(super) fn is_in_transaction(&self) -> bool {
        self.connection.transaction && !self.has_unmarked()
    }

    #[cfg(test)]
    pub(crate) fn allocated(&self) -> usize {
        self.marks.allocated() + self.recorder.allocated()
    }
}

// C. Marking requests whose reply must be inspected.
//
// The reply to a request without a mark is counted like any other, so every boundary stays known;
// the effect of the request does not. The session is pinned until a later `RESET` is answered,
// which clears any such effect. If a request cannot be counted without a mark, because its replies
// look like messages or change how replies are counted (`SUBSCRIBE` and similar commands, `HELLO`,
// `RESET`, `MONITOR`, `CLIENT REPLY ON`), the session becomes opaque.
impl Matcher {
    /// Marks the request that ends now.
    pub(super) fn mark(
        &mut self,
        class: Class,
        args: u32,
        max_marks: u16,
    ) -> Result<(), Untrackable> {
        let position = self.answered.wrapping_add(self.owed);
        let expected = match class.group() {
            ClassGroup::Subscribing => args - 1,
            _ if matches!(class, Class::Iterate | Class::Refused) => args,
            // Whether requests without replies precede it.
            _ if class == Class::Asking => u32::from(self.suppression.is_unconfirmed_at(position)),
            _ => 0,
        };
        if expected > MAX_EXPECTED {
            return Err(Untrackable);
        }
        let mark = Mark::new(position, class, expected);
        match class {
            _ if self.marks.push(mark, max_marks) => self.features.sent(class),
            // Without a mark, the cursor in the reply is not seen.
            Class::Iterate => self.affinity.pin_permanently(Pin::Cursor),
            // A blocking request is marked only to report it as blocking.
            _ if class.group() == ClassGroup::Blocking => {}
            _ if class.can_be_unmarked() => self.marks.record_unmarked(mark.at),
            _ => return Err(Untrackable),
        }
        Ok(())
    }

    /// Whether a transaction may be open when the server reads the next request. If nothing is in
    /// flight, that is known.
    pub(super) fn may_queue(&self) -> bool {
        let is_known = self.owed == 0 && !self.has_unmarked();
        self.suppression.may_queue && (self.connection.transaction || !is_known)
    }

    /// Whether a request that needs a mark has none. Its effect is unknown until a later `RESET` is
    /// answered.
    pub(super) fn has_unmarked(&self) -> bool {
        self.marks.last_unmarked().is_some()
    }

    /// Whether the request that ended last needs a mark and has none.
    pub(crate) fn last_is_unmarked(&self) -> bool {
        self.marks.last_unmarked() == Some(self.answered.wrapping_add(self.owed).wrapping_sub(1))
    }

    /// The class of the request that the next reply answers, if it is marked.
    pub(super) fn head(&self) -> Option<Class> {
        self.marks.first().filter(|mark| mark.at == self.answered).map(Mark::class)
    }

    /// `RESET` was answered: clears the unmarked requests before it.
    pub(super) fn forget_unmarked(&mut self) {
        let position = self.answered.wrapping_sub(1);
        if self.marks.last_unmarked().is_some_and(|last| position.wrapping_sub(last) < MAX_OWED) {
            self.marks.forget_unmarked();
        }
    }
}

// D. What pins the session to its server. A pin changes only with a request or reply that is not
// ordinary, so ordinary traffic never evaluates it.
impl Matcher {
    /// What pins the session to its server; `None` if it can be carried once nothing is in flight.
    pub(crate) fn pin(&self) -> Option<Pin> {
        match self.phase {
            LedgerPhase::Leaving | LedgerPhase::Opaque => {
                return Some(self.affinity.opaque_reason());
            }
            // The server is closing the connection.
            LedgerPhase::Ended => return None,
            LedgerPhase::Tracked => {}
        }
        let blocked = || self.head().is_some_and(|class| class.group() == ClassGroup::Blocking);
        let pins = [
            (self.has_unmarked(), Pin::TooManyInFlight),
            (self.connection.transaction, Pin::Transaction),
            (self.owed > 0 && blocked(), Pin::Blocking),
            (self.connection.watching, Pin::Watch),
            (self.connection.asking, Pin::Asking),
            (self.connection.tracking, Pin::Tracking),
            (!self.suppression.is_settled(), Pin::ReplyOff),
            (self.is_subscribed() && !self.knows_subscriptions(), Pin::Subscribed),
        ];
        let pinned = pins.into_iter().find(|(is, _)| *is).map(|(_, pin)| pin);
        pinned
            .or_else(|| self.affinity.pin(self.library()))
            .or_else(|| (self.wait_use == WaitUse::OnThisConnection).then_some(Pin::Wait))
            .or_else(|| self.features.pin())
            .or_else(|| self.recorder.state().is_in_doubt().then_some(Pin::UnknownState))
    }

    /// Whether the server keeps state for the connection that another connection would not have.
    pub(super) fn is_pinned(&self) -> bool {
        let ConnectionState { watching, asking, tracking, transaction: _, resp3: _ } =
            self.connection;
        watching
            || asking
            || tracking
            || self.has_unmarked()
            || self.features.pin().is_some()
            || !self.suppression.is_settled()
    }

    pub(crate) fn is_opaque(&self) -> bool {
        matches!(self.phase, LedgerPhase::Leaving | LedgerPhase::Opaque)
    }

    /// Stops tracking the session for good, and frees what was allocated.
    pub(crate) fn become_opaque(&mut self) {
        (self.phase, self.pin_changed) = (LedgerPhase::Opaque, true);
        self.marks = InFlightMarks::default();
        self.recorder = Recorder::default();
        self.features = ConnectionFeatures::default();
    }

    /// Records that a request of that class, or the reply to it, is about to make the session
    /// opaque.
    #[cold]
    pub(crate) fn record_opaque_reason(&mut self, class: Class) {
        self.affinity.permanent = Some(match class {
            Class::Monitor => Pin::Monitor,
            Class::Replication => Pin::Replication,
            Class::Debugger => Pin::Debugger,
            _ => Pin::NotFollowed,
        });
    }

    /// An unknown command begins, which pins the session permanently.
    pub(crate) fn pin_permanently(&mut self) {
        self.affinity.sent(Class::Unknown);
        self.pin_changed = true;
    }
}

// E. Carrying the session to another connection.
impl Matcher {
    /// An iterating command that sent the cursor with the digest `sent` was answered.
    pub(super) fn iterated(&mut self, sent: u32, outcome: ReplyOutcome, frame: &ReplyScanner) {
        match (outcome, frame.top()) {
            // The cursor is still valid: the client may send it again.
            (ReplyOutcome::Error, _) => {}
            (ReplyOutcome::Queued, _) => self.affinity.pin_permanently(Pin::Cursor),
            (ReplyOutcome::Done, b'+') => self.affinity.cursor_closed(sent),
            (ReplyOutcome::Done, _) => self.affinity.cursor_returned(sent, frame.cursor()),
        }
    }

    /// Whether all subscriptions are known by name.
    fn knows_subscriptions(&self) -> bool {
        self.subscriptions.are(self.recorder.state().names().counts())
    }

    /// Whether all subscriptions are known by name, and nothing else pins the session.
    pub(crate) fn can_resubscribe(&self) -> bool {
        !self.is_pinned() && self.knows_subscriptions()
    }

    /// The name of the client library; empty if it sent none.
    fn library(&self) -> &[u8] {
        self.recorder.state().text(Text::LibName)
    }

    /// The state to replay on another connection; `None` if the session cannot be carried.
    pub(crate) fn replay_state(&self) -> Option<&ReplayState> {
        let stays = self.has_unmarked()
            || self.wait_use == WaitUse::OnThisConnection
            || self.affinity.pin(self.library()).is_some();
        if stays { None } else { self.recorder.replay_state() }
    }

    /// Records that the session continues on a connection to another server than that of `before`.
    pub(crate) fn changed_server(&mut self, before: ServerAffinity) {
        (self.wait_use, self.pin_changed) = (WaitUse::Carried, true);
        self.affinity.carry_from(before);
    }
}
