//! The file of a listening Unix socket, from before the start until after the end.
//!
//! The socket is bound under a temporary name and published by a rename. A start that fails has
//! therefore not replaced the socket of the process that serves, a file left by a dead process is
//! replaced, and during a takeover the path always exists. The file's mode is 0600 from the
//! beginning, and the configured one before it is published. The file is removed with its owner,
//! unless another process has published its own there, or has taken over the socket itself.
//!
//! A process that takes over a socket keeps its file under a second name (a hard link). If the old
//! process receives a signal to stop before the takeover is complete, it removes the first name,
//! and the second one then takes its place.
//!
//! Creating and publishing belong on a thread that may block. The removal is part of every exit and
//! therefore bounded here: a folder that hangs keeps a stale file, which the next process replaces.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, fchmod};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

use crate::system::threads;

/// Length of the accept queue: these sockets serve few processes.
const BACKLOG: i32 = 16;

/// How long the removal of a file may delay the exit.
const REMOVAL: Duration = Duration::from_secs(1);

/// The file of a socket that this process has created.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Its temporary name until it is published.
    temporary: PathBuf,
    /// Device and inode of the file.
    identity: (u64, u64),
    /// Whether this process may remove the file at `path`.
    owned: AtomicBool,
}

impl SocketFile {
    /// Creates a listening socket for `path`, not yet published.
    ///
    /// # Errors
    ///
    /// If the file cannot be created.
    pub(crate) fn create(path: &Path, kind: SocketType) -> io::Result<(Self, OwnedFd)> {
        let temporary = temporary_name(path);
        remove_if_present(&temporary)?;
        let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        // The file takes the mode that the socket has at the bind: at no moment can other users
        // connect.
        fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        bind_at(&socket, &temporary)?;
        let file = Self {
            path: path.to_owned(),
            identity: identity(&temporary)?,
            temporary,
            owned: true.into(),
        };
        listen(&socket, BACKLOG)?;
        Ok((file, socket))
    }

    /// Adopts the file of a socket that is taken over; it belongs to the old process until it is
    /// published.
    ///
    /// # Errors
    ///
    /// If the file no longer exists, or cannot be linked.
    pub(crate) fn adopt(path: &Path) -> io::Result<Self> {
        let temporary = temporary_name(path);
        remove_if_present(&temporary)?;
        fs::hard_link(path, &temporary)?;
        Ok(Self {
            path: path.to_owned(),
            identity: identity(&temporary)?,
            temporary,
            owned: false.into(),
        })
    }

    /// Sets the mode of the unpublished file, regardless of the umask.
    ///
    /// # Errors
    ///
    /// If the mode cannot be changed.
    pub(crate) fn set_mode(&self, mode: u32) -> io::Result<()> {
        fs::set_permissions(&self.temporary, fs::Permissions::from_mode(mode))
    }

    /// Gives up the file: another process has taken over the socket.
    pub(crate) fn disown(&self) {
        self.owned.store(false, Ordering::Relaxed);
    }

    /// Moves the file to its path, replacing what was there. Idempotent.
    ///
    /// # Errors
    ///
    /// If the file cannot be renamed.
    pub(crate) fn publish(&self) -> io::Result<()> {
        self.owned.store(true, Ordering::Relaxed);
        if identity(&self.path).is_ok_and(|found| found == self.identity) {
            // Only a file that was taken over has a second name at this point.
            return remove_if_present(&self.temporary);
        }
        fs::rename(&self.temporary, &self.path)
    }

    /// Whether this process publishes and removes the file.
    pub(crate) fn is_owned(&self) -> bool {
        self.owned.load(Ordering::Relaxed)
    }

    /// Returns its published path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file, if it still belongs to this process. Waits for at most [`REMOVAL`].
    pub(crate) fn remove(&self) {
        let (mut paths, own) = (vec![self.temporary.clone()], self.identity);
        if self.owned.load(Ordering::Relaxed) {
            paths.push(self.path.clone());
        }
        let (sender, removed) = std::sync::mpsc::channel();
        let removal = move || {
            for path in &paths {
                if identity(path).is_ok_and(|found| found == own) {
                    // An error means that it is already gone.
                    let _ = fs::remove_file(path);
                }
            }
            // The caller may have stopped waiting.
            let _ = sender.send(());
        };
        if threads::spawn("remove", removal).is_ok() {
            let _in_time = removed.recv_timeout(REMOVAL);
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Whether the path is occupied by something that is not a socket and must not be replaced.
pub(crate) fn is_not_a_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|file| !file.file_type().is_socket())
}

/// Connects to the socket at `path` without waiting: a process that does not accept counts as
/// absent.
///
/// # Errors
///
/// Of the file, or if no process accepts the connection.
pub(crate) fn dial(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Returns the temporary name for `path`: in the same folder, and shorter than most names.
fn temporary_name(path: &Path) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    path.with_file_name(format!(".{}-{number}", std::process::id()))
}

/// Binds a socket to a path. A path that exceeds the length of an address is reached through its
/// folder.
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

fn remove_if_present(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}
