//! The reachable sentinels are a minority, or none is reachable, while a majority elsewhere
//! promotes another master.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use harness::{Cluster, Cut, Load, Node, Pointsman, alone, wait_until};

use super::{
    LONG_HOLD, Outcome, PATIENCE, PROXY, WRITERS, elapse, ips, is, listed, more_writes, promoted,
    wait_for_target, writing,
};
use crate::isolation::sets;
use crate::{builder, metric};

/// From the last view of a majority to the last acknowledged write, where a minority may not write.
const STOPPED_WITHIN: Duration = Duration::from_secs(6);

fn pointsman(cluster: &Cluster, policy: &str) -> Pointsman {
    builder(cluster)
        .service_line(LONG_HOLD)
        .service_line(&format!("minority = \"{policy}\""))
        .start()
}

/// The program, the master and one sentinel (the near one) are separated from all other members.
struct Split {
    pointsman: Pointsman,
    load: Load,
    to: SocketAddr,
    /// Writes executed by the old master when the gate was closed.
    held_at: u64,
    /// Between the program and the first sentinel on the other side.
    proxy_from_first: Option<Cut>,
    /// Between the program and all other members on the other side.
    proxy_from_rest: Option<Cut>,
    /// Between the near sentinel and the first one on the other side.
    near_from_first: Option<Cut>,
    /// Stays to the end, so that the old master is not demoted.
    _others: [Cut; 2],
    cluster: Cluster,
}

impl Split {
    /// Failed over on the other side, and held on this one.
    fn held() -> Self {
        let cluster = Cluster::builder().start_apart();
        let pointsman = pointsman(&cluster, "hold");
        let load = writing(&pointsman);
        let old = cluster.master();
        let [near, first, second] = cluster.sentinels() else { panic!("three sentinels") };
        let servers = cluster.nodes().iter().filter(|node| node.addr() != old.addr());
        let rest = ips(servers.chain([second]));
        let (near, old_ip, first) = (near.addr().ip(), old.addr().ip(), first.addr().ip());
        let proxy_from_first = Some(Cut::between(&[PROXY], &[first]));
        let proxy_from_rest = Some(Cut::between(&[PROXY], &rest));
        let near_from_first = Some(Cut::between(&[near], &[first]));
        let _others = [Cut::between(&[old_ip], &[first]), Cut::between(&[near, old_ip], &rest)];
        let to = promoted(&cluster, old);
        wait_until("traffic to be held", PATIENCE, || is(&pointsman, "gate_closed", 1.0));
        wait_until("the last writes to be answered", PATIENCE, || {
            load.since_last() > Duration::from_millis(300)
        });
        let held_at = sets(old);
        Self {
            pointsman,
            load,
            to,
            held_at,
            proxy_from_first,
            proxy_from_rest,
            near_from_first,
            _others,
            cluster,
        }
    }

    fn old(&self) -> &Node {
        &self.cluster.nodes()[0]
    }

    /// Checks for three seconds what the view of one sentinel causes; then a majority is reachable.
    /// No held request may have reached the old master.
    #[track_caller]
    fn ends_well(mut self) {
        let acknowledged = self.load.counts().acknowledged;
        elapse(Instant::now(), Duration::from_secs(3));
        assert_eq!(
            self.old().role().expect("ROLE"),
            "master",
            "this test needs an old master that takes writes"
        );
        let flushed = sets(self.old()) - self.held_at;
        let late = self.load.counts().acknowledged - acknowledged;
        drop((self.proxy_from_first.take(), self.proxy_from_rest.take()));
        wait_for_target(&self.pointsman, self.to, PATIENCE);
        more_writes(&self.load, 500);
        let last = sets(self.old()) - self.held_at;
        let outcome = Outcome::of(self.load, self.to);
        assert_eq!(
            (flushed, last),
            (0, 0),
            "{flushed} writes went to the old master on one sentinel's word, {late} of them acknowledged, {last} in all; {outcome}"
        );
    }
}

