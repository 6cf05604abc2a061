//! redis-py: its source distribution has its tests, which pytest runs against the library beside
//! them.
//!
//! pytest and its plugins are installed below the library's folder, in the versions of
//! `requirements.txt`. A plugin of ours writes the outcome of every test into a file.

use std::path::{Path, PathBuf};
use std::process::Command;

use setup::{files, packages};

use super::catalogue::Library;
use super::outcomes::{Outcome, Outcomes};
use super::stage::PORT;

pub(super) const REQUIREMENTS: &str = include_str!("requirements.txt");
const PLUGIN: &str = include_str!("pointsman_plugin.py");
/// Tests for other kinds of servers carry these marks.
const MARKS: &str = "not onlycluster and not redismod and not ssl and not replica";

/// Downloads the library, and what its tests need, into a folder.
///
/// # Errors
/// A message for people, with the command that failed.
pub(super) fn fetch(library: &Library, folder: &Path) -> Result<(), String> {
    let archive = folder.join(format!("redis-{}.tar.gz", library.version));
    let source = ["download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest"];
    packages::run(packages::pip().args(source).arg(folder).arg(&library.origin))?;
    packages::check_sum(&archive, &library.sha256)?;
    packages::unpack_source(&archive, &tests(folder))?;
    let list = folder.join("requirements.txt");
    files::write(&list, REQUIREMENTS)?;
    let needed = ["install", "--quiet", "--no-deps", "--require-hashes", "--upgrade", "--target"];
    let mut install = packages::pip();
    install.args(needed).arg(needs(folder)).arg("--requirement").arg(list);
    packages::run(&mut install)
}

/// The command that runs the tests and writes their outcomes into a file.
///
/// # Errors
/// A message for people: the plugin cannot be written.
pub(super) fn command(
    library: &Library,
    folder: &Path,
    outcomes: &Path,
) -> Result<Command, String> {
    let plugin = needs(folder).join("pointsman_plugin.py");
    files::write(&plugin, PLUGIN)?;
    let mut command = Command::new("python3");
    command.current_dir(tests(folder));
    command.args(["-m", "pytest", "--verbose", "--tb=short", "-m", MARKS]);
    // Without the file of options of the library, and without plugins of this machine.
    command.args(["-c", "/dev/null", "--rootdir", ".", "-p", "no:cacheprovider"]);
    command.args(["-p", "pytest_asyncio.plugin", "-p", "pytest_timeout", "-p", "pointsman_plugin"]);
    for option in ["asyncio_mode=auto", "asyncio_default_fixture_loop_scope=function", "timeout=30"]
    {
        command.args(["-o", option]);
    }
    let url = format!("redis://localhost:{PORT}/0");
    command.args(["--redis-url", &url, "--redis-mod-url", &url]);
    for name in library.left_out() {
        let option = if name.contains("::") { "--deselect" } else { "--ignore" };
        command.args([option, name]);
    }
    command.arg("tests").env("PYTHONPATH", needs(folder)).env("OUTCOMES", outcomes);
    command.env("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1").env("PYTHONDONTWRITEBYTECODE", "1");
    Ok(command)
}

/// What the plugin wrote.
///
/// # Errors
/// If the tests did not run to their end.
pub(super) fn outcomes(text: &str) -> Result<Outcomes, String> {
    let mut outcomes = Outcomes::default();
    for line in text.lines().filter(|line| *line != "ended") {
        let (word, name) = line.split_once(' ').ok_or_else(|| format!("no outcome: {line}"))?;
        let outcome = match word {
            "passed" => Outcome::Passed,
            "failed" => Outcome::Failed,
            "skipped" => Outcome::Skipped,
            _ => return Err(format!("no outcome: {line}")),
        };
        outcomes.add(name, outcome);
    }
    if text.lines().last() == Some("ended") {
        Ok(outcomes)
    } else {
        Err("the tests ended early".to_owned())
    }
}

fn tests(folder: &Path) -> PathBuf {
    folder.join("source")
}

fn needs(folder: &Path) -> PathBuf {
    folder.join("packages")
}

#[cfg(test)]
mod tests_of_outcomes {
    use super::*;

    #[test]
    fn reads_outcomes_and_misses_the_end() {
        let text =
            "passed tests/a.py::one[x y]\nfailed tests/a.py::two\nskipped tests/a.py::three\n";
        let whole = outcomes(&format!("{text}ended\n")).expect("a whole run");
        assert_eq!(whole.word("tests/a.py::one[x y]"), "passed");
        assert_eq!(whole.failed().collect::<Vec<_>>(), ["tests/a.py::two"]);
        assert!(outcomes(text).is_err());
        assert!(outcomes("rerun tests/a.py::one\nended\n").is_err());
    }
}
