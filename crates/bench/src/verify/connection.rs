//! One side of a client: a socket, and the replies that have arrived.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_socket_linger;

use super::reply::{CLOSED, frame, is_maintenance, is_unasked};

/// A connection, and what was received on it.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    unread: Vec<u8>,
    /// Replies and messages in their order; the end of the connection is the last one.
    pub(super) frames: Vec<Vec<u8>>,
    /// How many of them answer a request, the end included.
    pub(super) replies: usize,
    pub(super) is_closed: bool,
    /// It was closed by RST, which may have overtaken replies.
    pub(super) is_reset: bool,
}

impl Connection {
    pub(super) fn open(to: SocketAddr) -> Result<Self, String> {
        let connect = || {
            let stream = TcpStream::connect(to)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            Ok(stream)
        };
        let stream = connect().map_err(|error: std::io::Error| format!("{to}: {error}"))?;
        let (unread, frames) = (Vec::new(), Vec::new());
        Ok(Self { stream, unread, frames, replies: 0, is_closed: false, is_reset: false })
    }

    /// Takes what has arrived; whether anything had.
    pub(super) fn pump(&mut self) -> bool {
        let mut room = vec![0; 64 * 1024];
        let before = (self.unread.len(), self.is_closed);
        while !self.is_closed {
            match self.stream.read(&mut room) {
                Ok(0) => self.is_closed = true,
                Ok(read) => self.unread.extend_from_slice(room.get(..read).unwrap_or_default()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => (self.is_closed, self.is_reset) = (true, true),
            }
        }
        let is_new = before != (self.unread.len(), self.is_closed);
        if is_new {
            self.cut_frames();
        }
        is_new
    }

    fn cut_frames(&mut self) {
        let mut at = 0;
        while let Some(length) = self.unread.get(at..).and_then(frame) {
            let frame = self.unread.get(at..at + length).unwrap_or_default().to_vec();
            self.add(frame);
            at += length;
        }
        self.unread.drain(..at);
        if self.is_closed {
            let rest = std::mem::take(&mut self.unread);
            self.add([&rest, CLOSED].concat());
        }
    }

    fn add(&mut self, frame: Vec<u8>) {
        if is_maintenance(&frame) {
            return;
        }
        self.replies += usize::from(!is_unasked(&frame));
        self.frames.push(frame);
    }

    /// Waits until something arrives, at most for this time.
    pub(super) fn wait(&self, most: Duration) {
        self.poll(PollFlags::IN, most);
    }

    fn poll(&self, flags: PollFlags, most: Duration) {
        let most = Timespec {
            tv_sec: i64::try_from(most.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: most.subsec_nanos().into(),
        };
        // An interrupted wait is a short one: callers check their condition again.
        let _ready = poll(&mut [PollFd::new(&self.stream, flags)], Some(&most));
    }

    /// Sends everything, and reads while the peer does not take it. A closed connection shows in
    /// its replies.
    pub(super) fn send(&mut self, mut bytes: &[u8], patience: Duration) {
        let deadline = Instant::now() + patience;
        while !bytes.is_empty() && !self.is_closed && Instant::now() < deadline {
            match self.stream.write(bytes) {
                Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.poll(PollFlags::IN | PollFlags::OUT, Duration::from_millis(10));
                    self.pump();
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    self.is_reset = true;
                    return;
                }
            }
        }
    }

    pub(super) fn close(self, reset: bool) {
        if reset {
            // Without it the connection ends by FIN, which is a conversation as well.
            let _set = set_socket_linger(&self.stream, Some(Duration::ZERO));
        }
    }
}
