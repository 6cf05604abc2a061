//! A pump while it runs, as a future.
//!
//! It is written by hand and not an async function, because this is polled for every request: the
//! poll of an async function is a call of its own, with a jump by its state, and its frame on the
//! stack is another few lines of the cache. This one becomes part of the session's poll.

use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::{Pump, Stopped};
use crate::end_reason::EndReason;
use crate::io::stream::ByteStream;
use crate::runtime::tasks::visits;
use crate::runtime::wake_flag::FlaggedWaker;
use crate::session::report::SessionBase;

/// Moves bytes until there is a reason to stop.
pub(super) enum Running<'p, 'a, C, U> {
    /// Not polled yet.
    New(&'p mut Pump<'a, C, U>, &'a SessionBase),
    /// Moves bytes.
    Moving(&'p mut Pump<'a, C, U>, &'a SessionBase, FlaggedWaker),
    /// Delivers the last replies of a target whose fence is raised.
    Fenced(Pin<Box<dyn Future<Output = Stopped> + 'p>>),
    /// Has returned.
    Ended,
}

impl<C: ByteStream, U: ByteStream> Running<'_, '_, C, U> {
    /// The first poll, and those after the fence was raised.
    #[cold]
    fn poll_rare(&mut self, cx: &mut Context<'_>) -> Poll<Stopped> {
        match mem::replace(self, Self::Ended) {
            Self::New(pump, base) => {
                let watch = FlaggedWaker::new(cx.waker());
                let settles = pump.upstream.awaits_late_options();
                visits::register(&watch.flag, pump.context.listener.id.group(), settles);
                let options = &pump.context.shared.service.options;
                pump.idle.begin(&options.peek(), pump.has_received, &watch.waker);
                *self = Self::Moving(pump, base, watch);
                Pin::new(self).poll(cx)
            }
            Self::Fenced(mut last) => {
                let polled = last.as_mut().poll(cx);
                if polled.is_pending() {
                    *self = Self::Fenced(last);
                }
                polled
            }
            moving @ Self::Moving(..) => {
                *self = moving;
                Pin::new(self).poll(cx)
            }
            Self::Ended => Poll::Pending,
        }
    }

    #[cold]
    fn stop(&mut self, reason: EndReason, cx: &mut Context<'_>) -> Poll<Stopped> {
        match mem::replace(self, Self::Ended) {
            Self::Moving(pump, base, watch) if reason == EndReason::Fenced => {
                drop(watch);
                *self = Self::Fenced(pump.stop_fenced(base));
                self.poll_rare(cx)
            }
            Self::New(pump, _) | Self::Moving(pump, ..) => Poll::Ready(pump.stop(reason)),
            Self::Fenced(_) | Self::Ended => Poll::Pending,
        }
    }
}

impl<C: ByteStream, U: ByteStream> Future for Running<'_, '_, C, U> {
    type Output = Stopped;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Stopped> {
        let Self::Moving(pump, base, watch) = &mut *self else { return self.poll_rare(cx) };
        match pump.poll_once(cx, base, watch) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(reason) => self.stop(reason, cx),
        }
    }
}
