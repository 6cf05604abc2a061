//! The hand-over of the listening sockets to a newly started process.
//!
//! The new process asks the old one through a Unix socket in the state folder, gets second handles on the very same listening
//! sockets (`SCM_RIGHTS`), starts everything, and says "serving" once it has a master. Only then does the old one stop
//! accepting and drain. So there is no moment without somebody who accepts, the queue of each socket is one queue all the time
//! (a second socket of an `SO_REUSEPORT` group would have its own, and lose it), and if the new process fails at anything
//! before that word, the old one has noticed nothing.
//!
//! Whoever may ask is a question of the socket file (mode 0600) and of the peer's user id, which has to be ours. Every step of a
//! conversation is bounded in time, and there is one conversation at a time.
//!
//! Deliberately absent: sessions. They stay with the old process until they leave it.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, recvmsg, sendmsg,
    shutdown, socket_with,
};
use rustix::process::geteuid;
use tracing::{info, warn};

use crate::inherit::Inherited;

/// Name of the socket in the state folder.
const FILE: &str = "takeover.sock";
/// How long one step of a conversation may take.
pub const STEP: Duration = Duration::from_secs(5);
/// How long the new process may take until it serves.
const START: Duration = Duration::from_secs(30);
/// The longest message.
const LONGEST: usize = 1024;
/// The most sockets that are taken: as many as a process with many workers and addresses may have.
const MOST: usize = 4096;

const HELLO: &str = "pointsman takeover 1";
const END: &str = "end";
const SERVING: &str = "serving";
const LEAVING: &str = "leaving";

/// Why sockets could not be handed over, or the state folder not be used.
#[derive(Debug, thiserror::Error)]
pub enum TakeoverError {
    /// The folder or the socket in it.
    #[error("the socket {0} cannot be used; is process.state_dir a folder that this user may write to?")]
    Socket(PathBuf, #[source] io::Error),
    /// Somebody lives there.
    #[error(
        "a pointsman is running with the state folder of {0}; start with --takeover, or give process.state_dir another value"
    )]
    Occupied(PathBuf),
    /// The conversation failed.
    #[error("the running pointsman did not hand over its sockets; it goes on")]
    Refused(#[source] io::Error),
    /// It would be a step back.
    #[error("no master was found within {0:?}: not taking over, the running pointsman goes on")]
    NoMaster(Duration),
    /// `--takeover` needs a place to meet.
    #[error("--takeover needs process.state_dir, the folder where the two processes meet")]
    NoFolder,
}

/// What is handed over.
pub type Offer = Box<dyn Fn() -> io::Result<Vec<Inherited>> + Send>;

/// Where the socket of a state folder is.
#[must_use]
pub fn path(folder: &str) -> PathBuf {
    Path::new(folder).join(FILE)
}

/// Sockets taken from a running process, which waits for a word.
#[derive(Debug)]
pub struct Taken {
    /// The sockets.
    pub sockets: Vec<Inherited>,
    peer: OwnedFd,
}

/// Asks the process behind the socket for its listening sockets; `None` if there is none.
///
/// # Errors
///
/// If there is one and it does not answer as it should.
pub fn take(path: &Path) -> Result<Option<Taken>, TakeoverError> {
    let Some(peer) = dial(path).map_err(|error| TakeoverError::Socket(path.to_owned(), error))? else {
        return Ok(None);
    };
    let sockets = ask(&peer).map_err(TakeoverError::Refused)?;
    Ok(Some(Taken { sockets, peer }))
}

impl Taken {
    /// Tells the old process that it may leave, and returns when it has stopped accepting.
    ///
    /// # Errors
    ///
    /// If it has gone, or does not answer; by then both may serve.
    pub fn serving(self) -> Result<(), TakeoverError> {
        let answered = say(&self.peer, SERVING, None).and_then(|()| hear(&self.peer));
        match answered {
            Ok((word, _)) if word == LEAVING => Ok(()),
            Ok((word, _)) => Err(TakeoverError::Refused(invalid(&word))),
            Err(error) => Err(TakeoverError::Refused(error)),
        }
    }
}

