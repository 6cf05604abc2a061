//! A cluster of scripted servers with the real driver, and the conditions that tests wait for.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sentinel::{
    Discovery, DiscoveryConfig, DiscoveryControl, DiscoveryHandle, DiscoverySettings,
    DiscoverySnapshot, Heartbeat, MachineRules, NodeAddr, Resolver, Timeouts,
};
use target::{TargetReader, TargetWriter};
use tokio_util::task::AbortOnDropHandle;

use crate::fake::FakeServer;
use crate::scripts::{MasterRecord, RedisScript, SentinelScript, my_id};

pub(crate) type Sentinel = FakeServer<SentinelScript>;
pub(crate) type Redis = FakeServer<RedisScript>;

pub(crate) const NAME: &str = "mymaster";

/// Longer than any expected wait, so that only an event that never happens reaches it.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) fn ms(number: u64) -> Duration {
    Duration::from_millis(number)
}

/// A cluster: node 0 is the master at epoch 1, and every sentinel says so.
pub(crate) struct FakeCluster {
    pub(crate) sentinels: Vec<Sentinel>,
    pub(crate) nodes: Vec<Redis>,
}

impl FakeCluster {
    pub(crate) async fn new(sentinels: usize, nodes: usize) -> Self {
        let master = FakeServer::start(RedisScript::master(1)).await;
        let mut cluster = Self { sentinels: Vec::new(), nodes: vec![master] };
        for number in 1..nodes {
            cluster
                .nodes
                .push(FakeServer::start(RedisScript::replica(number + 1, cluster.addr(0))).await);
        }
        let all: Vec<SocketAddr> = cluster.nodes.iter().map(|node| node.addr).collect();
        for node in &cluster.nodes {
            node.script().attached.clone_from(&all);
        }
        for number in 0..sentinels {
            cluster.sentinels.push(FakeServer::start(SentinelScript::new(number + 1)).await);
        }
        cluster.all_set_master(0, 1);
        cluster
    }

    pub(crate) fn addr(&self, node: usize) -> SocketAddr {
        self.nodes[node].addr
    }

    fn peers(&self, of: usize) -> Vec<(String, String, u16)> {
        let others = self.sentinels.iter().enumerate().filter(|(number, _)| *number != of);
        others
            .map(|(number, it)| (my_id(number + 1), it.addr.ip().to_string(), it.addr.port()))
            .collect()
    }

    /// The answers of a correct sentinel when `node` is the master at `epoch`.
    pub(crate) fn record(&self, sentinel: usize, node: usize, epoch: u64) -> MasterRecord {
        let others = self.nodes.iter().enumerate().filter(|(number, _)| *number != node);
        MasterRecord {
            ip: self.addr(node).ip().to_string(),
            port: self.addr(node).port(),
            epoch,
            flags: "master".to_owned(),
            run_id: self.nodes[node].script().run_id.clone(),
            replicas: others.map(|(_, it)| (it.addr.ip().to_string(), it.addr.port())).collect(),
            down: Vec::new(),
            peers: self.peers(sentinel),
            torn: None,
            informed: false,
        }
    }

    /// From now on this sentinel names `node` at `epoch`. Nothing is published.
    pub(crate) fn set_master(&self, sentinel: usize, node: usize, epoch: u64) {
        let record = self.record(sentinel, node, epoch);
        self.sentinels[sentinel].script().masters.insert(NAME.to_owned(), record);
    }

    pub(crate) fn all_set_master(&self, node: usize, epoch: u64) {
        (0..self.sentinels.len()).for_each(|sentinel| self.set_master(sentinel, node, epoch));
    }

    /// Waits until a new master was asked for its commands, on a connection of that question's own.
    pub(crate) async fn asked_commands(&self, node: usize) {
        let is_asked = || self.nodes[node].heard().iter().any(|it| it.starts_with("COMMAND"));
        until("the question about its commands", is_asked).await;
    }

    /// The node becomes a master that continues its history; its connections are closed, as
    /// Sentinel does it.
    pub(crate) fn promote(&self, node: usize) {
        self.nodes[node].script().promote();
        self.nodes[node].cut();
    }

    /// The node follows another; its connections are closed.
    pub(crate) fn follow(&self, node: usize, master: usize) {
        let lead = self.nodes[master].script().clone();
        self.nodes[node].script().follow(&lead, self.addr(master));
        self.nodes[node].cut();
    }

    /// This sentinel switches and publishes the event.
    pub(crate) fn switch(&self, sentinel: usize, from: usize, to: usize, epoch: u64) {
        self.set_master(sentinel, to, epoch);
        let (old, new) = (self.addr(from), self.addr(to));
        let payload = format!("{NAME} {} {} {} {}", old.ip(), old.port(), new.ip(), new.port());
        self.sentinels[sentinel].publish("+switch-master", &payload);
    }

