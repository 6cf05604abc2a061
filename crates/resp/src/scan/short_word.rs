//! A short word kept while it arrives in pieces: a command's name, the first element of a push, the
//! start of an error.
//!
//! The only place where bytes of the stream are copied. Whatever is too long to be one of the known
//! words is remembered only as too long.

/// As many bytes as are ever compared: `MAINT_NOTIFICATIONS`, and the digits of the longest cursor.
pub(crate) const SHORT_WORD_LEN: u32 = 20;
const CAPACITY: usize = SHORT_WORD_LEN as usize;

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ShortWord {
    bytes: [u8; CAPACITY],
    /// How many bytes there are; one more than fit stands for "too many".
    len: u8,
}

impl ShortWord {
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends as much of `more` as there is room for.
    pub(crate) fn push(&mut self, more: &[u8]) {
        let start = usize::from(self.len);
        let space = self.bytes.get_mut(start..).unwrap_or_default();
        for (to, from) in space.iter_mut().zip(more) {
            *to = *from;
        }
        let end = (start + more.len()).min(CAPACITY + 1);
        self.len = u8::try_from(end).unwrap_or(u8::MAX);
    }

    /// The whole word; empty if it was too long to be a known one.
    pub(crate) fn whole(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// The beginning, however long the whole was.
    pub(crate) fn beginning(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len).min(CAPACITY)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::ShortWord;

    #[test]
    fn keeps_short_words_and_only_the_beginning_of_long_ones() {
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
