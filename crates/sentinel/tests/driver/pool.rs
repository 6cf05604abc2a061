//! The replicas for readers, from the sockets to the pool: which are members, why one is not, and
//! what happens to a reader that is connected to it. The decisions are tested with eligibility;
//! these tests check that they take effect.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sentinel::{MachineRules, ReplicaRules, ReplicaState, Replicas};
use target::{CloseCause, EmptyPool, Pool, PoolWriter, TargetRef, TargetSource};

use crate::cluster::{DEADLINE, Driver, FakeCluster, event_only_rules, ms, rules, stays, until};
use crate::fake::Behavior;

const SETTLE: Duration = Duration::from_millis(200);

/// Three sentinels, a master and two replicas, with readers.
struct PoolCluster {
    cluster: FakeCluster,
    driver: Driver,
    pool: Arc<Pool>,
    way: TargetSource,
}

impl PoolCluster {
    /// Starts the driver and waits for nothing. `settle`: as in [`ReplicaRules`].
    fn open(cluster: FakeCluster, empty: EmptyPool, rules: MachineRules, settle: Duration) -> Self {
        let (mut watch, route) = cluster.watch();
        let (writer, pool) = PoolWriter::new(&route, empty);
        // A node that is probed seldom has not answered for a while, and is not unresponsive.
        let (readmit, unanswered) = (ms(50), ms(1500).max(rules.probe_replica * 2));
        let readers = ReplicaRules {
            max_lag_bytes: 100,
            unanswered,
            readmit,
            settle,
            ..ReplicaRules::default()
        };
        (watch.replicas, watch.settings.rules) = (Some(Replicas { rules: readers, writer }), rules);
        let driver = Driver::one((watch, route));
        Self { cluster, driver, way: TargetSource::from(Arc::clone(&pool)), pool }
    }

    /// Both replicas are eligible, and the state is stable.
    async fn ready(empty: EmptyPool, rules: MachineRules) -> Self {
        Self::settled(empty, rules, SETTLE).await
    }

    async fn settled(empty: EmptyPool, rules: MachineRules, settle: Duration) -> Self {
        let pool_cluster = Self::open(FakeCluster::new(3, 3).await, empty, rules, settle);
        pool_cluster.driver.wait_for_target(pool_cluster.cluster.addr(0)).await;
        pool_cluster.holds(&[1, 2]).await;
        pool_cluster
            .driver
            .wait_for("calm", |seen| seen.state == "stable" && seen.quorum == (3, 2))
            .await;
        pool_cluster
    }

    fn members(&self) -> Option<Vec<SocketAddr>> {
        self.pool.members().map(|members| members.iter().map(|target| target.addr()).collect())
    }

    /// Waits until exactly these nodes serve readers.
    async fn holds(&self, nodes: &[usize]) {
        let mut wanted: Vec<SocketAddr> =
            nodes.iter().map(|node| self.cluster.addr(*node)).collect();
        wanted.sort();
        let now = || {
            let mut members = self.members().unwrap_or_default();
            members.sort();
            members
        };
        let what =
            format!("{nodes:?} are the members; last seen: {:#?}", self.driver.seen().replicas);
        until(&what, || now() == wanted).await;
    }

    /// Waits until this node has this state.
    async fn stands(&self, node: usize, wanted: ReplicaState) {
        let addr = self.cluster.addr(node).into();
        let what = format!("node {node} is {}", wanted.label());
        self.driver
            .wait_for(&what, |seen| {
                let replicas = seen.replicas.iter().flat_map(|it| &it.replicas);
                replicas.filter(|it| it.addr == addr).any(|it| it.state == wanted)
            })
            .await;
    }

    /// A reader on this node: others are opened and dropped until one is.
    fn reader_on(&self, node: usize) -> TargetRef {
        let mut others = Vec::new();
        for _ in 0..8 {
            let target = self.way.usable_target().expect("a replica");
            if target.addr() == self.cluster.addr(node) {
                return target;
            }
            others.push(target);
        }
        panic!("eight readers, and none on node {node}");
    }
}

/// A fault of node 2, the resulting state, and whether it fences the node.
struct FaultCase {
    state: ReplicaState,
    fenced: bool,
    inject: fn(&FakeCluster),
    repair: fn(&FakeCluster),
}

