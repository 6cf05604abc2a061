//! The stage of a run: the cluster, the proxies, and how each fault is brought about and ended.
//!
//! Faults that are in force at once are performed by threads of their own. What one of them leaves
//! to be cleaned up is cleaned up when all are over: an operator does not reset sentinels in the
//! middle of a failover.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use harness::{Authority, Cluster, Cut, Node, PROXY, Tls, Value, pause, wait_until};
use setup::files;

use super::Mode;
use super::proxy::Proxy;
use super::schedule::{Act, Fault, Part};
use super::timeline::RoleChange;
use super::world::World;
use crate::lock;

const PATIENCE: Duration = Duration::from_secs(90);
/// A sentinel that lost its files while the master is dead knows no replicas. If it wins the
/// election it aborts with `-failover-abort-no-good-slave`, and the others try again twelve seconds
/// later; it was seen to win three times in a row. Proxies have no part in that.
const SUCCESSOR: Duration = Duration::from_secs(300);
/// A planned failover that another fault hinders may fail, which is known after this long.
const HINDERED: Duration = Duration::from_secs(15);
/// How often a server is asked whether it is a master.
const LOOK: Duration = Duration::from_millis(20);
/// The name in the certificate of the proxies.
const NAME: &str = "redis.test";

/// Cluster and proxies.
pub(super) struct Stage {
    pub(super) cluster: Cluster,
    pub(super) proxies: Vec<Mutex<Proxy>>,
    pub(super) tls: Option<Tls>,
    /// The configuration with which each sentinel started.
    files: Vec<(PathBuf, String)>,
    /// Sentinels that lost their files in this step.
    lost: Mutex<BTreeSet<usize>>,
}

impl Stage {
    pub(super) fn start(program: &Path, mode: Mode) -> Result<Self, String> {
        // A backlog as in production, so that a replica continues instead of loading everything.
        let builder = Cluster::builder().redis_line("repl-backlog-size 16mb").own_clocks();
        let builder = if mode.servers_tls { builder.tls() } else { builder };
        let cluster = builder.start_apart();
        let read = |node: &Node| {
            let name = node.name();
            let path = cluster.folder().join(name).join(format!("{name}.conf"));
            let text = files::read(&path)?;
            Ok((path, text))
        };
        let files = cluster.sentinels().iter().map(read).collect::<Result<_, String>>()?;
        let authority = mode.tls.then(|| Authority::new("the authority of the proxies"));
        let paths = authority.as_ref().map(|authority| {
            authority.issue(&[NAME]).write(&cluster.folder().join("certificates"))
        });
        let proxies = (0..mode.proxies)
            .map(|index| Proxy::start(program, &cluster, index, mode, paths.as_ref()))
            .map(|it| it.map(Mutex::new))
            .collect::<Result<_, String>>()?;
        let tls = authority.map(|it| Tls::new(&it, NAME));
        Ok(Self { cluster, proxies, tls, files, lost: Mutex::default() })
    }

