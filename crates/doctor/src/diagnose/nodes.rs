//! Findings about Redis nodes: whether the master is a master and can be dialled, and whether a
//! replica could be promoted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sentinel::{Denied, NodeAddr, NodeReport, PingReply, Role, Verify};

use super::{
    Context, Findings, LOCAL_PORTS, OUTSIDE_NODES, OUTSIDE_NODES_REMEDY, Severity, forgotten,
    refusals,
};
use super::{cures, electorate, transport};
use crate::observed::{ExamineError, Observed, ObservedNode, describe_error};

pub(super) fn diagnose(findings: &mut Findings, observed: &Observed, context: &Context) {
    let highest = observed.views().map(|(_, _, view)| view.epoch).max();
    let masters: BTreeSet<&NodeAddr> = observed
        .views()
        .filter(|(_, _, view)| Some(view.epoch) == highest)
        .map(|(_, _, view)| &view.addr)
        .collect();
    let odd = passwords(findings, observed, context);
    for node in &observed.nodes {
        let is_master = masters.contains(&node.addr);
        match &node.answer {
            Err(ExamineError::Denied(_)) if odd.contains(&node.addr) => {}
            Err(ExamineError::Denied(denied)) => {
                refusals(findings, &node.addr, std::slice::from_ref(denied), "redis");
            }
            Err(ExamineError::Tls(fault)) => {
                let severity = if is_master { Severity::Fault } else { Severity::Warning };
                let key = "service.redis_tls";
                transport::fault(findings, &node.addr, fault, key, severity);
            }
            // Reported with those who list it.
            Err(_) if observed.is_replica_gone(&node.addr) && !is_master => {}
            Err(error) => unreachable(findings, node, error, is_master, context),
            Ok(_) if context.verify == Verify::Tcp => {}
            Ok(_) => answered(findings, observed, context, node, is_master, &masters),
        }
        if is_master {
            write_guard(findings, observed, node);
            persistence(findings, node);
            unlisted(findings, observed, context, node);
        }
    }
    replicas(findings, observed, context, &masters);
    candidates(findings, observed, context);
}

/// Whether a node wants a password, if that is known, and whether it accepts ours. `None` if it
/// does not answer.
fn wants_password(node: &ObservedNode, context: &Context) -> Option<(Option<bool>, bool)> {
    let users = node.details.users.iter().flatten();
    let mut default = users.filter(|it| it.name == "default" && it.enabled).map(|it| !it.nopass);
    match &node.answer {
        Err(ExamineError::Denied(
            Denied::PasswordMissing { .. } | Denied::WrongPassword { .. },
        )) => Some((Some(true), false)),
        Ok(_) if context.verify == Verify::Tcp => None,
        Ok(_) if !context.nodes_need_login => Some((Some(false), true)),
        Ok(_) => Some((default.next(), true)),
        Err(_) => None,
    }
}

/// Nodes with another password than the others, or with one where the others have none. Clients of
/// one master are refused when the next failover promotes the other. Returns these nodes.
fn passwords<'a>(
    findings: &mut Findings,
    observed: &'a Observed,
    context: &Context,
) -> BTreeSet<&'a NodeAddr> {
    let known: Vec<_> = observed
        .nodes
        .iter()
        .filter_map(|node| Some((&node.addr, wants_password(node, context)?)))
        .collect();
    let having = |is: fn(Option<bool>, bool) -> bool| -> BTreeSet<&NodeAddr> {
        known.iter().filter(|(_, (wants, accepts))| is(*wants, *accepts)).map(|it| it.0).collect()
    };
    let (with, without) =
        (having(|wants, _| wants == Some(true)), having(|wants, _| wants == Some(false)));
    let (refusing, accepting) = (having(|_, accepts| !accepts), having(|_, accepts| accepts));
    let remedy = "set requirepass, masterauth and the ACL users equally on every node: a failover \
                  promotes any of them, and its replicas and the clients log in there as before";
    let of = (Severity::Fault, "password");
    if !with.is_empty() && !without.is_empty() {
        let what = format!("it requires a password, and {} does not", join(&without));
        with.iter().for_each(|addr| findings.add(of, addr, what.as_str(), remedy));
        return refusing;
    }
    if refusing.is_empty() || accepting.is_empty() {
        return BTreeSet::new();
    }
    let what = format!("it rejects the user or the password that {} accepts", join(&accepting));
    refusing.iter().for_each(|addr| findings.add(of, addr, what.as_str(), remedy));
    refusing
}

