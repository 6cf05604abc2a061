//! Findings about the sentinels as a group: identities, addresses, agreement, quorum.

use std::collections::{BTreeMap, BTreeSet};

use sentinel::{MyId, NodeAddr};

use super::Severity::{Fault, Note, Warning};
use super::{Case, Findings, cures, join};
use crate::observed::{ExamineError, Observed, ObservedPeer, SentinelAnswer};

/// Two sentinels with the same MYID were created from one configuration file.
pub(super) fn identities(found: &mut Findings, case: &Case<'_>) {
    let mut by_id: BTreeMap<&MyId, (BTreeSet<_>, BTreeSet<_>)> = BTreeMap::new();
    for (_, answer) in case.answered() {
        let (places, runs) = by_id.entry(&answer.id).or_default();
        places.insert(answer.reached);
        runs.insert(answer.run_id.as_deref());
    }
    for (id, (places, runs)) in by_id.iter().filter(|(_, (places, _))| places.len() > 1) {
        let are_known = !runs.contains(&None);
        // One process that was reached at two addresses has one run_id, and votes once.
        if are_known && runs.len() == 1 {
            continue;
        }
        let what = format!("the sentinels at {} have the same MYID {}", join(places), id.short());
        let copy = places.last().filter(|_| are_known);
        let commands = copy.map(|at| cures::new_identity(case, *at)).unwrap_or_default();
        let (severity, condition) = match are_known {
            true => (Fault, ""),
            false => (Warning, "unless this is one sentinel with two addresses: "),
        };
        let remedy = format!(
            "{condition}one was started with a copy of the other's file, and they have one vote \
             and do not hear each other: stop the last one (with its service manager if that would \
             start it again), remove the line \"sentinel myid\" from its file on its host, and \
             start it as usual. Then run the doctor again: the other sentinels may keep its former \
             ID, which it reports as former-id with the commands to forget it{}",
            cures::preparation(case.context)
        );
        found.add_with(severity, "same-id", &case.name, what, remedy, &commands);
    }
}

/// A sentinel that is given a new ID announces it with its next hello, and each peer replaces one
/// entry at its address. If two IDs were listed there, as after the copy of a file, chance decides
/// which one stays. PING is answered for it, so that it is never found down, and it counts.
pub(super) fn former_ids(found: &mut Findings, case: &Case<'_>) {
    let (commands, cure) = cures::forget(case);
    for (sentinel, _, view) in case.views() {
        for peer in view.peers.iter().filter(|it| case.is_former(view, it)) {
            let Some(id) = peer.id.as_ref().map(MyId::short) else { continue };
            let place = match (&peer.addr, case.successor(peer)) {
                (Some(addr), Some(present)) => {
                    format!("at {addr}, where {} answers", present.short())
                }
                _ => "without an address, which another one has now".to_owned(),
            };
            let what = format!(
                "it lists a sentinel {id} {place}: a former ID, which counts towards its majority"
            );
            let remedy =
                format!("nothing replaces the entry: make the sentinels forget it by {cure}");
            found.add_with(Warning, "former-id", &sentinel.addr, what, remedy, &commands);
        }
    }
}

/// Sentinels that announce an address at which another one answers, or at which their peers do not
/// reach them. The peers count votes by identity and ask for them by address.
pub(super) fn announcements(found: &mut Findings, case: &Case<'_>) {
    // Whether a peer reaches them there.
    let mut wrong: BTreeMap<&NodeAddr, BTreeMap<&MyId, bool>> = BTreeMap::new();
    for peer in case.peers() {
        if let (Some(id), Some(addr)) = (&peer.id, &peer.addr)
            && case.answers(id)
            && !case.answered_at(addr).any(|it| it.id == *id)
        {
            *wrong.entry(addr).or_default().entry(id).or_default() |= peer.up;
        }
    }
    for (addr, ids) in wrong {
        let others: BTreeSet<_> = case.answered_at(addr).map(|it| it.reached.to_string()).collect();
        let is_reached = ids.values().any(|is_reached| *is_reached);
        if is_reached && others.is_empty() && ids.len() == 1 {
            // Its address for the others is not that for this host.
            continue;
        }
        let who = case.answered().filter(|(_, it)| ids.contains_key(&it.id));
        let who: BTreeSet<_> = who.map(|(_, it)| it.reached.to_string()).collect();
        let mut what = format!("it is announced by {}", join(&who));
        if !others.is_empty() {
            what = format!("{what}, where {} answers", join(&others));
        }
        if !is_reached {
            what.push_str("; their peers do not reach them there");
        }
        let remedy = "set sentinel announce-ip (and announce-port) of each sentinel to an address of \
                      its own: the others ask for its vote there";
        found.add(Fault, "announced", addr, what, remedy);
    }
}

