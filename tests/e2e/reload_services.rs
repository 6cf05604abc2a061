//! Services that a reload adds, changes and removes while others serve.
//!
//! | What changes | Test |
//! |---|---|
//! | a service is added, used and removed under load on another one | [`adds_and_removes_service_beside_load`] |
//! | a service is removed with idle, busy and pinned sessions | [`drains_sessions_of_removed_service`] |
//! | two services swap their addresses while clients connect | [`swaps_addresses_without_a_refused_client`] |
//! | other sentinels of the same master | [`keeps_sessions_when_sentinels_are_replaced`] |
//! | sentinels of another master with the same name | [`carries_no_session_to_another_deployment`] |
//! | an address is in use | [`changes_nothing_if_an_address_is_in_use`] |
//! | a removed service returns while it drains; SIGTERM meanwhile | [`adds_service_again_while_it_drains`] |
//! | a service is removed during a switchover to a named replica | [`ends_switchover_of_a_removed_service`] |
//! | fifty additions and removals | [`returns_all_resources_of_removed_services`] |

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use harness::{Client, Cluster, Load, Pointsman, Signal, wait_until};

use crate::switchover::{TOKEN, order, stderr};
use crate::{builder, metric};

const PATIENCE: Duration = Duration::from_secs(60);

/// One service of a configuration.
struct Service<'a> {
    name: &'a str,
    listen: SocketAddr,
    sentinels: Vec<SocketAddr>,
}

fn service<'a>(name: &'a str, listen: SocketAddr, cluster: &Cluster) -> Service<'a> {
    Service { name, listen, sentinels: cluster.sentinel_addrs() }
}

