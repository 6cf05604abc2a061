//! Finding the master: with all sentinels, few, none or wrong ones, by name, with passwords.

use std::time::Duration;

use harness::{Cluster, Family, Load, Pointsman, wait_until};

use crate::switchover::{TOKEN, controlled_by, order, stderr, stdout};
use crate::{PROGRAM, builder, metric, pointsman};

const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn serves_while_all_sentinels_are_down() {
    let cluster = Cluster::builder().start();
    let pointsman = pointsman(&cluster);
    let mut load = Load::to(pointsman.addr()).writers(4).rate(500).start();
    wait_until("some writes", PATIENCE, || load.counts().acknowledged > 100);
    for sentinel in cluster.sentinels() {
        sentinel.kill();
    }
    wait_until("the loss to be noticed", PATIENCE, || {
        metric(&pointsman, "pointsman_sentinels_up{service=\"mymaster\"}") == Some(0.0)
    });
    // Longer than any opinion of the sentinels is valid.
    let seen = load.counts().acknowledged;
    wait_until("3000 writes more, which takes six seconds", PATIENCE, || {
        load.counts().acknowledged > seen + 3000
    });
    assert_eq!(load.counts().errors, 0, "{:?}", load.errors());
    assert_eq!(pointsman.get("/ready").expect("ready").0, 200);
    assert_eq!(pointsman.get("/alive").expect("alive").0, 200);
    load.stop();
}

#[test]
fn starts_when_sentinels_appear() {
    let cluster = Cluster::builder().start();
    for sentinel in cluster.sentinels() {
        sentinel.kill();
    }
    let pointsman = builder(&cluster).without_waiting().start();
    wait_until("the admin server to answer", PATIENCE, || pointsman.get("/alive").is_ok());
    let (status, why) = pointsman.get("/ready").expect("ready");
    assert_eq!(status, 503);
    assert!(why.contains("no master found yet"), "{why}");
    assert_eq!(helm_test(&pointsman), Some(1));
    assert_eq!(pointsman.get("/alive").expect("alive").0, 200);
    for sentinel in cluster.sentinels() {
        sentinel.restart();
    }
    pointsman.wait_ready(PATIENCE);
    assert_eq!(helm_test(&pointsman), Some(0));
    assert_eq!(pointsman.client().cmd(&["PING"]).expect("PING").text(), Some("PONG"));
}

/// The exit code of the command that the chart's `helm test` runs.
fn helm_test(pointsman: &Pointsman) -> Option<i32> {
    let admin = pointsman.admin().to_string();
    let status =
        std::process::Command::new(PROGRAM).args(["status", "--ready", "--admin", &admin]).status();
    status.expect("pointsman status").code()
}

#[test]
fn reports_unknown_master_name() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let pointsman = builder(&cluster).services(&["nosuch"]).without_waiting().start();
    wait_until("the admin server to answer", PATIENCE, || pointsman.get("/alive").is_ok());
    wait_until("the sentinel's answer to be counted", PATIENCE, || {
        metric(&pointsman, "pointsman_sentinel_unknown_name_total{service=\"nosuch\"}") > Some(0.0)
    });
    assert_eq!(pointsman.get("/ready").expect("ready").0, 503);
    let (_, status) = pointsman.get("/status").expect("status");
    assert!(status.contains("it monitors no master named nosuch"), "{status}");
}

#[test]
fn finds_all_sentinels_from_one() {
    let cluster = Cluster::builder().start();
    let first = cluster.sentinels()[0].addr();
    let pointsman = Pointsman::builder(PROGRAM, &cluster).sentinels(&[first.to_string()]).start();
    wait_until("the others to be found", PATIENCE, || {
        metric(&pointsman, "pointsman_sentinels_up{service=\"mymaster\"}") == Some(3.0)
    });
    cluster.sentinels()[0].kill();
    let failover = cluster.failover();
    wait_until("the switch without the sentinel that was named", PATIENCE, || {
        pointsman
            .get("/status")
            .is_ok_and(|(_, status)| status.contains(&format!("\"addr\": \"{}\"", failover.to)))
            && metric(&pointsman, "pointsman_target_generation{service=\"mymaster\"}") >= Some(2.0)
    });
}

#[test]
fn finds_sentinels_by_a_shared_name() {
    let cluster = Cluster::builder().family(Family::Localhost).start();
    let port = cluster.sentinels()[0].addr().port();
    // "localhost" exists on every machine; it may also resolve to an IPv6 address without a
    // listener.
    let pointsman =
        Pointsman::builder(PROGRAM, &cluster).sentinels(&[format!("localhost:{port}")]).start();
    assert_eq!(pointsman.client().cmd(&["PING"]).expect("PING").text(), Some("PONG"));
}

#[test]
fn works_over_ipv6() {
    let cluster = Cluster::builder().family(Family::Ipv6).start();
    let pointsman = pointsman(&cluster);
    assert!(pointsman.addr().is_ipv6());
    let mut client = pointsman.client();
    assert!(client.cmd(&["SET", "six", "6"]).expect("SET").is_ok());
    let before = cluster.master().addr();
    cluster.failover();
    wait_until("the switch", PATIENCE, || {
        metric(&pointsman, "pointsman_target_generation{service=\"mymaster\"}") >= Some(2.0)
    });
    assert_ne!(cluster.master().addr(), before);
    assert!(pointsman.client().cmd(&["SET", "six", "7"]).expect("SET").is_ok());
}

