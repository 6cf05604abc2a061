//! The program is cut off while the master is replaced, and the old master is reachable again
//! before the sentinels are.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use harness::{Client, Cluster, Cut, Load, Node, Pointsman, Signal, alone, encode, wait_until};

use super::{
    LONG_HOLD, Outcome, PATIENCE, PROXY, RATE, WRITERS, elapse, ips, is, more_writes, promoted,
    wait_for_target, writing,
};
use crate::builder;
use crate::isolation::sets;

fn pointsman(cluster: &Cluster) -> Pointsman {
    builder(cluster).service_line(LONG_HOLD).start()
}

/// All nodes that must not reach the old master, so that it is neither demoted nor followed.
fn all_but<'a>(cluster: &'a Cluster, old: &Node) -> Vec<&'a Node> {
    let servers = cluster.nodes().iter().filter(|node| node.addr() != old.addr());
    servers.chain(cluster.sentinels()).collect()
}

/// The program's network fails, the master is replaced meanwhile, and the old master is reachable
/// again before the sentinels are.
struct Outage<'a> {
    old: &'a Node,
    to: SocketAddr,
    to_old: Cut,
    to_others: Cut,
    /// Keeps the old master from being demoted.
    _undisturbed: Cut,
}

impl<'a> Outage<'a> {
    /// Returns when the failover is over and the outage has been detected. `meanwhile` runs from
    /// the beginning of the outage.
    fn noticed(cluster: &'a Cluster, pointsman: &Pointsman, meanwhile: impl FnOnce()) -> Self {
        let old = cluster.master();
        let others = ips(all_but(cluster, old));
        let to_old = Cut::between(&[PROXY], &[old.addr().ip()]);
        let to_others = Cut::between(&[PROXY], &others);
        meanwhile();
        let to = cluster.failover().to;
        wait_until("the outage to be noticed", PATIENCE, || is(pointsman, "gate_closed", 1.0));
        let _undisturbed = Cut::between(&[old.addr().ip()], &others);
        Self { old, to, to_old, to_others, _undisturbed }
    }

    /// Heals the network: the old master first, and the sentinels and the new master two seconds
    /// later. Returns how many writes the old master executed until then.
    fn heal(self, pointsman: &Pointsman) -> u64 {
        let before = sets(self.old);
        drop(self.to_old);
        elapse(Instant::now(), Duration::from_secs(2));
        assert_eq!(
            self.old.role().expect("ROLE"),
            "master",
            "this test needs an old master that takes writes"
        );
        let executed = sets(self.old) - before;
        drop(self.to_others);
        wait_for_target(pointsman, self.to, PATIENCE);
        executed
    }
}

#[test]
fn loses_no_write_after_outage_of_its_network() {
    if !alone("two_faults::blindness::loses_no_write_after_outage_of_its_network") {
        return;
    }
    let cluster = Cluster::builder().start_apart();
    let pointsman = pointsman(&cluster);
    let load = writing(&pointsman);
    let outage = Outage::noticed(&cluster, &pointsman, || ());
    let (old, to) = (outage.old, outage.to);
    // The first writers have one request each in flight; these have none, and arrive while the gate
    // is closed.
    let late = Load::to(pointsman.addr())
        .prefix("late")
        .writers(WRITERS)
        .rate(RATE)
        .timeout(PATIENCE)
        .start();
    wait_until("more clients", PATIENCE, || late.counts().connections == WRITERS as u64);
    let before = sets(old);
    let executed = outage.heal(&pointsman);
    more_writes(&late, 500);
    let last = sets(old) - before;
    let (first, late) = (Outcome::of(load, to), Outcome::of(late, to));
    let figures = format!(
        "until the sentinels came, the old master executed {executed} writes, {last} in all; before the outage: {first}; since: {late}"
    );
    assert_eq!((first.verdict.missing, late.verdict.missing), (0, 0), "{figures}");
    // One request per writer may have been in flight when the network failed.
    assert!(last <= WRITERS as u64, "{figures}");
}

