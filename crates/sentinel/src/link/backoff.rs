//! Pauses between connection attempts: doubling, bounded, with full jitter, so that the proxies of
//! a fleet that lost the same sentinel do not reconnect in step.

use std::time::Duration;

/// Keeps the retry loop from spinning, whatever is configured.
const SHORTEST: Duration = Duration::from_millis(1);

/// Doubles the upper bound of the next pause up to a maximum, until [`Backoff::reset`].
#[derive(Debug)]
pub(crate) struct Backoff {
    min_pause: Duration,
    max_pause: Duration,
    bound: Duration,
}

impl Backoff {
    pub(crate) fn new(min_pause: Duration, max_pause: Duration) -> Self {
        Self { min_pause, max_pause: max_pause.max(SHORTEST), bound: min_pause.max(SHORTEST) }
    }

    /// A random pause between `min_pause / 2` and the current bound, which then doubles.
    pub(crate) fn pause(&mut self) -> Duration {
        let bound = self.bound;
        self.bound = (bound * 2).min(self.max_pause);
        (self.min_pause / 2).max(SHORTEST).max(bound.mul_f64(fastrand::f64()))
    }

    pub(crate) fn reset(&mut self) {
        self.bound = self.min_pause.max(SHORTEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_bound_and_are_never_zero() {
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
