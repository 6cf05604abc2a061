//! Commands that a server has and the built-in table lacks, such as those of a later release.
//!
//! An unknown command pins its session, because it may leave any state on its connection. The
//! server itself describes its commands, and that settles most of them: a command with keys and
//! without a flag that concerns connections only reads or writes data. [`CommandInfo`] holds the
//! answer of `COMMAND INFO`, and [`ServerCommands`] the names that were found harmless, for all
//! ledgers of a service at once.
//!
//! What the answer does not show stays pinned: no command says that it returns a cursor, so a name
//! that looks like an iteration is left out, and a module can do anything to its client.

use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::commands::class::Class;
use crate::commands::stateless::{StatelessCommands, has, has_within};
use crate::commands::table::ClassLookup;

/// Maximum number of names. Redis 8 with its modules has fewer commands in all.
const MAX_NAMES: usize = 1024;

/// Flags and ACL categories of commands that may leave state, wait, or act on other connections.
const EXCLUDING: [&str; 11] = [
    "admin",
    "blocking",
    "module",
    "no_multi",
    "noscript",
    "pubsub",
    "@admin",
    "@blocking",
    "@connection",
    "@pubsub",
    "@transaction",
];

/// Parts of names of commands that return cursors.
const ITERATIONS: [&str; 3] = ["SCAN", "CURSOR", "ITER"];

/// What a server says of one command.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CommandInfo {
    /// Its name, or `container|subcommand`.
    pub name: String,
    /// Whether it has key specifications, or a first key.
    pub has_keys: bool,
    /// Its flags, and its ACL categories with their `@`.
    pub flags: Vec<String>,
}

impl CommandInfo {
    /// Whether the command leaves nothing on its connection, as far as its answer shows.
    #[must_use]
    pub fn is_stateless(&self) -> bool {
        let name = self.name.to_ascii_uppercase();
        self.has_keys
            && !self.flags.iter().any(|flag| EXCLUDING.contains(&flag.as_str()))
            && !ITERATIONS.iter().any(|part| name.contains(part))
    }
}

/// Whether the built-in table lacks a command, so that the server has to be asked about it.
#[must_use]
pub fn is_unlisted(name: &str) -> bool {
    ClassLookup::START.with(name.as_bytes()) == ClassLookup::Known(Class::Unknown)
}

/// Names of commands that a service's servers have declared harmless. All clones share one list,
/// which ledgers read when they meet a command that is not in the built-in table.
#[derive(Debug, Clone, Default)]
pub struct ServerCommands(Arc<ArcSwap<Vec<String>>>);

impl ServerCommands {
    /// Replaces the list by what a server said of commands that are not in the table. Returns the
    /// names that are used, in upper case.
    pub fn store(&self, commands: &[CommandInfo]) -> Arc<Vec<String>> {
        let harmless = commands.iter().filter(|it| it.is_stateless() && is_unlisted(first(it)));
        let named = harmless.filter_map(|it| StatelessCommands::check(&it.name).ok());
        let mut names: Vec<String> = named.take(MAX_NAMES).collect();
        names.sort();
        names.dedup();
        let names = Arc::new(names);
        self.0.store(Arc::clone(&names));
        names
    }

    /// Whether the list has a name, in upper or lower case.
    pub(crate) fn has(&self, name: &[u8]) -> bool {
        has(&self.0.load(), name)
    }

    /// Whether the list has subcommands of `name`.
    pub(crate) fn has_within(&self, name: &str) -> bool {
        has_within(&self.0.load(), name)
    }

    /// Whether both are one list.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The name of a command, or of the container of a subcommand.
fn first(command: &CommandInfo) -> &str {
    command.name.split('|').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(name: &str, has_keys: bool, flags: &str) -> CommandInfo {
        let flags = flags.split_whitespace().map(str::to_owned).collect();
        CommandInfo { name: name.to_owned(), has_keys, flags }
    }

    #[test]
    fn uses_only_commands_that_work_on_keys() {
        let commands = ServerCommands::default();
        let names = commands.store(&[
            info("zfetch", true, "write fast @write @sortedset"),
            info("bless2|get", true, "readonly @read"),
            info("bless2|scan", true, "readonly @read"),
            info("bzfetch", true, "write blocking @write @blocking"),
            info("novelty", false, "readonly @read"),
            info("remember", true, "noscript @connection"),
            info("fetchcursor", true, "readonly @read"),
            info("json2.get", true, "readonly module @read"),
            // The table's own word on these stands.
            info("get", true, "readonly @read"),
            info("watch", true, "readonly"),
            info("xgroup|novelty", true, "write @write"),
            info("odd name", true, "readonly"),
        ]);
        assert_eq!(**names, ["BLESS2|GET", "ZFETCH"]);
        assert!(commands.has(b"zFetch") && commands.has_within("BLESS2"));
        assert!(!commands.has(b"BZFETCH") && !commands.has_within("ZFETCH"));
        assert!(commands.store(&[]).is_empty() && !commands.has(b"ZFETCH"));
    }
}
