//! The sentinels that other sentinels list, and their addresses.
//!
//! Anyone who may publish to `__sentinel__:hello` can have itself listed, and a learned sentinel
//! may list anything. The lists of configured sentinels therefore come first: while one of them is
//! known, no other list counts, and only an address counts that most of those name which list the
//! sentinel at all. The number of addresses is bounded; those listed most often come first.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::link::poll::PollOutcome;
use crate::net::resolve::is_usable;
use crate::types::AddressMap;
use crate::{MyId, NodeAddr};

/// The maximum number of learned addresses per service.
const MAX_LEARNED: usize = 64;

/// The other sentinels that each sentinel lists, and their addresses.
#[derive(Debug, Default)]
pub(crate) struct LearnedAddresses {
    listed_by: BTreeMap<MyId, PeerList>,
}

/// What one sentinel lists.
#[derive(Debug, PartialEq, Eq)]
struct PeerList {
    /// It answers at a configured address.
    configured: bool,
    peers: BTreeMap<MyId, NodeAddr>,
}

impl LearnedAddresses {
    /// Stores the peers that a sentinel, configured or not, lists now, with the addresses to dial.
    /// Returns whether they changed. The list of a sentinel that is no longer reached is dropped
    /// when another one changes.
    pub(crate) fn record(
        &mut self,
        from: MyId,
        configured: bool,
        peers: Vec<(MyId, NodeAddr)>,
        map: &AddressMap,
        reached: impl Fn(&MyId) -> bool,
    ) -> bool {
        let mapped = |(id, addr)| (id, map.get(&addr).cloned().unwrap_or(addr));
        let list = PeerList { configured, peers: peers.into_iter().map(mapped).collect() };
        if self.listed_by.get(&from) == Some(&list) {
            return false;
        }
        self.listed_by.retain(|id, _| reached(id));
        self.listed_by.insert(from, list);
        true
    }

    /// Every listed sentinel with its addresses.
    #[must_use]
    pub(crate) fn candidates(&self) -> BTreeMap<&MyId, BTreeSet<&NodeAddr>> {
        let rooted = self.listed_by.values().any(|list| list.configured);
        let lists = || self.listed_by.values().filter(|list| list.configured || !rooted);
        let (mut counts, mut listers) = (BTreeMap::new(), BTreeMap::new());
        for entry in lists().flat_map(|list| &list.peers) {
            *counts.entry(entry).or_insert(0_usize) += 1;
            *listers.entry(entry.0).or_insert(0_usize) += 1;
        }
        let by_most = |((id, _), times): &((&MyId, &NodeAddr), usize)| {
            !rooted || times * 2 > listers.get(*id).copied().unwrap_or(0)
        };
        let mut ranked: Vec<((&MyId, &NodeAddr), usize)> =
            counts.into_iter().filter(by_most).collect();
        ranked.sort_by_key(|(_, times)| std::cmp::Reverse(*times));
        let mut found: BTreeMap<&MyId, BTreeSet<&NodeAddr>> = BTreeMap::new();
        for ((id, addr), _) in ranked.into_iter().take(MAX_LEARNED) {
            found.entry(id).or_default().insert(addr);
        }
        found
    }
}

