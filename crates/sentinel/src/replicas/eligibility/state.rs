//! The state of a replica: one label for status, metrics and logs alike.
//!
//! An enum and not a string, so that the number of time series is bounded.

use crate::labelled::labelled;

labelled! {
    /// Whether a replica may serve reads, or why not.
    #[derive(Default)]
    pub enum ReplicaState {
        /// It may serve reads.
        Eligible = "eligible",
        /// It has not been probed yet.
        #[default]
        Unknown = "unknown",
        /// Most sentinels do not list it.
        Unlisted = "unlisted",
        /// Most sentinels that list it consider it down or disconnected.
        FlaggedBySentinel = "flagged_by_sentinel",
        /// No connection can be made to it.
        Unreachable = "unreachable",
        /// Connected, but it does not answer.
        Unresponsive = "unresponsive",
        /// It refuses our commands.
        Denied = "denied",
        /// It does not answer `PING` with `PONG`, for example while it loads its data.
        NotReady = "not_ready",
        /// It reports that it is a master, or it is the committed master.
        Master = "master",
        /// It is about to be promoted.
        Candidate = "candidate",
        /// It follows another master.
        FollowsOtherMaster = "follows_other_master",
        /// Its link to the master is down.
        LinkDown = "link_down",
        /// It claims to follow the committed master, which does not list it.
        UnknownToMaster = "unknown_to_master",
        /// Its lag exceeds the limit.
        Lagging = "lagging",
        /// It is free of faults again, and must stay so for a while.
        Recovering = "recovering",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn labels_are_distinct_and_in_snake_case() {
        let words: BTreeSet<&str> = ReplicaState::ALL.iter().map(|it| it.label()).collect();
        assert_eq!(words.len(), ReplicaState::ALL.len());
        assert!(
            words
                .iter()
                .all(|word| word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'))
        );
    }
}
