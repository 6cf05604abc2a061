//! The files of the Unix sockets of clients and of control commands, from before the start until
//! after the end.
//!
//! They are created before anything is served and published when the workers serve
//! ([`socket_file`](crate::system::socket_file)), so a start that fails leaves existing files
//! alone. A file of a dead process is replaced, that of a running one is not. In a takeover the
//! socket itself is handed over and its file stays in place: it belongs to the new process once the
//! old one leaves. The file of a service manager's socket belongs to the manager.
//!
//! There is no lock against two processes that start with one path at the same time: the later one
//! then has the path.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::net::SocketType;
use tracing::warn;

use crate::system::socket_file::{self, SocketFile};

/// Why a Unix socket for clients cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnixSocketError {
    /// The file cannot be created.
    #[error("cannot listen on unix:{0}; does its folder exist, and may this user write to it?")]
    Create(PathBuf, #[source] io::Error),
    /// The file would be overwritten.
    #[error("cannot listen on unix:{0}: the file exists and is not a socket; choose another path")]
    NotASocket(PathBuf),
    /// Another process listens there.
    #[error(
        "listen address unix:{0} is already in use by another process; stop that process, start \
         with --takeover, or choose another path"
    )]
    InUse(PathBuf),
}

/// The path and mode of a socket to create.
#[derive(Debug, Clone)]
pub(crate) struct SocketSpec {
    pub(crate) path: PathBuf,
    pub(crate) mode: u32,
}

/// The files of this process's sockets, removed on drop.
#[derive(Debug, Default)]
pub(crate) struct UnixFiles(Vec<Arc<SocketFile>>);

/// Files of sockets that are taken over, until the takeover is complete.
#[derive(Debug, Default)]
pub(crate) struct TakenFiles {
    wanted: Vec<(Arc<SocketFile>, u32)>,
    unconfigured: Vec<SocketFile>,
}

impl UnixFiles {
    /// Creates another socket, not yet published. Call it on a thread that may block.
    ///
    /// # Errors
    ///
    /// If another process listens there, or the file cannot be created.
    pub(crate) fn create(&mut self, wanted: &SocketSpec) -> Result<OwnedFd, UnixSocketError> {
        let path = &wanted.path;
        // The socket of a dead process refuses; one with a full queue would block.
        let not_listening = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
        match socket_file::dial(path) {
            Err(error) if not_listening.contains(&error.kind()) => self.replace(wanted),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Err(UnixSocketError::Create(path.clone(), error))
            }
            _ => Err(UnixSocketError::InUse(path.clone())),
        }
    }

    /// As [`create`](Self::create), in the place of another process that may listen there: a
    /// takeover.
    ///
    /// # Errors
    ///
    /// If the file cannot be created.
    pub(crate) fn replace(&mut self, wanted: &SocketSpec) -> Result<OwnedFd, UnixSocketError> {
        let path = &wanted.path;
        if socket_file::is_not_a_socket(path) {
            return Err(UnixSocketError::NotASocket(path.clone()));
        }
        let failed = |error| UnixSocketError::Create(path.clone(), error);
        let (file, socket) = SocketFile::create(path, SocketType::STREAM).map_err(failed)?;
        file.set_mode(wanted.mode).map_err(failed)?;
        self.0.push(Arc::new(file));
        Ok(socket)
    }

    /// Adopts the files of sockets that are taken over: those that this process uses, and those
    /// that are no longer configured. Call it on a thread that may block.
    pub(crate) fn adopt(&mut self, wanted: &[SocketSpec], unconfigured: &[PathBuf]) -> TakenFiles {
        let mut taken = TakenFiles::default();
        for SocketSpec { path, mode } in wanted {
            let Some(file) = adopted(path) else { continue };
            let file = Arc::new(file);
            taken.wanted.push((Arc::clone(&file), *mode));
            self.0.push(file);
        }
        taken.unconfigured = unconfigured.iter().filter_map(|path| adopted(path)).collect();
        taken
    }

    /// Returns a function that publishes the created files. Call it on a thread that may block.
    pub(crate) fn publisher(
        &self,
    ) -> impl FnOnce() -> Result<(), UnixSocketError> + Send + 'static {
        let files = self.0.clone();
        move || {
            let mut made = files.iter().filter(|file| file.is_owned());
            made.try_for_each(|file| {
                file.publish()
                    .map_err(|error| UnixSocketError::Create(file.path().to_owned(), error))
            })
        }
    }

    /// Returns the published paths.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        self.0.iter().map(|file| file.path().to_owned()).collect()
    }

    /// Gives up all files: another process accepts on the sockets.
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
    /// Takes ownership of the files: the old process leaves.
    pub(crate) fn take_ownership(self) {
        for (file, mode) in &self.wanted {
            if let Err(error) = file.set_mode(*mode) {
                let path = file.path().display();
                warn!(%error, %path, "cannot set the mode of a unix socket's file");
            }
        }
        for file in self.wanted.iter().map(|(file, _)| &**file).chain(&self.unconfigured) {
            if let Err(error) = file.publish() {
                let path = file.path().display();
                warn!(%error, %path, "a unix socket's file is lost, clients cannot connect there");
            }
        }
        // Files that are no longer configured are removed here.
    }
}

