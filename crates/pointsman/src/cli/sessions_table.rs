//! The table of `pointsman sessions`: one line per session, and as many columns as fit on the
//! terminal.

use std::fmt::Write as _;

use serde_json::Value as Json;

use super::screen::{bytes, number, text};
use crate::admin::status::span;

/// A column: its title, whether numbers are aligned to the right, and when it is dropped: the
/// highest number first.
struct Column {
    title: &'static str,
    right: bool,
    drop: u8,
    value: fn(&Json) -> String,
}

/// The title of the column that only services with shared connections have.
const CONNECTION: &str = "CONNECTION";

/// In the order of the table.
static COLUMNS: [Column; 16] = [
    Column { title: "ID", right: false, drop: 0, value: |it| text(it, "id") },
    Column { title: "CLIENT", right: false, drop: 0, value: |it| text(it, "client") },
    Column { title: "SERVICE", right: false, drop: 4, value: service },
    Column { title: "STATE", right: false, drop: 0, value: state },
    Column { title: "WAITS FOR", right: false, drop: 5, value: |it| words(it, "waits_for") },
    Column { title: "USER", right: false, drop: 6, value: |it| text(it, "user") },
    Column { title: "DB", right: true, drop: 9, value: |it| whole(it, "database") },
    Column { title: "NAME", right: false, drop: 2, value: |it| text(it, "name") },
    Column { title: "LIBRARY", right: false, drop: 10, value: library },
    Column { title: "UPSTREAM", right: false, drop: 7, value: |it| text(it, "upstream") },
    Column { title: CONNECTION, right: false, drop: 7, value: connection },
    Column { title: "TLS", right: false, drop: 11, value: |it| text(it, "tls") },
    Column { title: "AGE", right: true, drop: 3, value: |it| span(number(it, "age_s")) },
    Column { title: "IDLE", right: true, drop: 1, value: idle },
    Column {
        title: "BYTES",
        right: true,
        drop: 8,
        value: |it| bytes(number(it, "bytes_in") + number(it, "bytes_out")),
    },
    Column { title: "COMMANDS", right: true, drop: 8, value: |it| whole(it, "commands") },
];

fn service(it: &Json) -> String {
    match text(it, "to").as_str() {
        "master" => text(it, "service"),
        to => format!("{}/{to}", text(it, "service")),
    }
}

/// The state, with what pins the session, and the number of requests in flight.
fn state(it: &Json) -> String {
    let (state, why) = (text(it, "state"), text(it, "not_carried"));
    let shown = match why.as_str() {
        "" | "in_flight" => state,
        why if why == state => state,
        why => format!("{state}: {why}"),
    };
    let command = Some(text(it, "unknown_command")).filter(|command| !command.is_empty());
    let command = command.map(|command| format!(" {command}")).unwrap_or_default();
    let owed = number(it, "in_flight");
    let owed = if owed > 1.0 { format!(" ({owed:.0})") } else { String::new() };
    format!("{}{command}{owed}", shown.replace('_', " "))
}

/// Whether the session shares connections, or why it has one of its own.
fn connection(it: &Json) -> String {
    let (connection, promotion) = (words(it, "connection"), words(it, "promotion"));
    let both = !connection.is_empty() && !promotion.is_empty();
    if both { format!("{connection}: {promotion}") } else { connection }
}

fn words(it: &Json, key: &str) -> String {
    text(it, key).replace('_', " ")
}

fn library(it: &Json) -> String {
    format!("{} {}", text(it, "library"), text(it, "library_version")).trim().to_owned()
}

fn idle(it: &Json) -> String {
    it.get("idle_s").and_then(Json::as_f64).map(span).unwrap_or_default()
}

fn whole(it: &Json, key: &str) -> String {
    it.get(key).and_then(Json::as_u64).map(|number| number.to_string()).unwrap_or_default()
}

