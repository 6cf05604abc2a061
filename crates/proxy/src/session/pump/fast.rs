//! The path of nearly every poll: one small piece of bytes in one direction.
//!
//! The kernel's work between two polls evicts the code and the data of a session from the caches,
//! so every line of code and of memory that this path spans is loaded again for each request. That
//! costs more than the instructions. So the rules of this file differ from those of all others:
//!
//! - What nearly every poll does is inlined, with its forwarding policy ([`Flow::poll_usual`]).
//!   What few polls do is in functions that are not inlined, however short ([`Flow::poll_move`]).
//! - A direction in which nothing has arrived is not even set up.
//! - The readiness of both ends is taken over once per poll.
//! - Rare events arrive through one flag, so that no timer and no counter is looked at.
//!
//! `cargo xtask bench instructions` counts what a change costs.

use std::task::{Context, Poll, Waker};

use super::forwarding::{ReplyForwarding, RequestForwarding};
use super::{Pump, Stop};
use crate::end_reason::EndReason;
use crate::invariant;
use crate::io::buffer;
use crate::io::flow::{EndSignal, Flow, FlowStep, MAX_READS};
use crate::io::stream::{self, ByteStream};
use crate::runtime::wake_flag::FlaggedWaker;
use crate::session::leave::Leaving;
use crate::session::report::SessionBase;
use crate::session::upstream::TargetStream;

impl<C: ByteStream, U: TargetStream> Pump<C, U> {
    /// One poll of the session, with all of the usual path in it.
    #[inline(always)]
    pub(super) fn poll_once(
        &mut self,
        cx: &mut Context<'_>,
        base: &SessionBase,
        FlaggedWaker { flag, waker }: &FlaggedWaker,
    ) -> Poll<Stop> {
        // Once for all that follows: no socket event can be recorded while this runs.
        stream::update_readiness_of_both(&mut self.client, &mut self.upstream, cx);
        self.record_sent();
        let is_woken = flag.take_woken();
        if is_woken && let Some(polled) = self.handle_rare_events(base, flag, waker) {
            return polled;
        }
        let mut scratch = buffer::take_scratch();
        let polled = self.poll(cx, waker, &mut *scratch);
        buffer::put_back(scratch);
        if polled.is_pending() {
            if is_woken && let Some(reason) = self.check_idle(waker) {
                return Poll::Ready(reason.into());
            }
            if self.begins_to_rest() {
                return Poll::Ready(Stop::Rest);
            }
        }
        polled
    }

    /// Moves what has arrived. What few polls find is in functions of its own: the kernel's work
    /// between two polls evicts the code, so each line of it that the usual path spans is loaded
    /// again for every request.
    #[inline(always)]
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        waker: &Waker,
        scratch: &mut [u8],
    ) -> Poll<Stop> {
        // Requests that are not sent to a target that is gone can still be sent to the next one.
        let stuck = self.target.fence().is_raised()
            || (self.upstream.peer_closed() && self.can_be_carried());
        let mut requests = if stuck { FlowStep::Stuck } else { self.forward_requests(cx, scratch) };
        self.offer_requests();
        if matches!(requests, FlowStep::Done) {
            match self.poll_client_end(cx, scratch) {
                Ok(step) => requests = step,
                Err(reason) => return Poll::Ready(reason.into()),
            }
        }
        if self.ledger.must_end().is_some() {
            return Poll::Ready(self.forced_end().into());
        }
        let replies = self.forward_replies(cx, scratch);
        if self.target.fence().is_raised() {
            return Poll::Ready(EndReason::Fenced.into());
        }
        if matches!((&requests, &replies), (FlowStep::Idle, FlowStep::Idle)) && self.is_usual() {
            return Poll::Pending;
        }
        self.poll_unusual(cx, waker, scratch, requests, replies)
    }

    /// Whether nothing remains to be checked after a poll in which both directions have moved all
    /// that has arrived.
    #[inline]
    fn is_usual(&self) -> bool {
        !self.reply_dropped
            && self.first_end.is_none()
            && self.leaving == Leaving::No
            && self.has_no_transition()
            && self.ledger.is_uneventful()
    }

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
                self.move_requests(cx, scratch, EndSignal::NotYet, MAX_READS)
            }
            Ok(step) => step,
            Err(reads_left) => self.move_requests(cx, scratch, EndSignal::NotYet, reads_left),
        }
    }

    /// Moves replies. Their end is not passed to the client yet.
    #[inline(always)]
    pub(super) fn forward_replies(&mut self, cx: &mut Context<'_>, scratch: &mut [u8]) -> FlowStep {
        if self.leaving != Leaving::No || self.is_interleaving() {
            return self.move_replies(cx, scratch, EndSignal::NotYet, MAX_READS);
        }
        if self.replies.is_plain() && !self.upstream.is_readable() {
            return FlowStep::Idle;
        }
        let (flow, upstream, client, mut policy) = self.reply_parts();
        match flow.poll_usual(cx, upstream, client, &mut policy, scratch) {
            Ok(FlowStep::Stopped(read)) => self.filter_read(cx, read, scratch),
            Ok(step) => step,
            Err(reads_left) => self.move_replies(cx, scratch, EndSignal::NotYet, reads_left),
        }
    }

    #[inline(never)]
    pub(super) fn move_requests(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &mut [u8],
        tell: EndSignal,
        reads_left: usize,
    ) -> FlowStep {
        for reads in (0..=reads_left).rev() {
            let (flow, client, upstream, mut policy) = self.request_parts();
            match flow.poll_move(cx, client, upstream, &mut policy, scratch, tell, reads) {
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
        scratch: &mut [u8],
        tell: EndSignal,
        reads_left: usize,
    ) -> FlowStep {
        let before = self.replies.moved;
        let split =
            if self.is_interleaving() { self.move_split_replies(cx, scratch) } else { None };
        let step = split.unwrap_or_else(|| {
            let (flow, upstream, client, mut policy) = self.reply_parts();
            flow.poll_move(cx, upstream, client, &mut policy, &mut *scratch, tell, reads_left)
        });
        let step = match step {
            FlowStep::Stopped(read) => self.filter_read(cx, read, scratch),
            step => step,
        };
        self.replied |= self.leaving != Leaving::No && self.replies.moved > before;
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
