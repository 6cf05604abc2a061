//! The tasks of one worker and their wake-ups.
//!
//! A task is a boxed future, polled on one thread for all its life. Waking it on that thread puts
//! its key into a plain list. Waking it from another thread (a timer, a master change) puts the
//! key into a list behind a lock and writes to a descriptor that the worker's event loop polls.
//! That is rare: nothing on the path of a byte comes from another thread.
//!
//! **No wake-up is lost.** On its own thread, each wake-up by the waker of a task is put into a
//! list, which the next round takes; what belongs to the worker, as its sockets do, wakes a task
//! without that detour ([`Tasks::wake`]). Either marks the task when it is queued for the round, so
//! that it is polled once for all wake-ups; the mark is removed before the poll. Other threads
//! share a mark per task, which is set before the key is added to the list and cleared when the
//! worker has taken the list, both by read-modify-writes: so a thread that finds it set is ordered
//! before the following poll, which sees what that thread has done. A task may be woken by its own
//! thread and by others, which costs a poll. The same holds for the wake-up descriptor: another
//! thread adds the key first and sets `woken` then, writing to the descriptor unless it was set;
//! the worker clears `woken` first and takes the list then. A thread that finds `woken` set knows
//! that the worker has yet to clear it and takes the list after that.
//!
//! **No wake-up reaches another task.** A key has a generation, which changes each time a task
//! ends.
//!
//! A panic ends its task and nothing else, unless the task is essential to the worker.
//!
//! The order in which ready tasks are polled: [`run_queue`](crate::runtime::run_queue).
//!
//! There is no work stealing, and there are no join handles. The loop is in
//! [`workers`](crate::workers).

pub(crate) mod continuing;
pub(crate) mod visits;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::{io, ptr};

use rustix::event::{EventfdFlags, eventfd};

use crate::runtime::run_queue::{RunQueue, Weight};
use crate::runtime::tasks::visits::{Registered, TaskGroup};
use crate::runtime::wake_flag::WakeFlag;

type TaskFuture = Pin<Box<dyn Future<Output = ()>>>;

/// The slot of a task, and its generation. One number, because it is compared for every event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TaskKey(u64);

impl TaskKey {
    /// No task. There are never that many.
    pub(crate) const NONE: Self = Self::new(u32::MAX - 2, 0);

    const fn new(index: u32, generation: u32) -> Self {
        Self((index as u64) << 32 | generation as u64)
    }

    #[inline]
    const fn index(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    const fn generation(self) -> u32 {
        self.0 as u32
    }
}

/// The part of a worker that other threads can reach.
#[derive(Debug)]
pub(crate) struct WorkerHandle {
    /// Bounded by the number of tasks, because each is queued at most once.
    remote_wakes: Mutex<Vec<TaskKey>>,
    woken: AtomicBool,
    wake_fd: OwnedFd,
    /// Written by the worker only.
    tasks: AtomicUsize,
}

impl WorkerHandle {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let wake_fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self {
            remote_wakes: Mutex::default(),
            woken: AtomicBool::new(false),
            wake_fd,
            tasks: AtomicUsize::new(0),
        }))
    }

    /// Becomes readable when another thread wakes the worker.
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake_fd.as_fd()
    }

    /// The number of the worker's tasks.
    pub(crate) fn tasks(&self) -> usize {
        self.tasks.load(Ordering::Relaxed)
    }

    pub(crate) fn set_tasks(&self, tasks: usize) {
        self.tasks.store(tasks, Ordering::Relaxed);
    }

    /// Wakes the worker to process what was queued for it.
    pub(crate) fn wake(&self) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            // This fails only after 2^64 - 2 unread writes.
            let _full = rustix::io::write(&self.wake_fd, &1_u64.to_ne_bytes());
        }
    }

    fn call(&self, key: TaskKey) {
        self.remote_wakes().push(key);
        self.wake();
    }

    fn remote_wakes(&self) -> MutexGuard<'_, Vec<TaskKey>> {
        // No critical section can panic half-way.
        self.remote_wakes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

