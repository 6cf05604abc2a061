//! The result of an examination, as text for people: coloured on a terminal only.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use sentinel::{NodeReport, PingReply, Role};
use tls::CertificateFacts;

use crate::diagnose::{Finding, Severity};
use crate::listeners::{self, Row};
use crate::observed::{ExamineError, MasterAnswer, Observed, SentinelAnswer};

/// The result of an examination.
#[derive(Debug)]
pub struct Report {
    /// The services, in the order of the configuration.
    pub services: Vec<Examined>,
    /// The admin server, if it has certificates.
    pub admin: Option<Examined>,
    /// The time of the examination since 1970; `None` if the clock is unset.
    pub now: Option<Duration>,
}

impl Report {
    /// The severity of the worst finding, which decides about the exit code.
    #[must_use]
    pub fn worst(&self) -> Severity {
        let all = self.services.iter().chain(&self.admin).flat_map(|it| &it.findings);
        all.map(|it| it.severity).min().unwrap_or(Severity::Note)
    }

    /// The report for people, coloured if that is wanted.
    #[must_use]
    pub fn text(&self, colour: bool) -> String {
        let all = self.services.iter().chain(&self.admin);
        all.map(|it| report(it, self.now, colour)).collect::<Vec<_>>().join("\n")
    }
}

/// The result for one service, or for the admin server.
#[derive(Debug, Default)]
pub struct Examined {
    /// The name of the service, and what its sentinels and nodes answered, with Sentinel's name of
    /// the master. `None` for the admin server.
    pub service: Option<(String, Observed)>,
    /// The certificates that the listeners show.
    pub certificates: Vec<CertificateFacts>,
    /// What is wrong, the most severe first.
    pub findings: Vec<Finding>,
}

/// Whether there is no fault and no warning; notes do not count.
pub(crate) fn is_healthy(findings: &[Finding]) -> bool {
    findings.iter().all(|it| it.severity == Severity::Note)
}

fn describe_answer(answer: &SentinelAnswer) -> String {
    match &answer.master {
        MasterAnswer::UnknownName => "does not monitor this master".to_owned(),
        MasterAnswer::Denied => "refuses SENTINEL commands".to_owned(),
        MasterAnswer::Malformed(what) => (*what).to_owned(),
        MasterAnswer::Known(view) => {
            let up = view.peers.iter().filter(|it| it.up).count();
            let state = match (view.failing_over, view.down) {
                (true, _) => ", failing over",
                (false, true) => ", considers it down",
                (false, false) => "",
            };
            let quorum = view.quorum.map_or_else(|| "?".to_owned(), |it| it.to_string());
            let (peers, replicas) = (view.peers.len(), view.replicas.len());
            format!(
                "names {} at epoch {}{state}; quorum {quorum}, {up} of {peers} peers up, \
                 {replicas} replicas",
                view.addr, view.epoch
            )
        }
    }
}

fn describe_role(report: &NodeReport) -> String {
    let pong = match report.ping {
        PingReply::Pong => String::new(),
        other => format!(", PING: {}", other.label()),
    };
    match &report.role {
        Role::Master => format!("master{pong}"),
        Role::Replica { master, connected: true } => format!("replica of {master}{pong}"),
        Role::Replica { master, connected: false } => {
            format!("replica of {master}, link down{pong}")
        }
        Role::Unknown => format!("role not queried{pong}"),
    }
}

