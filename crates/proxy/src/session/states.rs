//! The states of a session, each the future as which its task runs.
//!
//! Many sessions may be in any of them at once, so each is kept small: what only one step needs is
//! in a box. [`Pumping`] is written by hand: nothing is between the worker and the pump, and a poll
//! has no frame for anything else.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use resp::Ledger;
use target::TargetRef;

use crate::durability::ConfirmedStream;
use crate::end_reason::EndReason;
use crate::io::stream::ClientStream;
use crate::runtime::tasks::continuing::continue_as;
use crate::runtime::tasks::visits;
use crate::runtime::wake_flag::FlaggedWaker;
use crate::session::connect::Why;
use crate::session::pump::{Pump, Start, Stop};
use crate::session::report::{Stage, while_visited};
use crate::session::rest::Resting;
use crate::session::upstream::{Upstream, UpstreamPart};
use crate::session::{Next, Ready, Session, SessionEnd, finish, or_killed, refusals};
use crate::session_row::ConnectionUse;

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
    /// Pumps over this connection.
    pub(super) fn begin_to_pump<C: ClientStream>(self, client: C, ready: Ready) {
        let (target, upstream, start) = ready;
        match upstream {
            Upstream::Plain(socket) => self.pump_dedicated(client, socket, target, start),
            Upstream::Tls(stream) => self.pump_dedicated(client, stream, target, start),
            Upstream::Shared(member) => self.pump(client, member, target, start),
        }
    }

    /// Pumps over a connection of the session's own, on which writes are confirmed if its service
    /// demands that.
    fn pump_dedicated<C, U>(self, client: C, upstream: U, target: TargetRef, start: Start)
    where
        C: ClientStream,
        U: UpstreamPart,
    {
        let context = &self.base.context;
        let Some(rule) = context.shared.service.options.peek().durability else {
            return self.pump(client, upstream, target, start);
        };
        let ledger = start
            .replayed
            .as_ref()
            .map_or_else(|| Ledger::of_protocol(false), |replayed| replayed.ledger.follower());
        let confirmed = ConfirmedStream::new(upstream, rule, ledger, context, &target.target());
        self.pump(client, confirmed, target, start);
    }

    fn pump<C, U>(mut self, client: C, upstream: U, target: TargetRef, start: Start)
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
    visits::register_without_flag(session.base.context.listener.id.group());
    let mut idle = Idle { session, client, resting };
    async move {
        // With one reference to all of it: this future is that of most clients.
        let woken = poll_fn(|cx| {
            let Idle { session: Session { base, target, .. }, client, resting } = &mut idle;
            resting.poll_wait(cx, base, target.as_deref(), client)
        });
        let woken = woken.await;
        let Idle { mut session, client, resting } = idle;
        let next = session.woken(*resting, woken);
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
        finish::finish(&mut client, &[undelivered, refusals, push].concat()).await;
    };
    // An order changes nothing of why it ends.
    let _done = while_visited(&session.base, Box::pin(finish)).await;
    // It is recorded before its client can see the end.
    drop(session);
}
