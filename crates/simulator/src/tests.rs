//! The model compared with measurements of real servers (Redis and Sentinel 7.0.15, three
//! sentinels, `down-after-milliseconds 2000`).
//!
//! A range is wider than one measurement: Sentinel's own timer, its `PING` each second and its
//! `INFO` each ten seconds are not in step with the cause. Each test runs several seeds.
#![allow(clippy::expect_used, reason = "tests report by a clear panic")]

use sentinel::Minority;
use sentinel::simulation::{PollOutcome, Reply, read_poll};

use crate::plan::{ClusterConfig, FaultPlan, HostileConfig};
use crate::rng::Rng;
use crate::wire::{Addr, MS, Message, Micros, SECOND};
use crate::world::Simulation;

const CAUSE: Micros = 15 * SECOND;

fn quiet(seed: u64) -> Simulation {
    let cluster = ClusterConfig {
        sentinels: 3,
        redis: 3,
        proxies: 1,
        clients: 4,
        think: 10 * MS,
        quorum: 2,
        down_after: 2000,
        failover_timeout: 10_000,
        minority: Minority::Keep,
        one_name: false,
        colocated: false,
        epoch: 0,
        latency: (50, 300),
        knows_peers: true,
        connections: 0,
        coordinates: false,
    };
    let mut simulation = Simulation::with_plan(
        FaultPlan { cluster, faults: Vec::new(), hostile: None },
        Rng::new(seed),
        true,
    );
    simulation.run_until(CAUSE);
    simulation
}

/// Milliseconds from the cause to the first line that matches.
fn first(simulation: &Simulation, who: &str, text: &str) -> u64 {
    let times = simulation.cluster.net.trace.times(who, text);
    let time = times.into_iter().find(|at| *at >= CAUSE).unwrap_or_else(|| panic!("no {text}"));
    (time - CAUSE) / MS
}

/// From the cause: `+sdown`, `+odown`, election, selection, promotion, `+promoted-slave`, the first
/// switch and the leader's own.
fn check(simulation: &Simulation, limits: &[(&str, std::ops::Range<u64>)]) {
    for (text, range) in limits {
        let at = first(simulation, "", text);
        assert!(
            range.contains(&at),
            "{text} after {at} ms, not in {range:?}\n{}",
            simulation.cluster.net.trace.text()
        );
    }
    let switches = simulation.cluster.net.trace.times("sentinel", "+switch-master");
    let leaders = first(simulation, "", "+failover-end master");
    let observers: Vec<u64> =
        switches.iter().filter(|at| **at >= CAUSE).map(|at| (at - CAUSE) / MS).collect();
    let last = *observers.last().expect("a switch");
    assert!(last >= leaders, "the leader switches when its failover ends");
    let gap = last - observers.first().expect("a switch");
    assert!((900..3200).contains(&gap), "the leader switches {gap} ms after the first observer");
}

#[test]
fn planned_failover_takes_as_long_as_measured() {
    for seed in 1..8 {
        let mut simulation = quiet(seed);
        assert!(simulation.cluster.sentinels[0].order_failover(false, &mut simulation.cluster.net));
        simulation.run_until(CAUSE + 30 * SECOND);
        // Measured: 8, 84, 175, 1061, 1146, 11198.
        check(
            &simulation,
            &[
                ("+elected-leader", 0..101),
                ("+selected-slave", 50..210),
                ("PROMOTED", 100..320),
                ("+promoted-slave", 300..1500),
                ("+switch-master", 350..1650),
                ("+convert-to-slave", 8000..22_000),
            ],
        );
        let selected = first(&simulation, "", "+selected-slave");
        let promoted = first(&simulation, "", "PROMOTED");
        assert!(
            (50..115).contains(&(promoted - selected)),
            "the candidate is announced one tick ahead"
        );
    }
}

