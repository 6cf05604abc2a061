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
//! Deliberately absent: sockets that change their thread, and interest in one direction only.

use std::cell::{Cell, RefCell};
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

pub(crate) use crate::runtime::readiness::Readiness;
use crate::runtime::tasks::{TaskKey, current};
use crate::runtime::ticker::Ticker;

/// Events fetched per call.
const EVENTS: usize = 256;

/// The tags of the worker's wake-up descriptor and of its ticker; no slot has them.
const WAKE_TAG: u64 = u64::MAX;
const TICK_TAG: u64 = u64::MAX - 1;

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

    /// Remembers whom the next event wakes.
    #[inline]
    fn set_waker(&mut self, waker: &Waker) {
        self.task = current::key_of(waker);
        if self.task == TaskKey::NONE || self.waker.is_some() {
            self.keep_waker(waker);
        }
    }

    fn keep_waker(&mut self, waker: &Waker) {
        if self.task != TaskKey::NONE {
            self.waker = None;
        } else if !self.waker.as_ref().is_some_and(|left| left.will_wake(waker)) {
            self.waker = Some(waker.clone());
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
    /// The tasks to wake after the events of a turn.
    woken: Vec<TaskKey>,
    ticker: Option<Ticker>,
    /// Limits each wait, without a ticker.
    limit: Option<Timespec>,
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
        Ok(Self {
            epoll,
            slots: Vec::new(),
            free: Vec::new(),
            woken: Vec::new(),
            ticker: None,
            limit: None,
        })
    }

    /// The same; each wait ends after `interval`, by a limit if a seccomp profile forbids tickers.
    pub(crate) fn ticking(wake_fd: impl AsFd, interval: Duration) -> io::Result<Self> {
        let reactor = Self::new(wake_fd)?;
        let Ok(ticker) = Ticker::new(interval) else { return Ok(reactor.without_ticker(interval)) };
        let (tag, flags) = (EventData::new_u64(TICK_TAG), EventFlags::IN | EventFlags::ET);
        epoll::add(&reactor.epoll, &ticker, tag, flags)?;
        Ok(Self { ticker: Some(ticker), ..reactor })
    }

    /// The same with a limit for each wait.
    pub(crate) fn without_ticker(self, interval: Duration) -> Self {
        Self { ticker: None, limit: Some(Timespec::try_from(interval).unwrap_or_default()), ..self }
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
    fn record(&mut self, tag: u64, ready: Readiness) {
        let (index, generation) = (tag & u64::from(u32::MAX), tag >> 32);
        let slot = usize::try_from(index).ok().and_then(|index| self.slots.get_mut(index));
        let Some(slot) = slot.filter(|slot| u64::from(slot.generation) == generation) else {
            return;
        };
        let all = slot.ready.and(ready);
        if all != slot.ready {
            slot.ready = all;
            if slot.task != TaskKey::NONE {
                self.woken.push(slot.task);
            } else if let Some(waker) = &slot.waker {
                waker.wake_by_ref();
            }
        }
    }
}

/// Removes the reactor from its thread when dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct InstalledReactor(PhantomData<*const ()>);

/// Installs `reactor` on this thread.
pub(crate) fn install(reactor: Reactor) -> InstalledReactor {
    REACTOR.set(Some(reactor));
    InstalledReactor(PhantomData)
}

impl Drop for InstalledReactor {
    fn drop(&mut self) {
        REACTOR.set(None);
    }
}

/// What a wait for events has found, beside events of sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Turn {
    /// The worker was woken through its wake-up descriptor.
    pub(crate) woken: bool,
    /// The ticker has ticked. Always without a ticker.
    pub(crate) ticked: bool,
}

/// Waits for events of this thread's sockets, up to `wait` or without a limit; records them and
/// wakes their tasks. `events` is a buffer to reuse.
pub(crate) fn poll_events(
    events: &mut Vec<Event>,
    wait: impl Into<Option<Duration>>,
) -> io::Result<Turn> {
    let wait = wait.into().map(|wait| Timespec::try_from(wait).unwrap_or_default());
    events.reserve(EVENTS);
    REACTOR.with_borrow_mut(|reactor| {
        let Some(reactor) = reactor else { return Err(io::ErrorKind::NotConnected.into()) };
        let wait = wait.as_ref().or(reactor.limit.as_ref());
        match epoll::wait(&reactor.epoll, spare_capacity(events), wait) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut turn = Turn { woken: false, ticked: reactor.ticker.is_none() };
        for event in events.iter() {
            match event.data.u64() {
                WAKE_TAG => turn.woken = true,
                TICK_TAG => {
                    turn.ticked = true;
                    reactor.ticker.iter().for_each(Ticker::tick);
                }
                tag => reactor.record(tag, Readiness::of(event.flags)),
            }
        }
        events.clear();
        current::wake_all(&mut reactor.woken);
        Ok(turn)
    })
}

