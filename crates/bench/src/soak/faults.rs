//! The stage of a soak: the cluster, the proxy, and how each fault is brought about and ended.
//!
//! Two faults may be in force at once, each performed by a thread of its own. What one of them
//! leaves to be cleaned up is cleaned up when both are over: an operator does not reset sentinels
//! in the middle of a failover.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use harness::{Cluster, Cut, Node, PROXY, pause, wait_until};

use super::books::Books;
use super::churn::churn;
use super::proxy::Proxy;
use super::schedule::{Act, Fault, Part};
use super::settings;
use super::shared::Shared;

const PATIENCE: Duration = Duration::from_secs(90);
/// A sentinel that lost its files while the master is dead knows no replicas. If it wins the
/// election it aborts with `-failover-abort-no-good-slave`, and the others try again twelve seconds
/// later; it was seen to win three times in a row. The proxy has no part in that.
const SUCCESSOR: Duration = Duration::from_secs(300);
/// A planned failover that another fault hinders may fail, which is known after this long.
const HINDERED: Duration = Duration::from_secs(15);

/// Cluster and proxy.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) cluster: Cluster,
    pub(super) proxy: Mutex<Proxy>,
    /// The deployment of the service that is added and removed: one server and one sentinel.
    pub(super) other: Cluster,
    /// The configuration with which each sentinel started.
    files: Vec<(PathBuf, String)>,
    /// Sentinels that lost their files in this step.
    lost: Mutex<BTreeSet<usize>>,
}

impl Stage {
    pub(super) fn start(program: &Path, partitions: bool) -> Result<Self, String> {
        // A backlog as in production, so that a replica continues instead of loading everything.
        let builder = Cluster::builder()
            .redis_line("repl-backlog-size 16mb")
            .redis_line(&settings::user_line());
        let cluster = if partitions { builder.start_apart() } else { builder.start() };
        let read = |node: &Node| {
            let name = node.name();
            let path = cluster.folder().join(name).join(format!("{name}.conf"));
            let text = std::fs::read_to_string(&path).map_err(|error| error.to_string())?;
            Ok((path, text))
        };
        let files = cluster.sentinels().iter().map(read).collect::<Result<_, String>>()?;
        let proxy = Mutex::new(Proxy::start(program, &cluster)?);
        let other = Cluster::builder().masters(&[settings::OTHER]).replicas(0).sentinels(1).start();
        Ok(Self { cluster, proxy, other, files, lost: Mutex::default() })
    }

    pub(super) fn proxy(&self) -> MutexGuard<'_, Proxy> {
        self.proxy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records what all sentinels publish.
    pub(super) fn listen(&self, shared: &Shared) {
        for sentinel in self.cluster.sentinels() {
            attend(sentinel, shared);
        }
    }

    /// Brings a fault about and ends it. `other` is the other fault of the step.
    ///
    /// # Panics
    /// If something does not happen in time.
    pub(super) fn perform(&self, act: &Act, other: Option<Fault>, shared: &Shared) {
        if act.fault.disturbs() {
            shared.disturb();
        }
        match act.fault.part() {
            Part::Master => self.replace_master(act, other, shared),
            Part::Replica => self.disturb_replica(act, shared),
            Part::Sentinel => self.disturb_sentinel(act, shared),
            Part::Proxy => {
                let number = shared.timeline.begin(act.fault, None);
                let done = match act.fault {
                    Fault::RotateSecret => self.rotate_secret(other.is_none()),
                    Fault::ChangeServices => self.change_services(act.hold),
                    _ => {
                        self.proxy().perform(act);
                        Ok(())
                    }
                };
                assert!(done.is_ok(), "{}: {done:?}", act.fault.name());
                shared.timeline.end(number);
            }
            Part::Clients => {
                let number = shared.timeline.begin(act.fault, None);
                churn(act, shared);
                shared.timeline.end(number);
            }
        }
    }

    fn replace_master(&self, act: &Act, other: Option<Fault>, shared: &Shared) {
        let master = self.cluster.master();
        let number = shared.timeline.begin(act.fault, Some(master.addr()));
        match act.fault {
            Fault::Switchover => self.switch_over(master, number, other, shared),
            Fault::PlannedFailover => self.fail_over(master, other, shared),
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
            _ => {
                let all = self.cluster.nodes().iter().chain(self.cluster.sentinels());
                let mut others: Vec<_> = all.map(|node| node.addr().ip()).collect();
                others.retain(|ip| *ip != master.addr().ip());
                others.push(PROXY);
                let cut = Cut::between(&[master.addr().ip()], &others);
                self.wait_successor(master);
                pause(act.hold);
                drop(cut);
            }
        }
        shared.timeline.end(number);
    }

    /// Orders a planned failover. It may fail if another fault hinders it, or if a sentinel aborts
    /// it, as it does when the machine is too slow.
    fn fail_over(&self, master: &Node, other: Option<Fault>, shared: &Shared) {
        let ordered = self.cluster.begin_failover_of(self.cluster.name());
        let aborted = || {
            let seen = shared.timeline.sightings(ordered);
            seen.iter().any(|it| it.channel.starts_with("-failover-abort"))
        };
        let hindered = other.is_some_and(|it| Fault::PlannedFailover.is_hindered_by(it));
        let over = wait_until("another master after SENTINEL FAILOVER", PATIENCE, || {
            match self.cluster.current_master_addr() {
                Ok(addr) if addr != master.addr() => Ok(true),
                _ if aborted() => Ok(false),
                _ if hindered && ordered.elapsed() > HINDERED => Ok(false),
                Ok(addr) => Err(format!("still {addr}")),
                Err(why) => Err(why),
            }
        });
        if !over {
            shared.failover_failed();
        }
    }

