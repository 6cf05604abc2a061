//! The pump: carries a session's bytes both ways until there is a reason to stop.
//!
//! One poll function does all of it: it moves requests as far as they go, then replies, then looks
//! whether the session should end. Nothing is selected over, no future is polled that cannot have
//! changed: rare events come through one [`WakeFlag`]. The first poll comes right after the connection
//! to the target opened, without a turn of the event loop in between, so a request that is already
//! waiting goes out at once.
//!
//! How it ends at a move of the points: the fence is looked at before every write to the target, so
//! after it fell no byte goes there. What was read from the target until then is delivered, and the
//! rest of a reply that had begun ([`last_replies`]), then the client is closed; a reply that is
//! read later, or after another node is known to be promoted, is none any more ([`superseded`]).
//! How it ends in a drain: see [`leave`]. From a target that is dismissed it goes on elsewhere if
//! it can, and ends as in a drain if not. What follows an end: see [`ending`].
//!
//! Deliberately absent: moving a session to another target, which is [`carry`](crate::session::carry)'s.

mod ending;
mod last_replies;
#[cfg(test)]
mod last_replies_tests;
mod notices;
#[cfg(test)]
mod notices_tests;
mod replica;
mod start;
mod superseded;
#[cfg(test)]
mod superseded_tests;

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use drain::{Phase, Ticket};
use resp::Ledger;
use target::Target;
use tokio::sync::futures::Notified;

use crate::context::WorkerContext;
use crate::io::buffer;
use crate::io::flow::{EndSignal, Flow, FlowStep};
use crate::io::forwarding::{ReplyForwarding, RequestForwarding};
use crate::io::stream::ByteStream;
use crate::latency::Stopwatch;
use crate::options::Sessions;
use crate::runtime::timers::LazyTimer;
use crate::runtime::wake_flag::FlaggedWaker;
use crate::session::broken;
use crate::session::end_reason::{EndReason, Side};
use crate::session::hold::PATROL;
use crate::session::idle::Silence;
use crate::session::leave::{self, Leaving};
use crate::session::resume::Followed;
pub(crate) use ending::{After, Stopped};

pub(crate) use start::Start;

/// A session with both ends connected.
pub(crate) struct Pump<'a, C, U> {
    client: &'a mut C,
    upstream: &'a mut U,
    context: &'a WorkerContext,
    target: &'a Target,
    ledger: Ledger,
    /// Whether it may be carried over.
    carries: bool,
    requests: Flow,
    replies: Flow,
    /// Which side ended first.
    first: Option<Side>,
    heard: bool,
    commands: u32,
    measured: u32,
    leaving: Leaving,
    /// The client was sent something since it was asked to leave.
    replied: bool,
    /// A reply was dropped: the session ends.
    dropped: bool,
    /// There once one of these was needed.
    rare: Option<Box<Rare<'a>>>,
    /// Patrols in a row that found a request waiting at the gate.
    waited: u16,
    silence: Silence,
    stopwatch: Stopwatch,
    /// There while something of ours is to go between the replies.
    aside: Option<Box<notices::Aside>>,
    /// As what it is counted.
    pin: Option<resp::Pin>,
}

/// What most sessions never need, or only in their last moments.
#[derive(Default)]
struct Rare<'a> {
    /// Waits for this session's turn to leave.
    turn: Option<Pin<Box<dyn Future<Output = ()> + Send + 'a>>>,
    half_close: LazyTimer,
    patience: LazyTimer,
    /// Set while the gate is shut.
    patrol: LazyTimer,
    /// Set while the target answers nobody.
    silent: LazyTimer,
}

impl<'a, C: ByteStream, U: ByteStream> Pump<'a, C, U> {
    /// A pump between two open ends.
    pub(crate) fn new(
        (client, upstream): (&'a mut C, &'a mut U),
        context: &'a WorkerContext,
        target: &'a Target,
        start: impl Into<Start>,
    ) -> Self {
        let Start { early, followed } = start.into();
        let carried = followed.is_some();
        let heard = carried || !early.is_empty();
        if heard && !carried {
            context.drain.record_arrival();
        }
        let options = context.shared.service.options.now();
        let Followed { ledger, messages } =
            followed.map_or_else(|| start::fresh(&options), |followed| *followed);
        Self {
            client,
            upstream,
            context,
            target,
            ledger,
            carries: options.sessions == Sessions::Carry,
            heard,
            requests: Flow::new(early),
            replies: Flow::new(messages),
            first: None,
            commands: 0,
            measured: 0,
            leaving: Leaving::No,
            replied: false,
            dropped: false,
            rare: None,
            waited: 0,
            silence: Silence::of(carried),
            stopwatch: Stopwatch::default(),
            aside: None,
            pin: None,
        }
    }

