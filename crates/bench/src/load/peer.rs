//! One client connection of a job.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::engine::Engine;

/// A connection that knows what it sends and which reply it expects.
#[derive(Debug)]
pub(crate) struct Peer {
    stream: TcpStream,
    /// How much of the current text has been sent.
    sent: usize,
}

impl Peer {
    /// Connects without blocking; events arrive under `number`.
    pub(crate) fn connect(engine: &Engine, to: SocketAddr, number: usize) -> io::Result<Self> {
        let socket =
            socket2::Socket::new(socket2::Domain::for_address(to), socket2::Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        match socket.connect(&to.into()) {
            Err(error)
                if error.raw_os_error() != Some(rustix::io::Errno::INPROGRESS.raw_os_error()) =>
            {
                return Err(error);
            }
            _ => {}
        }
        let stream: TcpStream = socket.into();
        engine.watch(&stream, number)?;
        Ok(Self { stream, sent: 0 })
    }

    /// Sends the rest of `text`; returns whether all of it was sent.
    pub(crate) fn send(&mut self, text: &[u8]) -> io::Result<bool> {
        while let Some(rest) = text.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match (&self.stream).write(rest) {
                Ok(written) => self.sent += written,
                Err(error) if waits(&error) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Makes the next [`send`](Self::send) start at the beginning of its text.
    pub(crate) fn rewind(&mut self) {
        self.sent = 0;
    }

    /// Reads all available bytes and returns their number. `begin` is the position of the first
    /// byte in the expected `reply`.
    ///
    /// # Errors
    /// If the peer closed the connection or sent something else; of a long reply only the first
    /// bytes of each read are compared.
    pub(crate) fn receive(
        &mut self,
        buffer: &mut [u8],
        reply: &[u8],
        begin: usize,
    ) -> io::Result<usize> {
        let mut came = 0;
        loop {
            match (&self.stream).read(buffer) {
                Ok(0) => {
                    return Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "the other side closed",
                    ));
                }
                Ok(read) => {
                    let at = (begin + came) % reply.len().max(1);
                    let (first, expected) = (buffer.first(), reply.get(at));
                    if first != expected {
                        let text =
                            String::from_utf8_lossy(buffer.get(..read.min(80)).unwrap_or_default())
                                .into_owned();
                        return Err(io::Error::new(
                            io::ErrorKind::InvalidData,
                            format!("unexpected reply {text:?}"),
                        ));
                    }
                    came += read;
                    if read < buffer.len() {
                        return Ok(came);
                    }
                }
                Err(error) if waits(&error) => return Ok(came),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Whether the operation has to wait for an event. A socket that is still connecting reports
/// another error.
fn waits(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected)
}
