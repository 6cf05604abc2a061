//! The decisions of a switchover: may it start, and have the replicas caught up.
//!
//! All replicas have to catch up and not just one, because Sentinel chooses which of them is
//! promoted, by priority and by offsets that are up to ten seconds old
//! (`redis:src/sentinel.c:sentinelSelectSlave`). Each one that could be chosen must have
//! everything, and one that does not report its offset can only be left out if no sentinel would
//! choose it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::error::SwitchoverError;
use crate::{DiscoverySnapshot, MasterSnapshot, NodeAddr, NodeSnapshot, Role, SentinelSnapshot};

/// The servers that take part in a switchover.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Participants {
    pub(super) master: NodeAddr,
    pub(super) dialled: SocketAddr,
    pub(super) generation: u64,
    /// The config-epoch before.
    pub(super) epoch: u64,
    /// The replicas that may be promoted, with the addresses that were probed.
    pub(super) replicas: Vec<(NodeAddr, SocketAddr)>,
    /// The sentinels that agree and are not in TILT, in the order in which to ask them: by MYID, so
    /// that two proxies that receive a request at once ask the same sentinel, which refuses the
    /// second.
    pub(super) sentinels: Vec<NodeAddr>,
}

/// Whether a switchover may start, and with which servers.
pub(super) fn participants(seen: &DiscoverySnapshot) -> Result<Participants, SwitchoverError> {
    let master = seen
        .master
        .as_ref()
        .filter(|_| seen.stopped_since.is_none())
        .ok_or(SwitchoverError::Unsettled)?;
    let agree = |it: &&SentinelSnapshot| it.up && it.member && !it.disagrees && it.view.is_some();
    let mut sentinels: Vec<&SentinelSnapshot> = seen.sentinels.iter().filter(agree).collect();
    let (members, majority) = seen.quorum;
    if sentinels.len() < majority.max(1) {
        return Err(SwitchoverError::NoMajority { agree: sentinels.len(), members, majority });
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
    let MasterSnapshot { addr, dialled, generation, epoch, .. } = master.clone();
    Ok(Participants { master: addr, dialled, generation, epoch, replicas, sentinels })
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
                Role::Replica { master: of, .. } if ours(of) => {
                    replicas.push((node.addr.clone(), report.dialled));
                    continue;
                }
                Role::Replica { master: of, .. } => format!("it follows {of}"),
                _ => "it does not report that it follows the master".to_owned(),
            },
            Some(Err(_)) | None => "it does not report its replication state".to_owned(),
        };
        if node.held_up > 0 {
            let problem =
                format!("{problem}, and a sentinel that considers it up might promote it");
            return Err(SwitchoverError::Node { node: node.addr.clone(), problem });
        }
    }
    if replicas.is_empty() { Err(SwitchoverError::NoReplica) } else { Ok(replicas) }
}

/// The replication state of one node (`INFO replication`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicationOffsets {
    /// It accepts writes.
    pub is_master: bool,
    /// A replica's link; a master has none and counts as up.
    pub link_up: bool,
    /// Bytes of the stream written by a master, or applied by a replica.
    pub offset: u64,
    /// 0: never to be promoted.
    pub priority: u64,
}

/// Parses `INFO replication`.
pub(super) fn parse_offsets(info: &str) -> Option<ReplicationOffsets> {
    let field = |name: &str| {
        info.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'))
    };
    let is_master = field("role")? == "master";
    let offset = if is_master { field("master_repl_offset")? } else { field("slave_repl_offset")? };
    Some(ReplicationOffsets {
        is_master,
        link_up: is_master || field("master_link_status") == Some("up"),
        offset: offset.parse().ok()?,
        priority: field("slave_priority").and_then(|text| text.parse().ok()).unwrap_or(100),
    })
}

/// The result of comparing the offsets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CatchUpStatus {
    /// Read the offsets again.
    Wait,
    /// Every replica that may be promoted has caught up.
    Ready {
        /// The offset that every one of them has reached.
        offset: u64,
    },
    /// The replicas cannot catch up.
    Abort(SwitchoverError),
}

/// A replica has caught up with writers that are not held if it has everything that the master had
/// written this long ago. Sentinel leaves at least twice this time between the selection, at which
/// every proxy holds, and the promotion.
const FRESH: Duration = Duration::from_millis(20);

