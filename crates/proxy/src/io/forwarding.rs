//! What stands between the two ends of a session: the rule of what may go, and the ledger that
//! follows what went.
//!
//! Towards the target the ledger is told exactly the bytes that were written, after they were, so
//! that what was never forwarded is known to the byte. Towards the client it is told what came from
//! the target as soon as it came, because a hint in it is worth the more the earlier it is heard.

use resp::{Direction, Ledger, SessionState};
use target::{Replies as Fate, Target};

use crate::io::flow::{ForwardingPolicy, Leave};
use crate::latency::Stopwatch;
use crate::runtime::worker::WorkerContext;
use crate::service::Hint;

/// From client to target.
pub(crate) struct Requests<'a> {
    pub(crate) ledger: &'a mut Ledger,
    pub(crate) target: &'a Target,
    pub(crate) seat: &'a WorkerContext,
    /// Whether the client has sent anything yet.
    pub(crate) heard: &'a mut bool,
    /// Whether to stop behind the request under way.
    pub(crate) stopping: bool,
    pub(crate) stopwatch: &'a mut Stopwatch,
    /// While stopping: bytes that the ledger has been told and that were not written yet.
    pub(crate) measured: &'a mut u32,
}

impl Requests<'_> {
    #[inline]
    fn bound(&mut self, waiting: &[u8]) -> Leave {
        if self.stopping || *self.measured > 0 { self.measure(waiting) } else { Leave::Free }
    }

    /// The rule while stopping: one request at a time, and none behind a boundary at which the
    /// session may end.
    fn measure(&mut self, waiting: &[u8]) -> Leave {
        if *self.measured > 0 {
            return Leave::Measured(*self.measured as usize);
        }
        let may_end = match self.ledger.session_state() {
            SessionState::Opaque => return Leave::Free,
            SessionState::Transaction | SessionState::Blocked | SessionState::Subscribed => false,
            SessionState::Busy
            | SessionState::Ended
            | SessionState::Pinned
            | SessionState::Quiet => self.ledger.at_boundary(Direction::Request),
        };
        if may_end {
            return Leave::Shut;
        }
        // What waits was read at once, so it is far below 4 GiB; the rest of anything longer is
        // measured when this has gone.
        let waiting = waiting.get(..u32::MAX as usize).unwrap_or(waiting);
        *self.measured = u32::try_from(self.ledger.request_one(waiting)).unwrap_or(u32::MAX);
        Leave::Measured(*self.measured as usize)
    }
}

impl ForwardingPolicy for Requests<'_> {
    fn expects(&mut self) -> Leave {
        if self.target.expects_requests() { self.bound(&[]) } else { Leave::Shut }
    }

    fn admits(&mut self) -> bool {
        true
    }

    fn leave(&mut self, waiting: &[u8]) -> Leave {
        if self.target.takes_requests() { self.bound(waiting) } else { Leave::Shut }
    }

    fn came(&mut self, _bytes: &[u8]) {
        if !*self.heard {
            *self.heard = true;
            self.seat.drain.arrival();
        }
    }

    fn went(&mut self, bytes: &[u8], measured: bool) {
        if measured {
            *self.measured =
                self.measured.saturating_sub(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        } else {
            let start = self.stopwatch.is_wanted(&self.seat.block.measured, self.ledger);
            self.ledger.request(bytes);
            if let Some(start) = start {
                self.stopwatch.start(start, &self.seat.block.measured, self.ledger);
            }
        }
        self.seat.block.bytes_in.add(bytes.len() as u64);
    }

    fn unseen(&self) -> u64 {
        self.ledger.body_left(Direction::Request)
    }

    // A body has a beginning, which has come before.
    fn came_unseen(&mut self, _n: u64) {}

    fn went_unseen(&mut self, n: u64) {
        self.ledger.skip_body(Direction::Request, n);
        self.seat.block.bytes_in.add(n);
        self.seat.block.bytes_spliced.add(n);
    }
}

/// From target to client.
pub(crate) struct Replies<'a> {
    pub(crate) ledger: &'a mut Ledger,
    pub(crate) target: &'a Target,
    pub(crate) seat: &'a WorkerContext,
    pub(crate) stopwatch: &'a mut Stopwatch,
    /// Requests of this session, forwarded whole.
    pub(crate) commands: &'a mut u32,
}

impl Replies<'_> {
    /// Passes on what the ledger has learnt from what came.
    #[inline]
    pub(crate) fn note(&mut self) {
        while let Some(hint) = self.ledger.take_hint() {
            self.seat.block.hints.one();
            self.seat.shared.service.hints.hint(self.target, Hint::Replied(hint));
        }
        let counts = self.ledger.take_counts();
        *self.commands = self.commands.saturating_add(counts.requests);
        self.seat.block.commands.add(counts.requests.into());
        self.seat.block.replies.add(counts.replies.into());
        self.stopwatch.replied(counts.replies, &self.seat.block.measured);
    }
}

impl ForwardingPolicy for Replies<'_> {
    fn expects(&mut self) -> Leave {
        Leave::Free
    }

    fn admits(&mut self) -> bool {
        self.target.replies() == Fate::Pass
    }

    fn leave(&mut self, _waiting: &[u8]) -> Leave {
        Leave::Free
    }

    fn came(&mut self, bytes: &[u8]) {
        self.ledger.reply(bytes);
        self.note();
    }

    fn went(&mut self, bytes: &[u8], _measured: bool) {
        self.seat.block.bytes_out.add(bytes.len() as u64);
    }

    fn unseen(&self) -> u64 {
        self.ledger.body_left(Direction::Reply)
    }

    fn came_unseen(&mut self, n: u64) {
        self.ledger.skip_body(Direction::Reply, n);
    }

    fn went_unseen(&mut self, n: u64) {
        self.seat.block.bytes_out.add(n);
        self.seat.block.bytes_spliced.add(n);
    }
}
