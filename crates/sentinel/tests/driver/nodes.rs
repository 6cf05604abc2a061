//! Redis nodes that are loading, stale, hung, demoted or restarted; probe connections; hints. Rows
//! 2, 5 and 19.

use std::time::{Duration, Instant};

use resp::{Ledger, Limits, Pin, ServerCommands, StatelessCommands};
use sentinel::{ProbeFailure, Verify};

use crate::cluster::{Driver, FakeCluster, TargetChange, event_only_rules, ms, stays, until};
use crate::fake::Behavior;
use crate::wire;

#[tokio::test]
async fn keeps_gate_closed_while_new_master_loads() {
    for error in [
        "-LOADING Redis is loading the dataset in memory\r\n",
        "-MASTERDOWN Link with MASTER is down\r\n",
    ] {
        let cluster = FakeCluster::new(3, 3).await;
        let driver = cluster.drive();
        driver.wait_for_target(cluster.addr(0)).await;
        let began = Instant::now();
        cluster.promote(1);
        cluster.nodes[1].script().pong = error.as_bytes().to_vec();
        (0..3).for_each(|it| cluster.switch(it, 0, 1, 2));
        driver.wait_for_change(TargetChange::GateClosed, began).await;
        stays(ms(300), "held", || {
            driver.route.is_closed() && driver.target() == Some(cluster.addr(0))
        })
        .await;
        cluster.nodes[1].script().pong = b"+PONG\r\n".to_vec();
        driver.wait_for_target(cluster.addr(1)).await;
        assert_eq!(driver.generation(), 2);
    }
}

#[tokio::test]
async fn probes_loading_master_faster_and_keeps_it() {
    let cluster = FakeCluster::new(3, 2).await;
    let driver = cluster.drive();
    driver.wait_for_target(cluster.addr(0)).await;
    cluster.nodes[0].script().pong =
        b"-LOADING Redis is loading the dataset in memory\r\n".to_vec();
    driver.wait_for("suspicion", |seen| seen.state == "suspect").await;
    cluster.nodes[0].script().pong = b"+PONG\r\n".to_vec();
    driver.wait_for("calm", |seen| seen.state == "stable").await;
    assert_eq!(driver.generation(), 1);
}

#[tokio::test]
async fn commits_no_replica_before_it_is_promoted() {
    let cluster = FakeCluster::new(3, 3).await;
    let driver = cluster.drive();
    driver.wait_for_target(cluster.addr(0)).await;
    let began = Instant::now();
    (0..3).for_each(|it| cluster.switch(it, 0, 1, 2));
    driver.wait_for_change(TargetChange::GateClosed, began).await;
    stays(ms(200), "not yet", || driver.target() == Some(cluster.addr(0))).await;
    cluster.promote(1);
    driver.wait_for_target(cluster.addr(1)).await;
}

#[tokio::test]
async fn never_returns_to_zombie_master() {
    let cluster = FakeCluster::new(3, 3).await;
    let driver = cluster.drive();
    driver.wait_for_target(cluster.addr(0)).await;
    cluster.promote(1);
    (0..3).for_each(|it| cluster.switch(it, 0, 1, 2));
    driver.wait_for_target(cluster.addr(1)).await;
    // It is alive, reports that it is a master, and one sentinel still names it at the old epoch.
    cluster.set_master(2, 0, 1);
    cluster.nodes[0].cut();
    stays(ms(700), "the new one", || driver.target() == Some(cluster.addr(1))).await;
}

/// After this time the driver repeats a pending probe on another connection.
const GIVE_UP: Duration = Duration::from_secs(5);

#[tokio::test]
async fn stopped_node_costs_one_connection_and_answers_late() {
    let cluster = FakeCluster::new(3, 2).await;
    let (mut watched, route) = cluster.watch();
    watched.settings.probe_timeout = ms(250);
    let driver = Driver::one((watched, route));
    driver.wait_for_target(cluster.addr(0)).await;
    cluster.asked_commands(0).await;
    let (accepted, asked) = (cluster.nodes[0].accepted(), cluster.nodes[0].commands());
    // Accepts, reads, and answers each command long after the probe timeout.
    cluster.nodes[0].behave(Behavior::Delayed(ms(900)));
    // When the pending probe was sent.
    let silent = |seen: &sentinel::DiscoverySnapshot| {
        let master = seen.nodes.iter().find(|it| it.addr == cluster.addr(0).into());
        let probe = master.and_then(|it| it.probe.as_ref());
        probe.filter(|it| it.outcome == Err(ProbeFailure::Unresponsive)).map(|it| it.asked_at)
    };
    driver.wait_for("silence", |seen| silent(seen).is_some()).await;
    let question = silent(&driver.seen()).expect("just seen");
    stays(ms(400), "one question, one connection", || {
        cluster.nodes[0].accepted() == accepted && cluster.nodes[0].commands() - asked <= 8
    })
    .await;
    assert!(driver.route.usable_target().is_some(), "a busy node is not down");
    cluster.nodes[0].behave(Behavior::Normal);
    // The delayed answer arrives, and the other answers to its probe right after it.
    let before = cluster.nodes[0].commands();
    until("the rest was answered", || cluster.nodes[0].commands() > before).await;
    driver.wait_for("its answer", |seen| silent(seen).is_none()).await;
    assert!(
        question.elapsed() < GIVE_UP,
        "an answer counts although it is late: {:?}",
        question.elapsed()
    );
    driver.wait_for("calm", |seen| seen.state == "stable").await;
    assert_eq!((driver.generation(), cluster.nodes[0].accepted()), (1, accepted));
}

