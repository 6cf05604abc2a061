//! Results of runs: totals, tables, and one violation in detail.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::plan::FaultKind;
use crate::wire::{MS, Micros, SECOND};

/// The invariants that the oracle checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
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

impl Rule {
    /// All rules.
    pub const ALL: [Self; 17] = [
        Self::Safety,
        Self::LateMajority,
        Self::OpenedUnheard,
        Self::ReleasedUnheard,
        Self::WroteAfterSleep,
        Self::HoldOpened,
        Self::BlindWrites,
        Self::AckAfterEvidence,
        Self::AckAfterChild,
        Self::HealthyTaken,
        Self::EndlessHold,
        Self::ReaderOnMaster,
        Self::Liveness,
        Self::PlannedLoss,
        Self::WrongOrder,
        Self::RequestOutside,
        Self::PasswordOutside,
    ];

    /// Parses a rule's name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| format!("{it:?}") == name)
    }
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

/// Totals of many runs.
#[derive(Debug, Default)]
pub struct Totals {
    seeds: u64,
    simulated: Micros,
    events: u64,
    failovers: u64,
    commits: u64,
    holds: u64,
    acknowledged: u64,
    lost: u64,
    unconverged: u64,
    kinds: BTreeMap<FaultKind, u64>,
    pairs: BTreeMap<(FaultKind, FaultKind), u64>,
    rules: BTreeMap<Rule, Broken>,
}

/// How often a rule was broken, by some of which seeds, and by which faults.
type Broken = (u64, Vec<u64>, BTreeMap<Vec<FaultKind>, u64>);

impl Totals {
    /// Adds the result of a seed.
    pub fn add(&mut self, seed: u64, run: &RunResult) {
        self.seeds += 1;
        self.simulated += run.simulated;
        self.events += run.events;
        self.failovers += run.failovers;
        self.commits += run.commits;
        self.holds += run.holds;
        self.acknowledged += run.acknowledged;
        self.lost += run.lost;
        self.unconverged += u64::from(!run.converged && run.violation.is_none());
        for (at, kind) in run.kinds.iter().enumerate() {
            *self.kinds.entry(*kind).or_default() += 1;
            for other in &run.kinds[at + 1..] {
                *self.pairs.entry((*kind, *other)).or_default() += 1;
            }
        }
        if let Some(violation) = &run.violation {
            let (times, seeds, kinds) = self.rules.entry(violation.rule).or_default();
            *times += 1;
            if seeds.len() < 12 {
                seeds.push(seed);
            }
            *kinds.entry(run.kinds.clone()).or_default() += 1;
        }
    }

    /// How many seeds failed.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.rules.values().map(|(times, ..)| times).sum()
    }

    /// How many seeds broke this rule.
    #[must_use]
    pub fn broke(&self, rule: Rule) -> u64 {
        self.rules.get(&rule).map_or(0, |(times, ..)| *times)
    }

    /// The totals as text.
    #[must_use]
    pub fn text(&self, pairs: bool) -> String {
        let mut out = String::new();
        let (seconds, tenths) = (self.simulated / SECOND, self.simulated / (100 * MS) % 10);
        let hours = seconds as f64 / 3600.0;
        let _ = writeln!(out, "seeds          {:>12}", self.seeds);
        let _ =
            writeln!(out, "simulated      {:>12} h  ({seconds}.{tenths} s)", format!("{hours:.1}"));
        for (name, count) in [
            ("events", self.events),
            ("failovers", self.failovers),
            ("commits", self.commits),
            ("holds", self.holds),
            ("acknowledged", self.acknowledged),
            ("of these lost", self.lost),
            ("never agreed", self.unconverged),
            ("failed", self.failed()),
        ] {
            let _ = writeln!(out, "{name:<14} {count:>12}");
        }
        let _ = writeln!(out, "\nfaults by kind");
        for (kind, count) in &self.kinds {
            let _ = writeln!(out, "  {:<24} {count:>8}", format!("{kind:?}"));
        }
        if pairs {
            self.write_pairs(&mut out);
        } else {
            let all = FaultKind::ALL.len() * (FaultKind::ALL.len() + 1) / 2;
            let _ = writeln!(
                out,
                "\n{} of {all} pairs of kinds occurred (--pairs lists them)",
                self.pairs.len()
            );
        }
        for (rule, (times, seeds, kinds)) in &self.rules {
            let _ = writeln!(out, "\n{rule:?}: {times} seeds, e.g. {seeds:?}");
            let mut kinds: Vec<_> = kinds.iter().collect();
            kinds.sort_by_key(|(kinds, times)| (std::cmp::Reverse(**times), kinds.len()));
            for (kinds, times) in kinds.into_iter().take(8) {
                let _ = writeln!(out, "  {times:>5}  {kinds:?}");
            }
        }
        out
    }

    /// One row and one column per kind: how often the two occurred in one run.
    fn write_pairs(&self, out: &mut String) {
        let _ = writeln!(out, "\npairs of faults in one run (columns in the order of the rows)");
        for one in FaultKind::ALL {
            let _ = write!(out, "  {:<24}", format!("{one:?}"));
            for two in FaultKind::ALL {
                let count = self.pairs.get(&(one.min(two), one.max(two))).copied().unwrap_or(0);
                let _ = write!(out, "{count:>6}");
            }
            let _ = writeln!(out);
        }
    }
}
