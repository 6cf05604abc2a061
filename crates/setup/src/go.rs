//! Builds Go programs with Debian's Go and Debian's packages of libraries, unpacked into a folder.
//!
//! This is Go's GOPATH mode, which needs no module proxy; machines that reach only Debian's mirror
//! can build, too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{files, packages};

/// The suite with the latest libraries, and the one with tools that run on older systems.
const SUITE: &str = "sid";
const TOOLS_SUITE: &str = "trixie";

/// Downloads Go and packages of libraries with their dependencies into `folder`.
///
/// # Errors
/// A message for people, with the command that failed.
pub fn fetch(folder: &Path, libraries: &[&str]) -> Result<(), String> {
    let packages = [&["golang-go"], libraries].concat();
    let mut archives = packages::debian(folder, &[TOOLS_SUITE], &packages)?;
    archives.retain(|path| starts_with(path, "golang"));
    packages::unpack(&archives, &folder.join("root"))?;
    packages::discard_downloads(folder)
}

/// Downloads the latest version of a library without dependencies into `folder`, and returns the
/// place of its source. The package may be `NAME=VERSION`; `import` is the path that programs
/// import, `sum` the expected SHA-256 of the package.
///
/// # Errors
/// A message for people, with the command that failed or the sum that was found.
pub fn fetch_library(
    folder: &Path,
    package: &str,
    import: &str,
    sum: Option<&str>,
) -> Result<PathBuf, String> {
    let all = packages::debian(folder, &[SUITE], &[package])?;
    let prefix = format!("{}_", package.split('=').next().unwrap_or_default());
    let archive = all.iter().find(|path| starts_with(path, &prefix));
    let archive = archive.ok_or_else(|| format!("no archive {prefix}"))?;
    sum.map_or(Ok(()), |sum| packages::check_sum(archive, sum))?;
    packages::unpack(std::slice::from_ref(archive), &folder.join("library"))?;
    packages::discard_downloads(folder)?;
    // Debian unpacks it without the major version, which Go expects at the end of the path.
    let place = folder.join("gopath/src").join(import);
    let major = |part: &str| part.starts_with('v') && part[1..].parse::<u32>().is_ok();
    let unversioned = import.rsplit_once('/').filter(|(_, last)| major(last));
    let unpacked = unversioned.map_or(import, |(path, _)| path);
    let unpacked = folder.join("library/usr/share/gocode/src").join(unpacked);
    files::make(place.parent().unwrap_or(folder))?;
    fs::rename(&unpacked, &place).map_err(|error| format!("{}: {error}", unpacked.display()))?;
    Ok(place)
}

/// The `go` of `folder`, which finds the libraries there.
///
/// # Errors
/// If the path of the folder cannot be part of a list of paths.
pub fn command(folder: &Path) -> Result<Command, String> {
    let go = folder.join("root/usr/lib/go");
    let path = [folder.join("gopath"), folder.join("root/usr/share/gocode")];
    let path = std::env::join_paths(path).map_err(|error| error.to_string())?;
    let mut command = Command::new(go.join("bin/go"));
    command.env("GOROOT", go).env("GOPATH", path).env("GOCACHE", folder.join("cache"));
    command.envs([("GO111MODULE", "off"), ("CGO_ENABLED", "0")]);
    command.envs([("GOTOOLCHAIN", "local"), ("GOFLAGS", "")]);
    Ok(command)
}

fn starts_with(path: &Path, prefix: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
}
