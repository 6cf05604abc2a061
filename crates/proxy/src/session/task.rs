//! A session as the task that its worker polls: the order of its steps.
//!
//! A session connects and pumps, and if its pump stops for something that it survives, it connects
//! and pumps again. Nearly all the time it pumps between its client and a connection of its own
//! without TLS. That pump is the task itself: nothing is between the worker and it, and the task
//! has memory for nothing else. All other steps are a future in a box, which is freed when the next
//! such pump begins.
//!
//! For the sake of that one step this is a future written by hand and not an async function, whose
//! poll would begin with a jump by its state and a frame for everything that it may do.
//!
//! Deliberately absent: the steps, and a second owner of the connections. They are the pump's while
//! it runs, and otherwise those of the future in the box.

use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use target::TargetRef;

use crate::end_reason::EndReason;
use crate::io::stream::{ClientStream, SocketStream};
use crate::io::upstream::Upstream;
use crate::session::connect::FirstDial;
use crate::session::pump::{Moving, Pump, Start};
use crate::session::shared::rest::RestClock;
use crate::session::shared::serve::pump_shared;
use crate::session::{Ready, Session, SessionEnd, Step, finish, or_killed, pump_tls};
use crate::session_row::ConnectionUse;

/// A session with its client.
#[allow(clippy::large_enum_variant, reason = "it is nearly always the large one")]
pub(crate) enum SessionTask<C> {
    /// Pumps between the client and a connection of its own without TLS.
    Pumping(Pumping<C>),
    /// Takes other steps until the next such pump, or until its end.
    Stepping(Pin<Box<dyn Future<Output = Option<Pumping<C>>>>>),
    /// Delivers the last replies of a target whose fence is raised. In a box of its own, because
    /// many sessions do that at once, and then take steps.
    Fenced(Pin<Box<dyn Future<Output = (Session, C, Result<Step, SessionEnd>)>>>),
    /// Has not been polled yet.
    New(Session, C),
    Ended,
}

/// A session that pumps.
pub(crate) struct Pumping<C> {
    session: Session,
    moving: Moving<C, SocketStream>,
}

/// What the steps begin with.
enum Begin {
    /// The session is new. Its dial has begun already, or has not.
    New(Option<FirstDial>),
    /// It is connected.
    Connected(Ready),
    /// Its pump has stopped, and this follows.
    Stopped(Result<Step, SessionEnd>),
}

impl<C: ClientStream> Pumping<C> {
    fn new(
        mut session: Session,
        client: C,
        (target, upstream, start): (TargetRef, SocketStream, Start),
    ) -> Self {
        let (base, target) = session.connected(target, ConnectionUse::Dedicated);
        let pump = Pump::new((client, upstream), &base.context, target, start);
        Self { session, moving: Moving::new(pump) }
    }
}

impl<C: ClientStream + 'static> SessionTask<C> {
    pub(crate) fn new(session: Session, client: C) -> Self {
        Self::New(session, client)
    }

    fn stepping(session: Session, client: C, begin: Begin) -> Self {
        Self::Stepping(Box::pin(take_steps(session, client, Box::new(begin))))
    }

    /// The session begins. Within one host it is connected at once.
    fn begin(session: Session, client: C) -> Self {
        match session.connect_at_once() {
            Ok((target, Upstream::Plain(upstream), start)) => {
                Self::Pumping(Pumping::new(session, client, (target, upstream, start)))
            }
            Ok(ready) => Self::stepping(session, client, Begin::Connected(ready)),
            Err(begun) => Self::stepping(session, client, Begin::New(begun)),
        }
    }

    /// The pump has a reason to stop.
    #[cold]
    fn stop(&mut self, reason: EndReason) {
        let Self::Pumping(Pumping { mut session, moving }) = mem::replace(self, Self::Ended) else {
            return;
        };
        let mut pump = moving.into_pump();
        if reason == EndReason::Fenced {
            *self = Self::Fenced(Box::pin(stop_fenced(session, Box::new(pump))));
            return;
        }
        let stopped = pump.stop(reason);
        let (client, upstream) = pump.into_ends();
        *self = match session.note_stop(stopped, Upstream::Plain(upstream)) {
            // As most sessions end: nothing has to be waited for. It is recorded before its client
            // can see the end.
            Err((reason, _)) if !finish::is_needed::<C>(reason) => {
                session.end(reason);
                drop(client);
                Self::Ended
            }
            step => Self::stepping(session, client, Begin::Stopped(step)),
        };
    }

    /// Takes steps until the next pump. Whether the session has ended.
    #[cold]
    fn poll_steps(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        match self {
            Self::Stepping(steps) => {
                let next = ready!(steps.as_mut().poll(cx));
                *self = next.map_or(Self::Ended, Self::Pumping);
            }
            Self::Fenced(last) => {
                let (session, client, step) = ready!(last.as_mut().poll(cx));
                // Its box is freed before the next one is made.
                *self = Self::Ended;
                *self = Self::stepping(session, client, Begin::Stopped(step));
            }
            Self::New(..) => {
                if let Self::New(session, client) = mem::replace(self, Self::Ended) {
                    *self = Self::begin(session, client);
                }
            }
            Self::Pumping(_) | Self::Ended => {}
        }
        Poll::Ready(matches!(self, Self::Ended))
    }
}

