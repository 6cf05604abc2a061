//! The metrics of haproxy's exporter, for dashboards and alerts that were made for it (`[metrics]
//! haproxy_names = true`).
//!
//! A `proxy` is a listener: the service's name, or `NAME/replicas` for readers. A `server` is a
//! node, identified by the address that the sentinels announce. As with the usual health checks of
//! haproxy, one server of a master's listener is UP: the master. Bytes per server are absent,
//! because this process does not count them.
//!
//! Names, labels and states were compared with haproxy 2.6.12.

use std::time::{Duration, Instant};

use drain::Phase;
use proxy::{EndReason, ServiceSnapshot};
use sentinel::{
    DiscoverySnapshot, NodeSnapshot, ProbeFailure, ReplicaPoolSnapshot, ReplicaState, Role,
};

use super::exposition::{Exposition, LabelPair};

/// One listener.
pub(super) struct ListenerMetrics<'a> {
    pub(super) proxy: &'a str,
    pub(super) traffic: &'a ServiceSnapshot,
    pub(super) limit: usize,
    pub(super) seen: &'a DiscoverySnapshot,
    /// The replica pool, if this is a listener for readers.
    pub(super) replicas: Option<&'a ReplicaPoolSnapshot>,
}

/// The check states of haproxy that are used here.
const CHECKS: [&str; 6] = ["HANA", "L4CON", "L7TOUT", "L7RSP", "L7STS", "L7OK"];

/// The ends of sessions that haproxy counts as caused by the server.
const SERVER_ABORTS: [EndReason; 5] = [
    EndReason::UpstreamReset,
    EndReason::UpstreamLost,
    EndReason::UpstreamError,
    EndReason::DialFailed,
    EndReason::TargetTlsFailed,
];

/// Writes the metrics of a process that may have at most `limit` clients.
pub(super) fn process(
    page: &mut Exposition,
    uptime: Duration,
    limit: usize,
    phase: Phase,
    listeners: &[ListenerMetrics<'_>],
) {
    let sum =
        |of: fn(&ServiceSnapshot) -> u64| listeners.iter().map(|it| of(it.traffic)).sum::<u64>();
    page.gauge("haproxy_process_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    page.gauge("haproxy_process_uptime_seconds", &[], uptime.as_secs());
    page.gauge("haproxy_process_max_connections", &[], limit);
    page.gauge("haproxy_process_current_connections", &[], sum(ServiceSnapshot::open));
    page.count("haproxy_process_connections_total", &[], sum(accepted));
    page.flag("haproxy_process_stopping", &[], phase > Phase::Serving);
}

/// Writes the metrics of one listener: frontend, backend and servers.
pub(super) fn listener(page: &mut Exposition, accepting: bool, it: &ListenerMetrics<'_>) {
    let (proxy, traffic): (LabelPair<'_>, _) = (("proxy", it.proxy), it.traffic);
    let of = &[proxy][..];
    for (state, is) in [("DOWN", !accepting), ("UP", accepting)] {
        page.flag("haproxy_frontend_status", &[proxy, ("state", state)], is);
    }
    page.gauge("haproxy_frontend_current_sessions", of, traffic.open());
    page.gauge("haproxy_frontend_limit_sessions", of, it.limit);
    page.count("haproxy_frontend_sessions_total", of, traffic.accepted);
    page.count("haproxy_frontend_connections_total", of, accepted(traffic));
    page.count("haproxy_frontend_bytes_in_total", of, traffic.bytes_in);
    page.count("haproxy_frontend_bytes_out_total", of, traffic.bytes_out);
    let servers = it.servers();
    let active = servers.iter().filter(|server| server.up).count();
    // The master may replace missing replicas; then the backend is UP although none of its servers
    // is.
    let up = active > 0
        || it.replicas.is_some_and(|replicas| {
            replicas.master_serves_reads && it.seen.stopped_since.is_none()
        });
    for (state, is) in [("DOWN", !up), ("UP", up)] {
        page.flag("haproxy_backend_status", &[proxy, ("state", state)], is);
    }
    let errors = traffic.dial_failures.iter().sum::<u64>();
    let aborted = |reasons: &[EndReason]| {
        reasons.iter().map(|reason| traffic.closed_for(*reason)).sum::<u64>()
    };
    page.gauge("haproxy_backend_active_servers", of, active);
    page.gauge("haproxy_backend_current_sessions", of, traffic.open().saturating_sub(traffic.held));
    page.count("haproxy_backend_connection_errors_total", of, errors);
    page.count("haproxy_backend_connection_attempts_total", of, traffic.dials + errors);
    page.count("haproxy_backend_server_aborts_total", of, aborted(&SERVER_ABORTS));
    let by_client = [
        EndReason::ClientReset,
        EndReason::ClientLost,
        EndReason::ClientError,
        EndReason::HoldAbandoned,
    ];
    page.count("haproxy_backend_client_aborts_total", of, aborted(&by_client));
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
        server.write(page, proxy, it.replicas.is_some());
    }
}

/// Connections that were accepted, including refused ones.
fn accepted(traffic: &ServiceSnapshot) -> u64 {
    traffic.accepted + traffic.refused_in_all()
}

/// One node of a listener.
struct ServerMetrics<'a> {
    node: &'a NodeSnapshot,
    up: bool,
    sessions: u64,
}

impl<'a> ListenerMetrics<'a> {
    fn servers(&self) -> Vec<ServerMetrics<'a>> {
        let server = |node: &'a NodeSnapshot| {
            let (up, sessions) = match self.replicas {
                Some(pool) => {
                    let replica = pool.replicas.iter().find(|it| it.addr == node.addr)?;
                    (replica.state == ReplicaState::Eligible, replica.sessions as u64)
                }
                None => {
                    let is =
                        self.seen.master.as_ref().is_some_and(|master| master.addr == node.addr);
                    let sessions =
                        if is { self.traffic.open().saturating_sub(self.traffic.held) } else { 0 };
                    (is && self.seen.stopped_since.is_none(), sessions)
                }
            };
            Some(ServerMetrics { node, up, sessions })
        };
        self.seen.nodes.iter().filter_map(server).collect()
    }
}

/// Returns the result of the last probe of a node as a check state of haproxy.
fn check(node: &NodeSnapshot, reads: bool) -> &'static str {
    match node.probe.as_ref().map(|probe| &probe.outcome) {
        None => "HANA",
        Some(Ok(report)) => match (&report.role, reads) {
            (Role::Master, false) | (Role::Replica { .. }, true) => "L7OK",
            _ => "L7STS",
        },
        Some(Err(ProbeFailure::Unreachable)) => "L4CON",
        Some(Err(ProbeFailure::Unresponsive)) => "L7TOUT",
        Some(Err(
            ProbeFailure::ConnectionRejected
            | ProbeFailure::Busy
            | ProbeFailure::Denied
            | ProbeFailure::UnusableAddress
            | ProbeFailure::OutsideNodes,
        )) => "L7RSP",
    }
}

impl ServerMetrics<'_> {
    fn write(&self, page: &mut Exposition, proxy: LabelPair<'_>, reads: bool) {
        let (name, check) = (self.node.addr.to_string(), check(self.node, reads));
        let of = [proxy, ("server", &*name)];
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
            page.flag("haproxy_server_check_status", &with(state), state == check);
        }
        page.count("haproxy_server_check_failures_total", &of, self.node.failures);
        let took = self.node.answered_in.unwrap_or_default();
        page.gauge("haproxy_server_check_duration_seconds", &of, took.as_secs_f64());
        page.gauge("haproxy_server_current_sessions", &of, self.sessions);
    }
}
