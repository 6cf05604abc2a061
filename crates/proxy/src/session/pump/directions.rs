//! The two directions of a session: what each moves, where to, and by which policy.
//!
//! The usual poll moves one small piece. So that path is inlined into the pump, with its policy;
//! everything else is in functions that it calls ([`Flow::poll_usual`], [`Flow::poll_move`]).
//!
//! Deliberately absent: when a direction is moved, and what follows from the result, which is the
//! [pump](super)'s.

use std::task::Context;

use super::Pump;
use crate::invariant;
use crate::io::flow::{EndSignal, Flow, FlowStep, MAX_READS};
use crate::io::forwarding::{ReplyForwarding, RequestForwarding};
use crate::io::stream::ByteStream;
use crate::session::leave::Leaving;
use crate::session::upstream::TargetStream;

impl<C: ByteStream, U: TargetStream> Pump<C, U> {
    /// The direction from client to target.
    #[inline(always)]
    fn request_parts(&mut self) -> (&mut Flow, &mut C, &mut U, RequestForwarding<'_>) {
        let policy = RequestForwarding {
            ledger: &mut self.ledger,
            target: &self.target,
            context: &self.context,
            heard: &mut self.has_received,
            stopping: self.leaving == Leaving::AtBoundary,
            stopwatch: &mut self.stopwatch,
            measured: &mut self.measured,
            deferred: U::SHARED,
            screened: &mut self.screened,
        };
        (&mut self.requests, &mut self.client, &mut self.upstream, policy)
    }

    /// The direction from target to client.
    #[inline(always)]
    pub(super) fn reply_parts(&mut self) -> (&mut Flow, &mut U, &mut C, ReplyForwarding<'_>) {
        let policy = ReplyForwarding {
            ledger: &mut self.ledger,
            target: &self.target,
            context: &self.context,
            stopwatch: &mut self.stopwatch,
            commands: &mut self.commands,
        };
        (&mut self.replies, &mut self.upstream, &mut self.client, policy)
    }

    /// Moves requests. Their end is not passed to the target yet.
    #[inline(always)]
    pub(super) fn forward_requests(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &mut [u8],
    ) -> FlowStep {
        // Nearly every poll moves one direction: the other one is not even set up.
        if self.requests.is_plain() && !self.client.is_readable() {
            return FlowStep::Idle;
        }
        let (flow, client, upstream, mut policy) = self.request_parts();
        match flow.poll_usual(cx, client, upstream, &mut policy, scratch) {
            Ok(FlowStep::Stopped(_)) => {
                self.take_screened();
                self.move_requests(cx, (scratch, EndSignal::NotYet), MAX_READS)
            }
            Ok(step) => step,
            Err(reads_left) => self.move_requests(cx, (scratch, EndSignal::NotYet), reads_left),
        }
    }

    /// Moves replies. Their end is not passed to the client yet.
    #[inline(always)]
    pub(super) fn forward_replies(&mut self, cx: &mut Context<'_>, scratch: &mut [u8]) -> FlowStep {
        if self.leaving != Leaving::No || self.is_interleaving() {
            return self.move_replies(cx, (scratch, EndSignal::NotYet), MAX_READS);
        }
        if self.replies.is_plain() && !self.upstream.is_readable() {
            return FlowStep::Idle;
        }
        let (flow, upstream, client, mut policy) = self.reply_parts();
        match flow.poll_usual(cx, upstream, client, &mut policy, scratch) {
            Ok(FlowStep::Stopped(read)) => self.filter_read(cx, read, scratch),
            Ok(step) => step,
            Err(reads_left) => self.move_replies(cx, (scratch, EndSignal::NotYet), reads_left),
        }
    }

    #[inline(never)]
    pub(super) fn move_requests(
        &mut self,
        cx: &mut Context<'_>,
        (scratch, tell): (&mut [u8], EndSignal),
        reads_left: usize,
    ) -> FlowStep {
        for reads in (0..=reads_left).rev() {
            let (flow, client, upstream, mut policy) = self.request_parts();
            match flow.poll_move(cx, client, upstream, &mut policy, (scratch, tell), reads) {
                FlowStep::Stopped(_) => self.take_screened(),
                step => return step,
            }
        }
        FlowStep::More
    }

    #[inline(never)]
    pub(super) fn move_replies(
        &mut self,
        cx: &mut Context<'_>,
        (scratch, tell): (&mut [u8], EndSignal),
        reads_left: usize,
    ) -> FlowStep {
        let before = self.replies.bytes_moved();
        let split =
            if self.is_interleaving() { self.move_split_replies(cx, scratch) } else { None };
        let step = split.unwrap_or_else(|| {
            let (flow, upstream, client, mut policy) = self.reply_parts();
            flow.poll_move(cx, upstream, client, &mut policy, (&mut *scratch, tell), reads_left)
        });
        let step = match step {
            FlowStep::Stopped(read) => self.filter_read(cx, read, scratch),
            step => step,
        };
        self.replied |= self.leaving != Leaving::No && self.replies.bytes_moved() > before;
        step
    }

    /// The forwarding policy did not admit what was read.
    #[cold]
    fn filter_read(&mut self, cx: &mut Context<'_>, read: usize, scratch: &[u8]) -> FlowStep {
        match invariant::first_bytes(scratch, read) {
            Ok(bytes) => self.filter_replies(cx, bytes),
            Err(error) => FlowStep::SourceFailed(error),
        }
    }
}
