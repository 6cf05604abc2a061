//! How long the phases of failovers took, as histograms.
//!
//! Discovery remembers the last failovers of each service; each of them is put in here once, at the
//! first scrape that finds it, and its first session when there was one.

use std::time::Duration;

use sentinel::{DiscoverySnapshot, FailoverRecord};

use super::exposition::{Exposition, Pair};

/// Upper bounds, in seconds, of what a machine does: finest around the promise of 2 ms.
const FAST: &[f64] = &[
    0.000_1, 0.000_25, 0.000_5, 0.000_75, 0.001, 0.001_25, 0.001_5, 0.001_75, 0.002, 0.002_5,
    0.003, 0.004, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 10.0,
];
/// Upper bounds, in seconds, of what sentinels and people wait for.
const SLOW: &[f64] = &[0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0];

/// One phase: its metric, its bounds, and how long it took in a failover.
struct Phase {
    name: &'static str,
    bounds: &'static [f64],
    of: fn(&FailoverRecord) -> Option<Duration>,
}

/// Those that are over at the commit.
const PHASES: [Phase; 4] = [
    Phase {
        name: "pointsman_failover_suspicion_seconds",
        bounds: SLOW,
        of: |it| it.timeline.duration(),
    },
    Phase { name: "pointsman_failover_hold_seconds", bounds: SLOW, of: |it| it.timeline.hold() },
    Phase {
        name: "pointsman_failover_switch_seconds",
        bounds: FAST,
        of: FailoverRecord::switch_time,
    },
    Phase {
        name: "pointsman_failover_verification_seconds",
        bounds: FAST,
        of: FailoverRecord::verification,
    },
];
/// The one that comes after it.
const AFTERWARDS: Phase = Phase {
    name: "pointsman_failover_first_session_seconds",
    bounds: SLOW,
    of: FailoverRecord::first_session,
};

/// One histogram.
#[derive(Debug, Clone, Default)]
struct Buckets {
    /// How many values were in each bucket; empty before the first one.
    counts: Vec<u64>,
    count: u64,
    sum: Duration,
}

impl Buckets {
    fn observe(&mut self, bounds: &[f64], took: Duration) {
        self.counts.resize(bounds.len(), 0);
        let at = bounds.iter().position(|bound| took.as_secs_f64() <= *bound);
        if let Some(count) = at.and_then(|at| self.counts.get_mut(at)) {
            *count += 1;
        }
        self.count += 1;
        self.sum = self.sum.saturating_add(took);
    }

    fn add(&mut self, other: &Self) {
        self.counts.resize(self.counts.len().max(other.counts.len()), 0);
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, count)| *sum += count);
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
    }

    fn put(&self, page: &mut Exposition, phase: &Phase, labels: &[Pair<'_>]) {
        if self.count > 0 {
            let below = self.counts.iter().scan(0, |sum, count| {
                *sum += count;
                Some(*sum)
            });
            page.histogram(
                phase.name,
                labels,
                phase.bounds.iter().copied().zip(below),
                (self.count, self.sum),
            );
        }
    }
}

/// What is known of one service's failovers.
#[derive(Debug, Default)]
pub(super) struct Failovers {
    /// Everything up to this generation is in the histograms.
    commit: u64,
    /// The same for the first session.
    first_session: u64,
    phases: [Buckets; PHASES.len()],
    afterwards: Buckets,
    /// Bytes of the old masters' histories, as far as estimated.
    lost: u64,
}

impl Failovers {
    /// Takes in what is new.
    pub(super) fn learn(&mut self, seen: &DiscoverySnapshot) {
        let (commit, first_session) = (self.commit, self.first_session);
        for failover in seen.failovers.iter().filter(|it| it.generation > commit) {
            for (phase, buckets) in PHASES.iter().zip(&mut self.phases) {
                (phase.of)(failover)
                    .into_iter()
                    .for_each(|took| buckets.observe(phase.bounds, took));
            }
            self.lost = self.lost.saturating_add(failover.lost_bytes.unwrap_or(0));
            self.commit = failover.generation;
        }
        // A failover gets its first session before the next one comes, or never.
        for failover in seen.failovers.iter().filter(|it| it.generation > first_session) {
            if let Some(took) = (AFTERWARDS.of)(failover) {
                self.afterwards.observe(AFTERWARDS.bounds, took);
                self.first_session = failover.generation;
            }
        }
    }

    /// Together with another service's.
    pub(super) fn add(&mut self, other: &Self) {
        self.phases.iter_mut().zip(&other.phases).for_each(|(sum, buckets)| sum.add(buckets));
        self.afterwards.add(&other.afterwards);
        self.lost = self.lost.saturating_add(other.lost);
        self.commit = self.commit.max(other.commit);
    }

    pub(super) fn put(&self, page: &mut Exposition, labels: &[Pair<'_>]) {
        for (phase, buckets) in
            PHASES.iter().zip(&self.phases).chain([(&AFTERWARDS, &self.afterwards)])
        {
            buckets.put(page, phase, labels);
        }
        if self.commit > 0 {
            page.count("pointsman_failover_lost_bytes_total", labels, self.lost);
        }
    }
}

#[cfg(test)]
mod tests {
    use admin_http::Format;

    use super::*;

    #[test]
    fn buckets_are_cumulative_and_services_add_up() {
        let ms = Duration::from_millis;
        let (mut one, mut other) = (Failovers::default(), Failovers::default());
        let hold = &PHASES[1];
        one.phases[1].observe(hold.bounds, ms(10));
        one.phases[1].observe(hold.bounds, ms(90));
        other.phases[1].observe(hold.bounds, ms(40_000));
        other.add(&one);
        let mut page = Exposition::new(false);
        other.put(&mut page, &[]);
        let text = page.render(Format::Prometheus);
        for part in [
            "_bucket{le=\"0.01\"} 1\n",
            "_bucket{le=\"0.1\"} 2\n",
            "{le=\"30\"} 2\n",
            "{le=\"+Inf\"} 3\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(text.contains("_sum 40.1\n") && text.contains("_count 3\n"), "{text}");
        assert!(!text.contains("first_session"), "what was never observed has no series: {text}");
    }
}
