//! The schedule of a soak: a pure function of seed, length and abilities.
//!
//! The same seed gives the same steps on every machine. Times are pauses between steps, not
//! moments: each step also waits until the cluster is complete again, however long that takes.

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
    Churn,
}

/// Every fault with its weight and its expected duration in milliseconds.
const FAULTS: &[(Fault, u64, u64)] = &[
    (Fault::PlannedFailover, 6, 6_000),
    (Fault::KillMaster, 3, 14_000),
    (Fault::StopMaster, 3, 14_000),
    (Fault::PartitionMaster, 2, 14_000),
    (Fault::KillReplica, 2, 4_000),
    (Fault::StopReplica, 2, 4_000),
    (Fault::KillSentinel, 2, 3_000),
    (Fault::LoseSentinelFiles, 2, 5_000),
    (Fault::StopSentinel, 2, 3_000),
    (Fault::PartitionSentinel, 2, 4_000),
    (Fault::Takeover, 3, 2_000),
    (Fault::RestartProxy, 1, 3_000),
    (Fault::KillProxy, 1, 2_000),
    (Fault::StopProxy, 2, 2_000),
    (Fault::Reload, 3, 500),
    (Fault::Churn, 4, 1_500),
];

impl Fault {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::PlannedFailover => "planned failover",
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
            Self::Churn => "client churn",
        }
    }

    /// Whether Redis may lose acknowledged writes, because a master is replaced that did not hand
    /// over.
    pub(super) fn may_lose_writes(self) -> bool {
        matches!(self, Self::KillMaster | Self::StopMaster | Self::PartitionMaster)
    }

    /// Whether it needs a private network namespace.
    pub(super) fn needs_partitions(self) -> bool {
        matches!(self, Self::PartitionMaster | Self::PartitionSentinel)
    }
}

/// One step: a calm pause, then a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) pause: Duration,
    pub(super) fault: Fault,
    /// Selects the affected member, modulo their number.
    pub(super) which: usize,
    /// How long a process stays stopped or dead, where the fault itself does not end.
    pub(super) hold: Duration,
}

/// The steps that fill about `length`.
pub(super) fn schedule(seed: u64, length: Duration, partitions: bool) -> Vec<Step> {
    let mut rng = Rng::new(seed);
    let possible: Vec<_> =
        FAULTS.iter().filter(|(fault, ..)| partitions || !fault.needs_partitions()).collect();
    let total = possible.iter().map(|(_, weight, _)| weight).sum();
    let (mut steps, mut filled) = (Vec::new(), Duration::ZERO);
    while filled < length {
        let mut ticket = rng.below(total);
        let chosen = possible.iter().find(|(_, weight, _)| {
            let hit = ticket < *weight;
            ticket = ticket.saturating_sub(*weight);
            hit
        });
        let Some((fault, _, costs)) = chosen else { break };
        let step = Step {
            pause: Duration::from_millis(500 + rng.below(1500)),
            fault: *fault,
            which: usize::try_from(rng.below(60)).unwrap_or(0),
            hold: Duration::from_millis(200 + rng.below(1800)),
        };
        filled += step.pause + Duration::from_millis(*costs);
        steps.push(step);
    }
    steps
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
    fn covers_every_fault_within_an_hour() {
        let seen: BTreeSet<Fault> = schedule(1, HOUR, true).iter().map(|it| it.fault).collect();
        assert_eq!(seen.len(), FAULTS.len());
    }

    #[test]
    fn leaves_out_partitions_where_impossible() {
        let steps = schedule(1, HOUR, false);
        assert!(steps.len() > 100 && steps.iter().all(|it| !it.fault.needs_partitions()));
    }
}
