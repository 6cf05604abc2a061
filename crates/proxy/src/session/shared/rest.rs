//! Sessions that rest: idle clients of shared connections.
//!
//! A session that pumps has state of two directions, buffers, a ledger, and futures for rare
//! events. A client that is idle needs none of it: it has nothing in flight, and on a shared
//! connection nothing of its own. So the pump stops, and what is kept is the client's connection,
//! and what the client has told the server ([`RestingLedger`]). The next request, and every rare
//! event, starts a new pump, which does what the former one would have done. A client that closes
//! its connection meanwhile ends the session without one.
//!
//! **When.** A session rests as soon as it is idle for the first time, after its handshake, since
//! many clients connect long before they are needed. After a request that woke it, it rests when
//! none has come for a while: starting a pump costs a tenth of a small request.
//!
//! **No event is lost.** A session that rests compares the number of events with that at which its
//! pump last looked for any: one that was counted since ends the rest at once. The task that counts
//! runs on the same thread and wakes the session. The waker for the client's connection is stored
//! before the connection is looked at.
//!
//! Deliberately absent: rest of a session with a connection of its own, which has an end to notice
//! on both sides.

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use resp::RestingLedger;
use target::Target;

use crate::end_reason::{EndReason, Side};
use crate::invariant;
use crate::io::buffer;
use crate::io::shared::{Member, RestingMember};
use crate::io::stream::ByteStream;
use crate::io::upstream::Upstream;
use crate::runtime::tasks::visits;
use crate::runtime::timers::LazyTimer;
use crate::session::carry::replay::Replayed;
use crate::session::idle::IdleWatch;
use crate::session::leave::Leaving;
use crate::session::pump::{Pump, Rare, Start};
use crate::session::report::SessionBase;

/// A session that its client has woken rests again when no request has come in an interval of this
/// length.
const REST_AFTER: Duration = Duration::from_millis(if cfg!(test) { 200 } else { 10_000 });

/// Decides when a session rests.
#[derive(Debug, Default)]
pub(crate) struct RestClock {
    /// It rests as soon as it is idle.
    now: bool,
    interval: LazyTimer,
    /// Bytes moved at the beginning of the interval, of which only a change matters.
    moved: u64,
    /// The number of events when the pump last looked for any.
    events: u32,
}

impl RestClock {
    /// The clock of a session that may rest. `woken`: by a request.
    pub(crate) fn of(woken: bool) -> Self {
        Self { now: !woken, ..Self::default() }
    }

    /// Measures the interval, in which `moved` has changed or not.
    fn check(&mut self, moved: u64, waker: &Waker) {
        if self.now {
            return;
        }
        if !self.interval.is_set() {
            self.interval.set(REST_AFTER, waker);
        } else if !self.interval.is_due(waker) {
            return;
        } else if moved == self.moved {
            self.interval.clear();
            self.now = true;
        } else {
            self.interval.set(REST_AFTER, waker);
        }
        self.moved = moved;
    }
}

/// What is kept of a pump while its session rests.
#[derive(Debug)]
pub(crate) struct Kept {
    ledger: RestingLedger,
    idle: IdleWatch,
    /// The number of events when the pump last looked for any.
    events: u32,
}

/// What ends a rest: bytes that the client has sent, if it has sent any, or its end.
pub(crate) type Woken = Result<Vec<u8>, EndReason>;

/// A session that rests, without what it is never without.
#[derive(Debug)]
pub(crate) struct Resting {
    kept: Kept,
    member: Option<RestingMember>,
}

impl Resting {
    /// `member`: `None` if it has left its connection.
    pub(crate) fn new(kept: Kept, member: Option<RestingMember>) -> Self {
        Self { kept, member }
    }

    /// The start of the next pump, with what the client has sent.
    pub(crate) fn wake(self, early: Vec<u8>) -> (Upstream, Start) {
        let Self { kept: Kept { ledger, idle, .. }, member } = self;
        let upstream = member.map_or_else(Upstream::sharing, |it| Upstream::Shared(it.wake()));
        let replayed = Replayed { ledger: ledger.wake(), idle: Some(idle), messages: Vec::new() };
        (upstream, Start::resumed(early, Box::new(replayed)))
    }

