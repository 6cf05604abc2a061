//! Replies that still reach the client after the fence of its target was raised.
//!
//! The rest of a reply whose beginning the client may have is delivered completely: the server
//! produced all of it when it executed the request, and half a large value is useless. So the
//! session keeps reading until that reply ends, as long as bytes arrive. Of whole replies, those
//! that may pass at all ([`superseded`](super::superseded)) are delivered if they are readable.
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

use super::{Pump, Stopped};
use crate::end_reason::EndReason;
use crate::io::buffer;
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
        let (client, upstream) = self.into_ends();
        (stopped, client, upstream)
    }

    /// Delivers them. The event of the fence may have come before that of the bytes, so the event
    /// loop gets one round to receive them first, and one after each piece.
    async fn deliver_last_replies(&mut self, ticket: &Ticket) {
        let deadline = Instant::now() + LONGEST;
        let most = self.replies.bytes_moved().saturating_add(MOST);
        loop {
            tokio::task::yield_now().await;
            let piece = poll_fn(|cx| self.poll_last_piece(cx));
            match tokio::time::timeout(QUIET, piece).await {
                Ok(true) => {}
                Ok(false) | Err(_) => return,
            }
            if ticket.is_cut() || Instant::now() >= deadline || self.replies.bytes_moved() >= most {
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
        let before = self.replies.bytes_moved();
        // An end of the target is passed on by the end of the session.
        let step = buffer::with_scratch(|scratch| {
            self.move_replies(cx, (scratch, EndSignal::NotYet), MAX_READS)
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
            true if self.replies.bytes_moved() == before => Poll::Pending,
            more => Poll::Ready(more),
        }
    }

    fn is_within_a_reply(&self) -> bool {
        self.ledger.session_state() != SessionState::Opaque
            && !self.ledger.at_boundary(Direction::Reply)
    }
}
