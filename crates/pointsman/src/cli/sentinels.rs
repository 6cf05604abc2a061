//! `pointsman sentinels`: what each sentinel and node says now, straight from them, what is wrong,
//! and what to do.
//!
//! It needs no running proxy and asks none: the configuration, or two flags, tell whom to ask and
//! how to get in, and the doctor of the `sentinel` crate looks and judges. Here it is only shown:
//! for people, with colours on a terminal only, or as JSON.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};

use sentinel::Resolver;
use sentinel::doctor::{self, Account, Context, Finding, NoAnswer, Observed, Says, Severity, Word};
use sentinel::{Report, Role};
use serde_json::{Value as Json, json};

use super::args::SentinelsArgs;
use super::failure::Failure;
use crate::config::{self, Config, Origin};
use crate::process::run::RunError;
use crate::process::watch;

/// Version of the JSON document's shape.
const SCHEMA: u32 = 1;

/// One service as it was found.
struct Examined {
    observed: Observed,
    findings: Vec<Finding>,
}

impl Examined {
    /// Nothing is wrong and nothing is likely to go wrong; notes are neither.
    fn is_healthy(&self) -> bool {
        self.findings.iter().all(|it| it.severity == Severity::Note)
    }
}

/// Examines, and gives what is to be printed and whether all is well.
///
/// # Errors
///
/// Faults of the configuration; or the system gives no runtime.
pub(super) fn sentinels(
    args: &SentinelsArgs,
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<(String, bool), Failure> {
    let flags = args.flags();
    let loaded = config::load(&flags, env);
    let config = loaded.config().map_err(|faults| Failure::Faults(faults.clone()))?;
    // The default is no address of ours: on this machine it may as well be a redis.
    let is_written = |it: &config::SettingMap| {
        it.setting("service.listen").is_some_and(|it| it.origin != Origin::Default)
    };
    let listens = loaded.settings().services.iter().map(is_written);
    let wanted = |name: &str| flags.service.as_deref().is_none_or(|wanted| wanted == name);
    let services = config.services.iter().zip(listens).filter(|(service, _)| wanted(&service.name));
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(16).build();
    let runtime = runtime.map_err(|error| Failure::Run(RunError::System(error)))?;
    let examined: Vec<Examined> = runtime.block_on(async {
        let mut examined = Vec::new();
        for (service, is_own) in services {
            examined.push(examine(&config, service, is_own).await);
        }
        examined
    });
    // A look-up that hangs in the system's resolver must not hold up the end.
    runtime.shutdown_background();
    let healthy = examined.iter().all(Examined::is_healthy);
    let text = if args.json {
        let services: Vec<Json> = examined.iter().map(document).collect();
        let document = json!({ "schema": SCHEMA, "healthy": healthy, "services": services });
        format!("{document:#}\n")
    } else {
        let colour = io::stdout().is_terminal()
            && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        examined.iter().map(|it| page(it, colour)).collect::<Vec<_>>().join("\n")
    };
    Ok((text, healthy))
}

async fn examine(config: &Config, service: &config::ServiceConfig, is_own: bool) -> Examined {
    let listen = service.listen.iter().filter_map(proxy::ListenAddr::tcp);
    let own = if is_own {
        listen.chain(config.admin.listen.iter().copied()).collect()
    } else {
        Vec::new()
    };
    let patient = watch::patient(service, own);
    let context = Context {
        mapped: patient.address_map.keys().cloned().collect(),
        hold_timeout: Some(service.hold_timeout),
        verify: patient.verify,
    };
    let observed = doctor::examine(patient, &Resolver::default()).await;
    let findings = doctor::diagnose(&observed, &context);
    Examined { observed, findings }
}

fn why(why: &NoAnswer) -> String {
    match why {
        NoAnswer::Unresolved(why) | NoAnswer::Unreachable(why) => why.clone(),
        NoAnswer::Silent => "no answer".to_owned(),
        NoAnswer::Denied(denied) => denied.to_string(),
        NoAnswer::Stranger => "neither a sentinel nor a redis".to_owned(),
        NoAnswer::Other => "another sentinel answers here".to_owned(),
        NoAnswer::LeadsBack => "our own listener".to_owned(),
    }
}

/// One word for it, for scripts.
fn label(why: &NoAnswer) -> &'static str {
    match why {
        NoAnswer::Unresolved(_) => "unresolved",
        NoAnswer::Unreachable(_) => "unreachable",
        NoAnswer::Silent => "silent",
        NoAnswer::Denied(_) => "denied",
        NoAnswer::Stranger => "stranger",
        NoAnswer::Other => "other",
        NoAnswer::LeadsBack => "leads_back",
    }
}

