//! The names that haproxy's own exporter has, for dashboards and alerts that were made for it
//! (`[metrics] haproxy_names = true`).
//!
//! A `proxy` is a listener: the service's name, or `NAME/replicas` for readers. A `server` is a
//! node, by the address that the sentinels announce. As with the checks that people put on haproxy,
//! one server of a master's listener is UP: the master. What haproxy counts and this process does
//! not, bytes of each server, is made of what the listener counts and of which node was the master
//! meanwhile.
//!
//! Names, labels and states were compared with haproxy 2.6.12.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proxy::{EndReason, ServiceSnapshot};
use sentinel::{
    DiscoverySnapshot, NodeSnapshot, ProbeFailure, ReplicaPoolSnapshot, ReplicaState, Role,
};

use super::exposition::{Exposition, Pair};

/// One listener.
pub(super) struct Listener<'a> {
    pub(super) proxy: &'a str,
    pub(super) traffic: &'a ServiceSnapshot,
    pub(super) limit: usize,
    pub(super) seen: &'a DiscoverySnapshot,
    /// What is known of the replicas, if they are what it is for.
    pub(super) replicas: Option<&'a ReplicaPoolSnapshot>,
}

/// The process.
pub(super) struct Process {
    pub(super) uptime: Duration,
    pub(super) limit: usize,
    pub(super) stopping: bool,
    pub(super) accepting: bool,
}

/// Bytes in and out.
type Bytes = (u64, u64);

/// What is kept from one scrape to the next.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// For each listener what it had counted, and what of that each of its nodes is held to have
    /// had.
    listeners: BTreeMap<String, (Bytes, BTreeMap<String, Bytes>)>,
}

/// States that a check may have here, of haproxy's.
const CHECKS: [&str; 6] = ["HANA", "L4CON", "L7TOUT", "L7RSP", "L7STS", "L7OK"];

