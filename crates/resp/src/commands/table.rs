//! The command table: finds the class of a request from its words, case-insensitively and without
//! copying.
//!
//! The first word determines the class of nearly every command; `CLIENT` and `SCRIPT` need a second
//! word, and three of their subcommands a third. Most names are those of
//! [ordinary](crate::commands::ordinary) commands.
//!
//! An iterating command has a cursor among its words, of which a digest is kept.

use crate::commands::class::{BY_FIRST_WORD, Class};
use crate::commands::cursor::digest;
use crate::commands::ordinary::stateless_class;
use crate::commands::refused::{RefusedCommand, SUBSTITUTE};
use crate::commands::table::ClassLookup::{After, Known};

/// The state of a lookup: the class of a request as far as its words determine it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClassLookup {
    /// Another word is needed after these words.
    After(Prefix),
    /// The class is known, whatever follows.
    Known(Class),
    /// An iterating command, with the digest of its cursor; zero for the first request.
    Iterates(u32),
    /// The substitute for a refused request, with the number of its command.
    Refused(u32),
}

/// Words that need a further word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Prefix {
    Nothing,
    Client,
    ClientReply,
    ClientTracking,
    /// `CLIENT MAINT_NOTIFICATIONS`.
    MaintenanceHandshake,
    /// `CLIENT MAINT_NOTIFICATIONS ON`.
    MaintenanceOn,
    /// `CLIENT MAINT_NOTIFICATIONS ON` with the name of an option, `moving-endpoint-type`.
    MaintenanceEndpointType,
    Cluster,
    Himport,
    Script,
    ScriptDebug,
    /// `SCAN`: a cursor follows.
    Cursor,
    /// `HSCAN` and similar commands: a key and a cursor follow.
    KeyCursor,
    /// `FT.AGGREGATE` and `FT.HYBRID`, which return a cursor if `WITHCURSOR` follows anywhere.
    Aggregate,
    /// `FT.CURSOR`: a subcommand, a key and a cursor follow.
    SearchCursor,
}

impl Default for ClassLookup {
    fn default() -> Self {
        Self::START
    }
}

impl ClassLookup {
    pub(crate) const START: Self = Self::After(Prefix::Nothing);

    /// The lookup after one more word. An empty word represents one that is too long to be known.
    #[inline]
    pub(crate) fn with(self, word: &[u8]) -> Self {
        match self {
            Self::Known(_) | Self::Iterates(_) | Self::Refused(_) => self,
            Self::After(Prefix::Nothing) => first(word),
            Self::After(prefix) => further(prefix, word),
        }
    }

    /// The class if no word follows. An incomplete `CLIENT TRACKING`, for example, is an error and
    /// has one reply like any other command.
    pub(crate) fn class(self) -> Class {
        match self {
            Self::Known(class) => class,
            Self::Iterates(_) => Class::Iterate,
            Self::Refused(_) => Class::Refused,
            Self::After(Prefix::MaintenanceOn | Prefix::MaintenanceEndpointType) => {
                Class::MaintenanceOn
            }
            Self::After(_) => Class::Ordinary,
        }
    }
}

const ORDINARY: ClassLookup = Known(Class::Ordinary);

fn is(word: &[u8], name: &[u8]) -> bool {
    word.eq_ignore_ascii_case(name)
}

#[inline]
fn first(word: &[u8]) -> ClassLookup {
    // Ordinary commands return here.
    match stateless_class(word) {
        Some(Class::Ordinary) => ORDINARY,
        Some(class) => Known(class),
        None => special(word),
    }
}

#[cold]
fn special(word: &[u8]) -> ClassLookup {
    if let Some((_, prefix)) = PREFIXES.iter().find(|(name, _)| is(word, name)) {
        return After(*prefix);
    }
    if let Some(command) = word.strip_prefix(SUBSTITUTE).and_then(RefusedCommand::from_digits) {
        return ClassLookup::Refused(command.number());
    }
    let found = BY_FIRST_WORD.iter().find(|(name, _)| is(word, name));
    Known(found.map_or(Class::Unknown, |(_, class)| *class))
}

