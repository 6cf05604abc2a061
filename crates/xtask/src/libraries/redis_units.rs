//! Redis's own unit tests, in the mode in which they test a server that they did not start.
//! Debian's source package has them; they are written in Tcl.
//!
//! Their tags tell which of them are left out ([`TAGS`]).

use std::path::{Path, PathBuf};
use std::process::Command;

use harness::find_in_path;
use setup::{files, packages};

use super::catalogue::Library;
use super::outcomes::{Outcome, Outcomes};
use super::stage::PORT;

pub(super) const UNITS: &str = include_str!("units.sh");
/// Tests that are not run: they take minutes, need a replica, or need much memory.
const TAGS: &str = "-slow -needs:repl -largemem";

/// Downloads the source of a server, which has its tests, into a folder.
///
/// # Errors
/// A message for people, with the command that failed.
pub(super) fn fetch(library: &Library, folder: &Path) -> Result<(), String> {
    if find_in_path("tclsh").is_none() {
        return Err("tclsh is missing: apt-get install --yes tcl".to_owned());
    }
    let archive =
        packages::debian_source(folder, &library.suite, &library.origin).map_err(|why| {
            format!("{why}\n    If the suite has another version now, list it in libraries.json.")
        })?;
    packages::check_sum(&archive, &library.sha256)?;
    packages::unpack_source(&archive, &source(folder))?;
    packages::discard_downloads(folder)
}

/// The command that runs the tests and writes what they say into a file.
///
/// # Errors
/// A message for people: the script cannot be written.
pub(super) fn command(
    library: &Library,
    folder: &Path,
    outcomes: &Path,
) -> Result<Command, String> {
    let script = folder.join("units.sh");
    files::write(&script, UNITS)?;
    let mut command = Command::new("sh");
    command.current_dir(source(folder)).arg(script).arg(PORT.to_string()).arg(outcomes);
    command.args(["--tags", TAGS]);
    for name in library.left_out() {
        command.args(["--skiptest", name]);
    }
    Ok(command)
}

/// What the tests said.
///
/// # Errors
/// If they did not run to their end.
pub(super) fn outcomes(text: &str) -> Result<Outcomes, String> {
    let mut outcomes = Outcomes::default();
    let (mut unit, mut ended) = ("", false);
    let plain = without_colours(text);
    for line in plain.lines() {
        let Some((kind, said)) = line.strip_prefix('[').and_then(|rest| rest.split_once(']'))
        else {
            continue;
        };
        let said = said.strip_prefix(": ").unwrap_or(said);
        let (outcome, name) = match kind {
            "unit" => {
                unit = said;
                continue;
            }
            "ok" => (Outcome::Passed, without_time(said)),
            "err" => (Outcome::Failed, said.rsplit_once(" in tests/").map_or(said, |it| it.0)),
            "ignore" => (Outcome::Skipped, said),
            // It ends the unit.
            "exception" => (Outcome::Failed, "an exception"),
            "ended" => {
                ended = true;
                continue;
            }
            _ => continue,
        };
        outcomes.add(&format!("{unit}: {name}"), outcome);
    }
    if ended { Ok(outcomes) } else { Err("the tests ended early".to_owned()) }
}

/// A name without the time that the test took, as in `PING (3 ms)`.
fn without_time(name: &str) -> &str {
    match name.rsplit_once(" (") {
        Some((name, time)) if time.ends_with(" ms)") => name,
        _ => name,
    }
}

/// The text without the sequences that colour it on a terminal.
fn without_colours(text: &str) -> String {
    let mut parts = text.split('\x1b');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |plain, part| plain + part.split_once('m').map_or(part, |it| it.1))
}

/// Where the source is.
pub(super) fn source(folder: &Path) -> PathBuf {
    folder.join("source")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_outcomes_and_misses_the_end() {
        let text = [
            "[unit]: unit/a",
            "[ready]: 12",
            "\x1b[0;32m[\x1b[1;32;49mok\x1b[0m]: one (2) (3 ms)",
            "[err]: two in tests/unit/a.tcl",
            "Expected 1",
            "*** [err]: two in tests/unit/a.tcl",
            "[ignore]: three: Tag: slow denied",
            "[unit]: unit/b",
            "[ok]: one",
            "[exception]: Executing test client: no.",
        ]
        .join("\n");
        let whole = outcomes(&format!("{text}\n[ended]\n")).expect("a whole run");
        assert_eq!(whole.word("unit/a: one (2)"), "passed");
        assert_eq!(whole.word("unit/b: one"), "passed");
        assert_eq!(whole.word("unit/a: three: Tag: slow denied"), "skipped");
        let failed: Vec<_> = whole.failed().collect();
        assert_eq!(failed, ["unit/a: two", "unit/b: an exception"]);
        assert!(outcomes(&text).is_err());
    }
}
