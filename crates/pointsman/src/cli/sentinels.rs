//! `pointsman sentinels`: queries each sentinel and node directly, and reports problems with
//! remedies.
//!
//! It needs no running proxy: the configuration, or two flags, name the sentinels and credentials,
//! and the doctor of the `sentinel` crate examines and diagnoses. This module only prints the
//! result, as text, coloured on a terminal only, or as JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};
use std::time::Duration;

use sentinel::Resolver;
use sentinel::doctor::{
    self, Context, ExamineError, Finding, HostFacts, MasterAnswer, Observed, ObservedMaster,
    SentinelAnswer, Severity,
};
use sentinel::{NodeReport, Role};
use serde_json::{Value as Json, json};

use super::args::SentinelsArgs;
use super::failure::Failure;
use super::host_facts::host_facts;
use crate::config::{self, Config, Origin};
use crate::process::error::RunError;
use crate::process::settings;

/// Version of the JSON document.
const SCHEMA: u32 = 1;

/// The result for one service.
struct ExaminedService {
    observed: Observed,
    findings: Vec<Finding>,
}

impl ExaminedService {
    /// Whether there is no fault and no warning; notes do not count.
    fn is_healthy(&self) -> bool {
        self.findings.iter().all(|it| it.severity == Severity::Note)
    }
}

