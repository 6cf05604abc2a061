//! The schedule of a run: a pure function of seed and length.
//!
//! A seed gives equal steps on every machine, with one version of `fastrand`. Times are pauses
//! between steps, not moments: each step also waits until the cluster is complete again, however
//! long that takes. In half of the steps a second fault begins while the first one is in force, and
//! in some of these a third.

use std::iter::repeat_n;
use std::time::Duration;

use fastrand::Rng;

/// One disturbance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    Switchover,
    PlannedFailover,
    KillMaster,
    StopMaster,
    CutMaster,
    HideMaster,
    MuteMaster,
    KillReplica,
    StopReplica,
    CutReplica,
    KillSentinel,
    LoseSentinelFiles,
    StopSentinel,
    CutSentinel,
    Takeover,
    Successor,
    KillProxy,
    StopProxy,
    BlindProxy,
    CutProxy,
    Reload,
    SlowNetwork,
    SentinelClock,
    ServerClock,
    ProxyClock,
}

/// The part of the deployment that a fault is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Master,
    Replica,
    Sentinel,
    Proxy,
    Network,
    Clock,
}

/// How often a fault is chosen, and its times in milliseconds.
#[derive(Debug)]
struct Kind {
    fault: Fault,
    name: &'static str,
    part: Part,
    weight: usize,
    /// A second fault begins within this time, while this one is in force.
    in_force: u64,
}

const fn kind(fault: Fault, name: &'static str, part: Part, weight: usize, in_force: u64) -> Kind {
    Kind { fault, name, part, weight, in_force }
}

/// Every fault, in the order of [`Fault`].
const KINDS: [Kind; 25] = [
    kind(Fault::Switchover, "pointsman switchover", Part::Master, 5, 1_000),
    kind(Fault::PlannedFailover, "SENTINEL FAILOVER", Part::Master, 5, 1_000),
    kind(Fault::KillMaster, "SIGKILL of the master", Part::Master, 3, 4_000),
    kind(Fault::StopMaster, "SIGSTOP of the master", Part::Master, 3, 4_000),
    kind(Fault::CutMaster, "partition of the master", Part::Master, 2, 4_000),
    kind(Fault::HideMaster, "partition of the master from all but proxies", Part::Master, 3, 4_000),
    kind(
        Fault::MuteMaster,
        "one-way partition of the master, not to proxies",
        Part::Master,
        2,
        4_000,
    ),
    kind(Fault::KillReplica, "SIGKILL of a replica", Part::Replica, 2, 1_000),
    kind(Fault::StopReplica, "SIGSTOP of a replica", Part::Replica, 2, 1_000),
    kind(Fault::CutReplica, "partition of a replica from the master", Part::Replica, 2, 1_000),
    kind(Fault::KillSentinel, "restart of a sentinel", Part::Sentinel, 2, 1_000),
    kind(Fault::LoseSentinelFiles, "restart of a sentinel without files", Part::Sentinel, 2, 1_500),
    kind(Fault::StopSentinel, "SIGSTOP of a sentinel", Part::Sentinel, 2, 1_000),
    kind(Fault::CutSentinel, "partition of a sentinel from the proxies", Part::Sentinel, 2, 1_000),
    kind(Fault::Takeover, "takeover by a new proxy", Part::Proxy, 3, 300),
    kind(Fault::Successor, "SIGTERM of a proxy with a successor", Part::Proxy, 2, 300),
    kind(Fault::KillProxy, "SIGKILL of a proxy", Part::Proxy, 1, 200),
    kind(Fault::StopProxy, "SIGSTOP of a proxy", Part::Proxy, 3, 1_000),
    kind(Fault::BlindProxy, "one-way partition of a proxy from sentinels", Part::Proxy, 3, 1_000),
    kind(Fault::CutProxy, "one-way partition of a proxy from everything", Part::Proxy, 2, 1_000),
    kind(Fault::Reload, "reload of a proxy", Part::Proxy, 2, 100),
    kind(Fault::SlowNetwork, "slow links", Part::Network, 2, 1_000),
    kind(Fault::SentinelClock, "jump of a sentinel's clock", Part::Sentinel, 2, 1_000),
    kind(Fault::ServerClock, "jump of a server's clock", Part::Clock, 2, 1_000),
    kind(Fault::ProxyClock, "jump of a proxy's clock", Part::Proxy, 1, 1_000),
];

