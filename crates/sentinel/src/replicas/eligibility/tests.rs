//! The rules by which replicas are admitted and ejected, one scenario per test.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::{CurrentMaster, Eligibility, EligibilityInputs, PoolUpdate, ReplicaState};
use crate::{Lineage, NodeAddr, NodeReport, PingReply, Probe, ProbeFailure, ReplicaRules, Role};

pub(super) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(super) fn node(number: u8) -> NodeAddr {
    NodeAddr { host: format!("10.0.0.{number}").into(), port: 6379 }
}

pub(super) fn dialled(number: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, number], 6379))
}

pub(super) fn report(number: u8, role: Role, offset: u64, replid: &str) -> NodeReport {
    let lineage =
        Lineage { run_id: number.to_string().into(), replid: replid.into(), ..Lineage::default() };
    NodeReport {
        dialled: dialled(number),
        role,
        ping: PingReply::Pong,
        offset: Some(offset),
        lineage: Some(lineage),
        replicas: None,
    }
}

pub(super) fn follower(of: u8, connected: bool) -> Role {
    Role::Replica { master: node(of), connected }
}

/// A master with replicas, as eligibility sees them.
pub(super) struct TestCluster {
    pub(super) eligibility: Eligibility,
    pub(super) now: Instant,
    pub(super) master: u8,
    pub(super) replid: &'static str,
    pub(super) replid2: &'static str,
    pub(super) candidate: Option<u8>,
    pub(super) stable: bool,
    pub(super) listed: BTreeMap<u8, bool>,
    pub(super) silent_sentinels: bool,
    /// The answer of each node; no entry means no answer.
    pub(super) answers: BTreeMap<u8, Result<NodeReport, ProbeFailure>>,
    heard: BTreeMap<NodeAddr, Probe>,
}

impl TestCluster {
    /// Master 1, replicas 2 and 3, all well.
    pub(super) fn new() -> Self {
        Self::with(ReplicaRules { max_lag_bytes: 1000, ..ReplicaRules::default() })
    }

    fn with(rules: ReplicaRules) -> Self {
        let mut answers = BTreeMap::from([(1, Ok(report(1, Role::Master, 100, "first")))]);
        for number in [2, 3] {
            answers.insert(number, Ok(report(number, follower(1, true), 100, "first")));
        }
        Self {
            eligibility: Eligibility::new(rules),
            now: Instant::now(),
            master: 1,
            replid: "first",
            replid2: "",
            candidate: None,
            stable: true,
            listed: BTreeMap::from([(2, true), (3, true)]),
            silent_sentinels: false,
            answers,
            heard: BTreeMap::new(),
        }
    }

    /// Every node has answered, and the state has been stable for long.
    pub(super) fn settled() -> Self {
        let mut cluster = Self::new();
        cluster.run(10_000);
        assert_eq!(cluster.members(), [2, 3]);
        cluster
    }

    /// Evaluates without another probe.
    pub(super) fn evaluate(&mut self) -> PoolUpdate {
        let (master, candidate) = (node(self.master), self.candidate.map(node));
        let listed =
            self.listed.iter().map(|(number, healthy)| (node(*number), *healthy)).collect();
        let inputs = EligibilityInputs {
            master: Some(CurrentMaster {
                addr: &master,
                dialled: dialled(self.master),
                replid: self.replid,
                replid2: self.replid2,
                replicas: None,
            }),
            candidate: candidate.as_ref(),
            stable: self.stable,
            in_minority: false,
            listed: Some(listed).filter(|_| !self.silent_sentinels),
        };
        self.eligibility.evaluate(self.now, &inputs, self.heard.iter())
    }

    /// Probes every node, and evaluates.
    pub(super) fn ask(&mut self) -> PoolUpdate {
        for (number, outcome) in &self.answers {
            let probe = Probe { asked_at: self.now, outcome: outcome.clone() };
            self.heard.insert(node(*number), probe);
        }
        self.evaluate()
    }

