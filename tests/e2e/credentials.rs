//! Credentials that change while the program runs: passwords of Redis and of the sentinels in every
//! order, wrong ones, and secret files that are exchanged.

use std::path::{Path, PathBuf};
use std::time::Duration;

use harness::{Cluster, Load, Node, Pointsman, wait_until};
use serde_json::Value as Json;

use crate::switchover::{TOKEN, order, stderr, stdout};
use crate::{PROGRAM, builder, metric};

const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const PROBE: &str =
    "resetkeys resetchannels -@all +auth +hello +ping +role +info +client|setname";
pub(crate) const WATCH: &str = "resetkeys resetchannels &* -@all +auth +hello +ping +role +info \
                                +subscribe +unsubscribe +client|setname +sentinel|myid \
                                +sentinel|get-master-addr-by-name +sentinel|master \
                                +sentinel|replicas +sentinel|sentinels +sentinel|failover";

/// Replaces a file atomically, like editors and deployments.
pub(crate) fn write(path: &Path, text: &str) {
    let next = path.with_extension("next");
    std::fs::write(&next, text).expect("a file");
    std::fs::rename(&next, path).expect("a rename");
}

/// A program that logs in with the secrets in these files.
fn with_secrets(cluster: &Cluster, redis: &Path, sentinel: Option<&Path>) -> Pointsman {
    let mut lines = format!("[service.auth]\nusername = \"probe\"\npassword_file = {redis:?}\n");
    if let Some(path) = sentinel {
        lines +=
            &format!("[service.sentinel_auth]\nusername = \"watch\"\npassword_file = {path:?}\n");
    }
    let pointsman = builder(cluster)
        .without_logins()
        .lines(&lines)
        .arg("--set=admin.control=true")
        .arg("--set=admin.control_token_env=E2E_TOKEN")
        .env("E2E_TOKEN", TOKEN)
        .start();
    wait_until("every node to be known", PATIENCE, || {
        let status = status(&pointsman);
        let nodes = status["services"][0]["nodes"].as_array().expect("nodes");
        nodes.len() == cluster.nodes().len() && nodes.iter().all(|node| node["offset"].is_u64())
    });
    wait_logged_in(cluster.nodes());
    pointsman
}

/// A replica is first asked without a password, if it does not require one.
fn wait_logged_in(nodes: &[Node]) {
    wait_until("a login at every node", PATIENCE, || {
        let clients = |node: &Node| node.ask(&["CLIENT", "LIST"]).expect("CLIENT LIST");
        let probed = |node| clients(node).text().is_some_and(|it| it.contains("user=probe"));
        nodes.iter().all(probed)
    });
}

fn cluster() -> Cluster {
    Cluster::builder().user(&format!("probe on >zero {PROBE}")).start()
}

pub(crate) fn status(pointsman: &Pointsman) -> Json {
    let (_, text) = pointsman.get("/status").expect("status");
    serde_json::from_str(&text).expect("JSON")
}

pub(crate) fn acl(nodes: &[Node], rules: &[&str]) {
    for node in nodes {
        let words = [&["ACL", "SETUSER"], rules].concat();
        assert!(node.ask(&words).expect("ACL SETUSER").is_ok());
    }
}

/// Ends the connections of a user, so that new ones have to log in.
pub(crate) fn kill(nodes: &[Node], user: &str) {
    for node in nodes {
        assert!(node.ask(&["CLIENT", "KILL", "USER", user]).expect("CLIENT KILL").int() > Some(0));
    }
}

fn gauge(pointsman: &Pointsman, name: &str, servers: &str) -> f64 {
    let series =
        format!("pointsman_credentials_{name}{{service=\"mymaster\",servers=\"{servers}\"}}");
    metric(pointsman, &series).expect("a gauge")
}

fn of_service(pointsman: &Pointsman, name: &str) -> f64 {
    metric(pointsman, &format!("pointsman_{name}{{service=\"mymaster\"}}")).expect("a metric")
}

/// Waits until the secret was read and all servers use it.
#[track_caller]
fn wait_renewed(pointsman: &Pointsman, applied: f64, servers: &str) {
    let reloads = "pointsman_config_reloads_total{result=\"applied\"}";
    wait_until("the reload", PATIENCE, || metric(pointsman, reloads) >= Some(applied));
    wait_until("all connections to be renewed", PATIENCE, || {
        let left = (gauge(pointsman, "outdated", servers), gauge(pointsman, "refused", servers));
        if left == (0.0, 0.0) { Ok(()) } else { Err(format!("{left:?} {}", status(pointsman))) }
    });
}