impl Fault {
    fn kind(self) -> &'static Kind {
        // The table has every fault, which is tested.
        KINDS.iter().find(|it| it.fault == self).unwrap_or(&KINDS[0])
    }

    pub(super) fn name(self) -> &'static str {
        self.kind().name
    }

    pub(super) fn part(self) -> Part {
        self.kind().part
    }

    /// Whether a master is replaced on request.
    pub(super) fn is_planned(self) -> bool {
        matches!(self, Self::Switchover | Self::PlannedFailover)
    }

    /// Whether clients may notice it by an error or the end of a connection. With durability they
    /// notice the lack of a replica.
    pub(super) fn disturbs(self, durable: bool) -> bool {
        match self.part() {
            // Servers measure the time for which a client blocks with the wall clock.
            Part::Master | Part::Network | Part::Clock => true,
            Part::Replica => durable,
            Part::Sentinel => false,
            Part::Proxy => !matches!(
                self,
                Self::Reload | Self::BlindProxy | Self::StopProxy | Self::ProxyClock
            ),
        }
    }

    /// Whether a planned failover may fail because of this fault.
    pub(super) fn hinders(self) -> bool {
        self != Self::Reload
    }

    /// Whether a proxy may hear of a change of the master late.
    pub(super) fn delays_news(self) -> bool {
        match self.part() {
            Part::Sentinel | Part::Network => true,
            Part::Proxy => matches!(self, Self::StopProxy | Self::BlindProxy | Self::CutProxy),
            Part::Master | Part::Replica | Part::Clock => false,
        }
    }

    /// Whether `other` may begin while this fault is in force. Faults of one part exclude each
    /// other, because the second would end the first, except the loss of the master in a planned
    /// failover.
    fn admits(self, other: Self) -> bool {
        let is_loss = other.part() == Part::Master && !other.is_planned();
        self.part() != other.part() || (self.is_planned() && is_loss)
    }
}

/// One fault of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Act {
    pub(super) fault: Fault,
    /// How long after the beginning of the step it begins.
    pub(super) after: Duration,
    /// Selects the affected member, modulo their number.
    pub(super) which: usize,
    /// How long it stays in force, where the fault itself does not end.
    pub(super) hold: Duration,
}

impl Act {
    /// The seconds by which a clock jumps, and back at the end. Sentinel does nothing for half a
    /// minute after a jump of two seconds; replication times out after one of a minute.
    pub(super) fn jump(&self) -> i64 {
        const JUMPS: [i64; 4] = [-90, -5, 5, 90];
        JUMPS.get(self.which / 15 % JUMPS.len()).copied().unwrap_or(5)
    }
}

/// A calm pause, then up to three faults at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) pause: Duration,
    pub(super) acts: Vec<Act>,
}

impl Step {
    pub(super) fn line(&self) -> String {
        let one = |it: &Act| {
            format!(
                "{} (+{} ms, member {}, {} ms)",
                it.fault.name(),
                it.after.as_millis(),
                it.which,
                it.hold.as_millis()
            )
        };
        self.acts.iter().map(one).collect::<Vec<_>>().join(", ")
    }
}

/// The first steps of a seed.
pub(super) fn schedule(seed: u64, count: usize) -> Vec<Step> {
    let mut rng = Rng::with_seed(seed);
    (0..count).map(|_| step(&mut rng)).collect()
}

fn step(rng: &mut Rng) -> Step {
    let pause = Duration::from_millis(rng.u64(300..1300));
    // Half of the steps have one fault, a third two, a sixth three.
    let faults = rng.choice([1, 1, 1, 2, 2, 3]).unwrap_or(1);
    let mut acts: Vec<Act> = Vec::new();
    while acts.len() < faults {
        let admitted = |it: &&Kind| acts.iter().all(|act| act.fault.admits(it.fault));
        let weighted = |it: &'static Kind| repeat_n(it, it.weight);
        let all: Vec<&Kind> = KINDS.iter().filter(admitted).flat_map(weighted).collect();
        let Some(kind) = rng.choice(all) else { break };
        let in_force = acts.first().map_or(0, |act| act.fault.kind().in_force);
        acts.push(Act {
            fault: kind.fault,
            after: Duration::from_millis(rng.u64(..=in_force)),
            which: rng.usize(..60),
            hold: Duration::from_millis(rng.u64(200..2000)),
        });
    }
    Step { pause, acts }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn repeats_and_extends_schedule_of_a_seed() {
        let long = schedule(7, 100);
        assert_eq!(long[..10], schedule(7, 10));
        assert_ne!(long, schedule(8, 100));
        // A reported seed is worthless if the generator changes unnoticed.
        assert_eq!(Rng::with_seed(1).u64(..), 12_120_239_713_417_281_201);
    }

    #[test]
    fn covers_every_fault_alone_and_with_others() {
        let steps = schedule(1, 2_000);
        for kind in &KINDS {
            assert_eq!(kind.fault.kind().name, kind.name);
            let with = |count: usize| {
                let has = |it: &&Step| it.acts.iter().any(|act| act.fault == kind.fault);
                steps.iter().filter(has).any(|it| it.acts.len() == count)
            };
            assert!(with(1) && with(2) && with(3), "{}", kind.name);
        }
        let names: BTreeSet<&str> = KINDS.iter().map(|it| it.name).collect();
        assert_eq!(names.len(), KINDS.len());
    }

    #[test]
    fn excludes_faults_that_end_each_other() {
        for step in schedule(2, 2_000) {
            let masters = step.acts.iter().filter(|it| it.fault.part() == Part::Master).count();
            let planned = step.acts.iter().filter(|it| it.fault.is_planned()).count();
            assert!(masters < 2 || (masters == 2 && planned == 1), "{}", step.line());
        }
    }
}
