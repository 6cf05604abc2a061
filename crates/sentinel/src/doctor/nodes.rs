//! Findings about Redis nodes: whether the master is a master and can be dialled, and whether a
//! replica could be promoted.

use std::collections::BTreeSet;

use super::diagnose::{Context, Findings, Severity, describe_error, refusals};
use super::observed::{ExamineError, Observed, ObservedNode};
use crate::{NodeAddr, Role, Verify};

pub(super) fn diagnose(findings: &mut Findings, observed: &Observed, context: &Context) {
    let highest = observed.views().map(|(_, _, view)| view.epoch).max();
    let masters: BTreeSet<&NodeAddr> = observed
        .views()
        .filter(|(_, _, view)| Some(view.epoch) == highest)
        .map(|(_, _, view)| &view.addr)
        .collect();
    for node in &observed.nodes {
        let is_master = masters.contains(&node.addr);
        match &node.answer {
            Err(ExamineError::Denied(denied)) => {
                refusals(findings, &node.addr, std::slice::from_ref(denied), "redis");
            }
            Err(error) => unreachable(findings, node, error, is_master, context),
            Ok(_) if context.verify == Verify::Tcp => {}
            Ok(_) => answered(findings, &observed.name, node, is_master, &masters),
        }
    }
    replicas(findings, observed, &masters);
}

fn unreachable(
    findings: &mut Findings,
    node: &ObservedNode,
    error: &ExamineError,
    is_master: bool,
    context: &Context,
) {
    let kind = if is_master { "master" } else { "replica" };
    let what = match node.dialled.map(NodeAddr::from).filter(|dialled| *dialled != node.addr) {
        Some(dialled) => {
            format!(
                "the sentinels announce this {kind}; dialled at {dialled}: {}",
                describe_error(error)
            )
        }
        None => format!("the sentinels announce this {kind}; {}", describe_error(error)),
    };
    let (code, remedy) = match error {
        ExamineError::Unresolved(_) => (
            "dns",
            "the announced name must resolve on this host; see announce-hostnames, or set \
             address_map",
        ),
        ExamineError::LeadsBack => (
            "loop",
            "the address belongs to this proxy: remove it from the sentinels, or correct \
             address_map",
        ),
        ExamineError::Unresponsive => ("unresponsive", "it is busy or stopped; check its host"),
        _ if context.mapped.contains(&node.addr) => {
            ("not-dialable", "correct its entry in address_map")
        }
        _ => (
            "not-dialable",
            "if it runs, this address is not valid on this host: make the node announce another \
             (replica-announce-ip), set \
             address_map for NAT, or open firewalls and network policies",
        ),
    };
    let severity = if is_master { Severity::Fault } else { Severity::Warning };
    findings.add((severity, code), &node.addr, what, remedy);
}

fn answered(
    findings: &mut Findings,
    name: &str,
    node: &ObservedNode,
    is_master: bool,
    masters: &BTreeSet<&NodeAddr>,
) {
    let Ok(report) = &node.answer else { return };
    if !report.pong {
        let what = "it does not answer PING with PONG: it is loading its data, or has no link to \
                    its master";
        let severity = if is_master { Severity::Fault } else { Severity::Warning };
        findings.add(
            (severity, "no-pong"),
            &node.addr,
            what,
            "wait; INFO persistence and INFO replication show its progress",
        );
    }
    match (&report.role, is_master) {
        (Role::Replica { master, .. }, true) => {
            let what = format!(
                "the sentinels name it as the master, and it reports that it is a replica of \
                 {master}"
            );
            let remedy = format!(
                "a failover may be in progress: run the doctor again. If it stays, determine the \
                 right master by ROLE and its data. \
                 If it is this node: REPLICAOF NO ONE there. Otherwise, on each sentinel that is \
                 wrong, in this order: SENTINEL REMOVE \
                 {name}, then SENTINEL MONITOR {name} <ip> <port> <quorum>, then SENTINEL SET \
                 {name} for its other settings \
                 (SENTINEL RESET changes neither address nor epoch)"
            );
            findings.add((Severity::Fault, "not-master"), &node.addr, what, remedy);
        }
        (Role::Master, false) => {
            let what = "it reports that it is a master, and the sentinels name another";
            let remedy = "for about ten seconds after a failover this is normal; if it stays, it \
                          accepts writes that will be lost: \
                          make it a replica with REPLICAOF";
            findings.add((Severity::Fault, "second-master"), &node.addr, what, remedy);
        }
        (Role::Replica { master, .. }, false)
            if !masters.contains(master) && !masters.is_empty() =>
        {
            let what =
                format!("it follows {master}, which the sentinels do not name as the master");
            let remedy = "if both addresses belong to one host, make all servers announce the \
                          same one; otherwise REPLICAOF the master";
            findings.add((Severity::Warning, "wrong-master"), &node.addr, what, remedy);
        }
        (Role::Replica { connected: false, .. }, false) => {
            let what = "its link to the master is broken";
            let remedy = "check INFO replication there: masterauth, masteruser and the network \
                          are the usual causes";
            findings.add((Severity::Warning, "broken-link"), &node.addr, what, remedy);
        }
        _ => {}
    }
    if report.role != Role::Unknown && report.lineage.is_none() && report.pong {
        let what = "its ACL does not allow our user to run INFO: the lineage of a new master \
                    cannot be checked";
        findings.add(
            (Severity::Warning, "acl"),
            &node.addr,
            what,
            "on that redis: ACL SETUSER <our user> +info",
        );
    }
}

/// Whether a failover would find a candidate for promotion.
fn replicas(findings: &mut Findings, observed: &Observed, masters: &BTreeSet<&NodeAddr>) {
    let listed: Vec<_> = observed.views().flat_map(|(_, _, view)| &view.replicas).collect();
    if observed.views().next().is_none() {
        return;
    }
    let name = &observed.name;
    if listed.is_empty() {
        let what = "no sentinel knows a replica";
        findings.add(
            (Severity::Warning, "no-replicas"),
            name,
            what,
            "a failover has no candidate for promotion: add a replica",
        );
    } else if listed.iter().all(|it| it.priority == Some(0)) {
        let what = "every replica has replica-priority 0";
        findings.add(
            (Severity::Fault, "no-candidate"),
            name,
            what,
            "a failover promotes none of them: give one a priority above 0",
        );
    }
    for (sentinel, _, view) in observed.views() {
        let broken: Vec<String> = view
            .replicas
            .iter()
            .filter(|it| (it.down || !it.linked) && !masters.contains(&it.addr))
            .map(|it| it.addr.to_string())
            .collect();
        if !broken.is_empty() {
            let what = format!(
                "it considers replicas down or without a link to the master: {}",
                broken.join(", ")
            );
            let remedy = format!(
                "check that they run and follow the master; those that are gone for good stay \
                 listed until SENTINEL RESET {name}"
            );
            findings.add((Severity::Warning, "replica-down"), &sentinel.addr, what, remedy);
        }
    }
}