#[tokio::test]
async fn dead_idle_connection_holds_nobody() {
    let cluster = FakeCluster::new(3, 1).await;
    let driver = cluster.drive();
    driver.wait_for_target(cluster.addr(0)).await;
    driver.wait_for("calm", |seen| seen.state == "stable").await;
    let accepted = cluster.nodes[0].accepted();
    cluster.nodes[0].script().once = true;
    until("it died three times", || {
        assert!(driver.route.usable_target().is_some());
        cluster.nodes[0].accepted() > accepted + 2
    })
    .await;
    cluster.nodes[0].script().once = false;
    driver.wait_for("calm", |seen| seen.state == "stable").await;
    assert_eq!((driver.seen().counts.holds, driver.generation()), (0, 1));
}

#[tokio::test]
async fn lost_probe_connection_is_first_sign_of_promotion() {
    let cluster = FakeCluster::new(3, 3).await;
    let (mut watched, route) = cluster.watch();
    watched.settings.rules = event_only_rules();
    let driver = Driver::one((watched, route));
    driver.wait_for_target(cluster.addr(0)).await;
    driver
        .wait_for("node probers", |seen| {
            seen.nodes.len() == 3 && seen.nodes.iter().all(|it| it.probe.is_some())
        })
        .await;
    driver.wait_for("calm", |seen| seen.state == "stable" && seen.quorum.0 == 3).await;
    cluster.quiet().await;
    cluster.sentinels[0].script().record().flags = "master,failover_in_progress".to_owned();
    let began = Instant::now();
    cluster.promote(1);
    driver.wait_for_change(TargetChange::GateClosed, began).await;
    driver
        .wait_for("since when", |seen| seen.held_since.is_some() && seen.stopped_since.is_some())
        .await;
    (0..3).for_each(|it| cluster.switch(it, 0, 1, 2));
    driver.wait_for_target(cluster.addr(1)).await;
    driver.wait_for("open", |seen| seen.held_since.is_none() && seen.stopped_since.is_none()).await;
}

#[tokio::test]
async fn backs_off_from_node_that_closes_every_connection() {
    for verify in [Verify::Role, Verify::Tcp, Verify::Ping] {
        let cluster = FakeCluster::new(1, 2).await;
        let (mut watched, route) = cluster.watch();
        watched.settings.rules.verify = verify;
        let driver = Driver::one((watched, route));
        driver.wait_for_target(cluster.addr(0)).await;
        cluster.nodes[1].behave(Behavior::CloseAtOnce);
        cluster.nodes[1].cut();
        let before = cluster.nodes[1].accepted();
        tokio::time::sleep(ms(1000)).await;
        let dials = cluster.nodes[1].accepted() - before;
        // Two per probe at the highest rate, with the ends of connections in between.
        assert!(dials < 150, "{dials} dials a second with {verify:?}");
        assert_eq!(driver.target(), Some(cluster.addr(0)));
    }
}

#[tokio::test]
async fn degraded_verification_sends_only_permitted_commands() {
    for (verify, forbidden) in
        [(Verify::Ping, &["ROLE", "INFO"][..]), (Verify::Tcp, &["PING", "ROLE", "INFO", "CLIENT"])]
    {
        let cluster = FakeCluster::new(3, 2).await;
        let (mut watched, route) = cluster.watch();
        watched.settings.rules.verify = verify;
        let driver = Driver::one((watched, route));
        driver.wait_for_target(cluster.addr(0)).await;
        cluster.nodes[0].behave(Behavior::CloseAtOnce);
        cluster.nodes[0].cut();
        cluster.promote(1);
        (0..3).for_each(|it| cluster.switch(it, 0, 1, 2));
        driver.wait_for_target(cluster.addr(1)).await;
        for node in &cluster.nodes {
            assert!(
                !node
                    .heard()
                    .iter()
                    .any(|it| forbidden.iter().any(|record| it.starts_with(record))),
                "{verify:?}"
            );
        }
    }
}

