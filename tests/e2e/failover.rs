//! Failovers: planned, and after a master's death. Acknowledged writes are counted on the new
//! master.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use harness::{
    Absences, Cluster, Events, Gap, Load, LoadBuilder, Pointsman, Signal, Verdict, wait_until,
};

use crate::isolation::sets;
use crate::warning::Warning;
use crate::{builder, metric, pointsman};

/// Longer than any client is held here.
const PATIENCE: Duration = Duration::from_secs(40);
/// A lost election is repeated after twelve seconds.
const LONG_HOLD: &str = "hold_timeout = \"30s\"";
/// From the first `+switch-master` to the last client's reply: a majority hears of the switch
/// through hello messages, which every sentinel sends every two seconds.
const AFTER_THE_SWITCH: Duration = Duration::from_secs(3);
const WRITERS: usize = 16;
/// Writes per second.
const RATE: u32 = 2000;

fn generation(pointsman: &Pointsman) -> f64 {
    metric(pointsman, "pointsman_target_generation{service=\"mymaster\"}").unwrap_or(0.0)
}

#[test]
fn loses_nothing_in_a_planned_failover() {
    let cluster = Cluster::builder().start();
    let pointsman = pointsman(&cluster);
    loses_nothing(&cluster, &pointsman, Load::to(pointsman.addr()));
}

/// Fails over under this load, and compares the servers' data with what was acknowledged.
pub(crate) fn loses_nothing(cluster: &Cluster, pointsman: &Pointsman, load: LoadBuilder) {
    let old = cluster.master();
    let (events, absences) = (Events::of_all(cluster.sentinels()), Absences::watch());
    let mut load = load.writers(WRITERS).rate(RATE).start();
    wait_until("some writes", PATIENCE, || load.counts().acknowledged > 500);

    let failover = cluster.failover();
    assert_ne!(failover.from, failover.to);
    wait_until("the switch", PATIENCE, || generation(pointsman) >= 2.0);
    // From the commit on, the old master must not receive another write through the proxy. It stays
    // `role:master` for seconds.
    let at_commit = sets(old);
    let seen = load.counts().acknowledged;
    wait_until("writes to go on", PATIENCE, || load.counts().acknowledged > seen + 1000);
    // As a replica it receives every write of the new master; a node that is master now has not
    // been one before.
    let now = sets(old);
    if old.role().expect("ROLE") == "master" {
        assert_eq!(now, at_commit, "the superseded master was written to");
    }
    the_phases_are_told(pointsman);
    load.stop();
    let verdict = load.verify(failover.to).expect("a look at the new master");
    assert!(verdict.acknowledged > 1500, "{verdict:?}");
    let warning = Warning::of(&events, &absences);
    if warning.was_enough("that no acknowledged write is lost") {
        assert_eq!(
            verdict.missing,
            0,
            "acknowledged writes were lost: {verdict:?}; {:?}; {warning:?}",
            load.counts()
        );
    } else {
        only_the_last_writes_are_missing(&load, &verdict, &warning);
    }
}

/// The gate was closed as soon as the machine was back, and only writes acknowledged until then are
/// missing.
fn only_the_last_writes_are_missing(load: &Load, verdict: &Verdict, warning: &Warning) {
    let pause = load
        .gaps()
        .into_iter()
        .filter(|gap| gap.to > warning.from)
        .max_by_key(Gap::length)
        .expect("a pause");
    assert!(pause.from <= warning.until, "writes went on for {:?}", pause.from - warning.until);
    let time = pause.from.saturating_duration_since(warning.from);
    let most = u128::from(RATE) * time.as_millis() / 1000 + WRITERS as u128;
    assert!(
        u128::from(verdict.missing) <= most,
        "more than {most} in {time:?}: {verdict:?}; {warning:?}"
    );
}

/// The phases are the same in metrics, status and log: from the deciding event to the first session
/// on the new master.
#[allow(clippy::print_stderr, reason = "what could not be tested is told")]
fn the_phases_are_told(pointsman: &Pointsman) {
    let count = |phase: &str| {
        metric(
            pointsman,
            &format!("pointsman_failover_{phase}_seconds_count{{service=\"mymaster\"}}"),
        )
        .unwrap_or(0.0)
    };
    // The first session of the initial master is counted as well.
    wait_until("the first session to be counted", PATIENCE, || count("first_session") >= 2.0);
    let (_, status) = pointsman.get("/status").expect("status");
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    let last = status["services"][0]["failovers"]
        .as_array()
        .and_then(|all| all.last())
        .expect("a failover");
    let number = |key: &str| last[key].as_f64().unwrap_or_else(|| panic!("no {key} in {last}"));
    assert!(
        count("verification") >= 1.0 && count("hold") >= 1.0 && number("held_ms") > 0.0,
        "{last}"
    );
    assert!(number("first_session_ms") < 1000.0, "{last}");
    // If only one sentinel was heard in time, no event made a majority, so there is no start of the
    // switch.
    let by_majority = last["decided_by"] == "majority";
    if by_majority {
        assert!(count("switch") >= 1.0 && number("verified_ms") <= number("switched_ms"), "{last}");
    } else {
        eprintln!("NOT TESTED: the time of the switch; the commit rests on {}", last["decided_by"]);
    }
    wait_until("the log to tell the same", PATIENCE, || {
        let log = pointsman.process().log();
        let told = log.matches("first session reached the new master").count() >= 2;
        if told && (log.contains("switched_us") || !by_majority) { Ok(()) } else { Err(log) }
    });
}