    pub(super) fn proxy(&self, which: usize) -> MutexGuard<'_, Proxy> {
        #[allow(clippy::indexing_slicing, reason = "there are proxies, and it is one of them")]
        lock(&self.proxies[which % self.proxies.len()])
    }

    pub(super) fn each_proxy(&self) -> impl Iterator<Item = MutexGuard<'_, Proxy>> {
        self.proxies.iter().map(lock)
    }

    /// Asks a server all the time whether it is a master, and notes when that changes.
    pub(super) fn watch(&self, node: &Node, world: &World) {
        let (mut last, mut before) = (None, world.timeline.now());
        while !world.stopped() {
            let asked = world.timeline.now();
            if let Ok(reply) = node.ask_briefly(&["INFO", "replication"]) {
                let field = |name: &str| {
                    let text = reply.text().unwrap_or_default();
                    let find = |line: &str| line.strip_prefix(name).map(|it| it.trim().to_owned());
                    text.lines().find_map(find).unwrap_or_default()
                };
                let now = (field("role:") == "master", field("master_replid:"));
                if last.as_ref() != Some(&now) {
                    let (is_master, replication) = now.clone();
                    let (node, at) = (node.addr(), world.timeline.now());
                    world.timeline.turn(RoleChange { node, before, at, is_master, replication });
                    last = Some(now);
                }
                before = asked;
            }
            pause(LOOK);
        }
    }

    /// Brings a fault about and ends it. `others` are those in force meanwhile.
    ///
    /// # Panics
    /// If something does not happen in time.
    pub(super) fn perform(&self, act: &Act, others: &[Fault], world: &World) {
        match act.fault.part() {
            Part::Master => self.replace_master(act, others, world),
            Part::Replica => self.disturb_replica(act, world),
            Part::Sentinel => self.disturb_sentinel(act, world),
            Part::Proxy => {
                let place = format!(" (proxy {})", act.which % self.proxies.len());
                let number = world.timeline.begin(act.fault, None, &place);
                match act.fault {
                    Fault::BlindProxy | Fault::CutProxy => {
                        let mut those = ips(self.cluster.sentinels());
                        if act.fault == Fault::CutProxy {
                            those.extend(ips(self.cluster.nodes()));
                        }
                        let _cut = Cut::of_group(self.proxy(act.which).group, &those);
                        pause(act.hold);
                    }
                    _ => self.proxy(act.which).perform(act),
                }
                world.timeline.end(number);
            }
            Part::Clock => {
                let nodes = self.cluster.nodes();
                let Some(node) = nodes.get(act.which % nodes.len().max(1)) else { return };
                let place = format!(" ({}, {} s)", node.addr(), act.jump());
                let number = world.timeline.begin(act.fault, None, &place);
                jump(node, act);
                world.timeline.end(number);
            }
            Part::Network => {
                let number = world.timeline.begin(act.fault, None, "");
                let shape = "qdisc add dev lo root tbf rate 20mbit burst 64k latency 400ms";
                traffic_control(shape);
                pause(act.hold);
                traffic_control("qdisc del dev lo root");
                world.timeline.end(number);
            }
        }
    }

    fn replace_master(&self, act: &Act, others: &[Fault], world: &World) {
        let master = self.cluster.master();
        let place = format!(" ({})", master.addr());
        let number = world.timeline.begin(act.fault, Some(master.addr()), &place);
        let own = [master.addr().ip()];
        let mut members = ips(self.cluster.nodes());
        members.extend(ips(self.cluster.sentinels()));
        members.retain(|ip| *ip != own[0]);
        let until_successor = |cut: Cut| {
            self.wait_successor(master);
            pause(act.hold);
            drop(cut);
        };
        match act.fault {
            Fault::Switchover => self.switch_over(act, master, number, others, world),
            Fault::PlannedFailover => self.fail_over(master, others, world),
            Fault::KillMaster => {
                master.kill();
                self.wait_successor(master);
                pause(act.hold);
                master.restart();
            }
            Fault::StopMaster => {
                master.stop();
                self.wait_successor(master);
                pause(act.hold);
                master.cont();
            }
            Fault::CutMaster => {
                members.push(PROXY);
                until_successor(Cut::between(&own, &members));
            }
            Fault::HideMaster => until_successor(Cut::between(&own, &members)),
            _ => until_successor(Cut::one_way(&own, &members)),
        }
        world.timeline.end(number);
    }

    /// Orders a planned failover. It may fail if another fault hinders it, or if a sentinel aborts
    /// it, as it does when the machine is too slow.
    fn fail_over(&self, master: &Node, others: &[Fault], world: &World) {
        self.cluster.begin_failover_of(self.cluster.name());
        let (ordered, began) = (world.timeline.now(), Instant::now());
        let aborted = || {
            let seen = world.timeline.sightings(ordered);
            seen.iter().any(|it| it.channel.starts_with("-failover-abort"))
        };
        let is_hindered = others.iter().any(|it| it.hinders());
        let is_done = wait_until("another master after SENTINEL FAILOVER", PATIENCE, || match self
            .cluster
            .current_master_addr()
        {
            Ok(addr) if addr != master.addr() => Ok(true),
            _ if aborted() => Ok(false),
            _ if is_hindered && began.elapsed() > HINDERED => Ok(false),
            Ok(addr) => Err(format!("still {addr}")),
            Err(why) => Err(why),
        });
        if !is_done {
            world.timeline.note("the planned failover did not take place");
        }
    }

    /// Has pointsman switch over. Nothing may be lost if the command succeeds; if it fails although
    /// nothing hinders it, it is repeated, as by an operator.
    fn switch_over(
        &self,
        act: &Act,
        master: &Node,
        number: usize,
        others: &[Fault],
        world: &World,
    ) {
        let is_hindered = others.iter().any(|it| it.hinders());
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut command = self.proxy(act.which).switchover();
            let (succeeded, said) = match command.output() {
                Ok(done) => {
                    let out = [done.stdout, done.stderr].concat();
                    (done.status.success(), String::from_utf8_lossy(&out).into_owned())
                }
                Err(error) => (false, error.to_string()),
            };
            said.lines().for_each(|line| world.timeline.note(&format!("switchover: {line}")));
            if succeeded {
                self.wait_successor(master);
                return;
            }
            if is_hindered {
                // It may have ordered the failover before, which continues without pointsman.
                world.timeline.rename(number, Fault::PlannedFailover);
                return;
            }
            assert!(Instant::now() < deadline, "the switchover fails again and again: {said}");
            pause(Duration::from_secs(1));
        }
    }

    fn wait_successor(&self, old: &Node) {
        wait_until("another master", SUCCESSOR, || match self.cluster.current_master_addr() {
            Ok(addr) if addr != old.addr() => Ok(()),
            Ok(addr) => Err(format!("still {addr}")),
            Err(why) => Err(why),
        });
    }

    fn disturb_replica(&self, act: &Act, world: &World) {
        let master = self.cluster.master().addr();
        let replicas = self.cluster.replicas();
        let Some(replica) = replicas.get(act.which % replicas.len().max(1)) else { return };
        let (addr, place) = (replica.addr(), format!(" ({})", replica.addr()));
        let number = world.timeline.begin(act.fault, Some(addr), &place);
        match act.fault {
            Fault::KillReplica => {
                replica.kill();
                pause(act.hold);
                replica.restart();
            }
            Fault::StopReplica => {
                replica.stop();
                pause(act.hold);
                replica.cont();
            }
            _ => {
                let _cut = Cut::between(&[addr.ip()], &[master.ip()]);
                pause(act.hold);
            }
        }
        world.timeline.end(number);
    }

    fn disturb_sentinel(&self, act: &Act, world: &World) {
        let sentinels = self.cluster.sentinels();
        let index = act.which % sentinels.len().max(1);
        let (Some(sentinel), Some((path, text))) = (sentinels.get(index), self.files.get(index))
        else {
            return;
        };
        let master = self.cluster.master().addr();
        let place = format!(" ({})", sentinel.addr());
        let number = world.timeline.begin(act.fault, None, &place);
        match act.fault {
            Fault::KillSentinel | Fault::LoseSentinelFiles => {
                sentinel.kill();
                if act.fault == Fault::LoseSentinelFiles {
                    let fresh = without_memory(text, master);
                    let written = std::fs::write(path, fresh);
                    assert!(written.is_ok(), "{}: {written:?}", path.display());
                    lock(&self.lost).insert(index);
                }
                pause(act.hold);
                sentinel.restart();
                attend(sentinel, world);
            }
            Fault::CutSentinel => {
                let _cut = Cut::between(&[PROXY], &[sentinel.addr().ip()]);
                pause(act.hold);
            }
            Fault::SentinelClock => jump(sentinel, act),
            _ => {
                sentinel.stop();
                pause(act.hold);
                sentinel.cont();
            }
        }
        world.timeline.end(number);
    }

    /// Removes the lost identity from the other sentinels, one after the other, as an operator
    /// does. It counts as a voter otherwise: four voters need three votes, and a third loss of
    /// files would make failovers impossible.
    fn forget_lost_identity(&self, lost: usize) {
        self.cluster.wait_whole();
        let others = self.cluster.sentinels().iter().enumerate().filter(|(at, _)| *at != lost);
        for (_, other) in others {
            let reset = other.ask(&["SENTINEL", "RESET", self.cluster.name()]);
            assert!(reset.is_ok(), "SENTINEL RESET: {reset:?}");
            self.cluster.wait_whole();
        }
    }

    /// Cleans up after the faults of a step, and waits until everything is complete again: all
    /// replicas stream, all sentinels see everything, and all proxies have the master.
    ///
    /// # Panics
    /// If it does not become complete in time.
    pub(super) fn recover(&self) {
        for lost in std::mem::take(&mut *lock(&self.lost)) {
            self.forget_lost_identity(lost);
        }
        self.cluster.wait_whole();
        wait_until("replicas that follow the master", PATIENCE, || self.follow());
        // The master may be replaced once more meanwhile, after a failover that was interrupted.
        wait_until("replicas that acknowledge", PATIENCE, || {
            let mut client = self.cluster.master().client();
            client.cmd(&["SET", "settled", "1"]).map_err(|error| error.to_string())?;
            let followed = client.cmd(&["WAIT", "2", "1000"]).map_err(|error| error.to_string())?;
            if followed == Value::Int(2) { Ok(()) } else { Err(format!("{followed:?}")) }
        });
        for proxy in self.each_proxy() {
            wait_until("a proxy to follow the master", PATIENCE, || {
                let wanted = self.cluster.master().addr().to_string();
                let target = proxy.target()?;
                if target == wanted { Ok(()) } else { Err(format!("{target}, not {wanted}")) }
            });
        }
    }

    fn follow(&self) -> Result<(), String> {
        let master = self.cluster.current_master_addr()?;
        let mut others = self.cluster.nodes().iter().filter(|node| node.addr() != master);
        others.try_for_each(|node| self.cluster.follows(node))
    }
}