#[tokio::test]
async fn polls_at_once_on_hint_but_limits_many_hints() {
    let cluster = FakeCluster::new(3, 2).await;
    let (mut watched, route) = cluster.watch();
    watched.settings.rules = event_only_rules();
    let driver = Driver::one((watched, route));
    driver.wait_for_target(cluster.addr(0)).await;
    driver.wait_for("calm", |seen| seen.state == "stable" && seen.quorum.0 == 3).await;
    cluster.quiet().await;
    // Nothing is published or polled: only the hint can cause a probe.
    cluster.sentinels.iter().for_each(|it| it.behave(Behavior::NoEvents));
    cluster.nodes[1].script().promote();
    cluster.all_set_master(1, 2);
    stays(ms(300), "no probe is sent", || driver.target() == Some(cluster.addr(0))).await;
    driver.handle.hint();
    driver.wait_for_target(cluster.addr(1)).await;
    driver.wait_for("calm again", |seen| seen.state == "stable").await;
    cluster.quiet().await;
    let rounds = |cluster: &FakeCluster| {
        cluster.sentinels[0].heard().iter().filter(|it| it.starts_with("INFO")).count()
    };
    let (before, started) = (rounds(&cluster), Instant::now());
    while started.elapsed() < ms(2000) {
        driver.handle.hint();
        tokio::time::sleep(ms(1)).await;
    }
    let asked = rounds(&cluster) - before;
    assert!(
        (1..=45).contains(&asked),
        "{asked} rounds in two seconds of hints: the suspect pace and no more"
    );
}

#[tokio::test]
async fn verifies_restarted_master_and_fences_its_sessions() {
    let cluster = FakeCluster::new(3, 2).await;
    let driver = cluster.drive();
    driver.wait_for_target(cluster.addr(0)).await;
    driver.wait_for("quiet", |seen| seen.state == "stable").await;
    let before = driver.route.current().expect("a target");
    cluster.nodes[0].script().run_id = "9".repeat(40);
    cluster.nodes[0].cut();
    until("a new generation", || driver.generation() == 2).await;
    assert!(before.fence().is_raised() && driver.target() == Some(cluster.addr(0)));
}

/// The pin of a session that sent one request and received one reply.
fn pin_after(commands: &ServerCommands, words: &[&str]) -> Option<Pin> {
    let listed = StatelessCommands::default().with_server(commands);
    let mut ledger =
        Ledger::new(&Limits { memory: 1024, ..Limits::default() }).with_stateless(listed);
    ledger.request(&wire::words(words));
    ledger.reply(b"+OK\r\n");
    ledger.pin()
}

#[tokio::test]
async fn carries_commands_that_the_new_master_calls_harmless() {
    let cluster = FakeCluster::new(3, 2).await;
    let later = |name: &str, flags| (name.to_owned(), wire::command_entry(name, flags, Vec::new()));
    let inside = [("part|get", &["readonly"]), ("part|wait", &["blocking"])]
        .map(|(name, flags)| wire::command_entry(name, flags, Vec::new()));
    let container = ("part".to_owned(), wire::command_entry("part", &[], inside.to_vec()));
    cluster.nodes[0].script().commands = [
        later("get", &["readonly"]),
        later("json.get", &["readonly", "module"]),
        later("zfetch", &["write", "fast"]),
        later("bzfetch", &["write", "blocking"]),
        container,
    ]
    .into();
    let (watched, route) = cluster.watch();
    let commands = watched.commands.clone();
    assert_eq!(pin_after(&commands, &["ZFETCH", "k"]), Some(Pin::UnknownCommand));
    let driver = Driver::one((watched, route));
    driver.wait_for_target(cluster.addr(0)).await;
    until("the answer", || pin_after(&commands, &["ZFETCH", "k"]).is_none()).await;
    assert_eq!(pin_after(&commands, &["part", "GET", "k"]), None);
    let writes = |name| resp::may_write(&wire::words(&[name, "k"]), &commands);
    assert_eq!((writes("JSON.GET"), writes("ZFETCH")), (Some(false), Some(true)));
    for pinning in [&["BZFETCH", "k"][..], &["PART", "WAIT", "k"], &["PART"], &["OTHER", "k"]] {
        assert_eq!(pin_after(&commands, pinning), Some(Pin::UnknownCommand), "{pinning:?}");
    }
    // The next master does not have the command any more, and says so.
    cluster.promote(1);
    cluster.nodes[1].script().commands = [later("get", &["readonly"])].into();
    (0..3).for_each(|it| cluster.switch(it, 0, 1, 2));
    driver.wait_for_target(cluster.addr(1)).await;
    until("its answer", || pin_after(&commands, &["ZFETCH", "k"]).is_some()).await;
}

/// The address of a master that is gone may be another host's, which must not get the credentials.
#[tokio::test]
async fn asks_no_other_process_for_its_commands() {
    let cluster = FakeCluster::new(3, 1).await;
    cluster.nodes[0].script().hides_commands = true;
    let driver = cluster.drive();
    driver.wait_for_target(cluster.addr(0)).await;
    let asked = || cluster.nodes[0].heard().iter().filter(|it| it.starts_with("COMMAND")).count();
    until("a busy master to be asked again", || asked() >= 2).await;
    cluster.nodes[0].behave(Behavior::CloseAtOnce);
    cluster.nodes[0].cut();
    driver.wait_for("no master", |seen| seen.state == "no_master").await;
    cluster.sentinels.iter().for_each(|it| it.script().masters.clear());
    cluster.nodes[0].script().run_id = "f".repeat(40);
    let (before, probed) = (asked(), cluster.nodes[0].commands());
    cluster.nodes[0].behave(Behavior::Normal);
    until("it answers probes", || cluster.nodes[0].commands() > probed + 20).await;
    stays(Duration::from_secs(5), "no question", || asked() == before).await;
}