    /// Pumps until there is a reason to stop.
    ///
    /// By reference, because what an async function takes by value is in its future twice; and not
    /// an async function, because of that even its references are.
    #[allow(clippy::manual_async_fn)]
    pub(crate) fn run(&mut self, ticket: &'a Ticket) -> impl Future<Output = Stopped> {
        async move {
            let watch = poll_fn(|cx| Poll::Ready(FlaggedWaker::new(cx.waker()))).await;
            let mut news = pin!(self.context.session_notify.notified());
            self.silence.watch(
                &self.context.shared.service.options.now(),
                self.heard,
                &watch.waker,
            );
            let reason = poll_fn(|cx| self.turn(cx, ticket, &watch, news.as_mut())).await;
            if reason == EndReason::Fenced {
                self.last_replies(ticket).await;
            }
            self.stop(reason)
        }
    }

    /// One poll of it.
    fn turn(
        &mut self,
        cx: &mut Context<'_>,
        ticket: &'a Ticket,
        FlaggedWaker { flag, waker }: &FlaggedWaker,
        mut news: Pin<&mut Notified<'a>>,
    ) -> Poll<EndReason> {
        // Once for all that follows: nothing can be noted while this runs.
        self.client.update_readiness(cx);
        self.upstream.update_readiness(cx);
        let rung = flag.take_woken();
        if rung {
            // A new future before the look at fence, gate and drain, so that no news between the
            // two is lost.
            while news.as_mut().poll(&mut Context::from_waker(waker)).is_ready() {
                news.set(self.context.session_notify.notified());
            }
            if let Some(reason) = self.look(ticket, waker) {
                return Poll::Ready(reason);
            }
        }
        match buffer::with_scratch(|scratch| self.poll(cx, waker, scratch)) {
            Poll::Pending if rung => self.judge_silence(waker).map_or(Poll::Pending, Poll::Ready),
            result => result,
        }
    }

