//! Distributions measured by the workers, as Prometheus histograms.
//!
//! The recorder of the `metrics` crate takes single values; these come already counted, a hundred fine buckets each, of
//! which few are shown: bounds four times apart where commands are fast, powers of two of microseconds, because those are
//! exact.
//!
//! Deliberately absent: quantiles in metrics. Prometheus makes them of buckets, over any time and all instances; the status
//! document has them for people.

use std::fmt::Write as _;
use std::time::Duration;

use proxy::Distribution;

/// Upper bounds in microseconds: 64 µs to 16.8 s.
const BOUNDS: [u64; 13] =
    [1 << 6, 1 << 7, 1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24];

/// One histogram in Prometheus's text format, with a series for each listener, whose labels are given as they are written. Nothing
/// without listeners.
#[must_use]
pub fn render(name: &str, help: &str, listeners: &[(String, &Distribution)]) -> String {
    let mut out = String::new();
    if listeners.is_empty() {
        return out;
    }
    // Writing to a string cannot fail.
    let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} histogram\n");
    for (of, distribution) in listeners {
        for micros in BOUNDS {
            let bound = Duration::from_micros(micros);
            let (le, below) = (bound.as_secs_f64(), distribution.below(bound));
            let _ = writeln!(out, "{name}_bucket{{{of},le=\"{le}\"}} {below}");
        }
        let (count, sum) = (distribution.count(), distribution.sum().as_secs_f64());
        let _ = writeln!(out, "{name}_bucket{{{of},le=\"+Inf\"}} {count}");
        let _ = write!(out, "{name}_sum{{{of}}} {sum}\n{name}_count{{{of}}} {count}\n\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_has_cumulative_buckets_a_sum_and_a_count() {
        let text = render("x_seconds", "Time.", &[("service=\"m\"".to_owned(), &Distribution::default())]);
        assert!(text.starts_with("# HELP x_seconds Time.\n# TYPE x_seconds histogram\n"), "{text}");
        let lines: Vec<&str> = text.lines().filter(|line| line.contains("_bucket{")).collect();
        assert_eq!(lines.len(), BOUNDS.len() + 1);
        assert_eq!(lines[0], "x_seconds_bucket{service=\"m\",le=\"0.000064\"} 0");
        assert_eq!(lines[BOUNDS.len()], "x_seconds_bucket{service=\"m\",le=\"+Inf\"} 0");
        assert!(text.contains("x_seconds_sum{service=\"m\"} 0\nx_seconds_count{service=\"m\"} 0\n"), "{text}");
        assert_eq!(render("x_seconds", "Time.", &[]), "");
    }
}
