//! Replies that still reach the client after the fence of its target fell.
//!
//! The rest of a reply whose beginning the client may have is delivered whole: the server made all
//! of it when it executed the request, and half a large value is of no use to anybody. So the
//! session keeps reading until that reply ends, as long as bytes keep moving. Of whole replies,
//! those that may pass at all ([`superseded`](super::superseded)) are delivered if they are
//! readable, and none is waited for, since it might acknowledge a write that is about to be lost.
//!
//! Three bounds end it earlier, so that a target that has died in the middle of a reply does not
//! keep its client: a time without progress, a time in all, and an amount.
//!
//! Nothing is sent to the target here: requests are not even looked at.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use drain::Ticket;
use resp::{Direction, SessionState};

use super::Pump;
use crate::io::end::End;
use crate::io::flow::{Step, Tell};
use crate::io::scratch;

/// Longest time without progress: long enough for the retransmission of a lost segment, on either
/// side.
const QUIET: Duration = Duration::from_secs(1);

/// Longest time in all.
const LONGEST: Duration = Duration::from_secs(5);

/// Most bytes in all.
const MOST: u64 = 64 * 1024 * 1024;

impl<C: End, U: End> Pump<'_, C, U> {
    /// [Delivers](Self::deliver_last_replies) them. In a box and out of line: neither the memory of
    /// a session that flows nor the code of its every poll has room for this.
    #[cold]
    #[inline(never)]
    pub(super) fn last_replies<'t>(
        &'t mut self,
        ticket: &'t Ticket,
    ) -> Pin<Box<dyn Future<Output = ()> + 't>> {
        Box::pin(self.deliver_last_replies(ticket))
    }

    /// Delivers them. The news of the fence may have come before the news of the bytes, so the
    /// event loop is given one turn to hear of them first, and one after each piece.
    async fn deliver_last_replies(&mut self, ticket: &Ticket) {
        let deadline = Instant::now() + LONGEST;
        let most = self.replies.moved().saturating_add(MOST);
        loop {
            tokio::task::yield_now().await;
            let piece = poll_fn(|cx| self.poll_last_piece(cx));
            match tokio::time::timeout(QUIET, piece).await {
                Ok(true) => {}
                Ok(false) | Err(_) => return,
            }
            if ticket.is_cut() || Instant::now() >= deadline || self.replies.moved() >= most {
                return;
            }
        }
    }

    /// Moves what there is. Whether there may be more; pending if that has to be waited for.
    fn poll_last_piece(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        self.client.look(cx);
        self.upstream.look(cx);
        let before = self.replies.moved();
        // An end of the target is passed on by the end of the session.
        let step = scratch::with(|scratch| self.move_replies(cx, Tell::NotYet, scratch));
        let waits = match step {
            Step::More => return Poll::Ready(true),
            Step::Idle => self.is_within_a_reply(),
            // What was read and not taken is handed over at the end; here it only stands before
            // what was not read.
            Step::Stuck => {
                !self.dropped && (self.is_within_a_reply() || self.upstream.is_readable())
            }
            Step::Stopped(_) | Step::Done | Step::SourceFailed(_) | Step::SinkFailed(_) => false,
        };
        match waits {
            true if self.replies.moved() == before => Poll::Pending,
            more => Poll::Ready(more),
        }
    }

    fn is_within_a_reply(&self) -> bool {
        self.ledger.session_state() != SessionState::Opaque
            && !self.ledger.at_boundary(Direction::Reply)
    }
}
