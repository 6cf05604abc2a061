//! The Unix socket for orders: its file, from before the start until after the end.
//!
//! It is published when everything else runs, by a rename ([`socket_file`](crate::system::socket_file)).
//! That the peer is our user, or root, is asked of the kernel besides.
//!
//! Deliberately absent: what is said through it ([`control`](crate::admin::control)).

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::geteuid;

use crate::system::socket_file::{self, SocketFile};

/// The socket cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ControlSocketError {
    /// The file.
    #[error(
        "the socket {0} (admin.control_socket) cannot be made; is its folder there, and may this user write to it?"
    )]
    Make(PathBuf, #[source] io::Error),
    /// It would be lost.
    #[error("{0} (admin.control_socket) is something else than a socket; give it another value")]
    Other(PathBuf),
    /// Somebody answers on it.
    #[error(
        "another process takes orders on {0}; stop it, start with --takeover, or give admin.control_socket another value"
    )]
    Occupied(PathBuf),
}

/// The socket for orders. Its file goes when this is dropped, unless another process has put its
/// own there.
#[derive(Debug)]
pub(crate) struct ControlSocket(Arc<SocketFile>);

impl ControlSocket {
    /// Makes the socket for `path`, not there yet. `instead`: of that of a running process, which
    /// may still have it.
    ///
    /// # Errors
    ///
    /// If somebody else has it, or the file cannot be made.
    pub(crate) fn make(
        path: &Path,
        instead: bool,
    ) -> Result<(Self, UnixListener), ControlSocketError> {
        if socket_file::is_something_else(path) {
            return Err(ControlSocketError::Other(path.to_owned()));
        }
        // A dead one's refuses; one whose queue is full would block.
        let dead = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
        if !instead && !dial(path).is_err_and(|error| dead.contains(&error.kind())) {
            return Err(ControlSocketError::Occupied(path.to_owned()));
        }
        let made = SocketFile::make(path, SocketType::STREAM);
        let (file, socket) =
            made.map_err(|error| ControlSocketError::Make(path.to_owned(), error))?;
        Ok((Self(Arc::new(file)), UnixListener::from(socket)))
    }

    /// What puts it where it belongs, instead of whatever was there. On a thread that may block.
    pub(crate) fn publisher(
        &self,
    ) -> impl FnOnce() -> Result<(), ControlSocketError> + Send + 'static {
        let file = Arc::clone(&self.0);
        move || {
            file.publish().map_err(|error| ControlSocketError::Make(file.path().to_owned(), error))
        }
    }

    /// Who may give orders through it: the user of this process, and root, whom no mode keeps out.
    pub(crate) fn users() -> Vec<u32> {
        vec![geteuid().as_raw(), 0]
    }
}

/// Connects to the socket at `path`. Never waits: a process that does not accept is as good as
/// none.
///
/// # Errors
///
/// Of the file, or if nobody is there to take the connection.
pub(crate) fn dial(path: &Path) -> io::Result<UnixStream> {
    let socket = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

fn socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_dead_ones_file_is_replaced_a_living_ones_is_not_unless_it_is_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        drop(UnixListener::bind(&path).unwrap());
        let (first, listener) = ControlSocket::make(&path, false).unwrap();
        assert!(UnixStream::connect(&path).is_err(), "not published yet");
        first.publisher()().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let greeted = UnixStream::connect(&path).unwrap();
        assert!(listener.accept().is_ok());
        drop(greeted);

        assert!(matches!(ControlSocket::make(&path, false), Err(ControlSocketError::Occupied(_))));
        // A process that takes over and fails before it serves leaves nothing behind and takes
        // nothing.
        drop(ControlSocket::make(&path, true).unwrap());
        assert!(UnixStream::connect(&path).is_ok());
        let (second, second_listener) = ControlSocket::make(&path, true).unwrap();
        second.publisher()().unwrap();
        drop((first, listener));
        assert!(UnixStream::connect(&path).is_ok(), "the first one's end is not the second one's");
        drop((second, second_listener));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_that_is_no_socket_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("precious");
        fs::write(&path, "data").unwrap();
        for instead in [false, true] {
            assert!(matches!(
                ControlSocket::make(&path, instead),
                Err(ControlSocketError::Other(_))
            ));
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "data");
    }

    #[test]
    fn a_folder_that_is_not_there_is_told_with_the_key() {
        let Err(error) = ControlSocket::make(Path::new("/nowhere/at/all.sock"), false) else {
            panic!("it was made")
        };
        assert!(error.to_string().contains("admin.control_socket"), "{error}");
    }
}
