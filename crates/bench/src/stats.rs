//! Median, minimum and maximum of a few runs, and numbers for people.
//!
//! Five runs are too few for a standard deviation, so the extremes are shown instead.

/// The median and the extremes of several runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
    /// Number of runs with the value.
    pub(super) runs: usize,
}

/// The spread of the values, if there are any. The median of an even number of values is the mean
/// of the middle two.
pub(super) fn spread(values: &[f64]) -> Option<Spread> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let (min, max) = (*sorted.first()?, *sorted.last()?);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = *sorted.get((sorted.len() - 1) / 2)?;
    Some(Spread { median: f64::midpoint(lower, upper), min, max, runs: sorted.len() })
}

/// A median and where that of very many runs lies, with a probability of 95 %.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Likely {
    pub(super) median: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

/// The median of the values, if there are any, and its confidence interval by order statistics:
/// about 0.98 times the root of their number above and below the middle, whatever their
/// distribution.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rank is far below 2^53 and not negative"
)]
pub(super) fn likely_median(values: &[f64]) -> Option<Likely> {
    let median = spread(values)?.median;
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    let below = ((count as f64 - 1.96 * (count as f64).sqrt()) / 2.0).max(0.0) as usize;
    let low = *sorted.get(below)?;
    let high = *sorted.get(count.checked_sub(below + 1)?)?;
    Some(Likely { median, low, high })
}

/// A count to calculate with.
#[allow(clippy::cast_precision_loss, reason = "counts of a run are far below 2^53")]
pub(super) fn number(count: u64) -> f64 {
    count as f64
}

/// A value for the raw data.
pub(super) fn rounded(value: f64, digits: i32) -> f64 {
    let factor = 10_f64.powi(digits);
    (value * factor).round() / factor
}

/// A number with commas between thousands.
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let parts = digits.as_bytes().rchunks(3).rev();
    parts.map(|part| String::from_utf8_lossy(part).into_owned()).collect::<Vec<_>>().join(",")
}

/// A number for people: thousands are grouped, decimals are shown only below ten.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "figures are far below 2^53 and their size is not negative"
)]
pub(super) fn short(value: f64) -> String {
    let size = value.abs();
    let is_broken = size < 10.0 && (size - size.round()).abs() > 0.04;
    let text = if is_broken || !size.is_finite() {
        format!("{size:.1}")
    } else {
        grouped(size.round() as u64)
    };
    let sign = if value < 0.0 && text != "0" { "-" } else { "" };
    format!("{sign}{text}")
}

/// Like [`short`], with three digits for smaller numbers.
pub(super) fn figure(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => short(value),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_digits_of_numbers() {
        let cases = [
            (0.0, "0"),
            (7008.0, "7,008"),
            (1_234_567.4, "1,234,567"),
            (3.26, "3.3"),
            (12.6, "13"),
            (999.6, "1,000"),
        ];
        for (value, text) in cases {
            assert_eq!(short(value), text);
        }
        assert_eq!([short(-1500.0), short(-0.3), short(-0.01)], ["-1,500", "-0.3", "0"]);
        assert_eq!(short(f64::INFINITY), "inf");
    }

    #[test]
    fn rounds_figures_to_three_digits() {
        let cases = [
            (0.8637, "0.864"),
            (1.184, "1.18"),
            (10.56, "10.6"),
            (538.2, "538"),
            (98_123.4, "98,123"),
        ];
        for (value, text) in cases {
            assert_eq!(figure(value), text);
        }
    }

    #[test]
    fn finds_median_in_any_order() {
        let of = |values: &[f64]| spread(values).map(|s| (s.median, s.min, s.max, s.runs));
        assert_eq!(of(&[3.0, 1.0, 20.0]), Some((3.0, 1.0, 20.0, 3)));
        assert_eq!(of(&[4.0, 1.0, 2.0, 8.0]), Some((3.0, 1.0, 8.0, 4)));
        assert_eq!(of(&[7.0]), Some((7.0, 7.0, 7.0, 1)));
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn bounds_a_median_by_ranks() {
        let values: Vec<f64> = (1..=101).rev().map(f64::from).collect();
        let likely = likely_median(&values);
        // The ranks 41 and 61 of 101 in a table of binomial confidence intervals.
        assert_eq!(likely, Some(Likely { median: 51.0, low: 41.0, high: 61.0 }));
        let few = likely_median(&[2.0, 1.0, 3.0]);
        assert_eq!(few, Some(Likely { median: 2.0, low: 1.0, high: 3.0 }));
        assert_eq!(likely_median(&[f64::NAN]), None);
    }

    #[test]
    fn ignores_values_that_are_no_numbers() {
        assert_eq!(spread(&[f64::NAN, 2.0]).map(|s| (s.median, s.runs)), Some((2.0, 1)));
    }
}
