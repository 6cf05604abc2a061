//! Findings about Redis nodes: whether they can be dialled and have the role that the sentinels
//! name, and whether clients may announce sentinels there.

use std::collections::{BTreeMap, BTreeSet};
use std::slice::from_ref;

use sentinel::{Denied, NodeAddr, NodeReport, PingReply, Role, Verify};

use super::Severity::{Fault, Note, Warning};
use super::{
    Case, Context, Findings, Severity, cause, cures, electorate, forgotten, join, refusals,
    transport,
};
use crate::observed::{AclUser, ExamineError, HELLO, ObservedNode};

pub(super) fn diagnose(found: &mut Findings, case: &Case<'_>) {
    let odd = passwords(found, case);
    for node in &case.nodes {
        let severity = severity_of(case, node);
        let is_master = severity == Fault;
        match &node.answer {
            Err(ExamineError::Denied(_)) if odd.contains(&node.addr) => {}
            Err(ExamineError::Denied(denied)) => {
                refusals(found, &node.addr, from_ref(denied), "redis");
            }
            Err(ExamineError::Tls(fault)) => {
                let remedy = format!("[service.redis_tls] {}", fault.remedy);
                found.add(severity, transport::code(fault), &node.addr, &fault.what, remedy);
            }
            // Reported with those who list it.
            Err(_) if case.is_replica_gone(&node.addr) && !is_master => {}
            Err(error) => unreachable(found, case, node, error),
            Ok(_) if case.context.verify == Verify::Tcp => {}
            Ok(report) => answered(found, case, node, report),
        }
        hello_users(found, node);
        if is_master {
            write_guard(found, case, node);
            persistence(found, node);
            unlisted(found, case, node);
            elsewhere(found, case, node);
        }
    }
    replicas(found, case);
}

