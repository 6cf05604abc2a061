//! The pump: moves a session's bytes in both directions until there is a reason to stop.
//!
//! One poll function does all of it: it moves requests as far as possible, then replies, then
//! checks whether the session should end. There is no `select!`, and no future is polled that
//! cannot have changed: rare events arrive through one wake flag. The first
//! poll comes right after the connection to the target opened, without a round of the event loop in
//! between, so a request that is already waiting goes out at once.
//!
//! At a master change, the fence is checked before every write to the target, so after it is raised
//! no byte goes there. Bytes read from the target until then are delivered, with the rest of a
//! reply that had begun; then the client is closed. A reply that is read later,
//! or after another node is known to be promoted, is discarded. Both are in [`superseded`].
//!
//! Why a pump ends, and what follows, is decided in [`end`](crate::session::end). Our own pushes to
//! clients come from [`maintenance`](crate::maintenance); this module inserts them
//! ([`interleave`]).

mod fast;
mod forwarding;
#[cfg(test)]
mod forwarding_tests;
mod interleave;
#[cfg(test)]
mod interleave_tests;
#[cfg(test)]
mod last_replies_tests;
pub(super) mod sharing;
#[cfg(test)]
mod superseded_tests;
#[cfg(test)]
mod tls_target_tests;

pub(in crate::session) use forwarding::BEGUN;

use std::mem;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use drain::Ticket;
use resp::{Ledger, Limits, Screened};
use target::{Target, TargetRef};

use crate::context::WorkerContext;
use crate::end_reason::{EndReason, Side};
use crate::io::buffer::{self, KeptCount};
use crate::io::flow::{EndSignal, Flow, FlowStep, MAX_READS};
use crate::io::stream::ByteStream;
use crate::latency::Stopwatch;
use crate::maintenance::pending::PendingPushes;
use crate::not_carried::Uncarried;
use crate::options::{Options, Sessions, Subscriptions, UpstreamMode};
use crate::runtime::tasks::visits;
use crate::runtime::timers::LazyTimer;
use crate::runtime::wake_flag::{FlaggedWaker, WakeFlag};
use crate::session::carry::CarryState;
use crate::session::idle::IdleWatch;
use crate::session::leave::Leaving;
use crate::session::refusals::Refused;
use crate::session::report::SessionBase;
use crate::session::rest::{RestClock, Resting};
use crate::session::upstream::TargetStream;
use crate::shared::Promotion;

/// A session with both ends connected.
///
/// Nearly every session pumps nearly all the time, so it owns what it uses: its poll finds the ends
/// in its own memory, and not in that of a future around it.
pub(crate) struct Pump<C, U> {
    pub(super) client: C,
    pub(super) upstream: U,
    pub(super) context: CountedContext,
    pub(super) target: Arc<Target>,
    pub(super) ledger: Ledger,
    /// The configuration allows to carry it.
    pub(super) may_carry: bool,
    pub(super) requests: Flow,
    pub(super) replies: Flow,
    /// Which side ended first.
    pub(super) first_end: Option<Side>,
    /// The client has sent something.
    pub(super) has_received: bool,
    pub(super) commands: u32,
    pub(super) measured: u32,
    pub(super) leaving: Leaving,
    /// The client was sent something since the session was asked to leave.
    pub(super) replied: bool,
    /// A reply was discarded: the session ends.
    pub(super) reply_dropped: bool,
    /// Allocated when the first of these is needed.
    pub(super) rare: Option<Box<Rare>>,
    /// Consecutive gate checks that found a waiting request.
    pub(super) gate_checks: u16,
    pub(super) idle: IdleWatch,
    pub(super) stopwatch: Stopwatch,
    /// Present while something has to go between the replies.
    pub(super) interleaved: Option<Box<PendingPushes>>,
    /// What is forwarded in place of what was read, if that has a refused request.
    pub(super) screened: Option<Box<Screened>>,
    /// Present if its service shares connections.
    pub(super) sharing: Option<Box<RestClock>>,
}

