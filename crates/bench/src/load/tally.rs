//! Exact percentiles of latencies: a run has thousands of values, so nothing is estimated.

use std::time::Duration;

use super::flow::Reply;

/// The usual percentiles, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Latency {
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The 99.9th percentile.
    pub p999: f64,
}

impl Latency {
    /// The percentiles of these values.
    #[must_use]
    pub fn of(replies: &[Reply]) -> Self {
        let mut all: Vec<Duration> = replies.iter().map(|reply| reply.took).collect();
        all.sort_unstable();
        let at = |thousandths: usize| {
            // The nearest-rank definition.
            let rank = (all.len() * thousandths).div_ceil(1000).max(1) - 1;
            all.get(rank).map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
        };
        Self { p50: at(500), p99: at(990), p999: at(999) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_occurring_values_as_percentiles() {
        let of = |numbers: &mut dyn Iterator<Item = u64>| {
            let due = std::time::Instant::now();
            let reply = |took| Reply { due, took: Duration::from_micros(took) };
            Latency::of(&numbers.map(reply).collect::<Vec<_>>())
        };
        let latency = of(&mut (1..=1000).rev());
        assert_eq!([latency.p50, latency.p99, latency.p999].map(f64::round), [500.0, 990.0, 999.0]);
        let latency = of(&mut [7].into_iter());
        assert_eq!((latency.p50.round(), latency.p999.round()), (7.0, 7.0));
        assert!(of(&mut [].into_iter()).p50.is_nan());
    }
}
