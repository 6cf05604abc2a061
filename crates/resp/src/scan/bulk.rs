//! Bulk strings, short array headers and line ends, for both directions. Bodies are skipped by
//! their length and never read.

/// Length of the line end that follows every string and is not included in its length.
pub(crate) const CRLF: u32 = 2;

/// Maximum length of a string that can be counted.
pub(crate) const MAX_BULK_LEN: u32 = u32::MAX - CRLF;

/// Splits off the string at the beginning of `input`, if it has less than a hundred bytes and is
/// complete.
#[inline]
pub(crate) fn short_string(input: &[u8]) -> Option<(&[u8], &[u8])> {
    // Its header has four or five bytes; the first four are compared at once.
    let (head, rest) = input.split_first_chunk::<4>()?;
    let tens = u32::from(head[1].wrapping_sub(b'0'));
    let (len, rest) = if u32::from_le_bytes(*head) & !DIGIT == SHORTEST {
        (tens, rest)
    } else {
        let (b'\n', rest) = rest.split_first()? else { return None };
        let [b'$', b'1'..=b'9', ones, b'\r'] = *head else { return None };
        let ones = u32::from(ones.wrapping_sub(b'0'));
        (if ones > 9 { return None } else { tens * 10 + ones }, rest)
    };
    if tens > 9 {
        return None;
    }
    // One bounds check for the text and its line end.
    let (text, rest) = rest.split_at_checked(size(len + CRLF))?;
    Some((text.get(..size(len))?, rest))
}

/// Maximum length of a short string.
pub(crate) const MAX_SHORT_LEN: u32 = 99;

/// `$`, a digit and the line end, with the digit masked; and the mask of the digit.
const SHORTEST: u32 = u32::from_le_bytes([b'$', 0, b'\r', b'\n']);
const DIGIT: u32 = u32::from_le_bytes([0, 0xff, 0, 0]);

/// Splits off the array header at the beginning of `input`, if it is complete and announces one to
/// nine elements.
#[inline]
pub(crate) fn short_array(input: &[u8]) -> Option<(u32, &[u8])> {
    let (head, rest) = input.split_first_chunk::<4>()?;
    let count = u32::from(head[1].wrapping_sub(b'0'));
    let whole = u32::from_le_bytes(*head) & !DIGIT == u32::from_le_bytes([b'*', 0, b'\r', b'\n']);
    (whole && (1..=9).contains(&count)).then_some((count, rest))
}

/// Skips up to `left` bytes. Returns whether it skipped all of them.
#[inline]
pub(crate) fn skip(left: &mut u32, input: &mut &[u8]) -> bool {
    match input.split_at_checked(size(*left)) {
        Some((_, rest)) => {
            *input = rest;
            *left = 0;
            true
        }
        None => {
            *left -= len(input);
            *input = &[];
            false
        }
    }
}

/// The count as `usize`. On a platform where it does not fit, no input can be that long.
#[inline]
pub(crate) fn size(left: u32) -> usize {
    usize::try_from(left).unwrap_or(usize::MAX)
}

/// The length of bytes that are known to be fewer than those left of a string.
#[inline]
pub(crate) fn len(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

/// Bytes that are compared one by one before the vectorised search.
const SCALAR_BYTES: usize = 8;

/// The position of the first line feed. Most lines are too short for a vectorised search to be
/// worth its start-up cost.
#[inline]
pub(crate) fn find_feed(input: &[u8]) -> Option<usize> {
    match input.split_at_checked(SCALAR_BYTES) {
        None => input.iter().position(|byte| *byte == b'\n'),
        Some((short, rest)) => short
            .iter()
            .position(|byte| *byte == b'\n')
            .or_else(|| memchr::memchr(b'\n', rest).map(|feed| SCALAR_BYTES + feed)),
    }
}

#[cfg(test)]
mod tests {
    use super::{find_feed, short_string, skip};

    #[test]
    fn splits_off_complete_short_strings_only() {
        for len in 0..120 {
            let text = "x".repeat(len);
            let whole = format!("${len}\r\n{text}\r\n");
            let expected = (len < 100).then_some((text.as_bytes(), &b"rest"[..]));
            assert_eq!(short_string(format!("{whole}rest").as_bytes()), expected);
            assert_eq!(short_string(&whole.as_bytes()[..whole.len() - 1]), None);
        }
        for text in ["$01\r\nx\r\n", "$-1\r\n", "$1\nx\r\n", "*1\r\nx\r\n", "$?\r\n", ""] {
            assert_eq!(short_string(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn skips_exactly_the_bytes_left() {
        let (mut left, mut input) = (5, &b"abc"[..]);
        assert!(!skip(&mut left, &mut input));
        assert_eq!((left, input), (2, &b""[..]));
        input = b"abc";
        assert!(skip(&mut left, &mut input));
        assert_eq!((left, input), (0, &b"c"[..]));
    }

    #[test]
    fn finds_the_first_line_feed_at_every_distance() {
        for before in 0..40 {
            let mut text = vec![b'x'; before];
            assert_eq!(find_feed(&text), None);
            text.extend_from_slice(b"\nabc\n");
            assert_eq!(find_feed(&text), Some(before));
        }
    }
}
