//! Commands that leave no state on their connection, in addition to the built-in table: those that
//! the operator has declared, and those that the server has.
//!
//! They are looked up only for commands that are not in the table, so that all other commands cost
//! nothing. A declaration of the operator is not checked.

use std::sync::Arc;

use crate::commands::carry_effect::objection;
use crate::commands::class::Class;
use crate::commands::request_words::{ArrayWords, Word, words};
use crate::commands::server_commands::ServerCommands;
use crate::commands::table::ClassLookup;

/// Maximum length of a command name, in bytes. A hash of the name, which `redis.conf` suggests for
/// `rename-command`, has 40 or 64.
pub const MAX_COMMAND_NAME: usize = 64;

/// Bytes of a request that are examined to find its name: two words with their lengths.
pub(crate) const HEAD: usize = 2 * (MAX_COMMAND_NAME + 8) + 16;

/// A list of stateless commands: `NAME`, or `CONTAINER|SUBCOMMAND`. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StatelessCommands(Option<Arc<Lists>>);

#[derive(Debug, Default)]
struct Lists {
    /// Declared by the operator, sorted, in upper case.
    declared: Vec<String>,
    /// Found harmless by what the server says of them.
    server: ServerCommands,
}

impl PartialEq for Lists {
    fn eq(&self, other: &Self) -> bool {
        self.declared == other.declared && self.server.is(&other.server)
    }
}

impl Eq for Lists {}

/// Why a command cannot be declared stateless.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StatelessError {
    /// The text is not the name of a command.
    NotAName,
    /// The command is in the table and leaves state; a phrase says which.
    LeavesState(&'static str),
}

impl StatelessCommands {
    /// Creates a list of these commands, in upper or lower case.
    ///
    /// # Errors
    ///
    /// Why the first command that cannot be declared cannot.
    pub fn new<'a>(commands: impl IntoIterator<Item = &'a str>) -> Result<Self, StatelessError> {
        let mut all = commands.into_iter().map(Self::check).collect::<Result<Vec<_>, _>>()?;
        all.sort();
        all.dedup();
        let lists = Lists { declared: all, server: ServerCommands::default() };
        Ok(Self((!lists.declared.is_empty()).then(|| Arc::new(lists))))
    }

    /// These commands, and those of a server.
    #[must_use]
    pub fn with_server(&self, server: &ServerCommands) -> Self {
        let declared = self.0.as_ref().map(|it| it.declared.clone()).unwrap_or_default();
        Self(Some(Arc::new(Lists { declared, server: server.clone() })))
    }

    /// The commands of a server among them, if it has been asked.
    #[must_use]
    pub fn server(&self) -> Option<&ServerCommands> {
        self.0.as_ref().map(|it| &it.server)
    }

    /// The command in upper case, if it can be declared.
    ///
    /// # Errors
    ///
    /// Why it cannot.
    pub fn check(command: &str) -> Result<String, StatelessError> {
        let (name, sub) =
            command.split_once('|').map_or((command, None), |(name, sub)| (name, Some(sub)));
        let is_name = |word: &str| {
            (1..=MAX_COMMAND_NAME).contains(&word.len())
                && word.bytes().all(|byte| {
                    byte.is_ascii_graphic() && !matches!(byte, b'|' | b',' | b'"' | b'\'')
                })
        };
        if !is_name(name) || !sub.is_none_or(is_name) {
            return Err(StatelessError::NotAName);
        }
        match objection(name, sub) {
            Some(why) => Err(StatelessError::LeavesState(why)),
            None => Ok(command.to_ascii_uppercase()),
        }
    }

    /// Whether a command is listed by its name alone, in upper or lower case.
    fn has(&self, name: &[u8]) -> bool {
        self.0.as_ref().is_some_and(|it| has(&it.declared, name) || it.server.has(name))
    }

    /// Whether subcommands of `name` are listed.
    fn has_within(&self, name: &str) -> bool {
        let is_within =
            |it: &Arc<Lists>| has_within(&it.declared, name) || it.server.has_within(name);
        self.0.as_ref().is_some_and(is_within)
    }

    /// Whether the request that begins with `head` has a command that is declared by its name
    /// alone.
    #[inline]
    pub(crate) fn has_command_of(&self, head: &[u8]) -> bool {
        self.0.is_some() && leading_words(head)[0].is_some_and(|name| self.has(name))
    }

    /// Looks up a request whose command is not in the table. `head` is its beginning; `whole` is
    /// whether that is the whole request.
    pub(crate) fn look_up(&self, head: &[u8], whole: bool) -> StatelessLookup {
        let [word, sub] = leading_words(head);
        let Some(word) = word else {
            return if whole {
                StatelessLookup::Unknown(String::new())
            } else {
                StatelessLookup::NotYet
            };
        };
        // The table has containers with unknown subcommands.
        let known_container = ClassLookup::START.with(word) != ClassLookup::Known(Class::Unknown);
        let name = shown(word);
        if !known_container && self.has(word) {
            return StatelessLookup::Declared;
        }
        if !known_container && !self.has_within(&name) {
            return StatelessLookup::Unknown(name);
        }
        match sub {
            Some(sub) => {
                let both = format!("{name}|{}", shown(sub));
                if self.has(both.as_bytes()) {
                    StatelessLookup::Declared
                } else {
                    StatelessLookup::Unknown(both)
                }
            }
            None if whole => StatelessLookup::Unknown(name),
            None => StatelessLookup::NotYet,
        }
    }
}

/// Whether a sorted list has a name, in upper or lower case.
pub(crate) fn has(list: &[String], name: &[u8]) -> bool {
    let compare = |it: &String| it.bytes().cmp(name.iter().map(u8::to_ascii_uppercase));
    list.binary_search_by(compare).is_ok()
}

