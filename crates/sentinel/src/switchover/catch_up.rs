//! Replication catch-up: whether every replica that may be promoted has everything.
//!
//! All replicas have to catch up and not just one, because Sentinel chooses which of them is
//! promoted, by priority and by offsets that are up to ten seconds old
//! (`redis:src/sentinel.c:sentinelSelectSlave`). Each one that could be chosen must have
//! everything, and one that does not report its offset can only be left out if no sentinel would
//! choose it (`participants`).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::error::SwitchoverError;
use crate::NodeAddr;
use crate::link::reply::info_field;

/// The replication state of one node (`INFO replication`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReplicationState {
    /// It accepts writes.
    pub is_master: bool,
    /// A replica's link; a master has none and counts as up.
    pub link_up: bool,
    /// Bytes of the stream written by a master, or applied by a replica.
    pub offset: u64,
    /// 0: never to be promoted.
    pub priority: u64,
    /// Unless it says otherwise, a master accepts no writes and waits until a replica has
    /// everything.
    pub is_handing_over: bool,
}

/// The state of all nodes: the master's, read first, and those of the replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReplicationReading {
    pub(super) master: ReplicationState,
    pub(super) replicas: Vec<(NodeAddr, ReplicationState)>,
}

/// Parses `INFO replication`.
pub(super) fn parse_replication(info: &str) -> Option<ReplicationState> {
    let field = |name: &str| info_field(info, name);
    let is_master = field("role")? == "master";
    let offset = if is_master { field("master_repl_offset")? } else { field("slave_repl_offset")? };
    Some(ReplicationState {
        is_master,
        link_up: is_master || field("master_link_status") == Some("up"),
        offset: offset.parse().ok()?,
        priority: field("slave_priority").and_then(|text| text.parse().ok()).unwrap_or(100),
        // A server before 6.2 does not report it, from which nothing can be concluded.
        is_handing_over: field("master_failover_state") != Some("no-failover"),
    })
}

/// A replica has caught up with writers that are not held if it has everything that the master had
/// written this long ago. Sentinel leaves at least twice this time between the selection, at which
/// every proxy holds, and the promotion.
const FRESH: Duration = Duration::from_millis(20);

/// Waits until the replicas have everything that was written before the hold, and nearly everything
/// that other clients have written since.
#[derive(Debug)]
pub(super) struct CatchUp {
    until: Instant,
    /// Minimum time to wait: requests that were forwarded before the gate closed arrive meanwhile.
    /// With paused clients it is also the time for which the master's offset must stay unchanged.
    still: Duration,
    paused: bool,
    /// When this time began: at the first reading, and with paused clients at the last change.
    began: Option<Instant>,
    /// The master's recent offsets, oldest first: those within [`FRESH`], and at least one.
    master_offsets: VecDeque<(Instant, u64)>,
}

impl CatchUp {
    /// `paused`: the master's other clients are paused, so its offset has to stop changing.
    #[must_use]
    pub(super) fn new(until: Instant, still: Duration, paused: bool) -> Self {
        Self { until, still, paused, began: None, master_offsets: VecDeque::new() }
    }

    /// Evaluates one reading: the master's offset, and the replicas' offsets read after it.
    /// Replicas that may never be promoted do not count. Returns the offset that every other one
    /// has reached; `None` if they have to be read again.
    pub(super) fn evaluate(
        &mut self,
        now: Instant,
        master: ReplicationState,
        replicas: &[(NodeAddr, ReplicationState)],
    ) -> Result<Option<u64>, SwitchoverError> {
        if !master.is_master {
            return Err(SwitchoverError::Unsettled);
        }
        let mut eligible = replicas.iter().filter(|(_, it)| it.priority > 0).peekable();
        if eligible.peek().is_none() {
            return Err(SwitchoverError::NoReplica);
        }
        let (needed, waited) = self.needed(now, master.offset);
        let behind = |it: &ReplicationState| it.is_master || !it.link_up || it.offset < needed;
        let laggard = eligible.filter(|(_, it)| behind(it)).min_by_key(|(_, it)| it.offset);
        match laggard {
            None if waited => Ok(Some(needed)),
            Some((node, it)) if now >= self.until => {
                let lag = master.offset.saturating_sub(it.offset);
                let problem = format!("lags by {lag} bytes and did not catch up in time");
                Err(SwitchoverError::node(node, problem))
            }
            None if now >= self.until => Err(SwitchoverError::WrittenTo),
            _ => Ok(None),
        }
    }

