//! How a session leaves that the drain, or an ejected replica, asks to leave.
//!
//! Carries out the rules of [`leave`] on a pump: waits for the turn of the
//! session, asks its client to move if it can be asked, and ends the session at the moment that the
//! rules allow.

use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use drain::{Phase, Ticket};

use crate::end_reason::EndReason;
use crate::io::stream::ByteStream;
use crate::maintenance::pending;
use crate::session::leave::{self, LeaveFacts, Leaving};
use crate::session::pump::{Pump, Stop};
use crate::session::upstream::TargetStream;

impl<C: ByteStream, U: TargetStream> Pump<C, U> {
    pub(in crate::session) fn is_draining(&self) -> bool {
        self.context.drain.phase() >= Phase::Draining
    }

    /// Advances a session that the drain or an ejected replica asks to leave. Returns a stop if it
    /// can continue elsewhere at once.
    pub(in crate::session) fn check_leaving(
        &mut self,
        ticket: &Ticket,
        waker: &Waker,
    ) -> Option<Stop> {
        if self.leaving == Leaving::No && (self.is_draining() || self.target.is_draining()) {
            // Created only now: ten thousand sessions need no memory for it while none has to
            // leave.
            let (draining, target) = (self.is_draining(), &self.target);
            let turn = self.rare.get_or_insert_default().turn.get_or_insert_with(|| {
                if draining {
                    Box::pin(ticket.asked())
                } else {
                    Box::pin(leave::turn(Arc::clone(target)))
                }
            });
            if turn.as_mut().poll(&mut Context::from_waker(waker)).is_ready() {
                self.rare().turn = None;
                // A session that continues elsewhere need not wait: its client notices nothing.
                if !draining && self.can_be_carried() {
                    return Some(Stop::Leave);
                }
                self.begin_to_leave(waker);
            }
        }
        if self.leaving == Leaving::Notified && self.is_due(|rare| &mut rare.patience, waker) {
            self.wait_for_reply(waker);
        }
        if self.leaving == Leaving::AfterReply && self.is_due(|rare| &mut rare.patience, waker) {
            self.leaving = Leaving::WhenQuiet;
            self.rare().patience.set(leave::PATIENCE, waker);
        }
        if self.leaving == Leaving::WhenQuiet && self.is_due(|rare| &mut rare.patience, waker) {
            self.leaving = Leaving::AtBoundary;
        }
        None
    }

    /// The turn of this session to leave has come. A client that can be asked to move closes its
    /// connection by itself; all other sessions end after a reply.
    fn begin_to_leave(&mut self, waker: &Waker) {
        let moving =
            if self.is_draining() { pending::moving(&self.ledger, &self.context) } else { None };
        if let Some((seconds, push)) = moving {
            self.announce(push);
            self.leaving = Leaving::Notified;
            self.rare().patience.set(Duration::from_secs(seconds), waker);
        } else {
            self.wait_for_reply(waker);
        }
    }

    fn wait_for_reply(&mut self, waker: &Waker) {
        self.leaving = Leaving::AfterReply;
        self.replied = false;
        self.rare().patience.set(leave::REPLY_WAIT, waker);
    }

    /// Why a session that was asked to leave ends now; `None` if it has to stay for the moment.
    /// `idle`: no requests can be forwarded now.
    pub(in crate::session) fn left(&mut self, idle: bool) -> Option<Stop> {
        if self.leaving == Leaving::No || !self.may_leave(idle) || self.has_unread_request() {
            return None;
        }
        Some(match self.leaving {
            _ if self.is_draining() => EndReason::Drained.into(),
            Leaving::Rebalancing => Stop::Rebalance,
            _ => Stop::Leave,
        })
    }

    fn may_leave(&mut self, idle: bool) -> bool {
        let facts = LeaveFacts {
            state: self.ledger.session_state(),
            has_received: self.has_received,
            requests_idle: idle,
            replied: self.replied,
            replies_delivered: self.replies.is_clear(),
            nothing_measured: self.measured == 0,
        };
        if !leave::may_leave(self.leaving, facts) {
            return false;
        }
        // No session is closed because another replica has fewer.
        let stays = self.leaving == Leaving::Rebalancing && !self.can_be_moved();
        if stays {
            self.cancel_rebalancing();
        }
        !stays
    }

    /// Whether a request has arrived of which the event loop does not know yet. It will, and the
    /// session stays until then. A session that is stopped at a boundary leaves it unread.
    fn has_unread_request(&self) -> bool {
        self.leaving != Leaving::AtBoundary && self.client.has_unread()
    }
}
