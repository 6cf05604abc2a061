//! Histograms of the durations of failover phases.
//!
//! Discovery keeps the last failovers of each service. Each is added here once, by the first scrape
//! that finds it, and its first session once there was one.

use std::time::Duration;

use sentinel::{DiscoverySnapshot, FailoverRecord};

use super::exposition::{Exposition, LabelPair};

/// Upper bounds, in seconds, of phases that a process needs: finest around the target of 2 ms.
const PROCESS_BOUNDS: &[f64] = &[
    0.000_1, 0.000_25, 0.000_5, 0.000_75, 0.001, 0.001_25, 0.001_5, 0.001_75, 0.002, 0.002_5,
    0.003, 0.004, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 10.0,
];
/// Upper bounds, in seconds, of phases that depend on Sentinel and clients.
const CLIENT_BOUNDS: &[f64] = &[0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0];

/// One phase: its metric, its bounds, and its duration in a failover.
struct FailoverPhase {
    name: &'static str,
    bounds: &'static [f64],
    duration: fn(&FailoverRecord) -> Option<Duration>,
}

/// The phases: four that end with the commit, and the one that follows it.
const PHASES: [FailoverPhase; 5] = [
    FailoverPhase {
        name: "pointsman_failover_duration_seconds",
        bounds: CLIENT_BOUNDS,
        duration: |it| it.timeline.duration(),
    },
    FailoverPhase {
        name: "pointsman_failover_hold_seconds",
        bounds: CLIENT_BOUNDS,
        duration: |it| it.timeline.hold(),
    },
    FailoverPhase {
        name: "pointsman_failover_switch_seconds",
        bounds: PROCESS_BOUNDS,
        duration: FailoverRecord::switch_time,
    },
    FailoverPhase {
        name: "pointsman_failover_verification_seconds",
        bounds: PROCESS_BOUNDS,
        duration: FailoverRecord::verification,
    },
    FailoverPhase {
        name: "pointsman_failover_first_session_seconds",
        bounds: CLIENT_BOUNDS,
        duration: FailoverRecord::first_session,
    },
];

/// One histogram.
#[derive(Debug, Clone, Default)]
struct DurationHistogram {
    /// The failovers up to this generation are in it.
    generation: u64,
    /// Number of values in each bucket; empty before the first one.
    counts: Vec<u64>,
    count: u64,
    sum: Duration,
}

impl DurationHistogram {
    fn observe(&mut self, bounds: &[f64], duration: Duration) {
        self.counts.resize(bounds.len(), 0);
        let at = bounds.iter().position(|bound| duration.as_secs_f64() <= *bound);
        if let Some(count) = at.and_then(|at| self.counts.get_mut(at)) {
            *count += 1;
        }
        self.count += 1;
        self.sum = self.sum.saturating_add(duration);
    }

    fn add(&mut self, other: &Self) {
        self.counts.resize(self.counts.len().max(other.counts.len()), 0);
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, count)| *sum += count);
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
    }

    fn write(&self, page: &mut Exposition, phase: &FailoverPhase, labels: &[LabelPair<'_>]) {
        if self.count > 0 {
            let below = self.counts.iter().scan(0, |sum, count| {
                *sum += count;
                Some(*sum)
            });
            page.histogram(
                phase.name,
                labels,
                phase.bounds.iter().copied().zip(below),
                self.count,
                self.sum,
            );
        }
    }
}

/// The histograms of one service's failovers.
#[derive(Debug, Default)]
pub(super) struct FailoverHistograms {
    phases: [DurationHistogram; PHASES.len()],
    /// The lost bytes of every failover up to this generation are in the sum.
    generation: u64,
    /// Sum of the estimated lost bytes.
    lost: u64,
}

impl FailoverHistograms {
    /// Adds the failovers that are new.
    pub(super) fn add_new(&mut self, seen: &DiscoverySnapshot) {
        for (phase, histogram) in PHASES.iter().zip(&mut self.phases) {
            let before = histogram.generation;
            // A duration may become known after the commit: that of the first session does.
            let known = seen.failovers.iter().filter_map(|it| Some((it, (phase.duration)(it)?)));
            for (failover, duration) in known {
                if failover.generation > before {
                    histogram.observe(phase.bounds, duration);
                    histogram.generation = failover.generation;
                }
            }
        }
        let generation = self.generation;
        for failover in seen.failovers.iter().filter(|it| it.generation > generation) {
            self.lost = self.lost.saturating_add(failover.lost_bytes.unwrap_or(0));
            self.generation = failover.generation;
        }
    }

    /// Adds the histograms of another service.
    pub(super) fn add(&mut self, other: &Self) {
        self.phases.iter_mut().zip(&other.phases).for_each(|(sum, buckets)| sum.add(buckets));
        self.lost = self.lost.saturating_add(other.lost);
        self.generation = self.generation.max(other.generation);
    }

    /// Writes the histograms that have values.
    pub(super) fn write(&self, page: &mut Exposition, labels: &[LabelPair<'_>]) {
        for (phase, buckets) in PHASES.iter().zip(&self.phases) {
            buckets.write(page, phase, labels);
        }
        if self.generation > 0 {
            page.count("pointsman_failover_lost_bytes_total", labels, self.lost);
        }
    }
}

#[cfg(test)]
mod tests {
    use admin_http::Format;

    use super::*;

    #[test]
    fn adds_histograms_of_services() {
        let ms = Duration::from_millis;
        let (mut one, mut other) = (FailoverHistograms::default(), FailoverHistograms::default());
        let hold = &PHASES[1];
        one.phases[1].observe(hold.bounds, ms(10));
        one.phases[1].observe(hold.bounds, ms(90));
        other.phases[1].observe(hold.bounds, ms(40_000));
        other.add(&one);
        let mut page = Exposition::new(false);
        other.write(&mut page, &[]);
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
        assert!(!text.contains("first_session"), "phases without values have no series: {text}");
    }
}
