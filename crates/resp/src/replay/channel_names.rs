//! The channels and patterns that a session is subscribed to, so that it can subscribe to them
//! again on another connection.
//!
//! They are taken from the requests and enter with the last confirmation, like everything that is
//! remembered. One session may remember so much ([`Limits::names`](crate::Limits::names)), and all
//! of a process together a [budget](crate::ledger::budget): a gateway may listen to ten thousand channels
//! over one connection, but not every one of ten thousand sessions may do so at our expense. What
//! does not fit is not remembered in part: the session stays where it is.
//!
//! Deliberately absent: names of which it is not known that the server accepted them.

use std::collections::BTreeSet;

use crate::commands::class::Class;
use crate::ledger::budget::{self, Budget};

/// What a name costs besides its bytes: its place in a node, its own allocation.
const EACH: usize = 64;

/// The three kinds of subscription, which the server keeps apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SubscriptionKind {
    Channel,
    Pattern,
    Shard,
}

/// All kinds, with the command that subscribes to them.
pub(crate) const SUBSCRIPTION_KINDS: [(SubscriptionKind, &[u8]); 3] = [
    (SubscriptionKind::Channel, b"SUBSCRIBE"),
    (SubscriptionKind::Pattern, b"PSUBSCRIBE"),
    (SubscriptionKind::Shard, b"SSUBSCRIBE"),
];

/// Which kind a request of that class is about, and whether it subscribes.
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

/// What one session is subscribed to.
pub(crate) struct ChannelNames {
    sets: [BTreeSet<Box<[u8]>>; SUBSCRIPTION_KINDS.len()],
    /// What was taken from the budget.
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

    /// Bytes that they take.
    pub(crate) fn weight(&self) -> usize {
        self.weight
    }

    /// How many there are of each kind, in the order of [`SUBSCRIPTION_KINDS`].
    pub(crate) fn counts(&self) -> [usize; SUBSCRIPTION_KINDS.len()] {
        self.sets.each_ref().map(BTreeSet::len)
    }

    /// Those of one kind.
    pub(crate) fn of(&self, kind: SubscriptionKind) -> impl Iterator<Item = &[u8]> {
        self.sets.get(kind as usize).into_iter().flatten().map(|name| &**name)
    }

    /// Notes that a request of that class about `names` was accepted. False, and nothing is
    /// remembered any more, if that would be more than `most` bytes or more than the process has
    /// for all.
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
        let weight = EACH + name.len();
        if self.weight + weight > most || !self.budget.take(weight) {
            return false;
        }
        self.weight += weight;
        set.insert(name.into())
    }

    fn remove(&mut self, kind: SubscriptionKind, name: &[u8]) {
        if self.sets.get_mut(kind as usize).is_some_and(|set| set.remove(name)) {
            self.give(EACH + name.len());
        }
    }

    fn remove_all(&mut self, kind: SubscriptionKind) {
        let Some(set) = self.sets.get_mut(kind as usize) else { return };
        let gone = std::mem::take(set);
        self.give(gone.iter().map(|name| EACH + name.len()).sum());
    }

    /// Forgets all.
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
    use super::{Budget, ChannelNames, Class, EACH};

    static TIGHT: Budget = Budget::new(3 * EACH + 6);

    #[test]
    fn all_sessions_share_one_budget_and_give_back_what_they_took() {
        let (mut one, mut other) = (ChannelNames::within(&TIGHT), ChannelNames::within(&TIGHT));
        assert!(one.accept(Class::Subscribe, &[b"ab", b"cd", b"ab"], 1000));
        assert_eq!((one.weight(), one.counts()), (2 * EACH + 4, [2, 0, 0]));
        assert!(other.accept(Class::PSubscribe, &[b"p*"], 1000));
        assert!(!other.accept(Class::SSubscribe, &[b""], 1000), "beyond the budget");
        assert_eq!((other.weight(), other.counts()), (0, [0; 3]), "nothing is remembered in part");
        assert!(
            one.accept(Class::SSubscribe, &[b"ab"], 1000),
            "what one has given back is there for the other"
        );
        assert!(one.accept(Class::Unsubscribe, &[b"ab", b"xy"], 1000));
        assert_eq!(one.counts(), [1, 0, 1]);
        assert!(
            one.accept(Class::Unsubscribe, &[], 1000) && one.accept(Class::PUnsubscribe, &[], 1000)
        );
        assert_eq!((one.weight(), one.counts()), (EACH + 2, [0, 0, 1]));
        assert!(!one.accept(Class::Subscribe, &[b"ab"], 2 * EACH), "beyond its own limit");
        assert!(other.accept(Class::Subscribe, &[b"ab"], 1000));
        drop((one, other));
        assert_eq!(TIGHT.left(), 3 * EACH + 6);
    }
}
