//! The session's bookkeeping: what has been asked, what has been answered, and whether now is a
//! quiet moment.
//!
//! Two scanners find where frames end, the book says what they mean; the ledger holds the three
//! together and lets all of them go at once when one is lost. It is fed with exactly the bytes that
//! are forwarded, in their order, each side for itself, in pieces of any size; a request must be
//! shown before the reply to it. It never alters, delays or refuses a byte.
//!
//! Deliberately absent: buffers. Nothing of the stream is kept but a dozen bytes of a word under
//! way.

pub(crate) mod affinity;
pub(crate) mod budget;
mod carrying;
mod connection_state;
mod counting;
pub(crate) mod in_flight;
pub(crate) mod maintenance;
mod marking;
pub(crate) mod matcher;
pub(crate) mod pin;
mod pinning;
mod reply_suppression;
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
use crate::commands::stateless::StatelessCommands;
use crate::ledger::maintenance::MaintenanceHandshake;
use crate::ledger::matcher::{Matcher, Untrackable};
use crate::ledger::pin::Pin;
use crate::ledger::session_state::{
    Direction, FrameCounts, Hint, LedgerFault, MustEnd, ReplyOutcome, SessionState,
};
use crate::replay::recorder::may_be_copied;
use crate::replay::state::ReplayState;
use crate::scan::frame_runs::{self, RequestRun};
use crate::scan::limits::{Bounds, Limits};
use crate::scan::message_kind::MessageKind;
use crate::scan::reply::{FrameScan, ReplyScanner};
use crate::scan::request::{RequestScan, RequestScanner};

/// The bookkeeping of one session, fed with the bytes of both directions as they are forwarded. See
/// the crate's documentation for what it follows.
#[derive(Debug)]
pub struct Ledger {
    requests: RequestScanner,
    replies: ReplyScanner,
    matcher: Matcher,
    limits: Bounds,
    stateless: StatelessCommands,
}

impl Ledger {
    /// The ledger of a fresh connection: RESP2, nothing owed, between frames.
    #[must_use]
    pub fn new(limits: &Limits) -> Self {
        Self::with(Bounds::from(limits), StatelessCommands::default())
    }

    /// The same ledger, for a session in which these commands count as ones that leave no state on
    /// the connection.
    #[must_use]
    pub fn with_stateless(mut self, stateless: StatelessCommands) -> Self {
        self.stateless = stateless;
        self
    }

    fn with(limits: Bounds, stateless: StatelessCommands) -> Self {
        Self {
            requests: RequestScanner::new(),
            replies: ReplyScanner::new(),
            matcher: Matcher::new(),
            limits,
            stateless,
        }
    }

