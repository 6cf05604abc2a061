//! The control socket: its file, from before the start until after the end.
//!
//! It is published by a rename when everything else runs
//! ([`socket_file`](crate::system::socket_file)). In addition to the file's mode, the kernel
//! reports the peer's user id, which must be ours or root.

use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::net::SocketType;
use rustix::process::geteuid;

use crate::system::socket_file::{self, SocketFile};

/// Why the control socket cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ControlSocketError {
    /// The file cannot be created.
    #[error(
        "cannot create the socket {0} (admin.control_socket); does its folder exist, and may \
         this user write to it?"
    )]
    Create(PathBuf, #[source] io::Error),
    /// The file would be overwritten.
    #[error("{0} (admin.control_socket) exists and is not a socket; set another path")]
    NotASocket(PathBuf),
    /// Another process listens there.
    #[error(
        "another process listens on {0}; stop it, start with --takeover, or set \
         admin.control_socket to another path"
    )]
    Occupied(PathBuf),
}

/// The control socket. Its file is removed on drop, unless another process has published its own
/// there.
#[derive(Debug)]
pub(crate) struct ControlSocket(Arc<SocketFile>);

impl ControlSocket {
    /// Creates the socket for `path`, not yet published. If it `replaces` one, it takes the path of
    /// the socket of a running process.
    ///
    /// # Errors
    ///
    /// If another process listens there, or the file cannot be created.
    pub(crate) fn create(
        path: &Path,
        replaces: bool,
    ) -> Result<(Self, UnixListener), ControlSocketError> {
        if socket_file::is_not_a_socket(path) {
            return Err(ControlSocketError::NotASocket(path.to_owned()));
        }
        // The socket of a dead process refuses; one with a full queue would block.
        let not_listening = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
        if !replaces
            && !socket_file::dial(path).is_err_and(|error| not_listening.contains(&error.kind()))
        {
            return Err(ControlSocketError::Occupied(path.to_owned()));
        }
        let created = SocketFile::create(path, SocketType::STREAM);
        let (file, socket) =
            created.map_err(|error| ControlSocketError::Create(path.to_owned(), error))?;
        Ok((Self(Arc::new(file)), UnixListener::from(socket)))
    }

    /// Returns a function that publishes the socket, replacing what was there. Call it on a thread
    /// that may block.
    pub(crate) fn publisher(
        &self,
    ) -> impl FnOnce() -> Result<(), ControlSocketError> + Send + 'static {
        let file = Arc::clone(&self.0);
        move || {
            file.publish()
                .map_err(|error| ControlSocketError::Create(file.path().to_owned(), error))
        }
    }

    /// The users that may use it: the user of this process, and root, which ignores file modes.
    pub(crate) fn users() -> Vec<u32> {
        vec![geteuid().as_raw(), 0]
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn replaces_stale_control_socket_or_by_takeover() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        drop(UnixListener::bind(&path).unwrap());
        let (first, listener) = ControlSocket::create(&path, false).unwrap();
        assert!(UnixStream::connect(&path).is_err(), "not published yet");
        first.publisher()().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let connected = UnixStream::connect(&path).unwrap();
        assert!(listener.accept().is_ok());
        drop(connected);

        assert!(matches!(
            ControlSocket::create(&path, false),
            Err(ControlSocketError::Occupied(_))
        ));
        // A process that takes over and fails before it serves leaves no file and removes none.
        drop(ControlSocket::create(&path, true).unwrap());
        assert!(UnixStream::connect(&path).is_ok());
        let (second, second_listener) = ControlSocket::create(&path, true).unwrap();
        second.publisher()().unwrap();
        drop((first, listener));
        assert!(
            UnixStream::connect(&path).is_ok(),
            "the first process must not remove the second one's file"
        );
        drop((second, second_listener));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn keeps_file_that_is_not_a_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("precious");
        fs::write(&path, "data").unwrap();
        for replaces in [false, true] {
            assert!(matches!(
                ControlSocket::create(&path, replaces),
                Err(ControlSocketError::NotASocket(_))
            ));
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "data");
    }

    #[test]
    fn names_key_if_folder_is_missing() {
        let Err(error) = ControlSocket::create(Path::new("/nowhere/at/all.sock"), false) else {
            panic!("it was made")
        };
        assert!(error.to_string().contains("admin.control_socket"), "{error}");
    }
}
