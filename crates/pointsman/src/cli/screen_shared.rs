//! Shared connections on the status screen: which sessions share, why others do not, and what it
//! saves.

use std::fmt::Write as _;

use serde_json::Value as Json;

use super::screen::{by_word, number};

/// What precedes every line.
const INDENT: &str = "             ";

/// Prints the part of the status document about shared connections; nothing if there is none.
pub(super) fn shared(out: &mut String, it: Option<&Json>) {
    let Some(it) = it.filter(|it| it.is_object()) else { return };
    let of = |key: &str| number(it, key);
    let plural = |count: f64, one: &'static str, more: &'static str| {
        if count == 1.0 { one } else { more }
    };
    let (sessions, connections, dedicated) =
        (of("sessions"), of("connections"), of("sessions_dedicated"));
    let _ = write!(
        out,
        "{INDENT}{sessions:.0} {} {connections:.0} {}, {dedicated:.0} {} own",
        plural(sessions, "session shares", "sessions share"),
        plural(connections, "connection", "connections"),
        plural(dedicated, "has its", "have their"),
    );
    if let Some(batch) = it.get("requests_per_write").and_then(Json::as_f64) {
        let _ = write!(out, "; {batch:.1} requests per write");
    }
    out.push('\n');
    by_word(out, "got a connection of their own:", it.get("promotions"));
    let blind = it.get("connections_by_table").map_or(0.0, |it| number(it, "built_in"));
    if blind > 0.0 {
        let lack = plural(blind, "connection does", "connections do");
        let _ = writeln!(out, "{INDENT}{blind:.0} {lack} not know the server's table of commands");
    }
    let (desyncs, lost) = (of("desyncs"), of("sessions_lost"));
    if desyncs > 0.0 {
        let connections = plural(desyncs, "connection", "connections");
        let _ = writeln!(out, "{INDENT}DESYNC of {desyncs:.0} shared {connections}; see the log");
    }
    if lost > 0.0 {
        let sessions = plural(lost, "session", "sessions");
        let _ = writeln!(out, "{INDENT}{lost:.0} {sessions} lost with a shared connection");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(document: &Json) -> String {
        let mut out = String::new();
        shared(&mut out, Some(document));
        out
    }

    #[test]
    fn shows_faults_only_if_there_are_any() {
        let well = json!({
            "sessions": 1, "connections": 1, "sessions_dedicated": 1, "promotions": {},
            "connections_by_table": { "server": 1, "built_in": 0 },
            "requests_per_write": null, "desyncs": 0, "sessions_lost": 0,
        });
        assert_eq!(shown(&well), "             1 session shares 1 connection, 1 has its own\n");
        let ill = json!({
            "sessions": 48, "connections": 4, "sessions_dedicated": 2,
            "connections_by_table": { "server": 1, "built_in": 3 },
            "promotions": { "subscription": 1, "server_table": 3 },
            "requests_per_write": 3.25, "desyncs": 1, "sessions_lost": 7,
        });
        let expected = "             \
            48 sessions share 4 connections, 2 have their own; 3.2 requests per write
             got a connection of their own: 3 server table, 1 subscription
             3 connections do not know the server's table of commands
             DESYNC of 1 shared connection; see the log
             7 sessions lost with a shared connection
";
        assert_eq!(shown(&ill), expected);
        let mut out = String::new();
        shared(&mut out, None);
        assert_eq!(out, "");
    }
}