    /// Advances time, with a probe of every node every half second.
    pub(super) fn run(&mut self, for_ms: u64) -> PoolUpdate {
        let mut last = self.ask();
        for _ in 0..for_ms / 500 {
            self.now += ms(500);
            last = self.ask();
        }
        last
    }

    pub(super) fn members(&mut self) -> Vec<u8> {
        let members = self.evaluate().members.expect("a set");
        members
            .iter()
            .map(|it| it.addr.host.trim_start_matches("10.0.0.").parse().expect("a number"))
            .collect()
    }

    pub(super) fn state(&self, number: u8) -> ReplicaState {
        let found = self.eligibility.records().find(|(addr, _)| **addr == node(number));
        found.map(|(_, it)| it.state).expect("a record")
    }

    fn role(&mut self, number: u8, role: Role) {
        if let Some(Ok(report)) = self.answers.get_mut(&number) {
            report.role = role;
        }
    }
}

#[test]
fn first_set_waits_for_all_answers_but_not_for_long() {
    let mut cluster = TestCluster::new();
    assert_eq!(cluster.evaluate().members, None);
    assert!(!cluster.eligibility.is_current());
    cluster.ask();
    assert_eq!(cluster.members(), [2, 3]);
    let mut cluster = TestCluster::new();
    cluster.answers.remove(&3);
    assert_eq!(cluster.run(500).members, None);
    cluster.run(500);
    assert_eq!((cluster.members(), cluster.state(3)), (vec![2], ReplicaState::Unknown));
}

#[test]
fn ejects_replica_that_fails_a_check() {
    type Change = fn(&mut TestCluster);
    let cases: [(Change, ReplicaState); 8] = [
        (|cluster| cluster.role(2, Role::Master), ReplicaState::Master),
        (|cluster| cluster.role(2, follower(9, true)), ReplicaState::FollowsOtherMaster),
        (|cluster| cluster.role(2, Role::Unknown), ReplicaState::FollowsOtherMaster),
        (|cluster| cluster.role(2, follower(1, false)), ReplicaState::LinkDown),
        (
            |cluster| cluster.listed = BTreeMap::from([(2, false), (3, true)]),
            ReplicaState::FlaggedBySentinel,
        ),
        (|cluster| cluster.listed = BTreeMap::from([(3, true)]), ReplicaState::Unlisted),
        (
            |cluster| drop(cluster.answers.insert(2, Err(ProbeFailure::Denied))),
            ReplicaState::Denied,
        ),
        (|cluster| cluster.candidate = Some(2), ReplicaState::Candidate),
    ];
    for (change, expected) in cases {
        let mut cluster = TestCluster::settled();
        change(&mut cluster);
        cluster.run(500);
        assert_eq!((cluster.members(), cluster.state(2)), (vec![3], expected));
    }
}

#[test]
fn ejects_node_that_is_loading() {
    let mut cluster = TestCluster::settled();
    cluster.answers.insert(
        2,
        Ok(NodeReport { ping: PingReply::Loading, ..report(2, follower(1, true), 100, "first") }),
    );
    cluster.ask();
    assert_eq!((cluster.members(), cluster.state(2)), (vec![3], ReplicaState::NotReady));
}

#[test]
fn serves_replica_whose_disk_is_full() {
    let mut cluster = TestCluster::settled();
    for ping in [PingReply::Misconf, PingReply::Busy] {
        for number in [2, 3] {
            let healthy = report(number, follower(1, true), 100, "first");
            cluster.answers.insert(number, Ok(NodeReport { ping, ..healthy }));
        }
        cluster.ask();
        assert_eq!(cluster.members(), [2, 3], "{ping:?}");
        // Sentinel considers it down for that reason.
        cluster.listed = BTreeMap::from([(2, false), (3, false)]);
        cluster.run(5000);
        assert_eq!(cluster.members(), [2, 3], "{ping:?}");
    }
}

