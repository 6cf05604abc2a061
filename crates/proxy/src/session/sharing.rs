//! How a session gets a connection of its own although its service shares connections, and how it
//! returns.
//!
//! Either happens at a boundary: everything that was sent is answered, and the server keeps nothing
//! for the session but state that can be set on any connection. Usually the client has read all
//! replies, too. One that sends more than is taken may not read before it has sent all of it: it
//! takes the replies along to its own connection, where nothing limits what it may send.

use std::time::{Duration, Instant};

use target::TargetRef;

use crate::session::carry::CarryState;
use crate::session::carry::replay::Replayed;
use crate::session::pump::Start;
use crate::session::upstream::Upstream;
use crate::session::{Ready, Session};
use crate::shared::{Promotion, linger, verifiers};

/// The start of a session that returns to shared connections.
pub(crate) fn start_shared(state: CarryState) -> (Upstream, Start) {
    let CarryState { mut ledger, unsent: early, .. } = state;
    ledger.leave_connection();
    (Upstream::sharing(), Start::resumed(early, Box::new(Replayed::from(*ledger))))
}

/// The start of a session that shares connections to another target from now on.
pub(crate) fn start_elsewhere(mut state: CarryState) -> (Upstream, Start) {
    state.ledger.changed_server();
    start_shared(state)
}

impl Session {
    /// Gives up the session's own connection. If it only served to verify requests, it serves the
    /// next session that has any.
    pub(crate) fn return_to_shared(
        &mut self,
        state: CarryState,
        upstream: Upstream,
        target: TargetRef,
    ) -> Ready {
        self.base.context.counters.shared.returned.increment();
        let may_keep = verifiers::may_keep(&state.ledger);
        self.give_up(upstream, &target, may_keep);
        self.linger.get_or_insert_default().returned = Some(Instant::now());
        let (upstream, start) = start_shared(state);
        (target, upstream, start)
    }

    /// Closes the connection, on which everything is answered, unless the next session with a
    /// request to verify can use it.
    pub(crate) fn give_up(&self, upstream: Upstream, target: &TargetRef, may_keep: bool) {
        let promotion = self.base.promotion.take();
        if may_keep && promotion == Some(Promotion::Verification) {
            verifiers::keep(upstream, &target.target(), &self.base.context);
        } else {
            upstream.close_answered();
        }
    }

    /// The time after which the session returns from its next connection, if that is one of its own
    /// although its service shares connections. Counts its `promotion`.
    pub(crate) fn returns_after(
        &mut self,
        promotion: Option<Promotion>,
        upstream: &Upstream,
    ) -> Option<Duration> {
        let Some(promotion) = promotion else {
            // It keeps its own connection for as long as if it had needed one now.
            return self.linger.as_ref().filter(|_| !upstream.is_shared()).map(|it| it.span());
        };
        self.base.context.counters.shared.promoted.increment(linger::number(promotion));
        self.base.promotion.set(Some(promotion));
        Some(self.linger.get_or_insert_default().promoted(promotion, Instant::now()))
    }
}
