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

use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use resp::RestingLedger;
use target::Target;

use crate::end_reason::{EndReason, Side};
use crate::invariant;
use crate::io::buffer;
use crate::io::stream::{self, ByteStream};
use crate::runtime::tasks::visits;
use crate::runtime::timers::LazyTimer;
use crate::session::idle::IdleWatch;
use crate::session::pump::Start;
use crate::session::report::SessionBase;
use crate::session::upstream::Upstream;
use crate::shared::RestingMember;

/// A session that its client has woken rests again when no request has come in an interval of this
/// length.
const REST_AFTER: Duration = Duration::from_millis(if cfg!(test) { 200 } else { 10_000 });

/// The clock of a pump whose service shares connections. Decides when its session rests.
#[derive(Debug, Default)]
pub(crate) struct RestClock {
    /// If it has its own connection: when it may return.
    pub(crate) return_at: Option<Instant>,
    /// It rests as soon as it is idle.
    pub(crate) now: bool,
    interval: LazyTimer,
    /// Bytes moved at the beginning of the interval, of which only a change matters.
    moved: u64,
    /// The number of events when the pump last looked for any.
    pub(crate) events: u64,
}

impl RestClock {
    /// The clock of a session that may rest, `woken` by a request or not, or that returns to shared
    /// connections after a time.
    pub(crate) fn new(woken: bool, returns_after: Option<Duration>) -> Box<Self> {
        let return_at = returns_after.map(|span| Instant::now() + span);
        Box::new(Self { return_at, now: !woken, ..Self::default() })
    }

    /// Measures the interval, in which `moved` has changed or not. `events`: their number now.
    pub(crate) fn check(&mut self, moved: u64, events: u64, waker: &Waker) {
        self.events = events;
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

/// What ends a rest: bytes that the client has sent, if it has sent any, or its end.
pub(crate) type Woken = Result<Vec<u8>, EndReason>;

/// What is kept of a pump while its session rests.
#[derive(Debug)]
pub(crate) struct Resting {
    pub(crate) ledger: RestingLedger,
    pub(crate) idle: IdleWatch,
    /// The number of events when the pump last looked for any.
    pub(crate) events: u64,
    pub(crate) member: RestingMember,
}

impl Resting {
    /// The start of the next pump, with what the client has sent.
    pub(crate) fn wake(self, early: Vec<u8>) -> (Upstream, Start) {
        let Self { ledger, idle, member, .. } = self;
        let start = Start::resumed(early, Box::new(ledger.wake()));
        (Upstream::Shared(member.wake()), Start { idle: Some(idle), ..start })
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
        if base.context.events.get() != self.events || self.idle.is_due(cx.waker()) {
            return Poll::Ready(Ok(Vec::new()));
        }
        if !client.is_readable() {
            return Poll::Pending;
        }
        // A client is not read while the gate is closed.
        if !target.is_some_and(Target::accepts_requests) {
            return Poll::Ready(Ok(Vec::new()));
        }
        stream::poll_parse(client, cx, buffer::MIN_READ, |read| match read {
            Ok([]) => Err(EndReason::ClientClosed),
            Ok(bytes) => Ok(bytes.to_vec()),
            Err(error) if invariant::is_violation(&error) => Err(EndReason::InternalError),
            Err(error) => Err(EndReason::from_error(Side::Client, error.kind())),
        })
    }
}
