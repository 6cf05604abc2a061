//! The task that is being polled, so that what belongs to its thread can wake it by its key.
//!
//! A waker is for any thread: it has a counter of references and is called through a table, and a
//! call reads memory of the task that is rarely in a cache. Sockets belong to the thread of their
//! task. They keep the key, which costs neither.
//!
//! A future may be polled with another waker than that of the task it is part of, to be told apart
//! ([`wake_flag`](crate::runtime::wake_flag)). Then the waker counts, and there is no key.

use std::cell::Cell;
use std::ptr;
use std::task::Waker;

use super::TaskKey;

/// A task while it is polled.
#[derive(Clone, Copy)]
struct CurrentTask {
    key: TaskKey,
    /// The data of its waker: only compared.
    waker: *const (),
}

thread_local! {
    static CURRENT: Cell<CurrentTask> =
        const { Cell::new(CurrentTask { key: TaskKey::NONE, waker: ptr::null() }) };
}

/// Marks a task as being polled; with [`TaskKey::NONE`] it is woken by its waker only.
#[inline]
pub(super) fn begin(key: TaskKey, waker: &Waker) {
    CURRENT.set(CurrentTask { key, waker: waker.data() });
}

/// Marks that no task is being polled.
#[inline]
pub(super) fn end() {
    CURRENT.set(CurrentTask { key: TaskKey::NONE, waker: ptr::null() });
}

/// The key of the task that is being polled, if `waker` is its own and no other; otherwise
/// [`TaskKey::NONE`].
#[inline]
pub(crate) fn key_of(waker: &Waker) -> TaskKey {
    let current = CURRENT.get();
    if ptr::eq(current.waker, waker.data()) { current.key } else { TaskKey::NONE }
}
