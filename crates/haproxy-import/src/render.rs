//! Writes the plan as TOML; a comment beside each value names the line that it comes from.

use std::fmt::Write as _;

use crate::Position;
use crate::health_check::{CheckLogin, Password};
use crate::plan::{Plan, PlannedKey, PlannedListen, PlannedService};
use crate::tokenizer::clean;

/// The configuration file.
pub(super) fn render(plan: &Plan<'_>, files: &[&str]) -> String {
    let mut out = String::new();
    let _ =
        writeln!(out, "# Made by `pointsman import haproxy` from {}.", clean(&files.join(", ")));
    out.push_str(
        "# Check it with `pointsman check --config FILE`. `pointsman config --config FILE` explains\n\
         # every key and shows the defaults of all others.\n",
    );
    let logins = plan
        .services
        .iter()
        .flat_map(|service| service.login.iter().chain(&service.sentinel_login));
    if logins.into_iter().any(|login| matches!(login.password, Password::Literal(_))) {
        out.push_str(
            "# CONTAINS PASSWORDS: keep it private, or move them into files (password_file).\n",
        );
    }
    if !plan.plaintext.is_empty() {
        out.push_str("#\n# WITHOUT TLS, which haproxy used here (--allow-plaintext):\n");
        for (position, loss) in &plan.plaintext {
            let _ = writeln!(out, "#   {}: {loss}", clean(&position.to_string()));
        }
    }
    for service in &plan.services {
        render_service(&mut out, service);
    }
    out.push_str("\n[admin]\n");
    if plan.admin.is_empty() {
        out.push_str("# /alive /ready /startup /metrics /status, by default for this host only:\n");
        out.push_str("# listen = [\"127.0.0.1:8888\"]\n");
    } else {
        out.push_str("# /alive /ready /startup /healthz /metrics /status, on each of them\n");
        let listen = plan.admin.iter().map(|it| (it.addr.to_string(), Some(&it.position)));
        list(&mut out, "listen", listen);
    }
    for (header, keys) in [("shutdown", &plan.shutdown), ("process", &plan.process)] {
        if !keys.is_empty() {
            let _ = writeln!(out, "\n[{header}]");
            keys.iter().for_each(|it| write_key(&mut out, it));
        }
    }
    out
}

fn render_service(out: &mut String, service: &PlannedService<'_>) {
    out.push('\n');
    for comment in &service.comments {
        let _ = writeln!(out, "# {comment}");
    }
    out.push_str("[[service]]\n");
    let master = &service.first.master;
    if service.name != *master {
        let _ = writeln!(out, "name = {}", quote(&service.name));
    }
    let key = if service.name == *master { "name" } else { "master" };
    let named_at = service.first.named_at.as_ref();
    let _ = writeln!(out, "{key} = {}{}", quote(master), from(named_at));
    // The key has a default, so it is written even if every address has TLS.
    listen(out, "listen", &service.listen, false);
    if service.listen.iter().any(|it| it.has_tls) {
        listen(out, "tls_listen", &service.listen, true);
    }
    let first = std::iter::once(service.sentinels_at.as_ref()).chain(std::iter::repeat(None));
    list(out, "sentinels", service.sentinels.iter().cloned().zip(first));
    // haproxy names servers as it dials them, which need not be what the sentinels announce.
    out.push_str("# nothing outside of these networks is dialled, whatever sentinels announce:\n");
    out.push_str("# nodes = [\"10.0.0.0/8\"]\n");
    service.keys.iter().for_each(|it| write_key(out, it));
    for (key, with_tls) in [("replica_listen", false), ("replica_tls_listen", true)] {
        if service.replica_listen.iter().any(|it| it.has_tls == with_tls) {
            out.push_str("# for readers, spread over the replicas\n");
            listen(out, key, &service.replica_listen, with_tls);
        }
    }
    for (table, login) in [("auth", &service.login), ("sentinel_auth", &service.sentinel_login)] {
        if let Some(login) = login {
            render_login(out, table, login);
        }
    }
    for (table, keys) in &service.tables {
        let _ = writeln!(out, "\n[service.{table}]");
        keys.iter().for_each(|it| write_key(out, it));
    }
}

/// The addresses with or without TLS.
fn listen(out: &mut String, key: &str, listen: &[PlannedListen], with_tls: bool) {
    let of = listen.iter().filter(|it| it.has_tls == with_tls);
    list(out, key, of.map(|it| (it.addr.to_string(), Some(&it.position))));
}

fn render_login(out: &mut String, table: &str, login: &CheckLogin) {
    let password = match &login.password {
        Password::Literal(text) => format!("password = {}", quote(text)),
        Password::Variable(name) => format!("password_env = {}", quote(name)),
        Password::Computed => return,
    };
    let _ = writeln!(out, "\n[service.{table}]");
    if let Some(user) = &login.user {
        let _ = writeln!(out, "username = {}", quote(user));
    }
    let _ = writeln!(out, "{password}{}", from(Some(&login.position)));
}

fn write_key(out: &mut String, planned: &PlannedKey) {
    let _ = writeln!(out, "{} = {}{}", planned.key, planned.value, from(Some(&planned.position)));
}

fn list<'a>(
    out: &mut String,
    key: &str,
    items: impl Iterator<Item = (String, Option<&'a Position>)>,
) {
    let _ = writeln!(out, "{key} = [");
    for (item, position) in items {
        let _ = writeln!(out, "    {},{}", quote(&item), from(position));
    }
    out.push_str("]\n");
}

fn from(position: Option<&Position>) -> String {
    position.map(|position| format!("  # {}", clean(&position.to_string()))).unwrap_or_default()
}

/// TOML decides what has to be escaped.
pub(super) fn quote(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}
