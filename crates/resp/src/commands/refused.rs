//! Commands that are refused to clients, in the words of the configuration.
//!
//! An entry is a command (`FLUSHALL`), a subcommand (`CONFIG|SET`), publishing to channels
//! (`PUBLISH __sentinel__:*`, which is for `SPUBLISH` as well), or the preset `@deployment`. A
//! request is decided from its first two words. These are split as Redis splits them, escapes of
//! inline commands included, so that no spelling of a command passes.
//!
//! A refused request is replaced by one that every server refuses: its name is unknown. So the
//! order of replies, a transaction that has to be aborted and `CLIENT REPLY` are the server's, and
//! only the text of the error is ours.
//!
//! Commands within scripts and functions cannot be seen by a proxy.

use std::sync::Arc;

use crate::commands::ordinary::key;
use crate::commands::request_words::{ArrayWords, Word};
use crate::commands::stateless::MAX_COMMAND_NAME;

/// The entries that apply without configuration.
pub const DEFAULT_REFUSALS: &str = "PUBLISH __sentinel__:*,PUBLISH __pointsman__:*";

/// The name of the request that replaces a refused one; two digits follow.
pub(crate) const SUBSTITUTE: &[u8] = b"POINTSMAN.REFUSED.";

/// Added to the number of a command that was refused for its channel.
const CHANNEL: u8 = 50;

/// Longest prefix of channels.
const MAX_CHANNEL: usize = 256;

/// The commands that are named in metrics and errors. All others are `other`.
const LABELS: &[&str] = &[
    "publish",
    "spublish",
    "replicaof",
    "slaveof",
    "failover",
    "shutdown",
    "psync",
    "sync",
    "replconf",
    "migrate",
    "cluster",
    "debug",
    "module",
    "config",
    "acl",
    "backup",
    "bgrewriteaof",
    "bgsave",
    "client",
    "eval",
    "evalsha",
    "fcall",
    "flushall",
    "flushdb",
    "function",
    "keys",
    "monitor",
    "save",
    "script",
    "swapdb",
    "other",
];

/// What the preset `@deployment` refuses whole, beside the default.
const DEPLOYMENT: &[&str] =
    &["REPLICAOF", "SLAVEOF", "FAILOVER", "SHUTDOWN", "PSYNC", "SYNC", "REPLCONF", "MIGRATE"];

/// Containers of which it refuses all subcommands but these, which only read.
const DEPLOYMENT_BUT: &[(&str, &[&str])] = &[
    (
        "CLUSTER",
        &[
            "COUNT-FAILURE-REPORTS",
            "COUNTKEYSINSLOT",
            "GETKEYSINSLOT",
            "HELP",
            "INFO",
            "KEYSLOT",
            "LINKS",
            "MYID",
            "MYSHARDID",
            "NODES",
            "REPLICAS",
            "SHARDS",
            "SLAVES",
            "SLOT-STATS",
            "SLOTS",
        ],
    ),
    ("DEBUG", &["HELP", "OBJECT"]),
    ("MODULE", &["HELP", "LIST"]),
    ("CONFIG", &["GET", "HELP"]),
    ("ACL", &["CAT", "DRYRUN", "GENPASS", "GETUSER", "HELP", "LIST", "LOG", "USERS", "WHOAMI"]),
];

const MALFORMED: &str =
    "it is neither a command, CONTAINER|SUBCOMMAND, PUBLISH CHANNEL nor a preset";
const UNKNOWN_PRESET: &str = "there is no such preset; the only one is @deployment";
const PRESET_WITHOUT_AT: &str = "a preset begins with @: write @deployment";
const NOT_A_CHANNEL: &str = "only PUBLISH and SPUBLISH are followed by a channel; write a \
                             subcommand as CONTAINER|SUBCOMMAND";
const NOT_A_PREFIX: &str = "a channel may end with *, and has no other wildcard";

/// The part of the requests of one command that is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Whole,
    /// Those whose first argument begins with this; or is this, if `exact`.
    Channel {
        prefix: Box<[u8]>,
        exact: bool,
    },
    Subcommand(Box<[u8]>),
    AllBut(&'static [&'static str]),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    name: Box<[u8]>,
    part: Part,
}