#[test]
fn failover_after_a_kill_takes_as_long_as_measured() {
    for seed in 1..8 {
        let mut simulation = quiet(seed);
        let master = simulation.cluster.redis[0].pid;
        simulation.cluster.net.crash(master, false);
        simulation.run_until(CAUSE + 20 * SECOND);
        // Measured: 2051, 2112, 2203, 2279, 2351, 3124, 3191.
        check(
            &simulation,
            &[
                ("+sdown master", 1900..2300),
                ("+odown", 1950..3600),
                ("+elected-leader", 2000..4700),
                ("PROMOTED", 2150..5000),
                ("+promoted-slave", 2400..6000),
                ("+switch-master", 2450..6100),
            ],
        );
    }
}

#[test]
fn failover_of_a_stopped_master_takes_as_long_as_measured() {
    for seed in 1..8 {
        let mut simulation = quiet(seed);
        let master = simulation.cluster.redis[0].pid;
        simulation.cluster.net.stop(master);
        simulation.run_until(CAUSE + 20 * SECOND);
        // Measured: 2024, 2429, 2485, 2585, 2638, 3472, 3536.
        check(
            &simulation,
            &[
                ("+sdown master", 1400..3200),
                ("+odown", 1500..4500),
                ("PROMOTED", 1700..6000),
                ("+switch-master", 2000..7000),
            ],
        );
    }
}

#[test]
fn failover_of_a_cut_master_takes_as_long_as_measured() {
    for seed in 1..8 {
        let mut simulation = quiet(seed);
        let host = simulation.cluster.net.process(simulation.cluster.redis[0].pid).host;
        for other in 0..7 {
            simulation.cluster.net.cut(host, other);
            simulation.cluster.net.cut(other, host);
        }
        simulation.run_until(CAUSE + 20 * SECOND);
        // Measured: 2233, 2801, 2891, 2993, 3056, 3850, 3935.
        check(
            &simulation,
            &[
                ("+sdown master", 1400..3300),
                ("+odown", 1500..4500),
                ("PROMOTED", 1700..6000),
                ("+switch-master", 2000..7000),
            ],
        );
    }
}

/// Between `+promoted-slave` and its own switch the leader reports the new address, and `MASTER`
/// the old one with the new epoch.
#[test]
fn leader_reports_old_address_with_new_epoch() {
    let mut simulation = quiet(3);
    simulation.cluster.sentinels[0].order_failover(false, &mut simulation.cluster.net);
    while simulation.cluster.net.trace.times("sentinel0", "+promoted-slave").is_empty() {
        let soon = simulation.cluster.net.now + MS;
        simulation.run_until(soon);
    }
    let replies = simulation.cluster.sentinels[0].answers().into_iter();
    let replies: Vec<Reply> = replies.map(Reply::from).collect();
    let (old, new) = (
        simulation.cluster.net.addr(simulation.cluster.redis[0].pid),
        simulation.cluster.sentinels[0].current_master(),
    );
    assert_ne!(old, new);
    assert_eq!(replies[1].field("ip"), Some(old.host().as_str()));
    let PollOutcome::View { view, .. } = read_poll(&replies, false) else { panic!("a view") };
    assert_eq!((view.addr, view.epoch, view.failing_over), (new.node(), 1, true));
    assert!(
        view.replicas.iter().any(|it| it.addr == old.node()),
        "the old master is listed as a replica"
    );
}

/// A request in the socket of a stopped server runs when it continues, although the sender has
/// closed the connection.
#[test]
fn stopped_server_runs_what_was_queued() {
    let mut simulation = quiet(1);
    let (proxy, master) = (0, simulation.cluster.redis[0].pid);
    let addr = simulation.cluster.net.addr(master);
    simulation.cluster.net.stop(master);
    simulation.cluster.net.dial(proxy, addr, SECOND, 77);
    let connection = simulation.cluster.net.last_conn();
    simulation.cluster.net.send(connection, proxy, Message::Write { id: u32::MAX });
    simulation.run_until(CAUSE + 10 * MS);
    simulation.cluster.net.close(connection, proxy);
    assert!(!simulation.cluster.redis[0].writes.contains(&u32::MAX));
    simulation.cluster.net.resume(master, false);
    simulation.run_until(CAUSE + 20 * MS);
    assert!(simulation.cluster.redis[0].writes.contains(&u32::MAX));
}

