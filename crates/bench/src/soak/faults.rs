//! The stage of a soak: the cluster, the proxy, and how each fault is brought about and ended.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use harness::{
    Client, Cluster, Cut, Launch, Node, PROXY, Process, Signal, http_get, pause, wait_until,
};

use super::books::Books;
use super::schedule::{Fault, Step};
use super::shared::Shared;

const PATIENCE: Duration = Duration::from_secs(60);
/// Clients of one churn step.
const CHURN: usize = 150;

/// The proxy, which may be another process after a step.
pub(super) struct Proxy {
    program: PathBuf,
    folder: PathBuf,
    pub(super) addr: SocketAddr,
    pub(super) admin: SocketAddr,
    number: usize,
    pub(super) process: Process,
}

impl Proxy {
    pub(super) fn start(program: &Path, cluster: &Cluster) -> Result<Self, String> {
        let folder = cluster.folder().join("soak");
        std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        let (addr, admin) = (cluster.address().port(), cluster.address().port());
        let sentinels: Vec<_> = cluster.sentinel_addrs().iter().map(ToString::to_string).collect();
        let toml = format!(
            "[[service]]\nname = {:?}\nlisten = [\"{addr}\"]\nsentinels = {sentinels:?}\n\
             [admin]\nlisten = [\"{admin}\"]\n[process]\nstate_dir = {folder:?}\nworkers = 2\n\
             [shutdown]\naccept_min = \"0s\"\naccept_quiet = \"0s\"\naccept_max = \"0s\"\n\
             drain_spread = \"0s\"\ndrain_timeout = \"5s\"\n",
            cluster.name()
        );
        std::fs::write(folder.join("pointsman.toml"), toml).map_err(|error| error.to_string())?;
        let process = run(program, &folder, 0, false);
        let proxy = Self { program: program.to_owned(), folder, addr, admin, number: 0, process };
        proxy.wait_ready();
        Ok(proxy)
    }

    /// Replaces the process; the old one has ended, or hands over.
    fn replace(&mut self, takeover: bool) {
        self.number += 1;
        let new = run(&self.program, &self.folder, self.number, takeover);
        if takeover {
            let code = self.process.wait_exit(PATIENCE).code();
            assert_eq!(code, Some(0), "the predecessor: {}", self.process.tail());
        }
        self.process = new;
        self.wait_ready();
    }

    fn wait_ready(&self) {
        wait_until("the proxy to be ready", PATIENCE, || {
            assert!(self.process.is_running(), "the proxy ended: {}", self.process.tail());
            http_get(self.admin, "/ready").is_ok_and(|(code, _)| code == 200)
        });
    }

    /// Lines of all its logs that no fault may cause.
    pub(super) fn bad_lines(&self) -> Vec<String> {
        let logs =
            (0..=self.number).map(|number| self.folder.join(format!("{}.log", name(number))));
        let text: String =
            logs.map(|path| std::fs::read_to_string(path).unwrap_or_default()).collect();
        let bad = |line: &&str| ["panic", "internal_error"].iter().any(|it| line.contains(it));
        text.lines().filter(bad).map(str::to_owned).collect()
    }
}

fn name(number: usize) -> String {
    format!("pointsman-{number}")
}

fn run(program: &Path, folder: &Path, number: usize, takeover: bool) -> Process {
    let file = folder.join("pointsman.toml").into_os_string();
    let mut args = vec!["run".into(), "--config".into(), file];
    if takeover {
        args.push("--takeover".into());
    }
    Process::start(&Launch {
        name: name(number),
        program: program.to_owned(),
        args,
        env: Vec::new(),
        folder: folder.to_owned(),
    })
}

/// Cluster and proxy.
pub(super) struct Stage {
    pub(super) cluster: Cluster,
    pub(super) proxy: Mutex<Proxy>,
    /// The configuration with which each sentinel started.
    files: Vec<(PathBuf, String)>,
}

impl Stage {
    pub(super) fn start(program: &Path, partitions: bool) -> Result<Self, String> {
        // A backlog as in production, so that a replica continues instead of loading everything.
        let builder = Cluster::builder().redis_line("repl-backlog-size 16mb");
        let cluster = if partitions { builder.start_apart() } else { builder.start() };
        let read = |node: &Node| {
            let name = node.name();
            let path = cluster.folder().join(name).join(format!("{name}.conf"));
            let text = std::fs::read_to_string(&path).map_err(|error| error.to_string())?;
            Ok((path, text))
        };
        let files = cluster.sentinels().iter().map(read).collect::<Result<_, String>>()?;
        let proxy = Mutex::new(Proxy::start(program, &cluster)?);
        Ok(Self { cluster, proxy, files })
    }

    pub(super) fn proxy(&self) -> std::sync::MutexGuard<'_, Proxy> {
        self.proxy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether clients may notice the step by an error or the end of a connection.
    pub(super) fn disturbs(fault: Fault) -> bool {
        fault.may_lose_writes()
            || matches!(
                fault,
                Fault::PlannedFailover | Fault::Takeover | Fault::RestartProxy | Fault::KillProxy
            )
    }

