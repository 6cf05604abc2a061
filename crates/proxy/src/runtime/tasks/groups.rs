//! Groups of tasks: those that an event wakes together, such as the sessions of a listener.
//!
//! A task registers its group along with its [flag](super::visits::register). An event is a key in
//! the queue that no slot has; when its turn comes, the worker goes through its table of tasks,
//! sets the flags of those in the group, and wakes them. So a task needs no entry in a list of
//! waiting futures, which would take 64 bytes and a lock whenever a session begins to pump.
//!
//! **No event is lost.** What the event is about has changed before [`wake`] is called. A task that
//! registers before the turn of the key is woken; one that registers later begins with its flag
//! set, and looks then.

use std::num::NonZeroU32;

use super::{TaskKey, Tasks};

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
    use crate::runtime::tasks::{WorkerHandle, spawn, visits};
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
                        0 | 1 => visits::register(&watch.flag, group),
                        2 => visits::register_without_flag(group),
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
