//! Names instead of addresses, with a resolver that the test commands: row 20.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sentinel::{NodeAddr, Resolver};

use crate::fake::{Fake, Manner};
use crate::players::{RedisMind, SentinelMind};
use crate::stage::{Driver, NAME, Redis, Stage, ms, stays, timeouts, watch};

/// What the fake name server says.
#[derive(Clone, Default)]
struct Names {
    found: Arc<Mutex<Option<Vec<IpAddr>>>>,
    slow: Arc<Mutex<Duration>>,
    asked: Arc<AtomicUsize>,
}

impl Names {
    fn say(&self, found: Option<Vec<SocketAddr>>) {
        *self.found.lock().expect("no poison") = found.map(|it| it.iter().map(SocketAddr::ip).collect());
    }

    fn resolver(&self) -> Resolver {
        let names = self.clone();
        Resolver::new(move |_, port| {
            names.asked.fetch_add(1, Ordering::SeqCst);
            // Blocks a thread, as the system's resolver would.
            let slow = *names.slow.lock().expect("no poison");
            std::thread::park_timeout(slow);
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
async fn two_on_one_port() -> (Redis, Redis) {
    let ips: [IpAddr; 2] = ["127.0.0.2", "127.0.0.3"].map(|it| it.parse().expect("an address"));
    loop {
        let one = Fake::start_at(ips[0], 0, RedisMind::master(1)).await.expect("a port");
        // Somebody else may have this port on the other address: then another one.
        if let Ok(two) = Fake::start_at(ips[1], one.addr.port(), RedisMind::master(1)).await {
            return (one, two);
        }
    }
}

#[tokio::test]
async fn a_seeds_name_that_does_not_resolve_yet_is_asked_again() {
    let (stage, names) = (Stage::new(1, 1).await, Names::default());
    let watched = watch(NAME, vec![name(stage.sentinels[0].addr.port())]);
    let driver = Driver::all(vec![watched], &[], Some(names.resolver()), timeouts()).remove(0);
    crate::stage::until("it was asked twice", || names.asked.load(Ordering::SeqCst) >= 2).await;
    assert!(driver.target().is_none());
    names.say(Some(vec![stage.sentinels[0].addr]));
    driver.leads_to(stage.addr(0)).await;
}

#[tokio::test]
async fn a_slow_resolver_blocks_nothing_and_its_late_answer_counts() {
    let (stage, names) = (Stage::new(1, 1).await, Names::default());
    names.say(Some(vec![stage.sentinels[0].addr]));
    // Longer than anybody waits for it.
    *names.slow.lock().expect("no poison") = ms(700);
    let watched = watch(NAME, vec![name(stage.sentinels[0].addr.port())]);
    let driver = Driver::all(vec![watched], &[], Some(names.resolver()), timeouts()).remove(0);
    stays(ms(500), "the loop turns", || driver.heartbeat.age() < ms(450)).await;
    driver.leads_to(stage.addr(0)).await;
    assert!(names.asked.load(Ordering::SeqCst) <= 2, "one look-up at a time");
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
    driver.sees("the new address", |seen| seen.sentinels.iter().any(|it| &*it.addr.host == "127.0.0.9")).await;
    assert!(driver.seen().sentinels.iter().any(|it| it.up));
    assert_eq!(stage.sentinels[0].accepted(), 1);
}

#[tokio::test]
async fn a_master_with_a_name_is_pinned_and_followed_to_another_address() {
    let (one, two) = two_on_one_port().await;
    let names = Names::default();
    names.say(Some(vec![one.addr]));
    let stage = Stage::new(3, 1).await;
    for it in &stage.sentinels {
        let mut mind = it.mind();
        mind.word().ip = "somewhere.example".to_owned();
        mind.word().port = one.addr.port();
        mind.word().replicas.clear();
    }
    let driver = Driver::all(vec![stage.watch()], &[], Some(names.resolver()), timeouts()).remove(0);
    driver.leads_to(one.addr).await;
    let named = driver.route.current().expect("a target");
    assert_eq!(&*named.destination().name, format!("somewhere.example:{}", one.addr.port()));
    // No address for a while: the pinned one serves on.
    names.say(None);
    one.cut();
    stays(ms(400), "the master stays", || driver.target() == Some(one.addr)).await;
    // It moved: the old address answers no more, the name has another one.
    names.say(Some(vec![two.addr]));
    one.behave(Manner::Hangup);
    one.cut();
    driver.leads_to(two.addr).await;
    assert!(named.fence().has_fallen(), "sessions to the old address are cut");
    assert_eq!(driver.seen().failovers.last().map(|it| it.basis), Some(sentinel::Basis::Again));
}

#[tokio::test]
async fn a_name_with_several_sentinels_gives_them_all() {
    let names = Names::default();
    let ips: [IpAddr; 3] = ["127.0.0.2", "127.0.0.3", "127.0.0.4"].map(|it| it.parse().expect("an address"));
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
    let driver = Driver::all(vec![(watched, route)], &[], Some(names.resolver()), timeouts()).remove(0);
    driver.leads_to(stage.addr(0)).await;
    driver.sees("three", |seen| seen.sentinels.iter().filter(|it| it.up && it.member).count() == 3).await;
}
