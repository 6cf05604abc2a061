//! What the pump of a session does in addition if its service shares connections: it offers
//! requests to the shared connection, stops when the session needs a connection of its own or may
//! return, and when an idle session rests.
//!
//! `WAIT` refers to the writes of its own connection. A session that has sent requests on another
//! one ends instead of getting a wrong reply.

use std::task::Waker;
use std::time::Instant;

use resp::Direction;
use target::ReplyPolicy;

use crate::end_reason::{EndReason, Side};
use crate::io::flow::ForwardingPolicy;
use crate::io::stream::ByteStream;
use crate::options::UpstreamMode;
use crate::runtime::timers::LazyTimer;
use crate::session::leave::Leaving;
use crate::session::pump::{Pump, Rare, Stop};
use crate::session::rest::Resting;
use crate::session::upstream::TargetStream;
use crate::shared::{Member, pool};

impl<C: ByteStream, U: TargetStream> Pump<C, U> {
    /// Records what has left on the shared connection since the last poll. To be called before
    /// anything is decided.
    #[inline]
    pub(crate) fn record_sent(&mut self) {
        if U::SHARED
            && let Some(member) = self.upstream.member()
        {
            member.record_sent(|bytes| {
                self.ledger.request(bytes);
                self.context.counters.bytes_in.add(bytes.len() as u64);
            });
        }
    }

    /// Offers what the client has sent to the shared connection.
    #[inline]
    pub(crate) fn offer_requests(&mut self) {
        if U::SHARED
            && !self.target.fence().is_raised()
            && let Some(member) = self.upstream.member()
        {
            pool::offer(member, &self.ledger, &self.context, &self.target);
        }
    }

    /// Whether [`check_transition`](Self::check_transition) would find nothing.
    #[inline]
    pub(crate) fn has_no_transition(&self) -> bool {
        if U::SHARED {
            self.upstream.member().is_some_and(Member::is_undisturbed)
        } else {
            self.sharing.is_none()
        }
    }

    /// Whether requests of the client wait here: they were read, and were not sent.
    pub(crate) fn has_waiting_requests(&self) -> bool {
        !self.requests.is_clear() || self.upstream.member().is_some_and(Member::has_waiting)
    }

    /// Whether a part of a request was read that is sent when it is whole, or when its name is. The
    /// ledger has not seen it.
    pub(crate) fn has_begun_request(&self) -> bool {
        (self.ledger.is_screening() && self.ledger.at_boundary(Direction::Request))
            || self.upstream.member().is_some_and(Member::has_begun)
    }

    /// Takes what was read from the client and not sent.
    pub(crate) fn take_unsent(&mut self) -> Vec<u8> {
        self.record_sent();
        let mut unsent = self.upstream.member().map_or_else(Vec::new, Member::take_unsent);
        self.requests.moved = self.requests.moved.saturating_sub(unsent.len() as u64);
        unsent.append(&mut self.requests.take_kept());
        unsent.append(&mut self.ledger.take_screened());
        unsent
    }

    /// Why a session that shares, or may return to that, stops now.
    pub(crate) fn check_transition(&mut self, idle: bool, waker: &Waker) -> Option<Stop> {
        let stop = if U::SHARED {
            let member = self.upstream.member()?;
            // Nothing else would end it: its client does not read, so nothing is read for it.
            if member.cause_of_end() == Some(EndReason::SlowReader) {
                return Some(EndReason::SlowReader.into());
            }
            member.promotion()?;
            Stop::Promote
        } else if idle && self.may_return(waker) {
            Stop::Return
        } else {
            return None;
        };
        let promotes = U::SHARED;
        let is_owed = !self.replies.is_clear() || (promotes && self.upstream.has_unread());
        // A client that may not read before it has sent all takes its replies along.
        let takes_replies = self.upstream.member().is_some_and(Member::is_full)
            && self.target.reply_policy() == ReplyPolicy::Pass;
        let settled = (!is_owed || takes_replies) && !self.is_interleaving();
        let stays = match promotes {
            true => self.leaving == Leaving::AtBoundary && self.measured == 0,
            false => self.leaving != Leaving::No,
        };
        if !settled || stays || self.target.fence().is_raised() {
            return None;
        }
        let replies = self.upstream.member().map_or_else(Vec::new, Member::take_replies);
        if !replies.is_empty() {
            let (flow, _, _, mut policy) = self.reply_parts();
            policy.on_read(&replies);
            flow.keep(&replies);
        }
        if self.ledger.shared_state().is_none() {
            // Only requests without such an effect are shared.
            return promotes.then_some(EndReason::StateLost.into());
        }
        Some(stop)
    }

    /// Whether the session has had its own connection for long enough.
    fn may_return(&mut self, waker: &Waker) -> bool {
        let Some(at) = self.sharing.as_ref().and_then(|it| it.return_at) else { return false };
        let ended = self.first_end == Some(Side::Client) || self.requests.ended;
        let left = at.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            let timer = &mut self.rare().returns;
            if !timer.is_set() {
                timer.set(left, waker);
            }
            return false;
        }
        let mode = self.context.shared.service.options.now().upstream;
        mode != UpstreamMode::Dedicated && !ended && self.first_end.is_none() && self.measured == 0
    }

    /// Whether the session begins to rest. To be called after everything was forwarded that can be.
    #[inline]
    pub(crate) fn begins_to_rest(&self) -> bool {
        U::SHARED && self.sharing.as_ref().is_some_and(|sharing| sharing.now) && self.may_rest()
    }

    fn may_rest(&self) -> bool {
        self.has_received
            && !self.client.is_readable()
            && self.upstream.member().is_some_and(Member::may_rest)
            && self.requests.is_clear()
            && self.replies.is_clear()
            && !self.is_interleaving()
            && self.measured == 0
            && self.first_end.is_none()
            && !self.requests.ended
            && self.leaving == Leaving::No
            && self.context.pin().is_none()
            && self.rare.as_ref().is_none_or(|rare| rare.is_unused())
            && self.target.accepts_requests()
            && !self.target.is_draining()
            && !self.is_draining()
            && self.can_be_carried()
            && self.ledger.may_rest()
    }

    /// Takes what is kept while the session rests. `None` if it [must not](Self::begins_to_rest).
    pub(crate) fn begin_rest(&mut self) -> Option<Resting> {
        if self.commands > 0 {
            // The next pump does not know that there were requests, as after a promotion.
            self.ledger.changed_connection();
        }
        let (ledger, sharing) = (self.ledger.rest()?, self.sharing.as_ref()?);
        let mut idle = std::mem::take(&mut self.idle);
        let moved = self.requests.moved as u32;
        idle.begin_rest(moved, &self.context.shared.service.options.now());
        self.context.counters.shared.rests.increment();
        let (events, member) = (sharing.events, self.upstream.member()?.rest()?);
        Some(Resting { ledger, idle, events, member })
    }
}

impl Rare {
    /// Whether nothing is waited for.
    fn is_unused(&self) -> bool {
        let Self { turn, half_close, patience, gate_check, unresponsive, returns, held } = self;
        let mut timers = [half_close, patience, gate_check, unresponsive, returns].into_iter();
        turn.is_none() && held.is_zero() && !timers.any(LazyTimer::is_set)
    }
}
