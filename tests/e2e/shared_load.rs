//! Sessions that share connections, under load, through the events that dedicated ones survive:
//! planned failovers, the death of the master, and a drain.

use std::time::{Duration, Instant};

use harness::{Absences, Client, Cluster, Events, Pointsman, PointsmanBuilder, wait_until};

use crate::owners::{self, Owners, Seen};
use crate::switchover::{TOKEN, controlled_by, generation, order, stderr, stdout};
use crate::warning::Warning;
use crate::{builder, metric};

const PATIENCE: Duration = Duration::from_secs(40);
pub(crate) const CLIENTS: usize = 60;

/// A lost election is repeated after twelve seconds.
pub(crate) fn sharing(cluster: &Cluster) -> PointsmanBuilder<'_> {
    builder(cluster).service_line("upstream = \"shared\"").service_line("hold_timeout = \"30s\"")
}

pub(crate) fn value(pointsman: &Pointsman, name: &str) -> f64 {
    metric(pointsman, &format!("{name}{{service=\"mymaster\"}}")).expect(name)
}

/// Waits until all clients share connections, which are fewer.
#[track_caller]
pub(crate) fn wait_sharing(pointsman: &Pointsman, clients: usize) {
    wait_until("the clients to share", PATIENCE, || {
        let [sessions, connections] = ["sessions", "connections"]
            .map(|it| value(pointsman, &format!("pointsman_shared_{it}")));
        let all = sessions >= clients as f64 && connections > 0.0 && connections < sessions;
        if all { Ok(()) } else { Err(format!("{sessions} on {connections}")) }
    });
}

/// Nothing was delivered that no request awaited.
#[track_caller]
pub(crate) fn assert_synchronous(pointsman: &Pointsman) {
    assert_eq!(value(pointsman, "pointsman_shared_desyncs_total"), 0.0);
}

#[test]
fn hides_switchover_from_loaded_groups() {
    let cluster = owners::cluster().start();
    let pointsman = controlled_by(&cluster, sharing(&cluster));
    let owners = Owners::gather(pointsman.addr(), 0..CLIENTS);
    wait_sharing(&pointsman, CLIENTS);
    owners.wait_for(5);
    let old = cluster.master().addr();
    let done = order(&pointsman, &["switchover"], TOKEN);
    assert!(done.status.success(), "{}{}", stdout(&done), stderr(&done));
    owners.wait_for(10);
    wait_sharing(&pointsman, CLIENTS);
    assert_ne!(cluster.master().addr(), old);
    let seen = owners.end(cluster.master());
    seen.assert_flawless();
    assert_eq!(seen.left, 0);
    assert_synchronous(&pointsman);
}

#[test]
fn hides_planned_failover_from_loaded_groups() {
    let cluster = owners::cluster().start();
    let pointsman = sharing(&cluster).start();
    let owners = Owners::gather(pointsman.addr(), 0..CLIENTS);
    wait_sharing(&pointsman, CLIENTS);
    owners.wait_for(5);
    let (events, absences) = (Events::of_all(cluster.sentinels()), Absences::watch());
    cluster.failover();
    wait_until("the switch", PATIENCE, || generation(&pointsman) >= 2.0);
    owners.wait_for(10);
    wait_sharing(&pointsman, CLIENTS);
    let seen = owners.end(cluster.master());
    assert_hidden(seen, &Warning::of(&events, &absences));
    assert_synchronous(&pointsman);
}

/// The clients noticed nothing of a planned failover.
#[track_caller]
pub(crate) fn assert_hidden(mut seen: Seen, warning: &Warning) {
    if !warning.was_enough("that clients of shared connections notice nothing") {
        // In flight to a server that is being demoted, or acknowledged by it meanwhile.
        seen.unanswered.retain(|it| it.sent > warning.until || it.at < warning.from);
        seen.lost.retain(|it| it.before < warning.from);
    }
    seen.assert_flawless();
    assert_eq!(seen.left, 0);
}

