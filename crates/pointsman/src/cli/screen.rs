//! Renders the status document on one screen.
//!
//! First the state of the process, then for each service its master, nodes, traffic, the view of
//! each sentinel, and the last failovers. A document of another schema version is not rendered
//! here, but shown as JSON.

use std::fmt::Write as _;

use serde_json::Value as Json;
use tls::OutsideText;

use super::screen_certificates::certificates;
use super::screen_shared::shared;
use crate::admin::status::{ORDINARY, some, span};

/// The schema version that this module renders.
const SCHEMA: u64 = 1;
/// More services are shown by their verdicts only.
const IN_FULL: usize = 8;
/// Number of lines for services that are shown by their verdicts.
const LINES: usize = 16;
/// Number of failovers that are shown.
const FAILOVERS: usize = 3;

/// Renders the screen, if `only` names a service of that service alone. `before` is an earlier
/// document with its age in seconds, for rates. Returns `None` for a document of another schema
/// version.
pub(super) fn render(
    document: &Json,
    before: Option<(&Json, f64)>,
    only: Option<&str>,
) -> Option<String> {
    if document.get("schema")?.as_u64()? != SCHEMA {
        return None;
    }
    let mut out = String::new();
    let ready = if document.get("ready")?.as_bool()? { "ready" } else { "NOT READY" };
    let (version, phase) = (text(document, "version"), text(document, "phase"));
    let (up, hash) = (span(document.get("uptime_s")?.as_f64()?), text(document, "config_hash"));
    let _ = writeln!(out, "pointsman {version}: {phase}, {ready}; up {up}; configuration {hash}");
    let services = list(document, "services");
    // That of the only service is printed with it.
    let of_service = match services {
        [only] => {
            only.get("verdict").map(|it| format!("{}: {}", text(only, "name"), text(it, "text")))
        }
        _ => None,
    };
    let of_process = document.get("verdict").filter(|it| it.is_object());
    for it in of_process.into_iter().chain(list(document, "notices")) {
        let sentence = text(it, "text");
        if of_service.as_ref() != Some(&sentence) {
            verdict(&mut out, &text(it, "severity"), &sentence);
        }
    }
    if only.is_none() && services.len() > IN_FULL {
        folded(&mut out, services);
    }
    let is_shown = |it: &Json| match only {
        Some(only) => it.get("name").and_then(Json::as_str) == Some(only),
        None => services.len() <= IN_FULL,
    };
    if let Some(only) = only.filter(|_| !services.iter().any(is_shown)) {
        let _ = writeln!(out, "\nno service {}", printable(only));
    }
    for (at, it) in services.iter().enumerate().filter(|(_, it)| is_shown(it)) {
        let rate = before
            .and_then(|(before, seconds)| rate(it, list(before, "services").get(at)?, seconds));
        service(&mut out, it, rate);
    }
    certificates(&mut out, list(document.get("config")?, "certificates"));
    Some(out)
}

/// A sentence with its severity, which the process has decided on.
fn verdict(out: &mut String, severity: &str, sentence: &str) {
    let severity = if severity == "ok" { severity.to_owned() } else { severity.to_uppercase() };
    let _ = writeln!(out, "  {severity:<9}  {sentence}");
}

/// One line for each service, the most severe first, and one for all that have the same verdict.
fn folded(out: &mut String, services: &[Json]) {
    let mut groups: Vec<(&Json, Vec<String>)> = Vec::new();
    for it in services {
        let Some(verdict) = it.get("verdict") else { continue };
        match groups.iter_mut().find(|(of, _)| *of == verdict) {
            Some((_, names)) => names.push(text(it, "name")),
            None => groups.push((verdict, vec![text(it, "name")])),
        }
    }
    let severity = |(verdict, _): &(&Json, Vec<String>)| match text(verdict, "severity").as_str() {
        "fault" => 0,
        "warning" => 1,
        _ => 2,
    };
    groups.sort_by_key(severity);
    out.push('\n');
    for (it, names) in groups.iter().take(LINES) {
        let sentence = format!("{}: {}", some(names), text(it, "text"));
        verdict(out, &text(it, "severity"), &sentence);
    }
    let rest: usize = groups.iter().skip(LINES).map(|(_, names)| names.len()).sum();
    if rest > 0 {
        let _ = writeln!(out, "             and {rest} more services");
    }
}

