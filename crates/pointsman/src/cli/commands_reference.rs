//! The reference of commands for users, `docs/commands.md`: what becomes of a session that sent
//! each of them.
//!
//! Made from the table that classifies requests; a test compares.

use std::fmt::Write as _;

use proxy::{CarryEffect, ListedCommand, Pin};

/// The state of a session that nothing pins, in metrics and in the status.
pub const ORDINARY: &str = "ordinary";

/// The reference.
#[must_use]
pub fn reference() -> String {
    let mut out = INTRODUCTION.to_owned();
    out.push_str("\n## Commands with an effect on their session\n\n| Command | Session | Why |\n|---|---|---|\n");
    let (ordinary, special): (Vec<ListedCommand>, Vec<ListedCommand>) =
        proxy::listed_commands().into_iter().partition(|it| it.ordinary);
    for ListedCommand { name, effect, reason, .. } in special {
        let effect = match effect {
            CarryEffect::Carried => "carried".to_owned(),
            CarryEffect::Until(what) => format!("pinned until {what}"),
            CarryEffect::Never => "never carried".to_owned(),
            CarryEffect::Ends => "ends".to_owned(),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(out, "| `{name}` | {effect} | {reason} |");
    }
    out.push_str(
        "\n## Commands without one\n\nA session that sent only these is carried over: they leave no state on the connection. What they \
         change in the data is\nreplicated like any write. Where a container is listed (`XGROUP`), all of its subcommands are meant.\n",
    );
    for (title, prefixes) in FAMILIES {
        let of = |it: &&ListedCommand| match prefixes {
            [] => !FAMILIES
                .iter()
                .any(|(_, all)| all.iter().any(|prefix| it.name.starts_with(prefix))),
            prefixes => prefixes.iter().any(|prefix| it.name.starts_with(prefix)),
        };
        let names: Vec<String> =
            ordinary.iter().filter(of).map(|it| format!("`{}`", it.name)).collect();
        let _ = write!(out, "\n### {title}\n\n{}\n", wrapped(&names));
    }
    out.push_str(STATES);
    for pin in Pin::ALL {
        let _ = writeln!(out, "| `{}` | {} |", pin.label(), pin.meaning());
    }
    out
}

/// Commands of modules begin with the module's name.
const FAMILIES: &[(&str, &[&str])] = &[
    ("Redis and Valkey", &[]),
    ("Search", &["FT."]),
    ("JSON", &["JSON."]),
    ("Probabilistic", &["BF.", "CF.", "CMS.", "TDIGEST.", "TOPK."]),
    ("Time series", &["TS."]),
];

/// Names with commas, in lines of about a hundred characters.
fn wrapped(names: &[String]) -> String {
    const WIDTH: usize = 110;
    let mut lines = vec![String::new()];
    for (at, name) in names.iter().enumerate() {
        let word = if at + 1 < names.len() { format!("{name},") } else { name.clone() };
        match lines.last_mut() {
            Some(line) if line.is_empty() => *line = word,
            Some(line) if line.len() + word.len() < WIDTH => {
                line.push(' ');
                line.push_str(&word);
            }
            _ => lines.push(word),
        }
    }
    lines.join("\n")
}

const INTRODUCTION: &str = "\
# Commands and failovers

Made from the table of commands in `crates/resp`; a test compares, and `UPDATE=1 cargo test --test deploy` writes it anew. The table holds
the commands of Redis 7.0 to 8.10, of Valkey to 9.1, and of the modules that come with Redis 8.

With `sessions = \"carry\"`, which is the default, a failover does not close a client's connection if Pointsman can connect the session
to the new master in the state that it was in: user, database, protocol version, names and switches are set again there, and the client
notices nothing but a pause. This page says for each command whether a session that sent it can be **carried** over like this.

- **carried**: the command does not stand in the way.
- **pinned until**: the session relies on something that only its server has. It is carried again after the event in the table.
- **never carried**: the same for the rest of the connection.

A session that is pinned when its master is replaced is closed. So is one with a request in flight, because only its client can know
whether to repeat it. Clients see a closed connection, as with any failover without Pointsman, and client libraries connect again.

**A command that is not listed here** is forwarded like any other, and pins its session for the rest of the connection: it may belong
to another module or to a newer server, and what it leaves on the connection is not known. A command that `rename-command` has renamed is
such a command, too, under its new name. If you know that a command leaves nothing on its connection (it opens no cursor, no transaction and
no subscription, and has no effect on later commands of the same connection), declare it:

```toml
[[service]]
sentinels = [\"redis-sentinel:26379\"]
stateless_commands = [\"GRAPH.QUERY\", \"MYMODULE.GET\", \"CONTAINER|SUBCOMMAND\"]
```

Case does not matter. Commands that the table knows to leave state are refused. The list can be changed by a reload and holds for sessions
that begin afterwards. Which sessions are pinned, and by what, is in `pointsman status`, on the status page and in the metric
`pointsman_sessions`; the log line at the end of a session that was closed for an unknown command names it (`unknown_command`).

Readers (`replica_listen`) are carried by the same rules, from one replica to another.
";

const STATES: &str = "
## States

What `pointsman status` and `pointsman_sessions{state=...}` call the reasons for which a session would be closed at a failover; of several
reasons a session is counted under one. All other sessions are `ordinary`. The same words, and a few more, are the reasons of
`pointsman_sessions_not_carried_total`: `in_flight` (a request or a reply was under way), `disabled` (`sessions = \"close\"`), `refused` (the
new master did not accept the session's state), `no_server` (there was none within `hold_timeout`) and `closed_by_server` (the server closed
this connection and still answers others, as after `CLIENT KILL`).

| State | Meaning |
|---|---|
";