thread_local! {
    /// Bytes that the current poll has moved in large pieces.
    static BYTES: Cell<usize> = const { Cell::new(0) };
}

/// Records that the current poll has moved a large piece.
pub(crate) fn record_bytes(bytes: usize) {
    BYTES.set(BYTES.get().saturating_add(bytes));
}

/// The queues of this thread.
#[derive(Default)]
struct LocalQueues {
    worker: Option<Arc<WorkerHandle>>,
    /// Keys of woken tasks, some of them more than once. Bounded by what a round does.
    queue: Vec<TaskKey>,
    /// Woken tasks that follow others.
    following: VecDeque<TaskKey>,
    spawned: VecDeque<NewTask>,
}

/// A task that has not been polled yet.
struct NewTask {
    future: TaskFuture,
    essential: bool,
    follows: bool,
}

thread_local! {
    static LOCAL: RefCell<LocalQueues> = RefCell::default();
    /// Which of the queues may have something: looked at several times per turn of the loop, and
    /// cheaper than the queues.
    static PENDING: Cell<u8> = const { Cell::new(0) };
}

/// Keys of woken tasks.
const WOKEN: u8 = 1;
/// Keys of woken tasks that follow others.
const FOLLOWING: u8 = 2;
/// New tasks.
const SPAWNED: u8 = 4;

#[inline]
fn is_pending(queue: u8) -> bool {
    PENDING.get() & queue != 0
}

#[inline]
fn set_pending(queue: u8, is_pending: bool) {
    PENDING.set(if is_pending { PENDING.get() | queue } else { PENDING.get() & !queue });
}

/// Queues tasks of this thread.
#[inline]
fn queue(keys: impl IntoIterator<Item = TaskKey>) {
    set_pending(WOKEN, true);
    LOCAL.with_borrow_mut(|local| local.queue.extend(keys));
}

/// Starts a task on this thread's worker. It is polled before the event loop waits again.
pub(crate) fn spawn(future: impl Future<Output = ()> + 'static) {
    push_new(NewTask { future: Box::pin(future), essential: false, follows: false });
}

/// Starts a task that the worker cannot do without: its panic ends the worker.
pub(crate) fn spawn_essential(future: impl Future<Output = ()> + 'static) {
    push_new(NewTask { future: Box::pin(future), essential: true, follows: false });
}

fn push_new(task: NewTask) {
    set_pending(SPAWNED, true);
    LOCAL.with_borrow_mut(|local| local.spawned.push_back(task));
}

/// Lets all other tasks and the event loop run.
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

/// The waker of a task.
#[derive(Debug)]
struct TaskWaker {
    worker: Arc<WorkerHandle>,
    key: TaskKey,
    follows: bool,
    /// It follows others and is queued. Used by its own thread only: an atomic, because a waker
    /// must be one for any thread.
    following: AtomicBool,
    /// Queued by another thread, and not taken by its own yet.
    queued_elsewhere: AtomicBool,
}

impl TaskWaker {
    /// Queues the task on its own thread. Returns whether this is its thread.
    #[inline]
    fn wake_here(&self) -> bool {
        let local = LOCAL.try_with(|local| {
            // Never borrowed while a task or a foreign waker runs.
            let local = &mut *local.borrow_mut();
            let mine =
                local.worker.as_ref().is_some_and(|worker| Arc::ptr_eq(worker, &self.worker));
            if mine && !self.follows {
                // A task that gets many things in a row is woken for each of them.
                if local.queue.last() != Some(&self.key) {
                    set_pending(WOKEN, true);
                    local.queue.push(self.key);
                }
            } else if mine && !self.following.load(Ordering::Relaxed) {
                self.following.store(true, Ordering::Relaxed);
                set_pending(FOLLOWING, true);
                local.following.push_back(self.key);
            }
            mine
        });
        local == Ok(true)
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.wake_here() && !self.queued_elsewhere.swap(true, Ordering::AcqRel) {
            self.worker.call(self.key);
        }
    }
}

