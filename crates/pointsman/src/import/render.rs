//! The plan as TOML, each value with the line that it comes from.

use std::fmt::Write as _;

use super::Place;
use super::checks::{Login, Password};
use super::plan::{Plan, Service, Setting};

/// The whole text.
pub(super) fn render(plan: &Plan, files: &[&str]) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "# Made by `pointsman import haproxy` from {}.", clean(&files.join(", ")));
    out.push_str(
        "# Check it with `pointsman check --config FILE`; `pointsman config --config FILE` explains every key and shows the\n\
         # defaults of those that are not here.\n",
    );
    if plan
        .services
        .iter()
        .any(|service| [&service.login, &service.sentinel_login].into_iter().flatten().any(is_literal))
    {
        out.push_str(
            "# IT HOLDS PASSWORDS: keep it readable for its user only, or put them into files (password_file).\n",
        );
    }
    for service in &plan.services {
        render_service(&mut out, service);
    }
    out.push_str("\n[admin]\n");
    if plan.admin.is_empty() {
        out.push_str("# /alive /ready /startup /metrics /status; this is the default\nlisten = [\"0.0.0.0:8888\"]\n");
    } else {
        out.push_str("# /alive /ready /startup /healthz /metrics /status, on each of them\n");
        list(&mut out, "listen", plan.admin.iter().map(|(addr, place)| (addr.to_string(), Some(place))));
    }
    for (header, settings) in [("shutdown", &plan.shutdown), ("process", &plan.process)] {
        if !settings.is_empty() {
            let _ = writeln!(out, "\n[{header}]");
            settings.iter().for_each(|setting| line(&mut out, setting));
        }
    }
    out
}

fn render_service(out: &mut String, service: &Service) {
    out.push('\n');
    for remark in &service.remarks {
        let _ = writeln!(out, "# {remark}");
    }
    out.push_str("[[service]]\n");
    let _ = writeln!(out, "name = {}{}", quote(&service.name), from(service.named_at.as_ref()));
    list(out, "listen", service.listen.iter().map(|(addr, place)| (addr.to_string(), Some(place))));
    let sentinels = service.sentinels.iter().map(ToString::to_string);
    let first = std::iter::once(service.sentinels_at.as_ref()).chain(std::iter::repeat(None));
    list(out, "sentinels", sentinels.zip(first));
    service.settings.iter().for_each(|setting| line(out, setting));
    if !service.replica_listen.is_empty() {
        out.push_str("# readers, spread over the replicas\n");
        list(out, "replica_listen", service.replica_listen.iter().map(|(addr, place)| (addr.to_string(), Some(place))));
    }
    for (table, login) in [("auth", &service.login), ("sentinel_auth", &service.sentinel_login)] {
        if let Some(login) = login {
            render_login(out, table, login);
        }
    }
}

fn render_login(out: &mut String, table: &str, login: &Login) {
    let key = match &login.password {
        Password::Literal(text) => format!("password = {}", quote(text)),
        Password::Variable(name) => format!("password_env = {}", quote(name)),
        Password::Mixed => return,
    };
    let _ = writeln!(out, "\n[service.{table}]");
    if let Some(user) = &login.user {
        let _ = writeln!(out, "username = {}", quote(user));
    }
    let _ = writeln!(out, "{key}{}", from(Some(&login.place)));
}

fn line(out: &mut String, setting: &Setting) {
    let _ = writeln!(out, "{} = {}{}", setting.key, setting.value, from(Some(&setting.place)));
}

fn list<'a>(out: &mut String, key: &str, items: impl Iterator<Item = (String, Option<&'a Place>)>) {
    let _ = writeln!(out, "{key} = [");
    for (item, place) in items {
        let _ = writeln!(out, "    {},{}", quote(&item), from(place));
    }
    out.push_str("]\n");
}

fn from(place: Option<&Place>) -> String {
    place.map(|place| format!("  # {}", clean(&place.to_string()))).unwrap_or_default()
}

fn is_literal(login: &Login) -> bool {
    matches!(login.password, Password::Literal(_))
}

/// TOML itself decides what has to be escaped and how.
fn quote(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// A comment of TOML may not hold control characters, and the path of a file may.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
