//! Median, smallest and largest of a few runs.
//!
//! Five runs carry no standard deviation worth the name, so none is given: the extremes are shown as they were.

/// Of several runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
    /// How many runs had the value.
    pub(super) runs: usize,
}

/// The spread of the values, if there are any. Of an even number the median is the mean of the two in the middle.
pub(super) fn spread(values: &[f64]) -> Option<Spread> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let (min, max) = (*sorted.first()?, *sorted.last()?);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = *sorted.get((sorted.len() - 1) / 2)?;
    Some(Spread { median: f64::midpoint(lower, upper), min, max, runs: sorted.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle_whatever_the_order() {
        let of = |values: &[f64]| spread(values).map(|s| (s.median, s.min, s.max, s.runs));
        assert_eq!(of(&[3.0, 1.0, 20.0]), Some((3.0, 1.0, 20.0, 3)));
        assert_eq!(of(&[4.0, 1.0, 2.0, 8.0]), Some((3.0, 1.0, 8.0, 4)));
        assert_eq!(of(&[7.0]), Some((7.0, 7.0, 7.0, 1)));
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn what_is_no_number_does_not_count() {
        assert_eq!(spread(&[f64::NAN, 2.0]).map(|s| (s.median, s.runs)), Some((2.0, 1)));
    }
}
