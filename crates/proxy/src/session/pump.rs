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

mod counted_context;
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
mod start;
mod stopped;
mod superseded;
#[cfg(test)]
mod superseded_tests;
#[cfg(test)]
mod tls_target_tests;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use counted_context::CountedContext;
use drain::Ticket;
use resp::{Ledger, RefusedCommand, Screened};
use target::{Target, TargetRef};

use crate::context::WorkerContext;
use crate::end_reason::{EndReason, Side};
use crate::io::buffer::{self, KeptCount};
use crate::io::flow::{EndSignal, Flow, FlowStep, MAX_READS};
use crate::io::stream::ByteStream;
use crate::latency::Stopwatch;
use crate::options::Sessions;
use crate::runtime::tasks::visits;
use crate::runtime::timers::LazyTimer;
use crate::runtime::wake_flag::{FlaggedWaker, WakeFlag};
use crate::session::carry::replay::Replayed;
use crate::session::idle::IdleWatch;
use crate::session::leave::Leaving;
use crate::session::pump::sharing::SharingState;
use crate::session::report::SessionBase;
use crate::session::rest::RestClock;
use crate::session::upstream::TargetStream;

pub(in crate::session) use forwarding::BEGUN;
pub(crate) use start::Start;
pub(crate) use stopped::{Left, Stop, Stopped};

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
    pub(super) interleaved: Option<Box<interleave::Interleaved>>,
    /// What is forwarded in place of what was read, if that has a refused request.
    pub(super) screened: Option<Box<Screened>>,
    /// Present if its service shares connections.
    pub(super) sharing: Option<Box<SharingState>>,
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
        let Start { early, replayed, returns_after } = start.into();
        let carried = replayed.is_some();
        let has_received = carried || !early.is_empty();
        if has_received && !carried {
            context.listener.drain.record_arrival();
        }
        let options = context.shared.service.options.peek();
        let Replayed { ledger, messages, idle } =
            replayed.map_or_else(|| start::fresh(&options), |replayed| *replayed);
        let mut pump = Self {
            client,
            upstream,
            context: CountedContext::new(context),
            target: target.target(),
            ledger,
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
            sharing: match U::SHARED {
                true => Some(SharingState::sharing(RestClock::of(!early.is_empty()))),
                false => returns_after.map(SharingState::returning),
            },
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
        visits::register(&watch.flag, self.context.listener.id.group());
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
        self.check_rest(waker);
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
            self.requests.announce_end();
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
            // The end is not passed to the client if the session can continue elsewhere.
            if self.can_be_carried() {
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
        self.limit_half_close(waker);
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
        if !std::mem::replace(&mut self.has_received, true) {
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
            self.requests.end_unannounced();
        }
        for command in refused {
            self.count_refused(command);
        }
    }

    fn count_refused(&self, command: RefusedCommand) {
        self.context.counters.refused_commands.increment(command.index());
        let shared = &self.context.shared;
        if let Some(unlogged) = shared.logs.refused_commands.due(command.index(), Instant::now()) {
            let (service, command) = (&*shared.service.name, command.label());
            tracing::warn!(
                service,
                command,
                unlogged,
                "client's command refused, see the key refuse"
            );
        }
    }
}
