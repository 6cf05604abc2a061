//! Finds the programs of Redis.
//!
//! Debian's `redis-tools` contains no command named redis-server, but its `redis-check-rdb` is the
//! same program, which chooses its role by the name it is started under. The package starts no
//! daemon, so it is the preferred dependency. A link with the right name in a folder of the test is
//! enough.

use std::env;
use std::path::{Path, PathBuf};

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