/// Nothing happened so far that a client or an operator would notice.
#[track_caller]
fn undisturbed(pointsman: &Pointsman, load: &Load, generation: f64) {
    assert_eq!(load.errors(), Vec::<String>::new());
    assert_eq!(of_service(pointsman, "holds_total"), generation - 1.0);
    assert_eq!(of_service(pointsman, "target_generation"), generation);
    assert_eq!(of_service(pointsman, "sentinels_up"), 3.0);
    assert_eq!(pointsman.get("/alive").expect("liveness").0, 200);
}

#[track_caller]
fn switch_over(pointsman: &Pointsman) {
    let done = order(pointsman, &["switchover"], TOKEN);
    assert!(done.status.success(), "{}{}", stdout(&done), stderr(&done));
}

/// No node refuses the probes.
fn accepted(pointsman: &Pointsman) -> bool {
    let nodes = &status(pointsman)["services"][0]["nodes"];
    nodes.as_array().expect("nodes").iter().all(|node| node["problem"].is_null())
}

fn load(pointsman: &Pointsman) -> Load {
    let load = Load::to(pointsman.addr()).writers(8).rate(200).start();
    wait_until("some writes", PATIENCE, || load.counts().acknowledged > 100);
    load
}

pub(crate) fn secret(cluster: &Cluster, name: &str, text: &str) -> PathBuf {
    let path = cluster.folder().join(name);
    write(&path, text);
    path
}

#[test]
fn rotates_probe_password_in_any_order() {
    let cluster = cluster();
    let path = secret(&cluster, "redis", "zero\n");
    let pointsman = with_secrets(&cluster, &path, None);
    let mut load = load(&pointsman);
    // Added on the servers, changed in the file, then removed from the servers.
    acl(cluster.nodes(), &["probe", ">one"]);
    write(&path, "one\n");
    wait_renewed(&pointsman, 1.0, "redis");
    acl(cluster.nodes(), &["probe", "<zero"]);
    undisturbed(&pointsman, &load, 1.0);
    // Both at the same time.
    acl(cluster.nodes(), &["probe", "resetpass", ">two"]);
    write(&path, "two\n");
    wait_renewed(&pointsman, 2.0, "redis");
    undisturbed(&pointsman, &load, 1.0);
    // The file first: the former password stays in use, and that is reported.
    write(&path, "three\n");
    wait_until("the refusals", PATIENCE, || gauge(&pointsman, "refused", "redis") == 3.0);
    let told = "server refuses the changed credentials, using those before";
    wait_until("the log", PATIENCE, || pointsman.process().log().contains(told));
    undisturbed(&pointsman, &load, 1.0);
    acl(cluster.nodes(), &["probe", "resetpass", ">three"]);
    wait_renewed(&pointsman, 3.0, "redis");
    // New connections use the last password only, and a planned failover works at once.
    kill(cluster.nodes(), "probe");
    switch_over(&pointsman);
    undisturbed(&pointsman, &load, 2.0);
    load.stop();
    assert_eq!(load.errors(), Vec::<String>::new());
    let log = pointsman.process().log();
    for password in ["\"one\"", "\"two\"", "\"three\"", "one\\n"] {
        assert!(!log.contains(password), "{password} in {log}");
    }
}

#[test]
fn says_that_a_server_is_full_during_a_rotation() {
    let cluster = cluster();
    let path = secret(&cluster, "redis", "zero\n");
    let pointsman = with_secrets(&cluster, &path, None);
    acl(cluster.nodes(), &["probe", ">one"]);
    let full = cluster.nodes()[1].ask(&["CONFIG", "SET", "maxclients", "1"]);
    assert!(full.expect("CONFIG SET").is_ok());
    write(&path, "one\n");
    wait_until("the reason", PATIENCE, || {
        let nodes = status(&pointsman)["services"][0]["nodes"].to_string();
        if nodes.contains("maxclients") { Ok(()) } else { Err(nodes) }
    });
}