#[test]
fn raises_priority_of_discovery_only() {
    let cluster = Cluster::builder().start();
    let pointsman = pointsman(&cluster);
    let niceness = |task: &str| {
        // The thread may have ended in the meantime.
        let stat = std::fs::read_to_string(format!(
            "/proc/{}/task/{task}/stat",
            pointsman.process().pid()
        ))
        .ok()?;
        let (_, rest) = stat.rsplit_once(')').expect("a name");
        Some(
            rest.split_whitespace()
                .nth(16)
                .and_then(|it| it.parse::<i32>().ok())
                .expect("a niceness"),
        )
    };
    let tasks = || -> BTreeSet<String> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", pointsman.process().pid()))
            .expect("its threads");
        tasks.map(|it| it.expect("a thread").file_name().to_string_lossy().into_owned()).collect()
    };
    let main = pointsman.process().pid().to_string();
    let own = rustix::process::getpriority_process(None).expect("our own niceness");
    // Without CAP_SYS_NICE (bit 23) the niceness is refused, and the program runs all the same.
    let status = std::fs::read_to_string("/proc/self/status").expect("our own status");
    let rights =
        status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("our rights").trim();
    let allowed = u64::from_str_radix(rights, 16).expect("a number") >> 23 & 1 == 1;
    wait_until("the main thread's niceness", PATIENCE, || {
        niceness(&main) == Some(if allowed { -10 } else { own })
    });
    assert!(tasks().len() > 3, "{:?}", tasks());
    // Started by the main thread on demand: it checks the configuration file once per second.
    let name = |task: &String| {
        std::fs::read_to_string(format!("/proc/{main}/task/{task}/comm")).unwrap_or_default()
    };
    wait_until("a thread that came later", PATIENCE, || {
        tasks().iter().any(|it| name(it).starts_with("tokio"))
    });
    for task in tasks().iter().filter(|task| **task != main) {
        // A thread that was just started has not run yet.
        wait_until(&format!("thread {task} as nice as we are"), PATIENCE, || {
            match niceness(task) {
                Some(it) if it != own => Err(format!("{it}")),
                _ => Ok(()),
            }
        });
    }
}

#[test]
fn resumes_writes_50_ms_after_the_switch() {
    let cluster = Cluster::builder().start();
    let pointsman = builder(&cluster).service_line(LONG_HOLD).start();
    let (events, absences) = (Events::of_all(cluster.sentinels()), Absences::watch());
    let mut load = Load::to(pointsman.addr()).writers(8).rate(1000).timeout(PATIENCE).start();
    wait_until("some writes", PATIENCE, || load.counts().acknowledged > 200);
    cluster.master().kill();
    let switch = events.wait_for("+switch-master", PATIENCE);
    wait_until("writes to go on", PATIENCE, || load.since_last() < Duration::from_millis(200));
    load.stop();
    let gap = load.gaps().into_iter().max_by_key(Gap::length).expect("a gap, for the master died");
    let away = absences.between(switch.at, gap.to);
    let late = gap.to.saturating_duration_since(switch.at).saturating_sub(away);
    assert!(gap.from < switch.at, "the gap is not the failover's");
    assert!(
        late <= Duration::from_millis(50),
        "the first write came {late:?} after the first +switch-master, the {away:?} not counted in which the machine was away"
    );
    assert_eq!(pointsman.get("/alive").expect("alive").0, 200);
}

