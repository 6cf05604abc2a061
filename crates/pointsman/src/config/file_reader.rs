//! Reads small files: regular files only, up to a maximum size, and with a record of the reads in
//! progress.
//!
//! A file system can hang, for example a network file system whose server is gone, or a stopped
//! FUSE daemon. Nothing ends such a read, not even a handled signal. Callers therefore read on a
//! separate thread, and [`PendingReads`] has the path and the start of each read. A second attempt
//! to read a file that hangs fails at once; otherwise each reload would block another thread.
//! Secrets of a running process are read on one thread each, with a time limit, so that one file
//! that hangs delays no other.
//!
//! Anything other than a regular file is refused before it is opened: opening a FIFO waits for a
//! writer, a device may have no end, and opening some devices has side effects.

use std::collections::BTreeMap;
use std::fs::{File, FileType};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use zeroize::Zeroizing;

use super::value::Problem;

/// How long a secret file is waited for while the process runs. Ten thousand times what a file on a
/// disk takes.
pub(crate) const SECRET_PATIENCE: Duration = Duration::from_secs(2);

/// The metadata by which a changed file is recognised; `None` if there is none.
pub(crate) type FileStamp = Option<(u64, u64, u64, i64, i64)>;

/// The metadata of a file.
pub(crate) fn stamp(path: &Path) -> FileStamp {
    let found = std::fs::metadata(path).ok()?;
    Some((
        found.dev(),
        found.ino(),
        found.size(),
        found.mtime_nsec() ^ (found.mtime() << 20),
        found.ctime_nsec(),
    ))
}

/// The mode of a file that users other than its owner and group can read or write; a secret in it
/// is none. To be called after the file has been read, because the look may hang as well.
pub(super) fn exposed_mode(path: &Path) -> Option<u32> {
    let mode = std::fs::metadata(path).ok()?.mode() & 0o7777;
    (mode & 0o006 != 0).then_some(mode)
}

/// The reads in progress. Cheap to clone; all clones share one record.
#[derive(Debug, Clone, Default)]
pub(crate) struct PendingReads {
    reads: Arc<Mutex<BTreeMap<PathBuf, Instant>>>,
    /// Receives a reason to read again when a read ends that was not waited for.
    late: Arc<OnceLock<mpsc::Sender<&'static str>>>,
}

impl PendingReads {
    /// The oldest read in progress: its path and its age.
    pub(crate) fn oldest(&self) -> Option<(PathBuf, Duration)> {
        let files = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = files.iter().min_by_key(|(_, since)| **since)?;
        Some((oldest.0.clone(), oldest.1.elapsed()))
    }

    /// `late` receives a reason to read again when a read ends that was not waited for.
    pub(crate) fn report_late_reads(&self, late: mpsc::Sender<&'static str>) {
        // Set once, at the start.
        let _first = self.late.set(late);
    }

    /// Records a read until the returned guard is dropped.
    fn begin(&self, path: &Path) -> io::Result<PendingRead> {
        let mut files = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(since) = files.get(path) {
            let what =
                format!("an earlier read has not returned for {} s", since.elapsed().as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, what));
        }
        files.insert(path.to_owned(), Instant::now());
        Ok(PendingRead { files: self.clone(), path: path.to_owned() })
    }
}

struct PendingRead {
    files: PendingReads,
    path: PathBuf,
}

impl Drop for PendingRead {
    fn drop(&mut self) {
        let mut reads = self.files.reads.lock().unwrap_or_else(PoisonError::into_inner);
        let since = reads.remove(&self.path);
        drop(reads);
        if since.is_some_and(|since| since.elapsed() > SECRET_PATIENCE)
            && let Some(late) = self.files.late.get()
        {
            // If the channel is full, a read is about to begin anyway.
            let _ = late.try_send("a file that hung can be read again");
        }
    }
}

/// A secret file: its metadata from before the read, and its text.
pub(crate) type SecretRead = (FileStamp, io::Result<String>);

