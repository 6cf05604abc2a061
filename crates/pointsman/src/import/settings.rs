//! Bounds and times: what of them has a key here.

use std::time::Duration;

use super::account::{Account, Verdict};
use super::plan::{Plan, Service, Setting, lacks};
use super::proxies::{self, Listener};
use super::sections::{Book, Directive, Kind};
use super::units;

/// Linux forgets half-closed connections after 60 s, so the configuration takes less.
const LONGEST_HALF_CLOSE: Duration = Duration::from_secs(59);
/// How long idle sessions are spread over unless told otherwise; a shorter drain has to shorten it.
const DEFAULT_SPREAD: Duration = Duration::from_secs(5);
/// When accepting ends at the latest unless told otherwise.
const DEFAULT_ACCEPT_MAX: Duration = Duration::from_secs(15);
/// The longest time that a key takes.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);
/// The most connections that a key takes.
const MOST_CONNECTIONS: u64 = 1_000_000;
/// The most worker threads.
const MOST_WORKERS: u64 = 256;

/// Adds to the plan what the sections say of bounds and times.
pub(super) fn apply(book: &Book, listeners: &[(usize, &Listener)], plan: &mut Plan, account: &mut Account) {
    for (at, section) in book.sections.iter().enumerate() {
        if section.kind == Kind::Global {
            section.directives.iter().for_each(|directive| of_process(directive, plan, account));
        }
        for server in proxies::servers(book, at) {
            if let Some(loss) = lacks(server.directive) {
                account.overrule(server.directive, Verdict::Unmatched, loss);
            }
        }
    }
    for (section, listener) in listeners {
        let binds: Vec<_> = book.effective(*section).filter(|it| it.begins(&["bind"])).map(|it| &it.place).collect();
        let service = plan.services.iter_mut().find(|it| it.listen.iter().any(|(_, place)| binds.contains(&place)));
        if let Some(service) = service {
            let backend = listener.backends.first().copied().unwrap_or(*section);
            of_service(book, (*section, backend), &mut service.settings, account);
        }
    }
    fit_connections(plan);
}

fn of_service(book: &Book, (front, back): (usize, usize), settings: &mut Vec<Setting>, account: &mut Account) {
    let mut add = |key, directive: &Directive, value: String| {
        account.note(directive, Verdict::Mapped, &format!("service.{key} = {value}"));
        if !settings.iter().any(|setting| setting.key == key) {
            settings.push(Setting { key, value, place: directive.place.clone() });
        }
    };
    let timed = |section, words: &[&str], at| {
        let directive = book.setting(section, words)?;
        let time = units::duration(&directive.word(at)).filter(|time| !time.is_zero() && *time <= LONGEST)?;
        Some((directive, time))
    };
    if let Some((directive, time)) = timed(back, &["timeout", "connect"], 2) {
        add("connect_timeout", directive, quoted(time));
    }
    if let Some((directive, time)) = timed(front, &["timeout", "client-fin"], 2) {
        add("half_close_timeout", directive, quoted(time.min(LONGEST_HALF_CLOSE)));
    }
    if let Some((directive, time)) = timed(front, &["clitcpka-idle"], 1) {
        add("tcp_keepalive", directive, quoted(time));
    }
    if let Some(directive) = book.setting(front, &["maxconn"])
        && let Some(count) = count(directive, MOST_CONNECTIONS)
    {
        add("max_connections", directive, count.to_string());
    }
}

fn of_process(directive: &Directive, plan: &mut Plan, account: &mut Account) {
    let time = || units::duration(&directive.word(1)).filter(|time| *time <= LONGEST);
    let mut add = |list: &mut Vec<Setting>, section: &str, key, value: String| {
        account.note(directive, Verdict::Mapped, &format!("{section}.{key} = {value}"));
        list.retain(|setting| setting.key != key);
        list.push(Setting { key, value, place: directive.place.clone() });
    };
    if directive.begins(&["maxconn"])
        && let Some(count) = count(directive, MOST_CONNECTIONS)
    {
        add(&mut plan.process, "process", "max_connections", count.to_string());
    } else if directive.begins(&["nbthread"])
        && let Some(count) = count(directive, MOST_WORKERS)
    {
        add(&mut plan.process, "process", "workers", count.to_string());
    } else if directive.begins(&["hard-stop-after"])
        && let Some(time) = time()
    {
        add(&mut plan.shutdown, "shutdown", "drain_timeout", quoted(time));
        if time < DEFAULT_SPREAD {
            add(&mut plan.shutdown, "shutdown", "drain_spread", quoted(time));
        }
    } else if directive.begins(&["grace"])
        && let Some(time) = time()
    {
        add(&mut plan.shutdown, "shutdown", "accept_min", quoted(time));
        if time > DEFAULT_ACCEPT_MAX {
            add(&mut plan.shutdown, "shutdown", "accept_max", quoted(time));
        }
    }
}

/// haproxy takes bounds of listeners that add up to more than the process may have; here that is a fault, so the process's bound wins.
fn fit_connections(plan: &mut Plan) {
    let read = |list: &[Setting]| {
        list.iter().find(|it| it.key == "max_connections").and_then(|it| it.value.parse::<u64>().ok())
    };
    let Some(total) = read(&plan.process) else { return };
    // Readers count by themselves, and as many as the others.
    let planes = |service: &Service| if service.replica_listen.is_empty() { 1 } else { 2 };
    let sum: u64 = plan.services.iter().map(|it| read(&it.settings).unwrap_or(1) * planes(it)).sum();
    if sum > total {
        for service in &mut plan.services {
            service.settings.retain(|setting| setting.key != "max_connections");
            let text = "The bounds of the listeners exceed that of the process, which alone is kept.";
            service.remarks.push(text.to_owned());
        }
    }
}

fn count(directive: &Directive, most: u64) -> Option<u64> {
    directive.word(1).parse().ok().filter(|count| (1..=most).contains(count))
}

fn quoted(time: Duration) -> String {
    format!("\"{}\"", units::spelled(time))
}
