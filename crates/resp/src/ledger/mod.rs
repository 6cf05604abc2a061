//! The ledger: tracks the requests and replies of one session, and the state that the server keeps
//! for it.
//!
//! Two scanners find frame boundaries, and the [`Matcher`] interprets the frames. If one of the
//! three can no longer follow, the whole session becomes opaque. The ledger must be given exactly
//! the bytes that are forwarded, in order per direction, in pieces of any size, and a request
//! before the reply to it. It never alters, delays or refuses a byte.
//!
//! There are no buffers: of the stream, only the beginning of an incomplete word is kept.

pub(crate) mod affinity;
pub(crate) mod budget;
pub(crate) mod client_state;
pub(crate) mod in_flight;
pub(crate) mod maintenance;
pub(crate) mod matcher;
pub(crate) mod recorder;
pub(crate) mod replay_state;
pub(crate) mod resting;
pub(crate) mod session_state;

#[cfg(test)]
mod affinity_tests;
#[cfg(test)]
mod conversation_tests;
#[cfg(test)]
mod frame_run_tests;
#[cfg(test)]
mod ledger_tests;
#[cfg(test)]
mod maintenance_tests;
#[cfg(test)]
pub(crate) mod model;
#[cfg(test)]
mod subscription_tests;

use crate::commands::class::Class;
use crate::commands::refused::Refusals;
use crate::commands::stateless::StatelessCommands;
use crate::ledger::affinity::flag;
use crate::ledger::matcher::{LedgerPhase, Matcher, Untrackable, WaitUse};
use crate::ledger::recorder::may_be_copied;
use crate::ledger::replay_state::ReplayState;
use crate::ledger::session_state::Pin;
use crate::ledger::session_state::{
    Direction, FrameCounts, LedgerFault, MustEnd, ReplyOutcome, SessionState,
};
use crate::scan::bulk;
use crate::scan::frame_runs::{self, RequestRun};
use crate::scan::limits::{Bounds, Limits};
use crate::scan::message_kind::{Hint, MessageKind};
use crate::scan::reply::{FrameScan, ReplyScanner};
use crate::scan::request::{RequestScan, RequestScanner};
use crate::scan::screen::{Screen, Screened};

/// Tracks one session from the bytes of both directions as they are forwarded. See the
/// documentation of the crate. The default is that of a new connection, and records nothing.
#[derive(Debug, Default)]
pub struct Ledger {
    requests: RequestScanner,
    replies: ReplyScanner,
    matcher: Matcher,
    limits: Bounds,
    stateless: StatelessCommands,
    refusals: Refusals,
    /// The screen within a request.
    screen: Option<Box<Screen>>,
    /// The length of bytes that were admitted and are a run of ordinary requests, and their number.
    admitted: (u32, u32),
}

impl Ledger {
    /// The ledger of a new connection: RESP2, nothing owed, between frames.
    #[must_use]
    pub fn new(limits: &Limits) -> Self {
        Self { limits: Bounds::from(limits), ..Self::default() }
    }

    /// Adds commands that the operator has declared stateless.
    #[must_use]
    pub fn with_stateless(mut self, stateless: StatelessCommands) -> Self {
        self.stateless = stateless;
        self
    }

    /// Adds commands that are refused.
    #[must_use]
    pub fn with_refusals(mut self, refusals: Refusals) -> Self {
        self.refusals = refusals;
        self
    }

    /// A ledger that records nothing, of a connection that is set to a protocol version.
    #[must_use]
    pub fn of_protocol(resp3: bool) -> Self {
        let mut ledger = Self::default();
        ledger.matcher.connection.resp3 = resp3;
        ledger
    }

    /// A ledger that records nothing, and follows the connection of this one from here on. Nothing
    /// may be in flight on it.
    #[must_use]
    pub fn follower(&self) -> Self {
        let mut ledger = Self::of_protocol(self.matcher.connection.resp3);
        ledger.matcher.connection = self.matcher.connection;
        ledger.matcher.subscriptions = self.matcher.subscriptions;
        ledger
    }

