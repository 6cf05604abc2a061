//! The commands that `pointsman sentinels` prints, run as they are: real sentinels are brought into
//! each state for which there are commands, a shell runs them, and the doctor is satisfied.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use harness::{Cluster, Node, wait_until};
use serde_json::Value as Json;

use crate::PROGRAM;

const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const PASSWORDS: &str =
    "[service.auth]\npassword = \"redis-pw\"\n[service.sentinel_auth]\npassword = \"sentinel-pw\"";

/// The doctor, with the first sentinels of a cluster configured.
pub(crate) struct Doctor<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) sentinels: usize,
    pub(crate) lines: &'static str,
}

impl Doctor<'_> {
    /// The findings that are no notes.
    pub(crate) fn findings(&self) -> Vec<Json> {
        let addrs = self.cluster.sentinel_addrs();
        let sentinels: Vec<String> =
            addrs.iter().take(self.sentinels).map(ToString::to_string).collect();
        let config = self.cluster.folder().join("doctor.toml");
        let text = format!(
            "[[service]]\nname = \"mymaster\"\nsentinels = {sentinels:?}\n{}\n",
            self.lines
        );
        std::fs::write(&config, text).expect("a file");
        let mut command = Command::new(PROGRAM);
        command.args(["sentinels", "--json", "--config"]).arg(&config);
        let output = command.env_clear().stdin(Stdio::null()).output().expect("the program");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(!text.contains("-pw"), "a secret was shown: {text}");
        let document: Json =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        let all = document["services"][0]["findings"].as_array().expect("findings");
        all.iter().filter(|it| it["severity"] != "note").cloned().collect()
    }

    /// Waits for a finding with commands, runs them, and returns them.
    #[track_caller]
    pub(crate) fn follow(&self, code: &str) -> Vec<String> {
        self.follow_with(code, &[])
    }

    /// The same, with these variables set by the operator.
    #[track_caller]
    pub(crate) fn follow_with(&self, code: &str, env: &[(&str, String)]) -> Vec<String> {
        let commands = wait_until(&format!("commands for {code}"), PATIENCE, || {
            let findings = self.findings();
            let found = findings.iter().find(|it| it["code"] == code);
            let commands: Vec<String> = found
                .and_then(|it| it["commands"].as_array())
                .into_iter()
                .flatten()
                .map(|it| it.as_str().unwrap_or_default().to_owned())
                .collect();
            if commands.is_empty() { Err(format!("{findings:#?}")) } else { Ok(commands) }
        });
        let mut shell = Command::new("timeout");
        shell.args(["60", "sh", "-e", "-c", &commands.join("\n")]);
        shell.envs(env.iter().map(|(key, value)| (key, value)));
        if self.lines == PASSWORDS {
            shell.env("REDISCLI_AUTH", "sentinel-pw").env("REDIS_PASSWORD", "redis-pw");
        }
        let output = shell.stdin(Stdio::null()).output().expect("a shell");
        let (out, err) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{commands:#?}\n{out}{err}");
        assert!(!out.contains("ERR") && !out.contains("NOAUTH"), "{commands:#?}\n{out}{err}");
        commands
    }

    #[track_caller]
    pub(crate) fn wait_satisfied(&self) {
        wait_until("a satisfied doctor", PATIENCE, || {
            let findings = self.findings();
            if findings.is_empty() { Ok(()) } else { Err(format!("{findings:#?}")) }
        });
    }
}

fn file_of(cluster: &Cluster, node: &Node) -> PathBuf {
    let name = node.name();
    cluster.folder().join(name).join(format!("{name}.conf"))
}

/// Restarts a server with another file.
pub(crate) fn restart_with(cluster: &Cluster, node: &Node, change: impl FnOnce(String) -> String) {
    node.kill();
    let path = file_of(cluster, node);
    let text = std::fs::read_to_string(&path).expect("its file");
    std::fs::write(&path, change(text)).expect("its file");
    node.restart();
}

/// A field of a sentinel's `SENTINEL MASTER`.
fn master_field(sentinel: &Node, key: &str) -> String {
    let master = sentinel.ask(&["SENTINEL", "MASTER", "mymaster"]).expect("its view");
    master.field(key).map(ToString::to_string).unwrap_or_default()
}

fn my_id(sentinel: &Node) -> String {
    sentinel.ask(&["SENTINEL", "MYID"]).expect("an ID").to_string()
}

/// The other sentinels that a sentinel lists: their IDs and addresses.
fn listed_peers(sentinel: &Node) -> Vec<(String, String)> {
    let peers = sentinel.ask(&["SENTINEL", "SENTINELS", "mymaster"]).expect("its list");
    let field = |peer: &harness::Value, key: &str| {
        peer.field(key).map(ToString::to_string).unwrap_or_default()
    };
    let row = |it: &harness::Value| {
        (field(it, "runid"), format!("{}:{}", field(it, "ip"), field(it, "port")))
    };
    peers.items().iter().map(row).collect()
}

