//! Insertion of our own bytes between the target's replies, and removal of replies.
//!
//! Replies are normally forwarded as they arrive, in pieces that end anywhere. Only while something
//! must go between two of them, or may have to be taken out, are they split at the ends of their
//! frames: the received bytes are kept up to such an end, the [maintenance
//! pushes](crate::maintenance::pending) follow, then the rest. As soon as our bytes are among those
//! that are kept, replies flow as usual. Sessions without notifications pay nothing.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use drain::Ticket;
use resp::{Direction, MaintenanceHandshake, SessionState};
use target::ReplyPolicy as Fate;

use super::{Pump, Stopped};
use crate::end_reason::EndReason;
use crate::invariant;
use crate::io::buffer::{self, KeptBytes};
use crate::io::flow::{EndSignal, FlowStep, MAX_READS};
use crate::io::stream::ByteStream;
use crate::maintenance::pending::{self, MaintenancePush, PendingPushes};
use crate::session::report::{SessionBase, Stage, while_visited};
use crate::session::upstream::TargetStream;

/// Consecutive reads before other sessions are polled.
const ROUNDS: usize = 4;

/// A body with more bytes to come than this does not end within one poll, so it is forwarded
/// without splitting.
const LARGE_BODY: u64 = 16 * 1024 * 1024;

impl<C: ByteStream, U: TargetStream> Pump<C, U> {
    /// Whether replies have to be split, or may have to be.
    #[inline]
    pub(in crate::session) fn is_interleaving(&self) -> bool {
        self.interleaved.is_some() || self.ledger.awaits_handshake_reply()
    }

    /// Sends a push at the next frame boundary.
    pub(in crate::session) fn announce(&mut self, push: MaintenancePush) {
        self.interleaved.get_or_insert_default().announce(push);
    }

    /// Notifies the client that the gate has closed or opened.
    pub(in crate::session) fn announce_gate(&mut self) {
        let closed = self.target.is_closed();
        // A session that has to leave this target notifies its client where it arrives.
        if self.target.fence().is_raised()
            || pending::agreement(&self.ledger, &self.context) == MaintenanceHandshake::Off
        {
            return;
        }
        let pushes = self.interleaved.as_deref_mut();
        if let Some(push) = PendingPushes::for_gate(pushes, closed, &self.ledger, &self.context) {
            self.announce(push);
        }
    }

    fn take_due_pushes(&mut self) -> Vec<u8> {
        let Some(interleaved) = &mut self.interleaved else { return Vec::new() };
        interleaved.take_due(&mut self.ledger, &self.context)
    }

    pub(in crate::session) fn take_held_back(&mut self) -> Vec<u8> {
        self.interleaved.take().map_or_else(Vec::new, |it| it.refusal)
    }

    /// Moves replies while something has to go between them, or be taken out. `None` if they may
    /// be forwarded as usual.
    #[cold]
    pub(super) fn move_split_replies(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &mut [u8],
    ) -> Option<FlowStep> {
        for _ in 0..ROUNDS {
            let (flow, _, client, mut policy) = self.reply_parts();
            if let Some(step) = flow.flush(cx, client, &mut policy) {
                return Some(step);
            }
            if self.replies.ended {
                let held_back = self.take_held_back();
                self.replies.replace_kept(held_back);
            } else {
                let pushes = self.take_due_pushes();
                self.replies.replace_kept(pushes);
            }
            if !self.replies.is_clear() {
                continue;
            }
            match self.take_withheld() {
                Poll::Ready(None) => {}
                Poll::Pending => return Some(FlowStep::Stuck),
                Poll::Ready(Some(bytes)) => {
                    let admitted = self.split_replies(&bytes);
                    self.replies.replace_kept(admitted);
                    continue;
                }
            }
            self.interleaved = self.interleaved.take().filter(|it| it.is_needed());
            if self.reply_dropped {
                return Some(FlowStep::Stuck);
            }
            let large = self.ledger.body_left(Direction::Reply) > LARGE_BODY;
            if large || !self.is_interleaving() || self.replies.ended {
                return None;
            }
            // All of it is kept until it is written, which takes longer if the client does not
            // read.
            let piece = self.replies.read_size().min(scratch.len());
            let Some(buffer) = scratch.get_mut(..piece) else { return Some(FlowStep::Stuck) };
            let read = match self.upstream.poll_read(cx, buffer) {
                Poll::Pending => return Some(FlowStep::Idle),
                Poll::Ready(Ok(read)) => read,
                Poll::Ready(Err(error)) => return Some(FlowStep::SourceFailed(error)),
            };
            self.replies.ended = read == 0;
            let bytes = match invariant::first_bytes(buffer, read) {
                Ok(bytes) => bytes,
                Err(error) => return Some(FlowStep::SourceFailed(error)),
            };
            let admitted = self.split_replies(bytes);
            self.replies.replace_kept(admitted);
        }
        Some(FlowStep::More)
    }