    /// Has pointsman switch over. Nothing may be lost if the command succeeds; if it fails although
    /// nothing hinders it, it is repeated, as by an operator.
    fn switch_over(&self, master: &Node, number: usize, other: Option<Fault>, shared: &Shared) {
        let hindered = other.is_some_and(|it| Fault::Switchover.is_hindered_by(it));
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut command = self.proxy().switchover();
            let (succeeded, said) = match command.output() {
                Ok(done) => {
                    let out = [done.stdout, done.stderr].concat();
                    (done.status.success(), String::from_utf8_lossy(&out).into_owned())
                }
                Err(error) => (false, error.to_string()),
            };
            for line in said.lines() {
                shared.timeline.note(&format!("switchover: {line}"));
            }
            if succeeded {
                self.wait_successor(master);
                return;
            }
            if hindered {
                // It may have ordered the failover before, which continues without pointsman.
                shared.timeline.rename(number, Fault::PlannedFailover);
                shared.failover_failed();
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

    fn disturb_replica(&self, act: &Act, shared: &Shared) {
        let replicas = self.cluster.replicas();
        let Some(replica) = replicas.get(act.which % replicas.len().max(1)) else { return };
        let number = shared.timeline.begin(act.fault, Some(replica.addr()));
        if act.fault == Fault::KillReplica {
            replica.kill();
            pause(act.hold);
            replica.restart();
        } else {
            replica.stop();
            pause(act.hold);
            replica.cont();
        }
        shared.timeline.end(number);
    }

    fn disturb_sentinel(&self, act: &Act, shared: &Shared) {
        let sentinels = self.cluster.sentinels();
        let index = act.which % sentinels.len().max(1);
        let (Some(sentinel), Some((path, text))) = (sentinels.get(index), self.files.get(index))
        else {
            return;
        };
        let master = self.cluster.master().addr();
        let number = shared.timeline.begin(act.fault, None);
        shared.timeline.note(&format!("it is {}", sentinel.name()));
        match act.fault {
            Fault::KillSentinel | Fault::LoseSentinelFiles => {
                sentinel.kill();
                if act.fault == Fault::LoseSentinelFiles {
                    let fresh = without_memory(text, master);
                    let written = std::fs::write(path, fresh);
                    assert!(written.is_ok(), "{}: {written:?}", path.display());
                    self.lost().insert(index);
                }
                pause(act.hold);
                sentinel.restart();
                attend(sentinel, shared);
            }
            Fault::PartitionSentinel => {
                let cut = Cut::between(&[PROXY], &[sentinel.addr().ip()]);
                pause(act.hold);
                drop(cut);
            }
            _ => {
                sentinel.stop();
                pause(act.hold);
                sentinel.cont();
            }
        }
        shared.timeline.end(number);
    }

    fn lost(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Cleans up after the faults of a step, and waits until everything is complete again.
    ///
    /// # Panics
    /// If it does not become complete in time.
    pub(super) fn recover(&self) {
        for lost in std::mem::take(&mut *self.lost()) {
            self.forget_lost_identity(lost);
        }
        self.allow_both_passwords();
        self.settle();
    }

    /// Waits until all replicas stream, all sentinels see everything, and the proxy has the master.
    pub(super) fn settle(&self) {
        self.cluster.wait_whole();
        wait_until("replicas that follow the master", PATIENCE, || self.follow());
        let master = self.cluster.master();
        wait_until("replicas that acknowledge", PATIENCE, || {
            let mut client = master.client();
            client.cmd(&["SET", "soak", "settled"]).map_err(|error| error.to_string())?;
            let followed = client.cmd(&["WAIT", "2", "1000"]).map_err(|error| error.to_string())?;
            if followed.int() == Some(2) { Ok(()) } else { Err(format!("{followed:?}")) }
        });
        let admin = self.proxy().admin;
        wait_until("the proxy to follow the master", PATIENCE, || {
            let books = Books::read(admin)?;
            let target = books.target();
            if target.as_deref() == Some(&master.addr().to_string()) {
                Ok(())
            } else {
                Err(format!("{target:?} instead of {}", master.addr()))
            }
        });
    }

    /// How many connections of the proxy's clients each server has. Only where the proxy connects
    /// from an address of its own.
    pub(super) fn connections(&self) -> Result<Vec<(SocketAddr, usize)>, String> {
        let ours = format!(" addr={PROXY}:");
        let count = |node: &Node| {
            let list = node.ask(&["CLIENT", "LIST"]).map_err(|error| error.to_string())?;
            let text = list.text().unwrap_or_default();
            // The proxy's probe connections have a name, connections of clients have none.
            let lines = text.lines().filter(|it| it.contains(&ours) && it.contains(" name= "));
            Ok((node.addr(), lines.count()))
        };
        self.cluster.nodes().iter().map(count).collect()
    }

    fn follow(&self) -> Result<(), String> {
        let master = self.cluster.current_master_addr()?;
        for node in self.cluster.nodes().iter().filter(|node| node.addr() != master) {
            let text = |field| node.info("replication", field).map_err(|error| error.to_string());
            let follows = text("master_link_status")? == "up"
                && text("master_host")? == master.ip().to_string()
                && text("master_port")? == master.port().to_string();
            if !follows {
                return Err(format!("{} does not follow {master}", node.name()));
            }
        }
        Ok(())
    }
}

/// Records what a sentinel publishes, and lets more faults fit into an hour.
fn attend(sentinel: &Node, shared: &Shared) {
    shared.timeline.listen(sentinel);
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