/// The table, with the columns that fit into `width`.
pub(super) fn render(document: &Json, width: Option<usize>) -> String {
    let rows = document.get("list").and_then(Json::as_array).map_or(&[][..], Vec::as_slice);
    let shares = rows.iter().any(|row| !connection(row).is_empty());
    let shown = COLUMNS.iter().filter(|it| shares || it.title != CONNECTION);
    // Each column with its title and cells, and their width.
    let column = |it: &'static Column| {
        let cell = |row| Some((it.value)(row)).filter(|text| !text.is_empty());
        let cells = rows.iter().map(|row| cell(row).unwrap_or_else(|| "-".to_owned()));
        let cells: Vec<String> = std::iter::once(it.title.to_owned()).chain(cells).collect();
        let width = cells.iter().map(|text| text.chars().count()).max().unwrap_or(0);
        (it, cells, width)
    };
    let mut columns: Vec<_> = shown.map(column).collect();
    while let Some(width) = width
        && columns.iter().map(|(.., it)| it + 2).sum::<usize>() > width + 2
    {
        let order = |at: &usize| columns.get(*at).map_or(0, |(column, ..)| column.drop);
        let last = (0..columns.len()).max_by_key(order).filter(|at| order(at) > 0);
        let Some(last) = last else { break };
        columns.remove(last);
    }
    let mut out = String::new();
    for row in 0..=rows.len() {
        let mut line = String::new();
        for (column, cells, width) in &columns {
            let cell = cells.get(row).map_or("", String::as_str);
            let _ = match column.right {
                true => write!(line, "{cell:>width$}  "),
                false => write!(line, "{cell:<width$}  "),
            };
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
    let of = |key: &str| number(document, key);
    let _ = writeln!(
        out,
        "{:.0} of {:.0} matching sessions; {:.0} sessions in all",
        of("listed"),
        of("matching"),
        of("sessions")
    );
    let silent = document.get("silent_workers").and_then(Json::as_array);
    for worker in silent.into_iter().flatten().filter_map(Json::as_u64) {
        let _ =
            writeln!(out, "worker {worker} did not answer: its sessions are missing; see /alive");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document() -> Json {
        serde_json::json!({
            "schema": 1, "sessions": 7, "matching": 3, "listed": 2, "silent_workers": [1],
            "list": [
                {"id": "5d0c41aa-0-17-3", "service": "shop", "to": "master",
                 "client": "10.0.0.1:50122", "user": "alice", "database": 3, "name": "cart",
                 "library": "redis-py", "library_version": "5.1", "state": "blocked",
                 "waits_for": "reply", "not_carried": "blocking", "upstream": "10.0.1.2:6379",
                 "age_s": 7260.0, "idle_s": 12.4, "bytes_in": 1500, "bytes_out": 500,
                 "commands": 12, "in_flight": 1},
                {"id": "5d0c41aa-1-2-0", "service": "shop", "to": "replicas", "client": "unix",
                 "user": null, "state": "opaque", "waits_for": "request", "not_carried": "monitor",
                 "age_s": 1.0, "idle_s": null, "bytes_in": 0, "bytes_out": 0, "commands": 0,
                 "in_flight": null, "name": "\u{1b}[2J"},
            ],
        })
    }

    #[test]
    fn renders_a_table_with_totals_and_silent_workers() {
        let shown = render(&document(), None);
        let lines: Vec<&str> = shown.lines().collect();
        assert!(lines[0].starts_with("ID               CLIENT          SERVICE        STATE"));
        for part in ["blocked: blocking", "alice", "redis-py 5.1", "2h01m", "2.0 kB", "12"] {
            assert!(lines[1].contains(part), "{part}: {}", lines[1]);
        }
        assert!(lines[2].contains("shop/replicas") && lines[2].contains("opaque: monitor"));
        assert_eq!(lines[3], "2 of 3 matching sessions; 7 sessions in all");
        assert_eq!(lines[4], "worker 1 did not answer: its sessions are missing; see /alive");
        assert!(shown.chars().all(|c| c == '\n' || !c.is_control()), "{shown:?}");
    }

    #[test]
    fn shows_the_connection_column_if_a_session_shares() {
        assert!(!render(&document(), None).contains("CONNECTION"));
        let mut sharing = document();
        sharing["list"][0]["connection"] = "dedicated".into();
        sharing["list"][0]["promotion"] = "server_table".into();
        sharing["list"][1]["connection"] = "shared".into();
        let shown = render(&sharing, None);
        let lines: Vec<&str> = shown.lines().collect();
        assert!(lines[0].contains("CONNECTION"), "{shown}");
        assert!(lines[1].contains("dedicated: server table"), "{shown}");
        assert!(lines[2].contains("  shared  "), "{shown}");
        // It is being connected.
        sharing["list"][0]["connection"] = Json::Null;
        assert!(!render(&sharing, None).contains("server table"));
    }

    #[test]
    fn drops_columns_that_do_not_fit() {
        for width in [60, 80, 100, 120, 200] {
            let shown = render(&document(), Some(width));
            let table: Vec<&str> = shown.lines().take(3).collect();
            assert!(table.iter().all(|line| line.chars().count() <= width), "{width}:\n{shown}");
            assert!(table[0].contains("ID") && table[0].contains("STATE"), "{width}:\n{shown}");
        }
        // What identifies a session stays.
        assert!(render(&document(), Some(10)).contains("5d0c41aa-0-17-3"));
    }

    #[test]
    fn renders_an_empty_list() {
        let empty = serde_json::json!({"sessions": 0, "matching": 0, "listed": 0, "list": []});
        assert!(
            render(&empty, Some(80)).ends_with("0 of 0 matching sessions; 0 sessions in all\n")
        );
        assert!(!render(&serde_json::json!(3), None).is_empty());
    }
}
