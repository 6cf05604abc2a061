//! What the test of the status page needs: a browser of this machine, and axe-core, which checks
//! accessibility.
//!
//! axe-core is a single file of the npm package of the same name. It is kept in
//! `target/page-tools`. npm only fetches it; it is not part of the program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::find_in_path;

/// The names of Chromium in the distributions, the most common one first.
pub const BROWSERS: [&str; 4] =
    ["chromium", "chromium-browser", "google-chrome-stable", "google-chrome"];

/// Pinned, so that a new rule of a later version does not fail a test.
const AXE: &str = "axe-core@4.14.1";

/// The path of the downloaded axe-core.
fn kept() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/page-tools").join(format!("{AXE}.js"))
}

/// Whether axe-core is present, so that npm is not needed.
#[must_use]
pub fn has_axe_core() -> bool {
    kept().is_file()
}

/// The path of axe-core's source; fetched by npm if it is missing.
///
/// # Errors
/// A message for people, if npm is missing or fails.
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
    // Written under another name first, so that a concurrent reader finds the whole file or none.
    let partial = parent.join(format!("axe-{}.partial", std::process::id()));
    fs::copy(folder.path().join("package/axe.min.js"), &partial)
        .map_err(|error| error.to_string())?;
    fs::rename(&partial, &file).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(file)
}
