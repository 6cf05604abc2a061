//! One DNS name for all sentinels, and one sentinel that came back without its file, beside an
//! empty Redis.

use std::time::{Duration, Instant};

use harness::{Cluster, Cut, Load, Node, Pointsman, alone, wait_until};

use super::{
    LONG_HOLD, PATIENCE, PROXY, RATE, WRITERS, elapse, ips, is, more_writes, target, value,
    wait_for_target,
};
use crate::builder;
use crate::isolation::sets;

const NAME: &str = "sentinels.test";
/// From the connection to the last late sentinel to the right master: a poll, a verification, and a
/// busy machine.
const MOVED_WITHIN: Duration = Duration::from_secs(3);

/// The first master and its sentinel were lost together, and the remaining sentinels have failed
/// over. A pod in their place has a new address, an empty Redis, and a sentinel of epoch 0 that
/// names this Redis.
struct Site {
    empty: Node,
    stray: Node,
    // Its folder holds the files of both, and is removed with it.
    cluster: Cluster,
}

impl Site {
    fn new() -> Self {
        let cluster = Cluster::builder().start_apart();
        let old = cluster.master();
        old.kill();
        cluster.sentinels()[0].kill();
        let gone = old.addr();
        wait_until("the failover", PATIENCE, || {
            cluster.current_master_addr().is_ok_and(|it| it != gone)
        });
        let empty = cluster.spare_server(10);
        let stray = cluster.spare_sentinel(10, empty.addr());
        Self { empty, stray, cluster }
    }

    /// The sentinels that know the right master.
    fn majority(&self) -> &[Node] {
        &self.cluster.sentinels()[1..]
    }

    /// The program knows the sentinels by one name that resolves to all three.
    fn pointsman(&self, timers: &str) -> Pointsman {
        let all = self.majority().iter().chain([&self.stray]);
        let hosts: Vec<_> = all.map(|sentinel| (NAME, sentinel.addr().ip())).collect();
        let sentinels = [format!("{NAME}:{}", self.stray.addr().port())];
        let builder =
            builder(&self.cluster).sentinels(&sentinels).hosts(&hosts).service_line(LONG_HOLD);
        let pointsman = builder.service_line(timers).without_waiting().start();
        wait_until("the admin server to answer", PATIENCE, || pointsman.get("/metrics").is_ok());
        pointsman
    }
}

#[test]
fn waits_for_majority_of_addresses_of_one_name() {
    if !alone("two_faults::startup::waits_for_majority_of_addresses_of_one_name") {
        return;
    }
    let site = Site::new();
    let right = site.cluster.master().addr();
    let late = Cut::between(&[PROXY], &ips(site.majority()));
    let pointsman = site.pointsman("[service.timers]\nbootstrap_grace = \"10s\"");
    let load = Load::to(pointsman.addr()).writers(WRITERS).rate(RATE).timeout(PATIENCE).start();
    wait_until("the stray sentinel to be connected", PATIENCE, || {
        value(&pointsman, "sentinels_up") >= Some(1.0)
    });
    elapse(Instant::now(), Duration::from_millis(700));
    drop(late);
    // Long enough to show where clients end up.
    more_writes(&load, 2000);
    let (counts, wrong) = (load.counts(), sets(&site.empty));
    assert_eq!(
        wrong,
        0,
        "{wrong} of {} writes went to the empty redis; the target is {:?} and should be {right}; disagreement: {:?}",
        counts.acknowledged,
        target(&pointsman),
        value(&pointsman, "sentinel_disagreement")
    );
    wait_for_target(&pointsman, right, PATIENCE);
    wait_until("the stray sentinel to raise an alarm", PATIENCE, || {
        is(&pointsman, "sentinel_disagreement", 1.0)
    });
}

#[test]
fn leaves_empty_master_when_majority_comes_late() {
    if !alone("two_faults::startup::leaves_empty_master_when_majority_comes_late") {
        return;
    }
    let site = Site::new();
    let right = site.cluster.master().addr();
    let late = Cut::between(&[PROXY], &ips(site.majority()));
    let pointsman = site.pointsman("");
    let load = Load::to(pointsman.addr()).writers(WRITERS).rate(RATE).timeout(PATIENCE).start();
    wait_until("the stray sentinel to be connected", PATIENCE, || {
        value(&pointsman, "sentinels_up") >= Some(1.0)
    });
    // Longer than a start waits for a majority.
    elapse(Instant::now(), Duration::from_secs(4));
    drop(late);
    wait_until("all sentinels to be connected", PATIENCE, || is(&pointsman, "sentinels_up", 3.0));
    let connected = Instant::now();
    let moved =
        wait_until("clients to be led to the right master, or far too much time", PATIENCE, || {
            let there = target(&pointsman) == Some(right);
            if there || connected.elapsed() > Duration::from_secs(10) {
                Ok(there.then(|| connected.elapsed()))
            } else {
                Err("neither")
            }
        });
    let figures = format!(
        "{} of {} writes went to the empty redis; disagreement: {:?}",
        sets(&site.empty),
        load.counts().acknowledged,
        value(&pointsman, "sentinel_disagreement")
    );
    let moved = moved.unwrap_or_else(|| {
        panic!("still at the empty redis 10 s after the majority came: {figures}")
    });
    assert!(moved <= MOVED_WITHIN, "moved {moved:?} after the majority came: {figures}");
    let wrong = sets(&site.empty);
    more_writes(&load, 1000);
    assert_eq!(sets(&site.empty), wrong, "a client was led back to the empty redis");
    assert_eq!(target(&pointsman), Some(right));
    wait_until("the stray sentinel to raise an alarm", PATIENCE, || {
        is(&pointsman, "sentinel_disagreement", 1.0)
    });
}