fn ips(nodes: &[Node]) -> Vec<IpAddr> {
    nodes.iter().map(|node| node.addr().ip()).collect()
}

/// Lets a clock jump, and back.
fn jump(node: &Node, act: &Act) {
    node.set_clock(act.jump());
    pause(act.hold);
    node.set_clock(0);
}

fn traffic_control(words: &str) {
    let done = Command::new("tc").args(words.split(' ')).status();
    assert!(done.as_ref().is_ok_and(std::process::ExitStatus::success), "tc {words}: {done:?}");
}

/// Records what a sentinel publishes, and lets more faults fit into an hour.
pub(super) fn attend(sentinel: &Node, world: &World) {
    world.timeline.listen(sentinel);
    sentinel.look_often();
}

/// A sentinel.conf as an installation script writes it: the current master, no identity, no peers.
fn without_memory(text: &str, master: SocketAddr) -> String {
    let mut fresh = String::new();
    for line in text.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        match words.as_slice() {
            ["sentinel", "myid" | "known-replica" | "known-sentinel" | "current-epoch", ..] => {}
            ["sentinel", "config-epoch" | "leader-epoch", ..] => {}
            ["sentinel", "monitor", name, _, _, quorum] => {
                let (ip, port) = (master.ip(), master.port());
                fresh.push_str(&format!("sentinel monitor {name} {ip} {port} {quorum}\n"));
            }
            _ => {
                fresh.push_str(line);
                fresh.push('\n');
            }
        }
    }
    fresh
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forgets_peers_and_names_current_master() {
        let text = "port 1\nsentinel myid abc\nsentinel monitor m 127.0.0.1 1 2\n\
                    sentinel known-sentinel m 127.0.0.1 5 x\nsentinel failover-timeout m 6000\n";
        let master = SocketAddr::from(([127, 0, 100, 2], 6379));
        let fresh = "port 1\nsentinel monitor m 127.0.100.2 6379 2\n\
                     sentinel failover-timeout m 6000\n";
        assert_eq!(without_memory(text, master), fresh);
    }
}
