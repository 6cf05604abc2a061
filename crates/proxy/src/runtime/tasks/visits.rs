//! Visits: an operator's question to every task of a worker, or an order to one of them.
//!
//! A visit polls one task while this thread's [visit](current) is set. A session that finds one
//! set reports itself, or ends, and does nothing else in that poll. Ordinary polls run no check for
//! it:
//!
//! - A session looks for a visit only where it looks for other rare events: when its
//!   [flag](crate::runtime::wake_flag) is set. So the worker sets that flag first. It knows it
//!   because the session [registers](register) it when it begins to pump; the registration
//!   piggybacks on the weight check after each poll.
//! - The visitor itself belongs to the worker, which lets it run between two rounds of its tasks.
//!   It visits a few tasks at a time.
//!
//! A visit that only asks leaves the queue alone: a task that is due is polled as if there had been
//! none.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::task::Poll;

use super::groups::TaskGroup;
use super::{BYTES, Panicked, TaskKey, Tasks};
use crate::runtime::wake_flag::WakeFlag;

/// What a visited session does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Visit {
    /// It reports itself.
    Report,
    /// It ends.
    End,
}

thread_local! {
    static CURRENT: Cell<Option<Visit>> = const { Cell::new(None) };
    /// What a task has registered in its current poll.
    static REGISTERED: RefCell<Option<Registered>> = const { RefCell::new(None) };
}

/// What a task has registered.
#[derive(Debug)]
pub(super) struct Registered {
    /// The flag to set before a visit; `None` if the task looks for one at every poll.
    pub(super) flag: Option<Arc<WakeFlag>>,
    pub(super) group: TaskGroup,
}

/// The visit in progress.
pub(crate) fn current() -> Option<Visit> {
    CURRENT.get()
}

/// Ends the visit in progress: the session has begun to end.
pub(crate) fn accept_end() {
    CURRENT.set(None);
}

/// Registers the flag and the [group](super::groups) of the task that is being polled, in place of
/// earlier ones.
pub(crate) fn register(flag: &Arc<WakeFlag>, group: TaskGroup) {
    replace(Registered { flag: Some(Arc::clone(flag)), group });
}

/// The task that is being polled looks for a visit and for events of its group at every poll from
/// now on. Its flag is freed.
pub(crate) fn register_without_flag(group: TaskGroup) {
    replace(Registered { flag: None, group });
}

fn replace(registered: Registered) {
    REGISTERED.replace(Some(registered));
    // The cold path after the poll is taken for any number but zero.
    super::record_bytes(1);
}

/// Takes what was registered in this poll.
pub(super) fn take_registered() -> Option<Registered> {
    REGISTERED.take()
}

impl Tasks {
    /// The number of slots, used or not.
    pub(crate) fn slots(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap_or(u32::MAX)
    }

    /// The generation of the task in this slot; `None` if there is none, or one that is essential
    /// to the worker.
    pub(crate) fn generation(&self, slot: u32) -> Option<u32> {
        let slot = self.slots.get(slot as usize)?;
        slot.task.as_ref().filter(|task| !task.essential).map(|_| slot.generation)
    }

    /// Visits the task in this slot, unless it is essential.
    pub(crate) fn visit(&mut self, slot: u32, visit: Visit) {
        let Some(generation) = self.generation(slot) else { return };
        let key = TaskKey::new(slot, generation);
        if let Some(flag) = self.task(key).and_then(|task| task.flag.as_ref()) {
            flag.set();
        }
        CURRENT.set(Some(visit));
        // An error would be the panic of an essential task.
        let _never = match visit {
            Visit::Report => self.poll_unqueued(key),
            Visit::End => self.poll(key, false).map(drop),
        };
        CURRENT.set(None);
        if BYTES.get() > 0 {
            self.record_weight(key);
        }
    }

    /// Polls a task without regard to the queue: if it is queued, it stays queued.
    fn poll_unqueued(&mut self, key: TaskKey) -> Result<(), Panicked> {
        let Some(task) = self.task(key) else { return Ok(()) };
        let polled = task.poll(key);
        if matches!(polled, Ok(Poll::Pending)) { Ok(()) } else { self.end(key, polled) }
    }
}
