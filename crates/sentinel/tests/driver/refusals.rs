//! Credentials: missing, wrong, too narrow. Row 15: a clear error, a back-off, and no secret in any
//! log.

use std::io::Write;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use sentinel::Credentials;

use crate::fake::Manner;
use crate::stage::{Driver, Stage, ms};

/// What was logged on this thread.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("no poison")).into_owned()
    }

    pub(crate) fn listen(&self) -> tracing::subscriber::DefaultGuard {
        // While there is one subscriber only, tracing remembers of a place in the code whether the
        // thread that came by first wanted to hear of it: a test without a log would silence it for
        // all. With a second one it asks everybody, so there is one for good.
        static SECOND: OnceLock<tracing::Dispatch> = OnceLock::new();
        SECOND.get_or_init(|| {
            let deaf = tracing_subscriber::fmt()
                .with_max_level(tracing::Level::TRACE)
                .with_writer(std::io::sink);
            tracing::Dispatch::new(deaf.finish())
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
        .sees(what, |seen| {
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
        .sees(what, |seen| {
            seen.nodes.iter().any(|it| it.problem.as_ref().is_some_and(|why| why.contains(what)))
        })
        .await;
}

#[tokio::test]
async fn sentinels_that_refuse_are_told_apart_and_served_once_they_let_in() {
    for resp2_only in [false, true] {
        let log = Log::default();
        let _guard = log.listen();
        let stage = Stage::new(2, 1).await;
        let lock = |password: &str| {
            for it in &stage.sentinels {
                it.mind().gate.password = Some(("watcher".to_owned(), password.to_owned()));
                it.mind().gate.resp2_only = resp2_only;
                it.cut();
            }
        };
        lock("right-horse");
        let without = stage.drive();
        sentinels_say(
            &without,
            "asks for a password and none is configured: set service.sentinel_auth",
        )
        .await;
        drop(without);
        let (mut watched, route) = stage.watch();
        watched.sentinel_auth = Some(Credentials::new(Some("watcher"), "wrong-horse"));
        let driver = Driver::one((watched, route));
        sentinels_say(&driver, "refuses the user or password: check service.sentinel_auth").await;
        let before = stage.sentinels[0].accepted();
        tokio::time::sleep(ms(1000)).await;
        assert!(stage.sentinels[0].accepted() - before < 40, "with back-off");
        lock("wrong-horse");
        driver.leads_to(stage.addr(0)).await;
        assert!(log.text().contains("password") && !log.text().contains("horse"), "{}", log.text());
    }
}

#[tokio::test]
async fn a_sentinel_acl_that_is_too_narrow_names_the_rule_to_add() {
    let refused = [
        ("SENTINEL MYID", "+sentinel|myid"),
        ("SENTINEL MASTER", "+sentinel|master"),
        ("SENTINEL GET-MASTER-ADDR-BY-NAME", "+sentinel|get-master-addr-by-name"),
    ];
    for (command, rule) in refused {
        let stage = Stage::new(1, 1).await;
        stage.sentinels[0].mind().gate.refused = vec![command.to_owned()];
        let driver = stage.drive();
        sentinels_say(&driver, &format!("add {rule} to that user")).await;
        assert!(driver.target().is_none());
        stage.sentinels[0].mind().gate.refused.clear();
        driver.leads_to(stage.addr(0)).await;
    }
    // Without INFO and SETNAME it works as well, and without HELLO over RESP2.
    let stage = Stage::new(1, 1).await;
    stage.sentinels[0].mind().gate.refused =
        ["INFO", "CLIENT", "HELLO"].map(str::to_owned).to_vec();
    stage.drive().leads_to(stage.addr(0)).await;
}

#[tokio::test]
async fn nodes_that_refuse_are_told_apart_asked_with_back_off_and_verified_once_they_let_in() {
    let log = Log::default();
    let _guard = log.listen();
    let stage = Stage::new(3, 1).await;
    let lock = |password: &str| {
        stage.nodes[0].mind().gate.password = Some(("probe".to_owned(), password.to_owned()));
        stage.nodes[0].cut();
    };
    lock("right-horse");
    let without = stage.drive();
    nodes_say(&without, "asks for a password and none is configured: set service.auth").await;
    drop(without);
    let (mut watched, route) = stage.watch();
    watched.auth = Some(Credentials::new(Some("probe"), "wrong-horse"));
    let driver = Driver::one((watched, route));
    nodes_say(&driver, "refuses the user or password: check service.auth").await;
    let before = stage.nodes[0].accepted();
    tokio::time::sleep(ms(2000)).await;
    let attempts = stage.nodes[0].accepted() - before;
    assert!(attempts <= 12, "{attempts} attempts with a wrong password in two seconds");
    assert!(driver.target().is_none());
    lock("wrong-horse");
    driver.leads_to(stage.addr(0)).await;
    driver.sees("no problem", |seen| seen.nodes.iter().all(|it| it.problem.is_none())).await;
    stage.nodes[0].mind().gate.refused = vec!["ROLE".to_owned()];
    nodes_say(&driver, "add +role to that user").await;
    assert!(driver.route.usable_target().is_some(), "whoever may not ask learns nothing bad");
    stage.nodes[0].mind().gate.refused = vec!["INFO".to_owned()];
    driver
        .sees("well without INFO", |seen| {
            seen.state == "stable" && seen.nodes.iter().all(|it| it.problem.is_none())
        })
        .await;
    assert!(!log.text().contains("horse"), "{}", log.text());
}

#[tokio::test]
async fn a_sentinel_that_flaps_does_not_flood_the_log() {
    let log = Log::default();
    let _guard = log.listen();
    let stage = Stage::new(2, 1).await;
    let driver = stage.drive();
    driver.leads_to(stage.addr(0)).await;
    let (before, began) = (log.text().lines().count(), Instant::now());
    for _ in 0..60 {
        let accepted = stage.sentinels[0].accepted();
        stage.sentinels[0].cut();
        crate::stage::until("it is dialled again", || stage.sentinels[0].accepted() > accepted)
            .await;
        driver.sees("up", |seen| seen.sentinels.iter().all(|it| it.up)).await;
    }
    let lines = log.text().lines().count() - before;
    // One more for each ten seconds that this takes.
    let most = 14 + began.elapsed().as_secs() / 10;
    assert!((1..=most).contains(&(lines as u64)), "{lines} lines for sixty times:\n{}", log.text());
    // Nobody else is any quieter for it.
    let (before, other) = (log.text().len(), stage.sentinels[1].addr.to_string());
    stage.sentinels[1].behave(Manner::Hangup);
    stage.sentinels[1].cut();
    crate::stage::until("the other one is heard", || log.text()[before..].contains(&other)).await;
}