/// How much it matters that this node cannot be used.
fn severity_of(case: &Case<'_>, node: &ObservedNode) -> Severity {
    if case.named().contains(&node.addr) { Fault } else { Warning }
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
fn passwords<'a>(found: &mut Findings, case: &'a Case<'_>) -> BTreeSet<&'a NodeAddr> {
    let known = case.nodes.iter();
    let known = known.filter_map(|it| Some((&it.addr, wants_password(it, case.context)?)));
    let known: Vec<_> = known.collect();
    let having = |is: fn(Option<bool>, bool) -> bool| -> BTreeSet<&NodeAddr> {
        known.iter().filter(|(_, (wants, accepts))| is(*wants, *accepts)).map(|it| it.0).collect()
    };
    let (with, without) =
        (having(|wants, _| wants == Some(true)), having(|wants, _| wants == Some(false)));
    let (refusing, accepting) = (having(|_, accepts| !accepts), having(|_, accepts| accepts));
    let remedy = "set requirepass, masterauth and the ACL users equally on every node: a failover \
                  promotes any of them, and its replicas and the clients log in there as before";
    let mut add = |addrs: &BTreeSet<&NodeAddr>, what: &str| {
        addrs.iter().for_each(|addr| found.add(Fault, "password", addr, what, remedy));
    };
    if !with.is_empty() && !without.is_empty() {
        add(&with, &format!("it requires a password, and {} does not", join(&without)));
        return refusing;
    }
    if refusing.is_empty() || accepting.is_empty() {
        return BTreeSet::new();
    }
    let accepting = join(&accepting);
    add(&refusing, &format!("it rejects the user or the password that {accepting} accepts"));
    refusing
}

fn unreachable(found: &mut Findings, case: &Case<'_>, node: &ObservedNode, error: &ExamineError) {
    let severity = severity_of(case, node);
    let kind = if severity == Fault { "master" } else { "replica" };
    let dialled = node.dialled.map(NodeAddr::from).filter(|it| *it != node.addr);
    let dialled = dialled.map(|it| format!("dialled at {it}: ")).unwrap_or_default();
    let what = format!("the sentinels announce this {kind}; {dialled}{error}");
    let is_mapped = case.context.mapped.contains(&node.addr);
    let address = if is_mapped {
        "correct its entry in address_map"
    } else {
        "if it runs, this address is not valid on this host: make the node announce another \
         (replica-announce-ip), set address_map for NAT, or open firewalls and network policies"
    };
    let (code, remedy) = cause(error).unwrap_or(("not-dialable", address));
    found.add(severity, code, &node.addr, what, remedy);
}

fn ping(found: &mut Findings, node: &ObservedNode, report: &NodeReport, severity: Severity) {
    if let Some(what) = report.ping.refusal() {
        let remedy = "free its disk, or end the script; the sentinels consider a node down that \
                      answers PING like this, and may fail over";
        return found.add(Warning, "refuses", &node.addr, what, remedy);
    }
    if report.ping != PingReply::Pong {
        let words = node.details.ping.as_deref().unwrap_or(report.ping.label());
        let what = format!("it does not answer PING with PONG: {words}");
        let remedy = "while it loads its data or waits for its master, INFO persistence and INFO \
                      replication show the progress. The sentinels need PONG as well, and consider \
                      it down: otherwise check rename-command, replica-serve-stale-data and \
                      whether a Redis server listens there";
        found.add(severity, "no-pong", &node.addr, what, remedy);
    }
}

/// Commands without which a node is not verified at all, or not its history.
fn probe_commands(found: &mut Findings, node: &ObservedNode, report: &NodeReport) {
    if !report.ping.is_ready() || report.ping == PingReply::Busy {
        return;
    }
    let words = |it: Option<&tls::OutsideText>| it.map_or_else(String::new, |it| format!(": {it}"));
    if report.role == Role::Unknown {
        let what = format!("it does not tell its role{}", words(node.details.role_error.as_ref()));
        let remedy = "Pointsman asks ROLE and never uses a node that does not answer it: remove \
                      rename-command ROLE there, or set verify = \"ping\", which trusts the \
                      sentinels alone";
        return found.add(Fault, "no-role", &node.addr, what, remedy);
    }
    if report.lineage.is_some() {
        return;
    }
    let error = node.details.info_error.as_ref();
    if error.is_some_and(|error| error.starts_with("NOPERM")) {
        let what = "its ACL does not allow our user to run INFO: the lineage of a new master \
                    cannot be checked";
        let remedy = "on that redis: ACL SETUSER <our user> +info";
        return found.add(Warning, "acl", &node.addr, what, remedy);
    }
    let what = format!("it does not tell its history{}", words(error));
    let remedy = "Pointsman and the sentinels ask INFO: remove rename-command INFO there. Without \
                  it the sentinels learn no replicas, and sessions are closed at a failover";
    found.add(Warning, "no-info", &node.addr, what, remedy);
}

/// Sentinels that have read another process at the master's address than the one reached from here.
fn elsewhere(found: &mut Findings, case: &Case<'_>, node: &ObservedNode) {
    let Some(here) = node.report().and_then(|it| it.lineage.as_ref()) else { return };
    let other = |run_id: &str| !run_id.is_empty() && *run_id != *here.run_id;
    let views = case.views().filter(|(.., view)| view.addr == node.addr && other(&view.run_id));
    let who: BTreeSet<_> = views.map(|(_, it, _)| it.reached.to_string()).collect();
    if who.is_empty() {
        return;
    }
    let what = format!(
        "another process answers here than {} found: requests are held while most of them do",
        join(&who)
    );
    let remedy = "right after a restart this passes with the sentinels' next INFO, within ten \
                  seconds. If it stays, the name or the address leads to another server from here: \
                  compare run_id in INFO server with runid in SENTINEL MASTER, and correct DNS or \
                  address_map";
    found.add(Fault, "other-process", &node.addr, what, remedy);
}

fn answered(found: &mut Findings, case: &Case<'_>, node: &ObservedNode, report: &NodeReport) {
    let severity = severity_of(case, node);
    ping(found, node, report, severity);
    let masters = case.named();
    match (&report.role, severity == Fault) {
        (Role::Replica { master, .. }, true) => {
            let what = format!(
                "the sentinels name it as the master, and it reports that it is a replica of \
                 {master}"
            );
            let commands = cures::realign(case);
            let cure = electorate::cure(case, &commands);
            let remedy = format!(
                "a failover may be in progress: run the doctor again. If it stays and this node \
                 has the data: REPLICAOF NO ONE there. Otherwise: {cure}"
            );
            found.add_with(Fault, "not-master", &node.addr, what, remedy, &commands);
        }
        (Role::Master, false) => {
            let what = "it reports that it is a master, and the sentinels name another";
            let remedy = "for about ten seconds after a failover this is normal; if it stays, and \
                          the named one is a master, this one accepts writes that will be lost: \
                          make it a replica with REPLICAOF";
            found.add(Fault, "second-master", &node.addr, what, remedy);
        }
        (Role::Replica { master, .. }, false)
            if !masters.contains(master) && !masters.is_empty() =>
        {
            let what =
                format!("it follows {master}, which the sentinels do not name as the master");
            let remedy = "if both addresses belong to one host, make all servers announce the \
                          same one; otherwise REPLICAOF the master";
            found.add(Warning, "wrong-master", &node.addr, what, remedy);
        }
        (Role::Replica { connected: false, .. }, false) => {
            let what = "its link to the master is broken";
            let remedy = "check INFO replication there: masterauth, masteruser and the network \
                          are the usual causes";
            found.add(Warning, "broken-link", &node.addr, what, remedy);
        }
        (Role::Replica { master, .. }, false) => unknown(found, case, master, &node.addr),
        _ => {}
    }
    if case.context.verify == Verify::Role {
        probe_commands(found, node, report);
    }
}

/// A replica that is missing in the list of its master. A name in the list may be that of any.
fn unknown(found: &mut Findings, case: &Case<'_>, master: &NodeAddr, addr: &NodeAddr) {
    let own = case.node(master).and_then(|it| it.report()?.replicas.as_ref());
    if own.is_some_and(|own| own.iter().all(|it| it.addr.ip().is_some() && it.addr != *addr)) {
        let what = "it follows the master, which lists it with port 0 or not at all: it \
                    serves no readers, and a sentinel that is RESET does not find it again";
        let remedy = "if it stays for more than a second: permit +psync +replconf +ping to its \
                      user on the master (masteruser), and then run CLIENT KILL TYPE replica \
                      there; or correct its replica-announce-ip and replica-announce-port";
        found.add(Warning, "replica-unknown", addr, what, remedy);
    }
}

/// Whether the master would come back without its data.
fn persistence(found: &mut Findings, node: &ObservedNode) {
    if node.details.persists == Some(false) {
        let what = "it keeps its data in memory only (save \"\", appendonly no): restarted before \
                    the sentinels find it down, it is the master without data, and its replicas \
                    copy that";
        let remedy = "set appendonly yes or save, or let nothing restart it within \
                      down-after-milliseconds (Restart= in systemd, restart policies of containers)";
        found.add(Note, "no-persistence", &node.addr, what, remedy);
    }
}

/// The replicas that the sentinels list for this master.
fn listed_replicas<'a>(case: &'a Case<'_>, master: &NodeAddr) -> BTreeSet<&'a NodeAddr> {
    let views = case.views().filter(|(.., view)| view.addr == *master);
    views.flat_map(|(.., view)| view.replicas.iter().map(|it| &it.addr)).collect()
}

/// Replicas that the master has, and that no sentinel lists.
fn unlisted(found: &mut Findings, case: &Case<'_>, node: &ObservedNode) {
    let Some(own) = node.report().and_then(|it| it.replicas.as_ref()) else { return };
    let listed = listed_replicas(case, &node.addr);
    let mut views = case.views().filter(|(.., view)| view.addr == node.addr);
    // Sentinels may list the address of a name.
    if views.any(|(.., view)| view.failing_over) || listed.len() >= own.len() {
        return;
    }
    let distinct: BTreeSet<&NodeAddr> = own.iter().map(|it| &it.addr).collect();
    if distinct.len() < own.len() {
        let (replicas, addresses, all) = (own.len(), distinct.len(), join(&distinct));
        let what = format!("{replicas} replicas announce {addresses} addresses to it: {all}");
        let remedy = "give each replica a replica-announce-ip and replica-announce-port of its own: \
                      the sentinels take several at one address for one";
        return found.add(Warning, "replica-unlisted", &node.addr, what, remedy);
    }
    for addr in distinct.difference(&listed) {
        let what = "the master has this replica, and no sentinel lists it: it is never promoted";
        let remedy = if addr.ip().is_none() {
            "it announces a name, which sentinels ignore by default: SENTINEL CONFIG SET \
             resolve-hostnames yes on each of them (and announce-hostnames, if clients use names), \
             or an address in replica-announce-ip"
        } else {
            "sentinels ask the master every ten seconds: run the doctor again. If it stays, check \
             that they log in with a user that may run INFO"
        };
        found.add(Warning, "replica-unlisted", addr, what, remedy);
    }
}

/// Whether the master stops accepting writes when it loses its replicas. While a proxy continues in
/// a minority, or clients bypass it, nothing else bounds what a master that was cut off accepts.
fn write_guard(found: &mut Findings, case: &Case<'_>, node: &ObservedNode) {
    let listed = listed_replicas(case, &node.addr);
    let own = node.report().and_then(|it| it.replicas.as_ref()).map_or(0, |it| it.len());
    let replicas = listed.len().max(own) as u64;
    let Some(guard) = node.details.write_guard.filter(|_| replicas > 0) else { return };
    let mut add = |severity, what: &str, remedy: &str| {
        found.add(severity, "min-replicas", &node.addr, what, remedy);
    };
    let Some(good) = guard.good else {
        let what = "min-replicas-to-write is off: a master that was cut off from its replicas \
                    keeps accepting writes, which are lost when another one is promoted";
        let remedy = "min-replicas-to-write 1 and min-replicas-max-lag 10 on every node bound it \
                      to ten seconds; writes then need one reachable replica";
        return add(Note, what, remedy);
    };
    let Some(to_write) = guard.to_write else { return };
    if to_write > replicas {
        let what = format!(
            "min-replicas-to-write is {to_write}, and it has {replicas} replicas: it refuses all \
             writes"
        );
        let remedy = format!("add replicas, or CONFIG SET min-replicas-to-write {}", replicas / 2);
        add(Fault, &what, &remedy);
    } else if good < to_write {
        let what = format!(
            "it refuses writes: {good} of its replicas have acknowledged within \
             min-replicas-max-lag, and min-replicas-to-write is {to_write}"
        );
        let remedy = "check the replicas and the network to them; INFO replication shows the lag";
        add(Fault, &what, remedy);
    } else if to_write == replicas {
        let what = format!(
            "min-replicas-to-write is {to_write}, and it has {replicas} replicas: the loss of one \
             stops all writes, and so does each failover until all follow the new master"
        );
        add(Warning, &what, "add a replica, or lower min-replicas-to-write");
    }
}

/// Replicas that sentinels find down or without a link, once each. One that says here what is
/// wrong has its own finding.
fn replicas(found: &mut Findings, case: &Case<'_>) {
    let masters = case.named();
    let mut broken: BTreeMap<&NodeAddr, BTreeSet<String>> = BTreeMap::new();
    for (sentinel, _, view) in case.views() {
        for it in view.replicas.iter().filter(|it| it.down || !it.linked) {
            broken.entry(&it.addr).or_default().insert(sentinel.addr.to_string());
        }
    }
    for (addr, who) in broken.into_iter().filter(|(addr, _)| !masters.contains(addr)) {
        let who = join(who);
        let answer = case.node(addr).map(|node| &node.answer);
        match answer {
            Some(Err(error)) if case.is_replica_gone(addr) => {
                let what =
                    format!("it is listed as a replica by {who}, which find it down, and {error}");
                forgotten(found, case, addr, what, "it is reported and probed");
            }
            Some(Err(_)) => {}
            Some(Ok(report)) if matches!(report.role, Role::Replica { connected: false, .. }) => {}
            _ => {
                let runs = if answer.is_some() { ", and it answers here" } else { "" };
                let what = format!("{who}: it is down or without a link to the master{runs}");
                let remedy = "check the network between them, the sentinels' auth-pass, and INFO \
                              replication there";
                found.add(Warning, "replica-down", addr, what, remedy);
            }
        }
    }
}

/// Users that may announce sentinels without being one.
fn hello_users(found: &mut Findings, node: &ObservedNode) {
    let sentinels = &node.details.sentinel_users;
    let is_sentinel = |it: &AclUser| it.name != "default" && sentinels.contains(&it.name);
    let users = node.details.users.iter().flatten();
    let publishers = users.filter(|it| it.enabled && it.announces && !is_sentinel(it));
    let publishers: Vec<&str> = publishers.map(|it| &*it.name).collect();
    let Some(user) = publishers.first() else { return };
    let is_default = publishers == ["default"];
    // Without the connections of sentinels, a single user with a name may be theirs.
    if sentinels.is_empty() && publishers.len() == 1 && !is_default {
        return;
    }
    let severity = if is_default { Note } else { Warning };
    let is_shared = sentinels.is_empty() || sentinels.iter().any(|it| *it == "default");
    let what = format!(
        "its users that may publish to {HELLO}: {}: a client can announce sentinels and masters of \
         its own",
        publishers.join(", ")
    );
    let first = "give the sentinels a user of their own first (sentinel auth-user). Then, ";
    let first = if is_default && is_shared { first } else { "" };
    let remedy = format!(
        "{first}for each of them: ACL SETUSER {user} resetchannels &<channels of the application>, \
         and the same in its ACL file"
    );
    found.add(severity, "hello-users", &node.addr, what, remedy);
}
