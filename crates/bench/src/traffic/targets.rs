//! The targets of pointsman: in each round beside the best of the baseline and the other proxies,
//! times a factor; with one server connection per client, and with shared ones.
//!
//! A ratio is taken within each round and the median of these is judged, so that a slow round
//! affects both sides. Rounds in which one side was disturbed count only if too few others are
//! left.

use clap::ValueEnum as _;

use super::record::Measure::{
    self, Bulk, Conns, CpuBulk, CpuConn, CpuRequest, Memory, P50, P99, Rps,
};
use super::record::Record;
use super::record::Row::{
    self, Connections, Fairness, First, Idle, Latency, Pipeline, Redis, Small, TlsFull, TlsGet1m,
    TlsIdle, TlsResumed, TlsSet1m, TlsSmall,
};
use crate::peers::Peer::{self, Pointsman as Own, PointsmanShared as Shared};
use crate::stats::{Spread, figure, spread};
use crate::{name_of, title_of};

/// What is measured, and the most that pointsman may take of what the best one takes. Of a rate,
/// it is the most that the best one may reach of what pointsman reaches.
type Target = (Peer, Row, Measure, f64);

const TARGETS: [Target; 24] = [
    (Own, Small, CpuRequest, 1.10),
    (Own, Pipeline, CpuRequest, 1.10),
    (Own, Latency, P50, 1.15),
    (Own, Latency, P99, 1.25),
    (Own, Fairness, P99, 1.15),
    (Own, Fairness, Bulk, 1.25),
    (Own, Idle, Memory, 9.00),
    (Own, Connections, Conns, 1.15),
    (Own, Connections, CpuConn, 1.15),
    (Own, First, P50, 1.15),
    (Own, TlsSmall, CpuRequest, 0.75),
    (Own, TlsGet1m, CpuBulk, 0.75),
    (Own, TlsSet1m, CpuBulk, 0.95),
    (Own, TlsFull, Conns, 0.50),
    (Own, TlsResumed, Conns, 0.50),
    (Own, TlsIdle, Memory, 0.25),
    (Shared, Small, CpuRequest, 0.85),
    (Shared, Redis, Rps, 0.90),
    (Shared, Pipeline, CpuRequest, 0.70),
    (Shared, Latency, P50, 1.25),
    (Shared, Idle, Memory, 4.50),
    (Shared, Connections, Conns, 1.15),
    (Shared, Connections, CpuConn, 1.15),
    (Shared, First, P50, 1.75),
];

/// With this many undisturbed rounds, disturbed ones are not used.
const ENOUGH: usize = 3;

/// A target and its result, as text.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Verdict {
    pub(super) what: String,
    /// The name of the best one.
    pub(super) best: String,
    pub(super) most: f64,
    /// The ratios of the rounds that count.
    pub(super) ratio: Spread,
}

/// Judges every target that the records can check.
pub(super) fn judge(records: &[Record]) -> Vec<Verdict> {
    let judged = TARGETS.iter().filter_map(|target| {
        let (ours, row, measure, most) = *target;
        let others = Peer::value_variants().iter().filter(|it| competes(**it, ours));
        let (best, ratio) = others
            .filter_map(|peer| Some((peer, ratios(target, *peer, records)?)))
            .max_by(|one, other| one.1.median.total_cmp(&other.1.median))?;
        let what = format!("{}: {}, {}", title_of(&ours), name_of(&row), title_of(&measure));
        Some(Verdict { what, best: title_of(best), most, ratio })
    });
    judged.collect()
}

/// Whether a peer does what pointsman does: twemproxy shares connections.
fn competes(peer: Peer, ours: Peer) -> bool {
    match peer {
        Peer::Twemproxy => ours == Shared,
        Peer::Direct | Own | Shared => false,
        Peer::PointsmanDurable | Peer::PointsmanSharedDurable => false,
        _ => true,
    }
}