#[test]
fn sentinel_stopped_for_seconds_enters_tilt() {
    let mut simulation = quiet(1);
    let pid = simulation.cluster.sentinels[1].pid;
    simulation.cluster.net.stop(pid);
    simulation.run_until(CAUSE + 8 * SECOND);
    simulation.cluster.net.resume(pid, false);
    simulation.run_until(CAUSE + 45 * SECOND);
    let entered = first(&simulation, "sentinel1", "+tilt");
    assert!((8000..8200).contains(&entered), "{entered}");
    let left = first(&simulation, "sentinel1", "-tilt");
    assert!((30_000..30_200).contains(&(left - entered)), "{left}");
}

#[test]
fn planned_failover_loses_nothing_and_kill_little() {
    for seed in 1..6 {
        let mut simulation = quiet(seed);
        simulation.cluster.sentinels[0].order_failover(false, &mut simulation.cluster.net);
        let (run, text) = simulation.run();
        assert!(
            run.acknowledged > 1000 && run.lost == 0 && run.violation.is_none(),
            "{run:?}\n{text}"
        );
    }
}

/// `SENTINEL FAILOVER … COORDINATED` of Valkey 9.1: the master becomes a replica first, and no
/// write is lost, neither through the proxy nor past it.
#[test]
fn coordinated_failover_demotes_the_master_first() {
    for seed in 1..6 {
        let mut simulation = quiet(seed);
        assert!(simulation.cluster.sentinels[0].order_failover(true, &mut simulation.cluster.net));
        simulation.run_until(CAUSE + 20 * SECOND);
        // Measured: 79, 142, 226, 1132, 1228.
        check(
            &simulation,
            &[
                ("+elected-leader", 0..210),
                ("+selected-slave", 50..320),
                ("+failover-state-wait-promotion", 100..430),
                ("+promoted-slave", 300..1650),
                ("+switch-master", 350..1800),
            ],
        );
        let times = |who: &str, what: &str| simulation.cluster.net.trace.times(who, what);
        let (demoted, promoted) = (times("redis0", "is now a replica"), times("", "PROMOTED"));
        assert!(demoted.len() == 1 && demoted < promoted, "{demoted:?} {promoted:?}");
        let (run, text) = simulation.run();
        assert!(
            run.acknowledged > 1000 && run.lost == 0 && run.violation.is_none(),
            "{run:?}\n{text}"
        );
    }
}

/// The proxy stays with its master when the sentinels name it in another way, and follows the next
/// one by its name.
#[test]
fn follows_names_announced_at_run_time() {
    let mut simulation = quiet(2);
    simulation.cluster.sentinels.iter_mut().for_each(|it| it.announces_names = true);
    simulation.run_until(CAUSE + 10 * SECOND);
    let opened = || simulation.cluster.net.trace.times("proxy0", "GATE OPEN").len();
    assert_eq!(opened(), 1, "{}", simulation.cluster.net.trace.text());
    simulation.cluster.sentinels[0].order_failover(false, &mut simulation.cluster.net);
    simulation.run_until(CAUSE + 20 * SECOND);
    let (run, text) = simulation.run();
    assert!(run.lost == 0 && run.violation.is_none(), "{run:?}\n{text}");
    assert!(text.contains("+switch-master mymaster host-50 6379 host-"), "{text}");
}

/// The proxy knows the master by its address, and cannot tell where the announced names lead.
#[test]
fn loses_nothing_while_names_do_not_resolve() {
    let mut simulation = quiet(2);
    simulation.cluster.net.dns.missing = true;
    simulation.cluster.sentinels.iter_mut().for_each(|it| it.announces_names = true);
    simulation.run_until(CAUSE + 10 * SECOND);
    simulation.cluster.sentinels[0].order_failover(false, &mut simulation.cluster.net);
    simulation.run_until(CAUSE + 13 * SECOND);
    simulation.cluster.net.dns.missing = false;
    simulation.run_until(CAUSE + 30 * SECOND);
    let (run, text) = simulation.run();
    assert!(run.acknowledged > 1000 && run.lost == 0 && run.violation.is_none(), "{run:?}\n{text}");
}

