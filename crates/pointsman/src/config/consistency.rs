//! Checks that concern several values: contradictions, duplicates and missing keys.
//!
//! Each check ignores invalid values, so that a fault is reported once and not again by every check
//! that uses the value.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use proxy::ListenAddr;

use super::credentials::{CONTROL_TOKEN, HIDDEN, READ_TOKEN, Secret};
use super::duration;
use super::finding::Finding;
use super::options::TAKEOVER_SOCKET;
use super::settings::{Origin, SettingMap, Settings};
use super::tls_checks;
use super::value::{Problem, Value};

/// The time after which the connection tracking of Linux drops a connection in CLOSE_WAIT
/// (`nf_conntrack_tcp_timeout_close_wait`).
const CONNTRACK_CLOSE_WAIT: Duration = Duration::from_secs(60);

/// Notes a finding: its key, what is wrong, and what to do.
pub(super) type Note<'a> = dyn FnMut(&str, &str, &str) + 'a;

/// All faults that concern several values.
pub(super) fn faults(settings: &Settings) -> Vec<Finding> {
    let mut findings = Vec::new();
    for service in &settings.services {
        check_service(service, &mut findings);
    }
    check_names(settings, &mut findings);
    check_number(settings, &mut findings);
    check_addresses(settings, &mut findings);
    check_orders(settings, &mut findings);
    check_connections(settings, &mut findings);
    tls_checks::check_admin(&settings.process, &mut noting(&settings.process, &mut findings));
    findings
}

/// Adds findings about the values of a service, or of the process.
fn noting<'a>(
    values: &'a SettingMap,
    findings: &'a mut Vec<Finding>,
) -> impl FnMut(&str, &str, &str) + 'a {
    move |key, what, remedy| findings.push(values.finding(key, Problem::new(what, remedy)))
}

/// Warnings: values that are valid and probably not intended.
pub(super) fn warnings(settings: &Settings) -> Vec<Finding> {
    let mut findings = Vec::new();
    for service in &settings.services {
        let mut note = noting(service, &mut findings);
        missing_folders(service, &LISTEN, &mut note);
        tls_checks::warn(service, &mut note);
        if let Some(Value::Endpoints(sentinels)) = service.value("service.sentinels") {
            let mut sorted = sentinels.clone();
            sorted.sort();
            for twice in sorted.windows(2).filter_map(|pair| match pair {
                [a, b] if a == b => Some(a),
                _ => None,
            }) {
                let what = format!("{twice} is listed twice");
                note("service.sentinels", &what, "remove one; it is queried once");
            }
        }
        for section in super::schema::CREDENTIALS {
            let key = format!("{section}.password");
            if service.passwords.get(section).is_some_and(|password| password.reveal() == HIDDEN) {
                let what = "the password is the placeholder that `pointsman config` prints";
                note(&key, what, "replace it by the password");
            }
        }
    }
    let process = &settings.process;
    missing_folders(process, &SOCKETS, &mut noting(process, &mut findings));
    warn_of_one_token(process, &mut noting(process, &mut findings));
    findings
}

fn warn_of_one_token(process: &SettingMap, note: &mut Note<'_>) {
    let [control, read] = [CONTROL_TOKEN, READ_TOKEN].map(|it| process.passwords.get(it));
    if read.is_some() && control.map(Secret::reveal) == read.map(Secret::reveal) {
        let keys = ["admin.read_token_file", "admin.read_token_env"];
        let what = "it is the control token too, so all who may read may give commands";
        for key in keys.iter().filter(|key| process.settings.contains_key(**key)) {
            note(key, what, "use two different tokens");
        }
    }
}

