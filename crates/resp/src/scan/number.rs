//! The decimal number of a header line (`*2\r\n`, `$-1\r\n`, `$?\r\n`), taken as its bytes arrive.
//!
//! As strict as Redis itself (`redis:src/util.c`, `string2ll`): no plus sign, no leading zeros, no
//! blanks. A header that Redis would refuse is one whose meaning must not be guessed. Nor can it be
//! larger than 32 bits, which is beyond every limit.

/// What a header line announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Length {
    /// That many.
    Count(u32),
    /// A negative number, given without its sign; never zero.
    Minus(u32),
    /// `?`: unknown yet, the end will be marked.
    Streamed,
}

/// How far a number came with the bytes at hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NumberScan {
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

/// What a number under way looks like so far: the count of its digits, and the flags above. Its
/// value is kept by the caller, whose other counters have no use for their place meanwhile. Ready
/// for the next number whenever one has ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Number(u8);

impl Number {
    /// Takes bytes off the front of `input` up to the end of the line. At the first byte, `value`
    /// may be anything.
    #[inline]
    pub(crate) fn take(&mut self, value: &mut u32, input: &mut &[u8]) -> NumberScan {
        if self.0 == 0 {
            // Nearly all headers are this short, and they nearly always come in one piece.
            match *input {
                [a @ b'0'..=b'9', b'\r', b'\n', rest @ ..] => {
                    *input = rest;
                    return NumberScan::Whole(Length::Count(u32::from(a - b'0')));
                }
                [a @ b'1'..=b'9', b @ b'0'..=b'9', b'\r', b'\n', rest @ ..] => {
                    *input = rest;
                    return NumberScan::Whole(Length::Count(
                        u32::from(a - b'0') * 10 + u32::from(b - b'0'),
                    ));
                }
                _ => *value = 0,
            }
        }
        self.take_any(value, input)
    }

    fn take_any(&mut self, value: &mut u32, input: &mut &[u8]) -> NumberScan {
        while let Some((&byte, rest)) = input.split_first() {
            *input = rest;
            if self.0 & CARRIAGE != 0 {
                return if byte == b'\n' { self.end(*value) } else { NumberScan::Bad };
            }
            let digits = self.0 & DIGITS;
            match byte {
                b'0'..=b'9' => {
                    let longer = value
                        .checked_mul(10)
                        .and_then(|value| value.checked_add(u32::from(byte - b'0')));
                    let leading_zero = digits == 1 && *value == 0;
                    match longer {
                        Some(longer) if !leading_zero && self.0 & STREAMED == 0 => *value = longer,
                        _ => return NumberScan::Bad,
                    }
                    self.0 += 1;
                }
                b'\r' if digits > 0 || self.0 & STREAMED != 0 => self.0 |= CARRIAGE,
                b'-' if self.0 == 0 => self.0 = MINUS,
                b'?' if self.0 == 0 => self.0 = STREAMED,
                _ => return NumberScan::Bad,
            }
        }
        NumberScan::More
    }

    fn end(&mut self, value: u32) -> NumberScan {
        let Self(form) = std::mem::take(self);
        if form & STREAMED != 0 {
            NumberScan::Whole(Length::Streamed)
        } else if form & MINUS == 0 {
            NumberScan::Whole(Length::Count(value))
        } else if value > 0 {
            NumberScan::Whole(Length::Minus(value))
        } else {
            NumberScan::Bad
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Length, Number, NumberScan};

    fn whole(text: &[u8]) -> NumberScan {
        Number::default().take(&mut 77, &mut &*text)
    }

    fn bytewise(text: &[u8]) -> NumberScan {
        let (mut number, mut value) = (Number::default(), 77);
        for byte in text {
            let taken = number.take(&mut value, &mut &[*byte][..]);
            if taken != NumberScan::More {
                return taken;
            }
        }
        NumberScan::More
    }

    #[test]
    fn takes_what_redis_takes_in_any_pieces() {
        let good: &[(&[u8], Length)] = &[
            (b"0\r\n", Length::Count(0)),
            (b"7\r\n", Length::Count(7)),
            (b"16\r\n", Length::Count(16)),
            (b"536870912\r\n", Length::Count(536_870_912)),
            (b"4294967295\r\n", Length::Count(u32::MAX)),
            (b"-1\r\n", Length::Minus(1)),
            (b"-27\r\n", Length::Minus(27)),
            (b"?\r\n", Length::Streamed),
        ];
        for (text, length) in good {
            assert_eq!(whole(text), NumberScan::Whole(*length), "{text:?}");
            assert_eq!(bytewise(text), NumberScan::Whole(*length), "{text:?}");
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
            b"4294967296\r\n",
            b"99999999999999999999999\r\n",
        ];
        for text in bad {
            assert_eq!(whole(text), NumberScan::Bad, "{text:?}");
            assert_eq!(bytewise(text), NumberScan::Bad, "{text:?}");
        }
    }

    #[test]
    fn waits_for_the_whole_line_and_takes_not_a_byte_more() {
        for text in [&b""[..], b"1", b"12", b"12\r", b"-", b"-1\r", b"?"] {
            assert_eq!(whole(text), NumberScan::More, "{text:?}");
        }
        for text in [&b"1\r\nrest"[..], b"12\r\nrest", b"123\r\nrest"] {
            let mut input = text;
            let (mut number, mut value) = (Number::default(), 0);
            number.take(&mut value, &mut input);
            assert_eq!(input, b"rest");
            assert_eq!(
                number.take(&mut value, &mut &b"5\r\n"[..]),
                NumberScan::Whole(Length::Count(5))
            );
        }
    }
}