/// Examines the services. Returns the output and whether all is well.
///
/// # Errors
///
/// Faults of the configuration; or the system provides no runtime.
pub(super) fn sentinels(
    args: &SentinelsArgs,
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<(String, bool), Failure> {
    let flags = args.flags();
    let loaded = config::load(&flags, env);
    let config = loaded.config().map_err(|faults| Failure::Faults(faults.clone()))?;
    // The default is not one of our addresses: on this host a Redis server may listen there.
    let is_written = |it: &config::SettingMap| {
        it.setting("service.listen").is_some_and(|it| it.origin != Origin::Default)
    };
    let listens = loaded.settings().services.iter().map(is_written);
    let is_selected =
        |name: &str| flags.service.as_deref().is_none_or(|is_selected| is_selected == name);
    let services =
        config.services.iter().zip(listens).filter(|(service, _)| is_selected(&service.name));
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(16).build();
    let runtime = runtime.map_err(|error| Failure::Run(RunError::System(error)))?;
    let examined: Vec<ExaminedService> = runtime.block_on(async {
        let mut examined = Vec::new();
        for (service, is_own) in services {
            examined.push(examine(&config, service, is_own, &args.zones()).await);
        }
        examined
    });
    // A name lookup that hangs in the system's resolver must not delay the exit.
    runtime.shutdown_background();
    let healthy = examined.iter().all(ExaminedService::is_healthy);
    let text = if args.json {
        let services: Vec<Json> = examined.iter().map(document).collect();
        let document = json!({ "schema": SCHEMA, "healthy": healthy, "services": services });
        format!("{document:#}\n")
    } else {
        let colour = io::stdout().is_terminal()
            && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        examined.iter().map(|it| report(it, colour)).collect::<Vec<_>>().join("\n")
    };
    Ok((text, healthy))
}

async fn examine(
    config: &Config,
    service: &config::ServiceConfig,
    is_own: bool,
    zones: &BTreeMap<String, String>,
) -> ExaminedService {
    let listen = service.listen.iter().filter_map(proxy::ListenAddr::tcp);
    let own = if is_own {
        listen
            .chain(config.admin.listen.iter().copied())
            .chain(config.admin.read_only_listen.iter().copied())
            .collect()
    } else {
        Vec::new()
    };
    let patient = settings::examination(service, own);
    let context = Context {
        mapped: patient.address_map.keys().cloned().collect(),
        hold_timeout: Some(service.hold_timeout),
        verify: patient.verify,
        sentinels_need_login: patient.sentinel_auth.is_some(),
        nodes_need_login: patient.auth.is_some(),
        zones: zones.clone(),
        host: if is_own { host_facts(service) } else { HostFacts::default() },
        now: since_1970(),
    };
    let observed = doctor::examine(patient, &Resolver::default()).await;
    let findings = doctor::diagnose(&observed, &context);
    ExaminedService { observed, findings }
}

#[expect(clippy::disallowed_methods, reason = "the validity of certificates is in wall time")]
fn since_1970() -> Option<Duration> {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()
}

fn describe(describe: &ExamineError) -> String {
    match describe {
        ExamineError::Unresolved(describe) | ExamineError::Unreachable(describe) => {
            describe.clone()
        }
        ExamineError::Unresponsive => "no answer".to_owned(),
        ExamineError::Tls(fault) => fault.to_string(),
        ExamineError::Denied(denied) => denied.to_string(),
        ExamineError::UnexpectedServer => "neither a sentinel nor a Redis server".to_owned(),
        ExamineError::OtherSentinel => "another sentinel answers at this address".to_owned(),
        ExamineError::LeadsBack => "a listener of this pointsman".to_owned(),
    }
}

fn describe_account(account: &SentinelAnswer) -> String {
    match &account.master {
        MasterAnswer::UnknownName => "does not monitor this master".to_owned(),
        MasterAnswer::Denied => "refuses SENTINEL commands".to_owned(),
        MasterAnswer::Malformed(what) => (*what).to_owned(),
        MasterAnswer::Known(view) => {
            let up = view.peers.iter().filter(|it| it.up).count();
            let state = if view.failing_over {
                ", failing over"
            } else if view.down {
                ", considers it down"
            } else {
                ""
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
    let pong = if report.pong { "" } else { ", no PONG" };
    match &report.role {
        Role::Master => format!("master{pong}"),
        Role::Replica { master, connected: true } => format!("replica of {master}{pong}"),
        Role::Replica { master, connected: false } => {
            format!("replica of {master}, link down{pong}")
        }
        Role::Unknown => format!("role not queried{pong}"),
    }
}

/// Formats a result as text.
fn report(examined: &ExaminedService, colour: bool) -> String {
    let ExaminedService { observed, findings } = examined;
    let paint = |code: &str, text: &str| {
        if colour { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    };
    let mut out = format!("{}\n", paint("1", &observed.name));
    let rows = observed.sentinels.iter().map(|it| {
        let id = it.answer.as_ref().map_or("-", |account| account.id.short());
        let text = it.answer.as_ref().map_or_else(describe, describe_account);
        (it.addr.to_string(), id.to_owned(), text, it.answer.is_ok())
    });
    table(&mut out, "sentinels", &rows.collect::<Vec<_>>(), paint);
    let rows = observed.nodes.iter().map(|it| {
        let mapped = it.dialled.map(|to| to.to_string()).filter(|to| *to != it.addr.to_string());
        let text = it.answer.as_ref().map_or_else(describe, describe_role);
        (it.addr.to_string(), mapped.unwrap_or_default(), text, it.answer.is_ok())
    });
    table(&mut out, "nodes", &rows.collect::<Vec<_>>(), paint);
    let mut printed: BTreeSet<&[String]> = BTreeSet::new();
    for finding in findings {
        let code = match finding.severity {
            Severity::Fault => "31",
            Severity::Warning => "33",
            Severity::Note => "36",
        };
        let head = paint(code, &finding.severity.label().to_uppercase());
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
    let count = |severity| findings.iter().filter(|it| it.severity == severity).count();
    let verdict = if examined.is_healthy() {
        paint("32", "healthy")
    } else {
        format!("{} faults, {} warnings", count(Severity::Fault), count(Severity::Warning))
    };
    let _ = write!(out, "\n  {verdict}\n");
    out
}

fn table(
    out: &mut String,
    title: &str,
    rows: &[(String, String, String, bool)],
    paint: impl Fn(&str, &str) -> String,
) {
    let _ = writeln!(out, "  {title}");
    let width = |of: fn(&(String, String, String, bool)) -> &String| {
        rows.iter().map(|row| of(row).len()).max().unwrap_or(0)
    };
    let (first, second) = (width(|row| &row.0), width(|row| &row.1));
    for (one, two, text, good) in rows {
        let text = if *good { text.clone() } else { paint("31", text) };
        let line = if second == 0 {
            format!("    {one:first$}  {text}")
        } else {
            format!("    {one:first$}  {two:second$}  {text}")
        };
        let _ = writeln!(out, "{line}");
    }
    if rows.is_empty() {
        let _ = writeln!(out, "    none found");
    }
}

/// Formats a result as JSON.
fn document(examined: &ExaminedService) -> Json {
    let ExaminedService { observed, findings } = examined;
    let sentinels = observed.sentinels.iter().map(|it| {
        let (account, trouble) = (it.answer.as_ref().ok(), it.answer.as_ref().err());
        json!({
            "addr": it.addr.to_string(),
            "configured": it.configured,
            "state": trouble.map_or("up", ExamineError::label),
            "problem": trouble.map(describe),
            "id": account.map(|it| it.id.as_str()),
            "tilt": account.map(|it| it.tilt),
            "resp3": account.map(|it| it.resp3),
            "watches": account.map(|it| &it.watched),
            "view": account.and_then(|it| match &it.master {
                MasterAnswer::Known(view) => Some(view_json(view)),
                _ => None,
            }),
        })
    });
    let nodes = observed.nodes.iter().map(|it| {
        let (report, trouble) = (it.answer.as_ref().ok(), it.answer.as_ref().err());
        json!({
            "addr": it.addr.to_string(),
            "dialled": it.dialled.map(|at| at.to_string()),
            "state": trouble.map_or("up", ExamineError::label),
            "problem": trouble.map(describe),
            "role": report.map(|it| match it.role {
                Role::Master => "master",
                Role::Replica { .. } => "replica",
                Role::Unknown => "unknown",
            }),
            "follows": report.and_then(|it| match &it.role {
                Role::Replica { master, .. } => Some(master.to_string()),
                _ => None,
            }),
            "linked": report.and_then(|it| match it.role {
                Role::Replica { connected, .. } => Some(connected),
                _ => None,
            }),
            "pong": report.map(|it| it.pong),
        })
    });
    let findings = findings.iter().map(|it| {
        json!({
            "severity": it.severity.label(),
            "code": it.code,
            "about": it.about,
            "message": it.what,
            "remedy": it.remedy,
            "commands": it.commands,
        })
    });
    json!({
        "name": &*observed.name,
        "healthy": examined.is_healthy(),
        "sentinels": sentinels.collect::<Vec<_>>(),
        "nodes": nodes.collect::<Vec<_>>(),
        "findings": findings.collect::<Vec<_>>(),
    })
}

fn view_json(view: &ObservedMaster) -> Json {
    let millis = |it: Duration| u64::try_from(it.as_millis()).unwrap_or(u64::MAX);
    json!({
        "master": view.addr.to_string(),
        "epoch": view.epoch,
        "down": view.down,
        "failing_over": view.failing_over,
        "quorum": view.quorum,
        "down_after_ms": view.down_after.map(millis),
        "failover_timeout_ms": view.failover_timeout.map(millis),
        "peers": view.peers.iter().map(|it| json!({
            "id": it.id.as_ref().map(sentinel::MyId::as_str),
            "addr": it.addr.as_ref().map(ToString::to_string),
            "up": it.up,
        })).collect::<Vec<_>>(),
        "replicas": view.replicas.iter().map(|it| json!({
            "addr": it.addr.to_string(),
            "down": it.down,
            "linked": it.linked,
            "priority": it.priority,
        })).collect::<Vec<_>>(),
        "failover_possible": view.ckquorum.as_ref().map(Result::is_ok),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sentinel::NodeAddr;
    use sentinel::doctor::ObservedSentinel;

    use super::*;

    fn examined() -> ExaminedService {
        let addr = NodeAddr { host: "10.0.0.2".into(), port: 26379 };
        let answer = Err(ExamineError::Unreachable("cannot connect: refused".to_owned()));
        let observed = Observed {
            name: Arc::from("mymaster"),
            own_certificates: Vec::new(),
            sentinels: vec![ObservedSentinel { addr, configured: true, answer, certificate: None }],
            nodes: Vec::new(),
        };
        let findings = doctor::diagnose(&observed, &Context::default());
        ExaminedService { observed, findings }
    }

    #[test]
    fn prints_findings_and_colours_on_request() {
        let report = report(&examined(), false);
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
        assert!(super::report(&examined(), true).contains("\u{1b}[31mFAULT\u{1b}[0m"));
    }

    /// Findings with one cause have the same commands, which must not be pasted twice.
    #[test]
    fn prints_equal_commands_once() {
        let mut examined = examined();
        let commands = vec!["redis-cli -h 10.0.0.2 -p 26379 SENTINEL RESET m".to_owned()];
        examined.findings.iter_mut().for_each(|it| it.commands.clone_from(&commands));
        let report = report(&examined, false);
        assert_eq!(report.matches("\n       redis-cli -h 10.0.0.2").count(), 1, "{report}");
        assert_eq!(report.matches("(the same commands as above, once)").count(), 1, "{report}");
        assert_eq!(document(&examined)["findings"][1]["commands"], json!(commands));
    }

    #[test]
    fn renders_findings_as_json() {
        let document = document(&examined());
        assert_eq!(document["healthy"], json!(false));
        assert_eq!(document["sentinels"][0]["state"], json!("unreachable"));
        assert_eq!(document["findings"][0]["severity"], json!("fault"));
    }
}