/// Two of three sentinels name a replica, at the epoch of the third. With REMOVE and MONITOR on one
/// after the other, the first one adopts the wrong master again from the second one's hello.
#[test]
fn realigns_sentinels_that_are_split_at_one_epoch() {
    let cluster = Cluster::builder().password("redis-pw").sentinel_password("sentinel-pw").start();
    let right = cluster.failover().to;
    cluster.wait_whole();
    let wrong = cluster.replicas()[0].addr();
    let rename = |text: String| {
        let monitor = |port: u16| format!("sentinel monitor mymaster {} {port} 2", right.ip());
        assert!(text.contains(&monitor(right.port())), "{text}");
        text.replace(&monitor(right.port()), &monitor(wrong.port()))
    };
    let [_, two, three] = cluster.sentinels() else { panic!("three sentinels") };
    two.kill();
    restart_with(&cluster, three, rename);
    restart_with(&cluster, two, rename);
    let doctor = Doctor { cluster: &cluster, sentinels: 3, lines: PASSWORDS };
    // RESET, which is often recommended, changes neither the address nor the epoch.
    let named = |it: &Node| (master_field(it, "port"), master_field(it, "config-epoch"));
    three.ask(&["SENTINEL", "RESET", "mymaster"]).expect("RESET");
    assert_eq!(named(three), (wrong.port().to_string(), "1".to_owned()));

    doctor.follow("disagreement");
    doctor.wait_satisfied();
    for sentinel in cluster.sentinels() {
        assert_eq!(named(sentinel), (right.port().to_string(), "1".to_owned()));
        assert_eq!(master_field(sentinel, "down-after-milliseconds"), "2000");
        assert_eq!(master_field(sentinel, "failover-timeout"), "6000");
        assert_eq!(master_field(sentinel, "parallel-syncs"), "10");
        assert_eq!(master_field(sentinel, "quorum"), "2");
    }
    // They can fail over, with the password that was set again.
    cluster.failover();
}

/// A sentinel that nobody lists names an address that is gone, and no hello reaches it.
#[test]
fn realigns_a_sentinel_at_a_stale_epoch() {
    let cluster = Cluster::builder().start();
    let [one, two, three] = cluster.sentinels() else { panic!("three sentinels") };
    three.kill();
    cluster.failover();
    cluster.wait_whole();
    for sentinel in [one, two] {
        sentinel.ask(&["SENTINEL", "RESET", "mymaster"]).expect("RESET");
    }
    let nowhere = cluster.address().port();
    restart_with(&cluster, three, |text| {
        let gone = |line: &&str| {
            !line.starts_with("sentinel known-") && !line.starts_with("sentinel config-epoch")
        };
        let monitor = format!("sentinel monitor mymaster {} {} 2", nowhere.ip(), nowhere.port());
        let lines = text.lines().filter(gone).map(|line| {
            if line.starts_with("sentinel monitor ") { monitor.as_str() } else { line }
        });
        lines.map(|line| format!("{line}\n")).collect()
    });
    let doctor = Doctor { cluster: &cluster, sentinels: 3, lines: "" };
    doctor.follow("stale-epoch");
    doctor.wait_satisfied();
    cluster.wait_whole();
    assert_eq!(master_field(three, "config-epoch"), "1");
}

/// It has a new ID and knows no name. Its peers replace its old entry when they hear it.
#[test]
fn restores_a_sentinel_that_lost_its_file() {
    let cluster = Cluster::builder().password("redis-pw").sentinel_password("sentinel-pw").start();
    let lost = &cluster.sentinels()[2];
    let id = my_id(lost);
    restart_with(&cluster, lost, |text| {
        let kept = |line: &&str| {
            !line.starts_with("sentinel ") || line.contains("announce") || line.contains("-pass")
        };
        let lines = text.lines().filter(kept).filter(|line| !line.contains("mymaster"));
        lines.map(|line| format!("{line}\n")).collect()
    });
    assert_ne!(my_id(lost), id);
    let doctor = Doctor { cluster: &cluster, sentinels: 3, lines: PASSWORDS };
    doctor.follow("unknown-name");
    doctor.wait_satisfied();
    cluster.wait_whole();
    assert_eq!(master_field(lost, "down-after-milliseconds"), "2000");
    assert_eq!(master_field(lost, "parallel-syncs"), "10");
}

