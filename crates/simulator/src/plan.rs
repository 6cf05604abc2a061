//! The plan of a seed: a cluster, and the faults applied to it.
//!
//! Most seeds have one fault, or a pair of faults whose times overlap, since pairs are interesting;
//! some have more.

use std::ops::Range;

use clap::ValueEnum;
use sentinel::Minority;

use crate::rng::Rng;
use crate::wire::{Addr, MS, Micros, REDIS, SECOND, SENTINEL};

/// The percentage of seeds with an attack.
const ATTACKS: u64 = 15;

/// The percentage of the other seeds with an order of an operator.
const ORDERS: u64 = 30;

/// The kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum FaultKind {
    /// The master is killed and restarts later, in one of several ways.
    KillMaster,
    /// The master is stopped (SIGSTOP) and continues.
    StopMaster,
    /// A replica is killed and restarts later.
    KillReplica,
    /// A replica is stopped and continues.
    StopReplica,
    /// The master is busy for seconds while no new client is admitted.
    BusyMaster,
    /// The master is cut off from some or all other hosts.
    CutMaster,
    /// Two random sets of hosts are cut off from each other.
    CutSets,
    /// The same in one direction only.
    CutOneWay,
    /// A proxy is cut off from everything, and its paths recover one by one.
    CutProxy,
    /// A proxy is cut off from the sentinels, and its paths recover one by one.
    CutProxyFromSentinels,
    /// A proxy is stopped and continues.
    StopProxy,
    /// A proxy's host is suspended: its monotonic clock stands still.
    SuspendProxy,
    /// A proxy is killed and started again.
    RestartProxy,
    /// A sentinel is stopped and continues.
    StopSentinel,
    /// A sentinel is killed and restarts from its file.
    RestartSentinel,
    /// A sentinel restarts with a file as written by an operator, and hence with another MYID.
    LoseSentinelFile,
    /// A sentinel restarts from an outdated file.
    StaleSentinelFile,
    /// All sentinels lose their files at once.
    LoseAllFiles,
    /// All sentinels are replaced one after the other, with new MYIDs.
    RollSentinels,
    /// A sentinel's wall clock jumps.
    JumpClock,
    /// No sentinel's name resolves.
    DnsMissing,
    /// The name resolves to only some of its addresses.
    DnsSubset,
    /// The resolver is slow.
    DnsLate,
    /// An operator requests a failover.
    Failover,
    /// Two operators request one failover each at the same time.
    TwoFailovers,
    /// A switchover is requested from a proxy.
    Switchover,
    /// A Redis node, and the sentinel on its host, restart empty at a new address.
    ReplacePod,
    /// An empty Redis node gets an address that another one had.
    ReuseAddress,
    /// Everything to and from a host is slow.
    SlowHost,
    /// All sentinels are killed, and restart one by one from their files.
    LoseSentinels,
    /// An operator promotes a replica by hand while the sentinels are lost, or not, and orders the
    /// proxies to follow some node, rightly or wrongly.
    OrderFollow,
    /// Another process replaces a proxy without a pause.
    Takeover,
    /// The configured list of sentinels changes: one is left out for a while, or one name stands
    /// for all of them instead of one per sentinel, or the reverse.
    ReloadSentinels,
    /// `SENTINEL REMOVE` and `MONITOR`, on one sentinel or on all: the epoch is 0 again.
    MonitorAnew,
    /// `SENTINEL RESET`, on one sentinel or on all: peers and replicas are forgotten.
    ResetSentinels,
    /// `SENTINEL SET quorum`, on one sentinel or on all.
    SetQuorum,
    /// All sentinels restart from nothing or from old files, with their MYIDs.
    OldFiles,
    /// An operator types `REPLICAOF` on a replica: it becomes a master, or follows another replica.
    ReplicaOf,
    /// All replicas have priority 0: none can be promoted.
    ZeroPriority,
    /// An operator requests a failover in which the master itself hands over.
    Coordinated,
    /// Some or all sentinels announce names instead of addresses.
    AnnounceNames,
    /// Some nodes require a password that the proxies do not have. Connections stay.
    NewPassword,
    /// Sentinels and servers that no configuration names join through hellos, and lie.
    HostilePeers,
    /// Configured sentinels lie, less than a majority or more.
    HostileSentinels,
}

