//! Text from outside, printable by construction.
//!
//! Sentinels, Redis nodes, clients, certificates and admin servers choose their words. Written to a
//! terminal, a log or a metric unchanged, an escape sequence in them would run there and a line
//! break would forge a line. [`OutsideText`] escapes both once, where the bytes enter, so that no
//! place that prints it has to. It is here because this is the lowest crate that shows such text.

use std::borrow::Borrow;
use std::fmt::{self, Write as _};
use std::ops::Deref;

/// Bounded text without control characters and without characters that change the direction, the
/// width or the line of the text around them. They are shown as `\u{1b}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OutsideText(Box<str>);

impl OutsideText {
    /// Maximum number of characters read of a text, unless the place has less room.
    pub const MAX_CHARS: usize = 512;

    /// The first `max` characters of `bytes`, escaped, and an ellipsis if there are more.
    #[must_use]
    pub fn of_bytes(bytes: &[u8], max: usize) -> Self {
        let mut shown = String::new();
        // A character takes at most four bytes, so this never cuts what is shown.
        let beginning = bytes.get(..max.saturating_mul(4)).unwrap_or(bytes);
        for (number, c) in String::from_utf8_lossy(beginning).chars().enumerate() {
            if number == max {
                shown.push('…');
                break;
            }
            push(&mut shown, c);
        }
        Self(shown.into())
    }

    /// A whole document of several lines, such as JSON for a script: only line breaks are kept.
    /// Anything else that [`OutsideText`] escapes becomes a question mark, so that JSON stays JSON.
    #[must_use]
    pub fn lines(bytes: &[u8]) -> String {
        let text = String::from_utf8_lossy(bytes);
        text.chars().map(|c| if c == '\n' || is_harmless(c) { c } else { '?' }).collect()
    }
}

fn push(shown: &mut String, c: char) {
    if is_harmless(c) {
        shown.push(c);
    } else {
        // Writing to a string does not fail.
        let _ = write!(shown, "{}", c.escape_unicode());
    }
}

/// Neither a control character nor one that changes the direction, the width or the line of text.
fn is_harmless(c: char) -> bool {
    let invisible = matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
        | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}');
    !c.is_control() && !invisible
}

impl From<&str> for OutsideText {
    fn from(text: &str) -> Self {
        Self::of_bytes(text.as_bytes(), Self::MAX_CHARS)
    }
}

impl From<String> for OutsideText {
    fn from(text: String) -> Self {
        Self::from(&*text)
    }
}

impl From<OutsideText> for Box<str> {
    fn from(text: OutsideText) -> Self {
        text.0
    }
}

impl Deref for OutsideText {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for OutsideText {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl PartialEq<str> for OutsideText {
    fn eq(&self, other: &str) -> bool {
        &*self.0 == other
    }
}

impl PartialEq<&str> for OutsideText {
    fn eq(&self, other: &&str) -> bool {
        &*self.0 == *other
    }
}

impl fmt::Display for OutsideText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_what_could_change_a_terminal() {
        let shown = |bytes: &[u8]| OutsideText::of_bytes(bytes, 64).to_string();
        assert_eq!(shown(b"shop-7 (eu)"), "shop-7 (eu)");
        assert_eq!(shown("größe".as_bytes()), "größe");
        assert_eq!(shown(b"\x1b[2J\r\n\x9b"), "\\u{1b}[2J\\u{d}\\u{a}\u{fffd}");
        assert_eq!(shown("a\u{202e}b\u{200b}".as_bytes()), "a\\u{202e}b\\u{200b}");
        let long = shown(&[b'x'; 5000]);
        assert_eq!((long.chars().count(), long.ends_with('…')), (65, true));
        assert_eq!(shown("€".repeat(5000).as_bytes()).chars().count(), 65);
        assert_eq!(OutsideText::lines("{\n\"a\u{9b}\u{7}\"}".as_bytes()), "{\n\"a??\"}");
    }

    #[test]
    fn never_holds_a_character_that_is_not_printable() {
        for c in ('\0'..=char::MAX).map(String::from) {
            let held = OutsideText::from(c);
            assert!(held.chars().all(is_harmless), "{held:?}");
        }
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..10_000 {
            let bytes: Vec<u8> = (0..random.usize(..60)).map(|_| random.u8(..)).collect();
            let held = OutsideText::of_bytes(&bytes, random.usize(..40));
            assert!(held.chars().all(is_harmless), "{held:?}");
            let lines = OutsideText::lines(&bytes);
            assert!(lines.chars().all(|c| c == '\n' || is_harmless(c)), "{lines:?}");
        }
    }
}
