//! When a session that was asked to leave may be closed or moved.
//!
//! The best moment is one at which no reply is owed and nothing is under way: the client sees its
//! connection end between two requests and opens another. A client that answers each reply with the
//! next request has such a moment at every round trip, and an idle client has it at once. A client
//! that keeps its pipeline full never has one by itself. So after some patience the session is no
//! longer read beyond the end of the request under way, and the moment comes when the forwarded
//! requests are answered. A session that waits for messages or is in a transaction would lose
//! something, and stays until the cut.
//!
//! A request may always be in transit when the end is sent. It is not forwarded and so not
//! executed, but its client cannot know that. Two measures make this rare. The end is sent right
//! after a reply, where there is one to wait for: a client that was just answered is least likely
//! to be sending. And before the end is sent, the kernel is asked whether data has arrived that the
//! event loop does not know of yet; such a request is served first. So is a request that waits at a
//! closed gate: its session is read again when the gate opens.

use std::sync::Arc;
use std::time::Duration;

use resp::SessionState;
use target::Target;

/// How long a session that is asked to leave waits for a reply after which it can end. A session
/// that gets none in this time is idle, and leaves at once.
pub(crate) const REPLY_WAIT: Duration = Duration::from_millis(250);

/// How long a session may then wait for a quiet moment.
pub(crate) const PATIENCE: Duration = Duration::from_millis(750);

/// Sessions on an ejected replica that must be closed leave within this time, so that their clients
/// do not all reconnect at once.
const SPREAD: Duration = Duration::from_secs(1);

/// Returns when one session may leave an ejected replica. At once if the replica is unresponsive or
/// about to be promoted: requests sent to it meanwhile would be lost, and the number of sessions
/// that connect at a time is bounded anyway.
pub(crate) async fn turn(target: Arc<Target>) {
    if !target.is_urgent() {
        tokio::time::sleep(SPREAD.mul_f64(fastrand::f64())).await;
    }
}

/// How far a session is on its way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// Not asked to leave.
    No,
    /// The client was asked to move, and is expected to close its connection by itself.
    Notified,
    /// Moves to a replica with fewer sessions as soon as it is quiet, and is not closed for it.
    Rebalancing,
    /// Ends after the next reply.
    AfterReply,
    /// Ends when it happens to be quiet.
    WhenQuiet,
    /// Is forwarded to the end of the request under way and no further.
    AtBoundary,
}

/// The facts that the decision depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeaveFacts {
    /// The session state.
    pub(crate) state: SessionState,
    /// The client has sent something.
    pub(crate) has_received: bool,
    /// Everything that came from the client was forwarded, and nothing more can be read at present.
    pub(crate) requests_idle: bool,
    /// The client was sent something since the session was asked to leave.
    pub(crate) replied: bool,
    /// The client has taken every reply.
    pub(crate) replies_delivered: bool,
    /// No part of a request is recorded in the ledger and not yet written, or the other way round.
    pub(crate) nothing_begun: bool,
}

/// Whether the session may leave now.
pub(crate) fn may_leave(leaving: Leaving, facts: LeaveFacts) -> bool {
    if !facts.replies_delivered || !facts.nothing_begun {
        return false;
    }
    let is_over = matches!(facts.state, SessionState::Quiet | SessionState::Ended);
    match leaving {
        Leaving::No | Leaving::Notified => false,
        Leaving::Rebalancing => facts.state == SessionState::Quiet && facts.requests_idle,
        // Watched keys get the same time to reach their transaction as a pipeline to reach its end.
        Leaving::AfterReply => {
            is_over && facts.has_received && facts.requests_idle && facts.replied
        }
        // The first request of a client that connected when the drain had begun is in transit.
        Leaving::WhenQuiet => is_over && facts.has_received && facts.requests_idle,
        Leaving::AtBoundary => is_over || facts.state == SessionState::Pinned,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [SessionState; 8] = [
        SessionState::Opaque,
        SessionState::Transaction,
        SessionState::Blocked,
        SessionState::Busy,
        SessionState::Ended,
        SessionState::Subscribed,
        SessionState::Pinned,
        SessionState::Quiet,
    ];

    fn facts(state: SessionState) -> LeaveFacts {
        LeaveFacts {
            state,
            has_received: true,
            requests_idle: true,
            replied: true,
            replies_delivered: true,
            nothing_begun: true,
        }
    }

    #[test]
    fn keeps_sessions_that_would_lose_something() {
        for state in STATES {
            let now = may_leave(Leaving::WhenQuiet, facts(state));
            assert_eq!(may_leave(Leaving::AfterReply, facts(state)), now, "{state:?}");
            let later = may_leave(Leaving::AtBoundary, facts(state));
            let expected = match state {
                SessionState::Quiet | SessionState::Ended => (true, true),
                SessionState::Pinned => (false, true),
                _ => (false, false),
            };
            assert_eq!((now, later), expected, "{state:?}");
            assert!(!may_leave(Leaving::No, facts(state)));
            assert!(!may_leave(Leaving::Notified, facts(state)));
            assert_eq!(
                may_leave(Leaving::Rebalancing, facts(state)),
                state == SessionState::Quiet,
                "{state:?}"
            );
        }
    }

    #[test]
    fn keeps_sessions_with_something_undelivered() {
        let quiet = facts(SessionState::Quiet);
        for leaving in
            [Leaving::Rebalancing, Leaving::AfterReply, Leaving::WhenQuiet, Leaving::AtBoundary]
        {
            assert!(!may_leave(leaving, LeaveFacts { replies_delivered: false, ..quiet }));
            assert!(!may_leave(leaving, LeaveFacts { nothing_begun: false, ..quiet }));
        }
        assert!(!may_leave(Leaving::WhenQuiet, LeaveFacts { has_received: false, ..quiet }));
        assert!(may_leave(Leaving::AtBoundary, LeaveFacts { has_received: false, ..quiet }));
        assert!(!may_leave(Leaving::WhenQuiet, LeaveFacts { requests_idle: false, ..quiet }));
        assert!(!may_leave(Leaving::AfterReply, LeaveFacts { requests_idle: false, ..quiet }));
    }

    #[test]
    fn waits_for_a_reply_at_first() {
        let silent = LeaveFacts { replied: false, ..facts(SessionState::Quiet) };
        assert!(!may_leave(Leaving::AfterReply, silent) && may_leave(Leaving::WhenQuiet, silent));
    }
}
