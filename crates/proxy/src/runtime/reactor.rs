//! Which sockets of a worker are ready: one epoll instance a worker, and a slot of a few bytes a
//! socket.
//!
//! tokio's own driver is made for sockets that any thread may use: 400 bytes each, an atomic for
//! every look, a system call to take each one back. Here a socket belongs to one thread, so its
//! slot is three plain fields. It is registered once, for both directions, edge-triggered, and
//! never taken back: closing it does that.
//!
//! **No event is lost.** A bit of a slot says "an attempt is worth while". An event sets it; the
//! owner takes it over into a field of his own ([`Place::look`]), leaving his waker on the way, and
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
const BELL: u64 = u64::MAX;

/// What may be tried on a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ready(u8);

impl Ready {
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
struct Slot {
    waker: Option<Waker>,
    generation: u32,
    ready: Ready,
}

impl Slot {
    /// Leaves a waker for the next event.
    #[inline]
    fn leave(&mut self, waker: &Waker) {
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
    slots: Vec<Slot>,
    free: Vec<u32>,
}

thread_local! {
    static HERE: RefCell<Option<Reactor>> = const { RefCell::new(None) };
}

impl Reactor {
    /// A reactor that also notices when somebody writes to `bell`.
    pub(crate) fn new(bell: impl AsFd) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        // Edge-triggered, too: each write is an edge, so nobody has to read what was written.
        epoll::add(&epoll, bell, EventData::new_u64(BELL), EventFlags::IN | EventFlags::ET)?;
        Ok(Self { epoll, slots: Vec::new(), free: Vec::new() })
    }

    fn add(&mut self, socket: impl AsFd, ready: Ready) -> io::Result<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index =
                    u32::try_from(self.slots.len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
                self.slots.push(Slot { waker: None, generation: 0, ready: Ready::NONE });
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
        slot.ready = Ready::NONE;
        self.free.push(index);
        slot.waker.take()
    }

    /// Notes an event and wakes whom it concerns, which only puts him in a queue.
    fn note(&mut self, tag: u64, ready: Ready) {
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
pub(crate) struct Installed(PhantomData<*const ()>);

/// Makes `reactor` this thread's own.
pub(crate) fn install(reactor: Reactor) -> Installed {
    HERE.set(Some(reactor));
    Installed(PhantomData)
}

impl Drop for Installed {
    fn drop(&mut self) {
        HERE.set(None);
    }
}

/// Fetches events of this thread's sockets and wakes whom they concern, after waiting for one up to
/// `wait`; the buffer is the caller's, to be given again. Whether the bell was rung.
pub(crate) fn turn(events: &mut Vec<Event>, wait: Duration) -> io::Result<bool> {
    let wait = Timespec::try_from(wait).unwrap_or_default();
    events.reserve(EVENTS);
    HERE.with_borrow_mut(|here| {
        let Some(here) = here else { return Err(io::ErrorKind::NotConnected.into()) };
        match epoll::wait(&here.epoll, spare_capacity(events), Some(&wait)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(io::Error::from(error)),
        }
    })?;
    let mut rung = false;
    HERE.with_borrow_mut(|here| {
        let Some(here) = here else { return };
        for event in events.drain(..) {
            match event.data.u64() {
                BELL => rung = true,
                tag => here.note(tag, Ready::of(event.flags)),
            }
        }
    });
    Ok(rung)
}

/// A socket's place in its thread's reactor, given back when dropped. The socket must be closed at
/// the same time and never be duplicated, or events of it keep coming (and are ignored).
#[derive(Debug)]
pub(crate) struct Place {
    index: u32,
    /// What the owner has taken over and not used up.
    ready: Cell<Ready>,
    /// A mark of the owner's: it fits in here where it would cost him four bytes.
    mark: bool,
    /// Useless on another thread.
    _here: PhantomData<*const ()>,
}

impl Place {
    /// Registers `socket`, which is taken to be `ready` for now.
    pub(crate) fn new(socket: impl AsFd, ready: Ready, mark: bool) -> io::Result<Self> {
        let index = HERE.with_borrow_mut(|here| match here {
            Some(here) => here.add(socket, ready),
            None => Err(io::ErrorKind::NotConnected.into()),
        })?;
        Ok(Self { index, ready: Cell::new(ready), mark, _here: PhantomData })
    }

    pub(crate) fn mark(&self) -> bool {
        self.mark
    }

    /// What is known, whether it was taken over or not.
    pub(crate) fn ready(&self) -> Ready {
        self.with(|slot| slot.ready).unwrap_or(Ready::NONE).and(self.ready.get())
    }

    /// What was known at the last look and has not been used up since.
    #[inline]
    pub(crate) fn seen(&self) -> Ready {
        self.ready.get()
    }

    /// Takes over what has been noted. Who looks is woken at the next event.
    #[inline]
    pub(crate) fn look(&self, cx: &Context<'_>) {
        let noted = self.with(|slot| {
            slot.leave(cx.waker());
            let noted = slot.ready;
            slot.ready = noted.without(Ready::READ);
            noted
        });
        self.ready.set(self.ready.get().and(noted.unwrap_or(Ready::NONE)));
    }

    /// Whether `wanted` is worth an attempt. If not, who asks is woken when something changes.
    #[inline]
    pub(crate) fn is_ready(&self, cx: &Context<'_>, wanted: Ready) -> bool {
        if !self.seen().has(wanted) {
            self.look(cx);
        }
        self.seen().has(wanted)
    }

    /// Makes an attempt at `what` if it is worth one; otherwise, who asks is woken when it is. The
    /// attempt returns its result and whether there may be more. An end that was announced stays
    /// worth one.
    #[inline]
    pub(crate) fn attempt<R>(
        &self,
        cx: &Context<'_>,
        what: Ready,
        mut attempt: impl FnMut() -> Result<(R, bool), Errno>,
    ) -> Poll<Result<R, Errno>> {
        while self.is_ready(cx, what) {
            match attempt() {
                Ok((result, more)) => {
                    if !more && !self.seen().has(Ready::ENDED) {
                        self.would_block(what);
                    }
                    return Poll::Ready(Ok(result));
                }
                Err(Errno::AGAIN) => self.would_block(what),
                Err(Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Pending
    }

    /// An attempt at `what` had to wait or would have to, whatever was announced.
    #[inline]
    pub(crate) fn would_block(&self, what: Ready) {
        self.ready.set(self.ready.get().without(what));
        if what.has(Ready::WRITE) {
            self.with(|slot| slot.ready = slot.ready.without(what));
        }
    }

    /// Ends the registration of `socket`, for one that is not about to be closed.
    pub(crate) fn withdraw(&self, socket: impl AsFd) {
        // It fails only for a socket that is not registered.
        HERE.with_borrow(|here| here.as_ref().map(|here| epoll::delete(&here.epoll, socket)));
    }

    #[inline]
    fn with<R>(&self, f: impl FnOnce(&mut Slot) -> R) -> Option<R> {
        HERE.with_borrow_mut(|here| {
            here.as_mut().and_then(|here| here.slots.get_mut(self.index as usize)).map(f)
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A waker that is dropped may drop a task's last handle, which is free to do what it likes:
        // not while borrowed.
        let waker = HERE.try_with(|here| here.try_borrow_mut().ok()?.as_mut()?.remove(self.index));
        drop(waker);
    }
}