#[test]
fn passes_on_no_reply_of_old_master_after_outage() {
    if !alone("two_faults::blindness::passes_on_no_reply_of_old_master_after_outage") {
        return;
    }
    let cluster = Cluster::builder().start_apart();
    let pointsman = pointsman(&cluster);
    let mut clients: Vec<Client> = (0..40).map(|_| pointsman.client()).collect();
    for client in &mut clients {
        assert!(client.cmd(&["PING"]).is_ok());
    }
    // Sent into the outage at different times, so that retransmissions differ as well.
    let outage = Outage::noticed(&cluster, &pointsman, || {
        let start = Instant::now();
        for (number, client) in clients.iter_mut().enumerate() {
            elapse(
                start,
                Duration::from_millis(100) * u32::try_from(number).expect("a small number"),
            );
            client.send(&encode(&["SET", &format!("into-outage-{number}"), "1"])).expect("send");
        }
    });
    let to = outage.to;
    let executed = outage.heal(&pointsman);
    let new = cluster.node_at(to).expect("the new master");
    let lost = |(number, client): (usize, &mut Client)| {
        client.set_timeout(Duration::from_secs(10)).expect("a timeout");
        let acknowledged = client.read_value().is_ok_and(|reply| reply.is_ok());
        let there = new.ask(&["EXISTS", &format!("into-outage-{number}")]).expect("EXISTS").int()
            == Some(1);
        (acknowledged && !there).then_some(number)
    };
    let lost: Vec<usize> = clients.iter_mut().enumerate().filter_map(lost).collect();
    let figures =
        format!("of 40 requests sent into the outage, the old master executed {executed} after it");
    assert_eq!(lost, [0_usize; 0], "acknowledged and lost; {figures}");
}

#[test]
fn sends_nothing_to_restarted_master_after_a_stop() {
    if !alone("two_faults::blindness::sends_nothing_to_restarted_master_after_a_stop") {
        return;
    }
    let cluster = Cluster::builder().start_apart();
    let pointsman = pointsman(&cluster);
    let old = cluster.master();
    let load = writing(&pointsman);
    pointsman.process().signal(Signal::STOP);
    // Its history continues, with another run_id.
    assert!(old.ask(&["SAVE"]).expect("SAVE").is_ok());
    old.kill();
    let to = promoted(&cluster, old);
    let _undisturbed = Cut::between(&[old.addr().ip()], &ips(all_but(&cluster, old)));
    let late = Cut::between(&[PROXY], &ips(cluster.sentinels()));
    old.restart();
    let acknowledged = load.counts().acknowledged;
    pointsman.process().signal(Signal::CONT);
    elapse(Instant::now(), Duration::from_secs(1));
    assert_eq!(
        old.role().expect("ROLE"),
        "master",
        "this test needs an old master that takes writes"
    );
    let (executed, acknowledged) = (sets(old), load.counts().acknowledged - acknowledged);
    drop(late);
    wait_for_target(&pointsman, to, PATIENCE);
    more_writes(&load, 500);
    let last = sets(old);
    let outcome = Outcome::of(load, to);
    let figures = format!(
        "{outcome}; until the sentinels came, the restarted master executed {executed} writes and {acknowledged} were \
         acknowledged; {last} executed in all"
    );
    assert_eq!((outcome.verdict.missing, last), (0, 0), "{figures}");
}

