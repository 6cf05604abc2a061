//! The replicas for readers, driven from the sockets to the pool: who is in it, why somebody is
//! not, and what becomes of a reader that is there already. What is decided is tested with the
//! roster; here it has to arrive.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sentinel::{ReplicaRules, ReplicaState, Replicas, Rules};
use target::{CloseCause, EmptyPool, Pool, PoolWriter, TargetRef, TargetSource};

use crate::fake::Manner;
use crate::stage::{Driver, PATIENCE, Stage, ms, patient_rules, rules, stays, until};

const SETTLE: Duration = Duration::from_millis(200);

/// Three sentinels, a master and two replicas, with readers.
struct Yard {
    stage: Stage,
    driver: Driver,
    pool: Arc<Pool>,
    way: TargetSource,
}

impl Yard {
    /// Driven, but nothing is waited for. `settle`: as in [`ReplicaRules`].
    fn open(stage: Stage, empty: EmptyPool, rules: Rules, settle: Duration) -> Self {
        let (mut watch, route) = stage.watch();
        let (writer, pool) = PoolWriter::new(&route, empty);
        // Who is asked seldom has not answered for a while, and is not silent for it.
        let (readmit, unanswered) = (ms(50), ms(1500).max(rules.probe_replica * 2));
        let readers = ReplicaRules {
            max_lag_bytes: 100,
            unanswered,
            readmit,
            settle,
            ..ReplicaRules::default()
        };
        (watch.replicas, watch.rules) = (Some(Replicas { rules: readers, writer }), rules);
        let driver = Driver::one((watch, route));
        Self { stage, driver, way: TargetSource::from(Arc::clone(&pool)), pool }
    }

    /// Both replicas are in, and all is calm.
    async fn ready(empty: EmptyPool, rules: Rules) -> Self {
        Self::settled(empty, rules, SETTLE).await
    }

    async fn settled(empty: EmptyPool, rules: Rules, settle: Duration) -> Self {
        let yard = Self::open(Stage::new(3, 3).await, empty, rules, settle);
        yard.driver.leads_to(yard.stage.addr(0)).await;
        yard.holds(&[1, 2]).await;
        yard.driver.sees("calm", |seen| seen.state == "stable" && seen.quorum == (3, 2)).await;
        yard
    }

    fn members(&self) -> Option<Vec<SocketAddr>> {
        self.pool.members().map(|members| members.iter().map(|target| target.addr()).collect())
    }