/// Removes addresses that cannot be meant for this process, such as the loopback address of another
/// host, unless the operator mapped them.
pub(crate) fn usable(round: PollOutcome, announced_by: IpAddr, map: &AddressMap) -> PollOutcome {
    let fits = |addr: &NodeAddr| {
        map.contains_key(addr) || addr.ip().is_none_or(|ip| is_usable(ip, announced_by))
    };
    match round {
        PollOutcome::View { view, .. } if !fits(&view.addr) => {
            PollOutcome::Malformed("it announces an address that only it can reach")
        }
        PollOutcome::View { mut view, mut peers } => {
            view.replicas.retain(|replica| fits(&replica.addr));
            peers.retain(|(_, addr)| fits(addr));
            PollOutcome::View { view, peers }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::View;

    fn id(number: usize) -> MyId {
        MyId::parse(&format!("{number:040x}")).expect("forty digits")
    }

    fn node(host: &str) -> NodeAddr {
        NodeAddr { host: host.into(), port: 26379 }
    }

    fn peer(number: usize, host: &str) -> (MyId, NodeAddr) {
        (id(number), node(host))
    }

    #[test]
    fn prefers_addresses_listed_by_most_sentinels() {
        let mut learned_addresses = LearnedAddresses::default();
        let lies = (100..200)
            .map(|number| peer(number, "10.9.9.9"))
            .chain([peer(7, "10.6.6.6")])
            .collect();
        assert!(learned_addresses.record(id(1), false, lies, &AddressMap::new(), |_| true));
        for sentinel in [2, 3] {
            assert!(learned_addresses.record(
                id(sentinel),
                false,
                vec![peer(7, "10.0.0.7"), peer(900, "10.0.0.8")],
                &AddressMap::new(),
                |_| true
            ));
        }
        let found = learned_addresses.candidates();
        assert!(
            found[&id(7)].contains(&node("10.0.0.7"))
                && found[&id(900)].contains(&node("10.0.0.8"))
        );
        assert!(found.values().map(BTreeSet::len).sum::<usize>() <= MAX_LEARNED);
    }

    #[test]
    fn prefers_lists_of_configured_sentinels() {
        let mut learned = LearnedAddresses::default();
        let mut record = |from: usize, configured, peers| {
            learned.record(id(from), configured, peers, &AddressMap::new(), |_| true)
        };
        for from in [21, 22, 23, 24] {
            record(from, false, vec![peer(7, "10.6.6.6"), peer(25, "10.6.6.6")]);
        }
        record(1, true, vec![peer(7, "10.0.0.7")]);
        record(2, true, vec![peer(7, "10.0.0.7"), peer(8, "10.0.0.8")]);
        record(3, true, vec![peer(7, "10.6.6.6"), peer(8, "10.6.6.6")]);
        let found = learned.candidates();
        assert_eq!(found, BTreeMap::from([(&id(7), BTreeSet::from([&node("10.0.0.7")]))]));
    }

    #[test]
    fn maps_addresses_and_ignores_repeated_lists() {
        let (mut learned_addresses, map) = (
            LearnedAddresses::default(),
            AddressMap::from([(node("127.0.0.1"), node("192.0.2.1"))]),
        );
        assert!(learned_addresses.record(id(1), false, vec![peer(2, "127.0.0.1")], &map, |_| true));
        assert!(
            !learned_addresses.record(id(1), false, vec![peer(2, "127.0.0.1")], &map, |_| true)
        );
        assert!(learned_addresses.candidates()[&id(2)].contains(&node("192.0.2.1")));
    }

    #[test]
    fn rejects_remote_loopback_address_unless_mapped() {
        let view = View {
            addr: node("127.0.0.1"),
            epoch: 1,
            run_id: "".into(),
            down: false,
            objectively_down: false,
            failing_over: false,
            promoted: false,
            rebooted: false,
            pong_age: std::time::Duration::ZERO,
            info_age: std::time::Duration::MAX,
            tilt: false,
            quorum: 2,
            peers: Vec::new(),
            replicas: Vec::new(),
        };
        let round = || PollOutcome::View { view: view.clone(), peers: vec![peer(2, "127.0.0.1")] };
        let remote: IpAddr = "192.0.2.9".parse().expect("address");
        assert!(matches!(usable(round(), remote, &AddressMap::new()), PollOutcome::Malformed(_)));
        let map = AddressMap::from([(node("127.0.0.1"), node("192.0.2.1"))]);
        let PollOutcome::View { peers, .. } = usable(round(), remote, &map) else {
            panic!("the mapped address is not usable");
        };
        assert_eq!(peers.len(), 1);
    }
}
