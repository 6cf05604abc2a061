//! The results as tables for people and lines for machines.

use std::fmt::Write as _;

use crate::clients::KINDS;
use crate::roll::Record;

/// One line of raw data.
pub(crate) fn raw(record: &Record) -> String {
    let stops: Vec<String> =
        record.stops.iter().map(|stop| format!("{:.2}", stop.took.as_secs_f64())).collect();
    let mut line = format!(
        "{{\"proxy\":\"{}\",\"lag_s\":{},\"rollout_s\":{:.2},\"stops_s\":[{}],\"killed\":{}",
        record.kind.name(),
        record.lag.as_secs(),
        record.took.as_secs_f64(),
        stops.join(","),
        record.stops.iter().filter(|stop| stop.killed).count()
    );
    for (kind, tally) in KINDS.iter().zip(&record.tallies) {
        let _ = write!(
            line,
            ",\"{kind}\":{{\"connections\":{},\"answered\":{},\"clean\":{},\"refused\":{},\"unreachable\":{},\
             \"unanswered\":{},\"failed\":{},\"slowest_ms\":{}}}",
            tally.connections,
            tally.answered,
            tally.clean,
            tally.refused,
            tally.unreachable,
            tally.unanswered,
            tally.failed,
            tally.slowest_ms
        );
    }
    line.push('}');
    line
}

/// A table with a row for each run.
pub(crate) fn table(records: &[Record]) -> String {
    let mut text = String::from(
        "| Proxy | lag | refused or unreachable | requests without a reply | resets and others | clean closes | slowest new \
         connection | stop of a pod | killed |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    for record in records {
        let sum =
            |of: fn(&crate::clients::Tally) -> u64| record.tallies.iter().map(of).sum::<u64>();
        let stops: Vec<String> =
            record.stops.iter().map(|stop| format!("{:.1}", stop.took.as_secs_f64())).collect();
        let _ = writeln!(
            text,
            "| {} | {} s | {} | {} | {} | {} | {} ms | {} s | {} of {} |",
            record.kind.name(),
            record.lag.as_secs(),
            sum(|it| it.refused + it.unreachable),
            sum(|it| it.unanswered),
            sum(|it| it.failed),
            sum(|it| it.clean),
            record.tallies[0].slowest_ms,
            stops.join(", "),
            record.stops.iter().filter(|stop| stop.killed).count(),
            record.stops.len(),
        );
    }
    text
}
