//! The status document: the state of the process as JSON, for people and scripts.
//!
//! The schema is versioned: fields may be added at any time, and `schema` changes when one is
//! renamed, removed or changes its meaning. Times are ages in seconds, because the clocks here are
//! monotonic and a reader's clock may differ. No secret can appear: this module receives addresses,
//! names and counters only.

mod certificates;
mod credentials;
mod document;
mod shared;
mod verdict;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proxy::{Distribution, EndReason, NotCarried, Pin, Rejection, ServiceSnapshot};
use sentinel::{DiscoverySnapshot, NodeAddr, OperationsSnapshot, PingReply, ProbeFailure, Role};

use crate::admin::effective_config::ServiceSettings;

pub(crate) use certificates::*;
pub(crate) use credentials::*;
pub(crate) use document::*;
pub(crate) use shared::*;
pub(crate) use verdict::VerdictStatus;
pub(crate) use verdict::{some, span};

/// The state of sessions that are not pinned, in metrics and in the status.
pub(crate) const ORDINARY: &str = "ordinary";

/// Returns the JSON schema of the document, formatted.
pub(crate) fn schema() -> String {
    let mut schema = schemars::schema_for!(Status);
    schema.insert("title".to_owned(), format!("pointsman status, schema {SCHEMA}").into());
    serde_json::to_string_pretty(&schema)
        .unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
        + "\n"
}

fn seconds(since: Duration) -> f64 {
    (since.as_secs_f64() * 1000.0).round() / 1000.0
}

fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1000.0
}

/// A listener's addresses and counters.
pub(crate) type ListenerStatus = (Vec<String>, TrafficStatus);

