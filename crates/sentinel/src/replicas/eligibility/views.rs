//! Merges the sentinels' views of the replicas.
//!
//! A replica counts as listed if any sentinel lists it: a sentinel that has just started or was
//! reset knows few. Whether a replica is down is decided by the majority of the sentinels that list
//! it; a sentinel in TILT has no vote.

use std::collections::BTreeMap;

use crate::{Epoch, NodeAddr, View};

/// The replicas of `master` in the views at the highest epoch at which it is named, each with
/// whether it is considered up. `None` if no view is about this master.
pub(crate) fn listed<'a>(
    master: &NodeAddr,
    views: impl Iterator<Item = &'a View> + Clone,
) -> Option<BTreeMap<NodeAddr, bool>> {
    let about = views.filter(|view| view.addr == *master && !view.is_empty_state());
    let epoch: Epoch = about.clone().map(|view| view.epoch).max()?;
    let mut opinions: BTreeMap<&NodeAddr, (usize, usize)> = BTreeMap::new();
    for view in about.filter(|view| view.epoch == epoch) {
        for replica in &view.replicas {
            let (asked, against) = opinions.entry(&replica.addr).or_default();
            if !view.tilt {
                *asked += 1;
                *against += usize::from(!replica.healthy);
            }
        }
    }
    Some(
        opinions
            .into_iter()
            .map(|(addr, (asked, against))| (addr.clone(), against * 2 <= asked))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReplicaView;

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
            failing_over: false,
            rebooted: false,
            quorum: 2,
            tilt: false,
            peers: Vec::new(),
            replicas,
        }
    }

    #[test]
    fn merges_views_at_highest_epoch_by_majority() {
        let views = [
            view(1, 5, &[(2, true), (3, false)]),
            view(1, 5, &[(2, true), (3, false), (4, true)]),
            view(1, 5, &[(2, false), (3, true)]),
            view(1, 4, &[(9, true)]),
            view(8, 6, &[(7, true)]),
        ];
        let found = listed(&node(1), views.iter()).expect("views");
        assert_eq!(found, BTreeMap::from([(node(2), true), (node(3), false), (node(4), true)]));
        assert_eq!(listed(&node(6), views.iter()), None);
        let settling = View { tilt: true, ..view(1, 5, &[(2, false)]) };
        assert_eq!(
            listed(&node(1), std::iter::once(&settling)),
            Some(BTreeMap::from([(node(2), true)]))
        );
    }
}
