//! Findings about the sentinels as a group: identities, agreement, quorum.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use super::cures;
use super::diagnose::{Context, Findings, Severity};
use super::observed::Observed;
use crate::{MyId, NodeAddr};

/// Two sentinels with the same MYID were created from one configuration file.
pub(super) fn identities(findings: &mut Findings, observed: &Observed, context: &Context) {
    let mut by_id: BTreeMap<&MyId, BTreeSet<SocketAddr>> = BTreeMap::new();
    let mut processes: BTreeMap<&MyId, BTreeSet<Option<&str>>> = BTreeMap::new();
    for (_, answer) in observed.answered() {
        by_id.entry(&answer.id).or_default().insert(answer.reached);
        processes.entry(&answer.id).or_default().insert(answer.run_id.as_deref());
    }
    // One process that was reached at two addresses has one run_id.
    let are_known =
        |id: &MyId| processes.get(id).is_some_and(|runs| runs.len() > 1 && !runs.contains(&None));
    for (id, places) in by_id.iter().filter(|(_, places)| places.len() > 1) {
        let names: Vec<String> = places.iter().map(ToString::to_string).collect();
        let what =
            format!("the sentinels at {} have the same MYID {}", names.join(" and "), id.short());
        let commands = places
            .last()
            .filter(|_| are_known(id))
            .map(|last| cures::new_identity(observed, context, *last))
            .unwrap_or_default();
        let remedy = if commands.is_empty() {
            "if they are two sentinels: stop one, remove the line \"sentinel myid\" from its file \
             and start it. If it is one sentinel with two addresses, configure one of them"
                .to_owned()
        } else {
            format!(
                "one was started with a copy of the other's file, and they have one vote: stop the \
                 last one (with its service manager if that would start it again), remove the \
                 line \"sentinel myid\" from its file on its host, and start it as usual. Then run \
                 the doctor again: the other sentinels may keep its former ID, which it \
                 reports as former-id with the commands to forget it{}",
                cures::preparation(context)
            )
        };
        findings.add((Severity::Warning, "same-id"), &observed.name, what, remedy);
        findings.with_commands(&commands);
    }
}

/// A sentinel that is given a new ID announces it with its next hello, and each peer replaces one
/// entry at its address. If two IDs were listed there, as after the copy of a file, chance decides
/// which one stays. PING is answered for it, so that it is never found down, and it counts.
pub(super) fn former_ids(findings: &mut Findings, observed: &Observed, context: &Context) {
    let commands = cures::forget(observed, context);
    for (sentinel, _, view) in observed.views() {
        for peer in view.peers.iter().filter(|it| observed.is_former(view, it)) {
            let Some(id) = peer.id.as_ref().map(MyId::short) else { continue };
            let place = match (&peer.addr, observed.successor(peer)) {
                (Some(addr), Some(present)) => {
                    format!("at {addr}, where {} answers", present.short())
                }
                _ => "without an address, which another one has now".to_owned(),
            };
            let what = format!(
                "it lists a sentinel {id} {place}: a former ID, which counts towards its majority"
            );
            let remedy = if commands.is_empty() {
                "make it forget the former ID with SENTINEL RESET. Not now: every sentinel must \
                 find the master up, or RESET would cost it the list of replicas. Run the doctor \
                 again then"
                    .to_owned()
            } else {
                format!(
                    "nothing replaces the entry: make the sentinels forget it, one after the \
                     other{}",
                    cures::preparation(context)
                )
            };
            findings.add((Severity::Warning, "former-id"), &sentinel.addr, what, remedy);
            findings.with_commands(&commands);
        }
    }
}

