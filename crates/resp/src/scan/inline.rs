//! Inline commands: a line of words, split as Redis splits it.
//!
//! The rules are those of `redis:src/sds.c`, `sdssplitargs`: words are separated by white space;
//! double quotes allow backslash escapes, single quotes an escape for the quote alone. What follows
//! a closing quote belongs to the word in Valkey from 9.1 on; all other servers refuse the line
//! themselves, so it is forwarded as a request. If every server would refuse the line (an open
//! quote), the session becomes opaque. It also does if one of the words that name the command has
//! escapes, because such a word would have to be decoded first, or if servers disagree where it
//! ends: at a vertical tab or a form feed after a quote.

use crate::commands::table::ClassLookup;
use crate::scan::short_word::ShortWord;

/// The quoting state after the last byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum QuoteState {
    #[default]
    Between,
    Bare,
    Double,
    DoubleEscape,
    Single,
    /// After a backslash within single quotes, which escapes only a single quote.
    SingleEscape,
    /// Right after a closing quote.
    Closed,
}

/// The result of scanning one byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InlineStep {
    More,
    /// A line feed: the line is complete.
    End,
    Bad,
}

/// The scanner of one line.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Inline {
    place: QuoteState,
    /// Whether the current word has escapes.
    escaped: bool,
}

impl Inline {
    /// Scans one byte. `args` counts the words; `word` and `lookup` track those that name the
    /// command.
    pub(crate) fn take(
        &mut self,
        byte: u8,
        args: &mut u32,
        word: &mut ShortWord,
        lookup: &mut ClassLookup,
    ) -> InlineStep {
        match byte {
            b'\n' => self.end(word, lookup),
            0 => InlineStep::Bad,
            _ => match self.place {
                QuoteState::Between if is_space(byte) => InlineStep::More,
                QuoteState::Between => {
                    *args += 1;
                    word.clear();
                    self.escaped = false;
                    self.bare(byte, word, lookup)
                }
                QuoteState::Bare => self.bare(byte, word, lookup),
                QuoteState::Closed if matches!(byte, 0x0b | 0x0c) => match lookup {
                    ClassLookup::After(_) => InlineStep::Bad,
                    _ => self.word_end(word, lookup),
                },
                QuoteState::Closed => self.bare(byte, word, lookup),
                _ => self.quoted(byte, word),
            },
        }
    }

    /// Skips what follows in a word without quotes, up to `most` bytes, and returns their number.
    /// Strangers send long lines: byte by byte they took eight times as long.
    pub(crate) fn skip_plain(&self, input: &[u8], most: usize, word: &mut ShortWord) -> usize {
        if self.place != QuoteState::Bare {
            return 0;
        }
        let run = input.iter().take(most).take_while(|byte| is_plain(**byte)).count();
        word.push(input.get(..run).unwrap_or_default());
        run
    }

    fn bare(&mut self, byte: u8, word: &mut ShortWord, lookup: &mut ClassLookup) -> InlineStep {
        match byte {
            b' ' | b'\t' | b'\r' => return self.word_end(word, lookup),
            b'"' => self.place = QuoteState::Double,
            b'\'' => self.place = QuoteState::Single,
            _ => {
                self.place = QuoteState::Bare;
                word.push(&[byte]);
            }
        }
        InlineStep::More
    }

    fn quoted(&mut self, byte: u8, word: &mut ShortWord) -> InlineStep {
        self.place = match (self.place, byte) {
            (QuoteState::Double, b'"') | (QuoteState::Single, b'\'') => QuoteState::Closed,
            (QuoteState::Double, b'\\') => {
                self.escaped = true;
                QuoteState::DoubleEscape
            }
            (QuoteState::Single | QuoteState::SingleEscape, b'\\') => {
                self.escaped = true;
                QuoteState::SingleEscape
            }
            (QuoteState::Double | QuoteState::DoubleEscape, _) => QuoteState::Double,
            _ => QuoteState::Single,
        };
        if self.place != QuoteState::Closed {
            word.push(&[byte]);
        }
        InlineStep::More
    }

    fn word_end(&mut self, word: &ShortWord, lookup: &mut ClassLookup) -> InlineStep {
        self.place = QuoteState::Between;
        if let ClassLookup::After(_) = lookup {
            if self.escaped {
                return InlineStep::Bad;
            }
            *lookup = lookup.with(word.whole());
        }
        InlineStep::More
    }

