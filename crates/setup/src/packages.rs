//! Unpacks packages into a folder, without installing anything on the system.
//!
//! apt gets its own state with an empty list of installed packages. It then resolves all
//! dependencies of a package, down to the C library, and needs no root. The mirror is the one that
//! this machine's apt uses for Debian. A program unpacked this way is started through the dynamic
//! loader of its own packages, so that libraries of another suite never mix with the system's.
//!
//! Pure functions build the commands, so that they can be printed as well as run.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::files;

/// The keys of all Debian suites.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Downloads packages of a Debian suite with all their dependencies into `folder`, and returns the
/// archives. The last suite is the preferred one; the others complete it, as `bookworm` completes
/// `bookworm-backports`. A package may be `NAME=VERSION`.
///
/// # Errors
/// A message for people, with the command that failed.
pub fn debian(folder: &Path, suites: &[&str], packages: &[&str]) -> Result<Vec<PathBuf>, String> {
    let state = updated(folder, "deb", suites)?;
    let preferred = suites.last().copied().unwrap_or_default();
    let install =
        ["install", "--yes", "--no-install-recommends", "--download-only", "-t", preferred];
    run(apt(&state).args(install).args(packages))?;
    let mut found = files::list(state.join("cache/archives"))?;
    found.retain(|path| path.extension().is_some_and(|ending| ending == "deb"));
    Ok(found)
}

/// Downloads the source of a package of a Debian suite into `folder`, and returns the original
/// archive. The package may be `NAME=VERSION`.
///
/// # Errors
/// A message for people, with the command that failed.
pub fn debian_source(folder: &Path, suite: &str, package: &str) -> Result<PathBuf, String> {
    let state = updated(folder, "deb-src", &[suite])?;
    // Source archives go to the current folder.
    run(apt(&state).args(["source", "--download-only", package]).current_dir(folder))?;
    let is_original = |path: &PathBuf| path.to_string_lossy().contains(".orig.tar");
    let found = files::list(folder)?.into_iter().find(is_original);
    found.ok_or_else(|| format!("apt-get downloaded no source of {package}"))
}

/// A state of apt in `folder` that knows the packages of these suites and none that is installed.
fn updated(folder: &Path, kind: &str, suites: &[&str]) -> Result<PathBuf, String> {
    let state = folder.join("apt");
    for part in ["lists/partial", "cache/archives/partial", "parts"] {
        files::make(state.join(part))?;
    }
    let has_keys = Path::new(KEYS).exists();
    let signed = if has_keys { format!("[signed-by={KEYS}] ") } else { String::new() };
    let mirror = mirror()?;
    let line = |suite: &&str| format!("{kind} {signed}{mirror} {suite} main\n");
    files::write(state.join("sources.list"), suites.iter().map(line).collect::<String>())?;
    files::write(state.join("status"), "")?;
    run(apt(&state).arg("update"))?;
    Ok(state)
}

/// Removes what [`debian`] downloaded, once it is unpacked.
///
/// # Errors
/// A message for people.
pub fn discard_downloads(folder: &Path) -> Result<(), String> {
    files::remove(folder.join("apt"))
}

/// Unpacks Debian archives below `root`.
///
/// # Errors
/// A message for people, with the command that failed.
pub fn unpack(archives: &[PathBuf], root: &Path) -> Result<(), String> {
    files::make(root)?;
    let unpack = |archive: &PathBuf| run(Command::new("dpkg-deb").arg("-x").args([archive, root]));
    archives.iter().try_for_each(unpack)
}

/// Unpacks a compressed archive of tar below `root`, without its topmost folder.
///
/// # Errors
/// A message for people, with the command that failed.
pub fn unpack_source(archive: &Path, root: &Path) -> Result<(), String> {
    files::make(root)?;
    let mut command = Command::new("tar");
    command.args(["--extract", "--gzip", "--strip-components", "1", "--directory"]).arg(root);
    run(command.arg("--file").arg(archive))
}

