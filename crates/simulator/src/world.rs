//! One run of a seed, from the start to the verdict.

use crate::cluster::Cluster;
use crate::net::Event;
use crate::oracle::Oracle;
use crate::plan::FaultPlan;
use crate::report::RunResult;
use crate::rng::Rng;
use crate::wire::{MS, Micros, SECOND};

/// Interval at which the oracle checks everything.
const SAMPLE: Micros = 25 * MS;

/// Limit of a run, counted from the end of its last fault.
const MAX_RUN: Micros = 200 * SECOND;

/// A simulation. See the module's header.
pub(crate) struct Simulation {
    pub(crate) cluster: Cluster,
    oracle: Oracle,
}

impl Simulation {
    pub(crate) fn new(seed: u64, traced: bool) -> Self {
        let mut rng = Rng::new(seed);
        let plan = FaultPlan::new(&mut rng);
        Self::with_plan(plan, rng, traced)
    }

    pub(crate) fn with_plan(plan: FaultPlan, rng: Rng, traced: bool) -> Self {
        let oracle = Oracle::new(&plan);
        // The source of the product's random pauses, one for each thread.
        fastrand::seed(rng.clone().next());
        let mut cluster = Cluster::new(plan, rng, traced);
        cluster.net.at(SAMPLE, Event::Sample);
        Self { cluster, oracle }
    }

    /// Runs to the end.
    pub(crate) fn run(mut self) -> (RunResult, String) {
        while self.cluster.net.now < self.cluster.healed_at + MAX_RUN
            && self.step()
            && !self.oracle.is_over()
        {}
        self.finish()
    }

    /// Runs until a time, for tests.
    #[cfg(test)]
    pub(crate) fn run_until(&mut self, until: Micros) {
        while self.cluster.net.now < until && self.step() {}
    }

    fn step(&mut self) -> bool {
        let Some(event) = self.cluster.net.next() else { return false };
        match event {
            Event::To(pid, _, input) => self.cluster.dispatch(pid, input),
            Event::Fault(at) => self.cluster.apply(self.cluster.plan.faults[at]),
            Event::Heal(at) => self.cluster.undo(at),
            Event::Sample => {
                self.oracle.sample(&mut self.cluster);
                self.cluster.net.at(self.cluster.net.now + SAMPLE, Event::Sample);
            }
        }
        for (pid, observation) in std::mem::take(&mut self.cluster.net.facts) {
            self.oracle.take(pid, observation, &mut self.cluster);
        }
        true
    }

    fn finish(mut self) -> (RunResult, String) {
        let violation = self.oracle.verdict(&self.cluster);
        let counts = || self.cluster.proxies.iter().map(|it| &it.observed.snapshot.counts);
        let run = RunResult {
            kinds: self.cluster.plan.kinds(),
            simulated: self.cluster.net.now,
            events: self.cluster.net.events,
            failovers: self.cluster.sentinels.iter().map(|it| it.switched).sum(),
            commits: counts().map(|it| it.commits).sum(),
            holds: counts().map(|it| it.holds).sum(),
            acknowledged: self.oracle.acknowledged(),
            lost: self.oracle.lost,
            converged: self.oracle.converged,
            violation,
        };
        (run, self.cluster.net.trace.text())
    }
}