/// The whole process.
pub(super) fn process(page: &mut Exposition, process: &Process, listeners: &[Listener<'_>]) {
    let sum =
        |of: fn(&ServiceSnapshot) -> u64| listeners.iter().map(|it| of(it.traffic)).sum::<u64>();
    page.gauge("haproxy_process_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    page.gauge("haproxy_process_uptime_seconds", &[], process.uptime.as_secs());
    page.gauge("haproxy_process_max_connections", &[], process.limit);
    page.gauge("haproxy_process_current_connections", &[], sum(|it| it.open));
    page.count("haproxy_process_connections_total", &[], sum(accepted));
    page.flag("haproxy_process_stopping", &[], process.stopping);
}

/// One listener: frontend, backend and servers.
pub(super) fn listener(page: &mut Exposition, kept: &mut Kept, accepting: bool, it: &Listener<'_>) {
    let (proxy, traffic): (Pair<'_>, _) = (("proxy", it.proxy), it.traffic);
    let of = &[proxy][..];
    for (state, is) in [("DOWN", !accepting), ("UP", accepting)] {
        page.flag("haproxy_frontend_status", &[proxy, ("state", state)], is);
    }
    page.gauge("haproxy_frontend_current_sessions", of, traffic.open);
    page.gauge("haproxy_frontend_limit_sessions", of, it.limit);
    page.count("haproxy_frontend_sessions_total", of, traffic.accepted);
    page.count("haproxy_frontend_connections_total", of, accepted(traffic));
    page.count("haproxy_frontend_bytes_in_total", of, traffic.bytes_in);
    page.count("haproxy_frontend_bytes_out_total", of, traffic.bytes_out);
    let servers = it.servers();
    let active = servers.iter().filter(|server| server.up).count();
    // A master may stand in for replicas; then the listener works although none of its servers
    // does.
    let up = active > 0
        || it
            .replicas
            .is_some_and(|replicas| replicas.stands_in && it.seen.stopped_since.is_none());
    for (state, is) in [("DOWN", !up), ("UP", up)] {
        page.flag("haproxy_backend_status", &[proxy, ("state", state)], is);
    }
    let errors = traffic.dial_failures.iter().sum::<u64>();
    let broken = |reasons: &[EndReason]| {
        reasons.iter().map(|reason| traffic.closed_for(*reason)).sum::<u64>()
    };
    page.gauge("haproxy_backend_active_servers", of, active);
    page.gauge("haproxy_backend_current_sessions", of, traffic.open.saturating_sub(traffic.held));
    page.count("haproxy_backend_connection_errors_total", of, errors);
    page.count("haproxy_backend_connection_attempts_total", of, traffic.dials + errors);
    let by_server = [
        EndReason::UpstreamReset,
        EndReason::UpstreamLost,
        EndReason::UpstreamError,
        EndReason::DialFailed,
    ];
    page.count("haproxy_backend_server_aborts_total", of, broken(&by_server));
    let by_client = [
        EndReason::ClientReset,
        EndReason::ClientLost,
        EndReason::ClientError,
        EndReason::HoldAbandoned,
    ];
    page.count("haproxy_backend_client_aborts_total", of, broken(&by_client));
    let dials = u32::try_from(traffic.dial_time.count()).unwrap_or(u32::MAX);
    let average = traffic.dial_time.sum().checked_div(dials).unwrap_or_default();
    page.gauge("haproxy_backend_connect_time_average_seconds", of, average.as_secs_f64());
    match it.replicas {
        Some(replicas) => page.count("haproxy_backend_check_up_down_total", of, replicas.ejections),
        None => {
            page.seconds(
                "haproxy_backend_downtime_seconds_total",
                of,
                it.seen.outage(Instant::now()),
            );
            page.count(
                "haproxy_backend_check_up_down_total",
                of,
                it.seen.counts.holds + it.seen.counts.clears,
            );
        }
    }
    for server in &servers {
        server.put(page, proxy);
    }
    if it.replicas.is_none() {
        bytes(page, kept, it, &servers);
    }
}

/// Connections that were accepted, for whatever.
fn accepted(traffic: &ServiceSnapshot) -> u64 {
    traffic.accepted + traffic.refused_in_all()
}

/// What came since the last scrape goes to the node that is the master now; without one it waits
/// for the next.
fn bytes(page: &mut Exposition, kept: &mut Kept, it: &Listener<'_>, servers: &[Server]) {
    let (before, nodes) = kept.listeners.entry(it.proxy.to_owned()).or_default();
    nodes.retain(|name, _| servers.iter().any(|server| server.name == *name));
    if let Some(master) = it.seen.master.as_ref() {
        let now = (it.traffic.bytes_in, it.traffic.bytes_out);
        let had = nodes.entry(master.addr.to_string()).or_default();
        had.0 += now.0.saturating_sub(before.0);
        had.1 += now.1.saturating_sub(before.1);
        *before = now;
    }
    for server in servers {
        let (from_clients, to_clients) = nodes.get(&server.name).copied().unwrap_or_default();
        let of = [("proxy", it.proxy), ("server", &*server.name)];
        page.count("haproxy_server_bytes_in_total", &of, from_clients);
        page.count("haproxy_server_bytes_out_total", &of, to_clients);
    }
}

/// One node, as one listener has it.
struct Server {
    name: String,
    up: bool,
    sessions: u64,
    check: &'static str,
    failures: u64,
    answered_in: Option<Duration>,
}

impl Listener<'_> {
    fn servers(&self) -> Vec<Server> {
        let server = |node: &NodeSnapshot| {
            let replica = |it: &ReplicaPoolSnapshot| {
                it.replicas.iter().find(|it| it.addr == node.addr).cloned()
            };
            let (up, sessions) = match self.replicas {
                Some(replicas) => {
                    let replica = replica(replicas)?;
                    (replica.standing == ReplicaState::Eligible, replica.sessions as u64)
                }
                None => {
                    let is =
                        self.seen.master.as_ref().is_some_and(|master| master.addr == node.addr);
                    let sessions =
                        if is { self.traffic.open.saturating_sub(self.traffic.held) } else { 0 };
                    (is && self.seen.stopped_since.is_none(), sessions)
                }
            };
            Some(Server {
                name: node.addr.to_string(),
                up,
                sessions,
                check: check(node, self.replicas.is_some()),
                failures: node.failures,
                answered_in: node.answered_in,
            })
        };
        self.seen.nodes.iter().filter_map(server).collect()
    }
}

/// How the last question to a node ended, in haproxy's words.
fn check(node: &NodeSnapshot, reads: bool) -> &'static str {
    match node.probe.as_ref().map(|probe| &probe.outcome) {
        None => "HANA",
        Some(Ok(report)) => match (&report.role, reads) {
            (Role::Master, false) | (Role::Replica { .. }, true) => "L7OK",
            _ => "L7STS",
        },
        Some(Err(ProbeFailure::Unreachable)) => "L4CON",
        Some(Err(ProbeFailure::Silent)) => "L7TOUT",
        Some(Err(ProbeFailure::TurnedAway | ProbeFailure::Denied | ProbeFailure::Rejected)) => {
            "L7RSP"
        }
    }
}

impl Server {
    fn put(&self, page: &mut Exposition, proxy: Pair<'_>) {
        let of = [proxy, ("server", &*self.name)];
        let with = |state| [of[0], of[1], ("state", state)];
        for (state, is) in [
            ("DOWN", !self.up),
            ("UP", self.up),
            ("MAINT", false),
            ("DRAIN", false),
            ("NOLB", false),
        ] {
            page.flag("haproxy_server_status", &with(state), is);
        }
        for state in CHECKS {
            page.flag("haproxy_server_check_status", &with(state), state == self.check);
        }
        page.count("haproxy_server_check_failures_total", &of, self.failures);
        let took = self.answered_in.unwrap_or_default();
        page.gauge("haproxy_server_check_duration_seconds", &of, took.as_secs_f64());
        page.gauge("haproxy_server_current_sessions", &of, self.sessions);
    }
}
