//! One end of a takeover conversation: messages that may carry a socket, each with a deadline.
//!
//! No call blocks in send or receive: it waits in `poll` for the remaining time. A process that was
//! stopped reads what has arrived before it checks the clock, and an interrupted call is repeated.

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
const MAX_MESSAGE: usize = 1024;
/// Interval between attempts to connect to a process whose queue is full.
const REDIAL_INTERVAL: Duration = Duration::from_millis(20);

/// The connection to the other process.
#[derive(Debug)]
pub(super) struct TakeoverPeer(pub(super) OwnedFd);

impl TakeoverPeer {
    /// Connects to the process that listens at `path`; `None` if there is none.
    ///
    /// # Errors
    ///
    /// Of the file; `TimedOut` if the listening process does not accept and its queue stays full.
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
                Err(Errno::AGAIN) => pause(REDIAL_INTERVAL)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Returns the process id of the peer, if it is visible in this namespace.
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
        let mut polled = [PollFd::new(&self.0, PollFlags::IN)];
        let closed = PollFlags::HUP | PollFlags::ERR;
        poll(&mut polled, Some(&Timespec::default())).is_ok()
            && polled.iter().any(|it| it.revents().intersects(closed))
    }

    /// Sends a message, with a socket if given.
    ///
    /// # Errors
    ///
    /// Of the connection; `TimedOut` if the other process does not read until the deadline.
    pub(super) fn send(
        &self,
        message: &str,
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
            match sendmsg(&self.0, &[IoSlice::new(message.as_bytes())], &mut ancillary, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => wait(self.0.as_fd(), PollFlags::OUT, deadline)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Receives a message, and a socket if it carries one.
    ///
    /// # Errors
    ///
    /// Of the connection; `UnexpectedEof` if it was closed, `TimedOut` if nothing has arrived by
    /// the deadline.
    pub(super) fn receive(&self, deadline: Instant) -> io::Result<(String, Option<OwnedFd>)> {
        let mut text = [0; MAX_MESSAGE];
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let received =
                match recvmsg(&self.0, &mut [IoSliceMut::new(&mut text)], &mut ancillary, flags) {
                    Ok(received) => received,
                    Err(Errno::INTR) => continue,
                    Err(Errno::AGAIN) => {
                        wait(self.0.as_fd(), PollFlags::IN, deadline)?;
                        continue;
                    }
                    Err(error) => return Err(error.into()),
                };
            if received.bytes == 0 {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the other process has closed the connection",
                ));
            }
            let handle = ancillary.drain().find_map(|message| match message {
                RecvAncillaryMessage::ScmRights(mut handles) => handles.next(),
                _ => None,
            });
            let message = text.get(..received.bytes).unwrap_or_default();
            return Ok((String::from_utf8_lossy(message).into_owned(), handle));
        }
    }

    /// Receives exactly this message.
    ///
    /// # Errors
    ///
    /// As [`receive`](Self::receive); `InvalidData` for another message.
    pub(super) fn expect(&self, message: &str, deadline: Instant) -> io::Result<()> {
        let (received, _) = self.receive(deadline)?;
        if received == message { Ok(()) } else { Err(invalid(&received)) }
    }
}

/// The error for an unexpected message.
pub(super) fn invalid(message: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("unexpected message of the other process: {message:?}"),
    )
}

/// Whether the error means that the other end has closed the connection.
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
    let mut polled = [PollFd::from_borrowed_fd(socket, what)];
    poll_for(&mut polled, left)
}

fn pause(time: Duration) -> io::Result<()> {
    poll_for(&mut [], time)
}

fn poll_for(polled: &mut [PollFd<'_>], time: Duration) -> io::Result<()> {
    let time = Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    };
    match poll(polled, Some(&time)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
