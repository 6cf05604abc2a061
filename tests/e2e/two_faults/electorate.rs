//! Sentinels that were all replaced, that lost their state, or that count from zero: the master is
//! healthy and stays.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use harness::{Client, Cluster, Cut, Node, Pointsman, Value, alone, encode, wait_until};

use super::{
    Outcome, PATIENCE, PROXY, elapse, is, listed, more_writes, target, value, wait_for_target,
    writing,
};
use crate::{builder, metric};

/// An epoch that no failover of these tests reaches.
const HIGHER: u32 = 7;
/// No interval without writes in this time is an outage, and no effect of a busy machine.
const QUIET: Duration = Duration::from_secs(2);
/// Scales everything that takes a minute with default timers to ten seconds.
const QUICK: &str = "[service.timers]\npoll = \"200ms\"\nview_expiry = \"1s\"\nregress_grace = \"2s\"\nverify_deadline = \"3s\"";

/// Makes each sentinel hear a peer that names the same master at a higher epoch, and adopt it.
fn raise_epoch(cluster: &Cluster, master: SocketAddr) {
    let id = |sentinel: &Node| sentinel.ask(&["SENTINEL", "MYID"]).expect("MYID").to_string();
    for (index, sentinel) in cluster.sentinels().iter().enumerate() {
        let peer = &cluster.sentinels()[(index + 1) % 3];
        let from = format!("{},{},{}", peer.addr().ip(), peer.addr().port(), id(peer));
        let named = format!("mymaster,{},{}", master.ip(), master.port());
        let hello = format!("{from},{HIGHER},{named},{HIGHER}");
        sentinel.ask(&["PUBLISH", "__sentinel__:hello", &hello]).expect("a hello");
        let now = sentinel.ask(&["SENTINEL", "MASTER", "mymaster"]).expect("MASTER");
        assert_eq!(now.field("config-epoch").and_then(Value::int), Some(i64::from(HIGHER)));
    }
}

#[test]
fn keeps_healthy_master_when_reset_sentinels_name_a_replica() {
    if alone("two_faults::electorate::keeps_healthy_master_when_reset_sentinels_name_a_replica") {
        reset_sentinels(raise_epoch);
    }
}

/// A cluster that never failed over has epoch 0 as well, so the epoch is no reason for doubt.
#[test]
fn keeps_healthy_master_when_a_replica_is_named_at_its_epoch() {
    if alone("two_faults::electorate::keeps_healthy_master_when_a_replica_is_named_at_its_epoch") {
        reset_sentinels(|_, _| ());
    }
}

/// All sentinels come back without their files and watch a replica; the master is healthy.
#[track_caller]
fn reset_sentinels(first: impl FnOnce(&Cluster, SocketAddr)) {
    let cluster = Cluster::builder().start_apart();
    first(&cluster, cluster.master().addr());
    let pointsman = builder(&cluster).service_line(QUICK).start();
    let (master, replica) = (cluster.master().addr(), cluster.replicas()[0].addr());
    let load = writing(&pointsman);
    cluster.sentinels().iter().for_each(Node::kill);
    let reset: Vec<Node> = (0..3).map(|number| cluster.spare_sentinel(number, replica)).collect();
    let since = Instant::now();
    let mut alarmed = false;
    // Three times as long as it takes until they are trusted.
    wait_until("half a minute to pass", PATIENCE, || {
        let disagrees = |it: &Node| {
            metric(
                &pointsman,
                &format!("pointsman_sentinel_disagreeing_services{{sentinel=\"{}\"}}", it.addr()),
            ) == Some(1.0)
        };
        alarmed |= reset.iter().all(disagrees);
        assert!(
            load.since_last() < QUIET,
            "{:.1?} after the sentinels came back, no write has been acknowledged for {:.1?}; target {:?}, gate shut {:?}, {:?} {:?}",
            since.elapsed(),
            load.since_last(),
            target(&pointsman),
            value(&pointsman, "gate_closed"),
            load.counts(),
            load.errors()
        );
        since.elapsed() >= Duration::from_secs(30)
    });
    for sentinel in &reset {
        assert_eq!(
            cluster.master_addr_of(sentinel, "mymaster"),
            Ok(replica),
            "this test needs sentinels that are wrong"
        );
    }
    let counts = load.counts();
    let outcome = Outcome::of(load, master);
    assert_eq!((outcome.verdict.missing, counts.errors), (0, 0), "{outcome}");
    assert!(alarmed, "no alarm: no sentinel is said to disagree");
    assert_eq!(is(&pointsman, "target_generation", 1.0), Ok(()));
}

