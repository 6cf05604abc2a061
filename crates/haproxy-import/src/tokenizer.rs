//! Splits a line of a haproxy.cfg into words, by haproxy's rules of quoting.
//!
//! Blanks separate words unless quoted or escaped; within double quotes `$NAME` and `${NAME}` are
//! environment variables; within single quotes nothing is special; `#` begins a comment (haproxy:
//! configuration.txt, 2.2 "Quoting and escaping" and 2.3 "Environment variables"). Variables are
//! kept by name and expanded later, and only in some directives: the import does not run where
//! haproxy ran, and the name of a variable that holds a password is what the new configuration
//! needs.

use std::fmt;
use std::iter::Peekable;
use std::str::Chars;

/// A part of a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fragment {
    /// Text, with quotes and escapes removed.
    Text(String),
    /// An environment variable, and its value where it is unset.
    Variable { name: String, default: Option<String> },
}

/// A word of a line. `Display` writes variables as `${NAME}`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Word {
    pub(super) fragments: Vec<Fragment>,
    /// Where it begins, in characters, from 1.
    pub(super) column: usize,
}

impl Word {
    /// Whether it is exactly this text, ignoring case.
    pub(super) fn is(&self, text: &str) -> bool {
        matches!(self.fragments.as_slice(), [Fragment::Text(own)] if own.eq_ignore_ascii_case(text))
    }

    /// Its text with variables expanded.
    ///
    /// # Errors
    /// The name of a variable that is unset and has no default.
    pub(super) fn expand(&self, env: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
        let mut text = String::new();
        for part in &self.fragments {
            match part {
                Fragment::Text(own) => text.push_str(own),
                Fragment::Variable { name, default } => {
                    text.push_str(
                        &env(name).or_else(|| default.clone()).ok_or_else(|| name.clone())?,
                    );
                }
            }
        }
        Ok(text)
    }

    pub(super) fn push(&mut self, c: char) {
        if let Some(Fragment::Text(text)) = self.fragments.last_mut() {
            text.push(c);
        } else {
            self.fragments.push(Fragment::Text(c.to_string()));
        }
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.fragments {
            match part {
                Fragment::Text(text) => write!(f, "{}", text.escape_default())?,
                Fragment::Variable { name, .. } => write!(f, "${{{name}}}")?,
            }
        }
        Ok(())
    }
}

/// The words of a line; none if it is blank or a comment.
///
/// # Errors
/// The quote that is not closed, and its column.
pub(super) fn split(line: &str) -> Result<Vec<Word>, (char, usize)> {
    let mut words = Vec::new();
    let mut open: Option<Word> = None;
    let mut double: Option<usize> = None;
    let mut chars = line.chars().peekable();
    let mut column = 0;
    while let Some(c) = chars.next() {
        // Counts characters; after an escape or a variable the column is a lower bound.
        column += 1;
        let word = || Word { fragments: Vec::new(), column };
        match c {
            '#' if double.is_none() => break,
            c if c.is_whitespace() && double.is_none() => words.extend(open.take()),
            '"' => {
                double = if double.is_some() { None } else { Some(column) };
                open.get_or_insert_with(word);
            }
            '\'' if double.is_none() => {
                let word = open.get_or_insert_with(word);
                let start = column;
                loop {
                    column += 1;
                    match chars.next() {
                        Some('\'') => break,
                        Some(c) => word.push(c),
                        None => return Err(('\'', start)),
                    }
                }
            }
            '\\' => escape(&mut chars, open.get_or_insert_with(word), double.is_some()),
            '$' if double.is_some() => variable(&mut chars, open.get_or_insert_with(word)),
            c => open.get_or_insert_with(word).push(c),
        }
    }
    words.extend(open);
    match double {
        Some(column) => Err(('"', column)),
        None => Ok(words),
    }
}

/// The character after a backslash. An unknown escape keeps its backslash, as in haproxy.
fn escape(chars: &mut Peekable<Chars<'_>>, word: &mut Word, quoted: bool) {
    let Some(&next) = chars.peek() else { return word.push('\\') };
    let plain = match next {
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'x' => return hexadecimal(chars, word),
        ' ' | '#' | '\\' | '"' | '\'' => next,
        '$' if quoted => next,
        _ => return word.push('\\'),
    };
    chars.next();
    word.push(plain);
}