struct Task {
    future: TaskFuture,
    call: Arc<TaskWaker>,
    waker: Waker,
    essential: bool,
    /// As its waker knows, whose memory a poll need not read.
    follows: bool,
    /// Its key is among the ready ones.
    queued: bool,
    weight: Weight,
    /// Set to make the task look for rare events, if it has registered one.
    flag: Option<Arc<WakeFlag>>,
    /// Its group, if it has registered one.
    group: Option<TaskGroup>,
}

impl Task {
    #[inline(always)]
    fn poll(&mut self, key: TaskKey) -> Polled {
        if self.follows {
            self.call.following.store(false, Ordering::Relaxed);
        }
        // A task that follows others has a queue of its own, which its waker knows.
        CURRENT.set((if self.follows { TaskKey::NONE } else { key }, self.waker.data()));
        let polled = catch_unwind(AssertUnwindSafe(|| {
            self.future.as_mut().poll(&mut Context::from_waker(&self.waker))
        }));
        CURRENT.set(NOBODY);
        polled
    }
}

/// Exactly one line of the cache, which holds all that the queue and a poll need: the memory of a
/// session is in no cache when its turn comes, and each further line is waited for.
#[derive(Default)]
#[repr(align(64))]
struct TaskSlot {
    generation: u32,
    task: Option<Task>,
}

const _: () = assert!(size_of::<TaskSlot>() == 64, "a second line of the cache");

/// Slots to have room for from the start. Pages that are not used are not resident, while those of
/// a smaller array, from which a growing one was copied, stay resident for a while.
pub(crate) const FIRST_SLOTS: usize = 4096;

/// An essential task has panicked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Panicked;

/// All tasks of this thread. Dropping it drops every task; after that the thread can have tasks
/// again.
pub(crate) struct Tasks {
    worker: Arc<WorkerHandle>,
    slots: Vec<TaskSlot>,
    free: Vec<u32>,
    /// The ready tasks in the order of their polls.
    ready: RunQueue<TaskKey>,
}

impl Tasks {
    /// Attaches this thread to `worker`.
    pub(crate) fn new(worker: Arc<WorkerHandle>) -> Self {
        LOCAL.with_borrow_mut(|local| local.worker = Some(Arc::clone(&worker)));
        Self {
            worker,
            slots: Vec::with_capacity(FIRST_SLOTS),
            free: Vec::new(),
            ready: RunQueue::default(),
        }
    }

    /// Whether any task is ready or due.
    pub(crate) fn is_busy(&self) -> bool {
        !self.ready.is_empty() || PENDING.get() != 0
    }

    /// Queues the tasks that other threads have woken. To be called after the wake-up descriptor
    /// was signalled.
    pub(crate) fn collect_remote_wakes(&self) {
        // In this order; see the module's header.
        self.worker.woken.swap(false, Ordering::AcqRel);
        let remote_wakes = std::mem::take(&mut *self.worker.remote_wakes());
        for key in &remote_wakes {
            let slot = self.slots.get(key.index() as usize);
            let slot = slot.filter(|slot| slot.generation == key.generation());
            if let Some(task) = slot.and_then(|slot| slot.task.as_ref()) {
                task.call.queued_elsewhere.swap(false, Ordering::AcqRel);
            }
        }
        queue(remote_wakes);
    }

    /// Polls the ready tasks, each at most once, and those spawned meanwhile. A task that wakes
    /// itself is polled in the next round, so the event loop runs in between. The event loop runs
    /// early if much is moved, and tasks not polled then are polled in the next rounds: see
    /// [`run_queue`](crate::runtime::run_queue).
    ///
    /// Tasks spawned by an essential task, as sessions are by an accept loop, run before the
    /// remaining tasks of this round: they are waiting to be connected, while the remaining ones
    /// may be closing, which can wait and takes as long as opening.
    ///
    /// # Errors
    ///
    /// An essential task has panicked.
    pub(crate) fn run_round(&mut self) -> Result<(), Panicked> {
        self.poll_following()?;
        self.begin_round();
        while let Some(key) = self.ready.next_light() {
            let essential = self.poll(key, true)?;
            if BYTES.get() > 0 {
                self.record_weight(key);
            }
            if essential {
                self.poll_new_tasks()?;
            }
        }
        let mut heavy = self.ready.first_heavy();
        while let Some(key) = heavy {
            self.poll(key, false)?;
            self.record_weight(key);
            heavy = self.ready.next_heavy();
        }
        self.poll_new_tasks()?;
        self.poll_following()
    }

