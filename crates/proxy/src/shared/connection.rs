//! A connection to a target that several clients share.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use target::Target;

use crate::end_reason::EndReason;
use crate::invariant;
use crate::io::buffer;
use crate::io::stream::ByteStream;
use crate::shared::commands::Commands;
use crate::shared::gathering::Gathering;
use crate::shared::member_state::{MemberState, Promotion, Received};
use crate::shared::turn_queue::{QUANTUM, Taken, TurnQueue};
use crate::shared::upstream_ledger::{Desync, Load, MemberId, UpstreamLedger};
use crate::shared_counters::SharedCounters;

/// Reads in a row before sessions and the event loop run.
const MAX_READS: usize = 4;

/// An empty write buffer with more memory than this returns it.
const KEPT_CAPACITY: usize = 64 * 1024;

type Members = BTreeMap<MemberId, Rc<RefCell<MemberState>>>;

/// Why a connection ends.
#[derive(Debug)]
pub(crate) enum ConnectionEnd {
    /// The target closed it.
    Closed,
    /// It failed.
    Failed(io::Error),
    /// The two ends disagree about what was asked.
    Desync(Desync),
}

#[derive(Debug, Default)]
struct State {
    members: Members,
    /// Members that rest. They are not in `members`, and keep the connection open.
    resting: usize,
    turns: TurnQueue,
    gathering: Gathering,
    /// `None` until the connection is open.
    ledger: Option<UpstreamLedger>,
    limits: Load,
    /// How the server's own table of commands differs from the built-in one.
    corrected: Option<Rc<Commands>>,
    /// Requests. If `parts` is empty, the write of them has begun, and the first `written` bytes
    /// are written.
    outgoing: Vec<u8>,
    written: usize,
    /// The requests of each member in the write that is being prepared.
    parts: Vec<(MemberId, Taken)>,
    /// Bytes of a reply of which more is needed to check it.
    kept: Vec<u8>,
    waker: Option<Waker>,
    /// It takes no further members and sends no further requests.
    closed: bool,
    /// It is not read, because a client has too much to read from it.
    is_stalled: bool,
    /// Reads so far, of which only a change matters.
    reads: u32,
    /// Nothing has arrived for long although replies are awaited. Nothing more is sent before
    /// something does.
    is_silent: bool,
    /// Whether the server has answered on it although nobody has authenticated. `None` until it has
    /// said so, and if its clients have sent credentials.
    admits_anyone: Option<bool>,
}

/// A connection, without its socket, which belongs to the task that polls it.
#[derive(Debug)]
pub(crate) struct Connection(RefCell<State>);

impl Connection {
    /// A connection that is being opened. Requests wait.
    pub(crate) fn new() -> Self {
        Self::with_limits(QUANTUM, Load::MOST)
    }

    /// The same with other limits.
    pub(super) fn with_limits(quantum: Load, limits: Load) -> Self {
        let turns = TurnQueue::new(quantum);
        Self(RefCell::new(State { turns, limits, ..State::default() }))
    }

    /// The connection is open, in the state of its members. `corrected`: how the server's own table
    /// of commands differs from the built-in one.
    pub(crate) fn opened(&self, resp3: bool, authenticated: bool, corrected: Option<Rc<Commands>>) {
        let mut state = self.0.borrow_mut();
        state.corrected = corrected;
        state.ledger = Some(UpstreamLedger::new(resp3, authenticated, state.limits));
    }

    /// The connection is of clients without credentials, which the server admits on it or not.
    pub(crate) fn set_admits_anyone(&self, admits: bool) {
        self.0.borrow_mut().admits_anyone = Some(admits);
    }

    /// Whether the server admits clients without credentials on it, if it is a connection for them
    /// and that is known.
    pub(crate) fn admits_anyone(&self) -> Option<bool> {
        self.0.borrow().admits_anyone
    }

    /// How the server's own table of commands differs.
    pub(super) fn corrected(&self) -> Option<Rc<Commands>> {
        self.0.borrow().corrected.clone()
    }

    /// Requests that were not written yet, and bytes of replies that were not checked yet.
    #[cfg(any(test, fuzzing))]
    pub(super) fn buffered(&self) -> (Vec<u8>, Vec<u8>) {
        let state = self.0.borrow();
        (state.outgoing.clone(), state.kept.clone())
    }

    /// The number of members, those that rest included.
    pub(crate) fn len(&self) -> usize {
        self.0.borrow().len()
    }