    /// Takes `bytes` that go from the client to the server, in order.
    pub fn request(&mut self, bytes: &[u8]) {
        let mut input = bytes;
        if self.requests.at_boundary() && self.matcher.may_count_requests() {
            let RequestRun { whole, begun, rest } =
                frame_runs::requests(input, &self.limits, !self.matcher.may_queue());
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

    /// Like [`request`](Self::request), but stops right behind the first request that ends within
    /// `bytes`, and returns how many bytes it took: all of them if none ended, or if the session is
    /// opaque. [`last_request`](Self::last_request) then tells its class.
    pub fn request_one(&mut self, bytes: &[u8]) -> usize {
        let mut input = bytes;
        self.take_request(&mut input);
        bytes.len() - input.len()
    }

    fn take_request(&mut self, input: &mut &[u8]) {
        if self.matcher.is_opaque() {
            *input = &[];
            return;
        }
        let (bytes, first) = (*input, self.requests.at_boundary());
        let tracked = match self.requests.scan(input, &self.limits) {
            RequestScan::More => return self.record_piece(bytes, first),
            RequestScan::Request(class, args) => {
                let class = if class == Class::Unknown {
                    let Some(piece) = taken(bytes, input) else {
                        *input = &[];
                        return self.fail(LedgerFault::Request);
                    };
                    self.look_up(piece, (first, true)).unwrap_or(Class::Unknown)
                } else {
                    class
                };
                let tracked = self.matcher.request(class, args, self.limits.marks);
                if (class != Class::Ordinary || !first) && self.limits.memory > 0 {
                    let Some(piece) = taken(bytes, input) else {
                        *input = &[];
                        return self.fail(LedgerFault::Request);
                    };
                    if self.matcher.last_is_unmarked() {
                        self.matcher.recorder().unmarked(class);
                    } else {
                        self.matcher.recorder().request(
                            class,
                            piece,
                            first,
                            self.limits.copy_limits(),
                        );
                    }
                }
                if tracked == Err(Untrackable) {
                    self.matcher.record_opaque_reason(class);
                }
                tracked
            }
            RequestScan::Empty => self.matcher.empty_request(),
            RequestScan::Invalid => Err(Untrackable),
        };
        if tracked == Err(Untrackable) {
            *input = &[];
            self.become_opaque();
        }
    }

    /// A request goes on behind `piece`. What may have to be remembered is kept until that is
    /// known.
    fn record_piece(&mut self, piece: &[u8], first: bool) {
        if self.limits.memory == 0 {
            return;
        }
        let (mut class, copy_limits) = (self.requests.class_so_far(), self.limits.copy_limits());
        if class == Some(Class::Unknown) {
            class = self.look_up(piece, (first, false));
        }
        if may_be_copied(class, copy_limits) {
            self.matcher.recorder().record_piece(class, piece, first, copy_limits);
        } else if !first {
            self.matcher.recorder().drop_pieces();
        }
    }

    /// The class of a request that the table does not list and of which `piece` has come, its
    /// `(beginning, end)` included or not. `None` if another word is needed.
    #[cold]
    fn look_up(&mut self, piece: &[u8], of: (bool, bool)) -> Option<Class> {
        if self.limits.memory == 0 || self.matcher.is_pinned_permanently() {
            return Some(Class::Unknown);
        }
        // Nearly always the request has come as a whole.
        if of == (true, true) && self.stateless.has_command_of(piece) {
            self.requests.leave_no_state();
            return Some(Class::Ordinary);
        }
        let class = self.matcher.recorder().look_up(&self.stateless, piece, of);
        match class {
            Some(Class::Unknown) => self.matcher.pin_permanently(),
            Some(_) => self.requests.leave_no_state(),
            None => {}
        }
        class
    }

    /// Takes `bytes` that go from the server to the client, in order.
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

    /// Like [`reply`](Self::reply), but stops right behind the first frame (reply or push) that
    /// ends within `bytes`, and returns how many bytes it took: all of them if none ended, or if
    /// the session is opaque.
    pub fn reply_one(&mut self, bytes: &[u8]) -> usize {
        let mut input = bytes;
        self.take_reply(&mut input);
        bytes.len() - input.len()
    }

    fn take_reply(&mut self, input: &mut &[u8]) {
        if self.matcher.is_opaque() {
            *input = &[];
            return;
        }
        let tracked =
            match self.replies.scan(input, &self.limits, self.matcher.must_inspect_arrays()) {
                FrameScan::More => return,
                FrameScan::Frame => {
                    let tracked = self.matcher.frame(&self.replies);
                    if let (Err(Untrackable), Some((class, _))) =
                        (tracked, self.matcher.last_answer())
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

    /// Takes the first frame that ends within `bytes`, like [`reply_one`](Self::reply_one), and
    /// returns it and what follows it.
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

    /// Levels and marks that have been allocated.
    #[cfg(test)]
    pub(crate) fn allocated(&self) -> usize {
        self.replies.allocated() + self.matcher.allocated()
    }

    #[cold]
    fn become_opaque(&mut self) {
        self.replies.clear();
        self.matcher.become_opaque();
    }

    #[cold]
    fn fail(&mut self, fault: LedgerFault) {
        self.replies.clear();
        self.matcher.fail(fault);
    }

    /// Whether the session could go on over another connection, after a [`Replay`](crate::Replay)
    /// on it: it is quiet, but for messages that may come, and all that the server keeps for it is
    /// known and can be had again. Never if [`Limits::memory`] is zero, and not while it is
    /// subscribed if [`Limits::names`] is.
    #[must_use]
    pub fn can_be_carried(&self) -> bool {
        let still = match self.session_state() {
            SessionState::Quiet => true,
            SessionState::Subscribed => self.matcher.can_resubscribe(),
            _ => false,
        };
        still && self.replay_state().is_some()
    }

    /// What keeps the session on its server; `None` if it can be carried over once nothing is in
    /// flight. See [`Pin`].
    #[must_use]
    pub fn pin(&self) -> Option<Pin> {
        self.matcher.pin()
    }

    /// Whether [`pin`](Self::pin) may have changed since this was last asked.
    #[inline]
    pub fn take_pin_change(&mut self) -> bool {
        self.matcher.take_changed()
    }

    /// The name of the first command that was neither in the table nor declared, cut and fit for a
    /// log. Nothing is kept where [`Limits::memory`] is zero.
    #[must_use]
    pub fn unknown_command(&self) -> Option<&str> {
        self.matcher.unknown_command()
    }

    /// Whether the frame from the server that ended last was a message of a subscription.
    pub(crate) fn last_is_message(&self) -> bool {
        self.replies.message().0 == MessageKind::Message
    }

    /// The type of the frame from the server that ended last, and its first bytes if it is a simple
    /// string or an error.
    pub(crate) fn last_line(&self) -> (u8, &[u8]) {
        (self.replies.top(), self.replies.line())
    }

    /// Why the session must not go on, if it must not.
    #[inline]
    #[must_use]
    pub fn must_end(&self) -> Option<MustEnd> {
        self.matcher.must_end()
    }

    /// Whether the session was carried over and then called a script within a transaction that its
    /// former server may have had and this one has not. The replies are right; but a client that
    /// keeps account of scripts for each connection would do so again, and only a new connection
    /// helps it.
    #[must_use]
    pub fn relies_on_former_scripts(&self) -> bool {
        self.matcher.relies_on_former_scripts()
    }

    pub(crate) fn replay_state(&self) -> Option<Option<&ReplayState>> {
        if self.limits.memory == 0 { None } else { self.matcher.replay_state() }
    }

    pub(crate) fn is_opaque(&self) -> bool {
        self.matcher.is_opaque()
    }

    pub(crate) fn was_carried(&mut self, before: &Self) {
        self.matcher.was_carried(&before.matcher);
    }

    /// Whether `CLIENT MAINT_NOTIFICATIONS` was sent and not answered yet.
    #[inline]
    #[must_use]
    pub fn awaits_handshake_reply(&self) -> bool {
        self.matcher.awaits_handshake_reply()
    }

    /// Whether the next frame from the server answers it, unless that is a push: only at a boundary
    /// between two replies.
    #[must_use]
    pub fn next_reply_is_handshake(&self) -> bool {
        self.matcher.next_reply_is_handshake() && self.replies.at_boundary()
    }

    /// What the client agreed to be sent about maintenance. Nothing unless the session speaks RESP3
    /// now, which has pushes.
    #[must_use]
    pub fn maintenance_handshake(&self) -> MaintenanceHandshake {
        self.matcher.maintenance_handshake()
    }

    /// Whether the client was last told that a failover is under way. Goes along when the session
    /// is carried over.
    #[must_use]
    pub fn failover_announced(&self) -> bool {
        self.matcher.failover_announced()
    }

    /// Notes what the client was last told of failovers.
    pub fn set_failover_announced(&mut self, under_way: bool) {
        self.matcher.set_failover_announced(under_way);
    }

    /// Agrees to the handshake in the server's place, right after the server refused it. Whether
    /// that is possible: not in RESP2, and not in a transaction, which the refusal has spoiled.
    pub fn accept_handshake(&mut self) -> bool {
        self.matcher.accept_handshake()
    }

    /// The same limits, for a ledger that continues this one.
    pub(crate) fn successor(&self) -> Self {
        Self::with(self.limits, self.stateless.clone())
    }

    /// Whether the bytes seen so far end between two frames of that direction. Never true of an
    /// opaque session.
    #[must_use]
    pub fn at_boundary(&self, direction: Direction) -> bool {
        !self.matcher.is_opaque()
            && match direction {
                Direction::Request => self.requests.at_boundary(),
                Direction::Reply => self.replies.at_boundary(),
            }
    }

    /// How many requests have been sent whose last reply has not come yet. For an opaque session:
    /// how many there were when it turned.
    #[must_use]
    pub fn owed(&self) -> u64 {
        u64::from(self.matcher.owed())
    }

    /// Where the session stands.
    #[must_use]
    pub fn session_state(&self) -> SessionState {
        self.matcher.session_state(self.requests.at_boundary() && self.replies.at_boundary())
    }

    /// Whether the next word is the client's: nothing is owed, no frame of the server's is under
    /// way, and neither a subscription nor an open transaction is a reason for silence. A part of a
    /// request changes nothing about that.
    #[must_use]
    pub fn awaits_client(&self) -> bool {
        self.replies.at_boundary() && self.matcher.awaits_client()
    }

    /// Whether a request has ended since [`take_counts`](Self::take_counts), as far as that is
    /// known: an opaque session may have sent any.
    #[must_use]
    pub fn has_sent_requests(&self) -> bool {
        self.matcher.has_sent_requests()
    }

    /// How many bytes of the bulk string under way are still to come that nobody needs to look at,
    /// without its final `\r\n`: they may be moved unseen if [`skip_body`](Self::skip_body) is
    /// told. Zero if there is none, and if the session is opaque.
    #[must_use]
    pub fn body_left(&self, direction: Direction) -> u64 {
        match direction {
            _ if self.matcher.is_opaque() => 0,
            Direction::Request => u64::from(self.requests.body_left()),
            Direction::Reply => u64::from(self.replies.body_left()),
        }
    }

    /// Notes that `n` bytes have been moved without being shown. More than
    /// [`body_left`](Self::body_left) is a mistake, after which the boundaries are not known any
    /// more: the session [must end](Self::must_end).
    pub fn skip_body(&mut self, direction: Direction, n: u64) {
        if self.matcher.is_opaque() {
            return;
        }
        match (direction, u32::try_from(n)) {
            (Direction::Request, Ok(n)) if n <= self.requests.body_left() => {
                self.matcher.recorder().drop_pieces();
                self.requests.skip_body(n);
            }
            (Direction::Reply, Ok(n)) if n <= self.replies.body_left() => self.replies.skip_body(n),
            _ => self.fail(LedgerFault::Unseen),
        }
    }

    /// One of the hints seen since they were last taken, the gravest first; `None` once all have
    /// been taken.
    pub fn take_hint(&mut self) -> Option<Hint> {
        self.replies.take_hint()
    }

    /// The frames counted since this was last called. Nothing is counted of an opaque session.
    pub fn take_counts(&mut self) -> FrameCounts {
        self.matcher.take_counts()
    }

    /// The class of the request that ended last; `None` if it was an empty one, or none has ended
    /// yet. With [`request_one`](Self::request_one), the place for an observer that records what
    /// can be played again.
    #[must_use]
    pub fn last_request(&self) -> Option<Class> {
        self.requests.last()
    }

    /// The class and answer of the last request answered, unless it was ordinary. With
    /// [`reply_one`](Self::reply_one), the other half of what an observer needs.
    #[must_use]
    pub fn last_answer(&self) -> Option<(Class, ReplyOutcome)> {
        self.matcher.last_answer()
    }
}

/// What was taken off the front of `bytes` if `rest` is what is left; `None` if that cannot be.
fn taken<'a>(bytes: &'a [u8], rest: &[u8]) -> Option<&'a [u8]> {
    bytes.get(..bytes.len().checked_sub(rest.len())?)
}