/// State that most sessions never need, or only at their end.
#[derive(Default)]
pub(super) struct Rare {
    /// Waits for the turn of this session to leave.
    pub(super) turn: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    pub(super) half_close: LazyTimer,
    /// What the screen holds.
    pub(super) held: KeptCount,
    pub(super) patience: LazyTimer,
    /// Set while the gate is closed.
    pub(super) gate_check: LazyTimer,
    /// Set while the target is unresponsive.
    pub(super) unresponsive: LazyTimer,
    /// Set while the session may not return to shared connections yet.
    pub(super) returns: LazyTimer,
}

impl<C: ByteStream, U: TargetStream> Pump<C, U> {
    /// A pump between two open ends.
    pub(crate) fn new(
        client: C,
        upstream: U,
        context: &Arc<WorkerContext>,
        target: &TargetRef,
        start: impl Into<Start>,
    ) -> Self {
        let Start { early, ledger, messages, idle, returns_after } = start.into();
        let carried = ledger.is_some();
        let has_received = carried || !early.is_empty();
        if has_received && !carried {
            context.listener.drain.record_arrival();
        }
        let options = context.shared.service.options.peek();
        let mut pump = Self {
            client,
            upstream,
            context: CountedContext::new(context),
            target: target.target(),
            ledger: ledger.map_or_else(|| fresh(&options), |ledger| *ledger),
            may_carry: options.sessions == Sessions::Carry,
            has_received,
            requests: Flow::new(Vec::new()),
            replies: Flow::new(messages),
            first_end: None,
            commands: 0,
            measured: 0,
            leaving: Leaving::No,
            replied: false,
            reply_dropped: false,
            rare: None,
            gate_checks: 0,
            idle: idle.unwrap_or_else(|| IdleWatch::of(carried)),
            stopwatch: Stopwatch::default(),
            interleaved: None,
            screened: None,
            sharing: (U::SHARED || returns_after.is_some())
                .then(|| RestClock::new(!early.is_empty(), returns_after.filter(|_| !U::SHARED))),
        };
        pump.screen_early(early);
        pump
    }

    /// Moves what has arrived, until there is a reason to stop. `watch` is what wakes it beside its
    /// connections, since the first poll.
    ///
    /// It is polled by the [session](crate::session) that it belongs to, without an async function
    /// in between: that would be a call of its own for every request, with a jump by its state, and
    /// its frame on the stack is another few lines of the cache.
    #[inline(always)]
    pub(crate) fn poll_watched(
        &mut self,
        cx: &mut Context<'_>,
        base: &SessionBase,
        watch: &mut Option<FlaggedWaker>,
    ) -> Poll<Stop> {
        if watch.is_none() {
            self.begin(cx, watch);
        }
        let Some(watch) = watch else { return Poll::Pending };
        self.poll_once(cx, base, watch)
    }

    #[cold]
    fn begin(&mut self, cx: &Context<'_>, watch: &mut Option<FlaggedWaker>) {
        let watch = watch.insert(FlaggedWaker::new(cx.waker()));
        visits::register(Some(&watch.flag), self.context.listener.id.group());
        let options = self.context.shared.service.options.peek();
        self.idle.begin(&options, self.has_received, &watch.waker);
    }

    /// Handles the events for which the flag was set. `None` if bytes are to be moved as usual.
    #[cold]
    fn handle_rare_events(
        &mut self,
        base: &SessionBase,
        flag: &Arc<WakeFlag>,
        waker: &Waker,
    ) -> Option<Poll<Stop>> {
        if let Some(visit) = visits::current() {
            return Some(self.visited(visit, base, flag).map(Stop::End));
        }
        self.check_events(&base.ticket, waker).map(Poll::Ready)
    }

    pub(super) fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// Whether the alarm is set and due.
    pub(super) fn is_due(&mut self, alarm: fn(&mut Rare) -> &mut LazyTimer, waker: &Waker) -> bool {
        self.rare.as_mut().is_some_and(|rare| alarm(rare).is_due(waker))
    }