    /// The offset that every replica must have reached, and whether the minimum time has passed.
    fn needed(&mut self, now: Instant, offset: u64) -> (u64, bool) {
        if self.paused && self.master_offsets.back().is_some_and(|(_, it)| *it != offset) {
            self.master_offsets.clear();
            self.began = None;
        }
        let began = *self.began.get_or_insert(now);
        // Our own requests may arrive for as long as `still`: their writes are in this reading's
        // offset or in a later one's.
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

    fn node(port: u16) -> NodeAddr {
        NodeAddr { host: "10.0.0.1".into(), port }
    }

    fn master(offset: u64) -> ReplicationState {
        ReplicationState {
            is_master: true,
            link_up: true,
            offset,
            priority: 100,
            is_handing_over: false,
        }
    }

    fn lags(port: u16, lag: u64) -> Result<Option<u64>, SwitchoverError> {
        let problem = format!("lags by {lag} bytes and did not catch up in time");
        Err(SwitchoverError::node(&node(port), problem))
    }

    fn replica(offset: u64) -> ReplicationState {
        ReplicationState { is_master: false, ..master(offset) }
    }

    #[test]
    fn parses_offset_by_role() {
        let text = "# Replication\r\nrole:master\r\nconnected_slaves:1\r\nmaster_failover_state:no-failover\r\nmaster_repl_offset:42\r\n";
        assert_eq!(parse_replication(text), Some(master(42)));
        let text = "role:slave\r\nmaster_link_status:down\r\nslave_repl_offset:41\r\nslave_priority:0\r\nmaster_failover_state:no-failover\r\nmaster_repl_offset:41\r\n";
        assert_eq!(
            parse_replication(text),
            Some(ReplicationState { link_up: false, priority: 0, ..replica(41) })
        );
        assert_eq!(parse_replication("role:slave\r\n"), None);
        assert_eq!(parse_replication(""), None);
    }

    #[test]
    fn reads_state_of_the_handover() {
        let of = |role: &str, state: &str| {
            let offset = format!("{role}_repl_offset:1");
            parse_replication(&format!("# Replication\r\nrole:{role}\r\n{offset}\r\n{state}\r\n"))
                .map(|it| (it.is_master, it.is_handing_over))
        };
        assert_eq!(of("master", "master_failover_state:no-failover"), Some((true, false)));
        assert_eq!(of("master", "master_failover_state:waiting-for-sync"), Some((true, true)));
        let over = of("slave", "master_failover_state:failover-in-progress");
        assert!(over.is_some_and(|(is_master, _)| !is_master));
        assert_eq!(of("master", "connected_slaves:1"), Some((true, true)), "a server before 6.2");
    }

    #[test]
    fn is_ready_when_offset_is_stable_and_replicas_caught_up() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut catch_up = CatchUp::new(at(2000), Duration::from_millis(30), true);
        let all = |offset| [(node(1), replica(offset)), (node(2), replica(offset))];
        assert_eq!(
            catch_up.evaluate(at(0), master(100), &all(100)),
            Ok(None),
            "it may still receive writes"
        );
        assert_eq!(catch_up.evaluate(at(20), master(110), &all(110)), Ok(None), "it did");
        let one = [(node(1), replica(110)), (node(2), replica(109))];
        assert_eq!(catch_up.evaluate(at(60), master(110), &one), Ok(None), "one lags by a byte");
        assert_eq!(catch_up.evaluate(at(70), master(110), &all(110)), Ok(Some(110)));
    }

    #[test]
    fn aborts_on_lag_but_ignores_unpromotable_replica() {
        let start = Instant::now();
        let mut catch_up = CatchUp::new(start + Duration::from_secs(2), Duration::ZERO, true);
        let late = start + Duration::from_secs(2);
        let them = [(node(1), replica(100)), (node(2), replica(40))];
        assert_eq!(catch_up.evaluate(late, master(100), &them), lags(2, 60));
        let spare =
            [(node(1), replica(100)), (node(2), ReplicationState { priority: 0, ..replica(40) })];
        assert_eq!(catch_up.evaluate(late, master(100), &spare), Ok(Some(100)));
        let nobody = [(node(2), ReplicationState { priority: 0, ..replica(100) })];
        assert_eq!(catch_up.evaluate(late, master(100), &nobody), Err(SwitchoverError::NoReplica));
        let unlinked = [(node(1), ReplicationState { link_up: false, ..replica(100) })];
        assert_eq!(catch_up.evaluate(late, master(100), &unlinked), lags(1, 0));
    }

    #[test]
    fn aborts_when_master_is_demoted_or_keeps_writing() {
        let start = Instant::now();
        let mut catch_up =
            CatchUp::new(start + Duration::from_secs(1), Duration::from_millis(30), true);
        let all = [(node(1), replica(500))];
        assert_eq!(catch_up.evaluate(start, replica(100), &all), Err(SwitchoverError::Unsettled));
        for ms in 0..100 {
            let now = start + Duration::from_millis(ms * 10);
            assert_eq!(catch_up.evaluate(now, master(100 + ms), &all), Ok(None));
        }
        let late = start + Duration::from_secs(1);
        assert_eq!(catch_up.evaluate(late, master(300), &all), Err(SwitchoverError::WrittenTo));
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
                Ok(None),
                "requests may be in flight"
            );
        }
        assert_eq!(
            catch_up.evaluate(at(30), master(300), &all(299)),
            Ok(None),
            "what was written before the hold"
        );
        assert_eq!(catch_up.evaluate(at(35), master(350), &all(300)), Ok(Some(300)));
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
            assert!(ms < 30 || status == Ok(None), "{ms}: {status:?}");
        }
        let them = [(node(1), replica(20_000)), (node(2), replica(19_000))];
        assert_eq!(catch_up.evaluate(at(2000), master(20_000), &them), lags(2, 1000));
    }
}
