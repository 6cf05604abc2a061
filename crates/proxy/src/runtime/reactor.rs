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

use std::cell::{Cell, RefCell};
use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll, Waker};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::runtime::tasks::{FIRST_SLOTS, TaskKey, current_key};

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

// The registration of one socket, and the attempts that its readiness allows.
//
// The usual attempt finds its bit set and succeeds; everything else is out of line, so that the
// code of a request spans few lines of the instruction cache.

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
        Ok(Self { index, ready: Cell::new(ready), flag, _here: PhantomData })
    }

    pub(crate) fn flag(&self) -> bool {
        self.flag
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
        update_readiness(cx, |update| update.take(self));
    }

    /// Whether `wanted` may succeed. If not, the task of `cx` is woken when something changes.
    #[inline]
    pub(crate) fn is_ready(&self, cx: &Context<'_>, wanted: Readiness) -> bool {
        self.cached().has(wanted) || self.becomes_ready(cx, wanted)
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
                    self.note_success(what, more);
                    return Poll::Ready(Ok(result));
                }
                Err(error) => {
                    if let Some(error) = self.note_failure(what, error) {
                        return Poll::Ready(Err(error));
                    }
                }
            }
        }
        Poll::Pending
    }

    /// Records an attempt of `what` that has succeeded, and whether there may be more.
    #[inline]
    fn note_success(&self, what: Readiness, more: bool) {
        if !more && !self.cached().has(Readiness::ENDED) {
            self.set_not_ready(what);
        }
    }

    #[cold]
    fn becomes_ready(&self, cx: &Context<'_>, wanted: Readiness) -> bool {
        self.update_readiness(cx);
        self.cached().has(wanted)
    }

    /// Records an attempt of `what` that has failed. Returns the error, unless it means to attempt
    /// again when the socket is ready.
    #[cold]
    fn note_failure(&self, what: Readiness, error: Errno) -> Option<Errno> {
        match error {
            Errno::AGAIN => self.set_not_ready(what),
            Errno::INTR => {}
            error => return Some(error),
        }
        None
    }

    /// Clears `what`: an attempt would block, whatever was reported.
    #[inline]
    pub(crate) fn set_not_ready(&self, what: Readiness) {
        self.ready.set(self.ready.get().without(what));
        if what.has(Readiness::WRITE) {
            self.set_slot_not_ready(what);
        }
    }

    #[cold]
    fn set_slot_not_ready(&self, what: Readiness) {
        self.with(|slot| slot.ready = slot.ready.without(what));
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

/// Takes the readiness of registrations of one task from their slots.
pub(crate) struct ReadinessUpdate<'a> {
    slots: &'a mut [SocketSlot],
    task: TaskKey,
    waker: &'a Waker,
}

impl ReadinessUpdate<'_> {
    /// As [`Registration::update_readiness`].
    #[inline(always)]
    pub(crate) fn take(&mut self, registration: &Registration) {
        let Some(slot) = self.slots.get_mut(registration.index as usize) else { return };
        slot.set_waker(self.task, self.waker);
        registration.ready.set(registration.ready.get().and(slot.ready));
        slot.ready = slot.ready.without(Readiness::READ);
    }
}

/// Updates the registrations that `update` names. The task of `cx` is woken by their next events.
#[inline(always)]
pub(crate) fn update_readiness(cx: &Context<'_>, update: impl FnOnce(&mut ReadinessUpdate<'_>)) {
    let (task, waker) = (current_key(cx.waker()), cx.waker());
    REACTOR.with_borrow_mut(|reactor| {
        if let Some(Reactor { slots, .. }) = reactor {
            update(&mut ReadinessUpdate { slots, task, waker });
        }
    });
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

// What is known about a socket: which attempts may succeed, and whether its peer has ended.
//
// A few bits, because each session has two of them. How they are kept up to date is described in
// [`reactor`](crate::runtime::reactor).

/// What may be attempted on a socket. The two usual bits are those of the kernel, because they are
/// read for every event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Readiness(u8);

impl Readiness {
    /// Nothing is known yet.
    pub(crate) const NONE: Self = Self(0);
    /// A read may return something.
    pub(crate) const READ: Self = Self(1);
    /// A write may accept something.
    pub(crate) const WRITE: Self = Self(4);
    /// The peer has closed its direction or the connection.
    pub(crate) const ENDED: Self = Self(2);
    /// The connection is broken.
    pub(crate) const BROKEN: Self = Self(8);
    /// The assumed readiness of a connection that was just accepted.
    pub(crate) const BOTH: Self = Self(5);

    #[inline]
    pub(super) fn of(flags: EventFlags) -> Self {
        let usual = flags.intersection(EventFlags::IN | EventFlags::OUT);
        if usual != flags { Self::of_unusual(flags) } else { Self::of_usual(usual) }
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the lowest bits")]
    const fn of_usual(flags: EventFlags) -> Self {
        Self(flags.bits() as u8)
    }

    #[cold]
    fn of_unusual(flags: EventFlags) -> Self {
        let mut bits = Self::of_usual(flags.intersection(EventFlags::IN | EventFlags::OUT)).0;
        if flags.contains(EventFlags::RDHUP) {
            bits |= Self::READ.0 | Self::ENDED.0;
        }
        if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            // Attempt both directions: the attempt returns the error.
            bits |= Self::READ.0 | Self::WRITE.0 | Self::ENDED.0 | Self::BROKEN.0;
        }
        Self(bits)
    }

    pub(crate) const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(super) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

const _: () = assert!(
    Readiness::of_usual(EventFlags::IN).0 == Readiness::READ.0
        && Readiness::of_usual(EventFlags::OUT).0 == Readiness::WRITE.0,
    "the bits of the kernel"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn translates_every_combination_of_flags() {
        let flags = [
            (EventFlags::IN, Readiness::READ.0),
            (EventFlags::OUT, Readiness::WRITE.0),
            (EventFlags::RDHUP, Readiness::READ.0 | Readiness::ENDED.0),
            (EventFlags::HUP, 15),
            (EventFlags::ERR, 15),
            // Not asked for: means nothing.
            (EventFlags::PRI, 0),
        ];
        for set in 0..1 << flags.len() {
            let chosen = flags.iter().enumerate().filter(|(nth, _)| set >> nth & 1 == 1);
            let (given, bits) = chosen.fold((EventFlags::empty(), 0), |(given, bits), (_, it)| {
                (given | it.0, bits | it.1)
            });
            assert_eq!(Readiness::of(given), Readiness(bits), "{given:?}");
        }
    }
}