/// The dynamic loader among the unpacked files and its arguments; the program follows.
///
/// # Errors
/// If the packages hold no loader.
pub fn loader(root: &Path) -> Result<Vec<OsString>, String> {
    let triplet = |lib| entry(&root.join(lib), "-linux-gnu");
    let libraries: Vec<PathBuf> = ["lib", "usr/lib"].into_iter().filter_map(triplet).collect();
    let places = ["lib64", "usr/lib64", "lib", "usr/lib"].map(|lib| root.join(lib));
    // An absolute link leads out of the folder, to the system's loader if there is one.
    let own = root.canonicalize().map_err(|error| error.to_string())?;
    let within = |path: &PathBuf| path.canonicalize().is_ok_and(|real| real.starts_with(&own));
    let found = |place: &PathBuf| entry(place, "ld-linux").filter(within);
    let loader = places.iter().chain(&libraries).find_map(found);
    let loader = loader.ok_or("its packages hold no dynamic loader")?;
    let libraries = std::env::join_paths(libraries).map_err(|error| error.to_string())?;
    Ok(vec![loader.into(), "--library-path".into(), libraries])
}

/// Installs a package of the Python package index below `root`, without its dependencies.
///
/// # Errors
/// A message for people, with the command that failed.
pub fn install_wheel(root: &Path, package: &str) -> Result<(), String> {
    files::make(root)?;
    let install = ["install", "--quiet", "--no-deps", "--no-compile", "--target"];
    run(pip().args(install).arg(root).arg(package))
}

/// Installs a package of npm with its dependencies below `root`.
///
/// # Errors
/// A message for people, with the command that failed.
pub fn install_npm(root: &Path, package: &str) -> Result<(), String> {
    files::make(root)?;
    let quiet = ["install", "--silent", "--no-fund", "--no-audit", "--ignore-scripts", "--prefix"];
    run(Command::new("npm").args(quiet).arg(root).arg(package))
}

/// A pip command.
#[must_use]
pub fn pip() -> Command {
    let mut command = Command::new("python3");
    command.args(["-m", "pip", "--disable-pip-version-check"]);
    command
}

/// Downloads one wheel, given by its file name, into `folder`, whatever Python runs here.
///
/// # Errors
/// A message for people: the name is not that of a wheel, or the command that failed.
pub fn download_wheel(folder: &Path, file: &str) -> Result<PathBuf, String> {
    let words = pip_download(folder, file).ok_or_else(|| format!("{file} names no wheel"))?;
    files::make(folder)?;
    run(pip().args(words))?;
    let path = folder.join(file);
    if path.is_file() { Ok(path) } else { Err(format!("the index has another file than {file}")) }
}

/// Unpacks a wheel below `root`.
///
/// # Errors
/// A message for people, with the command that failed.
pub fn unpack_wheel(wheel: &Path, root: &Path) -> Result<(), String> {
    run(Command::new("python3").args(["-m", "zipfile", "-e"]).args([wheel, root]))
}

/// Checks the SHA-256 of a file.
///
/// # Errors
/// A message for people, with the sum that was found.
pub fn check_sum(file: &Path, expected: &str) -> Result<(), String> {
    let found = crate::run(Command::new("sha256sum").arg(file))?;
    let found = found.split_whitespace().next().unwrap_or("no sum");
    if found == expected {
        return Ok(());
    }
    Err(format!("{}: its SHA-256 is {found} instead of {expected}", file.display()))
}

/// The words after `pip` that download exactly the wheel `file`, whose name says for which Python
/// and system it is made: `NAME-VERSION[-BUILD]-PYTHON-ABI-PLATFORM[.PLATFORM].whl`.
fn pip_download(folder: &Path, file: &str) -> Option<Vec<String>> {
    let parts: Vec<&str> = file.strip_suffix(".whl")?.split('-').collect();
    let [name, version, .., python, abi, platforms] = parts.as_slice() else { return None };
    // A wheel for every Python may still exclude the oldest ones.
    let python = match python.trim_start_matches(|letter: char| letter.is_ascii_alphabetic()) {
        "3" => "311",
        version => version,
    };
    let mut words = vec!["download", "--quiet", "--no-deps", "--only-binary", ":all:"];
    words.extend(["--implementation", "cp", "--python-version", python, "--abi", abi]);
    words.extend(platforms.split('.').flat_map(|it| ["--platform", it]));
    let (folder, package) = (folder.to_string_lossy(), name.replace('_', "-"));
    let package = format!("{package}=={version}");
    words.extend(["--dest", &folder, &package]);
    Some(words.into_iter().map(str::to_owned).collect())
}