/// Commands whose class depends on further words.
const PREFIXES: &[(&[u8], Prefix)] = &[
    (b"CLIENT", Prefix::Client),
    (b"SCRIPT", Prefix::Script),
    (b"CLUSTER", Prefix::Cluster),
    (b"HIMPORT", Prefix::Himport),
    (b"SCAN", Prefix::Cursor),
    (b"HSCAN", Prefix::KeyCursor),
    (b"SSCAN", Prefix::KeyCursor),
    (b"ZSCAN", Prefix::KeyCursor),
    (b"BF.SCANDUMP", Prefix::KeyCursor),
    (b"CF.SCANDUMP", Prefix::KeyCursor),
    (b"FT.AGGREGATE", Prefix::Aggregate),
    (b"FT.HYBRID", Prefix::Aggregate),
    (b"FT.CURSOR", Prefix::SearchCursor),
];

/// All names in the tables of this module, with their containers.
pub(crate) fn special_names() -> impl Iterator<Item = (String, Class)> {
    let named = |prefix: &str, name: &[u8]| format!("{prefix}{}", String::from_utf8_lossy(name));
    let first = BY_FIRST_WORD.iter().map(move |(name, class)| (named("", name), *class));
    let containers =
        [("CLIENT ", CLIENT), ("CLIENT REPLY ", REPLY), ("HIMPORT ", HIMPORT), ("SCRIPT ", SCRIPT)];
    let second = containers.into_iter().flat_map(move |(prefix, words)| {
        words.iter().filter_map(move |(name, lookup)| match lookup {
            Known(class) => Some((named(prefix, name), *class)),
            _ => None,
        })
    });
    let iterating = PREFIXES.iter().filter_map(move |(name, prefix)| {
        let suffix = match prefix {
            Prefix::Cursor | Prefix::KeyCursor => "",
            Prefix::Aggregate => " ... WITHCURSOR",
            Prefix::SearchCursor => " READ",
            _ => return None,
        };
        Some((named("", name) + suffix, Class::Iterate))
    });
    first.chain(second).chain(iterating)
}

/// Words that may follow a prefix, and what each leads to.
type Branches = &'static [(&'static [u8], ClassLookup)];

const CLIENT: Branches = &[
    (b"REPLY", After(Prefix::ClientReply)),
    (b"TRACKING", After(Prefix::ClientTracking)),
    (b"MAINT_NOTIFICATIONS", After(Prefix::MaintenanceHandshake)),
    (b"ID", Known(Class::ClientId)),
    (b"SETINFO", Known(Class::SetInfo)),
    (b"SETNAME", Known(Class::SetName)),
    (b"NO-EVICT", Known(Class::NoEvict)),
    (b"NO-TOUCH", Known(Class::NoTouch)),
    (b"CACHING", ORDINARY),
    (b"COUNT", ORDINARY),
    (b"GETNAME", ORDINARY),
    (b"GETREDIR", ORDINARY),
    (b"HELP", ORDINARY),
    (b"INFO", Known(Class::ClientInfo)),
    (b"KILL", ORDINARY),
    (b"LIST", Known(Class::ClientInfo)),
    (b"PAUSE", ORDINARY),
    (b"TRACKINGINFO", ORDINARY),
    (b"UNBLOCK", ORDINARY),
    (b"UNPAUSE", ORDINARY),
    (b"CAPA", Known(Class::ClientCapability)),
    (b"IMPORT-SOURCE", Known(Class::ClientCapability)),
];

const REPLY: Branches = &[
    (b"ON", Known(Class::ReplyOn)),
    (b"OFF", Known(Class::ReplyOff)),
    (b"SKIP", Known(Class::ReplySkip)),
];

const HANDSHAKE: Branches =
    &[(b"ON", After(Prefix::MaintenanceOn)), (b"OFF", Known(Class::MaintenanceOff))];

const HIMPORT: Branches =
    &[(b"PREPARE", Known(Class::ImportPrepare)), (b"DISCARDALL", Known(Class::ImportDiscardAll))];

const SCRIPT: Branches = &[
    (b"DEBUG", After(Prefix::ScriptDebug)),
    (b"LOAD", Known(Class::Script)),
    (b"EXISTS", Known(Class::Script)),
    (b"SHOW", Known(Class::Script)),
];

const SEARCH_CURSOR: Branches =
    &[(b"READ", After(Prefix::KeyCursor)), (b"DEL", After(Prefix::KeyCursor))];