    /// The sentinel publishes `channel` about `candidate` as a replica of `master`.
    pub(crate) fn announce(&self, sentinel: usize, channel: &str, candidate: usize, master: usize) {
        let (node, lead) = (self.addr(candidate), self.addr(master));
        let (ip, port) = (node.ip(), node.port());
        let payload =
            format!("slave {ip}:{port} {ip} {port} @ {NAME} {} {}", lead.ip(), lead.port());
        self.sentinels[sentinel].publish(channel, &payload);
    }

    /// The sentinel publishes `channel` about the master.
    pub(crate) fn about_master(&self, sentinel: usize, channel: &str, master: usize) {
        let lead = self.addr(master);
        self.sentinels[sentinel]
            .publish(channel, &format!("master {NAME} {} {} #quorum 2/2", lead.ip(), lead.port()));
    }

    /// A watch over this cluster by all its sentinels' addresses.
    pub(crate) fn watch(&self) -> (DiscoveryConfig, Arc<TargetReader>) {
        watch(NAME, self.sentinels.iter().map(|it| it.addr.into()).collect())
    }

    /// Waits until no commands are sent any more: until a number of consecutive checks, between
    /// which every task runs, see no new command. Only for rules with long poll intervals.
    pub(crate) async fn quiet(&self) {
        let commands = || {
            let sentinels = self.sentinels.iter().map(FakeServer::commands);
            sentinels.chain(self.nodes.iter().map(FakeServer::commands)).sum::<usize>()
        };
        let (mut last, mut looks) = (commands(), 0);
        while looks < 60 {
            tokio::time::sleep(ms(5)).await;
            looks += 1;
            if commands() != last {
                (last, looks) = (commands(), 0);
            }
        }
    }

    /// The driver, with the usual rules at short intervals.
    pub(crate) fn drive(&self) -> Driver {
        Driver::one(self.watch())
    }
}

/// The usual rules with short intervals. What happens without a majority, or after a stall of the
/// process, is disabled: no test is about that, and a busy machine must not trigger it in the
/// middle of another test.
pub(crate) fn rules() -> MachineRules {
    MachineRules {
        poll: ms(200),
        poll_suspect: ms(50),
        probe_master: ms(100),
        probe_replica: ms(100),
        probe_suspect: ms(20),
        bootstrap_grace: DEADLINE,
        solo_grace: DEADLINE,
        absence: DEADLINE,
        stall: DEADLINE,
        ..MachineRules::default()
    }
}

/// Longer than any wait of a test: an event that is due after this time does not happen.
pub(crate) const NEVER: Duration = Duration::from_secs(60);
const _: () = assert!(DEADLINE.as_secs() * 2 < NEVER.as_secs());

/// Rules without polling: whatever happens is caused by a published event.
pub(crate) fn event_only_rules() -> MachineRules {
    let long = NEVER;
    MachineRules {
        poll: long,
        probe_master: long,
        probe_replica: long,
        view_expiry: long * 2,
        ..rules()
    }
}

/// The fake servers, the driver and the test share one thread: a server that is waiting to be
/// scheduled must not count as unresponsive.
pub(crate) fn timeouts() -> Timeouts {
    let long = Duration::from_secs(5);
    Timeouts {
        connect: long,
        command: long,
        reconnect_min: ms(20),
        reconnect_max: ms(200),
        user: ms(3000),
    }
}

/// For tests with an unresponsive server, in which others may count as unresponsive for a moment.
pub(crate) fn quick() -> Timeouts {
    Timeouts { connect: ms(300), command: ms(250), ..timeouts() }
}

pub(crate) fn watch(name: &str, sentinels: Vec<NodeAddr>) -> (DiscoveryConfig, Arc<TargetReader>) {
    let (points, route) = TargetWriter::new();
    let watch = DiscoveryConfig {
        name: Arc::from(name),
        master_name: Arc::from(name),
        sentinels,
        settings: DiscoverySettings {
            rules: rules(),
            // The reason is that of `timeouts`.
            probe_timeout: Duration::from_secs(5),
            learn: true,
            ..DiscoverySettings::default()
        },
        target_writer: points,
        commands: Default::default(),
        replicas: None,
        sentinel_pool: None,
    };
    (watch, route)
}

/// A change of the target, as a session would observe it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TargetChange {
    GateClosed,
    GateOpened,
    To(SocketAddr),
    Cleared,
}

/// The driver, running for one service.
pub(crate) struct Driver {
    pub(crate) route: Arc<TargetReader>,
    pub(crate) handle: DiscoveryHandle,
    pub(crate) heartbeat: Heartbeat,
    /// Discovery without it would serve the same services for ever; kept as a process keeps it.
    _control: Arc<Mutex<DiscoveryControl>>,
    changes: Arc<Mutex<Vec<(Instant, TargetChange)>>>,
    _tasks: Vec<Arc<AbortOnDropHandle<()>>>,
}

impl Driver {
    pub(crate) fn one(watched: (DiscoveryConfig, Arc<TargetReader>)) -> Self {
        Self::timed(watched, timeouts())
    }