#[test]
fn holds_and_serves_clients_without_master() {
    let cluster = Cluster::builder().start();
    let pointsman = builder(&cluster).service_line(LONG_HOLD).start();
    let events = Events::of_all(cluster.sentinels());
    cluster.master().kill();
    wait_until("traffic to be stopped", PATIENCE, || {
        metric(&pointsman, "pointsman_target_current_outage_seconds{service=\"mymaster\"}")
            > Some(0.0)
    });
    // No connection is refused and none fails: the connection is accepted, and its request is
    // answered by the next master.
    let asked = Instant::now();
    let mut client = pointsman.client();
    client.set_timeout(PATIENCE).expect("a patient client");
    assert!(client.cmd(&["SET", "held", "yes"]).expect("the write that waited").is_ok());
    let took = asked.elapsed();
    // It waits for Sentinel and not much longer.
    let switch = events.wait_for("+switch-master", PATIENCE);
    assert!(took < switch.at.saturating_duration_since(asked) + AFTER_THE_SWITCH, "{took:?}");
    assert_eq!(pointsman.get("/ready").expect("ready").0, 200);
    assert_ne!(cluster.master().addr(), cluster.nodes()[0].addr());
}

#[test]
fn closes_old_sessions_if_configured() {
    let cluster = Cluster::builder().start();
    let pointsman = builder(&cluster).service_line("sessions = \"close\"").start();
    let mut idle: Vec<harness::Client> = (0..50).map(|_| pointsman.client()).collect();
    for client in &mut idle {
        assert!(client.cmd(&["PING"]).is_ok());
    }
    cluster.failover();
    wait_until("the switch", PATIENCE, || generation(&pointsman) >= 2.0);
    for client in &mut idle {
        client.set_timeout(Duration::from_secs(5)).expect("a timeout");
        let (bytes, ending) = client.read_to_end().expect("the end of the connection");
        assert!(bytes.is_empty(), "an idle client was sent {bytes:?}");
        assert_eq!(ending, harness::Ending::Fin);
    }
    wait_until("the sessions to be counted", PATIENCE, || {
        metric(
            &pointsman,
            "pointsman_sessions_closed_total{service=\"mymaster\",reason=\"fenced\"}",
        ) >= Some(50.0)
    });
}

#[test]
fn follows_failovers_back_and_forth() {
    let cluster = Cluster::builder().start();
    cluster.look_often();
    let pointsman = pointsman(&cluster);
    for round in 1..=3 {
        let failover = cluster.failover();
        wait_until("the switch", PATIENCE, || generation(&pointsman) > f64::from(round));
        let mut client = pointsman.client();
        assert!(client.cmd(&["SET", "round", &round.to_string()]).expect("SET").is_ok());
        let there = cluster
            .node_at(failover.to)
            .expect("the new master")
            .ask(&["GET", "round"])
            .expect("GET");
        assert_eq!(there.text(), Some(round.to_string().as_str()));
        // Sentinel requires that the old master is demoted before it can be promoted again.
        cluster.wait_whole();
    }
}

/// The sentinels forget which process the new master is, until its next `INFO`, but not that they
/// reach it; and the leader shows its failover in progress until the last replica follows.
#[test]
fn serves_at_once_when_started_after_a_failover() {
    let cluster = Cluster::builder().start();
    cluster.failover();
    let started = Instant::now();
    let pointsman = builder(&cluster).service_line("hold_timeout = \"20s\"").start();
    let mut client = pointsman.client();
    client.set_timeout(PATIENCE).expect("a patient client");
    assert!(client.cmd(&["SET", "key", "1"]).expect("SET").is_ok());
    let took = started.elapsed();
    assert!(took < Duration::from_millis(2500), "{took:?}");
}

#[test]
fn verifies_master_after_sigstop() {
    let cluster = Cluster::builder().start();
    let pointsman = pointsman(&cluster);
    let old = cluster.master();
    let mut client = pointsman.client();
    client.set_timeout(PATIENCE).expect("a patient client");
    assert!(client.cmd(&["SET", "before", "1"]).expect("SET").is_ok());
    pointsman.process().signal(Signal::STOP);
    let stopped = Instant::now();
    let failover = cluster.failover();
    // The request waits in the kernel and is the first thing that a worker finds when it resumes;
    // the old master still accepts writes.
    client.send(&harness::encode(&["SET", "stale", "1"])).expect("send");
    wait_until("longer than the process may be believed to have been away", PATIENCE, || {
        stopped.elapsed() > Duration::from_secs(4)
    });
    assert_eq!(
        old.role().expect("ROLE"),
        "master",
        "this test needs the old master to be a zombie still"
    );
    pointsman.process().signal(Signal::CONT);
    wait_until("the switch", PATIENCE, || generation(&pointsman) >= 2.0);
    // The client either got the new master's reply or lost its connection; the old master received
    // nothing.
    if client.read_value().is_ok_and(|answer| answer.is_ok()) {
        let there = cluster
            .node_at(failover.to)
            .expect("the new master")
            .ask(&["GET", "stale"])
            .expect("GET");
        assert_eq!(there.text(), Some("1"));
    }
    assert_eq!(
        old.ask(&["EXISTS", "stale"]).expect("EXISTS").int(),
        Some(0),
        "the superseded master was written to"
    );
    assert!(
        metric(&pointsman, "pointsman_process_stalls_total{service=\"mymaster\"}") >= Some(1.0)
    );
}

