//! The state of a member of a shared connection: the bytes of its client, and the replies to it.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::rc::Rc;
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::shared::commands::Commands;
use crate::shared::reply_window::ReplyWindow;
use crate::shared::turn_queue::Taken;
use crate::shared::upstream_ledger::{Load, MemberId};
use resp::{NextRequest, PromotionReason, Sharing, WholeRequests};

use crate::end_reason::EndReason;
use crate::io::buffer::{self, KeptCount, MIN_READ};
use crate::shared::connection::Connection;

/// The largest request that is shared. The connection would be blocked by one that its client does
/// not complete, so each is buffered whole.
pub(super) const MAX_REQUEST: usize = 64 * 1024;

/// A client is not read while so much of it waits for a turn.
const MAX_UNSENT: usize = 2 * MAX_REQUEST;

/// A session with more than this in its reply buffer gets a connection of its own, with its own
/// flow control, once it has read it, or sends more than is taken before that.
pub(super) const LARGE_REPLIES: usize = 256 * 1024;

/// A connection is not read while a client has more than this to read from it. Larger than any
/// reply that is common, since a reply that has begun cannot change to another connection.
pub(super) const MAX_REPLIES: usize = 32 * 1024 * 1024;

/// A client that has read less than this within [`PATIENCE`] is cut, if its connection is not read
/// meanwhile. However fast it reads, so is one because of which others wait for longer than that.
const PROGRESS: u64 = 1024 * 1024;
const PATIENCE: Duration = Duration::from_secs(5);

/// Interval of looks whether clients have read what keeps their connection from being read.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// An empty buffer with more memory than this returns it.
pub(super) const KEPT_CAPACITY: usize = 4096;

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

/// What a server takes of a client that has not authenticated: elements of a request, and bytes of
/// each. It closes the connection of a client that sends more.
const UNAUTHENTICATED: (usize, usize) = (10, 16 * 1024);

/// The size from which the replies that one client has not read are large.
fn large() -> usize {
    LARGE_REPLIES.min(buffer::max_held())
}

/// What follows from the arrival of replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Received {
    Usual,
    /// Requests that the window held back may be sent.
    Room,
    /// Nothing more is to be read before the client has read some of it.
    Enough,
}

/// The state of a member, which its session and its connection use in turns.
#[derive(Debug, Default)]
pub(super) struct MemberState {
    pub(super) id: MemberId,
    pub(super) requests: WholeRequests,
    /// The bytes of the client. The first `sent` of them were sent, and the session has not
    /// recorded them yet.
    pub(super) buffer: Vec<u8>,
    pub(super) sent: usize,
    /// The end of the requests in the write that is being prepared. Equal to `sent` otherwise.
    pub(super) taken: usize,
    pub(super) in_flight: u32,
    /// Requests in the write that is being prepared.
    prepared: u32,
    window: ReplyWindow,
    /// The window holds back a request.
    pub(super) held_back: bool,
    /// Replies that the client has not read.
    pub(super) replies: VecDeque<u8>,
    /// All bytes that the client has read, and how many those were at a time when it had too much
    /// to read.
    drained: u64,
    slow_since: Option<(Instant, u64)>,
    /// How long others have waited because of it, since it last had little to read.
    holds_up: Duration,
    /// It waits for its turn.
    pub(super) queued: bool,
    /// It has a request, and waits until it is known whether it may join a connection.
    pub(super) awaits_access: bool,
    /// The client has ended its direction.
    pub(super) closing: bool,
    /// The session did not get all of its bytes into the buffer.
    pub(super) full: bool,
    pub(super) promotion: Option<Promotion>,
    /// The connection was lost while requests were in flight on it.
    pub(super) failed: Option<io::ErrorKind>,
    /// Why, if the target and its network did not cause it.
    pub(super) cause: Option<EndReason>,
    pub(super) connection: Option<Rc<Connection>>,
    pub(super) waker: Option<Waker>,
    pub(super) kept: KeptCount,
}

impl MemberState {
    pub(super) fn new(id: MemberId) -> Self {
        Self { id, requests: WholeRequests::new(MAX_REQUEST), ..Self::default() }
    }

    /// How many bytes of the client are taken now. It is woken when there is room again.
    #[inline]
    pub(super) fn room(&mut self) -> usize {
        let room = match self.promotion {
            Some(_) => 0,
            None => MAX_UNSENT.min(buffer::max_held()).saturating_sub(self.unsent().len()),
        };
        self.full |= room == 0;
        room
    }