/// An apt-get command with its own state, in which nothing is installed.
fn apt(state: &Path) -> Command {
    let own = [
        ("Dir::State", state.to_owned()),
        ("Dir::State::lists", state.join("lists")),
        ("Dir::State::status", state.join("status")),
        ("Dir::Cache", state.join("cache")),
        ("Dir::Etc::sourcelist", state.join("sources.list")),
        ("Dir::Etc::sourceparts", state.join("parts")),
        ("Dir::Etc::preferences", state.join("none")),
        ("Dir::Etc::preferencesparts", state.join("parts")),
    ];
    let mut command = Command::new("apt-get");
    command.arg("-qq");
    for (key, path) in own {
        command.args(["-o", &format!("{key}={}", path.display())]);
    }
    for option in ["APT::Sandbox::User=", "Acquire::Languages=none", "Debug::NoLocking=true"] {
        command.args(["-o", option]);
    }
    command
}

/// The Debian mirror of this machine's apt.
fn mirror() -> Result<String, String> {
    let targets = ["indextargets", "--format", "$(REPO_URI) $(ORIGIN)", "Created-By: Packages"];
    let said = crate::run(Command::new("apt-get").args(targets))?;
    choose(&said).ok_or_else(|| "this machine's apt knows no archive of Debian".to_owned())
}

/// The address of the archive with whole suites, not of their security updates.
fn choose(said: &str) -> Option<String> {
    let addresses = said.lines().filter_map(|line| line.split(' ').next());
    let mut debian = addresses.filter(|address| address.trim_end_matches('/').ends_with("/debian"));
    debian.next().map(str::to_owned)
}

/// The first entry of a folder whose name contains `part`.
fn entry(folder: &Path, part: &str) -> Option<PathBuf> {
    let named =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().contains(part));
    files::list(folder).ok()?.into_iter().find(named)
}

/// Runs a command; only its errors are shown.
///
/// # Errors
/// A message for people, with the command and its last words.
pub fn run(command: &mut Command) -> Result<(), String> {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    let line = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    crate::run(command).map(drop).map_err(|why| {
        let last = why.lines().last().unwrap_or("it failed without a word");
        format!("it could not be had: {last}\n    {line}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_apt_within_its_folder() {
        let command = apt(Path::new("/c/apt"));
        let line: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        for key in [
            "Dir::State",
            "Dir::State::status",
            "Dir::Cache",
            "Dir::Etc::sourcelist",
            "Dir::Etc::sourceparts",
        ] {
            assert!(
                line.iter().any(|word| word.starts_with(&format!("{key}=/c/apt"))),
                "{key} in {line:?}"
            );
        }
    }

    #[test]
    fn chooses_archive_of_whole_suites() {
        let said =
            "http://a/debian-security/ Debian\nhttp://b/tools/ Other\nhttp://a/debian/ Debian\n";
        assert_eq!(choose(said), Some("http://a/debian/".to_owned()));
        assert_eq!(choose("http://a/ubuntu Ubuntu\n"), None);
    }

    #[test]
    fn downloads_wheels_for_other_pythons() {
        let line = |file| Some(pip_download(Path::new("/d"), file)?.join(" "));
        let old = line("some_server-0.1.0-2024-cp39-cp39-manylinux_2_31_x86_64.whl").expect("one");
        for part in [
            "--python-version 39 --abi cp39 --platform manylinux_2_31_x86_64 --dest /d ",
            " some-server==0.1.0",
        ] {
            assert!(old.contains(part), "{part} in {old}");
        }
        let any =
            line("lite-9.1-py3-none-manylinux1_x86_64.manylinux2014_x86_64.whl").expect("one");
        let part = "--abi none --platform manylinux1_x86_64 --platform manylinux2014_x86_64 ";
        assert!(any.contains("--python-version 311 ") && any.contains(part), "{any}");
        assert_eq!((line("lite-9.1.tar.gz"), line("lite.whl")), (None, None));
    }

    #[test]
    fn compares_checksums() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        files::write(&file, "abc").expect("a file");
        let sum = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(check_sum(&file, sum), Ok(()));
        let found = check_sum(&file, "00").expect_err("another sum");
        assert!(found.contains(sum) && found.ends_with("instead of 00"), "{found}");
    }
}
