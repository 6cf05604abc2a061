//! What a seed means: a cluster, and the faults that it has to live through.
//!
//! Most seeds have one fault or a pair whose times overlap, since pairs are what is interesting and
//! what can be counted; some have more.

use sentinel::Minority;

use crate::rng::Rng;
use crate::wire::{MS, SECOND, Us};

/// The kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The master is killed and comes back later, in one of several ways.
    KillMaster,
    /// The master is stopped (SIGSTOP) and continues.
    StopMaster,
    /// A replica is killed and comes back later.
    KillReplica,
    /// A replica is stopped and continues.
    StopReplica,
    /// The master is busy for seconds while no new client is admitted.
    BusyMaster,
    /// The master is cut off from some of all others.
    CutMaster,
    /// Two random sets of hosts are cut off from each other.
    CutSets,
    /// The same in one direction only.
    CutOneWay,
    /// A proxy is cut off from everything, and gets it back bit by bit.
    CutProxy,
    /// A proxy is cut off from the sentinels, and gets them back one by one.
    CutProxyFromSentinels,
    /// A proxy is stopped and continues.
    StopProxy,
    /// A proxy's machine is suspended: its monotonic clock stands still.
    SuspendProxy,
    /// A proxy is killed and started again.
    RestartProxy,
    /// A sentinel is stopped and continues.
    StopSentinel,
    /// A sentinel is killed and starts from its file.
    RestartSentinel,
    /// A sentinel starts with a file as an operator wrote it, and so with another MYID.
    LoseSentinelFile,
    /// A sentinel starts from a file that was overtaken.
    StaleSentinelFile,
    /// All sentinels lose their files at once.
    LoseAllFiles,
    /// All sentinels are replaced one after the other, with new MYIDs.
    RollSentinels,
    /// A sentinel's wall clock jumps.
    JumpClock,
    /// No sentinel's name resolves.
    DnsMissing,
    /// The name gives only some of its addresses.
    DnsSubset,
    /// The resolver is slow.
    DnsLate,
    /// An operator orders a failover.
    Failover,
    /// Two operators order one each at the same time.
    TwoFailovers,
    /// A proxy is told to switch over.
    Switchover,
    /// A redis node, and the sentinel beside it, come back empty at a new address.
    ReplacePod,
    /// An empty redis node gets an address that another one had.
    ReuseAddress,
    /// Everything to and from a host takes long.
    SlowHost,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 29] = [
        Self::KillMaster,
        Self::StopMaster,
        Self::KillReplica,
        Self::StopReplica,
        Self::BusyMaster,
        Self::CutMaster,
        Self::CutSets,
        Self::CutOneWay,
        Self::CutProxy,
        Self::CutProxyFromSentinels,
        Self::StopProxy,
        Self::SuspendProxy,
        Self::RestartProxy,
        Self::StopSentinel,
        Self::RestartSentinel,
        Self::LoseSentinelFile,
        Self::StaleSentinelFile,
        Self::LoseAllFiles,
        Self::RollSentinels,
        Self::JumpClock,
        Self::DnsMissing,
        Self::DnsSubset,
        Self::DnsLate,
        Self::Failover,
        Self::TwoFailovers,
        Self::Switchover,
        Self::ReplacePod,
        Self::ReuseAddress,
        Self::SlowHost,
    ];

    /// Faults that lead to another master make the others interesting.
    const SWITCHES: [Self; 6] = [
        Self::KillMaster,
        Self::StopMaster,
        Self::CutMaster,
        Self::Failover,
        Self::Failover,
        Self::Switchover,
    ];

    /// Faults between a proxy and everything else, which make it blind, or late.
    const BLINDNESS: [Self; 6] = [
        Self::CutProxy,
        Self::CutProxyFromSentinels,
        Self::StopProxy,
        Self::SuspendProxy,
        Self::RestartProxy,
        Self::CutSets,
    ];

    /// Pairs that have led clients astray before.
    const KNOWN: [(Self, Self); 9] = [
        (Self::ReplacePod, Self::RestartProxy),
        (Self::LoseSentinelFile, Self::RestartProxy),
        (Self::CutProxy, Self::Failover),
        (Self::StopProxy, Self::KillMaster),
        (Self::CutProxyFromSentinels, Self::Failover),
        (Self::CutMaster, Self::CutProxyFromSentinels),
        (Self::StopMaster, Self::StopMaster),
        (Self::LoseAllFiles, Self::BusyMaster),
        (Self::BusyMaster, Self::DnsMissing),
    ];

    /// A planned move with nothing wrong.
    pub(crate) fn is_planned(self) -> bool {
        matches!(self, Self::Failover | Self::Switchover)
    }
}

