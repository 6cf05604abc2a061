//! The decisions of a switchover: may it begin, has everybody caught up, is it over. Values in, verdicts out.
//!
//! Why all replicas have to catch up and not just one: which of them is promoted is Sentinel's choice, made by priority and by
//! offsets that it last looked at up to ten seconds ago (`redis:src/sentinel.c:sentinelSelectSlave`). So each one that could be
//! chosen must have everything, and one that does not tell us where it stands can only be left out if no sentinel would choose it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::{NodeAddr, Role, Seen, SeenMaster, SeenNode};

/// What a switchover works with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cast {
    pub(super) master: NodeAddr,
    pub(super) dialled: SocketAddr,
    pub(super) generation: u64,
    /// The replicas that may be promoted, with the addresses that were probed.
    pub(super) replicas: Vec<(NodeAddr, SocketAddr)>,
    /// The sentinels that agree, to be asked in this order.
    pub(super) sentinels: Vec<NodeAddr>,
}

/// Why a switchover does not begin, or ends without one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// Nothing to switch from.
    #[error("there is no master now, or traffic is held already: a failover may be under way")]
    Unsettled,
    /// Sentinels could not agree on the next master either.
    #[error("only {agree} of {members} sentinels are reached and name the present master; {majority} are needed")]
    NoMajority {
        /// Sentinels that are up and agree.
        agree: usize,
        /// Members of the electorate.
        members: usize,
        /// How many would be enough.
        majority: usize,
    },
    /// Nothing to switch to.
    #[error("no replica follows the master with its link up: there is nobody to promote")]
    NoReplica,
    /// A replica does not reach the master's offset.
    #[error("{node} lags {lag} bytes behind and has not caught up in time")]
    Lagging {
        /// The replica.
        node: NodeAddr,
        /// Bytes it has not applied.
        lag: u64,
    },
    /// The master's offset never stood still.
    #[error("the master is still written to by clients that do not pass here, and they could not be paused")]
    WrittenTo,
    /// A node does not answer as it has to.
    #[error("{node}: {problem}")]
    Node {
        /// Whom.
        node: NodeAddr,
        /// What for, for people.
        problem: String,
    },
    /// No sentinel took the order.
    #[error("no sentinel starts the failover: {0}")]
    Refused(String),
    /// Ordered, and nothing came of it in time.
    #[error(
        "the failover was ordered, but no new master was verified in time; traffic goes on as the sentinels decide"
    )]
    NoCommit,
    /// Another one is under way.
    #[error("another switchover of this service is under way")]
    Busy,
    /// Whoever asked for it went away before it was ordered.
    #[error("whoever asked for it went away")]
    Abandoned,
}

/// Whether a switchover may begin, and with whom.
pub(super) fn cast(seen: &Seen) -> Result<Cast, Reason> {
    let master = seen.master.as_ref().filter(|_| seen.stopped_since.is_none()).ok_or(Reason::Unsettled)?;
    let sentinels: Vec<NodeAddr> = seen
        .sentinels
        .iter()
        .filter(|it| it.up && it.member && !it.disagrees && it.view.is_some())
        .map(|it| it.addr.clone())
        .collect();
    let (members, majority) = seen.quorum;
    if sentinels.len() < majority.max(1) {
        return Err(Reason::NoMajority { agree: sentinels.len(), members, majority });
    }
    let replicas = eligible(master, &seen.nodes)?;
    let (dialled, generation) = (master.dialled, master.generation);
    Ok(Cast { master: master.addr.clone(), dialled, generation, replicas, sentinels })
}

/// Who follows the master, with the link up or not: that is waited for. Of all others no sentinel may think that it could be promoted.
fn eligible(master: &SeenMaster, nodes: &[SeenNode]) -> Result<Vec<(NodeAddr, SocketAddr)>, Reason> {
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
                _ => "it does not say that it follows the master".to_owned(),
            },
            Some(Err(_)) | None => "it does not tell where it stands".to_owned(),
        };
        if node.held_up > 0 {
            let problem = format!("{problem}, and a sentinel that holds it to be up might promote it");
            return Err(Reason::Node { node: node.addr.clone(), problem });
        }
    }
    if replicas.is_empty() { Err(Reason::NoReplica) } else { Ok(replicas) }
}

