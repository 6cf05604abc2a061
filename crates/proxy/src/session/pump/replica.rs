//! What a pump does because its target is one of several replicas: waits for a silent one for a
//! bounded time, and leaves a full one for an emptier one.
//!
//! A silent replica, which was put out since it answers nothing, may never answer what it was
//! asked. Sessions that cannot be carried away from it, because a reply is owed, they block or they
//! are bound to it, end after `silent_timeout`. If it answers meanwhile, they stay. A silent master
//! needs no such rule: once superseded its fence falls, which ends its sessions.
//!
//! A session that was chosen to make shares equal
//! ([`PoolWriter::balance`](target::PoolWriter::balance)) moves at once if it is quiet, or after its
//! replies. It is never closed for it: it keeps its connection until it has the other one, and if
//! it comes to no boundary in time, another session is moved in its place.

use std::task::Waker;

use resp::SessionState;

use super::Pump;
use crate::io::end::End;
use crate::session::end_reason::EndReason;
use crate::session::leave::{self, Leaving};

impl<C: End, U: End> Pump<'_, C, U> {
    /// Whether the target has been silent for too long. Begins and ends the wait.
    pub(super) fn look_for_silence(&mut self, waker: &Waker) -> Option<EndReason> {
        let set = self.rare.as_ref().is_some_and(|rare| rare.silent.is_set());
        match (self.target.is_silent(), set) {
            (false, false) => return None,
            (true, false) => {
                let span = self.seat.shared.service.options.now().silent_timeout;
                if !span.is_zero() {
                    self.rare().silent.set(span, waker);
                }
            }
            (false, true) => self.rare().silent.clear(),
            (true, true) => {}
        }
        // One that was to leave some time later leaves now.
        if self.target.is_silent()
            && self.target.is_draining()
            && !self.is_draining()
            && self.can_be_carried()
        {
            return Some(EndReason::Dismissed);
        }
        self.is_due(|rare| &mut rare.silent, waker).then_some(EndReason::TargetSilent)
    }

    /// Whether it moves to an emptier replica now. A session that is owed replies is marked to move
    /// after them.
    pub(super) fn look_for_a_move(&mut self, waker: &Waker) -> Option<EndReason> {
        if self.leaving == Leaving::Moving {
            let over = self.is_draining()
                || self.target.is_draining()
                || self.is_due(|rare| &mut rare.patience, waker);
            if over {
                self.stay();
            }
            return None;
        }
        if !self.target.offers_moves() {
            return None;
        }
        let at_all = self.leaving == Leaving::No && self.carries && !self.is_draining();
        let busy = self.ledger.session_state() == SessionState::Busy;
        if !at_all || !(busy || self.can_be_moved()) || !self.target.claim_move() {
            return None;
        }
        self.leaving = Leaving::Moving;
        if !busy {
            return Some(EndReason::Dismissed);
        }
        self.rare().patience.set(leave::PATIENCE, waker);
        None
    }

    /// Whether it could go on over another connection without any loss. One that is subscribed
    /// would miss messages.
    pub(super) fn can_be_moved(&self) -> bool {
        self.can_be_carried() && self.ledger.session_state() == SessionState::Quiet
    }

    /// It does not move after all.
    pub(super) fn stay(&mut self) {
        self.leaving = Leaving::No;
        self.rare().patience.clear();
    }
}