/// Writes a configuration with these services, and waits for the result of the reload.
fn reload(pointsman: &Pointsman, services: &[Service<'_>], result: &str) {
    let path = pointsman.process().log_path().with_file_name("pointsman.toml");
    let text = std::fs::read_to_string(&path).expect("the file");
    let rest = text.find("[admin]").map(|at| text[at..].to_owned()).expect("the admin section");
    let mut new = String::new();
    for Service { name, listen, sentinels } in services {
        let sentinels: Vec<String> = sentinels.iter().map(ToString::to_string).collect();
        new += &format!(
            "[[service]]\nname = {name:?}\nlisten = [\"{listen}\"]\nsentinels = {sentinels:?}\n"
        );
    }
    let before = reloads(pointsman, result);
    let next = path.with_extension("next");
    std::fs::write(&next, new + &rest).expect("a file");
    std::fs::rename(&next, &path).expect("a rename");
    pointsman.process().signal(Signal::HUP);
    wait_until("the reload", PATIENCE, || reloads(pointsman, result) > before);
}

fn reloads(pointsman: &Pointsman, result: &str) -> f64 {
    metric(pointsman, &format!("pointsman_config_reloads_total{{result=\"{result}\"}}"))
        .expect("a counter")
}

/// The number of sessions that a listener has, or `None` if there is no such service.
fn open(pointsman: &Pointsman, service: &str) -> Option<f64> {
    metric(pointsman, &format!("pointsman_sessions_open{{service=\"{service}\"}}"))
}

fn said(client: &mut Client, words: &[&str]) -> String {
    let reply = client.cmd(words).unwrap_or_else(|error| panic!("{words:?}: {error}"));
    reply.text().unwrap_or_default().to_owned()
}

const QUICK_DRAIN: &str = "[shutdown]\ndrain_spread = \"200ms\"\ndrain_timeout = \"3s\"\n\
                           accept_min = \"0s\"\naccept_quiet = \"0s\"";

#[test]
fn adds_and_removes_service_beside_load() {
    let cluster = Cluster::builder().masters(&["alpha", "beta"]).replicas(0).start();
    let pointsman = builder(&cluster).services(&["alpha"]).lines(QUICK_DRAIN).start();
    let (alpha, beta) = (pointsman.addr_of("alpha").expect("an address"), cluster.address().port());
    let mut load = Load::to(alpha).writers(4).start();
    let (one, two) = (service("alpha", alpha, &cluster), service("beta", beta, &cluster));
    reload(&pointsman, &[one, two], "applied");
    // A client that connects before the master is found waits for it.
    let mut client = Client::connect(beta).expect("a connection");
    assert_eq!(said(&mut client, &["SET", "where", "beta"]), "OK");
    assert_eq!(metric(&pointsman, "pointsman_config_pending_restart"), Some(0.0));
    assert!(open(&pointsman, "beta") >= Some(1.0));
    let on_beta = cluster.master_addr("beta").expect("a master");
    assert_eq!(said(&mut Client::connect(on_beta).expect("a node"), &["GET", "where"]), "beta");
    let (status, _) = pointsman.get("/ready").expect("an answer");
    assert_eq!(status, 200);
    reload(&pointsman, &[service("alpha", alpha, &cluster)], "applied");
    let (rest, _) = client.read_to_end().expect("an orderly end");
    assert!(rest.is_empty());
    wait_until("the end of beta", PATIENCE, || open(&pointsman, "beta").is_none());
    assert!(Client::connect(beta).is_err());
    let (_, text) = pointsman.get("/status").expect("status");
    assert!(!text.contains("beta"), "{text}");
    load.stop();
    assert_eq!(load.errors(), Vec::<String>::new());
    assert!(load.counts().acknowledged > 100, "{:?}", load.counts());
}

#[test]
fn drains_sessions_of_removed_service() {
    let cluster = Cluster::builder().masters(&["alpha", "beta"]).replicas(0).start();
    let pointsman = builder(&cluster).lines(QUICK_DRAIN).start();
    let addr = |name| pointsman.addr_of(name).expect("an address");
    let [mut idle, mut busy, mut pinned, mut other] = ["beta", "beta", "beta", "alpha"]
        .map(|name| Client::connect(addr(name)).expect("a connection"));
    for client in [&mut idle, &mut busy, &mut pinned, &mut other] {
        assert_eq!(said(client, &["PING"]), "PONG");
    }
    // Answered after a second, and so within the drain.
    busy.send(&harness::encode(&["BLPOP", "nothing", "1"])).expect("a request");
    assert_eq!(said(&mut pinned, &["MULTI"]), "OK");
    wait_until("the states", PATIENCE, || open(&pointsman, "beta") == Some(3.0));
    reload(&pointsman, &[service("alpha", addr("alpha"), &cluster)], "applied");
    let removed = "pointsman_service_removed{service=\"beta\"}";
    assert_eq!(metric(&pointsman, removed), Some(1.0));
    assert!(Client::connect(addr("beta")).is_err());
    let (bytes, _) = idle.read_to_end().expect("an orderly end");
    assert!(bytes.is_empty());
    // The blocked one got its reply; the transaction could be completed until the deadline.
    assert_eq!(said(&mut pinned, &["SET", "k", "v"]), "QUEUED");
    let (bytes, _) = busy.read_to_end().expect("an orderly end");
    assert_eq!(bytes, b"*-1\r\n");
    wait_until("the end of beta", PATIENCE, || metric(&pointsman, removed).is_none());
    assert!(pinned.cmd(&["EXEC"]).is_err(), "the transaction was cut");
    assert_eq!(said(&mut other, &["PING"]), "PONG");
    let log = pointsman.process().log();
    assert!(log.contains("removed service has ended"), "{log}");
}

#[test]
fn swaps_addresses_without_a_refused_client() {
    let cluster = Cluster::builder().masters(&["alpha", "beta"]).replicas(0).start();
    let pointsman = builder(&cluster).lines(QUICK_DRAIN).start();
    let addrs = ["alpha", "beta"].map(|name| pointsman.addr_of(name).expect("an address"));
    for (name, addr) in ["alpha", "beta"].into_iter().zip(addrs) {
        let mut client = Client::connect(addr).expect("a connection");
        assert_eq!(said(&mut client, &["SET", "name", name]), "OK");
    }
    let stop = Arc::new(AtomicBool::new(false));
    let clients = addrs.map(|addr| {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            let mut names = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let mut client = Client::connect(addr).expect("refused");
                // A session of the former service may be asked to leave before its first request.
                if let Ok(reply) = client.cmd(&["GET", "name"]) {
                    names.push(reply.text().unwrap_or_default().to_owned());
                }
            }
            names
        })
    });
    let config = |swapped: bool| {
        let [one, two] = if swapped { [addrs[1], addrs[0]] } else { addrs };
        [service("alpha", one, &cluster), service("beta", two, &cluster)]
    };
    for swapped in [true, false, true] {
        reload(&pointsman, &config(swapped), "applied");
    }
    let mut client = Client::connect(addrs[0]).expect("a connection");
    wait_until("the other service", PATIENCE, || {
        let now = client.cmd(&["GET", "name"]).ok().and_then(|it| it.text().map(str::to_owned));
        client = Client::connect(addrs[0]).expect("a connection");
        now.as_deref() == Some("beta")
    });
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        let names = client.join().expect("no refused connection");
        assert!(names.iter().all(|name| name == "alpha" || name == "beta"), "{names:?}");
        assert!(names.windows(2).any(|pair| pair[0] != pair[1]), "the address did not move");
    }
}

