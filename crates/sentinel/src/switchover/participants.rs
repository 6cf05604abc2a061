//! The servers that take part in a switchover, and whether it may start.

use std::net::SocketAddr;

use super::error::SwitchoverError;
use crate::{
    Admission, DiscoverySnapshot, MasterSnapshot, NodeAddr, NodeSnapshot, Role, SentinelSnapshot,
};

/// The servers that take part in a switchover.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Participants {
    /// As it was before.
    pub(super) master: MasterSnapshot,
    /// The replicas that may be promoted, with the addresses that were probed.
    pub(super) replicas: Vec<(NodeAddr, SocketAddr)>,
    /// The sentinels that agree and are not in TILT, in the order in which to ask them: by MYID, so
    /// that two proxies that receive a request at once ask the same sentinel, which refuses the
    /// second.
    pub(super) sentinels: Vec<NodeAddr>,
}

/// Whether a switchover may start, and with which servers.
pub(super) fn select_participants(
    seen: &DiscoverySnapshot,
) -> Result<Participants, SwitchoverError> {
    let master = seen
        .master
        .as_ref()
        .filter(|_| seen.stopped_since.is_none())
        .ok_or(SwitchoverError::Unsettled)?;
    let agree = |it: &&SentinelSnapshot| it.up && it.member && !it.disagrees && it.view.is_some();
    let mut sentinels: Vec<&SentinelSnapshot> = seen.sentinels.iter().filter(agree).collect();
    let (mut members, mut majority) = seen.quorum;
    // Anybody who may publish may have announced the others: they get no password and no order, and
    // their number does not matter.
    if !seen.depends_on_learned {
        let is_configured = |it: &&SentinelSnapshot| it.origin == Admission::Configured;
        sentinels.retain(is_configured);
        members = seen.sentinels.iter().filter(is_configured).count().max(seen.configured);
        majority = members / 2 + 1;
    }
    if sentinels.len() < majority.max(1) {
        return Err(SwitchoverError::Refused(format!(
            "only {} of {members} sentinels are reachable and name the current master; {majority} \
             are required",
            sentinels.len()
        )));
    }
    // In TILT a sentinel still learns and repeats the right master, but would not execute a
    // failover command for half a minute.
    sentinels.retain(|it| !it.tilt);
    sentinels.sort_by(|one, other| (&one.id, &one.addr).cmp(&(&other.id, &other.addr)));
    if sentinels.is_empty() {
        return Err(SwitchoverError::Refused("every reachable sentinel is in TILT".to_owned()));
    }
    let replicas = eligible(master, &seen.nodes)?;
    let sentinels = sentinels.into_iter().map(|it| it.addr.clone()).collect();
    Ok(Participants { master: master.clone(), replicas, sentinels })
}

