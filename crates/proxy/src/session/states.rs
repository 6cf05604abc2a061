//! The states of a session, each the future as which its task runs.
//!
//! Many sessions may be in any of them at once, so each is kept small: what only one step needs is
//! in a box. [`Pumping`] is written by hand: nothing is between the worker and the pump, and a poll
//! has no frame for anything else.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use resp::Ledger;
use target::TargetRef;

use crate::durability::ConfirmedStream;
use crate::end_reason::EndReason;
use crate::invariant;
use crate::io::stream::ClientStream;
use crate::runtime::tasks::continuing::continue_as;
use crate::runtime::tasks::visits;
use crate::runtime::wake_flag::FlaggedWaker;
use crate::session::carry::CarryState;
use crate::session::connect::{Again, Why};
use crate::session::pump::{Left, Pump, Start, Stop, Stopped};
use crate::session::report::{Stage, while_visited};
use crate::session::rest::Resting;
use crate::session::upstream::{Upstream, UpstreamPart};
use crate::session::{Next, Ready, Session, SessionEnd, or_killed, refusals};
use crate::session_row::ConnectionUse;
use crate::shared::{Promotion, linger, verifiers};

/// The state in which a session is connected, or connected again.
// Not an async function, because the future of one holds its arguments twice.
#[allow(clippy::manual_async_fn)]
pub(super) fn connecting<C: ClientStream>(
    mut session: Session,
    mut client: C,
    why: Box<Why>,
) -> impl Future<Output = ()> {
    async move {
        let is_new = matches!(*why, Why::First(_));
        let connected = or_killed(&session.base, session.connect(*why, &mut client)).await;
        let next = match connected {
            Ok(ready) => Next::Pump(session.continued(ready)),
            Err(ending) if is_new => Next::Close(ending),
            Err(ending) => Next::Close(session.not_continued(ending)),
        };
        session.enter(client, next);
    }
}

/// Entering and leaving the state in which a session moves bytes.
impl Session {
    /// Pumps over a connection of the session's own, on which writes are confirmed if its service
    /// demands that.
    pub(super) fn pump_dedicated<C, U>(
        self,
        client: C,
        upstream: U,
        target: TargetRef,
        start: Start,
    ) where
        C: ClientStream,
        U: UpstreamPart,
    {
        let context = &self.base.context;
        let Some(rule) = context.shared.service.options.peek().durability else {
            return self.pump(client, upstream, target, start);
        };
        let ledger = start.ledger.as_ref();
        let ledger = ledger.map_or_else(|| Ledger::of_protocol(false), |it| it.follower());
        let confirmed = ConfirmedStream::new(upstream, rule, ledger, context, &target.target());
        self.pump(client, confirmed, target, start);
    }

    pub(super) fn pump<C, U>(mut self, client: C, upstream: U, target: TargetRef, start: Start)
    where
        C: ClientStream,
        U: UpstreamPart,
    {
        let by = if U::SHARED { ConnectionUse::Shared } else { ConnectionUse::Dedicated };
        self.base.count_as(Some(by));
        let target = self.target.insert(target);
        let pump = Pump::new(client, upstream, &self.base.context, target, start);
        continue_as(Pumping::new(self, pump));
    }

    /// Its pump has a reason to stop.
    fn stop<C: ClientStream, U: UpstreamPart>(mut self, mut pump: Pump<C, U>, stop: Stop) {
        if stop == Stop::End(EndReason::Fenced) {
            return continue_as(fenced(self, Box::new(pump)));
        }
        let stopped = pump.stop(stop);
        let Pump { client, upstream, .. } = pump;
        let next = self.next(stopped, upstream.into());
        self.enter(client, next);
    }
}

/// The state in which a session moves bytes; `None` when it is in another state.
pub(super) struct Pumping<C, U>(Option<Running<C, U>>);

struct Running<C, U> {
    pump: Pump<C, U>,
    /// What wakes the pump beside its connections.
    watch: Option<FlaggedWaker>,
    session: Session,
}

