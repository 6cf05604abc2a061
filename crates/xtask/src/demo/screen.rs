//! The terminal: plain lines, coloured only on a terminal.

use std::env;
use std::io::{self, IsTerminal as _, Write as _};

/// A heading.
pub(super) const HEADING: &str = "1";
/// An event of a sentinel.
pub(super) const EVENT: &str = "36";
/// A remark.
pub(super) const NOTE: &str = "2";
/// A success.
pub(super) const GOOD: &str = "1;32";
/// A failure.
pub(super) const BAD: &str = "1;31";

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

    /// Prints a line in a style.
    pub(super) fn painted(&mut self, style: &str, text: &str) -> io::Result<()> {
        if self.colour {
            self.line(&format!("\x1b[{style}m{text}\x1b[0m"))
        } else {
            self.line(text)
        }
    }
}
