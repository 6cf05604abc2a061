//! Records when a majority had announced a switch: the start of the switch time that is promised.
//!
//! The machine needs more than the announcement: a view that confirms it, and an answer of the
//! node. Mostly it has both by then, and sometimes it has to query them. But the time that matters
//! to users begins with the announcement, the `+switch-master` that makes a majority of distinct
//! sentinels, as it is read from its socket. The clock stands beside the machine and decides
//! nothing.
//!
//! An observer that announces whose hello it adopts (`+config-update-from`) and then switches
//! counts for that peer, too. The leader counts from `+promoted-slave` on, because it names the new
//! master from then on.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::{MyId, NodeAddr, Notice};

/// The maximum number of recorded sentinels. Only members are recorded, and there are no more of
/// them.
const MAX_SENTINELS: usize = 64;

/// Which sentinel named which master, and since when.
#[derive(Debug, Default)]
pub(crate) struct MajorityClock {
    named: BTreeMap<MyId, (NodeAddr, Instant)>,
    following: BTreeMap<MyId, MyId>,
}

impl MajorityClock {
    /// A member of the electorate published `notice`, which was read at `at`.
    pub(crate) fn record(&mut self, from: &MyId, notice: &Notice, at: Instant) {
        match notice {
            Notice::ConfigUpdateFrom { peer, .. } if self.following.len() < MAX_SENTINELS => {
                self.following.insert(from.clone(), peer.clone());
            }
            Notice::Promoted { candidate } => self.record_master(from, candidate, at),
            Notice::Switched { to } => {
                self.record_master(from, to, at);
                if let Some(peer) = self.following.remove(from) {
                    self.record_master(&peer, to, at);
                }
            }
            _ => {}
        }
    }

    /// Repeating the same address keeps the time of the first announcement.
    fn record_master(&mut self, sentinel: &MyId, to: &NodeAddr, at: Instant) {
        let same = self.named.get(sentinel).is_some_and(|(before, _)| before == to);
        if !same && (self.named.len() < MAX_SENTINELS || self.named.contains_key(sentinel)) {
            self.named.insert(sentinel.clone(), (to.clone(), at));
        }
    }

    /// When `majority` distinct sentinels had announced `addr`; `None` if fewer have.
    pub(crate) fn complete(&self, addr: &NodeAddr, majority: usize) -> Option<Instant> {
        let mut times: Vec<Instant> =
            self.named.values().filter(|(to, _)| to == addr).map(|(_, at)| *at).collect();
        times.sort_unstable();
        times.get(majority.checked_sub(1)?).copied()
    }

    /// Called at a commit: what follows belongs to the next switch.
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
    fn completes_with_the_second_of_three_sentinels() {
        let (mut majority_clock, start) = (MajorityClock::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        majority_clock.record(&id(1), &Notice::Promoted { candidate: node(2) }, at(0));
        majority_clock.record(&id(1), &switched(2), at(50));
        assert_eq!(
            majority_clock.complete(&node(2), 2),
            None,
            "one sentinel is no majority, however often it announces"
        );
        majority_clock.record(&id(2), &switched(2), at(85));
        majority_clock.record(&id(3), &switched(2), at(90));
        assert_eq!(majority_clock.complete(&node(2), 2), Some(at(85)));
        assert_eq!(majority_clock.complete(&node(1), 1), None);
        majority_clock.clear();
        assert_eq!(majority_clock.complete(&node(2), 1), None);
    }

    #[test]
    fn counts_follower_of_a_hello_as_two() {
        let (mut majority_clock, start) = (MajorityClock::default(), Instant::now());
        majority_clock.record(
            &id(2),
            &Notice::ConfigUpdateFrom { peer: id(1), leaving: node(1) },
            start,
        );
        majority_clock.record(&id(2), &switched(2), start);
        assert_eq!(majority_clock.complete(&node(2), 2), Some(start));
        // Only for this one switch.
        majority_clock.record(&id(2), &switched(3), start);
        assert_eq!(
            (majority_clock.complete(&node(3), 2), majority_clock.complete(&node(3), 1)),
            (None, Some(start))
        );
    }

    #[test]
    fn bounds_the_recorded_sentinels() {
        let (mut majority_clock, start) = (MajorityClock::default(), Instant::now());
        for number in 0..=255 {
            majority_clock.record(
                &id(number),
                &Notice::ConfigUpdateFrom { peer: id(7), leaving: node(1) },
                start,
            );
            majority_clock.record(&id(number), &switched(2), start);
            majority_clock.record(
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
