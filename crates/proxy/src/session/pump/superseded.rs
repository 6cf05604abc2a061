//! Replies of a master that has been replaced, or that may have been.
//!
//! A request in flight when a master hangs is executed when it wakes up, by then superseded, and
//! the write is lost. So from the first evidence of a promotion on
//! ([`Target::replies`](target::Target::replies)), bytes that are read for a session that is owed a
//! reply are dropped and the session ends: its client sees a closed connection and knows that it
//! does not know. After a stop of this process, such bytes wait until discovery has looked: they
//! may have lain in the socket since any time.
//!
//! What still goes to the client:
//!
//! - What was read before the evidence came, however slowly its client takes it. Nothing tells it
//!   from what a faster client has.
//! - The rest of a reply whose beginning was read before. A server makes a whole reply when it
//!   executes the request, which therefore was before the evidence; a large value needs many reads,
//!   and a planned failover must not cut it off.
//! - Pushes and messages of subscriptions, which acknowledge nothing.
//!
//! A session that is owed nothing stays, and is carried over at the commit. One that is opaque may
//! be owed anything: it ends.
//!
//! The question is asked after each read and not before it: evidence that comes between the two
//! must count.
//!
//! Deliberately absent: what is evidence.

use std::task::Context;

use resp::{Direction, SessionState};
use target::Replies as Fate;

use super::Pump;
use crate::io::end::End;
use crate::io::flow::Step;
use crate::io::forwarding::Replies;
use crate::io::kept::Kept;

/// What became of bytes that wait.
pub(super) enum Withheld {
    /// There are none.
    Nothing,
    /// They wait on.
    Waits,
    /// They need not wait any more.
    Over(Vec<u8>),
}

impl<C: End, U: End> Pump<'_, C, U> {
    /// Takes in bytes that were read and that the valve did not admit. What may go on of them does.
    #[cold]
    pub(super) fn sift(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Step {
        let came = self.take_apart(bytes);
        self.replies.keep_instead(came);
        let mut valve = Replies {
            ledger: &mut self.ledger,
            target: self.target,
            seat: self.seat,
            stopwatch: &mut self.stopwatch,
            commands: &mut self.commands,
        };
        self.replies.empty(cx, self.client, &mut valve).unwrap_or(Step::More)
    }

    /// Whether a frame from the target that begins with this byte may be a reply. Not in the middle
    /// of one.
    pub(super) fn may_acknowledge(&self, first: u8) -> bool {
        let owed =
            self.ledger.owed() > 0 && self.ledger.at_boundary(Direction::Reply) && first != b'>';
        owed || self.ledger.session_state() == SessionState::Opaque
    }

    /// Neither `rest` nor anything that follows it goes to the client: for now, or for good.
    pub(super) fn give_up(&mut self, fate: Fate, rest: &[u8]) {
        if fate == Fate::Wait {
            // Counted with what slow clients leave behind: after a stop, many sessions may have
            // such bytes at once.
            self.aside.get_or_insert_default().withheld = Some(Kept::new(rest.to_vec()));
        } else {
            self.dropped = true;
        }
    }

    /// The bytes that wait, if they need not any more.
    pub(super) fn take_withheld(&mut self) -> Withheld {
        let Some(aside) = self.aside.as_mut().filter(|aside| aside.withheld.is_some()) else {
            return Withheld::Nothing;
        };
        if self.target.replies() == Fate::Wait {
            return Withheld::Waits;
        }
        Withheld::Over(aside.withheld.take().map_or_else(Vec::new, Kept::into_rest))
    }
}
