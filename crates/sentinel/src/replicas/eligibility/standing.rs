//! The word for where a replica stands: one for status, metrics and logs alike.
//!
//! An enum and not a text, so that the number of time series is bounded.

/// Where a replica stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReplicaState {
    /// Readers may be sent there.
    Eligible,
    /// It has not been asked yet.
    Unknown,
    /// No sentinel lists it any more.
    Unlisted,
    /// Most sentinels that list it hold it to be down or disconnected.
    Flagged,
    /// Nobody is there.
    Unreachable,
    /// Connected, but it does not answer.
    Silent,
    /// It refuses our questions.
    Denied,
    /// It does not answer `PING` with `PONG`: it is loading, for example.
    Unready,
    /// It says that it is a master, or it is the committed one.
    Master,
    /// It is about to be promoted.
    Candidate,
    /// It follows somebody else.
    Stranger,
    /// Its link to the master is down.
    LinkDown,
    /// It is too far behind.
    Behind,
    /// It is sound again, and has to stay so for a while.
    Recovering,
}

impl ReplicaState {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::Eligible,
        Self::Unknown,
        Self::Unlisted,
        Self::Flagged,
        Self::Unreachable,
        Self::Silent,
        Self::Denied,
        Self::Unready,
        Self::Master,
        Self::Candidate,
        Self::Stranger,
        Self::LinkDown,
        Self::Behind,
        Self::Recovering,
    ];

    /// A stable word in snake case, for metrics, status and logs.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Eligible => "eligible",
            Self::Unknown => "unknown",
            Self::Unlisted => "unlisted",
            Self::Flagged => "flagged",
            Self::Unreachable => "unreachable",
            Self::Silent => "silent",
            Self::Denied => "denied",
            Self::Unready => "unready",
            Self::Master => "master",
            Self::Candidate => "candidate",
            Self::Stranger => "stranger",
            Self::LinkDown => "link_down",
            Self::Behind => "behind",
            Self::Recovering => "recovering",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn words_are_distinct_and_in_snake_case() {
        let words: BTreeSet<&str> = ReplicaState::ALL.iter().map(|it| it.label()).collect();
        assert_eq!(words.len(), ReplicaState::ALL.len());
        assert!(
            words
                .iter()
                .all(|word| word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'))
        );
    }
}