/// Waits until the replicas have everything that was written before the hold, and nearly everything
/// that other clients have written since.
#[derive(Debug)]
pub struct CatchUp {
    until: Instant,
    /// Minimum time to wait: requests that were forwarded before the gate closed arrive meanwhile.
    /// With paused clients it is also the time for which the master's offset must stay unchanged.
    still: Duration,
    paused: bool,
    began: Option<Instant>,
    /// The master's recent offsets, oldest first: those within [`FRESH`], and at least one.
    master_offsets: VecDeque<(Instant, u64)>,
    unchanged: Option<(u64, Instant)>,
}

impl CatchUp {
    /// `paused`: the master's other clients are paused, so its offset has to stop changing.
    #[must_use]
    pub fn new(until: Instant, still: Duration, paused: bool) -> Self {
        Self { until, still, paused, began: None, master_offsets: VecDeque::new(), unchanged: None }
    }

    /// Evaluates one reading: the master's offset, and the replicas' offsets read after it. Replicas
    /// that may never be promoted do not count.
    pub fn evaluate(
        &mut self,
        now: Instant,
        master: ReplicationOffsets,
        replicas: &[(NodeAddr, ReplicationOffsets)],
    ) -> CatchUpStatus {
        if !master.is_master {
            return CatchUpStatus::Abort(SwitchoverError::Unsettled);
        }
        let mut eligible = replicas.iter().filter(|(_, it)| it.priority > 0).peekable();
        if eligible.peek().is_none() {
            return CatchUpStatus::Abort(SwitchoverError::NoReplica);
        }
        let (needed, waited) = self.needed(now, master.offset);
        let behind = |it: &ReplicationOffsets| it.is_master || !it.link_up || it.offset < needed;
        let laggard = eligible.filter(|(_, it)| behind(it)).min_by_key(|(_, it)| it.offset);
        match laggard {
            None if waited => CatchUpStatus::Ready { offset: needed },
            Some((node, it)) if now >= self.until => {
                CatchUpStatus::Abort(SwitchoverError::Lagging {
                    node: node.clone(),
                    lag: master.offset.saturating_sub(it.offset),
                })
            }
            None if now >= self.until => CatchUpStatus::Abort(SwitchoverError::WrittenTo),
            _ => CatchUpStatus::Wait,
        }
    }

