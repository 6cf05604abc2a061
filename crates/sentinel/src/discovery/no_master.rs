//! Says why there is no verified master, at the start or later: once per outage in the log, and in
//! the snapshot as long as it lasts. Pure, but for the log.
//!
//! Each part of the evidence may be missing for a reason of its own: a sentinel that is not
//! reached, names that differ, a node that is not verified. So the answer of every sentinel and of
//! every node is told.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::warn;

use crate::discovery::snapshot::{DiscoverySnapshot, NodeSnapshot, SentinelSnapshot};
use crate::{ProbeFailure, Role};

/// A longer outage is explained. Sentinels and nodes that are up answer within a second.
const PATIENCE: Duration = Duration::from_secs(5);

/// Whether the present outage of one service was explained.
#[derive(Debug, Default)]
pub(crate) struct NoMaster {
    is_logged: bool,
}

impl NoMaster {
    /// Logs the explanation once per outage that takes too long.
    pub(crate) fn update(
        &mut self,
        now: Instant,
        service: &Arc<str>,
        snapshot: &DiscoverySnapshot,
    ) {
        let waited = snapshot.stopped_since.map(|since| now.saturating_duration_since(since));
        self.is_logged &= waited.is_some();
        let waited = waited.filter(|it| *it >= PATIENCE && snapshot.lacks_master());
        let Some(waited) = waited.filter(|_| !self.is_logged) else { return };
        self.is_logged = true;
        let all = |of: Vec<String>| if of.is_empty() { "none".to_owned() } else { of.join("; ") };
        warn!(
            %service,
            waited_s = waited.as_secs(),
            sentinels = all(sentinels(snapshot)),
            nodes = all(nodes(snapshot)),
            "no verified master{}",
            if snapshot.counts.commits == 0 { " found yet" } else { "" }
        );
    }
}

impl DiscoverySnapshot {
    /// No master is published, or traffic waits for the verification of one.
    fn lacks_master(&self) -> bool {
        self.master.is_none() || matches!(self.state, "committing" | "no_master")
    }

    /// Why there is no verified master: the answer of each sentinel and node. Empty while there is
    /// one.
    #[must_use]
    pub fn no_master_because(&self) -> Vec<String> {
        if !self.lacks_master() {
            return Vec::new();
        }
        let sentinels = sentinels(self).into_iter().map(|it| format!("sentinel {it}"));
        let nodes = nodes(self).into_iter().map(|it| format!("node {it}"));
        let missing = self.nodes.is_empty().then(|| "no sentinel names a node".to_owned());
        sentinels.chain(nodes).chain(missing).collect()
    }
}

fn sentinels(snapshot: &DiscoverySnapshot) -> Vec<String> {
    snapshot.sentinels.iter().map(|it| format!("{}: {}", it.addr, sentinel(it))).collect()
}

fn nodes(snapshot: &DiscoverySnapshot) -> Vec<String> {
    snapshot.nodes.iter().map(|it| format!("{}: {}", it.addr, node(it))).collect()
}

fn sentinel(seen: &SentinelSnapshot) -> String {
    if let Some(problem) = &seen.problem {
        return problem.clone();
    }
    match &seen.view {
        Some((master, epoch, _)) if seen.member => format!("names {master} at epoch {epoch}"),
        Some((master, epoch, _)) => format!("names {master} at epoch {epoch}, and has no vote"),
        None if seen.up => "connected, has not answered yet".to_owned(),
        None => "not connected yet".to_owned(),
    }
}