    /// Tracks `bytes` from the client to the server, in order.
    pub fn request(&mut self, bytes: &[u8]) {
        let mut input = bytes;
        let (len, whole) = std::mem::take(&mut self.admitted);
        if self.requests.at_boundary() && self.matcher.may_count_requests() {
            let RequestRun { whole, begun, rest } = if len > 0 && bulk::size(len) == bytes.len() {
                RequestRun { whole, begun: None, rest: &[] }
            } else {
                frame_runs::requests(input, &self.limits, !self.matcher.suppression.may_queue, None)
            };
            self.requests.skip_run(whole, begun);
            input = rest;
            if self.matcher.count_requests(whole) == Err(Untrackable) {
                return self.become_opaque();
            }
        }
        while !input.is_empty() {
            self.take_request(&mut input);
        }
    }

    /// Like [`request`](Self::request), but stops after the first request that ends within `bytes`,
    /// and returns the number of bytes read: all of them if none ended, or if the session is
    /// opaque. Its class is then [`last_request`](Self::last_request).
    pub fn request_one(&mut self, bytes: &[u8]) -> usize {
        let mut input = bytes;
        self.admitted = (0, 0);
        self.take_request(&mut input);
        bytes.len() - input.len()
    }

    // Inlined, it would cost the run of ordinary requests registers.
    #[inline(never)]
    fn take_request(&mut self, input: &mut &[u8]) {
        if self.is_opaque() {
            *input = &[];
            return;
        }
        let (bytes, first) = (*input, self.requests.at_boundary());
        let tracked = match self.requests.scan(input, &self.limits) {
            RequestScan::More => return self.record_piece(bytes, first),
            RequestScan::Request(class, args) => {
                let Some(piece) = taken(bytes, input) else {
                    *input = &[];
                    return self.fail(LedgerFault::Request);
                };
                let class = if class == Class::Unknown {
                    self.look_up(piece, first, true).unwrap_or(Class::Unknown)
                } else {
                    class
                };
                let tracked = self.matcher.request(class, args, self.limits.marks);
                if (class != Class::Ordinary || !first) && self.limits.memory > 0 {
                    if self.matcher.last_is_unmarked() {
                        self.matcher.recorder.unmarked(class);
                    } else {
                        self.matcher.recorder.request(class, piece, first, &self.limits);
                    }
                }
                if tracked == Err(Untrackable) {
                    self.matcher.record_opaque_reason(class);
                }
                tracked
            }
            RequestScan::Empty => self.matcher.empty_request(),
            RequestScan::Invalid => {
                self.matcher.affinity.set(flag::INVALID, true);
                Err(Untrackable)
            }
        };
        if tracked == Err(Untrackable) {
            *input = &[];
            if self.awaits_handshake_reply() {
                (self.matcher.phase, self.matcher.pin_changed) = (LedgerPhase::Leaving, true);
            } else {
                self.become_opaque();
            }
        }
    }

    /// `piece` is a part of a request and not its end. It is kept if the request may have to be
    /// recorded.
    fn record_piece(&mut self, piece: &[u8], first: bool) {
        if self.limits.memory == 0 {
            return;
        }
        let mut class = self.requests.class_so_far();
        if class == Some(Class::Unknown) {
            class = self.look_up(piece, first, false);
        }
        if may_be_copied(class, &self.limits) {
            self.matcher.recorder.record_piece(class, piece, first, &self.limits);
        } else if !first {
            self.matcher.recorder.drop_pieces();
        }
    }

    /// The class of a request whose command is not in the table, from a `piece` of it that includes
    /// its `(beginning, end)` or not. `None` if another word is needed.
    #[cold]
    fn look_up(&mut self, piece: &[u8], first: bool, whole: bool) -> Option<Class> {
        if self.limits.memory == 0 || self.matcher.affinity.permanent.is_some() {
            return Some(Class::Unknown);
        }
        // Nearly always the piece is the whole request.
        if first && whole && self.stateless.has_command_of(piece) {
            self.requests.set_stateless();
            return Some(Class::Ordinary);
        }
        let class = self.matcher.recorder.look_up(&self.stateless, piece, first, whole);
        match class {
            Some(Class::Unknown) => self.matcher.pin_permanently(),
            Some(_) => self.requests.set_stateless(),
            None => {}
        }
        class
    }

