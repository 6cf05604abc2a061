//! Findings about `replica-priority`: values that differ are intended in some deployments; values
//! that a switchover to a named replica has raised are to be restored.

use std::collections::{BTreeMap, BTreeSet};

use sentinel::{NodeAddr, former_priority};

use super::Severity::{Note, Warning};
use super::{Case, Findings};

pub(super) fn diagnose(found: &mut Findings, case: &Case<'_>) {
    // The sentinels' latest INFO replies may differ for ten seconds.
    let mut seen: BTreeMap<&NodeAddr, BTreeSet<u64>> = BTreeMap::new();
    let mut raised: BTreeMap<&NodeAddr, (u64, u64)> = BTreeMap::new();
    for it in case.replicas().filter(|it| !it.down) {
        let Some(value) = it.priority else { continue };
        let former = former_priority(value);
        raised.extend(former.map(|former| (&it.addr, (value, former))));
        seen.entry(&it.addr).or_default().insert(former.unwrap_or(value));
    }
    let command = |node: &NodeAddr, value: u64| {
        format!("redis-cli -h {} -p {} CONFIG SET replica-priority {value}", node.host, node.port)
    };
    for (node, (value, former)) in raised {
        let what = format!("its replica-priority is {value}: a switchover --to raised it");
        let command = command(node, former);
        let remedy = format!(
            "wait until that has ended; if none is running, it ended without restoring the value: \
             {command}"
        );
        found.add(Warning, "priority-raised", node, what, remedy);
    }
    // A replica with 0 is excluded on purpose.
    let values: BTreeSet<u64> = seen.values().flatten().copied().filter(|it| *it > 0).collect();
    let Some(highest) = values.last().filter(|_| values.len() > 1) else { return };
    for (node, values) in &seen {
        let Some(value) = values.first().filter(|it| *it < highest && **it > 0) else { continue };
        let what = format!("its replica-priority is {value}, that of others up to {highest}");
        let remedy = format!("if that is not intended: {}", command(node, *highest));
        found.add(Note, "priorities-differ", node, what, remedy);
    }
}
