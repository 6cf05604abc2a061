//! Generates `docs/commands.md`, the reference of commands: what happens to a session that sent
//! each of them.
//!
//! The source is the table that classifies requests; a test compares.

use std::fmt::Write as _;

use proxy::{CarryEffect, ListedCommand, Pin};

/// Returns the page.
pub(crate) fn page() -> String {
    let mut out = INTRODUCTION.to_owned();
    out.push_str("\n## Commands with an effect on their session\n\n");
    out.push_str("| Command | Session | Why |\n|---|---|---|\n");
    let mut rows: Vec<(String, Vec<String>)> = Vec::new();
    let special = proxy::listed_commands().into_iter().filter(|it| !it.ordinary);
    for ListedCommand { name, effect, reason, .. } in special {
        let effect = match effect {
            CarryEffect::Carried => "carried".to_owned(),
            CarryEffect::Until(what) => format!("pinned until {what}"),
            CarryEffect::Never => "never carried".to_owned(),
            CarryEffect::Ends => "ends".to_owned(),
        };
        let (row, name) = (format!("{effect} | {reason}"), format!("`{name}`"));
        match rows.iter_mut().find(|(known, _)| *known == row) {
            Some((_, names)) => names.push(name),
            None => rows.push((row, vec![name])),
        }
    }
    for (row, names) in rows {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "| {} | {row} |", names.join(", "));
    }
    out.push_str(STATES);
    for pin in Pin::ALL {
        let _ = writeln!(out, "| `{}` | {} |", pin.label(), pin.meaning());
    }
    out
}

const INTRODUCTION: &str = "\
# Commands and failovers

This page is generated from the command table in `crates/resp`; a test compares them, and
`UPDATE=1 cargo test --test docs` writes it. The table contains the commands of Redis 7.0 to 8.10,
of Valkey to 9.1, and of the modules that come with Redis 8. The servers in
[Compatibility](compatibility.md) were asked for theirs. Newer ones are in the table by name only,
among them most of Redis 8.12: `SADDEX`, the `SEXPIRE` family, `ZMOVE`, `BZMOVE`, `ZMOVEMEMBER` and
`BITRANGEINTARRAY`. `BACKUP` and `BLESS` are unknown.

The page states whether a session that sent a command can be **carried** over to the next master
([What is carried over](clients.md#what-is-carried-over)). Readers are carried by the same rules,
from one replica to another.

- **carried**: the command does not prevent it.
- **pinned until**: the session depends on state that only its server has, until the event in the
  table.
- **never carried**: the same for the rest of the connection.

**A command that Pointsman does not know** is forwarded like any other. With `verify = \"role\"`, the
default, Pointsman asks each new master for its commands (`COMMAND LIST`, then `COMMAND INFO` for
those that it does not know, as its own user, which needs `+command|list` and `+command|info`). A
command that works on keys and has none of the flags `admin`, `blocking`, `module`, `no_multi`,
`noscript` and `pubsub`, no category of connections or transactions, and no `SCAN`, `CURSOR` or
`ITER` in its name is **carried**; the log names it.

Every other unknown command pins its session for the rest of the connection: it may belong to a
module or be renamed. The log line of a session that was closed for it names it. If it leaves no
state on its connection (no cursor, no transaction, no subscription, no effect on later commands),
declare it; a reload applies to sessions that begin afterwards:

```toml
[[service]]
sentinels = [\"redis-sentinel:26379\"]
stateless_commands = [\"GRAPH.QUERY\", \"MYMODULE.GET\", \"CONTAINER|SUBCOMMAND\"]
```
";

const STATES: &str = "
## Commands without an effect on their session

A session that sent only other commands of these servers and of their modules (`FT.`, `JSON.`,
`BF.`, `CF.`, `CMS.`, `TDIGEST.`, `TOPK.`, `TS.`) is carried over, since they leave no state on the
connection. The names are in `crates/resp/testdata/commands.txt`.

## States

The reasons for which a failover would close a session, as named in `pointsman status` and
`pointsman_sessions_by_state{state=...}`; a session with several reasons is counted under one. All
other sessions are `ordinary`. `pointsman_sessions_not_carried_total` uses the same labels, and
also `in_flight` (a request or a reply was in transit), `disabled` (`sessions = \"close\"`),
`refused` (the new master did not accept the session's state), `no_server` (none was available
within `hold_timeout`) and `closed_by_server` (the server closed this connection and still answers
on others, as after `CLIENT KILL`).

| State | Meaning |
|---|---|
";
