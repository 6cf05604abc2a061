//! Decides from samples of statistics how many writes the old master executed after it had been
//! superseded.
//!
//! Each sample holds the role and the count of SETs at one instant. A server also counts writes of
//! its own master, so only samples with the role `master` matter. A restarted server counts from
//! zero.

use std::time::Instant;

/// The old master's statistics at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) at: Instant,
    /// Whether its role was master.
    pub(super) master: bool,
    /// SETs it has executed since its start.
    pub(super) sets: u64,
}

/// SETs executed as a master after `moment`, from samples in order of time. The count starts at the
/// last sample before the moment, so it is an upper bound. `None` without such a sample.
pub(super) fn writes_after(samples: &[Sample], moment: Instant) -> Option<u64> {
    let masters = samples.iter().filter(|sample| sample.master);
    let before = masters.clone().rev().find(|sample| sample.at <= moment)?;
    let mut last = before.sets;
    let mut sum = 0;
    for sample in masters.filter(|sample| sample.at > moment) {
        sum += if sample.sets >= last { sample.sets - last } else { sample.sets };
        last = sample.sets;
    }
    Some(sum)
}

/// SETs that it executed as a master without an acknowledgement, if `acknowledged` were before it
/// stopped answering. For a server that could not be queried for a while: between two samples that
/// far apart, only this shows late writes.
pub(super) fn unacknowledged(samples: &[Sample], acknowledged: u64) -> Option<u64> {
    let last = samples.iter().rev().find(|sample| sample.master)?;
    Some(last.sets.saturating_sub(acknowledged))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn samples(start: Instant, rows: &[(u64, bool, u64)]) -> Vec<Sample> {
        rows.iter()
            .map(|(ms, master, sets)| Sample {
                at: start + Duration::from_millis(*ms),
                master: *master,
                sets: *sets,
            })
            .collect()
    }

    #[test]
    fn counts_only_writes_as_master() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let rows = samples(
            start,
            &[(0, true, 100), (5, true, 110), (10, true, 113), (15, false, 500), (20, false, 900)],
        );
        assert_eq!(writes_after(&rows, at(7)), Some(3));
        assert_eq!(writes_after(&rows, at(12)), Some(0));
        assert_eq!(writes_after(&rows, at(2)), Some(13));
    }

    #[test]
    fn restarts_the_count_with_the_server() {
        let start = Instant::now();
        let rows = samples(
            start,
            &[(0, true, 100), (50, true, 0), (60, true, 4), (70, true, 6), (80, false, 80)],
        );
        assert_eq!(writes_after(&rows, start + Duration::from_millis(20)), Some(6));
    }

    #[test]
    fn counts_unacknowledged_writes_until_demotion() {
        let rows = samples(Instant::now(), &[(0, true, 90), (900, true, 112), (905, false, 500)]);
        assert_eq!(unacknowledged(&rows, 100), Some(12));
        assert_eq!(unacknowledged(&rows, 112), Some(0));
        assert_eq!(unacknowledged(&[], 0), None);
    }

    #[test]
    fn returns_none_without_earlier_sample() {
        let start = Instant::now();
        assert_eq!(writes_after(&samples(start, &[(9, true, 1)]), start), None);
    }
}