    /// Queues a task for the next round, once. To be called between rounds.
    #[inline]
    pub(crate) fn wake(&mut self, key: TaskKey) {
        // Keys without a task (visitor, groups) are handled in `poll_gone`.
        if let Some(TaskSlot { task: Some(task), generation }) =
            self.slots.get_mut(key.index() as usize)
            && *generation == key.generation()
            && std::mem::replace(&mut task.queued, true)
        {
            return;
        }
        self.ready.add(key);
    }

    /// Begins a round with the tasks that have been woken.
    #[inline]
    fn begin_round(&mut self) {
        if is_pending(WOKEN) {
            self.take_woken();
        }
        self.ready.begin();
    }

    #[inline(never)]
    fn take_woken(&mut self) {
        set_pending(WOKEN, false);
        LOCAL.with_borrow_mut(|local| local.queue.drain(..).for_each(|key| self.wake(key)));
    }

    #[inline]
    fn poll_new_tasks(&mut self) -> Result<(), Panicked> {
        if is_pending(SPAWNED) { self.poll_spawned() } else { Ok(()) }
    }

    #[inline(never)]
    fn poll_spawned(&mut self) -> Result<(), Panicked> {
        while let Some(NewTask { future, essential, follows }) =
            LOCAL.with_borrow_mut(|local| local.spawned.pop_front())
        {
            let index = match self.free.pop() {
                Some(index) => index,
                None => {
                    // A task is larger than a byte, so memory runs out first.
                    let Ok(index) = u32::try_from(self.slots.len()) else { return Ok(()) };
                    self.slots.push(TaskSlot::default());
                    index
                }
            };
            let Some(slot) = self.slots.get_mut(index as usize) else { continue };
            let key = TaskKey::new(index, slot.generation);
            let call = Arc::new(TaskWaker {
                worker: Arc::clone(&self.worker),
                key,
                follows,
                following: AtomicBool::new(false),
                queued_elsewhere: AtomicBool::new(false),
            });
            self.worker.set_tasks(self.worker.tasks() + 1);
            slot.task = Some(Task {
                future,
                waker: Waker::from(Arc::clone(&call)),
                call,
                essential,
                follows,
                queued: false,
                weight: Weight::default(),
                flag: None,
                group: None,
            });
            self.poll(key, false)?;
            self.record_weight(key);
        }
        set_pending(SPAWNED, false);
        Ok(())
    }

    /// Records what the task has moved in its last poll, and what it has registered. Called only if
    /// it has done one of them, or if the task is heavy.
    #[cold]
    fn record_weight(&mut self, key: TaskKey) {
        let (bytes, registered) = (BYTES.take(), visits::REGISTERED.take());
        if let Some(task) = self.task(key) {
            task.weight.record(bytes);
            if let Some(Registered { flag, group }) = registered {
                (task.flag, task.group) = (flag, Some(group));
            }
        }
        self.ready.add_bytes(bytes);
    }

    /// Polls the task, or defers it if it is heavy and light ones are being polled. Returns whether
    /// it is essential.
    #[inline(always)]
    fn poll(&mut self, key: TaskKey, light: bool) -> Result<bool, Panicked> {
        let slot = self
            .slots
            .get_mut(key.index() as usize)
            .filter(|slot| slot.generation == key.generation());
        let Some(TaskSlot { task: Some(task), .. }) = slot else {
            self.wake_group(key);
            return Ok(false);
        };
        if light && task.weight.is_heavy() {
            self.ready.defer(key);
            return Ok(false);
        }
        task.queued = false;
        let polled = task.poll(key);
        let essential = task.essential;
        match polled {
            Ok(Poll::Pending) => Ok(essential),
            polled => self.end(key, polled).map(|()| essential),
        }
    }

