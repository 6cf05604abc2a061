//! Splits requests into words: whole ones that are recorded, and the beginnings of others.
//!
//! The scanner decides what a request is; this code only has to find the words where a server finds
//! them. An inline request with quotes has no plain words, and its effect is then unknown.

/// The words of `request`, which the scanner has found to be one complete request. `None` if it has
/// quotes or escapes.
pub(crate) fn words(request: &[u8]) -> Option<Vec<&[u8]>> {
    if !request.starts_with(b"*") {
        let quotes = request.iter().any(|byte| matches!(byte, b'"' | b'\'' | b'\\' | 0));
        return (!quotes).then(|| LineWords(request).collect());
    }
    let mut words = ArrayWords::new(request);
    let all = words.by_ref().map(|word| word.and_then(Word::whole)).collect::<Option<_>>();
    all.filter(|_| words.rest.is_empty())
}

/// The first two words of a request of which only the beginning may be known. `None` for one that
/// is not complete.
pub(crate) fn first_words(beginning: &[u8]) -> [Option<&[u8]>; 2] {
    if beginning.starts_with(b"*") {
        let mut words = ArrayWords::new(beginning).map(|word| word.and_then(Word::whole));
        return [words.next().flatten(), words.next().flatten()];
    }
    let mut words = LineWords(beginning);
    [words.next(), words.next()]
}

/// The words of a line without quotes that are complete. Some bytes are skipped between words and
/// do not end a word (`redis:src/sds.c`, `sdssplitargs`): a form feed within a password belongs to
/// it.
struct LineWords<'a>(&'a [u8]);

impl<'a> Iterator for LineWords<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let between = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | 0x0b | 0x0c);
        let (_, from) =
            self.0.split_at_checked(self.0.iter().take_while(|it| between(it)).count())?;
        let end = from.iter().position(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n'))?;
        let (word, after) = from.split_at_checked(end)?;
        self.0 = after;
        (!word.is_empty()).then_some(word)
    }
}

/// A word, or its beginning.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Word<'a> {
    pub(crate) bytes: &'a [u8],
    /// Its announced length.
    pub(crate) len: usize,
}

impl<'a> Word<'a> {
    pub(crate) fn is_whole(self) -> bool {
        self.bytes.len() == self.len
    }

    fn whole(self) -> Option<&'a [u8]> {
        self.is_whole().then_some(self.bytes)
    }
}

/// The words at the beginning of an array, the last one perhaps incomplete. `None` after it, while
/// words are missing. Redis skips two bytes as a line end, whatever they are.
pub(crate) struct ArrayWords<'a> {
    rest: &'a [u8],
    /// Words that are announced; `None` while that is not known.
    left: Option<i64>,
}

impl<'a> ArrayWords<'a> {
    pub(crate) fn new(head: &'a [u8]) -> Self {
        match header(head) {
            Some((count, rest)) => Self { rest, left: Some(count) },
            None => Self { rest: &[], left: None },
        }
    }
}

impl<'a> Iterator for ArrayWords<'a> {
    type Item = Option<Word<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let Some(left) = &mut self.left else { return Some(None) };
        if *left <= 0 {
            return None;
        }
        *left -= 1;
        let Some((len, body)) = header(self.rest) else {
            self.rest = &[];
            return Some(None);
        };
        let len = usize::try_from(len).unwrap_or_default();
        let bytes = body.get(..len).unwrap_or(body);
        self.rest = body.get(len.saturating_add(2)..).unwrap_or_default();
        Some(Some(Word { bytes, len }))
    }
}

/// The number in a header, after its first byte, and the bytes after its line.
fn header(bytes: &[u8]) -> Option<(i64, &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\r')?;
    let number = std::str::from_utf8(bytes.get(1..end)?).ok()?.parse().ok()?;
    Some((number, bytes.get(end + 2..)?))
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