    /// The offset that every replica must have reached, and whether the minimum time has passed.
    fn needed(&mut self, now: Instant, offset: u64) -> (u64, bool) {
        let began = *self.began.get_or_insert(now);
        if self.paused {
            let since = match self.unchanged {
                Some((stood, since)) if stood == offset => since,
                _ => self.unchanged.insert((offset, now)).1,
            };
            return (offset, now.saturating_duration_since(since) >= self.still);
        }
        // Our own requests may arrive for as long as `still`: their writes are in this reading's offset
        // or in a later one's.
        let settled = now.saturating_duration_since(began) >= self.still;
        let stale = |at: Instant| {
            now.saturating_duration_since(at) > FRESH
                || at.saturating_duration_since(began) < self.still
        };
        self.master_offsets.push_back((now, offset));
        while self.master_offsets.len() > 1
            && self.master_offsets.front().is_some_and(|(at, _)| stale(*at))
        {
            self.master_offsets.pop_front();
        }
        (self.master_offsets.front().map_or(offset, |(_, offset)| *offset), settled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MyId, Probe, ProbeFailure, Report};

    fn node(port: u16) -> NodeAddr {
        NodeAddr { host: "10.0.0.1".into(), port }
    }

    fn master(offset: u64) -> ReplicationOffsets {
        ReplicationOffsets { is_master: true, link_up: true, offset, priority: 100 }
    }

    fn replica(offset: u64) -> ReplicationOffsets {
        ReplicationOffsets { is_master: false, ..master(offset) }
    }

    #[test]
    fn every_promotable_node_must_follow_master() {
        let at = Instant::now();
        let (addr, dialled) = (node(1), "10.0.0.1:1".parse().unwrap());
        let master =
            MasterSnapshot { addr, dialled, generation: 1, epoch: 1, run_id: None, since: at };
        let seen = |port: u16, outcome: Option<Result<Role, ProbeFailure>>, held_up: usize| {
            let report = |role| Report {
                role,
                pong: true,
                dialled: SocketAddr::from(([10, 0, 0, 1], port)),
                lineage: None,
                offset: None,
            };
            let probe = outcome.map(|it| Probe { asked_at: at, outcome: it.map(report) });
            NodeSnapshot {
                addr: node(port),
                probe,
                answered_in: None,
                failures: 0,
                problem: None,
                held_up,
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
                matches!(&refused, Err(SwitchoverError::Node { node, .. }) if node.port == 3),
                "{other:?}: {refused:?}"
            );
            assert_eq!(
                found(&[seen(2, follows(1, true), 3), seen(3, other, 0)]),
                Ok(vec![2]),
                "no sentinel would choose it"
            );
        }
    }

    #[test]
    fn parses_offset_by_role() {
        let text =
            "# Replication\r\nrole:master\r\nconnected_slaves:1\r\nmaster_repl_offset:42\r\n";
        assert_eq!(parse_offsets(text), Some(master(42)));
        let text = "role:slave\r\nmaster_link_status:down\r\nslave_repl_offset:41\r\nslave_priority:0\r\nmaster_repl_offset:41\r\n";
        assert_eq!(
            parse_offsets(text),
            Some(ReplicationOffsets { link_up: false, priority: 0, ..replica(41) })
        );
        assert_eq!(parse_offsets("role:slave\r\n"), None);
        assert_eq!(parse_offsets(""), None);
    }

    #[test]
    fn is_ready_when_offset_is_stable_and_replicas_caught_up() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut catch_up = CatchUp::new(at(2000), Duration::from_millis(30), true);
        let all = |offset| [(node(1), replica(offset)), (node(2), replica(offset))];
        assert_eq!(
            catch_up.evaluate(at(0), master(100), &all(100)),
            CatchUpStatus::Wait,
            "it may still receive writes"
        );
        assert_eq!(
            catch_up.evaluate(at(20), master(110), &all(110)),
            CatchUpStatus::Wait,
            "it did"
        );
        let one = [(node(1), replica(110)), (node(2), replica(109))];
        assert_eq!(
            catch_up.evaluate(at(60), master(110), &one),
            CatchUpStatus::Wait,
            "one lags by a byte"
        );
        assert_eq!(
            catch_up.evaluate(at(70), master(110), &all(110)),
            CatchUpStatus::Ready { offset: 110 }
        );
    }

    #[test]
    fn aborts_on_lag_but_ignores_unpromotable_replica() {
        let start = Instant::now();
        let mut catch_up = CatchUp::new(start + Duration::from_secs(2), Duration::ZERO, true);
        let late = start + Duration::from_secs(2);
        let lags = [(node(1), replica(100)), (node(2), replica(40))];
        let abort = CatchUpStatus::Abort(SwitchoverError::Lagging { node: node(2), lag: 60 });
        assert_eq!(catch_up.evaluate(late, master(100), &lags), abort);
        let spare =
            [(node(1), replica(100)), (node(2), ReplicationOffsets { priority: 0, ..replica(40) })];
        assert_eq!(
            catch_up.evaluate(late, master(100), &spare),
            CatchUpStatus::Ready { offset: 100 }
        );
        let nobody = [(node(2), ReplicationOffsets { priority: 0, ..replica(100) })];
        assert_eq!(
            catch_up.evaluate(late, master(100), &nobody),
            CatchUpStatus::Abort(SwitchoverError::NoReplica)
        );
        let unlinked = [(node(1), ReplicationOffsets { link_up: false, ..replica(100) })];
        assert!(matches!(
            catch_up.evaluate(late, master(100), &unlinked),
            CatchUpStatus::Abort(SwitchoverError::Lagging { .. })
        ));
    }

    #[test]
    fn aborts_when_master_is_demoted_or_keeps_writing() {
        let start = Instant::now();
        let mut catch_up =
            CatchUp::new(start + Duration::from_secs(1), Duration::from_millis(30), true);
        let all = [(node(1), replica(500))];
        assert_eq!(
            catch_up.evaluate(start, replica(100), &all),
            CatchUpStatus::Abort(SwitchoverError::Unsettled)
        );
        for ms in 0..100 {
            let now = start + Duration::from_millis(ms * 10);
            assert_eq!(catch_up.evaluate(now, master(100 + ms), &all), CatchUpStatus::Wait);
        }
        let late = start + Duration::from_secs(1);
        assert_eq!(
            catch_up.evaluate(late, master(300), &all),
            CatchUpStatus::Abort(SwitchoverError::WrittenTo)
        );
    }

