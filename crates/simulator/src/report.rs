//! The rules, and the results of runs.

use std::collections::BTreeMap;
use std::fmt;

use clap::ValueEnum;

use crate::plan::FaultKind;
use crate::wire::{Micros, SECOND};

/// The invariants that the oracle checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum Rule {
    /// S1 to S6 of the machine: one target, rising epochs, verified, one vote each.
    Safety,
    /// No write is acknowledged by a superseded master once a majority with the new one was
    /// reachable for a while.
    LateMajority,
    /// After blindness the gate does not open to a superseded master, by a commit or by a release,
    /// without a fresh view of it.
    OpenedUnheard,
    /// A hold does not end in favour of a superseded master without a fresh view of it.
    ReleasedUnheard,
    /// After it was stopped, or its host suspended, a proxy sends nothing before it has received a
    /// view of a sentinel.
    WroteAfterSleep,
    /// A gate that is closed because of a minority does not open to a superseded master without a
    /// majority.
    HoldOpened,
    /// With `hold` and `cut`, writes stop when no majority is reachable.
    BlindWrites,
    /// After evidence of a promotion a reply of the old master is not passed on as an
    /// acknowledgement.
    AckAfterEvidence,
    /// After a child of a master, promoted from its history, told the proxy that it is a master,
    /// the parent acknowledges nothing while a reachable sentinel names or promotes the child.
    AckAfterChild,
    /// A healthy master is not taken out of service.
    HealthyTaken,
    /// Every hold and every verification ends.
    EndlessHold,
    /// Readers are not sent to a master.
    ReaderOnMaster,
    /// Writes succeed after everything has healed.
    Liveness,
    /// A planned failover without any fault loses nothing.
    PlannedLoss,
    /// An order to follow a node is refused while a majority of the sentinels is reachable, and
    /// for a node that is no master.
    WrongOrder,
    /// While most of the configured sentinels that answer are honest, no request reaches a process
    /// outside the cluster.
    RequestOutside,
    /// Nor does a password, unless most of them list the process, or it is the one for sentinels
    /// and one of them lies.
    PasswordOutside,
}

/// A violated invariant.
#[derive(Debug, Clone)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// The time, in virtual microseconds.
    pub at: Micros,
    /// The process.
    pub who: String,
    /// The observation.
    pub text: String,
}

/// The result of one seed.
#[derive(Debug, Clone)]
pub struct RunResult {
    /// The faults, sorted.
    pub kinds: Vec<FaultKind>,
    /// Virtual microseconds.
    pub simulated: Micros,
    /// Events handled.
    pub events: u64,
    /// Failovers completed by a leader.
    pub failovers: u64,
    /// Commits of all proxies.
    pub commits: u64,
    /// Holds of all proxies.
    pub holds: u64,
    /// Writes acknowledged to clients.
    pub acknowledged: u64,
    /// Acknowledged writes that the last master does not have.
    pub lost: u64,
    /// All sentinels agreed in the end, and all proxies served.
    pub converged: bool,
    /// The first violation.
    pub violation: Option<Violation>,
}

/// The runs of many seeds.
#[derive(Debug, Default)]
pub struct Totals {
    runs: Vec<RunResult>,
}

impl Totals {
    /// Adds the result of a seed.
    pub fn add(&mut self, run: RunResult) {
        self.runs.push(run);
    }

    /// How many seeds failed.
    #[must_use]
    pub fn failed(&self) -> usize {
        self.runs.iter().filter(|run| run.violation.is_some()).count()
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = |of: fn(&RunResult) -> u64| self.runs.iter().map(of).sum::<u64>();
        for (name, count) in [
            ("seeds", self.runs.len() as u64),
            ("simulated (s)", sum(|run| run.simulated) / SECOND),
            ("events", sum(|run| run.events)),
            ("failovers", sum(|run| run.failovers)),
            ("commits", sum(|run| run.commits)),
            ("holds", sum(|run| run.holds)),
            ("acknowledged", sum(|run| run.acknowledged)),
            ("of these lost", sum(|run| run.lost)),
            ("never agreed", sum(|run| (!run.converged && run.violation.is_none()).into())),
            ("failed", self.failed() as u64),
        ] {
            writeln!(f, "{name:<14} {count:>12}")?;
        }
        let mut kinds = BTreeMap::<FaultKind, u64>::new();
        for kind in self.runs.iter().flat_map(|run| &run.kinds) {
            *kinds.entry(*kind).or_default() += 1;
        }
        writeln!(f, "\nfaults by kind")?;
        for (kind, count) in kinds {
            writeln!(f, "  {:<24} {count:>8}", format!("{kind:?}"))?;
        }
        Ok(())
    }
}