#[test]
fn rotates_sentinel_password_in_any_order() {
    let cluster = Cluster::builder()
        .user(&format!("probe on >zero {PROBE}"))
        .sentinel_user(&format!("watch on >zero {WATCH}"))
        .start();
    let (redis, sentinel) =
        (secret(&cluster, "redis", "zero"), secret(&cluster, "sentinel", "zero"));
    let pointsman = with_secrets(&cluster, &redis, Some(&sentinel));
    let mut load = load(&pointsman);
    acl(cluster.sentinels(), &["watch", ">one"]);
    write(&sentinel, "one");
    wait_renewed(&pointsman, 1.0, "sentinel");
    undisturbed(&pointsman, &load, 1.0);
    // The server first: nothing but new connections needs the password.
    acl(cluster.sentinels(), &["watch", "resetpass", ">two"]);
    write(&sentinel, "two");
    wait_renewed(&pointsman, 2.0, "sentinel");
    undisturbed(&pointsman, &load, 1.0);
    write(&sentinel, "three");
    wait_until("the refusals", PATIENCE, || gauge(&pointsman, "refused", "sentinel") == 3.0);
    undisturbed(&pointsman, &load, 1.0);
    // A sentinel that is restarted meanwhile accepts what it accepted before.
    kill(&cluster.sentinels()[..1], "watch");
    wait_until("its connection", PATIENCE, || of_service(&pointsman, "sentinels_up") == 3.0);
    switch_over(&pointsman);
    acl(cluster.sentinels(), &["watch", "resetpass", ">three"]);
    wait_renewed(&pointsman, 3.0, "sentinel");
    undisturbed(&pointsman, &load, 2.0);
    kill(cluster.sentinels(), "watch");
    wait_until("all connections", PATIENCE, || of_service(&pointsman, "sentinels_up") == 3.0);
    load.stop();
    assert_eq!(load.errors(), Vec::<String>::new());
}

#[test]
fn keeps_working_password_beside_a_wrong_one() {
    let cluster = cluster();
    let path = secret(&cluster, "redis", "zero");
    let pointsman = with_secrets(&cluster, &path, None);
    let mut load = load(&pointsman);
    write(&path, "a-typing-error");
    wait_until("the refusals", PATIENCE, || gauge(&pointsman, "refused", "redis") == 3.0);
    let seen = status(&pointsman);
    let credentials = &seen["services"][0]["credentials"]["redis"];
    assert_eq!(credentials["outdated"], 3, "{credentials}");
    for refused in credentials["refused"].as_array().expect("refusals") {
        assert_eq!(refused["fallback"], true, "{refused}");
        assert!(refused["problem"].as_str().expect("text").contains("service.auth"), "{refused}");
    }
    // Even connections that have to be opened anew.
    kill(cluster.nodes(), "probe");
    wait_until("new connections", PATIENCE, || accepted(&pointsman));
    assert_eq!(gauge(&pointsman, "refused", "redis"), 3.0);
    switch_over(&pointsman);
    undisturbed(&pointsman, &load, 2.0);
    let (_, metrics) = pointsman.get("/metrics").expect("metrics");
    let (_, text) = pointsman.get("/status").expect("status");
    let log = pointsman.process().log();
    assert!(!format!("{metrics}{text}{log}").contains("a-typing-error"));
    // Repaired.
    acl(cluster.nodes(), &["probe", ">right"]);
    write(&path, "right");
    wait_renewed(&pointsman, 2.0, "redis");
    wait_logged_in(cluster.nodes());
    acl(cluster.nodes(), &["probe", "<zero"]);
    kill(cluster.nodes(), "probe");
    wait_until("new connections", PATIENCE, || accepted(&pointsman));
    undisturbed(&pointsman, &load, 2.0);
    load.stop();
    assert_eq!(load.errors(), Vec::<String>::new());
}

#[test]
fn reads_swapped_secret_volume() {
    let cluster = cluster();
    let volume = cluster.folder().join("secrets");
    // The layout of a kubelet's volume, see `reload`.
    let lay = |version: &str, text: &str| {
        let place = volume.join(version);
        std::fs::create_dir_all(&place).expect("a folder");
        std::fs::write(place.join("password"), text).expect("a file");
        let next = volume.join("..data_tmp");
        std::os::unix::fs::symlink(version, &next).expect("a link");
        std::fs::rename(&next, volume.join("..data")).expect("the exchange");
    };
    lay("..2026_1", "zero\n");
    let path = volume.join("password");
    std::os::unix::fs::symlink("..data/password", &path).expect("a link");
    let pointsman = with_secrets(&cluster, &path, None);
    let unread = || metric(&pointsman, "pointsman_config_secrets_unread");
    acl(cluster.nodes(), &["probe", ">one"]);
    lay("..2026_2", "one\n");
    wait_renewed(&pointsman, 1.0, "redis");
    assert_eq!(unread(), Some(0.0));
    // An empty secret, as of a volume that was prepared too early.
    lay("..2026_3", "");
    wait_until("the report", PATIENCE, || unread() == Some(1.0));
    assert_eq!(metric(&pointsman, "pointsman_config_last_reload_successful"), Some(0.0));
    assert!(status(&pointsman)["config"]["faults"][0].as_str().expect("why").contains("is empty"));
    kill(cluster.nodes(), "probe");
    acl(cluster.nodes(), &["probe", ">four"]);
    lay("..2026_4", "four\n");
    wait_renewed(&pointsman, 2.0, "redis");
    assert_eq!(unread(), Some(0.0));
    assert_eq!(of_service(&pointsman, "holds_total"), 0.0);
}

