//! Findings about `durability.replicas`: whether enough replicas can confirm writes, and whether
//! the replica that would be promoted is one of those that have them.

use std::collections::BTreeMap;

use sentinel::{NodeAddr, former_priority};

use super::Severity::{Fault, Warning};
use super::{Case, Findings};

pub(super) fn diagnose(found: &mut Findings, case: &Case<'_>) {
    let demanded = case.context.durability_replicas;
    if demanded == 0 || case.views().next().is_none() {
        return;
    }
    // Any sentinel may have seen a replica last.
    let mut listed: BTreeMap<&NodeAddr, (Option<u64>, bool)> = BTreeMap::new();
    for it in case.replicas() {
        let (priority, is_linked) = listed.entry(&it.addr).or_default();
        *priority = it.priority.map(|value| former_priority(value).unwrap_or(value));
        *is_linked |= it.linked && !it.down;
    }
    // Replicas that are not announced confirm writes as well, and are never promoted.
    let connected = case.nodes.iter().find_map(|node| node.report()?.replicas.as_ref());
    let seen = listed.values().filter(|(_, is_linked)| *is_linked).count();
    let able = connected.map_or(seen, |replicas| replicas.len().max(seen));
    let name = &case.name;
    if able < demanded {
        let what = format!("{able} replicas can confirm writes, durability.replicas is {demanded}");
        let remedy = "every write is answered by -NOREPLICAS until there are as many: start the \
                      missing ones, or lower durability.replicas";
        return found.add(Fault, "durability-replicas", name, what, remedy);
    }
    // Sentinel promotes one with the lowest value above 0, of these that with the highest offset.
    let values = || listed.values().filter_map(|(priority, _)| *priority);
    let Some(best) = values().filter(|value| *value > 0).min() else { return };
    let first = values().filter(|value| *value == best).count();
    let others = able.max(listed.len()).saturating_sub(first);
    if demanded <= others {
        let what = format!(
            "{others} replicas confirm writes but would not be promoted, and durability.replicas \
             is {demanded}: a failover can lose writes that were confirmed"
        );
        let enough = others + 1;
        let remedy = format!(
            "give all replicas one replica-priority and announce them, or set durability.replicas \
             to {enough}"
        );
        found.add(Warning, "durability-promotion", name, what, remedy);
    }
}
