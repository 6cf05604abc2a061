//! Incremental parser of the number in a header line (`*2\r\n`, `$-1\r\n`, `$?\r\n`).
//!
//! It is as strict as Redis (`redis:src/util.c`, `string2ll`): no plus sign, no leading zeros, no
//! spaces. A header that Redis would refuse must not be interpreted. Numbers of more than 32 bits
//! are refused as well; they exceed every limit.

/// The result of scanning a header line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NumberScan {
    /// More bytes are needed.
    More,
    /// A number, zero or above.
    Count(u32),
    /// A negative number, without its sign; never zero.
    Minus(u32),
    /// `?`: unknown; an end mark will follow.
    Streamed,
    /// Not a number.
    Bad,
}

const MINUS: u8 = 0x80;
const STREAMED: u8 = 0x40;
const CARRIAGE: u8 = 0x20;
const DIGITS: u8 = 0x1f;

/// The state of an incomplete number: the count of its digits, and the flags above. The caller
/// keeps its value, in a counter that is not in use meanwhile. The state is reset when a number
/// ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Number(u8);

impl Number {
    /// Reads bytes from the beginning of `input` up to the end of the line. At the first byte of a
    /// number, `value` is ignored.
    #[inline]
    pub(crate) fn take(&mut self, value: &mut u32, input: &mut &[u8]) -> NumberScan {
        if self.0 == 0 {
            // Nearly all headers are this short, and nearly always arrive in one piece.
            match *input {
                [a @ b'0'..=b'9', b'\r', b'\n', rest @ ..] => {
                    *input = rest;
                    return NumberScan::Count(u32::from(a - b'0'));
                }
                [a @ b'1'..=b'9', b @ b'0'..=b'9', b'\r', b'\n', rest @ ..] => {
                    *input = rest;
                    return NumberScan::Count(u32::from(a - b'0') * 10 + u32::from(b - b'0'));
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
            NumberScan::Streamed
        } else if form & MINUS == 0 {
            NumberScan::Count(value)
        } else if value > 0 {
            NumberScan::Minus(value)
        } else {
            NumberScan::Bad
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Number, NumberScan};

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
    fn parses_valid_numbers_in_any_pieces() {
        let good: &[(&[u8], NumberScan)] = &[
            (b"0\r\n", NumberScan::Count(0)),
            (b"7\r\n", NumberScan::Count(7)),
            (b"16\r\n", NumberScan::Count(16)),
            (b"536870912\r\n", NumberScan::Count(536_870_912)),
            (b"4294967295\r\n", NumberScan::Count(u32::MAX)),
            (b"-1\r\n", NumberScan::Minus(1)),
            (b"-27\r\n", NumberScan::Minus(27)),
            (b"?\r\n", NumberScan::Streamed),
        ];
        for (text, length) in good {
            assert_eq!(whole(text), *length, "{text:?}");
            assert_eq!(bytewise(text), *length, "{text:?}");
        }
    }

    #[test]
    fn refuses_invalid_numbers_in_any_pieces() {
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
    fn reads_exactly_one_complete_line() {
        for text in [&b""[..], b"1", b"12", b"12\r", b"-", b"-1\r", b"?"] {
            assert_eq!(whole(text), NumberScan::More, "{text:?}");
        }
        for text in [&b"1\r\nrest"[..], b"12\r\nrest", b"123\r\nrest"] {
            let mut input = text;
            let (mut number, mut value) = (Number::default(), 0);
            number.take(&mut value, &mut input);
            assert_eq!(input, b"rest");
            assert_eq!(number.take(&mut value, &mut &b"5\r\n"[..]), NumberScan::Count(5));
        }
    }
}