fn node(seen: &NodeSnapshot) -> String {
    if let Some(problem) = &seen.problem {
        return problem.clone();
    }
    let failure = match seen.probe.as_ref().map(|probe| &probe.outcome) {
        None => "has not answered yet",
        Some(Ok(report)) => {
            let role = match &report.role {
                Role::Master => "is a master".to_owned(),
                Role::Replica { master, .. } => format!("is a replica of {master}"),
                Role::Unknown => "was not asked for its role".to_owned(),
            };
            return format!("{role}, answers PING with {}", report.ping.label());
        }
        Some(Err(ProbeFailure::Unreachable)) => "no connection is possible",
        Some(Err(ProbeFailure::Unresponsive)) => "accepts the connection and does not answer",
        Some(Err(ProbeFailure::ConnectionRejected)) => "closes new connections with an error",
        Some(Err(ProbeFailure::Busy)) => "a script runs",
        Some(Err(ProbeFailure::Denied)) => "refuses our user",
        Some(Err(ProbeFailure::UnusableAddress)) => "this is an address of this proxy",
        Some(Err(ProbeFailure::OutsideNodes)) => "it is outside the option nodes, and not dialled",
    };
    failure.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discovery::snapshot::{DiscoveryCounts, MasterSnapshot};
    use crate::{Admission, NodeAddr, NodeReport, PingReply, Probe};

    fn addr(port: u16) -> NodeAddr {
        NodeAddr { host: "10.0.0.1".into(), port }
    }

    fn snapshot(at: Instant) -> DiscoverySnapshot {
        let sentinel = |port, problem: Option<&str>, view| SentinelSnapshot {
            addr: addr(port),
            id: None,
            up: view,
            events: view,
            tls: None,
            tls_fault: None,
            origin: Admission::Configured,
            member: view,
            stranger: false,
            disagrees: false,
            tilt: false,
            view: view.then(|| (addr(1), 7, at)),
            problem: problem.map(str::to_owned),
        };
        let report = NodeReport {
            dialled: ([10, 0, 0, 1], 1).into(),
            role: Role::Replica { master: addr(2), connected: true },
            ping: PingReply::Pong,
            offset: None,
            lineage: None,
            replicas: None,
        };
        let node = |port, outcome| NodeSnapshot {
            addr: addr(port),
            probe: Some(Probe { asked_at: at, outcome }),
            answered_in: None,
            failures: 0,
            failed_connects: 0,
            tls: None,
            tls_fault: None,
            problem: None,
            listed_healthy: 0,
            trusted: true,
        };
        DiscoverySnapshot {
            sentinels: vec![sentinel(10, None, true), sentinel(11, Some("it is down"), false)],
            nodes: vec![node(1, Ok(report)), node(2, Err(ProbeFailure::Unreachable))],
            ..DiscoverySnapshot::at_start("m".into(), "m".into(), at, (2, 2))
        }
    }

    fn master(addr: NodeAddr, since: Instant) -> MasterSnapshot {
        MasterSnapshot {
            addr,
            dialled: ([10, 0, 0, 1], 1).into(),
            generation: 1,
            epoch: 7,
            run_id: None,
            since,
            sessions: 0,
            connects_fail: false,
        }
    }

    #[test]
    fn tells_each_answer_while_there_is_no_master() {
        let (now, mut log) = (Instant::now(), NoMaster::default());
        let mut seen = snapshot(now);
        let expected = [
            "sentinel 10.0.0.1:10: names 10.0.0.1:1 at epoch 7",
            "sentinel 10.0.0.1:11: it is down",
            "node 10.0.0.1:1: is a replica of 10.0.0.1:2, answers PING with pong",
            "node 10.0.0.1:2: no connection is possible",
        ];
        assert_eq!(seen.no_master_because(), expected);
        let service: Arc<str> = "m".into();
        log.update(now + PATIENCE / 2, &service, &seen);
        assert!(!log.is_logged, "a start takes its time");
        log.update(now + PATIENCE, &service, &seen);
        assert!(log.is_logged);
        seen.counts = DiscoveryCounts { commits: 1, ..DiscoveryCounts::default() };
        (seen.state, seen.master, seen.stopped_since) =
            ("stable", Some(master(addr(1), now)), None);
        assert!(seen.no_master_because().is_empty());
        log.update(now + PATIENCE * 2, &service, &seen);

        // The master is lost again.
        let lost_at = now + PATIENCE * 3;
        (seen.state, seen.stopped_since) = ("committing", Some(lost_at));
        assert_eq!(seen.no_master_because(), expected, "traffic waits for another one");
        (seen.state, seen.master) = ("no_master", None);
        assert_eq!(seen.no_master_because(), expected);
        log.update(lost_at, &service, &seen);
        assert!(!log.is_logged, "a failover takes its time");
        log.update(lost_at + PATIENCE, &service, &seen);
        assert!(log.is_logged);
    }

    #[test]
    fn leaves_pauses_of_a_master_unexplained() {
        let (now, mut log) = (Instant::now(), NoMaster::default());
        let held = Some(master(addr(1), now));
        let seen = DiscoverySnapshot { state: "stable", master: held, ..snapshot(now) };
        log.update(now + PATIENCE * 2, &"m".into(), &seen);
        assert!(!log.is_logged && seen.no_master_because().is_empty());
    }
}
