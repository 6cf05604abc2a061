//! The files of the Unix sockets that clients connect to, from before the start until after the
//! end.
//!
//! Made before anything is served and published when the workers serve
//! ([`socket_file`](crate::system::socket_file)), so a start that fails leaves what was there. A file that
//! a dead process left is replaced, one with a living process is not. In a takeover the socket
//! itself is handed over and its file stays where it is: it becomes the new process's own when the
//! old one leaves. A socket of a service manager has a file that is the manager's.
//!
//! Deliberately absent: accepting, which the data plane does, and a lock against two processes that
//! start with the same path in the same moment: the later one has the path then.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::net::SocketType;
use tracing::warn;

use crate::admin::control_socket;
use crate::system::socket_file::{self, SocketFile};

/// A Unix socket for clients cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum UnixSocketError {
    /// The file.
    #[error("cannot listen on unix:{0}; is its folder there, and may this user write to it?")]
    Make(PathBuf, #[source] io::Error),
    /// It would be lost.
    #[error(
        "cannot listen on unix:{0}: something else than a socket is there; choose another path"
    )]
    Other(PathBuf),
    /// Somebody listens.
    #[error(
        "listen address unix:{0} is already in use by another process; stop that process, start with --takeover, or choose \
         another path"
    )]
    InUse(PathBuf),
}

/// One socket to make: its path and mode.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) path: PathBuf,
    pub(crate) mode: u32,
}

/// The files of this process's sockets. They go when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct UnixFiles(Vec<Arc<SocketFile>>);

/// Files of sockets that are taken over, for whatever relieves the old process.
#[derive(Debug, Default)]
pub(crate) struct TakenFiles {
    wanted: Vec<(Arc<SocketFile>, u32)>,
    unwanted: Vec<SocketFile>,
}

impl UnixFiles {
    /// Makes one more socket, not there yet. On a thread that may block.
    ///
    /// # Errors
    ///
    /// If another process listens there, or the file cannot be made.
    pub(crate) fn make(&mut self, wanted: &Wanted) -> Result<OwnedFd, UnixSocketError> {
        let path = &wanted.path;
        if socket_file::is_something_else(path) {
            return Err(UnixSocketError::Other(path.clone()));
        }
        // A dead one's refuses; one whose queue is full would block.
        let dead = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
        match control_socket::dial(path) {
            Err(error) if dead.contains(&error.kind()) => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(UnixSocketError::Make(path.clone(), error));
            }
            _ => return Err(UnixSocketError::InUse(path.clone())),
        }
        let failed = |error| UnixSocketError::Make(path.clone(), error);
        let (file, socket) = SocketFile::make(path, SocketType::STREAM).map_err(failed)?;
        file.set_mode(wanted.mode).map_err(failed)?;
        self.0.push(Arc::new(file));
        Ok(socket)
    }

    /// Notes the files of sockets that are taken over: those that this process uses, and those that
    /// nobody uses any more. On a thread that may block.
    pub(crate) fn adopt(&mut self, wanted: &[Wanted], unwanted: &[PathBuf]) -> TakenFiles {
        let mut taken = TakenFiles::default();
        for Wanted { path, mode } in wanted {
            let Some(file) = adopted(path) else { continue };
            let file = Arc::new(file);
            taken.wanted.push((Arc::clone(&file), *mode));
            self.0.push(file);
        }
        taken.unwanted = unwanted.iter().filter_map(|path| adopted(path)).collect();
        taken
    }

    /// What puts those that were made where clients find them. On a thread that may block.
    pub(crate) fn publisher(
        &self,
    ) -> impl FnOnce() -> Result<(), UnixSocketError> + Send + 'static {
        let files = self.0.clone();
        move || {
            let mut made = files.iter().filter(|file| file.is_owned());
            made.try_for_each(|file| {
                file.publish().map_err(|error| UnixSocketError::Make(file.path().to_owned(), error))
            })
        }
    }

    /// Where they are.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        self.0.iter().map(|file| file.path().to_owned()).collect()
    }

    /// Whether there is nothing to publish and to remove.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Another process accepts from the sockets now: the files are its own.
    pub(crate) fn disown(&self) {
        self.0.iter().for_each(|file| file.disown());
    }
}

impl Drop for UnixFiles {
    fn drop(&mut self) {
        self.0.iter().for_each(|file| file.remove());
    }
}

