//! What each client expects: a chain of writes to one key, of which every reply shows the position.
//!
//! Each write advances its key by one position, and its reply names the position reached: INCR the
//! number, RPUSH the length, SET with GET the value before. A reply below the expected position
//! shows how many acknowledged writes are gone; a reply above it, a write that ran twice. After a
//! connection ended, the position may include requests without a reply.

/// What a reply shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The expected position, or one that requests without a reply explain.
    Right,
    /// This many acknowledged writes are gone.
    Lost(u64),
    /// This many more writes ran than were sent.
    Duplicated(u64),
}

/// The position of one key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Chain {
    acknowledged: u64,
    /// Requests sent without a reply so far.
    open: u64,
}

impl Chain {
    /// The index of the next write.
    pub(super) fn next(&self) -> u64 {
        self.acknowledged + self.open + 1
    }

    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// A write was handed to the network.
    pub(super) fn sent(&mut self) {
        self.open += 1;
    }

    /// An error reply: the write did not run.
    pub(super) fn refused(&mut self) {
        self.open = self.open.saturating_sub(1);
    }

    /// The reply to the oldest open write named this position.
    pub(super) fn replied(&mut self, position: u64) -> Verdict {
        let verdict = between(self.acknowledged + 1, position, self.acknowledged + 1);
        self.open = self.open.saturating_sub(1);
        self.acknowledged = position;
        verdict
    }

    /// Whether the outcome of every write is known. Otherwise the key cannot be continued, even
    /// after a read: a write without a reply may still run.
    pub(super) fn settled(&self) -> bool {
        self.open == 0
    }

    /// A later read found this position.
    pub(super) fn read(&self, position: u64) -> Verdict {
        between(self.acknowledged, position, self.acknowledged + self.open)
    }
}

fn between(least: u64, position: u64, most: u64) -> Verdict {
    if position < least {
        Verdict::Lost(least - position)
    } else if position > most {
        Verdict::Duplicated(position - most)
    } else {
        Verdict::Right
    }
}

/// The value written at a position: it names key and position, and its length varies from a few
/// bytes to 16 KiB, so that a shifted or foreign value is recognised.
pub(super) fn payload(key: &str, position: u64) -> String {
    let filler = match position % 16 {
        0 => 16 * 1024,
        short => usize::try_from(short * 7).unwrap_or(0),
    };
    format!("{position}|{key}|{}", "x".repeat(filler))
}

/// The position of a value, if it is exactly a value written to this key.
pub(super) fn position_of(key: &str, value: &str) -> Option<u64> {
    let position = value.split('|').next()?.parse().ok()?;
    (payload(key, position) == value).then_some(position)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(position: u64) -> Chain {
        Chain { acknowledged: position, open: 0 }
    }

    #[test]
    fn accepts_consecutive_replies() {
        let mut chain = Chain::default();
        for position in 1..=3 {
            assert_eq!(chain.next(), position);
            chain.sent();
            assert_eq!(chain.replied(position), Verdict::Right);
        }
        assert_eq!(chain.read(3), Verdict::Right);
    }

    #[test]
    fn counts_lost_and_duplicated_writes() {
        assert_eq!(at(100).replied(91), Verdict::Lost(10));
        assert_eq!(at(100).replied(103), Verdict::Duplicated(2));
        assert_eq!(at(100).read(99), Verdict::Lost(1));
        assert_eq!(at(100).read(101), Verdict::Duplicated(1));
    }

    #[test]
    fn allows_open_writes_either_way() {
        let mut chain = at(10);
        chain.sent();
        chain.sent();
        for position in 10..=12 {
            assert_eq!(chain.read(position), Verdict::Right);
        }
        assert_eq!(chain.read(13), Verdict::Duplicated(1));
    }

    #[test]
    fn settles_only_without_open_writes() {
        let mut chain = at(10);
        assert!(chain.settled());
        chain.sent();
        assert_eq!((chain.read(11), chain.settled()), (Verdict::Right, false));
        assert_eq!(chain.replied(11), Verdict::Right);
        assert!(chain.settled());
    }

    #[test]
    fn counts_refused_writes_as_not_executed() {
        let mut chain = at(10);
        chain.sent();
        chain.refused();
        assert_eq!(chain.read(11), Verdict::Duplicated(1));
    }

    #[test]
    fn recognises_own_payloads_only() {
        for position in [0, 1, 15, 16, 1_000_000] {
            assert_eq!(position_of("a", &payload("a", position)), Some(position));
        }
        assert_eq!(position_of("b", &payload("a", 3)), None);
        assert_eq!(position_of("a", &payload("a", 3)[..8]), None);
        assert_eq!(position_of("a", ""), None);
    }
}
