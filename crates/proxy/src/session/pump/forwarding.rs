//! The two forwarding policies of a session: what may be forwarded, and the ledger that records it.
//!
//! Requests are recorded after they were written, exactly as far as they were, so the boundary to
//! what was never forwarded is known to the byte. Replies are recorded as soon as they were read,
//! because a hint in them is worth more the earlier it is known.

use resp::{Direction, Ledger, Screened, SessionState};
use target::{ReplyPolicy, Target};

use crate::context::WorkerContext;
use crate::io::buffer;
use crate::io::flow::{ForwardingPolicy, WritePermission};
use crate::latency::Stopwatch;
use crate::service::Hint;

/// In the place of a number of bytes: a request has begun that the ledger has not seen.
pub(crate) const BEGUN: u32 = u32::MAX;

/// The policy from client to target.
pub(crate) struct RequestForwarding<'a> {
    pub(crate) ledger: &'a mut Ledger,
    pub(crate) target: &'a Target,
    pub(crate) context: &'a WorkerContext,
    /// Whether the client has sent anything yet.
    pub(crate) heard: &'a mut bool,
    /// Whether to stop after the request in progress.
    pub(crate) stopping: bool,
    pub(crate) stopwatch: &'a mut Stopwatch,
    /// While stopping: bytes that the ledger has recorded and that were not written yet, or
    /// [`BEGUN`].
    pub(crate) measured: &'a mut u32,
    /// The ledger records bytes when they leave on a shared connection, and not when they are
    /// written to it.
    pub(crate) deferred: bool,
    /// What is forwarded in place of bytes that were not admitted.
    pub(crate) screened: &'a mut Option<Box<Screened>>,
}

impl RequestForwarding<'_> {
    #[inline]
    fn permission(&mut self, waiting: &[u8], begun: usize) -> WritePermission {
        if self.stopping || *self.measured > 0 {
            self.measure(waiting, begun)
        } else {
            WritePermission::Unlimited
        }
    }

    /// Reads bytes among which a refused request may be. Whether all of them are forwarded.
    #[cold]
    fn screen(&mut self, bytes: &[u8]) -> bool {
        *self.screened = self.ledger.screen(bytes, buffer::max_held()).map(Box::new);
        self.screened.is_none()
    }

    #[cold]
    fn note_first_bytes(&mut self) {
        *self.heard = true;
        self.context.listener.drain.record_arrival();
    }

    /// The rule while stopping: one request at a time, and none after a boundary at which the
    /// session may end.
    #[cold]
    fn measure(&mut self, waiting: &[u8], begun: usize) -> WritePermission {
        let has_begun = *self.measured == BEGUN;
        if has_begun && (self.deferred || waiting.is_empty()) {
            return WritePermission::Unlimited;
        }
        if *self.measured > 0 && !has_begun {
            return WritePermission::Limited(*self.measured as usize);
        }
        let may_end = match self.ledger.session_state() {
            SessionState::Opaque => return WritePermission::Unlimited,
            SessionState::Transaction | SessionState::Blocked | SessionState::Subscribed => false,
            SessionState::Busy
            | SessionState::Ended
            | SessionState::Pinned
            | SessionState::Quiet => self.ledger.at_boundary(Direction::Request),
        };
        if may_end && !has_begun {
            return WritePermission::Blocked;
        }
        if begun > 0 {
            // The rest of the request under way is in these bytes. Requests that follow it there
            // are executed, too.
            return WritePermission::Begun(begun);
        }
        // These bytes came in one read, so there are far fewer than 4 GiB; the rest of a longer
        // request is measured when this has been written.
        let waiting = waiting.get(..BEGUN as usize - 1).unwrap_or(waiting);
        *self.measured = u32::try_from(self.ledger.request_one(waiting)).unwrap_or(BEGUN - 1);
        WritePermission::Limited(*self.measured as usize)
    }
}

