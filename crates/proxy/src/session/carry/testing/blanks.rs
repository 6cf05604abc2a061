//! Placeholders in the replies that a client expects, for what depends on the server process, and
//! the conditions that the actual values must meet.
//!
//! Over one connection, the number is always the same, the pages of an iteration hold every key,
//! and a script that was loaded stays.

use std::collections::{BTreeSet, VecDeque};

/// Begins a line of an expected reply of which only the kind is known.
pub(crate) const BLANK: char = '\u{1}';

/// The number of keys of every server; half of them are in a page.
pub(crate) const KEYS: u32 = 8;

/// The actual values of one connection so far.
#[derive(Debug, Default)]
pub(crate) struct Filled {
    number: Option<String>,
    /// The keys of iterations under way.
    pages: VecDeque<BTreeSet<String>>,
    /// The script was loaded, by a client that was not sent before that it is missing: such a
    /// client would load it again.
    has_script: bool,
    was_without: bool,
}

impl Filled {
    /// Records the values in the reply to `command`.
    pub(crate) fn take(&mut self, command: &[String], answer: &str) {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let is_page = answer.starts_with("*2\r\n$1\r\n");
        match words[..] {
            ["CLIENT", "ID"] if answer.starts_with(':') => {
                let number = self.number.get_or_insert_with(|| answer.to_owned());
                assert_eq!(number, answer, "the number of a connection has changed");
            }
            ["SCAN", "0"] if is_page => self.pages.push_back(keys(answer)),
            ["SCAN", _] if is_page => {
                let all = self
                    .pages
                    .pop_front()
                    .map(|first| first.len() + keys(answer).difference(&first).count());
                assert!(
                    all.is_none_or(|all| all == KEYS as usize),
                    "an iteration returned {all:?} of {KEYS} keys"
                );
            }
            // The effect of a transaction on iterations is not followed: it pins for good.
            ["EXEC"] => self.pages.clear(),
            // `EVAL` fills the cache as well, but a client of `EVALSHA` has to expect `NOSCRIPT`.
            ["SCRIPT", "LOAD", ..] if answer.starts_with(':') => {
                self.has_script |= !self.was_without;
            }
            ["EVALSHA", ..] if answer.starts_with("-NOSCRIPT") => {
                assert!(!self.has_script, "a loaded script is missing");
                self.was_without = true;
            }
            _ => {}
        }
    }
}

fn keys(page: &str) -> BTreeSet<String> {
    page.split("\r\n").filter(|line| line.starts_with('k')).map(str::to_owned).collect()
}

/// The rest of `expected` after `received`, if that is what was expected; `whole` frames, or a
/// piece of one.
pub(crate) fn after<'a>(expected: &'a str, received: &str, whole: bool) -> Option<&'a str> {
    let mut rest = expected;
    let mut lines = received.split_inclusive("\r\n").peekable();
    while let Some(line) = lines.next() {
        let end = rest.find("\r\n")? + 2;
        let (wanted, later) = rest.split_at(end);
        let cut = !whole && lines.peek().is_none() && !line.ends_with("\r\n");
        if !(if cut { begins(wanted, line) } else { is(wanted, line) }) {
            return None;
        }
        rest = later;
    }
    Some(rest)
}

fn is(wanted: &str, line: &str) -> bool {
    match wanted.strip_prefix(BLANK).map(str::trim_end) {
        Some("id") => line.starts_with(':'),
        Some("k") => line.starts_with('k'),
        Some(_) => line == ":7\r\n" || line == crate::session::carry::testing::model::NO_SCRIPT,
        None => wanted == line,
    }
}

/// Whether a truncated line may be the beginning of `wanted`.
fn begins(wanted: &str, piece: &str) -> bool {
    wanted.starts_with(BLANK) || wanted.starts_with(piece)
}
