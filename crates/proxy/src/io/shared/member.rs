//! One client of a shared connection.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use resp::{NextRequest, PromotionReason, Sharing, WholeRequests};
use share::{Quantum, Room, Taken};

use crate::io::buffer::KeptCount;
use crate::io::shared::connection::Connection;
use crate::io::stream::ByteStream;

/// The largest request that is shared. The connection would be blocked by one that its client does
/// not complete, so each is buffered whole.
const MAX_REQUEST: usize = 64 * 1024;

/// A client is not read while so much of it waits for a turn.
const MAX_UNSENT: usize = 2 * MAX_REQUEST;

/// A session with more than this in its reply buffer gets a connection of its own, with its own
/// flow control, once it has read it.
const LARGE_REPLIES: usize = 256 * 1024;

/// A client that lets more than this accumulate is cut. Larger than any reply that is common, since
/// a reply that has begun cannot change to another connection.
const MAX_REPLIES: usize = 64 * 1024 * 1024;

/// An empty buffer with more memory than this returns it.
const KEPT_CAPACITY: usize = 4096;

/// Why a session needs a connection of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Promotion {
    /// The next request must not be shared, or a reply has shown that none should be.
    Reason(PromotionReason),
    /// The next request changes state: the server verifies it, for this very client.
    Verification,
    /// The shared connection could not be opened, or there are too many groups.
    NotConnected,
}

/// The state of a member, which its session and its connection use in turns.
#[derive(Debug)]
pub(super) struct MemberState {
    requests: WholeRequests,
    /// The bytes of the client. The first `sent` of them were sent, and the session has not
    /// recorded them yet.
    buffer: Vec<u8>,
    sent: usize,
    /// The end of the requests in the write that is being prepared. Equal to `sent` otherwise.
    taken: usize,
    pub(super) in_flight: u32,
    replies: Vec<u8>,
    /// The bytes of `replies` that were read.
    read: usize,
    /// It waits for its turn.
    pub(super) queued: bool,
    /// The client has ended its direction.
    closing: bool,
    /// The session did not get all of its bytes into the buffer.
    full: bool,
    promotion: Option<Promotion>,
    /// The connection was lost while requests were in flight on it.
    pub(super) failed: Option<io::ErrorKind>,
    pub(super) connection: Option<Rc<Connection>>,
    waker: Option<Waker>,
    kept: KeptCount,
}

impl MemberState {
    fn unsent(&self) -> &[u8] {
        self.buffer.get(self.taken..).unwrap_or_default()
    }

