//! One client of a shared connection.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::end_reason::EndReason;
use crate::io::stream::ByteStream;
use crate::shared::connection::Connection;
use crate::shared::member_state::{KEPT_CAPACITY, MAX_REQUEST, MemberState, Promotion};
use crate::shared::upstream_ledger::MemberId;

/// What is to be done with the bytes of a member.
#[derive(Debug, Clone)]
pub(crate) enum Offer {
    /// Nothing.
    Nothing,
    /// A connection is needed for them.
    Join,
    /// They wait on this connection, which is silent, and the member may change to another.
    Silent(Rc<Connection>),
}

/// The target's side of a session that shares connections.
#[derive(Debug)]
pub(crate) struct Member {
    state: Rc<RefCell<MemberState>>,
}

/// A member that has nothing to send and is owed nothing. It keeps its connection, so that the
/// connection stays open, and no buffers.
#[derive(Debug)]
pub(crate) struct RestingMember(Option<Rc<Connection>>);

thread_local! {
    static NEXT: Cell<u64> = const { Cell::new(0) };
}

impl Member {
    /// A member without a connection.
    pub(crate) fn new() -> Self {
        let id = NEXT.replace(NEXT.get() + 1);
        Self { state: Rc::new(RefCell::new(MemberState::new(MemberId(id)))) }
    }

    /// Whether nothing of it is under way in either direction.
    pub(crate) fn may_rest(&self) -> bool {
        self.state.borrow().may_rest()
    }

    /// Takes what is kept while it rests; it must be dropped then. `None` if something of it is
    /// under way.
    pub(crate) fn rest(&self) -> Option<RestingMember> {
        let mut state = self.state.borrow_mut();
        if !state.may_rest() {
            return None;
        }
        let (connection, id) = (state.connection.take(), state.id);
        Some(RestingMember(connection.filter(|connection| connection.begin_rest(id))))
    }

    /// Passes the bytes that were sent since the last call.
    pub(crate) fn record_sent(&self, record: impl FnOnce(&[u8])) {
        let mut state = self.state.borrow_mut();
        let sent = std::mem::take(&mut state.sent);
        if sent == 0 {
            return;
        }
        record(state.buffer.get(..sent).unwrap_or_default());
        state.taken = state.taken.saturating_sub(sent);
        if sent >= state.buffer.len() {
            state.buffer.clear();
            if state.buffer.capacity() > KEPT_CAPACITY {
                state.buffer = Vec::new();
            }
        } else {
            state.buffer.drain(..sent);
        }
        state.count();
    }

    /// Offers the bytes that were written. The caller has [recorded](Self::record_sent) those that
    /// were sent.
    pub(crate) fn offer(&self) -> Offer {
        let mut state = self.state.borrow_mut();
        let is_stopped = state.promotion.is_some() || state.failed.is_some() || state.held_back;
        if state.unsent().is_empty() || is_stopped {
            return Offer::Nothing;
        }
        let connection = state.connection.clone();
        let (id, may_change, is_queued) = (state.id, state.in_flight == 0, state.queued);
        if !is_queued {
            // A client that sends a request byte by byte gets no turn before it is whole.
            let corrected = connection.as_ref().and_then(|it| it.corrected());
            if state.requests.run(state.unsent(), 1, MAX_REQUEST).0 == 0
                && state.next(corrected.as_deref()).is_none()
            {
                return Offer::Nothing;
            }
        }
        let Some(connection) = connection else {
            return if is_queued { Offer::Nothing } else { Offer::Join };
        };
        state.queued = true;
        drop(state);
        match is_queued {
            // The gate may have opened.
            true => connection.wake(),
            false => connection.queue(id),
        }
        if may_change && connection.is_silent() {
            Offer::Silent(connection)
        } else {
            Offer::Nothing
        }
    }

    /// Joins a connection, and waits for its turn there.
    pub(crate) fn join(&self, connection: &Rc<Connection>) {
        let mut state = self.state.borrow_mut();
        (state.connection, state.queued) = (Some(Rc::clone(connection)), true);
        state.awaits_access = false;
        let id = state.id;
        drop(state);
        connection.add(id, &self.state);
        connection.queue(id);
    }

    /// It cannot join a connection before something is known. Returns what wakes it then, and an
    /// identity that no other member of this worker has.
    pub(crate) fn await_access(&self) -> (u64, Option<Waker>) {
        let mut state = self.state.borrow_mut();
        state.awaits_access = true;
        (state.id.0, state.waker.clone())
    }

    /// The session needs a connection of its own at the next boundary.
    pub(crate) fn promote(&self, promotion: Promotion) {
        let mut state = self.state.borrow_mut();
        state.awaits_access = false;
        state.promote(promotion);
    }