/// What commands have changed on the servers.
fn operations(out: &mut String, it: &Json) {
    for change in list(it, "changed_priorities") {
        let (node, restore) = (text(change, "node"), text(change, "restore"));
        let _ = writeln!(out, "  PRIORITY   of {node} is changed for a switchover: {restore}");
    }
}

fn service(out: &mut String, it: &Json, rate: Option<f64>) {
    let (state, generation) = (text(it, "state"), number(it, "generation"));
    let (name, master_name) = (text(it, "name"), text(it, "master_name"));
    let name = if it.get("master_name").is_some() && master_name != name {
        format!("{name} (master {master_name})")
    } else {
        name
    };
    let _ = writeln!(out, "\n{name}: {state}, generation {generation:.0}");
    if let Some(it) = it.get("verdict").filter(|it| it.is_object()) {
        verdict(out, &text(it, "severity"), &text(it, "text"));
    }
    match it.get("target").filter(|target| target.is_object()) {
        Some(target) => {
            let (addr, epoch, age) =
                (text(target, "name"), number(target, "epoch"), span(number(target, "age_s")));
            let _ = writeln!(out, "  master     {addr} at epoch {epoch:.0}, for {age}");
        }
        None => out.push_str("  master     NONE\n"),
    }
    for reason in list(it, "no_master_because").iter().filter_map(Json::as_str) {
        let _ = writeln!(out, "             {}", printable(reason));
    }
    if let Some(outage) = it.get("outage_s").and_then(Json::as_f64) {
        let _ = writeln!(out, "  OUTAGE     for {}, gate {}", span(outage), text(it, "gate"));
    }
    if is_true(it, "minority") {
        out.push_str("  MINORITY   fewer than half of the sentinels are reachable\n");
    }
    if let Some(order) = it.get("override").filter(|order| order.is_object()) {
        let (master, left) = (text(order, "master"), span(number(order, "left_s")));
        let _ =
            writeln!(out, "  OVERRIDE   follows {master} by an operator's order, for {left} more");
        for other in list(order, "contradicted_by").iter().filter_map(Json::as_str) {
            let _ = writeln!(out, "             sentinels name {}", printable(other));
        }
    }
    operations(out, it);
    for alarm in list(it, "alarms") {
        if is_true(alarm, "on") {
            let sentinels: Vec<String> = list(alarm, "sentinels")
                .iter()
                .map(|it| printable(it.as_str().unwrap_or_default()))
                .collect();
            let (message, age) = (text(alarm, "message"), span(number(alarm, "age_s")));
            let _ = writeln!(out, "  ALARM      {message}: {}, for {age}", sentinels.join(", "));
        }
    }
    traffic(out, "clients", it.get("traffic"), rate);
    if let Some(readers) = it.get("readers").filter(|readers| readers.is_object()) {
        traffic(out, "readers", readers.get("traffic"), None);
    }
    sentinels(out, it);
    nodes(out, it);
    for (at, it) in list(it, "failovers").iter().rev().take(FAILOVERS).enumerate() {
        let title = if at == 0 { "failovers" } else { "" };
        let (to, age) = (text(it, "to"), span(number(it, "age_s")));
        let from = text(it, "from");
        let change =
            if from.is_empty() { format!("no master to {to}") } else { format!("{from} to {to}") };
        let ms = |key: &str, word: &str| {
            let ms = it.get(key).and_then(Json::as_f64);
            ms.map(|ms| format!(", {word} {ms:.1} ms")).unwrap_or_default()
        };
        let (held, switched) = (ms("held_ms", "held"), ms("switched_ms", "switched in"));
        let _ = writeln!(out, "  {title:<9}  {age} ago: {change}{held}{switched}");
    }
}