    /// The received bytes with our pushes inserted, without what is held back, withheld or dropped.
    pub(super) fn split_replies(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut all = Vec::with_capacity(bytes.len());
        let mut rest = bytes;
        let fate = self.target.reply_policy();
        while let Some(first) = rest.first() {
            // False in the middle of a frame.
            let may_be_reply = || {
                let begins = self.ledger.at_boundary(Direction::Reply) && *first != b'>';
                (self.ledger.owed() > 0 && begins)
                    || self.ledger.session_state() == SessionState::Opaque
            };
            if fate != Fate::Pass && may_be_reply() {
                if fate == Fate::Wait {
                    // Counted with what is kept for slow clients: after a stop, many sessions may
                    // have such bytes at once.
                    let withheld = Some(KeptBytes::new(rest.to_vec()));
                    self.interleaved.get_or_insert_default().withheld = withheld;
                } else {
                    self.reply_dropped = true;
                }
                break;
            }
            let holding = self.interleaved.as_ref().is_some_and(|it| !it.refusal.is_empty());
            let is_error = !holding && *first == b'-';
            let refused = if is_error { self.ledger.next_reply_is_refusal() } else { None };
            let refusal =
                holding || refused.is_some() || (is_error && self.ledger.next_reply_is_handshake());
            let (piece, after) = self.ledger.reply_split(rest);
            rest = after;
            if refusal {
                let pushes = self.interleaved.get_or_insert_default();
                pushes.refused = pushes.refused.or(refused);
                all.append(&mut pushes.hold_back(piece, &mut self.ledger, &self.context));
            } else {
                all.extend_from_slice(piece);
            }
            all.append(&mut self.take_due_pushes());
        }
        let (_, _, _, mut policy) = self.reply_parts();
        policy.record_replies();
        all
    }
}

// Replies of a master that has been replaced, or may have been.
//
// A request in flight when a master hangs is executed when it resumes. By then the master is
// superseded, and the write is lost. So from the first evidence of a promotion on
// (the reply policy of [`target::Target`]), bytes that are read for a session that is owed a
// reply are discarded and the session ends: its client sees a closed connection and knows that the
// outcome is unknown. After this process was stopped for a while, such bytes are withheld until
// discovery has examined the master: they may have been in the socket for any time.
//
// These bytes still go to the client:
//
// - Bytes that were read before the evidence, however slowly the client takes them. Nothing
//   distinguishes them from what a faster client has.
// - The rest of a reply whose beginning was read before. A server produces a whole reply when it
//   executes the request, which therefore was before the evidence. A large value needs many reads,
//   and a planned failover must not cut it off.
// - Pushes and messages of subscriptions, which acknowledge nothing.
//
// A session that is owed no reply stays, and is carried at the commit. An opaque session may be
// owed anything: it ends.
//
// The check is after each read and not before it: evidence that arrives between the two must
// count.
//
// # After the fence
//
// The rest of a reply whose beginning the client may have is delivered completely: the server
// produced all of it when it executed the request, and half a large value is useless. So the
// session keeps reading until that reply ends, as long as bytes arrive. Of whole replies, those
// that may pass at all are delivered if they are readable.
// None is waited for, because it might acknowledge a write that is about to be lost. After a reply
// that was dropped nothing is delivered: where the next frame begins is not known any more.
//
// Three limits end it earlier, so that a target that died in the middle of a reply does not hold
// its client: a time without progress, a total time, and an amount.
//
// Nothing is sent to the target here: requests are not even examined.

