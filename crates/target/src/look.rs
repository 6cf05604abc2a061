//! What discovery knows of one replica, for sessions whose connection that replica ended.
//!
//! Sentinel ends every connection of a replica in the same transaction in which it points it to
//! another master. So an answer to a question that was asked after a connection had ended tells for
//! certain whether that was the cause, whichever of the two was noticed first, and whatever the
//! sentinels have said until then. See decision 83.
//!
//! Deliberately absent: asking.

use std::time::{Duration, Instant};

/// A change of its master explains the end of a connection for this long: discovery may hear of the
/// end first, or late.
const EXPLAINS_FOR: Duration = Duration::from_secs(10);

/// See the module's header.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Look {
    /// When the youngest question was asked that it has answered.
    pub asked_at: Option<Instant>,
    /// When it was last learned that it follows another master than before, or has become one.
    pub repointed_at: Option<Instant>,
    /// A failover is under way. Sentinel may repeat the order to follow the new master, and with
    /// that end all connections again.
    pub failing_over: bool,
    /// It is about to be promoted, which ends all of its connections, and sessions have somewhere
    /// else to go or to wait for.
    pub about_to_end: bool,
}

/// Why a replica ended a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Nothing has been heard of it since.
    NotKnown,
    /// It was pointed to another master.
    Failover,
    /// It ended this connection and not all of them, or all of them for another reason.
    Other,
}

impl Look {
    /// Why a connection that was opened after `opened` had ended by `ended`.
    #[must_use]
    pub fn cause(&self, opened: Instant, ended: Instant) -> Cause {
        let explains =
            |at: Instant| at >= opened && ended.saturating_duration_since(at) <= EXPLAINS_FOR;
        if self.failing_over || self.repointed_at.is_some_and(explains) {
            Cause::Failover
        } else if self.asked_at.is_some_and(|at| at > ended) {
            Cause::Other
        } else {
            Cause::NotKnown
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blames_the_failover_that_came_while_connected() {
        let opened = Instant::now();
        let at = |seconds| opened + Duration::from_secs(seconds);
        let look =
            |asked, repointed| Look { asked_at: asked, repointed_at: repointed, ..Look::default() };
        let ended = at(100);
        assert_eq!(look(None, None).cause(opened, ended), Cause::NotKnown);
        assert_eq!(
            look(Some(at(99)), None).cause(opened, ended),
            Cause::NotKnown,
            "an older answer proves nothing"
        );
        assert_eq!(look(Some(at(101)), None).cause(opened, ended), Cause::Other);
        for repointed in [91, 100, 103] {
            let look = look(Some(at(105)), Some(at(repointed)));
            assert_eq!(look.cause(opened, ended), Cause::Failover, "learned at {repointed}");
        }
        // Every connection is ended with the change, so one that has lasted since was not ended by
        // it.
        assert_eq!(look(Some(at(101)), Some(at(80))).cause(opened, ended), Cause::Other);
        assert_eq!(
            look(Some(at(101)), Some(at(95))).cause(at(96), ended),
            Cause::Other,
            "opened after it"
        );
        let under_way = Look { failing_over: true, ..look(Some(at(101)), None) };
        assert_eq!(under_way.cause(opened, ended), Cause::Failover);
    }
}