/// What one node says of its replication (`INFO replication`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// It takes writes.
    pub is_master: bool,
    /// A replica's link; a master has none and counts as up.
    pub link_up: bool,
    /// Bytes of the stream written by a master, or applied by a replica.
    pub offset: u64,
    /// 0: never to be promoted.
    pub priority: u64,
}

/// Reads `INFO replication`.
pub(super) fn standing(info: &str) -> Option<Standing> {
    let field = |name: &str| info.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'));
    let is_master = field("role")? == "master";
    let offset = if is_master { field("master_repl_offset")? } else { field("slave_repl_offset")? };
    Some(Standing {
        is_master,
        link_up: is_master || field("master_link_status") == Some("up"),
        offset: offset.parse().ok()?,
        priority: field("slave_priority").and_then(|text| text.parse().ok()).unwrap_or(100),
    })
}

/// What a look at everybody's offset comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Look again.
    Wait,
    /// Everybody who may be promoted has everything.
    Ready {
        /// The master's offset, which does not grow any more.
        offset: u64,
    },
    /// It will not come to that.
    Abort(Reason),
}

/// Waits until the master writes no more and its replicas have all of it.
#[derive(Debug)]
pub struct CatchUp {
    until: Instant,
    /// How long the master's offset has to stand still: requests that were forwarded before the gate shut arrive meanwhile.
    still: Duration,
    stands: Option<(u64, Instant)>,
}

impl CatchUp {
    /// Ready when nothing was written for `still`; over at `until`.
    #[must_use]
    pub fn new(until: Instant, still: Duration) -> Self {
        Self { until, still, stands: None }
    }

    /// One look. Replicas that may never be promoted do not count.
    pub fn weigh(&mut self, now: Instant, master: Standing, replicas: &[(NodeAddr, Standing)]) -> Verdict {
        let offset = master.offset;
        let since = match self.stands {
            Some((stood, since)) if stood == offset => since,
            _ => self.stands.insert((offset, now)).1,
        };
        if !master.is_master {
            return Verdict::Abort(Reason::Unsettled);
        }
        let mut eligible = replicas.iter().filter(|(_, it)| it.priority > 0).peekable();
        if eligible.peek().is_none() {
            return Verdict::Abort(Reason::NoReplica);
        }
        let behind = |it: &Standing| it.is_master || !it.link_up || it.offset < offset;
        let laggard = eligible.filter(|(_, it)| behind(it)).min_by_key(|(_, it)| it.offset);
        let still = now.saturating_duration_since(since) >= self.still;
        match laggard {
            None if still => Verdict::Ready { offset },
            Some((node, it)) if now >= self.until => {
                Verdict::Abort(Reason::Lagging { node: node.clone(), lag: offset.saturating_sub(it.offset) })
            }
            None if now >= self.until => Verdict::Abort(Reason::WrittenTo),
            _ => Verdict::Wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Probe, ProbeFailure, Report};

    fn node(port: u16) -> NodeAddr {
        NodeAddr { host: "10.0.0.1".into(), port }
    }

    fn master(offset: u64) -> Standing {
        Standing { is_master: true, link_up: true, offset, priority: 100 }
    }

    fn replica(offset: u64) -> Standing {
        Standing { is_master: false, ..master(offset) }
    }

    #[test]
    fn whoever_might_be_promoted_is_waited_for_or_stands_in_the_way() {
        let at = Instant::now();
        let (addr, dialled) = (node(1), "10.0.0.1:1".parse().unwrap());
        let master = SeenMaster { addr, dialled, generation: 1, epoch: 1, run_id: None, since: at };
        let seen = |port: u16, outcome: Option<Result<Role, ProbeFailure>>, held_up: usize| {
            let report = |role| Report {
                role,
                pong: true,
                dialled: SocketAddr::from(([10, 0, 0, 1], port)),
                lineage: None,
                offset: None,
            };
            let probe = outcome.map(|it| Probe { asked_at: at, outcome: it.map(report) });
            SeenNode { addr: node(port), probe, answered_in: None, failures: 0, problem: None, held_up }
        };
        let follows = |of: u16, connected| Some(Ok(Role::Replica { master: node(of), connected }));
        let own = seen(1, Some(Ok(Role::Master)), 0);
        let found = |others: &[SeenNode]| {
            let all: Vec<SeenNode> = std::iter::once(&own).chain(others).cloned().collect();
            eligible(&master, &all).map(|them| them.into_iter().map(|(it, _)| it.port).collect::<Vec<_>>())
        };
        assert_eq!(found(&[seen(2, follows(1, true), 3), seen(3, follows(1, false), 3)]), Ok(vec![2, 3]), "both count");
        assert_eq!(found(&[]), Err(Reason::NoReplica));
        let silent = || Some(Err(ProbeFailure::Silent));
        for other in [silent(), None, Some(Err(ProbeFailure::Unreachable)), follows(2, true), Some(Ok(Role::Master))] {
            let refused = found(&[seen(2, follows(1, true), 3), seen(3, other.clone(), 1)]);
            assert!(matches!(&refused, Err(Reason::Node { node, .. }) if node.port == 3), "{other:?}: {refused:?}");
            assert_eq!(
                found(&[seen(2, follows(1, true), 3), seen(3, other, 0)]),
                Ok(vec![2]),
                "nobody would choose it"
            );
        }
    }

    #[test]
    fn info_is_read_by_role() {
        let text = "# Replication\r\nrole:master\r\nconnected_slaves:1\r\nmaster_repl_offset:42\r\n";
        assert_eq!(standing(text), Some(master(42)));
        let text = "role:slave\r\nmaster_link_status:down\r\nslave_repl_offset:41\r\nslave_priority:0\r\nmaster_repl_offset:41\r\n";
        assert_eq!(standing(text), Some(Standing { link_up: false, priority: 0, ..replica(41) }));
        assert_eq!(standing("role:slave\r\n"), None);
        assert_eq!(standing(""), None);
    }

    #[test]
    fn ready_means_that_the_master_stands_still_and_all_have_everything() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut catch_up = CatchUp::new(at(2000), Duration::from_millis(30));
        let all = |offset| [(node(1), replica(offset)), (node(2), replica(offset))];
        assert_eq!(catch_up.weigh(at(0), master(100), &all(100)), Verdict::Wait, "it may be written to still");
        assert_eq!(catch_up.weigh(at(20), master(110), &all(110)), Verdict::Wait, "it was");
        let one = [(node(1), replica(110)), (node(2), replica(109))];
        assert_eq!(catch_up.weigh(at(60), master(110), &one), Verdict::Wait, "one lags by a byte");
        assert_eq!(catch_up.weigh(at(70), master(110), &all(110)), Verdict::Ready { offset: 110 });
    }

