//! Names instead of addresses, with a resolver that the test commands: row 20.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Instant;

use sentinel::{NodeAddr, Resolver};

use crate::fake::{Fake, Manner};
use crate::players::{RedisMind, SentinelMind};
use crate::stage::{
    Driver, NAME, PATIENCE, Redis, Stage, ms, quick, stays, timeouts, until, watch,
};

/// What the fake name server says.
#[derive(Clone, Default)]
struct Names {
    found: Arc<Mutex<Option<Vec<IpAddr>>>>,
    /// As long as the other end is held, nobody gets an answer.
    hold: Arc<Mutex<Option<mpsc::Receiver<()>>>>,
    asked: Arc<AtomicUsize>,
    answered: Arc<AtomicUsize>,
}

impl Names {
    fn say(&self, found: Option<Vec<SocketAddr>>) {
        *self.found.lock().expect("no poison") =
            found.map(|it| it.iter().map(SocketAddr::ip).collect());
    }

    /// Answers nobody any more, until what this gives is dropped.
    fn hang(&self) -> mpsc::Sender<()> {
        let (release, held) = mpsc::channel();
        *self.hold.lock().expect("no poison") = Some(held);
        release
    }

    fn resolver(&self) -> Resolver {
        let names = self.clone();
        Resolver::new(move |_, port| {
            names.asked.fetch_add(1, Ordering::SeqCst);
            // Blocks a thread, as the system's resolver would. Not for ever: it might be the test's
            // own.
            if let Some(held) = &*names.hold.lock().expect("no poison") {
                let _ = held.recv_timeout(PATIENCE);
            }
            names.answered.fetch_add(1, Ordering::SeqCst);
            let found = names.found.lock().expect("no poison").clone();
            let found = found.ok_or_else(|| io::Error::other("NXDOMAIN"))?;
            Ok(found.into_iter().map(|ip| SocketAddr::new(ip, port)).collect())
        })
    }
}

fn name(port: u16) -> NodeAddr {
    NodeAddr { host: "somewhere.example".into(), port }
}

/// Two nodes on one port of two addresses of this machine.
async fn two_on_one_port(ips: [&str; 2]) -> (Redis, Redis) {
    let ips: [IpAddr; 2] = ips.map(|it| it.parse().expect("an address"));
    loop {
        let one = Fake::start_at(ips[0], 0, RedisMind::master(1)).await.expect("a port");
        // Somebody else may have this port on the other address: then another one.
        if let Ok(two) = Fake::start_at(ips[1], one.addr.port(), RedisMind::master(1)).await {
            return (one, two);
        }
    }
}

/// Sentinels that name the master by its name.
async fn named(port: u16) -> Stage {
    let stage = Stage::new(3, 1).await;
    for it in &stage.sentinels {
        let mut mind = it.mind();
        mind.word().ip = "somewhere.example".to_owned();
        mind.word().port = port;
        mind.word().replicas.clear();
    }
    stage
}

#[tokio::test]
async fn a_seeds_name_that_does_not_resolve_yet_is_asked_again() {
    let (stage, names) = (Stage::new(1, 1).await, Names::default());
    let watched = watch(NAME, vec![name(stage.sentinels[0].addr.port())]);
    let driver = Driver::all(vec![watched], &[], Some(names.resolver()), timeouts()).remove(0);
    until("it was asked twice", || names.asked.load(Ordering::SeqCst) >= 2).await;
    assert!(driver.target().is_none());
    names.say(Some(vec![stage.sentinels[0].addr]));
    driver.leads_to(stage.addr(0)).await;
}

#[tokio::test]
async fn a_slow_resolver_blocks_nothing_and_its_late_answer_counts() {
    let (stage, names) = (Stage::new(1, 1).await, Names::default());
    names.say(Some(vec![stage.sentinels[0].addr]));
    let release = names.hang();
    let watched = watch(NAME, vec![name(stage.sentinels[0].addr.port())]);
    let driver = Driver::all(vec![watched], &[], Some(names.resolver()), quick()).remove(0);
    let count = |it: &AtomicUsize| it.load(Ordering::SeqCst);
    until("it is asked", || count(&names.asked) > 0).await;
    let asked_at = Instant::now();
    until("the loop turns", || driver.heartbeat.age() < asked_at.elapsed()).await;
    // Longer than anybody waits for it, and than the pause until it is asked again.
    tokio::time::sleep(ms(1000)).await;
    assert_eq!(count(&names.answered), 0, "nobody waited for it");
    assert_eq!(count(&names.asked), 1, "one look-up at a time");
    drop(release);
    driver.leads_to(stage.addr(0)).await;
}

