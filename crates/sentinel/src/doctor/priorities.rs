//! Findings about `replica-priority`: values that differ are intended in some deployments, and left
//! by a switchover to a named replica in others.

use std::collections::{BTreeMap, BTreeSet};

use super::diagnose::{Findings, Severity};
use super::observed::Observed;
use crate::NodeAddr;

pub(super) fn diagnose(findings: &mut Findings, observed: &Observed) {
    // The sentinels' latest INFO replies may differ for ten seconds.
    let mut seen: BTreeMap<&NodeAddr, BTreeSet<u64>> = BTreeMap::new();
    for it in observed.views().flat_map(|(_, _, view)| &view.replicas).filter(|it| !it.down) {
        seen.entry(&it.addr).or_default().extend(it.priority);
    }
    // A replica with 0 is excluded on purpose.
    let values: BTreeSet<u64> = seen.values().flatten().copied().filter(|it| *it > 0).collect();
    let Some(highest) = values.last().filter(|_| values.len() > 1) else { return };
    for (node, values) in &seen {
        let Some(value) = values.first().filter(|it| *it < highest && **it > 0) else { continue };
        let what = format!("its replica-priority is {value}, that of others up to {highest}");
        let remedy = format!(
            "if that is not intended, a switchover --to was killed before it restored the value: \
             redis-cli -h {} -p {} CONFIG SET replica-priority {highest}",
            node.host, node.port
        );
        findings.add((Severity::Note, "priorities-differ"), node, what, remedy);
    }
}
