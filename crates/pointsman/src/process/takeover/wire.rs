//! One end of a conversation: words, and sockets that go along with them, each with a deadline.
//!
//! Nothing here waits inside a system call that sends or receives: it waits in `poll`, for the time
//! that is left. A process that was stopped finds what has come meanwhile before it looks at the
//! clock, and an interrupted call is no fault.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg,
    sendmsg, socket_with,
};
use rustix::process::{Pid, geteuid};

/// The longest message.
const LONGEST: usize = 1024;
/// Between two attempts to connect to a process whose queue is full.
const REDIAL: Duration = Duration::from_millis(20);

/// The other process.
#[derive(Debug)]
pub(super) struct Peer(OwnedFd);

impl Peer {
    /// One that has been accepted.
    pub(super) fn accepted(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// Connects to the process that listens at `path`; `None` if there is none.
    ///
    /// # Errors
    ///
    /// Of the file; `TimedOut` if a process listens that does not accept, and its queue stays full.
    pub(super) fn dial(path: &Path, within: Duration) -> io::Result<Option<Self>> {
        let deadline = Instant::now() + within;
        let socket = socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        loop {
            match connect(&socket, &SocketAddrUnix::new(path)?) {
                Ok(()) => return Ok(Some(Self(socket))),
                Err(Errno::NOENT | Errno::CONNREFUSED) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if Instant::now() >= deadline => {
                    return Err(Errno::TIMEDOUT.into());
                }
                Err(Errno::AGAIN) => pause(REDIAL)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The other process, if its id means anything here.
    pub(super) fn pid(&self) -> Option<Pid> {
        socket_peercred(&self.0).ok().map(|peer| peer.pid)
    }

    /// Fails if the other process belongs to another user.
    pub(super) fn same_user(&self) -> io::Result<()> {
        if socket_peercred(&self.0)?.uid == geteuid() {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "the other process belongs to another user",
        ))
    }

    /// Whether the other process has closed its end.
    pub(super) fn has_gone(&self) -> bool {
        let mut asked = [PollFd::new(&self.0, PollFlags::IN)];
        let closed = PollFlags::HUP | PollFlags::ERR;
        poll(&mut asked, Some(&Timespec::default())).is_ok()
            && asked.iter().any(|it| it.revents().intersects(closed))
    }

    /// Sends a word, and a socket with it.
    ///
    /// # Errors
    ///
    /// Of the connection; `TimedOut` if the other process does not take it until then.
    pub(super) fn say(
        &self,
        word: &str,
        handle: Option<&OwnedFd>,
        deadline: Instant,
    ) -> io::Result<()> {
        let handles = handle.map(|handle| [handle.as_fd()]);
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if let Some(handles) = &handles {
                ancillary.push(SendAncillaryMessage::ScmRights(handles));
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match sendmsg(&self.0, &[IoSlice::new(word.as_bytes())], &mut ancillary, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => wait(self.0.as_fd(), PollFlags::OUT, deadline)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Receives a word, and a socket with it.
    ///
    /// # Errors
    ///
    /// Of the connection; `UnexpectedEof` if it was closed, `TimedOut` if nothing has come until
    /// then.
    pub(super) fn hear(&self, deadline: Instant) -> io::Result<(String, Option<OwnedFd>)> {
        let mut text = [0; LONGEST];
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let heard =
                match recvmsg(&self.0, &mut [IoSliceMut::new(&mut text)], &mut ancillary, flags) {
                    Ok(heard) => heard,
                    Err(Errno::INTR) => continue,
                    Err(Errno::AGAIN) => {
                        wait(self.0.as_fd(), PollFlags::IN, deadline)?;
                        continue;
                    }
                    Err(error) => return Err(error.into()),
                };
            if heard.bytes == 0 {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the other process has closed the connection",
                ));
            }
            let handle = ancillary.drain().find_map(|message| match message {
                RecvAncillaryMessage::ScmRights(mut handles) => handles.next(),
                _ => None,
            });
            let word = text.get(..heard.bytes).unwrap_or_default();
            return Ok((String::from_utf8_lossy(word).into_owned(), handle));
        }
    }

    /// Receives this word.
    ///
    /// # Errors
    ///
    /// As [`hear`](Self::hear); `InvalidData` for another word.
    pub(super) fn expect(&self, word: &str, deadline: Instant) -> io::Result<()> {
        let (heard, _) = self.hear(deadline)?;
        if heard == word { Ok(()) } else { Err(invalid(&heard)) }
    }
}

/// A word that has no meaning here.
pub(super) fn invalid(word: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the other process said {word:?}"))
}

/// Whether the other end has closed the connection, in whichever way the system says it.
pub(super) fn is_closed(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
}

fn wait(socket: BorrowedFd<'_>, what: PollFlags, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(Errno::TIMEDOUT.into());
    }
    let mut asked = [PollFd::from_borrowed_fd(socket, what)];
    poll_for(&mut asked, left)
}

fn pause(time: Duration) -> io::Result<()> {
    poll_for(&mut [], time)
}

fn poll_for(asked: &mut [PollFd<'_>], time: Duration) -> io::Result<()> {
    let time = Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    };
    match poll(asked, Some(&time)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
