//! Findings about Redis nodes: whether the master is a master and can be dialled, and whether a
//! replica could be promoted.

use std::collections::BTreeSet;
use std::time::Duration;

use super::diagnose::{Context, Findings, OUTSIDE_NODES, OUTSIDE_NODES_REMEDY, Severity, refusals};
use super::observed::{ExamineError, Observed, ObservedNode, describe_error};
use super::{cures, electorate, transport};
use crate::{NodeAddr, NodeReport, PingReply, Role, Verify};

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
            Err(ExamineError::Tls(fault)) => {
                let severity = if is_master { Severity::Fault } else { Severity::Warning };
                let key = "service.redis_tls";
                transport::fault(findings, &node.addr, fault, (key, severity));
            }
            Err(error) => unreachable(findings, node, error, is_master, context),
            Ok(_) if context.verify == Verify::Tcp => {}
            Ok(_) => answered(findings, (observed, context), node, is_master, &masters),
        }
        if is_master {
            write_guard(findings, observed, node);
        }
    }
    replicas(findings, observed, context, &masters);
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
        ExamineError::OutsideNodes => (OUTSIDE_NODES, OUTSIDE_NODES_REMEDY),
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

fn ping(findings: &mut Findings, node: &ObservedNode, report: &NodeReport, is_master: bool) {
    if !report.ping.is_ready() || report.ping == PingReply::Other {
        let what = match report.ping {
            PingReply::Loading => "it answers PING with -LOADING: it is loading its data",
            PingReply::MasterDown => {
                "it answers PING with -MASTERDOWN: it has no link to its master, and \
                 replica-serve-stale-data is no"
            }
            _ => "it does not answer PING with PONG, nor with a known error",
        };
        let severity = if is_master { Severity::Fault } else { Severity::Warning };
        findings.add(
            (severity, "no-pong"),
            &node.addr,
            what,
            "wait; INFO persistence and INFO replication show its progress",
        );
    } else if let Some(what) = report.ping.refusal() {
        let remedy = "free its disk, or end the script; the sentinels consider a node down that \
                      answers PING like this, and may fail over";
        findings.add((Severity::Warning, "refuses"), &node.addr, what, remedy);
    }
}

fn answered(
    findings: &mut Findings,
    (observed, context): (&Observed, &Context),
    node: &ObservedNode,
    is_master: bool,
    masters: &BTreeSet<&NodeAddr>,
) {
    let Ok(report) = &node.answer else { return };
    ping(findings, node, report, is_master);
    match (&report.role, is_master) {
        (Role::Replica { master, .. }, true) => {
            let what = format!(
                "the sentinels name it as the master, and it reports that it is a replica of \
                 {master}"
            );
            let commands = cures::realign(observed, context);
            let remedy = format!(
                "a failover may be in progress: run the doctor again. If it stays and this node \
                 has the data: REPLICAOF NO ONE there. Otherwise: {}",
                electorate::cure(observed, context, &commands)
            );
            findings.add((Severity::Fault, "not-master"), &node.addr, what, remedy);
            findings.with_commands(&commands);
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
    if report.role != Role::Unknown && report.lineage.is_none() && report.ping.is_ready() {
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

/// Whether the master stops accepting writes when it loses its replicas. While a proxy continues in
/// a minority, or clients bypass it, nothing else bounds what a master that was cut off accepts.
fn write_guard(findings: &mut Findings, observed: &Observed, node: &ObservedNode) {
    let listed: BTreeSet<&NodeAddr> = observed
        .views()
        .filter(|(_, _, view)| view.addr == node.addr)
        .flat_map(|(_, _, view)| view.replicas.iter().map(|it| &it.addr))
        .collect();
    let replicas = listed.len() as u64;
    let Some(guard) = node.write_guard.filter(|_| replicas > 0) else { return };
    let of = (Severity::Warning, "min-replicas");
    if !guard.enabled {
        let what = "min-replicas-to-write is off: a master that was cut off from its replicas \
                    keeps accepting writes, which are lost when another one is promoted";
        let remedy = "min-replicas-to-write 1 and min-replicas-max-lag 10 on every node bound it \
                      to ten seconds; writes then need one reachable replica";
        return findings.add((Severity::Note, "min-replicas"), &node.addr, what, remedy);
    }
    let Some(to_write) = guard.to_write else { return };
    if to_write > replicas {
        let what = format!(
            "min-replicas-to-write is {to_write}, and it has {replicas} replicas: it refuses all \
             writes"
        );
        let remedy = format!("add replicas, or CONFIG SET min-replicas-to-write {}", replicas / 2);
        findings.add((Severity::Fault, "min-replicas"), &node.addr, what, remedy);
    } else if guard.good.is_some_and(|good| good < to_write) {
        let what = format!(
            "it refuses writes: {} of its replicas have acknowledged within \
             min-replicas-max-lag, and min-replicas-to-write is {to_write}",
            guard.good.unwrap_or(0)
        );
        let remedy = "check the replicas and the network to them; INFO replication shows the lag";
        findings.add((Severity::Fault, "min-replicas"), &node.addr, what, remedy);
    } else if to_write == replicas {
        let what = format!(
            "min-replicas-to-write is {to_write}, and it has {replicas} replicas: the loss of one \
             stops all writes, and so does each failover until all follow the new master"
        );
        findings.add(of, &node.addr, what, "add a replica, or lower min-replicas-to-write");
    }
    // Replicas acknowledge once per second.
    if guard.max_lag.is_some_and(|lag| lag < Duration::from_secs(2)) {
        let what = "min-replicas-max-lag is 1, and replicas acknowledge once per second";
        findings.add(of, &node.addr, what, "set at least 2, or writes are refused now and then");
    }
}

/// Whether a failover would find a candidate for promotion.
fn replicas(
    findings: &mut Findings,
    observed: &Observed,
    context: &Context,
    masters: &BTreeSet<&NodeAddr>,
) {
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
            let gone = view.replicas.iter().any(|it| it.down && observed.is_node_gone(&it.addr));
            let commands = if gone { cures::forget(observed, context) } else { Vec::new() };
            let note = if commands.is_empty() { "" } else { cures::preparation(context) };
            let remedy = format!(
                "check that they run and follow the master; those that are gone for good stay \
                 listed until SENTINEL RESET, which is safe only while the master is up{note}"
            );
            findings.add((Severity::Warning, "replica-down"), &sentinel.addr, what, remedy);
            findings.with_commands(&commands);
        }
    }
}
