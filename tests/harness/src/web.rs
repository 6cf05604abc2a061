//! What the test of the status page needs besides: a browser of this machine, and axe-core, which
//! judges accessibility.
//!
//! axe-core is one file out of npm's package of the same name, kept in `target/page-tools` once it
//! was brought. Nothing of it is run by npm, and nothing of it belongs to the program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::find_in_path;

/// The names under which distributions have a Chromium, the usual one first.
pub const BROWSERS: [&str; 4] =
    ["chromium", "chromium-browser", "google-chrome-stable", "google-chrome"];

/// With its version, so that a rule that is new tomorrow does not turn a test red today.
const AXE: &str = "axe-core@4.14.1";

/// Where axe-core is once it was brought.
fn kept() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/page-tools").join(format!("{AXE}.js"))
}

/// Whether axe-core is here already, so that npm is not needed.
#[must_use]
pub fn has_axe_core() -> bool {
    kept().is_file()
}

/// axe-core's source; brought by npm if it is not here yet.
///
/// # Errors
/// In words, if npm is missing or fails.
pub fn axe_core() -> Result<PathBuf, String> {
    let file = kept();
    if file.is_file() {
        return Ok(file);
    }
    let npm = find_in_path("npm")
        .ok_or("npm is missing, which brings it: `cargo xtask test` installs it")?;
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let run = |command: &mut Command| {
        let done =
            command.current_dir(folder.path()).output().map_err(|error| error.to_string())?;
        if done.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&done.stderr).into_owned())
        }
    };
    run(Command::new(npm).args(["pack", "--silent", AXE]))?;
    run(Command::new("sh").args(["-c", "tar -xzf axe-core-*.tgz package/axe.min.js"]))?;
    let parent = file.parent().ok_or("no folder to keep it in")?;
    fs::create_dir_all(parent).map_err(|error| format!("{}: {error}", parent.display()))?;
    // Under another name first: whoever looks meanwhile finds all of it, or nothing.
    let partial = parent.join(format!("axe-{}.partial", std::process::id()));
    fs::copy(folder.path().join("package/axe.min.js"), &partial)
        .map_err(|error| error.to_string())?;
    fs::rename(&partial, &file).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(file)
}
