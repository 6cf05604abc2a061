//! When the word of a majority arrived: what the promise about the swap is measured from.
//!
//! The machine wants more than a notice: a view that bears it out, an answer of the node. Mostly it
//! has both by then, sometimes it has to ask. But what people wait for begins with the notice: the
//! `+switch-master` that makes a majority of distinct sentinels, as it is read from its socket. So
//! this book is kept beside the machine and decides nothing.
//!
//! An observer that announces whose hello it follows (`+config-update-from`) and then switches
//! speaks for that peer too, and the leader speaks with `+promoted-slave`, from which on it names
//! the new master.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::{MyId, NodeAddr, Notice};

/// The most sentinels in the book; members only are entered, and there are no more of them.
const MAX_SENTINELS: usize = 64;

/// Who said since when that the master is now where.
#[derive(Debug, Default)]
pub(crate) struct MajorityClock {
    named: BTreeMap<MyId, (NodeAddr, Instant)>,
    following: BTreeMap<MyId, MyId>,
}

impl MajorityClock {
    /// A member of the electorate published `notice`, which was read at `at`.
    pub(crate) fn heard(&mut self, from: &MyId, notice: &Notice, at: Instant) {
        match notice {
            Notice::ConfigUpdateFrom { peer, .. } if self.following.len() < MAX_SENTINELS => {
                self.following.insert(from.clone(), peer.clone());
            }
            Notice::Promoted { candidate } => self.names(from, candidate, at),
            Notice::Switched { to } => {
                self.names(from, to, at);
                if let Some(peer) = self.following.remove(from) {
                    self.names(&peer, to, at);
                }
            }
            _ => {}
        }
    }

    /// What was said before counts from when it was said first.
    fn names(&mut self, who: &MyId, to: &NodeAddr, at: Instant) {
        let said = self.named.get(who).is_some_and(|(before, _)| before == to);
        if !said && (self.named.len() < MAX_SENTINELS || self.named.contains_key(who)) {
            self.named.insert(who.clone(), (to.clone(), at));
        }
    }

    /// When `majority` distinct sentinels had said that `addr` is the master; `None` if fewer have.
    pub(crate) fn complete(&self, addr: &NodeAddr, majority: usize) -> Option<Instant> {
        let mut times: Vec<Instant> =
            self.named.values().filter(|(to, _)| to == addr).map(|(_, at)| *at).collect();
        times.sort_unstable();
        times.get(majority.checked_sub(1)?).copied()
    }

    /// The points moved: what comes from now on is about another move.
    pub(crate) fn clear(&mut self) {
        self.named.clear();
        self.following.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn id(number: u8) -> MyId {
        MyId::parse(&format!("{number:040x}")).expect("forty digits")
    }

    fn node(port: u16) -> NodeAddr {
        NodeAddr { host: "10.0.0.1".into(), port }
    }

    fn switched(port: u16) -> Notice {
        Notice::Switched { to: node(port) }
    }

    #[test]
    fn the_second_of_three_makes_the_majority_and_saying_it_again_changes_nothing() {
        let (mut majority_clock, start) = (MajorityClock::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        majority_clock.heard(&id(1), &Notice::Promoted { candidate: node(2) }, at(0));
        majority_clock.heard(&id(1), &switched(2), at(50));
        assert_eq!(
            majority_clock.complete(&node(2), 2),
            None,
            "one sentinel is no majority, however often it speaks"
        );
        majority_clock.heard(&id(2), &switched(2), at(85));
        majority_clock.heard(&id(3), &switched(2), at(90));
        assert_eq!(majority_clock.complete(&node(2), 2), Some(at(85)));
        assert_eq!(majority_clock.complete(&node(1), 1), None);
        majority_clock.clear();
        assert_eq!(majority_clock.complete(&node(2), 1), None);
    }

    #[test]
    fn an_observer_that_follows_a_hello_speaks_for_two() {
        let (mut majority_clock, start) = (MajorityClock::default(), Instant::now());
        majority_clock.heard(
            &id(2),
            &Notice::ConfigUpdateFrom { peer: id(1), leaving: node(1) },
            start,
        );
        majority_clock.heard(&id(2), &switched(2), start);
        assert_eq!(majority_clock.complete(&node(2), 2), Some(start));
        // Only for this one switch.
        majority_clock.heard(&id(2), &switched(3), start);
        assert_eq!(
            (majority_clock.complete(&node(3), 2), majority_clock.complete(&node(3), 1)),
            (None, Some(start))
        );
    }

    #[test]
    fn liars_do_not_make_the_book_grow() {
        let (mut majority_clock, start) = (MajorityClock::default(), Instant::now());
        for number in 0..=255 {
            majority_clock.heard(
                &id(number),
                &Notice::ConfigUpdateFrom { peer: id(7), leaving: node(1) },
                start,
            );
            majority_clock.heard(&id(number), &switched(2), start);
            majority_clock.heard(
                &id(number),
                &Notice::ConfigUpdateFrom { peer: id(7), leaving: node(1) },
                start,
            );
        }
        assert!(
            majority_clock.named.len() <= MAX_SENTINELS
                && majority_clock.following.len() <= MAX_SENTINELS
        );
    }
}