fn dial(path: &Path) -> io::Result<Option<OwnedFd>> {
    let peer = socket()?;
    let result = connect(&peer, &SocketAddrUnix::new(path)?);
    match result {
        Ok(()) => Ok(Some(peer)),
        Err(Errno::NOENT | Errno::CONNREFUSED) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn ask(peer: &OwnedFd) -> io::Result<Vec<Inherited>> {
    bound(peer, STEP)?;
    same_user(peer)?;
    say(peer, HELLO, None)?;
    let mut sockets = Vec::new();
    while sockets.len() < MOST {
        let (word, handle) = hear(peer)?;
        if word == END {
            return Ok(sockets);
        }
        let (addr, name) = word.split_once(' ').ok_or_else(|| invalid(&word))?;
        let addr: SocketAddr = addr.parse().map_err(|_| invalid(&word))?;
        let listener = TcpListener::from(handle.ok_or_else(|| invalid(&word))?);
        if listener.local_addr()? != addr || !socket2::SockRef::from(&listener).is_listener()? {
            return Err(invalid(&word));
        }
        sockets.push(Inherited { name: name.to_owned(), addr, listener });
    }
    Err(invalid("too many sockets"))
}

/// The place where a later process may ask.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    socket: OwnedFd,
}

impl Place {
    /// Opens it.
    ///
    /// # Errors
    ///
    /// If another process has it open, or the folder cannot be written to.
    pub fn open(path: &Path) -> Result<Self, TakeoverError> {
        let fault = |error: io::Error| TakeoverError::Socket(path.to_owned(), error);
        if dial(path).map_err(fault)?.is_some() {
            return Err(TakeoverError::Occupied(path.to_owned()));
        }
        // Nobody answers: if there is a file, its process has died.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fault(error)),
            _ => {}
        }
        let open = || {
            let socket = socket()?;
            // The mode of the file is that of the socket at the bind: there is no moment at which others may connect.
            fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
            bind(&socket, &SocketAddrUnix::new(path)?)?;
            listen(&socket, 1)?;
            io::Result::Ok(socket)
        };
        open().map(|socket| Self { path: path.to_owned(), socket }).map_err(fault)
    }

    /// Waits for whoever wants to take over, on a thread of its own, and carries the conversation up to his word. `agreed` is
    /// called then, and once it returns, the other one is told that we leave. Ends with that, or when it is closed.
    ///
    /// # Errors
    ///
    /// If the system gives no thread.
    pub fn attend(self, offer: Offer, agreed: impl FnOnce() + Send + 'static) -> io::Result<Closer> {
        let (path, socket) = (self.path.clone(), self.socket.try_clone()?);
        let thread = std::thread::Builder::new().name("takeover".to_owned()).spawn(move || {
            loop {
                let peer = match accept_with(&self.socket, SocketFlags::CLOEXEC) {
                    Ok(peer) => peer,
                    Err(Errno::INTR | Errno::CONNABORTED) => continue,
                    // Closed.
                    Err(Errno::INVAL) => return,
                    Err(error) => {
                        warn!(%error, "nobody can take over any more");
                        return;
                    }
                };
                match give(&peer, &offer) {
                    Ok(()) => {
                        info!("another process serves our sockets now");
                        agreed();
                        // The file must be gone before the other one opens his own.
                        drop(std::fs::remove_file(&self.path));
                        drop(self);
                        if let Err(error) = say(&peer, LEAVING, None) {
                            warn!(%error, "the new process cannot be told that we leave");
                        }
                        return;
                    }
                    Err(error) => warn!(%error, "a hand-over was not completed; going on"),
                }
            }
        })?;
        Ok(Closer { path, socket, thread })
    }
}

/// Closes a place that is attended.
#[derive(Debug)]
pub struct Closer {
    path: PathBuf,
    socket: OwnedFd,
    thread: JoinHandle<()>,
}

impl Closer {
    /// The thread of the conversation. Once the other one has agreed, it ends when he was told that we leave, or did not listen.
    pub fn thread(self) -> JoinHandle<()> {
        self.thread
    }

    /// Nobody can ask any more, and a process that is started now finds nobody. A conversation that has begun goes on.
    pub fn close(&self) {
        // First the file, while it is certainly ours.
        drop(std::fs::remove_file(&self.path));
        let _was_open = shutdown(&self.socket, Shutdown::Both);
    }
}

