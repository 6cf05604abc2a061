//! The verdicts, one test for each kind of condition.

use std::collections::BTreeMap;

use super::*;
use crate::admin::status::{
    AlarmStatus, ChangedPriorityStatus, ConfigStatus, CredentialsStatus, DrainStatus,
    ElectorateStatus, OverrideStatus, PauseStatus, ReadersStatus, RefusedStatus, SCHEMA,
    SentinelStatus, ServerCredentialsStatus, TargetStatus, TrafficStatus,
};

fn traffic(waiting: u64) -> TrafficStatus {
    TrafficStatus {
        sessions_open: 20,
        sessions_waiting: waiting,
        sessions_limit: 100,
        sessions_total: 20,
        sessions_refused: 0,
        clients_rejected: BTreeMap::new(),
        sessions_carried: 0,
        sessions_by_state: BTreeMap::new(),
        sessions_not_carried: BTreeMap::new(),
        sessions_closed: BTreeMap::new(),
        commands: 0,
        bytes_in: 0,
        bytes_out: 0,
        dials: 0,
        dial_errors: 0,
        command_p50_us: 0,
        command_p99_us: 0,
        dial_p50_us: 0,
        dial_p99_us: 0,
        shared: None,
    }
}

fn sentinel(addr: &str) -> SentinelStatus {
    SentinelStatus {
        addr: addr.to_owned(),
        id: None,
        up: true,
        events: true,
        tls: None,
        tls_fault: None,
        votes: true,
        origin: "configured",
        master: None,
        epoch: None,
        age_s: None,
        disagrees: false,
        problem: None,
    }
}

fn node(addr: &str, role: &'static str) -> NodeStatus {
    NodeStatus {
        addr: addr.to_owned(),
        role,
        pong: true,
        ping: Some("pong"),
        offset: None,
        age_s: Some(0.1),
        tls: None,
        tls_fault: None,
        problem: None,
        sessions: 0,
        failed_connects: 0,
        failed_probes: 0,
    }
}

/// A healthy service with the master `a` and the replicas `b` and `c`.
fn healthy(name: &str) -> ServiceStatus {
    let credentials = || ServerCredentialsStatus { outdated: 0, refused: Vec::new() };
    let mut service = ServiceStatus {
        name: name.to_owned(),
        master_name: name.to_owned(),
        listen: Vec::new(),
        removed: false,
        state: "stable",
        verdict: VerdictStatus::default(),
        candidate: None,
        gate: "open",
        generation: Some(1),
        target: Some(TargetStatus {
            name: "a".to_owned(),
            addr: "a".to_owned(),
            epoch: 0,
            run_id: None,
            connects_fail: false,
            age_s: 1.0,
        }),
        outage_s: None,
        held_s: None,
        pause: None,
        changed_priorities: Vec::new(),
        disagreement: false,
        minority: false,
        spare_replicas: None,
        credentials: CredentialsStatus { redis: credentials(), sentinels: credentials() },
        follow: None,
        last_override_end: None,
        electorate: ElectorateStatus { voters: 3, majority: 2 },
        no_master_because: Vec::new(),
        sentinels: ["s1", "s2", "s3"].map(sentinel).into(),
        nodes: vec![node("a", "master"), node("b", "replica"), node("c", "replica")],
        readers: None,
        replicas: Vec::new(),
        failovers: Vec::new(),
        alarms: Vec::new(),
        traffic: traffic(0),
    };
    service.verdict = service.judge();
    service
}

#[track_caller]
fn expect(change: impl FnOnce(&mut ServiceStatus), severity: Severity, text: &str) {
    let mut service = healthy("m");
    change(&mut service);
    assert_eq!(service.judge(), VerdictStatus { severity, text: text.to_owned() });
}

fn hold(it: &mut ServiceStatus, state: &'static str) {
    (it.state, it.gate, it.held_s) = (state, "closed", Some(1.2));
}

