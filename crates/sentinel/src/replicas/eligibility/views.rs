//! Merges the sentinels' views of the replicas.
//!
//! A replica is listed once most sentinels that name the master list it, whatever their epochs: one
//! sentinel neither adds a replica nor hides one. It stays listed until most of them list others
//! and not it. A sentinel that lists none was reset or has just started, and knows nothing yet.
//! Whether a replica is down is decided by the majority of the sentinels that list it; a sentinel
//! in TILT has no vote.

use std::collections::BTreeMap;

use crate::{NodeAddr, View};

/// The replicas of `master`, each with whether it is considered up. `known`: it was listed until
/// now. `None` if no view with replicas is about this master: the last list stands.
pub(crate) fn listed<'a>(
    master: &NodeAddr,
    views: impl Iterator<Item = &'a View> + Clone,
    known: impl Fn(&NodeAddr) -> bool,
) -> Option<BTreeMap<NodeAddr, bool>> {
    let about = views.filter(|view| view.addr == *master && !view.is_empty_state());
    let views = about.clone().count();
    let informed = about.clone().filter(|view| !view.replicas.is_empty()).count();
    if informed == 0 {
        return None;
    }
    let mut opinions: BTreeMap<&NodeAddr, Opinions> = BTreeMap::new();
    for view in about {
        let listed: BTreeMap<&NodeAddr, bool> =
            view.replicas.iter().map(|replica| (&replica.addr, replica.healthy)).collect();
        for (addr, healthy) in listed {
            let opinions = opinions.entry(addr).or_default();
            opinions.listed += 1;
            opinions.asked += usize::from(!view.tilt);
            opinions.against += usize::from(!view.tilt && !healthy);
        }
    }
    let is_listed =
        |addr: &NodeAddr, times: usize| times * 2 > views || (known(addr) && times * 2 >= informed);
    let listed = opinions.into_iter().filter(|(addr, it)| is_listed(addr, it.listed));
    Some(listed.map(|(addr, it)| (addr.clone(), it.against * 2 <= it.asked)).collect())
}

/// What the sentinels say about one replica: how many list it, how many of these have a vote on
/// whether it is up, and how many consider it down.
#[derive(Default)]
struct Opinions {
    listed: usize,
    asked: usize,
    against: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Epoch, ReplicaView};

    fn node(port: u16) -> NodeAddr {
        NodeAddr { host: "10.0.0.1".into(), port }
    }

    fn view(master: u16, epoch: Epoch, replicas: &[(u16, bool)]) -> View {
        let replicas = replicas
            .iter()
            .map(|(port, healthy)| ReplicaView { addr: node(*port), healthy: *healthy })
            .collect();
        View {
            addr: node(master),
            epoch,
            run_id: "x".into(),
            down: false,
            objectively_down: false,
            failing_over: false,
            promoted: false,
            rebooted: false,
            pong_age: std::time::Duration::ZERO,
            info_age: std::time::Duration::MAX,
            quorum: 2,
            tilt: false,
            peers: Vec::new(),
            replicas,
        }
    }

    fn ports(views: &[View], known: &[u16]) -> Option<Vec<(u16, bool)>> {
        let found = listed(&node(1), views.iter(), |addr| known.contains(&addr.port))?;
        Some(found.into_iter().map(|(addr, healthy)| (addr.port, healthy)).collect())
    }

    #[test]
    fn lists_and_judges_replicas_by_majority() {
        let views = [
            view(1, 5, &[(2, true), (3, false)]),
            view(1, 5, &[(2, true), (3, false), (4, true)]),
            view(1, 5, &[(2, false), (3, true)]),
            view(8, 6, &[(7, true)]),
        ];
        assert_eq!(ports(&views, &[]), Some(vec![(2, true), (3, false)]));
        assert_eq!(listed(&node(6), views.iter(), |_| true), None);
        let settling = View { tilt: true, ..view(1, 5, &[(2, false)]) };
        assert_eq!(ports(&[settling], &[]), Some(vec![(2, true)]));
    }

    #[test]
    fn single_sentinel_neither_adds_nor_hides_replicas() {
        let honest = || view(1, 5, &[(2, true), (3, true)]);
        let both = Some(vec![(2, true), (3, true)]);
        for epoch in [4, 5, 99] {
            for lie in [view(1, epoch, &[]), view(1, epoch, &[(9, true)])] {
                assert_eq!(ports(&[honest(), honest(), lie.clone()], &[]), both);
                // One of two that answer cannot hide what was listed before, either.
                assert_eq!(ports(&[honest(), lie], &[2, 3]), both);
            }
        }
    }

    #[test]
    fn last_list_stands_while_sentinels_know_none() {
        let reset = || view(1, 5, &[]);
        assert_eq!(ports(&[reset(), reset(), reset()], &[2]), None);
        let relearned = view(1, 5, &[(2, true)]);
        assert_eq!(ports(&[reset(), reset(), relearned.clone()], &[2]), Some(vec![(2, true)]));
        assert_eq!(ports(&[reset(), reset(), relearned], &[]), Some(vec![]));
        // Most list others, and not this one.
        let without = || view(1, 5, &[(3, true)]);
        assert_eq!(
            ports(&[without(), without(), view(1, 5, &[(2, true)])], &[2, 3]),
            Some(vec![(3, true)])
        );
    }
}
