//! Findings about the next failover: whether it would find a replica to promote, whether priorities
//! are still raised, and whether the preferred one has the writes that were confirmed.

use std::collections::{BTreeMap, BTreeSet};

use sentinel::{NodeAddr, former_priority};

use super::Severity::{Fault, Warning};
use super::{Case, Findings, cures, join};

/// Whether a failover would find a candidate for promotion.
pub(super) fn candidates(found: &mut Findings, case: &Case<'_>) {
    let listed: Vec<_> = case.replicas().collect();
    let Some((.., any)) = case.views().next() else { return };
    let name = &case.name;
    if listed.is_empty() {
        let is_lost = case.views().all(|(.., view)| view.down && !view.failing_over)
            && case.is_node_gone(&any.addr);
        if !is_lost {
            let what = "no sentinel knows a replica";
            let remedy = "a failover has no candidate for promotion: add a replica";
            return found.add(Warning, "no-replicas", name, what, remedy);
        }
        let note = cures::preparation(case.context);
        let remedy = format!(
            "sentinels that were RESET, or lost their files, before the master died never learn \
             its replicas. If the master does not come back, set NEW_HOST and NEW_PORT to the \
             replica with the newest data (INFO replication: slave_repl_offset): it becomes the \
             master first, and then every sentinel drops the name and monitors it{note}"
        );
        let what = "no sentinel knows a replica, and the master is gone: nothing is promoted";
        found.add_with(Fault, "no-replicas", name, what, remedy, &cures::promote_by_hand(case));
        return;
    }
    if listed.iter().all(|it| it.priority == Some(0)) {
        let what = "every replica has replica-priority 0";
        let remedy = "a failover promotes none of them: give one a priority above 0";
        found.add(Fault, "no-candidate", name, what, remedy);
    } else if listed.iter().all(|it| it.down || it.priority == Some(0)) {
        let all: BTreeSet<&NodeAddr> = listed.iter().map(|it| &it.addr).collect();
        let what = format!("no replica could be promoted: the sentinels find {} down", join(&all));
        let remedy = "start one, or make it reachable for the sentinels: until then the death of \
                      the master is the end of all writes";
        found.add(Fault, "no-candidate", name, what, remedy);
    }
}

/// `replica-priority`: values that a switchover to a named replica has raised are to be restored.
pub(super) fn priorities(found: &mut Findings, case: &Case<'_>) {
    let up = case.replicas().filter(|it| !it.down);
    let raised = up.filter_map(|it| {
        let value = it.priority?;
        Some((&it.addr, (value, former_priority(value)?)))
    });
    // Several sentinels list the same replica.
    for (node, (value, former)) in raised.collect::<BTreeMap<_, _>>() {
        let what = format!("its replica-priority is {value}: a switchover --to raised it");
        let remedy = format!(
            "wait until that has ended; if none is running, it ended without restoring the value: \
             redis-cli -h {} -p {} CONFIG SET replica-priority {former}",
            node.host, node.port
        );
        found.add(Warning, "priority-raised", node, what, remedy);
    }
}

/// `durability.replicas`: whether enough replicas can confirm writes, and whether the replica that
/// would be promoted is one of those that have them.
pub(super) fn durability(found: &mut Findings, case: &Case<'_>) {
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