#[test]
fn sends_nothing_to_empty_master_while_sentinels_see_it_down() {
    if !alone("two_faults::blindness::sends_nothing_to_empty_master_while_sentinels_see_it_down") {
        return;
    }
    // With one sentinel gone and a quorum of three, no failover starts until the quorum is changed.
    let cluster = Cluster::builder().with_quorum(3).start_apart();
    let pointsman = pointsman(&cluster);
    let old = cluster.master();
    cluster.sentinels()[2].kill();
    let deciding = &cluster.sentinels()[..2];
    let load = writing(&pointsman);
    old.kill();
    let _undisturbed = Cut::between(&[old.addr().ip()], &ips(all_but(&cluster, old)));
    for sentinel in deciding {
        wait_until("the master to be subjectively down", PATIENCE, || {
            let reply = sentinel
                .ask_briefly(&["SENTINEL", "MASTER", "mymaster"])
                .map_err(|error| error.to_string())?;
            let flags = reply.field("flags").map(ToString::to_string).unwrap_or_default();
            if flags.contains("s_down") { Ok(()) } else { Err(flags) }
        });
    }
    wait_until("the loss to be noticed", PATIENCE, || is(&pointsman, "gate_closed", 1.0));
    // Another Redis at this address: empty, with another run_id and another history.
    let acknowledged = load.counts().acknowledged;
    old.restart();
    elapse(Instant::now(), Duration::from_secs(3));
    let (executed, acknowledged) = (sets(old), load.counts().acknowledged - acknowledged);
    for sentinel in deciding {
        assert!(
            sentinel
                .ask(&["SENTINEL", "SET", "mymaster", "quorum", "2"])
                .expect("SENTINEL SET")
                .is_ok()
        );
    }
    let to = promoted(&cluster, old);
    wait_for_target(&pointsman, to, PATIENCE);
    more_writes(&load, 500);
    let last = sets(old);
    let outcome = Outcome::of(load, to);
    let figures = format!(
        "{outcome}; until the sentinels decided, the empty master executed {executed} writes and {acknowledged} were \
         acknowledged; {last} executed in all"
    );
    assert_eq!((executed, last), (0, 0), "{figures}");
    // The last writes before the death may not have been replicated.
    assert!(outcome.verdict.missing <= WRITERS as u64, "{figures}");
}

/// The sentinels do not reach it, and see the master down only seconds later.
#[test]
fn sends_nothing_to_empty_master_that_sentinels_do_not_reach() {
    if !alone("two_faults::blindness::sends_nothing_to_empty_master_that_sentinels_do_not_reach") {
        return;
    }
    let cluster = Cluster::builder().down_after(Duration::from_secs(6)).start_apart();
    let running = pointsman(&cluster);
    let old = cluster.master();
    let load = writing(&running);
    let _undisturbed = Cut::between(&[old.addr().ip()], &ips(all_but(&cluster, old)));
    old.kill();
    wait_until("the loss to be noticed", PATIENCE, || is(&running, "gate_closed", 1.0));
    old.restart();
    // It knows no other process to compare this one with, except that of the sentinels.
    let starting = pointsman(&cluster);
    let late = Load::to(starting.addr()).writers(WRITERS).rate(RATE).timeout(PATIENCE).start();
    let to = promoted(&cluster, old);
    for (pointsman, load) in [(&running, &load), (&starting, &late)] {
        wait_for_target(pointsman, to, PATIENCE);
        more_writes(load, 200);
    }
    assert_eq!(sets(old), 0, "{:?} {:?}", load.counts(), late.counts());
    let [before, after] = [load, late].map(|load| Outcome::of(load, to));
    // The last writes before the death may not have been replicated.
    assert!(before.verdict.missing <= WRITERS as u64, "{before}");
    assert_eq!(after.verdict.missing, 0, "{after}");
}

/// One sentinel does not reach the master, which restarts from its append-only file: with another
/// replication ID, and before the others see it down.
#[test]
fn uses_restarted_master_that_one_sentinel_misses() {
    if !alone("two_faults::blindness::uses_restarted_master_that_one_sentinel_misses") {
        return;
    }
    let cluster = Cluster::builder().redis_line("appendonly yes").start_apart();
    let pointsman = pointsman(&cluster);
    let (master, blind) = (cluster.master(), &cluster.sentinels()[2]);
    let mut client = pointsman.client();
    assert!(client.cmd(&["SET", "kept", "1"]).expect("SET").is_ok());
    let _cut = Cut::between(&[blind.addr().ip()], &[master.addr().ip()]);
    wait_until("one sentinel to miss the master", PATIENCE, || {
        let reply = blind.ask_briefly(&["SENTINEL", "MASTER", "mymaster"]);
        let reply = reply.map_err(|error| error.to_string())?;
        let flags = reply.field("flags").map(ToString::to_string).unwrap_or_default();
        if flags.contains("s_down") { Ok(()) } else { Err(flags) }
    });
    master.kill();
    master.restart();
    let begin = Instant::now();
    let mut client = pointsman.client();
    client.set_timeout(PATIENCE).expect("a timeout");
    let reply = client.cmd(&["GET", "kept"]).expect("a reply");
    assert_eq!(reply.text(), Some("1"), "after {:?}", begin.elapsed());
    assert_eq!(cluster.current_master_addr(), Ok(master.addr()), "no failover");
}