/// Whether a list has subcommands of `name`.
pub(crate) fn has_within(list: &[String], name: &str) -> bool {
    list.iter().any(|it| it.strip_prefix(name).is_some_and(|rest| rest.starts_with('|')))
}

/// The result of looking up a request whose command is not in the table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StatelessLookup {
    /// Its command is stateless: declared, or known to the server.
    Declared,
    /// It is not declared; its name, safe for a log.
    Unknown(String),
    /// Another word is needed.
    NotYet,
}

/// A name in upper case, truncated, and without characters that a terminal or log could interpret.
fn shown(word: &[u8]) -> String {
    let plain = |byte: &u8| {
        if byte.is_ascii_graphic() { char::from(*byte).to_ascii_uppercase() } else { '?' }
    };
    let mut name: String = word.iter().take(MAX_COMMAND_NAME).map(plain).collect();
    if word.len() > MAX_COMMAND_NAME {
        name.push('…');
    }
    name
}

/// The first two words of a request that begins with `head`, if they are complete, or too long for
/// a name. Those of an inline command only if its line is complete and without quotes.
fn leading_words(head: &[u8]) -> [Option<&[u8]>; 2] {
    if head.starts_with(b"*") {
        let is_enough = |word: &Word<'_>| word.is_whole() || word.len > MAX_COMMAND_NAME;
        let mut words =
            ArrayWords::new(head).map(|word| word.filter(is_enough).map(|word| word.bytes));
        return [words.next().flatten(), words.next().flatten()];
    }
    let line = Some(head).filter(|head| head.ends_with(b"\n")).and_then(words);
    let mut words = line.unwrap_or_default().into_iter();
    [words.next(), words.next()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(words: &[&str]) -> Vec<u8> {
        let words: Vec<String> =
            words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
        format!("*{}\r\n{}", words.len(), words.concat()).into_bytes()
    }

    #[test]
    fn finds_declared_names_and_subcommands_in_any_case() {
        let long = "x".repeat(MAX_COMMAND_NAME);
        let all = StatelessCommands::new([
            "fetch",
            "Graph|query",
            "CLIENT|novelty",
            "FETCH",
            long.as_str(),
        ])
        .unwrap();
        for words in [
            &["FETCH", "k"][..],
            &["fetch"],
            &["graph", "QUERY", "g"],
            &["client", "novelty"],
            &[&long],
        ] {
            assert_eq!(all.look_up(&request(words), true), StatelessLookup::Declared, "{words:?}");
        }
        let unknown = |words: &[&str]| match all.look_up(&request(words), true) {
            StatelessLookup::Unknown(name) => name,
            other => panic!("{words:?}: {other:?}"),
        };
        assert_eq!(unknown(&["FETCHES"]), "FETCHES");
        assert_eq!(
            (unknown(&["graph"]), unknown(&["graph", "delete"])),
            ("GRAPH".into(), "GRAPH|DELETE".into())
        );
        assert_eq!(unknown(&["client", "other"]), "CLIENT|OTHER");
        assert_eq!(unknown(&["a\u{1b}[2J\nb"]), "A?[2J?B");
        assert_eq!(unknown(&[&"y".repeat(500)]), format!("{}…", "Y".repeat(MAX_COMMAND_NAME)));
        assert_eq!(all.look_up(b"fetch k\r\n", true), StatelessLookup::Declared);
        assert_eq!(all.look_up(b"fe'tch' k\r\n", true), StatelessLookup::Unknown(String::new()));
    }

    #[test]
    fn waits_for_the_words_that_determine_the_command() {
        let all = StatelessCommands::new(["fetch", "graph|query"]).unwrap();
        let whole = request(&["GRAPH", "QUERY", "g"]);
        let name_end = whole.len() - b"\r\n$5\r\nQUERY\r\n$1\r\ng\r\n".len();
        for end in 0..whole.len() {
            let found = all.look_up(&whole[..end], false);
            assert_ne!(found, StatelessLookup::Unknown("GRAPH".into()), "{end} of {name_end}");
            assert_eq!(
                found == StatelessLookup::Declared,
                end >= whole.len() - b"\r\n$1\r\ng\r\n".len(),
                "{end}"
            );
        }
        assert_eq!(
            StatelessCommands::default().look_up(&request(&["GRAPH"])[..14], false),
            StatelessLookup::Unknown("GRAPH".into())
        );
    }

    #[test]
    fn refuses_commands_that_leave_state() {
        for command in [
            "MULTI",
            "scan",
            "SUBSCRIBE",
            "Client|Id",
            "SCRIPT|LOAD",
            "CLIENT",
            "WAIT",
            "CLIENT|TRACKING",
        ] {
            assert!(
                matches!(StatelessCommands::new([command]), Err(StatelessError::LeavesState(_))),
                "{command}"
            );
        }
        for odd in ["", "A|", "|B", "A|B|C", "A B", "A,B", "Ä", &"x".repeat(MAX_COMMAND_NAME + 1)]
        {
            assert!(
                matches!(StatelessCommands::new([odd]), Err(StatelessError::NotAName)),
                "{odd}"
            );
        }
        for harmless in ["JSON.GET", "get", "CLIENT|LIST", "EVALSHA", "FT.CURSOR|GC", "HELLO|X"] {
            let _either = StatelessCommands::check(harmless);
        }
        assert_eq!(StatelessCommands::check("json.get"), Ok("JSON.GET".to_owned()));
        assert_eq!(StatelessCommands::check("client|list"), Ok("CLIENT|LIST".to_owned()));
    }
}
