//! The names of the channels and patterns that a session is subscribed to, for subscribing to them
//! again on another connection.
//!
//! The names are copied from the requests and recorded with the last confirmation. Their size is
//! limited per session ([`Limits::names`](crate::Limits::names)) and by a
//! [budget] of the process: a gateway may subscribe to ten thousand channels
//! on one connection, but not on each of ten thousand connections. Names are recorded completely or
//! not at all; without them, the session is pinned.
//!
//! Names that the server has not confirmed do not count.

use std::collections::BTreeSet;

use crate::commands::class::Class;
use crate::ledger::budget::{self, Budget};

/// Memory per name in addition to its bytes: its entry in a tree node, and its allocation.
const NAME_OVERHEAD: usize = 64;

/// The three kinds of subscription, which the server keeps separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SubscriptionKind {
    Channel,
    Pattern,
    Shard,
}

/// All kinds, each with its command.
pub(crate) const SUBSCRIPTION_KINDS: [(SubscriptionKind, &[u8]); 3] = [
    (SubscriptionKind::Channel, b"SUBSCRIBE"),
    (SubscriptionKind::Pattern, b"PSUBSCRIBE"),
    (SubscriptionKind::Shard, b"SSUBSCRIBE"),
];

/// The kind that a request of that class concerns, and whether it subscribes.
fn kind(class: Class) -> Option<(SubscriptionKind, bool)> {
    Some(match class {
        Class::Subscribe => (SubscriptionKind::Channel, true),
        Class::Unsubscribe => (SubscriptionKind::Channel, false),
        Class::PSubscribe => (SubscriptionKind::Pattern, true),
        Class::PUnsubscribe => (SubscriptionKind::Pattern, false),
        Class::SSubscribe => (SubscriptionKind::Shard, true),
        Class::SUnsubscribe => (SubscriptionKind::Shard, false),
        _ => return None,
    })
}

/// The names of one session.
pub(crate) struct ChannelNames {
    sets: [BTreeSet<Box<[u8]>>; SUBSCRIPTION_KINDS.len()],
    /// Bytes taken from the budget.
    weight: usize,
    budget: &'static Budget,
}

impl Default for ChannelNames {
    fn default() -> Self {
        Self::within(&budget::NAMES)
    }
}

impl PartialEq for ChannelNames {
    fn eq(&self, other: &Self) -> bool {
        self.sets == other.sets
    }
}

impl Eq for ChannelNames {}

impl Drop for ChannelNames {
    fn drop(&mut self) {
        self.clear();
    }
}

impl ChannelNames {
    fn within(budget: &'static Budget) -> Self {
        Self {
            sets: <[BTreeSet<Box<[u8]>>; SUBSCRIPTION_KINDS.len()]>::default(),
            weight: 0,
            budget,
        }
    }

    /// The bytes that they occupy.
    pub(crate) fn weight(&self) -> usize {
        self.weight
    }

    /// The number of names of each kind, in the order of [`SUBSCRIPTION_KINDS`].
    pub(crate) fn counts(&self) -> [usize; SUBSCRIPTION_KINDS.len()] {
        self.sets.each_ref().map(BTreeSet::len)
    }

    /// The names of one kind.
    pub(crate) fn of(&self, kind: SubscriptionKind) -> impl Iterator<Item = &[u8]> {
        self.sets.get(kind as usize).into_iter().flatten().map(|name| &**name)
    }

    /// A request of that class for `names` was confirmed. False if they would exceed `most` bytes
    /// or the budget; then all names are dropped.
    pub(crate) fn accept(&mut self, class: Class, names: &[&[u8]], most: usize) -> bool {
        let Some((kind, subscribes)) = kind(class) else { return false };
        if !subscribes && names.is_empty() {
            self.remove_all(kind);
            return true;
        }
        for name in names {
            if !subscribes {
                self.remove(kind, name);
            } else if !self.add(kind, name, most) {
                self.clear();
                return false;
            }
        }
        true
    }

    fn add(&mut self, kind: SubscriptionKind, name: &[u8], most: usize) -> bool {
        let Some(set) = self.sets.get_mut(kind as usize) else { return false };
        if set.contains(name) {
            return true;
        }
        let weight = NAME_OVERHEAD + name.len();
        if self.weight + weight > most || !self.budget.take(weight) {
            return false;
        }
        self.weight += weight;
        set.insert(name.into())
    }

    fn remove(&mut self, kind: SubscriptionKind, name: &[u8]) {
        if self.sets.get_mut(kind as usize).is_some_and(|set| set.remove(name)) {
            self.give(NAME_OVERHEAD + name.len());
        }
    }

    fn remove_all(&mut self, kind: SubscriptionKind) {
        let Some(set) = self.sets.get_mut(kind as usize) else { return };
        let gone = std::mem::take(set);
        self.give(gone.iter().map(|name| NAME_OVERHEAD + name.len()).sum());
    }

    /// Drops all names.
    pub(crate) fn clear(&mut self) {
        self.sets = <[BTreeSet<Box<[u8]>>; SUBSCRIPTION_KINDS.len()]>::default();
        self.give(self.weight);
    }

    fn give(&mut self, weight: usize) {
        self.weight -= weight;
        self.budget.give(weight);
    }
}

#[cfg(test)]
mod tests {
    use super::{Budget, ChannelNames, Class, NAME_OVERHEAD};

    static TIGHT: Budget = Budget::new(3 * NAME_OVERHEAD + 6);

    #[test]
    fn shares_one_budget_among_all_sessions() {
        let (mut one, mut other) = (ChannelNames::within(&TIGHT), ChannelNames::within(&TIGHT));
        assert!(one.accept(Class::Subscribe, &[b"ab", b"cd", b"ab"], 1000));
        assert_eq!((one.weight(), one.counts()), (2 * NAME_OVERHEAD + 4, [2, 0, 0]));
        assert!(other.accept(Class::PSubscribe, &[b"p*"], 1000));
        assert!(!other.accept(Class::SSubscribe, &[b""], 1000), "beyond the budget");
        assert_eq!((other.weight(), other.counts()), (0, [0; 3]), "names are not recorded in part");
        assert!(
            one.accept(Class::SSubscribe, &[b"ab"], 1000),
            "one session can use what another has returned"
        );
        assert!(one.accept(Class::Unsubscribe, &[b"ab", b"xy"], 1000));
        assert_eq!(one.counts(), [1, 0, 1]);
        assert!(
            one.accept(Class::Unsubscribe, &[], 1000) && one.accept(Class::PUnsubscribe, &[], 1000)
        );
        assert_eq!((one.weight(), one.counts()), (NAME_OVERHEAD + 2, [0, 0, 1]));
        assert!(!one.accept(Class::Subscribe, &[b"ab"], 2 * NAME_OVERHEAD), "beyond its own limit");
        assert!(other.accept(Class::Subscribe, &[b"ab"], 1000));
        drop((one, other));
        assert_eq!(TIGHT.left(), 3 * NAME_OVERHEAD + 6);
    }
}
