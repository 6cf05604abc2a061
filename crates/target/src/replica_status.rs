//! What discovery knows about one replica, used to explain a connection that the replica closed.
//!
//! Sentinel closes every connection of a replica in the same transaction in which it points the
//! replica to another master. So an answer to a question asked after a connection ended decides
//! whether that was the cause, whichever was noticed first and whatever the sentinels have reported
//! so far. See `docs/decisions/readers.md`.

use std::time::{Duration, Instant};

/// How long a change of master explains a closed connection: discovery may learn of the close
/// first, or late.
const EXPLAINS_FOR: Duration = Duration::from_secs(10);

/// See the module's header.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// When the latest question that it has answered was asked.
    pub asked_at: Option<Instant>,
    /// When it was last learned that it has a new master, or has become one.
    pub repointed_at: Option<Instant>,
    /// A failover is in progress. Sentinel may repeat the order to follow the new master, and
    /// thereby close all connections again.
    pub failing_over: bool,
    /// It is about to be promoted, which closes all of its connections, and sessions have an
    /// alternative to connect to or to wait for.
    pub about_to_end: bool,
}

/// Why a replica closed a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CloseCause {
    /// It has not answered since.
    NotKnown,
    /// It was pointed to another master.
    Failover,
    /// It closed this connection but not all of them, or all of them for another reason.
    Other,
}

impl ReplicaStatus {
    /// Why a connection that was opened after `opened` had ended by `ended`.
    #[must_use]
    pub fn cause(&self, opened: Instant, ended: Instant) -> CloseCause {
        let explains =
            |at: Instant| at >= opened && ended.saturating_duration_since(at) <= EXPLAINS_FOR;
        if self.failing_over || self.repointed_at.is_some_and(explains) {
            CloseCause::Failover
        } else if self.asked_at.is_some_and(|at| at > ended) {
            CloseCause::Other
        } else {
            CloseCause::NotKnown
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blames_failover_that_happened_while_connected() {
        let opened = Instant::now();
        let at = |seconds| opened + Duration::from_secs(seconds);
        let replica_status = |asked, repointed| ReplicaStatus {
            asked_at: asked,
            repointed_at: repointed,
            ..ReplicaStatus::default()
        };
        let ended = at(100);
        assert_eq!(replica_status(None, None).cause(opened, ended), CloseCause::NotKnown);
        assert_eq!(
            replica_status(Some(at(99)), None).cause(opened, ended),
            CloseCause::NotKnown,
            "an older answer proves nothing"
        );
        assert_eq!(replica_status(Some(at(101)), None).cause(opened, ended), CloseCause::Other);
        for repointed in [91, 100, 103] {
            let replica_status = replica_status(Some(at(105)), Some(at(repointed)));
            assert_eq!(
                replica_status.cause(opened, ended),
                CloseCause::Failover,
                "learned at {repointed}"
            );
        }
        // The change of master closes every connection, so one that has lasted since was not closed
        // by it.
        assert_eq!(
            replica_status(Some(at(101)), Some(at(80))).cause(opened, ended),
            CloseCause::Other
        );
        assert_eq!(
            replica_status(Some(at(101)), Some(at(95))).cause(at(96), ended),
            CloseCause::Other,
            "opened after it"
        );
        let under_way = ReplicaStatus { failing_over: true, ..replica_status(Some(at(101)), None) };
        assert_eq!(under_way.cause(opened, ended), CloseCause::Failover);
    }
}
