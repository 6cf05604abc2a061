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
//! Deliberately absent: what is evidence.

use std::task::Context;

use resp::{Direction, SessionState};
use target::ReplyPolicy as Fate;

use super::Pump;
use crate::io::buffer::KeptBytes;
use crate::io::flow::FlowStep;
use crate::io::stream::ByteStream;
use crate::session::upstream::TargetStream;

/// The state of withheld bytes.
pub(super) enum Withheld {
    /// There are none.
    Nothing,
    /// They have to wait.
    Waiting,
    /// They need not wait any more.
    Released(Vec<u8>),
}

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

    /// Takes the withheld bytes if they need not wait any more.
    pub(super) fn take_withheld(&mut self) -> Withheld {
        let Some(interleaved) = self.interleaved.as_mut().filter(|it| it.withheld.is_some()) else {
            return Withheld::Nothing;
        };
        if self.target.reply_policy() == Fate::Wait {
            return Withheld::Waiting;
        }
        Withheld::Released(interleaved.withheld.take().map_or_else(Vec::new, KeptBytes::into_rest))
    }
}
