//! The stage: sentinels and redis nodes with their parts, the real driver among them, and what a
//! test waits for.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sentinel::{
    Discovery, DiscoverySnapshot, Handle, Heartbeat, NodeAddr, Resolver, Rules, Timeouts, Watch,
};
use target::{TargetReader, TargetWriter};
use tokio_util::task::AbortOnDropHandle;

use crate::fake::Fake;
use crate::players::{RedisMind, SentinelMind, Word, my_id};

pub(crate) type Sentinel = Fake<SentinelMind>;
pub(crate) type Redis = Fake<RedisMind>;

pub(crate) const NAME: &str = "mymaster";

/// Longer than anything here takes, so that only something that never happens runs into it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn ms(number: u64) -> Duration {
    Duration::from_millis(number)
}

/// A cluster: node 0 is the master at epoch 1, and every sentinel says so.
pub(crate) struct Stage {
    pub(crate) sentinels: Vec<Sentinel>,
    pub(crate) nodes: Vec<Redis>,
}

impl Stage {
    pub(crate) async fn new(sentinels: usize, nodes: usize) -> Self {
        let master = Fake::start(RedisMind::master(1)).await;
        let mut stage = Self { sentinels: Vec::new(), nodes: vec![master] };
        for number in 1..nodes {
            stage.nodes.push(Fake::start(RedisMind::replica(number + 1, stage.addr(0))).await);
        }
        for number in 0..sentinels {
            stage.sentinels.push(Fake::start(SentinelMind::new(number + 1)).await);
        }
        stage.all_say(0, 1);
        stage
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

    /// What an honest sentinel says when `node` is the master at `epoch`.
    pub(crate) fn word(&self, sentinel: usize, node: usize, epoch: u64) -> Word {
        let others = self.nodes.iter().enumerate().filter(|(number, _)| *number != node);
        Word {
            ip: self.addr(node).ip().to_string(),
            port: self.addr(node).port(),
            epoch,
            flags: "master".to_owned(),
            run_id: self.nodes[node].mind().run_id.clone(),
            replicas: others.map(|(_, it)| (it.addr.ip().to_string(), it.addr.port())).collect(),
            down: Vec::new(),
            peers: self.peers(sentinel),
            torn: None,
        }
    }

    /// From now on this sentinel names `node` at `epoch`. Nothing is published.
    pub(crate) fn say(&self, sentinel: usize, node: usize, epoch: u64) {
        let word = self.word(sentinel, node, epoch);
        self.sentinels[sentinel].mind().masters.insert(NAME.to_owned(), word);
    }

    pub(crate) fn all_say(&self, node: usize, epoch: u64) {
        (0..self.sentinels.len()).for_each(|sentinel| self.say(sentinel, node, epoch));
    }

    /// The node becomes a master that continues its history; its clients are killed, as Sentinel
    /// does it.
    pub(crate) fn promote(&self, node: usize) {
        self.nodes[node].mind().promote();
        self.nodes[node].cut();
    }

    /// The node follows another; its clients are killed.
    pub(crate) fn follow(&self, node: usize, master: usize) {
        let lead = self.nodes[master].mind().clone();
        self.nodes[node].mind().follow(&lead, self.addr(master));
        self.nodes[node].cut();
    }

    /// This sentinel switches, and says so.
    pub(crate) fn switch(&self, sentinel: usize, from: usize, to: usize, epoch: u64) {
        self.say(sentinel, to, epoch);
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
    pub(crate) fn watch(&self) -> (Watch, Arc<TargetReader>) {
        watch(NAME, self.sentinels.iter().map(|it| it.addr.into()).collect())
    }

    /// Waits until nobody asks anybody anything any more: until in so many looks, between which
    /// everybody has a turn, there was no new command. Only with rules that poll seldom.
    pub(crate) async fn quiet(&self) {
        let commands = || {
            let sentinels = self.sentinels.iter().map(Fake::commands);
            sentinels.chain(self.nodes.iter().map(Fake::commands)).sum::<usize>()
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

    /// The driver, with ordinary rules made quick.
    pub(crate) fn drive(&self) -> Driver {
        Driver::one(self.watch())
    }
}

/// Ordinary rules made quick where asking again is meant; what is done without a majority, or
/// because the process itself stood still, is out of reach: no test is about these, and a busy
/// machine must not bring one of them up in the middle of another.
pub(crate) fn rules() -> Rules {
    Rules {
        poll: ms(200),
        poll_suspect: ms(50),
        probe_master: ms(100),
        probe_replica: ms(100),
        probe_suspect: ms(20),
        bootstrap_grace: PATIENCE,
        solo_grace: PATIENCE,
        stall: PATIENCE,
        ..Rules::default()
    }
}

/// Longer than any wait of a test: what would only come about after this, is seen never to come.
pub(crate) const NEVER: Duration = Duration::from_secs(60);
const _: () = assert!(PATIENCE.as_secs() * 2 < NEVER.as_secs());

/// Rules by which nothing is found out by asking again: what happens, happens because somebody said
/// so.
pub(crate) fn patient_rules() -> Rules {
    let long = NEVER;
    Rules { poll: long, probe_master: long, probe_replica: long, view_expiry: long * 2, ..rules() }
}

/// The fakes, the driver and the test share one thread: a server that is merely waiting for its
/// turn must not be taken for a silent one.
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

/// For tests in which somebody is silent, and others may be taken to be for a moment.
pub(crate) fn quick() -> Timeouts {
    Timeouts { connect: ms(300), command: ms(250), ..timeouts() }
}

pub(crate) fn watch(name: &str, sentinels: Vec<NodeAddr>) -> (Watch, Arc<TargetReader>) {
    let (points, route) = TargetWriter::new();
    let watch = Watch {
        name: Arc::from(name),
        sentinels,
        sentinel_auth: None,
        auth: None,
        rules: rules(),
        // As with `timeouts`.
        probe_timeout: Duration::from_secs(5),
        learn: true,
        address_map: BTreeMap::new(),
        points,
        replicas: None,
    };
    (watch, route)
}

/// A move of the points, as a session would see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Move {
    Shut,
    Open,
    To(SocketAddr),
    Nowhere,
}

/// The driver at work for one service.
pub(crate) struct Driver {
    pub(crate) route: Arc<TargetReader>,
    pub(crate) handle: Handle,
    pub(crate) heartbeat: Heartbeat,
    moves: Arc<Mutex<Vec<(Instant, Move)>>>,
    _tasks: Vec<Arc<AbortOnDropHandle<()>>>,
}

impl Driver {
    pub(crate) fn one(watched: (Watch, Arc<TargetReader>)) -> Self {
        Self::timed(watched, timeouts())
    }

    pub(crate) fn timed(watched: (Watch, Arc<TargetReader>), timeouts: Timeouts) -> Self {
        Self::all(vec![watched], &[], None, timeouts).remove(0)
    }

    pub(crate) fn all(
        watched: Vec<(Watch, Arc<TargetReader>)>,
        own: &[SocketAddr],
        resolver: Option<Resolver>,
        timeouts: Timeouts,
    ) -> Vec<Self> {
        let (watches, routes): (Vec<Watch>, Vec<Arc<TargetReader>>) = watched.into_iter().unzip();
        let resolver = resolver.unwrap_or_default();
        let (discovery, handles) = Discovery::with_resolver(watches, timeouts, own, &resolver);
        let heartbeat = discovery.heartbeat();
        let task = Arc::new(AbortOnDropHandle::new(tokio::spawn(discovery.run())));
        let driver = |(route, handle): (Arc<TargetReader>, Handle)| {
            let moves = Arc::new(Mutex::new(Vec::new()));
            let watcher = tokio::spawn(record(Arc::clone(&route), Arc::clone(&moves)));
            let tasks = vec![Arc::clone(&task), Arc::new(AbortOnDropHandle::new(watcher))];
            Self { route, handle, heartbeat: heartbeat.clone(), moves, _tasks: tasks }
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
        self.handle.seen()
    }

    /// Waits until traffic flows to `addr`.
    pub(crate) async fn leads_to(&self, addr: SocketAddr) {
        let open = || self.route.usable_target().is_some_and(|target| target.addr() == addr);
        let started = Instant::now();
        while !open() {
            assert!(
                started.elapsed() < PATIENCE,
                "the points never led to {addr}; last seen: {:#?}",
                self.seen()
            );
            tokio::time::sleep(ms(2)).await;
        }
    }

    /// Waits until the picture satisfies `wanted`.
    pub(crate) async fn sees(&self, what: &str, wanted: impl Fn(&DiscoverySnapshot) -> bool) {
        let started = Instant::now();
        while !wanted(&self.seen()) {
            assert!(
                started.elapsed() < PATIENCE,
                "never seen: {what}; last seen: {:#?}",
                self.seen()
            );
            tokio::time::sleep(ms(2)).await;
        }
    }

    /// The moves so far, with their times.
    pub(crate) fn moves(&self) -> Vec<(Instant, Move)> {
        self.moves.lock().expect("no poison").clone()
    }

    /// Waits for a move and gives its time.
    pub(crate) async fn moved(&self, what: Move, since: Instant) -> Instant {
        let find = || {
            self.moves().into_iter().find(|(at, it)| *at >= since && *it == what).map(|(at, _)| at)
        };
        until(&format!("{what:?}"), || find().is_some()).await;
        find().expect("just seen")
    }
}

async fn record(route: Arc<TargetReader>, moves: Arc<Mutex<Vec<(Instant, Move)>>>) {
    let (mut shut, mut generation) = (false, None);
    loop {
        let moved = route.changed();
        let mut now = Vec::new();
        let target = route.current();
        let current = target.as_ref().map(|it| it.generation());
        if current != generation {
            generation = current;
            now.push(target.map_or(Move::Nowhere, |it| Move::To(it.addr())));
        }
        if route.is_closed() != shut {
            shut = !shut;
            now.push(if shut { Move::Shut } else { Move::Open });
        }
        moves.lock().expect("no poison").extend(now.into_iter().map(|it| (Instant::now(), it)));
        moved.await;
    }
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, so: impl Fn() -> bool) {
    let started = Instant::now();
    while !so() {
        assert!(started.elapsed() < PATIENCE, "it never came to be that {what}");
        tokio::time::sleep(ms(2)).await;
    }
}

/// Looks again and again for `long` that something stays so. For what must not happen there is no
/// event to wait for.
pub(crate) async fn stays(long: Duration, what: &str, so: impl Fn() -> bool) {
    let started = Instant::now();
    while started.elapsed() < long {
        assert!(so(), "it did not stay so that {what}");
        tokio::time::sleep(ms(2)).await;
    }
}
