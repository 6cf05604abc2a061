//! When a session that was asked to leave may go.
//!
//! Best is a moment when nothing is owed and nothing is on its way: the client sees its connection
//! end between two of its requests and opens another. A client that answers each reply with the
//! next request has such a moment at every round trip, and an idle one has it at once. A client
//! that keeps a pipeline full never has one by itself; so after some patience the session is no
//! longer read beyond the end of the request under way, and the moment comes when what was
//! forwarded is answered. Whoever waits for messages or is in a transaction would lose something,
//! and stays until the cut.
//!
//! A request may always be on the wire when the end is sent. It is not forwarded, so it was not
//! executed, but its client cannot know that. Two things make it rare. The end is sent right behind
//! a reply, where there is one to wait for: a client that has just been answered is the least
//! likely to be sending. And before it is sent, the system is asked whether something has arrived
//! that the event loop does not know of yet; such a request is served first.

use std::time::Duration;

use resp::SessionState;
use target::Target;

/// How long a session that is asked waits for a reply to leave behind. Who gets none in this time
/// is idle, and leaves at once.
pub(crate) const LISTEN: Duration = Duration::from_millis(250);

/// How long a session may then wait for a moment of its own.
pub(crate) const PATIENCE: Duration = Duration::from_millis(750);

/// Sessions that a dismissed replica has to part with go within this time, so that they do not all
/// come back at once.
const SPREAD: Duration = Duration::from_secs(1);

/// Returns when it is one session's turn to leave a dismissed replica. At once if that is silent or
/// about to be promoted: what its client asks meanwhile would be lost, and what paces the rush is
/// that only so many sessions are on their way at a time.
pub(crate) async fn turn(target: &Target) {
    if !target.is_urgent() {
        tokio::time::sleep(SPREAD.mul_f64(fastrand::f64())).await;
    }
}

/// How far a session is on its way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// Not asked.
    No,
    /// The client was told to move, and is expected to end its connection by itself.
    Told,
    /// Continues with an emptier replica as soon as it is quiet, and is not closed for it.
    Moving,
    /// Goes behind the next reply.
    AfterReply,
    /// Goes when it happens to be quiet.
    WhenQuiet,
    /// Is forwarded to the end of the request under way and no further.
    AtBoundary,
}

/// What is looked at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    /// Where the session stands.
    pub(crate) standing: SessionState,
    /// The client has sent something since it came.
    pub(crate) heard: bool,
    /// Everything that has come from the client was forwarded, and there is nothing more to be read
    /// at present.
    pub(crate) requests_idle: bool,
    /// The client was sent something since it was asked to leave.
    pub(crate) replied: bool,
    /// The client has taken every reply.
    pub(crate) replies_delivered: bool,
    /// No part of a request is accounted for and not yet written.
    pub(crate) unmeasured: bool,
}

/// Whether this is the moment.
pub(crate) fn may_leave(leaving: Leaving, moment: Moment) -> bool {
    if !moment.replies_delivered || !moment.unmeasured {
        return false;
    }
    match (leaving, moment.standing) {
        (Leaving::No | Leaving::Told, _) => false,
        (Leaving::AfterReply, SessionState::Quiet | SessionState::Ended) => {
            moment.heard && moment.requests_idle && moment.replied
        }
        (Leaving::Moving, SessionState::Quiet) => moment.requests_idle,
        (Leaving::Moving, _) => false,
        // A client that came so late that it was asked at once has its first request on the way.
        (Leaving::WhenQuiet, SessionState::Quiet | SessionState::Ended) => {
            moment.heard && moment.requests_idle
        }
        // Watched keys are given the same time to come to their transaction as a pipeline to come
        // to its end.
        (Leaving::AfterReply | Leaving::WhenQuiet, _) => false,
        (Leaving::AtBoundary, SessionState::Quiet | SessionState::Ended | SessionState::Pinned) => {
            true
        }
        (Leaving::AtBoundary, _) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STANDINGS: [SessionState; 8] = [
        SessionState::Opaque,
        SessionState::Transaction,
        SessionState::Blocked,
        SessionState::Busy,
        SessionState::Ended,
        SessionState::Subscribed,
        SessionState::Pinned,
        SessionState::Quiet,
    ];

    fn moment(standing: SessionState) -> Moment {
        Moment {
            standing,
            heard: true,
            requests_idle: true,
            replied: true,
            replies_delivered: true,
            unmeasured: true,
        }
    }

    #[test]
    fn who_would_lose_something_stays_and_who_is_quiet_goes() {
        for standing in STANDINGS {
            let now = may_leave(Leaving::WhenQuiet, moment(standing));
            assert_eq!(may_leave(Leaving::AfterReply, moment(standing)), now, "{standing:?}");
            let later = may_leave(Leaving::AtBoundary, moment(standing));
            let expected = match standing {
                SessionState::Quiet | SessionState::Ended => (true, true),
                SessionState::Pinned => (false, true),
                _ => (false, false),
            };
            assert_eq!((now, later), expected, "{standing:?}");
            assert!(!may_leave(Leaving::No, moment(standing)));
            assert!(!may_leave(Leaving::Told, moment(standing)));
            assert_eq!(
                may_leave(Leaving::Moving, moment(standing)),
                standing == SessionState::Quiet,
                "{standing:?}"
            );
        }
    }

    #[test]
    fn nobody_goes_with_something_undelivered() {
        let quiet = moment(SessionState::Quiet);
        for leaving in
            [Leaving::Moving, Leaving::AfterReply, Leaving::WhenQuiet, Leaving::AtBoundary]
        {
            assert!(!may_leave(leaving, Moment { replies_delivered: false, ..quiet }));
            assert!(!may_leave(leaving, Moment { unmeasured: false, ..quiet }));
        }
        assert!(!may_leave(Leaving::WhenQuiet, Moment { heard: false, ..quiet }));
        assert!(may_leave(Leaving::AtBoundary, Moment { heard: false, ..quiet }));
        assert!(!may_leave(Leaving::WhenQuiet, Moment { requests_idle: false, ..quiet }));
        assert!(!may_leave(Leaving::AfterReply, Moment { requests_idle: false, ..quiet }));
    }

    #[test]
    fn at_first_only_a_reply_makes_the_moment() {
        let silent = Moment { replied: false, ..moment(SessionState::Quiet) };
        assert!(!may_leave(Leaving::AfterReply, silent) && may_leave(Leaving::WhenQuiet, silent));
    }
}