/// Maximum time without progress: long enough for the retransmission of a lost segment, on either
/// side.
const QUIET: Duration = Duration::from_secs(1);

/// Maximum total time.
const LONGEST: Duration = Duration::from_secs(5);

/// Maximum bytes.
const MOST: u64 = 64 * 1024 * 1024;

impl<C: ByteStream, U: TargetStream> Pump<C, U> {
    /// Examines bytes that were read and that the forwarding policy did not admit, and forwards
    /// those that may pass.
    #[cold]
    pub(super) fn filter_replies(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> FlowStep {
        let admitted = self.split_replies(bytes);
        self.replies.replace_kept(admitted);
        let (flow, _, client, mut policy) = self.reply_parts();
        flow.flush(cx, client, &mut policy).unwrap_or(FlowStep::More)
    }

    /// Takes the withheld bytes, if there are any, unless they have to wait.
    pub(super) fn take_withheld(&mut self) -> Poll<Option<Vec<u8>>> {
        let Some(interleaved) = self.interleaved.as_mut().filter(|it| it.withheld.is_some()) else {
            return Poll::Ready(None);
        };
        if self.target.reply_policy() == Fate::Wait {
            return Poll::Pending;
        }
        Poll::Ready(interleaved.withheld.take().map(KeptBytes::into_rest))
    }

    /// [Delivers](Self::deliver_last_replies) them, and stops. Returns the ends, too. In a box,
    /// since a future has what it is made of twice.
    pub(in crate::session) async fn stop_fenced(
        mut self: Box<Self>,
        base: &SessionBase,
    ) -> (Stopped, C, U) {
        base.stage.set(Stage::Closing);
        // An order ends them, and changes nothing of why the session ends.
        let _ended = while_visited(base, Box::pin(self.deliver_last_replies(&base.ticket))).await;
        let stopped = self.stop(EndReason::Fenced.into());
        let Pump { client, upstream, .. } = *self;
        (stopped, client, upstream)
    }

    /// Delivers them. The event of the fence may have come before that of the bytes, so the event
    /// loop gets one round to receive them first, and one after each piece.
    async fn deliver_last_replies(&mut self, ticket: &Ticket) {
        let deadline = Instant::now() + LONGEST;
        let most = self.replies.moved.saturating_add(MOST);
        loop {
            tokio::task::yield_now().await;
            let piece = poll_fn(|cx| self.poll_last_piece(cx));
            match tokio::time::timeout(QUIET, piece).await {
                Ok(true) => {}
                Ok(false) | Err(_) => return,
            }
            if ticket.is_cut() || Instant::now() >= deadline || self.replies.moved >= most {
                return;
            }
        }
    }

    /// Moves what is readable. Whether there may be more; pending if that has to be waited for.
    fn poll_last_piece(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        if self.reply_dropped {
            return Poll::Ready(false);
        }
        self.client.update_readiness(cx);
        self.upstream.update_readiness(cx);
        let before = self.replies.moved;
        // An end of the target is passed on by the end of the session.
        let step = buffer::with_scratch(|scratch| {
            self.move_replies(cx, scratch, EndSignal::NotYet, MAX_READS)
        });
        let waits = match step {
            FlowStep::More => return Poll::Ready(true),
            FlowStep::Idle => self.is_within_a_reply(),
            // Bytes read and not taken are delivered at the end; here they only come before what
            // was not read.
            FlowStep::Stuck => {
                !self.reply_dropped && (self.is_within_a_reply() || self.upstream.is_readable())
            }
            FlowStep::Stopped(_)
            | FlowStep::Done
            | FlowStep::SourceFailed(_)
            | FlowStep::SinkFailed(_) => false,
        };
        match waits {
            true if self.replies.moved == before => Poll::Pending,
            more => Poll::Ready(more),
        }
    }

    fn is_within_a_reply(&self) -> bool {
        self.ledger.session_state() != SessionState::Opaque
            && !self.ledger.at_boundary(Direction::Reply)
    }
}