#[test]
fn follows_failover_among_announced_names() {
    // Every node is announced as "localhost" with its own port, in replies of the sentinels and in
    // their events.
    let cluster = Cluster::builder().family(Family::Localhost).start();
    let pointsman = pointsman(&cluster);
    assert!(pointsman.client().cmd(&["SET", "name", "1"]).expect("SET").is_ok());
    let failover = cluster.failover();
    wait_until("the switch", PATIENCE, || {
        metric(&pointsman, "pointsman_target_generation{service=\"mymaster\"}") >= Some(2.0)
    });
    assert!(pointsman.client().cmd(&["SET", "name", "2"]).expect("SET").is_ok());
    let (_, status) = pointsman.get("/status").expect("status");
    assert!(status.contains(&format!("\"localhost:{}\"", failover.to.port())), "{status}");
    assert_eq!(
        cluster.node_at(failover.to).expect("a node").ask(&["GET", "name"]).expect("GET").text(),
        Some("2")
    );
}

#[test]
fn uses_and_hides_passwords() {
    let cluster = Cluster::builder()
        .password("redis-secret-1")
        .sentinel_password("sentinel-secret-2")
        .start();
    let auth = "[service.auth]\npassword = \"redis-secret-1\"\n[service.sentinel_auth]\npassword = \"sentinel-secret-2\"";
    let pointsman = builder(&cluster)
        .without_logins()
        .service_line(auth)
        .arg("--set")
        .arg("log.level=debug")
        .start();
    let mut client = pointsman.client();
    assert!(client.cmd(&["PING"]).expect("PING").is_error(), "clients authenticate for themselves");
    assert!(client.cmd(&["AUTH", "redis-secret-1"]).expect("AUTH").is_ok());
    assert!(client.cmd(&["SET", "a", "b"]).expect("SET").is_ok());
    let shown = [
        pointsman.process().log(),
        pointsman.get("/status").expect("status").1,
        pointsman.get("/metrics").expect("metrics").1,
    ];
    for text in shown {
        assert!(
            !text.contains("secret-1") && !text.contains("secret-2"),
            "a secret was shown: {text}"
        );
    }
}

#[test]
fn reports_wrong_password_with_remedy() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).password("right-one").start();
    let auth = "[service.auth]\npassword = \"wrong-one\"";
    let pointsman = builder(&cluster).without_logins().service_line(auth).without_waiting().start();
    wait_until("the refusal to be told", PATIENCE, || {
        pointsman.get("/status").is_ok_and(|(_, status)| status.contains("check service.auth"))
    });
    assert_eq!(pointsman.get("/ready").expect("ready").0, 503);
    assert!(!pointsman.process().log().contains("wrong-one"));
}

#[test]
fn works_with_documented_minimum_acl() {
    let (cluster, auth) = restricted("&*", "");
    let pointsman = builder(&cluster).without_logins().service_line(auth).start();
    cluster.failover();
    wait_until("the switch", PATIENCE, || {
        metric(&pointsman, "pointsman_target_generation{service=\"mymaster\"}") >= Some(2.0)
    });
    nothing_is_refused(&pointsman);
}

#[test]
fn works_with_documented_channels_only() {
    let text = include_str!("../../docs/quickstart.md");
    let listed = text.lines().filter(|line| line.starts_with("&+") || line.starts_with("&-"));
    let channels: Vec<&str> = listed.flat_map(str::split_whitespace).collect();
    assert!(channels.len() > 30 && channels.contains(&"&+switch-master"), "{channels:?}");
    let (cluster, auth) = restricted(&channels.join(" "), "+sentinel|failover");
    let pointsman = controlled_by(&cluster, builder(&cluster).without_logins().service_line(auth));
    wait_until("subscriptions to all sentinels", PATIENCE, || {
        let log = pointsman.process().log();
        log.matches("\"events\":true").count() >= cluster.sentinels().len()
    });
    let done = order(&pointsman, &["switchover"], TOKEN);
    assert!(done.status.success(), "{}{}", stdout(&done), stderr(&done));
    // Only an event tells when the promotion was seen; polls do not.
    assert!(stdout(&done).contains("s  promote "), "{}", stdout(&done));
    nothing_is_refused(&pointsman);
}

/// A cluster with the documented users, and the settings with which they are used.
fn restricted(channels: &str, more: &str) -> (Cluster, &'static str) {
    let sentinel_rules = format!(
        "watch on >watch-secret resetkeys resetchannels {channels} -@all +auth +hello +ping +role +info +subscribe \
         +psubscribe +unsubscribe +client|setname +client|id +sentinel|get-master-addr-by-name \
         +sentinel|master +sentinel|replicas +sentinel|sentinels +sentinel|myid +sentinel|ckquorum {more}"
    );
    let redis_rules = "probe on >probe-secret resetkeys resetchannels -@all +auth +hello +ping +role +info +client|setname";
    let cluster = Cluster::builder().user(redis_rules).sentinel_user(&sentinel_rules).start();
    let auth = "[service.auth]\nusername = \"probe\"\npassword = \"probe-secret\"\n[service.sentinel_auth]\nusername = \"watch\"\n\
                password = \"watch-secret\"";
    (cluster, auth)
}

#[track_caller]
fn nothing_is_refused(pointsman: &Pointsman) {
    let (_, status) = pointsman.get("/status").expect("status");
    assert!(!status.contains("ACL"), "something is not allowed: {status}");
}