    /// Why the session needs a connection of its own, when nothing of it is under way here but
    /// replies that it has not read.
    pub(crate) fn promotion(&self) -> Option<Promotion> {
        let state = self.state.borrow();
        // It may be in the queue, but gets no further turn.
        let under_way = state.in_flight > 0 || state.sent > 0;
        state.promotion.filter(|_| !under_way && state.failed.is_none())
    }

    /// Whether the client sends more than is taken now. It may not read before it has sent all.
    pub(crate) fn is_full(&self) -> bool {
        self.state.borrow().full
    }

    /// Takes the replies that the session has not read.
    pub(crate) fn take_replies(&self) -> Vec<u8> {
        let state = &mut *self.state.borrow_mut();
        state.kept.set(0);
        std::mem::take(&mut state.replies).into()
    }

    /// Whether it neither needs a connection of its own nor has ended.
    #[inline]
    pub(crate) fn is_undisturbed(&self) -> bool {
        let state = self.state.borrow();
        state.promotion.is_none() && state.cause.is_none() && state.failed.is_none()
    }

    /// Why the session ends, if this process ended its part of the connection.
    pub(crate) fn cause_of_end(&self) -> Option<EndReason> {
        self.state.borrow().cause
    }

    /// Whether something of the client waits to be sent that could be.
    pub(crate) fn has_waiting(&self) -> bool {
        self.is_to_be_sent() || self.state.borrow().promotion.is_some()
    }

    /// Whether whole requests of the client wait for their turn.
    pub(crate) fn is_to_be_sent(&self) -> bool {
        let state = self.state.borrow();
        state.queued || state.held_back || state.awaits_access
    }

    /// Whether a part of a request was taken and nothing else waits.
    pub(crate) fn has_begun(&self) -> bool {
        !self.is_to_be_sent() && !self.state.borrow().unsent().is_empty()
    }

    /// Takes the bytes that were not sent.
    pub(crate) fn take_unsent(&self) -> Vec<u8> {
        self.leave();
        let mut state = self.state.borrow_mut();
        (state.sent, state.taken, state.awaits_access) = (0, 0, false);
        std::mem::take(&mut state.buffer)
    }

    /// Leaves the connection. Replies to it are dropped from now on.
    fn leave(&self) {
        let mut state = self.state.borrow_mut();
        let connection = state.connection.take();
        let (queued, id) = (std::mem::take(&mut state.queued), state.id);
        drop(state);
        if let Some(connection) = connection {
            connection.remove(id, queued);
        }
    }
}

impl RestingMember {
    /// A member of the same connection, unless that was closed meanwhile.
    pub(crate) fn wake(self) -> Member {
        let member = Member::new();
        if let Some(connection) = self.0.as_ref().filter(|it| !it.is_closed()) {
            let mut state = member.state.borrow_mut();
            connection.add(state.id, &member.state);
            state.connection = Some(Rc::clone(connection));
        }
        member
    }
}

impl Drop for RestingMember {
    fn drop(&mut self) {
        self.0.iter().for_each(|connection| connection.end_rest());
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.leave();
    }
}

impl ByteStream for Member {
    fn update_readiness(&mut self, cx: &mut Context<'_>) {
        let mut state = self.state.borrow_mut();
        state.waker.get_or_insert_with(|| cx.waker().clone()).clone_from(cx.waker());
    }

    fn is_readable(&self) -> bool {
        self.state.borrow().is_readable()
    }

    fn poll_read(&mut self, _cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let state = &mut *self.state.borrow_mut();
        let len = state.read_replies(buffer);
        if len > 0 {
            return Poll::Ready(Ok(len));
        }
        match state.failed {
            Some(kind) => Poll::Ready(Err(kind.into())),
            None if state.is_readable() => Poll::Ready(Ok(0)),
            None => Poll::Pending,
        }
    }

    #[inline]
    fn has_room(&mut self) -> bool {
        let mut state = self.state.borrow_mut();
        state.failed.is_some() || state.room() > 0
    }

    fn poll_write(&mut self, _cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let state = &mut *self.state.borrow_mut();
        if let Some(kind) = state.failed {
            return Poll::Ready(Err(kind.into()));
        }
        let room = state.room();
        if room == 0 {
            return Poll::Pending;
        }
        let taken = bytes.get(..room).unwrap_or(bytes);
        state.buffer.extend_from_slice(taken);
        state.count();
        Poll::Ready(Ok(taken.len()))
    }

    fn poll_shutdown(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.state.borrow_mut().closing = true;
        Poll::Ready(Ok(()))
    }

    fn peer_closed(&self) -> bool {
        let state = self.state.borrow();
        state.failed.is_some() && state.replies.is_empty()
    }

    fn has_unread(&self) -> bool {
        !self.state.borrow().replies.is_empty()
    }
}
