//! What no single value can tell: faults between values.
//!
//! Each rule looks only at values that are sound, so a fault is named once and not again by
//! everything that depends on it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use proxy::ListenAddr;

use super::duration;
use super::finding::Finding;
use super::secret::HIDDEN;
use super::settings::Settings;
use super::value::Value;
use super::values::{Origin, Values};

/// Linux forgets a connection in CLOSE_WAIT after this long
/// (`nf_conntrack_tcp_timeout_close_wait`).
const CONNTRACK_CLOSE_WAIT: Duration = Duration::from_secs(60);

/// Every fault between values. `damaged`: a part of the file could not be read, so nothing is
/// called missing.
pub(super) fn faults(settings: &Settings, damaged: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for service in &settings.services {
        one_service(service, damaged, &mut findings);
    }
    names(settings, &mut findings);
    addresses(settings, &mut findings);
    orders(settings, &mut findings);
    connections(settings, &mut findings);
    findings
}

/// What is not wrong but odd.
pub(super) fn warnings(settings: &Settings) -> Vec<Finding> {
    let mut findings = Vec::new();
    for service in &settings.services {
        missing_folders(service, &mut findings);
        if let Some(Value::Endpoints(sentinels)) = service.value("service.sentinels") {
            let mut sorted = sentinels.clone();
            sorted.sort();
            for twice in sorted.windows(2).filter_map(|pair| match pair {
                [a, b] if a == b => Some(a),
                _ => None,
            }) {
                let key = "service.sentinels";
                let what = format!("{twice} is named twice");
                findings.push(Finding::new(
                    service.origin(key),
                    key,
                    what,
                    "it is asked once; remove one",
                ));
            }
        }
        for section in super::schema::CREDENTIALS {
            let key = format!("{section}.password");
            if service.passwords.get(section).is_some_and(|password| password.reveal() == HIDDEN) {
                let what = "the password is the placeholder that `pointsman config` prints";
                findings.push(Finding::new(
                    service.origin(&key),
                    key,
                    what,
                    "put the real one in its place",
                ));
            }
        }
    }
    findings
}

fn one_service(service: &Values, damaged: bool, findings: &mut Vec<Finding>) {
    let mut note = |key: &str, what: &str, remedy: &str| {
        findings.push(Finding::new(service.origin(key), key, what, remedy));
    };
    let key = "service.sentinels";
    match service.value(key) {
        Some(Value::Endpoints(sentinels)) if sentinels.is_empty() => {
            note(key, "the list is empty", "name at least one sentinel");
        }
        None if !service.broken.contains(key) && !damaged => {
            note(
                key,
                "it is missing",
                "name at least one sentinel: sentinels = [\"redis-sentinel:26379\"], or --sentinel",
            );
        }
        _ => {}
    }
    let key = "service.listen";
    if let Some(Value::Listen(addrs)) = service.value(key)
        && addrs.is_empty()
    {
        note(key, "the list is empty", "name at least one address, for example \"0.0.0.0:6379\"");
    }
    let key = "service.replica_listen";
    if has_readers(service)
        && !matches!(service.value("service.verify"), Some(Value::Text(verify)) if verify == "role")
    {
        note(
            key,
            "a replica can only be told from a master by its ROLE",
            "set verify = \"role\", or leave this out",
        );
    }
    let key = "service.half_close_timeout";
    if let Some(Value::Duration(timeout)) = service.value(key)
        && *timeout >= CONNTRACK_CLOSE_WAIT
    {
        note(key, "Linux forgets half-closed connections after 60s", "give less than \"60s\"");
    }
}

/// The folders of Unix sockets. Not a fault: the configuration may be checked on another machine.
fn missing_folders(service: &Values, findings: &mut Vec<Finding>) {
    for key in LISTEN {
        let Some(Value::Listen(addrs)) = service.value(key) else { continue };
        for folder in
            addrs.iter().filter_map(|addr| addr.unix()?.parent()).filter(|folder| !folder.is_dir())
        {
            let what = format!("the folder {} does not exist here", folder.display());
            let remedy =
                "make it before the start, for example by RuntimeDirectory= in a unit of systemd";
            findings.push(Finding::new(service.origin(key), key, what, remedy));
        }
    }
}

/// Whether readers are served.
fn has_readers(service: &Values) -> bool {
    matches!(service.value("service.replica_listen"), Some(Value::Listen(addrs)) if !addrs.is_empty())
}

/// Two services of one name cannot be told apart, in flags, metrics and logs.
fn names(settings: &Settings, findings: &mut Vec<Finding>) {
    let mut seen: BTreeMap<&str, Origin> = BTreeMap::new();
    for service in &settings.services {
        let Some(Value::Text(name)) = service.value("service.name") else { continue };
        let origin = service.origin("service.name");
        if let Some(first) = seen.get(name.as_str()) {
            let what = format!("a service is called {name:?} already ({first})");
            findings.push(Finding::new(
                origin,
                "service.name",
                what,
                "give each service its own name",
            ));
        } else {
            seen.insert(name, origin);
        }
    }
}

