//! How each request is handled: the built-in table, corrected by the server's own.
//!
//! The server's `COMMAND` table is read where the probe user may read it. It can make a command
//! stricter: a name that the server gives to another command, by `rename-command`, or a flag that
//! excludes sharing. It can allow one only if the built-in table does not know the command and
//! every flag of it is known to be harmless. A server that cannot be asked, an empty table and
//! one with fewer commands than any server has change nothing.
//!
//! The operator's list of stateless commands is not enough to share a command: it says that the
//! command leaves nothing on its connection, not that it does not block it.

use std::collections::{BTreeMap, BTreeSet};

use resp::{PromotionReason, Sharing, sharing_of};

/// One command of the server's table, from `COMMAND`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerCommand {
    /// Its name; subcommands as `CONTAINER|SUBCOMMAND`.
    pub name: String,
    /// Its flags, and its ACL categories with their `@`.
    pub flags: Vec<String>,
}

/// A smaller table is not that of a working server.
const FEWEST_COMMANDS: usize = 100;

/// Maximum number of commands that are kept of a table.
const MOST_COMMANDS: usize = 4096;

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

/// Flags that a command which the built-in table does not know may have. Others may be new, and
/// mean anything.
const HARMLESS: [&str; 9] = [
    "readonly",
    "write",
    "denyoom",
    "fast",
    "loading",
    "stale",
    "movablekeys",
    "random",
    "sort_for_script",
];

/// How requests are handled.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Commands {
    /// Commands that the built-in table does not know, in upper case.
    allowed: BTreeSet<Vec<u8>>,
    /// Commands that the built-in table shares and the server's table excludes, in upper case.
    excluded: BTreeSet<Vec<u8>>,
}

impl Commands {
    /// The built-in table, corrected by the server's.
    #[must_use]
    pub fn new(server: &[ServerCommand]) -> Self {
        let mut commands = Self::default();
        if server.len() < FEWEST_COMMANDS {
            return commands;
        }
        // Two entries with the same name contradict each other: the stricter one counts.
        let mut flags: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for command in server.iter().take(MOST_COMMANDS) {
            let entry = flags.entry(command.name.to_ascii_uppercase()).or_default();
            entry.extend(command.flags.iter().map(String::as_str));
        }
        for (name, flags) in flags.iter().filter(|(name, _)| !name.contains('|')) {
            let key = name.clone().into_bytes();
            match sharing_of(name) {
                Sharing::Shared | Sharing::SharedScript if excludes(name, flags) => {
                    commands.excluded.insert(key);
                }
                Sharing::Promotes(PromotionReason::Unknown) if allows(flags) => {
                    commands.allowed.insert(key);
                }
                _ => {}
            }
        }
        // Containers are judged by name only, and their subcommands leave them unknown.
        for container in flags.keys().filter_map(|name| name.split_once('|')) {
            commands.allowed.remove(container.0.as_bytes());
        }
        commands
    }

    /// Whether every request is handled as the built-in table says, which then need not be
    /// corrected.
    #[must_use]
    pub fn is_built_in(&self) -> bool {
        self.allowed.is_empty() && self.excluded.is_empty()
    }

    /// How a request with that name is handled, for which the built-in table says `built_in`.
    #[must_use]
    pub fn correct(&self, name: &[u8], built_in: Sharing) -> Sharing {
        let (listed, otherwise) = match built_in {
            Sharing::Shared | Sharing::SharedScript => {
                (&self.excluded, Sharing::Promotes(PromotionReason::ServerTable))
            }
            // Its reply may be any value.
            Sharing::Promotes(PromotionReason::Unknown) => (&self.allowed, Sharing::SharedScript),
            _ => return built_in,
        };
        if !listed.is_empty() && listed.contains(&name.to_ascii_uppercase()) {
            otherwise
        } else {
            built_in
        }
    }
}

fn excludes(name: &str, flags: &BTreeSet<&str>) -> bool {
    EXCLUDING.iter().any(|flag| flags.contains(flag) && !EXPECTED.contains(&(name, *flag)))
}