fn follow(contradicted_by: &[&str]) -> Option<OverrideStatus> {
    let contradicted_by = contradicted_by.iter().map(|it| (*it).to_owned()).collect();
    Some(OverrideStatus { master: "a".to_owned(), age_s: 5.0, left_s: 595.0, contradicted_by })
}

#[test]
fn names_master_of_healthy_service() {
    expect(|_| (), Severity::Ok, "Master: a.");
}

#[test]
fn names_command_that_holds_traffic() {
    let pause = |by| Some(PauseStatus { by, for_s: 4.0, left_s: 26.0 });
    expect(
        |it| {
            hold(it, "stable");
            (it.pause, it.traffic.sessions_waiting) = (pause("pause"), 20);
        },
        Severity::Warning,
        "Traffic held for 1.2 s: paused by an operator (pause, 26 s left); 20 clients are waiting.",
    );
    expect(
        |it| {
            hold(it, "stable");
            it.pause = pause("switchover");
        },
        Severity::Warning,
        "Traffic held for 1.2 s: paused by an operator (switchover, 26 s left).",
    );
}

/// For a moment after the connection to it has ended.
#[test]
fn names_lost_master_that_holds_traffic() {
    for (role, how) in [("unreachable", "is unreachable"), ("master", "may have failed")] {
        expect(
            |it| {
                hold(it, "suspect");
                it.nodes[0].role = role;
            },
            Severity::Warning,
            &format!("Traffic held for 1.2 s: the master a {how}."),
        );
    }
}

#[test]
fn explains_states_that_hold_traffic() {
    let candidate = |it: &mut ServiceStatus| it.candidate = Some("b".to_owned());
    expect(
        |it| {
            hold(it, "armed");
            candidate(it);
            it.traffic.sessions_waiting = 1;
        },
        Severity::Warning,
        "Traffic held for 1.2 s: armed, a failover to b seems to have begun; \
         1 client is waiting.",
    );
    expect(
        |it| hold(it, "armed"),
        Severity::Warning,
        "Traffic held for 1.2 s: armed, a failover to a replica seems to have begun.",
    );
    expect(
        |it| {
            hold(it, "committing");
            candidate(it);
            it.nodes[1].role = "master";
        },
        Severity::Warning,
        "Traffic held for 1.2 s: committing, the sentinels decided for b, which is verified now.",
    );
    expect(
        |it| {
            hold(it, "committing");
            candidate(it);
            it.nodes[1].problem = Some("its certificate has expired".to_owned());
        },
        Severity::Warning,
        "Traffic held for 1.2 s: committing, the sentinels decided for b, which is verified now; \
         b: its certificate has expired.",
    );
    expect(
        |it| hold(it, "unconfirmed"),
        Severity::Warning,
        "Traffic held for 1.2 s: the master may have been replaced, waiting for confirmation by \
         the sentinels.",
    );
    expect(
        |it| hold(it, "no_master"),
        Severity::Fault,
        "Traffic held for 1.2 s: no node can be verified as the master.",
    );
    expect(
        |it| {
            hold(it, "stable");
            it.minority = true;
        },
        Severity::Fault,
        "Traffic held for 1.2 s: only a minority of the sentinels is reachable.",
    );
}

#[test]
fn says_why_there_is_no_master() {
    let lose = |it: &mut ServiceStatus| (it.target, it.generation) = (None, None);
    expect(
        |it| {
            lose(it);
            it.sentinels.truncate(1);
            it.sentinels[0].problem = Some("it monitors no master named m".to_owned());
        },
        Severity::Fault,
        "No master found yet: 1 of 1 sentinels are reachable; s1: it monitors no master named m.",
    );
    expect(
        |it| {
            lose(it);
            it.generation = Some(3);
            it.sentinels.iter_mut().for_each(|it| it.up = false);
        },
        Severity::Fault,
        "No master: no sentinel is reachable.",
    );
    expect(
        |it| {
            lose(it);
            it.follow = follow(&[]);
        },
        Severity::Fault,
        "No master found yet: OVERRIDE for 9m55s more: a is followed by an operator's order, \
         without the sentinels.",
    );
}