#[test]
fn replaces_control_token_at_once() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let path = secret(&cluster, "token", "the-first-token-1234\n");
    let pointsman = Pointsman::builder(PROGRAM, &cluster)
        .arg("--set=admin.control=true")
        .arg(format!("--set=admin.control_token_file={}", path.display()))
        .start();
    let resumes = |token: &str| order(&pointsman, &["resume"], token).status.success();
    assert!(resumes("the-first-token-1234") && !resumes("the-other-token-5678"));
    write(&path, "the-other-token-5678\n");
    wait_until("the other token", PATIENCE, || resumes("the-other-token-5678"));
    assert!(!resumes("the-first-token-1234"));
    // Too short: the one before stays valid.
    write(&path, "short\n");
    wait_until("the report", PATIENCE, || {
        metric(&pointsman, "pointsman_config_secrets_unread") == Some(1.0)
    });
    assert!(resumes("the-other-token-5678") && !resumes("short"));
}

#[test]
fn enables_control_commands_by_reload() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let line = "control_token_env = \"E2E_TOKEN\"\n";
    let pointsman = builder(&cluster).lines(line).env("E2E_TOKEN", TOKEN).start();
    let config = pointsman.process().log_path().with_file_name("pointsman.toml");
    let off = std::fs::read_to_string(&config).expect("the file");
    let resume = || order(&pointsman, &["resume"], TOKEN);
    let refused = || stderr(&resume()).contains("does not accept control commands");
    assert!(refused(), "{}", stderr(&resume()));
    write(&config, &off.replace(line, &format!("{line}control = true\n")));
    wait_until("commands", PATIENCE, || resume().status.success());
    write(&config, &off);
    wait_until("no commands", PATIENCE, refused);
}

#[test]
fn applies_minority_policy_while_in_a_minority() {
    let cluster = Cluster::builder().replicas(1).start();
    let pointsman = builder(&cluster).service_line("hold_timeout = \"60s\"").start();
    let config = pointsman.process().log_path().with_file_name("pointsman.toml");
    let text = std::fs::read_to_string(&config).expect("the file");
    let set = |policy: &str| {
        let line = format!("hold_timeout = \"60s\"\nminority = \"{policy}\"");
        write(&config, &text.replace("hold_timeout = \"60s\"", &line));
    };
    let mut client = pointsman.client();
    client.set_timeout(PATIENCE).expect("a timeout");
    cluster.sentinels()[1..].iter().for_each(Node::kill);
    wait_until("the minority", PATIENCE, || of_service(&pointsman, "sentinel_minority") == 1.0);
    assert!(client.cmd(&["SET", "a", "1"]).expect("SET").is_ok(), "the default is keep");
    set("hold");
    wait_until("the hold", PATIENCE, || of_service(&pointsman, "gate_closed") == 1.0);
    client.send(&harness::encode(&["SET", "a", "2"])).expect("SET");
    assert_eq!(cluster.nodes()[0].ask(&["GET", "a"]).expect("GET").text(), Some("1"));
    set("keep");
    assert!(client.read_value().expect("the held write").is_ok());
    wait_until("the gate", PATIENCE, || of_service(&pointsman, "gate_closed") == 0.0);
    // A session that cannot wait for a master ends.
    let mut pinned = pointsman.client();
    assert!(pinned.cmd(&["MULTI"]).expect("MULTI").is_ok());
    set("cut");
    wait_until("the end of the session", PATIENCE, || pinned.cmd(&["PING"]).is_err());
    let generation = || of_service(&pointsman, "target_generation");
    wait_until("the master to be gone", PATIENCE, || generation() == 0.0);
    // Healed.
    cluster.sentinels()[1..].iter().for_each(Node::start);
    wait_until("the master", PATIENCE, || generation() >= 2.0);
    assert!(pointsman.client().cmd(&["SET", "a", "3"]).expect("SET").is_ok());
    assert_eq!(metric(&pointsman, "pointsman_config_pending_restart"), Some(0.0));
}