/// The refused commands of a service.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RefusalRules {
    rules: Vec<Rule>,
    /// The folded names.
    keys: Vec<u64>,
    /// The bits of the folded names: a name whose bit is not set is not refused.
    filter: u64,
    /// `GET` or `SET` is among them: the fastest path, which does not look at names, is not taken.
    pub(crate) has_frequent: bool,
}

/// The commands that are refused to the clients of a service. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Refusals(Option<Arc<RefusalRules>>);

impl Refusals {
    /// The entries as a list.
    ///
    /// # Errors
    ///
    /// Why the first entry that is not valid is not.
    pub fn new<'a>(entries: impl IntoIterator<Item = &'a str>) -> Result<Self, &'static str> {
        let mut rules = Vec::new();
        for entry in entries {
            rules.append(&mut parse(entry)?);
        }
        if rules.is_empty() {
            return Ok(Self::default());
        }
        let mut keys: Vec<u64> = rules.iter().map(|rule| key(&rule.name)).collect();
        keys.sort_unstable();
        keys.dedup();
        let filter = keys.iter().fold(0, |filter, key| filter | bit(*key));
        let has_frequent = rules.iter().any(|rule| matches!(&*rule.name, b"GET" | b"SET"));
        Ok(Self(Some(Arc::new(RefusalRules { rules, keys, filter, has_frequent }))))
    }

    /// The entry in its usual spelling, if it is valid.
    ///
    /// # Errors
    ///
    /// Why it is not.
    pub fn check(entry: &str) -> Result<String, &'static str> {
        parse(entry)?;
        let mut words = entry.split_ascii_whitespace();
        let name = words.next().unwrap_or_default();
        let name = if name.starts_with('@') { name.to_owned() } else { name.to_ascii_uppercase() };
        Ok(words.fold(name, |all, word| all + " " + word))
    }

    pub(crate) fn rules(&self) -> Option<&Arc<RefusalRules>> {
        self.0.as_ref()
    }
}

fn parse(entry: &str) -> Result<Vec<Rule>, &'static str> {
    let words: Vec<&str> = entry.split_ascii_whitespace().collect();
    let upper = |word: &str| word.to_ascii_uppercase().into_bytes().into_boxed_slice();
    let rule = |name: &str, part| Rule { name: upper(name), part };
    match words[..] {
        ["@deployment"] => {
            let default = DEFAULT_REFUSALS.split(',').flat_map(|it| parse(it).unwrap_or_default());
            let whole = DEPLOYMENT.iter().map(|name| rule(name, Part::Whole));
            let but = DEPLOYMENT_BUT.iter().map(|(name, but)| rule(name, Part::AllBut(but)));
            Ok(default.chain(whole).chain(but).collect())
        }
        [preset] if preset.starts_with('@') => Err(UNKNOWN_PRESET),
        [name] if name.eq_ignore_ascii_case("deployment") => Err(PRESET_WITHOUT_AT),
        [name] => match name.split_once('|') {
            None if is_name(name) => Ok(vec![rule(name, Part::Whole)]),
            Some((name, sub)) if is_name(name) && is_name(sub) => {
                Ok(vec![rule(name, Part::Subcommand(upper(sub)))])
            }
            _ => Err(MALFORMED),
        },
        [name, channel] if is_publish(name) => {
            let (prefix, exact) =
                channel.strip_suffix('*').map_or((channel, true), |prefix| (prefix, false));
            if prefix.contains(['*', '?', '[', '\\']) || prefix.len() > MAX_CHANNEL {
                return Err(NOT_A_PREFIX);
            }
            let part = Part::Channel { prefix: prefix.as_bytes().into(), exact };
            Ok(vec![rule("PUBLISH", part.clone()), rule("SPUBLISH", part)])
        }
        [name, _] if is_name(name) => Err(NOT_A_CHANNEL),
        _ => Err(MALFORMED),
    }
}

fn is_publish(name: &str) -> bool {
    name.eq_ignore_ascii_case("PUBLISH") || name.eq_ignore_ascii_case("SPUBLISH")
}

