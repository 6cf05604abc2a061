//! How many subscriptions a session has, as the server counts them.

use crate::commands::class::Class;

/// As of the last confirmation.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Subscriptions {
    channels: u32,
    patterns: u32,
    shards: u32,
}

impl Subscriptions {
    /// A confirmation to a request of that class says that there are `count` now. Returns how many
    /// of its kind there were before.
    pub(crate) fn confirm(&mut self, class: Class, count: u32) -> u32 {
        // The server counts channels and patterns together, shard channels apart.
        let (counter, others) = match class {
            Class::Subscribe | Class::Unsubscribe => (&mut self.channels, self.patterns),
            Class::PSubscribe | Class::PUnsubscribe => (&mut self.patterns, self.channels),
            _ => (&mut self.shards, 0),
        };
        std::mem::replace(counter, count.saturating_sub(others))
    }

    pub(crate) fn is_any(self) -> bool {
        self.channels | self.patterns | self.shards != 0
    }

    pub(crate) fn has_shards(self) -> bool {
        self.shards > 0
    }

    /// Whether there are as many of each kind: channels, patterns, shard channels.
    pub(crate) fn are(self, counts: [usize; 3]) -> bool {
        [self.channels, self.patterns, self.shards].map(u64::from)
            == counts.map(|count| count as u64)
    }
}