    fn rare(&mut self) -> &mut Rare<'a> {
        self.rare.get_or_insert_default()
    }

    /// Whether the alarm is set and due.
    fn is_due(
        &mut self,
        alarm: for<'r> fn(&'r mut Rare<'a>) -> &'r mut LazyTimer,
        waker: &Waker,
    ) -> bool {
        self.rare.as_mut().is_some_and(|rare| alarm(rare).is_due(waker))
    }

    /// Looks at what only the bell tells of.
    fn look(&mut self, ticket: &'a Ticket, waker: &Waker) -> Option<EndReason> {
        if ticket.is_cut() {
            return Some(EndReason::Cut);
        }
        if let Some(reason) = self.look_for_silence(waker).or_else(|| self.look_for_a_move(waker)) {
            return Some(reason);
        }
        if self.leaving == Leaving::No && (self.is_draining() || self.target.is_draining()) {
            // Made only now: ten thousand sessions need no room for it while nobody has to leave.
            let (draining, target) = (self.is_draining(), self.target);
            let turn = self.rare.get_or_insert_default().turn.get_or_insert_with(|| {
                if draining { Box::pin(ticket.asked()) } else { Box::pin(leave::turn(target)) }
            });
            if turn.as_mut().poll(&mut Context::from_waker(waker)).is_ready() {
                self.rare().turn = None;
                // Who goes on elsewhere need not choose his moment: his client notices nothing.
                if !draining && self.can_be_carried() {
                    return Some(EndReason::Dismissed);
                }
                self.begin_to_leave(waker);
            }
        }
        if self.leaving == Leaving::Told && self.is_due(|rare| &mut rare.patience, waker) {
            self.listen_for_a_reply(waker);
        }
        if self.leaving == Leaving::AfterReply && self.is_due(|rare| &mut rare.patience, waker) {
            self.leaving = Leaving::WhenQuiet;
            self.rare().patience.set(leave::PATIENCE, waker);
        }
        if self.leaving == Leaving::WhenQuiet && self.is_due(|rare| &mut rare.patience, waker) {
            self.leaving = Leaving::AtBoundary;
        }
        self.tell_of_the_gate();
        if let Some(reason) = self.patrol_the_gate(waker) {
            return Some(reason);
        }
        if self.is_due(|rare| &mut rare.half_close, waker) {
            return Some(EndReason::HalfCloseTimeout);
        }
        None
    }

    fn is_draining(&self) -> bool {
        self.context.drain.phase() >= Phase::Draining
    }

    /// Whether the client has gone while the gate was shut, or has waited for too long. It is not
    /// read then, so its end may stand behind requests that nobody waits for any more: they must
    /// not be executed late. Looked at from time to time, and when the gate opens.
    fn patrol_the_gate(&mut self, waker: &Waker) -> Option<EndReason> {
        let shut = self.target.is_closed();
        let due = self.is_due(|rare| &mut rare.patrol, waker);
        let set = self.rare.as_ref().is_some_and(|rare| rare.patrol.is_set());
        if !shut && !set {
            return None;
        }
        if !shut {
            self.rare().patrol.clear();
        } else if due || !set {
            self.rare().patrol.set(PATROL, waker);
        }
        if (due || !shut) && !self.requests.has_ended() && self.client.peer_closed() {
            return Some(EndReason::HoldAbandoned);
        }
        if !shut {
            self.waited = 0;
        }
        (due && shut && self.has_waited_too_long()).then_some(EndReason::HoldTimeout)
    }

    fn poll(&mut self, cx: &mut Context<'_>, waker: &Waker, scratch: &mut [u8]) -> Poll<EndReason> {
        // What is never sent to a target that has gone can still be sent to the next one.
        let stuck = self.target.fence().is_raised()
            || (self.upstream.peer_closed() && self.can_be_carried());
        let mut requests = if stuck {
            FlowStep::Stuck
        } else {
            self.move_requests(cx, EndSignal::NotYet, scratch)
        };
        if matches!(requests, FlowStep::Done) {
            self.note_first_end();
            if self.has_all() {
                return Poll::Ready(EndReason::ClientClosed);
            }
            requests = self.move_requests(cx, EndSignal::Yes, scratch);
        }
        if self.ledger.must_end().is_some() {
            return Poll::Ready(self.must_end());
        }
        let done = matches!(requests, FlowStep::Done);
        let mut replies = self.move_replies(cx, EndSignal::NotYet, scratch);
        if self.target.fence().is_raised() {
            return Poll::Ready(EndReason::Fenced);
        }
        if self.dropped {
            return Poll::Ready(EndReason::ReplyDropped);
        }
        if self.ledger.must_end().is_some() {
            return Poll::Ready(self.must_end());
        }
        self.note_first_end();
        if matches!(replies, FlowStep::Done) && !done {
            // The client need not hear of it if the session can go on elsewhere.
            if self.can_be_carried() {
                return Poll::Ready(EndReason::UpstreamClosed);
            }
            self.have_the_last_word();
            replies = self.move_replies(cx, EndSignal::Yes, scratch);
        }
        let more = matches!(requests, FlowStep::More) || matches!(replies, FlowStep::More);
        let idle = matches!(requests, FlowStep::Idle);
        if matches!((&requests, &replies), (FlowStep::Done, FlowStep::Done)) {
            return Poll::Ready(if self.first == Some(Side::Client) {
                EndReason::ClientClosed
            } else {
                EndReason::UpstreamClosed
            });
        }
        if let Some(reason) = self.failure(requests, replies) {
            return Poll::Ready(reason);
        }
        if self.first.is_some() && !self.rare().half_close.is_set() {
            let span = self.context.shared.service.options.now().half_close_timeout;
            self.rare().half_close.set(span, waker);
        }
        if self.leaving != Leaving::No && self.may_leave(idle) && !self.has_unread_request() {
            return Poll::Ready(if self.is_draining() {
                EndReason::Drained
            } else {
                EndReason::Dismissed
            });
        }
        if more {
            cx.waker().wake_by_ref();
        }
        if self.ledger.take_pin_change() { self.note_pin() } else { Poll::Pending }
    }

    fn move_requests(
        &mut self,
        cx: &mut Context<'_>,
        tell: EndSignal,
        scratch: &mut [u8],
    ) -> FlowStep {
        let mut valve = RequestForwarding {
            ledger: &mut self.ledger,
            target: self.target,
            context: self.context,
            heard: &mut self.heard,
            stopping: self.leaving == Leaving::AtBoundary,
            stopwatch: &mut self.stopwatch,
            measured: &mut self.measured,
        };
        self.requests.poll_move(cx, self.client, self.upstream, &mut valve, (scratch, tell))
    }

    fn move_replies(
        &mut self,
        cx: &mut Context<'_>,
        tell: EndSignal,
        scratch: &mut [u8],
    ) -> FlowStep {
        let before = self.replies.bytes_moved();
        let apart = if self.has_words() { self.move_replies_apart(cx, scratch) } else { None };
        let step = apart.unwrap_or_else(|| {
            let mut valve = ReplyForwarding {
                ledger: &mut self.ledger,
                target: self.target,
                context: self.context,
                stopwatch: &mut self.stopwatch,
                commands: &mut self.commands,
            };
            self.replies.poll_move(
                cx,
                self.upstream,
                self.client,
                &mut valve,
                (&mut *scratch, tell),
            )
        });
        let step = match step {
            FlowStep::Stopped(read) => match broken::first(scratch, read) {
                Ok(bytes) => self.sift(cx, bytes),
                Err(error) => FlowStep::SourceFailed(error),
            },
            step => step,
        };
        self.replied |= self.leaving != Leaving::No && self.replies.bytes_moved() > before;
        step
    }

    fn note_first_end(&mut self) {
        if self.first.is_some() {
            return;
        }
        if self.requests.has_ended() {
            self.first = Some(Side::Client);
        } else if self.replies.has_ended() {
            self.first = Some(Side::Upstream);
            self.tell_of_the_end();
        }
    }

    /// Whether a request has arrived that the event loop has not told of yet. It will, and the
    /// session goes on until then. One that is stopped at a boundary leaves what it has not read.
    fn has_unread_request(&self) -> bool {
        self.leaving != Leaving::AtBoundary && self.client.has_unread()
    }
}