    #[test]
    fn a_laggard_aborts_by_name_and_one_that_is_never_promoted_does_not_count() {
        let start = Instant::now();
        let mut catch_up = CatchUp::new(start + Duration::from_secs(2), Duration::ZERO);
        let late = start + Duration::from_secs(2);
        let lags = [(node(1), replica(100)), (node(2), replica(40))];
        let abort = Verdict::Abort(Reason::Lagging { node: node(2), lag: 60 });
        assert_eq!(catch_up.weigh(late, master(100), &lags), abort);
        let spare = [(node(1), replica(100)), (node(2), Standing { priority: 0, ..replica(40) })];
        assert_eq!(catch_up.weigh(late, master(100), &spare), Verdict::Ready { offset: 100 });
        let nobody = [(node(2), Standing { priority: 0, ..replica(100) })];
        assert_eq!(catch_up.weigh(late, master(100), &nobody), Verdict::Abort(Reason::NoReplica));
        let unlinked = [(node(1), Standing { link_up: false, ..replica(100) })];
        assert!(matches!(catch_up.weigh(late, master(100), &unlinked), Verdict::Abort(Reason::Lagging { .. })));
    }

    #[test]
    fn a_master_that_is_none_any_more_and_one_that_never_stands_still_abort() {
        let start = Instant::now();
        let mut catch_up = CatchUp::new(start + Duration::from_secs(1), Duration::from_millis(30));
        let all = [(node(1), replica(500))];
        assert_eq!(catch_up.weigh(start, replica(100), &all), Verdict::Abort(Reason::Unsettled));
        for ms in 0..100 {
            let now = start + Duration::from_millis(ms * 10);
            assert_eq!(catch_up.weigh(now, master(100 + ms), &all), Verdict::Wait);
        }
        let late = start + Duration::from_secs(1);
        assert_eq!(catch_up.weigh(late, master(300), &all), Verdict::Abort(Reason::WrittenTo));
    }
}
