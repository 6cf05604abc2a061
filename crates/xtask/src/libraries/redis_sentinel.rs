//! The tests of Sentinel of Redis and Valkey, with a client that writes all the time.
//!
//! They start five sentinels and five servers of their own. Pointsman follows those sentinels.
//! `sentinel.tcl` runs the tests and judges what became of the writes; `sentinel_client.tcl` is the
//! client.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use setup::files;

use super::catalogue::Library;
use super::outcomes::Way;
use super::redis_units::source;
use super::stage::PORT;
use crate::servers::Programs;

/// The ports of the sentinels, in a network namespace in which nothing else listens.
pub(super) const SENTINELS: [u16; 5] = [20_000, 20_001, 20_002, 20_003, 20_004];
const SCRIPTS: [(&str, &str); 2] = [
    ("sentinel.tcl", include_str!("sentinel.tcl")),
    ("sentinel_client.tcl", include_str!("sentinel_client.tcl")),
];
/// The end of the names of these libraries.
const NAME: &str = "-sentinel";

/// Whether a library stands for these tests.
pub(super) fn is_it(library: &Library) -> bool {
    library.name.ends_with(NAME)
}

/// The command that runs the tests and writes what they say into a file.
///
/// It has its own processes, so that no server is left when it is killed.
///
/// # Errors
/// A message for people: a script or link cannot be written.
pub(super) fn command(
    folder: &Path,
    outcomes: &Path,
    way: Way,
    redis: &Programs,
) -> Result<Command, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    for (name, text) in SCRIPTS {
        files::write(folder.join(name), text)?;
    }
    for (role, program) in [("server", &redis.server), ("sentinel", &redis.sentinel)] {
        for project in ["redis", "valkey"] {
            let link = source(folder).join(format!("src/{project}-{role}"));
            let _ = fs::remove_file(&link);
            symlink(program, &link).map_err(failed)?;
        }
    }
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "--", "sh", "-c"]);
    command.arg("exec tclsh \"$@\" > \"$0\" 2>&1").arg(outcomes);
    command.args(SCRIPTS.map(|(name, _)| folder.join(name)));
    command.args([way.name(), &PORT.to_string()]).current_dir(source(folder));
    Ok(command)
}

/// What the tests said about the writes of the client.
pub(super) fn figures(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.strip_prefix("[figures]: "))
}