    pub(super) fn unsent(&self) -> &[u8] {
        self.buffer.get(self.taken..).unwrap_or_default()
    }

    pub(super) fn wake(&self) {
        self.waker.iter().for_each(Waker::wake_by_ref);
    }

    pub(super) fn promote(&mut self, promotion: Promotion) {
        self.promotion.get_or_insert(promotion);
        self.wake();
    }

    /// Moves requests to `outgoing`; `None` if the next one is larger than the room.
    pub(super) fn take(
        &mut self,
        quantum: Load,
        room: Load,
        corrected: Option<&Commands>,
        is_small: bool,
        outgoing: &mut Vec<u8>,
    ) -> Option<Taken> {
        let most = usize::try_from(quantum.bytes).unwrap_or(usize::MAX);
        let window = self.window.room(self.in_flight.saturating_add(self.prepared));
        self.held_back = window == 0;
        let mut taken = (0, 0, false);
        if self.promotion.is_none() && window > 0 {
            // The short way knows the built-in table only.
            if corrected.is_none() && !is_small {
                let requests = quantum.requests.min(window);
                let (count, len) = self.requests.run(self.unsent(), requests, most);
                taken = (count, len, false);
            }
            if taken.0 == 0 {
                match self.next_by(corrected, is_small) {
                    Some((len, _)) if len > usize::try_from(room.bytes).unwrap_or(usize::MAX) => {
                        return None;
                    }
                    Some((len, script)) => taken = (1, len, script),
                    None => {}
                }
            }
        }
        let (requests, len, script) = taken;
        outgoing.extend_from_slice(self.unsent().get(..len).unwrap_or_default());
        self.taken += len;
        self.prepared += requests;
        let more = requests > 0 && self.taken < self.buffer.len();
        self.queued = more;
        let bytes = u32::try_from(len).unwrap_or(u32::MAX);
        Some(Taken { sent: Load { requests, bytes }, more, script })
    }

    /// [`next`](Self::next), unless the server would not take it.
    fn next_by(&mut self, corrected: Option<&Commands>, is_small: bool) -> Option<(usize, bool)> {
        let next = self.next(corrected)?;
        let request = self.unsent().get(..next.0).unwrap_or_default();
        if is_small && !fits_unauthenticated(request) {
            self.requests.reset();
            self.promote(Promotion::Reason(PromotionReason::NotAuthenticated));
            return None;
        }
        Some(next)
    }

    /// The length of the next request if it is whole and shared, and whether it is a script.
    pub(super) fn next(&mut self, corrected: Option<&Commands>) -> Option<(usize, bool)> {
        // Empty requests have no reply and no effect. They are removed together: one by one, each
        // would move all that follows.
        let mut begin = self.taken;
        let next = loop {
            let unsent = self.buffer.get(begin..).unwrap_or_default();
            if unsent.is_empty() {
                break NextRequest::Incomplete;
            }
            let next = match corrected {
                None => self.requests.next(unsent),
                Some(it) => self.requests.next_corrected(unsent, |name, by| it.correct(name, by)),
            };
            match next {
                NextRequest::Empty(len) => begin = begin.saturating_add(len).min(self.buffer.len()),
                next => break next,
            }
        };
        let empty = self.buffer.drain(self.taken.min(begin)..begin).len();
        if empty > 0 && std::mem::take(&mut self.full) {
            self.wake();
        }
        match next {
            NextRequest::Incomplete if self.unsent().len() >= buffer::max_held() => {
                self.promote(Promotion::Reason(PromotionReason::LargeRequest));
            }
            NextRequest::Incomplete | NextRequest::Empty(_) => {}
            NextRequest::Whole { len, sharing: Sharing::Shared } => return Some((len, false)),
            NextRequest::Whole { len, sharing: Sharing::SharedScript } => return Some((len, true)),
            NextRequest::Whole { sharing: Sharing::Verified, .. } => {
                self.promote(Promotion::Verification);
            }
            NextRequest::Whole { sharing: Sharing::Promotes(reason), .. }
            | NextRequest::Promotes(reason) => self.promote(Promotion::Reason(reason)),
        }
        None
    }

    /// These requests are part of a write that has begun.
    pub(super) fn commit(&mut self, Load { requests, bytes }: Load) {
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.sent = self.sent.saturating_add(len).min(self.taken);
        self.in_flight = self.in_flight.saturating_add(requests);
        self.prepared = self.prepared.saturating_sub(requests);
        if std::mem::take(&mut self.full) {
            self.wake();
        }
    }

