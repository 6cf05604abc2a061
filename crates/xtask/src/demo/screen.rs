//! The terminal: plain lines, coloured only on a terminal.

use std::env;
use std::io::{self, IsTerminal as _, Write as _};

/// Standard output.
#[derive(Debug)]
pub(super) struct Screen {
    colour: bool,
}

impl Screen {
    /// Coloured on a terminal with colours, unless `NO_COLOR` is set.
    pub(super) fn of_this_terminal() -> Self {
        let refused = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = env::var_os("TERM").is_none_or(|term| term == "dumb");
        Self { colour: io::stdout().is_terminal() && !refused && !dumb }
    }

    /// Prints a line.
    pub(super) fn line(&mut self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{text}")?;
        out.flush()
    }

    /// Prints a heading.
    pub(super) fn heading(&mut self, text: &str) -> io::Result<()> {
        self.painted("1", text)
    }

    /// Prints an event of a sentinel.
    pub(super) fn event(&mut self, text: &str) -> io::Result<()> {
        self.painted("36", text)
    }

    /// Prints a remark.
    pub(super) fn note(&mut self, text: &str) -> io::Result<()> {
        self.painted("2", text)
    }

    /// Prints a success.
    pub(super) fn good(&mut self, text: &str) -> io::Result<()> {
        self.painted("1;32", text)
    }

    /// Prints a failure.
    pub(super) fn bad(&mut self, text: &str) -> io::Result<()> {
        self.painted("1;31", text)
    }

    fn painted(&mut self, code: &str, text: &str) -> io::Result<()> {
        if self.colour { self.line(&format!("\x1b[{code}m{text}\x1b[0m")) } else { self.line(text) }
    }
}
