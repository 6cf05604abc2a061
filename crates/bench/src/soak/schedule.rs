//! The schedule of a soak: a pure function of seed, length and abilities.
//!
//! The same seed gives the same steps on every machine. Times are pauses between steps, not
//! moments: each step also waits until the cluster is complete again, however long that takes. In
//! half of the steps a second fault begins while the first one is in force.

use std::time::Duration;

/// `SplitMix64`: small, deterministic, and independent of any library's version.
#[derive(Debug, Clone)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; 0 for a bound of 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next().checked_rem(bound).unwrap_or(0)
    }
}

/// One disturbance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    Switchover,
    PlannedFailover,
    KillMaster,
    StopMaster,
    PartitionMaster,
    KillReplica,
    StopReplica,
    KillSentinel,
    LoseSentinelFiles,
    StopSentinel,
    PartitionSentinel,
    Takeover,
    RestartProxy,
    KillProxy,
    StopProxy,
    Reload,
    RotateSecret,
    ChangeServices,
    Churn,
}

/// The part of the deployment that a fault is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Master,
    Replica,
    Sentinel,
    Proxy,
    Clients,
}

/// How often a fault is chosen, and its times in milliseconds.
struct Kind {
    fault: Fault,
    weight: u64,
    /// The expected duration of its step.
    costs: u64,
    /// A second fault begins within this time, while the first one is in force.
    in_force: u64,
}

const fn kind(fault: Fault, weight: u64, costs: u64, in_force: u64) -> Kind {
    Kind { fault, weight, costs, in_force }
}

/// Every fault. To add one: name it in `Fault`, give it a line here, and perform it in `faults.rs`.
const KINDS: &[Kind] = &[
    kind(Fault::Switchover, 3, 11_000, 2_000),
    kind(Fault::PlannedFailover, 4, 11_000, 2_000),
    kind(Fault::KillMaster, 3, 14_000, 4_500),
    kind(Fault::StopMaster, 3, 14_000, 4_500),
    kind(Fault::PartitionMaster, 2, 14_000, 4_500),
    kind(Fault::KillReplica, 2, 4_000, 1_000),
    kind(Fault::StopReplica, 2, 4_000, 1_000),
    kind(Fault::KillSentinel, 2, 3_000, 1_000),
    kind(Fault::LoseSentinelFiles, 2, 5_000, 1_500),
    kind(Fault::StopSentinel, 2, 3_000, 1_000),
    kind(Fault::PartitionSentinel, 2, 4_000, 1_000),
    kind(Fault::Takeover, 3, 2_000, 300),
    kind(Fault::RestartProxy, 1, 3_000, 300),
    kind(Fault::KillProxy, 1, 2_000, 200),
    kind(Fault::StopProxy, 2, 2_000, 1_000),
    kind(Fault::Reload, 2, 500, 100),
    kind(Fault::RotateSecret, 3, 3_000, 1_500),
    kind(Fault::ChangeServices, 3, 4_000, 2_500),
    kind(Fault::Churn, 4, 1_500, 1_000),
];