    /// Waits until exactly these nodes serve readers.
    async fn holds(&self, nodes: &[usize]) {
        let mut wanted: Vec<SocketAddr> = nodes.iter().map(|node| self.stage.addr(*node)).collect();
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

    /// Waits until this node stands so.
    async fn stands(&self, node: usize, wanted: ReplicaState) {
        let addr = self.stage.addr(node).into();
        let what = format!("node {node} is {}", wanted.label());
        self.driver
            .sees(&what, |seen| {
                let replicas = seen.replicas.iter().flat_map(|it| &it.replicas);
                replicas.filter(|it| it.addr == addr).any(|it| it.standing == wanted)
            })
            .await;
    }

    /// A reader on this node: others come and go until one is.
    fn reader_on(&self, node: usize) -> TargetRef {
        let mut others = Vec::new();
        for _ in 0..8 {
            let ride = self.way.usable_target().expect("a replica");
            if ride.addr() == self.stage.addr(node) {
                return ride;
            }
            others.push(ride);
        }
        panic!("eight readers, and none on node {node}");
    }
}

/// What happens to node 2, what it is called, and whether readers that are there are cut off for
/// it.
struct Misfortune {
    standing: ReplicaState,
    wrong: bool,
    strike: fn(&Stage),
    mend: fn(&Stage),
}

fn all_say(stage: &Stage, change: fn(&mut crate::players::Word, u16)) {
    let port = stage.addr(2).port();
    stage.sentinels.iter().for_each(|sentinel| change(sentinel.mind().word(), port));
}

fn misfortunes() -> [Misfortune; 9] {
    let alas = |standing, wrong, strike, mend| Misfortune { standing, wrong, strike, mend };
    [
        alas(
            ReplicaState::Unready,
            false,
            |it| {
                it.nodes[2].mind().pong =
                    b"-LOADING Redis is loading the dataset in memory\r\n".to_vec()
            },
            |it| it.nodes[2].mind().pong = b"+PONG\r\n".to_vec(),
        ),
        alas(
            ReplicaState::Behind,
            false,
            |it| it.nodes[2].mind().offset = 800,
            |it| it.nodes[2].mind().offset = 1000,
        ),
        alas(
            ReplicaState::LinkDown,
            false,
            |it| it.nodes[2].mind().link = "connect",
            |it| it.nodes[2].mind().link = "connected",
        ),
        alas(
            ReplicaState::Unreachable,
            false,
            |it| {
                it.nodes[2].behave(Manner::Hangup);
                it.nodes[2].cut();
            },
            |it| it.nodes[2].behave(Manner::Proper),
        ),
        alas(
            ReplicaState::Silent,
            false,
            |it| it.nodes[2].behave(Manner::Mute),
            |it| {
                it.nodes[2].behave(Manner::Proper);
                it.nodes[2].cut();
            },
        ),
        alas(
            ReplicaState::Flagged,
            false,
            |it| all_say(it, |word, port| word.down.push(port)),
            |it| all_say(it, |word, _| word.down.clear()),
        ),
        alas(
            ReplicaState::Unlisted,
            false,
            |it| all_say(it, |word, port| word.replicas.retain(|(_, it)| *it != port)),
            |it| all_say(it, |word, port| word.replicas.push(("127.0.0.1".to_owned(), port))),
        ),
        alas(
            ReplicaState::Master,
            true,
            |it| {
                let mut mind = it.nodes[2].mind();
                (mind.follows, mind.replid) = (None, "9".repeat(40));
            },
            |it| it.follow(2, 0),
        ),
        alas(
            ReplicaState::Stranger,
            true,
            |it| {
                let mut mind = it.nodes[2].mind();
                (mind.follows, mind.replid) =
                    (Some(("203.0.113.7".to_owned(), 6379)), "9".repeat(40));
            },
            |it| it.follow(2, 0),
        ),
    ]
}

#[tokio::test]
async fn whoever_is_unfit_is_put_out_for_the_right_reason_and_let_in_again() {
    let yard = Yard::ready(EmptyPool::Reject, rules()).await;
    for Misfortune { standing, wrong, strike, mend } in misfortunes() {
        let name = standing.label();
        let there = yard.reader_on(2);
        strike(&yard.stage);
        yard.stands(2, standing).await;
        yard.holds(&[1]).await;
        // Worse than the others: its readers are asked to leave. Wrong: not a byte more goes there.
        assert!(wrong || there.is_draining(), "{name}");
        assert_eq!(there.fence().is_raised(), wrong, "{name}");
        for _ in 0..4 {
            assert_eq!(
                yard.way.usable_target().expect("a replica").addr(),
                yard.stage.addr(1),
                "{name}"
            );
        }
        mend(&yard.stage);
        yard.holds(&[1, 2]).await;
        yard.stands(2, ReplicaState::Eligible).await;
        assert_eq!(there.fence().is_raised(), wrong, "{name}: what has fallen stays so");
        assert!(wrong || !there.is_draining(), "{name}: who has not left yet may stay");
    }
    let seen = yard.driver.seen().replicas.clone().expect("readers");
    assert!(seen.ejections >= 9 && seen.readmissions >= 8, "{seen:#?}");
    assert_eq!(yard.driver.generation(), 1, "the points never moved");
}

#[tokio::test]
async fn readers_leave_the_next_master_before_the_points_lead_there_and_the_rest_stay() {
    // The other replica's link is of the past for a while; on a busy machine for a long one.
    let yard = Yard::settled(EmptyPool::Reject, rules(), PATIENCE).await;
    let (on_the_next, on_the_other) = (yard.reader_on(1), yard.reader_on(2));
    let stage = &yard.stage;
    stage.announce(0, "+selected-slave", 1, 0);
    yard.holds(&[2]).await;
    assert!(on_the_next.is_draining(), "about to be promoted: its readers leave at a boundary");
    stage.promote(1);
    // As a worker's thread would see it, at any moment: where the points lead is looked at first.
    let (route, next) = (Arc::clone(&yard.driver.route), stage.addr(1));
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
    (0..3).for_each(|sentinel| stage.switch(sentinel, 0, 1, 2));
    stage.follow(2, 1);
    yard.driver.leads_to(stage.addr(1)).await;
    assert!(worker.join().expect("a worker"), "a reader was on a master");
    // The old master says that it is one, for ten seconds in reality, and is listed as a replica
    // all that time.
    let calm = || yard.members().is_some_and(|members| members == [stage.addr(2)]);
    stays(ms(400), "the other replica alone serves readers", calm).await;
    assert!(!on_the_other.fence().is_raised() && !on_the_other.is_draining());
    stage.follow(0, 1);
    yard.holds(&[0, 2]).await;
}

#[tokio::test]
async fn without_a_replica_readers_are_turned_away_or_get_the_master_until_there_is_one() {
    for empty in [EmptyPool::Reject, EmptyPool::Master] {
        let yard = Yard::ready(empty, rules()).await;
        for node in [1, 2] {
            yard.stage.nodes[node].behave(Manner::Hangup);
            yard.stage.nodes[node].cut();
        }
        yard.holds(&[]).await;
        let instead = tokio::time::timeout(Duration::from_secs(10), yard.way.wait_usable())
            .await
            .expect("an answer at once");
        assert_eq!(
            instead.as_ref().map(|it| it.addr()),
            (empty == EmptyPool::Master).then(|| yard.stage.addr(0))
        );
        yard.stage.nodes[1].behave(Manner::Proper);
        yard.holds(&[1]).await;
        if let Some(instead) = instead {
            assert!(
                instead.is_draining() && !instead.fence().is_raised(),
                "it leaves the master at a boundary"
            );
        }
        assert_eq!(yard.way.usable_target().expect("a replica").addr(), yard.stage.addr(1));
    }
}

#[tokio::test]
async fn before_the_first_look_readers_wait() {
    let stage = Stage::new(3, 3).await;
    stage.sentinels.iter().for_each(|it| it.behave(Manner::Hangup));
    let yard = Yard::open(stage, EmptyPool::Reject, rules(), SETTLE);
    let turned_away = tokio::time::timeout(ms(100), yard.way.wait_usable()).await;
    assert!(
        turned_away.is_err() && yard.members().is_none(),
        "nothing is known, so nobody is turned away"
    );
    yard.stage.sentinels.iter().for_each(|it| it.behave(Manner::Proper));
    yard.holds(&[1, 2]).await;
    assert!(yard.way.usable_target().is_some_and(|ride| ride.addr() != yard.stage.addr(0)));
}

#[tokio::test]
async fn a_readers_hint_has_the_replicas_asked_again_and_nobody_else_suspected() {
    // Nobody is asked by the clock.
    let yard = Yard::ready(EmptyPool::Reject, patient_rules()).await;
    yard.stage.quiet().await;
    let master = yard.stage.nodes[0].commands();
    yard.stage.nodes[2].mind().pong = b"-MASTERDOWN Link with MASTER is down\r\n".to_vec();
    yard.driver.handle.hint_by_a_reader();
    yard.holds(&[1]).await;
    assert_eq!(yard.stage.nodes[0].commands(), master, "the master is not asked for it");
    assert_eq!(yard.driver.seen().state, "stable");
}

#[tokio::test]
async fn tells_a_repointed_replica_from_one_that_kicked() {
    // Nobody is asked by the clock.
    let yard = Yard::ready(EmptyPool::Reject, patient_rules()).await;
    yard.stage.quiet().await;
    let ride = yard.reader_on(2);
    let cause = |ended: Instant| ride.replica_status().expect("a look").cause(ride.since(), ended);
    let ended = Instant::now();
    assert_eq!(cause(ended), CloseCause::NotKnown);
    yard.driver.handle.hint_by_a_reader();
    until("it is known that it follows whom it followed", || cause(ended) == CloseCause::Other)
        .await;
    // Right after another one: a hint that was left out would leave this end without an
    // explanation.
    yard.stage.follow(2, 1);
    let ended = Instant::now();
    yard.driver.handle.hint_by_a_reader();
    until("it is known that it follows another node", || cause(ended) == CloseCause::Failover)
        .await;
    assert_eq!(yard.driver.seen().state, "stable");
}

#[tokio::test]
async fn holds_requests_of_readers_while_replicas_are_repointed() {
    let yard = Yard::settled(EmptyPool::Reject, rules(), PATIENCE).await;
    let stage = &yard.stage;
    stage.announce(0, "+slave-reconf-done", 2, 0);
    stays(ms(50), "no failover is under way", || yard.way.usable_target().is_some()).await;
    stage.announce(0, "+selected-slave", 1, 0);
    yard.holds(&[2]).await;
    stage.promote(1);
    stage.announce(0, "+promoted-slave", 1, 0);
    until("requests wait", || yard.way.usable_target().is_none()).await;
    // Its idle connections are ended in the same moment.
    stage.follow(2, 1);
    stage.nodes[2].cut();
    until("requests flow", || yard.way.usable_target().is_some()).await;
    (0..3).for_each(|sentinel| stage.switch(sentinel, 0, 1, 2));
    yard.driver.leads_to(stage.addr(1)).await;
    assert_eq!(yard.members().expect("members"), [stage.addr(2)]);
}