    pub(crate) fn timed(watched: (DiscoveryConfig, Arc<TargetReader>), timeouts: Timeouts) -> Self {
        Self::all(vec![watched], &[], None, timeouts).remove(0)
    }

    pub(crate) fn all(
        watched: Vec<(DiscoveryConfig, Arc<TargetReader>)>,
        own: &[SocketAddr],
        resolver: Option<Resolver>,
        timeouts: Timeouts,
    ) -> Vec<Self> {
        let (watches, routes): (Vec<DiscoveryConfig>, Vec<Arc<TargetReader>>) =
            watched.into_iter().unzip();
        let resolver = resolver.unwrap_or_default();
        let (discovery, mut control) = Discovery::new(timeouts, own, &resolver);
        let handles: Vec<_> = watches.into_iter().map(|watch| control.add(watch).1).collect();
        control.apply();
        let (heartbeat, control) = (discovery.heartbeat(), Arc::new(Mutex::new(control)));
        let task = Arc::new(AbortOnDropHandle::new(tokio::spawn(discovery.run())));
        let driver = |(route, handle): (Arc<TargetReader>, DiscoveryHandle)| {
            let changes = Arc::new(Mutex::new(Vec::new()));
            let watcher = tokio::spawn(record(Arc::clone(&route), Arc::clone(&changes)));
            let tasks = vec![Arc::clone(&task), Arc::new(AbortOnDropHandle::new(watcher))];
            let (heartbeat, control) = (heartbeat.clone(), Arc::clone(&control));
            Self { route, handle, heartbeat, _control: control, changes, _tasks: tasks }
        };
        routes.into_iter().zip(handles).map(driver).collect()
    }

    pub(crate) fn target(&self) -> Option<SocketAddr> {
        self.route.current().map(|target| target.addr())
    }

    pub(crate) fn generation(&self) -> u64 {
        self.route.current().map_or(0, |target| target.generation().get())
    }

    pub(crate) fn seen(&self) -> Arc<DiscoverySnapshot> {
        self.handle.snapshot()
    }

    /// Waits until traffic flows to `addr`.
    pub(crate) async fn wait_for_target(&self, addr: SocketAddr) {
        let open = || self.route.usable_target().is_some_and(|target| target.addr() == addr);
        let started = Instant::now();
        while !open() {
            assert!(
                started.elapsed() < DEADLINE,
                "the target never became {addr}; last snapshot: {:#?}",
                self.seen()
            );
            tokio::time::sleep(ms(2)).await;
        }
    }

    /// Waits until the snapshot satisfies `wanted`.
    pub(crate) async fn wait_for(&self, what: &str, wanted: impl Fn(&DiscoverySnapshot) -> bool) {
        let started = Instant::now();
        while !wanted(&self.seen()) {
            assert!(
                started.elapsed() < DEADLINE,
                "never observed: {what}; last snapshot: {:#?}",
                self.seen()
            );
            tokio::time::sleep(ms(2)).await;
        }
    }

    /// The changes so far, with their times.
    pub(crate) fn changes(&self) -> Vec<(Instant, TargetChange)> {
        self.changes.lock().expect("no poison").clone()
    }

    /// Waits for a change and returns its time.
    pub(crate) async fn wait_for_change(&self, what: TargetChange, since: Instant) -> Instant {
        let find = || {
            self.changes()
                .into_iter()
                .find(|(at, it)| *at >= since && *it == what)
                .map(|(at, _)| at)
        };
        until(&format!("{what:?}"), || find().is_some()).await;
        find().expect("just seen")
    }
}

async fn record(route: Arc<TargetReader>, changes: Arc<Mutex<Vec<(Instant, TargetChange)>>>) {
    let (mut shut, mut generation) = (false, None);
    loop {
        let moved = route.changed();
        let mut now = Vec::new();
        let target = route.current();
        let current = target.as_ref().map(|it| it.generation());
        if current != generation {
            generation = current;
            now.push(target.map_or(TargetChange::Cleared, |it| TargetChange::To(it.addr())));
        }
        if route.is_closed() != shut {
            shut = !shut;
            now.push(if shut { TargetChange::GateClosed } else { TargetChange::GateOpened });
        }
        changes.lock().expect("no poison").extend(now.into_iter().map(|it| (Instant::now(), it)));
        moved.await;
    }
}

/// Waits until a condition holds.
pub(crate) async fn until(what: &str, so: impl Fn() -> bool) {
    let started = Instant::now();
    while !so() {
        assert!(started.elapsed() < DEADLINE, "condition never held: {what}");
        tokio::time::sleep(ms(2)).await;
    }
}

/// Checks repeatedly for `long` that a condition holds. There is no event to wait for in the case
/// of something that must not happen.
pub(crate) async fn stays(long: Duration, what: &str, so: impl Fn() -> bool) {
    let started = Instant::now();
    while started.elapsed() < long {
        assert!(so(), "condition did not keep holding: {what}");
        tokio::time::sleep(ms(2)).await;
    }
}
