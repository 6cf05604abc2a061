//! Takeovers and reloads beneath sessions that share connections and work.

use std::time::Duration;

use harness::{Absences, Client, Ending, Events, Pointsman, encode, http_get, wait_until};

use crate::faults_process::run;
use crate::owners::{self, Owners};
use crate::restart::wait_for_place;
use crate::shared_load::{
    CLIENTS, assert_hidden, assert_synchronous, sharing, value, wait_sharing,
};
use crate::switchover::generation;
use crate::warning::Warning;

const PATIENCE: Duration = Duration::from_secs(40);

fn patient(pointsman: &Pointsman) -> Client {
    let client = pointsman.client();
    client.set_timeout(PATIENCE).expect("a timeout");
    client
}

#[track_caller]
fn assert_ends(client: &mut Client) {
    assert_eq!(client.read_to_end().expect("an orderly end"), (Vec::new(), Ending::Fin));
}

/// Working clients leave between two pipelines, idle ones at once, and what needs its own
/// connection is completed by the old process, as for dedicated sessions.
#[test]
fn takes_over_beneath_sharing_clients() {
    let cluster = owners::cluster().replicas(0).sentinels(1).start();
    let place = cluster.folder().to_owned();
    let lines = format!(
        "[shutdown]\naccept_min = \"0s\"\naccept_quiet = \"0s\"\naccept_max = \"0s\"\n\
         drain_spread = \"1s\"\ndrain_timeout = \"15s\"\n\
         [process]\nstate_dir = {place:?}\nworkers = 2"
    );
    let old = sharing(&cluster).lines(&lines).start();
    let owners = Owners::gather(old.addr(), 0..CLIENTS);
    let [mut idle, mut multi, mut subscriber, mut blocked] = [(); 4].map(|()| patient(&old));
    for client in [&mut idle, &mut multi, &mut subscriber, &mut blocked] {
        assert!(client.cmd(&["SET", "k", "v"]).expect("SET").is_ok());
    }
    wait_sharing(&old, CLIENTS + 4);
    assert!(multi.cmd(&["MULTI"]).expect("MULTI").is_ok());
    assert_eq!(subscriber.cmd(&["SUBSCRIBE", "c"]).expect("SUBSCRIBE").items().len(), 3);
    blocked.send(&encode(&["BLPOP", "list", "0"])).expect("sent");
    wait_until("the pop to block", PATIENCE, || {
        cluster.master().info("clients", "blocked_clients").is_ok_and(|it| it == "1")
    });
    owners.wait_for(3);
    wait_for_place(&place.join("takeover.sock"));
    let config = old.process().log_path().with_file_name("pointsman.toml");
    let new = run("successor", &place, &config, &["--takeover"]);
    assert_ends(&mut idle);
    // Every client is served by the new process; none was closed twice.
    wait_until("the clients to change", PATIENCE, || owners.left() >= CLIENTS);
    let admin = old.admin();
    wait_until("the new one to answer probes", PATIENCE, || {
        assert!(new.is_running(), "{}", new.tail());
        http_get(admin, "/ready").is_ok_and(|(status, _)| status == 200)
    });
    wait_sharing(&old, CLIENTS);
    owners.wait_for(5);
    assert!(old.process().is_running(), "it did not wait for its clients");
    let mut other = patient(&old);
    assert_eq!(other.cmd(&["PUBLISH", "c", "hello"]).expect("PUBLISH").int(), Some(1));
    assert_eq!(subscriber.read_value().expect("a message").items()[2].text(), Some("hello"));
    assert_eq!(other.cmd(&["LPUSH", "list", "item"]).expect("LPUSH").int(), Some(1));
    assert_eq!(blocked.read_value().expect("its reply").items()[1].text(), Some("item"));
    assert_ends(&mut blocked);
    assert_eq!(multi.cmd(&["INCR", "n"]).expect("INCR").text(), Some("QUEUED"));
    assert_eq!(multi.cmd(&["EXEC"]).expect("EXEC").items()[0].int(), Some(1));
    assert_ends(&mut multi);
    drop(subscriber);
    assert_eq!(old.wait_exit(PATIENCE).code(), Some(0));
    assert!(old.process().log().contains("\"cut\":0"), "{}", old.process().tail());
    assert_synchronous(&old);
    let seen = owners.end(cluster.master());
    seen.assert_flawless();
    assert_eq!(seen.left, CLIENTS);
}

/// Replaces the mode of the service, and waits for the reload.
#[track_caller]
fn set_mode(pointsman: &Pointsman, from: &str, to: &str) {
    let applied = || {
        let name = "pointsman_config_reloads_total{result=\"applied\"}";
        crate::metric(pointsman, name).expect("a counter")
    };
    let before = applied();
    let path = pointsman.process().log_path().with_file_name("pointsman.toml");
    let text = std::fs::read_to_string(&path).expect("the file");
    let [from, to] = [from, to].map(|mode| format!("upstream = \"{mode}\""));
    assert!(text.contains(&from), "{text}");
    let next = path.with_extension("next");
    std::fs::write(&next, text.replace(&from, &to)).expect("a file");
    std::fs::rename(&next, &path).expect("a rename");
    wait_until("the reload", PATIENCE, || applied() > before);
}

/// A change of `upstream` applies to sessions that begin after it, and costs the others nothing.
#[test]
fn changes_modes_beneath_working_clients() {
    const HALF: usize = CLIENTS / 2;
    let cluster = owners::cluster().start();
    let pointsman = sharing(&cluster).start();
    let numbers = || {
        ["pointsman_shared_sessions", "pointsman_dedicated_sessions"]
            .map(|name| value(&pointsman, name) as usize)
    };
    let wait_numbers = |expected: [usize; 2]| {
        wait_until("the sessions", PATIENCE, || {
            let now = numbers();
            if now == expected { Ok(()) } else { Err(format!("{now:?}")) }
        });
    };
    let first = Owners::gather(pointsman.addr(), 0..HALF);
    wait_sharing(&pointsman, HALF);
    first.wait_for(3);
    set_mode(&pointsman, "shared", "dedicated");
    let second = Owners::gather(pointsman.addr(), HALF..CLIENTS);
    second.wait_for(3);
    wait_numbers([HALF, HALF]);
    set_mode(&pointsman, "dedicated", "shared");
    let mut third = patient(&pointsman);
    assert!(third.cmd(&["SET", "k", "v"]).expect("SET").is_ok());
    first.wait_for(3);
    second.wait_for(3);
    wait_numbers([HALF + 1, HALF]);
    // Sessions that shared need connections of their own at a failover after the change.
    set_mode(&pointsman, "shared", "dedicated");
    let (events, absences) = (Events::of_all(cluster.sentinels()), Absences::watch());
    cluster.failover();
    wait_until("the switch", PATIENCE, || generation(&pointsman) >= 2.0);
    first.wait_for(5);
    second.wait_for(5);
    assert_eq!(third.cmd(&["GET", "k"]).expect("GET").text(), Some("v"));
    wait_numbers([0, 2 * HALF + 1]);
    assert_synchronous(&pointsman);
    let warning = Warning::of(&events, &absences);
    for owners in [first, second] {
        assert_hidden(owners.end(cluster.master()), &warning);
    }
}