fn check_service(service: &SettingMap, findings: &mut Vec<Finding>) {
    let mut note = noting(service, findings);
    let key = "service.sentinels";
    match service.value(key) {
        Some(Value::Endpoints(sentinels)) if sentinels.is_empty() => {
            note(
                key,
                "the list is empty",
                "add at least one sentinel, for example \"redis-sentinel:26379\"",
            );
        }
        None if service.lacks(key) => {
            note(
                key,
                "the key is missing",
                "add at least one sentinel: sentinels =  [\"redis-sentinel:26379\"], or --sentinel",
            );
        }
        _ => {}
    }
    let key = "service.listen";
    if matches!(service.value(key), Some(Value::Listen(addrs)) if addrs.is_empty())
        && !has(service, "service.tls_listen")
    {
        note(key, "the list is empty", "add at least one address, for example  \"0.0.0.0:6379\"");
    }
    tls_checks::check_service(service, &mut note);
    let key = if has(service, READERS[0]) { READERS[0] } else { READERS[1] };
    if has_any(service, &READERS) && service.text("service.verify") != Some("role") {
        note(
            key,
            "only ROLE distinguishes a replica from a master",
            "set verify = \"role\", or remove this key",
        );
    }
    let key = "service.upstream";
    if service.text(key) == Some("shared") && service.text("service.sessions") == Some("close") {
        note(
            key,
            "clients that share connections are moved between connections",
            "set sessions = \"carry\", or upstream = \"dedicated\"",
        );
    }
    let key = "service.half_close_timeout";
    if let Some(Value::Duration(timeout)) = service.value(key)
        && *timeout >= CONNTRACK_CLOSE_WAIT
    {
        note(key, "Linux drops half-closed connections after 60s", "give less than \"60s\"");
    }
}

/// Warns of missing folders of Unix sockets. It is not a fault, because the configuration may be
/// checked on another machine.
fn missing_folders(values: &SettingMap, keys: &[&str], note: &mut Note<'_>) {
    for key in keys {
        let addrs = match values.value(key) {
            Some(Value::Listen(addrs)) => addrs.clone(),
            _ => socket(values, key).into_iter().collect(),
        };
        let folders = addrs.iter().filter_map(|addr| addr.unix()?.parent());
        for folder in folders.filter(|folder| !folder.join(".").is_dir()) {
            let what = format!("the folder {} does not exist here", folder.display());
            let remedy =
                "create it before the start, for example with RuntimeDirectory= in a systemd unit";
            note(key, &what, remedy);
        }
    }
}

/// The keys with addresses for readers.
const READERS: [&str; 2] = ["service.replica_listen", "service.replica_tls_listen"];

/// The keys with addresses for clients that ask for the sentinels.
const SENTINELS: [&str; 2] = ["service.sentinel_listen", "service.sentinel_tls_listen"];

/// Whether the service has addresses to listen at in one of `keys`.
fn has_any(service: &SettingMap, keys: &[&str]) -> bool {
    keys.iter().any(|key| has(service, key))
}

/// Whether a list of addresses is not empty.
pub(super) fn has(service: &SettingMap, key: &str) -> bool {
    matches!(service.value(key), Some(Value::Listen(addrs)) if !addrs.is_empty())
}

/// The keys with addresses for clients with TLS.
pub(super) const TLS_LISTEN: [&str; 3] =
    ["service.tls_listen", "service.replica_tls_listen", "service.sentinel_tls_listen"];

/// Reports services with equal names: flags, metrics and logs identify a service by its name.
fn check_names(settings: &Settings, findings: &mut Vec<Finding>) {
    let mut seen: BTreeMap<&str, Origin> = BTreeMap::new();
    for service in &settings.services {
        let name = service.name();
        if name.is_empty() {
            continue;
        }
        if let Some(first) = seen.get(name) {
            let what = format!("another service is called {name:?} as well ({first})");
            let problem = Problem::new(what, "give each service its own name");
            findings.push(service.finding("service.name", problem));
        } else {
            seen.insert(name, service.origin("service.name"));
        }
    }
}

/// The maximum number of services. Discovery does all of them on one thread.
const MAX_SERVICES: usize = 1024;