/// The registration of a socket with its thread's reactor, released on drop. The socket must be
/// closed at the same time and never be duplicated; otherwise its events keep arriving (and are
/// ignored).
#[derive(Debug)]
pub(crate) struct Registration {
    index: u32,
    /// Readiness taken from the slot and not used up.
    ready: Cell<Readiness>,
    /// A flag of the owner, stored here because it would take four bytes there.
    flag: bool,
    /// Another one.
    second_flag: Cell<bool>,
    /// Useless on another thread.
    _here: PhantomData<*const ()>,
}

impl Registration {
    /// Registers `socket`, assumed to be `ready` for now.
    pub(crate) fn new(socket: impl AsFd, ready: Readiness, flag: bool) -> io::Result<Self> {
        let index = REACTOR.with_borrow_mut(|reactor| match reactor {
            Some(reactor) => reactor.add(socket, ready),
            None => Err(io::ErrorKind::NotConnected.into()),
        })?;
        let second_flag = Cell::new(false);
        Ok(Self { index, ready: Cell::new(ready), flag, second_flag, _here: PhantomData })
    }

    pub(crate) fn flag(&self) -> bool {
        self.flag
    }

    pub(crate) fn second_flag(&self) -> bool {
        self.second_flag.get()
    }

    pub(crate) fn set_second_flag(&self, flag: bool) {
        self.second_flag.set(flag);
    }

    /// All known readiness, in the slot and in this registration.
    pub(crate) fn ready(&self) -> Readiness {
        self.with(|slot| slot.ready).unwrap_or(Readiness::NONE).and(self.ready.get())
    }

    /// The readiness as of the last update, minus what has been used up since.
    #[inline]
    pub(crate) fn cached(&self) -> Readiness {
        self.ready.get()
    }

    /// Takes the readiness from the slot. The task of `cx` is woken by the next event.
    #[inline]
    pub(crate) fn update_readiness(&self, cx: &Context<'_>) {
        self.with(|slot| self.take_readiness(slot, cx));
    }

    /// The same for two registrations of one task.
    #[inline]
    pub(crate) fn update_readiness_of_both(first: &Self, second: &Self, cx: &Context<'_>) {
        REACTOR.with_borrow_mut(|reactor| {
            let Some(reactor) = reactor else { return };
            for of in [first, second] {
                if let Some(slot) = reactor.slots.get_mut(of.index as usize) {
                    of.take_readiness(slot, cx);
                }
            }
        });
    }

    #[inline]
    fn take_readiness(&self, slot: &mut SocketSlot, cx: &Context<'_>) {
        slot.set_waker(cx.waker());
        self.ready.set(self.ready.get().and(slot.ready));
        slot.ready = slot.ready.without(Readiness::READ);
    }

    /// Whether `wanted` may succeed. If not, the task of `cx` is woken when something changes.
    #[inline]
    pub(crate) fn is_ready(&self, cx: &Context<'_>, wanted: Readiness) -> bool {
        if !self.cached().has(wanted) {
            self.update_readiness(cx);
        }
        self.cached().has(wanted)
    }

    /// Attempts `what` if it may succeed; otherwise the task of `cx` is woken when it may. The
    /// attempt returns its result and whether there may be more. After an announced end, further
    /// attempts remain possible.
    #[inline(always)]
    pub(crate) fn attempt<R>(
        &self,
        cx: &Context<'_>,
        what: Readiness,
        mut attempt: impl FnMut() -> Result<(R, bool), Errno>,
    ) -> Poll<Result<R, Errno>> {
        while self.is_ready(cx, what) {
            match attempt() {
                Ok((result, more)) => {
                    if !more && !self.cached().has(Readiness::ENDED) {
                        self.set_not_ready(what);
                    }
                    return Poll::Ready(Ok(result));
                }
                Err(Errno::AGAIN) => self.set_not_ready(what),
                Err(Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Pending
    }

    /// Clears `what`: an attempt would block, whatever was reported.
    #[inline]
    pub(crate) fn set_not_ready(&self, what: Readiness) {
        self.ready.set(self.ready.get().without(what));
        if what.has(Readiness::WRITE) {
            self.with(|slot| slot.ready = slot.ready.without(what));
        }
    }

    /// Deregisters `socket`, for a socket that may stay open elsewhere.
    pub(crate) fn deregister(&self, socket: impl AsFd) {
        // This fails only for a socket that is not registered.
        REACTOR.with_borrow(|reactor| {
            reactor.as_ref().map(|reactor| epoll::delete(&reactor.epoll, socket))
        });
    }

    #[inline]
    fn with<R>(&self, f: impl FnOnce(&mut SocketSlot) -> R) -> Option<R> {
        REACTOR.with_borrow_mut(|reactor| {
            reactor.as_mut().and_then(|reactor| reactor.slots.get_mut(self.index as usize)).map(f)
        })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // Dropping a waker may drop a task's last reference, which may run any code: not while
        // borrowed.
        let waker =
            REACTOR.try_with(|reactor| reactor.try_borrow_mut().ok()?.as_mut()?.remove(self.index));
        drop(waker);
    }
}
