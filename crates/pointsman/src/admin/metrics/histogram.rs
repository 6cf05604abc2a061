//! Writes the distributions that workers measure as Prometheus histograms.
//!
//! Workers count in a hundred fine buckets, of which a few are exported: powers of two of
//! microseconds, because those are exact, in steps of four where commands are slow.
//!
//! Quantiles are not exported: Prometheus computes them from buckets, over any time range and all
//! instances; the status document contains them.

use std::time::Duration;

use proxy::Distribution;

use super::exposition::{Exposition, LabelPair};

/// Upper bounds as powers of two, in microseconds: 64 µs to 16.8 s.
const BOUNDS: [u32; 13] = [6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 20, 22, 24];

/// Writes one series of a histogram.
pub(crate) fn write(
    page: &mut Exposition,
    name: &str,
    labels: &[LabelPair<'_>],
    distribution: &Distribution,
) {
    let buckets = BOUNDS.into_iter().map(|power| {
        let bound = Duration::from_micros(1 << power);
        (bound.as_secs_f64(), distribution.below(bound))
    });
    page.histogram(name, labels, buckets, distribution.count(), distribution.sum());
}

#[cfg(test)]
mod tests {
    use admin_http::Format;

    use super::*;

    #[test]
    fn writes_all_buckets_without_values() {
        let mut page = Exposition::new(false);
        write(
            &mut page,
            "pointsman_dial_duration_seconds",
            &[("service", "m")],
            &Distribution::default(),
        );
        let text = page.render(Format::Prometheus);
        let lines: Vec<&str> = text.lines().filter(|line| line.contains("_bucket{")).collect();
        assert_eq!(lines.len(), BOUNDS.len() + 1);
        assert_eq!(
            lines[0],
            "pointsman_dial_duration_seconds_bucket{service=\"m\",le=\"0.000064\"} 0"
        );
        assert_eq!(
            lines[BOUNDS.len()],
            "pointsman_dial_duration_seconds_bucket{service=\"m\",le=\"+Inf\"} 0"
        );
    }
}
