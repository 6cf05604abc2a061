//! Which sockets of a worker are ready: one epoll instance a worker, and a slot of a few bytes a
//! socket.
//!
//! tokio's own driver is made for sockets that any thread may use: 400 bytes each, an atomic for
//! every look, a system call to take each one back. Here a socket belongs to one thread, so its
//! slot is three plain fields. It is registered once, for both directions, edge-triggered, and
//! never taken back: closing it does that.
//!
//! **No event is lost.** A bit of a slot says "an attempt is worth while". An event sets it; the
//! owner takes it over into a field of his own ([`Registration::update_readiness`]), leaving his waker on the way, and
//! clears that one when an attempt came out short or with nothing. All of it happens on one thread,
//! so it has an order. Whatever comes after an attempt that emptied the socket is a new edge, and
//! the kernel tells of it. So if a bit is clear in both places, an event is still to come, and
//! finds the waker. An event that sets no new bit of the slot wakes nobody: its owner has been
//! woken and has not looked yet, or it is about room to write, of which the slot keeps the bit
//! until a write found none, since every event tells of it.
//!
//! A session looks once when it is polled; between its attempts it asks its own field, and nothing
//! that has to be borrowed.
//!
//! **No event reaches the wrong session.** What the kernel hands back with an event is the number
//! of the slot and its generation, which grows each time the slot is given back. An event fetched
//! before a socket was closed finds another generation.
//!
//! The peer's end and errors stay set: an attempt that reads the last bytes before an end may come
//! out short, and no edge would follow it.
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

/// Events fetched at a time.
const EVENTS: usize = 256;

/// The number that stands for the bell of the worker and for no slot.
const WAKE_TAG: u64 = u64::MAX;

/// What may be tried on a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Readiness(u8);

impl Readiness {
    /// Nothing is known yet.
    pub(crate) const NONE: Self = Self(0);
    /// A read may bring something.
    pub(crate) const READ: Self = Self(1);
    /// A write may take something.
    pub(crate) const WRITE: Self = Self(2);
    /// The peer has ended its direction, or broken off.
    pub(crate) const ENDED: Self = Self(4);
    /// The connection is broken.
    pub(crate) const BROKEN: Self = Self(8);
    /// What a connection that was just accepted is taken for.
    pub(crate) const BOTH: Self = Self(3);

    fn of(flags: EventFlags) -> Self {
        let mut bits = 0;
        if flags.contains(EventFlags::IN) {
            bits |= Self::READ.0;
        }
        if flags.contains(EventFlags::OUT) {
            bits |= Self::WRITE.0;
        }
        if flags.contains(EventFlags::RDHUP) {
            bits |= Self::READ.0 | Self::ENDED.0;
        }
        if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            // Both directions are worth an attempt: it brings the error.
            bits |= Self::READ.0 | Self::WRITE.0 | Self::ENDED.0 | Self::BROKEN.0;
        }
        Self(bits)
    }

    pub(crate) const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// What is known of one socket.
#[derive(Debug)]
struct SocketSlot {
    waker: Option<Waker>,
    generation: u32,
    ready: Readiness,
}

impl SocketSlot {
    /// Leaves a waker for the next event.
    #[inline]
    fn set_waker(&mut self, waker: &Waker) {
        if !self.waker.as_ref().is_some_and(|left| left.will_wake(waker)) {
            self.waker = Some(waker.clone());
        }
    }
}

/// One worker's sockets. Made anywhere, then moved to the worker's thread and [installed](install)
/// there.
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
    /// A reactor that also notices when somebody writes to `wake_fd`.
    pub(crate) fn new(wake_fd: impl AsFd) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        // Edge-triggered, too: each write is an edge, so nobody has to read what was written.
        epoll::add(&epoll, wake_fd, EventData::new_u64(WAKE_TAG), EventFlags::IN | EventFlags::ET)?;
        Ok(Self { epoll, slots: Vec::new(), free: Vec::new() })
    }

    fn add(&mut self, socket: impl AsFd, ready: Readiness) -> io::Result<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index =
                    u32::try_from(self.slots.len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
                self.slots.push(SocketSlot { waker: None, generation: 0, ready: Readiness::NONE });
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
        // All bits set at the tag's place would be taken for the bell.
        slot.generation = if slot.generation == u32::MAX - 1 { 0 } else { slot.generation + 1 };
        slot.ready = Readiness::NONE;
        self.free.push(index);
        slot.waker.take()
    }

    /// Notes an event and wakes whom it concerns, which only puts him in a queue.
    fn record(&mut self, tag: u64, ready: Readiness) {
        let (index, generation) = (tag & u64::from(u32::MAX), tag >> 32);
        let slot = usize::try_from(index).ok().and_then(|index| self.slots.get_mut(index));
        let Some(slot) = slot.filter(|slot| u64::from(slot.generation) == generation) else {
            return;
        };
        let all = slot.ready.and(ready);
        if all != slot.ready {
            slot.ready = all;
            if let Some(waker) = &slot.waker {
                waker.wake_by_ref();
            }
        }
    }
}

