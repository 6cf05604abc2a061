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
use std::num::NonZeroU32;
use std::sync::Arc;

use super::{BYTES, TaskKey, Tasks};
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
    pub(super) static REGISTERED: RefCell<Option<Registered>> = const { RefCell::new(None) };
}

/// What a task has registered.
#[derive(Debug)]
pub(super) struct Registered {
    /// The flag to set before a visit.
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

/// Registers the flag and the group of the task that is being polled, in place of
/// earlier ones. Without a flag, the task looks for a visit and for events of its group at every
/// poll from now on.
pub(crate) fn register(flag: Option<&Arc<WakeFlag>>, group: TaskGroup) {
    REGISTERED.replace(Some(Registered { flag: flag.cloned(), group }));
    // The cold path after the poll is taken for any number but zero.
    super::record_bytes(1);
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
        match visit {
            // Without regard to the queue: if it is queued, it stays queued.
            Visit::Report => {
                if let Some(task) = self.task(key) {
                    let polled = task.poll(key);
                    let _never = self.end(key, polled);
                }
            }
            Visit::End => drop(self.poll(key, false)),
        }
        CURRENT.set(None);
        if BYTES.get() > 0 {
            self.record_weight(key);
        }
    }
}

// Groups of tasks: those that an event wakes together, such as the sessions of a listener.
//
// A task registers its group along with its [flag](register). An event is a key in
// the queue that no slot has; when its turn comes, the worker goes through its table of tasks,
// sets the flags of those in the group, and wakes them. So a task needs no entry in a list of
// waiting futures, which would take 64 bytes and a lock whenever a session begins to pump.
//
// **No event is lost.** What the event is about has changed before [`wake`] is called. A task that
// registers before the turn of the key is woken; one that registers later begins with its flag
// set, and looks then.

/// The index in the keys of groups. There are never that many tasks.
const GROUP: u32 = u32::MAX - 1;

/// The number of a group. Two groups of one number would be woken together, which costs time and
/// changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TaskGroup(NonZeroU32);

impl TaskGroup {
    /// The group with this number.
    pub(crate) const fn nth(number: u32) -> Self {
        Self(NonZeroU32::MIN.saturating_add(number))
    }
}

/// Wakes the tasks of this thread that are in the group, and sets their flags, before the event
/// loop waits again.
pub(crate) fn wake(group: TaskGroup) {
    super::queue([TaskKey::new(GROUP, group.0.get())]);
}

impl Tasks {
    /// Wakes the tasks of the group that this key is of, if it is one of a group.
    #[cold]
    #[inline(never)]
    pub(super) fn wake_group(&self, key: TaskKey) {
        let group = NonZeroU32::new(key.generation()).map(TaskGroup);
        if key.index() != GROUP || group.is_none() {
            return;
        }
        for task in self.slots.iter().filter_map(|slot| slot.task.as_ref()) {
            if task.group == group {
                if let Some(flag) = &task.flag {
                    flag.set();
                }
                task.waker.wake_by_ref();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::future::poll_fn;
    use std::rc::Rc;
    use std::task::Poll;

    use super::*;
    use crate::runtime::tasks::{WorkerHandle, spawn};
    use crate::runtime::wake_flag::FlaggedWaker;

    #[test]
    fn wakes_the_tasks_of_a_group_and_sets_their_flags() {
        let mut tasks = Tasks::new(WorkerHandle::new().unwrap());
        let polls: Rc<RefCell<Vec<(u32, bool)>>> = Rc::default();
        // The third has no flag, and the last registers nothing.
        for (number, group) in [(0, 7), (1, 8), (2, 7), (3, 7)] {
            let (polls, mut watch) = (Rc::clone(&polls), None);
            spawn(poll_fn(move |cx| {
                let group = TaskGroup::nth(group);
                let watch = watch.get_or_insert_with(|| {
                    let watch = FlaggedWaker::new(cx.waker());
                    match number {
                        0 | 1 => register(Some(&watch.flag), group),
                        2 => register(None, group),
                        _ => {}
                    }
                    watch
                });
                polls.borrow_mut().push((number, watch.flag.take_woken()));
                Poll::Pending
            }));
        }
        tasks.run_round().unwrap();
        assert_eq!(polls.take(), [(0, true), (1, true), (2, true), (3, true)], "at first");
        for (woken, expected) in
            [(7, vec![(0, true), (2, false)]), (8, vec![(1, true)]), (9, Vec::new())]
        {
            wake(TaskGroup::nth(woken));
            assert!(tasks.is_busy());
            while tasks.is_busy() {
                tasks.run_round().unwrap();
            }
            assert_eq!(polls.take(), expected, "group {woken}");
        }
    }
}