#[test]
fn keeps_sessions_when_sentinels_are_replaced() {
    let cluster = Cluster::builder().replicas(1).sentinels(6).with_quorum(2).start();
    let all = cluster.sentinel_addrs();
    let first: Vec<String> = all[..3].iter().map(ToString::to_string).collect();
    let pointsman =
        builder(&cluster).sentinels(&first).service_line("learn_sentinels = false").start();
    let addr = pointsman.addr();
    let mut load = Load::to(addr).writers(4).start();
    let mut client = pointsman.client();
    assert_eq!(said(&mut client, &["MULTI"]), "OK");
    let sentinels = all[3..].to_vec();
    reload(&pointsman, &[Service { name: "mymaster", listen: addr, sentinels }], "applied");
    let up = |addr: &SocketAddr| {
        metric(&pointsman, &format!("pointsman_sentinel_up{{sentinel=\"{addr}\"}}"))
    };
    // With learn_sentinels, which is on by default again, the former ones are listed by the new.
    wait_until("the new sentinels", PATIENCE, || all[3..].iter().all(|it| up(it) == Some(1.0)));
    assert_eq!(said(&mut client, &["SET", "k", "v"]), "QUEUED");
    assert!(client.cmd(&["EXEC"]).is_ok(), "even a pinned session stays");
    assert_eq!(metric(&pointsman, "pointsman_target_generation{service=\"mymaster\"}"), Some(1.0));
    load.stop();
    assert_eq!(load.errors(), Vec::<String>::new());
    cluster.failover();
    wait_until("the switch", PATIENCE, || {
        metric(&pointsman, "pointsman_target_generation{service=\"mymaster\"}") == Some(2.0)
    });
    assert_eq!(said(&mut pointsman.client(), &["PING"]), "PONG");
}

#[test]
fn carries_no_session_to_another_deployment() {
    let (cluster, other) =
        (Cluster::builder().replicas(0).start(), Cluster::builder().replicas(0).start());
    let pointsman = builder(&cluster).start();
    let addr = pointsman.addr();
    let mut idle = pointsman.client();
    assert_eq!(said(&mut idle, &["SET", "where", "here"]), "OK");
    let there = other.nodes()[0].client().cmd(&["SET", "where", "there"]);
    assert!(there.is_ok());
    reload(&pointsman, &[service("mymaster", addr, &other)], "applied");
    // The session would be carried if it were a failover.
    let (bytes, _) = idle.read_to_end().expect("an end");
    assert!(bytes.is_empty(), "{bytes:?}");
    let series = "pointsman_sessions_not_carried_total{service=\"mymaster\",reason=\"other_data\"}";
    // Counted when the session has ended, which is after its client sees the end.
    wait_until("the count", PATIENCE, || metric(&pointsman, series) == Some(1.0));
    assert_eq!(said(&mut pointsman.client(), &["GET", "where"]), "there");
    let log = pointsman.process().log();
    assert!(log.contains("new master does not continue the history"), "{log}");
}