#[tokio::test]
async fn an_address_that_vanishes_from_its_name_keeps_its_sentinel() {
    let (stage, names) = (Stage::new(1, 1).await, Names::default());
    let elsewhere: SocketAddr = "127.0.0.9:1".parse().expect("an address");
    names.say(Some(vec![stage.sentinels[0].addr]));
    let watched = watch(NAME, vec![name(stage.sentinels[0].addr.port())]);
    let driver = Driver::all(vec![watched], &[], Some(names.resolver()), timeouts()).remove(0);
    driver.leads_to(stage.addr(0)).await;
    names.say(Some(vec![elsewhere]));
    driver
        .sees("the new address", |seen| {
            seen.sentinels.iter().any(|it| &*it.addr.host == "127.0.0.9")
        })
        .await;
    assert!(driver.seen().sentinels.iter().any(|it| it.up));
    assert_eq!(stage.sentinels[0].accepted(), 1);
}

#[tokio::test]
async fn a_master_with_a_name_is_pinned_and_followed_to_another_address() {
    let (one, two) = two_on_one_port(["127.0.0.2", "127.0.0.3"]).await;
    let names = Names::default();
    names.say(Some(vec![one.addr]));
    let stage = named(one.addr.port()).await;
    let driver =
        Driver::all(vec![stage.watch()], &[], Some(names.resolver()), timeouts()).remove(0);
    driver.leads_to(one.addr).await;
    let named = driver.route.current().expect("a target");
    assert_eq!(&*named.destination().name, format!("somewhere.example:{}", one.addr.port()));
    // No address for a while: the pinned one serves on.
    names.say(None);
    one.cut();
    stays(ms(400), "the master stays", || driver.target() == Some(one.addr)).await;
    // It moved: the old address answers no more, the name has another one, with another process and
    // the same history.
    two.mind().run_id = "2".repeat(40);
    names.say(Some(vec![two.addr]));
    one.behave(Manner::Hangup);
    one.cut();
    driver.leads_to(two.addr).await;
    assert!(named.fence().is_raised(), "sessions to the old address are cut");
    assert_eq!(driver.seen().failovers.last().map(|it| it.basis), Some(sentinel::Basis::Again));
    // The same process at the first address again, as with a name of two families: dialled there,
    // and no session is cut.
    one.mind().run_id = "2".repeat(40);
    let named = driver.route.current().expect("a target");
    names.say(Some(vec![one.addr]));
    one.behave(Manner::Proper);
    two.behave(Manner::Hangup);
    two.cut();
    driver.leads_to(one.addr).await;
    assert!(!named.fence().is_raised());
    assert_eq!(driver.route.current().map(|it| it.generation()), Some(named.generation()));
    driver
        .sees("the address dialled now", |seen| {
            seen.master.as_ref().is_some_and(|it| it.dialled == one.addr)
        })
        .await;
}

#[tokio::test]
async fn a_name_with_several_sentinels_gives_them_all() {
    let names = Names::default();
    let ips: [IpAddr; 3] =
        ["127.0.0.2", "127.0.0.3", "127.0.0.4"].map(|it| it.parse().expect("an address"));
    let stage = Stage::new(3, 1).await;
    let minds: Vec<SentinelMind> = stage.sentinels.iter().map(|it| it.mind().clone()).collect();
    let sentinels = loop {
        let first = Fake::start_at(ips[0], 0, minds[0].clone()).await.expect("a port");
        let port = first.addr.port();
        let second = Fake::start_at(ips[1], port, minds[1].clone()).await;
        let third = Fake::start_at(ips[2], port, minds[2].clone()).await;
        if let (Ok(second), Ok(third)) = (second, third) {
            break [first, second, third];
        }
    };
    names.say(Some(sentinels.iter().map(|it| it.addr).collect()));
    let (mut watched, route) = watch(NAME, vec![name(sentinels[0].addr.port())]);
    watched.learn = false;
    let driver =
        Driver::all(vec![(watched, route)], &[], Some(names.resolver()), timeouts()).remove(0);
    driver.leads_to(stage.addr(0)).await;
    driver
        .sees("three", |seen| seen.sentinels.iter().filter(|it| it.up && it.member).count() == 3)
        .await;
}

#[tokio::test]
async fn finds_the_family_that_answers_and_stays_with_it() {
    let (four, six) = two_on_one_port(["127.0.0.1", "::1"]).await;
    let names = Names::default();
    names.say(Some(vec![four.addr, six.addr]));
    let stage = named(four.addr.port()).await;
    // Something takes connections there, and it is no redis.
    four.behave(Manner::Hangup);
    let driver =
        Driver::all(vec![stage.watch()], &[], Some(names.resolver()), timeouts()).remove(0);
    driver.leads_to(six.addr).await;
    // The other family works too from now on, and the connection ends again and again.
    four.behave(Manner::Proper);
    let before = four.accepted();
    for _ in 0..20 {
        let accepted = six.accepted();
        six.cut();
        until("it is dialled again", || six.accepted() > accepted).await;
    }
    driver.sees("calm", |seen| seen.state == "stable").await;
    assert_eq!(
        (four.accepted(), driver.generation(), driver.target()),
        (before, 1, Some(six.addr))
    );
}
