//! Credentials and sessions follow the replication history: they reach no node outside of it.

use std::time::Duration;

use harness::{Client, Cluster, Pointsman, Signal, wait_until};

use crate::credentials::{acl, status};
use crate::{builder, metric};

const PATIENCE: Duration = Duration::from_secs(60);
const APP: &str = "app on >the-password-of-app ~* &* +@all -info -role";
const PROBE: &str = "probe on >the-password-of-probe -@all +auth +ping +role +info +client|setname";
const SERVICE_AUTH: &str =
    "[service.auth]\nusername = \"probe\"\npassword = \"the-password-of-probe\"\n";

fn closed(pointsman: &Pointsman, reason: &str) -> f64 {
    let series =
        format!("pointsman_sessions_closed_total{{service=\"mymaster\",reason=\"{reason}\"}}");
    metric(pointsman, &series).unwrap_or(0.0)
}

fn count(pointsman: &Pointsman, name: &str) -> f64 {
    metric(pointsman, &format!("pointsman_{name}{{service=\"mymaster\"}}")).expect("a metric")
}

/// Every node gets the account of the application and that of the proxy.
fn with_accounts(cluster: &Cluster) {
    for rules in [APP, PROBE] {
        acl(cluster.nodes(), &rules.split(' ').collect::<Vec<_>>());
    }
}

fn text(client: &mut Client, words: &[&str]) -> Option<String> {
    client.cmd(words).ok()?.text().map(str::to_owned)
}

fn log_in(pointsman: &Pointsman) -> Client {
    let mut client = pointsman.client();
    let words = ["AUTH", "app", "the-password-of-app"];
    assert!(client.cmd(&words).expect("AUTH").is_ok());
    client
}

/// What the sentinels of A believe after one hello that names the master of B at a later epoch, as
/// when an address of A is used by B.
fn adopt(a: &Cluster, b: &Cluster) {
    let to = b.master().addr();
    let hello =
        format!("{},1,{:040x},900,mymaster,{},{},900", "127.0.0.1", 0xabcdef, to.ip(), to.port());
    assert!(a.master().ask(&["PUBLISH", "__sentinel__:hello", &hello]).is_ok());
}

#[test]
fn closes_idle_sessions_when_another_cluster_is_adopted() {
    for shared in [false, true] {
        let (a, b) = (Cluster::builder().start(), Cluster::builder().replicas(0).start());
        with_accounts(&a);
        let upstream = if shared { "upstream = \"shared\"" } else { "" };
        let pointsman = builder(&a).service_line(upstream).start();
        assert!(a.master().ask(&["SET", "tenant", "A"]).expect("SET").is_ok());
        assert!(b.master().ask(&["SET", "tenant", "B"]).expect("SET").is_ok());
        let mut idle = log_in(&pointsman);
        assert_eq!(text(&mut idle, &["GET", "tenant"]).as_deref(), Some("A"));
        adopt(&a, &b);
        wait_until("the other cluster to be committed", PATIENCE, || {
            let master = status(&pointsman)["services"][0]["target"]["addr"].clone();
            master.as_str() == Some(&b.master().addr().to_string())
        });
        wait_until("the session to be closed", PATIENCE, || {
            closed(&pointsman, "history_broken") == 1.0
        });
        assert_eq!(text(&mut idle, &["GET", "tenant"]), None, "it is not carried");
        assert_eq!(count(&pointsman, "lineage_broken_total"), 1.0);
        let mut new = pointsman.client();
        assert_eq!(text(&mut new, &["GET", "tenant"]).as_deref(), Some("B"));
        let log = b.master().ask(&["ACL", "LOG"]).expect("ACL LOG");
        assert!(log.items().is_empty(), "a password of A reached B: {log:?}");
    }
}

#[test]
fn carries_over_two_failovers_that_were_not_seen() {
    let cluster = Cluster::builder().start();
    cluster.look_often();
    with_accounts(&cluster);
    let pointsman = builder(&cluster).without_logins().lines(SERVICE_AUTH).start();
    let mut idle = log_in(&pointsman);
    wait_until("every node to be known", PATIENCE, || {
        let nodes = status(&pointsman)["services"][0]["nodes"].clone();
        nodes.as_array().is_some_and(|it| {
            it.len() == cluster.nodes().len() && it.iter().all(|node| node["offset"].is_u64())
        })
    });
    pointsman.process().signal(Signal::STOP);
    let first = cluster.failover();
    cluster.wait_whole();
    let second = wait_until_third(&cluster, first.from);
    pointsman.process().signal(Signal::CONT);
    wait_until("the third master", PATIENCE, || {
        let master = status(&pointsman)["services"][0]["target"]["addr"].clone();
        master.as_str() == Some(&second.to_string())
    });
    assert_eq!(text(&mut idle, &["PING"]).as_deref(), Some("PONG"), "it was carried");
    assert_eq!(count(&pointsman, "lineage_broken_total"), 0.0);
    assert_eq!(closed(&pointsman, "history_broken"), 0.0);
}

/// Fails over until a node is the master that neither was before, and returns its address.
fn wait_until_third(cluster: &Cluster, first: std::net::SocketAddr) -> std::net::SocketAddr {
    loop {
        cluster.wait_whole();
        let next = cluster.failover();
        if next.to != first {
            cluster.wait_whole();
            return next.to;
        }
    }
}

#[test]
fn carries_planned_failover_with_passwords_everywhere() {
    for shared in [false, true] {
        let cluster = Cluster::builder().password("the-password-of-default").start();
        with_accounts(&cluster);
        let upstream = if shared { "upstream = \"shared\"" } else { "" };
        let pointsman =
            builder(&cluster).without_logins().service_line(upstream).lines(SERVICE_AUTH).start();
        let mut idle = log_in(&pointsman);
        cluster.failover();
        wait_until("the session to be carried", PATIENCE, || {
            count(&pointsman, "sessions_carried_total") >= 1.0
                && count(&pointsman, "target_generation") == 2.0
        });
        assert_eq!(text(&mut idle, &["PING"]).as_deref(), Some("PONG"));
        assert_eq!(count(&pointsman, "lineage_broken_total"), 0.0);
    }
}