/// Which sentinels name which master, at which epoch.
pub(super) fn agreement(findings: &mut Findings, observed: &Observed, context: &Context) {
    let commands = cures::realign(observed, context);
    let cure = cure(observed, context, &commands);
    let highest = observed.views().map(|(_, _, view)| view.epoch).max().unwrap_or_default();
    for (sentinel, _, view) in observed.views().filter(|(_, _, view)| view.epoch < highest) {
        let what = format!(
            "it names {} at epoch {}, while other sentinels are at epoch {highest}",
            view.addr, view.epoch
        );
        let remedy = format!(
            "it missed a failover, and no other sentinel reaches it with news: check that it \
             reaches the Redis nodes and its peers. {cure}"
        );
        findings.add((Severity::Fault, "stale-epoch"), &sentinel.addr, what, remedy);
        findings.with_commands(&commands);
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
        findings.add((Severity::Fault, "disagreement"), &observed.name, what, cure);
        findings.with_commands(&commands);
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

/// How sentinels that name a wrong master are corrected, for the text of a finding.
pub(super) fn cure(observed: &Observed, context: &Context, commands: &[String]) -> String {
    let name = &observed.name;
    match cures::right_master(observed).filter(|_| !commands.is_empty()) {
        Some(right) => {
            let scripts = if observed.views().any(|(_, _, view)| view.scripts) {
                "; scripts cannot be set over the network by default (deny-scripts-reconfig): \
                 write them into its file while it is stopped"
            } else {
                ""
            };
            format!(
                "{right} is the master by its ROLE: if its data is the right one, make the \
                 sentinels that are wrong monitor it{}. What no command shows is lost by this and \
                 has to be set again: rename-command, master-reboot-down-after-period{scripts}",
                cures::preparation(context)
            )
        }
        None => format!(
            "determine the right master by ROLE and its data. Then, on each sentinel that is \
             wrong, SENTINEL REMOVE {name}; after that, on one after the other, SENTINEL MONITOR \
             {name} <ip> <port> <quorum> with the right address, and SENTINEL SET {name} for its \
             other settings, auth-user and auth-pass first (SENTINEL RESET changes neither \
             address nor epoch)"
        ),
    }
}

/// Whether enough sentinels are reachable.
pub(super) fn quorum(findings: &mut Findings, observed: &Observed) {
    let name = &observed.name;
    for (sentinel, _, view) in observed.views() {
        if let Some(Err(error)) = &view.ckquorum {
            let what = format!("CKQUORUM reports that no failover is possible: {error}");
            let remedy = "start the missing sentinels, and check that sentinels reach each other; \
                          those that are gone for good are forgotten with SENTINEL RESET, while \
                          the master is up";
            findings.add((Severity::Fault, "quorum"), &sentinel.addr, what, remedy);
        }
        let down = view.peers.iter().filter(|peer| !peer.up).count();
        if down > 0 {
            let what = format!("it considers {down} of its {} peers down", view.peers.len());
            let remedy = "check the network between them. Those that are gone for good have to be \
                          removed from Pointsman's configuration first, if they are in it; then \
                          the doctor prints how the sentinels forget them";
            findings.add((Severity::Warning, "peers-down"), &sentinel.addr, what, remedy);
        }
    }
    let reached: BTreeSet<&MyId> = observed.answered().map(|(_, answer)| &answer.id).collect();
    let all = observed.sentinel_ids();
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
    numbers(findings, observed, all.len(), majority);
}

/// Whether the number of sentinels and their quorum tolerate a loss.
fn numbers(findings: &mut Findings, observed: &Observed, all: usize, majority: usize) {
    let name = &observed.name;
    if all < 3 {
        let what = format!("there are only {all} sentinels");
        let remedy = "run at least three, each on a host of its own: with fewer, the loss of one \
                      makes failovers impossible";
        findings.add((Severity::Warning, "few-sentinels"), name, what, remedy);
    }
    if all > 2 && all.is_multiple_of(2) {
        let what = format!("there is an even number of sentinels: {all}");
        let remedy = format!(
            "add one or remove one: {majority} of {all} are a majority, so that no more of them may \
             fail than with {}, and two halves that lose each other leave no majority",
            all - 1
        );
        findings.add((Severity::Warning, "even-sentinels"), name, what, remedy);
    }
    for (sentinel, _, view) in observed.views() {
        if view.quorum == Some(1) && all > 1 {
            findings.add(
                (Severity::Warning, "quorum-one"),
                &sentinel.addr,
                "its quorum is 1: it calls for a failover as soon as it alone finds the master down",
                format!(
                    "a fault of its own network causes failovers: SENTINEL SET {name} quorum \
                     {majority}"
                ),
            );
        }
        if let Some(quorum) = view.quorum.filter(|quorum| *quorum > all as u64 || *quorum == 0) {
            let what = format!("its quorum is {quorum}, with {all} sentinels in total");
            findings.add(
                (Severity::Fault, "quorum-setting"),
                &sentinel.addr,
                what,
                format!("SENTINEL SET {name} quorum {majority}"),
            );
        }
    }
}