fn all_set_master(cluster: &FakeCluster, change: fn(&mut crate::scripts::MasterRecord, u16)) {
    let port = cluster.addr(2).port();
    cluster.sentinels.iter().for_each(|sentinel| change(sentinel.script().record(), port));
}

/// Faults that a replica's own answers show, and that do not fence it.
fn probe_faults() -> [FaultCase; 5] {
    let case = |state, inject, repair| FaultCase { state, fenced: false, inject, repair };
    [
        case(
            ReplicaState::NotReady,
            |it| {
                it.nodes[2].script().pong =
                    b"-LOADING Redis is loading the dataset in memory\r\n".to_vec();
            },
            |it| it.nodes[2].script().pong = b"+PONG\r\n".to_vec(),
        ),
        case(
            ReplicaState::Lagging,
            |it| it.nodes[2].script().offset = 800,
            |it| it.nodes[2].script().offset = 1000,
        ),
        case(
            ReplicaState::LinkDown,
            |it| it.nodes[2].script().link = "connect",
            |it| it.nodes[2].script().link = "connected",
        ),
        case(
            ReplicaState::Unreachable,
            |it| {
                it.nodes[2].behave(Behavior::CloseAtOnce);
                it.nodes[2].cut();
            },
            |it| it.nodes[2].behave(Behavior::Normal),
        ),
        case(
            ReplicaState::Unresponsive,
            |it| it.nodes[2].behave(Behavior::Mute),
            |it| {
                it.nodes[2].behave(Behavior::Normal);
                it.nodes[2].cut();
            },
        ),
    ]
}

/// Faults that sentinels report, and those that fence the replica.
fn view_and_role_faults() -> [FaultCase; 4] {
    let case = |state, fenced, inject, repair| FaultCase { state, fenced, inject, repair };
    [
        case(
            ReplicaState::FlaggedBySentinel,
            false,
            |it| all_set_master(it, |record, port| record.down.push(port)),
            |it| all_set_master(it, |record, _| record.down.clear()),
        ),
        case(
            ReplicaState::Unlisted,
            false,
            |it| all_set_master(it, |record, port| record.replicas.retain(|(_, it)| *it != port)),
            |it| {
                all_set_master(it, |record, port| {
                    record.replicas.push(("127.0.0.1".to_owned(), port));
                });
            },
        ),
        case(
            ReplicaState::Master,
            true,
            |it| {
                let mut script = it.nodes[2].script();
                (script.follows, script.replid) = (None, "9".repeat(40));
            },
            |it| it.follow(2, 0),
        ),
        case(
            ReplicaState::FollowsOtherMaster,
            true,
            |it| {
                let mut script = it.nodes[2].script();
                (script.follows, script.replid) =
                    (Some(("203.0.113.7".to_owned(), 6379)), "9".repeat(40));
            },
            |it| it.follow(2, 0),
        ),
    ]
}

#[tokio::test]
async fn ejects_unfit_replica_with_reason_and_readmits_it() {
    let pool_cluster = PoolCluster::ready(EmptyPool::Reject, rules()).await;
    for FaultCase { state, fenced, inject, repair } in
        probe_faults().into_iter().chain(view_and_role_faults())
    {
        let name = state.label();
        let there = pool_cluster.reader_on(2);
        inject(&pool_cluster.cluster);
        pool_cluster.stands(2, state).await;
        pool_cluster.holds(&[1]).await;
        // Merely ineligible: its readers are asked to leave. Fenced: no byte is sent there any
        // more.
        assert!(fenced || there.is_draining(), "{name}");
        assert_eq!(there.fence().is_raised(), fenced, "{name}");
        for _ in 0..4 {
            assert_eq!(
                pool_cluster.way.usable_target().expect("a replica").addr(),
                pool_cluster.cluster.addr(1),
                "{name}"
            );
        }
        repair(&pool_cluster.cluster);
        pool_cluster.holds(&[1, 2]).await;
        pool_cluster.stands(2, ReplicaState::Eligible).await;
        assert_eq!(there.fence().is_raised(), fenced, "{name}: what has fallen stays so");
        assert!(fenced || !there.is_draining(), "{name}: who has not left yet may stay");
    }
    let seen = pool_cluster.driver.seen().replicas.clone().expect("readers");
    assert!(seen.ejections >= 9 && seen.readmissions >= 8, "{seen:#?}");
    assert_eq!(pool_cluster.driver.generation(), 1, "the target never changed");
}