impl<C: ClientStream, U: UpstreamPart> Pumping<C, U> {
    pub(super) fn new(session: Session, pump: Pump<C, U>) -> Self {
        Self(Some(Running { pump, watch: None, session }))
    }

    /// Never inlined: it moves all of the pump, and a poll would have a frame for that.
    #[inline(never)]
    fn leave(&mut self, stop: Stop) {
        if let Some(Running { pump, session, .. }) = self.0.take() {
            session.stop(pump, stop);
        }
    }
}

impl<C: ClientStream, U: UpstreamPart> Future for Pumping<C, U> {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // As a loop, although it never turns: the compiler then keeps the address of the pump in a
        // register, which saves 3 % of all instructions.
        while let Some(Running { pump, watch, session }) = &mut self.0 {
            let stop = ready!(pump.poll_watched(cx, &session.base, watch));
            self.leave(stop);
        }
        Poll::Ready(())
    }
}

/// The end of pumping when the fence of the target is raised: delivers its last replies. It has a
/// future of its own, because many sessions do that at once.
#[allow(clippy::manual_async_fn)]
pub(super) fn fenced<C, U>(mut session: Session, pump: Box<Pump<C, U>>) -> impl Future<Output = ()>
where
    C: ClientStream,
    U: UpstreamPart,
{
    async move {
        let (stopped, client, upstream) = pump.stop_fenced(&session.base).await;
        let next = session.next(stopped, upstream.into());
        session.enter(client, next);
    }
}

/// A session that shares connections and whose client is idle.
struct Idle<C> {
    session: Session,
    client: C,
    resting: Box<Resting>,
}

/// The state in which a session that shares connections waits for something to do.
pub(super) fn resting<C: ClientStream>(
    session: Session,
    client: C,
    resting: Box<Resting>,
) -> impl Future<Output = ()> {
    visits::register(None, session.base.context.listener.id.group());
    let mut idle = Idle { session, client, resting };
    async move {
        // With one reference to all of it: this future is that of most clients.
        let woken = poll_fn(|cx| {
            let Idle { session: Session { base, target, .. }, client, resting } = &mut idle;
            resting.poll_wait(cx, base, target.as_deref(), client)
        });
        let woken = woken.await;
        let Idle { mut session, client, resting } = idle;
        let next = match (woken, session.target.take()) {
            (Ok(early), Some(target)) => {
                let (upstream, start) = resting.wake(early);
                Next::Pump((target, upstream, start))
            }
            (woken, target) => {
                session.target = target;
                let lost = || invariant::report("a session rests without a target");
                Next::Close(woken.err().unwrap_or_else(lost).into())
            }
        };
        session.enter(client, next);
    }
}

/// The state in which requests that were never forwarded are refused, and the client's connection
/// is closed.
pub(super) async fn closing<C: ClientStream>(mut session: Session, mut client: C, end: SessionEnd) {
    let SessionEnd { reason, undelivered, refused, push } = end;
    session.base.reason = reason;
    session.base.stage.set(Stage::Closing);
    let is_new = session.target.is_none();
    let finish = async {
        let refusals = match refused {
            Some(refused) => refusals::refuse(&mut client, refused, reason, is_new).await,
            None => Vec::new(),
        };
        refusals::finish(&mut client, &[undelivered, refusals, push].concat()).await;
    };
    // An order changes nothing of why it ends.
    let _done = while_visited(&session.base, Box::pin(finish)).await;
    // It is recorded before its client can see the end.
    drop(session);
}

// What a session does after its pump has stopped, or after a rest.

