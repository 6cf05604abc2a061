//! What is held against a replica, and what is held against it for good.

use std::net::SocketAddr;
use std::time::Instant;

use super::{Answer, Entry, Facts, Leader, ReplicaState};
use crate::{NodeAddr, NodeReport, ProbeFailure, ReplicaRules, Role};

/// Why a replica may not be used; the gravest first.
pub(super) fn fault(
    entry: &Entry,
    addr: &NodeAddr,
    now: Instant,
    rules: &ReplicaRules,
    leader: &Leader<'_>,
    facts: &Facts<'_>,
    shaken: bool,
) -> Option<ReplicaState> {
    // Only who is in may be spared the dust, and only the process that was let in.
    let spared = shaken && entry.standing == ReplicaState::Eligible && entry.is_the_same_process();
    if addr == leader.addr {
        return Some(ReplicaState::Master);
    }
    if facts.cut_off || entry.unlisted_since.is_some() {
        return Some(ReplicaState::Unlisted);
    }
    if facts.candidate == Some(addr) {
        return Some(ReplicaState::Candidate);
    }
    let failure = match entry.failed {
        Some((ProbeFailure::Unreachable | ProbeFailure::Rejected, times)) if times >= 2 => {
            Some(ReplicaState::Unreachable)
        }
        Some((ProbeFailure::Denied, _)) => Some(ReplicaState::Denied),
        Some((ProbeFailure::Unreachable | ProbeFailure::Rejected, _)) => {
            Some(ReplicaState::Unreachable).filter(|_| !spared)
        }
        // Whether it still serves those that are connected is shown by the age of its last answer.
        Some((ProbeFailure::Silent | ProbeFailure::TurnedAway, _)) | None => None,
    };
    let Some(answer) = &entry.answer else {
        return Some(failure.unwrap_or(if entry.failed.is_some() {
            ReplicaState::Silent
        } else {
            ReplicaState::Unknown
        }));
    };
    if answer.report.role == Role::Master {
        return Some(ReplicaState::Master);
    }
    if failure.is_some() {
        return failure;
    }
    if now.saturating_duration_since(answer.asked_at) > rules.unanswered {
        return Some(ReplicaState::Silent);
    }
    let report = &answer.report;
    if !report.pong {
        return Some(ReplicaState::Unready);
    }
    let Role::Replica { master, connected } = &report.role else {
        return Some(ReplicaState::Stranger);
    };
    if is_wrong(entry, addr, leader, shaken) || (!spared && !follows(master, report, leader)) {
        return Some(ReplicaState::Stranger);
    }
    if !spared && !connected {
        return Some(ReplicaState::LinkDown);
    }
    if !spared && !entry.healthy {
        return Some(ReplicaState::Flagged);
    }
    is_behind(entry, rules).then_some(ReplicaState::Behind)
}

/// Who is out has to catch up to half of what put it out.
fn is_behind(entry: &Entry, rules: &ReplicaRules) -> bool {
    let part = if matches!(entry.standing, ReplicaState::Eligible | ReplicaState::Unknown) {
        1
    } else {
        2
    };
    let too_many = rules.max_lag_bytes > 0 && entry.lag.bytes > rules.max_lag_bytes / part;
    let too_long = !rules.max_lag.is_zero()
        && entry.lag.time * u32::try_from(part).unwrap_or(1) > rules.max_lag;
    too_many || too_long
}

/// Whether a node says that it follows the committed master. A name that it was told to follow is
/// not looked up: where it does not read like the sentinels' own, the history decides.
fn follows(master: &NodeAddr, report: &NodeReport, leader: &Leader<'_>) -> bool {
    let same = master == leader.addr
        || master.ip().is_some_and(|ip| SocketAddr::new(ip, master.port) == leader.dialled);
    let history = report.lineage.as_ref().map(|lineage| &*lineage.replid);
    same || (master.ip().is_none() && !leader.replid.is_empty() && history == Some(leader.replid))
}

/// Whether nothing may go there: it is a master, or it has another history than the master's and
/// follows somebody else. While things are shaken the latter proves nothing: the somebody may be
/// the next master, whose history is not known yet.
pub(super) fn is_wrong(entry: &Entry, addr: &NodeAddr, leader: &Leader<'_>, shaken: bool) -> bool {
    let Some(Answer { report, .. }) = &entry.answer else { return addr == leader.addr };
    match &report.role {
        Role::Master => true,
        Role::Unknown => addr == leader.addr,
        Role::Replica { master, .. } => {
            // The second history of most nodes is all zeros, so it is compared with the master's
            // first only.
            let foreign = report.lineage.as_ref().is_some_and(|lineage| {
                let known = [leader.replid, leader.replid2].contains(&&*lineage.replid);
                !leader.replid.is_empty() && !known && *lineage.replid2 != *leader.replid
            });
            addr == leader.addr || (foreign && !shaken && !follows(master, report, leader))
        }
    }
}
