//! Findings about where sentinels and Redis nodes run and under which kind of address they are
//! announced: hosts and zones whose loss takes more than one of them, names mixed with addresses,
//! and a virtual address on this host.
//!
//! Only what the operator said or what addresses show is used. Zones are not visible in any reply
//! of Redis, so without labels nothing is said about them.

use std::collections::{BTreeMap, BTreeSet};

use sentinel::{MyId, NodeAddr, Role};

use super::{Context, Findings, Severity};
use crate::observed::Observed;

pub(super) fn diagnose(findings: &mut Findings, observed: &Observed, context: &Context) {
    mixed_names(findings, observed);
    let sentinels = sentinel_hosts(observed);
    if sentinels.len() >= 3 {
        one_host(findings, observed, &sentinels);
        one_zone(findings, observed, &sentinels, context);
    }
    virtual_address(findings, context);
}

/// Where each sentinel runs, without former IDs: the host under which others list it, or at which
/// it was reached.
fn sentinel_hosts(observed: &Observed) -> BTreeMap<&MyId, String> {
    let reached = observed.answered().map(|(_, it)| (&it.id, it.reached.ip().to_string()));
    let peers = observed.views().flat_map(|(_, _, view)| &view.peers);
    let peers = peers.filter(|it| observed.successor(it).is_none());
    let listed = peers.filter_map(|it| Some((it.id.as_ref()?, it.addr.as_ref()?.host.to_string())));
    reached.chain(listed).collect()
}

/// The hosts of the nodes that report the role of a master.
fn master_hosts(observed: &Observed) -> BTreeSet<&str> {
    let is_master = |role: &Role| *role == Role::Master;
    let nodes = observed.nodes.iter();
    nodes
        .filter(|node| node.answer.as_ref().is_ok_and(|it| is_master(&it.role)))
        .map(|node| &*node.addr.host)
        .collect()
}

/// The place with the most sentinels, if their loss leaves no majority.
fn crowded<'a>(total: usize, places: impl Iterator<Item = &'a str>) -> Option<(&'a str, usize)> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    places.for_each(|place| *counts.entry(place).or_default() += 1);
    let most = counts.into_iter().max_by_key(|(_, count)| *count)?;
    (total - most.1 < total / 2 + 1).then_some(most)
}

fn one_host(findings: &mut Findings, observed: &Observed, sentinels: &BTreeMap<&MyId, String>) {
    // Everything on a loopback address is a test on one machine, and meant to be.
    let is_lab = |host: &str| host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
    let hosts = sentinels.values().map(String::as_str);
    let Some((host, count)) = crowded(sentinels.len(), hosts).filter(|(host, _)| !is_lab(host))
    else {
        return;
    };
    let master =
        if master_hosts(observed).contains(host) { ", the host of the master" } else { "" };
    let what = format!("{count} of {} sentinels run on {host}{master}", sentinels.len());
    let remedy = "without it the other sentinels are no majority, and nothing is promoted: run \
                  each sentinel on a host of its own";
    findings.add((Severity::Warning, "one-host"), &observed.name, what, remedy);
}

fn one_zone(
    findings: &mut Findings,
    observed: &Observed,
    sentinels: &BTreeMap<&MyId, String>,
    context: &Context,
) {
    let zone = |host: &str| context.zones.get(host).map(String::as_str);
    let missing: Vec<&str> =
        sentinels.values().map(String::as_str).filter(|host| zone(host).is_none()).collect();
    if context.zones.is_empty() {
        return;
    }
    if !missing.is_empty() {
        let hosts: BTreeSet<&str> = missing.into_iter().collect();
        let what = format!(
            "no zone is given for {}: the zones were not compared",
            hosts.into_iter().collect::<Vec<_>>().join(", ")
        );
        findings.add(
            (Severity::Note, "zones"),
            &observed.name,
            what,
            "add --zone ADDRESS=ZONE for each",
        );
        return;
    }
    let zones = sentinels.values().filter_map(|host| zone(host));
    let Some((crowd, count)) = crowded(sentinels.len(), zones) else { return };
    let master = master_hosts(observed).iter().any(|host| zone(host) == Some(crowd));
    let master = if master { ", the zone of the master" } else { "" };
    let what = format!("{count} of {} sentinels run in zone {crowd}{master}", sentinels.len());
    let remedy = "without it the other sentinels are no majority, and nothing is promoted: spread \
                  them over three zones";
    findings.add((Severity::Warning, "one-zone"), &observed.name, what, remedy);
}

/// Host names and addresses in one cluster: Sentinel compares them as text in places.
fn mixed_names(findings: &mut Findings, observed: &Observed) {
    let mut named: BTreeSet<&NodeAddr> = BTreeSet::new();
    for (_, _, view) in observed.views() {
        named.insert(&view.addr);
        named.extend(view.replicas.iter().map(|it| &it.addr));
        named.extend(view.peers.iter().filter_map(|it| it.addr.as_ref()));
    }
    let (numbers, names): (Vec<_>, Vec<_>) =
        named.into_iter().partition(|addr| addr.ip().is_some());
    if let (Some(number), Some(name)) = (numbers.first(), names.first()) {
        let what = format!(
            "the sentinels announce {} host names, such as {name}, and {} addresses, such as \
             {number}",
            names.len(),
            numbers.len()
        );
        let remedy = "decide for one: sentinel resolve-hostnames and announce-hostnames equally \
                      on every sentinel, and names, or addresses, in sentinel monitor, \
                      replica-announce-ip and sentinel announce-ip of all. A mixture makes one \
                      server look like two, and REPLICAOF fails where a name does not resolve";
        findings.add((Severity::Warning, "mixed-names"), &observed.name, what, remedy);
    }
}

fn virtual_address(findings: &mut Findings, context: &Context) {
    for addr in &context.host.foreign_listen {
        let [v4, v6] = context.host.nonlocal_bind;
        let (allowed, sysctl) = if addr.is_ipv4() {
            (v4, "net.ipv4.ip_nonlocal_bind")
        } else {
            (v6, "net.ipv6.ip_nonlocal_bind")
        };
        let what = "service.listen names an address that this host does not have now";
        match allowed {
            Some(false) => findings.add(
                (Severity::Fault, "nonlocal-bind"),
                addr,
                format!("{what}, and {sysctl} is 0: Pointsman cannot start here"),
                format!(
                    "if it is a virtual address: sysctl -w {sysctl}=1, also in /etc/sysctl.d, or \
                     listen on 0.0.0.0 or ::"
                ),
            ),
            Some(true) => findings.add(
                (Severity::Note, "nonlocal-bind"),
                addr,
                format!("{what}; {sysctl} is 1"),
                "right for a virtual address that is on the other host; a misspelt address would \
                 not be noticed at the start",
            ),
            None => {}
        }
    }
}