/// Seed 2695: after a partition the sentinels regain their peers seconds later than the proxy
/// regains the sentinels. With `cut` it has no master until then, rightly.
#[test]
fn reports_minority_until_sentinels_regain_peers() {
    let mut cluster = quiet(1).cluster;
    assert!(!cluster.reports_minority(0));
    for sentinel in &mut cluster.sentinels {
        sentinel.peers.iter_mut().for_each(|peer| peer.s_down = true);
    }
    assert!(cluster.reports_minority(0));
    cluster.sentinels[1].peers[0].s_down = false;
    assert!(!cluster.reports_minority(0), "two of three");
}

/// Seed 340: a sentinel that heard of the promotion late made the new master a replica of the old
/// one. All name it nevertheless, so the old one must not be used.
#[test]
fn supersedes_master_that_a_majority_left() {
    let mut simulation = quiet(1);
    let (addr, epoch) = (simulation.cluster.right_master().expect("a master"), 0);
    assert!(!simulation.cluster.is_superseded(addr, epoch));
    assert!(simulation.cluster.sentinels[0].order_failover(false, &mut simulation.cluster.net));
    simulation.run_until(CAUSE + 5 * SECOND);
    assert!(simulation.cluster.is_superseded(addr, epoch));
    assert!(!simulation.cluster.is_superseded(addr, epoch + 1), "at no newer epoch");
}

#[test]
fn same_seed_gives_the_same_run() {
    for seed in [3, 14, 19] {
        let (one, text) = crate::timeline(seed);
        let (two, again) = crate::timeline(seed);
        assert_eq!(text, again);
        assert_eq!(
            (one.events, one.acknowledged, one.lost),
            (two.events, two.acknowledged, two.lost)
        );
        assert_eq!(crate::run(seed).events, one.events, "tracing does not change the run");
    }
}

/// A node that follows a promoted one continues from its offset; one that accepted writes alone
/// needs a full copy.
#[test]
fn replicas_continue_and_lone_masters_start_over() {
    let mut simulation = quiet(5);
    simulation.cluster.sentinels[0].order_failover(false, &mut simulation.cluster.net);
    simulation.run_until(CAUSE + 40 * SECOND);
    let master = simulation.cluster.redis.iter().find(|it| it.is_master()).expect("a master");
    assert!(simulation.cluster.redis.iter().filter(|it| it.is_master()).count() == 1);
    for node in &simulation.cluster.redis {
        assert_eq!(node.replid, master.replid);
        let behind = master.writes.len() - node.writes.len();
        assert!(master.writes.starts_with(&node.writes) && behind < 10, "{behind}");
    }
}

/// Stops all sentinels, and lets the master admit no new client.
fn full_master_without_sentinels(seed: u64) -> Simulation {
    let mut simulation = quiet(seed);
    for at in 0..3 {
        let sentinel = simulation.cluster.sentinels[at].pid;
        simulation.cluster.net.crash(sentinel, false);
    }
    simulation.cluster.redis[0].full = true;
    simulation
}

/// Whether the last probe of the first node was answered.
fn answers_probes(simulation: &Simulation) -> bool {
    let master = simulation.cluster.net.addr(simulation.cluster.redis[0].pid);
    simulation.cluster.proxies[0].observed.answers_probes(&master.node())
}

/// Seed 2162: an overdue probe is repeated on a new connection, which a full master rejects. The
/// one that it has admitted is kept.
#[test]
fn keeps_probe_connection_to_full_master() {
    for seed in 1..6 {
        let mut simulation = full_master_without_sentinels(seed);
        let master = simulation.cluster.redis[0].pid;
        simulation.cluster.net.stop(master);
        simulation.run_until(CAUSE + 8 * SECOND);
        assert!(!answers_probes(&simulation));
        simulation.cluster.net.resume(master, false);
        simulation.run_until(CAUSE + 9 * SECOND);
        assert!(answers_probes(&simulation), "{}", simulation.cluster.net.trace.text());
    }
}

