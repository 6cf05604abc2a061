//! The state of a replica: one label for status, metrics and logs alike.
//!
//! An enum and not a string, so that the number of time series is bounded.

/// Whether a replica may serve reads, or why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReplicaState {
    /// It may serve reads.
    Eligible,
    /// It has not been probed yet.
    Unknown,
    /// Most sentinels do not list it.
    Unlisted,
    /// Most sentinels that list it consider it down or disconnected.
    FlaggedBySentinel,
    /// No connection can be made to it.
    Unreachable,
    /// Connected, but it does not answer.
    Unresponsive,
    /// It refuses our commands.
    Denied,
    /// It does not answer `PING` with `PONG`, for example while it loads its data.
    NotReady,
    /// It reports that it is a master, or it is the committed master.
    Master,
    /// It is about to be promoted.
    Candidate,
    /// It follows another master.
    FollowsOtherMaster,
    /// Its link to the master is down.
    LinkDown,
    /// It claims to follow the committed master, which does not list it.
    UnknownToMaster,
    /// Its lag exceeds the limit.
    Lagging,
    /// It is free of faults again, and must stay so for a while.
    Recovering,
}

impl ReplicaState {
    /// All states.
    pub const ALL: [Self; 15] = [
        Self::Eligible,
        Self::Unknown,
        Self::Unlisted,
        Self::FlaggedBySentinel,
        Self::Unreachable,
        Self::Unresponsive,
        Self::Denied,
        Self::NotReady,
        Self::Master,
        Self::Candidate,
        Self::FollowsOtherMaster,
        Self::LinkDown,
        Self::UnknownToMaster,
        Self::Lagging,
        Self::Recovering,
    ];

    /// A stable label in snake case, for metrics, status and logs.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Eligible => "eligible",
            Self::Unknown => "unknown",
            Self::Unlisted => "unlisted",
            Self::FlaggedBySentinel => "flagged_by_sentinel",
            Self::Unreachable => "unreachable",
            Self::Unresponsive => "unresponsive",
            Self::Denied => "denied",
            Self::NotReady => "not_ready",
            Self::Master => "master",
            Self::Candidate => "candidate",
            Self::FollowsOtherMaster => "follows_other_master",
            Self::LinkDown => "link_down",
            Self::UnknownToMaster => "unknown_to_master",
            Self::Lagging => "lagging",
            Self::Recovering => "recovering",
        }
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
