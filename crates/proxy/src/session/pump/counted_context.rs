//! The context of a session's worker, and as what the session is counted there: by its pin, and as
//! one whose requests wait at a closed gate.
//!
//! In one value, so that the count is taken back however the pump ends, also by a panic, and so
//! that the pump itself can be taken apart.

use std::mem;
use std::ops::Deref;
use std::sync::Arc;

use resp::Pin;

use crate::context::WorkerContext;

/// The context of a worker that counts one session by its pin.
pub(in crate::session) struct CountedContext {
    context: Arc<WorkerContext>,
    pin: Option<Pin>,
    is_waiting: bool,
}

impl CountedContext {
    /// Of a session that nothing pins.
    pub(super) fn new(context: &Arc<WorkerContext>) -> Self {
        Self { context: Arc::clone(context), pin: None, is_waiting: false }
    }

    /// The pin as which the session is counted.
    pub(in crate::session) fn pin(&self) -> Option<Pin> {
        self.pin
    }

    /// Counts the session as pinned by `pin`, and no longer by what pinned it before.
    pub(in crate::session) fn count_pin(&mut self, pin: Option<Pin>) {
        let before = mem::replace(&mut self.pin, pin);
        if before != pin {
            let pinned = &self.context.counters.pinned;
            before.inspect(|pin| pinned.decrement(*pin as usize));
            pin.inspect(|pin| pinned.increment(*pin as usize));
        }
    }

    /// Counts the session as one that waits at the gate, or no longer.
    pub(in crate::session) fn count_waiting(&mut self, is_waiting: bool) {
        let counters = &self.context.counters;
        match (mem::replace(&mut self.is_waiting, is_waiting), is_waiting) {
            (false, true) => {
                counters.waits.increment();
                counters.held.increment();
            }
            (true, false) => counters.held.decrement(),
            _ => {}
        }
    }
}

impl Deref for CountedContext {
    type Target = Arc<WorkerContext>;

    #[inline]
    fn deref(&self) -> &Arc<WorkerContext> {
        &self.context
    }
}

impl Drop for CountedContext {
    fn drop(&mut self) {
        self.count_pin(None);
        self.count_waiting(false);
    }
}
