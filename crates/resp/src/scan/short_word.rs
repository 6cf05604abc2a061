//! A buffer for a short word that may arrive in pieces: the name of a command, the first element of
//! a push message, the beginning of an error.
//!
//! A longer word cannot be one of the known words, and only the fact that it is longer is recorded.

/// Capacity in bytes: enough for `MAINT_NOTIFICATIONS` and for the digits of the longest cursor.
pub(crate) const SHORT_WORD_LEN: u32 = 20;
const CAPACITY: usize = SHORT_WORD_LEN as usize;

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ShortWord {
    bytes: [u8; CAPACITY],
    /// Number of bytes; one more than the capacity means "too long".
    len: u8,
}

impl ShortWord {
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends as much of `more` as fits.
    pub(crate) fn push(&mut self, more: &[u8]) {
        let start = usize::from(self.len);
        let space = self.bytes.get_mut(start..).unwrap_or_default();
        for (to, from) in space.iter_mut().zip(more) {
            *to = *from;
        }
        let end = (start + more.len()).min(CAPACITY + 1);
        self.len = u8::try_from(end).unwrap_or(u8::MAX);
    }

    /// The whole word; empty if it is too long.
    pub(crate) fn whole(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// The beginning of the word, also if it is too long.
    pub(crate) fn beginning(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len).min(CAPACITY)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::ShortWord;

    #[test]
    fn keeps_only_the_beginning_of_long_words() {
        let mut word = ShortWord::default();
        word.push(b"GEORADIUS");
        word.push(b"BYMEMBER_RO");
        assert_eq!(word.whole(), b"GEORADIUSBYMEMBER_RO");
        word.push(b"");
        assert_eq!(word.whole(), b"GEORADIUSBYMEMBER_RO");
        word.push(b"D");
        assert_eq!(word.whole(), b"");
        assert_eq!(word.beginning(), b"GEORADIUSBYMEMBER_RO");
        word.push(b"xyz");
        assert_eq!(word.beginning(), b"GEORADIUSBYMEMBER_RO");
        word.clear();
        assert_eq!(word.beginning(), b"");
        word.push(&[b'x'; 300]);
        assert_eq!(word.whole(), b"");
    }
}