#[test]
fn changes_nothing_if_an_address_is_in_use() {
    let cluster = Cluster::builder().masters(&["alpha", "beta"]).replicas(0).start();
    let pointsman = builder(&cluster).services(&["alpha"]).start();
    let (alpha, beta) = (pointsman.addr_of("alpha").expect("an address"), cluster.address().port());
    let mut client = Client::connect(alpha).expect("a connection");
    assert_eq!(said(&mut client, &["PING"]), "PONG");
    let taken = cluster.nodes()[0].addr();
    let moved = cluster.address().port();
    let (one, two) = (service("alpha", moved, &cluster), service("beta", beta, &cluster));
    let three = Service { name: "gamma", listen: taken, sentinels: cluster.sentinel_addrs() };
    reload(&pointsman, &[one, two, three], "refused");
    let (_, status) = pointsman.get("/status").expect("status");
    assert!(
        status.contains(&format!("service gamma: listen address {taken} is already in use")),
        "{status}"
    );
    assert_eq!((open(&pointsman, "beta"), open(&pointsman, "alpha")), (None, Some(1.0)));
    assert!(Client::connect(moved).is_err() && Client::connect(beta).is_err());
    assert_eq!(said(&mut client, &["PING"]), "PONG");
    assert_eq!(said(&mut Client::connect(alpha).expect("a connection"), &["PING"]), "PONG");
}

#[test]
fn adds_service_again_while_it_drains() {
    let cluster = Cluster::builder().masters(&["alpha", "beta"]).replicas(1).start();
    let drain = QUICK_DRAIN.replace("3s", "60s");
    let pointsman = builder(&cluster)
        .lines(&drain)
        .arg("--set=admin.control=true")
        .arg("--set=admin.control_token_env=E2E_TOKEN")
        .env("E2E_TOKEN", TOKEN)
        .start();
    let [alpha, beta] = ["alpha", "beta"].map(|name| pointsman.addr_of(name).expect("an address"));
    let mut pinned = Client::connect(beta).expect("a connection");
    assert_eq!(said(&mut pinned, &["MULTI"]), "OK");
    let both = || [service("alpha", alpha, &cluster), service("beta", beta, &cluster)];
    for _ in 0..2 {
        reload(&pointsman, &both()[..1], "applied");
        assert!(Client::connect(beta).is_err());
        reload(&pointsman, &both(), "applied");
        // It continues with the master that it had: nobody waits for a verification.
        let mut client = Client::connect(beta).expect("a connection");
        assert_eq!(said(&mut client, &["PING"]), "PONG");
    }
    assert_eq!(
        metric(&pointsman, "pointsman_service_removed{service=\"beta\"}"),
        Some(0.0),
        "it is not being removed any more"
    );
    // A removed service takes no commands, and one that returned does.
    let paused = order(&pointsman, &["pause", "beta", "--for", "1s"], TOKEN);
    assert!(paused.status.success(), "{}", stderr(&paused));
    let resumed = order(&pointsman, &["resume", "beta"], TOKEN);
    assert!(resumed.status.success(), "{}", stderr(&resumed));
    assert_eq!(said(&mut pinned, &["SET", "k", "v"]), "QUEUED");
    assert!(pinned.cmd(&["EXEC"]).is_ok());
    // A stop in the middle of a removal.
    let mut last = Client::connect(beta).expect("a connection");
    assert_eq!(said(&mut last, &["MULTI"]), "OK");
    reload(&pointsman, &both()[..1], "applied");
    for command in [["pause", "beta"].as_slice(), &["switchover", "beta"]] {
        let refused = order(&pointsman, command, TOKEN);
        let reason = stderr(&refused);
        assert!(!refused.status.success(), "{command:?}");
        assert!(reason.contains("beta was removed from the configuration"), "{reason}");
    }
    pointsman.sigterm();
    assert_eq!(said(&mut last, &["EXEC"]), "");
    let (bytes, _) = last.read_to_end().expect("an orderly end");
    assert!(bytes.is_empty());
    assert!(pointsman.wait_exit(PATIENCE).success());
}