    /// Checks everything that the wake flag announces.
    fn check_events(&mut self, ticket: &Ticket, waker: &Waker) -> Option<Stop> {
        if ticket.is_cut() {
            return Some(EndReason::Cut.into());
        }
        let leaves = self
            .check_unresponsive(waker)
            .or_else(|| self.check_rebalancing(waker))
            .or_else(|| self.check_leaving(ticket, waker));
        if leaves.is_some() {
            return leaves;
        }
        self.announce_gate();
        if U::SHARED
            && let Some(sharing) = self.sharing.as_deref_mut()
        {
            let moved = self.requests.moved + self.replies.moved;
            sharing.check(moved, self.context.events.get(), waker);
        }
        if let Some(reason) = self.check_gate(waker) {
            return Some(reason.into());
        }
        self.is_due(|rare| &mut rare.half_close, waker)
            .then_some(EndReason::HalfCloseTimeout.into())
    }

    /// The client has ended its direction: passes that on, unless nothing is left to do.
    ///
    /// # Errors
    ///
    /// The session has ended.
    #[cold]
    fn poll_client_end(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &mut [u8],
    ) -> Result<FlowStep, EndReason> {
        self.note_first_end();
        if self.is_finished() {
            return Err(EndReason::ClientClosed);
        }
        // A client that leaves after bytes that are no request: a server that neither answers nor
        // closes would keep both connections.
        if self.client.peer_closed() {
            self.requests.end_withheld = false;
        }
        Ok(self.move_requests(cx, scratch, EndSignal::Yes, MAX_READS))
    }

    /// What follows from the steps of both directions, unless they are idle and nothing else is to
    /// be done.
    #[inline(never)]
    fn poll_unusual(
        &mut self,
        cx: &mut Context<'_>,
        waker: &Waker,
        scratch: &mut [u8],
        requests: FlowStep,
        mut replies: FlowStep,
    ) -> Poll<Stop> {
        if self.reply_dropped {
            return Poll::Ready(EndReason::ReplyDropped.into());
        }
        if self.ledger.must_end().is_some() {
            return Poll::Ready(self.forced_end().into());
        }
        self.note_first_end();
        if matches!(replies, FlowStep::Done) && !matches!(requests, FlowStep::Done) {
            // The end is not passed to the client if the session can continue elsewhere, or its
            // requests are refused.
            if self.can_be_carried() || self.is_refused_at(EndReason::UpstreamClosed) {
                return Poll::Ready(EndReason::UpstreamClosed.into());
            }
            self.append_last_push();
            replies = self.move_replies(cx, scratch, EndSignal::Yes, MAX_READS);
        }
        let more = matches!(requests, FlowStep::More) || matches!(replies, FlowStep::More);
        let waits = U::SHARED && self.has_waiting_requests();
        let idle = matches!(requests, FlowStep::Idle) && !waits;
        if matches!((&requests, &replies), (FlowStep::Done, FlowStep::Done)) {
            return Poll::Ready(Stop::End(if self.first_end == Some(Side::Client) {
                EndReason::ClientClosed
            } else {
                EndReason::UpstreamClosed
            }));
        }
        if let Some(reason) = self.failure(requests, replies) {
            return Poll::Ready(reason.into());
        }
        if self.first_end.is_some() && !self.rare().half_close.is_set() {
            let span = self.context.shared.service.options.now().half_close_timeout;
            self.rare().half_close.set(span, waker);
        }
        if self.leaving != Leaving::No
            && let Some(stop) = self.left(idle)
        {
            return Poll::Ready(stop);
        }
        if self.sharing.is_some()
            && let Some(stop) = self.check_transition(idle, waker)
        {
            return Poll::Ready(stop);
        }
        if more {
            cx.waker().wake_by_ref();
        }
        if self.ledger.take_pin_change() { self.note_pin().map(Stop::End) } else { Poll::Pending }
    }

