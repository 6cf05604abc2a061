//! The tasks of one worker, and who among them has something to do.
//!
//! A task is a future in a box, polled on one thread for all its life. Waking it on that thread
//! puts its key into a plain queue. Waking it from another thread (the clock, a move of the points)
//! puts the key into a list behind a lock and rings a bell that the worker's event loop listens to.
//! That is rare: nothing on the way of a byte comes from another thread.
//!
//! **No wake-up is lost.** A task notes that it is queued before its key is queued, and that it is
//! not before it is polled. Both are read-modify-writes of one atomic, so whoever finds it queued
//! already is ordered before the poll that follows, and that poll sees what he has done. For the
//! bell it is the same: whoever calls adds his key first and rings then, unless it is rung; the
//! worker unrings first and takes the list then. If the caller finds it rung, the worker has yet to
//! unring it, and takes the list after that.
//!
//! **No wake-up reaches another task.** A key has a generation, which its place gets anew each time
//! a task ends.
//!
//! A panic ends its task and nothing else, unless the task is vital to the worker.
//!
//! Whose turn it is among those that have something to do: [`run_queue`](crate::runtime::run_queue).
//!
//! Deliberately absent: stealing, a handle to wait for a task, and the loop, which is
//! [`worker`](crate::runtime::worker)'s.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use rustix::event::{EventfdFlags, eventfd};

use crate::runtime::run_queue::{RunQueue, Weight};

type Body = Pin<Box<dyn Future<Output = ()>>>;

/// Where a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key {
    index: u32,
    generation: u32,
}

/// The part of a worker that other threads reach.
#[derive(Debug)]
pub(crate) struct Home {
    /// No longer than there are tasks, because each is queued once at most.
    called: Mutex<Vec<Key>>,
    rung: AtomicBool,
    bell: OwnedFd,
    /// Written by the worker alone.
    tasks: AtomicUsize,
}

impl Home {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self {
            called: Mutex::default(),
            rung: AtomicBool::new(false),
            bell,
            tasks: AtomicUsize::new(0),
        }))
    }

    /// What becomes readable when another thread wants something.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// How many tasks the worker has.
    pub(crate) fn tasks(&self) -> usize {
        self.tasks.load(Ordering::Relaxed)
    }

    pub(crate) fn set_tasks(&self, tasks: usize) {
        self.tasks.store(tasks, Ordering::Relaxed);
    }

    /// Makes the worker look at what was left for it.
    pub(crate) fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            // It fails only when it has been written to 2^64 - 2 times.
            let _full = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }

    fn call(&self, key: Key) {
        self.called().push(key);
        self.ring();
    }

    fn called(&self) -> MutexGuard<'_, Vec<Key>> {
        // Nothing under the lock can panic half-way.
        self.called.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

thread_local! {
    /// Bytes that the present poll has moved in large pieces.
    static BYTES: Cell<usize> = const { Cell::new(0) };
}

/// The present poll has moved a large piece of so many bytes.
pub(crate) fn note_bytes(bytes: usize) {
    BYTES.set(BYTES.get().saturating_add(bytes));
}

/// What is in this thread's hands.
#[derive(Debug, Default)]
struct Here {
    home: Option<Arc<Home>>,
    queue: VecDeque<Key>,
    born: VecDeque<Newborn>,
}

/// A task that was not polled yet.
struct Newborn {
    body: Body,
    vital: bool,
}

impl std::fmt::Debug for Newborn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Newborn").field("vital", &self.vital).finish_non_exhaustive()
    }
}

thread_local! {
    static HERE: RefCell<Here> = RefCell::default();
}

/// Starts a task on this thread's worker. It is polled before the event loop waits again.
pub(crate) fn spawn(body: impl Future<Output = ()> + 'static) {
    bear(Box::pin(body), false);
}

/// Starts a task without which the worker is none: its panic ends the worker.
pub(crate) fn spawn_vital(body: impl Future<Output = ()> + 'static) {
    bear(Box::pin(body), true);
}

fn bear(body: Body, vital: bool) {
    HERE.with_borrow_mut(|here| here.born.push_back(Newborn { body, vital }));
}

/// Lets all others have their turn, and the event loop look for news.
pub(crate) async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// What wakes a task.
#[derive(Debug)]
struct Call {
    home: Arc<Home>,
    key: Key,
    queued: AtomicBool,
}

impl Wake for Call {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let here = HERE.try_with(|here| {
            // Never borrowed while a task or a waker of somebody else runs.
            let mut here = here.borrow_mut();
            let mine = here.home.as_ref().is_some_and(|home| Arc::ptr_eq(home, &self.home));
            if mine {
                here.queue.push_back(self.key);
            }
            mine
        });
        if here != Ok(true) {
            self.home.call(self.key);
        }
    }
}

struct Task {
    body: Body,
    call: Arc<Call>,
    waker: Waker,
    vital: bool,
    weight: Weight,
}

#[derive(Default)]
struct Slot {
    generation: u32,
    task: Option<Task>,
}

/// A vital task has panicked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Panicked;

/// All tasks of this thread. When dropped, every task is, and the thread can have tasks again.
pub(crate) struct Tasks {
    home: Arc<Home>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Those that are ready, in the order of their turns.
    ready: RunQueue<Key>,
}