fn join(addrs: &BTreeSet<&NodeAddr>) -> String {
    addrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
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
        ExamineError::OutOfPorts => ("local-ports", LOCAL_PORTS),
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
    let severity = if is_master { Severity::Fault } else { Severity::Warning };
    let wait = "wait; INFO persistence and INFO replication show its progress";
    let (what, remedy) = match report.ping {
        PingReply::Loading => ("it answers PING with -LOADING: it is loading its data", wait),
        PingReply::MasterDown => (
            "it answers PING with -MASTERDOWN: it has no link to its master, and \
             replica-serve-stale-data is no",
            wait,
        ),
        PingReply::Other => {
            let words = node.details.ping.as_deref().unwrap_or("something else");
            let remedy = "the sentinels need PONG as well, and consider it down: check \
                          rename-command and whether a Redis server listens there";
            let what = format!("it does not answer PING with PONG: {words}");
            return findings.add((severity, "no-pong"), &node.addr, what, remedy);
        }
        other => {
            if let Some(what) = other.refusal() {
                let remedy = "free its disk, or end the script; the sentinels consider a node down \
                              that answers PING like this, and may fail over";
                findings.add((Severity::Warning, "refuses"), &node.addr, what, remedy);
            }
            return;
        }
    };
    findings.add((severity, "no-pong"), &node.addr, what, remedy);
}

/// Commands without which a node is not verified at all, or not its history.
fn probe_commands(findings: &mut Findings, node: &ObservedNode, report: &NodeReport) {
    if !report.ping.is_ready() || report.ping == PingReply::Busy {
        return;
    }
    let words = |it: &Option<tls::OutsideText>| it.as_deref().map(|it| format!(": {it}"));
    if report.role == Role::Unknown {
        let said = words(&node.details.role_error).unwrap_or_default();
        let what = format!("it does not tell its role{said}");
        let remedy = "Pointsman asks ROLE and never uses a node that does not answer it: remove \
                      rename-command ROLE there, or set verify = \"ping\", which trusts the \
                      sentinels alone";
        return findings.add((Severity::Fault, "no-role"), &node.addr, what, remedy);
    }
    if report.lineage.is_some() {
        return;
    }
    match &node.details.info_error {
        Some(error) if error.starts_with("NOPERM") => findings.add(
            (Severity::Warning, "acl"),
            &node.addr,
            "its ACL does not allow our user to run INFO: the lineage of a new master cannot be \
             checked",
            "on that redis: ACL SETUSER <our user> +info",
        ),
        error => findings.add(
            (Severity::Warning, "no-info"),
            &node.addr,
            format!("it does not tell its history{}", words(error).unwrap_or_default()),
            "Pointsman and the sentinels ask INFO: remove rename-command INFO there. Without it \
             the sentinels learn no replicas, and sessions are closed at a failover",
        ),
    }
}

fn answered(
    findings: &mut Findings,
    observed: &Observed,
    context: &Context,
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
    if context.verify == Verify::Role {
        probe_commands(findings, node, report);
    }
}

/// Whether the master would come back without its data.
fn persistence(findings: &mut Findings, node: &ObservedNode) {
    if node.details.persists == Some(false) {
        let what = "it keeps its data in memory only (save \"\", appendonly no): restarted before \
                    the sentinels find it down, it is the master without data, and its replicas \
                    copy that";
        let remedy = "set appendonly yes or save, or let nothing restart it within \
                      down-after-milliseconds (Restart= in systemd, restart policies of containers)";
        findings.add((Severity::Note, "no-persistence"), &node.addr, what, remedy);
    }
}

