//! A session of a service that shares connections, from its first pump to its end.
//!
//! There are three kinds of phases: it pumps between its client and a shared connection, it
//! [rests](crate::session::shared::rest), or it has a connection of its own for a while. Each is a
//! future of its own, in a box that is freed at its end. So a session that rests keeps nothing of
//! the other two.
//!
//! Deliberately absent: what follows a pump, which is the same for all sessions
//! ([`Session::continue_with`]).

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use target::TargetRef;

use crate::invariant;
use crate::io::shared::Member;
use crate::io::stream::{ByteStream, ClientStream};
use crate::io::upstream::Upstream;
use crate::runtime::tasks::visits;
use crate::session::pump::{After, Pump, Start, Stopped};
use crate::session::report::SessionBase;
use crate::session::shared::rest::{RestClock, Resting, Woken};
use crate::session::{Ready, Session, SessionEnd, dial, finish, or_killed, pump_tls};
use crate::session_row::ConnectionUse;

/// What follows a pump between a client and shared connections.
enum Shared {
    /// The session rests.
    Rests(Box<Resting>),
    /// It continues on a connection of its own, or on another shared one.
    Continues(Ready),
}

/// Pumps between a client and a shared connection.
pub(in crate::session) fn pump_shared<'a, C: ByteStream>(
    ends: (&'a mut C, &'a mut Member),
    base: &'a SessionBase,
    target: &'a TargetRef,
    (start, rest): (Start, RestClock),
) -> Pin<Box<dyn Future<Output = Stopped> + 'a>> {
    Box::pin(Pump::new(ends, &base.context, target, start).sharing(rest).run(base))
}

/// A session, its client, and what is kept while it rests.
struct Serving<C> {
    session: Session,
    client: C,
    resting: Option<Box<Resting>>,
}

impl<C: ClientStream> Serving<C> {
    /// Serves the client until it rests, or to its end. Returns whether it rests.
    async fn serve(&mut self, woken: Woken) -> bool {
        let Self { session, client, resting } = self;
        *resting = session.serve_sharing(client, resting.take(), woken).await;
        resting.is_some()
    }

    /// Waits until there is something to do.
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<Woken> {
        let Self { session: Session { base, target, .. }, client, resting } = self;
        match resting {
            Some(resting) => resting.poll_wait(cx, base, target.as_deref(), client),
            None => Poll::Ready(Err(invariant::report("a session rests and nothing is kept"))),
        }
    }
}

impl Session {
    /// The start of a session that shares connections, if nothing has to be waited for: the first
    /// request opens a connection, or joins one.
    fn share_at_once(&self) -> Option<Ready> {
        if self.base.context.silent_clients.are_frequent() {
            return None;
        }
        let target = self.base.context.shared.service.route.usable_target()?;
        if !dial::may_be_used(&target) {
            return None;
        }
        target.record_use();
        Some((target, Upstream::sharing(), Start::default()))
    }

    /// Serves the client of a service that shares connections to its end. While it rests there is
    /// only this future, which is much smaller than that of [`run`](Self::run).
    pub(crate) fn run_sharing<C: ClientStream>(self, client: C) -> impl Future<Output = ()> {
        let mut serving = Serving { session: self, client, resting: None };
        async move {
            let mut awake = Box::pin(serving.serve(Ok(Vec::new())));
            while awake.await {
                match poll_fn(|cx| serving.poll_rest(cx)).await {
                    // Nothing has to be said to a client that has left.
                    Err(reason) if !finish::is_needed::<C>(reason) => {
                        return serving.session.end(reason);
                    }
                    woken => awake = Box::pin(serving.serve(woken)),
                }
            }
        }
    }

    /// Serves the client until it rests, or to its end.
    async fn serve_sharing(
        &mut self,
        client: &mut impl ClientStream,
        resting: Option<Box<Resting>>,
        woken: Woken,
    ) -> Option<Box<Resting>> {
        let mut next = match (woken, resting, self.target.take()) {
            (Ok(early), Some(resting), Some(target)) => {
                let (upstream, start) = resting.wake(early);
                Ok((target, upstream, start))
            }
            (Err(reason), _, target) => {
                self.target = target;
                Err((reason, Vec::new()))
            }
            (Ok(_), _, _) => match self.share_at_once() {
                Some(ready) => Ok(ready),
                None => or_killed(&self.base, Box::pin(self.connect_first(client, None))).await,
            },
        };
        let ending = loop {
            next = match next {
                Ok(ready) if ready.1.is_shared() => match self.share(ready, client).await {
                    Ok(Shared::Rests(resting)) => return Some(resting),
                    Ok(Shared::Continues(ready)) => Ok(ready),
                    Err(ending) => break ending,
                },
                Ok(ready) => Box::pin(self.pump_apart(ready, client)).await,
                Err(ending) => break ending,
            };
        };
        self.finish(client, ending).await;
        None
    }

    /// Pumps between the client and shared connections, until it rests or stops to share.
    async fn share(
        &mut self,
        (target, mut upstream, start): Ready,
        client: &mut impl ClientStream,
    ) -> Result<Shared, SessionEnd> {
        let target = self.target.insert(target);
        self.base.count_as(Some(ConnectionUse::Shared));
        let Upstream::Shared(member) = &mut upstream else {
            return Err((invariant::report("a connection is not shared"), Vec::new()));
        };
        let clock = RestClock::of(!start.early.is_empty());
        let ends = (&mut *client, &mut *member);
        let mut stopped = pump_shared(ends, &self.base, target, (start, clock)).await;
        match stopped.after.take().map(|after| *after) {
            Some(After::Rest(kept)) => {
                self.base.add(stopped.bytes, stopped.commands);
                visits::register_without_flag(self.base.context.listener.id.group());
                Ok(Shared::Rests(Box::new(Resting::new(kept, member.rest()))))
            }
            after => {
                stopped.after = after.map(Box::new);
                let step = self.note_stop(stopped, upstream)?;
                Box::pin(self.continue_with(step, client)).await.map(Shared::Continues)
            }
        }
    }

    /// Pumps between the client and connections of its own, to the end of the session or until it
    /// shares.
    async fn pump_apart(
        &mut self,
        mut ready: Ready,
        client: &mut impl ClientStream,
    ) -> Result<Ready, SessionEnd> {
        while !ready.1.is_shared() {
            let (target, mut upstream, start) = ready;
            let current = self.target.insert(target);
            self.base.count_as(Some(ConnectionUse::Dedicated));
            let stopped = match &mut upstream {
                Upstream::Plain(upstream) => {
                    Pump::new((&mut *client, upstream), &self.base.context, current, start)
                        .run(&self.base)
                        .await
                }
                Upstream::Tls(upstream) => {
                    pump_tls((&mut *client, upstream), &self.base, current, start).await
                }
                Upstream::Shared(member) => {
                    let ends = (&mut *client, member);
                    pump_shared(ends, &self.base, current, (start, RestClock::never())).await
                }
            };
            let step = self.note_stop(stopped, upstream)?;
            ready = Box::pin(self.continue_with(step, client)).await?;
        }
        Ok(ready)
    }
}
