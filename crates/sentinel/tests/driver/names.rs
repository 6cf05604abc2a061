//! Names instead of addresses, with a resolver controlled by the test: row 20.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Instant;

use sentinel::{DiscoverySnapshot, NodeAddr, Resolver};

use crate::cluster::{
    DEADLINE, Driver, FakeCluster, NAME, Redis, ms, quick, stays, timeouts, until, watch,
};
use crate::fake::{Behavior, FakeServer};
use crate::scripts::{RedisScript, SentinelScript};

/// The answers of the fake name server.
#[derive(Clone, Default)]
struct Names {
    found: Arc<Mutex<Option<Vec<IpAddr>>>>,
    /// While the other end is held, no query is answered.
    hold: Arc<Mutex<Option<mpsc::Receiver<()>>>>,
    asked: Arc<AtomicUsize>,
    answered: Arc<AtomicUsize>,
}

impl Names {
    fn set_master(&self, found: Option<Vec<SocketAddr>>) {
        *self.found.lock().expect("no poison") =
            found.map(|it| it.iter().map(SocketAddr::ip).collect());
    }

    /// Answers no query until the returned guard is dropped.
    fn hang(&self) -> mpsc::Sender<()> {
        let (release, held) = mpsc::channel();
        *self.hold.lock().expect("no poison") = Some(held);
        release
    }

