//! Inline commands: a line of words as a person types them, split the way Redis splits them.
//!
//! The rules are those of `redis:src/sds.c`, `sdssplitargs`: blanks part the words, double quotes
//! with backslash escapes, single quotes with an escape for the quote alone, and behind a closing
//! quote a blank or the end. What Redis would refuse (an open quote) is not guessed at: the session
//! turns opaque, and so it does when one of the words that name the command is written with
//! escapes, since such a word would have to be rebuilt to be known.

use crate::commands::table::Naming;
use crate::scan::word::Word;

/// Where in the line the last byte was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Place {
    #[default]
    Between,
    Bare,
    Double,
    DoubleEscape,
    Single,
    /// Behind a backslash within single quotes, which escapes a single quote and nothing else.
    SingleEscape,
    /// Right behind a closing quote.
    Closed,
}

/// What one byte of an inline command was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line {
    More,
    /// The line feed: the line is whole.
    End,
    Bad,
}

/// A line under way.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Inline {
    place: Place,
    /// Whether the word under way has escapes.
    escaped: bool,
}

impl Inline {
    /// Takes one byte. `args` counts the words begun; `word` and `naming` follow those that name
    /// the command.
    pub(crate) fn take(
        &mut self,
        byte: u8,
        args: &mut u32,
        word: &mut Word,
        naming: &mut Naming,
    ) -> Line {
        match byte {
            b'\n' => self.end(word, naming),
            0 => Line::Bad,
            _ => match self.place {
                Place::Between if is_space(byte) => Line::More,
                Place::Between => {
                    *args += 1;
                    word.clear();
                    self.escaped = false;
                    self.bare(byte, word, naming)
                }
                Place::Bare => self.bare(byte, word, naming),
                Place::Closed if is_space(byte) => self.word_end(word, naming),
                Place::Closed => Line::Bad,
                Place::Double | Place::DoubleEscape | Place::Single | Place::SingleEscape => {
                    self.quoted(byte, word)
                }
            },
        }
    }

    fn bare(&mut self, byte: u8, word: &mut Word, naming: &mut Naming) -> Line {
        match byte {
            b' ' | b'\t' | b'\r' => return self.word_end(word, naming),
            b'"' => self.place = Place::Double,
            b'\'' => self.place = Place::Single,
            _ => {
                self.place = Place::Bare;
                word.push(&[byte]);
            }
        }
        Line::More
    }

    fn quoted(&mut self, byte: u8, word: &mut Word) -> Line {
        self.place = match (self.place, byte) {
            (Place::Double, b'"') | (Place::Single, b'\'') => Place::Closed,
            (Place::Double, b'\\') => {
                self.escaped = true;
                Place::DoubleEscape
            }
            (Place::Single | Place::SingleEscape, b'\\') => {
                self.escaped = true;
                Place::SingleEscape
            }
            (Place::Double | Place::DoubleEscape, _) => Place::Double,
            _ => Place::Single,
        };
        if self.place != Place::Closed {
            word.push(&[byte]);
        }
        Line::More
    }

    fn word_end(&mut self, word: &Word, naming: &mut Naming) -> Line {
        self.place = Place::Between;
        if let Naming::After(_) = naming {
            if self.escaped {
                return Line::Bad;
            }
            *naming = naming.with(word.whole());
        }
        Line::More
    }

    fn end(&mut self, word: &Word, naming: &mut Naming) -> Line {
        match self.place {
            Place::Between => Line::End,
            Place::Bare | Place::Closed => match self.word_end(word, naming) {
                Line::Bad => Line::Bad,
                Line::More | Line::End => Line::End,
            },
            Place::Double | Place::DoubleEscape | Place::Single | Place::SingleEscape => Line::Bad,
        }
    }
}

/// C's `isspace`, without the line feed, which ends the line.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | 0x0b | 0x0c)
}

#[cfg(test)]
mod tests {
    use super::{Inline, Line};
    use crate::commands::class::Class;
    use crate::commands::table::Naming;
    use crate::scan::word::Word;

    fn split(text: &[u8]) -> Option<(u32, Class)> {
        let (mut inline, mut args, mut word, mut naming) =
            (Inline::default(), 0, Word::default(), Naming::START);
        for (position, byte) in text.iter().enumerate() {
            match inline.take(*byte, &mut args, &mut word, &mut naming) {
                Line::More => {}
                Line::End => {
                    assert_eq!(position + 1, text.len(), "ended early");
                    return Some((args, naming.class()));
                }
                Line::Bad => return None,
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
            (b"client import-source on\r\n", 3, Class::Lasting),
            (b"CLIENT maint_notifications ON\r\n", 3, Class::NoticesOn),
            (b"AUTH pa\x0css\r\n", 2, Class::Auth),
            (b"SET k '' \"\"\r\n", 4, Class::Ordinary),
            (b"MULTI\rx\r\n", 2, Class::Multi),
        ];
        for (text, args, class) in good {
            assert_eq!(split(text), Some((*args, *class)), "{:?}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn does_not_guess() {
        let bad: &[&[u8]] = &[
            b"GET \"k\r\n",
            b"GET 'k\r\n",
            b"GET \"k\"x\r\n",
            b"GET 'k'x\r\n",
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