    fn end(&mut self, word: &ShortWord, lookup: &mut ClassLookup) -> InlineStep {
        match self.place {
            QuoteState::Between => InlineStep::End,
            QuoteState::Bare | QuoteState::Closed => match self.word_end(word, lookup) {
                InlineStep::Bad => InlineStep::Bad,
                InlineStep::More | InlineStep::End => InlineStep::End,
            },
            // A quote is open.
            _ => InlineStep::Bad,
        }
    }
}

/// Whether a byte neither ends nor quotes a word, and may be part of a line.
fn is_plain(byte: u8) -> bool {
    !matches!(byte, 0 | b'\n' | b'\r' | b'\t' | b' ' | b'\'' | b'"')
}

/// C's `isspace`, without the line feed, which ends the line.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | 0x0b | 0x0c)
}

#[cfg(test)]
mod tests {
    use super::{Inline, InlineStep};
    use crate::commands::class::Class;
    use crate::commands::table::ClassLookup;
    use crate::scan::short_word::ShortWord;

    fn split(text: &[u8]) -> Option<(u32, Class)> {
        let (mut inline, mut args, mut word, mut lookup) =
            (Inline::default(), 0, ShortWord::default(), ClassLookup::START);
        for (position, byte) in text.iter().enumerate() {
            match inline.take(*byte, &mut args, &mut word, &mut lookup) {
                InlineStep::More => {}
                InlineStep::End => {
                    assert_eq!(position + 1, text.len(), "ended too early");
                    return Some((args, lookup.class()));
                }
                InlineStep::Bad => return None,
            }
        }
        panic!("no end: {text:?}");
    }

    #[test]
    fn splits_as_redis_does() {
        let good: &[(&[u8], u32, Class)] = &[
            (b"\n", 0, Class::Ordinary),
            (b"\r\n", 0, Class::Ordinary),
            (b" \t \x0b\x0c \r\n", 0, Class::Ordinary),
            (b"PING\r\n", 1, Class::Ordinary),
            (b"  multi \r\n", 1, Class::Multi),
            (b"subscribe a 'b c' \"d e\" f\n", 5, Class::Subscribe),
            (b"\"SELECT\" 3\r\n", 2, Class::Select),
            (b"SE\"LECT\" 3\r\n", 2, Class::Select),
            (b"'exec'\r\n", 1, Class::Exec),
            (b"SET k \"a\\\" b\\\\\" 'it\\'s'\r\n", 4, Class::Ordinary),
            (b"SET k 'back\\\\ ' 'a\\b'\r\n", 4, Class::Ordinary),
            (b"client reply skip\r\n", 3, Class::ReplySkip),
            (b"client import-source on\r\n", 3, Class::ClientCapability),
            (b"CLIENT maint_notifications ON\r\n", 3, Class::MaintenanceOn),
            (b"AUTH pa\x0css\r\n", 2, Class::Auth),
            (b"SET k '' \"\"\r\n", 4, Class::Ordinary),
            (b"MULTI\rx\r\n", 2, Class::Multi),
            // Valkey from 9.1 on; other servers refuse these.
            (b"GET \"k\"x'y z'\r\n", 2, Class::Ordinary),
            (b"'SEL'\"EC\"T 3\r\n", 2, Class::Select),
            (b"GET 'k'\x0b\r\n", 2, Class::Ordinary),
        ];
        for (text, args, class) in good {
            assert_eq!(split(text), Some((*args, *class)), "{:?}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn refuses_ambiguous_lines() {
        let bad: &[&[u8]] = &[
            b"GET \"k\r\n",
            b"GET 'k\r\n",
            b"GET \"k\"x'\r\n",
            b"\"MULTI\"\x0bx\r\n",
            b"GET \"k\\\r\n",
            b"GET 'it\\'\r\n",
            b"\"\\x53ELECT\" 3\r\n",
            b"GET a\0b\r\n",
            b"client \"re\\ply\" off\r\n",
        ];
        for text in bad {
            assert_eq!(split(text), None, "{:?}", String::from_utf8_lossy(text));
        }
    }
}