impl FaultKind {
    /// All that are drawn in the first place, and the orders of operators. The hostile ones are
    /// drawn apart, too.
    const DRAWN: Range<usize> = 0..Self::Takeover as usize;
    const ORDERS: Range<usize> = Self::Takeover as usize..Self::HostilePeers as usize;

    /// Faults that lead to another master, which make other faults interesting.
    const SWITCHES: [Self; 6] = [
        Self::KillMaster,
        Self::StopMaster,
        Self::CutMaster,
        Self::Failover,
        Self::Failover,
        Self::Switchover,
    ];

    /// Faults between a proxy and everything else, which make it blind or late.
    const BLINDNESS: [Self; 6] = [
        Self::CutProxy,
        Self::CutProxyFromSentinels,
        Self::StopProxy,
        Self::SuspendProxy,
        Self::RestartProxy,
        Self::CutSets,
    ];

    /// Pairs that have revealed bugs.
    const KNOWN: [(Self, Self); 11] = [
        (Self::ReplacePod, Self::RestartProxy),
        (Self::LoseSentinelFile, Self::RestartProxy),
        (Self::CutProxy, Self::Failover),
        (Self::StopProxy, Self::KillMaster),
        (Self::CutProxyFromSentinels, Self::Failover),
        (Self::CutMaster, Self::CutProxyFromSentinels),
        (Self::StopMaster, Self::StopMaster),
        (Self::LoseAllFiles, Self::BusyMaster),
        (Self::BusyMaster, Self::DnsMissing),
        (Self::LoseSentinels, Self::OrderFollow),
        (Self::CutProxyFromSentinels, Self::OrderFollow),
    ];

    /// A planned failover without any fault.
    pub(crate) fn is_planned(self) -> bool {
        matches!(self, Self::Failover | Self::Switchover | Self::Coordinated)
    }
}

/// One fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    pub(crate) at: Micros,
    pub(crate) lasts: Micros,
}

/// The cluster of a run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ClusterConfig {
    pub(crate) sentinels: usize,
    pub(crate) redis: usize,
    pub(crate) proxies: usize,
    pub(crate) clients: usize,
    pub(crate) think: Micros,
    pub(crate) quorum: usize,
    pub(crate) down_after: i64,
    pub(crate) failover_timeout: i64,
    pub(crate) minority: Minority,
    /// One name for all sentinels, or one per sentinel.
    pub(crate) one_name: bool,
    /// A Redis node and a sentinel share each host.
    pub(crate) colocated: bool,
    pub(crate) epoch: u64,
    pub(crate) latency: (Micros, Micros),
    /// The sentinels' files list their peers and the replicas from the start.
    pub(crate) knows_peers: bool,
    /// The number of connections that the sentinels report: the size of the fleet.
    pub(crate) connections: u32,
    /// The sentinels can lead a coordinated failover.
    pub(crate) coordinates: bool,
}

/// The hostile processes of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostileConfig {
    pub(crate) seed: u64,
    /// Sentinels that no configuration names.
    pub(crate) sentinels: usize,
    /// Servers outside the cluster.
    pub(crate) servers: usize,
    /// Configured sentinels that turn hostile.
    pub(crate) insiders: usize,
}

impl HostileConfig {
    /// The addresses of the outsiders: sentinels first.
    pub(crate) fn addresses(self) -> impl Iterator<Item = Addr> {
        let sentinels = (0..self.sentinels).map(|at| Addr { ip: 200 + at as u8, port: SENTINEL });
        let servers = (0..self.servers).map(|at| Addr { ip: 230 + at as u8, port: REDIS });
        sentinels.chain(servers)
    }
}