    #[test]
    fn catches_up_while_others_write() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut catch_up = CatchUp::new(at(2000), Duration::from_millis(30), false);
        let all = |offset| [(node(1), replica(offset)), (node(2), replica(offset))];
        // The master writes 10 bytes per millisecond, and each replica is one reading late.
        for ms in (0..30).step_by(5) {
            assert_eq!(
                catch_up.evaluate(at(ms), master(ms * 10), &all(ms * 10)),
                CatchUpStatus::Wait,
                "requests may be in flight"
            );
        }
        assert_eq!(
            catch_up.evaluate(at(30), master(300), &all(299)),
            CatchUpStatus::Wait,
            "what was written before the hold"
        );
        assert_eq!(
            catch_up.evaluate(at(35), master(350), &all(300)),
            CatchUpStatus::Ready { offset: 300 }
        );
    }

    #[test]
    fn aborts_when_a_replica_stays_behind() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut catch_up = CatchUp::new(at(2000), Duration::from_millis(30), false);
        for ms in (0..2000_u64).step_by(5) {
            let late = ms.saturating_sub(100);
            let them = [(node(1), replica(ms * 10)), (node(2), replica(late * 10))];
            let status = catch_up.evaluate(at(ms), master(ms * 10), &them);
            assert!(ms < 30 || status == CatchUpStatus::Wait, "{ms}: {status:?}");
        }
        let them = [(node(1), replica(20_000)), (node(2), replica(19_000))];
        let lagging = CatchUpStatus::Abort(SwitchoverError::Lagging { node: node(2), lag: 1000 });
        assert_eq!(catch_up.evaluate(at(2000), master(20_000), &them), lagging);
    }

    /// Three sentinels whose MYIDs are in the opposite order of their addresses, and one replica.
    fn seen(tilted: &[u16]) -> DiscoverySnapshot {
        let (at, dialled) = (Instant::now(), SocketAddr::from(([10, 0, 0, 1], 1)));
        let sentinel = |port: u16| SentinelSnapshot {
            stranger: false,
            addr: node(port),
            id: MyId::parse(&format!("{:040x}", 100 - port)),
            up: true,
            events: true,
            member: true,
            disagrees: false,
            tilt: tilted.contains(&port),
            view: Some((node(1), 6, at)),
            problem: None,
        };
        let role = Role::Replica { master: node(1), connected: true };
        let report = Report { role, pong: true, dialled, lineage: None, offset: None };
        let probe = Some(Probe { asked_at: at, outcome: Ok(report) });
        let replica = NodeSnapshot {
            addr: node(2),
            probe,
            answered_in: None,
            failures: 0,
            problem: None,
            held_up: 3,
        };
        DiscoverySnapshot {
            name: "mymaster".into(),
            at,
            state: "stable",
            holding: false,
            master: Some(MasterSnapshot {
                addr: node(1),
                dialled,
                generation: 4,
                epoch: 6,
                run_id: None,
                since: at,
            }),
            stopped_since: None,
            held_since: None,
            disagreement: false,
            minority: false,
            quorum: (3, 2),
            sentinels: [7, 8, 9].map(sentinel).to_vec(),
            nodes: vec![replica],
            replicas: None,
            failovers: Vec::new(),
            counts: crate::Counts::default(),
        }
    }

    #[test]
    fn orders_by_identity_and_skips_tilt() {
        let ports = |tilted: &[u16]| {
            participants(&seen(tilted)).map(|participants| {
                participants.sentinels.iter().map(|it| it.port).collect::<Vec<_>>()
            })
        };
        assert_eq!(ports(&[]), Ok(vec![9, 8, 7]), "every proxy asks the same one first");
        assert_eq!(ports(&[9]), Ok(vec![8, 7]));
        assert_eq!(ports(&[9, 8]), Ok(vec![7]), "those in TILT still count for the majority");
        assert!(matches!(ports(&[7, 8, 9]), Err(SwitchoverError::Refused(_))));
        let mut cut_off = seen(&[]);
        cut_off.sentinels.truncate(1);
        assert_eq!(
            participants(&cut_off),
            Err(SwitchoverError::NoMajority { agree: 1, members: 3, majority: 2 })
        );
    }
}