    pub(super) fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }

    pub(super) fn promote(&mut self, promotion: Promotion) {
        self.promotion.get_or_insert(promotion);
        self.wake();
    }

    /// Moves requests to `outgoing`. Also returns whether they are a script.
    pub(super) fn take(
        &mut self,
        quantum: Quantum,
        room: Room,
        outgoing: &mut Vec<u8>,
    ) -> (Taken, bool) {
        let most = usize::try_from(quantum.bytes).unwrap_or(usize::MAX);
        let mut taken = (0, 0, false);
        if self.promotion.is_none() {
            let (count, len) = self.requests.run(self.unsent(), quantum.requests, most);
            taken = (count, len, false);
            if count == 0 {
                match self.next() {
                    Some((len, _)) if len > usize::try_from(room.bytes).unwrap_or(usize::MAX) => {
                        return (Taken::NoRoom, false);
                    }
                    Some((len, script)) => taken = (1, len, script),
                    None => {}
                }
            }
        }
        let (requests, len, script) = taken;
        outgoing.extend_from_slice(self.unsent().get(..len).unwrap_or_default());
        self.taken += len;
        let more = requests > 0 && self.taken < self.buffer.len();
        self.queued = more;
        let bytes = u32::try_from(len).unwrap_or(u32::MAX);
        (Taken::Sent { requests, bytes, more }, script)
    }

    /// The length of the next request if it is whole and shared, and whether it is a script.
    fn next(&mut self) -> Option<(usize, bool)> {
        loop {
            let unsent = self.buffer.get(self.taken..).unwrap_or_default();
            if unsent.is_empty() {
                return None;
            }
            match self.requests.next(unsent) {
                NextRequest::Incomplete => return None,
                // It has no reply and no effect.
                NextRequest::Empty(len) => {
                    let end = self.taken.saturating_add(len).min(self.buffer.len());
                    self.buffer.drain(self.taken..end);
                }
                NextRequest::Whole { len, sharing } => match sharing {
                    Sharing::Shared => return Some((len, false)),
                    Sharing::SharedScript => return Some((len, true)),
                    Sharing::Verified => {
                        self.promote(Promotion::Verification);
                        return None;
                    }
                    Sharing::Promotes(reason) => {
                        self.promote(Promotion::Reason(reason));
                        return None;
                    }
                },
                NextRequest::Promotes(reason) => {
                    self.promote(Promotion::Reason(reason));
                    return None;
                }
            }
        }
    }

    /// So many requests, of so many bytes, are part of a write that has begun.
    pub(super) fn commit(&mut self, requests: u32, bytes: u32) {
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.sent = self.sent.saturating_add(len).min(self.taken);
        self.in_flight = self.in_flight.saturating_add(requests);
        if std::mem::take(&mut self.full) {
            self.wake();
        }
    }

    /// Nothing of the prepared write was sent.
    pub(super) fn take_back(&mut self) {
        if self.taken > self.sent {
            self.taken = self.sent;
            self.queued = true;
            // It may have scanned the beginning of the request that follows.
            self.requests.reset();
        }
    }

    /// Adds bytes of replies, of which so many end in them. Returns whether the client has to be
    /// cut.
    pub(super) fn receive(&mut self, bytes: &[u8], ended: u32, not_authenticated: bool) -> bool {
        if self.replies.len() - self.read == 0 {
            self.wake();
        }
        self.replies.extend_from_slice(bytes);
        self.in_flight = self.in_flight.saturating_sub(ended);
        if not_authenticated {
            self.promote(Promotion::Reason(PromotionReason::NotAuthenticated));
        }
        let waiting = self.replies.len() - self.read;
        if waiting > LARGE_REPLIES {
            self.kept.set(self.replies.capacity());
            self.promote(Promotion::Reason(PromotionReason::LargeReply));
        }
        waiting > MAX_REPLIES
    }

    /// The client does not read.
    pub(super) fn cut(&mut self) {
        (self.replies, self.read) = (Vec::new(), 0);
        self.kept.set(0);
        self.failed = Some(io::ErrorKind::ConnectionReset);
        self.wake();
    }

    /// The connection is closed.
    pub(super) fn lose_connection(&mut self, kind: io::ErrorKind) {
        (self.connection, self.queued) = (None, false);
        if self.in_flight > 0 {
            self.failed.get_or_insert(kind);
        }
        self.wake();
    }

    fn has_replies(&self) -> bool {
        self.read < self.replies.len()
    }

    /// Nothing of it is on a connection or waits for one.
    fn is_settled(&self) -> bool {
        self.in_flight == 0 && !self.has_replies() && !self.queued && self.sent == 0
    }

    fn is_readable(&self) -> bool {
        self.has_replies()
            || self.failed.is_some()
            || (self.closing && self.promotion.is_none() && self.is_settled())
    }
}

/// What is to be done with the bytes of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offer {
    /// Nothing.
    Nothing,
    /// A connection is needed for them.
    Join,
}

/// The target's side of a session that shares connections.
#[derive(Debug)]
pub(crate) struct Member {
    id: share::Member,
    state: Rc<RefCell<MemberState>>,
}