/// The replicas of the master, with the link up or not: catching up is waited for. No sentinel may
/// consider any other node a candidate for promotion.
fn eligible(
    master: &MasterSnapshot,
    nodes: &[NodeSnapshot],
) -> Result<Vec<(NodeAddr, SocketAddr)>, SwitchoverError> {
    let ours = |of: &NodeAddr| *of == master.addr || of.to_string() == master.dialled.to_string();
    let mut replicas = Vec::new();
    for node in nodes.iter().filter(|node| node.addr != master.addr) {
        let problem = match node.probe.as_ref().map(|probe| &probe.outcome) {
            Some(Ok(report)) => match &report.role {
                Role::Replica { .. } if !node.trusted => {
                    "no majority of the sentinels lists it".to_owned()
                }
                Role::Replica { master: of, .. } if ours(of) => {
                    replicas.push((node.addr.clone(), report.dialled));
                    continue;
                }
                Role::Replica { master: of, .. } => format!("it follows {of}"),
                _ => "it does not report that it follows the master".to_owned(),
            },
            Some(Err(_)) | None => "it does not report its replication state".to_owned(),
        };
        if node.listed_healthy > 0 {
            let problem =
                format!("{problem}, and a sentinel that considers it up might promote it");
            return Err(SwitchoverError::node(&node.addr, problem));
        }
    }
    if replicas.is_empty() { Err(SwitchoverError::NoReplica) } else { Ok(replicas) }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::{MyId, NodeReport, PingReply, Probe, ProbeFailure};

    fn node(port: u16) -> NodeAddr {
        NodeAddr { host: "10.0.0.1".into(), port }
    }

    fn master(at: Instant) -> MasterSnapshot {
        MasterSnapshot {
            addr: node(1),
            dialled: ([10, 0, 0, 1], 1).into(),
            generation: 1,
            epoch: 1,
            run_id: None,
            since: at,
            sessions: 0,
            connects_fail: false,
        }
    }

    #[test]
    fn every_promotable_node_must_follow_master() {
        let at = Instant::now();
        let master = master(at);
        let seen =
            |port: u16, outcome: Option<Result<Role, ProbeFailure>>, listed_healthy: usize| {
                let report = |role| NodeReport {
                    role,
                    ping: PingReply::Pong,
                    dialled: SocketAddr::from(([10, 0, 0, 1], port)),
                    lineage: None,
                    offset: None,
                    replicas: None,
                };
                let probe = outcome.map(|it| Probe { asked_at: at, outcome: it.map(report) });
                NodeSnapshot {
                    tls: None,
                    tls_fault: None,
                    addr: node(port),
                    probe,
                    answered_in: None,
                    failures: 0,
                    failed_connects: 0,
                    problem: None,
                    listed_healthy,
                    trusted: port != 4,
                }
            };
        let follows = |of: u16, connected| Some(Ok(Role::Replica { master: node(of), connected }));
        let own = seen(1, Some(Ok(Role::Master)), 0);
        let found = |others: &[NodeSnapshot]| {
            let all: Vec<NodeSnapshot> = std::iter::once(&own).chain(others).cloned().collect();
            eligible(&master, &all)
                .map(|them| them.into_iter().map(|(it, _)| it.port).collect::<Vec<_>>())
        };
        assert_eq!(
            found(&[seen(2, follows(1, true), 3), seen(3, follows(1, false), 3)]),
            Ok(vec![2, 3]),
            "both count"
        );
        assert_eq!(found(&[]), Err(SwitchoverError::NoReplica));
        let stranger = seen(4, follows(1, true), 0);
        assert_eq!(found(&[stranger]), Err(SwitchoverError::NoReplica), "it gets no password");
        let silent = || Some(Err(ProbeFailure::Unresponsive));
        for other in [
            silent(),
            None,
            Some(Err(ProbeFailure::Unreachable)),
            follows(2, true),
            Some(Ok(Role::Master)),
        ] {
            let refused = found(&[seen(2, follows(1, true), 3), seen(3, other.clone(), 1)]);
            assert!(
                matches!(&refused, Err(SwitchoverError::Node(node, _)) if node.port == 3),
                "{other:?}: {refused:?}"
            );
            assert_eq!(
                found(&[seen(2, follows(1, true), 3), seen(3, other, 0)]),
                Ok(vec![2]),
                "no sentinel would choose it"
            );
        }
    }

    /// Three sentinels whose MYIDs are in the opposite order of their addresses, and one replica.
    fn seen(tilted: &[u16]) -> DiscoverySnapshot {
        let (at, dialled) = (Instant::now(), SocketAddr::from(([10, 0, 0, 1], 1)));
        let sentinel = |port: u16| SentinelSnapshot {
            tls: None,
            tls_fault: None,
            stranger: false,
            addr: node(port),
            id: MyId::parse(&format!("{:040x}", 100 - port)),
            up: true,
            events: true,
            origin: Admission::Configured,
            member: true,
            disagrees: false,
            tilt: tilted.contains(&port),
            view: Some((node(1), 6, at)),
            problem: None,
        };
        let role = Role::Replica { master: node(1), connected: true };
        let report = NodeReport {
            role,
            ping: PingReply::Pong,
            dialled,
            lineage: None,
            offset: None,
            replicas: None,
        };
        let probe = Some(Probe { asked_at: at, outcome: Ok(report) });
        let replica = NodeSnapshot {
            tls: None,
            tls_fault: None,
            addr: node(2),
            probe,
            answered_in: None,
            failures: 0,
            failed_connects: 0,
            problem: None,
            listed_healthy: 3,
            trusted: true,
        };
        let (sentinels, nodes) = ([7, 8, 9].map(sentinel).to_vec(), vec![replica]);
        let master = Some(MasterSnapshot { generation: 4, epoch: 6, ..master(at) });
        let (state, name) = ("stable", "mymaster");
        let start = DiscoverySnapshot::at_start(name.into(), name.into(), at, (3, 2));
        DiscoverySnapshot { state, master, stopped_since: None, sentinels, nodes, ..start }
    }

    #[test]
    fn orders_by_identity_and_skips_tilt() {
        let ports = |tilted: &[u16]| {
            select_participants(&seen(tilted)).map(|participants| {
                participants.sentinels.iter().map(|it| it.port).collect::<Vec<_>>()
            })
        };
        assert_eq!(ports(&[]), Ok(vec![9, 8, 7]), "every proxy asks the same one first");
        assert_eq!(ports(&[9]), Ok(vec![8, 7]));
        assert_eq!(ports(&[9, 8]), Ok(vec![7]), "those in TILT still count for the majority");
        assert!(matches!(ports(&[7, 8, 9]), Err(SwitchoverError::Refused(_))));
        let mut cut_off = seen(&[]);
        cut_off.sentinels.iter_mut().skip(1).for_each(|it| it.up = false);
        let refused = select_participants(&cut_off).unwrap_err().to_string();
        assert!(refused.contains("only 1 of 3 sentinels") && refused.contains("2 are required"));
        // The names of the two others have no address any more.
        cut_off.sentinels.truncate(1);
        cut_off.configured = 3;
        assert_eq!(select_participants(&cut_off).unwrap_err().to_string(), refused);
    }

    /// A client that may publish can announce any number of sentinels, with any identity.
    #[test]
    fn asks_no_learned_sentinel_beside_configured_ones() {
        let asked = |configured: usize, depends_on_learned: bool| {
            let mut seen = seen(&[]);
            (seen.quorum, seen.depends_on_learned) = ((3, 2), depends_on_learned);
            for it in seen.sentinels.iter_mut().skip(configured) {
                it.origin = Admission::Learned;
            }
            select_participants(&seen).map(|it| it.sentinels.len())
        };
        let alone = [3, 2, 1].map(|configured| asked(configured, false));
        assert_eq!(alone, [Ok(3), Ok(2), Ok(1)], "also beside a single one, whose quorum is 1");
        assert!(matches!(asked(0, false), Err(SwitchoverError::Refused(_))));
        assert_eq!(asked(1, true), Ok(3), "one of three depends on the others");
    }
}