#[test]
fn names_node_that_does_not_verify() {
    let lose = |it: &mut ServiceStatus| (it.target, it.generation) = (None, None);
    let names = |it: &mut ServiceStatus, node: &str| {
        it.sentinels.iter_mut().for_each(|it| it.master = Some(node.to_owned()));
        it.sentinels[0].disagrees = true;
        it.sentinels[0].master = Some("c".to_owned());
    };
    let rejects = |it: &mut NodeStatus| {
        it.role = "denied";
        it.problem = Some("it rejects the user or password: check service.auth".to_owned());
    };
    // Nothing else is wrong at a start with a wrong password.
    expect(
        |it| {
            lose(it);
            names(it, "a");
            rejects(&mut it.nodes[0]);
            it.nodes[1].problem = Some("it is another matter".to_owned());
        },
        Severity::Fault,
        "No master found yet: 3 of 3 sentinels are reachable; a: it rejects the user or \
         password: check service.auth.",
    );
    // The master that was lost, and the node that is verified, differ.
    expect(
        |it| {
            lose(it);
            names(it, "b");
            (it.generation, it.candidate) = (Some(3), Some("b".to_owned()));
            (it.nodes[1].role, it.traffic.sessions_waiting) = ("unreachable", 20);
        },
        Severity::Fault,
        "No master: 3 of 3 sentinels are reachable; b is unreachable; 20 clients are waiting.",
    );
    expect(
        |it| {
            lose(it);
            names(it, "b");
            (it.nodes[1].role, it.nodes[1].pong, it.nodes[1].ping) =
                ("master", false, Some("loading"));
        },
        Severity::Fault,
        "No master found yet: 3 of 3 sentinels are reachable; b answers PING with loading.",
    );
}

#[test]
fn explains_suspicion() {
    for (role, how) in [
        ("unreachable", "is unreachable"),
        ("unresponsive", "does not answer, and its clients wait"),
        ("busy", "runs a script"),
        ("connection_rejected", "refuses new connections"),
        ("denied", "refuses the probes"),
        ("outside_nodes", "is outside service.nodes"),
        ("replica", "reports that it is a replica"),
        ("master", "may have failed"),
    ] {
        expect(
            |it| (it.state, it.nodes[0].role) = ("suspect", role),
            Severity::Warning,
            &format!("The master a {how}; sessions stay on it until the sentinels decide."),
        );
    }
    let fail = "new connections of clients to it fail; check its maxclients, its tcp-backlog and \
                the network";
    for (role, how) in [
        ("master", format!(" may have failed: {fail}")),
        ("unreachable", " is unreachable".to_owned()),
    ] {
        expect(
            |it| {
                (it.state, it.nodes[0].role) = ("suspect", role);
                it.target.iter_mut().for_each(|master| master.connects_fail = true);
            },
            Severity::Warning,
            &format!("The master a{how}; sessions stay on it until the sentinels decide."),
        );
    }
    let disk = || Some("it answers -MISCONF and refuses writes".to_owned());
    for (role, how) in [("master", " may have failed"), ("unreachable", " is unreachable")] {
        expect(
            |it| (it.state, it.nodes[0].role, it.nodes[0].problem) = ("suspect", role, disk()),
            Severity::Warning,
            &format!(
                "The master a{how}: it answers -MISCONF and refuses writes; sessions stay on it \
                 until the sentinels decide."
            ),
        );
    }
}

#[test]
fn mentions_overrides_with_holds() {
    expect(
        |it| (it.minority, it.follow) = (true, follow(&["x"])),
        Severity::Warning,
        "OVERRIDE for 9m55s more: a is followed by an operator's order, without the sentinels; \
         sentinels name x.",
    );
    expect(
        |it| {
            hold(it, "no_master");
            it.follow = follow(&[]);
        },
        Severity::Fault,
        "Traffic held for 1.2 s: no node can be verified as the master. OVERRIDE for 9m55s more: \
         a is followed by an operator's order, without the sentinels.",
    );
}

