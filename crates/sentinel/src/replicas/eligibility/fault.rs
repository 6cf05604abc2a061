//! The faults that make a replica ineligible, and those that fence it.

use std::net::SocketAddr;
use std::time::Instant;

use super::{CurrentMaster, EligibilityInputs, LastReport, ReplicaRecord, ReplicaState};
use crate::{AttachedReplica, NodeAddr, NodeReport, ProbeFailure, ReplicaRules, Role};

/// Why a replica may not be used; the most severe fault first.
pub(super) fn fault(
    record: &ReplicaRecord,
    addr: &NodeAddr,
    now: Instant,
    rules: &ReplicaRules,
    master: &CurrentMaster<'_>,
    inputs: &EligibilityInputs<'_>,
    settling: bool,
) -> Option<ReplicaState> {
    // Transient faults are ignored only for an eligible replica and the process that was admitted.
    let spared = settling && record.state == ReplicaState::Eligible && record.is_the_same_process();
    if addr == master.addr {
        return Some(ReplicaState::Master);
    }
    if inputs.in_minority || record.unlisted_since.is_some() {
        return Some(ReplicaState::Unlisted);
    }
    if inputs.candidate == Some(addr) {
        return Some(ReplicaState::Candidate);
    }
    let failure = match record.failed {
        Some((ProbeFailure::Denied, _)) => Some(ReplicaState::Denied),
        Some((ProbeFailure::OutsideNodes, _)) => Some(ReplicaState::Unreachable),
        Some((ProbeFailure::Unreachable | ProbeFailure::UnusableAddress, times)) => {
            Some(ReplicaState::Unreachable).filter(|_| times >= 2 || !spared)
        }
        // Whether it still serves its connected sessions shows in the age of its last answer.
        Some((
            ProbeFailure::Unresponsive | ProbeFailure::ConnectionRejected | ProbeFailure::Busy,
            _,
        ))
        | None => None,
    };
    let Some(last_report) = &record.last_report else {
        return Some(failure.unwrap_or(if record.failed.is_some() {
            ReplicaState::Unresponsive
        } else {
            ReplicaState::Unknown
        }));
    };
    if last_report.report.role == Role::Master {
        return Some(ReplicaState::Master);
    }
    if failure.is_some() {
        return failure;
    }
    if now.saturating_duration_since(last_report.asked_at) > rules.unanswered {
        return Some(ReplicaState::Unresponsive);
    }
    let report = &last_report.report;
    if !report.ping.is_ready() {
        return Some(ReplicaState::NotReady);
    }
    let Role::Replica { master: of, connected } = &report.role else {
        return Some(ReplicaState::FollowsOtherMaster);
    };
    // `INFO` is not permitted, and the master's history is known.
    if !spared && report.lineage.is_none() && !master.replid.is_empty() {
        return Some(ReplicaState::Denied);
    }
    let is_follower = || follows(of, report, master) && shares_history(report, master);
    if is_wrong(record, addr, master, settling) || (!spared && !is_follower()) {
        return Some(ReplicaState::FollowsOtherMaster);
    }
    if !spared && !connected {
        return Some(ReplicaState::LinkDown);
    }
    if !spared && !is_attached(addr, report, master) {
        return Some(ReplicaState::UnknownToMaster);
    }
    // Sentinels consider a node down that answers PING with MISCONF or BUSY. Its own answer says
    // more.
    if !spared && !record.healthy && report.ping.refusal().is_none() {
        return Some(ReplicaState::FlaggedBySentinel);
    }
    is_behind(record, rules).then_some(ReplicaState::Lagging)
}

/// Whether the lag exceeds the limit. For an ejected replica half of the limit applies.
fn is_behind(record: &ReplicaRecord, rules: &ReplicaRules) -> bool {
    let part =
        if matches!(record.state, ReplicaState::Eligible | ReplicaState::Unknown) { 1 } else { 2 };
    let too_many = rules.max_lag_bytes > 0 && record.lag.bytes > rules.max_lag_bytes / part;
    let too_long = !rules.max_lag.is_zero()
        && record.lag.time * u32::try_from(part).unwrap_or(1) > rules.max_lag;
    too_many || too_long
}

/// Whether a node reports that it follows the committed master. A host name in its configuration is
/// not resolved: if it differs from the name that sentinels use, the history decides.
fn follows(of: &NodeAddr, report: &NodeReport, master: &CurrentMaster<'_>) -> bool {
    let same = of == master.addr
        || of.ip().is_some_and(|ip| SocketAddr::new(ip, of.port) == master.dialled);
    let history = report.lineage.as_ref().map(|lineage| &*lineage.replid);
    same || (of.ip().is_none() && !master.replid.is_empty() && history == Some(master.replid))
}

/// Whether a replica has the replication history of the master. A server that follows it does; one
/// that merely says so does not know the replication ID. Not checked if the master's is unreadable.
fn shares_history(report: &NodeReport, master: &CurrentMaster<'_>) -> bool {
    master.replid.is_empty()
        || report.lineage.as_ref().is_some_and(|lineage| *lineage.replid == *master.replid)
}

/// Whether the master lists the replica, by the address that the sentinels announce or by the one
/// that was dialled. A host name in its list is not resolved: it matches by its port.
fn is_attached(addr: &NodeAddr, report: &NodeReport, master: &CurrentMaster<'_>) -> bool {
    let is_it = |listed: &AttachedReplica| {
        let listed = &listed.addr;
        listed == addr
            || listed.ip().map_or(listed.port == addr.port, |ip| {
                SocketAddr::new(ip, listed.port) == report.dialled
            })
    };
    master.replicas.is_none_or(|replicas| replicas.iter().any(is_it))
}

/// Whether the node must be fenced: it is a master, or its history is not the master's and it
/// follows another one. While the state settles the latter proves nothing: it may follow the next
/// master, whose history is not known yet.
pub(super) fn is_wrong(
    record: &ReplicaRecord,
    addr: &NodeAddr,
    master: &CurrentMaster<'_>,
    settling: bool,
) -> bool {
    let Some(LastReport { report, .. }) = &record.last_report else { return addr == master.addr };
    match &report.role {
        Role::Master => true,
        Role::Unknown => addr == master.addr,
        Role::Replica { master: of, .. } => {
            // The second replication ID of most nodes is all zeros, so only the master's first one
            // is compared with it.
            let foreign = report.lineage.as_ref().is_some_and(|lineage| {
                let known = [master.replid, master.replid2].contains(&&*lineage.replid);
                !master.replid.is_empty() && !known && *lineage.replid2 != *master.replid
            });
            addr == master.addr || (foreign && !settling && !follows(of, report, master))
        }
    }
}