fn check_number(settings: &Settings, findings: &mut Vec<Finding>) {
    if let Some(first) = settings.services.get(MAX_SERVICES) {
        let count = settings.services.len();
        findings.push(Finding::new(
            first.origin("service.name"),
            "service",
            format!("{count} services are more than one process can watch"),
            format!("use at most {MAX_SERVICES} per process"),
        ));
    }
}

/// The keys with the listen addresses of a service.
const LISTEN: [&str; 6] = [
    "service.listen",
    "service.replica_listen",
    "service.sentinel_listen",
    TLS_LISTEN[0],
    TLS_LISTEN[1],
    TLS_LISTEN[2],
];

/// The keys of the process that lead to a Unix socket.
const SOCKETS: [&str; 2] = ["admin.control_socket", "process.state_dir"];

/// The Unix socket of one of [`SOCKETS`].
fn socket(process: &SettingMap, key: &str) -> Option<ListenAddr> {
    let path = Path::new(process.text(key)?);
    let is_folder = key == "process.state_dir";
    Some(ListenAddr::Unix(if is_folder { path.join(TAKEOVER_SOCKET) } else { path.to_owned() }))
}

/// Reports listen addresses that conflict. A wildcard conflicts with every address of its family
/// and port; `[::]` does not conflict with IPv4, which is left to an IPv4 address if there is one.
fn check_addresses(settings: &Settings, findings: &mut Vec<Finding>) {
    let services = settings.services.iter().flat_map(|service| LISTEN.map(|key| (service, key)));
    let process = &settings.process;
    let socket = |key: &'static str| Some((socket(process, key)?, process.origin(key), key));
    let mut taken: Vec<(ListenAddr, Origin, &str)> =
        SOCKETS.into_iter().filter_map(socket).collect();
    let admin = ["admin.listen", "admin.read_only_listen"].map(|key| (&settings.process, key));
    for (values, key) in services.chain(admin) {
        let Some(Value::Listen(addrs)) = values.value(key) else { continue };
        for addr in addrs {
            let origin = values.origin(key);
            if let Some((other, first, other_key)) =
                taken.iter().find(|(other, ..)| overlap(addr, other))
            {
                // If one of the two is a default, the fault is reported for the other.
                let what = format!("{addr} is already used by {other_key} = {other} ({first})");
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

/// Pairs of keys of which the first must not exceed the second.
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

fn check_orders(settings: &Settings, findings: &mut Vec<Finding>) {
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
            values.settings.get(less).is_some_and(|setting| setting.origin != Origin::Default);
        let (key, other, relation, span, bound) =
            if is_written { (less, more, "above", a, b) } else { (more, less, "below", b, a) };
        let what = format!(
            "{} is {relation} {other} ({})",
            duration::format(*span),
            duration::format(*bound)
        );
        let problem = Problem::new(what, format!("keep {less} <= {more}"));
        findings.push(values.finding(key, problem));
    }
}

/// Reports if the sum of the services' connection limits exceeds that of the process, or leaves
/// nothing for the services without a limit.
fn check_connections(settings: &Settings, findings: &mut Vec<Finding>) {
    let key = "process.max_connections";
    let Some(Value::Count(total @ 1..)) = settings.process.value(key) else { return };
    let mut asked = 0_usize;
    let mut derived = 0_usize;
    for service in &settings.services {
        // Each further kind of listener has the same limit and is counted separately.
        let times = 1 + [READERS, SENTINELS].iter().filter(|it| has_any(service, *it)).count();
        match service.value("service.max_connections") {
            Some(Value::Count(0)) => derived += times,
            Some(Value::Count(count)) => asked = asked.saturating_add(count.saturating_mul(times)),
            _ => return,
        }
    }
    if asked.saturating_add(derived) > *total {
        let what = format!(
            "{total} is less than the services need ({asked} configured, and at least {derived} for \
             those without a limit)"
        );
        let problem = Problem::new(what, "raise it, or lower service.max_connections");
        findings.push(settings.process.finding(key, problem));
    }
}