fn nodes(out: &mut String, it: &Json) {
    for (at, node) in list(it, "nodes").iter().enumerate() {
        let title = if at == 0 { "nodes" } else { "" };
        let lag =
            list(it, "replicas").iter().find(|replica| text(replica, "addr") == text(node, "addr"));
        // That of its last answer says nothing about a node that does not answer.
        let lag = lag.map_or_else(String::new, |it| match is_true(node, "pong") {
            true => format!("  {}, lag {:.0} bytes", text(it, "state"), number(it, "lag_bytes")),
            false => format!("  {}", text(it, "state")),
        });
        let (role, addr, problem) = (text(node, "role"), text(node, "addr"), text(node, "problem"));
        let counts = [("sessions", "sessions"), ("failed_connects", "failed connections")];
        let counts = counts.map(|(key, word)| (number(node, key), word));
        let counts = counts.into_iter().filter(|(count, _)| *count > 0.0);
        let counts: String = counts.map(|(count, word)| format!("  {count:.0} {word}")).collect();
        let line = format!("  {title:<9}  {role:<8} {addr}{lag}{counts}  {problem}");
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

fn traffic(out: &mut String, title: &str, it: Option<&Json>, rate: Option<f64>) {
    let Some(it) = it else { return };
    let of = |key: &str| number(it, key);
    let rate = rate.map(|rate| format!(" ({rate:.0}/s)")).unwrap_or_default();
    let _ = writeln!(
        out,
        "  {title:<9}  {:.0} of {:.0}, {:.0} waiting, {:.0} refused, {:.0} carried over",
        of("sessions_open"),
        of("sessions_limit"),
        of("sessions_waiting"),
        of("sessions_refused"),
        of("sessions_carried")
    );
    by_word(out, "would close at a failover:", it.get("sessions_by_state"));
    by_word(out, "not carried over:", it.get("sessions_not_carried"));
    let (bytes_in, bytes_out) = (bytes(of("bytes_in")), bytes(of("bytes_out")));
    let (commands, p99) = (of("commands"), of("command_p99_us") / 1000.0);
    let _ = writeln!(
        out,
        "             {commands:.0} commands{rate}, p99 {p99:.2} ms; {bytes_in} in, {bytes_out} out"
    );
    shared(out, it.get("shared"));
}

/// Prints counts by label, the largest first, unless all are zero. Ordinary sessions are part of
/// the open ones.
pub(super) fn by_word(out: &mut String, title: &str, it: Option<&Json>) {
    let all = it.and_then(Json::as_object).into_iter().flatten();
    let mut counts: Vec<(f64, String)> = all
        .filter_map(|(word, count)| Some((count.as_f64()?, printable(word).replace('_', " "))))
        .filter(|(count, word)| *count > 0.0 && word != ORDINARY)
        .collect();
    counts.sort_by(|a, b| b.0.total_cmp(&a.0));
    if !counts.is_empty() {
        let counts: Vec<String> =
            counts.iter().map(|(count, word)| format!("{count:.0} {word}")).collect();
        let _ = writeln!(out, "             {title} {}", counts.join(", "));
    }
}

fn sentinels(out: &mut String, service: &Json) {
    let all = list(service, "sentinels");
    let up = all.iter().filter(|it| is_true(it, "up")).count();
    let majority = service.get("electorate").map_or(0.0, |quorum| number(quorum, "majority"));
    let split = if is_true(service, "disagreement") { ", DISAGREE" } else { "" };
    let _ = writeln!(out, "  sentinels  {up} of {} up, majority {majority:.0}{split}", all.len());
    for it in all {
        let word = if is_true(it, "up") { "up" } else { "DOWN" };
        let mut line = format!("             {word:<4} {}", text(it, "addr"));
        if it.get("master").is_some_and(Json::is_string) {
            let (master, epoch, age) =
                (text(it, "master"), number(it, "epoch"), span(number(it, "age_s")));
            let disagrees = if is_true(it, "disagrees") { " DISAGREES:" } else { "" };
            let _ = write!(line, "{disagrees} names {master} at epoch {epoch:.0}, {age} ago");
        }
        let _ = write!(line, "  {}", text(it, "problem"));
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

/// Commands per second, from two documents of one service.
fn rate(now: &Json, before: &Json, seconds: f64) -> Option<f64> {
    let commands = |it: &Json| it.get("traffic")?.get("commands")?.as_f64();
    let same = text(now, "name") == text(before, "name") && seconds > 0.0;
    same.then_some((commands(now)? - commands(before)?).max(0.0) / seconds)
}

fn list<'a>(it: &'a Json, key: &str) -> &'a [Json] {
    it.get(key).and_then(Json::as_array).map_or(&[], Vec::as_slice)
}

pub(super) fn text(it: &Json, key: &str) -> String {
    printable(it.get(key).and_then(Json::as_str).unwrap_or_default())
}

fn is_true(it: &Json, key: &str) -> bool {
    it.get(key).and_then(Json::as_bool) == Some(true)
}

pub(super) fn number(it: &Json, key: &str) -> f64 {
    it.get(key).and_then(Json::as_f64).unwrap_or(0.0)
}

pub(super) fn bytes(count: f64) -> String {
    let units = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    match units.into_iter().find(|(size, _)| count >= *size) {
        Some((size, unit)) => format!("{:.1} {unit}", count / size),
        None => format!("{count:.0} B"),
    }
}

/// Text of the status document, safe for the terminal.
pub(super) fn printable(text: &str) -> String {
    OutsideText::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn renders_document_on_one_screen() {
        let sentinel = |port: u16, up: bool| {
            json!({
                "addr": format!("10.0.0.1:{port}"), "up": up, "disagrees": false,
                "master": "10.0.0.2:6379", "epoch": 5, "age_s": 0.3,
                "problem": if up { Json::Null } else { "cannot connect".into() },
            })
        };
        let document = |commands: u64| {
            json!({
                "schema": 1, "version": "0.1.0", "uptime_s": 192.0, "phase": "serving",
                "ready": true,
                "not_ready_because": [], "config_hash": "ab12", "config": {"faults": []},
                "services": [{
                    "name": "orders", "master_name": "mymaster",
                    "state": "stable", "gate": "open", "generation": 2,
                    "outage_s": null, "disagreement": false, "minority": false,
                    "target": {"name": "10.0.0.2:6379", "epoch": 5, "age_s": 725.0},
                    "electorate": {"voters": 3, "majority": 2},
                    "sentinels": [sentinel(26379, true), sentinel(26380, false)],
                    "nodes": [
                        {"addr": "10.0.0.2:6379", "role": "master", "sessions": 12,
                            "failed_connects": 3},
                        {"addr": "10.0.0.3:6379", "role": "replica"},
                    ],
                    "failovers": [
                        {"from": null, "to": "10.0.0.1:6379", "age_s": 9000.0},
                        {"from": "10.0.0.1:6379", "to": "10.0.0.2:6379", "age_s": 725.0,
                            "held_ms": 812.0, "switched_ms": 1.13},
                    ],
                    "traffic": {"sessions_open": 12, "sessions_limit": 10000,
                        "commands": commands, "bytes_in": 1_234_567, "bytes_out": 999,
                        "command_p99_us": 1280,
                        "sessions_by_state": {"ordinary": 9, "unknown_command": 1, "subscribed": 2},
                        "sessions_not_carried": {"in_flight": 3}},
                }],
            })
        };
        let (before, now) = (document(1000), document(5000));
        let shown = render(&now, Some((&before, 2.0)), None).expect("a document of this schema");
        let expected = "\
pointsman 0.1.0: serving, ready; up 3m12s; configuration ab12

orders (master mymaster): stable, generation 2
  master     10.0.0.2:6379 at epoch 5, for 12m05s
  clients    12 of 10000, 0 waiting, 0 refused, 0 carried over
             would close at a failover: 2 subscribed, 1 unknown command
             not carried over: 3 in flight
             5000 commands (2000/s), p99 1.28 ms; 1.2 MB in, 999 B out
  sentinels  1 of 2 up, majority 2
             up   10.0.0.1:26379 names 10.0.0.2:6379 at epoch 5, 0.3 s ago
             DOWN 10.0.0.1:26380 names 10.0.0.2:6379 at epoch 5, 0.3 s ago  cannot connect
  nodes      master   10.0.0.2:6379  12 sessions  3 failed connections
             replica  10.0.0.3:6379
  failovers  12m05s ago: 10.0.0.1:6379 to 10.0.0.2:6379, held 812.0 ms, switched in 1.1 ms
             2h30m ago: no master to 10.0.0.1:6379
";
        assert_eq!(shown, expected);
        assert!(shown.lines().count() < 24);
        assert_eq!(render(&json!({"schema": 2}), None, None), None);
    }

    /// The screen without its first line.
    fn rest(document: &Json, only: Option<&str>) -> String {
        let shown = render(document, None, only).expect("a document of this schema");
        shown.split_once('\n').expect("a first line").1.to_owned()
    }

    #[test]
    fn prints_verdicts_that_the_process_decided_on() {
        let verdict = |severity: &str, text: &str| json!({"severity": severity, "text": text});
        let service = json!({
            "name": "m", "state": "armed", "generation": 1, "gate": "closed",
            "verdict": verdict("warning", "Traffic held: armed."),
            "electorate": {"majority": 2},
        });
        let mut document = json!({
            "schema": 1, "ready": false, "uptime_s": 1.0, "config": {},
            "verdict": verdict("fault", "Not ready: m1 and 199 more."),
            "notices": [verdict("warning", "m: Traffic held: armed."), verdict("ok", "x\u{1b}")],
            "services": [service],
        });
        let of_service = "\nm: armed, generation 1\n  WARNING    Traffic held: armed.\n";
        let shown = rest(&document, None);
        let expected = "  FAULT      Not ready: m1 and 199 more.\n  ok         x\\u{1b}\n";
        assert!(shown.starts_with(&format!("{expected}{of_service}")), "{shown}");
        // Of an earlier version.
        document["verdict"] = Json::Null;
        document["notices"] = Json::Null;
        document["services"][0]["verdict"] = Json::Null;
        assert!(rest(&document, None).starts_with("\nm: armed, generation 1\n  master"));
    }

    #[test]
    fn folds_many_services() {
        let service = |name: String, severity: &str, text: &str| {
            json!({
                "name": name, "state": "stable",
                "verdict": {"severity": severity, "text": text},
            })
        };
        let document = |services: Vec<Json>| {
            json!({
                "schema": 1, "ready": true, "uptime_s": 1.0, "config": {}, "services": services,
            })
        };
        let lost = document(
            (1..=200).map(|at| service(format!("m{at}"), "fault", "No master.")).collect(),
        );
        assert_eq!(rest(&lost, None), "\n  FAULT      m1, m2, m3 and 197 more: No master.\n");
        assert!(rest(&lost, Some("m7")).starts_with("\nm7: stable"));
        assert_eq!(rest(&lost, Some("m7")).matches("No master.").count(), 1);
        assert_eq!(rest(&lost, Some("x")), "\nno service x\n");
        let mut some: Vec<Json> =
            (1..=30).map(|at| service(format!("m{at}"), "ok", &format!("Master: {at}."))).collect();
        some.push(service("n".to_owned(), "fault", "No master."));
        let shown = rest(&document(some), None);
        assert!(shown.starts_with("\n  FAULT      n: No master.\n  ok         m1: "), "{shown}");
        assert!(
            shown.ends_with("m15: Master: 15.\n             and 15 more services\n"),
            "{shown}"
        );
        let few = document((1..=8).map(|at| service(format!("m{at}"), "ok", "Fine.")).collect());
        assert_eq!(rest(&few, None).matches("  master     NONE").count(), 8);
    }

    #[test]
    fn renders_the_lag_of_replicas_that_answer() {
        let document = json!({
            "schema": 1, "ready": true, "uptime_s": 1.0, "config": {},
            "services": [{
                "name": "m",
                "nodes": [
                    {"addr": "10.0.0.2:6379", "role": "replica", "pong": true},
                    {"addr": "10.0.0.3:6379", "role": "unreachable", "pong": false},
                ],
                "replicas": [
                    {"addr": "10.0.0.2:6379", "state": "eligible", "lag_bytes": 7},
                    {"addr": "10.0.0.3:6379", "state": "unreachable", "lag_bytes": 0},
                ],
            }],
        });
        let shown = render(&document, None, None).expect("a document of this schema");
        assert!(shown.contains("10.0.0.2:6379  eligible, lag 7 bytes\n"), "{shown}");
        assert!(shown.contains("10.0.0.3:6379  unreachable\n"), "{shown}");
    }

    #[test]
    fn renders_alarms_that_are_on() {
        let alarm = |on: bool, sentinel: &str| {
            json!({
                "alarm": "ghosts", "on": on, "age_s": 725.0, "message": "gone and listed",
                "sentinels": [sentinel, "10.0.0.9:26379"],
            })
        };
        let document = json!({
            "schema": 1, "ready": true, "uptime_s": 1.0, "config": {},
            "services": [{"name": "m", "alarms": [alarm(false, "ended"), alarm(true, "a\u{1b}b")]}],
        });
        let shown = render(&document, None, None).expect("a document of this schema");
        let expected = "  ALARM      gone and listed: a\\u{1b}b, 10.0.0.9:26379, for 12m05s\n";
        assert!(shown.contains(expected) && !shown.contains("ended"), "{shown}");
    }
}