/// Sentinels that have never had an answer of the master, although it answers here. Without the
/// master they know neither replicas nor each other.
pub(super) fn locked_out(found: &mut Findings, case: &Case<'_>) {
    let mut by_master: BTreeMap<&NodeAddr, Vec<&SentinelAnswer>> = BTreeMap::new();
    let mut down = BTreeSet::new();
    for (_, answer, view) in case.views().filter(|(.., view)| view.run_id.is_empty()) {
        by_master.entry(&view.addr).or_default().push(answer);
        down.extend(view.down.then_some(&view.addr));
    }
    // One that has just started has had no time for an answer, but others may not have one either.
    for (master, sentinels) in by_master.into_iter().filter(|(addr, _)| down.contains(addr)) {
        let wants_password = match case.node(master).map(|node| &node.answer) {
            Some(Err(ExamineError::Denied(denied))) => !denied.is_server_wide(),
            Some(Ok(_)) => case.context.nodes_need_login,
            _ => false,
        };
        if !wants_password {
            continue;
        }
        let who: BTreeSet<_> = sentinels.iter().map(|it| it.reached.to_string()).collect();
        let what = format!(
            "the master {master} answers here and wants a password; {} had no answer of it since \
             the start",
            join(&who)
        );
        let name = &case.name;
        let commands = cures::authenticate(case, &sentinels);
        let note = cures::note(case, &commands);
        let remedy = format!(
            "auth-pass (and auth-user) is missing or wrong there, or that user lacks +ping, +info, \
             +publish or +subscribe: SENTINEL SET {name} auth-pass{note}"
        );
        found.add_with(Fault, "sentinel-auth", name, what, remedy, &commands);
    }
}

/// Sentinels that no other one lists, although both watch the same master.
pub(super) fn unlisted(found: &mut Findings, case: &Case<'_>) {
    let views: Vec<_> = case.newest().collect();
    let is_listed = |id: &MyId| {
        let mut others = views.iter().filter(|(_, answer, _)| answer.id != *id);
        others.any(|(.., view)| view.peers.iter().any(|it| it.id.as_ref() == Some(id)))
    };
    let missing: Vec<_> = views.iter().filter(|(_, answer, _)| !is_listed(&answer.id)).collect();
    // One alone has no others, and sentinels of two masters do not meet.
    if views.len() < 2 || case.named().len() > 1 || missing.is_empty() {
        return;
    }
    let remedy = "sentinels meet in the channel __sentinel__:hello of the Redis nodes, within two \
                  seconds of their start: the user with which they log in (sentinel auth-user) \
                  needs &__sentinel__:hello +publish +subscribe on every node. It is gone after \
                  ACL SETUSER resetchannels, which is the default of a new user since Redis 7";
    if missing.len() == views.len() {
        let what = format!("{} sentinels answer here, and none knows another one", views.len());
        return found.add(Fault, "unlisted", &case.name, what, remedy);
    }
    for (sentinel, ..) in missing {
        let what = "no other sentinel lists it: it takes no part in failovers";
        found.add(Fault, "unlisted", &sentinel.addr, what, remedy);
    }
}

/// Other names under which the sentinels monitor the same master.
pub(super) fn second_names(found: &mut Findings, case: &Case<'_>) {
    let names = case.views().flat_map(|(_, answer, view)| {
        let same = answer.watched.iter().filter(|it| it.addr.as_ref() == Some(&view.addr));
        same.map(|it| it.name.to_string()).filter(|it| **it != *case.name)
    });
    let names: BTreeSet<String> = names.collect();
    if !names.is_empty() {
        let what = format!("the sentinels monitor this master as {}, too", join(&names));
        let remedy = format!(
            "each name fails over on its own, and one undoes what the other did: SENTINEL REMOVE \
             the names that no client uses, on every sentinel ({} is the one of this service)",
            case.name
        );
        found.add(Warning, "second-name", &case.name, what, remedy);
    }
}