/// Adopts the file of a socket that is taken over.
fn adopted(path: &Path) -> Option<SocketFile> {
    let failed = |error| {
        let path = path.display();
        warn!(%error, %path, "cannot take over the unix socket file");
    };
    SocketFile::adopt(path).map_err(failed).ok()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    fn wanted(folder: &Path, name: &str) -> SocketSpec {
        SocketSpec { path: folder.join(name), mode: 0o666 }
    }

    /// A process with one socket, serving.
    fn start_serving(wanted: &SocketSpec) -> (UnixFiles, OwnedFd) {
        let mut files = UnixFiles::default();
        let socket = files.create(wanted).unwrap();
        files.publisher()().unwrap();
        (files, socket)
    }

    fn count(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn replaces_stale_socket_but_no_active_one() {
        let folder = tempfile::tempdir().unwrap();
        let wanted = wanted(folder.path(), "redis.sock");
        drop(UnixListener::bind(&wanted.path).unwrap());
        let (first, socket) = start_serving(&wanted);
        let mode = fs::metadata(&wanted.path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o666, "independent of the umask");
        assert!(UnixStream::connect(&wanted.path).is_ok());
        assert!(matches!(UnixFiles::default().create(&wanted), Err(UnixSocketError::InUse(_))));
        drop((first, socket));
        assert_eq!(count(folder.path()), 0);
        fs::write(&wanted.path, "data").unwrap();
        assert!(matches!(
            UnixFiles::default().create(&wanted),
            Err(UnixSocketError::NotASocket(_))
        ));
        assert_eq!(fs::read_to_string(&wanted.path).unwrap(), "data");
    }

    #[test]
    fn replaces_active_socket_only_when_told_to() {
        let folder = tempfile::tempdir().unwrap();
        let wanted = wanted(folder.path(), "control.sock");
        let (first, socket) = start_serving(&wanted);
        // A process that takes over and fails before it serves leaves no file and removes none.
        let mut failed = UnixFiles::default();
        drop((failed.replace(&wanted).unwrap(), failed));
        assert!(UnixStream::connect(&wanted.path).is_ok());
        let mut second = UnixFiles::default();
        let second_socket = second.replace(&wanted).unwrap();
        second.publisher()().unwrap();
        drop((first, socket));
        assert!(
            UnixStream::connect(&wanted.path).is_ok(),
            "the first process must not remove the second one's file"
        );
        drop((second, second_socket));
        assert_eq!(count(folder.path()), 0);
        fs::write(&wanted.path, "data").unwrap();
        assert!(matches!(
            UnixFiles::default().replace(&wanted),
            Err(UnixSocketError::NotASocket(_))
        ));
    }

    #[test]
    fn names_path_if_folder_is_missing() {
        let error = UnixFiles::default().create(&wanted(Path::new("/nowhere"), "x")).unwrap_err();
        assert!(error.to_string().contains("unix:/nowhere/x; does its folder exist"), "{error}");
    }

    #[test]
    fn binds_path_of_maximum_length() {
        let folder = tempfile::tempdir().unwrap();
        let length = 107 - folder.path().as_os_str().len() - 1;
        let (files, _socket) = start_serving(&wanted(folder.path(), &"x".repeat(length)));
        assert!(UnixStream::connect(files.0[0].path()).is_ok());
        drop(files);
        assert_eq!(count(folder.path()), 0);
    }

    #[test]
    fn keeps_file_during_takeover() {
        let folder = tempfile::tempdir().unwrap();
        let (kept, unconfigured) = (wanted(folder.path(), "kept"), wanted(folder.path(), "gone"));
        let (old, socket) = start_serving(&kept);
        let (other, _other_socket) = start_serving(&unconfigured);
        // A process that fails before it serves leaves everything as it was.
        let mut failed = UnixFiles::default();
        drop((failed.adopt(std::slice::from_ref(&kept), &[]), failed));
        assert!(UnixStream::connect(&kept.path).is_ok());
        let mut new = UnixFiles::default();
        let taken = new.adopt(
            &[SocketSpec { mode: 0o600, ..kept.clone() }],
            std::slice::from_ref(&unconfigured.path),
        );
        new.publisher()().unwrap();
        old.disown();
        other.disown();
        taken.take_ownership();
        drop((old, other));
        assert!(UnixStream::connect(&kept.path).is_ok());
        assert_eq!(fs::metadata(&kept.path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(count(folder.path()), 1, "the unconfigured socket's file is removed");
        drop((new, socket));
        assert_eq!(count(folder.path()), 0);
    }

    #[test]
    fn restores_file_removed_by_old_process() {
        let folder = tempfile::tempdir().unwrap();
        let wanted = wanted(folder.path(), "redis.sock");
        let (old, socket) = start_serving(&wanted);
        let mut new = UnixFiles::default();
        let taken = new.adopt(std::slice::from_ref(&wanted), &[]);
        drop(old);
        assert!(UnixStream::connect(&wanted.path).is_err());
        taken.take_ownership();
        assert!(UnixStream::connect(&wanted.path).is_ok());
        drop((new, socket));
        assert_eq!(count(folder.path()), 0);
    }
}