impl Tasks {
    /// Makes this thread the one that `home` stands for.
    pub(crate) fn new(home: Arc<Home>) -> Self {
        HERE.with_borrow_mut(|here| here.home = Some(Arc::clone(&home)));
        Self { home, slots: Vec::new(), free: Vec::new(), ready: RunQueue::default() }
    }

    /// Whether some task has something to do.
    pub(crate) fn is_busy(&self) -> bool {
        !self.ready.is_empty()
            || HERE.with_borrow(|here| !here.queue.is_empty() || !here.born.is_empty())
    }

    /// Queues the tasks that other threads have called. To be asked when the bell was rung.
    pub(crate) fn answer_the_bell(&self) {
        // In this order; see the head of this file.
        self.home.rung.swap(false, Ordering::AcqRel);
        let called = std::mem::take(&mut *self.home.called());
        HERE.with_borrow_mut(|here| here.queue.extend(called));
    }

    /// Polls the tasks that have something to do, each once at most, and those that are born
    /// meanwhile. A task that wakes itself has its next turn in the next round, so the event loop
    /// comes in between. It comes early where much is moved, and who was not polled then has its
    /// turn in the next rounds: see [`run_queue`](crate::runtime::run_queue).
    ///
    /// Those who are born to a vital task, as clients are to an entrance, go before the others of
    /// this round: they are waiting to be connected, and what stands behind may be ends, which have
    /// time, and closing a connection takes as long as opening one.
    ///
    /// # Errors
    ///
    /// A vital task has panicked.
    pub(crate) fn round(&mut self) -> Result<(), Panicked> {
        // Taken as a whole, so that the queue need not be borrowed for each of them.
        HERE.with_borrow_mut(|here| self.ready.begin(&mut here.queue));
        while let Some(key) = self.ready.next_light() {
            let vital = self.poll(key, true)?;
            if BYTES.get() > 0 {
                self.weigh(key);
            }
            if vital {
                self.admit()?;
            }
        }
        let mut heavy = self.ready.first_heavy();
        while let Some(key) = heavy {
            self.poll(key, false)?;
            self.weigh(key);
            heavy = self.ready.next_heavy();
        }
        self.admit()
    }

    fn admit(&mut self) -> Result<(), Panicked> {
        while let Some(Newborn { body, vital }) = HERE.with_borrow_mut(|here| here.born.pop_front())
        {
            let index = match self.free.pop() {
                Some(index) => index,
                None => {
                    // A task is larger than a byte, so memory ends first.
                    let Ok(index) = u32::try_from(self.slots.len()) else { return Ok(()) };
                    self.slots.push(Slot::default());
                    index
                }
            };
            let Some(slot) = self.slots.get_mut(index as usize) else { continue };
            let key = Key { index, generation: slot.generation };
            let call =
                Arc::new(Call { home: Arc::clone(&self.home), key, queued: AtomicBool::new(true) });
            self.home.set_tasks(self.home.tasks() + 1);
            slot.task = Some(Task {
                body,
                waker: Waker::from(Arc::clone(&call)),
                call,
                vital,
                weight: Weight::default(),
            });
            self.poll(key, false)?;
            self.weigh(key);
        }
        Ok(())
    }

    /// Takes note of what the task has moved in the poll that it has just had. A poll that moved
    /// nothing to speak of needs no note, unless the task is a heavy one.
    #[cold]
    fn weigh(&mut self, key: Key) {
        let bytes = BYTES.take();
        let slot =
            self.slots.get_mut(key.index as usize).filter(|slot| slot.generation == key.generation);
        if let Some(task) = slot.and_then(|slot| slot.task.as_mut()) {
            task.weight.note(bytes);
        }
        self.ready.moved(bytes);
    }

    /// Polls the task, or puts it among the heavy ones if it is one and this is the turn of the
    /// light ones. Whether it is vital.
    fn poll(&mut self, key: Key, light: bool) -> Result<bool, Panicked> {
        let slot =
            self.slots.get_mut(key.index as usize).filter(|slot| slot.generation == key.generation);
        let Some(Slot { task: Some(task), generation }) = slot else { return Ok(false) };
        if light && task.weight.is_heavy() {
            self.ready.defer(key);
            return Ok(false);
        }
        task.call.queued.swap(false, Ordering::AcqRel);
        let polled = catch_unwind(AssertUnwindSafe(|| {
            task.body.as_mut().poll(&mut Context::from_waker(&task.waker))
        }));
        let vital = task.vital;
        match polled {
            Ok(Poll::Pending) => return Ok(vital),
            Ok(Poll::Ready(())) | Err(_) => {}
        }
        *generation = generation.wrapping_add(1);
        let ended = slot_task(&mut self.slots, key);
        self.free.push(key.index);
        self.home.set_tasks(self.home.tasks().saturating_sub(1));
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(ended)));
        if vital && (polled.is_err() || dropped.is_err()) { Err(Panicked) } else { Ok(vital) }
    }
}

fn slot_task(slots: &mut [Slot], key: Key) -> Option<Task> {
    slots.get_mut(key.index as usize)?.task.take()
}

impl Drop for Tasks {
    fn drop(&mut self) {
        // What a task does when it is dropped may start another one; that one is dropped, too.
        self.slots.clear();
        let rest = HERE.take();
        drop(rest);
    }
}
