//! A pump while it runs.
//!
//! [`Moving`] is polled by the task of a session whose connections are its own ([`task`]), and
//! [`Running`] is the same as a future, for sessions whose connections are borrowed. Both are
//! written by hand and not as async functions, because they are polled for every request: the poll
//! of an async function is a call of its own, with a jump by its state, and its frame on the stack
//! is another few lines of the cache.
//!
//! [`task`]: crate::session::task

use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::{Pump, Stopped};
use crate::end_reason::EndReason;
use crate::io::stream::ByteStream;
use crate::runtime::tasks::visits;
use crate::runtime::wake_flag::FlaggedWaker;
use crate::session::report::SessionBase;

/// A pump that moves bytes, and what wakes it beside its connections.
pub(crate) struct Moving<C, U> {
    pump: Pump<C, U>,
    /// Since the first poll.
    watch: Option<FlaggedWaker>,
}

impl<C: ByteStream, U: ByteStream> Moving<C, U> {
    pub(crate) fn new(pump: Pump<C, U>) -> Self {
        Self { pump, watch: None }
    }

    /// Moves what has arrived, until there is a reason to stop.
    #[inline(always)]
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, base: &SessionBase) -> Poll<EndReason> {
        if self.watch.is_none() {
            self.begin(cx);
        }
        let Some(watch) = &self.watch else { return Poll::Pending };
        self.pump.poll_once(cx, base, watch)
    }

    #[cold]
    fn begin(&mut self, cx: &Context<'_>) {
        let Self { pump, watch } = self;
        let watch = watch.insert(FlaggedWaker::new(cx.waker()));
        let settles = pump.upstream.awaits_late_options();
        visits::register(&watch.flag, pump.context.listener.id.group(), settles);
        let options = &pump.context.shared.service.options;
        pump.idle.begin(&options.peek(), pump.has_received, &watch.waker);
    }

    /// The pump, which is to be [stopped](Pump::stop).
    pub(crate) fn into_pump(self) -> Pump<C, U> {
        self.pump
    }
}

/// Moves bytes until there is a reason to stop.
#[allow(clippy::large_enum_variant, reason = "it is nearly always the large one")]
pub(super) enum Running<'b, C, U> {
    Moving(Moving<C, U>, &'b SessionBase),
    /// Delivers the last replies of a target whose fence is raised.
    Fenced(Pin<Box<dyn Future<Output = (Stopped, C, U)> + 'b>>),
    /// Has returned.
    Ended,
}

impl<'b, C: ByteStream + 'b, U: ByteStream + 'b> Running<'b, C, U> {
    pub(super) fn new(pump: Pump<C, U>, base: &'b SessionBase) -> Self {
        Self::Moving(Moving::new(pump), base)
    }

    #[cold]
    fn stop(&mut self, reason: EndReason) -> Poll<Stopped> {
        match mem::replace(self, Self::Ended) {
            Self::Moving(moving, base) if reason == EndReason::Fenced => {
                *self = Self::Fenced(Box::pin(Box::new(moving.into_pump()).stop_fenced(base)));
                Poll::Pending
            }
            Self::Moving(moving, _) => Poll::Ready(moving.into_pump().stop(reason)),
            Self::Fenced(_) | Self::Ended => Poll::Pending,
        }
    }

    #[cold]
    fn poll_fenced(&mut self, cx: &mut Context<'_>) -> Poll<Stopped> {
        let Self::Fenced(last) = self else { return Poll::Pending };
        let (stopped, _client, _upstream) = ready!(last.as_mut().poll(cx));
        *self = Self::Ended;
        Poll::Ready(stopped)
    }
}

impl<'b, C, U> Future for Running<'b, C, U>
where
    C: ByteStream + 'b,
    U: ByteStream + 'b,
{
    type Output = Stopped;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Stopped> {
        if let Self::Moving(moving, base) = &mut *self {
            let reason = ready!(moving.poll(cx, base));
            if let Poll::Ready(stopped) = self.stop(reason) {
                return Poll::Ready(stopped);
            }
        }
        self.poll_fenced(cx)
    }
}