#[test]
fn serves_only_replicas_that_master_lists() {
    let mut cluster = TestCluster::settled();
    let attach = |cluster: &mut TestCluster, listed: &[NodeAddr]| {
        let attached =
            |addr: &NodeAddr| crate::AttachedReplica { addr: addr.clone(), acknowledged: 0 };
        let replicas = Some(listed.iter().map(attached).collect());
        let master = NodeReport { replicas, ..report(1, Role::Master, 100, "first") };
        cluster.answers.insert(1, Ok(master));
        cluster.run(10_000);
    };
    attach(&mut cluster, &[node(2), node(3)]);
    assert_eq!(cluster.members(), [2, 3]);
    attach(&mut cluster, &[node(3)]);
    assert_eq!((cluster.members(), cluster.state(2)), (vec![3], ReplicaState::UnknownToMaster));
    // A name in its list is not resolved.
    let named = |host: &str, port| NodeAddr { host: host.into(), port };
    attach(&mut cluster, &[node(3), named("redis-2", 6379)]);
    assert_eq!(cluster.members(), [2, 3]);
    attach(&mut cluster, &[node(3), named("redis-2", 6380)]);
    assert_eq!(cluster.members(), [3]);
    // Its last list stands while it does not answer.
    cluster.answers.insert(1, Err(ProbeFailure::Unresponsive));
    cluster.run(10_000);
    assert_eq!(cluster.members(), [3]);
}

#[test]
fn serves_only_replicas_with_history_of_master() {
    let mut cluster = TestCluster::settled();
    let stranger = report(2, follower(1, true), 100, "another");
    for (lineage, state) in
        [(stranger.lineage.clone(), ReplicaState::FollowsOtherMaster), (None, ReplicaState::Denied)]
    {
        cluster.answers.insert(2, Ok(NodeReport { lineage, ..stranger.clone() }));
        cluster.run(500);
        assert_eq!((cluster.members(), cluster.state(2)), (vec![3], state));
    }
    cluster.replid = "";
    cluster.run(10_000);
    assert_eq!(cluster.members(), [2, 3], "the master's history is unreadable");
}

#[test]
fn does_not_fence_replica_that_got_another_name() {
    let mut cluster = TestCluster::settled();
    // The sentinels announce the address of 2 as 9 from now on.
    let renamed = report(2, follower(1, true), 100, "first");
    cluster.answers.insert(9, Ok(renamed));
    cluster.listed = BTreeMap::from([(9, true), (3, true)]);
    for _ in 0..80 {
        let update = cluster.run(500);
        assert!(!update.fenced.contains(&dialled(2)));
    }
    assert_eq!(cluster.members(), [3, 9]);
}

#[test]
fn ejects_at_once_and_readmits_after_a_while() {
    let mut cluster = TestCluster::settled();
    cluster.role(2, follower(1, false));
    cluster.ask();
    cluster.role(2, follower(1, true));
    cluster.run(1500);
    assert_eq!((cluster.members(), cluster.state(2)), (vec![3], ReplicaState::Recovering));
    // Another fault restarts the time.
    cluster.role(2, follower(1, false));
    cluster.ask();
    cluster.role(2, follower(1, true));
    cluster.run(1500);
    assert_eq!(cluster.members(), [3]);
    cluster.run(500);
    assert_eq!(cluster.members(), [2, 3]);
}

#[test]
fn ejects_silent_node_after_a_while_and_lost_node_at_once() {
    let mut cluster = TestCluster::settled();
    cluster.answers.insert(2, Err(ProbeFailure::Unresponsive));
    cluster.run(2500);
    assert_eq!(cluster.members(), [2, 3], "busy for a moment");
    cluster.run(1000);
    assert_eq!((cluster.members(), cluster.state(2)), (vec![3], ReplicaState::Unresponsive));
    let mut cluster = TestCluster::settled();
    cluster.answers.insert(2, Err(ProbeFailure::Unreachable));
    cluster.ask();
    assert_eq!((cluster.members(), cluster.state(2)), (vec![3], ReplicaState::Unreachable));
}

