//! The part of the document about shared upstream connections: which sessions share, why others do
//! not, and what sharing saves.

use std::collections::BTreeMap;

use proxy::SharedSnapshot;
use schemars::JsonSchema;
use serde::Serialize;

use super::above_zero;

/// The shared connections of one listener: totals since the start, except `mode`, `sessions`,
/// `sessions_dedicated`, `connections` and `connections_by_table`, which are of now.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SharedStatus {
    /// `shared`; `dedicated` after a reload that ended sharing, while sessions still share.
    pub mode: &'static str,
    /// Sessions that share connections.
    pub sessions: u64,
    /// Sessions that have a connection of their own.
    pub sessions_dedicated: u64,
    /// Shared connections that are open.
    pub connections: u64,
    /// Those of them by the table of commands in force: `server`, or `built_in` where the server
    /// does not show its own.
    pub connections_by_table: BTreeMap<&'static str, u64>,
    /// Sessions that got a connection of their own, by reason. Reasons that never occurred are
    /// omitted.
    pub promotions: BTreeMap<&'static str, u64>,
    /// Sessions that gave up their own connection and share again.
    pub returns: u64,
    /// Requests sent on shared connections.
    pub requests: u64,
    /// Writes that contained them.
    pub writes: u64,
    /// Requests per write on average; absent before the first one.
    pub requests_per_write: Option<f64>,
    /// Shared connections closed because a reply did not match the requests. More than 0 is a fault
    /// of the server or of Pointsman.
    pub desyncs: u64,
    /// Sessions with a request in flight on a shared connection that was lost, and so ended.
    pub sessions_lost: u64,
}

impl SharedStatus {
    /// The part for one listener, if its service shares connections or sessions still do.
    pub(super) fn of(is_on: bool, seen: &SharedSnapshot) -> Option<Self> {
        let promotions = SharedSnapshot::reasons().zip(seen.promoted);
        (is_on || seen.sessions > 0).then(|| Self {
            mode: if is_on { "shared" } else { "dedicated" },
            sessions: seen.sessions,
            sessions_dedicated: seen.dedicated,
            connections: seen.connections,
            connections_by_table: SharedSnapshot::tables().into_iter().zip(seen.by_table).collect(),
            promotions: above_zero(promotions),
            returns: seen.returned,
            requests: seen.requests,
            writes: seen.writes,
            requests_per_write: average(seen.requests, seen.writes),
            desyncs: seen.desyncs,
            sessions_lost: seen.members_lost,
        })
    }
}

/// The average, with two decimals.
#[expect(clippy::cast_precision_loss, reason = "an average for people")]
fn average(sum: u64, count: u64) -> Option<f64> {
    (count > 0).then(|| (sum as f64 / count as f64 * 100.0).round() / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn omits_what_does_not_share() {
        let sharing = SharedSnapshot { sessions: 1, ..SharedSnapshot::default() };
        let modes = [(false, 0), (true, 0), (true, 1), (false, 1)].map(|(is_on, sessions)| {
            let seen = SharedSnapshot { sessions, ..sharing.clone() };
            SharedStatus::of(is_on, &seen).map(|it| it.mode)
        });
        assert_eq!(modes, [None, Some("shared"), Some("shared"), Some("dedicated")]);
    }

    #[test]
    fn lists_reasons_that_occurred_and_requests_per_write() {
        let mut seen = SharedSnapshot { requests: 10, writes: 3, ..SharedSnapshot::default() };
        let at = SharedSnapshot::reasons().position(|reason| reason == "transaction");
        seen.promoted[at.expect("the reason")] = 2;
        let shown = SharedStatus::of(true, &seen).expect("a part");
        assert_eq!(shown.promotions, BTreeMap::from([("transaction", 2)]));
        assert_eq!(shown.requests_per_write, Some(3.33));
        assert_eq!(average(0, 0), None);
    }
}
