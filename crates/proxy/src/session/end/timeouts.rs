//! Timeouts of a client that is silent, and of requests that wait at a closed gate.

use std::task::Waker;
use std::time::Duration;

use crate::end_reason::EndReason;
use crate::io::stream::ByteStream;
use crate::session::hold::CHECK_INTERVAL;
use crate::session::idle::IdleFacts;
use crate::session::pump::Pump;
use crate::session::upstream::TargetStream;

impl<C: ByteStream, U: TargetStream> Pump<C, U> {
    /// Why the client is closed for its silence; `None` if it is not.
    #[cold]
    pub(in crate::session) fn check_idle(&mut self, waker: &Waker) -> Option<EndReason> {
        if self.target.is_closed() {
            self.idle.note_closed_gate();
        }
        let facts = IdleFacts {
            has_received: self.has_received,
            asked: self.commands > 0 || self.ledger.has_sent_requests(),
            moved: self.requests.bytes_moved() as u32,
            awaited: self.ledger.awaits_client()
                && !self.has_waiting_requests()
                && self.replies.is_clear(),
        };
        self.idle.check(&self.context.shared.service.options.now(), facts, waker)
    }

    /// Limits the time for which one direction is open after the other has ended.
    #[inline]
    pub(in crate::session) fn limit_half_close(&mut self, waker: &Waker) {
        if self.first_end.is_some() && !self.rare().half_close.is_set() {
            let span = self.context.shared.service.options.now().half_close_timeout;
            self.rare().half_close.set(span, waker);
        }
    }

    /// Whether the client has gone while the gate was closed, or has waited for too long. It is not
    /// read at a closed gate, so its end may come after requests that it no longer waits for; those
    /// must not be executed late. Checked at intervals, and when the gate opens.
    pub(in crate::session) fn check_gate(&mut self, waker: &Waker) -> Option<EndReason> {
        let closed = self.target.is_closed();
        let due = self.is_due(|rare| &mut rare.gate_check, waker);
        let set = self.rare.as_ref().is_some_and(|rare| rare.gate_check.is_set());
        if !closed && !set {
            return None;
        }
        if !closed {
            self.rare().gate_check.clear();
        } else if due || !set {
            self.rare().gate_check.set(CHECK_INTERVAL, waker);
        }
        if (due || !closed) && !self.requests.has_ended() && self.client.peer_closed() {
            return Some(EndReason::HoldAbandoned);
        }
        if !closed {
            self.gate_checks = 0;
            self.context.count_waiting(false);
        }
        (due && closed && self.has_waited_too_long()).then_some(EndReason::HoldTimeout)
    }

    /// Counts a check that found requests waiting at the gate. Whether they have waited for too
    /// long.
    fn has_waited_too_long(&mut self) -> bool {
        let waits = self.has_waiting_requests() || self.client.has_unread();
        self.gate_checks = if waits { self.gate_checks.saturating_add(1) } else { 0 };
        self.context.count_waiting(waits);
        let waited: Duration = CHECK_INTERVAL * u32::from(self.gate_checks);
        waited >= self.context.shared.service.options.now().hold_timeout
    }
}