/// Names of less than three bytes have no place in the table of names; no command has one.
fn is_name(word: &str) -> bool {
    (3..=MAX_COMMAND_NAME).contains(&word.len())
        && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

const fn bit(key: u64) -> u64 {
    1 << (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58)
}

/// What is decided about a request from its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    Pass,
    Refuse(RefusedCommand),
    /// More bytes of the request are needed.
    Wait,
}

/// A command that was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusedCommand(u8);

impl RefusedCommand {
    /// Number of different [labels](Self::label).
    pub const COUNT: usize = LABELS.len();

    /// The label of each number.
    pub fn labels() -> impl Iterator<Item = &'static str> {
        LABELS.iter().copied()
    }

    fn new(name: &[u8], part: &Part) -> Self {
        let other = LABELS.len() - 1;
        let at = LABELS.iter().position(|label| name.eq_ignore_ascii_case(label.as_bytes()));
        let number = u8::try_from(at.unwrap_or(other)).unwrap_or_default();
        Self(if matches!(part, Part::Channel { .. }) { number + CHANNEL } else { number })
    }

    /// From the name of a substitute, without its prefix.
    pub(crate) fn from_digits(digits: &[u8]) -> Option<Self> {
        let [tens @ b'0'..=b'9', ones @ b'0'..=b'9'] = *digits else { return None };
        Some(Self((tens - b'0') * 10 + ones - b'0'))
    }

    pub(crate) fn from_number(number: u32) -> Self {
        Self(u8::try_from(number).unwrap_or(u8::MAX))
    }

    pub(crate) fn number(self) -> u32 {
        self.0.into()
    }

    /// Its number, less than [`COUNT`](Self::COUNT).
    #[must_use]
    pub fn index(self) -> usize {
        let number = if self.0 >= CHANNEL { self.0 - CHANNEL } else { self.0 };
        usize::from(number).min(LABELS.len() - 1)
    }

    /// Its name in lower case; `other` for one that is seldom refused.
    #[must_use]
    pub fn label(self) -> &'static str {
        LABELS.get(self.index()).copied().unwrap_or_default()
    }

    /// The error that its client gets, in the words of Redis.
    #[must_use]
    pub fn reply(self) -> String {
        if self.0 >= CHANNEL {
            return "-NOPERM this user has no permissions to access one of the channels used as \
                    arguments\r\n"
                .to_owned();
        }
        let name = match self.label() {
            "other" => "this",
            name => &format!("the '{name}'"),
        };
        format!("-NOPERM this user has no permissions to run {name} command or its subcommand\r\n")
    }

    /// The request that is sent in the place of the refused one.
    pub(crate) fn substitute(self) -> Vec<u8> {
        let (tens, ones) = (self.0 / 10 % 10, self.0 % 10);
        let mut request = b"*1\r\n$20\r\n".to_vec();
        request.extend_from_slice(SUBSTITUTE);
        request.extend([b'0' + tens, b'0' + ones, b'\r', b'\n']);
        request
    }
}

impl RefusalRules {
    /// Whether a request of that name may be refused. Nearly always one bit decides.
    #[inline]
    pub(crate) fn may_refuse(&self, name: &[u8]) -> bool {
        let key = key(name);
        self.filter & bit(key) != 0 && self.keys.contains(&key)
    }

    /// Decides about the request that begins with `head`. `whole`: that is all of it.
    pub(crate) fn decide(&self, head: &[u8], whole: bool) -> Decision {
        if head.first() == Some(&b'*') {
            return self.decide_words(&mut ArrayWords::new(head));
        }
        if !whole {
            return Decision::Wait;
        }
        let words = split_line(head);
        self.decide_words(
            &mut words.iter().map(|word| Word { bytes: word, len: word.len() }).map(Some),
        )
    }

