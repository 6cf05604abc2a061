//! Credentials that are missing, wrong, or lack rules. Row 15: a clear error, back-off, and no
//! secret in any log.

use std::io::Write;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use sentinel::Credentials;

use crate::cluster::{Driver, FakeCluster, ms, until};
use crate::fake::{Behavior, FakeServer};
use crate::scripts::RedisScript;

/// The log lines of this thread.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("no poison")).into_owned()
    }

    pub(crate) fn listen(&self) -> tracing::subscriber::DefaultGuard {
        // With a single subscriber, tracing caches per call site whether the first thread was
        // interested: a test without a log would disable the call site for all. With a second
        // subscriber it asks each of them, so one is kept for good.
        static SECOND: OnceLock<tracing::Dispatch> = OnceLock::new();
        SECOND.get_or_init(|| {
            let ignores_subscribers = tracing_subscriber::fmt()
                .with_max_level(tracing::Level::TRACE)
                .with_writer(std::io::sink);
            tracing::Dispatch::new(ignores_subscribers.finish())
        });
        let log = self.clone();
        let layer = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(tracing::Level::TRACE)
            .with_writer(move || log.clone());
        tracing::subscriber::set_default(layer.finish())
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no poison").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

async fn sentinels_say(driver: &Driver, what: &str) {
    driver
        .wait_for(what, |seen| {
            !seen.sentinels.is_empty()
                && seen
                    .sentinels
                    .iter()
                    .all(|it| it.problem.as_ref().is_some_and(|why| why.contains(what)))
        })
        .await;
}

async fn nodes_say(driver: &Driver, what: &str) {
    driver
        .wait_for(what, |seen| {
            seen.nodes.iter().any(|it| it.problem.as_ref().is_some_and(|why| why.contains(what)))
        })
        .await;
}

#[tokio::test]
async fn distinguishes_refusing_sentinels_and_recovers() {
    for resp2_only in [false, true] {
        let log = Log::default();
        let _guard = log.listen();
        let cluster = FakeCluster::new(2, 1).await;
        let lock = |password: &str| {
            for it in &cluster.sentinels {
                it.script().access.password = Some(("watcher".to_owned(), password.to_owned()));
                it.script().access.resp2_only = resp2_only;
                it.cut();
            }
        };
        lock("right-horse");
        let without = cluster.drive();
        sentinels_say(
            &without,
            "requires a password and none is configured: set service.sentinel_auth",
        )
        .await;
        drop(without);
        let (mut watched, route) = cluster.watch();
        watched.settings.sentinel_auth = Some(Credentials::new(Some("watcher"), "wrong-horse"));
        let driver = Driver::one((watched, route));
        sentinels_say(&driver, "rejects the user or password: check service.sentinel_auth").await;
        let before = cluster.sentinels[0].accepted();
        tokio::time::sleep(ms(1000)).await;
        assert!(cluster.sentinels[0].accepted() - before < 40, "with back-off");
        lock("wrong-horse");
        driver.wait_for_target(cluster.addr(0)).await;
        assert!(log.text().contains("password") && !log.text().contains("horse"), "{}", log.text());
    }
}

#[tokio::test]
async fn names_acl_rule_that_sentinel_lacks() {
    let refused = [
        ("SENTINEL MYID", "+sentinel|myid"),
        ("SENTINEL MASTER", "+sentinel|master"),
        ("SENTINEL GET-MASTER-ADDR-BY-NAME", "+sentinel|get-master-addr-by-name"),
    ];
    for (command, rule) in refused {
        let cluster = FakeCluster::new(1, 1).await;
        cluster.sentinels[0].script().access.refused = vec![command.to_owned()];
        let driver = cluster.drive();
        sentinels_say(&driver, &format!("add {rule} to that user")).await;
        assert!(driver.target().is_none());
        cluster.sentinels[0].script().access.refused.clear();
        driver.wait_for_target(cluster.addr(0)).await;
    }
    // INFO and SETNAME are optional, and HELLO too, with RESP2.
    let cluster = FakeCluster::new(1, 1).await;
    cluster.sentinels[0].script().access.refused =
        ["INFO", "CLIENT", "HELLO"].map(str::to_owned).to_vec();
    cluster.drive().wait_for_target(cluster.addr(0)).await;
}

#[tokio::test]
async fn distinguishes_refusing_nodes_and_retries_with_backoff() {
    let log = Log::default();
    let _guard = log.listen();
    let cluster = FakeCluster::new(3, 1).await;
    let lock = |password: &str| {
        cluster.nodes[0].script().access.password = Some(("probe".to_owned(), password.to_owned()));
        cluster.nodes[0].cut();
    };
    lock("right-horse");
    let without = cluster.drive();
    nodes_say(&without, "requires a password and none is configured: set service.auth").await;
    drop(without);
    let (mut watched, route) = cluster.watch();
    watched.settings.auth = Some(Credentials::new(Some("probe"), "wrong-horse"));
    let driver = Driver::one((watched, route));
    nodes_say(&driver, "rejects the user or password: check service.auth").await;
    let before = cluster.nodes[0].accepted();
    tokio::time::sleep(ms(2000)).await;
    let attempts = cluster.nodes[0].accepted() - before;
    assert!(attempts <= 12, "{attempts} attempts with a wrong password in two seconds");
    assert!(driver.target().is_none());
    lock("wrong-horse");
    driver.wait_for_target(cluster.addr(0)).await;
    driver.wait_for("no problem", |seen| seen.nodes.iter().all(|it| it.problem.is_none())).await;
    cluster.nodes[0].script().access.refused = vec!["ROLE".to_owned()];
    nodes_say(&driver, "add +role to that user").await;
    assert!(driver.route.usable_target().is_some(), "a refused probe is no bad news");
    cluster.nodes[0].script().access.refused = vec!["INFO".to_owned()];
    driver
        .wait_for("well without INFO", |seen| {
            seen.state == "stable" && seen.nodes.iter().all(|it| it.problem.is_none())
        })
        .await;
    assert!(!log.text().contains("horse"), "{}", log.text());
}

#[tokio::test]
async fn limits_log_lines_of_flapping_sentinel() {
    let log = Log::default();
    let _guard = log.listen();
    let cluster = FakeCluster::new(2, 1).await;
    let driver = cluster.drive();
    driver.wait_for_target(cluster.addr(0)).await;
    let (before, began) = (log.text().lines().count(), Instant::now());
    for _ in 0..60 {
        let accepted = cluster.sentinels[0].accepted();
        cluster.sentinels[0].cut();
        until("it is dialled again", || cluster.sentinels[0].accepted() > accepted).await;
        driver.wait_for("up", |seen| seen.sentinels.iter().all(|it| it.up)).await;
    }
    let lines = log.text().lines().count() - before;
    // One more per ten seconds that this takes.
    let most = 14 + began.elapsed().as_secs() / 10;
    assert!((1..=most).contains(&(lines as u64)), "{lines} lines for sixty times:\n{}", log.text());
    // The log of other sentinels is not limited by it.
    let (before, other) = (log.text().len(), cluster.sentinels[1].addr.to_string());
    cluster.sentinels[1].behave(Behavior::CloseAtOnce);
    cluster.sentinels[1].cut();
    until("the other one is heard", || log.text()[before..].contains(&other)).await;
}

#[tokio::test]
async fn sends_no_password_to_node_of_one_sentinel() {
    let cluster = FakeCluster::new(3, 2).await;
    let secret = ("default".to_owned(), "the-secret".to_owned());
    for node in &cluster.nodes {
        node.script().access.password = Some(secret.clone());
    }
    let stranger = FakeServer::start(RedisScript::master(9)).await;
    stranger.script().access.password = Some(secret);
    let (mut watched, route) = cluster.watch();
    watched.settings.auth = Some(Credentials::new(None, "the-secret"));
    let driver = Driver::one((watched, route));
    driver.wait_for_target(cluster.addr(0)).await;
    let wait_known = |replicas: usize| {
        move |seen: &sentinel::DiscoverySnapshot| {
            let answered = |it: &&sentinel::NodeSnapshot| {
                it.probe.as_ref().is_some_and(|probe| probe.outcome.is_ok())
            };
            seen.nodes.iter().filter(answered).count() == replicas
        }
    };
    driver.wait_for("both nodes", wait_known(2)).await;
    // One of three lists it as a replica, and then names it as the master of a later epoch.
    let (ip, port) = (stranger.addr.ip().to_string(), stranger.addr.port());
    cluster.sentinels[0].script().record().replicas.push((ip.clone(), port));
    let answers = || cluster.sentinels[0].commands();
    let before = answers();
    until("more answers", || answers() > before + 20).await;
    {
        let mut script = cluster.sentinels[0].script();
        let record = script.record();
        (record.ip, record.port, record.epoch) = (ip, port, 9);
    }
    let before = answers();
    until("more answers", || answers() > before + 20).await;
    assert!(!stranger.heard().iter().any(|it| it.contains("AUTH")), "{:?}", stranger.heard());
    assert_eq!(driver.target(), Some(cluster.addr(0)));
    // A majority names it: it is a node of the deployment, with a password.
    cluster.sentinels[1].script().masters = cluster.sentinels[0].script().masters.clone();
    driver.wait_for_target(stranger.addr).await;
}

/// A node that answers without a password shows its history first, on each connection.
#[tokio::test]
async fn sends_no_password_at_once_to_taken_over_address() {
    let cluster = FakeCluster::new(3, 2).await;
    let (mut watched, route) = cluster.watch();
    watched.settings.auth = Some(Credentials::new(None, "the-secret"));
    let driver = Driver::one((watched, route));
    driver.wait_for_target(cluster.addr(0)).await;
    let replica = &cluster.nodes[1];
    let logins = || replica.heard().iter().filter(|it| it.starts_with("AUTH")).count();
    until("the replica to be logged in at", || logins() == 1).await;
    for (replid, expected) in [("7", 1), ("1", 2)] {
        // Another process answers at its address and shows the `run_id` of the former one; and then
        // the replica is back.
        let before = (replica.accepted(), replica.commands());
        replica.script().replid = replid.repeat(40);
        replica.cut();
        until("a new connection", || replica.accepted() > before.0).await;
        until("more answers", || replica.commands() > before.1 + 20).await;
        assert_eq!(logins(), expected, "{replid}: {:?}", replica.heard());
    }
}
