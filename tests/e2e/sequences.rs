//! Sequences of three faults, with real servers, beside a client that asks the sentinels.
//!
//! Both write at the same rate. After the third step everything is healed, and the two are compared
//! on the master that the sentinels agree on: Pointsman may lose no acknowledged write if every
//! change of the master was planned, and otherwise not more than the client that is led by the
//! sentinels themselves. It must lead to the right master in the end, whatever came before.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use harness::{Client, Cluster, Cut, Load, Node, PROXY, Pointsman, Signal, alone, wait_until};

use crate::builder;
use crate::credentials::status;

const PATIENCE: Duration = Duration::from_secs(60);
const WRITERS: usize = 4;
/// Writes per second, of each of the two.
const RATE: u32 = 200;
/// Pause between two steps: each begins while the one before is under way.
const PAUSE: Duration = Duration::from_millis(1200);
/// What an unplanned failover loses differs from one connection to another, since replication is
/// asynchronous: the writes of this time are no difference.
const ALIKE: u64 = RATE as u64;
/// No write for longer than any failover takes, and than the steps themselves last.
const LONG: Duration = Duration::from_secs(20);

/// One fault, or one action of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// `SENTINEL FAILOVER`, without waiting for its end.
    Failover,
    /// SIGKILL of the master; it comes back, without data, as a replica.
    KillMaster,
    /// SIGSTOP of the master, for longer than `down-after-milliseconds`.
    StopMaster,
    /// The master that was stopped continues.
    WakeMaster,
    /// The master and the proxy are cut off from everything else.
    CutMaster,
    /// The proxy and the client cannot reach the master.
    HideMaster,
    /// The proxy and the client reach one sentinel only.
    HideSentinels,
    /// The network is whole again.
    Heal,
    /// SIGKILL of a replica.
    KillReplica,
    /// SIGSTOP of one sentinel.
    StopSentinel,
    /// All sentinels restart with their files.
    RestartSentinels,
    /// All sentinels restart with their files, at epoch 0.
    AgeSentinels,
    /// One sentinel forgets all replicas and peers.
    ResetSentinel,
    /// One sentinel is told to watch the present master anew.
    MonitorAgain,
    /// A replica is detached by hand.
    Detach,
    /// A replica may not be promoted any more.
    Unpromotable,
    /// The proxy is suspended for most of a second.
    StallProxy,
    /// The master answers nobody for a second and a half.
    PauseMaster,
}

use Step::*;

impl Step {
    /// Whether no acknowledged write may be lost because of it.
    fn is_planned(self) -> bool {
        !matches!(self, KillMaster | StopMaster | CutMaster | HideMaster | HideSentinels | Detach)
    }
}

/// A cluster with its two loads.
struct Scene {
    cluster: Cluster,
    pointsman: Pointsman,
    cuts: Vec<Cut>,
}

fn ips<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> Vec<IpAddr> {
    nodes.into_iter().map(|node| node.addr().ip()).collect()
}

/// The node does what the step says.
#[track_caller]
fn expect(node: &Node, words: &[&str]) {
    let reply = node.ask_briefly(words);
    assert!(reply.is_ok(), "{} to {words:?}: {reply:?}", node.name());
}

