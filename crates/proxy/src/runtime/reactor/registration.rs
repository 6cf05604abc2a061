//! The registration of one socket, and the attempts that its readiness allows.
//!
//! The usual attempt finds its bit set and succeeds; everything else is out of line, so that the
//! code of a request spans few lines of the instruction cache.

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::task::{Context, Poll, Waker};

use rustix::event::epoll;
use rustix::io::Errno;

use super::{REACTOR, Reactor, SocketSlot};
use crate::runtime::readiness::Readiness;
use crate::runtime::tasks::{TaskKey, current};

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
    let (task, waker) = (current::key_of(cx.waker()), cx.waker());
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
