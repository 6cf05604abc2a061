//! The targets of pointsman, as ratios within one interleaved run: with one server connection per
//! client, and with shared ones.
//!
//! A ratio is taken within each round and the median of these is judged, so that a slow round
//! affects both sides. Rounds in which one side was disturbed count only if too few others are
//! left. Beside each ratio stands that of the baseline proxy in the same rounds: a target below it
//! asks more than this machine can give.

use super::record::{Measure, Record, Row};
use crate::peers::Peer;
use crate::stats::{Spread, figure, spread};
use crate::title_of;

struct Target {
    title: &'static str,
    ours: Peer,
    row: Row,
    measure: Measure,
    against: Peer,
    /// The largest or smallest permitted ratio.
    bound: Bound,
}

#[derive(Debug, Clone, Copy)]
enum Bound {
    Most(f64),
    Least(f64),
}

/// A target and its result.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Verdict {
    pub(super) title: &'static str,
    pub(super) against: String,
    /// The bound as text, such as `≤ 0.86`.
    pub(super) bound: String,
    /// The ratios of the rounds that count.
    pub(super) ratio: Spread,
    /// The ratios of the baseline proxy, if it was measured.
    pub(super) baseline: Option<Spread>,
    pub(super) met: bool,
}

/// With this many undisturbed rounds, disturbed ones are not used.
const ENOUGH: usize = 3;

const fn target(
    title: &'static str,
    ours: Peer,
    row: Row,
    measure: Measure,
    against: Peer,
    bound: Bound,
) -> Target {
    Target { title, ours, row, measure, against, bound }
}

const TARGETS: [Target; 25] = {
    use Bound::{Least, Most};
    use Measure::{Bulk, Conns, CpuBulk, CpuConn, CpuRequest, Memory, P50, P99, Rps};
    use Peer::{
        Direct, Haproxy3 as Stock, Pointsman as Own, PointsmanShared as Shared,
        Twemproxy as Sharing,
    };
    use Row::{
        Connections, Fairness, First, Idle, Latency, Pipeline, Redis, Small, TlsFull, TlsGet1m,
        TlsIdle, TlsResumed, TlsSet1m, TlsSmall,
    };
    [
        target("CPU a small request", Own, Small, CpuRequest, Stock, Most(0.86)),
        target("CPU in pipelines of 16", Own, Pipeline, CpuRequest, Stock, Most(0.90)),
        target("p50 at 20,000/s", Own, Latency, P50, Stock, Most(1.00)),
        target("p99 at 20,000/s", Own, Latency, P99, Stock, Most(1.05)),
        target("p99 of PING beside bulk", Own, Fairness, P99, Stock, Most(1.00)),
        target("Bulk throughput beside PING", Own, Fairness, Bulk, Stock, Least(1.00)),
        target("Memory of an idle pair", Own, Idle, Memory, Stock, Most(0.30)),
        target("Connections a second", Own, Connections, Conns, Stock, Least(1.05)),
        target("CPU a connection", Own, Connections, CpuConn, Stock, Most(0.95)),
        target("p50 of the first reply", Own, First, P50, Stock, Most(0.98)),
        target("TLS: CPU a small request", Own, TlsSmall, CpuRequest, Stock, Most(0.95)),
        target("TLS: CPU a GiB, GET of 1 MiB", Own, TlsGet1m, CpuBulk, Stock, Most(0.80)),
        target("TLS: CPU a GiB, SET of 1 MiB", Own, TlsSet1m, CpuBulk, Stock, Most(0.80)),
        target("TLS: full handshakes a second", Own, TlsFull, Conns, Stock, Least(1.00)),
        target("TLS: resumed sessions a second", Own, TlsResumed, Conns, Stock, Least(1.00)),
        target("TLS: memory of an idle connection", Own, TlsIdle, Memory, Stock, Most(0.30)),
        target("Shared: CPU a small request", Shared, Small, CpuRequest, Stock, Most(0.50)),
        target("Shared: CPU a small request", Shared, Small, CpuRequest, Sharing, Most(0.99)),
        target("Shared: throughput to a Redis", Shared, Redis, Rps, Direct, Least(1.50)),
        target("Shared: CPU in pipelines of 16", Shared, Pipeline, CpuRequest, Stock, Most(0.55)),
        target("Shared: p99 at 20,000/s", Shared, Latency, P99, Stock, Most(1.10)),
        target("Shared: memory of an idle pair", Shared, Idle, Memory, Stock, Most(0.15)),
        target("Shared: connections a second", Shared, Connections, Conns, Stock, Least(1.80)),
        target("Shared: CPU a connection", Shared, Connections, CpuConn, Stock, Most(0.55)),
        target("Shared: p50 of the first reply", Shared, First, P50, Stock, Most(0.60)),
    ]
};

/// Judges every target that the records can check.
pub(super) fn judge(records: &[Record]) -> Vec<Verdict> {
    TARGETS.iter().filter_map(|target| verdict(target, records)).collect()
}

