//! Splits a complete request into its words, for the few requests that are recorded.
//!
//! An inline request with quotes has no plain words, and its effect is then unknown.

/// The words of `request`, which the scanner has found to be one complete request. `None` if it has
/// quotes or escapes.
pub(crate) fn words(request: &[u8]) -> Option<Vec<&[u8]>> {
    match request.strip_prefix(b"*") {
        Some(rest) => array(rest),
        None if request.iter().any(|byte| matches!(byte, b'"' | b'\'' | b'\\' | 0)) => None,
        None => line(request),
    }
}

/// The first word of a request of which only the beginning may be known, and what follows it.
/// `None` if it is not complete, or not plain.
pub(crate) fn first_word(beginning: &[u8]) -> Option<(&[u8], &[u8])> {
    if let Some(rest) = beginning.strip_prefix(b"*") {
        return argument(header(rest)?.1);
    }
    let end = beginning.iter().position(u8::is_ascii_whitespace)?;
    beginning.split_at_checked(end).filter(|(word, _)| !word.is_empty())
}

/// The second word, by what follows the first one. `None` as for that.
pub(crate) fn second_word(after_first: &[u8]) -> Option<&[u8]> {
    if after_first.starts_with(b"$") {
        return argument(after_first).map(|(word, _)| word);
    }
    first_word(after_first.strip_prefix(b" ")?).map(|(word, _)| word)
}

/// The words of a line without quotes. Some bytes are skipped between words and do not end a word
/// (`redis:src/sds.c`, `sdssplitargs`): a form feed within a password belongs to it.
fn line(mut rest: &[u8]) -> Option<Vec<&[u8]>> {
    let mut words = Vec::new();
    loop {
        let begin = rest
            .iter()
            .position(|byte| !matches!(byte, b' ' | b'\t'..=b'\r'))
            .unwrap_or(rest.len());
        let (_, from) = rest.split_at_checked(begin)?;
        let end = from
            .iter()
            .position(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n'))
            .unwrap_or(from.len());
        let (word, after) = from.split_at_checked(end)?;
        if word.is_empty() {
            return Some(words);
        }
        words.push(word);
        rest = after;
    }
}

fn array(bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let (count, mut rest) = header(bytes)?;
    let mut words = Vec::with_capacity(count.min(16));
    for _ in 0..count {
        let (word, after) = argument(rest)?;
        words.push(word);
        rest = after;
    }
    rest.is_empty().then_some(words)
}

/// The bulk string at the beginning, and the bytes after it.
fn argument(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, body) = header(bytes.strip_prefix(b"$")?)?;
    let (word, after) = body.split_at_checked(len)?;
    Some((word, after.strip_prefix(b"\r\n")?))
}

/// The length in a header line, and the bytes after that line.
fn header(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\r')?;
    let (number, rest) = bytes.split_at_checked(end)?;
    Some((std::str::from_utf8(number).ok()?.parse().ok()?, rest.strip_prefix(b"\r\n")?))
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn splits_arrays_and_unquoted_lines_only() {
        let both: &[&[u8]] =
            &[b"*2\r\n$4\r\nAUTH\r\n$5\r\na\r\nbc\r\n", b"*2\r\n$04\r\nAUTH\r\n$5\r\na\r\nbc\r\n"];
        for request in both {
            assert_eq!(words(request), Some(vec![&b"AUTH"[..], b"a\r\nbc"]));
        }
        assert_eq!(words(b"  SELECT\t 3 \r\n"), Some(vec![&b"SELECT"[..], b"3"]));
        // All bytes for which `isspace` is true separate words, but within a word only a space, a
        // tab or a carriage return ends it.
        assert_eq!(words(b"\x0c AUTH pa\x0css\r\n"), Some(vec![&b"AUTH"[..], b"pa\x0css"]));
        assert_eq!(
            words(b"AUTH \x0b pa\x0bss\x0c me\r\n"),
            Some(vec![&b"AUTH"[..], b"pa\x0bss\x0c", b"me"])
        );
        assert_eq!(words(b"AUTH a\rb\n"), Some(vec![&b"AUTH"[..], b"a", b"b"]));
        assert_eq!(words(b"AUTH \"a b\"\r\n"), None);
        assert_eq!(words(b"*1\r\n$4\r\nAUTH\r\nx"), None);
        assert_eq!(words(b"*2\r\n$4\r\nAUTH\r\n"), None);
    }
}
