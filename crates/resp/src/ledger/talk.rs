//! Conversations written down, for the tests of the rules.

use crate::{Ledger, Limits, SessionState};

/// A session told as a dialogue: `c` is what the client sends, as words; `s` what the server sends,
/// with `/` for `\r\n`.
pub(crate) struct Talk(pub(crate) Ledger);

impl Talk {
    pub(crate) fn new() -> Self {
        Self(Ledger::new(&Limits::default()))
    }

    pub(crate) fn c(&mut self, words: &str) -> &mut Self {
        let words: Vec<&str> = words.split(' ').collect();
        let mut bytes = format!("*{}\r\n", words.len());
        for word in words {
            bytes += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.0.request(bytes.as_bytes());
        self
    }

    pub(crate) fn s(&mut self, frames: &str) -> &mut Self {
        self.0.reply(frames.replace('/', "\r\n").as_bytes());
        self
    }

    #[track_caller]
    pub(crate) fn is(&mut self, standing: SessionState, owed: u64) -> &mut Self {
        assert_eq!((self.0.standing(), self.0.owed()), (standing, owed));
        self
    }
}