#[test]
fn holds_on_until_more_than_one_sentinel_is_back() {
    if !alone("two_faults::minority::holds_on_until_more_than_one_sentinel_is_back") {
        return;
    }
    let mut split = Split::held();
    let back = split.cluster.sentinels()[1].addr();
    split.proxy_from_first.take();
    wait_until("the first sentinel to be connected again", PATIENCE, || {
        metric(&split.pointsman, &format!("pointsman_sentinel_up{{sentinel=\"{back}\"}}"))
            == Some(1.0)
    });
    split.ends_well();
}

#[test]
fn holds_on_while_only_the_stale_sentinel_speaks() {
    if !alone("two_faults::minority::holds_on_while_only_the_stale_sentinel_speaks") {
        return;
    }
    let mut split = Split::held();
    // The near sentinel sees a peer again, so it is no minority by its own count. That peer cannot
    // connect back yet, so the near one still names the old master.
    let [near, first, _] = split.cluster.sentinels() else { panic!("three sentinels") };
    let one_way = Cut::of_dials(first.addr().ip(), near.addr().ip(), near.addr().port());
    split.near_from_first.take();
    wait_until("the near sentinel to see its peer", PATIENCE, || {
        let peers = listed(near)?;
        let up = peers
            .iter()
            .any(|(ip, flags)| *ip == first.addr().ip().to_string() && flags == "sentinel");
        if up { Ok(()) } else { Err(format!("{peers:?}")) }
    });
    let old = split.old().addr();
    assert_eq!(
        split.cluster.master_addr_of(near, "mymaster"),
        Ok(old),
        "this test needs a stale sentinel"
    );
    split.ends_well();
    drop(one_way);
}

/// Separates the program and the master from all other members for nine seconds, and measures when
/// the last write was acknowledged.
#[track_caller]
fn part_from_all_sentinels(policy: &str) {
    let cluster = Cluster::builder().start_apart();
    let pointsman = pointsman(&cluster, policy);
    let load = writing(&pointsman);
    let old = cluster.master();
    let servers = cluster.nodes().iter().filter(|node| node.addr() != old.addr());
    let others = ips(servers.chain(cluster.sentinels()));
    // Before the first cut, since nothing is replicated from then on.
    let before = load.counts().acknowledged;
    let _old_from_others = Cut::between(&[old.addr().ip()], &others);
    let proxy_from_others = Cut::between(&[PROXY], &others);
    let parted = Instant::now();
    let to = promoted(&cluster, old);
    let promotion = parted.elapsed();
    elapse(parted, Duration::from_secs(9));
    let last_write = parted.elapsed().saturating_sub(load.since_last());
    let (executed, to_old) = (sets(old), load.counts().acknowledged - before);
    drop(proxy_from_others);
    wait_for_target(&pointsman, to, PATIENCE);
    let after = sets(old) - executed;
    more_writes(&load, 500);
    let timed = "pointsman_failover_duration_seconds_count{service=\"mymaster\"}";
    // The first master counts, too.
    assert_eq!(metric(&pointsman, timed), Some(2.0), "also if it was committed while held");
    let outcome = Outcome::of(load, to);
    let figures = format!(
        "{outcome}; another master was named {promotion:.1?} after the parting, the last of {to_old} writes to the old one was \
         acknowledged {last_write:.1?} after it; the old one executed {after} more after healing"
    );
    if policy == "keep" {
        assert!(last_write >= Duration::from_secs(8), "{figures}");
    } else {
        assert!(last_write <= STOPPED_WITHIN, "{figures}");
        assert_eq!(after, 0, "{figures}");
    }
    // A writer's last request may have been acknowledged just before the count started.
    assert!(outcome.verdict.missing <= to_old + after + WRITERS as u64, "{figures}");
}

#[test]
fn stops_writes_when_no_sentinel_speaks_under_hold() {
    if alone("two_faults::minority::stops_writes_when_no_sentinel_speaks_under_hold") {
        part_from_all_sentinels("hold");
    }
}

#[test]
fn stops_writes_when_no_sentinel_speaks_under_cut() {
    if alone("two_faults::minority::stops_writes_when_no_sentinel_speaks_under_cut") {
        part_from_all_sentinels("cut");
    }
}

#[test]
fn keeps_writing_when_no_sentinel_speaks_by_default() {
    if alone("two_faults::minority::keeps_writing_when_no_sentinel_speaks_by_default") {
        part_from_all_sentinels("keep");
    }
}