/// The kernel ends a connection over a path that is cut, in whichever direction.
#[test]
fn loses_probe_connection_over_a_cut_path() {
    for lasts in [2 * SECOND, 4500 * MS] {
        for is_to_master in [false, true] {
            let mut simulation = full_master_without_sentinels(1);
            let master = simulation.cluster.net.process(simulation.cluster.redis[0].pid).host;
            let (from, to) = if is_to_master { (0, master) } else { (master, 0) };
            simulation.cluster.net.cut(from, to);
            simulation.run_until(CAUSE + lasts);
            simulation.cluster.net.mend(from, to);
            simulation.run_until(CAUSE + lasts + 4 * SECOND);
            assert_eq!(answers_probes(&simulation), lasts < 3 * SECOND, "{is_to_master} {lasts}");
        }
    }
}

/// Requests a switchover, and returns when it begins to hold traffic.
fn switch_over(simulation: &mut Simulation) -> Option<Micros> {
    simulation.cluster.proxies[0].is_switchover_wanted = true;
    let until = simulation.cluster.net.now + SECOND;
    while simulation.cluster.net.now < until {
        if simulation.cluster.proxies[0].observed.is_paused() {
            return Some(simulation.cluster.net.now);
        }
        let soon = simulation.cluster.net.now + MS;
        simulation.run_until(soon);
    }
    None
}

/// Seed 817: no sentinel that has a vote answers, so a switchover is refused, and no traffic is
/// held.
#[test]
fn refuses_switchover_without_majority() {
    let mut simulation = quiet(1);
    for at in 0..2 {
        let sentinel = simulation.cluster.sentinels[at].pid;
        simulation.cluster.net.crash(sentinel, false);
    }
    simulation.run_until(CAUSE + 6 * SECOND);
    assert_eq!(switch_over(&mut simulation), None);
    first(&simulation, "proxy0", "switchover: abort");
}

/// Traffic is held after every node has answered once, and no longer if one stops answering.
#[test]
fn revokes_switchover_when_a_node_falls_silent() {
    let mut simulation = quiet(1);
    let (master, replica) = (simulation.cluster.redis[0].pid, simulation.cluster.redis[2].pid);
    simulation.cluster.net.stop(replica);
    assert_eq!(switch_over(&mut simulation), None);
    simulation.cluster.net.resume(replica, false);
    simulation.run_until(CAUSE + 5 * SECOND);
    let held = switch_over(&mut simulation).expect("all nodes answer");
    simulation.cluster.net.stop(master);
    simulation.run_until(held + 600 * MS);
    assert!(!simulation.cluster.proxies[0].observed.is_paused());
}

#[test]
fn switchover_loses_nothing() {
    for seed in 1..6 {
        let mut simulation = quiet(seed);
        assert!(switch_over(&mut simulation).is_some());
        simulation.run_until(CAUSE + 20 * SECOND);
        let (run, text) = simulation.run();
        assert!(run.failovers == 1 && run.lost == 0 && run.violation.is_none(), "{run:?}\n{text}");
    }
}

/// Three outsiders publish hellos at an epoch that nobody follows, and one configured sentinel
/// lies: all list the outsiders, and none names their server.
#[test]
fn hostile_sentinels_join_without_being_followed() {
    let mut plan = quiet(1).cluster.plan;
    plan.hostile = Some(HostileConfig { seed: 1, sentinels: 3, servers: 1, insiders: 1 });
    let mut simulation = Simulation::with_plan(plan, Rng::new(1), true);
    simulation.run_until(CAUSE);
    let cluster = &mut simulation.cluster;
    let outside: Vec<Addr> = cluster.outsiders.iter().map(|it| cluster.net.addr(it.pid)).collect();
    assert!(outside.iter().all(|addr| cluster.is_outside(*addr) && !cluster.is_listed(0, *addr)));
    assert_eq!(cluster.liars_and_honest(0), (0, 3));
    cluster.attack(CAUSE + 20 * SECOND);
    simulation.run_until(CAUSE + 10 * SECOND);
    let cluster = &mut simulation.cluster;
    assert_eq!(cluster.liars_and_honest(0), (1, 2));
    assert!(outside[..3].iter().all(|addr| cluster.is_listed(0, *addr)));
    assert!(!cluster.is_captured() && !cluster.is_listed(0, outside[3]));
    simulation.run_until(CAUSE + 21 * SECOND);
    assert_eq!(simulation.cluster.liars_and_honest(0), (0, 3));
}