    /// Whether it takes no further members.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.borrow().closed
    }

    /// Whether it takes no further members, and all of its requests are answered, those of members
    /// that have left included.
    pub(crate) fn is_over(&self) -> bool {
        let state = self.0.borrow();
        let awaits = state.ledger.as_ref().is_some_and(|ledger| ledger.in_flight() > 0);
        state.closed && state.members.is_empty() && !awaits
    }

    /// Whether requests may be sent on it.
    pub(crate) fn is_open(&self) -> bool {
        self.0.borrow().ledger.is_some()
    }

    /// The number of reads, of which only a change matters, if replies are awaited that would be
    /// read.
    pub(crate) fn awaited_after(&self) -> Option<u32> {
        let state = self.0.borrow();
        let awaits = state.ledger.as_ref().is_some_and(|ledger| ledger.in_flight() > 0);
        (awaits && !state.is_stalled).then_some(state.reads)
    }

    /// Nothing has arrived on it for long, although replies are awaited. Members with nothing in
    /// flight are woken, to look for another one.
    pub(crate) fn set_silent(&self) {
        let mut state = self.0.borrow_mut();
        state.is_silent = true;
        for member in state.members.values() {
            let member = member.borrow();
            if member.in_flight == 0 && member.queued {
                member.wake();
            }
        }
    }

    /// Whether nothing has arrived on it for long.
    pub(crate) fn is_silent(&self) -> bool {
        self.0.borrow().is_silent
    }

    /// Takes no further members and sends nothing more: members with nothing in flight join another
    /// connection at once, and the others when their replies have arrived.
    pub(crate) fn retire(&self) {
        let mut state = self.0.borrow_mut();
        state.closed = true;
        state.release_settled();
        state.wake();
    }

    /// Whether it is not read, because a client has too much to read from it. To be
    /// [resumed](Self::resume) soon.
    pub(crate) fn is_stalled(&self) -> bool {
        self.0.borrow().is_stalled
    }

    /// Reads it again if its clients have read what they have. Cuts those that hardly read, and
    /// those that let others with requests in flight wait for too long.
    pub(crate) fn resume(&self, now: Instant) {
        let state = &mut *self.0.borrow_mut();
        let State { members, turns, ledger, .. } = state;
        let waiting = members.values().filter(|it| it.borrow().in_flight > 0).count();
        members.retain(|id, member| {
            let mut state = member.borrow_mut();
            let others_wait = waiting > usize::from(state.in_flight > 0);
            let is_stuck = state.is_stuck(now, others_wait);
            if is_stuck {
                turns.leave(*id);
                ledger.iter_mut().for_each(|ledger| ledger.leave(*id));
                state.cut();
            }
            !is_stuck
        });
        state.is_stalled = state.members.values().any(|member| member.borrow().has_too_much());
        if !state.is_stalled {
            state.wake();
        }
    }

    pub(super) fn add(&self, id: MemberId, state: &Rc<RefCell<MemberState>>) {
        self.0.borrow_mut().members.insert(id, Rc::clone(state));
    }

    /// The member has a request, and is not in the queue yet.
    pub(super) fn queue(&self, id: MemberId) {
        let mut state = self.0.borrow_mut();
        state.turns.wait(id);
        state.wake();
    }

    pub(super) fn remove(&self, id: MemberId, queued: bool) {
        let mut state = self.0.borrow_mut();
        state.members.remove(&id);
        if queued {
            state.turns.leave(id);
        }
        if let Some(ledger) = &mut state.ledger {
            ledger.leave(id);
        }
        if state.len() == 0 {
            state.wake();
        }
    }

    /// The member rests, which has nothing in flight and is not in the queue. Returns whether it
    /// is one.
    pub(super) fn begin_rest(&self, id: MemberId) -> bool {
        let mut state = self.0.borrow_mut();
        let is_member = state.members.remove(&id).is_some();
        state.resting += usize::from(is_member);
        is_member
    }

    /// A member that rested has left, or is about to be added again.
    pub(super) fn end_rest(&self) {
        let mut state = self.0.borrow_mut();
        state.resting = state.resting.saturating_sub(1);
        if state.len() == 0 {
            state.wake();
        }
    }

    pub(super) fn wake(&self) {
        self.0.borrow().wake();
    }

    /// Sends what may be sent, and hands out what has arrived.
    pub(crate) fn poll(
        &self,
        cx: &mut Context<'_>,
        stream: &mut impl ByteStream,
        target: &Target,
        counters: &SharedCounters,
    ) -> Poll<ConnectionEnd> {
        let mut state = self.0.borrow_mut();
        state.waker.get_or_insert_with(|| cx.waker().clone()).clone_from(cx.waker());
        stream.update_readiness(cx);
        let state = &mut *state;
        let polled = state.send(cx, stream, target, counters).and_then(|()| {
            let more = buffer::with_scratch(|scratch| state.receive(cx, stream, scratch))?;
            // Replies make room.
            state.send(cx, stream, target, counters)?;
            Ok(more)
        });
        match polled {
            Ok(false) => Poll::Pending,
            Ok(true) => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Err(end) => Poll::Ready(end),
        }
    }

    /// Ends it: members with requests in flight see an error, and all others use another
    /// connection. Returns the number of the former.
    pub(crate) fn close(&self, end: &ConnectionEnd) -> usize {
        // The error, and why the members end if neither the target nor its network is the cause.
        let (kind, cause) = match end {
            ConnectionEnd::Closed => (io::ErrorKind::ConnectionReset, None),
            ConnectionEnd::Failed(error) => {
                let is_given_up = error.kind() == io::ErrorKind::Unsupported;
                (error.kind(), is_given_up.then_some(EndReason::NotConfirmed))
            }
            ConnectionEnd::Desync(_) => (io::ErrorKind::InvalidData, Some(EndReason::SharedDesync)),
        };
        let members = self.take_members();
        let lost = |state: &Rc<RefCell<MemberState>>| {
            let mut state = state.borrow_mut();
            state.lose_connection(kind, cause);
            state.failed.is_some()
        };
        members.values().filter(|state| lost(state)).count()
    }

    /// It could not be opened: each member opens a connection of its own.
    pub(crate) fn refuse(&self) {
        for state in self.take_members().values() {
            let mut state = state.borrow_mut();
            state.lose_connection(io::ErrorKind::NotConnected, None);
            state.promote(Promotion::NotConnected);
        }
    }

    fn take_members(&self) -> Members {
        let mut state = self.0.borrow_mut();
        (state.closed, state.ledger) = (true, None);
        // Only after a panic: whether they were sent is not known.
        for (member, taken) in std::mem::take(&mut state.parts) {
            if let Some(member) = state.members.get(&member) {
                member.borrow_mut().commit(taken.sent);
            }
        }
        std::mem::take(&mut state.members)
    }
}