/// Where services listen.
const LISTEN: [&str; 2] = ["service.listen", "service.replica_listen"];

/// No two sockets may want the same address. A wildcard wants every address of its family; `[::]`
/// leaves IPv4 to an address of that family where there is one.
fn addresses(settings: &Settings, findings: &mut Vec<Finding>) {
    let services = settings.services.iter().flat_map(|service| LISTEN.map(|key| (service, key)));
    let mut taken: Vec<(ListenAddr, Origin, &str)> = Vec::new();
    let process = &settings.process;
    for key in ["admin.control_socket", "process.state_dir"] {
        let Some(Value::Text(path)) = process.value(key) else { continue };
        let path = Path::new(path);
        let path = if key == "process.state_dir" {
            path.join(crate::process::takeover::FILE)
        } else {
            path.to_owned()
        };
        taken.push((ListenAddr::Unix(path), process.origin(key), key));
    }
    for (values, key) in services.chain([(&settings.process, "admin.listen")]) {
        let Some(Value::Listen(addrs)) = values.value(key) else { continue };
        for addr in addrs {
            let origin = values.origin(key);
            if let Some((other, first, other_key)) =
                taken.iter().find(|(other, ..)| overlap(addr, other))
            {
                // Of the two, the one that somebody wrote is the one to show.
                let what = format!("{addr} is taken already by {other_key} = {other} ({first})");
                let place = if origin == Origin::Default { first.clone() } else { origin };
                findings.push(Finding::new(place, key, what, "give each its own address or port"));
            } else {
                taken.push((addr.clone(), origin, key));
            }
        }
    }
}

fn overlap(one: &ListenAddr, other: &ListenAddr) -> bool {
    let (Some(one), Some(other)) = (one.tcp(), other.tcp()) else { return one == other };
    let same_family = one.is_ipv4() == other.is_ipv4();
    let meets = one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() != 0 && one.port() == other.port() && same_family && meets
}

/// Pairs of which the first may not be longer than the second.
const PROCESS_ORDERS: [(&str, &str); 3] = [
    ("shutdown.accept_min", "shutdown.accept_max"),
    ("shutdown.accept_quiet", "shutdown.accept_max"),
    ("shutdown.drain_spread", "shutdown.drain_timeout"),
];
const SERVICE_ORDERS: [(&str, &str); 4] = [
    ("service.timers.reconnect_min", "service.timers.reconnect_max"),
    ("service.timers.poll_suspect", "service.timers.poll"),
    ("service.timers.verify_timeout", "service.timers.verify_deadline"),
    ("service.timers.poll", "service.timers.view_expiry"),
];

fn orders(settings: &Settings, findings: &mut Vec<Finding>) {
    let services =
        settings.services.iter().flat_map(|service| SERVICE_ORDERS.map(|pair| (service, pair)));
    let all = PROCESS_ORDERS.map(|pair| (&settings.process, pair)).into_iter().chain(services);
    for (values, (less, more)) in all {
        let (Some(Value::Duration(a)), Some(Value::Duration(b))) =
            (values.value(less), values.value(more))
        else {
            continue;
        };
        if a <= b {
            continue;
        }
        let is_written =
            values.setting(less).is_some_and(|setting| setting.origin != Origin::Default);
        let (key, other, relation, span, bound) =
            if is_written { (less, more, "above", a, b) } else { (more, less, "below", b, a) };
        let what = format!(
            "{} is {relation} {other} ({})",
            duration::format(*span),
            duration::format(*bound)
        );
        let remedy = format!("keep {less} <= {more}");
        findings.push(Finding::new(values.origin(key), key, what, remedy));
    }
}

/// The services' own bounds have to fit into the process's, and leave something for those without
/// one.
fn connections(settings: &Settings, findings: &mut Vec<Finding>) {
    let key = "process.max_connections";
    let Some(Value::Count(total @ 1..)) = settings.process.value(key) else { return };
    let mut asked = 0_usize;
    let mut derived = 0_usize;
    for service in &settings.services {
        // Readers have the same number, and count by themselves.
        let times = 1 + usize::from(has_readers(service));
        match service.value("service.max_connections") {
            Some(Value::Count(0)) => derived += times,
            Some(Value::Count(count)) => asked = asked.saturating_add(count.saturating_mul(times)),
            _ => return,
        }
    }
    if asked.saturating_add(derived) > *total {
        let what = format!(
            "{total} is less than the services need ({asked} asked for, and {derived} without a number)"
        );
        let remedy = "raise it, or lower service.max_connections";
        findings.push(Finding::new(settings.process.origin(key), key, what, remedy));
    }
}