    /// Tracks `bytes` from the server to the client, in order.
    pub fn reply(&mut self, bytes: &[u8]) {
        let mut input = bytes;
        let most = if self.replies.at_boundary() { self.matcher.countable_replies() } else { 0 };
        if most > 0 {
            let (whole, rest) = frame_runs::replies(input, most, &self.limits);
            if whole > 0 {
                self.replies.skip_run();
                self.matcher.count_replies(whole);
            }
            input = rest;
        }
        while !input.is_empty() {
            self.take_reply(&mut input);
        }
    }

    /// Whether an opaque session's replies are not tracked either, from now on.
    #[cold]
    fn has_left(&mut self) -> bool {
        if self.matcher.phase == LedgerPhase::Leaving && !self.awaits_handshake_reply() {
            self.become_opaque();
        }
        self.matcher.phase == LedgerPhase::Opaque
    }

    fn take_reply(&mut self, input: &mut &[u8]) {
        if self.is_opaque() && self.has_left() {
            *input = &[];
            return;
        }
        let tracked =
            match self.replies.scan(input, &self.limits, self.matcher.must_inspect_arrays()) {
                FrameScan::More => return,
                FrameScan::Frame => {
                    let tracked = self.matcher.frame(&self.replies);
                    if let (Err(Untrackable), Some((class, _))) =
                        (tracked, self.matcher.last_answer)
                    {
                        self.matcher.record_opaque_reason(class);
                    }
                    tracked
                }
                FrameScan::Invalid if self.replies.stack.is_broken() => {
                    *input = &[];
                    return self.fail(LedgerFault::Reply);
                }
                FrameScan::Invalid => Err(Untrackable),
            };
        if tracked == Err(Untrackable) {
            *input = &[];
            self.become_opaque();
        }
    }