/// Text that is coloured if that is wanted.
fn painter(colour: bool) -> impl Fn(&str, &str) -> String + Copy {
    move |code, text| {
        if colour { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

/// Formats the result for a service or the admin server as text.
fn report(examined: &Examined, now: Option<Duration>, colour: bool) -> String {
    let Examined { service, certificates, findings } = examined;
    let paint = painter(colour);
    let mut out = match service {
        Some((name, observed)) => report_service(name, observed, paint),
        None => format!("{}\n", paint("1", "admin server")),
    };
    if service.is_none() || !certificates.is_empty() {
        let rows = listeners::rows(certificates, now);
        table(&mut out, "certificates shown to clients", rows, paint);
    }
    report_findings(&mut out, findings, paint);
    out
}

fn report_service(
    name: &str,
    observed: &Observed,
    paint: impl Fn(&str, &str) -> String + Copy,
) -> String {
    let mut out = paint("1", name);
    if *name != *observed.name {
        let _ = write!(out, " (master {})", observed.name);
    }
    out.push('\n');
    let rows = observed.sentinels.iter().map(|it| {
        let id = it.answer.as_ref().map_or("-", |answer| answer.id.short());
        let text = it.answer.as_ref().map_or_else(ExamineError::to_string, describe_answer);
        (it.addr.to_string(), id.to_owned(), text, it.answer.is_ok())
    });
    table(&mut out, "sentinels", rows.collect(), paint);
    let rows = observed.nodes.iter().map(|it| {
        let mapped = it.dialled.map(|to| to.to_string()).filter(|to| *to != it.addr.to_string());
        let text = it.answer.as_ref().map_or_else(ExamineError::to_string, describe_role);
        (it.addr.to_string(), mapped.unwrap_or_default(), text, it.answer.is_ok())
    });
    table(&mut out, "nodes", rows.collect(), paint);
    out
}

fn report_findings(out: &mut String, findings: &[Finding], paint: impl Fn(&str, &str) -> String) {
    let mut printed: BTreeSet<&[String]> = BTreeSet::new();
    for finding in findings {
        let head = match finding.severity {
            Severity::Fault => paint("31", "FAULT"),
            Severity::Warning => paint("33", "WARNING"),
            Severity::Note => paint("36", "NOTE"),
        };
        let Finding { code, about, what, remedy, commands, .. } = finding;
        let _ = write!(out, "\n  {head} {about}: {what} ({code})\n    -> {remedy}\n");
        if !commands.is_empty() && !printed.insert(commands) {
            out.push_str("       (the same commands as above, once)\n");
            continue;
        }
        for command in commands {
            let _ = writeln!(out, "       {command}");
        }
    }
    let count = |severity, word: &str| {
        let count = findings.iter().filter(|it| it.severity == severity).count();
        format!("{count} {word}{}", if count == 1 { "" } else { "s" })
    };
    let verdict = if is_healthy(findings) {
        paint("32", "healthy")
    } else {
        format!("{}, {}", count(Severity::Fault, "fault"), count(Severity::Warning, "warning"))
    };
    let _ = write!(out, "\n  {verdict}\n");
}

fn table(out: &mut String, title: &str, rows: Vec<Row>, paint: impl Fn(&str, &str) -> String) {
    let _ = writeln!(out, "  {title}");
    let width = |of: fn(&Row) -> usize| rows.iter().map(of).max().unwrap_or(0);
    let (first, second) = (width(|row| row.0.len()), width(|row| row.1.len()));
    if rows.is_empty() {
        let _ = writeln!(out, "    none found");
    }
    for (one, two, text, good) in rows {
        let two = if second == 0 { String::new() } else { format!("  {two:second$}") };
        let text = if good { text } else { paint("31", &text) };
        let _ = writeln!(out, "    {one:first$}{two}  {text}");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sentinel::NodeAddr;
    use serde_json::json;

    use super::*;
    use crate::document::part;
    use crate::{Context, ObservedSentinel};

    fn examined() -> Examined {
        let addr = NodeAddr { host: "10.0.0.2".into(), port: 26379 };
        let answer = Err(ExamineError::Unreachable("cannot connect: refused".to_owned()));
        let observed = Observed {
            name: Arc::from("mymaster"),
            own_certificates: Vec::new(),
            sentinels: vec![ObservedSentinel { addr, configured: true, answer, certificate: None }],
            nodes: Vec::new(),
        };
        let findings = crate::diagnose(&observed, &Context::default());
        let service = Some(("m".to_owned(), observed));
        Examined { service, certificates: Vec::new(), findings }
    }

    #[test]
    fn prints_findings_and_colours_on_request() {
        let report = report(&examined(), None, false);
        assert!(report.contains("    10.0.0.2:26379  -  cannot connect: refused\n"), "{report}");
        assert!(
            report.contains(
                "  FAULT 10.0.0.2:26379: cannot connect: refused (unreachable)\n    -> check that"
            ),
            "{report}"
        );
        assert!(
            report.ends_with("2 faults, 0 warnings\n") && !report.contains('\u{1b}'),
            "{report}"
        );
        assert!(super::report(&examined(), None, true).contains("\u{1b}[31mFAULT\u{1b}[0m"));
    }

    /// Findings with one cause have the same commands, which must not be pasted twice.
    #[test]
    fn prints_equal_commands_once() {
        let mut examined = examined();
        let commands = vec!["redis-cli -h 10.0.0.2 -p 26379 SENTINEL RESET m".to_owned()];
        examined.findings.iter_mut().for_each(|it| it.commands.clone_from(&commands));
        let report = report(&examined, None, false);
        assert_eq!(report.matches("\n       redis-cli -h 10.0.0.2").count(), 1, "{report}");
        assert_eq!(report.matches("(the same commands as above, once)").count(), 1, "{report}");
        assert_eq!(part(&examined, None)["findings"][1]["commands"], json!(commands));
    }

    #[test]
    fn renders_findings_as_json() {
        let document = part(&examined(), None);
        assert_eq!(document["healthy"], json!(false));
        assert_eq!(document["sentinels"][0]["state"], json!("unreachable"));
        assert_eq!(document["findings"][0]["severity"], json!("fault"));
    }
}
