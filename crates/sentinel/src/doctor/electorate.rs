//! Findings about the sentinels as a group: identities, agreement, quorum.

use std::collections::{BTreeMap, BTreeSet};

use super::diagnose::{Findings, Severity};
use super::observed::Observed;
use crate::{MyId, NodeAddr};

/// Two sentinels with the same MYID were created from one configuration file.
pub(super) fn identities(findings: &mut Findings, observed: &Observed) {
    let mut by_id: BTreeMap<&MyId, BTreeSet<String>> = BTreeMap::new();
    for (_, answer) in observed.answered() {
        by_id.entry(&answer.id).or_default().insert(answer.reached.to_string());
    }
    for (id, places) in by_id.iter().filter(|(_, places)| places.len() > 1) {
        let places: Vec<&str> = places.iter().map(String::as_str).collect();
        let what =
            format!("the sentinels at {} have the same MYID {}", places.join(" and "), id.short());
        let remedy = "if they are two sentinels: stop one, remove the line \"sentinel myid\" \
                      from its file and start it. If it is one \
                      sentinel with two addresses, configure one of them";
        findings.add((Severity::Warning, "same-id"), &observed.name, what, remedy);
    }
}

/// Which sentinels name which master, at which epoch.
pub(super) fn agreement(findings: &mut Findings, observed: &Observed) {
    let highest = observed.views().map(|(_, _, view)| view.epoch).max().unwrap_or_default();
    for (sentinel, _, view) in observed.views().filter(|(_, _, view)| view.epoch < highest) {
        let what = format!(
            "it names {} at epoch {}, while other sentinels are at epoch {highest}",
            view.addr, view.epoch
        );
        let remedy = "it missed a failover: check that it reaches the Redis nodes and its peers; \
                      if it stays behind, restart it";
        findings.add((Severity::Fault, "stale-epoch"), &sentinel.addr, what, remedy);
    }
    let mut named: BTreeMap<&NodeAddr, Vec<String>> = BTreeMap::new();
    for (sentinel, _, view) in observed.views().filter(|(_, _, view)| view.epoch == highest) {
        named.entry(&view.addr).or_default().push(sentinel.addr.to_string());
    }
    if named.len() > 1 {
        let sides = named.iter().map(|(addr, who)| format!("{addr} by {}", who.join(", ")));
        let what = format!(
            "at epoch {highest} different masters are named: {}",
            sides.collect::<Vec<_>>().join("; ")
        );
        let remedy = format!(
            "determine the right master by ROLE and its data; then, on each sentinel that is \
             wrong: first SENTINEL REMOVE {0}, then \
             SENTINEL MONITOR {0} <ip> <port> <quorum> with the right address, then SENTINEL SET \
             {0} for its other settings",
            observed.name
        );
        findings.add((Severity::Fault, "disagreement"), &observed.name, what, remedy);
    }
    if observed.views().any(|(_, _, view)| view.failing_over) {
        findings.add(
            (Severity::Note, "failover"),
            &observed.name,
            "a failover is in progress",
            "run the doctor again in a few seconds",
        );
    } else if let Some((sentinel, _, view)) = observed.views().find(|(_, _, view)| view.down) {
        let what = format!("it considers the master {} down", view.addr);
        findings.add(
            (Severity::Fault, "master-down"),
            &sentinel.addr,
            what,
            "check whether it can reach the master; the other findings may explain why no \
             replica is promoted",
        );
    }
}

/// Whether enough sentinels are reachable.
pub(super) fn quorum(findings: &mut Findings, observed: &Observed) {
    let name = &observed.name;
    for (sentinel, _, view) in observed.views() {
        if let Some(Err(error)) = &view.ckquorum {
            let what = format!("CKQUORUM reports that no failover is possible: {error}");
            let remedy = "start the missing sentinels, or remove those that are gone for good \
                          with SENTINEL RESET; check that sentinels reach each other";
            findings.add((Severity::Fault, "quorum"), &sentinel.addr, what, remedy);
        }
        let down = view.peers.iter().filter(|peer| !peer.up).count();
        if down > 0 {
            let what = format!("it considers {down} of its {} peers down", view.peers.len());
            let remedy = format!(
                "if they are gone for good: SENTINEL RESET {name}; otherwise check the network \
                 between them"
            );
            findings.add((Severity::Warning, "peers-down"), &sentinel.addr, what, remedy);
        }
    }
    let reached: BTreeSet<&MyId> = observed.answered().map(|(_, answer)| &answer.id).collect();
    let listed = observed
        .views()
        .flat_map(|(_, _, view)| view.peers.iter().filter_map(|peer| peer.id.as_ref()));
    let all: BTreeSet<&MyId> = listed.chain(reached.iter().copied()).collect();
    if all.is_empty() {
        findings.add(
            (Severity::Fault, "no-sentinels"),
            name,
            "no sentinel answers",
            "resolve the findings about the individual sentinels; without one, no master is known",
        );
        return;
    }
    let majority = all.len() / 2 + 1;
    if reached.len() < majority {
        let what = format!(
            "only {} of {} sentinels are reachable from this host, and {majority} are a majority",
            reached.len(),
            all.len()
        );
        let remedy = "a switch cannot be confirmed from this host; make the other sentinels \
                      reachable (learn_sentinels, address_map, network policies)";
        findings.add((Severity::Fault, "majority"), name, what, remedy);
    }
    if all.len() < 3 {
        let what = format!("there are only {} sentinels", all.len());
        let remedy = "run at least three, each on a host of its own: with fewer, the loss of one \
                      makes failovers impossible";
        findings.add((Severity::Warning, "few-sentinels"), name, what, remedy);
    }
    for (sentinel, _, view) in observed.views() {
        if let Some(quorum) =
            view.quorum.filter(|quorum| *quorum > all.len() as u64 || *quorum == 0)
        {
            let what = format!("its quorum is {quorum}, with {} sentinels in total", all.len());
            findings.add(
                (Severity::Fault, "quorum-setting"),
                &sentinel.addr,
                what,
                format!("SENTINEL SET {name} quorum {majority}"),
            );
        }
    }
}
