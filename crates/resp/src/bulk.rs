//! Bulk strings, which both directions have: skipped by their length, never looked at.

/// How long a line end is; every string has one behind it, which no length includes.
pub(crate) const CRLF: u32 = 2;

/// The longest string that can be counted.
pub(crate) const LONGEST_BULK: u32 = u32::MAX - CRLF;

/// The string at the front of `input` and what is behind it, if it has less than a hundred bytes and all of them are there.
#[inline]
pub(crate) fn short_string(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = match *input {
        [b'$', a @ b'0'..=b'9', b'\r', b'\n', ref rest @ ..] => (usize::from(a - b'0'), rest),
        [b'$', a @ b'1'..=b'9', b @ b'0'..=b'9', b'\r', b'\n', ref rest @ ..] => {
            (usize::from(a - b'0') * 10 + usize::from(b - b'0'), rest)
        }
        _ => return None,
    };
    let (text, rest) = rest.split_at_checked(len)?;
    Some((text, rest.get(size(CRLF)..)?))
}

/// Skips up to `left` bytes; whether that was all of them.
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

/// What cannot be addressed cannot be there.
#[inline]
pub(crate) fn size(left: u32) -> usize {
    usize::try_from(left).unwrap_or(usize::MAX)
}

/// The length of something known to be shorter than what is left of a string.
#[inline]
pub(crate) fn len(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::{short_string, skip};

    #[test]
    fn short_strings_are_taken_whole_or_not_at_all() {
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
    fn skips_what_is_left_and_not_more() {
        let (mut left, mut input) = (5, &b"abc"[..]);
        assert!(!skip(&mut left, &mut input));
        assert_eq!((left, input), (2, &b""[..]));
        input = b"abc";
        assert!(skip(&mut left, &mut input));
        assert_eq!((left, input), (0, &b"c"[..]));
    }
}