    /// Drops a task that has returned or panicked, unless it continues as another future.
    fn end(&mut self, key: TaskKey, polled: Polled) -> Result<(), Panicked> {
        let polled = self.continue_task(key, polled);
        if matches!(polled, Ok(Poll::Pending)) {
            return Ok(());
        }
        let Some(slot) = self.slots.get_mut(key.index() as usize) else { return Ok(()) };
        slot.generation = slot.generation.wrapping_add(1);
        let ended = slot.task.take();
        self.free.push(key.index());
        self.worker.set_tasks(self.worker.tasks().saturating_sub(1));
        let essential = ended.as_ref().is_some_and(|task| task.essential);
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(ended)));
        if essential && (polled.is_err() || dropped.is_err()) { Err(Panicked) } else { Ok(()) }
    }

    fn task(&mut self, key: TaskKey) -> Option<&mut Task> {
        let slot = self.slots.get_mut(key.index() as usize);
        slot.filter(|slot| slot.generation == key.generation())?.task.as_mut()
    }
}

/// The result of a poll, or of a panic within it.
type Polled = Result<Poll<()>, Box<dyn Any + Send>>;

impl Drop for Tasks {
    fn drop(&mut self) {
        // Dropping a task may spawn another one, which is dropped too.
        self.slots.clear();
        let rest = LOCAL.take();
        PENDING.set(0);
        drop(rest);
    }
}

// The task that is being polled, so that what belongs to its thread can wake it by its key.
//
// A waker is for any thread: it has a counter of references and is called through a table, and a
// call reads memory of the task that is rarely in a cache. Sockets belong to the thread of their
// task. They keep the key, which costs neither.
//
// A future may be polled with another waker than that of the task it is part of, to be told apart
// ([`wake_flag`](crate::runtime::wake_flag)). Then the waker counts, and there is no key.

/// No task is being polled.
const NOBODY: (TaskKey, *const ()) = (TaskKey::NONE, ptr::null());

thread_local! {
    /// The task that is being polled, and the data of its waker, which is only compared.
    static CURRENT: Cell<(TaskKey, *const ())> = const { Cell::new(NOBODY) };
}

/// The key of the task that is being polled, if `waker` is its own and no other; otherwise
/// [`TaskKey::NONE`].
#[inline]
pub(crate) fn current_key(waker: &Waker) -> TaskKey {
    let (key, current) = CURRENT.get();
    if ptr::eq(current, waker.data()) { key } else { TaskKey::NONE }
}

// Tasks that follow others: the tasks of shared connections.
//
// A session wakes its connection when it has a request, and the connection wakes its sessions when
// replies have arrived. Each such wake-up would take another round, with a look at the sockets in
// between, which costs a system call. So these tasks are polled before the other ones of a round,
// which then write the replies that have arrived, and after them, when all requests of the round
// have been read and leave in one write.
//
// A task that wakes itself is polled in the next round, like any other.

/// Starts a task on this thread's worker that follows others.
pub(crate) fn spawn_following(future: impl Future<Output = ()> + 'static) {
    push_new(NewTask { future: Box::pin(future), essential: false, follows: true });
}

impl Tasks {
    /// Polls the tasks of this kind that are woken, each at most once.
    #[inline]
    fn poll_following(&mut self) -> Result<(), Panicked> {
        if is_pending(FOLLOWING) { self.poll_woken() } else { Ok(()) }
    }

    #[cold]
    #[inline(never)]
    fn poll_woken(&mut self) -> Result<(), Panicked> {
        set_pending(FOLLOWING, false);
        let mut left = LOCAL.with_borrow(|local| local.following.len());
        while left > 0
            && let Some(key) = LOCAL.with_borrow_mut(|local| local.following.pop_front())
        {
            left -= 1;
            self.poll(key, false)?;
            if BYTES.get() > 0 {
                self.record_weight(key);
            }
        }
        // Those that woke themselves are polled in the next round.
        if LOCAL.with_borrow(|local| !local.following.is_empty()) {
            set_pending(FOLLOWING, true);
        }
        Ok(())
    }
}