/// The process is stopped for about a second, while a planned failover takes place. Discovery has
/// to ask the sentinels before requests that waited in the sockets reach a master: the superseded
/// one still accepts writes.
#[test]
fn verifies_master_after_a_short_stop() {
    let cluster = Cluster::builder().start();
    let pointsman = pointsman(&cluster);
    let (old, epoch) = (cluster.master(), generation(&pointsman));
    let client = |number: usize| {
        let mut client = pointsman.client();
        client.set_timeout(PATIENCE).expect("a patient client");
        assert!(client.cmd(&["SET", &format!("before-{number}"), "1"]).expect("SET").is_ok());
        client
    };
    let mut clients: Vec<harness::Client> = (0..WRITERS).map(client).collect();
    pointsman.process().signal(Signal::STOP);
    let stopped = Instant::now();
    cluster.begin_failover_of("mymaster");
    let replicas: Vec<_> =
        cluster.nodes().iter().filter(|node| node.addr() != old.addr()).collect();
    let new = wait_until("a promoted replica", PATIENCE, || {
        let promoted = |it: &&&harness::Node| it.role().is_ok_and(|role| role == "master");
        replicas.iter().find(promoted).copied().ok_or("none yet")
    });
    for (number, client) in clients.iter_mut().enumerate() {
        let key = format!("stale-{number}");
        client.send(&harness::encode(&["SET", &key, "1"])).expect("send");
    }
    wait_until("a stop of a second", PATIENCE, || stopped.elapsed() >= Duration::from_secs(1));
    assert_eq!(old.role().expect("ROLE"), "master", "the old master is no zombie");
    pointsman.process().signal(Signal::CONT);
    let answers: Vec<bool> =
        clients.iter_mut().map(|it| it.read_value().is_ok_and(|it| it.is_ok())).collect();
    wait_until("the switch", PATIENCE, || generation(&pointsman) > epoch);
    let has = |node: &harness::Node, number: usize| {
        let key = format!("stale-{number}");
        node.ask(&["EXISTS", &key]).expect("EXISTS").int() == Some(1)
    };
    // Sentinel demotes the old master after ten seconds, and its own writes are lost then.
    assert_eq!(old.role().expect("ROLE"), "master", "the old master is no zombie any more");
    let stale = (0..WRITERS).filter(|number| has(old, *number)).count();
    let wrong: Vec<usize> =
        (0..WRITERS).filter(|number| answers[*number] && !has(new, *number)).collect();
    assert_eq!(
        (stale, wrong.as_slice()),
        (0, [].as_slice()),
        "writes on the superseded master, and acknowledged writes that the new one lacks"
    );
    assert!(
        metric(&pointsman, "pointsman_process_stalls_total{service=\"mymaster\"}") >= Some(1.0)
    );
}

/// No failover takes place: stops shorter and longer than the absence limit hold requests for a
/// moment, and nothing else happens.
#[test]
fn keeps_sessions_through_short_stops() {
    let cluster = Cluster::builder().start();
    let pointsman = pointsman(&cluster);
    let mut load = Load::to(pointsman.addr()).writers(WRITERS).rate(RATE).start();
    wait_until("some writes", PATIENCE, || load.counts().acknowledged > 500);
    let before = generation(&pointsman);
    let stalls = || metric(&pointsman, "pointsman_process_stalls_total{service=\"mymaster\"}");
    let first = stalls().unwrap_or(0.0);
    for stop in [200, 600, 1500] {
        pointsman.process().signal(Signal::STOP);
        let stopped = Instant::now();
        wait_until("a stop", PATIENCE, || stopped.elapsed() >= Duration::from_millis(stop));
        pointsman.process().signal(Signal::CONT);
        let seen = load.counts().acknowledged;
        wait_until("writes to continue", PATIENCE, || load.counts().acknowledged > seen + 200);
    }
    assert!(stalls() >= Some(first + 2.0), "the two longer ones are stalls: {:?}", stalls());
    load.stop();
    let verdict = load.verify(cluster.master().addr()).expect("a look at the master");
    assert_eq!((verdict.missing, load.counts().errors), (0, 0), "{verdict:?}");
    assert_eq!(generation(&pointsman), before, "the master was published anew");
    assert_eq!(load.counts().connections, WRITERS as u64, "a session ended");
}
