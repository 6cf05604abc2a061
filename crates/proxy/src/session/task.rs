//! A session as the task that its worker polls: the order of its steps.
//!
//! A session connects and pumps, and if its pump stops for something that it survives, it connects
//! and pumps again. Nearly all the time it pumps between its client and a connection of its own
//! without TLS. That pump is the future of the task itself: nothing is between the worker and it,
//! and it has memory for nothing else. All other steps are another future, as which the task
//! [continues](continue_as), and which gives way to the next such pump.
//!
//! For the sake of that one step this is a future written by hand and not an async function, whose
//! poll would begin with a jump by its state and a frame for everything that it may do.
//!
//! Deliberately absent: the steps, and a second owner of the connections. They are the pump's while
//! it runs, and otherwise those of the other future.

use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use target::TargetRef;

use crate::end_reason::EndReason;
use crate::io::stream::{ClientStream, SocketStream};
use crate::io::upstream::Upstream;
use crate::runtime::tasks::continuing::continue_as;
use crate::session::connect::FirstDial;
use crate::session::pump::{Moving, Pump, Start};
use crate::session::shared::rest::RestClock;
use crate::session::shared::serve::pump_shared;
use crate::session::{Ready, Session, SessionEnd, Step, finish, or_killed, pump_tls};
use crate::session_row::ConnectionUse;

/// A session that begins, and then pumps between its client and a connection of its own without
/// TLS.
#[allow(clippy::large_enum_variant, reason = "it is nearly always the large one")]
pub(crate) enum SessionTask<C> {
    /// Pumps.
    Pumping { session: Session, moving: Moving<C, SocketStream> },
    /// Has not been polled yet.
    New(Session, C),
    /// Has ended, or continues as another future.
    Ended,
}

/// What the other steps begin with.
enum Begin {
    /// The session is new. Its dial has begun already, or has not.
    New(Option<FirstDial>),
    /// It is connected.
    Connected(Ready),
    /// Its pump has stopped, and this follows.
    Stopped(Result<Step, SessionEnd>),
}

impl<C: ClientStream + 'static> SessionTask<C> {
    pub(crate) fn new(session: Session, client: C) -> Self {
        Self::New(session, client)
    }

    fn pumping(
        mut session: Session,
        client: C,
        (target, upstream, start): (TargetRef, SocketStream, Start),
    ) -> Self {
        let (base, target) = session.connected(target, ConnectionUse::Dedicated);
        let pump = Pump::new((client, upstream), &base.context, target, start);
        Self::Pumping { session, moving: Moving::new(pump) }
    }

    /// Begins the session if it is new. Within one host it is connected at once. Returns whether it
    /// pumps now.
    // Not cold: most sessions of some applications do little else.
    #[inline(never)]
    fn begin(&mut self) -> bool {
        let Self::New(session, client) = mem::replace(self, Self::Ended) else { return false };
        match session.connect_at_once() {
            Ok((target, Upstream::Plain(upstream), start)) => {
                *self = Self::pumping(session, client, (target, upstream, start));
                return true;
            }
            Ok(ready) => take_steps_next(session, client, Begin::Connected(ready)),
            Err(begun) => take_steps_next(session, client, Begin::New(begun)),
        }
        false
    }

    /// The pump has a reason to stop. Ends the session, or lets the task continue as the future of
    /// what follows.
    #[inline(never)]
    fn stop(&mut self, reason: EndReason) {
        let Self::Pumping { mut session, moving } = mem::replace(self, Self::Ended) else {
            return;
        };
        let mut pump = moving.into_pump();
        if reason == EndReason::Fenced {
            return continue_as(stop_fenced(session, Box::new(pump)));
        }
        let stopped = pump.stop(reason);
        let (client, upstream) = pump.into_ends();
        match session.note_stop(stopped, Upstream::Plain(upstream)) {
            // As most sessions end: nothing has to be waited for. It is recorded before its client
            // can see the end.
            Err((reason, _)) if !finish::is_needed::<C>(reason) => {
                session.end(reason);
                drop(client);
            }
            step => take_steps_next(session, client, Begin::Stopped(step)),
        }
    }
}

impl<C: ClientStream + 'static> Future for SessionTask<C> {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Self::Pumping { session, moving } = &mut *self {
                let reason = ready!(moving.poll(cx, &session.base));
                self.stop(reason);
                return Poll::Ready(());
            }
            if !self.begin() {
                return Poll::Ready(());
            }
        }
    }
}

/// Delivers the last replies of a target whose fence is raised. Then the task continues with what
/// follows. It has a future of its own, because many sessions do that at once.
// Not an async function, as [`take_steps`].
#[allow(clippy::manual_async_fn)]
fn stop_fenced<C: ClientStream + 'static>(
    mut session: Session,
    pump: Box<Pump<C, SocketStream>>,
) -> impl Future<Output = ()> {
    async move {
        let (stopped, client, upstream) = pump.stop_fenced(&session.base).await;
        let step = session.note_stop(stopped, Upstream::Plain(upstream));
        take_steps_next(session, client, Begin::Stopped(step));
    }
}

/// The task that is being polled continues with these steps.
fn take_steps_next<C: ClientStream + 'static>(session: Session, client: C, begin: Begin) {
    continue_as(take_steps(session, client, Box::new(begin)));
}

/// Takes steps until the next pump without TLS, as which the task continues, or to the end of the
/// session.
///
/// Many sessions may wait here at once, so this future is kept small: what only one step needs is
/// in a box.
// Not an async function, because the future of one holds its arguments twice.
#[allow(clippy::manual_async_fn)]
fn take_steps<C: ClientStream + 'static>(
    mut session: Session,
    mut client: C,
    begin: Box<Begin>,
) -> impl Future<Output = ()> {
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
                    let ready = (target, upstream, start);
                    return continue_as(SessionTask::pumping(session, client, ready));
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
    }
}