thread_local! {
    static NEXT: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

impl Member {
    /// A member without a connection.
    pub(crate) fn new() -> Self {
        let id = NEXT.replace(NEXT.get() + 1);
        let state = MemberState {
            requests: WholeRequests::new(MAX_REQUEST),
            buffer: Vec::new(),
            sent: 0,
            taken: 0,
            in_flight: 0,
            replies: Vec::new(),
            read: 0,
            queued: false,
            closing: false,
            full: false,
            promotion: None,
            failed: None,
            connection: None,
            waker: None,
            kept: KeptCount::default(),
        };
        Self { id: share::Member(id), state: Rc::new(RefCell::new(state)) }
    }

    /// Passes the bytes that were sent since the last call.
    pub(crate) fn record_sent(&mut self, record: impl FnOnce(&[u8])) {
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
    }

    /// Offers the bytes that were written. The caller has [recorded](Self::record_sent) those that
    /// were sent.
    pub(crate) fn offer(&mut self) -> Offer {
        let mut state = self.state.borrow_mut();
        if state.unsent().is_empty() || state.promotion.is_some() || state.failed.is_some() {
            return Offer::Nothing;
        }
        if state.queued {
            let connection = state.connection.clone();
            drop(state);
            // The gate may have opened.
            connection.inspect(|connection| connection.wake());
            return Offer::Nothing;
        }
        // A client that sends a request byte by byte gets no turn before it is whole.
        if state.requests.run(state.unsent(), 1, MAX_REQUEST).0 == 0 && state.next().is_none() {
            return Offer::Nothing;
        }
        let Some(connection) = state.connection.clone() else { return Offer::Join };
        state.queued = true;
        drop(state);
        connection.queue(self.id);
        Offer::Nothing
    }

    /// Joins a connection, and waits for its turn there.
    pub(crate) fn join(&mut self, connection: &Rc<Connection>) {
        let mut state = self.state.borrow_mut();
        (state.connection, state.queued) = (Some(Rc::clone(connection)), true);
        drop(state);
        connection.add(self.id, &self.state);
        connection.queue(self.id);
    }

    /// The session needs a connection of its own at the next boundary.
    pub(crate) fn promote(&mut self, promotion: Promotion) {
        self.state.borrow_mut().promote(promotion);
    }

    /// Why the session needs a connection of its own, when nothing of it is under way here.
    pub(crate) fn promotion(&self) -> Option<Promotion> {
        let state = self.state.borrow();
        // It may be in the queue, but gets no further turn.
        let under_way = state.in_flight > 0 || state.sent > 0 || state.has_replies();
        state.promotion.filter(|_| !under_way && state.failed.is_none())
    }

    /// Whether something of the client waits to be sent that could be.
    pub(crate) fn has_waiting(&self) -> bool {
        let state = self.state.borrow();
        state.queued || state.promotion.is_some()
    }

    /// Takes the bytes that were not sent.
    pub(crate) fn take_unsent(&mut self) -> Vec<u8> {
        self.leave();
        let mut state = self.state.borrow_mut();
        (state.sent, state.taken) = (0, 0);
        std::mem::take(&mut state.buffer)
    }

    /// Leaves the connection. Replies to it are dropped from now on.
    fn leave(&mut self) {
        let mut state = self.state.borrow_mut();
        let connection = state.connection.take();
        let queued = std::mem::take(&mut state.queued);
        drop(state);
        if let Some(connection) = connection {
            connection.remove(self.id, queued);
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.leave();
    }
}

impl ByteStream for Member {
    const SHARED: bool = true;

    fn as_member(&mut self) -> Option<&mut Member> {
        Some(self)
    }

    fn member(&self) -> Option<&Member> {
        Some(self)
    }

    fn update_readiness(&mut self, cx: &mut Context<'_>) {
        let mut state = self.state.borrow_mut();
        if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            state.waker = Some(cx.waker().clone());
        }
    }

    fn is_readable(&self) -> bool {
        self.state.borrow().is_readable()
    }

    fn poll_read(&mut self, _cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let state = &mut *self.state.borrow_mut();
        let waiting = state.replies.get(state.read..).unwrap_or_default();
        let len = waiting.len().min(buffer.len());
        if let (Some(to), Some(from @ [_, ..])) = (buffer.get_mut(..len), waiting.get(..len)) {
            to.copy_from_slice(from);
            state.read += len;
            if state.read >= state.replies.len() {
                state.read = 0;
                state.replies.clear();
                if state.replies.capacity() > KEPT_CAPACITY {
                    state.replies = Vec::new();
                    state.kept.set(0);
                }
            }
            return Poll::Ready(Ok(len));
        }
        match state.failed {
            Some(kind) => Poll::Ready(Err(kind.into())),
            None if state.is_readable() => Poll::Ready(Ok(0)),
            None => Poll::Pending,
        }
    }

    fn poll_write(&mut self, _cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let state = &mut *self.state.borrow_mut();
        if let Some(kind) = state.failed {
            return Poll::Ready(Err(kind.into()));
        }
        if state.promotion.is_some() || state.unsent().len() >= MAX_UNSENT {
            state.full = true;
            return Poll::Pending;
        }
        state.buffer.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_shutdown(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.state.borrow_mut().closing = true;
        Poll::Ready(Ok(()))
    }

    fn peer_closed(&self) -> bool {
        let state = self.state.borrow();
        state.failed.is_some() && !state.has_replies()
    }

    fn has_unread(&self) -> bool {
        self.state.borrow().has_replies()
    }
}