#[tokio::test]
async fn readers_leave_next_master_before_switch_and_others_stay() {
    // The other replica's link is outdated for a while; on a busy machine for a long one.
    let pool_cluster = PoolCluster::settled(EmptyPool::Reject, rules(), DEADLINE).await;
    let (on_the_next, on_the_other) = (pool_cluster.reader_on(1), pool_cluster.reader_on(2));
    let cluster = &pool_cluster.cluster;
    cluster.announce(0, "+selected-slave", 1, 0);
    pool_cluster.holds(&[2]).await;
    assert!(on_the_next.is_draining(), "the candidate's readers leave at a boundary");
    cluster.promote(1);
    // As a worker thread would observe it at any moment: it reads the target first.
    let (route, next) = (Arc::clone(&pool_cluster.driver.route), cluster.addr(1));
    let worker = std::thread::spawn(move || {
        loop {
            let led = route.current().is_some_and(|target| target.addr() == next);
            let fallen = on_the_next.fence().is_raised();
            if led || fallen {
                return fallen;
            }
            std::thread::yield_now();
        }
    });
    (0..3).for_each(|sentinel| cluster.switch(sentinel, 0, 1, 2));
    cluster.follow(2, 1);
    pool_cluster.driver.wait_for_target(cluster.addr(1)).await;
    assert!(worker.join().expect("a worker"), "a reader was on a master");
    // The old master reports that it is a master, for ten seconds in reality, and is listed as a
    // replica all that time.
    let calm = || pool_cluster.members().is_some_and(|members| members == [cluster.addr(2)]);
    stays(ms(400), "the other replica alone serves readers", calm).await;
    assert!(!on_the_other.fence().is_raised() && !on_the_other.is_draining());
    cluster.follow(0, 1);
    pool_cluster.holds(&[0, 2]).await;
}

#[tokio::test]
async fn empty_pool_rejects_readers_or_uses_master() {
    for empty in [EmptyPool::Reject, EmptyPool::Master] {
        let pool_cluster = PoolCluster::ready(empty, rules()).await;
        for node in [1, 2] {
            pool_cluster.cluster.nodes[node].behave(Behavior::CloseAtOnce);
            pool_cluster.cluster.nodes[node].cut();
        }
        pool_cluster.holds(&[]).await;
        let overrides =
            tokio::time::timeout(Duration::from_secs(10), pool_cluster.way.wait_usable())
                .await
                .expect("an answer at once");
        assert_eq!(
            overrides.as_ref().map(|it| it.addr()),
            (empty == EmptyPool::Master).then(|| pool_cluster.cluster.addr(0))
        );
        pool_cluster.cluster.nodes[1].behave(Behavior::Normal);
        pool_cluster.holds(&[1]).await;
        if let Some(overrides) = overrides {
            assert!(
                overrides.is_draining() && !overrides.fence().is_raised(),
                "it leaves the master at a boundary"
            );
        }
        assert_eq!(
            pool_cluster.way.usable_target().expect("a replica").addr(),
            pool_cluster.cluster.addr(1)
        );
    }
}

#[tokio::test]
async fn readers_wait_before_first_evaluation() {
    let cluster = FakeCluster::new(3, 3).await;
    cluster.sentinels.iter().for_each(|it| it.behave(Behavior::CloseAtOnce));
    let pool_cluster = PoolCluster::open(cluster, EmptyPool::Reject, rules(), SETTLE);
    let turned_away = tokio::time::timeout(ms(100), pool_cluster.way.wait_usable()).await;
    assert!(
        turned_away.is_err() && pool_cluster.members().is_none(),
        "nothing is known, so no reader is rejected"
    );
    pool_cluster.cluster.sentinels.iter().for_each(|it| it.behave(Behavior::Normal));
    pool_cluster.holds(&[1, 2]).await;
    assert!(
        pool_cluster
            .way
            .usable_target()
            .is_some_and(|target| target.addr() != pool_cluster.cluster.addr(0))
    );
}