/// The ratios of `ours` to the reference of the target, in the rounds in which neither was
/// disturbed, if there are enough.
fn ratios(target: &Target, ours: Peer, records: &[Record]) -> Option<Spread> {
    let of = |peer: Peer, round: u32| {
        let found =
            records.iter().find(|it| it.row == target.row && it.peer == peer && it.round == round);
        found.and_then(|record| Some((record.value(target.measure)?, record.disturbed)))
    };
    let rounds = 1..=records.iter().map(|record| record.round).max()?;
    let all: Vec<(f64, bool)> = rounds
        .filter_map(|round| {
            let (theirs, own) = (of(target.against, round)?, of(ours, round)?);
            Some((own.0 / theirs.0, own.1 || theirs.1))
        })
        .collect();
    let quiet: Vec<f64> =
        all.iter().filter(|(_, disturbed)| !disturbed).map(|(ratio, _)| *ratio).collect();
    let enough = quiet.len() >= ENOUGH;
    spread(&if enough { quiet } else { all.into_iter().map(|(ratio, _)| ratio).collect() })
}

fn verdict(target: &Target, records: &[Record]) -> Option<Verdict> {
    let ratio = ratios(target, target.ours, records)?;
    let baseline = ratios(target, Peer::Baseline, records);
    let (bound, met) = match target.bound {
        Bound::Most(most) => (format!("≤ {most:.2}"), ratio.median <= most),
        Bound::Least(least) => (format!("≥ {least:.2}"), ratio.median >= least),
    };
    Some(Verdict {
        title: target.title,
        against: title_of(&target.against),
        bound,
        ratio,
        baseline,
        met,
    })
}

impl Verdict {
    /// For a terminal.
    pub(super) fn line(&self) -> String {
        let verdict = if self.met { "met   " } else { "MISSED" };
        let Self { title, against, bound, .. } = self;
        format!(
            "{verdict} {title}, against {against}: {} (target {bound}; the baseline {})",
            self.measured(),
            self.baseline()
        )
    }

    /// The median, the extremes, and the number of rounds.
    pub(super) fn measured(&self) -> String {
        let Spread { median, min, max, runs } = self.ratio;
        format!("{} ({} to {} in {runs})", figure(median), figure(min), figure(max))
    }

    /// The median of the baseline proxy.
    pub(super) fn baseline(&self) -> String {
        self.baseline.as_ref().map_or_else(|| "–".to_owned(), |baseline| figure(baseline.median))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn record(row: Row, peer: Peer, round: u32, measure: Measure, value: f64) -> Record {
        Record {
            row,
            peer,
            round,
            values: BTreeMap::from([(measure, value)]),
            foreign: 0.0,
            disturbed: false,
        }
    }

    #[test]
    fn judges_median_of_ratios_within_rounds() {
        let cpu = |peer, round, value| record(Row::Small, peer, round, Measure::CpuRequest, value);
        // Both are twice as slow in the second round.
        let mut records = vec![
            cpu(Peer::Pointsman, 1, 8.0),
            cpu(Peer::Haproxy3, 1, 10.0),
            cpu(Peer::Pointsman, 2, 17.0),
            cpu(Peer::Haproxy3, 2, 20.0),
            cpu(Peer::Pointsman, 3, 1.0),
        ];
        let [verdict] = &judge(&records)[..] else { panic!("one target has values") };
        assert!(
            (verdict.ratio.median - 0.825).abs() < 1e-9 && verdict.ratio.runs == 2 && verdict.met
        );
        records.push(cpu(Peer::Haproxy3, 3, 1.0));
        assert!(
            !judge(&records).iter().all(|verdict| verdict.met)
                || judge(&records)[0].ratio.median <= 0.86
        );
        records[0] = cpu(Peer::Pointsman, 1, 9.9);
        assert!(judge(&records)[0].line().starts_with("MISSED CPU a small request"));
    }

    #[test]
    fn uses_disturbed_rounds_only_if_needed() {
        let cpu = |peer, round, value, disturbed| Record {
            disturbed,
            ..record(Row::Small, peer, round, Measure::CpuRequest, value)
        };
        let round = |round, ours, disturbed| {
            [
                cpu(Peer::Pointsman, round, ours, disturbed),
                cpu(Peer::Haproxy3, round, 10.0, false),
                cpu(Peer::Baseline, round, 7.0, false),
            ]
        };
        let mut records = [
            round(1, 8.0, false),
            round(2, 8.0, false),
            round(3, 30.0, true),
            round(4, 20.0, true),
        ]
        .concat();
        let judged = |records: &[Record]| {
            judge(records)
                .into_iter()
                .map(|it| (it.ratio.runs, it.ratio.median))
                .collect::<Vec<_>>()
        };
        assert_eq!(judged(&records), [(4, 1.4)]);
        records.extend(round(5, 8.0, false));
        assert_eq!(judged(&records), [(3, 0.8)]);
        assert!(
            judge(&records)[0].line().ends_with("(target ≤ 0.86; the baseline 0.700)"),
            "{}",
            judge(&records)[0].line()
        );
    }

    #[test]
    fn judges_shared_connections_apart() {
        let cpu = |peer, value| record(Row::Small, peer, 1, Measure::CpuRequest, value);
        let mut records = vec![
            cpu(Peer::PointsmanShared, 4.0),
            cpu(Peer::Haproxy3, 10.0),
            cpu(Peer::Twemproxy, 3.0),
        ];
        let met = |records: &[Record]| {
            judge(records).iter().map(|it| (it.against.clone(), it.met)).collect::<Vec<_>>()
        };
        assert_eq!(
            met(&records),
            [("haproxy 3".to_owned(), true), ("twemproxy".to_owned(), false)]
        );
        records[0] = cpu(Peer::Pointsman, 4.0);
        assert_eq!(met(&records), [("haproxy 3".to_owned(), true)]);
    }
}
