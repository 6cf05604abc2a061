//! The file of a listening Unix socket, from before the start until after the end.
//!
//! The socket is bound under a name of its own and gets its public one by a rename. So a start that
//! fails has not taken the socket from the process that serves, a file that a dead process left is
//! replaced, and there is no moment without one in a takeover. The file's mode is 0600 from the
//! beginning. It goes when its owner does, unless another process has put its own there.
//!
//! Making and publishing it belongs on a thread that may block. Its removal is part of every end,
//! so that is bounded here: a folder that hangs keeps a file that is of no use to anybody, and is
//! replaced by the next process.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, fchmod};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};

use crate::threads;

/// Connections that may wait to be accepted: these sockets are used by hand, or by few processes.
const BACKLOG: i32 = 16;

/// How long the removal of a file may hold up an end.
const REMOVAL: Duration = Duration::from_secs(1);

/// The file of a socket that this process has made.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Where it is until it is published.
    draft: PathBuf,
    /// Device and number of the file.
    identity: (u64, u64),
}

impl SocketFile {
    /// Makes a listening socket for `path`, not there yet.
    ///
    /// # Errors
    ///
    /// If the file cannot be made.
    pub(crate) fn make(path: &Path, kind: SocketType) -> io::Result<(Self, OwnedFd)> {
        let mut draft = path.to_owned().into_os_string();
        draft.push(format!(".{}", std::process::id()));
        let draft = PathBuf::from(draft);
        forget(&draft)?;
        let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        // The mode of the file is that of the socket at the bind: there is no moment at which
        // others may connect.
        fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        bind(&socket, &SocketAddrUnix::new(&draft)?)?;
        let file = Self { path: path.to_owned(), identity: identity(&draft)?, draft };
        listen(&socket, BACKLOG)?;
        Ok((file, socket))
    }

    /// From now on it is where it belongs, and whatever was there is not. A second call changes
    /// nothing.
    ///
    /// # Errors
    ///
    /// If the file cannot be renamed.
    pub(crate) fn publish(&self) -> io::Result<()> {
        if identity(&self.path).is_ok_and(|found| found == self.identity) {
            return Ok(());
        }
        fs::rename(&self.draft, &self.path)
    }

    /// Where it belongs.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it, if it is still ours. Waits no longer than [`REMOVAL`].
    pub(crate) fn remove(&self) {
        let (paths, own) = ([self.draft.clone(), self.path.clone()], self.identity);
        let (tell, told) = std::sync::mpsc::channel();
        let removal = move || {
            for path in &paths {
                if identity(path).is_ok_and(|found| found == own) {
                    // It may be gone by now; that is what was wanted.
                    let _ = fs::remove_file(path);
                }
            }
            // The other end may have waited long enough.
            let _ = tell.send(());
        };
        if threads::aside("remove", removal).is_ok() {
            let _in_time = told.recv_timeout(REMOVAL);
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Whether something is there that is no socket, and must not be replaced by one.
pub(crate) fn is_something_else(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|file| !file.file_type().is_socket())
}

fn forget(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}