#[test]
fn warns_of_concerns_while_traffic_flows() {
    let warns = |change: fn(&mut ServiceStatus), concern: &str| {
        expect(change, Severity::Warning, &format!("Master: a; {concern}."));
    };
    warns(
        |it| {
            it.nodes[0].problem = Some("it answers -MISCONF and refuses writes".to_owned());
            it.sentinels[0].up = false;
        },
        "a: it answers -MISCONF and refuses writes",
    );
    let refuse = |it: &mut ServiceStatus| {
        it.target.iter_mut().for_each(|master| master.connects_fail = true);
    };
    warns(
        refuse,
        "a: new connections of clients to it fail; check its maxclients, its tcp-backlog and the \
         network",
    );
    warns(|it| it.minority = true, "only a minority of the sentinels is reachable");
    warns(|it| it.disagreement = true, "the sentinels disagree");
    warns(
        |it| {
            it.changed_priorities = vec![ChangedPriorityStatus {
                node: "b".to_owned(),
                from: 100,
                to: 10,
                restore: String::new(),
            }];
        },
        "replica-priority is changed for a switchover and not restored yet: b from 100 to 10",
    );
    warns(
        |it| {
            let alarm = |on, message| AlarmStatus {
                alarm: "ghosts",
                on,
                age_s: 725.0,
                ended_s: None,
                sentinels: vec!["s1".to_owned(), "s9".to_owned()],
                message,
            };
            it.alarms = vec![alarm(false, "ended"), alarm(true, "gone and listed")];
        },
        "gone and listed (s1, s9), for 12m05s",
    );
    warns(
        |it| it.sentinels.iter_mut().for_each(|it| it.up = false),
        "no sentinel is reachable, a failover would not be noticed",
    );
    warns(
        |it| it.sentinels.iter_mut().take(2).for_each(|it| it.up = false),
        "only 1 of 3 sentinels are reachable, too few to follow a failover",
    );
    warns(|it| it.sentinels[0].up = false, "2 of 3 sentinels are reachable");
}

/// It is probed on a connection from before, so it has not failed.
#[test]
fn warns_of_what_new_tls_connections_meet() {
    expect(
        |it| {
            it.nodes[0].tls_fault = Some("expired");
            it.nodes[0].problem = Some("its certificate expired 5 days ago".to_owned());
        },
        Severity::Warning,
        "Master: a; a: its certificate expired 5 days ago.",
    );
    expect(
        |it| {
            it.sentinels[1].tls_fault = Some("expired");
            it.sentinels[1].problem =
                Some("new connections fail, one from before works: its certificate expired".into());
        },
        Severity::Warning,
        "Master: a; s2: new connections fail, one from before works: its certificate expired.",
    );
}

#[test]
fn warns_of_nodes_that_do_not_answer() {
    let die = |it: &mut NodeStatus| (it.role, it.pong, it.ping) = ("unreachable", false, None);
    expect(
        |it| die(&mut it.nodes[1]),
        Severity::Warning,
        "Master: a; 1 of 3 nodes does not answer: b.",
    );
    expect(
        |it| it.nodes[1..].iter_mut().for_each(die),
        Severity::Warning,
        "Master: a; no replica answers, a failover is impossible.",
    );
    expect(
        |it| {
            it.readers = Some(ReadersStatus {
                listen: Vec::new(),
                eligible: Some(0),
                empty: "reject",
                ejections: 0,
                readmissions: 0,
                traffic: traffic(0),
            });
        },
        Severity::Warning,
        "Master: a; no replica serves readers.",
    );
    // It answers, with an error, or has not been probed yet.
    expect(
        |it| (it.nodes[1].pong, it.nodes[1].ping) = (false, Some("misconf")),
        Severity::Ok,
        "Master: a.",
    );
    expect(
        |it| (it.nodes[1].pong, it.nodes[1].ping, it.nodes[1].age_s) = (false, None, None),
        Severity::Ok,
        "Master: a.",
    );
}

