//! Pauses between attempts: doubling, bounded, with full jitter, so that a fleet of proxies that
//! lost the same sentinel does not come back to it in step.

use std::time::Duration;

/// No configuration makes a loop spin.
const SHORTEST: Duration = Duration::from_millis(1);

/// The next pause grows up to a bound until [`Backoff::reset`].
#[derive(Debug)]
pub(crate) struct Backoff {
    least: Duration,
    most: Duration,
    bound: Duration,
}

impl Backoff {
    pub(crate) fn new(least: Duration, most: Duration) -> Self {
        Self { least, most: most.max(SHORTEST), bound: least.max(SHORTEST) }
    }

    /// A random pause between `least / 2` and the present bound, which then doubles.
    pub(crate) fn pause(&mut self) -> Duration {
        let bound = self.bound;
        self.bound = (bound * 2).min(self.most);
        (self.least / 2).max(SHORTEST).max(bound.mul_f64(fastrand::f64()))
    }

    pub(crate) fn reset(&mut self) {
        self.bound = self.least.max(SHORTEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_bound_and_never_vanish() {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
        let pauses: Vec<Duration> = (0..200).map(|_| backoff.pause()).collect();
        assert!(
            pauses.iter().all(
                |pause| *pause >= Duration::from_millis(25) && *pause <= Duration::from_secs(1)
            )
        );
        assert!(pauses.iter().any(|pause| *pause > Duration::from_millis(500)));
        backoff.reset();
        assert!(backoff.pause() <= Duration::from_millis(50));
    }
}