    /// Like [`reply`](Self::reply), but stops after the first frame (reply or push message) that
    /// ends within `bytes`. Returns the bytes read, which are all of them if none ended or if the
    /// session is opaque, and the rest.
    pub fn reply_split<'a>(&mut self, bytes: &'a [u8]) -> (&'a [u8], &'a [u8]) {
        let mut rest = bytes;
        self.take_reply(&mut rest);
        match taken(bytes, rest) {
            Some(piece) => (piece, rest),
            None => {
                self.fail(LedgerFault::Reply);
                (bytes, &[])
            }
        }
    }

    /// Allocated nesting levels and marks.
    #[cfg(test)]
    pub(crate) fn allocated(&self) -> usize {
        self.replies.allocated() + self.matcher.allocated()
    }

    #[cold]
    fn become_opaque(&mut self) {
        self.replies.stack.clear();
        self.matcher.become_opaque();
    }

    /// An invariant was violated.
    #[cold]
    fn fail(&mut self, fault: LedgerFault) {
        self.become_opaque();
        self.matcher.must_end = Some(MustEnd::Broken(fault));
    }

    /// Whether the session can continue on another connection after a [`Replay`](crate::Replay)
    /// there: it is quiet, or only subscribed, and all state that the server keeps for it is known
    /// and can be replayed. Never if [`Limits::memory`] is zero, and not while it is subscribed if
    /// [`Limits::names`] is zero.
    #[must_use]
    pub fn can_be_carried(&self) -> bool {
        let still = match self.session_state() {
            SessionState::Quiet => true,
            SessionState::Subscribed => self.matcher.can_resubscribe(),
            _ => false,
        };
        still && self.replay_state().is_some()
    }

    /// What pins the session to its server; `None` if it can be carried once nothing is in flight.
    #[must_use]
    pub fn pin(&self) -> Option<Pin> {
        self.matcher.pin()
    }

    /// Whether [`pin`](Self::pin) may have changed since the last call.
    #[inline]
    pub fn take_pin_change(&mut self) -> bool {
        // Written only if it is set, because this is called at every wake-up.
        let changed = self.matcher.pin_changed;
        if changed {
            self.matcher.pin_changed = false;
        }
        changed
    }

    /// Whether neither [`must_end`](Self::must_end) nor [`take_pin_change`](Self::take_pin_change)
    /// has anything to report.
    #[inline]
    #[must_use]
    pub fn is_uneventful(&self) -> bool {
        self.matcher.must_end.is_none() && !self.matcher.pin_changed
    }

    /// The name of the first command that is neither in the table nor declared stateless, truncated
    /// and safe for a log. Not recorded if [`Limits::memory`] is zero.
    #[must_use]
    pub fn unknown_command(&self) -> Option<&str> {
        self.matcher.recorder.unknown_command()
    }

    /// Whether the server closes the connection because of what the client sent: the last reply
    /// says so, or the client sent something that is not a request, or one of two words by which
    /// the server recognizes HTTP (`redis:src/networking.c`, `securityWarningCommand`). The end of
    /// the connection says nothing about the server then.
    #[must_use]
    pub fn provokes_close(&self) -> bool {
        let (kind, line) = self.last_line();
        let is_http = |name: &str| ["POST", "host:"].iter().any(|it| it.eq_ignore_ascii_case(name));
        self.matcher.affinity.is(flag::INVALID)
            || self.unknown_command().is_some_and(is_http)
            || (kind == b'-' && line.starts_with(b"ERR Protocol error"))
    }

    /// Whether the last frame from the server was a message of a subscription.
    pub(crate) fn last_is_message(&self) -> bool {
        self.replies.message().0 == MessageKind::Message
    }

    /// The type of the last frame from the server, and its first bytes if it was a simple string or
    /// an error.
    pub(crate) fn last_line(&self) -> (u8, &[u8]) {
        (self.replies.top(), self.replies.line())
    }

    /// Why the session must be closed, if it must.
    #[inline]
    #[must_use]
    pub fn must_end(&self) -> Option<MustEnd> {
        self.matcher.must_end
    }

    /// Whether the session was carried and then, in a transaction, called a script that its former
    /// server may have cached and this one has not. The replies are correct, but a client that
    /// records loaded scripts per connection would do so again, and only a new connection corrects
    /// that.
    #[must_use]
    pub fn relies_on_former_scripts(&self) -> bool {
        self.matcher.affinity.is(flag::FORMER_SCRIPT)
    }

    pub(crate) fn replay_state(&self) -> Option<&ReplayState> {
        if self.limits.memory == 0 { None } else { self.matcher.replay_state() }
    }

    /// Whether the server has served the client on this connection.
    pub(crate) fn is_admitted(&self) -> bool {
        self.matcher.is_admitted()
    }

    /// What is recorded of the session, parts in doubt included.
    pub(crate) fn recorded_state(&self) -> &ReplayState {
        self.matcher.recorder.state()
    }

    /// The session continues on another connection to the same server, in the same state. Writes
    /// were made on the former one, so `WAIT` ends it.
    pub fn changed_connection(&mut self) {
        if self.matcher.wait_use == WaitUse::Never {
            self.matcher.wait_use = WaitUse::Carried;
        }
    }

    /// Whether the client was told the ID of the connection that it is on.
    #[must_use]
    pub fn knows_connection_id(&self) -> bool {
        self.matcher.affinity.is(flag::KNOWS_ID)
    }

    /// The session has given up its connection. The client is told no ID before it gets another.
    pub fn leave_connection(&mut self) {
        self.matcher.affinity.clear(flag::KNOWS_ID);
    }

    /// The session continues on a connection to another server that was set to the same state.
    pub fn changed_server(&mut self) {
        let affinity = self.matcher.affinity;
        self.matcher.changed_server(affinity);
    }

    pub(crate) fn is_opaque(&self) -> bool {
        self.matcher.is_opaque()
    }

    /// Records that the session was carried here from the connection of `before`.
    pub(crate) fn was_carried(&mut self, before: &Self) {
        self.matcher.changed_server(before.matcher.affinity);
        self.matcher.features.carry_from(&before.matcher.features);
    }

    /// A new ledger with the same limits and declared commands.
    pub(crate) fn successor(&self) -> Self {
        Self {
            limits: self.limits,
            stateless: self.stateless.clone(),
            refusals: self.refusals.clone(),
            ..Self::default()
        }
    }

    /// Whether the bytes so far end at a frame boundary of that direction. Never true of an opaque
    /// session, except up to the last reply that may have to be replaced.
    #[inline]
    #[must_use]
    pub fn at_boundary(&self, direction: Direction) -> bool {
        match direction {
            Direction::Request => !self.is_opaque() && self.requests.at_boundary(),
            Direction::Reply => {
                self.matcher.phase != LedgerPhase::Opaque && self.replies.at_boundary()
            }
        }
    }

    /// Number of requests whose last reply has not arrived. Of an opaque session: the number when
    /// it became opaque.
    #[must_use]
    pub fn owed(&self) -> u64 {
        u64::from(self.matcher.owed)
    }

    /// The state of the session.
    #[must_use]
    pub fn session_state(&self) -> SessionState {
        let dropping = self.screen.as_ref().is_some_and(|screen| screen.is_dropping());
        let between = self.requests.at_boundary() && self.replies.at_boundary() && !dropping;
        self.matcher.session_state(between)
    }

    /// Whether it is the client's turn: nothing is owed, no frame from the server is incomplete,
    /// and there is neither a subscription nor an open transaction. An incomplete request does not
    /// change that.
    #[must_use]
    pub fn awaits_client(&self) -> bool {
        self.replies.at_boundary()
            && self.matcher.phase == LedgerPhase::Tracked
            && self.matcher.owed == 0
            && !self.matcher.is_in_transaction()
            && !self.matcher.is_subscribed()
    }

    /// Whether the next request gets a reply, and so did all that are known to be executed.
    #[must_use]
    pub fn answers_all(&self) -> bool {
        self.matcher.suppression.is_settled()
    }

    /// Whether the request that ended last changes the connection in a way that is not followed,
    /// because too many such requests are in flight.
    #[must_use]
    pub fn last_is_unmarked(&self) -> bool {
        self.matcher.last_is_unmarked()
    }

    /// Whether a transaction may be open when the server reads the next request.
    #[must_use]
    pub fn may_queue(&self) -> bool {
        self.matcher.may_queue()
    }

    /// Whether a request has ended since [`take_counts`](Self::take_counts). True of an opaque
    /// session, of which that is not known.
    #[must_use]
    pub fn has_sent_requests(&self) -> bool {
        self.uncounted_requests() > 0 || self.is_opaque()
    }

    /// Remaining bytes of the current bulk string, without its final `\r\n`, that the ledger need
    /// not see: they may be forwarded without it if [`skip_body`](Self::skip_body) is called. Zero
    /// if there is no such string, or if the session is opaque.
    #[inline]
    #[must_use]
    pub fn body_left(&self, direction: Direction) -> u64 {
        match direction {
            _ if self.is_opaque() => 0,
            Direction::Request => u64::from(self.requests.body_left()),
            Direction::Reply => u64::from(self.replies.body_left()),
        }
    }

    /// Records that `n` bytes were forwarded without being shown. More than
    /// [`body_left`](Self::body_left) is an error after which the boundaries are unknown: the
    /// session [must end](Self::must_end).
    pub fn skip_body(&mut self, direction: Direction, n: u64) {
        if self.is_opaque() {
            return;
        }
        match (direction, u32::try_from(n)) {
            (Direction::Request, Ok(n)) if n <= self.requests.body_left() => {
                self.matcher.recorder.drop_pieces();
                self.requests.skip_body(n);
            }
            (Direction::Reply, Ok(n)) if n <= self.replies.body_left() => self.replies.skip_body(n),
            _ => self.fail(LedgerFault::Unseen),
        }
    }

    /// The next of the hints seen since they were last taken, in order of severity; `None` if there
    /// is none.
    #[inline]
    pub fn take_hint(&mut self) -> Option<Hint> {
        self.replies.take_hint()
    }

    /// The frames counted since the last call. Frames of an opaque session are not counted.
    #[inline]
    pub fn take_counts(&mut self) -> FrameCounts {
        std::mem::take(&mut self.matcher.counts)
    }

    /// The requests that have ended since [`take_counts`](Self::take_counts).
    #[must_use]
    pub fn uncounted_requests(&self) -> u32 {
        self.matcher.counts.requests
    }

    /// The class of the request that ended last; `None` if it was empty, or if none has ended.
    #[must_use]
    pub fn last_request(&self) -> Option<Class> {
        self.requests.last()
    }

    /// The class and outcome of the request that was answered last, unless it was ordinary.
    #[must_use]
    pub fn last_answer(&self) -> Option<(Class, ReplyOutcome)> {
        self.matcher.last_answer
    }
}