impl<C: ClientStream + 'static> Future for SessionTask<C> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Self::Pumping(Pumping { session, moving }) = &mut *self {
                let reason = ready!(moving.poll(cx, &session.base));
                self.stop(reason);
            }
            if ready!(self.poll_steps(cx)) {
                return Poll::Ready(());
            }
        }
    }
}

/// Delivers the last replies of a target whose fence is raised. Returns what follows.
// Not an async function, as [`take_steps`].
#[allow(clippy::manual_async_fn)]
fn stop_fenced<C: ClientStream>(
    mut session: Session,
    pump: Box<Pump<C, SocketStream>>,
) -> impl Future<Output = (Session, C, Result<Step, SessionEnd>)> {
    async move {
        let (stopped, client, upstream) = pump.stop_fenced(&session.base).await;
        let step = session.note_stop(stopped, Upstream::Plain(upstream));
        (session, client, step)
    }
}

/// Takes steps until the next pump without TLS, or to the end of the session.
///
/// Many sessions may wait here at once, so this future is kept small: what only one step needs is
/// in a box.
// Not an async function, because the future of one holds its arguments twice.
#[allow(clippy::manual_async_fn)]
fn take_steps<C: ClientStream>(
    mut session: Session,
    mut client: C,
    begin: Box<Begin>,
) -> impl Future<Output = Option<Pumping<C>>> {
    async move {
        let mut next = match *begin {
            Begin::New(begun) => {
                let first = Box::pin(session.connect_first(&mut client, begun));
                or_killed(&session.base, first).await.map(Box::new)
            }
            Begin::Connected(ready) => Ok(Box::new(ready)),
            Begin::Stopped(step) => session.follow(step, &mut client).await.map(Box::new),
        };
        let ending = loop {
            let (target, upstream, start) = match next {
                Ok(ready) => *ready,
                Err(ending) => break ending,
            };
            let (stopped, upstream) = match upstream {
                Upstream::Plain(upstream) => {
                    return Some(Pumping::new(session, client, (target, upstream, start)));
                }
                Upstream::Tls(mut upstream) => {
                    let (base, target) = session.connected(target, ConnectionUse::Dedicated);
                    let ends = (&mut client, &mut *upstream);
                    (pump_tls(ends, base, target, start).await, Upstream::Tls(upstream))
                }
                Upstream::Shared(mut member) => {
                    let (base, target) = session.connected(target, ConnectionUse::Shared);
                    let (ends, start) = ((&mut client, &mut member), (start, RestClock::never()));
                    (pump_shared(ends, base, target, start).await, Upstream::Shared(member))
                }
            };
            let step = session.note_stop(stopped, upstream);
            next = session.follow(step, &mut client).await.map(Box::new);
        };
        session.finish(&mut client, ending).await;
        // It is recorded before its client can see the end.
        drop(session);
        None
    }
}