/// The first answer of a sentinel, as client libraries ask for it.
fn ask(sentinels: &[SocketAddr]) -> Option<SocketAddr> {
    sentinels.iter().find_map(|addr| {
        let mut client = Client::connect_within(*addr, Duration::from_millis(300)).ok()?;
        let reply = client.cmd(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"]).ok()?;
        let [ip, port] = reply.items() else { return None };
        format!("{}:{}", ip.text()?, port.text()?).parse().ok()
    })
}

impl Scene {
    fn start() -> Self {
        let cluster = Cluster::builder().start_apart();
        let pointsman = builder(&cluster).service_line("hold_timeout = \"60s\"").start();
        Self { cluster, pointsman, cuts: Vec::new() }
    }

    /// The master that most sentinels name.
    fn master(&self) -> &Node {
        let named = |node: &&Node| {
            let names = |it: &&Node| {
                self.cluster.master_addr_of(it, "mymaster").is_ok_and(|addr| addr == node.addr())
            };
            self.cluster.sentinels().iter().filter(names).count()
        };
        self.cluster.nodes().iter().max_by_key(named).expect("nodes")
    }

    /// A replica that runs.
    fn replica(&self) -> &Node {
        let master = self.master().addr();
        let mut nodes = self.cluster.nodes().iter().rev();
        nodes.find(|it| it.addr() != master && it.is_running()).expect("a replica")
    }

    fn ask_all(&self, words: &[&str]) {
        for sentinel in self.cluster.sentinels().iter().filter(|it| it.is_running()) {
            // One that is stopped does not answer.
            let _ = sentinel.ask_briefly(words);
        }
    }

    /// Always at the same sentinel: ordered at two, two failovers run at once, and Sentinel itself
    /// loses what the loser of them acknowledged.
    #[track_caller]
    fn fail_over(&self, is_planned: bool) {
        let answers = |it: &&Node| it.ask_briefly(&["PING"]).is_ok();
        let sentinel = self.cluster.sentinels().iter().find(answers).expect("a sentinel");
        // After a death or a partition there may be nobody to promote; then it does nothing.
        let asked = Instant::now();
        wait_until("SENTINEL FAILOVER to be accepted", PATIENCE, || {
            let reply = sentinel.ask_briefly(&["SENTINEL", "FAILOVER", "mymaster"]);
            reply.is_ok_and(|it| it.is_ok()) || (!is_planned && asked.elapsed() > PAUSE * 5)
        });
    }

    fn restart_sentinels(&self, edit: impl Fn(&str) -> String) {
        for sentinel in self.cluster.sentinels() {
            sentinel.kill();
            let path = sentinel.conf_path();
            let text = std::fs::read_to_string(&path).expect("its file");
            std::fs::write(&path, edit(&text)).expect("its file");
            sentinel.restart();
        }
    }

    fn monitor_again(&self) {
        let (master, sentinel) = (self.master().addr(), &self.cluster.sentinels()[2]);
        let (ip, port) = (master.ip().to_string(), master.port().to_string());
        for words in [
            vec!["SENTINEL", "REMOVE", "mymaster"],
            vec!["SENTINEL", "MONITOR", "mymaster", &ip, &port, "2"],
            vec!["SENTINEL", "SET", "mymaster", "down-after-milliseconds", "1000"],
            vec!["SENTINEL", "SET", "mymaster", "failover-timeout", "6000"],
        ] {
            expect(sentinel, &words);
        }
    }

    #[track_caller]
    fn take(&mut self, step: Step, is_planned: bool) {
        let sentinels = ips(self.cluster.sentinels());
        match step {
            Failover => self.fail_over(is_planned),
            KillMaster => self.master().kill(),
            StopMaster => self.master().stop(),
            WakeMaster => self.cluster.nodes().iter().for_each(Node::cont),
            CutMaster => {
                let near = [self.master().addr().ip(), PROXY];
                let mut far = ips(self.cluster.nodes());
                far.retain(|ip| !near.contains(ip));
                far.extend(sentinels);
                self.cuts.push(Cut::between(&near, &far));
            }
            HideMaster => {
                self.cuts.push(Cut::between(&[PROXY], &[self.master().addr().ip()]));
            }
            HideSentinels => self.cuts.push(Cut::between(&[PROXY], &sentinels[..2])),
            Heal => self.cuts.clear(),
            KillReplica => self.replica().kill(),
            StopSentinel => self.cluster.sentinels()[0].stop(),
            RestartSentinels => self.restart_sentinels(str::to_owned),
            AgeSentinels => self.restart_sentinels(without_epochs),
            ResetSentinel => {
                expect(&self.cluster.sentinels()[1], &["SENTINEL", "RESET", "mymaster"]);
            }
            MonitorAgain => self.monitor_again(),
            Detach => {
                expect(self.replica(), &["REPLICAOF", "NO", "ONE"]);
            }
            Unpromotable => {
                expect(self.replica(), &["CONFIG", "SET", "replica-priority", "0"]);
            }
            StallProxy => {
                self.pointsman.process().signal(Signal::STOP);
                elapse(Duration::from_millis(800));
                self.pointsman.process().signal(Signal::CONT);
            }
            PauseMaster => {
                expect(self.master(), &["CLIENT", "PAUSE", "1500", "ALL"]);
            }
        }
    }

    /// Everything works again, and all sentinels and the proxy lead to one master.
    #[track_caller]
    fn heal(&mut self) -> SocketAddr {
        self.cuts.clear();
        for node in self.cluster.nodes().iter().chain(self.cluster.sentinels()) {
            node.cont();
            node.start();
        }
        self.ask_all(&["PING"]);
        wait_until("all to lead to one master", PATIENCE, || {
            let sentinels = self.cluster.sentinels().iter();
            let named: Result<Vec<SocketAddr>, String> =
                sentinels.map(|it| self.cluster.master_addr_of(it, "mymaster")).collect();
            let (named, target) = (named?, status(&self.pointsman)["services"][0].clone());
            let addr = named[0].to_string();
            let served = target["target"]["addr"] == addr && target["state"] == "stable";
            let node = self.cluster.node_at(named[0]).ok_or("an unknown node")?;
            let role = node.role().map_err(|error| error.to_string())?;
            if named.iter().all(|it| *it == named[0]) && served && role == "master" {
                Ok(named[0])
            } else {
                Err(format!("sentinels {named:?} ({role}), target {}", target["target"]))
            }
        })
    }
}

/// The file of a sentinel from before the first failover.
fn without_epochs(text: &str) -> String {
    let aged = text.lines().map(|line| {
        let mut words: Vec<&str> = line.split(' ').collect();
        let counts = words.get(1).is_some_and(|it| it.ends_with("-epoch"));
        if let Some(last) = words.last_mut().filter(|_| counts && line.starts_with("sentinel ")) {
            *last = "0";
        }
        words.join(" ") + "\n"
    });
    aged.collect()
}

/// Waits for a time that the scenario states.
#[track_caller]
fn elapse(time: Duration) {
    let since = Instant::now();
    wait_until("the scenario's own pause", time + PATIENCE, || since.elapsed() >= time);
}

#[track_caller]
fn more_writes(load: &Load, who: &str) {
    let seen = load.counts().acknowledged;
    wait_until(&format!("more writes by {who}"), PATIENCE, || {
        let more = load.counts().acknowledged - seen;
        if more > u64::from(RATE) { Ok(()) } else { Err(format!("{more}; {:?}", load.errors())) }
    });
}

#[track_caller]
fn play(steps: &[Step]) {
    let mut scene = Scene::start();
    let sentinels = scene.cluster.sentinel_addrs();
    let load = |builder: harness::LoadBuilder, prefix: &str| {
        builder.writers(WRITERS).rate(RATE).prefix(prefix).timeout(PATIENCE).start()
    };
    let mut ours = load(Load::to(scene.pointsman.addr()), "ours");
    let mut theirs = load(Load::to_resolved(move || ask(&sentinels)), "theirs");
    more_writes(&ours, "clients of the proxy");
    let is_planned = steps.iter().all(|it| it.is_planned());
    for step in steps {
        scene.take(*step, is_planned);
        elapse(PAUSE);
    }
    let master = scene.heal();
    more_writes(&ours, "clients of the proxy");
    let master = if scene.master().addr() == master { master } else { scene.heal() };
    ours.stop();
    theirs.stop();
    let missing = |load: &Load| load.verify(master).expect("a look at the master").missing;
    let (lost, beside) = (missing(&ours), missing(&theirs));
    let (gap, gap_beside) = (ours.counts().longest_gap, theirs.counts().longest_gap);
    let allowed = if is_planned { 0 } else { beside + ALIKE };
    assert!(lost <= allowed, "{steps:?}: lost {lost}, the client beside it {beside}");
    assert!(gap < LONG, "{steps:?}: no write for {gap:.1?}, by the client {gap_beside:.1?}");
}

macro_rules! sequences {
    ($($name:ident: $first:ident, $second:ident, $third:ident;)*) => {$(
        #[test]
        fn $name() {
            if alone(concat!("sequences::", stringify!($name))) {
                play(&[$first, $second, $third]);
            }
        }
    )*};
}

sequences! {
    three_failovers: Failover, Failover, Failover;
    failover_between_stalls: StallProxy, Failover, StallProxy;
    failover_without_one_sentinel_then_restart: StopSentinel, Failover, RestartSentinels;
    failover_out_of_sight: HideSentinels, Failover, Heal;
    failover_while_master_is_hidden: HideMaster, Failover, Heal;
    death_of_replica_then_master: KillReplica, KillMaster, Failover;
    master_wakes_after_restart_of_sentinels: StopMaster, RestartSentinels, WakeMaster;
    master_wakes_before_failover: StopMaster, WakeMaster, Failover;
    failover_with_aged_sentinels_after_stall: AgeSentinels, StallProxy, Failover;
    failover_after_reset_of_a_sentinel: ResetSentinel, Failover, StopSentinel;
    failover_after_monitor_then_death: MonitorAgain, Failover, KillMaster;
    partition_without_one_sentinel: CutMaster, StopSentinel, Heal;
    partition_then_stall: CutMaster, StallProxy, Heal;
    failover_of_paused_master: PauseMaster, Failover, StallProxy;
    failover_after_detached_replica: Detach, Failover, ResetSentinel;
    detached_replica_without_one_sentinel: StopSentinel, Detach, Failover;
    failover_with_one_candidate: Unpromotable, Failover, RestartSentinels;
    death_during_failover: Failover, KillMaster, StallProxy;
    death_after_aged_sentinels: AgeSentinels, KillMaster, ResetSentinel;
    failover_then_partition: Failover, CutMaster, Heal;
}
