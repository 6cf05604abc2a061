//! The sentinels that other sentinels list, and their addresses.
//!
//! Any server that answers at a seed may list anything. The number of addresses is therefore
//! bounded, and those that most sentinels list come first. Where lists disagree about an address,
//! every version is tried: only the right one leads to the expected MYID.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::link::poll::{Peer, PollOutcome};
use crate::net::resolve::is_usable;
use crate::types::AddressMap;
use crate::{MyId, NodeAddr};

/// The maximum number of learned addresses per service.
const MAX_LEARNED: usize = 64;

/// The other sentinels that each sentinel lists, and their addresses.
#[derive(Debug, Default)]
pub struct LearnedAddresses {
    listed_by: BTreeMap<MyId, BTreeMap<MyId, NodeAddr>>,
}

impl LearnedAddresses {
    /// Stores the peers that `from` lists now, with the addresses to dial. Returns whether they
    /// changed. The list of a sentinel that is no longer reached is dropped when another one
    /// changes.
    pub fn record(
        &mut self,
        from: MyId,
        peers: Vec<Peer>,
        map: &AddressMap,
        reached: impl Fn(&MyId) -> bool,
    ) -> bool {
        let mapped = |peer: Peer| (peer.id, map.get(&peer.addr).cloned().unwrap_or(peer.addr));
        let peers: BTreeMap<MyId, NodeAddr> = peers.into_iter().map(mapped).collect();
        if self.listed_by.get(&from) == Some(&peers) {
            return false;
        }
        self.listed_by.retain(|id, _| reached(id));
        self.listed_by.insert(from, peers);
        true
    }

    /// Every listed sentinel with its addresses. Those that most sentinels list come first, and the
    /// bound cuts off the rest.
    #[must_use]
    pub fn candidates(&self) -> BTreeMap<&MyId, BTreeSet<&NodeAddr>> {
        let mut counts: BTreeMap<(&MyId, &NodeAddr), usize> = BTreeMap::new();
        for entry in self.listed_by.values().flatten() {
            *counts.entry(entry).or_default() += 1;
        }
        let mut ranked: Vec<((&MyId, &NodeAddr), usize)> = counts.into_iter().collect();
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
            peers.retain(|peer| fits(&peer.addr));
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

    fn peer(number: usize, host: &str) -> Peer {
        Peer { id: id(number), addr: node(host) }
    }

    #[test]
    fn prefers_addresses_listed_by_most_sentinels() {
        let mut learned_addresses = LearnedAddresses::default();
        let lies = (100..200)
            .map(|number| peer(number, "10.9.9.9"))
            .chain([peer(7, "10.6.6.6")])
            .collect();
        assert!(learned_addresses.record(id(1), lies, &AddressMap::new(), |_| true));
        for sentinel in [2, 3] {
            assert!(learned_addresses.record(
                id(sentinel),
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
    fn maps_addresses_and_ignores_repeated_lists() {
        let (mut learned_addresses, map) = (
            LearnedAddresses::default(),
            AddressMap::from([(node("127.0.0.1"), node("192.0.2.1"))]),
        );
        assert!(learned_addresses.record(id(1), vec![peer(2, "127.0.0.1")], &map, |_| true));
        assert!(!learned_addresses.record(id(1), vec![peer(2, "127.0.0.1")], &map, |_| true));
        assert!(learned_addresses.candidates()[&id(2)].contains(&node("192.0.2.1")));
    }

    #[test]
    fn rejects_remote_loopback_address_unless_mapped() {
        let view = View {
            addr: node("127.0.0.1"),
            epoch: 1,
            run_id: "".into(),
            down: false,
            failing_over: false,
            rebooted: false,
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
