//! State that the server keeps for this connection, as of its last reply.

use crate::commands::class::Class;

/// The protocol version, and the state that pins the session until it is cleared.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ConnectionState {
    pub(crate) resp3: bool,
    pub(crate) transaction: bool,
    pub(crate) watching: bool,
    pub(crate) asking: bool,
    pub(crate) tracking: bool,
}

/// The number of subscriptions, as of the last confirmation.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SubscriptionCounts {
    channels: u32,
    patterns: u32,
    shards: u32,
}

impl SubscriptionCounts {
    /// A request of `class` was confirmed with `count` as the current number of subscriptions.
    /// Returns the previous number of its kind.
    pub(crate) fn confirm(&mut self, class: Class, count: u32) -> u32 {
        // The server counts channels and patterns together, and shard channels separately.
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

    /// Whether the numbers of channels, patterns and shard channels equal `counts`.
    pub(crate) fn are(self, counts: [usize; 3]) -> bool {
        [self.channels, self.patterns, self.shards].map(u64::from)
            == counts.map(|count| count as u64)
    }
}
