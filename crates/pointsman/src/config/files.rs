//! Reads small files: only regular ones, only up to a bound, and in view of others.
//!
//! A file system can hang: a network file system whose server is gone, a FUSE daemon that is
//! stopped. Nothing ends such a read, not even a signal that is handled. So the caller reads on a
//! thread of its own, and [`InProgress`] tells everybody else which file it is in and since when. A
//! second attempt to read a file that hangs fails at once: otherwise each reload would leave
//! another thread in the same place.
//!
//! Whatever is not a regular file is refused before it is opened. A FIFO would wait for a writer
//! and be empty the next time, a device may have no end, and opening some of them has an effect.

use std::collections::BTreeMap;
use std::fs::{File, FileType};
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The files that are being read. Cheap to clone; all clones are one.
#[derive(Debug, Clone, Default)]
pub struct InProgress(Arc<Mutex<BTreeMap<PathBuf, Instant>>>);

impl InProgress {
    /// The file that has been read for the longest time, and for how long.
    #[must_use]
    pub fn oldest(&self) -> Option<(PathBuf, Duration)> {
        let files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = files.iter().min_by_key(|(_, since)| **since)?;
        Some((oldest.0.clone(), oldest.1.elapsed()))
    }

    /// Notes a file until the guard is dropped.
    fn begin(&self, path: &Path) -> io::Result<Guard<'_>> {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(since) = files.get(path) {
            let what =
                format!("an attempt to read it has not ended for {} s", since.elapsed().as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, what));
        }
        files.insert(path.to_owned(), Instant::now());
        Ok(Guard { files: self, path: path.to_owned() })
    }
}

struct Guard<'a> {
    files: &'a InProgress,
    path: PathBuf,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.files.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.path);
    }
}

/// The text of a regular file of at most `bound` bytes.
///
/// # Errors
///
/// Of the system; `InvalidInput` for what is no regular file, `FileTooLarge` beyond the bound,
/// `TimedOut` while an earlier attempt has not ended.
pub(crate) fn read_file(path: &Path, bound: u64, in_progress: &InProgress) -> io::Result<String> {
    let _guard = in_progress.begin(path)?;
    // Before it is opened, which waits for a FIFO's writer. It may be another file by the time it
    // is opened, so it is asked again.
    is_regular(std::fs::metadata(path)?.file_type())?;
    let file = File::open(path)?;
    is_regular(file.metadata()?.file_type())?;
    read_bounded(file, bound)
}

/// The standard input up to its end, of at most `bound` bytes.
///
/// # Errors
///
/// As for a file.
pub(crate) fn read_stdin(bound: u64, in_progress: &InProgress) -> io::Result<String> {
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
        _ => "something else",
    };
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("it is {what}; only regular files are read"),
    ))
}

fn read_bounded(from: impl Read, bound: u64) -> io::Result<String> {
    let mut text = String::new();
    let length = from.take(bound + 1).read_to_string(&mut text)?;
    if length as u64 > bound {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it is larger than {bound} bytes"),
        ));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(path: &Path) -> String {
        read_file(path, 16, &InProgress::default()).unwrap_err().to_string()
    }

    #[test]
    fn refuses_what_is_not_a_regular_file() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        // On the thread of the test: an attempt to open the FIFO would never return.
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
        assert_eq!(read_file(&large, 16, &InProgress::default()).unwrap().len(), 16);
    }

    #[test]
    fn refuses_second_read_of_a_file_that_hangs() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("one"), folder.path().join("two"));
        std::fs::write(&path, "1").unwrap();
        std::fs::write(&other, "2").unwrap();
        let files = InProgress::default();
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
