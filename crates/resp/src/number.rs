//! The decimal number of a header line (`*2\r\n`, `$-1\r\n`, `$?\r\n`), taken as its bytes arrive.
//!
//! As strict as Redis itself (`redis:src/util.c`, `string2ll`): no plus sign, no leading zeros, no blanks. A header that
//! Redis would refuse is one whose meaning must not be guessed.

/// What a header line announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Length {
    /// That many.
    Count(u64),
    /// A negative number, given without its sign; never zero.
    Minus(u64),
    /// `?`: unknown yet, the end will be marked.
    Streamed,
}

/// How far a number came with the bytes at hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// The bytes ran out first.
    More,
    /// The line ended.
    Whole(Length),
    /// Not a number.
    Bad,
}

const MINUS: u8 = 0x80;
const STREAMED: u8 = 0x40;
const CARRIAGE: u8 = 0x20;
const DIGITS: u8 = 0x1f;
/// Every number of so many digits fits into 64 bits; Redis knows nothing longer.
const MOST_DIGITS: u8 = 19;

/// A number under way. Ready for the next one whenever one has ended.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Number {
    value: u64,
    /// Number of digits so far, and the flags above.
    form: u8,
}

impl Number {
    /// Takes bytes off the front of `input` up to the end of the line.
    #[inline]
    pub(crate) fn take(&mut self, input: &mut &[u8]) -> Taken {
        if self.form == 0 {
            // Nearly all headers are this short, and they nearly always come in one piece.
            match *input {
                [a @ b'0'..=b'9', b'\r', b'\n', rest @ ..] => {
                    *input = rest;
                    return Taken::Whole(Length::Count(u64::from(a - b'0')));
                }
                [a @ b'1'..=b'9', b @ b'0'..=b'9', b'\r', b'\n', rest @ ..] => {
                    *input = rest;
                    return Taken::Whole(Length::Count(u64::from(a - b'0') * 10 + u64::from(b - b'0')));
                }
                _ => {}
            }
        }
        self.take_any(input)
    }

    fn take_any(&mut self, input: &mut &[u8]) -> Taken {
        while let Some((&byte, rest)) = input.split_first() {
            *input = rest;
            if self.form & CARRIAGE != 0 {
                return if byte == b'\n' { self.end() } else { Taken::Bad };
            }
            let digits = self.form & DIGITS;
            match byte {
                b'0'..=b'9' => {
                    let leading_zero = digits == 1 && self.value == 0;
                    if leading_zero || digits == MOST_DIGITS || self.form & STREAMED != 0 {
                        return Taken::Bad;
                    }
                    self.value = self.value * 10 + u64::from(byte - b'0');
                    self.form += 1;
                }
                b'\r' if digits > 0 || self.form & STREAMED != 0 => self.form |= CARRIAGE,
                b'-' if self.form == 0 => self.form = MINUS,
                b'?' if self.form == 0 => self.form = STREAMED,
                _ => return Taken::Bad,
            }
        }
        Taken::More
    }

    fn end(&mut self) -> Taken {
        let Self { value, form } = std::mem::take(self);
        if form & STREAMED != 0 {
            Taken::Whole(Length::Streamed)
        } else if form & MINUS == 0 {
            Taken::Whole(Length::Count(value))
        } else if value > 0 {
            Taken::Whole(Length::Minus(value))
        } else {
            Taken::Bad
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Length, Number, Taken};

    fn whole(text: &[u8]) -> Taken {
        Number::default().take(&mut &*text)
    }

    fn bytewise(text: &[u8]) -> Taken {
        let mut number = Number::default();
        for byte in text {
            let taken = number.take(&mut &[*byte][..]);
            if taken != Taken::More {
                return taken;
            }
        }
        Taken::More
    }

    #[test]
    fn takes_what_redis_takes_in_any_pieces() {
        let good: &[(&[u8], Length)] = &[
            (b"0\r\n", Length::Count(0)),
            (b"7\r\n", Length::Count(7)),
            (b"16\r\n", Length::Count(16)),
            (b"536870912\r\n", Length::Count(536_870_912)),
            (b"9223372036854775807\r\n", Length::Count(9_223_372_036_854_775_807)),
            (b"-1\r\n", Length::Minus(1)),
            (b"-27\r\n", Length::Minus(27)),
            (b"?\r\n", Length::Streamed),
        ];
        for (text, length) in good {
            assert_eq!(whole(text), Taken::Whole(*length), "{text:?}");
            assert_eq!(bytewise(text), Taken::Whole(*length), "{text:?}");
        }
    }

    #[test]
    fn refuses_what_redis_refuses_in_any_pieces() {
        let bad: &[&[u8]] = &[
            b"\r\n",
            b"\n",
            b"+1\r\n",
            b" 1\r\n",
            b"1 \r\n",
            b"01\r\n",
            b"00\r\n",
            b"-0\r\n",
            b"-\r\n",
            b"--1\r\n",
            b"1-\r\n",
            b"?1\r\n",
            b"1?\r\n",
            b"-?\r\n",
            b"1\rx",
            b"1\r\r\n",
            b"1\n",
            b"a\r\n",
            b"10000000000000000000\r\n",
        ];
        for text in bad {
            assert_eq!(whole(text), Taken::Bad, "{text:?}");
            assert_eq!(bytewise(text), Taken::Bad, "{text:?}");
        }
    }

    #[test]
    fn waits_for_the_whole_line_and_takes_not_a_byte_more() {
        for text in [&b""[..], b"1", b"12", b"12\r", b"-", b"-1\r", b"?"] {
            assert_eq!(whole(text), Taken::More, "{text:?}");
        }
        for text in [&b"1\r\nrest"[..], b"12\r\nrest", b"123\r\nrest"] {
            let mut input = text;
            let mut number = Number::default();
            number.take(&mut input);
            assert_eq!(input, b"rest");
            assert_eq!(number.take(&mut &b"5\r\n"[..]), Taken::Whole(Length::Count(5)));
        }
    }
}