/// Clients that block on a list each; the master counts them as blocked when this returns.
fn blocked(pointsman: &Pointsman, master: &Node) -> Vec<Client> {
    let mut clients: Vec<Client> = (0..5).map(|_| pointsman.client()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.send(&encode(&["BLPOP", &format!("list-{number}"), "0"])).expect("send");
    }
    wait_until("blocked clients", PATIENCE, || {
        master
            .info("clients", "blocked_clients")
            .map_err(|error| error.to_string())
            .and_then(|count| if count == "5" { Ok(()) } else { Err(count) })
    });
    clients
}

/// Gives every client its element on the blocked connection. Returns how many did not receive it.
fn cut(pointsman: &Pointsman, clients: &mut [Client]) -> usize {
    for number in 0..clients.len() {
        let pushed = pointsman
            .client()
            .cmd(&["RPUSH", &format!("list-{number}"), "element"])
            .expect("RPUSH");
        assert!(!pushed.is_error(), "{pushed}");
    }
    let mut count = 0;
    for client in clients {
        client.set_timeout(Duration::from_secs(5)).expect("a timeout");
        count += usize::from(!client.read_value().is_ok_and(|answer| answer.items().len() == 2));
    }
    count
}

#[test]
fn keeps_blocked_clients_when_only_the_epoch_rises() {
    if !alone("two_faults::electorate::keeps_blocked_clients_when_only_the_epoch_rises") {
        return;
    }
    let cluster = Cluster::builder().start_apart();
    let pointsman = builder(&cluster).start();
    let master = cluster.master();
    let mut clients = blocked(&pointsman, master);
    raise_epoch(&cluster, master.addr());
    wait_until("the epoch in force", PATIENCE, || {
        is(&pointsman, "target_epoch", f64::from(HIGHER))
    });
    let cut = cut(&pointsman, &mut clients);
    assert_eq!(
        cut,
        0,
        "{cut} of 5 blocked clients were cut; generation {:?}",
        value(&pointsman, "target_generation")
    );
    assert_eq!(is(&pointsman, "target_generation", 1.0), Ok(()));
}

#[test]
fn keeps_blocked_clients_when_the_other_family_answers() {
    if !alone("two_faults::electorate::keeps_blocked_clients_when_the_other_family_answers") {
        return;
    }
    let cluster = Cluster::builder().start_apart();
    let master = cluster.master();
    let ip = master.addr().ip();
    let both = format!("{ip} ::1");
    assert!(master.ask(&["CONFIG", "SET", "bind", &both]).expect("CONFIG SET").is_ok());
    let map = format!(
        "address_map = {{ \"{}\" = \"master.test:{}\" }}",
        master.addr(),
        master.addr().port()
    );
    let hosts = [("master.test", ip), ("master.test", "::1".parse().expect("an address"))];
    let pointsman = builder(&cluster).hosts(&hosts).service_line(&map).start();
    let mut clients = blocked(&pointsman, master);
    // The probe connection to the master ends, and cannot be opened again over IPv4.
    let refused = Cut::refusing(PROXY, ip, master.addr().port());
    let watchers = connections(master, |line| line.contains(" name=pointsman"));
    assert!(!watchers.is_empty(), "{:?}", connections(master, |_| true));
    for line in &watchers {
        let id = line.split(' ').find_map(|word| word.strip_prefix("id=")).expect("an id");
        master.ask(&["CLIENT", "KILL", "ID", id]).expect("CLIENT KILL");
    }
    wait_until("the master to be watched by IPv6", PATIENCE, || {
        !connections(master, |line| {
            line.contains(" name=pointsman") && line.contains(" addr=[::1]")
        })
        .is_empty()
    });
    elapse(Instant::now(), Duration::from_secs(1));
    drop(refused);
    let cut = cut(&pointsman, &mut clients);
    assert_eq!(
        cut,
        0,
        "{cut} of 5 blocked clients were cut; generation {:?}",
        value(&pointsman, "target_generation")
    );
    assert_eq!(is(&pointsman, "target_generation", 1.0), Ok(()));
}

/// All sentinels come back without their files, and fail over as soon as they can.
#[track_caller]
fn failover_of_replaced_sentinels(first: impl FnOnce(&Cluster, SocketAddr)) -> Outcome {
    let cluster = Cluster::builder().start_apart();
    let master = cluster.master().addr();
    first(&cluster, master);
    let pointsman = builder(&cluster).service_line("minority = \"hold\"").start();
    let load = writing(&pointsman);
    cluster.sentinels().iter().for_each(Node::kill);
    let new: Vec<Node> = (0..3).map(|number| cluster.spare_sentinel(number, master)).collect();
    wait_acquainted(&new.iter().collect::<Vec<_>>(), || ());
    wait_until("the new sentinels to be heard", PATIENCE, || is(&pointsman, "sentinels_up", 3.0));
    wait_until("a sentinel that accepts SENTINEL FAILOVER", PATIENCE, || {
        new[0].ask(&["SENTINEL", "FAILOVER", "mymaster"])
    });
    let to = wait_until("another master", PATIENCE, || {
        let to = cluster.master_addr_of(&new[1], "mymaster")?;
        if to == master { Err("the same".to_owned()) } else { Ok(to) }
    });
    wait_for_target(&pointsman, to, PATIENCE);
    more_writes(&load, 500);
    let outcome = Outcome::of(load, to);
    assert_eq!(outcome.verdict.missing, 0, "{outcome}");
    outcome
}