impl TakenFiles {
    /// The old process leaves: its files are this process's.
    pub(crate) fn own(self) {
        for (file, mode) in &self.wanted {
            if let Err(error) = file.set_mode(*mode) {
                warn!(%error, path = %file.path().display(), "the file of a unix socket keeps its mode");
            }
        }
        for file in self.wanted.iter().map(|(file, _)| &**file).chain(&self.unwanted) {
            if let Err(error) = file.publish() {
                warn!(%error, path = %file.path().display(), "the file of a unix socket is lost: nobody can connect there");
            }
        }
        // Those that nobody wants are removed here.
    }
}

/// The file of a socket that is taken over.
fn adopted(path: &Path) -> Option<SocketFile> {
    let failed = |error| {
        warn!(%error, path = %path.display(), "the file of a unix socket that is taken over is not there");
    };
    SocketFile::adopt(path).map_err(failed).ok()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    fn wanted(folder: &Path, name: &str) -> Wanted {
        Wanted { path: folder.join(name), mode: 0o666 }
    }

    /// A process with one socket, serving.
    fn serving(wanted: &Wanted) -> (UnixFiles, OwnedFd) {
        let mut files = UnixFiles::default();
        let socket = files.make(wanted).unwrap();
        files.publisher()().unwrap();
        (files, socket)
    }

    fn count(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn replaces_a_dead_socket_and_spares_a_living_one() {
        let folder = tempfile::tempdir().unwrap();
        let wanted = wanted(folder.path(), "redis.sock");
        drop(UnixListener::bind(&wanted.path).unwrap());
        let (first, socket) = serving(&wanted);
        let mode = fs::metadata(&wanted.path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o666, "whatever the mask of the process");
        assert!(UnixStream::connect(&wanted.path).is_ok());
        assert!(matches!(UnixFiles::default().make(&wanted), Err(UnixSocketError::InUse(_))));
        drop((first, socket));
        assert_eq!(count(folder.path()), 0);
        fs::write(&wanted.path, "data").unwrap();
        assert!(matches!(UnixFiles::default().make(&wanted), Err(UnixSocketError::Other(_))));
        assert_eq!(fs::read_to_string(&wanted.path).unwrap(), "data");
    }

    #[test]
    fn takes_the_longest_path() {
        let folder = tempfile::tempdir().unwrap();
        let length = 107 - folder.path().as_os_str().len() - 1;
        let (files, _socket) = serving(&wanted(folder.path(), &"x".repeat(length)));
        assert!(UnixStream::connect(files.0[0].path()).is_ok());
        drop(files);
        assert_eq!(count(folder.path()), 0);
    }

    #[test]
    fn keeps_the_file_through_a_takeover() {
        let folder = tempfile::tempdir().unwrap();
        let (kept, gone) = (wanted(folder.path(), "kept"), wanted(folder.path(), "gone"));
        let (old, socket) = serving(&kept);
        let (other, _other_socket) = serving(&gone);
        // A process that fails before it serves leaves everything as it was.
        let mut failed = UnixFiles::default();
        drop((failed.adopt(std::slice::from_ref(&kept), &[]), failed));
        assert!(UnixStream::connect(&kept.path).is_ok());
        let mut new = UnixFiles::default();
        let taken =
            new.adopt(&[Wanted { mode: 0o600, ..kept.clone() }], std::slice::from_ref(&gone.path));
        new.publisher()().unwrap();
        old.disown();
        other.disown();
        taken.own();
        drop((old, other));
        assert!(UnixStream::connect(&kept.path).is_ok());
        assert_eq!(fs::metadata(&kept.path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(count(folder.path()), 1, "what nobody wants is gone");
        drop((new, socket));
        assert_eq!(count(folder.path()), 0);
    }

    #[test]
    fn restores_the_file_that_a_stopped_predecessor_removed() {
        let folder = tempfile::tempdir().unwrap();
        let wanted = wanted(folder.path(), "redis.sock");
        let (old, socket) = serving(&wanted);
        let mut new = UnixFiles::default();
        let taken = new.adopt(std::slice::from_ref(&wanted), &[]);
        drop(old);
        assert!(UnixStream::connect(&wanted.path).is_err());
        taken.own();
        assert!(UnixStream::connect(&wanted.path).is_ok());
        drop((new, socket));
        assert_eq!(count(folder.path()), 0);
    }
}