/// Returns the given quantile, in thousandths, in microseconds.
fn micros(distribution: &Distribution, per_mille: u64) -> u64 {
    distribution
        .quantile(per_mille)
        .map_or(0, |duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
}

/// Returns counts by label, without those that are zero.
fn above_zero(counts: impl Iterator<Item = (&'static str, u64)>) -> BTreeMap<&'static str, u64> {
    counts.filter(|(_, count)| *count > 0).collect()
}

/// Returns the counters of one listener of a service with these settings.
pub(crate) fn traffic(settings: &ServiceSettings, counted: &ServiceSnapshot) -> TrafficStatus {
    let ordinary = std::iter::once((ORDINARY, counted.ordinary()));
    let states = ordinary.chain(Pin::ALL.iter().map(|pin| pin.label()).zip(counted.pinned));
    let not_carried = NotCarried::all().map(NotCarried::label).zip(counted.not_carried);
    let rejected = Rejection::ALL.iter().map(|it| it.label()).zip(counted.rejected);
    let closed = EndReason::ALL.iter().map(|it| it.label()).zip(counted.closed.iter().copied());
    TrafficStatus {
        sessions_by_state: above_zero(states),
        sessions_not_carried: above_zero(not_carried),
        sessions_open: counted.open(),
        sessions_waiting: counted.held,
        sessions_limit: settings.max_connections as u64,
        sessions_total: counted.accepted,
        sessions_refused: counted.refused.iter().sum(),
        clients_rejected: above_zero(rejected),
        sessions_carried: counted.carried,
        sessions_closed: above_zero(closed),
        commands: counted.commands,
        bytes_in: counted.bytes_in,
        bytes_out: counted.bytes_out,
        dials: counted.dials,
        dial_errors: counted.dial_failures.iter().sum(),
        command_p50_us: micros(&counted.command_time, 500),
        command_p99_us: micros(&counted.command_time, 990),
        dial_p50_us: micros(&counted.dial_time, 500),
        dial_p99_us: micros(&counted.dial_time, 990),
        shared: SharedStatus::of(settings.shares_upstreams, &counted.shared),
    }
}

/// Returns the part of the document for one service, from discovery's snapshot. The listeners are
/// those of the data plane, for writers and, if configured, for readers. `is_leaving`: the service
/// was removed from the configuration.
pub(crate) fn service(
    seen: &DiscoverySnapshot,
    operations: &OperationsSnapshot,
    listener: ListenerStatus,
    readers: Option<ListenerStatus>,
    is_leaving: bool,
    now: Instant,
) -> ServiceStatus {
    let (listen, traffic) = listener;
    let age = |at: Instant| seconds(now.saturating_duration_since(at));
    let target = seen.master.as_ref().map(|master| TargetStatus {
        name: master.addr.to_string(),
        addr: master.dialled.to_string(),
        epoch: master.epoch,
        run_id: master.run_id.as_deref().map(str::to_owned),
        connects_fail: master.connects_fail,
        age_s: age(master.since),
    });
    let (voters, majority) = seen.quorum;
    let mut service = ServiceStatus {
        name: seen.name.to_string(),
        master_name: seen.master_name.to_string(),
        listen,
        removed: is_leaving,
        state: seen.state,
        verdict: VerdictStatus::default(),
        candidate: seen.candidate.as_ref().map(ToString::to_string),
        gate: if seen.holding { "closed" } else { "open" },
        generation: seen.master.as_ref().map(|master| master.generation),
        target,
        outage_s: seen.stopped_since.map(age),
        held_s: seen.held_since.map(age),
        pause: seen.pause.as_ref().map(|it| pause(it, now)),
        changed_priorities: operations.changed_priorities.iter().map(changed_priority).collect(),
        disagreement: seen.disagreement,
        minority: seen.minority,
        spare_replicas: seen.spare_replicas,
        credentials: CredentialsStatus::of(seen),
        follow: override_status(&seen.overrides, now),
        last_override_end: seen.overrides.last_end.map(sentinel::OverrideEnd::label),
        electorate: ElectorateStatus { voters, majority },
        no_master_because: seen.no_master_because(),
        sentinels: seen.sentinels.iter().map(|it| sentinel(it, age)).collect(),
        nodes: seen.nodes.iter().map(|it| node(it, seen, age)).collect(),
        readers: seen.replicas.as_ref().zip(readers).map(|(seen, it)| self::readers(seen, it)),
        replicas: seen.replicas.iter().flat_map(|it| it.replicas.iter().map(replica)).collect(),
        failovers: seen.failovers.iter().map(|it| failover(it, age)).collect(),
        alarms: seen.alarms.iter().map(|it| alarm(it, age)).collect(),
        traffic,
    };
    service.verdict = service.judge();
    service
}

fn pause(seen: &sentinel::Pause, now: Instant) -> PauseStatus {
    PauseStatus {
        by: if seen.ends_with_commit { "switchover" } else { "pause" },
        for_s: seconds(now.saturating_duration_since(seen.since)),
        left_s: seconds(seen.until.saturating_duration_since(now)),
    }
}

fn override_status(seen: &sentinel::OverridesSnapshot, now: Instant) -> Option<OverrideStatus> {
    seen.in_force.as_ref().map(|it| OverrideStatus {
        master: it.addr.to_string(),
        age_s: seconds(now.saturating_duration_since(it.since)),
        left_s: seconds(it.until.saturating_duration_since(now)),
        contradicted_by: seen.contradicted_by.iter().map(ToString::to_string).collect(),
    })
}

fn changed_priority(seen: &sentinel::PriorityChange) -> ChangedPriorityStatus {
    ChangedPriorityStatus {
        node: seen.node.to_string(),
        from: seen.from,
        to: seen.to,
        restore: seen.remedy(),
    }
}

fn readers(seen: &sentinel::ReplicaPoolSnapshot, listener: ListenerStatus) -> ReadersStatus {
    ReadersStatus {
        listen: listener.0,
        eligible: seen.eligible,
        empty: if seen.master_serves_reads { "master" } else { "reject" },
        ejections: seen.ejections,
        readmissions: seen.readmissions,
        traffic: listener.1,
    }
}

fn replica(seen: &sentinel::ReplicaSnapshot) -> ReplicaStatus {
    ReplicaStatus {
        addr: seen.addr.to_string(),
        state: seen.state.label(),
        lag_bytes: seen.lag.bytes,
        lag_s: seconds(seen.lag.time),
        sessions: seen.sessions,
    }
}

fn sentinel(seen: &sentinel::SentinelSnapshot, age: impl Fn(Instant) -> f64) -> SentinelStatus {
    SentinelStatus {
        addr: seen.addr.to_string(),
        id: seen.id.as_ref().map(ToString::to_string),
        up: seen.up,
        events: seen.events,
        tls: seen.tls.map(tls::Version::label),
        tls_fault: seen.tls_fault.map(tls::FaultKind::as_str),
        votes: seen.member,
        origin: seen.origin.label(),
        master: seen.view.as_ref().map(|(addr, ..)| addr.to_string()),
        epoch: seen.view.as_ref().map(|(_, epoch, _)| *epoch),
        age_s: seen.view.as_ref().map(|(_, _, at)| age(*at)),
        disagrees: seen.disagrees,
        problem: seen.problem.clone(),
    }
}

/// The sessions on a node, and the failed connections to it.
fn node_use(addr: &NodeAddr, all: &DiscoverySnapshot) -> (usize, usize) {
    let master = all.master.iter().filter(|it| it.addr == *addr);
    let master = master.map(|it| (it.sessions, 0));
    let replicas = all.replicas.iter().flat_map(|it| &it.replicas).filter(|it| it.addr == *addr);
    let replicas = replicas.map(|it| (it.sessions, it.failed_connects));
    master.chain(replicas).fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1))
}

fn node(
    seen: &sentinel::NodeSnapshot,
    all: &DiscoverySnapshot,
    age: impl Fn(Instant) -> f64,
) -> NodeStatus {
    let (sessions, failed_connects) = node_use(&seen.addr, all);
    let report = seen.probe.as_ref().and_then(|probe| probe.outcome.as_ref().ok());
    let role = match seen.probe.as_ref().map(|probe| &probe.outcome) {
        None => "unknown",
        Some(Ok(report)) => match report.role {
            Role::Master => "master",
            Role::Replica { .. } => "replica",
            Role::Unknown => "unknown",
        },
        Some(Err(ProbeFailure::Unreachable)) => "unreachable",
        Some(Err(ProbeFailure::Unresponsive)) => "unresponsive",
        Some(Err(ProbeFailure::ConnectionRejected)) => "connection_rejected",
        Some(Err(ProbeFailure::Busy)) => "busy",
        Some(Err(ProbeFailure::Denied)) => "denied",
        Some(Err(ProbeFailure::UnusableAddress)) => "unusable_address",
        Some(Err(ProbeFailure::OutsideNodes)) => "outside_nodes",
    };
    NodeStatus {
        addr: seen.addr.to_string(),
        role,
        pong: report.is_some_and(|report| report.ping == PingReply::Pong),
        ping: report.map(|report| report.ping.label()),
        offset: report.and_then(|report| report.lineage.as_ref()).map(|lineage| lineage.offset),
        age_s: seen.probe.as_ref().map(|probe| age(probe.asked_at)),
        tls: seen.tls.map(tls::Version::label),
        tls_fault: seen.tls_fault.map(tls::FaultKind::as_str),
        problem: seen.problem.clone(),
        sessions,
        failed_connects: seen.failed_connects + failed_connects,
        failed_probes: seen.failures,
    }
}

fn alarm(seen: &sentinel::AlarmRecord, age: impl Fn(Instant) -> f64) -> AlarmStatus {
    AlarmStatus {
        alarm: seen.alarm.label(),
        on: seen.ended_at.is_none(),
        age_s: age(seen.since),
        ended_s: seen.ended_at.map(age),
        sentinels: seen.sentinels.clone(),
        message: seen.alarm.message(),
    }
}

fn failover(seen: &sentinel::FailoverRecord, age: impl Fn(Instant) -> f64) -> FailoverStatus {
    let timeline = &seen.timeline;
    FailoverStatus {
        from: seen.from.as_ref().map(ToString::to_string),
        to: seen.to.to_string(),
        generation: seen.generation,
        epoch: seen.epoch,
        decided_by: seen.basis.label().to_owned(),
        age_s: timeline.committed_at.map(age),
        duration_ms: timeline.duration().map(ms),
        held_ms: timeline.hold().map(ms),
        switched_ms: seen.switch_time().map(ms),
        verified_ms: seen.verification().map(ms),
        first_session_ms: seen.first_session().map(ms),
        lost_bytes: seen.lost_bytes,
    }
}
