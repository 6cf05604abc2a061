//! Rules for sessions on a replica that do not apply to a master's: they wait a bounded time for an
//! unresponsive replica, and move from a replica with many sessions to one with fewer.
//!
//! An unresponsive replica, which was ejected because it answers nothing, may never answer what it
//! was asked. Sessions that cannot be carried away from it, because a reply is owed, they block or
//! they are pinned, end after `silent_timeout`. If the replica answers in time, they stay. An
//! unresponsive master needs no such rule: once it is superseded its fence is raised, which ends
//! its sessions.
//!
//! A session that was chosen to equalise the shares
//! ([`PoolWriter::balance`](target::PoolWriter::balance)) moves at once if it is quiet, or after
//! its replies. It is never closed for that: it keeps its connection until the new one works, and
//! if it reaches no boundary in time, another session is moved instead.

use std::task::Waker;

use resp::SessionState;

use crate::end_reason::EndReason;
use crate::io::stream::ByteStream;
use crate::session::leave::{self, Leaving};
use crate::session::pump::{Pump, Stop};
use crate::session::upstream::TargetStream;

impl<C: ByteStream, U: TargetStream> Pump<C, U> {
    /// Whether the target has been unresponsive for too long. Starts and stops the timer.
    pub(in crate::session) fn check_unresponsive(&mut self, waker: &Waker) -> Option<Stop> {
        let set = self.rare.as_ref().is_some_and(|rare| rare.unresponsive.is_set());
        match (self.target.is_silent(), set) {
            (false, false) => return None,
            (true, false) => {
                let span = self.context.shared.service.options.now().silent_timeout;
                if !span.is_zero() {
                    self.rare().unresponsive.set(span, waker);
                }
            }
            (false, true) => self.rare().unresponsive.clear(),
            (true, true) => {}
        }
        // A session whose turn to leave would come later leaves now.
        if self.target.is_silent()
            && self.target.is_draining()
            && !self.is_draining()
            && self.can_be_carried()
        {
            return Some(Stop::Leave);
        }
        let is_over = self.is_due(|rare| &mut rare.unresponsive, waker);
        is_over.then_some(EndReason::TargetUnresponsive.into())
    }

    /// Whether the session moves to a replica with fewer sessions now. If it is owed replies, it is
    /// marked to move after them.
    pub(in crate::session) fn check_rebalancing(&mut self, waker: &Waker) -> Option<Stop> {
        if self.leaving == Leaving::Rebalancing {
            let over = self.is_draining()
                || self.target.is_draining()
                || self.is_due(|rare| &mut rare.patience, waker);
            if over {
                self.cancel_rebalancing();
            }
            return None;
        }
        if !self.target.has_move_permits() {
            return None;
        }
        let possible = self.leaving == Leaving::No && self.may_carry && !self.is_draining();
        let busy = self.ledger.session_state() == SessionState::Busy;
        if !possible || !(busy || self.can_be_moved()) || !self.target.take_move_permit() {
            return None;
        }
        self.leaving = Leaving::Rebalancing;
        if !busy {
            return Some(Stop::Rebalance);
        }
        self.rare().patience.set(leave::PATIENCE, waker);
        None
    }

    /// Whether the session could continue over another connection without any loss. A subscribed
    /// session would miss messages.
    pub(in crate::session) fn can_be_moved(&self) -> bool {
        self.can_be_carried() && self.ledger.session_state() == SessionState::Quiet
    }

    /// The session stays where it is.
    pub(in crate::session) fn cancel_rebalancing(&mut self) {
        self.leaving = Leaving::No;
        self.rare().patience.clear();
    }
}
