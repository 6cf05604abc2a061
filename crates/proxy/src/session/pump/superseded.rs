//! Replies of a master that has been replaced, or may have been.
//!
//! A request in flight when a master hangs is executed when it resumes. By then the master is
//! superseded, and the write is lost. So from the first evidence of a promotion on
//! (the reply policy of [`target::Target`]), bytes that are read for a session that is owed a
//! reply are discarded and the session ends: its client sees a closed connection and knows that the
//! outcome is unknown. After this process was stopped for a while, such bytes are withheld until
//! discovery has examined the master: they may have been in the socket for any time.
//!
//! These bytes still go to the client:
//!
//! - Bytes that were read before the evidence, however slowly the client takes them. Nothing
//!   distinguishes them from what a faster client has.
//! - The rest of a reply whose beginning was read before. A server produces a whole reply when it
//!   executes the request, which therefore was before the evidence. A large value needs many reads,
//!   and a planned failover must not cut it off.
//! - Pushes and messages of subscriptions, which acknowledge nothing.
//!
//! A session that is owed no reply stays, and is carried at the commit. An opaque session may be
//! owed anything: it ends.
//!
//! The check is after each read and not before it: evidence that arrives between the two must
//! count.
//!
//! # After the fence
//!
//! The rest of a reply whose beginning the client may have is delivered completely: the server
//! produced all of it when it executed the request, and half a large value is useless. So the
//! session keeps reading until that reply ends, as long as bytes arrive. Of whole replies, those
//! that may pass at all are delivered if they are readable.
//! None is waited for, because it might acknowledge a write that is about to be lost. After a reply
//! that was dropped nothing is delivered: where the next frame begins is not known any more.
//!
//! Three limits end it earlier, so that a target that died in the middle of a reply does not hold
//! its client: a time without progress, a total time, and an amount.
//!
//! Nothing is sent to the target here: requests are not even examined.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use drain::Ticket;
use resp::{Direction, SessionState};
use target::ReplyPolicy as Fate;

use super::{Pump, Stopped};
use crate::end_reason::EndReason;
use crate::io::buffer::{self, KeptBytes};
use crate::io::flow::{EndSignal, FlowStep, MAX_READS};
use crate::io::stream::ByteStream;
use crate::session::report::{SessionBase, Stage, while_visited};
use crate::session::upstream::TargetStream;

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

    /// Whether a frame from the target that begins with this byte may be a reply. False in the
    /// middle of a frame.
    pub(super) fn may_be_reply(&self, first: u8) -> bool {
        let owed =
            self.ledger.owed() > 0 && self.ledger.at_boundary(Direction::Reply) && first != b'>';
        owed || self.ledger.session_state() == SessionState::Opaque
    }

    /// Withholds `rest` and everything that follows it from the client: for now, or for good.
    pub(super) fn withhold(&mut self, fate: Fate, rest: &[u8]) {
        if fate == Fate::Wait {
            // Counted with what is kept for slow clients: after a stop, many sessions may have such
            // bytes at once.
            self.interleaved.get_or_insert_default().withheld = Some(KeptBytes::new(rest.to_vec()));
        } else {
            self.reply_dropped = true;
        }
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