/// Replicas that the master has, and that no sentinel lists.
fn unlisted(findings: &mut Findings, observed: &Observed, context: &Context, node: &ObservedNode) {
    let Some(own) = node.report().and_then(|it| it.replicas.as_ref()) else { return };
    let views = || observed.views().filter(|(.., view)| view.addr == node.addr);
    let listed: BTreeSet<&NodeAddr> =
        views().flat_map(|(.., view)| view.replicas.iter().map(|it| &it.addr)).collect();
    // Sentinels may list the address of a name.
    if views().any(|(.., view)| view.failing_over) || listed.len() >= own.len() {
        return;
    }
    let distinct: BTreeSet<&NodeAddr> = own.iter().map(|it| &it.addr).collect();
    if distinct.len() < own.len() {
        let what = format!(
            "{} replicas announce {} addresses to it: {}",
            own.len(),
            distinct.len(),
            join(&distinct)
        );
        let remedy = "give each replica a replica-announce-ip and replica-announce-port of its own: \
                      the sentinels take several at one address for one";
        findings.add((Severity::Warning, "replica-unlisted"), &node.addr, what, remedy);
        return;
    }
    for addr in distinct.difference(&listed) {
        let what = "the master has this replica, and no sentinel lists it: it is never promoted";
        let (remedy, commands) = if addr.ip().is_none() {
            let remedy = "it announces a name, which sentinels ignore by default: sentinel \
                          resolve-hostnames yes on each of them (and announce-hostnames, if \
                          clients use names), or an address in replica-announce-ip";
            (remedy, cures::resolve_names(observed, context))
        } else {
            let remedy = "sentinels ask the master every ten seconds: run the doctor again. If it \
                          stays, check that they log in with a user that may run INFO";
            (remedy, Vec::new())
        };
        findings.add((Severity::Warning, "replica-unlisted"), addr, what, remedy);
        findings.with_commands(&commands);
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
    let own = node.report().and_then(|it| it.replicas.as_ref()).map_or(0, |it| it.len());
    let replicas = listed.len().max(own) as u64;
    let Some(guard) = node.details.write_guard.filter(|_| replicas > 0) else { return };
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

/// Replicas that sentinels find down or without a link, once each. One that says here what is
/// wrong has its own finding.
fn replicas(
    findings: &mut Findings,
    observed: &Observed,
    context: &Context,
    masters: &BTreeSet<&NodeAddr>,
) {
    let mut broken: BTreeMap<&NodeAddr, BTreeSet<String>> = BTreeMap::new();
    for (sentinel, _, view) in observed.views() {
        for it in view.replicas.iter().filter(|it| it.down || !it.linked) {
            broken.entry(&it.addr).or_default().insert(sentinel.addr.to_string());
        }
    }
    for (addr, who) in broken.into_iter().filter(|(addr, _)| !masters.contains(addr)) {
        let who: Vec<String> = who.into_iter().collect();
        let who = who.join(", ");
        let answer = observed.node(addr).map(|node| &node.answer);
        match answer {
            Some(Err(error)) if observed.is_replica_gone(addr) => {
                let what = format!(
                    "it is listed as a replica by {who}, which find it down, and {}",
                    describe_error(error)
                );
                forgotten(findings, observed, context, addr, what, "it is reported and probed");
            }
            Some(Err(_)) => {}
            Some(Ok(report)) if matches!(report.role, Role::Replica { connected: false, .. }) => {}
            _ => {
                let runs = if answer.is_some() { ", and it answers here" } else { "" };
                let what = format!("{who}: it is down or without a link to the master{runs}");
                let remedy = "check the network between them, and INFO replication there";
                findings.add((Severity::Warning, "replica-down"), addr, what, remedy);
            }
        }
    }
}

/// Whether a failover would find a candidate for promotion.
fn candidates(findings: &mut Findings, observed: &Observed, context: &Context) {
    let listed: Vec<_> = observed.views().flat_map(|(_, _, view)| &view.replicas).collect();
    let Some((.., any)) = observed.views().next() else { return };
    let name = &observed.name;
    if listed.is_empty() {
        let is_lost = observed.views().all(|(.., view)| view.down && !view.failing_over)
            && observed.is_node_gone(&any.addr);
        if !is_lost {
            let what = "no sentinel knows a replica";
            let remedy = "a failover has no candidate for promotion: add a replica";
            return findings.add((Severity::Warning, "no-replicas"), name, what, remedy);
        }
        let remedy = format!(
            "sentinels that were RESET, or lost their files, before the master died never learn \
             its replicas. If the master does not come back, set NEW_HOST and NEW_PORT to the \
             replica with the newest data (INFO replication: slave_repl_offset): it becomes the \
             master first, and then every sentinel drops the name and monitors it{}",
            cures::preparation(context)
        );
        let what = "no sentinel knows a replica, and the master is gone: nothing is promoted";
        findings.add((Severity::Fault, "no-replicas"), name, what, remedy);
        findings.with_commands(&cures::promote_by_hand(observed, context));
        return;
    }
    if listed.iter().all(|it| it.priority == Some(0)) {
        let what = "every replica has replica-priority 0";
        findings.add(
            (Severity::Fault, "no-candidate"),
            name,
            what,
            "a failover promotes none of them: give one a priority above 0",
        );
    } else if listed.iter().all(|it| it.down || it.priority == Some(0)) {
        let all: BTreeSet<&NodeAddr> = listed.iter().map(|it| &it.addr).collect();
        let what = format!("no replica could be promoted: the sentinels find {} down", join(&all));
        let remedy = "start one, or make it reachable for the sentinels: until then the death of \
                      the master is the end of all writes";
        findings.add((Severity::Fault, "no-candidate"), name, what, remedy);
    }
}