/// Takes the reactor away from its thread when dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct InstalledReactor(PhantomData<*const ()>);

/// Makes `reactor` this thread's own.
pub(crate) fn install(reactor: Reactor) -> InstalledReactor {
    REACTOR.set(Some(reactor));
    InstalledReactor(PhantomData)
}

impl Drop for InstalledReactor {
    fn drop(&mut self) {
        REACTOR.set(None);
    }
}

/// Fetches events of this thread's sockets and wakes whom they concern, after waiting for one up to
/// `wait`; the buffer is the caller's, to be given again. Whether the bell was rung.
pub(crate) fn poll_events(events: &mut Vec<Event>, wait: Duration) -> io::Result<bool> {
    let wait = Timespec::try_from(wait).unwrap_or_default();
    events.reserve(EVENTS);
    REACTOR.with_borrow_mut(|reactor| {
        let Some(reactor) = reactor else { return Err(io::ErrorKind::NotConnected.into()) };
        match epoll::wait(&reactor.epoll, spare_capacity(events), Some(&wait)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(io::Error::from(error)),
        }
    })?;
    let mut woken = false;
    REACTOR.with_borrow_mut(|reactor| {
        let Some(reactor) = reactor else { return };
        for event in events.drain(..) {
            match event.data.u64() {
                WAKE_TAG => woken = true,
                tag => reactor.record(tag, Readiness::of(event.flags)),
            }
        }
    });
    Ok(woken)
}

/// A socket's place in its thread's reactor, given back when dropped. The socket must be closed at
/// the same time and never be duplicated, or events of it keep coming (and are ignored).
#[derive(Debug)]
pub(crate) struct Registration {
    index: u32,
    /// What the owner has taken over and not used up.
    ready: Cell<Readiness>,
    /// A mark of the owner's: it fits in here where it would cost him four bytes.
    flag: bool,
    /// Useless on another thread.
    _here: PhantomData<*const ()>,
}

impl Registration {
    /// Registers `socket`, which is taken to be `ready` for now.
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

    /// What is known, whether it was taken over or not.
    pub(crate) fn ready(&self) -> Readiness {
        self.with(|slot| slot.ready).unwrap_or(Readiness::NONE).and(self.ready.get())
    }

    /// What was known at the last look and has not been used up since.
    #[inline]
    pub(crate) fn cached(&self) -> Readiness {
        self.ready.get()
    }

    /// Takes over what has been noted. Who looks is woken at the next event.
    #[inline]
    pub(crate) fn update_readiness(&self, cx: &Context<'_>) {
        let noted = self.with(|slot| {
            slot.set_waker(cx.waker());
            let noted = slot.ready;
            slot.ready = noted.without(Readiness::READ);
            noted
        });
        self.ready.set(self.ready.get().and(noted.unwrap_or(Readiness::NONE)));
    }

    /// Whether `wanted` is worth an attempt. If not, who asks is woken when something changes.
    #[inline]
    pub(crate) fn is_ready(&self, cx: &Context<'_>, wanted: Readiness) -> bool {
        if !self.cached().has(wanted) {
            self.update_readiness(cx);
        }
        self.cached().has(wanted)
    }

    /// Makes an attempt at `what` if it is worth one; otherwise, who asks is woken when it is. The
    /// attempt returns its result and whether there may be more. An end that was announced stays
    /// worth one.
    #[inline]
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

    /// An attempt at `what` had to wait or would have to, whatever was announced.
    #[inline]
    pub(crate) fn set_not_ready(&self, what: Readiness) {
        self.ready.set(self.ready.get().without(what));
        if what.has(Readiness::WRITE) {
            self.with(|slot| slot.ready = slot.ready.without(what));
        }
    }

    /// Ends the registration of `socket`, for one that is not about to be closed.
    pub(crate) fn deregister(&self, socket: impl AsFd) {
        // It fails only for a socket that is not registered.
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
        // A waker that is dropped may drop a task's last handle, which is free to do what it likes:
        // not while borrowed.
        let waker =
            REACTOR.try_with(|reactor| reactor.try_borrow_mut().ok()?.as_mut()?.remove(self.index));
        drop(waker);
    }
}