    /// Nothing of the prepared write was sent.
    pub(super) fn take_back(&mut self) {
        (self.prepared, self.held_back) = (0, false);
        if self.taken > self.sent {
            self.taken = self.sent;
            self.queued = true;
            // It may have scanned the beginning of the request that follows.
            self.requests.reset();
        }
    }

    /// Adds bytes of replies; `ended` replies are complete with them.
    pub(super) fn receive(
        &mut self,
        bytes: &[u8],
        ended: u32,
        not_authenticated: bool,
    ) -> Received {
        let was_empty = self.replies.is_empty();
        // Exactly, or it would have twice the capacity that is counted.
        if self.replies.capacity() - self.replies.len() < bytes.len() {
            self.replies.reserve_exact(bytes.len().max(self.replies.len() / 4));
        }
        self.replies.extend(bytes);
        self.count();
        self.in_flight = self.in_flight.saturating_sub(ended);
        self.window.received(bytes.len(), ended);
        if not_authenticated {
            self.promote(Promotion::Reason(PromotionReason::NotAuthenticated));
        }
        if self.replies.len() > large() {
            self.promote(Promotion::Reason(PromotionReason::LargeReply));
        }
        if was_empty || (self.promotion.is_some() && self.in_flight == 0) {
            self.wake();
        }
        if self.has_too_much() {
            return Received::Enough;
        }
        match self.held_back && self.window.room(self.in_flight) > 0 {
            true => Received::Room,
            false => Received::Usual,
        }
    }

    /// Counts what is kept beyond what memory is divided by.
    pub(super) fn count(&mut self) {
        let kept = self.replies.len() + self.buffer.len();
        self.kept.set(if kept > MIN_READ { kept } else { 0 });
    }

    /// Moves replies to the client.
    pub(super) fn read_replies(&mut self, buffer: &mut [u8]) -> usize {
        let len = self.replies.read(buffer).unwrap_or_default();
        self.drained += len as u64;
        if self.replies.is_empty() && self.replies.capacity() > KEPT_CAPACITY {
            self.replies = VecDeque::new();
        }
        if !self.holds_up.is_zero() && self.replies.len() <= large() {
            self.holds_up = Duration::ZERO;
        }
        self.count();
        len
    }

    /// Whether its connection must not be read before the client has read.
    pub(super) fn has_too_much(&self) -> bool {
        let waiting = self.replies.len();
        waiting > MAX_REPLIES || (waiting > large() && buffer::keeps_too_much())
    }

    /// Whether the client hardly reads, while its connection is not read because of large replies,
    /// or lets others wait for too long. To be asked every [`LOOK_AGAIN`].
    pub(super) fn is_stuck(&mut self, now: Instant, others_wait: bool) -> bool {
        if self.replies.len() <= large() {
            self.slow_since = None;
            return false;
        }
        if others_wait && self.has_too_much() {
            self.holds_up += LOOK_AGAIN;
        }
        if self.holds_up > PATIENCE {
            return true;
        }
        let (since, before) = *self.slow_since.get_or_insert((now, self.drained));
        if self.drained.saturating_sub(before) >= PROGRESS {
            self.slow_since = Some((now, self.drained));
            return false;
        }
        now.saturating_duration_since(since) >= PATIENCE
    }

    /// The client does not read.
    pub(super) fn cut(&mut self) {
        self.replies = VecDeque::new();
        (self.connection, self.queued, self.held_back) = (None, false, false);
        self.kept.set(0);
        self.failed = Some(io::ErrorKind::ConnectionReset);
        self.cause = Some(EndReason::SlowReader);
        self.wake();
    }

    /// The connection is closed; `cause` as of the state.
    pub(super) fn lose_connection(&mut self, kind: io::ErrorKind, cause: Option<EndReason>) {
        (self.connection, self.queued, self.held_back) = (None, false, false);
        if self.in_flight > 0 && self.failed.is_none() {
            (self.failed, self.cause) = (Some(kind), cause);
        }
        self.wake();
    }

    /// Nothing of it is on a connection, waits for one, or waits for its session.
    pub(super) fn may_rest(&self) -> bool {
        let stopped = self.closing || self.failed.is_some() || self.promotion.is_some();
        self.is_settled() && self.buffer.is_empty() && !stopped
    }