    /// Forwards the bytes that were read before this pump began.
    pub(super) fn screen_early(&mut self, early: Vec<u8>) {
        if early.is_empty() {
            return;
        }
        match self.ledger.screen(&early, buffer::max_held()) {
            None => self.requests.replace_kept(early),
            Some(screened) => self.forward_screened(screened),
        }
    }

    /// Forwards what takes the place of the bytes that were read last.
    #[cold]
    pub(super) fn take_screened(&mut self) {
        if !mem::replace(&mut self.has_received, true) {
            self.context.listener.drain.record_arrival();
        }
        if let Some(screened) = self.screened.take() {
            self.forward_screened(*screened);
        }
    }

    fn forward_screened(&mut self, Screened { bytes, refused, broken }: Screened) {
        if !bytes.is_empty() {
            self.requests.keep(&bytes);
        }
        if self.ledger.is_screening() || self.rare.is_some() {
            let held = self.ledger.screened();
            self.rare().held.set(held);
        }
        // Nothing more is read, as the server would not: it answers with an error and closes.
        if broken {
            (self.requests.ended, self.requests.end_withheld) = (true, true);
        }
        let WorkerContext { shared, counters, .. } = &**self.context;
        for command in refused {
            let (service, index) = (&*shared.service.name, command.index());
            counters.refused_commands.increment(index);
            if let Some(unlogged) = shared.logs.refused_commands.due(index, Instant::now()) {
                let command = command.label();
                tracing::warn!(
                    service,
                    command,
                    unlogged,
                    "client's command refused, see the key refuse"
                );
            }
        }
    }
}

// The context of a session's worker, and as what the session is counted there: by its pin, and as
// one whose requests wait at a closed gate.
//
// In one value, so that the count is taken back however the pump ends, also by a panic, and so
// that the pump itself can be taken apart.

/// The context of a worker that counts one session by its pin.
pub(in crate::session) struct CountedContext {
    context: Arc<WorkerContext>,
    pin: Option<resp::Pin>,
    is_waiting: bool,
}

impl CountedContext {
    /// Of a session that nothing pins.
    pub(super) fn new(context: &Arc<WorkerContext>) -> Self {
        Self { context: Arc::clone(context), pin: None, is_waiting: false }
    }

    /// The pin as which the session is counted.
    pub(in crate::session) fn pin(&self) -> Option<resp::Pin> {
        self.pin
    }

    /// Counts the session as pinned by `pin`, and no longer by what pinned it before.
    pub(in crate::session) fn count_pin(&mut self, pin: Option<resp::Pin>) {
        let before = mem::replace(&mut self.pin, pin);
        if before != pin {
            let pinned = &self.context.counters.pinned;
            before.inspect(|pin| pinned.decrement(*pin as usize));
            pin.inspect(|pin| pinned.increment(*pin as usize));
        }
    }

    /// Counts the session as one that waits at the gate, or no longer.
    pub(in crate::session) fn count_waiting(&mut self, is_waiting: bool) {
        if mem::replace(&mut self.is_waiting, is_waiting) != is_waiting {
            self.context.counters.count_held(is_waiting);
        }
    }
}

impl Deref for CountedContext {
    type Target = Arc<WorkerContext>;

    #[inline]
    fn deref(&self) -> &Arc<WorkerContext> {
        &self.context
    }
}

impl Drop for CountedContext {
    fn drop(&mut self) {
        self.count_pin(None);
        self.count_waiting(false);
    }
}

// The initial state of a pump: nothing, requests that arrived before the connection was open, or
// the state that a session brings from another target.

/// Maximum bytes of text remembered of a session's state. A password may be a signed token of a few
/// kilobytes.
const STATE_BYTES: u16 = 8 * 1024;

/// Maximum bytes of names of channels and patterns remembered of a session. A gateway that
/// subscribes to five thousand channels on behalf of its own clients needs that.
const SUBSCRIPTION_BYTES: u32 = 512 * 1024;