#[test]
fn loses_nothing_in_failover_of_replaced_sentinels() {
    if alone("two_faults::electorate::loses_nothing_in_failover_of_replaced_sentinels") {
        let outcome = failover_of_replaced_sentinels(|_, _| ());
        assert!(outcome.longest.is_none_or(|gap| gap < Duration::from_secs(5)), "{outcome}");
    }
}

#[test]
fn loses_nothing_in_failover_at_a_lower_epoch() {
    if alone("two_faults::electorate::loses_nothing_in_failover_at_a_lower_epoch") {
        failover_of_replaced_sentinels(raise_epoch);
    }
}

fn connections(node: &Node, which: impl Fn(&str) -> bool) -> Vec<String> {
    let list = node.ask(&["CLIENT", "LIST"]).expect("CLIENT LIST").to_string();
    list.lines().filter(|line| which(line)).map(str::to_owned).collect()
}

/// Waits until each of these sentinels sees all of them up, whatever else it lists.
#[track_caller]
fn wait_acquainted(sentinels: &[&Node], meanwhile: impl Fn()) {
    wait_until("the sentinels to see each other", PATIENCE, || {
        meanwhile();
        for sentinel in sentinels {
            let peers = listed(sentinel)?;
            let up: BTreeSet<&str> = peers
                .iter()
                .filter(|(_, flags)| flags == "sentinel")
                .map(|(ip, _)| ip.as_str())
                .collect();
            let all = sentinels.iter().filter(|it| it.addr() != sentinel.addr());
            if let Some(missing) =
                all.map(|it| it.addr().ip().to_string()).find(|ip| !up.contains(ip.as_str()))
            {
                return Err(format!("{} does not see {missing}: {peers:?}", sentinel.name()));
            }
        }
        Ok(())
    });
}

#[test]
fn ghosts_of_replaced_sentinels_make_no_minority() {
    if !alone("two_faults::electorate::ghosts_of_replaced_sentinels_make_no_minority") {
        return;
    }
    let cluster = Cluster::builder().start_apart();
    let pointsman = builder(&cluster).service_line("minority = \"hold\"").start();
    let master = cluster.master().addr();
    let load = writing(&pointsman);
    // When the sentinels were first taken for a minority.
    let minority: Cell<Option<String>> = Cell::default();
    let look = |when: &str| {
        let seen = minority
            .take()
            .or_else(|| is(&pointsman, "sentinel_minority", 0.0).is_err().then(|| when.to_owned()));
        minority.set(seen);
    };
    let mut new: Vec<Node> = Vec::new();
    for (number, old) in cluster.sentinels().iter().enumerate() {
        old.kill();
        new.push(cluster.spare_sentinel(10 + number, master));
        let living: Vec<&Node> = cluster.sentinels()[number + 1..].iter().chain(&new).collect();
        wait_acquainted(&living, || look(&format!("when sentinel {number} was replaced")));
    }
    wait_until("the new sentinels to be connected", PATIENCE, || {
        look("when all were replaced");
        is(&pointsman, "sentinels_up", 3.0)
    });
    // The first of them lists two ghosts, the second one, the last none.
    let ghosts: Vec<usize> =
        new.iter().map(|it| listed(it).expect("SENTINELS").len() - 2).collect();
    assert_eq!(ghosts, [2, 1, 0], "this test needs ghosts");
    new[0].kill();
    let lost = Instant::now();
    // Longer than the lost sentinel's view is valid, and than its peers need to detect its end.
    wait_until("nine seconds to pass", PATIENCE, || {
        look("when one of the new ones was lost");
        lost.elapsed() >= Duration::from_secs(9)
    });
    let quiet = load.since_last();
    assert_eq!(
        minority.take(),
        None,
        "taken for a minority, now no write for {quiet:.1?}; {:?}",
        load.counts()
    );
    more_writes(&load, 500);
    let counts = load.counts();
    let outcome = Outcome::of(load, master);
    assert!(outcome.longest.is_none_or(|gap| gap < QUIET), "{outcome}");
    assert_eq!((outcome.verdict.missing, counts.errors), (0, 0), "{outcome}");
}
