//! Reads small files: regular files only, up to a maximum size, and with a record of the reads in
//! progress.
//!
//! A file system can hang, for example a network file system whose server is gone, or a stopped
//! FUSE daemon. Nothing ends such a read, not even a handled signal. Callers therefore read on a
//! separate thread, and [`PendingReads`] has the path and the start of each read. A second attempt
//! to read a file that hangs fails at once; otherwise each reload would block another thread.
//!
//! Anything other than a regular file is refused before it is opened: opening a FIFO waits for a
//! writer, a device may have no end, and opening some devices has side effects.

use std::collections::BTreeMap;
use std::fs::{File, FileType};
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::value::Problem;

/// The reads in progress. Cheap to clone; all clones share one record.
#[derive(Debug, Clone, Default)]
pub struct PendingReads(Arc<Mutex<BTreeMap<PathBuf, Instant>>>);

impl PendingReads {
    /// The oldest read in progress: its path and its age.
    #[must_use]
    pub fn oldest(&self) -> Option<(PathBuf, Duration)> {
        let files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = files.iter().min_by_key(|(_, since)| **since)?;
        Some((oldest.0.clone(), oldest.1.elapsed()))
    }

    /// Records a read until the returned guard is dropped.
    fn begin(&self, path: &Path) -> io::Result<PendingRead<'_>> {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(since) = files.get(path) {
            let what =
                format!("an earlier read has not returned for {} s", since.elapsed().as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, what));
        }
        files.insert(path.to_owned(), Instant::now());
        Ok(PendingRead { files: self, path: path.to_owned() })
    }
}

struct PendingRead<'a> {
    files: &'a PendingReads,
    path: PathBuf,
}

impl Drop for PendingRead<'_> {
    fn drop(&mut self) {
        self.files.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.path);
    }
}

/// The text of a regular file of at most `bound` bytes.
///
/// # Errors
///
/// Errors of the system; `InvalidInput` if it is not a regular file, `FileTooLarge` beyond the
/// bound, `TimedOut` while an earlier read of the same file has not returned.
pub(crate) fn read_file(path: &Path, bound: u64, in_progress: &PendingReads) -> io::Result<String> {
    let _guard = in_progress.begin(path)?;
    // Checked before opening, because opening a FIFO waits for a writer, and again after opening,
    // because the file may have been replaced in between.
    is_regular(std::fs::metadata(path)?.file_type())?;
    let file = File::open(path)?;
    is_regular(file.metadata()?.file_type())?;
    read_bounded(file, bound)
}

/// The text of the standard input, at most `bound` bytes.
///
/// # Errors
///
/// As for a file.
pub(crate) fn read_stdin(bound: u64, in_progress: &PendingReads) -> io::Result<String> {
    let _guard = in_progress.begin(Path::new("the standard input"))?;
    read_bounded(io::stdin().lock(), bound)
}

fn is_regular(kind: FileType) -> io::Result<()> {
    let what = match kind {
        it if it.is_file() => return Ok(()),
        it if it.is_dir() => "a directory",
        it if it.is_fifo() => "a FIFO",
        it if it.is_socket() => "a socket",
        it if it.is_block_device() || it.is_char_device() => "a device",
        _ => "not a regular file",
    };
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("it is {what}; only regular files are read"),
    ))
}

fn read_bounded(from: impl Read, bound: u64) -> io::Result<String> {
    let mut text = String::new();
    let length = from.take(bound.saturating_add(1)).read_to_string(&mut text)?;
    if length as u64 > bound {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it is larger than {bound} bytes"),
        ));
    }
    Ok(text)
}

/// The fault that a file cannot be read, with a remedy that fits the reason.
pub(super) fn file_problem(path: &Path, error: &io::Error) -> Problem {
    match error.kind() {
        io::ErrorKind::InvalidData => {
            Problem::new(format!("{path:?} is not UTF-8 text"), "save the file as UTF-8")
        }
        io::ErrorKind::NotFound => {
            Problem::new(format!("{path:?} does not exist"), "correct the path, or create the file")
        }
        io::ErrorKind::PermissionDenied => Problem::new(
            format!("{path:?} cannot be read: permission denied"),
            "give the user of this process read permission on the file and its folders",
        ),
        io::ErrorKind::InvalidInput => {
            Problem::new(format!("{path:?} cannot be read: {error}"), "give the path of a file")
        }
        io::ErrorKind::FileTooLarge => Problem::new(
            format!("{path:?} cannot be read: {error}"),
            "give the path of a smaller file",
        ),
        io::ErrorKind::TimedOut => Problem::new(
            format!("{path:?} cannot be read: {error}"),
            "check the file system on which it is",
        ),
        _ => Problem::new(format!("{path:?} cannot be read: {error}"), "check the file"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(path: &Path) -> String {
        read_file(path, 16, &PendingReads::default()).unwrap_err().to_string()
    }

    #[test]
    fn refuses_anything_but_regular_files() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        // On the thread of the test: opening the FIFO would never return.
        assert!(error(&fifo).contains("a FIFO"), "{}", error(&fifo));
        assert!(error(folder.path()).contains("a directory"));
        assert!(error(Path::new("/dev/zero")).contains("a device"));
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(error(&socket).contains("a socket"));
        let large = folder.path().join("large");
        std::fs::write(&large, "x".repeat(17)).unwrap();
        assert!(error(&large).contains("larger than 16 bytes"));
        std::fs::write(&large, "x".repeat(16)).unwrap();
        assert_eq!(read_file(&large, 16, &PendingReads::default()).unwrap().len(), 16);
    }

    #[test]
    fn refuses_second_read_while_first_hangs() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("one"), folder.path().join("two"));
        std::fs::write(&path, "1").unwrap();
        std::fs::write(&other, "2").unwrap();
        let files = PendingReads::default();
        assert!(files.oldest().is_none());
        let hangs = files.begin(&path).unwrap();
        assert_eq!(read_file(&path, 16, &files).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(read_file(&other, 16, &files).unwrap(), "2");
        assert_eq!(files.oldest().unwrap().0, path);
        drop(hangs);
        assert_eq!(read_file(&path, 16, &files).unwrap(), "1");
        assert!(files.oldest().is_none());
    }
}