/// The plan of a run.
#[derive(Debug, Clone)]
pub(crate) struct FaultPlan {
    pub(crate) cluster: ClusterConfig,
    pub(crate) faults: Vec<Fault>,
    pub(crate) hostile: Option<HostileConfig>,
}

impl FaultPlan {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        let mut cluster = ClusterConfig::new(rng);
        let wanted = match rng.range(0, 100) {
            0..15 => 1,
            15..75 => 2,
            75..90 => 3,
            _ => 4,
        };
        let mut faults = Vec::new();
        let first = rng.range(10 * SECOND, 16 * SECOND);
        let mut begun = (first, first);
        let known = (wanted == 2 && rng.percent(20)).then(|| *rng.pick(&FaultKind::KNOWN));
        for number in 0..wanted {
            let kind = match (number, known, rng.range(0, 100)) {
                (0, Some((first, _)), _) => first,
                (_, Some((_, second)), _) => second,
                (_, _, 0..25) => *rng.pick(&FaultKind::SWITCHES),
                (_, _, 25..45) => *rng.pick(&FaultKind::BLINDNESS),
                _ => *rng.pick(&FaultKind::value_variants()[FaultKind::DRAWN]),
            };
            let lasts = lasting(rng);
            let at = if number == 0 { first } else { near(rng, begun.0, begun.1) };
            faults.push(Fault { kind, at, lasts });
            begun = (at, at + lasts);
        }
        cluster.adapt(&faults, rng);
        let mut plan = Self { cluster, faults, hostile: None };
        plan.add_attack(&mut Rng::new(rng.clone().next()));
        if plan.hostile.is_none() {
            plan.add_order(&mut Rng::new(rng.clone().next() ^ 1));
        }
        plan.cluster.coordinates = Rng::new(rng.clone().next() ^ 2).percent(30)
            || plan.faults.iter().any(|it| it.kind == FaultKind::Coordinated);
        plan
    }

    /// Adds an order of an operator to some plans, near a failover or near their first fault. It
    /// is drawn from a source of its own, so that all other seeds stay what they are.
    fn add_order(&mut self, rng: &mut Rng) {
        if !rng.percent(ORDERS) {
            return;
        }
        if rng.percent(50) {
            self.faults.truncate(1);
            self.faults[0].kind = FaultKind::Failover;
        }
        let Fault { at, lasts, .. } = self.faults[0];
        let kind = *rng.pick(&FaultKind::value_variants()[FaultKind::ORDERS]);
        let at = near(rng, at, at + lasts).saturating_sub(rng.range(0, 12 * SECOND));
        self.faults.push(Fault { kind, at: at.max(5 * SECOND), lasts: lasting(rng) });
    }

    /// Adds an attack to some plans. It is drawn from a source of its own, so that all other seeds
    /// are what they were without attacks.
    fn add_attack(&mut self, rng: &mut Rng) {
        if !rng.percent(ATTACKS) {
            return;
        }
        let kind = *rng.pick(&[FaultKind::HostilePeers, FaultKind::HostileSentinels]);
        let half = self.cluster.sentinels as u64 / 2;
        let insiders = match (kind, rng.percent(75)) {
            (FaultKind::HostilePeers, _) => 0,
            (_, true) => rng.range(1, half + 1),
            (_, false) => rng.range(half + 1, 2 * half + 2),
        };
        let most = if insiders == 0 { 7 } else { 4 };
        self.hostile = Some(HostileConfig {
            seed: rng.next(),
            sentinels: rng.range(1, most) as usize,
            servers: rng.range(1, 3) as usize,
            insiders: insiders as usize,
        });
        let at = if rng.percent(20) { 0 } else { rng.range(5 * SECOND, 15 * SECOND) };
        if rng.percent(50) {
            self.faults.clear();
        }
        self.faults.push(Fault { kind, at, lasts: rng.range(20 * SECOND, 60 * SECOND) });
    }

    /// When the last fault begins.
    pub(crate) fn last_begins(&self) -> Micros {
        self.faults.iter().map(|it| it.at).max().unwrap_or(0)
    }

    /// Whether there are only planned failovers, with enough time in between to complete: an old
    /// master is not a replica before that, and Sentinel promotes it nevertheless.
    pub(crate) fn is_planned(&self) -> bool {
        let mut begin: Vec<Micros> = self.faults.iter().map(|it| it.at).collect();
        begin.sort_unstable();
        let apart = begin.windows(2).all(|pair| pair[1] - pair[0] > 40 * SECOND);
        apart && self.faults.iter().all(|it| it.kind.is_planned())
    }

    pub(crate) fn kinds(&self) -> Vec<FaultKind> {
        let mut kinds: Vec<FaultKind> = self.faults.iter().map(|it| it.kind).collect();
        kinds.sort_unstable();
        kinds
    }
}