/// The replica is preferred when the service is removed, and no failover was ordered.
#[test]
fn ends_switchover_of_a_removed_service() {
    let cluster = Cluster::builder().masters(&["alpha", "beta"]).replicas(2).start();
    let pointsman = builder(&cluster)
        .lines(QUICK_DRAIN)
        .arg("--set=admin.control=true")
        .arg("--set=admin.control_token_env=E2E_TOKEN")
        .env("E2E_TOKEN", TOKEN)
        .start();
    let alpha = pointsman.addr_of("alpha").expect("an address");
    let master = cluster.master_addr("beta").expect("a master");
    let replicas: Vec<_> =
        cluster.groups()[1].nodes().iter().filter(|it| it.addr() != master).collect();
    let (replica, rival) = (replicas[0], replicas[1]);
    let priority = || {
        let reply = rival.ask(&["CONFIG", "GET", "replica-priority"]).expect("a reply");
        reply.field("replica-priority").map(ToString::to_string)
    };
    let (before, to) = (priority(), replica.addr().to_string());
    let done = std::thread::scope(|scope| {
        let ordered =
            scope.spawn(|| order(&pointsman, &["switchover", "beta", "--to", &to], TOKEN));
        wait_until("the priority to change", PATIENCE, || priority() != before);
        reload(&pointsman, &[service("alpha", alpha, &cluster)], "applied");
        ordered.join().expect("the order")
    });
    let reason = stderr(&done);
    assert!(!done.status.success() && reason.contains("was removed from the conf"), "{reason}");
    assert!(!reason.contains("the process is stopping"), "{reason}");
    wait_until("the priority to be restored", PATIENCE, || priority() == before);
    assert_eq!(cluster.master_addr("beta").expect("a master"), master);
}

#[test]
fn returns_all_resources_of_removed_services() {
    let cluster = Cluster::builder().masters(&["alpha", "beta"]).replicas(0).start();
    let drain = QUICK_DRAIN.replace("200ms", "0s");
    let pointsman = builder(&cluster).services(&["alpha"]).lines(&drain).start();
    let (alpha, beta) = (pointsman.addr_of("alpha").expect("an address"), cluster.address().port());
    let both = || [service("alpha", alpha, &cluster), service("beta", beta, &cluster)];
    // A sentinel has some series only once it has answered.
    wait_until("every sentinel to answer", PATIENCE, || {
        cluster.sentinel_addrs().iter().all(|addr| {
            let age = format!("pointsman_sentinel_view_age_seconds{{sentinel=\"{addr}\"}}");
            metric(&pointsman, &age).is_some()
        })
    });
    let (mut files, mut threads, mut before) = (0.0, 0.0, BTreeSet::new());
    for round in 0..50 {
        reload(&pointsman, &both(), "applied");
        let mut client = Client::connect(beta).expect("a connection");
        assert_eq!(said(&mut client, &["PING"]), "PONG");
        reload(&pointsman, &both()[..1], "applied");
        drop(client);
        wait_until("the end of beta", PATIENCE, || open(&pointsman, "beta").is_none());
        let series = || -> BTreeSet<String> {
            let text = pointsman.get("/metrics").expect("metrics").1;
            let names = text.lines().filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned()));
            names.collect()
        };
        if round == 0 {
            // What a first use allocates stays.
            files = metric(&pointsman, "process_open_fds").expect("files");
            threads = metric(&pointsman, "process_threads").expect("threads");
            before = series();
        }
        let more: Vec<String> = series().difference(&before).cloned().collect();
        assert_eq!(more, Vec::<String>::new(), "round {round}");
    }
    // Closed connections may take a moment.
    wait_until("all files to be closed", PATIENCE, || {
        metric(&pointsman, "process_open_fds").is_some_and(|now| now <= files)
    });
    // The runtime's thread for blocking calls starts with the first look at the configuration file,
    // which may come after the first round. A leak would be one of every round.
    wait_until("the threads to end", PATIENCE, || {
        metric(&pointsman, "process_threads").is_some_and(|now| now <= threads + 1.0)
    });
    assert_eq!(said(&mut Client::connect(alpha).expect("a connection"), &["PING"]), "PONG");
}
