//! Socket readiness of a worker: one epoll instance per worker, and a slot of a few bytes per
//! socket.
//!
//! tokio's driver supports sockets that any thread may use: 400 bytes each, an atomic operation per
//! check, a system call to deregister. Here a socket belongs to one thread, so its slot has three
//! plain fields. A socket is registered once, for both directions, edge-triggered, and never
//! deregistered: closing it does that.
//!
//! **No event is lost.** A bit in a slot says that an attempt may succeed. An event sets it; the
//! owner moves it to a field of its own ([`Registration::update_readiness`]), stores its waker at
//! the same time, and clears the field when an attempt was incomplete or found nothing. All of this
//! happens on one thread and is therefore ordered. Anything that arrives after an attempt that
//! emptied the socket is a new edge, which the kernel reports. So if a bit is clear in both places,
//! an event is still to come and will find the waker. An event that sets no new bit of the slot
//! wakes no task: either its owner was already woken and has not run yet, or the event reports
//! writability, whose bit stays in the slot until a write would block, since every event reports
//! it.
//!
//! A session updates its readiness once per poll; between its attempts it only reads its own field,
//! for which nothing has to be borrowed.
//!
//! **No event reaches the wrong session.** The kernel returns, with each event, the number of the
//! slot and its generation, which changes each time the slot is released. An event fetched before a
//! socket was closed finds another generation.
//!
//! The end of the peer's direction and errors stay set: an attempt that reads the last bytes before
//! the end may be incomplete, and no edge would follow.
//!
//! Sockets do not change their thread, and interest is always in both directions.

mod registration;

use std::cell::RefCell;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::task::Waker;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

pub(crate) use self::registration::{Registration, update_readiness};
pub(crate) use crate::runtime::readiness::Readiness;
use crate::runtime::tasks::{FIRST_SLOTS, TaskKey};

/// Events fetched per call.
const EVENTS: usize = 256;

/// Memory for the events of one call.
pub(crate) type EventBuffer = [MaybeUninit<Event>; EVENTS];

/// An empty one.
pub(crate) const fn no_events() -> EventBuffer {
    [const { MaybeUninit::uninit() }; EVENTS]
}

/// The tag of the worker's wake-up descriptor; no slot has it.
const WAKE_TAG: u64 = u64::MAX;

/// What is known about one socket.
#[derive(Debug)]
struct SocketSlot {
    /// The task to wake, or [`TaskKey::NONE`] if there is none or a waker for it.
    task: TaskKey,
    waker: Option<Waker>,
    generation: u32,
    ready: Readiness,
}

impl SocketSlot {
    const NEW: Self =
        Self { task: TaskKey::NONE, waker: None, generation: 0, ready: Readiness::NONE };

    /// Remembers whom the next event wakes: `task`, which is the one that `waker` wakes and nothing
    /// else, or [`TaskKey::NONE`] for the waker.
    #[inline]
    fn set_waker(&mut self, task: TaskKey, waker: &Waker) {
        // Nearly always that of the last poll, which has left no waker beside it.
        if self.task != task || task == TaskKey::NONE {
            self.change_waker(task, waker);
        }
    }

    #[cold]
    fn change_waker(&mut self, task: TaskKey, waker: &Waker) {
        self.task = task;
        if self.task != TaskKey::NONE {
            self.waker = None;
        } else {
            self.waker.get_or_insert_with(|| waker.clone()).clone_from(waker);
        }
    }
}

/// The sockets of one worker. Created on any thread, then moved to the worker's thread and
/// [installed](install) there.
#[derive(Debug)]
pub(crate) struct Reactor {
    epoll: OwnedFd,
    slots: Vec<SocketSlot>,
    free: Vec<u32>,
}

thread_local! {
    static REACTOR: RefCell<Option<Reactor>> = const { RefCell::new(None) };
}

impl Reactor {
    /// A reactor that also notices writes to `wake_fd`.
    pub(crate) fn new(wake_fd: impl AsFd) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        // Edge-triggered too: each write is an edge, so the value need not be read.
        epoll::add(&epoll, wake_fd, EventData::new_u64(WAKE_TAG), EventFlags::IN | EventFlags::ET)?;
        // A session has two sockets.
        let slots = Vec::with_capacity(2 * FIRST_SLOTS);
        Ok(Self { epoll, slots, free: Vec::new() })
    }

    fn add(&mut self, socket: impl AsFd, ready: Readiness) -> io::Result<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index =
                    u32::try_from(self.slots.len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
                self.slots.push(SocketSlot::NEW);
                index
            }
        };
        let Some(slot) = self.slots.get_mut(index as usize) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        slot.ready = ready;
        let tag = EventData::new_u64(u64::from(slot.generation) << 32 | u64::from(index));
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        if let Err(error) = epoll::add(&self.epoll, socket, tag, flags) {
            self.free.push(index);
            return Err(error.into());
        }
        Ok(index)
    }

    fn remove(&mut self, index: u32) -> Option<Waker> {
        let slot = self.slots.get_mut(index as usize)?;
        // Tags whose upper bits are all set are reserved.
        slot.generation = if slot.generation == u32::MAX - 1 { 0 } else { slot.generation + 1 };
        (slot.task, slot.ready) = (TaskKey::NONE, Readiness::NONE);
        self.free.push(index);
        slot.waker.take()
    }

    /// Records an event and wakes its task, which only queues the task.
    #[inline]
    fn record(&mut self, tag: u64, ready: Readiness, wake: &mut impl FnMut(TaskKey)) {
        let (index, generation) = (tag & u64::from(u32::MAX), tag >> 32);
        let slot = usize::try_from(index).ok().and_then(|index| self.slots.get_mut(index));
        let Some(slot) = slot.filter(|slot| u64::from(slot.generation) == generation) else {
            return;
        };
        let all = slot.ready.and(ready);
        if all != slot.ready {
            slot.ready = all;
            if slot.task != TaskKey::NONE {
                wake(slot.task);
            } else if let Some(waker) = &slot.waker {
                waker.wake_by_ref();
            }
        }
    }
}

/// Installs `reactor` on this thread, for as long as the thread runs.
pub(crate) fn install(reactor: Reactor) {
    REACTOR.set(Some(reactor));
}

/// The limit of a wait that only looks for events.
pub(crate) const NO_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Waits for events of this thread's sockets, up to `wait` or without a limit; records them and
/// wakes their tasks by `wake`. `events` is memory to reuse. Returns whether the worker was woken
/// through its wake-up descriptor.
pub(crate) fn poll_events(
    events: &mut EventBuffer,
    wait: Option<&Timespec>,
    mut wake: impl FnMut(TaskKey),
) -> io::Result<bool> {
    REACTOR.with_borrow_mut(|reactor| {
        let Some(reactor) = reactor else { return Err(io::ErrorKind::NotConnected.into()) };
        let events = match epoll::wait(&reactor.epoll, events, wait) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => &mut [],
            Err(error) => return Err(error.into()),
        };
        let mut is_woken = false;
        for event in events.iter() {
            match event.data.u64() {
                WAKE_TAG => is_woken = true,
                tag => reactor.record(tag, Readiness::of(event.flags), &mut wake),
            }
        }
        Ok(is_woken)
    })
}
