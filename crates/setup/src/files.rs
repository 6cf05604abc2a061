//! Files and folders whose errors name them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tempfile::{NamedTempFile, TempDir};

/// Marks a complete folder, with the identity of its content.
const FILLED: &str = ".complete";

/// The text of a file.
///
/// # Errors
/// A message for people, with the path.
pub fn read(file: impl AsRef<Path>) -> Result<String, String> {
    fs::read_to_string(&file).map_err(|error| failed(file, &error))
}

/// Writes a file.
///
/// # Errors
/// A message for people, with the path.
pub fn write(file: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<(), String> {
    fs::write(&file, content).map_err(|error| failed(file, &error))
}

/// Copies a file; the message of an error names the original.
///
/// # Errors
/// A message for people, with the path.
pub fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<(), String> {
    fs::copy(&from, to).map(drop).map_err(|error| failed(from, &error))
}

/// Creates a folder with its parents, unless it is there.
///
/// # Errors
/// A message for people, with the path.
pub fn make(folder: impl AsRef<Path>) -> Result<(), String> {
    fs::create_dir_all(&folder).map_err(|error| failed(folder, &error))
}

/// Removes a folder, if there is one.
///
/// # Errors
/// A message for people, with the path.
pub fn remove(folder: impl AsRef<Path>) -> Result<(), String> {
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed(folder, &error)),
        _ => Ok(()),
    }
}

/// Sets the permissions of a file or folder.
///
/// # Errors
/// A message for people, with the path.
pub fn permit(path: impl AsRef<Path>, mode: u32) -> Result<(), String> {
    fs::set_permissions(&path, Permissions::from_mode(mode)).map_err(|error| failed(path, &error))
}

/// Fills a folder, unless it was filled before with what `identity` names.
///
/// # Errors
/// That of `fill`, or a message for people, with the path.
pub fn fill_once(
    folder: &Path,
    identity: &str,
    fill: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    if is_filled(folder, identity) {
        return Ok(());
    }
    // An interrupted attempt may have left half a file.
    remove(folder)?;
    make(folder)?;
    fill()?;
    write(folder.join(FILLED), identity)
}

/// Whether a folder was filled with what `identity` names.
#[must_use]
pub fn is_filled(folder: &Path, identity: &str) -> bool {
    fs::read_to_string(folder.join(FILLED)).is_ok_and(|it| it == identity)
}

/// The paths in a folder, in order.
///
/// # Errors
/// A message for people, with the path.
pub fn list(folder: impl AsRef<Path>) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(&folder).map_err(|error| failed(folder, &error))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    Ok(paths)
}

/// A new folder that is removed when it is dropped.
///
/// # Errors
/// A message for people.
pub fn temporary() -> Result<TempDir, String> {
    tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))
}

/// A new file with this text that is removed when it is dropped.
///
/// # Errors
/// A message for people.
pub fn temporary_with(text: &str) -> Result<NamedTempFile, String> {
    let file = NamedTempFile::new().map_err(|error| format!("no temporary file: {error}"))?;
    write(file.path(), text)?;
    Ok(file)
}

fn failed(path: impl AsRef<Path>, error: &std::io::Error) -> String {
    format!("{}: {error}", path.as_ref().display())
}