fn says(account: &Account) -> String {
    match &account.says {
        Says::Unknown => "watches no such master".to_owned(),
        Says::Refused => "does not let us ask".to_owned(),
        Says::Malformed(what) => (*what).to_owned(),
        Says::Knows(word) => {
            let up = word.peers.iter().filter(|it| it.up).count();
            let state = if word.failing_over {
                ", failing over"
            } else if word.down {
                ", holds it to be down"
            } else {
                ""
            };
            let quorum = word.quorum.map_or_else(|| "?".to_owned(), |it| it.to_string());
            let (peers, replicas) = (word.peers.len(), word.replicas.len());
            format!(
                "names {} at epoch {}{state}; quorum {quorum}, {up} of {peers} peers up, {replicas} replicas",
                word.addr, word.epoch
            )
        }
    }
}

fn role(report: &Report) -> String {
    let pong = if report.pong { "" } else { ", no PONG" };
    match &report.role {
        Role::Master => format!("master{pong}"),
        Role::Replica { master, connected: true } => format!("replica of {master}{pong}"),
        Role::Replica { master, connected: false } => {
            format!("replica of {master}, without a link{pong}")
        }
        Role::Unknown => format!("its role was not asked{pong}"),
    }
}

/// For people.
fn page(examined: &Examined, colour: bool) -> String {
    let Examined { observed, findings } = examined;
    let paint = |code: &str, text: &str| {
        if colour { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    };
    let mut out = format!("{}\n", paint("1", &observed.name));
    let rows = observed.sentinels.iter().map(|it| {
        let id = it.answer.as_ref().map_or("-", |account| account.id.short());
        let text = it.answer.as_ref().map_or_else(why, says);
        (it.addr.to_string(), id.to_owned(), text, it.answer.is_ok())
    });
    table(&mut out, "sentinels", &rows.collect::<Vec<_>>(), paint);
    let rows = observed.nodes.iter().map(|it| {
        let mapped = it.dialled.map(|to| to.to_string()).filter(|to| *to != it.addr.to_string());
        let text = it.answer.as_ref().map_or_else(why, role);
        (it.addr.to_string(), mapped.unwrap_or_default(), text, it.answer.is_ok())
    });
    table(&mut out, "nodes", &rows.collect::<Vec<_>>(), paint);
    for finding in findings {
        let code = match finding.severity {
            Severity::Fault => "31",
            Severity::Warning => "33",
            Severity::Note => "36",
        };
        let head = paint(code, &finding.severity.label().to_uppercase());
        let Finding { code, about, what, remedy, .. } = finding;
        let _ = write!(out, "\n  {head} {about}: {what} ({code})\n    -> {remedy}\n");
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
        let _ = writeln!(out, "    none that could be asked");
    }
}

/// For scripts.
fn document(examined: &Examined) -> Json {
    let Examined { observed, findings } = examined;
    let sentinels = observed.sentinels.iter().map(|it| {
        let (account, trouble) = (it.answer.as_ref().ok(), it.answer.as_ref().err());
        json!({
            "addr": it.addr.to_string(),
            "configured": it.configured,
            "state": trouble.map_or("up", label),
            "problem": trouble.map(why),
            "id": account.map(|it| it.id.as_str()),
            "tilt": account.map(|it| it.tilt),
            "resp3": account.map(|it| it.resp3),
            "watches": account.map(|it| &it.watched),
            "says": account.and_then(|it| match &it.says { Says::Knows(word) => Some(said(word)), _ => None }),
        })
    });
    let nodes = observed.nodes.iter().map(|it| {
        let (report, trouble) = (it.answer.as_ref().ok(), it.answer.as_ref().err());
        json!({
            "addr": it.addr.to_string(),
            "dialled": it.dialled.map(|at| at.to_string()),
            "state": trouble.map_or("up", label),
            "problem": trouble.map(why),
            "role": report.map(|it| match it.role {
                Role::Master => "master",
                Role::Replica { .. } => "replica",
                Role::Unknown => "unknown",
            }),
            "follows": report.and_then(|it| match &it.role {
                Role::Replica { master, .. } => Some(master.to_string()),
                _ => None,
            }),
            "linked": report.and_then(|it| match it.role { Role::Replica { connected, .. } => Some(connected), _ => None }),
            "pong": report.map(|it| it.pong),
        })
    });
    let findings = findings.iter().map(|it| {
        json!({
            "severity": it.severity.label(), "code": it.code, "about": it.about, "what": it.what, "remedy": it.remedy,
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

fn said(word: &Word) -> Json {
    json!({
        "master": word.addr.to_string(),
        "epoch": word.epoch,
        "down": word.down,
        "failing_over": word.failing_over,
        "quorum": word.quorum,
        "down_after_ms": word.down_after.map(|it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX)),
        "failover_timeout_ms": word.failover_timeout.map(|it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX)),
        "peers": word.peers.iter().map(|it| json!({
            "id": it.id.as_ref().map(sentinel::MyId::as_str), "addr": it.addr.as_ref().map(ToString::to_string), "up": it.up,
        })).collect::<Vec<_>>(),
        "replicas": word.replicas.iter().map(|it| json!({
            "addr": it.addr.to_string(), "down": it.down, "linked": it.linked, "priority": it.priority,
        })).collect::<Vec<_>>(),
        "failover_possible": word.ckquorum.as_ref().map(Result::is_ok),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sentinel::NodeAddr;
    use sentinel::doctor::ObservedSentinel;

    use super::*;

    fn examined() -> Examined {
        let addr = NodeAddr { host: "10.0.0.2".into(), port: 26379 };
        let answer = Err(NoAnswer::Unreachable("cannot connect: refused".to_owned()));
        let observed = Observed {
            name: Arc::from("mymaster"),
            sentinels: vec![ObservedSentinel { addr, configured: true, answer }],
            nodes: Vec::new(),
        };
        let findings = doctor::diagnose(&observed, &Context::default());
        Examined { observed, findings }
    }

    #[test]
    fn a_page_shows_who_said_what_and_what_to_do_and_colours_only_on_request() {
        let page = page(&examined(), false);
        assert!(page.contains("    10.0.0.2:26379  -  cannot connect: refused\n"), "{page}");
        assert!(
            page.contains(
                "  FAULT 10.0.0.2:26379: cannot connect: refused (unreachable)\n    -> check that"
            ),
            "{page}"
        );
        assert!(page.ends_with("2 faults, 0 warnings\n") && !page.contains('\u{1b}'), "{page}");
        assert!(super::page(&examined(), true).contains("\u{1b}[31mFAULT\u{1b}[0m"));
    }

    #[test]
    fn a_document_has_the_same_for_scripts() {
        let document = document(&examined());
        assert_eq!(document["healthy"], json!(false));
        assert_eq!(document["sentinels"][0]["state"], json!("unreachable"));
        assert_eq!(document["findings"][0]["severity"], json!("fault"));
    }
}
