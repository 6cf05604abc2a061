//! Lines on the terminal, coloured only where that is wanted.

use std::io::{self, Write as _};

use anstyle::{AnsiColor, Style};

/// A heading.
pub(super) const HEADING: Style = Style::new().bold();
/// An event of a sentinel.
pub(super) const EVENT: Style = AnsiColor::Cyan.on_default();
/// A remark.
pub(super) const NOTE: Style = Style::new().dimmed();
/// A success.
pub(super) const GOOD: Style = AnsiColor::Green.on_default().bold();
/// A failure.
pub(super) const BAD: Style = AnsiColor::Red.on_default().bold();

/// Prints a line.
///
/// # Errors
/// Nobody reads it any more.
pub(super) fn line(text: &str) -> io::Result<()> {
    painted(Style::new(), text)
}

/// Prints a line in a style.
///
/// # Errors
/// Nobody reads it any more.
pub(super) fn painted(style: Style, text: &str) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    writeln!(out, "{style}{text}{style:#}")?;
    out.flush()
}