/// `\xHH`: one byte. What is not ASCII becomes U+FFFD.
fn hexadecimal(chars: &mut Peekable<Chars<'_>>, word: &mut Word) {
    let mut digits = chars.clone().skip(1).map(|c| c.to_digit(16));
    let (Some(Some(high)), Some(Some(low))) = (digits.next(), digits.next()) else {
        return word.push('\\');
    };
    chars.nth(2);
    let byte = char::from_u32(high * 16 + low).filter(char::is_ascii);
    word.push(byte.unwrap_or(char::REPLACEMENT_CHARACTER));
}

/// `$NAME`, `${NAME}`, `${NAME-default}` or `${NAME[*]}`, after the dollar sign.
fn variable(chars: &mut Peekable<Chars<'_>>, word: &mut Word) {
    let braces = chars.next_if_eq(&'{').is_some();
    let mut name = String::new();
    while let Some(c) = chars.next_if(|c| c.is_ascii_alphanumeric() || *c == '_') {
        name.push(c);
    }
    let mut default = None;
    if braces {
        let rest: String = chars.by_ref().take_while(|c| *c != '}').collect();
        default = rest.strip_prefix('-').map(str::to_owned);
    }
    if name.is_empty() {
        word.push('$');
    } else {
        word.fragments.push(Fragment::Variable { name, default });
    }
}

/// The longest word in a message, in characters.
const MAX_WORD: usize = 40;

/// What may stand before `@` in an address of haproxy.
const FAMILIES: &[&str] = &[
    "", "abns", "abnsz", "fd", "ipv4", "ipv6", "quic4", "quic6", "ring", "sockpair", "tcp", "tcp4",
    "tcp6", "udp", "udp4", "udp6", "unix",
];

/// The word, unless it has credentials, as `redis://:password@host` or `user:password@host`. The
/// addresses of haproxy have none, but they may be written there by mistake.
pub(super) fn without_credentials(word: &str) -> &str {
    match word.rsplit_once('@') {
        Some((before, _)) if !FAMILIES.contains(&before) => "...",
        _ => word,
    }
}

/// A word as messages show it: short, without control characters and credentials.
pub(super) fn safe_word(word: &str) -> String {
    shorten(&clean(without_credentials(word)), MAX_WORD)
}

/// A text with a question mark for each control character, which a message or a comment of TOML
/// must not contain, and the name of a file may.
pub(super) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// At most `max` characters of a text.
pub(super) fn shorten(text: &str, max: usize) -> String {
    if text.chars().count() <= max {
        return text.to_owned();
    }
    text.chars().take(max.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts(line: &str) -> Vec<String> {
        split(line)
            .unwrap()
            .iter()
            .map(|word| word.expand(&|name| Some(format!("<{name}>"))).unwrap())
            .collect()
    }

    #[test]
    fn splits_words_as_haproxy_does() {
        for (line, words) in [
            ("  bind  :6379 ", &["bind", ":6379"][..]),
            ("# all of it", &[]),
            ("a b#c", &["a", "b"]),
            (r"a\ b c\#d", &["a b", "c#d"]),
            (r"send info\ replication\r\n", &["send", "info replication\r\n"]),
            (r#"send "AUTH ${AUTH}"\r\n"#, &["send", "AUTH <AUTH>\r\n"]),
            (r#"x "$A b" '$A "b"' $A"#, &["x", "<A> b", "$A \"b\"", "$A"]),
            (r#""" ''"#, &["", ""]),
            (r"\x41\x0d \q \x4", &["A\r", "\\q", "\\x4"]),
            (r"\xe4\x4g \x41x42 \x4", &["\u{fffd}\\x4g", "Ax42", "\\x4"]),
            (r#""\$A \" # no comment""#, &["$A \" # no comment"]),
        ] {
            assert_eq!(texts(line), words, "{line}");
        }
    }

    #[test]
    fn keeps_names_and_defaults_of_variables() {
        let words = split(r#""${PORT-6379}" "${LIST[*]}""#).unwrap();
        assert_eq!(words[0].expand(&|_| None).unwrap(), "6379");
        assert_eq!(words[1].expand(&|_| None), Err("LIST".to_owned()));
        assert_eq!(words[0].to_string(), "${PORT}");
    }

    #[test]
    fn reports_column_of_unclosed_quote() {
        assert_eq!(split("a \"b"), Err(('"', 3)));
        assert_eq!(split("a 'b"), Err(('\'', 3)));
        assert_eq!(split("ä 'b"), Err(('\'', 3)));
    }

    proptest! {
        #[test]
        fn never_panics(line in "[ \"'\\\\${}#xab0\\-\\[]{0,40}|.{0,40}") {
            let _ = split(&line);
        }
    }
}