/// The ratios to a peer in the rounds in which neither was disturbed, if there are enough.
fn ratios(target: &Target, peer: Peer, records: &[Record]) -> Option<Spread> {
    let (ours, row, measure, _) = *target;
    let of = |peer: Peer, round: u32| {
        let found = records.iter().find(|it| it.row == row && it.peer == peer && it.round == round);
        found.and_then(|record| Some((record.value(measure)?, record.disturbed)))
    };
    let rounds = 1..=records.iter().map(|record| record.round).max()?;
    let all: Vec<(f64, bool)> = rounds
        .filter_map(|round| {
            let (own, theirs) = (of(ours, round)?, of(peer, round)?);
            let ratio = own.0 / theirs.0;
            let is_rate = matches!(measure, Rps | Bulk | Conns);
            Some((if is_rate { ratio.recip() } else { ratio }, own.1 || theirs.1))
        })
        .collect();
    let quiet: Vec<f64> =
        all.iter().filter(|(_, disturbed)| !disturbed).map(|(ratio, _)| *ratio).collect();
    let enough = quiet.len() >= ENOUGH;
    spread(&if enough { quiet } else { all.into_iter().map(|(ratio, _)| ratio).collect() })
}

impl Verdict {
    pub(super) fn is_met(&self) -> bool {
        self.ratio.median <= self.most
    }

    /// For a terminal.
    pub(super) fn line(&self) -> String {
        let verdict = if self.is_met() { "met   " } else { "MISSED" };
        let Self { what, best, most, .. } = self;
        format!("{verdict} {what}: {} of {best} (target ≤ {most:.2})", self.measured())
    }

    /// The median, the extremes, and the number of rounds.
    pub(super) fn measured(&self) -> String {
        let Spread { median, min, max, runs } = self.ratio;
        format!("{} ({} to {} in {runs})", figure(median), figure(min), figure(max))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn cpu(peer: Peer, round: u32, value: f64) -> Record {
        let values = BTreeMap::from([(CpuRequest, value)]);
        Record { row: Small, peer, round, values, foreign: 0.0, disturbed: false }
    }

    #[track_caller]
    fn assert_judged(records: &[Record], expected: &[(f64, usize, bool)]) {
        let judged = judge(records);
        assert_eq!(judged.len(), expected.len(), "{judged:?}");
        for (verdict, (median, runs, is_met)) in judged.iter().zip(expected) {
            assert!((verdict.ratio.median - median).abs() < 1e-9, "{verdict:?}");
            assert_eq!((verdict.ratio.runs, verdict.is_met()), (*runs, *is_met), "{verdict:?}");
        }
    }

    #[test]
    fn judges_median_of_ratios_within_rounds() {
        // Both are twice as slow in the second round.
        let mut records = vec![
            cpu(Own, 1, 8.0),
            cpu(Peer::Haproxy3, 1, 10.0),
            cpu(Own, 2, 17.0),
            cpu(Peer::Haproxy3, 2, 20.0),
            cpu(Own, 3, 1.0),
        ];
        assert_judged(&records, &[(0.825, 2, true)]);
        // The best one counts.
        records.extend([cpu(Peer::Baseline, 1, 4.0), cpu(Peer::Baseline, 2, 10.0)]);
        assert_judged(&records, &[(1.85, 2, false)]);
        let line = judge(&records)[0].line();
        assert_eq!(
            line,
            "MISSED pointsman: small, CPU s / million: 1.85 (1.70 to 2.00 in 2) of the baseline (target ≤ 1.10)"
        );
    }

    #[test]
    fn compares_rates_the_other_way_round() {
        let rate = |peer, value| {
            let values = BTreeMap::from([(Conns, value)]);
            Record { row: Connections, values, ..cpu(peer, 1, 0.0) }
        };
        let records = [rate(Own, 10.0), rate(Peer::Haproxy3, 8.0), rate(Peer::Nginx, 11.0)];
        assert_judged(&records, &[(1.1, 1, true)]);
    }

    #[test]
    fn uses_disturbed_rounds_only_if_needed() {
        let round = |round, ours, disturbed| {
            let own = Record { disturbed, ..cpu(Own, round, ours) };
            [own, cpu(Peer::Haproxy3, round, 10.0)]
        };
        let rounds = [(1, 8.0, false), (2, 8.0, false), (3, 30.0, true), (4, 20.0, true)];
        let mut records = rounds.map(|(number, ours, it)| round(number, ours, it)).concat();
        assert_judged(&records, &[(1.4, 4, false)]);
        records.extend(round(5, 8.0, false));
        assert_judged(&records, &[(0.8, 3, true)]);
    }

    #[test]
    fn judges_shared_connections_apart() {
        let mut records =
            vec![cpu(Shared, 1, 4.0), cpu(Peer::Haproxy3, 1, 10.0), cpu(Peer::Twemproxy, 1, 5.0)];
        assert_judged(&records, &[(0.8, 1, true)]);
        records[0] = cpu(Own, 1, 4.0);
        assert_judged(&records, &[(0.4, 1, true)]);
    }
}
