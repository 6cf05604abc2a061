//! Folders of sentinels in memory.
//!
//! At every vote, and at an order to fail over, a sentinel writes its file and waits for the disk
//! before it answers. Beside a build that took 1.3 s, longer than Pointsman waits for an answer:
//! the sentinel counted as lost, and the test failed. No test is about that disk.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The usual place for files in memory.
const MEMORY: &str = "/dev/shm";
/// The least space there: containers often have only 64 MiB, which other tests may need.
const LEAST: u64 = 16 << 20;

/// A folder in memory, which is removed with this value.
#[derive(Debug)]
pub(super) struct MemoryFolder(PathBuf);

impl MemoryFolder {
    /// Makes `path` a link to a new folder in memory. False if there is none.
    pub(super) fn create(path: &Path) -> bool {
        let enough = rustix::fs::statvfs(MEMORY).is_ok_and(|it| it.f_bavail * it.f_frsize >= LEAST);
        let made = enough.then(|| tempfile::Builder::new().prefix("harness-").tempdir_in(MEMORY));
        match made {
            Some(Ok(folder)) if symlink(folder.path(), path).is_ok() => {
                let _kept = folder.keep();
                true
            }
            _ => false,
        }
    }

    /// The folder in memory to which `path` is a link.
    pub(super) fn behind(path: &Path) -> Option<Self> {
        std::fs::read_link(path).ok().filter(|to| to.starts_with(MEMORY)).map(Self)
    }
}

impl Drop for MemoryFolder {
    fn drop(&mut self) {
        let _removed = std::fs::remove_dir_all(&self.0);
    }
}
