//! Limits and timeouts that Pointsman has keys for.

use std::time::Duration;

use crate::config_file::ConfigFile;
use crate::plan::{Plan, PlannedKey, PlannedService, Planner};
use crate::proxies::RedisListener;
use crate::report::{LineOutcome, Notes};
use crate::sections::{Directive, SectionKind};
use crate::values;

/// Linux forgets half-closed connections after 60 s, so the key accepts less than that.
const MAX_HALF_CLOSE: Duration = Duration::from_secs(59);
/// Pointsman's default of `shutdown.drain_spread`, which must not exceed the drain timeout.
const DEFAULT_SPREAD: Duration = Duration::from_secs(5);
/// The longest duration that a key accepts.
const MAX_DURATION: Duration = Duration::from_secs(7 * 24 * 3600);
/// The most connections that a key accepts.
const MAX_CONNECTIONS: u64 = 1_000_000;
/// The most worker threads that a key accepts.
const MAX_WORKERS: u64 = 256;

impl Planner<'_> {
    /// Adds limits and timeouts of the sections.
    pub(super) fn add_settings(&mut self, plan: &mut Plan<'_>) {
        let (config, notes) = (self.config, &mut self.notes);
        let global = config.sections.iter().filter(|section| section.kind == SectionKind::Global);
        for directive in global.flat_map(|section| &section.directives) {
            process_key(directive, plan, notes);
        }
        for service in &mut plan.services {
            for listener in &service.masters {
                service_keys(config, listener, &mut service.keys, notes);
            }
        }
        fit_connections(plan, notes);
    }
}

fn service_keys(
    config: &ConfigFile,
    listener: &RedisListener,
    keys: &mut Vec<PlannedKey>,
    notes: &mut Notes,
) {
    let front = listener.section;
    let back = listener.backends.first().copied().unwrap_or(front);
    let timeout = |section, words: &str, max: Duration| {
        let directive = config.setting(section, words)?;
        let time = values::duration(&directive.word(words.split(' ').count()))?;
        let is_valid = !time.is_zero() && time <= MAX_DURATION;
        is_valid.then(|| (directive, quoted(time.min(max))))
    };
    let connect = timeout(back, "timeout connect", MAX_DURATION);
    let limit = config.setting(front, "maxconn");
    for (key, found) in [
        ("connect_timeout", connect.or_else(|| timeout(back, "contimeout", MAX_DURATION))),
        ("half_close_timeout", timeout(front, "timeout client-fin", MAX_HALF_CLOSE)),
        ("tcp_keepalive", timeout(front, "clitcpka-idle", MAX_DURATION)),
        ("max_connections", limit.and_then(|it| Some((it, count(it, MAX_CONNECTIONS)?)))),
    ] {
        let Some((directive, value)) = found else { continue };
        notes.add(directive, LineOutcome::Mapped, &format!("service.{key} = {value}"));
        if !keys.iter().any(|known| known.key == key) {
            keys.push(PlannedKey { key, value, position: directive.position.clone() });
        }
    }
    if let Some(directive) = config.setting(back, "timeout connect")
        && values::duration(&directive.word(2)).is_none_or(|time| time.is_zero())
    {
        let note = "0 or unreadable: service.connect_timeout keeps its default";
        notes.add(directive, LineOutcome::Unneeded, note);
    }
}

fn process_key(directive: &Directive, plan: &mut Plan<'_>, notes: &mut Notes) {
    let time = values::duration(&directive.word(1)).filter(|time| *time <= MAX_DURATION);
    let spread = time.filter(|time| *time < DEFAULT_SPREAD);
    for (keyword, table, key, value) in [
        ("maxconn", "process", "max_connections", count(directive, MAX_CONNECTIONS)),
        ("nbthread", "process", "workers", count(directive, MAX_WORKERS)),
        ("hard-stop-after", "shutdown", "drain_timeout", time.map(quoted)),
        ("hard-stop-after", "shutdown", "drain_spread", spread.map(quoted)),
    ] {
        let Some(value) = value.filter(|_| directive.begins(keyword)) else { continue };
        notes.add(directive, LineOutcome::Mapped, &format!("{table}.{key} = {value}"));
        let list = if table == "process" { &mut plan.process } else { &mut plan.shutdown };
        list.retain(|known| known.key != key);
        list.push(PlannedKey { key, value, position: directive.position.clone() });
    }
}

/// haproxy accepts limits of listeners that add up to more than the limit of the process. Pointsman
/// does not, so the limit of the process wins.
fn fit_connections(plan: &mut Plan<'_>, notes: &mut Notes) {
    let limit = |list: &[PlannedKey]| {
        let found = list.iter().find(|it| it.key == "max_connections");
        found.and_then(|it| it.value.parse::<u64>().ok())
    };
    let Some(total) = limit(&plan.process) else { return };
    // Readers have the same limit as the master's clients, and count separately.
    let listeners =
        |service: &PlannedService<'_>| if service.replica_listen.is_empty() { 1 } else { 2 };
    let sum: u64 =
        plan.services.iter().map(|it| limit(&it.keys).unwrap_or(1) * listeners(it)).sum();
    // A single listener has the limit of the process in haproxy as well.
    let is_one = matches!(plan.services.as_slice(), [one] if one.replica_listen.is_empty());
    let outcome = if is_one { LineOutcome::Unneeded } else { LineOutcome::Assumed };
    if sum > total {
        for service in &mut plan.services {
            let note =
                "the limits of the listeners exceed process.max_connections, which alone is kept";
            for line in service.keys.extract_if(.., |it| it.key == "max_connections") {
                notes.replace(&line.position, outcome, note);
            }
            service.comments.push(format!("max_connections: {note}."));
        }
    }
}

fn count(directive: &Directive, max: u64) -> Option<String> {
    let count: u64 = directive.word(1).parse().ok()?;
    (1..=max).contains(&count).then(|| count.to_string())
}

fn quoted(time: Duration) -> String {
    format!("\"{}\"", values::format_duration(time))
}