#[tokio::test]
async fn reader_hint_probes_replicas_and_suspects_no_master() {
    // No node is probed by a timer.
    let pool_cluster = PoolCluster::ready(EmptyPool::Reject, event_only_rules()).await;
    pool_cluster.cluster.quiet().await;
    let master = pool_cluster.cluster.nodes[0].commands();
    pool_cluster.cluster.nodes[2].script().pong =
        b"-MASTERDOWN Link with MASTER is down\r\n".to_vec();
    pool_cluster.driver.handle.hint_from_reader();
    pool_cluster.holds(&[1]).await;
    assert_eq!(pool_cluster.cluster.nodes[0].commands(), master, "the master is not asked for it");
    assert_eq!(pool_cluster.driver.seen().state, "stable");
}

#[tokio::test]
async fn distinguishes_repointed_replica_from_client_kill() {
    // No node is probed by a timer.
    let pool_cluster = PoolCluster::ready(EmptyPool::Reject, event_only_rules()).await;
    pool_cluster.cluster.quiet().await;
    let target = pool_cluster.reader_on(2);
    let cause =
        |ended: Instant| target.replica_status().expect("a look").cause(target.since(), ended);
    let ended = Instant::now();
    assert_eq!(cause(ended), CloseCause::NotKnown);
    pool_cluster.driver.handle.hint_from_reader();
    until("it is known that it follows whom it followed", || cause(ended) == CloseCause::Other)
        .await;
    // Shortly after another hint: dropping it would leave this end without an explanation.
    pool_cluster.cluster.follow(2, 1);
    let ended = Instant::now();
    pool_cluster.driver.handle.hint_from_reader();
    until("it is known that it follows another node", || cause(ended) == CloseCause::Failover)
        .await;
    assert_eq!(pool_cluster.driver.seen().state, "stable");
}

#[tokio::test]
async fn holds_reader_requests_while_replicas_are_repointed() {
    let pool_cluster = PoolCluster::settled(EmptyPool::Reject, rules(), DEADLINE).await;
    let cluster = &pool_cluster.cluster;
    cluster.announce(0, "+slave-reconf-done", 2, 0);
    stays(ms(50), "no failover is in progress", || pool_cluster.way.usable_target().is_some())
        .await;
    cluster.announce(0, "+selected-slave", 1, 0);
    pool_cluster.holds(&[2]).await;
    cluster.promote(1);
    cluster.announce(0, "+promoted-slave", 1, 0);
    until("requests wait", || pool_cluster.way.usable_target().is_none()).await;
    // Its idle connections are closed at the same moment.
    cluster.follow(2, 1);
    cluster.nodes[2].cut();
    until("requests flow", || pool_cluster.way.usable_target().is_some()).await;
    (0..3).for_each(|sentinel| cluster.switch(sentinel, 0, 1, 2));
    pool_cluster.driver.wait_for_target(cluster.addr(1)).await;
    assert_eq!(pool_cluster.members().expect("members"), [cluster.addr(2)]);
}

/// A cluster whose sentinels clients can reach, its driver, and the pool of sentinels.
async fn with_sentinel_pool(behavior: Behavior) -> (FakeCluster, Driver, Arc<Pool>) {
    let cluster = FakeCluster::new(3, 1).await;
    cluster.sentinels.iter().for_each(|it| it.behave(behavior.clone()));
    let (mut watch, route) = cluster.watch();
    let (writer, pool) = PoolWriter::new(&route, EmptyPool::Reject);
    watch.sentinel_pool = Some(writer);
    let driver = Driver::one((watch, route));
    (cluster, driver, pool)
}

/// Clients wait before the first publication, and an empty one turns them away.
#[tokio::test]
async fn publishes_sentinels_before_master() {
    let (cluster, driver, pool) = with_sentinel_pool(Behavior::Normal).await;
    let first = async {
        loop {
            if let Some(members) = pool.members() {
                return members.len();
            }
            tokio::task::yield_now().await;
        }
    };
    let master = async {
        driver.wait_for_target(cluster.addr(0)).await;
        pool.members().map_or(0, |it| it.len())
    };
    let (first, with_master) = tokio::join!(first, master);
    assert!(first > 0, "the first publication has no sentinel");
    assert!(with_master > 0, "a successor would serve without a sentinel");
}

#[tokio::test]
async fn turns_clients_away_once_all_sentinels_failed() {
    let (cluster, _driver, pool) = with_sentinel_pool(Behavior::CloseAtOnce).await;
    let members = || pool.members().map(|it| it.len());
    until("an empty pool", || members() == Some(0)).await;
    cluster.sentinels[0].behave(Behavior::Normal);
    until("a sentinel", || members() == Some(1)).await;
}