/// Clients of one connection: those that wait for a reply end, and all other sessions continue.
#[test]
fn ends_only_requests_in_flight_at_the_masters_death() {
    let cluster = owners::cluster().start();
    let pointsman = sharing(&cluster).start();
    let owners = Owners::gather(pointsman.addr(), 0..CLIENTS);
    let mut idle: Vec<Client> = (0..10).map(|_| pointsman.client()).collect();
    for client in &mut idle {
        client.set_timeout(PATIENCE).expect("a timeout");
        assert!(client.cmd(&["AUTH", "ann", "pw"]).expect("AUTH").is_ok());
        assert!(client.cmd(&["SET", "ann:k", "v"]).expect("SET").is_ok());
    }
    wait_sharing(&pointsman, CLIENTS + idle.len());
    // The first request after their verification joins the connection of working clients.
    let mut assert_served = || {
        for client in &mut idle {
            let reply = client.cmd(&["GET", "ann:k"]).expect("a session that continues");
            assert_eq!(reply.text(), Some("v"));
        }
    };
    assert_served();
    owners.wait_for(5);
    let master = cluster.master();
    master.stop();
    wait_until("requests of all", PATIENCE, || owners.in_flight() == CLIENTS);
    let kill = Instant::now();
    master.kill();
    let dead = Instant::now();
    wait_until("the switch", PATIENCE, || generation(&pointsman) >= 2.0);
    owners.wait_for(10);
    assert_served();
    let seen = owners.end(cluster.master());
    println!("SIGKILL: {} of {CLIENTS} ended, longest {:?}", seen.unanswered.len(), seen.longest);
    assert_eq!((&seen.wrong, seen.left), (&vec![], 0));
    assert!(!seen.unanswered.is_empty(), "none had a request in flight");
    for it in &seen.unanswered {
        assert!(it.sent < dead, "not in flight at the kill: {it:?}");
    }
    // What a master acknowledges in its last moments may not have reached a replica.
    for it in &seen.lost {
        assert!(it.before + Duration::from_secs(1) > kill, "long acknowledged: {it:?}");
    }
    let ended = value(&pointsman, "pointsman_shared_sessions_lost_total");
    assert_eq!(ended, seen.unanswered.len() as f64);
    assert_synchronous(&pointsman);
}

const DRAIN: &str = "[shutdown]\naccept_min = \"0s\"\naccept_quiet = \"0s\"\naccept_max = \"0s\"\n\
                     drain_spread = \"1s\"\ndrain_timeout = \"15s\"";

#[test]
fn answers_shared_requests_in_flight_before_it_stops() {
    let cluster = owners::cluster().replicas(0).sentinels(1).start();
    let pointsman = sharing(&cluster).lines(DRAIN).start();
    let owners = Owners::gather(pointsman.addr(), 0..CLIENTS);
    wait_sharing(&pointsman, CLIENTS);
    owners.wait_for(3);
    owners.stay_away();
    // Every client waits for replies when the process is asked to stop.
    let master = cluster.master();
    master.stop();
    wait_until("requests of all", PATIENCE, || owners.in_flight() == CLIENTS);
    let asked = Instant::now();
    pointsman.sigterm();
    wait_until("the drain", PATIENCE, || pointsman.process().log().contains("received SIGTERM"));
    assert_eq!((owners.left(), owners.in_flight()), (0, CLIENTS));
    let answered = owners.answered();
    master.cont();
    assert_eq!(pointsman.wait_exit(PATIENCE).code(), Some(0));
    assert!(asked.elapsed() < Duration::from_secs(10), "it took {:?}", asked.elapsed());
    wait_until("the clients to leave", PATIENCE, || owners.left() == CLIENTS);
    assert!(owners.answered() >= answered + CLIENTS as u64);
    let seen = owners.end(master);
    seen.assert_flawless();
    let log = pointsman.process().log();
    assert!(
        log.contains(&format!("\"drained\":{CLIENTS},\"cut\":0")),
        "{}",
        pointsman.process().tail()
    );
}