impl State {
    fn len(&self) -> usize {
        self.members.len() + self.resting
    }

    fn wake(&self) {
        self.waker.iter().for_each(Waker::wake_by_ref);
    }

    fn send(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut impl ByteStream,
        target: &Target,
        counters: &SharedCounters,
    ) -> Result<(), ConnectionEnd> {
        self.gathering.observe(stream.holds_writes(), Instant::now);
        let sent = self.send_groups(cx, stream, target, counters);
        self.gathering.observe(stream.holds_writes(), Instant::now);
        sent
    }

    fn send_groups(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut impl ByteStream,
        target: &Target,
        counters: &SharedCounters,
    ) -> Result<(), ConnectionEnd> {
        loop {
            if !self.flush(cx, stream, target)? {
                return Ok(());
            }
            let is_stopped = self.closed || self.is_silent || self.turns.is_empty();
            if is_stopped || stream.holds_writes() || !target.accepts_requests() {
                return Ok(());
            }
            if self.gathering.waits(self.turns.len(), cx, Instant::now) {
                return Ok(());
            }
            self.prepare();
            if self.parts.is_empty() {
                return Ok(());
            }
            // Again, since the gate may have closed: what has not been sent stays its client's.
            if !target.accepts_requests() {
                self.take_back();
                return Ok(());
            }
            match stream.poll_write(cx, &self.outgoing) {
                Poll::Ready(Ok(written @ 1..)) => {
                    counters.writes.increment();
                    self.commit(counters)?;
                    self.written = written;
                }
                // TLS has encrypted them: the target gets all of them or none.
                Poll::Pending if stream.has_begun_write() => {
                    counters.writes.increment();
                    return self.commit(counters);
                }
                Poll::Pending | Poll::Ready(Ok(0)) => {
                    self.take_back();
                    return Ok(());
                }
                Poll::Ready(Err(error)) => {
                    self.take_back();
                    return Err(ConnectionEnd::Failed(error));
                }
            }
        }
    }

    /// Writes the rest of a write that has begun. False if it has to wait.
    fn flush(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut impl ByteStream,
        target: &Target,
    ) -> Result<bool, ConnectionEnd> {
        while let Some(rest @ [_, ..]) = self.outgoing.get(self.written..) {
            if !target.accepts_requests() {
                return Ok(false);
            }
            match stream.poll_write(cx, rest) {
                Poll::Ready(Ok(written)) => {
                    invariant::rest_after(rest, written).map_err(ConnectionEnd::Failed)?;
                    self.written += written;
                }
                Poll::Pending => return Ok(false),
                Poll::Ready(Err(error)) => return Err(ConnectionEnd::Failed(error)),
            }
        }
        self.written = 0;
        self.outgoing.clear();
        if self.outgoing.capacity() > KEPT_CAPACITY {
            self.outgoing = Vec::new();
        }
        Ok(true)
    }