    /// Brings a fault about, ends it, and waits until everything is complete again.
    ///
    /// # Panics
    /// If something does not happen in time.
    pub(super) fn perform(&self, step: &Step, shared: &Shared) {
        let master = self.cluster.master();
        match step.fault {
            Fault::PlannedFailover => drop(self.cluster.failover()),
            Fault::KillMaster => {
                master.kill();
                self.wait_successor(master);
                pause(step.hold);
                master.restart();
            }
            Fault::StopMaster => {
                master.stop();
                self.wait_successor(master);
                pause(step.hold);
                master.cont();
            }
            Fault::PartitionMaster => {
                let all = self.cluster.nodes().iter().chain(self.cluster.sentinels());
                let mut others: Vec<_> = all.map(|node| node.addr().ip()).collect();
                others.retain(|ip| *ip != master.addr().ip());
                others.push(PROXY);
                let cut = Cut::between(&[master.addr().ip()], &others);
                self.wait_successor(master);
                pause(step.hold);
                drop(cut);
            }
            Fault::KillReplica | Fault::StopReplica => self.disturb_replica(step),
            Fault::KillSentinel
            | Fault::LoseSentinelFiles
            | Fault::StopSentinel
            | Fault::PartitionSentinel => self.disturb_sentinel(step, master.addr()),
            Fault::Takeover
            | Fault::RestartProxy
            | Fault::KillProxy
            | Fault::StopProxy
            | Fault::Reload => self.disturb_proxy(step),
            Fault::Churn => self.churn(step, shared),
        }
        self.settle();
    }

    fn wait_successor(&self, old: &Node) {
        wait_until("another master", PATIENCE, || match self.cluster.current_master_addr() {
            Ok(addr) if addr != old.addr() => Ok(()),
            Ok(addr) => Err(format!("still {addr}")),
            Err(why) => Err(why),
        });
    }

    fn disturb_replica(&self, step: &Step) {
        let replicas = self.cluster.replicas();
        let Some(replica) = replicas.get(step.which % replicas.len().max(1)) else { return };
        if step.fault == Fault::KillReplica {
            replica.kill();
            pause(step.hold);
            replica.restart();
        } else {
            replica.stop();
            pause(step.hold);
            replica.cont();
        }
    }

    fn disturb_sentinel(&self, step: &Step, master: SocketAddr) {
        let sentinels = self.cluster.sentinels();
        let index = step.which % sentinels.len().max(1);
        let (Some(sentinel), Some((path, text))) = (sentinels.get(index), self.files.get(index))
        else {
            return;
        };
        match step.fault {
            Fault::KillSentinel | Fault::LoseSentinelFiles => {
                sentinel.kill();
                if step.fault == Fault::LoseSentinelFiles {
                    let fresh = without_memory(text, master);
                    let written = std::fs::write(path, fresh);
                    assert!(written.is_ok(), "{}: {written:?}", path.display());
                }
                pause(step.hold);
                sentinel.restart();
                if step.fault == Fault::LoseSentinelFiles {
                    self.forget_lost_identity(index);
                }
            }
            Fault::PartitionSentinel => {
                let cut = Cut::between(&[PROXY], &[sentinel.addr().ip()]);
                pause(step.hold);
                drop(cut);
            }
            _ => {
                sentinel.stop();
                pause(step.hold);
                sentinel.cont();
            }
        }
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

    fn disturb_proxy(&self, step: &Step) {
        let mut proxy = self.proxy();
        match step.fault {
            Fault::Takeover => proxy.replace(true),
            Fault::RestartProxy => {
                proxy.process.signal(Signal::TERM);
                let code = proxy.process.wait_exit(PATIENCE).code();
                assert_eq!(code, Some(0), "after SIGTERM: {}", proxy.process.tail());
                proxy.replace(false);
            }
            Fault::KillProxy => {
                proxy.process.kill();
                proxy.replace(false);
            }
            Fault::StopProxy => {
                proxy.process.signal(Signal::STOP);
                pause(step.hold);
                proxy.process.signal(Signal::CONT);
            }
            _ => {
                let reloads = || Books::read(proxy.admin).map(|it| it.reloads());
                let before = reloads();
                proxy.process.signal(Signal::HUP);
                wait_until("the reload", PATIENCE, || reloads() > before);
            }
        }
    }

    /// Many clients at once that say a word and leave, half of them with RST.
    fn churn(&self, step: &Step, shared: &Shared) {
        let deadline = Instant::now() + step.hold;
        while Instant::now() < deadline {
            let clients: Vec<_> =
                (0..CHURN).map_while(|_| Client::connect(shared.addr).ok()).collect();
            if clients.len() < CHURN {
                shared.finding(&format!("only {} of {CHURN} clients connected", clients.len()));
            }
            for (index, mut client) in clients.into_iter().enumerate() {
                if index % 3 > 0 {
                    match client.cmd(&["PING"]) {
                        Ok(reply) if reply.text() == Some("PONG") => {}
                        other => shared.finding(&format!("churn: PING was answered {other:?}")),
                    }
                }
                if index % 2 > 0 {
                    // The client is gone either way.
                    let _ = client.reset();
                }
            }
        }
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