impl Session {
    /// Decides what follows a pump, and records what it has done. If the session ends, the
    /// connection to the target is closed here, before the client's.
    pub(super) fn next(&mut self, stopped: Stopped, mut upstream: Upstream) -> Next {
        let Stopped { stop, undelivered, left, bytes, commands, is_answered, uncarried } = stopped;
        self.base.add(bytes.0, bytes.1, commands);
        if stop != Stop::Rest {
            self.base.count_as(None);
        }
        self.uncarried = uncarried;
        // A target that is lost receives nothing more: the kernel would send again what a
        // partitioned master has not acknowledged, when it comes back.
        if matches!(
            stop.reason(),
            EndReason::Fenced | EndReason::ReplyDropped | EndReason::TargetUnresponsive
        ) {
            upstream.reset_on_close();
        }
        match left.map(|left| *left) {
            Some(Left::Resting(resting)) => Next::Rest(Box::new(resting)),
            Some(Left::State(state, promotion)) => {
                self.continue_with(stop, state, promotion, upstream)
            }
            Some(Left::Refused(refused)) => {
                // Nothing is undelivered but our last push.
                let (reason, refused) = (stop.reason(), Some(refused));
                let end =
                    SessionEnd { reason, undelivered: Vec::new(), refused, push: undelivered };
                Next::Close(self.not_continued(end))
            }
            Some(Left::CleanConnection) => {
                if let Some(target) = &self.target {
                    self.give_up(upstream, target, true);
                }
                Next::Close(EndReason::ClientClosed.into())
            }
            None => {
                if is_answered {
                    upstream.close_answered();
                }
                let reason = match stop {
                    Stop::End(_) | Stop::Leave | Stop::Rebalance => stop.reason(),
                    Stop::Promote | Stop::Return | Stop::Rest => {
                        invariant::report("a session continues with nothing")
                    }
                };
                Next::Close(SessionEnd { undelivered, ..reason.into() })
            }
        }
    }

    /// The session continues with this state.
    fn continue_with(
        &mut self,
        stop: Stop,
        state: CarryState,
        promotion: Option<Promotion>,
        old: Upstream,
    ) -> Next {
        match (stop, self.target.take()) {
            (Stop::Return, Some(here)) => Next::Pump(self.return_to_shared(state, old, here)),
            (Stop::Rebalance, Some(here)) => {
                Next::Connect(Box::new(Why::Rebalance(here, old, state)))
            }
            (_, here) => {
                self.target = here;
                let returns_after = self.returns_after(promotion, &old);
                Next::Connect(Box::new(Why::Again(Again { state, old, promotion, returns_after })))
            }
        }
    }

    // How a session gets a connection of its own although its service shares connections, and how
    // it returns.
    //
    // Either happens at a boundary: everything that was sent is answered, and the server keeps
    // nothing for the session but state that can be set on any connection. Usually the client has
    // read all replies, too. One that sends more than is taken may not read before it has sent all
    // of it: it takes the replies along to its own connection, where nothing limits what it may
    // send.

    /// Gives up the session's own connection. If it only served to verify requests, it serves the
    /// next session that has any.
    pub(crate) fn return_to_shared(
        &mut self,
        state: CarryState,
        upstream: Upstream,
        target: TargetRef,
    ) -> Ready {
        self.base.context.counters.shared.returned.increment();
        let may_keep = verifiers::may_keep(&state.ledger);
        self.give_up(upstream, &target, may_keep);
        self.linger.get_or_insert_default().returned = Some(Instant::now());
        (target, Upstream::sharing(), state.share())
    }

    /// Closes the connection, on which everything is answered, unless the next session with a
    /// request to verify can use it.
    pub(crate) fn give_up(&self, upstream: Upstream, target: &TargetRef, may_keep: bool) {
        let promotion = self.base.promotion.take();
        if may_keep && promotion == Some(Promotion::Verification) {
            verifiers::keep(upstream, &target.target(), &self.base.context);
        } else {
            upstream.close_answered();
        }
    }

    /// The time after which the session returns from its next connection, if that is one of its own
    /// although its service shares connections. Counts its `promotion`.
    pub(crate) fn returns_after(
        &mut self,
        promotion: Option<Promotion>,
        upstream: &Upstream,
    ) -> Option<Duration> {
        let Some(promotion) = promotion else {
            // It keeps its own connection for as long as if it had needed one now.
            return self.linger.as_ref().filter(|_| !upstream.is_shared()).map(|it| it.span());
        };
        self.base.context.counters.shared.promoted.increment(linger::number(promotion));
        self.base.promotion.set(Some(promotion));
        Some(self.linger.get_or_insert_default().promoted(promotion, Instant::now()))
    }
}