/// One fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    pub(crate) at: Us,
    pub(crate) lasts: Us,
}

/// What there is.
#[derive(Debug, Clone)]
pub(crate) struct Cluster {
    pub(crate) sentinels: usize,
    pub(crate) redis: usize,
    pub(crate) proxies: usize,
    pub(crate) clients: usize,
    pub(crate) think: Us,
    pub(crate) quorum: usize,
    pub(crate) down_after: i64,
    pub(crate) failover_timeout: i64,
    pub(crate) minority: Minority,
    /// One name for all sentinels, or one for each.
    pub(crate) one_name: bool,
    /// A redis node and a sentinel share each host.
    pub(crate) together: bool,
    pub(crate) epoch: u64,
    pub(crate) latency: (Us, Us),
    /// The sentinels' files list their peers and the replicas from the start.
    pub(crate) acquainted: bool,
}

/// The whole of a seed.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) cluster: Cluster,
    pub(crate) faults: Vec<Fault>,
}

impl Plan {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        let mut cluster = Cluster::new(rng);
        let wanted = match rng.range(0, 100) {
            0..15 => 1,
            15..75 => 2,
            75..90 => 3,
            _ => 4,
        };
        let mut faults = Vec::new();
        let first = rng.range(10 * SECOND, 16 * SECOND);
        let mut begun = (first, first);
        let known = (wanted == 2 && rng.percent(20)).then(|| *rng.pick(&Kind::KNOWN));
        for number in 0..wanted {
            let kind = match (number, known, rng.range(0, 100)) {
                (0, Some((first, _)), _) => first,
                (_, Some((_, second)), _) => second,
                (_, _, 0..25) => *rng.pick(&Kind::SWITCHES),
                (_, _, 25..45) => *rng.pick(&Kind::BLINDNESS),
                _ => *rng.pick(&Kind::ALL),
            };
            let lasts = lasting(rng);
            let at = if number == 0 { first } else { near(rng, begun) };
            faults.push(Fault { kind, at, lasts });
            begun = (at, at + lasts);
        }
        cluster.suit(&faults, rng);
        Self { cluster, faults }
    }

    /// When the last fault begins.
    pub(crate) fn last_begins(&self) -> Us {
        self.faults.iter().map(|it| it.at).max().unwrap_or(0)
    }

    /// Nothing but planned moves, each with the time to come to its end: an old master is no
    /// replica before that, and Sentinel promotes it all the same.
    pub(crate) fn is_planned(&self) -> bool {
        let mut begin: Vec<Us> = self.faults.iter().map(|it| it.at).collect();
        begin.sort_unstable();
        let apart = begin.windows(2).all(|pair| pair[1] - pair[0] > 40 * SECOND);
        apart && self.faults.iter().all(|it| it.kind.is_planned())
    }

    pub(crate) fn kinds(&self) -> Vec<Kind> {
        let mut kinds: Vec<Kind> = self.faults.iter().map(|it| it.kind).collect();
        kinds.sort_unstable();
        kinds
    }
}

/// A moment that has something to do with another fault: while it begins, while it lasts, or about
/// its end.
fn near(rng: &mut Rng, (from, to): (Us, Us)) -> Us {
    match rng.range(0, 10) {
        0..3 => rng.range(from.saturating_sub(500 * MS), from + SECOND),
        3..7 => rng.range(from, to.max(from + MS)),
        7..9 => rng.range(to.saturating_sub(SECOND), to + 2 * SECOND),
        _ => rng.range(to, to + 20 * SECOND),
    }
}

fn lasting(rng: &mut Rng) -> Us {
    match rng.range(0, 10) {
        0..2 => rng.range(200 * MS, 2 * SECOND),
        2..7 => rng.range(2 * SECOND, 9 * SECOND),
        7..9 => rng.range(9 * SECOND, 25 * SECOND),
        _ => rng.range(25 * SECOND, 60 * SECOND),
    }
}

impl Cluster {
    /// Some faults need a cluster in which they show.
    fn suit(&mut self, faults: &[Fault], rng: &mut Rng) {
        let has = |kind: Kind| faults.iter().any(|it| it.kind == kind);
        if has(Kind::BusyMaster) && rng.percent(60) {
            // Long enough that Sentinel waits for it.
            self.down_after = *rng.pick(&[10_000, 30_000]);
        }
        if has(Kind::ReplacePod) && rng.percent(80) {
            (self.together, self.acquainted) = (true, true);
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
            together: rng.percent(60),
            epoch: *rng.pick(&[0, 0, 1, 7]),
            latency: *rng.pick(&[(50, 300), (50, 300), (200, 2000), (1000, 8000)]),
            acquainted: rng.percent(80),
        }
    }
}
