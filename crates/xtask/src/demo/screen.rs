//! The terminal: plain lines, coloured only where a person looks at them.

use std::env;
use std::io::{self, IsTerminal as _, Write as _};

/// Standard output.
#[derive(Debug)]
pub(super) struct Screen {
    colour: bool,
}

impl Screen {
    /// Colours on a terminal that knows them, unless `NO_COLOR` is set.
    pub(super) fn of_this_terminal() -> Self {
        let refused = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = env::var_os("TERM").is_none_or(|term| term == "dumb");
        Self { colour: io::stdout().is_terminal() && !refused && !dumb }
    }

    /// A line as it is.
    pub(super) fn line(&mut self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{text}")?;
        out.flush()
    }

    /// A heading.
    pub(super) fn heading(&mut self, text: &str) -> io::Result<()> {
        self.painted("1", text)
    }

    /// Something a sentinel said.
    pub(super) fn event(&mut self, text: &str) -> io::Result<()> {
        self.painted("36", text)
    }

    /// A remark.
    pub(super) fn note(&mut self, text: &str) -> io::Result<()> {
        self.painted("2", text)
    }

    /// Good news.
    pub(super) fn good(&mut self, text: &str) -> io::Result<()> {
        self.painted("1;32", text)
    }

    /// Bad news.
    pub(super) fn bad(&mut self, text: &str) -> io::Result<()> {
        self.painted("1;31", text)
    }

    fn painted(&mut self, code: &str, text: &str) -> io::Result<()> {
        if self.colour { self.line(&format!("\x1b[{code}m{text}\x1b[0m")) } else { self.line(text) }
    }
}