impl ForwardingPolicy for RequestForwarding<'_> {
    #[inline(always)]
    fn before_read(&mut self) -> WritePermission {
        if self.target.may_accept_requests() {
            self.permission(&[], 0)
        } else {
            WritePermission::Blocked
        }
    }

    #[inline(always)]
    fn after_read(&mut self, bytes: &[u8]) -> bool {
        self.ledger.admits(bytes, !self.deferred) || self.screen(bytes)
    }

    #[inline(always)]
    fn before_write(&mut self, waiting: &[u8], begun: usize) -> WritePermission {
        if self.target.accepts_requests() {
            self.permission(waiting, begun)
        } else {
            WritePermission::Blocked
        }
    }

    #[inline(always)]
    fn on_read(&mut self, _bytes: &[u8]) {
        if !*self.heard {
            self.note_first_bytes();
        }
    }

    #[inline(always)]
    fn on_written(&mut self, bytes: &[u8], measured: bool) {
        if measured {
            *self.measured =
                self.measured.saturating_sub(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        } else if !self.deferred {
            let owed =
                self.stopwatch.before_write(&self.context.counters.command_time, self.ledger);
            self.ledger.request(bytes);
            if let Some(owed) = owed {
                self.stopwatch.start(owed, &self.context.counters.command_time, self.ledger);
            }
        } else if let Some(owed) =
            self.stopwatch.before_write(&self.context.counters.command_time, self.ledger)
        {
            self.stopwatch.start_before_record(owed, &self.context.counters.command_time);
        }
        // What a member takes counts when it is sent.
        if !self.deferred {
            self.context.counters.bytes_in.add(bytes.len() as u64);
        }
    }

    #[inline(always)]
    fn bulk_left(&self) -> u64 {
        self.ledger.body_left(Direction::Request)
    }

    // A body has a beginning, which was read before.
    fn on_bulk_read(&mut self, n: u64) {
        self.ledger.skip_screen(n);
    }

    fn on_bulk_written(&mut self, n: u64) {
        self.ledger.skip_body(Direction::Request, n);
        self.context.counters.bytes_in.add(n);
        self.context.counters.bytes_spliced.add(n);
    }
}

/// The policy from target to client.
pub(crate) struct ReplyForwarding<'a> {
    pub(crate) ledger: &'a mut Ledger,
    pub(crate) target: &'a Target,
    pub(crate) context: &'a WorkerContext,
    pub(crate) stopwatch: &'a mut Stopwatch,
    /// Requests of this session that were forwarded in full.
    pub(crate) commands: &'a mut u32,
}

impl ReplyForwarding<'_> {
    #[cold]
    fn report(&self, hint: resp::Hint) {
        if matches!(hint, resp::Hint::Loading | resp::Hint::MasterDown) {
            self.target.doubt();
        }
        self.context.hint(self.target, Hint::Replied(hint));
    }

    /// Passes on what the ledger has learned from the replies.
    #[inline(always)]
    pub(crate) fn record_replies(&mut self) {
        while let Some(hint) = self.ledger.take_hint() {
            self.report(hint);
        }
        let counts = self.ledger.take_counts();
        *self.commands = self.commands.saturating_add(counts.requests);
        self.context.counters.commands.add(counts.requests.into());
        self.context.counters.replies.add(counts.replies.into());
        self.stopwatch.replied(counts.replies, &self.context.counters.command_time);
    }
}

impl ForwardingPolicy for ReplyForwarding<'_> {
    #[inline(always)]
    fn before_read(&mut self) -> WritePermission {
        WritePermission::Unlimited
    }

    #[inline(always)]
    fn after_read(&mut self, _bytes: &[u8]) -> bool {
        self.target.reply_policy() == ReplyPolicy::Pass
    }

    #[inline(always)]
    fn before_write(&mut self, _waiting: &[u8], _begun: usize) -> WritePermission {
        WritePermission::Unlimited
    }

    #[inline(always)]
    fn on_read(&mut self, bytes: &[u8]) {
        self.ledger.reply(bytes);
        self.record_replies();
    }

    #[inline(always)]
    fn on_written(&mut self, bytes: &[u8], _measured: bool) {
        self.context.counters.bytes_out.add(bytes.len() as u64);
    }

    #[inline(always)]
    fn bulk_left(&self) -> u64 {
        self.ledger.body_left(Direction::Reply)
    }

    fn on_bulk_read(&mut self, n: u64) {
        self.ledger.skip_body(Direction::Reply, n);
    }

    fn on_bulk_written(&mut self, n: u64) {
        self.context.counters.bytes_out.add(n);
        self.context.counters.bytes_spliced.add(n);
    }
}
