//! Watches the secret files that the configuration names, as `config_source` watches the
//! configuration itself.
//!
//! Each file has a task of its own, since a check can hang for ever on a network file system; it
//! then delays no other file. At most [`MAX_CHECKS`] checks are in progress, because they occupy
//! threads that name lookups need as well. A file is compared with its state before the last read,
//! so that no change is missed between a read and the first check.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinHandle;

use crate::config::{FileStamp, SecretFiles, stamp};
use crate::process::config_source::{CHECK_INTERVAL, ChangeDetector};

/// Maximum number of checks in progress.
const MAX_CHECKS: usize = 2;
/// Maximum number of watched files. Others are read with the next reload.
const MAX_FILES: usize = 256;

/// Watches a set of files that changes with the configuration.
#[derive(Debug)]
pub(crate) struct SecretWatch {
    files: BTreeMap<PathBuf, (watch::Sender<FileStamp>, JoinHandle<()>)>,
    checks: Arc<Semaphore>,
    changed: mpsc::Sender<&'static str>,
}

impl SecretWatch {
    /// `changed` receives the reason for a reload.
    pub(crate) fn new(changed: mpsc::Sender<&'static str>) -> Self {
        Self { files: BTreeMap::new(), checks: Arc::new(Semaphore::new(MAX_CHECKS)), changed }
    }

    /// These are the files now, with their metadata from before they were read.
    pub(crate) fn watch(&mut self, files: &SecretFiles) {
        self.files.retain(|path, (_, task)| {
            let wanted = files.contains_key(path);
            if !wanted {
                task.abort();
            }
            wanted
        });
        for (path, read) in files {
            if let Some((known, _)) = self.files.get(path) {
                // Unknown after a read that failed: the check that caused it knows better.
                if read.is_some() {
                    known.send_replace(*read);
                }
            } else if self.files.len() < MAX_FILES {
                let (known, reads) = watch::channel(*read);
                let (checks, changed) = (Arc::clone(&self.checks), self.changed.clone());
                let task = tokio::spawn(watch_file(path.clone(), reads, checks, changed));
                self.files.insert(path.clone(), (known, task));
            }
        }
    }
}

async fn watch_file(
    path: PathBuf,
    mut reads: watch::Receiver<FileStamp>,
    checks: Arc<Semaphore>,
    changed: mpsc::Sender<&'static str>,
) {
    let path: Arc<Path> = path.into();
    let mut detector = ChangeDetector::new(*reads.borrow_and_update());
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        // Kept by the check itself, also if this task ends.
        let Ok(permit) = Arc::clone(&checks).acquire_owned().await else { return };
        let file = Arc::clone(&path);
        let look = tokio::task::spawn_blocking(move || {
            let now = stamp(&file);
            drop(permit);
            now
        });
        let Ok(now) = look.await else { continue };
        if reads.has_changed().unwrap_or(false) {
            detector.set_read(*reads.borrow_and_update());
        }
        if detector.is_due(now) {
            // If the channel is full, a reload is about to begin anyway.
            let _ = changed.try_send("a secret file has changed");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn reports_changed_and_repaired_files_once() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        std::fs::write(&one, "1").unwrap();
        let (changed, mut reasons) = mpsc::channel(1);
        let mut secrets = SecretWatch::new(changed);
        let files = || SecretFiles::from([(one.clone(), stamp(&one)), (two.clone(), stamp(&two))]);
        secrets.watch(&files());
        let quiet = tokio::time::timeout(CHECK_INTERVAL * 3, reasons.recv()).await;
        assert!(quiet.is_err(), "nothing has changed: {quiet:?}");
        // A replaced file, and one that appears.
        for path in [&one, &two] {
            let next = folder.path().join("next");
            std::fs::write(&next, "22").unwrap();
            std::fs::rename(&next, path).unwrap();
            assert_eq!(reasons.recv().await, Some("a secret file has changed"));
            secrets.watch(&files());
        }
        let again = tokio::time::timeout(Duration::from_secs(3), reasons.recv()).await;
        assert!(again.is_err(), "once for each change: {again:?}");
        secrets.watch(&SecretFiles::new());
        assert!(secrets.files.is_empty());
    }
}