/// Which sentinels name which master, at which epoch.
pub(super) fn agreement(found: &mut Findings, case: &Case<'_>) {
    let commands = cures::realign(case);
    let cure = cure(case, &commands);
    let highest = case.newest().next().map_or(0, |(.., view)| view.epoch);
    for (sentinel, _, view) in case.views().filter(|(.., view)| view.epoch < highest) {
        let what = format!(
            "it names {} at epoch {}, while other sentinels are at epoch {highest}",
            view.addr, view.epoch
        );
        let remedy = format!(
            "it missed a failover, and no other sentinel reaches it with news: check that it \
             reaches the Redis nodes and its peers. {cure}"
        );
        found.add_with(Fault, "stale-epoch", &sentinel.addr, what, remedy, &commands);
    }
    let names = case.named();
    let announced = case.views().filter(|(_, _, it)| {
        it.epoch > highest || (it.epoch == highest && !names.contains(&it.addr))
    });
    for (sentinel, _, view) in announced {
        let what = format!(
            "it names {} at epoch {}, and no configured sentinel does",
            view.addr, view.epoch
        );
        let remedy = "if it is yours, add it to service.sentinels; otherwise find out which client \
                      may publish to __sentinel__:hello, and make the sentinels forget it (SENTINEL \
                      RESET)";
        found.add(Fault, "disagreement", &sentinel.addr, what, remedy);
    }
    let mut named: BTreeMap<&NodeAddr, Vec<&NodeAddr>> = BTreeMap::new();
    for (sentinel, _, view) in case.newest() {
        named.entry(&view.addr).or_default().push(&sentinel.addr);
    }
    if named.len() > 1 {
        let sides = named.iter().map(|(addr, who)| format!("{addr} by {}", join(who)));
        let sides = sides.collect::<Vec<_>>().join("; ");
        let what = format!("at epoch {highest} different masters are named: {sides}");
        found.add_with(Fault, "disagreement", &case.name, what, cure, &commands);
    }
    if case.is_failing_over() {
        let remedy = "run the doctor again in a few seconds";
        found.add(Note, "failover", &case.name, "a failover is in progress", remedy);
    } else if let Some((sentinel, _, view)) = case.views().find(|(.., view)| view.down) {
        let answers = case.node(&view.addr).is_some_and(|it| it.answer.is_ok());
        let here = if answers { ", which answers here" } else { "" };
        let what = format!("it considers the master {} down{here}", view.addr);
        let remedy = "check whether it can reach the master, and whether its auth-pass is still \
                      right (SENTINEL SET); the other findings may explain why no replica is \
                      promoted";
        found.add(Fault, "master-down", &sentinel.addr, what, remedy);
    }
}

/// How sentinels that name a wrong master are corrected, for the text of a finding.
pub(super) fn cure(case: &Case<'_>, commands: &[String]) -> String {
    let name = &case.name;
    let Some(right) = cures::right_master(case).filter(|_| !commands.is_empty()) else {
        return format!(
            "determine the right master by ROLE and its data. Then, on each sentinel that is \
             wrong, SENTINEL REMOVE {name}; after that, on one after the other, SENTINEL MONITOR \
             {name} <ip> <port> <quorum> with the right address, and SENTINEL SET {name} for its \
             other settings, auth-user and auth-pass first (SENTINEL RESET changes neither \
             address nor epoch)"
        );
    };
    let preparation = cures::preparation(case.context);
    let scripts = "; scripts cannot be set over the network by default (deny-scripts-reconfig): \
                   write them into its file while it is stopped";
    let scripts = if case.views().any(|(.., view)| view.scripts) { scripts } else { "" };
    format!(
        "{right} is the master by its ROLE: if its data is the right one, make the sentinels that \
         are wrong monitor it{preparation}. What no command shows is lost by this and has to be \
         set again: rename-command, master-reboot-down-after-period{scripts}"
    )
}