/// A time related to another fault: when it begins, while it lasts, or about its end.
fn near(rng: &mut Rng, from: Micros, to: Micros) -> Micros {
    match rng.range(0, 10) {
        0..3 => rng.range(from.saturating_sub(500 * MS), from + SECOND),
        3..7 => rng.range(from, to.max(from + MS)),
        7..9 => rng.range(to.saturating_sub(SECOND), to + 2 * SECOND),
        _ => rng.range(to, to + 20 * SECOND),
    }
}

fn lasting(rng: &mut Rng) -> Micros {
    match rng.range(0, 10) {
        0..2 => rng.range(200 * MS, 2 * SECOND),
        2..7 => rng.range(2 * SECOND, 9 * SECOND),
        7..9 => rng.range(9 * SECOND, 25 * SECOND),
        _ => rng.range(25 * SECOND, 60 * SECOND),
    }
}

impl ClusterConfig {
    /// Adapts the cluster so that certain faults take effect.
    fn adapt(&mut self, faults: &[Fault], rng: &mut Rng) {
        let has = |kind: FaultKind| faults.iter().any(|it| it.kind == kind);
        if has(FaultKind::BusyMaster) && rng.percent(60) {
            // Long enough that Sentinel waits for it.
            self.down_after = *rng.pick(&[10_000, 30_000]);
        }
        if has(FaultKind::ReplacePod) && rng.percent(80) {
            (self.colocated, self.knows_peers) = (true, true);
            self.one_name |= rng.percent(60);
        }
    }

    fn new(rng: &mut Rng) -> Self {
        let sentinels = if rng.percent(75) { 3 } else { 5 };
        let proxies = rng.range(1, 4) as usize;
        Self {
            sentinels,
            redis: rng.range(2, 5) as usize,
            proxies,
            clients: rng.range(2, 5) as usize,
            think: rng.range(10, 40) * MS * proxies as u64,
            quorum: if rng.percent(85) {
                sentinels / 2 + 1
            } else {
                rng.range(1, sentinels as u64 + 1) as usize
            },
            down_after: *rng.pick(&[1000, 2000, 2000, 5000, 10_000]),
            failover_timeout: *rng.pick(&[3000, 6000, 10_000, 60_000]),
            minority: *rng.pick(&[Minority::Keep, Minority::Keep, Minority::Hold, Minority::Cut]),
            one_name: rng.percent(60),
            colocated: rng.percent(60),
            epoch: *rng.pick(&[0, 0, 1, 7]),
            latency: *rng.pick(&[(50, 300), (50, 300), (200, 2000), (1000, 8000)]),
            knows_peers: rng.percent(80),
            connections: *rng.pick(&[0, 0, 60, 1000]),
            coordinates: false,
        }
    }
}
