//! The file of a listening Unix socket, from before the start until after the end.
//!
//! The socket is bound under a name of its own and gets its public one by a rename. So a start that
//! fails has not taken the socket from the process that serves, a file that a dead process left is
//! replaced, and there is no moment without one in a takeover. The file's mode is 0600 from the
//! beginning, and that of its users before it is published. It goes when its owner does, unless
//! another process has put its own there, or has taken the socket itself over.
//!
//! A process that takes a socket over keeps its file by a second name (a hard link). The old
//! process removes the first one if it is told to stop before the takeover is complete, and then
//! the second one takes its place.
//!
//! Making and publishing it belongs on a thread that may block. Its removal is part of every end,
//! so that is bounded here: a folder that hangs keeps a file that is of no use to anybody, and is
//! replaced by the next process.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, fchmod};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};

use crate::process::threads;

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
    /// What is at `path` is this process's to remove.
    owned: AtomicBool,
}

impl SocketFile {
    /// Makes a listening socket for `path`, not there yet.
    ///
    /// # Errors
    ///
    /// If the file cannot be made.
    pub(crate) fn make(path: &Path, kind: SocketType) -> io::Result<(Self, OwnedFd)> {
        let draft = draft_of(path);
        forget(&draft)?;
        let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        // The mode of the file is that of the socket at the bind: there is no moment at which
        // others may connect.
        fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        bind_at(&socket, &draft)?;
        let file =
            Self { path: path.to_owned(), identity: identity(&draft)?, draft, owned: true.into() };
        listen(&socket, BACKLOG)?;
        Ok((file, socket))
    }

    /// The file of a socket that is taken over; it is the old process's until it is published.
    ///
    /// # Errors
    ///
    /// If there is none any more, or it can get no second name.
    pub(crate) fn adopt(path: &Path) -> io::Result<Self> {
        let draft = draft_of(path);
        forget(&draft)?;
        fs::hard_link(path, &draft)?;
        Ok(Self { path: path.to_owned(), identity: identity(&draft)?, draft, owned: false.into() })
    }

    /// Gives the file, not yet published, this mode. The process's mask has no part in it.
    ///
    /// # Errors
    ///
    /// If the file cannot be changed.
    pub(crate) fn set_mode(&self, mode: u32) -> io::Result<()> {
        fs::set_permissions(&self.draft, fs::Permissions::from_mode(mode))
    }

    /// Another process has taken the socket over: the file is its own now.
    pub(crate) fn disown(&self) {
        self.owned.store(false, Ordering::Relaxed);
    }

    /// From now on it is where it belongs, and whatever was there is not. A second call changes
    /// nothing.
    ///
    /// # Errors
    ///
    /// If the file cannot be renamed.
    pub(crate) fn publish(&self) -> io::Result<()> {
        self.owned.store(true, Ordering::Relaxed);
        if identity(&self.path).is_ok_and(|found| found == self.identity) {
            // Only one that was taken over has a second name then.
            return forget(&self.draft);
        }
        fs::rename(&self.draft, &self.path)
    }

    /// Whether it is this process's to publish and to remove.
    pub(crate) fn is_owned(&self) -> bool {
        self.owned.load(Ordering::Relaxed)
    }

    /// Where it belongs.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it, if it is still ours. Waits no longer than [`REMOVAL`].
    pub(crate) fn remove(&self) {
        let (mut paths, own) = (vec![self.draft.clone()], self.identity);
        if self.owned.load(Ordering::Relaxed) {
            paths.push(self.path.clone());
        }
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

/// Where the file of `path` is until it is published: in the same folder, by a name that is shorter
/// than most.
fn draft_of(path: &Path) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    path.with_file_name(format!(".{}-{number}", std::process::id()))
}

/// Binds a socket to a path, which may be longer than an address may be: then through its folder.
fn bind_at(socket: &OwnedFd, path: &Path) -> io::Result<()> {
    match (SocketAddrUnix::new(path), path.parent(), path.file_name()) {
        (Err(Errno::NAMETOOLONG), Some(folder), Some(name)) => {
            let folder = rustix::fs::open(
                folder,
                OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
                Mode::empty(),
            )?;
            let short = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
            bind(socket, &SocketAddrUnix::new(&short)?)?;
        }
        (addr, ..) => bind(socket, &addr?)?,
    }
    Ok(())
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
