//! A pump while it runs.
//!
//! It is polled by the [session](crate::session) that it belongs to, without an async function in
//! between: that would be a call of its own for every request, with a jump by its state, and its
//! frame on the stack is another few lines of the cache.

use std::task::{Context, Poll};

use super::{Pump, Stop};
use crate::io::stream::ByteStream;
use crate::runtime::tasks::visits;
use crate::runtime::wake_flag::FlaggedWaker;
use crate::session::report::SessionBase;
use crate::session::upstream::TargetStream;

/// A pump that moves bytes, and what wakes it beside its connections.
pub(crate) struct Moving<C, U> {
    pump: Pump<C, U>,
    /// Since the first poll.
    watch: Option<FlaggedWaker>,
}

impl<C: ByteStream, U: TargetStream> Moving<C, U> {
    pub(crate) fn new(pump: Pump<C, U>) -> Self {
        Self { pump, watch: None }
    }

    /// Moves what has arrived, until there is a reason to stop.
    #[inline(always)]
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, base: &SessionBase) -> Poll<Stop> {
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
        visits::register(&watch.flag, pump.context.listener.id.group());
        let options = &pump.context.shared.service.options;
        pump.idle.begin(&options.peek(), pump.has_received, &watch.waker);
    }

    /// The pump, which is to be [stopped](Pump::stop).
    pub(crate) fn into_pump(self) -> Pump<C, U> {
        self.pump
    }
}
