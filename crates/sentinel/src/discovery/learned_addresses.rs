//! What sentinels tell of each other, and which of it is worth a connection.
//!
//! Hearsay: whoever answers one of our seeds may tell anything. So it is bounded, what most tell
//! comes first, and where they disagree about an address every version is tried, since the one that
//! leads to the right MYID shows itself.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::discovery::resolve::is_usable;
use crate::link::poll::{Peer, PollOutcome};
use crate::{MyId, NodeAddr};

/// The most addresses of sentinels that one service learns of.
const MAX_LEARNT: usize = 64;

/// Announced address to the address to dial.
pub type AddressMap = BTreeMap<NodeAddr, NodeAddr>;

/// Who told of which other sentinels, and where they are said to be.
#[derive(Debug, Default)]
pub struct LearnedAddresses {
    told: BTreeMap<MyId, BTreeMap<MyId, NodeAddr>>,
}

impl LearnedAddresses {
    /// Takes note of the peers that `teller` lists now, with the addresses to dial. Whether that
    /// changes anything. What was told by somebody who is not reached any more is forgotten once
    /// somebody else tells something new.
    pub fn hear(
        &mut self,
        teller: MyId,
        peers: Vec<Peer>,
        map: &AddressMap,
        reached: impl Fn(&MyId) -> bool,
    ) -> bool {
        let mapped = |peer: Peer| (peer.id, map.get(&peer.addr).cloned().unwrap_or(peer.addr));
        let peers: BTreeMap<MyId, NodeAddr> = peers.into_iter().map(mapped).collect();
        if self.told.get(&teller) == Some(&peers) {
            return false;
        }
        self.told.retain(|id, _| reached(id));
        self.told.insert(teller, peers);
        true
    }

    /// Every sentinel that somebody told of, with the addresses it is said to have; those that most
    /// agree on come first, and the bound cuts the rest.
    #[must_use]
    pub fn candidates(&self) -> BTreeMap<&MyId, BTreeSet<&NodeAddr>> {
        let mut tellers: BTreeMap<(&MyId, &NodeAddr), usize> = BTreeMap::new();
        for said in self.told.values().flatten() {
            *tellers.entry(said).or_default() += 1;
        }
        let mut ranked: Vec<((&MyId, &NodeAddr), usize)> = tellers.into_iter().collect();
        ranked.sort_by_key(|(_, times)| std::cmp::Reverse(*times));
        let mut found: BTreeMap<&MyId, BTreeSet<&NodeAddr>> = BTreeMap::new();
        for ((id, addr), _) in ranked.into_iter().take(MAX_LEARNT) {
            found.entry(id).or_default().insert(addr);
        }
        found
    }
}

/// Leaves out what cannot be meant for us, such as the loopback address of another machine, unless
/// the operator said what to dial instead.
pub(crate) fn usable(round: PollOutcome, said_by: IpAddr, map: &AddressMap) -> PollOutcome {
    let fits = |addr: &NodeAddr| {
        map.contains_key(addr) || addr.ip().is_none_or(|ip| is_usable(ip, said_by))
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
    fn one_liar_does_not_crowd_out_what_the_others_agree_on() {
        let mut learnt = LearnedAddresses::default();
        let lies = (100..200)
            .map(|number| peer(number, "10.9.9.9"))
            .chain([peer(7, "10.6.6.6")])
            .collect();
        assert!(learnt.hear(id(1), lies, &AddressMap::new(), |_| true));
        for teller in [2, 3] {
            assert!(learnt.hear(
                id(teller),
                vec![peer(7, "10.0.0.7"), peer(900, "10.0.0.8")],
                &AddressMap::new(),
                |_| true
            ));
        }
        let found = learnt.candidates();
        assert!(
            found[&id(7)].contains(&node("10.0.0.7"))
                && found[&id(900)].contains(&node("10.0.0.8"))
        );
        assert!(found.values().map(BTreeSet::len).sum::<usize>() <= MAX_LEARNT);
    }

    #[test]
    fn what_is_told_twice_is_no_news_and_addresses_are_mapped() {
        let (mut learnt, map) = (
            LearnedAddresses::default(),
            AddressMap::from([(node("127.0.0.1"), node("192.0.2.1"))]),
        );
        assert!(learnt.hear(id(1), vec![peer(2, "127.0.0.1")], &map, |_| true));
        assert!(!learnt.hear(id(1), vec![peer(2, "127.0.0.1")], &map, |_| true));
        assert!(learnt.candidates()[&id(2)].contains(&node("192.0.2.1")));
    }

    #[test]
    fn a_loopback_address_said_from_afar_is_usable_only_if_mapped() {
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
        let afar: IpAddr = "192.0.2.9".parse().expect("address");
        assert!(matches!(usable(round(), afar, &AddressMap::new()), PollOutcome::Malformed(_)));
        let map = AddressMap::from([(node("127.0.0.1"), node("192.0.2.1"))]);
        assert!(
            matches!(usable(round(), afar, &map), PollOutcome::View { peers, .. } if peers.len() == 1)
        );
    }
}