    /// Nothing of it is on a connection or waits for one.
    pub(super) fn is_settled(&self) -> bool {
        let waits = self.queued || self.held_back || self.awaits_access;
        self.in_flight == 0 && self.replies.is_empty() && !waits && self.sent == 0
    }

    pub(super) fn is_readable(&self) -> bool {
        !self.replies.is_empty()
            || self.failed.is_some()
            || (self.closing && self.promotion.is_none() && self.is_settled())
    }
}

/// Whether a server takes this request, an array of strings, of a client that has not
/// authenticated.
fn fits_unauthenticated(request: &[u8]) -> bool {
    let digits = request.iter().skip(1).take_while(|byte| byte.is_ascii_digit());
    let count = digits.fold(0_usize, |count, digit| {
        count.saturating_mul(10).saturating_add(usize::from(digit - b'0'))
    });
    count <= UNAUTHENTICATED.0 && request.len() <= UNAUTHENTICATED.1
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;
    use crate::io::buffer::KeptBytes;

    #[derive(Default)]
    struct WakeCounter(AtomicUsize);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// While the worker keeps much, a client may keep what memory is divided by.
    #[test]
    fn promotes_clients_that_keep_much_while_the_worker_does() {
        let half = [&b"*2\r\n$3\r\nGET\r\n$60000\r\n"[..], &[b'x'; 20_000]].concat();
        for much in [0, 1 << 24] {
            let others = KeptBytes::new(vec![0; much]);
            let mut reader = MemberState::new(MemberId(1));
            reader.receive(&[b'x'; 20_000], 0, false);
            assert_eq!(reader.promotion.is_some(), much > 0);
            assert_eq!(buffer::KEPT_BYTES.get(), much + 20_000);
            let mut writer = MemberState::new(MemberId(2));
            writer.buffer.clone_from(&half);
            assert_eq!((writer.next(None), writer.promotion.is_some()), (None, much > 0));
            drop((reader, others));
            assert_eq!(buffer::KEPT_BYTES.get(), 0);
        }
        // It had begun before. Nothing more is taken, so what there is has to promote it.
        let mut early = MemberState::new(MemberId(3));
        early.buffer.clone_from(&half);
        assert!(early.next(None).is_none() && early.promotion.is_none() && early.room() > 0);
        let _others = KeptBytes::new(vec![0; 1 << 24]);
        assert_eq!((early.room(), early.next(None)), (0, None));
        assert!(early.promotion.is_some());
    }

    /// Others count only while they wait, and only since it had little to read.
    #[test]
    fn cuts_steady_readers_that_hold_up_others() {
        let now = Instant::now();
        let looks = |reader: &mut MemberState, others_wait| {
            let mut looks = 0..10 * PATIENCE.as_millis() / LOOK_AGAIN.as_millis();
            looks.position(|_| {
                let _ = reader.read_replies(&mut [0; PROGRESS as usize / 100]);
                reader.receive(&[0; PROGRESS as usize / 100], 0, false);
                reader.is_stuck(now, others_wait)
            })
        };
        let mut reader = MemberState::new(MemberId(1));
        reader.receive(&vec![0; MAX_REPLIES + 1], 0, false);
        assert_eq!(looks(&mut reader, false), None);
        assert_eq!(looks(&mut reader, true), Some(250));
        while reader.replies.len() > large() && reader.read_replies(&mut [0; 1 << 16]) > 0 {}
        assert!(!reader.replies.is_empty(), "it never reads everything");
        reader.receive(&vec![0; MAX_REPLIES + 1], 0, false);
        assert_eq!(looks(&mut reader, true), Some(250));
    }

    /// The session waits for room, and nothing of it is sent that would make any.
    #[test]
    fn makes_room_by_removing_empty_requests() {
        let (mut state, count) = (MemberState::new(MemberId(1)), Arc::<WakeCounter>::default());
        state.waker = Some(Waker::from(Arc::clone(&count)));
        (state.buffer, state.full) = (b"*0\r\n".repeat(1000), true);
        assert_eq!(state.next(None), None);
        assert_eq!((state.buffer.len(), count.0.load(Ordering::Relaxed)), (0, 1));
        let ping = b"*1\r\n$4\r\nPING\r\n";
        state.buffer = [&b"*0\r\n".repeat(10), &ping[..], b"*0\r\n"].concat();
        assert_eq!(state.next(None), Some((ping.len(), false)));
        assert_eq!(state.buffer, [ping, &b"*0\r\n"[..]].concat());
    }
}