impl Fault {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Switchover => "pointsman switchover",
            Self::PlannedFailover => "SENTINEL FAILOVER",
            Self::KillMaster => "SIGKILL of the master",
            Self::StopMaster => "SIGSTOP of the master",
            Self::PartitionMaster => "partition of the master",
            Self::KillReplica => "SIGKILL of a replica",
            Self::StopReplica => "SIGSTOP of a replica",
            Self::KillSentinel => "restart of a sentinel",
            Self::LoseSentinelFiles => "restart of a sentinel without its files",
            Self::StopSentinel => "SIGSTOP of a sentinel",
            Self::PartitionSentinel => "partition of a sentinel from the proxy",
            Self::Takeover => "takeover by a new proxy",
            Self::RestartProxy => "restart of the proxy",
            Self::KillProxy => "SIGKILL of the proxy",
            Self::StopProxy => "SIGSTOP of the proxy",
            Self::Reload => "reload",
            Self::RotateSecret => "rotation of a password",
            Self::ChangeServices => "service added and removed",
            Self::Churn => "client churn",
        }
    }

    pub(super) fn part(self) -> Part {
        match self {
            Self::Switchover
            | Self::PlannedFailover
            | Self::KillMaster
            | Self::StopMaster
            | Self::PartitionMaster => Part::Master,
            Self::KillReplica | Self::StopReplica => Part::Replica,
            Self::KillSentinel
            | Self::LoseSentinelFiles
            | Self::StopSentinel
            | Self::PartitionSentinel => Part::Sentinel,
            Self::Takeover
            | Self::RestartProxy
            | Self::KillProxy
            | Self::StopProxy
            | Self::Reload
            | Self::RotateSecret
            | Self::ChangeServices => Part::Proxy,
            Self::Churn => Part::Clients,
        }
    }

    /// Whether Redis may lose acknowledged writes, because a master is replaced that did not hand
    /// over.
    pub(super) fn may_lose_writes(self) -> bool {
        matches!(self, Self::KillMaster | Self::StopMaster | Self::PartitionMaster)
    }

    /// Whether clients may notice it by an error or the end of a connection.
    pub(super) fn disturbs(self) -> bool {
        self.part() == Part::Master || self.replaces_proxy()
    }

    /// Whether a master is replaced on request.
    pub(super) fn is_planned(self) -> bool {
        matches!(self, Self::Switchover | Self::PlannedFailover)
    }

    /// Whether this request may fail because of the other fault.
    pub(super) fn is_hindered_by(self, other: Self) -> bool {
        match other.part() {
            Part::Master | Part::Replica | Part::Sentinel => true,
            Part::Proxy => self == Self::Switchover && !other.is_change_of_settings(),
            Part::Clients => false,
        }
    }

    /// Whether only the configuration of the proxy changes.
    fn is_change_of_settings(self) -> bool {
        matches!(self, Self::Reload | Self::RotateSecret | Self::ChangeServices)
    }

    /// Whether another process of the proxy serves after it.
    fn replaces_proxy(self) -> bool {
        matches!(self, Self::Takeover | Self::RestartProxy | Self::KillProxy)
    }

    /// Whether it needs a private network namespace.
    pub(super) fn needs_partitions(self) -> bool {
        matches!(self, Self::PartitionMaster | Self::PartitionSentinel)
    }

    /// Whether `second` may begin while this fault is in force. Faults of one part exclude each
    /// other, because the second would end the first, except the loss of the master in a planned
    /// failover.
    fn admits(self, second: Self) -> bool {
        self.part() != second.part() || (self.is_planned() && second.may_lose_writes())
    }
}

/// One fault of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Act {
    pub(super) fault: Fault,
    /// Selects the affected member, modulo their number.
    pub(super) which: usize,
    /// How long a process stays stopped or dead, where the fault itself does not end.
    pub(super) hold: Duration,
}

/// One step: a calm pause, then a fault, and perhaps a second one while it is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) pause: Duration,
    pub(super) first: Act,
    /// The second fault, and how long after the first one it begins.
    pub(super) second: Option<(Duration, Act)>,
}

impl Step {
    pub(super) fn acts(&self) -> impl Iterator<Item = Act> {
        std::iter::once(self.first).chain(self.second.map(|(_, act)| act))
    }
}

/// Whether the proxy is not replaced at this time of the schedule: in the second half of every
/// hour, so that the memory of one process can be followed for that long.
fn is_steady(filled: Duration) -> bool {
    filled.as_secs() % 3600 >= 1800
}