    fn resolver(&self) -> Resolver {
        let names = self.clone();
        Resolver::new(move |_, port| {
            names.asked.fetch_add(1, Ordering::SeqCst);
            // Blocks a thread, as the system's resolver would. Bounded, because it might be the
            // test's own thread.
            if let Some(held) = &*names.hold.lock().expect("no poison") {
                let _ = held.recv_timeout(DEADLINE);
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

/// Two nodes on the same port of two addresses of this machine.
async fn two_on_one_port(ips: [&str; 2]) -> (Redis, Redis) {
    let ips: [IpAddr; 2] = ips.map(|it| it.parse().expect("an address"));
    loop {
        let one = FakeServer::start_at(ips[0], 0, RedisScript::master(1)).await.expect("a port");
        // Another process may use this port on the other address: then try the next.
        if let Ok(two) = FakeServer::start_at(ips[1], one.addr.port(), RedisScript::master(1)).await
        {
            return (one, two);
        }
    }
}

/// Sentinels that name the master by its name.
async fn named(port: u16) -> FakeCluster {
    let cluster = FakeCluster::new(3, 1).await;
    for it in &cluster.sentinels {
        let mut script = it.script();
        script.record().ip = "somewhere.example".to_owned();
        script.record().port = port;
        script.record().replicas.clear();
    }
    cluster
}

/// Waits until the sentinels have been asked again.
async fn are_asked(cluster: &FakeCluster) {
    let heard = || cluster.sentinels.iter().map(|it| it.heard().len()).sum::<usize>();
    let before = heard();
    until("they are asked", || heard() > before + 20).await;
}

#[tokio::test]
async fn retries_seed_name_that_does_not_resolve() {
    let (cluster, names) = (FakeCluster::new(1, 1).await, Names::default());
    let watched = watch(NAME, vec![name(cluster.sentinels[0].addr.port())]);
    let driver = Driver::all(vec![watched], &[], Some(names.resolver()), timeouts()).remove(0);
    until("it was asked twice", || names.asked.load(Ordering::SeqCst) >= 2).await;
    assert!(driver.target().is_none());
    names.set_master(Some(vec![cluster.sentinels[0].addr]));
    driver.wait_for_target(cluster.addr(0)).await;
}

#[tokio::test]
async fn slow_resolver_blocks_nothing_and_late_answer_counts() {
    let (cluster, names) = (FakeCluster::new(1, 1).await, Names::default());
    names.set_master(Some(vec![cluster.sentinels[0].addr]));
    let release = names.hang();
    let watched = watch(NAME, vec![name(cluster.sentinels[0].addr.port())]);
    let driver = Driver::all(vec![watched], &[], Some(names.resolver()), quick()).remove(0);
    let count = |it: &AtomicUsize| it.load(Ordering::SeqCst);
    until("it is asked", || count(&names.asked) > 0).await;
    let asked_at = Instant::now();
    until("the loop turns", || driver.heartbeat.age() < asked_at.elapsed()).await;
    // Longer than any timeout, and than the pause before the next query.
    tokio::time::sleep(ms(1000)).await;
    assert_eq!(count(&names.answered), 0, "no answer was waited for");
    assert_eq!(count(&names.asked), 1, "one look-up at a time");
    drop(release);
    driver.wait_for_target(cluster.addr(0)).await;
}

#[tokio::test]
async fn keeps_sentinel_whose_address_left_its_name() {
    let (cluster, names) = (FakeCluster::new(1, 1).await, Names::default());
    let elsewhere: SocketAddr = "127.0.0.9:1".parse().expect("an address");
    names.set_master(Some(vec![cluster.sentinels[0].addr]));
    let watched = watch(NAME, vec![name(cluster.sentinels[0].addr.port())]);
    let driver = Driver::all(vec![watched], &[], Some(names.resolver()), timeouts()).remove(0);
    driver.wait_for_target(cluster.addr(0)).await;
    names.set_master(Some(vec![elsewhere]));
    driver
        .wait_for("the new address", |seen| {
            seen.sentinels.iter().any(|it| &*it.addr.host == "127.0.0.9")
        })
        .await;
    assert!(driver.seen().sentinels.iter().any(|it| it.up));
    assert_eq!(cluster.sentinels[0].accepted(), 1);
    // The address may belong to another pod from now on.
    cluster.sentinels[0].cut();
    driver.wait_for("its end", |seen| seen.sentinels.iter().all(|it| !it.up)).await;
    stays(ms(1000), "not dialled again", || cluster.sentinels[0].accepted() == 1).await;
}

/// As with pods that are all not ready, or gone.
#[tokio::test]
async fn follows_connected_sentinels_of_name_without_address() {
    let (cluster, names) = (FakeCluster::new(3, 2).await, Names::default());
    let here: Vec<SocketAddr> = vec![cluster.sentinels[0].addr];
    names.set_master(Some(here.clone()));
    let seeds = cluster.sentinels.iter().map(|it| name(it.addr.port())).collect();
    let (mut watched, route) = watch(NAME, seeds);
    // Learned ones are dialled where they were announced, and only kept with their ID.
    watched.settings.learn = false;
    let driver =
        Driver::all(vec![(watched, route)], &[], Some(names.resolver()), timeouts()).remove(0);
    driver.wait_for_target(cluster.addr(0)).await;
    let up = |count| {
        move |seen: &DiscoverySnapshot| seen.sentinels.iter().filter(|it| it.up).count() == count
    };
    driver.wait_for("three", up(3)).await;
    // Does not answer: each of them is dialled again at the last address of its name.
    names.set_master(None);
    let dialled = || cluster.sentinels.iter().map(FakeServer::accepted).sum::<usize>();
    let before = dialled();
    cluster.sentinels.iter().for_each(FakeServer::cut);
    until("all are dialled again", || dialled() == before + 3).await;
    driver.wait_for("three", up(3)).await;
    // Answers that there is no address.
    names.set_master(Some(Vec::new()));
    let asked = names.asked.load(Ordering::SeqCst);
    until("all names were asked", || names.asked.load(Ordering::SeqCst) >= asked + 9).await;
    assert!(driver.seen().sentinels.iter().all(|it| it.up));
    cluster.promote(1);
    for sentinel in 0..3 {
        cluster.switch(sentinel, 0, 1, 2);
    }
    driver.wait_for_target(cluster.addr(1)).await;
    // They are dialled again, and must be the same sentinels.
    let before = dialled();
    cluster.sentinels.iter().for_each(FakeServer::cut);
    until("all are dialled again", || dialled() >= before + 3).await;
    driver.wait_for("three", up(3)).await;
    // The addresses belong to another cluster from now on.
    for (number, sentinel) in cluster.sentinels.iter().enumerate() {
        sentinel.script().id = format!("{:040x}", 70 + number);
        sentinel.cut();
    }
    driver.wait_for("their end", up(0)).await;
    stays(ms(1000), "they are strangers", || up(0)(&driver.seen())).await;
    assert_eq!(driver.target(), Some(cluster.addr(1)));
    names.set_master(Some(here));
    driver.wait_for("three", up(3)).await;
    assert_eq!(driver.target(), Some(cluster.addr(1)));
}

#[tokio::test]
async fn looks_a_name_up_at_once_when_its_sentinel_is_lost() {
    let (cluster, names) = (FakeCluster::new(1, 1).await, Names::default());
    names.set_master(Some(vec![cluster.sentinels[0].addr]));
    let watched = watch(NAME, vec![name(cluster.sentinels[0].addr.port())]);
    let driver = Driver::all(vec![watched], &[], Some(names.resolver()), timeouts()).remove(0);
    driver.wait_for_target(cluster.addr(0)).await;
    let asked = || names.asked.load(Ordering::SeqCst);
    let before = asked();
    cluster.sentinels[0].behave(Behavior::CloseAtOnce);
    cluster.sentinels[0].cut();
    // Every five seconds while its sentinel answers.
    let lost = Instant::now();
    until("it was asked three times more", || asked() >= before + 3).await;
    assert!(lost.elapsed() < ms(4500), "{:?}", lost.elapsed());
}

#[tokio::test]
async fn pins_named_master_and_follows_it_to_new_address() {
    let (one, two) = two_on_one_port(["127.0.0.2", "127.0.0.3"]).await;
    let names = Names::default();
    names.set_master(Some(vec![one.addr]));
    let cluster = named(one.addr.port()).await;
    let driver =
        Driver::all(vec![cluster.watch()], &[], Some(names.resolver()), timeouts()).remove(0);
    driver.wait_for_target(one.addr).await;
    let named = driver.route.current().expect("a target");
    assert_eq!(&*named.destination().name, format!("somewhere.example:{}", one.addr.port()));
    // The name has no address for a while: the pinned one stays in use.
    names.set_master(None);
    one.cut();
    stays(ms(400), "the master stays", || driver.target() == Some(one.addr)).await;
    // It moved: the old address does not answer any more, the name has another one, with another
    // process and the same history.
    two.script().run_id = "2".repeat(40);
    names.set_master(Some(vec![two.addr]));
    one.behave(Behavior::CloseAtOnce);
    one.cut();
    driver.wait_for_target(two.addr).await;
    assert!(named.fence().is_raised(), "sessions to the old address are cut");
    assert_eq!(
        driver.seen().failovers.last().map(|it| it.basis),
        Some(sentinel::Basis::Reconfirmed)
    );
    // The same process at the first address again, as with a name of two address families: it is
    // dialled there, and no session is closed.
    one.script().run_id = "2".repeat(40);
    let named = driver.route.current().expect("a target");
    names.set_master(Some(vec![one.addr]));
    one.behave(Behavior::Normal);
    two.behave(Behavior::CloseAtOnce);
    two.cut();
    driver.wait_for_target(one.addr).await;
    assert!(!named.fence().is_raised());
    assert_eq!(driver.route.current().map(|it| it.generation()), Some(named.generation()));
    driver
        .wait_for("the address dialled now", |seen| {
            seen.master.as_ref().is_some_and(|it| it.dialled == one.addr)
        })
        .await;
}

/// Pods restart, and their addresses go to others: what answers there is not the node any more.
#[tokio::test]
async fn leaves_address_that_the_name_has_no_longer() {
    let (one, two) = two_on_one_port(["127.0.0.2", "127.0.0.3"]).await;
    let names = Names::default();
    names.set_master(Some(vec![one.addr]));
    let cluster = named(one.addr.port()).await;
    let driver =
        Driver::all(vec![cluster.watch()], &[], Some(names.resolver()), timeouts()).remove(0);
    driver.wait_for_target(one.addr).await;
    // Without an address, as of a pod that is not ready, the connection stays.
    names.set_master(Some(Vec::new()));
    let asked = names.asked.load(Ordering::SeqCst);
    until("it is asked", || names.asked.load(Ordering::SeqCst) >= asked + 2).await;
    stays(ms(400), "the master stays", || driver.target() == Some(one.addr)).await;
    // It is dialled again there, and is the same process.
    let before = one.accepted();
    one.cut();
    until("it is dialled again", || one.accepted() > before).await;
    stays(ms(400), "the master stays", || driver.target() == Some(one.addr)).await;
    // Another process is there now, which may be that of another cluster.
    one.script().run_id = "7".repeat(40);
    let generation = driver.generation();
    one.cut();
    driver.wait_for("its end", |seen| seen.state != "stable").await;
    stays(ms(700), "it is a stranger", || driver.generation() == generation).await;
    assert_ne!(driver.seen().state, "stable");
    // The name server still gives the address that the name had before.
    names.set_master(Some(vec![one.addr]));
    driver.wait_for("that process", |seen| seen.state == "stable").await;
    // A server at the new address refuses the proxy, and may be a stranger.
    two.script().access.password = Some(("default".to_owned(), "another".to_owned()));
    two.script().run_id = "2".repeat(40);
    names.set_master(Some(vec![two.addr]));
    until("it is tried", || two.accepted() > 0).await;
    let answers = |seen: &DiscoverySnapshot| {
        seen.nodes.iter().all(|it| it.probe.as_ref().is_some_and(|it| it.outcome.is_ok()))
    };
    stays(ms(400), "the master answers", || answers(&driver.seen())).await;
    two.script().access.password = None;
    driver.wait_for_target(two.addr).await;
    // A wrong answer of the name server leads to the stranger, and the sentinels see the process
    // behind the connection.
    let see = |process: String| {
        cluster.sentinels.iter().for_each(|it| it.script().record().run_id.clone_from(&process));
    };
    see("2".repeat(40));
    are_asked(&cluster).await;
    // Lookups are frequent after a dial.
    let redial = async || {
        let before = two.accepted();
        two.cut();
        until("it is dialled again", || two.accepted() > before).await;
    };
    redial().await;
    driver.wait_for("its answer", |seen| seen.state == "stable").await;
    let (tried, generation) = (one.accepted(), driver.generation());
    names.set_master(Some(vec![one.addr]));
    until("it is tried", || one.accepted() > tried).await;
    stays(ms(400), "the master stays", || driver.generation() == generation).await;
    // One of two name servers remembers the old address, where nothing is any more.
    names.set_master(Some(vec![two.addr]));
    see(String::new());
    one.behave(Behavior::CloseAtOnce);
    one.cut();
    redial().await;
    names.set_master(Some(vec![one.addr]));
    let (refused, asked) = (one.accepted(), names.asked.load(Ordering::SeqCst));
    until("it is tried", || one.accepted() > refused).await;
    assert!(names.asked.load(Ordering::SeqCst) >= asked + 4, "not by one answer");
    stays(ms(700), "the master stays", || driver.target() == Some(two.addr)).await;
}

/// Lets all sentinels have read that this process runs at the master's address.
fn see(cluster: &FakeCluster, process: &str) {
    for sentinel in &cluster.sentinels {
        let mut script = sentinel.script();
        let record = script.record();
        (record.run_id, record.informed) = (process.repeat(40), true);
    }
}

#[tokio::test]
async fn tries_other_addresses_where_another_process_answers() {
    let (one, two) = two_on_one_port(["127.0.0.2", "127.0.0.3"]).await;
    one.script().run_id = "1".repeat(40);
    two.script().run_id = "2".repeat(40);
    let names = Names::default();
    names.set_master(Some(vec![one.addr, two.addr]));
    let cluster = named(one.addr.port()).await;
    see(&cluster, "2");
    let driver =
        Driver::all(vec![cluster.watch()], &[], Some(names.resolver()), timeouts()).remove(0);
    driver.wait_for_target(two.addr).await;
    // It is restarted, and closes connections until the other address was dialled.
    two.refuse(Some(b""));
    two.script().run_id = "3".repeat(40);
    see(&cluster, "3");
    let tried = one.accepted();
    two.cut();
    until("the other one is dialled", || one.accepted() > tried).await;
    two.refuse(None);
    driver.wait_for("the master", |seen| seen.state == "stable").await;
    assert_eq!(driver.target(), Some(two.addr));
}

/// A foreign server that wants a password answers at the first address.
#[tokio::test]
async fn tries_other_addresses_where_the_password_is_refused() {
    let (one, two) = two_on_one_port(["127.0.0.2", "127.0.0.3"]).await;
    one.refuse(Some(b"-NOAUTH Authentication required.\r\n"));
    let names = Names::default();
    names.set_master(Some(vec![one.addr, two.addr]));
    let cluster = named(one.addr.port()).await;
    let driver =
        Driver::all(vec![cluster.watch()], &[], Some(names.resolver()), timeouts()).remove(0);
    driver.wait_for_target(two.addr).await;
}

/// The master is lost to the proxy alone, restarts, and another server answers at another address
/// of its name all the time.
#[tokio::test]
async fn believes_no_other_process_at_another_address() {
    let (one, two) = two_on_one_port(["127.0.0.2", "127.0.0.3"]).await;
    one.script().run_id = "1".repeat(40);
    two.script().run_id = "2".repeat(40);
    let names = Names::default();
    names.set_master(Some(vec![one.addr, two.addr]));
    let cluster = named(one.addr.port()).await;
    see(&cluster, "1");
    let driver =
        Driver::all(vec![cluster.watch()], &[], Some(names.resolver()), timeouts()).remove(0);
    driver.wait_for_target(one.addr).await;
    for (process, has_addresses) in [("1", true), ("3", true), ("3", false)] {
        let found = if has_addresses { vec![one.addr, two.addr] } else { Vec::new() };
        names.set_master(Some(found));
        one.refuse(Some(b""));
        let tried = two.accepted();
        one.cut();
        until("the other one is dialled", || two.accepted() > tried + 1).await;
        stays(ms(700), "it is not followed", || driver.target() == Some(one.addr)).await;
        one.script().run_id = process.repeat(40);
        one.refuse(None);
        driver.wait_for("the master", |seen| seen.state == "stable").await;
        assert_eq!(driver.target(), Some(one.addr));
        see(&cluster, process);
    }
}

#[tokio::test]
async fn connects_to_all_addresses_of_a_name() {
    let names = Names::default();
    let ips: [IpAddr; 3] =
        ["127.0.0.2", "127.0.0.3", "127.0.0.4"].map(|it| it.parse().expect("an address"));
    let cluster = FakeCluster::new(3, 1).await;
    let minds: Vec<SentinelScript> =
        cluster.sentinels.iter().map(|it| it.script().clone()).collect();
    let sentinels = loop {
        let first = FakeServer::start_at(ips[0], 0, minds[0].clone()).await.expect("a port");
        let port = first.addr.port();
        let second = FakeServer::start_at(ips[1], port, minds[1].clone()).await;
        let third = FakeServer::start_at(ips[2], port, minds[2].clone()).await;
        if let (Ok(second), Ok(third)) = (second, third) {
            break [first, second, third];
        }
    };
    names.set_master(Some(sentinels.iter().map(|it| it.addr).collect()));
    let (mut watched, route) = watch(NAME, vec![name(sentinels[0].addr.port())]);
    watched.settings.learn = false;
    let driver =
        Driver::all(vec![(watched, route)], &[], Some(names.resolver()), timeouts()).remove(0);
    driver.wait_for_target(cluster.addr(0)).await;
    driver
        .wait_for("three", |seen| {
            seen.sentinels.iter().filter(|it| it.up && it.member).count() == 3
        })
        .await;
}

#[tokio::test]
async fn finds_address_family_that_answers_and_keeps_it() {
    let (four, six) = two_on_one_port(["127.0.0.1", "::1"]).await;
    let names = Names::default();
    names.set_master(Some(vec![four.addr, six.addr]));
    let cluster = named(four.addr.port()).await;
    // A server accepts connections there, and it is not Redis.
    four.behave(Behavior::CloseAtOnce);
    let driver =
        Driver::all(vec![cluster.watch()], &[], Some(names.resolver()), timeouts()).remove(0);
    driver.wait_for_target(six.addr).await;
    // The other address family works from now on, too, and the connection ends again and again.
    four.behave(Behavior::Normal);
    let before = four.accepted();
    for _ in 0..20 {
        let accepted = six.accepted();
        six.cut();
        until("it is dialled again", || six.accepted() > accepted).await;
    }
    driver.wait_for("calm", |seen| seen.state == "stable").await;
    assert_eq!(
        (four.accepted(), driver.generation(), driver.target()),
        (before, 1, Some(six.addr))
    );
}
