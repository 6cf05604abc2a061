//! How each request is handled: the built-in table, corrected by the server's own.
//!
//! A server can give the name of an ordinary command to one that changes its connection, by
//! `rename-command`. The list that `COMMAND` shows has the original names, so it does not tell.
//! `COMMAND INFO` looks each name up as a request does: it is asked about every command that the
//! built-in table shares. One that turns out to be another command is not shared, nor one with a
//! flag or category that excludes it. So the server's table only makes the built-in one stricter.
//!
//! A command that the server does not have stays as it is: its reply is one error. Commands that
//! the built-in table does not know are not asked about: each gets a connection of its own.
//!
//! The operator's list of stateless commands is not enough to share a command: it says that the
//! command leaves nothing on its connection, not that it does not block it.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use resp::{CommandInfo, PromotionReason, Sharing, listed_commands, sharing_of};

/// Flags and categories of a command that may not be shared. `pubsub` alone is that of `PUBLISH`,
/// too, but scripts may call `PUBLISH`.
const EXCLUDING: [&str; 8] = [
    "blocking",
    "admin",
    "module",
    "no_multi",
    "noscript",
    "@blocking",
    "@connection",
    "@transaction",
];

/// Commands with such a flag that the built-in table shares. Scripts do not nest, `ROLE` is a
/// query, and the three others belong to connections only by category.
const EXPECTED: [(&str, &str); 10] = [
    ("COMMAND", "@connection"),
    ("ECHO", "@connection"),
    ("EVAL", "noscript"),
    ("EVALSHA", "noscript"),
    ("EVALSHA_RO", "noscript"),
    ("EVAL_RO", "noscript"),
    ("FCALL", "noscript"),
    ("FCALL_RO", "noscript"),
    ("PING", "@connection"),
    ("ROLE", "noscript"),
];

/// How requests are handled.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Commands {
    /// Commands that the built-in table shares and the server's table excludes, in upper case.
    excluded: BTreeSet<Vec<u8>>,
}

/// The names that a server is asked about, in upper case: those of all shared commands, and of
/// commands with subcommands that are shared.
pub(crate) static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let listed = listed_commands().into_iter().map(|command| command.name);
    let shared = listed.filter(|name| {
        matches!(sharing_of(name), Sharing::Shared | Sharing::SharedScript)
            // Their arguments decide.
            || ["SCAN", "HSCAN", "SSCAN", "ZSCAN"].contains(&name.as_str())
    });
    let first = |name: String| name.split(' ').next().unwrap_or_default().to_owned();
    shared.map(first).collect::<BTreeSet<String>>().into_iter().collect()
});

impl Commands {
    /// The built-in table, corrected by what the server says of the names it was asked about, in
    /// their order; `None` for a command that it does not have.
    pub(crate) fn new(server: &[Option<CommandInfo>]) -> Self {
        let answered = NAMES.iter().zip(server);
        let excluded = answered.filter_map(|(name, command)| {
            let command = command.as_ref()?;
            let renamed = !command.name.eq_ignore_ascii_case(name);
            let flags = command.flags.iter().map(String::as_str).collect();
            (renamed || excludes(name, &flags)).then(|| name.clone().into_bytes())
        });
        Self { excluded: excluded.collect() }
    }

    /// Whether every request is handled as the built-in table says, which then need not be
    /// corrected.
    pub(crate) fn is_built_in(&self) -> bool {
        self.excluded.is_empty()
    }

    /// The number of commands that the server's table excludes.
    pub(crate) fn excluded(&self) -> usize {
        self.excluded.len()
    }

    /// How a request with that name is handled, for which the built-in table says `built_in`.
    pub(crate) fn correct(&self, name: &[u8], built_in: Sharing) -> Sharing {
        match built_in {
            Sharing::Shared | Sharing::SharedScript
                if self.excluded.contains(&name.to_ascii_uppercase()) =>
            {
                Sharing::Promotes(PromotionReason::ServerTable)
            }
            _ => built_in,
        }
    }
}

fn excludes(name: &str, flags: &BTreeSet<&str>) -> bool {
    EXCLUDING.iter().any(|flag| flags.contains(flag) && !EXPECTED.contains(&(name, *flag)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that says this of some names, and has no other command.
    fn commands(special: &[(&str, &str, &str)]) -> Commands {
        let say = |name: &String| {
            let said = special.iter().find(|(asked, ..)| *asked == *name);
            said.map(|(_, name, flags)| CommandInfo {
                name: (*name).to_owned(),
                flags: flags.split_whitespace().map(str::to_owned).collect(),
                ..CommandInfo::default()
            })
        };
        Commands::new(&NAMES.iter().map(say).collect::<Vec<_>>())
    }

    const EXCLUDED: Sharing = Sharing::Promotes(PromotionReason::ServerTable);

    #[test]
    fn asks_about_every_shared_command() {
        let names = &*NAMES;
        assert!(names.len() > 200 && names.is_sorted(), "{}", names.len());
        for name in ["GET", "EVALSHA", "SCAN", "SCRIPT", "XGROUP", "FLUSHALL", "PING"] {
            assert!(names.iter().any(|it| it == name), "{name}");
        }
        for name in ["MULTI", "SUBSCRIBE", "SELECT", "CLIENT", "BLPOP"] {
            assert!(names.iter().all(|it| it != name), "{name}");
        }
    }

    #[test]
    fn excludes_renamed_commands_and_excluding_flags() {
        let it = commands(&[
            // `rename-command SUBSCRIBE GET`.
            ("GET", "subscribe", "readonly fast"),
            ("SET", "set", "write denyoom @write @string"),
            // A version in which it blocks.
            ("DEL", "del", "write blocking"),
            ("PING", "ping", "fast @fast @connection"),
            ("PUBLISH", "PUBLISH", "pubsub loading stale fast @pubsub"),
            ("EVALSHA", "evalsha", "noscript stale"),
            ("ROLE", "role", "noscript loading stale fast"),
        ]);
        for name in [&b"Get"[..], b"del"] {
            assert_eq!(it.correct(name, Sharing::Shared), EXCLUDED);
        }
        for name in [&b"set"[..], b"ping", b"publish", b"evalsha", b"role", b"append"] {
            assert_eq!(it.correct(name, Sharing::Shared), Sharing::Shared);
        }
        assert_eq!(it.excluded(), 2);
    }

    #[test]
    fn never_relaxes_the_built_in_table() {
        let it = commands(&[("GET", "multi", "")]);
        for name in ["MULTI", "SUBSCRIBE", "BLPOP", "CLIENT", "WAIT", "SELECT", "NEWGET"] {
            let built_in = sharing_of(name);
            assert_eq!(it.correct(name.as_bytes(), built_in), built_in, "{name}");
        }
        assert!(commands(&[]).is_built_in() && Commands::new(&[]).is_built_in());
    }
}