/// Screening requests before they are forwarded: see [`Screen`]. Nearly all requests are short,
/// whole and ordinary. These are read once, before they are forwarded, and only counted afterwards.
/// The caller replaces the reply to a refused request.
impl Ledger {
    /// Whether bytes that were read from the client may be forwarded as they are, without
    /// [`screen`](Self::screen). `recorded`: they are recorded next.
    #[inline]
    pub fn admits(&mut self, bytes: &[u8], recorded: bool) -> bool {
        let Some(rules) = self.refusals.rules() else { return true };
        if self.screen.is_some() || rules.has_frequent {
            return false;
        }
        let scripts = !self.matcher.suppression.may_queue;
        let run = frame_runs::requests(bytes, &self.limits, scripts, Some(rules));
        let admitted = run.rest.is_empty() && run.begun.is_none();
        if admitted && recorded {
            self.admitted = (u32::try_from(bytes.len()).unwrap_or_default(), run.whole);
        }
        admitted
    }

    /// Reads bytes that were not [admitted](Self::admits), and holds at most `most` bytes after
    /// that. `None` if they are to be forwarded as they are.
    #[cold]
    pub fn screen(&mut self, bytes: &[u8], most: usize) -> Option<Screened> {
        let rules = self.refusals.rules()?;
        let mut kept = self.screen.take();
        let mut fresh = Screen::default();
        let screen = kept.as_deref_mut().unwrap_or(&mut fresh);
        let screened = screen.read(rules, bytes, most);
        if !screen.is_idle() {
            self.screen = Some(kept.unwrap_or_else(|| Box::new(fresh)));
        }
        screened
    }

    /// `n` bytes of a body were read and are forwarded without being shown.
    pub fn skip_screen(&mut self, n: u64) {
        if let Some(screen) = &mut self.screen {
            screen.scanner.skip_body(u32::try_from(n).unwrap_or(u32::MAX));
        }
    }

    /// Bytes of memory that hold what was read and is not to be forwarded yet.
    #[must_use]
    pub fn screened(&self) -> usize {
        self.screen.as_ref().map_or(0, |screen| screen.held.capacity())
    }

    /// Whether bytes were read that are not to be forwarded yet.
    #[must_use]
    pub fn is_screening(&self) -> bool {
        self.screen.is_some()
    }

    /// Takes the bytes that were read and are not to be forwarded yet. They are screened again,
    /// with the bytes before them that were not forwarded.
    pub fn take_screened(&mut self) -> Vec<u8> {
        self.screen.take().map(|screen| screen.held).unwrap_or_default()
    }
}

/// The part of `bytes` before `rest`, which is its end; `None` if `rest` is too long.
fn taken<'a>(bytes: &'a [u8], rest: &[u8]) -> Option<&'a [u8]> {
    bytes.get(..bytes.len().checked_sub(rest.len())?)
}