/// As [`read_file`], but gives up after `patience`. The read that is not waited for keeps its
/// thread until it ends, and prevents another one of the same file.
pub(super) fn read_within(
    path: &Path,
    bound: u64,
    in_progress: &PendingReads,
    patience: Duration,
) -> SecretRead {
    let guard = match in_progress.begin(path) {
        Ok(guard) => guard,
        Err(error) => return (None, Err(error)),
    };
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    let file = path.to_owned();
    let work = move || {
        let stamp = stamp(&file);
        let text = read_regular(&file, bound).map(Zeroizing::new);
        // The record ends before the answer, so that the next attempt finds none.
        drop(guard);
        // The receiver may have given up: the text is wiped then.
        let _ = sender.send((stamp, text));
    };
    if let Err(error) = std::thread::Builder::new().name("secret".to_owned()).spawn(work) {
        return (None, Err(error));
    }
    match receiver.recv_timeout(patience) {
        Ok((stamp, text)) => (stamp, text.map(|mut text| std::mem::take(&mut *text))),
        Err(_) => {
            let what = format!("the read has not returned for {} s", patience.as_secs());
            (None, Err(io::Error::new(io::ErrorKind::TimedOut, what)))
        }
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
    read_regular(path, bound)
}

fn read_regular(path: &Path, bound: u64) -> io::Result<String> {
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
    let what = format!("it is {what}; only regular files are read");
    Err(io::Error::new(io::ErrorKind::InvalidInput, what))
}

fn read_bounded(from: impl Read, bound: u64) -> io::Result<String> {
    // Room for a usual secret: a text that grows leaves copies of it in memory.
    let mut bytes = Vec::with_capacity(4096);
    let length = from.take(bound.saturating_add(1)).read_to_end(&mut bytes)?;
    if length as u64 > bound {
        let what = format!("it is larger than {bound} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
    }
    String::from_utf8(bytes).map_err(|error| {
        let before = error.as_bytes().iter().take(error.utf8_error().valid_up_to());
        let line = before.filter(|byte| **byte == b'\n').count() + 1;
        let what = format!("line {line} is not UTF-8 text; save the file as UTF-8");
        io::Error::new(io::ErrorKind::InvalidData, what)
    })
}

/// How a message names a file that cannot be read: by its path, unless that may be a secret in the
/// wrong place, such as a private key instead of its file.
pub(crate) fn file_name(path: &Path) -> String {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"/._-".contains(&b);
    match path.to_str() {
        Some(text) if text.starts_with('/') && text.bytes().all(is_plain) => format!("{text:?}"),
        _ => "the file".to_owned(),
    }
}

/// The fault that a file cannot be read, with a remedy that fits the reason. `name` is the
/// [`file_name`]; the path of a file with a password is never shown, since it may be the password.
pub(super) fn file_problem(name: &str, error: &io::Error) -> Problem {
    let (reason, remedy) = match error.kind() {
        io::ErrorKind::InvalidData => {
            return Problem::new(format!("{name} is not UTF-8 text"), "save the file as UTF-8");
        }
        io::ErrorKind::NotFound => {
            let remedy = "correct the path, or create the file";
            return Problem::new(format!("{name} does not exist"), remedy);
        }
        io::ErrorKind::PermissionDenied => (
            "permission denied".to_owned(),
            "give the user of this process read permission on the file and its folders",
        ),
        io::ErrorKind::InvalidInput => (error.to_string(), "give the path of a file"),
        io::ErrorKind::FileTooLarge => (error.to_string(), "give the path of a smaller file"),
        io::ErrorKind::TimedOut => (error.to_string(), "check the file system on which it is"),
        _ => (error.to_string(), "check the file"),
    };
    Problem::new(format!("{name} cannot be read: {reason}"), remedy)
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
    fn gives_up_a_read_that_hangs_and_reports_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("one"), folder.path().join("two"));
        std::fs::write(&path, "1").unwrap();
        std::fs::write(&other, "2").unwrap();
        let (files, (late, mut reasons)) = (PendingReads::default(), mpsc::channel(1));
        files.report_late_reads(late);
        let (stamp_before, text) = read_within(&path, 16, &files, SECRET_PATIENCE);
        assert_eq!((stamp_before, text.unwrap().as_str()), (stamp(&path), "1"));
        let hangs = files.begin(&path).unwrap();
        let long_ago = Instant::now().checked_sub(SECRET_PATIENCE * 2).unwrap();
        files.reads.lock().unwrap().insert(path.clone(), long_ago);
        let (_, refused) = read_within(&path, 16, &files, SECRET_PATIENCE);
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::TimedOut, "at once");
        assert_eq!(read_within(&other, 16, &files, SECRET_PATIENCE).1.unwrap(), "2");
        assert!(reasons.try_recv().is_err());
        drop(hangs);
        assert!(reasons.try_recv().unwrap().contains("hung"));
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