#[test]
fn lagging_replica_must_catch_up_to_half_the_limit() {
    let rules =
        ReplicaRules { max_lag_bytes: 1000, max_lag: Duration::ZERO, ..ReplicaRules::default() };
    let mut cluster = TestCluster::with(rules);
    cluster.run(1000);
    cluster.answers.insert(1, Ok(report(1, Role::Master, 1600, "first")));
    cluster.answers.insert(2, Ok(report(2, follower(1, true), 599, "first")));
    cluster.answers.insert(3, Ok(report(3, follower(1, true), 600, "first")));
    cluster.run(500);
    assert_eq!((cluster.members(), cluster.state(2)), (vec![3], ReplicaState::Lagging));
    cluster.answers.insert(2, Ok(report(2, follower(1, true), 1099, "first")));
    cluster.run(5000);
    assert_eq!(cluster.state(2), ReplicaState::Lagging);
    cluster.answers.insert(2, Ok(report(2, follower(1, true), 1100, "first")));
    cluster.run(3000);
    assert_eq!(cluster.members(), [2, 3]);
}

#[test]
fn ejects_replica_that_stops_applying_in_time() {
    let mut cluster = TestCluster::settled();
    for half_second in 1..=24_u64 {
        cluster.now += ms(500);
        // A byte per half second: far below the limit of bytes.
        for number in [1, 3] {
            if let Some(Ok(report)) = cluster.answers.get_mut(&number) {
                report.offset = Some(100 + half_second);
            }
        }
        cluster.ask();
        let behind_for = ms(500 * (half_second - 1));
        assert_eq!(
            cluster.members().contains(&2),
            behind_for <= ms(10_000),
            "after {behind_for:?}"
        );
        assert!(cluster.members().contains(&3));
    }
    assert_eq!(cluster.state(2), ReplicaState::Lagging);
}

#[test]
fn ignores_broken_links_while_master_is_in_question() {
    let mut cluster = TestCluster::settled();
    cluster.stable = false;
    cluster.answers.insert(1, Err(ProbeFailure::Unreachable));
    cluster.listed = BTreeMap::from([(2, false), (3, false)]);
    for number in [2, 3] {
        cluster.role(number, follower(1, false));
    }
    cluster.run(60_000);
    assert_eq!(cluster.members(), [2, 3]);
    // But they must answer, and must not be masters.
    cluster.answers.insert(3, Err(ProbeFailure::Unresponsive));
    cluster.role(2, Role::Master);
    cluster.run(3500);
    assert_eq!(cluster.members(), [0_u8; 0]);
}

#[test]
fn failover_ejects_candidate_and_keeps_other_replica() {
    let mut cluster = TestCluster::settled();
    (cluster.stable, cluster.candidate) = (false, Some(2));
    cluster.ask();
    assert_eq!(cluster.members(), [3], "the candidate is not eligible any more");
    // The switch: observers list all replicas as disconnected, including the old master, which
    // still reports that it is a master.
    (cluster.master, cluster.replid, cluster.replid2) = (2, "second", "first");
    (cluster.stable, cluster.candidate) = (true, None);
    cluster.listed = BTreeMap::from([(1, false), (3, false)]);
    cluster.answers.insert(2, Ok(report(2, Role::Master, 120, "second")));
    cluster.role(3, follower(1, false));
    let update = cluster.run(1500);
    assert_eq!(cluster.members(), [3], "its own answers count");
    assert!(update.fenced.contains(&dialled(2)) && update.fenced.contains(&dialled(1)));
    assert!(!update.fenced.contains(&dialled(3)));
    // The state has settled.
    cluster.answers.insert(3, Ok(report(3, follower(2, true), 120, "second")));
    cluster.listed = BTreeMap::from([(1, true), (3, true)]);
    cluster.run(1000);
    assert_eq!(
        (cluster.members(), cluster.state(1)),
        (vec![3], ReplicaState::Master),
        "a zombie is never eligible"
    );
    cluster.answers.insert(1, Ok(report(1, follower(2, true), 120, "second")));
    let update = cluster.run(2000);
    assert_eq!(cluster.members(), [1, 3]);
    assert!(!update.fenced.contains(&dialled(1)));
}