/// Whether enough sentinels are reachable.
pub(super) fn quorum(found: &mut Findings, case: &Case<'_>) {
    let name = &case.name;
    for (sentinel, _, view) in case.views() {
        if let Some(Err(error)) = &view.ckquorum {
            let what = format!("CKQUORUM reports that no failover is possible: {error}");
            let remedy = "start the missing sentinels, and check that sentinels reach each other; \
                          those that are gone for good are forgotten with SENTINEL RESET, while \
                          the master is up";
            found.add(Fault, "quorum", &sentinel.addr, what, remedy);
        }
        let down = view.peers.iter().filter(|it| !it.up && !has_own_finding(case, it));
        let down: BTreeSet<String> =
            down.map(|it| it.addr.as_ref().map_or("one".to_owned(), ToString::to_string)).collect();
        if !down.is_empty() {
            let what = format!("it considers other sentinels down: {}", join(&down));
            let remedy = "check the network between them. Those that are gone for good have to be \
                          removed from Pointsman's configuration first, if they are in it; then \
                          the doctor prints how the sentinels forget them";
            found.add(Warning, "peers-down", &sentinel.addr, what, remedy);
        }
    }
    let (reached, all) = (case.processes().len(), case.sentinel_count());
    if all == 0 {
        let remedy = "resolve the findings about the individual sentinels; without one, no master \
                      is known. If all are lost for good, `pointsman follow` orders every proxy to \
                      follow a node";
        return found.add(Fault, "no-sentinels", name, "no sentinel answers", remedy);
    }
    let majority = all / 2 + 1;
    if reached < majority {
        let what = format!(
            "only {reached} of {all} sentinels are reachable from this host, and {majority} are a \
             majority"
        );
        let remedy = "a switch cannot be confirmed from this host; make the other sentinels \
                      reachable (learn_sentinels, address_map, network policies)";
        found.add(Fault, "majority", name, what, remedy);
    }
    numbers(found, case, all, majority);
}

/// Whether another finding says why this peer is down: the one about the sentinel that does not
/// answer, or about the address that it announces.
fn has_own_finding(observed: &Observed, peer: &ObservedPeer) -> bool {
    let (Some(id), Some(addr)) = (&peer.id, &peer.addr) else { return false };
    if observed.answers(id) {
        return !observed.answered_at(addr).any(|it| it.id == *id);
    }
    observed.sentinels.iter().any(|it| it.addr == *addr)
}

/// Whether the number of sentinels and their quorum tolerate a loss.
fn numbers(found: &mut Findings, case: &Case<'_>, all: usize, majority: usize) {
    let name = &case.name;
    // A sentinel that does not answer, and that no other one lists, may still exist.
    let possible = case.sentinels.iter().filter(|it| it.configured).count().max(all);
    let quorums = case.views().filter_map(|(.., view)| view.quorum);
    if all < 3 {
        let (mut severity, mut what) = (Warning, format!("there are only {all} sentinels"));
        if let Some(quorum) = quorums.max().filter(|quorum| *quorum > all as u64) {
            severity = Fault;
            what = format!("{what}, and the quorum is {quorum}: no failover is possible");
        }
        let remedy = "run at least three, each on a host of its own: with fewer, the loss of one \
                      makes failovers impossible. Do not lower the quorum instead: sentinels that \
                      do not know each other would promote one replica each";
        found.add(severity, "few-sentinels", name, what, remedy);
    }
    if all > 2 && all.is_multiple_of(2) {
        let what = format!("there is an even number of sentinels: {all}");
        let remedy = format!(
            "add one or remove one: {majority} of {all} are a majority, so that no more of them may \
             fail than with {}, and two halves that lose each other leave no majority",
            all - 1
        );
        found.add(Warning, "even-sentinels", name, what, remedy);
    }
    for (sentinel, _, view) in case.views() {
        if view.quorum == Some(1) && all > 1 {
            let what = "its quorum is 1: it calls for a failover as soon as it alone finds the master down";
            let remedy = format!(
                "a fault of its own network causes failovers: SENTINEL SET {name} quorum {majority}"
            );
            found.add(Warning, "quorum-one", &sentinel.addr, what, remedy);
        }
        let unmet = view.quorum.filter(|quorum| *quorum > possible as u64 || *quorum == 0);
        if let Some(quorum) = unmet.filter(|_| all > 2) {
            let what = format!("its quorum is {quorum}, with {possible} sentinels in total");
            let remedy = format!("SENTINEL SET {name} quorum {}", possible / 2 + 1);
            found.add(Fault, "quorum-setting", &sentinel.addr, what, remedy);
        }
    }
}