/// The steps that fill about `length`.
pub(super) fn schedule(seed: u64, length: Duration, partitions: bool) -> Vec<Step> {
    let mut rng = Rng::new(seed);
    let possible: Vec<&Kind> =
        KINDS.iter().filter(|it| partitions || !it.fault.needs_partitions()).collect();
    let (mut steps, mut filled) = (Vec::new(), Duration::ZERO);
    while filled < length {
        let possible: Vec<&Kind> = possible
            .iter()
            .copied()
            .filter(|it| !(is_steady(filled) && it.fault.replaces_proxy()))
            .collect();
        let pause = Duration::from_millis(500 + rng.below(1500));
        let Some(kind) = choose(&mut rng, &possible) else { break };
        let first = act(&mut rng, kind.fault);
        let (joint, share) = (rng.below(2) == 0, rng.below(kind.in_force));
        let partners: Vec<&Kind> =
            possible.iter().copied().filter(|it| kind.fault.admits(it.fault)).collect();
        let other = choose(&mut rng, &partners).map(|it| (it.costs, act(&mut rng, it.fault)));
        let second = other.filter(|_| joint);
        let costs = kind.costs.max(second.map_or(0, |(costs, _)| costs));
        filled += pause + Duration::from_millis(costs);
        let delay = Duration::from_millis(share);
        steps.push(Step { pause, first, second: second.map(|(_, act)| (delay, act)) });
    }
    steps
}

fn choose<'a>(rng: &mut Rng, kinds: &[&'a Kind]) -> Option<&'a Kind> {
    let mut ticket = rng.below(kinds.iter().map(|it| it.weight).sum());
    kinds.iter().copied().find(|it| {
        let hit = ticket < it.weight;
        ticket = ticket.saturating_sub(it.weight);
        hit
    })
}

fn act(rng: &mut Rng, fault: Fault) -> Act {
    let which = usize::try_from(rng.below(60)).unwrap_or(0);
    Act { fault, which, hold: Duration::from_millis(200 + rng.below(1800)) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn repeats_schedule_of_a_seed() {
        assert_eq!(schedule(7, HOUR, true), schedule(7, HOUR, true));
        assert_ne!(schedule(7, HOUR, true), schedule(8, HOUR, true));
    }

    #[test]
    fn keeps_schedule_of_a_seed_across_versions() {
        // A reported seed is worthless if the generator changes unnoticed.
        let first: Vec<_> = (0..3).map(|_| Rng::new(1).next()).collect();
        assert_eq!(first, [10_451_216_379_200_822_465; 3]);
    }

    #[test]
    fn extends_shorter_schedule_of_same_seed() {
        let (short, long) = (schedule(3, HOUR / 60, true), schedule(3, HOUR, true));
        assert!(!short.is_empty() && short.len() < long.len());
        assert!(long.starts_with(&short));
    }

    #[test]
    fn covers_every_fault_first_and_second() {
        let steps = schedule(1, HOUR, true);
        let first: BTreeSet<Fault> = steps.iter().map(|it| it.first.fault).collect();
        let second: BTreeSet<Fault> =
            steps.iter().filter_map(|it| it.second).map(|(_, act)| act.fault).collect();
        assert_eq!((first.len(), second.len()), (KINDS.len(), KINDS.len()));
    }

    #[test]
    fn overlaps_faults_in_about_half_of_the_steps() {
        let steps = schedule(2, HOUR, true);
        let joint = steps.iter().filter(|it| it.second.is_some()).count();
        assert!((steps.len() / 3..steps.len() * 2 / 3).contains(&joint), "{joint}");
        for step in steps {
            if let Some((delay, second)) = step.second {
                let first = step.first.fault;
                assert!(first.admits(second.fault), "{first:?} and {second:?}");
                assert!(delay < Duration::from_secs(5));
            }
        }
    }

    #[test]
    fn keeps_proxy_in_second_half_of_each_hour() {
        let half = schedule(1, HOUR / 2, true).len();
        let rest: Vec<Step> = schedule(1, HOUR, true).split_off(half);
        let replaced = |it: &Step| it.acts().any(|act| act.fault.replaces_proxy());
        assert!(rest.len() > 50 && !rest.iter().any(replaced));
    }

    #[test]
    fn leaves_out_partitions_where_impossible() {
        let steps = schedule(1, HOUR, false);
        let impossible = |it: &Step| it.acts().any(|act| act.fault.needs_partitions());
        assert!(steps.len() > 100 && !steps.iter().any(impossible));
    }
}
