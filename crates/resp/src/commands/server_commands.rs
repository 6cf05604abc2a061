//! Commands of which a server knows more than the built-in table, such as those of later releases.
//!
//! An unknown command pins its session, because it may leave any state on its connection. The
//! server itself describes its commands, and that settles most of them: a command with keys and
//! without a flag that concerns connections only reads or writes data. [`CommandInfo`] holds the
//! answer of `COMMAND INFO`, and [`ServerCommands`] the names that were found harmless, for all
//! ledgers of a service at once.
//!
//! What the answer does not show stays pinned: no command says that it returns a cursor, so a name
//! that looks like an iteration is left out, and a module can do anything to its client.
//!
//! Which commands only read, beyond those of which the built-in table says so, is the server's word
//! as well, that of a module included: the server itself relies on it to refuse writes, on a
//! replica for example.

use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::commands::class::Class;
use crate::commands::may_write;
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

/// Flags of commands that may change data, or send something that replicas have to have.
const WRITING: [&str; 2] = ["write", "may_replicate"];

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

    /// Whether the command changes no data.
    fn is_read_only(&self) -> bool {
        let has = |flag: &str| self.flags.iter().any(|it| it == flag);
        has("readonly") && !WRITING.into_iter().any(has)
    }
}

/// Whether the built-in table lacks a command, so that it pins its session if the server does not
/// say that it is harmless.
#[must_use]
pub fn is_unlisted(name: &str) -> bool {
    ClassLookup::START.with(name.as_bytes()) == ClassLookup::Known(Class::Unknown)
}

/// Whether the server has to be asked about a command: the built-in table lacks it, or does not say
/// that it only reads.
#[must_use]
pub fn is_questionable(name: &str) -> bool {
    is_unlisted(name) || !may_write::is_listed(name.as_bytes())
}

/// What a service's servers have said of commands. All clones share it, and ledgers read it when
/// they meet a command that is not in the built-in table.
#[derive(Debug, Clone, Default)]
pub struct ServerCommands(Arc<ArcSwap<Names>>);

/// Names in upper case, sorted.
#[derive(Debug, Default)]
struct Names {
    /// These leave nothing on their connection.
    stateless: Vec<String>,
    /// These change no data, which the built-in table does not say. Without subcommands.
    read_only: Vec<String>,
}

impl ServerCommands {
    /// Replaces the names by what a server said of [questionable](is_questionable) commands.
    /// Returns those that leave nothing on their connection, which the table does not say.
    pub fn store(&self, commands: &[CommandInfo]) -> Vec<String> {
        let harmless = commands.iter().filter(|it| it.is_stateless() && is_unlisted(first(it)));
        let named = harmless.filter_map(|it| StatelessCommands::check(&it.name).ok());
        let stateless = sorted(named);
        let reading = commands.iter().filter(|it| it.is_read_only() && !it.name.contains('|'));
        let read_only = sorted(reading.map(|it| it.name.to_ascii_uppercase()));
        self.0.store(Arc::new(Names { stateless: stateless.clone(), read_only }));
        stateless
    }

    /// Whether a command leaves nothing on its connection, given in upper or lower case.
    pub(crate) fn has(&self, name: &[u8]) -> bool {
        has(&self.0.load().stateless, name)
    }

    /// Whether subcommands of `name` leave nothing on their connection.
    pub(crate) fn has_within(&self, name: &str) -> bool {
        has_within(&self.0.load().stateless, name)
    }

    /// Whether a command changes no data, given in upper or lower case.
    pub(crate) fn reads(&self, name: &[u8]) -> bool {
        has(&self.0.load().read_only, name)
    }

    /// Whether both are one list.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

fn sorted(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut names: Vec<String> = names.take(MAX_NAMES).collect();
    names.sort();
    names.dedup();
    names
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
        assert_eq!(names, ["BLESS2|GET", "ZFETCH"]);
        assert!(commands.has(b"zFetch") && commands.has_within("BLESS2"));
        assert!(!commands.has(b"BZFETCH") && !commands.has_within("ZFETCH"));
        assert!(commands.store(&[]).is_empty() && !commands.has(b"ZFETCH"));
    }

    #[test]
    fn takes_the_word_of_the_server_on_what_reads() {
        let commands = ServerCommands::default();
        commands.store(&[
            info("json2.get", true, "readonly module @read"),
            info("novelty", false, "readonly @read"),
            info("zfetch", true, "write fast @write @sortedset"),
            info("odd", true, "readonly write"),
            info("announce", false, "readonly may_replicate"),
            info("nothing", true, "fast"),
            info("part|get", true, "readonly"),
            info("xgroup|novelty", true, "readonly"),
            // In the table, which does not say whether it writes.
            info("json.get", true, "readonly module"),
            info("set", true, "write denyoom"),
        ]);
        let reads = |name: &&str| commands.reads(name.as_bytes());
        let names = ["JSON2.get", "NOVELTY", "ZFETCH", "ODD", "ANNOUNCE", "NOTHING", "PART"];
        assert_eq!(names.into_iter().filter(reads).collect::<Vec<_>>(), ["JSON2.get", "NOVELTY"]);
        let names = ["Json.Get", "SET", "XGROUP", "PART|GET"];
        assert_eq!(names.into_iter().filter(reads).collect::<Vec<_>>(), ["Json.Get"]);
        let questionable: Vec<_> = ["GET", "SET", "EVAL", "JSON.GET", "novelty", "client|novelty"]
            .into_iter()
            .filter(|name| is_questionable(name))
            .collect();
        assert_eq!(questionable, ["SET", "EVAL", "JSON.GET", "novelty", "client|novelty"]);
        commands.store(&[]);
        assert!(!commands.reads(b"NOVELTY"));
    }
}
