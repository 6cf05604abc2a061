//! Insertion of our own bytes between the target's replies, and removal of replies.
//!
//! Replies are normally forwarded as they arrive, in pieces that end anywhere. Only while something
//! must go between two of them, or may have to be taken out, are they split at the ends of their
//! frames: the received bytes are kept up to such an end, the [maintenance
//! pushes](crate::maintenance::pending) follow, then the rest. As soon as our bytes are among those
//! that are kept, replies flow as usual. Sessions without notifications pay nothing.

use std::task::{Context, Poll};

use resp::{Direction, MaintenanceHandshake};
use target::ReplyPolicy as Fate;

use super::Pump;
use crate::invariant;
use crate::io::buffer::KeptBytes;
use crate::io::flow::FlowStep;
use crate::io::stream::ByteStream;
use crate::maintenance::pending::{self, PendingPushes};
use crate::maintenance::push::MaintenancePush;
use crate::session::upstream::TargetStream;

/// Consecutive reads before other sessions are polled.
const ROUNDS: usize = 4;

/// A body with more bytes to come than this does not end within one poll, so it is forwarded
/// without splitting.
const LARGE_BODY: u64 = 16 * 1024 * 1024;

/// Bytes that have to go between the replies of one session, or wait there.
#[derive(Debug, Default)]
pub(in crate::session) struct Interleaved {
    pub(super) pushes: PendingPushes,
    /// Read from the target, and not to be examined yet; see [`superseded`](super::superseded).
    pub(super) withheld: Option<KeptBytes>,
}

impl Interleaved {
    fn is_needed(&self) -> bool {
        self.pushes.is_needed() || self.withheld.is_some()
    }
}

impl<C: ByteStream, U: TargetStream> Pump<C, U> {
    /// Whether replies have to be split, or may have to be.
    #[inline]
    pub(in crate::session) fn is_interleaving(&self) -> bool {
        self.interleaved.is_some() || self.ledger.awaits_handshake_reply()
    }

    /// Sends a push at the next frame boundary.
    pub(in crate::session) fn announce(&mut self, push: MaintenancePush) {
        self.interleaved.get_or_insert_default().pushes.announce(push);
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
        let pushes = self.interleaved.as_mut().map(|it| &mut it.pushes);
        if let Some(push) = PendingPushes::for_gate(pushes, closed, &self.ledger, &self.context) {
            self.announce(push);
        }
    }

    fn take_due_pushes(&mut self) -> Vec<u8> {
        let Some(interleaved) = &mut self.interleaved else { return Vec::new() };
        interleaved.pushes.take_due(&mut self.ledger, &self.context)
    }

    fn take_held_back(&mut self) -> Vec<u8> {
        self.interleaved.take().map_or_else(Vec::new, |it| it.pushes.refusal)
    }

    /// The bytes that the client has not taken yet or that are held back, if the session ends.
    pub(in crate::session) fn take_undelivered(&mut self) -> Vec<u8> {
        let mut undelivered = self.replies.take_kept();
        undelivered.append(&mut self.take_held_back());
        undelivered
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
            if fate != Fate::Pass && self.may_be_reply(*first) {
                self.withhold(fate, rest);
                break;
            }
            let holding = self.interleaved.as_ref().is_some_and(|it| it.pushes.is_holding_back());
            let is_error = !holding && *first == b'-';
            let refused = if is_error { self.ledger.next_reply_is_refusal() } else { None };
            let refusal =
                holding || refused.is_some() || (is_error && self.ledger.next_reply_is_handshake());
            let (piece, after) = self.ledger.reply_split(rest);
            rest = after;
            if refusal {
                let pushes = &mut self.interleaved.get_or_insert_default().pushes;
                pushes.replace_next(refused);
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
