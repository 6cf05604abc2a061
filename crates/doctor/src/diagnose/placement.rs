//! Findings about where sentinels and Redis nodes run and under which kind of address they are
//! announced: hosts and zones whose loss takes more than one of them, names mixed with addresses,
//! and a virtual address on this host.
//!
//! Only what the operator said or what addresses show is used. Zones are not visible in any reply
//! of Redis, so without labels nothing is said about them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use sentinel::{MyId, NodeAddr, Role};

use super::Severity::{Fault, Note, Warning};
use super::{Case, Context, Findings, join};
use crate::host_facts::family;
use crate::observed::ObservedNode;

pub(super) fn diagnose(found: &mut Findings, case: &Case<'_>) {
    mixed_names(found, case);
    let (hosts, zones) = (sentinel_hosts(case), &case.context.zones);
    if hosts.len() >= 3 {
        crowded(found, case, &hosts, None);
        let missing: BTreeSet<_> = hosts.values().filter(|it| !zones.contains_key(*it)).collect();
        if missing.is_empty() {
            crowded(found, case, &hosts, Some(zones));
        } else if !zones.is_empty() {
            let missing = join(&missing);
            let what = format!("no zone is given for {missing}: the zones were not compared");
            found.add(Note, "zones", &case.name, what, "add --zone ADDRESS=ZONE for each");
        }
    }
    virtual_address(found, case.context);
}

/// Where each sentinel runs, without former IDs: the host under which others list it, or at which
/// it was reached.
fn sentinel_hosts<'a>(case: &'a Case<'_>) -> BTreeMap<&'a MyId, String> {
    let reached = case.answered().map(|(_, it)| (&it.id, it.reached.ip().to_string()));
    let peers = case.peers().filter(|it| case.successor(it).is_none());
    let listed = peers.filter_map(|it| Some((it.id.as_ref()?, it.addr.as_ref()?.host.to_string())));
    reached.chain(listed).collect()
}

/// Reports a host, or a zone if zones are given, whose loss leaves no majority of the sentinels.
fn crowded(
    found: &mut Findings,
    case: &Case<'_>,
    hosts: &BTreeMap<&MyId, String>,
    zones: Option<&BTreeMap<String, String>>,
) {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let places = hosts.values().filter_map(|host| place(zones, host));
    places.for_each(|place| *counts.entry(place).or_default() += 1);
    let (all, most) = (hosts.len(), counts.into_iter().max_by_key(|(_, count)| *count));
    let Some((crowd, count)) = most.filter(|(_, count)| all - count < all / 2 + 1) else { return };
    // Everything on a loopback address is a test on one machine, and meant to be.
    if zones.is_none() && crowd.parse().is_ok_and(|ip: IpAddr| ip.is_loopback()) {
        return;
    }
    let (code, kind, at, remedy) = match zones {
        None => ("one-host", "host", "on", "run each sentinel on a host of its own"),
        Some(_) => ("one-zone", "zone", "in zone", "spread them over three zones"),
    };
    let is_master = |node: &&ObservedNode| node.report().is_some_and(|it| it.role == Role::Master);
    let mut masters = case.nodes.iter().filter(is_master);
    let has_master = masters.any(|node| place(zones, &node.addr.host) == Some(crowd));
    let master = if has_master { format!(", the {kind} of the master") } else { String::new() };
    let what = format!("{count} of {all} sentinels run {at} {crowd}{master}");
    let remedy = format!(
        "without it the other sentinels are no majority, and nothing is promoted: {remedy}"
    );
    found.add(Warning, code, &case.name, what, remedy);
}

fn place<'a>(zones: Option<&'a BTreeMap<String, String>>, host: &'a str) -> Option<&'a str> {
    zones.map_or(Some(host), |zones| zones.get(host).map(String::as_str))
}

/// Host names and addresses in one cluster: Sentinel compares them as text in places.
fn mixed_names(found: &mut Findings, case: &Case<'_>) {
    let nodes = case.views().flat_map(|(.., view)| view.nodes());
    let peers = case.peers().filter_map(|it| it.addr.as_ref());
    let (numbers, names): (BTreeSet<&NodeAddr>, BTreeSet<&NodeAddr>) =
        nodes.chain(peers).partition(|addr| addr.ip().is_some());
    if let (Some(number), Some(name)) = (numbers.first(), names.first()) {
        let (names, addresses) = (names.len(), numbers.len());
        let what = format!(
            "the sentinels announce {names} host names, such as {name}, and {addresses} \
             addresses, such as {number}"
        );
        let remedy = "decide for one: sentinel resolve-hostnames and announce-hostnames equally \
                      on every sentinel, and names, or addresses, in sentinel monitor, \
                      replica-announce-ip and sentinel announce-ip of all. A mixture makes one \
                      server look like two, and REPLICAOF fails where a name does not resolve";
        found.add(Warning, "mixed-names", &case.name, what, remedy);
    }
}

fn virtual_address(found: &mut Findings, context: &Context) {
    for (addr, may_bind) in &context.foreign_listen {
        let sysctl = format!("net.{}.ip_nonlocal_bind", family(*addr));
        let what = "service.listen names an address that this host does not have now";
        match may_bind {
            Some(false) => {
                let what = format!("{what}, and {sysctl} is 0: Pointsman cannot start here");
                let remedy = format!(
                    "if it is a virtual address: sysctl -w {sysctl}=1, also in /etc/sysctl.d, or \
                     listen on 0.0.0.0 or ::"
                );
                found.add(Fault, "nonlocal-bind", addr, what, remedy);
            }
            Some(true) => {
                let remedy = "right for a virtual address that is on the other host; a misspelt \
                              address would not be noticed at the start";
                found.add(Note, "nonlocal-bind", addr, format!("{what}; {sysctl} is 1"), remedy);
            }
            None => {}
        }
    }
}