fn give(peer: &OwnedFd, offer: &Offer) -> io::Result<()> {
    bound(peer, STEP)?;
    same_user(peer)?;
    let (word, _) = hear(peer)?;
    if word != HELLO {
        return Err(invalid(&word));
    }
    let sockets = offer()?;
    info!(sockets = sockets.len(), "another process asks for our sockets");
    for Inherited { name, addr, listener } in &sockets {
        say(peer, &format!("{addr} {name}"), Some(listener))?;
    }
    say(peer, END, None)?;
    drop(sockets);
    bound(peer, START)?;
    let (word, _) = hear(peer)?;
    if word == SERVING { Ok(()) } else { Err(invalid(&word)) }
}

fn socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

fn bound(peer: &OwnedFd, time: Duration) -> io::Result<()> {
    set_socket_timeout(peer, Timeout::Recv, Some(time))?;
    set_socket_timeout(peer, Timeout::Send, Some(time))?;
    Ok(())
}

fn same_user(peer: &OwnedFd) -> io::Result<()> {
    if socket_peercred(peer)?.uid == geteuid() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, "the other process belongs to another user"))
}

fn say(peer: &OwnedFd, word: &str, handle: Option<&TcpListener>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let handles = handle.map(|handle| [handle.as_fd()]);
    if let Some(handles) = &handles {
        ancillary.push(SendAncillaryMessage::ScmRights(handles));
    }
    sendmsg(peer, &[IoSlice::new(word.as_bytes())], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn hear(peer: &OwnedFd) -> io::Result<(String, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut text = [0; LONGEST];
    let heard = recvmsg(peer, &mut [IoSliceMut::new(&mut text)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    if heard.bytes == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the other process has gone"));
    }
    let handle = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut handles) => handles.next(),
        _ => None,
    });
    let text = text.get(..heard.bytes).unwrap_or_default();
    Ok((String::from_utf8_lossy(text).into_owned(), handle))
}

fn invalid(word: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the other process said {word:?}"))
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::mpsc::channel;

    use super::*;

    fn offer(listener: &TcpListener) -> Offer {
        let listener = listener.try_clone().unwrap();
        Box::new(move || {
            let addr = listener.local_addr()?;
            Ok(vec![Inherited { name: "m".to_owned(), addr, listener: listener.try_clone()? }])
        })
    }

    #[test]
    fn the_queue_goes_along_and_the_old_one_leaves_at_the_word() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let place = Place::open(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(Place::open(&path), Err(TakeoverError::Occupied(_))));
        let (agreed, hears) = channel();
        let closer = place.attend(offer(&listener), move || agreed.send(()).unwrap()).unwrap();
        // One that goes away half-way changes nothing. The look of `open` was such a one already.
        drop(take(&path).unwrap().unwrap());
        let waiting = TcpStream::connect(addr).unwrap();
        let mut taken = take(&path).unwrap().unwrap();
        let socket = taken.sockets.pop().unwrap();
        assert_eq!((socket.name.as_str(), socket.addr, taken.sockets.len()), ("m", addr, 0));
        assert!(hears.try_recv().is_err());
        drop(listener);
        taken.serving().unwrap();
        hears.recv_timeout(STEP).unwrap();
        closer.thread().join().unwrap();
        let (_, peer) = socket.listener.accept().unwrap();
        assert_eq!(peer, waiting.local_addr().unwrap());
        assert!(!path.exists());
        // A process that is told to stop is no longer there for those who come.
        let closer = Place::open(&path).unwrap().attend(offer(&socket.listener), || ()).unwrap();
        assert!(path.exists());
        closer.close();
        assert!(!path.exists() && take(&path).unwrap().is_none());
    }

    #[test]
    fn nobody_there_is_no_error_and_a_dead_one_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        assert!(take(&path).unwrap().is_none());
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        drop(std::fs::remove_file(&path));
        let dead = socket().unwrap();
        bind(&dead, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        drop(dead);
        assert!(take(&path).unwrap().is_none());
        drop(Place::open(&path).unwrap());
    }
}