/// A file was copied to a new host with the ID in it. The last line stops at the edited file, as
/// starting it is its service manager's task. Then the first sentinel usually lists the third one
/// under a former ID as well: its own one, or the copied one.
#[test]
fn gives_a_copied_sentinel_an_identity_of_its_own() {
    let cluster = Cluster::builder().start();
    let [_, two, three] = cluster.sentinels() else { panic!("three sentinels") };
    let (id, own) = (my_id(two), my_id(three));
    restart_with(&cluster, three, |text| {
        let lines = text.lines().filter(|line| !line.contains(&id));
        lines.map(|line| format!("{}\n", line.replace(&own, &id))).collect()
    });
    assert_eq!(my_id(three), id);
    let doctor = Doctor { cluster: &cluster, sentinels: 3, lines: "" };
    let commands = doctor.follow("same-id");
    assert!(commands[0].ends_with("SHUTDOWN") && commands[1].starts_with("sed "), "{commands:?}");
    let stopped =
        if commands[0].contains(&format!("-p {} ", two.addr().port())) { two } else { three };
    wait_until("the end of the sentinel", PATIENCE, || {
        if stopped.is_running() { Err("it runs".to_owned()) } else { Ok(()) }
    });
    stopped.restart();
    assert_ne!(my_id(two), my_id(three));
    let present: Vec<(String, String)> =
        cluster.sentinels().iter().map(|it| (my_id(it), it.addr().to_string())).collect();
    let lists = || cluster.sentinels().iter().map(listed_peers).collect::<Vec<_>>();
    wait_until("every sentinel to know the others as they are", PATIENCE, || {
        let missing = |(list, own): (&Vec<_>, &(String, String))| {
            present.iter().any(|it| it != own && !list.contains(it))
        };
        let now = lists();
        if now.iter().zip(&present).any(missing) { Err(format!("{now:#?}")) } else { Ok(()) }
    });
    // Which of two entries at one address a sentinel drops for a new one is left to chance.
    if lists().iter().flatten().any(|it| !present.contains(it)) {
        doctor.follow("former-id");
    }
    doctor.wait_satisfied();
    cluster.wait_whole();
    cluster.failover();
}

/// The chance of the test above, made certain: a sentinel lists a running one under its former ID,
/// too. It answers PING for both, so the former one is never found down.
#[test]
fn forgets_a_former_id_of_a_running_sentinel() {
    let cluster = Cluster::builder().password("redis-pw").sentinel_password("sentinel-pw").start();
    let [one, _, three] = cluster.sentinels() else { panic!("three sentinels") };
    let former = "f".repeat(40);
    let (ip, port) = (three.addr().ip(), three.addr().port());
    restart_with(&cluster, one, |text| {
        format!("{text}sentinel known-sentinel mymaster {ip} {port} {former}\n")
    });
    let lists_former = || listed_peers(one).iter().any(|(id, _)| *id == former);
    assert!(lists_former());
    let doctor = Doctor { cluster: &cluster, sentinels: 3, lines: PASSWORDS };
    let commands = doctor.follow("former-id");
    assert_eq!(commands.iter().filter(|it| it.contains(" RESET ")).count(), 1, "{commands:#?}");
    assert!(!lists_former());
    doctor.wait_satisfied();
    cluster.failover();
}

/// A removed sentinel counts towards the majority, and a removed replica is asked forever, until
/// RESET. While a sentinel learns its peers and replicas anew it can take part in no failover, so
/// the commands wait for both before the next one.
#[test]
fn forgets_removed_sentinels_and_replicas() {
    let cluster = Cluster::builder().sentinels(4).with_quorum(2).replicas(3).start();
    let [ghost, gone] = [&cluster.sentinels()[3], cluster.replicas()[2]];
    ghost.kill();
    gone.kill();
    let listed = |sentinel: &Node| {
        (master_field(sentinel, "num-other-sentinels"), master_field(sentinel, "num-slaves"))
    };
    let kept = &cluster.sentinels()[..3];
    let doctor = Doctor { cluster: &cluster, sentinels: 3, lines: "" };
    wait_until("both to be reported", PATIENCE, || {
        let findings = doctor.findings();
        let has = |code: &str| findings.iter().filter(|it| it["code"] == code).count();
        let complete = has("ghost") == 2 && has("even-sentinels") == 1 && findings.len() == 3;
        if complete { Ok(()) } else { Err(format!("{findings:#?}")) }
    });
    assert!(kept.iter().all(|it| listed(it) == ("3".to_owned(), "3".to_owned())));

    let began = Instant::now();
    let commands = doctor.follow("ghost");
    println!("{} commands took {:?}", commands.len(), began.elapsed());
    assert_eq!(commands.iter().filter(|it| it.contains(" RESET ")).count(), 3, "{commands:#?}");
    doctor.wait_satisfied();
    assert!(kept.iter().all(|it| listed(it) == ("2".to_owned(), "2".to_owned())));
    // The first command of the next one was run only when the one before knew all again: a failover
    // is possible at once.
    cluster.failover();
}

/// The roles of two nodes were swapped by hand, and every sentinel names the old master.
#[test]
fn realigns_sentinels_after_a_manual_change_of_roles() {
    let minute = Duration::from_secs(60);
    let cluster =
        Cluster::builder().down_after(Duration::from_secs(30)).failover_timeout(minute).start();
    let (old, new) = (&cluster.nodes()[0], &cluster.nodes()[1]);
    let follow = |node: &Node| {
        let (ip, port) = (new.addr().ip().to_string(), new.addr().port().to_string());
        node.ask(&["REPLICAOF", &ip, &port]).expect("REPLICAOF");
    };
    new.ask(&["REPLICAOF", "NO", "ONE"]).expect("REPLICAOF");
    follow(old);
    follow(&cluster.nodes()[2]);
    let doctor = Doctor { cluster: &cluster, sentinels: 3, lines: "hold_timeout = \"60s\"" };
    doctor.follow("not-master");
    doctor.wait_satisfied();
    assert_eq!(cluster.master().addr(), new.addr());
}