/// The initial state of a pump.
#[derive(Debug, Default)]
pub(crate) struct Start {
    /// Read from the client already, and not forwarded.
    pub(crate) early: Vec<u8>,
    /// The state of the session, if this is not its first connection.
    pub(crate) ledger: Option<Box<Ledger>>,
    /// What the client is sent first: replies, and messages that arrived during a replay.
    pub(crate) messages: Vec<u8>,
    /// The timer of the client, if the session has only rested.
    pub(crate) idle: Option<IdleWatch>,
    /// If the service shares connections, and this session has one of its own: the time after
    /// which it returns.
    pub(crate) returns_after: Option<Duration>,
}

impl Start {
    /// On another connection, with the state of the former one.
    pub(crate) fn resumed(early: Vec<u8>, ledger: Box<Ledger>) -> Self {
        Self { early, ledger: Some(ledger), ..Self::default() }
    }
}

impl From<Vec<u8>> for Start {
    fn from(early: Vec<u8>) -> Self {
        Self { early, ..Self::default() }
    }
}

/// The state of a new session: a ledger that records what a carry would need, if sessions are
/// carried.
fn fresh(options: &Options) -> Ledger {
    let records =
        options.sessions == Sessions::Carry || options.upstream != UpstreamMode::Dedicated;
    let memory = if records { STATE_BYTES } else { 0 };
    let names = if options.subscriptions == Subscriptions::Replay { SUBSCRIPTION_BYTES } else { 0 };
    Ledger::new(&Limits { memory, names, ..Limits::default() })
        .with_stateless(options.stateless_commands.clone())
        .with_refusals(options.refusals.clone())
}

// Why a pump stops, and what it leaves.

/// Why a pump stops. One byte, which every poll returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Something has ended. The session ends with this reason, unless it can be carried.
    End(EndReason),
    /// The session leaves an ejected replica.
    Leave,
    /// The session moves to a replica with fewer sessions.
    Rebalance,
    /// The session has shared a connection, and needs one of its own to the same target.
    Promote,
    /// The session does not need its own connection any more.
    Return,
    /// The session shares connections and is idle.
    Rest,
}

impl From<EndReason> for Stop {
    fn from(reason: EndReason) -> Self {
        Self::End(reason)
    }
}

impl Stop {
    /// The end reason of a session that cannot continue after this.
    pub(crate) fn reason(self) -> EndReason {
        match self {
            Self::End(reason) => reason,
            Self::Leave | Self::Rebalance => EndReason::ReplicaEjected,
            // They happen only where the session can continue.
            Self::Promote | Self::Return | Self::Rest => EndReason::InternalError,
        }
    }
}

/// The result of a pump that has stopped.
#[derive(Debug)]
pub(crate) struct Stopped {
    /// Why it stopped.
    pub(crate) stop: Stop,
    /// The replies that the client has not taken yet, and our last push to it.
    pub(crate) undelivered: Vec<u8>,
    /// What the session continues with.
    pub(crate) left: Option<Box<Left>>,
    /// Bytes forwarded to the target, and to the client.
    pub(crate) bytes: (u64, u64),
    /// Complete requests forwarded.
    pub(crate) commands: u32,
    /// The target has answered everything that it was sent, so a reset discards nothing.
    pub(crate) is_answered: bool,
    /// If it lost its target and cannot continue: why.
    pub(crate) uncarried: Option<Box<Uncarried>>,
}

/// What a pump leaves to the next state of its session. A session of which it leaves nothing ends.
#[derive(Debug)]
pub(crate) enum Left {
    /// The state that continues over another connection. If that is one of its own to the same
    /// target: why.
    State(CarryState, Option<Promotion>),
    /// What is kept while the session rests.
    Resting(Resting),
    /// Requests, none of which was forwarded. They are refused before the session ends.
    Refused(Refused),
    /// A connection of its own on which the server keeps nothing but state that can be set on any.
    /// The session ends, and its service shares connections.
    CleanConnection,
}