    /// Ready when there is something to do.
    pub(crate) fn poll_wait(
        &mut self,
        cx: &mut Context<'_>,
        base: &SessionBase,
        target: Option<&Target>,
        client: &mut impl ByteStream,
    ) -> Poll<Woken> {
        client.update_readiness(cx);
        if visits::current().is_some() {
            // The pump answers the visitor and nothing else in this poll.
            cx.waker().wake_by_ref();
            return Poll::Ready(Ok(Vec::new()));
        }
        if base.context.events.count() != self.kept.events || self.kept.idle.is_due(cx.waker()) {
            return Poll::Ready(Ok(Vec::new()));
        }
        if !client.is_readable() {
            return Poll::Pending;
        }
        // A client is not read while the gate is closed.
        if !target.is_some_and(Target::accepts_requests) {
            return Poll::Ready(Ok(Vec::new()));
        }
        buffer::with_scratch(|scratch| {
            let size = scratch.len().min(buffer::MIN_READ);
            let Some(unread) = scratch.get_mut(..size) else { return Poll::Pending };
            let read = std::task::ready!(client.poll_read(cx, unread))
                .and_then(|read| invariant::first_bytes(unread, read));
            Poll::Ready(match read {
                Ok([]) => Err(EndReason::ClientClosed),
                Ok(bytes) => Ok(bytes.to_vec()),
                Err(error) if invariant::is_violation(&error) => Err(EndReason::InternalError),
                Err(error) => Err(EndReason::from_error(Side::Client, error.kind())),
            })
        })
    }
}

impl<C: ByteStream, U: ByteStream> Pump<C, U> {
    /// Measures how long the client of a session that shares has been idle. To be called with the
    /// other rare events.
    pub(in crate::session) fn check_rest(&mut self, waker: &Waker) {
        if U::SHARED {
            let moved = self.requests.bytes_moved() + self.replies.bytes_moved();
            if let Some(sharing) = self.sharing.as_deref_mut() {
                sharing.rest.events = self.context.events.count();
                sharing.rest.check(moved, waker);
            }
        }
    }

    /// Whether the session begins to rest. To be called after everything was forwarded that can be.
    #[inline]
    pub(in crate::session) fn begins_to_rest(&mut self) -> bool {
        U::SHARED
            && self.sharing.as_ref().is_some_and(|sharing| sharing.rest.now)
            && self.may_rest()
            && self.begin_rest()
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
            && !self.requests.has_ended()
            && self.leaving == Leaving::No
            && self.context.pin().is_none()
            && self.rare.as_ref().is_none_or(|rare| rare.is_unused())
            && self.target.accepts_requests()
            && !self.target.is_draining()
            && !self.is_draining()
            && self.can_be_carried()
            && self.ledger.may_rest()
    }

    fn begin_rest(&mut self) -> bool {
        if self.commands > 0 {
            // The next pump does not know that there were requests, as after a promotion.
            self.ledger.changed_connection();
        }
        let (Some(ledger), Some(sharing)) = (self.ledger.rest(), &mut self.sharing) else {
            return false;
        };
        let mut idle = std::mem::take(&mut self.idle);
        let moved = self.requests.bytes_moved() as u32;
        idle.begin_rest(moved, &self.context.shared.service.options.now());
        sharing.kept = Some(Kept { ledger, idle, events: sharing.rest.events });
        self.context.counters.shared.rests.increment();
        true
    }
}

impl Rare {
    /// Whether nothing is waited for.
    fn is_unused(&self) -> bool {
        let Self { turn, half_close, patience, gate_check, unresponsive, returns } = self;
        let mut timers = [half_close, patience, gate_check, unresponsive, returns].into_iter();
        turn.is_none() && !timers.any(LazyTimer::is_set)
    }
}