    /// A word that is `None` is not known yet.
    fn decide_words<'a>(&self, words: &mut dyn Iterator<Item = Option<Word<'a>>>) -> Decision {
        let name = match words.next() {
            None => return Decision::Pass,
            Some(None) => return Decision::Wait,
            Some(Some(name)) => name,
        };
        if name.len > MAX_COMMAND_NAME {
            return Decision::Pass;
        }
        if !name.is_whole() {
            return Decision::Wait;
        }
        let of_name = |rule: &&Rule| name.bytes.eq_ignore_ascii_case(&rule.name);
        let mut rules = self.rules.iter().filter(of_name).peekable();
        if rules.peek().is_none() {
            return Decision::Pass;
        }
        let argument = words.next();
        let mut decision = Decision::Pass;
        for rule in rules {
            match rule.part.refuses(argument) {
                Some(true) => {
                    return Decision::Refuse(RefusedCommand::new(&rule.name, &rule.part));
                }
                Some(false) => {}
                None => decision = Decision::Wait,
            }
        }
        decision
    }
}

impl Part {
    /// Whether requests with that first argument, or without any, are refused; `None` if more of
    /// it is needed.
    fn refuses(&self, argument: Option<Option<Word<'_>>>) -> Option<bool> {
        let word = match (self, argument) {
            (Self::Whole, _) => return Some(true),
            (_, None) => return Some(false),
            (_, Some(word)) => word?,
        };
        let is = |name: &[u8]| word.bytes.eq_ignore_ascii_case(name);
        match self {
            Self::Whole => Some(true),
            Self::Channel { prefix, exact } => {
                let enough = word.is_whole() || word.bytes.len() >= prefix.len();
                let fits = !*exact || word.len == prefix.len();
                enough.then(|| fits && word.bytes.starts_with(prefix))
            }
            Self::Subcommand(_) if word.len > MAX_COMMAND_NAME => Some(false),
            Self::AllBut(_) if word.len > MAX_COMMAND_NAME => Some(true),
            Self::Subcommand(name) => word.is_whole().then(|| is(name)),
            Self::AllBut(names) => {
                word.is_whole().then(|| !names.iter().any(|name| is(name.as_bytes())))
            }
        }
    }
}

/// The first two words of a line, with their quotes and escapes resolved as
/// `redis:src/sds.c`, `sdssplitargs`, does. The scanner has found that they are balanced.
fn split_line(line: &[u8]) -> Vec<Vec<u8>> {
    let mut bytes = line.iter().copied().peekable();
    let mut words = Vec::new();
    while words.len() < 2 {
        while bytes.next_if(|byte| matches!(byte, b' ' | b'\t'..=b'\r')).is_some() {}
        if bytes.peek().is_none() {
            break;
        }
        let mut word = Vec::new();
        loop {
            match bytes.next() {
                None | Some(b' ' | b'\t' | b'\n' | b'\r') => break,
                Some(b'"') => break double_quoted(&mut bytes, &mut word),
                Some(b'\'') => break single_quoted(&mut bytes, &mut word),
                Some(byte) => word.push(byte),
            }
        }
        words.push(word);
    }
    words
}

fn single_quoted(bytes: &mut std::iter::Peekable<impl Iterator<Item = u8>>, word: &mut Vec<u8>) {
    while let Some(byte) = bytes.next() {
        match byte {
            b'\'' => return,
            b'\\' if bytes.next_if_eq(&b'\'').is_some() => word.push(b'\''),
            _ => word.push(byte),
        }
    }
}

fn double_quoted(bytes: &mut std::iter::Peekable<impl Iterator<Item = u8>>, word: &mut Vec<u8>) {
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => return,
            b'\\' => match bytes.next() {
                Some(b'x') => hexadecimal(bytes, word),
                Some(b'n') => word.push(b'\n'),
                Some(b'r') => word.push(b'\r'),
                Some(b't') => word.push(b'\t'),
                Some(b'b') => word.push(8),
                Some(b'a') => word.push(7),
                Some(other) => word.push(other),
                None => return,
            },
            _ => word.push(byte),
        }
    }
}

/// After `\x`: two digits, or the letter itself.
fn hexadecimal(bytes: &mut std::iter::Peekable<impl Iterator<Item = u8>>, word: &mut Vec<u8>) {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|it| u8::try_from(it).ok());
    let Some(high) = bytes.next_if(u8::is_ascii_hexdigit) else { return word.push(b'x') };
    match bytes.next_if(u8::is_ascii_hexdigit) {
        Some(low) => word.push(digit(high).unwrap_or(0) * 16 + digit(low).unwrap_or(0)),
        None => word.extend([b'x', high]),
    }
}
