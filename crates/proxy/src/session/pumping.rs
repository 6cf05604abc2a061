//! The state in which a session pumps.
//!
//! It is a future written by hand: nothing is between the worker and the pump, and a poll has no
//! frame for anything else.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::io::stream::{ByteStream, ClientStream};
use crate::io::upstream::Upstream;
use crate::session::Session;
use crate::session::pump::{Moving, Pump, Stop};

/// The state in which a session moves bytes; `None` when it is in another state.
pub(super) struct Pumping<C, U>(Option<Running<C, U>>);

struct Running<C, U> {
    moving: Moving<C, U>,
    session: Session,
}

impl<C, U> Pumping<C, U>
where
    C: ClientStream + 'static,
    U: ByteStream + Into<Upstream> + 'static,
{
    pub(super) fn new(session: Session, pump: Pump<C, U>) -> Self {
        Self(Some(Running { moving: Moving::new(pump), session }))
    }

    /// Never inlined: it moves all of the pump, and a poll would have a frame for that.
    #[inline(never)]
    fn leave(&mut self, stop: Stop) {
        if let Some(Running { moving, session }) = self.0.take() {
            session.stop(moving.into_pump(), stop);
        }
    }
}

impl<C, U> Future for Pumping<C, U>
where
    C: ClientStream + 'static,
    U: ByteStream + Into<Upstream> + 'static,
{
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // As a loop, although it never turns: the compiler then keeps the address of the pump in a
        // register, which saves 3 % of all instructions.
        while let Some(Running { moving, session }) = &mut self.0 {
            let stop = ready!(moving.poll(cx, &session.base));
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
    C: ClientStream + 'static,
    U: ByteStream + Into<Upstream> + 'static,
{
    async move {
        let (stopped, client, upstream) = pump.stop_fenced(&session.base).await;
        let next = session.next(stopped, upstream.into());
        session.enter(client, next);
    }
}