/// Whether an unknown command with these flags works on data only.
fn allows(flags: &BTreeSet<&str>) -> bool {
    let on_data = flags.contains("readonly") || flags.contains("write");
    let harmless = |flag: &&str| HARMLESS.contains(flag) || flag.starts_with('@');
    on_data && flags.iter().all(harmless) && !excludes("", flags) && !flags.contains("@pubsub")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(name: &str, flags: &str) -> ServerCommand {
        let flags = flags.split_whitespace().map(str::to_owned).collect();
        ServerCommand { name: name.to_owned(), flags }
    }

    fn commands(special: &[(&str, &str)]) -> Commands {
        let padding = (0..FEWEST_COMMANDS).map(|n| command(&format!("pad{n}"), ""));
        let special = special.iter().map(|(name, flags)| command(name, flags));
        Commands::new(&padding.chain(special).collect::<Vec<_>>())
    }

    const UNKNOWN: Sharing = Sharing::Promotes(PromotionReason::Unknown);
    const EXCLUDED: Sharing = Sharing::Promotes(PromotionReason::ServerTable);

    #[test]
    fn excludes_a_renamed_command() {
        // `rename-command SUBSCRIBE GET`.
        let it = commands(&[
            ("get", "pubsub noscript loading stale"),
            ("set", "write denyoom @write @string"),
            // `rename-command SELECT DEL`, and commands that keep their names.
            ("del", "loading stale fast @keyspace @fast @connection"),
            ("ping", "fast @fast @connection"),
            ("publish", "pubsub loading stale fast @pubsub"),
            ("evalsha", "noscript stale"),
            ("role", "noscript loading stale fast"),
        ]);
        for name in [&b"Get"[..], b"del"] {
            assert_eq!(it.correct(name, Sharing::Shared), EXCLUDED);
        }
        for name in [&b"set"[..], b"ping", b"publish", b"evalsha", b"role"] {
            assert_eq!(it.correct(name, Sharing::Shared), Sharing::Shared);
        }
    }

    #[test]
    fn allows_unknown_commands_with_known_flags_only() {
        let it = commands(&[
            ("newget", "readonly fast @read @fast"),
            ("newset", "write denyoom movablekeys"),
            ("newpop", "write blocking"),
            ("newflag", "readonly something_new"),
            ("noflags", ""),
            ("session", "readonly @connection"),
            ("channel", "readonly @pubsub"),
            ("mod.get", "readonly module"),
            ("box", "readonly"),
            ("box|sub", "readonly"),
            ("twice", "readonly"),
            ("TWICE", "pubsub"),
        ]);
        for name in [&b"newget"[..], b"NEWSET"] {
            assert_eq!(it.correct(name, UNKNOWN), Sharing::SharedScript);
        }
        let others = [
            &b"newpop"[..],
            b"newflag",
            b"noflags",
            b"session",
            b"channel",
            b"mod.get",
            b"box",
            b"twice",
            b"absent",
            b"",
        ];
        for name in others {
            assert_eq!(it.correct(name, UNKNOWN), UNKNOWN, "{}", name.escape_ascii());
        }
    }

    #[test]
    fn never_relaxes_the_built_in_table() {
        let all = ["MULTI", "SUBSCRIBE", "BLPOP", "CLIENT", "CONFIG", "WAIT", "SELECT", "AUTH"];
        let lies: Vec<(&str, &str)> = all.iter().map(|name| (*name, "readonly fast")).collect();
        let it = commands(&lies);
        for name in all {
            let built_in = sharing_of(name);
            assert_eq!(it.correct(name.as_bytes(), built_in), built_in, "{name}");
        }
        assert!(it.is_built_in());
    }

    #[test]
    fn ignores_tables_that_are_empty_or_truncated() {
        let few = [command("get", "pubsub"), command("newget", "readonly")];
        assert!(Commands::new(&few).is_built_in() && Commands::new(&[]).is_built_in());
        assert_eq!(Commands::new(&few).correct(b"get", Sharing::Shared), Sharing::Shared);
    }
}