#[cold]
fn further(prefix: Prefix, word: &[u8]) -> ClassLookup {
    let (branches, other): (Branches, _) = match prefix {
        Prefix::Nothing => return first(word),
        Prefix::Client => (CLIENT, Known(Class::Unknown)),
        Prefix::ClientReply => (REPLY, ORDINARY),
        Prefix::ClientTracking => {
            (&[(b"OFF", Known(Class::TrackingOff))], Known(Class::TrackingOn))
        }
        Prefix::MaintenanceHandshake => (HANDSHAKE, ORDINARY),
        Prefix::MaintenanceOn => (&[], After(Prefix::MaintenanceEndpointType)),
        Prefix::MaintenanceEndpointType => {
            (&[(b"none", Known(Class::MaintenanceOnWithoutAddress))], Known(Class::MaintenanceOn))
        }
        // The connection becomes a replication stream, as with `PSYNC` (Redis 8.4, Valkey 9).
        Prefix::Cluster => (&[(b"SYNCSLOTS", Known(Class::Replication))], ORDINARY),
        Prefix::Himport => (HIMPORT, ORDINARY),
        Prefix::Script => (SCRIPT, ORDINARY),
        Prefix::ScriptDebug => (&[(b"NO", ORDINARY)], Known(Class::Debugger)),
        Prefix::Cursor => (&[], ClassLookup::Iterates(digest(word))),
        Prefix::KeyCursor => (&[], After(Prefix::Cursor)),
        Prefix::Aggregate => {
            (&[(b"WITHCURSOR", ClassLookup::Iterates(0))], After(Prefix::Aggregate))
        }
        Prefix::SearchCursor => (SEARCH_CURSOR, ORDINARY),
    };
    branches.iter().find(|(name, _)| is(word, name)).map_or(other, |(_, lookup)| *lookup)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{CLIENT, ClassLookup, REPLY, special_names};
    use crate::commands::class::{BY_FIRST_WORD, Class};

    /// Reviewed commands, with the arguments that determine the class, and the name of the class.
    fn reviewed() -> BTreeMap<String, &'static str> {
        let (mut all, mut class) = (BTreeMap::new(), "");
        for line in include_str!("../../testdata/commands.txt")
            .lines()
            .filter(|line| !line.starts_with('#'))
        {
            match line.strip_suffix(':') {
                Some(name) => class = name,
                None => all.extend(
                    line.split(',')
                        .map(str::trim)
                        .filter(|it| !it.is_empty())
                        .map(|it| (it.to_owned(), class)),
                ),
            }
        }
        all
    }

    #[test]
    fn classifies_every_command_of_redis_and_valkey_as_reviewed() {
        let reviewed = reviewed();
        assert!(reviewed.len() > 450, "only {} commands", reviewed.len());
        let differs = |(command, expected): (&String, &&str)| {
            let is = |text: &str| {
                let words: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
                format!("{:?}", class(&words))
            };
            let found = [is(command), is(&command.to_lowercase())];
            (found != [*expected; 2]).then(|| format!("{command}: {found:?}, not {expected}"))
        };
        let differences: Vec<String> = reviewed.iter().filter_map(differs).collect();
        assert!(differences.is_empty(), "{differences:#?}");
    }

    #[test]
    fn lists_every_name_in_the_table_for_review() {
        let reviewed = reviewed();
        let ordinary = crate::commands::ordinary::NAMES.split(' ').map(str::to_owned);
        let first_word = |(name, class): (String, Class)| match class {
            Class::Iterate => name.split(' ').take(1).collect(),
            _ => name,
        };
        for name in special_names().map(first_word).chain(ordinary) {
            let listed_commands =
                reviewed.keys().any(|it| *it == name || it.starts_with(&format!("{name} ")));
            assert!(listed_commands, "{name}");
        }
    }

    fn class(words: &[&[u8]]) -> Class {
        words.iter().fold(ClassLookup::START, |lookup, word| lookup.with(word)).class()
    }

    #[test]
    fn finds_every_name_in_any_case() {
        for (name, expected) in BY_FIRST_WORD {
            assert_eq!(class(&[name]), *expected, "{name:?}");
            assert_eq!(class(&[&name.to_ascii_lowercase(), b"x"]), *expected, "{name:?}");
        }
        for (name, expected) in CLIENT {
            let found = class(&[b"Client", &name.to_ascii_lowercase()]);
            assert_eq!(found, expected.class(), "{name:?}");
        }
        for (name, expected) in REPLY {
            let found = class(&[b"client", b"reply", &name.to_ascii_lowercase()]);
            assert_eq!(found, expected.class(), "{name:?}");
        }
    }

    #[test]
    fn classifies_by_second_and_third_words() {
        assert_eq!(class(&[b"CLIENT", b"TRACKING", b"ON"]), Class::TrackingOn);
        assert_eq!(class(&[b"CLIENT", b"TRACKING", b""]), Class::TrackingOn);
        assert_eq!(class(&[b"CLIENT", b"TRACKING", b"off"]), Class::TrackingOff);
        assert_eq!(class(&[b"SCRIPT", b"DEBUG", b"SYNC"]), Class::Debugger);
        assert_eq!(class(&[b"SCRIPT", b"DEBUG", b"no"]), Class::Ordinary);
        assert_eq!(class(&[b"script", b"Load", b"YES"]), Class::Script);
        assert_eq!(class(&[b"SCRIPT", b"FLUSH", b"YES"]), Class::Ordinary);
        assert_eq!(class(&[b"CLIENT", b"REPLY", b"MAYBE"]), Class::Ordinary);
        assert_eq!(class(&[b"CLUSTER", b"syncslots", b"CAPA"]), Class::Replication);
        assert_eq!(class(&[b"CLUSTER", b"SLOTS"]), Class::Ordinary);
        assert_eq!(class(&[b"himport", b"prepare"]), Class::ImportPrepare);
        assert_eq!(class(&[b"HIMPORT", b"DiscardAll"]), Class::ImportDiscardAll);
        assert_eq!(class(&[b"HIMPORT", b"SET"]), Class::Ordinary);
        assert_eq!(class(&[b"HINCRBY", b"PREPARE"]), Class::Ordinary);
    }

    #[test]
    fn classifies_all_forms_of_the_maintenance_handshake() {
        let maintenance_handshake: &[&[u8]] = &[b"CLIENT", b"maint_notifications"];
        let with = |more: &[&[u8]]| class(&[maintenance_handshake, more].concat());
        assert_eq!(with(&[b"on"]), Class::MaintenanceOn);
        assert_eq!(with(&[b"ON", b"moving-endpoint-type"]), Class::MaintenanceOn);
        for kind in [&b"internal-ip"[..], b"internal-fqdn", b"external-ip", b"external-fqdn"] {
            assert_eq!(with(&[b"ON", b"moving-endpoint-type", kind]), Class::MaintenanceOn);
        }
        assert_eq!(
            with(&[b"ON", b"moving-endpoint-type", b"None"]),
            Class::MaintenanceOnWithoutAddress
        );
        assert_eq!(with(&[b"off"]), Class::MaintenanceOff);
        assert_eq!((with(&[]), with(&[b"MAYBE"])), (Class::Ordinary, Class::Ordinary));
    }

    #[test]
    fn classifies_permanent_client_capabilities() {
        assert_eq!(class(&[b"CLIENT", b"capa", b"redirect"]), Class::ClientCapability);
        assert_eq!(class(&[b"CLIENT", b"import-source", b"ON"]), Class::ClientCapability);
        assert_eq!(class(&[b"CLIENT", b"TRACKINGINFO"]), Class::Ordinary);
    }

    #[test]
    fn distinguishes_ordinary_from_unknown_commands() {
        let ordinary: &[&[u8]] = &[
            b"GET", b"SET", b"PING", b"FCALL", b"CLIENT", b"SCRIPT", b"hgetall", b"XADD", b"PUBSUB",
        ];
        for name in ordinary {
            assert_eq!(class(&[name]), Class::Ordinary, "{name:?}");
        }
        let unknown: &[&[u8]] = &[
            b"",
            b"X",
            b"EXECX",
            b"EXEX",
            b"SELECTS",
            b"CLIENTS",
            b"\xff\xfe",
            b"SUBSCRIBF",
            b"MOD.GET",
        ];
        for name in unknown {
            assert_eq!(class(&[name]), Class::Unknown, "{name:?}");
        }
        assert_eq!(class(&[b"CLIENT", b"NOVELTY"]), Class::Unknown);
        assert_eq!(class(&[b"CLIENT", b""]), Class::Unknown);
        for words in
            [&[&b"CLIENT"[..], b"REPLY"][..], &[b"CLIENT", b"TRACKING"], &[b"SCRIPT", b"DEBUG"]]
        {
            assert_eq!(class(words), Class::Ordinary, "{words:?}");
        }
        assert_eq!(class(&[b"CLIENT", b"INFO"]), Class::ClientInfo);
        assert_eq!(class(&[b"GET", b"MULTI"]), Class::Ordinary);
    }
}