#[test]
fn keeps_replica_that_follows_next_master_before_commit() {
    // Reconfigured and synchronised in full before the majority has named the next master: its
    // history is unknown for now.
    let mut cluster = TestCluster::settled();
    (cluster.stable, cluster.candidate) = (false, Some(2));
    cluster.answers.insert(3, Ok(report(3, follower(2, true), 100, "second")));
    let update = cluster.run(500);
    assert_eq!(cluster.members(), [3]);
    assert!(!update.fenced.contains(&dialled(3)));
    // Another process at that address was never admitted.
    let lineage =
        Lineage { run_id: "another".into(), replid: "second".into(), ..Lineage::default() };
    let other =
        NodeReport { lineage: Some(lineage), ..report(3, follower(2, true), 100, "second") };
    cluster.answers.insert(3, Ok(other));
    cluster.run(500);
    assert_eq!(
        (cluster.members(), cluster.state(3)),
        (Vec::new(), ReplicaState::FollowsOtherMaster)
    );
}

#[test]
fn ejects_replica_of_old_master_after_settling() {
    let mut cluster = TestCluster::settled();
    (cluster.master, cluster.replid, cluster.replid2) = (2, "second", "first");
    cluster.listed = BTreeMap::from([(1, true), (3, true)]);
    cluster.answers.insert(2, Ok(report(2, Role::Master, 100, "second")));
    let update = cluster.run(2000);
    assert_eq!(
        (cluster.members(), cluster.state(3)),
        (Vec::new(), ReplicaState::FollowsOtherMaster)
    );
    assert!(!update.fenced.contains(&dialled(3)), "ineligible, but not fenced");
}

#[test]
fn fences_node_of_another_cluster() {
    let mut cluster = TestCluster::settled();
    cluster.answers.insert(2, Ok(report(2, follower(9, true), 100, "foreign")));
    let update = cluster.ask();
    assert_eq!((cluster.members(), cluster.state(2)), (vec![3], ReplicaState::FollowsOtherMaster));
    assert!(update.fenced.contains(&dialled(2)));
}

#[test]
fn accepts_unknown_master_name_if_history_matches() {
    for (replid, expected) in [("first", vec![2, 3]), ("foreign", vec![3])] {
        let mut cluster = TestCluster::settled();
        let name = NodeAddr { host: "redis-0.redis".into(), port: 6379 };
        let told = Role::Replica { master: name, connected: true };
        cluster.answers.insert(2, Ok(report(2, told, 100, replid)));
        cluster.ask();
        assert_eq!(cluster.members(), expected);
    }
}

#[test]
fn silent_sentinels_eject_nothing_and_unlisted_is_fenced() {
    let mut cluster = TestCluster::settled();
    cluster.silent_sentinels = true;
    cluster.run(60_000);
    assert_eq!(cluster.members(), [2, 3]);
    cluster.silent_sentinels = false;
    cluster.listed.remove(&2);
    cluster.answers.remove(&2);
    let update = cluster.run(20_000);
    assert_eq!(cluster.members(), [3]);
    assert!(!update.fenced.contains(&dialled(2)));
    let fenced = (0..40).any(|_| cluster.run(500).fenced.contains(&dialled(2)));
    assert!(fenced);
}

#[test]
fn publishes_nothing_after_stall_until_probed_again() {
    let mut cluster = TestCluster::settled();
    cluster.now += ms(20_000);
    cluster.eligibility.on_resume(cluster.now);
    assert_eq!(cluster.evaluate().members, None);
    assert!(!cluster.eligibility.is_current());
    cluster.role(3, Role::Master);
    cluster.now += ms(10);
    cluster.ask();
    assert!(cluster.eligibility.is_current());
    assert_eq!(cluster.members(), [2]);
}

/// Before the first master is verified, a replica is not given the password.
#[test]
fn failures_from_before_the_first_master_say_nothing() {
    let mut cluster = TestCluster::new();
    for number in [2, 3] {
        let probe = Probe { asked_at: cluster.now, outcome: Err(ProbeFailure::Denied) };
        cluster.heard.insert(node(number), probe);
    }
    cluster.now += ms(5);
    assert_eq!(cluster.evaluate().members, None);
    cluster.now += ms(5);
    cluster.ask();
    assert_eq!(cluster.members(), [2, 3]);
}
