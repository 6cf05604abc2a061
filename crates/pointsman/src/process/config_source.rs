//! The source of the configuration, and the watch that notices a changed file.
//!
//! A reload begins with SIGHUP, or because the file has changed. The file is checked every second
//! instead of with inotify: the check sees exactly what a reader would see, through the symbolic
//! links that Kubernetes replaces for a ConfigMap as well as on file systems without notifications,
//! and it uses none of the machine's inotify instances, of which a Kubernetes node has few. A file
//! is read only once two checks agree, so one that is being written is left alone. A missing file
//! is a reload that is refused: the process continues, but its next start would fail.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::mpsc;

use crate::config::{self, CONFIG_VARIABLE, FileStamp, Flags, PendingReads, stamp};

/// How often the file is checked.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The source of the configuration, which can be read again. Environment and file are read as they
/// are at each reading.
#[derive(Debug, Clone)]
pub(crate) struct ConfigSource(pub(crate) Flags);

impl ConfigSource {
    /// Reads everything, on a thread that may block. `files` reports which file is being read. A
    /// secret file is waited for at most for `patience`, if given.
    pub(crate) fn load(&self, files: &PendingReads, patience: Option<Duration>) -> config::Loaded {
        config::load_tracked(&self.0, std::env::vars_os(), files, patience)
    }

    /// Returns the file's metadata; the same limits hold as for a read.
    pub(crate) fn stamp(&self) -> FileStamp {
        self.file().filter(|_| !self.is_stdin()).and_then(|path| stamp(&path))
    }

    /// Returns the path of the file, if there is one.
    fn file(&self) -> Option<PathBuf> {
        let from_env = || {
            std::env::var_os(CONFIG_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from)
        };
        self.0.config.clone().or_else(from_env)
    }

    pub(crate) fn is_stdin(&self) -> bool {
        self.file().as_deref() == Some(Path::new("-"))
    }
}

/// Decides when to read: when the file differs from the one that was read, and two checks agree. A
/// file that is missing or not accessible is read as well: that fails once, with the reason.
#[derive(Debug)]
pub(crate) struct ChangeDetector {
    read: FileStamp,
    before: FileStamp,
}

impl ChangeDetector {
    /// `now` is the metadata of the file that was read.
    pub(crate) fn new(now: FileStamp) -> Self {
        Self { read: now, before: now }
    }

    /// The file was read by somebody else, with this metadata before it.
    pub(crate) fn set_read(&mut self, read: FileStamp) {
        self.read = read;
    }

    /// Whether to read, given the metadata of a check.
    pub(crate) fn is_due(&mut self, now: FileStamp) -> bool {
        let settled = now == self.before;
        self.before = now;
        let time = settled && now != self.read;
        if time {
            self.read = now;
        }
        time
    }
}

/// Sends the reason for a reload whenever the configuration file differs from the one that was
/// read, whose metadata is `read`. Never returns; a check never blocks this thread.
pub(crate) async fn watch(
    source: ConfigSource,
    read: FileStamp,
    changed: mpsc::Sender<&'static str>,
) {
    let Some(path) = source.file().filter(|_| !source.is_stdin()) else {
        return std::future::pending().await;
    };
    let mut detector = ChangeDetector::new(read);
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let path = path.clone();
        if let Ok(now) = tokio::task::spawn_blocking(move || stamp(&path)).await
            && detector.is_due(now)
        {
            // If the channel is full, a reload is about to begin anyway.
            let _ = changed.try_send("the file has changed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_file_once_it_is_stable() {
        let at = |size| Some((1, 1, size, 0, 0));
        let mut detector = ChangeDetector::new(at(1));
        assert!(!detector.is_due(at(1)));
        assert!(!detector.is_due(at(2)), "it may still be written");
        assert!(!detector.is_due(at(3)));
        assert!(detector.is_due(at(3)));
        assert!(!detector.is_due(at(3)), "read only once");
        assert!(!detector.is_due(None), "it may be about to be replaced");
        assert!(detector.is_due(None) && !detector.is_due(None), "its absence is reported once");
        assert!(!detector.is_due(at(3)) && detector.is_due(at(3)), "it is back");
        assert!(
            !detector.is_due(None) && !detector.is_due(at(3)) && !detector.is_due(at(3)),
            "it was replaced"
        );
    }

    #[test]
    fn detects_replaced_symbolic_link() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let folder_of_version = folder.path().join(name);
            std::fs::create_dir(&folder_of_version).unwrap();
            std::fs::write(folder_of_version.join("pointsman.toml"), "x = 1\n").unwrap();
        };
        make("one");
        make("two");
        let link = folder.path().join("..data");
        std::os::unix::fs::symlink("one", &link).unwrap();
        let path = link.join("pointsman.toml");
        let before = stamp(&path);
        std::os::unix::fs::symlink("two", folder.path().join("next")).unwrap();
        std::fs::rename(folder.path().join("next"), &link).unwrap();
        assert!(before.is_some() && stamp(&path).is_some() && stamp(&path) != before);
    }
}
