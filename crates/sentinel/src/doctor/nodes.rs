//! The findings about redis nodes: whether the master is one and can be dialled, and whether
//! anybody could take its place.

use std::collections::BTreeSet;

use super::diagnose::{Context, Findings, Severity, in_words, refusals};
use super::observed::{NoAnswer, Observed, ObservedNode};
use crate::{NodeAddr, Role, Verify};

pub(super) fn diagnose(findings: &mut Findings, observed: &Observed, context: &Context) {
    let highest = observed.words().map(|(_, _, word)| word.epoch).max();
    let masters: BTreeSet<&NodeAddr> = observed
        .words()
        .filter(|(_, _, word)| Some(word.epoch) == highest)
        .map(|(_, _, word)| &word.addr)
        .collect();
    for node in &observed.nodes {
        let is_master = masters.contains(&node.addr);
        match &node.answer {
            Err(NoAnswer::Denied(denied)) => {
                refusals(findings, &node.addr, std::slice::from_ref(denied), "redis")
            }
            Err(why) => unreachable(findings, node, why, is_master, context),
            Ok(_) if context.verify == Verify::Tcp => {}
            Ok(_) => answered(findings, node, is_master, &masters),
        }
    }
    replicas(findings, observed, &masters);
}

fn unreachable(
    findings: &mut Findings,
    node: &ObservedNode,
    why: &NoAnswer,
    is_master: bool,
    context: &Context,
) {
    let kind = if is_master { "master" } else { "replica" };
    let what = match node.dialled.map(NodeAddr::from).filter(|dialled| *dialled != node.addr) {
        Some(dialled) => {
            format!("the sentinels announce this {kind}; dialled at {dialled}: {}", in_words(why))
        }
        None => format!("the sentinels announce this {kind}; {}", in_words(why)),
    };
    let (code, remedy) = match why {
        NoAnswer::Unresolved(_) => (
            "dns",
            "the announced name must resolve here; see announce-hostnames, or give address_map",
        ),
        NoAnswer::LeadsBack => (
            "loop",
            "the address is this proxy's own: clear it from the sentinels, or correct address_map",
        ),
        NoAnswer::Silent => ("silent", "it is busy or stopped; look at its machine"),
        _ if context.mapped.contains(&node.addr) => {
            ("not-dialable", "correct its entry in address_map")
        }
        _ => (
            "not-dialable",
            "if it runs, this address means nothing here: let it announce another (replica-announce-ip), give address_map for \
             NAT, or open firewalls and network policies",
        ),
    };
    let severity = if is_master { Severity::Fault } else { Severity::Warning };
    findings.add((severity, code), &node.addr, what, remedy);
}

fn answered(
    findings: &mut Findings,
    node: &ObservedNode,
    is_master: bool,
    masters: &BTreeSet<&NodeAddr>,
) {
    let Ok(report) = &node.answer else { return };
    if !report.pong {
        let what =
            "it does not answer PING with PONG: it is loading its data, or has no master to follow";
        let severity = if is_master { Severity::Fault } else { Severity::Warning };
        findings.add(
            (severity, "no-pong"),
            &node.addr,
            what,
            "wait for it; INFO persistence and INFO replication tell how far it is",
        );
    }
    match (&report.role, is_master) {
        (Role::Replica { master, .. }, true) => {
            let what = format!(
                "the sentinels call it the master, and it says that it is a replica of {master}"
            );
            let remedy = "a failover may be under way: ask again; if it stays, SENTINEL RESET, or REPLICAOF NO ONE on the right node";
            findings.add((Severity::Fault, "not-master"), &node.addr, what, remedy);
        }
        (Role::Master, false) => {
            let what = "it says that it is a master, and the sentinels name another";
            let remedy = "right after a failover that lasts about ten seconds; if it stays, it takes writes that will be lost: \
                          make it a replica with REPLICAOF";
            findings.add((Severity::Fault, "second-master"), &node.addr, what, remedy);
        }
        (Role::Replica { master, .. }, false)
            if !masters.contains(master) && !masters.is_empty() =>
        {
            let what = format!("it follows {master}, which the sentinels do not call the master");
            let remedy = "if the addresses mean one machine, let all announce the same one; otherwise REPLICAOF the master";
            findings.add((Severity::Warning, "wrong-master"), &node.addr, what, remedy);
        }
        (Role::Replica { connected: false, .. }, false) => {
            let what = "its link to the master is broken";
            let remedy = "see INFO replication there: masterauth, masteruser and the network are the usual causes";
            findings.add((Severity::Warning, "broken-link"), &node.addr, what, remedy);
        }
        _ => {}
    }
    if report.role != Role::Unknown && report.lineage.is_none() && report.pong {
        let what =
            "its ACL does not let our user run INFO: the lineage of a new master cannot be checked";
        findings.add(
            (Severity::Warning, "acl"),
            &node.addr,
            what,
            "on that redis: ACL SETUSER <our user> +info",
        );
    }
}

/// Whether a failover would find a candidate.
fn replicas(findings: &mut Findings, observed: &Observed, masters: &BTreeSet<&NodeAddr>) {
    let listed: Vec<_> = observed.words().flat_map(|(_, _, word)| &word.replicas).collect();
    if observed.words().next().is_none() {
        return;
    }
    let name = &observed.name;
    if listed.is_empty() {
        let what = "no sentinel knows a replica";
        findings.add(
            (Severity::Warning, "no-replicas"),
            name,
            what,
            "a failover has nobody to promote: add a replica",
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
    for (sentinel, _, word) in observed.words() {
        let broken: Vec<String> = word
            .replicas
            .iter()
            .filter(|it| (it.down || !it.linked) && !masters.contains(&it.addr))
            .map(|it| it.addr.to_string())
            .collect();
        if !broken.is_empty() {
            let what = format!(
                "it holds replicas to be down or without a link to the master: {}",
                broken.join(", ")
            );
            let remedy = format!(
                "see whether they run and follow the master; those that are gone for good are listed until SENTINEL RESET {name}"
            );
            findings.add((Severity::Warning, "replica-down"), &sentinel.addr, what, remedy);
        }
    }
}
