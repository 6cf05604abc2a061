//! Findings about `durability.replicas`: whether enough replicas can confirm writes, and whether
//! the replica that would be promoted is one of those that have them.

use std::collections::BTreeMap;

use sentinel::{NodeAddr, former_priority};

use super::{Context, Findings, Severity};
use crate::observed::Observed;

pub(super) fn diagnose(findings: &mut Findings, observed: &Observed, context: &Context) {
    let demanded = context.durability_replicas;
    if demanded == 0 || observed.views().next().is_none() {
        return;
    }
    // Any sentinel may have seen a replica last.
    let mut listed: BTreeMap<&NodeAddr, Option<u64>> = BTreeMap::new();
    let mut linked = BTreeMap::new();
    for it in observed.views().flat_map(|(_, _, view)| &view.replicas) {
        let priority = it.priority.map(|value| former_priority(value).unwrap_or(value));
        listed.entry(&it.addr).or_default().clone_from(&priority);
        *linked.entry(&it.addr).or_insert(false) |= it.linked && !it.down;
    }
    // Replicas that are not announced confirm writes as well, and are never promoted.
    let connected = observed.nodes.iter().find_map(|node| node.report()?.replicas.as_ref());
    let seen = linked.values().filter(|is_linked| **is_linked).count();
    let able = connected.map_or(seen, |replicas| replicas.len().max(seen));
    let name = &observed.name;
    if able < demanded {
        let what = format!("{able} replicas can confirm writes, durability.replicas is {demanded}");
        let remedy = "every write is answered by -NOREPLICAS until there are as many: start the \
                      missing ones, or lower durability.replicas";
        return findings.add((Severity::Fault, "durability-replicas"), name, what, remedy);
    }
    // Sentinel promotes one with the lowest value above 0, of these that with the highest offset.
    let values = listed.values().copied().flatten().filter(|value| *value > 0);
    let Some(best) = values.min() else { return };
    let first = listed.values().filter(|value| **value == Some(best)).count();
    let others = able.max(listed.len()).saturating_sub(first);
    if demanded <= others {
        let what = format!(
            "{others} replicas confirm writes but would not be promoted, and durability.replicas \
             is {demanded}: a failover can lose writes that were confirmed"
        );
        let remedy = format!(
            "give all replicas one replica-priority and announce them, or set durability.replicas \
             to {}",
            others + 1
        );
        findings.add((Severity::Warning, "durability-promotion"), name, what, remedy);
    }
}