    /// Gives turns to the members, in the order in which their requests arrived.
    fn prepare(&mut self) {
        let Self { members, turns, ledger, outgoing, parts, corrected, admits_anyone, .. } = self;
        let Some(ledger) = ledger else { return };
        let is_small = *admits_anyone == Some(false);
        turns.give_turns(ledger.room(), |member, quantum, room| {
            let Some(state) = members.get(&member) else { return Some(Taken::default()) };
            let taken =
                state.borrow_mut().take(quantum, room, corrected.as_deref(), is_small, outgoing)?;
            if taken.sent.requests > 0 {
                parts.push((member, taken));
            }
            Some(taken)
        });
    }

    /// The prepared write has begun: the replies to its requests are awaited in this order.
    fn commit(&mut self, counters: &SharedCounters) -> Result<(), ConnectionEnd> {
        let broken = ConnectionEnd::Desync(Desync::Broken);
        let Some(ledger) = &mut self.ledger else { return Err(broken) };
        let mut counted = true;
        self.gathering.sends(self.parts.len());
        for (member, Taken { sent, script, .. }) in self.parts.drain(..) {
            counted &= ledger.send(member, sent.requests, sent.bytes, script);
            counters.requests.add(u64::from(sent.requests));
            match self.members.get(&member) {
                Some(state) => state.borrow_mut().commit(sent),
                None => ledger.leave(member),
            }
        }
        if counted { Ok(()) } else { Err(broken) }
    }

    /// Nothing of the prepared write was sent: its requests go first in the next one.
    fn take_back(&mut self) {
        if self.parts.is_empty() {
            return;
        }
        let senders: Vec<MemberId> = self.parts.drain(..).map(|(member, _)| member).collect();
        for member in &senders {
            if let Some(state) = self.members.get(member) {
                state.borrow_mut().take_back();
            }
        }
        self.turns.put_back(&senders);
        self.outgoing.clear();
    }

    /// Reads replies and hands them out. Whether there may be more.
    fn receive(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut impl ByteStream,
        scratch: &mut [u8],
    ) -> Result<bool, ConnectionEnd> {
        for _ in 0..MAX_READS {
            if self.is_stalled || !stream.is_readable() {
                return Ok(false);
            }
            let size = scratch.len().min(buffer::max_read());
            let Some(part) = scratch.get_mut(..size) else { return Ok(false) };
            let read = match stream.poll_read(cx, part) {
                Poll::Pending => return Ok(false),
                Poll::Ready(Ok(0)) => return Err(ConnectionEnd::Closed),
                Poll::Ready(Ok(read)) => read,
                Poll::Ready(Err(error)) => return Err(ConnectionEnd::Failed(error)),
            };
            (self.reads, self.is_silent) = (self.reads.wrapping_add(1), false);
            let bytes = invariant::first_bytes(part, read).map_err(ConnectionEnd::Failed)?;
            if self.kept.is_empty() {
                self.hand_out(bytes)?;
            } else {
                let mut joined = std::mem::take(&mut self.kept);
                joined.extend_from_slice(bytes);
                self.hand_out(&joined)?;
            }
        }
        Ok(true)
    }

    fn hand_out(&mut self, bytes: &[u8]) -> Result<(), ConnectionEnd> {
        let Self { members, ledger, turns, kept, closed, is_stalled, .. } = self;
        let Some(ledger) = ledger else { return Err(ConnectionEnd::Desync(Desync::Unasked)) };
        let mut input = bytes;
        while let Some(piece) = ledger.take(&mut input).map_err(ConnectionEnd::Desync)? {
            let Some(id) = piece.to else { continue };
            let Some(member) = members.get(&id) else { continue };
            let mut state = member.borrow_mut();
            match state.receive(piece.bytes, piece.ended, piece.not_authenticated) {
                Received::Usual => {}
                Received::Room => {
                    (state.held_back, state.queued) = (false, true);
                    turns.wait(id);
                }
                Received::Enough => (*closed, *is_stalled) = (true, true),
            }
        }
        kept.extend_from_slice(input);
        if *closed {
            self.release_settled();
        }
        Ok(())
    }

    /// It takes no further requests: members with nothing in flight use another connection.
    fn release_settled(&mut self) {
        let Self { members, turns, .. } = self;
        members.retain(|id, member| {
            let mut state = member.borrow_mut();
            if state.in_flight > 0 {
                return true;
            }
            turns.leave(*id);
            state.lose_connection(io::ErrorKind::NotConnected, None);
            false
        });
    }
}