fn process(services: Vec<ServiceStatus>) -> Status {
    Status {
        schema: SCHEMA,
        version: "0",
        uptime_s: 1.0,
        phase: "serving",
        ready: true,
        not_ready_because: Vec::new(),
        verdict: VerdictStatus::default(),
        notices: Vec::new(),
        config_hash: String::new(),
        config: ConfigStatus {
            hash: String::new(),
            reloads: BTreeMap::new(),
            last_reload: None,
            last_reload_age_s: None,
            faults: Vec::new(),
            reading: None,
            pending_restart: Vec::new(),
            certificates: Vec::new(),
        },
        drain: DrainStatus { open: 1, completed: 0, drained: 2, cut: 3 },
        services,
    }
}

/// The verdict, then the notices, as lines.
fn judged(mut status: Status) -> Vec<String> {
    status.judge();
    let all = std::iter::once(&status.verdict).chain(&status.notices);
    all.map(|it| format!("{:?} {}", it.severity, it.text)).collect()
}

fn without_master(name: &str) -> ServiceStatus {
    let mut service = healthy(name);
    (service.target, service.generation) = (None, None);
    service.verdict = service.judge();
    service
}

#[test]
fn folds_services_into_one_sentence() {
    assert_eq!(judged(process(Vec::new())), ["Warning No service is configured."]);
    assert_eq!(judged(process(vec![healthy("m")])), ["Ok m: Master: a."]);
    let two = vec![healthy("m"), healthy("n")];
    assert_eq!(judged(process(two)), ["Ok All 2 services have a master."]);
    let why = "No master found yet: 3 of 3 sentinels are reachable.";
    let one = vec![healthy("m"), without_master("n")];
    assert_eq!(judged(process(one)), [format!("Fault n: {why}")]);
    let some = vec![healthy("l"), without_master("m"), without_master("n")];
    let more = "1 more of 3 services have problems.";
    assert_eq!(judged(process(some)), [format!("Fault m: {why} {more}")]);
    let names: Vec<String> = (1..=200).map(|at| format!("m{at}")).collect();
    let mut all = process(names.iter().map(|it| without_master(it)).collect());
    all.ready = false;
    all.not_ready_because = names.iter().map(|it| format!("{it}: no master")).collect();
    let not_ready = "Fault Not ready: m1: no master, m2: no master, m3: no master and 197 more.";
    assert_eq!(judged(all), [format!("Fault All 200 services: {why}"), not_ready.to_owned()]);
}

#[test]
fn reports_process_before_healthy_services() {
    let mut status = process(vec![healthy("m")]);
    status.phase = "draining";
    status.config.faults = vec!["line 3: x".to_owned()];
    status.config.pending_restart = vec!["workers".to_owned()];
    status.services[0].credentials.redis.refused = vec![RefusedStatus {
        addr: "a".to_owned(),
        problem: "WRONGPASS".to_owned(),
        fallback: true,
    }];
    let expected = [
        "Warning Shutting down (draining): 1 session is open, 2 drained, 3 cut.",
        "Warning Configuration not reloaded, the previous one stays in force: line 3: x",
        "Warning Changed keys that need a restart: workers.",
        "Warning m: 1 Redis nodes refuse the configured credentials; those before are in use: \
         WRONGPASS.",
        "Ok m: Master: a.",
    ];
    assert_eq!(judged(status), expected);
    let mut status = process(vec![healthy("m")]);
    (status.config.last_reload, status.config.faults) = (Some("partial"), vec!["x".to_owned()]);
    assert_eq!(judged(status)[0], "Warning Secrets not reloaded, those before stay in use: x");
}
