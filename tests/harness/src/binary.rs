//! Finds the programs of Redis.
//!
//! Debian's `redis-tools` contains no command named redis-server, but its `redis-check-rdb` is the
//! same program, which chooses its role by the name it is started under. The package starts no
//! daemon, so it is the preferred dependency. A link with the right name in a folder of the test is
//! enough.

use std::collections::HashMap;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// A program of Redis. The environment variable named by [`Binary::variable`] replaces it, for
/// example by a Valkey.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binary {
    /// redis-server.
    Server,
    /// redis-sentinel.
    Sentinel,
}

impl Binary {
    /// The name under which the program has to be started.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Server => "redis-server",
            Self::Sentinel => "redis-sentinel",
        }
    }

    /// The environment variable that overrides the search with a path.
    #[must_use]
    pub fn variable(self) -> &'static str {
        match self {
            Self::Server => "REDIS_SERVER",
            Self::Sentinel => "REDIS_SENTINEL",
        }
    }

    /// The path of the program to run as [`name`](Self::name), if this machine has one.
    #[must_use]
    pub fn find(self) -> Option<PathBuf> {
        choose(env::var_os(self.variable()).map(PathBuf::from), find_in_path, self)
    }

    /// The environment variable with the path of the version to upgrade to.
    #[must_use]
    pub fn newer_variable(self) -> &'static str {
        match self {
            Self::Server => "REDIS_SERVER_NEWER",
            Self::Sentinel => "REDIS_SENTINEL_NEWER",
        }
    }

    /// The program as a path that ends in the right name: the program itself, or a link created in
    /// `folder`.
    ///
    /// # Panics
    /// If there is no such program, or the link cannot be created.
    #[must_use]
    pub fn in_folder(self, folder: &Path) -> PathBuf {
        let Some(found) = self.find() else {
            panic!(
                "no {} here: install Debian's redis-tools, or set {} to a path",
                self.name(),
                self.variable()
            );
        };
        self.named(found, folder)
    }

    /// Like [`in_folder`](Self::in_folder), the version that an upgrade leads to: the same program
    /// unless the environment names another one.
    ///
    /// # Panics
    /// Like [`in_folder`](Self::in_folder).
    #[must_use]
    pub fn newer_in_folder(self, folder: &Path) -> PathBuf {
        match env::var_os(self.newer_variable()) {
            Some(newer) => {
                let folder = folder.join("newer");
                std::fs::create_dir_all(&folder)
                    .unwrap_or_else(|error| panic!("cannot make {}: {error}", folder.display()));
                self.named(newer.into(), &folder)
            }
            None => self.in_folder(folder),
        }
    }

    fn named(self, found: PathBuf, folder: &Path) -> PathBuf {
        if found.file_name().is_some_and(|name| name == self.name()) {
            return found;
        }
        let link = folder.join(self.name());
        if !link.exists() {
            std::os::unix::fs::symlink(&found, &link).unwrap_or_else(|error| {
                panic!("cannot link {} to {}: {error}", link.display(), found.display())
            });
        }
        link
    }
}

/// Major and minor version and patch level.
pub type Release = (u32, u32, u32);

/// Major and minor version of the redis-server that the tests run. The first Valkey is 7.2.
///
/// # Panics
/// If there is no such program, or it does not report its version.
#[must_use]
pub fn server_version() -> (u32, u32) {
    let (major, minor, _) = server_release();
    (major, minor)
}

/// Like [`server_version`], with the patch level.
///
/// # Panics
/// If there is no such program, or it does not report its version.
#[must_use]
pub fn server_release() -> Release {
    let found = Binary::Server.find().expect("a redis-server");
    // Under the name redis-check-rdb it would check a file.
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    release_of(&Binary::Server.named(found, folder.path()))
}

/// Major and minor version of the server at this path, asked once.
pub(crate) fn version_of(program: &Path) -> (u32, u32) {
    let (major, minor, _) = release_of(program);
    (major, minor)
}

fn release_of(program: &Path) -> Release {
    static KNOWN: Mutex<Option<HashMap<PathBuf, Release>>> = Mutex::new(None);
    // Links in folders of tests lead to few programs.
    let target = program.canonicalize().unwrap_or_else(|_| program.to_owned());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    *known.get_or_insert_default().entry(target).or_insert_with(|| {
        let output = Command::new(program).arg("--version").output();
        let output =
            output.unwrap_or_else(|error| panic!("cannot start {}: {error}", program.display()));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        parse_version(&text)
            .unwrap_or_else(|| panic!("{} reports no version: {text}", program.display()))
    })
}

/// `Redis server v=7.0.15 sha=…` or `Valkey server v=9.1.2 sha=…`.
fn parse_version(text: &str) -> Option<Release> {
    let version = text.split_whitespace().find_map(|word| word.strip_prefix("v="))?;
    let mut parts = version.split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?))
}

/// Chooses the override first, then a program with the right name, then redis-check-rdb, which is
/// the same program.
fn choose(
    given: Option<PathBuf>,
    find: impl Fn(&str) -> Option<PathBuf>,
    binary: Binary,
) -> Option<PathBuf> {
    given.or_else(|| find(binary.name())).or_else(|| find("redis-check-rdb"))
}

/// The first file of this name in the folders of `PATH`.
#[must_use]
pub fn find_in_path(name: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_versions_of_redis_and_valkey() {
        let redis = "Redis server v=6.2.14 sha=40305114:0 malloc=libc bits=64 build=dff95a8e\n";
        let valkey = "Valkey server v=9.1.2 sha=00000000:1 malloc=libc bits=64 build=1536df31\n";
        assert_eq!(
            (parse_version(redis), parse_version(valkey)),
            (Some((6, 2, 14)), Some((9, 1, 2)))
        );
        assert_eq!((parse_version("v=7.0"), parse_version("Redis 7.0")), (None, None));
    }

    #[test]
    fn prefers_override_then_name_then_alias() {
        let all = |name: &str| Some(Path::new("/bin").join(name));
        let tools =
            |name: &str| (name == "redis-check-rdb").then(|| PathBuf::from("/bin/redis-check-rdb"));
        let given = Some(PathBuf::from("/opt/valkey-server"));
        assert_eq!(choose(given.clone(), all, Binary::Server), given);
        assert_eq!(choose(None, all, Binary::Sentinel), Some(PathBuf::from("/bin/redis-sentinel")));
        assert_eq!(
            choose(None, tools, Binary::Sentinel),
            Some(PathBuf::from("/bin/redis-check-rdb"))
        );
        assert_eq!(choose(None, |_| None, Binary::Server), None);
    }
}
